"""Signatures against hostile hands: what was changed, swapped, replayed or forged is
found, and what was not is not."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.signing.signed import copied, mark_as
from tests.transport.certified import certificate_for, issue

from colonnade.attacks.rehearsal import model_files
from colonnade.core.files import json_with_digest, read_json
from colonnade.errors import CheckpointError, ConfigError, NotAsSigned
from colonnade.signing import signature, statement
from colonnade.signing.keys import SigningKey, make_key
from colonnade.signing.signature import (
    CERTIFICATE,
    SIGNATURE,
    STATEMENT,
    sign,
    signature_text,
    statements_in,
    verify,
)


@pytest.fixture(scope="module")
def unbound(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return make_key(tmp_path_factory.mktemp("keys") / "lab.pem", "lab")


@pytest.fixture(scope="module")
def bound(
    tmp_path_factory: pytest.TempPathFactory, startup_kits: dict[str, Path]
) -> SigningKey:
    file = tmp_path_factory.mktemp("keys") / "lab.pem"
    return make_key(file, "lab", startup_kits["lab"])


@pytest.fixture(scope="module")
def once(
    original: Path, bound: SigningKey, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    run = copied(original, tmp_path_factory.mktemp("signed") / "run")
    sign(run, "lab", bound)
    return run


@pytest.fixture
def signed(once: Path, tmp_path: Path) -> Path:
    """A run that the lab signed, which a test may change."""
    return copied(once, tmp_path / "signed")


def own(run: Path) -> Path:
    return run / "signed" / "lab"


def test_what_was_signed_holds_with_the_run_and_without(signed: Path) -> None:
    with_run = verify(own(signed) / STATEMENT, run=signed)
    assert with_run.is_compared
    assert with_run.key.is_bound
    assert not with_run.is_trusted, "nobody said whose certificate to trust"
    shutil.rmtree(signed / "parties")
    alone = verify(own(signed) / STATEMENT)
    assert not alone.is_compared
    assert alone.statement == with_run.statement


def test_three_files_are_enough_wherever_they_lie(signed: Path, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("a.json", "b.sig", "c.pem")]
    for name, place in zip((STATEMENT, SIGNATURE, CERTIFICATE), places, strict=True):
        shutil.move(own(signed) / name, place)
    file, by, certificate = places
    held = verify(file, signature=by, certificate=certificate, trust=str(certificate))
    assert held.is_trusted


def test_the_signature_is_plain_ed25519_over_the_files_bytes(
    signed: Path, bound: SigningKey
) -> None:
    """So other tools can check it, too."""
    about = json.loads((own(signed) / SIGNATURE).read_text())
    from base64 import b64decode

    bound.private.public_key().verify(
        b64decode(about["signature"]), (own(signed) / STATEMENT).read_bytes()
    )


def flip(file: Path, at: int = -1) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "path",
    [
        "parties/lab/checkpoint-000004/tensors.safetensors",
        "parties/clinic/checkpoint-000004/tensors.safetensors",
        "parties/clinic/checkpoint-000004/state.json",
        "parties/lab/ledger.jsonl",
        "parties/clinic/ledger.jsonl",
        "parties/lab/columns.json",
        "report.html",
        "audit/audit.json",
        "federation.toml",
        "summary.json",
        "metrics.jsonl",
    ],
)
def test_one_bit_of_any_file_is_found_and_named(signed: Path, path: str) -> None:
    flip(signed / path, at=len((signed / path).read_bytes()) // 2)
    with pytest.raises(NotAsSigned, match=path) as told:
        verify(own(signed) / STATEMENT, run=signed)
    assert told.value.exit_code == 7
    verify(own(signed) / STATEMENT)  # by itself it holds


@pytest.mark.parametrize("path", ["run.json", "checkpoint.json"])
def test_one_bit_of_what_names_the_run_is_found(signed: Path, path: str) -> None:
    flip(signed / path, at=20)
    with pytest.raises(NotAsSigned):
        verify(own(signed) / STATEMENT, run=signed)


def test_files_that_are_gone_or_new_are_named(signed: Path) -> None:
    (signed / "parties" / "lab" / "ledger.jsonl").unlink()
    model = next((signed / "parties" / "lab").glob("checkpoint-*"))
    (model / "another.safetensors").write_bytes(b"")
    (signed / "parties" / "bank").mkdir()
    (signed / "parties" / "bank" / "ledger.jsonl").write_text("{}\n")
    with pytest.raises(NotAsSigned) as told:
        verify(own(signed) / STATEMENT, run=signed)
    assert "parties/lab/ledger.jsonl is missing" in str(told.value)
    assert "another.safetensors is new" in str(told.value)
    assert "parties/bank/ledger.jsonl is new" in str(told.value)


def test_a_ledger_that_grew_is_told_from_one_that_was_changed(signed: Path) -> None:
    """Whoever predicts after signing releases more."""
    grown = signed / "parties" / "lab" / "ledger.jsonl"
    grown.write_bytes(grown.read_bytes() + b'{"more": 1}\n')
    later = signed / "parties" / "clinic" / "ledger-after.jsonl"
    later.write_text('{"more": 1}\n')
    with pytest.raises(NotAsSigned) as told:
        verify(own(signed) / STATEMENT, run=signed)
    assert "lab/ledger.jsonl grew by 12 bytes" in str(told.value)
    assert "more was released since" in str(told.value)
    assert "clinic/ledger-after.jsonl is new" in str(told.value)


def test_ledgers_that_were_swapped_are_found(signed: Path) -> None:
    lab = signed / "parties" / "lab" / "ledger.jsonl"
    clinic = signed / "parties" / "clinic" / "ledger.jsonl"
    before = lab.read_bytes()
    lab.write_bytes(clinic.read_bytes())
    clinic.write_bytes(before)
    with pytest.raises(NotAsSigned) as told:
        verify(own(signed) / STATEMENT, run=signed)
    assert "parties/lab/ledger.jsonl was changed" in str(told.value)
    assert "parties/clinic/ledger.jsonl" in str(told.value)


def test_a_run_that_was_trained_further_is_found(signed: Path) -> None:
    mark_as(signed, finished=False)
    with pytest.raises(NotAsSigned, match=r"checkpoint\.json was changed"):
        verify(own(signed) / STATEMENT, run=signed)


def test_a_statement_that_was_edited_does_not_hold(signed: Path) -> None:
    file = own(signed) / STATEMENT
    file.write_text(file.read_text().replace('"leaks": true', '"leaks": false', 1))
    said = json.loads(file.read_text())
    said["sent"] = []
    file.write_text(statement.canonical(said))
    with pytest.raises(NotAsSigned, match="does not fit the statement"):
        verify(file)


def edited(run: Path) -> bytes:
    """Somebody takes what left out of a statement."""
    said = json.loads((own(run) / STATEMENT).read_text())
    text = statement.canonical(said | {"sent": []}).encode()
    (own(run) / STATEMENT).write_bytes(text)
    return text


def test_signing_again_with_another_key_is_found(
    signed: Path, unbound: SigningKey
) -> None:
    """The certificate vouches for one key. Without it the signature says that it is
    unbound, and its fingerprint is another."""
    text = edited(signed)
    before = json.loads((own(signed) / SIGNATURE).read_text())
    forged = json.loads(signature_text(unbound, text))
    for binding in (None, before["binding"]):
        (own(signed) / SIGNATURE).write_text(json.dumps(forged | {"binding": binding}))
        with pytest.raises(NotAsSigned, match="not bound"):
            verify(own(signed) / STATEMENT)
    (own(signed) / CERTIFICATE).unlink()
    (own(signed) / SIGNATURE).write_text(json.dumps(forged))
    held = verify(own(signed) / STATEMENT)
    assert not held.key.is_bound
    with pytest.raises(NotAsSigned, match="Somebody else signed"):
        verify(own(signed) / STATEMENT, trust="sha256:" + "0" * 64)


def test_a_root_of_ones_own_is_found_by_whoever_knows_the_certificate(
    signed: Path, tmp_path: Path, startup_kits: dict[str, Path]
) -> None:
    issue({"lab": tmp_path / "forged"})
    text = edited(signed)
    forged = make_key(tmp_path / "forged.pem", "lab", tmp_path / "forged")
    (own(signed) / SIGNATURE).write_text(signature_text(forged, text))
    shutil.copy(tmp_path / "forged" / "client.crt", own(signed) / CERTIFICATE)
    file = own(signed) / STATEMENT
    held = verify(file)
    assert not held.is_trusted
    right = startup_kits["lab"]
    for trust in (
        str(right / "client.crt"),
        str(right / "rootCA.pem"),
        verify_fingerprint(right),
    ):
        with pytest.raises(NotAsSigned, match="Somebody else signed"):
            verify(file, trust=trust)


def verify_fingerprint(kit: Path) -> str:
    from colonnade.transport.identity import certified

    return certified(kit)[1]


def test_the_certificate_its_root_and_its_fingerprint_are_trusted(
    signed: Path, startup_kits: dict[str, Path]
) -> None:
    kit = startup_kits["lab"]
    for trust in (
        str(kit / "client.crt"),
        str(kit / "rootCA.pem"),
        verify_fingerprint(kit),
    ):
        assert verify(own(signed) / STATEMENT, trust=trust).is_trusted


def test_a_certificate_of_another_party_is_refused(
    signed: Path, startup_kits: dict[str, Path]
) -> None:
    other = startup_kits["clinic"] / "client.crt"
    with pytest.raises(NotAsSigned, match="is of 'clinic'"):
        verify(own(signed) / STATEMENT, certificate=other)


def test_nobody_signs_for_another(
    signed: Path, tmp_path: Path, startup_kits: dict[str, Path]
) -> None:
    """The clinic's own key under what the lab said."""
    clinic = make_key(tmp_path / "clinic.pem", "clinic", startup_kits["clinic"])
    text = (own(signed) / STATEMENT).read_bytes()
    (own(signed) / SIGNATURE).write_text(signature_text(clinic, text))
    shutil.copy(startup_kits["clinic"] / "client.crt", own(signed) / CERTIFICATE)
    with pytest.raises(NotAsSigned, match="nobody signs for another"):
        verify(own(signed) / STATEMENT)


def test_a_persons_or_the_relays_certificate_signs_nothing(
    signed: Path, tmp_path: Path
) -> None:
    """As a site's, they are of the root, and may even have a site's name."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import NameOID

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for kind, value in (
        (NameOID.UNSTRUCTURED_NAME, "lead"),
        (NameOID.ORGANIZATION_NAME, "relay"),
    ):
        also = (x509.NameAttribute(kind, value),)
        shown = certificate_for("lab", key, "root", key, also=also)
        file = tmp_path / f"{value}.pem"
        file.write_bytes(shown.public_bytes(Encoding.PEM))
        with pytest.raises(NotAsSigned, match="not a site's"):
            verify(own(signed) / STATEMENT, certificate=file)


def test_a_signature_is_not_replayed_on_another_run(
    signed: Path, original: Path, tmp_path: Path
) -> None:
    """Also not on one whose files are the same, but for its id."""
    other = copied(original, tmp_path / "other")
    identity = read_json(other / "run.json")
    identity["id"] = "0" * 32
    (other / "run.json").write_text(json_with_digest(identity))
    shutil.copytree(signed / "signed", other / "signed")
    with pytest.raises(NotAsSigned, match="is about the run"):
        verify(own(other) / STATEMENT, run=other)


def test_a_certificate_that_was_not_valid_then_is_refused(
    original: Path, tmp_path: Path, bound: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied(original, tmp_path / "late")
    said = json.loads(statement.state(run, "lab").text)
    later = statement.canonical(said | {"made": "2199-01-01T00:00:00+00:00"})
    parsed = statement.parse(later.encode(), "it")
    monkeypatch.setattr(signature, "state", lambda *_: parsed)
    sign(run, "lab", bound)
    with pytest.raises(NotAsSigned, match="is valid from"):
        verify(own(run) / STATEMENT)


def test_a_part_of_a_run_between_sites_takes_a_bound_key(
    run: Path, unbound: SigningKey, bound: SigningKey
) -> None:
    """With an unbound one, nothing is signed, and nothing that was is taken."""
    shutil.rmtree(run / "parties" / "clinic")
    audit = run / "audit" / "audit.json"
    audit.write_text(audit_of_what_is_here(run, audit))
    with pytest.raises(ConfigError, match="not bound to it"):
        sign(run, "lab", unbound)
    folder = sign(run, "lab", bound)
    held = verify(folder / STATEMENT, run=run)
    assert held.statement.part == "lab"
    text = (folder / STATEMENT).read_bytes()
    (folder / SIGNATURE).write_text(signature_text(unbound, text))
    (folder / CERTIFICATE).unlink()
    with pytest.raises(NotAsSigned, match="between sites"):
        verify(folder / STATEMENT)


def audit_of_what_is_here(run: Path, audit: Path) -> str:
    """The audit, as if it had been made of the models that are left."""
    about = json.loads(audit.read_text())
    return json.dumps(about | {"model_files": model_files(run)})


def test_a_part_is_not_passed_off_as_a_whole_run(
    run: Path, bound: SigningKey, unbound: SigningKey
) -> None:
    """By that, an unbound key would do."""
    shutil.rmtree(run / "parties" / "clinic")
    audit = run / "audit" / "audit.json"
    audit.write_text(audit_of_what_is_here(run, audit))
    folder = sign(run, "lab", bound)
    said = json.loads((folder / STATEMENT).read_text())
    said["run"]["part"] = None
    text = statement.canonical(said).encode()
    (folder / STATEMENT).write_bytes(text)
    (folder / SIGNATURE).write_text(signature_text(unbound, text))
    (folder / CERTIFICATE).unlink()
    with pytest.raises(NotAsSigned, match="is the part of 'lab'"):
        verify(folder / STATEMENT, run=run)


def test_several_parties_sign_the_same_run(
    original: Path, tmp_path: Path, unbound: SigningKey
) -> None:
    run = copied(original, tmp_path / "both")
    sign(run, "lab", unbound)
    sign(run, "clinic", make_key(tmp_path / "clinic.pem", "clinic"))
    files = statements_in(run)
    assert [file.parent.name for file in files] == ["clinic", "lab"]
    for file in files:
        verify(file, run=run)


@pytest.mark.parametrize("name", [STATEMENT, SIGNATURE, CERTIFICATE])
def test_links_in_a_run_are_not_followed(
    signed: Path, tmp_path: Path, name: str
) -> None:
    (own(signed) / name).rename(tmp_path / name)
    (own(signed) / name).symlink_to(tmp_path / name)
    with pytest.raises(CheckpointError, match="link"):
        statements_in(signed)


def test_nothing_is_written_through_a_link(
    run: Path, tmp_path: Path, unbound: SigningKey
) -> None:
    (tmp_path / "outside").mkdir()
    (run / "signed").mkdir()
    own(run).symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigError, match="link out of the run"):
        sign(run, "lab", unbound)
    assert not any((tmp_path / "outside").iterdir())


def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(signed: Path) -> None:
    ledger = signed / "parties" / "lab" / "ledger.jsonl"
    ledger.unlink()
    os.mkfifo(ledger)
    with pytest.raises(NotAsSigned, match="no plain file"):
        verify(own(signed) / STATEMENT, run=signed)
    (own(signed) / SIGNATURE).unlink()
    os.mkfifo(own(signed) / SIGNATURE)
    with pytest.raises(ConfigError, match="no plain file"):
        verify(own(signed) / STATEMENT)


@pytest.mark.parametrize("name", [STATEMENT, SIGNATURE, CERTIFICATE])
def test_huge_files_are_not_read(
    signed: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signature, "LARGEST", 1 << 20)
    with (own(signed) / name).open("ab") as file:
        file.truncate(1 << 40)  # a hole, which takes no room
    with pytest.raises(NotAsSigned, match="bytes"):
        verify(own(signed) / STATEMENT)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", '{"kind": "colonnade signature 1"}', "[" * 100_000],
)
def test_what_is_no_signature_is_refused(signed: Path, text: str) -> None:
    (own(signed) / SIGNATURE).write_text(text)
    with pytest.raises(NotAsSigned, match="no signature"):
        verify(own(signed) / STATEMENT)


def test_no_path_of_a_statement_is_opened(
    signed: Path, bound: SigningKey, tmp_path: Path
) -> None:
    """Whoever signs could name files of the reader's, to see whether they are there."""
    said = json.loads((own(signed) / STATEMENT).read_text())
    outside = tmp_path / "outside"
    outside.write_bytes(b"")
    empty = {"sha256": "e3b0c44298fc1c149afbf4c8996fb924" * 2, "bytes": 0}
    said["ledgers"]["../outside"] = empty
    said["ledgers"][str(outside)] = empty
    text = statement.canonical(said).encode()
    (own(signed) / STATEMENT).write_bytes(text)
    (own(signed) / SIGNATURE).write_text(signature_text(bound, text))
    with pytest.raises(NotAsSigned) as told:
        verify(own(signed) / STATEMENT, run=signed)
    assert "../outside is missing" in str(told.value)
