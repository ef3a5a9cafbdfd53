"""Keys: who they are of, how they are bound, and what is refused."""

from __future__ import annotations

import dataclasses
import stat
from pathlib import Path

import pytest

from colonnade.errors import BoundaryError, ConfigError, NotAsSigned
from colonnade.signing.keys import PublicKey, from_json, load_key, make_key, to_json


def test_a_key_signs_and_its_public_part_checks(tmp_path: Path) -> None:
    key = make_key(tmp_path / "keys" / "lab.pem", "lab")
    key.public.check(b"text", key.sign(b"text"))
    with pytest.raises(NotAsSigned, match="does not fit"):
        key.public.check(b"Text", key.sign(b"text"))


def test_a_key_that_was_loaded_is_the_one_that_was_made(tmp_path: Path) -> None:
    made = make_key(tmp_path / "lab.pem", "lab")
    loaded = load_key(tmp_path / "lab.pem", "lab")
    assert loaded.public == made.public
    made.public.check(b"text", loaded.sign(b"text"))


def test_the_private_key_is_its_owners_alone_and_never_overwritten(
    tmp_path: Path,
) -> None:
    file = tmp_path / "lab.pem"
    make_key(file, "lab")
    before = file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="never overwritten"):
        make_key(file, "lab")
    assert file.read_bytes() == before
    assert b"PRIVATE" not in file.with_suffix(".json").read_bytes()


def test_a_key_without_a_kit_is_unbound(tmp_path: Path) -> None:
    public = make_key(tmp_path / "lab.pem", "lab").public
    assert not public.is_bound
    public.check_bound()  # there is no binding that could be wrong


def test_a_site_binds_its_key_to_its_certificate(
    tmp_path: Path, startup_kits: dict[str, Path]
) -> None:
    public = make_key(tmp_path / "lab.pem", "lab", startup_kits["lab"]).public
    assert public.is_bound
    public.check_bound()
    assert from_json(to_json(public)) == public


def test_nobody_binds_a_key_to_anothers_certificate(
    tmp_path: Path, startup_kits: dict[str, Path]
) -> None:
    with pytest.raises(BoundaryError, match="is of 'lab'"):
        make_key(tmp_path / "clinic.pem", "clinic", startup_kits["lab"])
    assert not (tmp_path / "clinic.pem").exists()


def test_a_binding_holds_for_one_key_one_party_and_one_certificate(
    tmp_path: Path, startup_kits: dict[str, Path]
) -> None:
    lab = make_key(tmp_path / "lab.pem", "lab", startup_kits["lab"]).public
    clinic = make_key(tmp_path / "clinic.pem", "clinic", startup_kits["clinic"]).public
    other = make_key(tmp_path / "other.pem", "lab").public
    for forged in (
        dataclasses.replace(lab, ed25519=other.ed25519),
        dataclasses.replace(lab, certificate=clinic.certificate),
        dataclasses.replace(lab, party="clinic"),
        dataclasses.replace(lab, party="clinic", certificate=clinic.certificate),
        dataclasses.replace(lab, binding=clinic.binding),
        dataclasses.replace(lab, binding=None),
        dataclasses.replace(lab, certificate=b"hostile bytes"),
    ):
        with pytest.raises(NotAsSigned, match="not bound"):
            forged.check_bound()


def test_a_key_of_another_party_or_kind_is_refused(
    tmp_path: Path, startup_kits: dict[str, Path]
) -> None:
    make_key(tmp_path / "lab.pem", "lab")
    with pytest.raises(ConfigError, match="the key of 'lab', not of 'clinic'"):
        load_key(tmp_path / "lab.pem", "clinic")
    make_key(tmp_path / "other.pem", "lab")
    (tmp_path / "lab.json").write_bytes((tmp_path / "other.json").read_bytes())
    with pytest.raises(ConfigError, match="is of another key"):
        load_key(tmp_path / "lab.pem", "lab")
    rsa = startup_kits["lab"] / "client.key"
    (tmp_path / "rsa.pem").write_bytes(rsa.read_bytes())
    (tmp_path / "rsa.json").write_bytes((tmp_path / "other.json").read_bytes())
    with pytest.raises(ConfigError, match="no Ed25519 key"):
        load_key(tmp_path / "rsa.pem", "lab")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"party": 3}', '{"party": "a", "ed25519": "?"}']
)
def test_what_is_no_public_key_is_refused(text: str, tmp_path: Path) -> None:
    make_key(tmp_path / "lab.pem", "lab")
    (tmp_path / "lab.json").write_text(text)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_key(tmp_path / "lab.pem", "lab")


def test_fingerprints_tell_keys_apart(
    tmp_path: Path, startup_kits: dict[str, Path]
) -> None:
    one = make_key(tmp_path / "one.pem", "lab").public
    two = make_key(tmp_path / "two.pem", "lab").public
    bound = make_key(tmp_path / "three.pem", "lab", startup_kits["lab"]).public
    again = make_key(tmp_path / "four.pem", "lab", startup_kits["lab"]).public
    assert len({one.fingerprint, two.fingerprint, bound.fingerprint}) == 3
    assert bound.fingerprint == again.fingerprint, "of the certificate, as in [peers]"
    assert PublicKey("lab", one.ed25519).fingerprint == one.fingerprint
