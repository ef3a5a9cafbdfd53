"""Whose certificate is taken for whose: exactly the site's own, of this federation's
root, in its time."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID
from tests.transport.certified import certificate_for, identity, issue, kits

from colonnade.errors import BoundaryError, ConfigError
from colonnade.transport import identity as module
from colonnade.transport.identity import (
    CERTIFICATE,
    KEY,
    ROOT,
    Identity,
    certified,
    fingerprint,
)

SIGNING = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def of_root(name: str = "lab", *, key: Any = OTHER, **more: Any) -> bytes:
    given: dict[str, Any] = {
        "days": 30.0,
        "issuer": "root",
        "issuer_key": SIGNING,
    } | more
    issuer = given.pop("issuer")
    issuer_key = given.pop("issuer_key")
    return certificate_for(name, key, issuer, issuer_key, **given).public_bytes(
        Encoding.DER
    )


def clinic(pinned: dict[str, str] | None = None) -> Identity:
    root = certificate_for("root", SIGNING, "root", SIGNING, days=30.0, may_issue=True)
    return Identity("clinic", of_root("clinic"), OTHER, root, pinned or {})


def test_a_site_is_who_its_certificate_says() -> None:
    assert clinic().check("lab", of_root("lab")) == OTHER.public_key()


ROLE = (x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, "lead"),)
OFFICE = (x509.NameAttribute(NameOID.ORGANIZATION_NAME, "relay"),)
SECOND = (x509.NameAttribute(NameOID.COMMON_NAME, "lab"),)


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        (lambda: of_root("bank"), "that came for 'lab' is of 'bank'"),
        (lambda: of_root("relay.example.org"), "is of 'relay.example.org'"),
        (lambda: of_root("bank", also=SECOND), "that came for 'lab' is of ''"),
        (lambda: of_root(also=ROLE), "a person's or a root's, not a site's"),
        (lambda: of_root(may_issue=True), "a person's or a root's, not a site's"),
        (lambda: of_root(also=OFFICE), "is the relay's, not a site's"),
        # the same name, another root
        (lambda: of_root(issuer_key=OTHER), "not issued by the root of this kit"),
        # by itself
        (
            lambda: of_root(issuer="lab", issuer_key=OTHER),
            "not issued by the root of this kit",
        ),
        (lambda: of_root(days=-0.01), "is valid from .* UTC, and here it is"),
        (lambda: b"", "is none that can be read"),
        (lambda: b"0" * 4000, "is none that can be read"),
        (lambda: of_root()[:-1], "is none that can be read"),
    ],
)
def test_nobody_elses_certificate_passes_for_a_sites(
    certificate: Any, words: str
) -> None:
    with pytest.raises(BoundaryError, match=words):
        clinic().check("lab", certificate())


def test_a_certificate_that_another_site_issued_is_none() -> None:
    """A site's key may sign for itself alone: no chain leads over it."""
    forged = of_root("lab", issuer="bank", issuer_key=OTHER)
    with pytest.raises(BoundaryError, match="not issued by the root"):
        clinic().check("lab", forged)


def test_a_certificate_with_a_changed_byte_is_none() -> None:
    shown = of_root()
    for place in range(0, len(shown), 37):
        changed = shown[:place] + bytes([shown[place] ^ 1]) + shown[place + 1 :]
        with pytest.raises(BoundaryError):
            clinic().check("lab", changed)


def test_neither_of_two_certificates_may_be_out_of_date(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = clinic()
    shown = of_root(days=60.0)
    now = datetime.datetime.now(datetime.UTC)
    monkeypatch.setattr(module, "_now", lambda: now + datetime.timedelta(days=40))
    with pytest.raises(
        BoundaryError, match="The certificate of the root is valid from"
    ):
        mine.check("lab", shown)
    monkeypatch.setattr(module, "_now", lambda: now - datetime.timedelta(days=1))
    with pytest.raises(BoundaryError, match="The certificate of 'lab' is valid from"):
        mine.check("lab", shown)


@pytest.mark.parametrize(
    "key", [ed25519.Ed25519PrivateKey.generate(), rsa.generate_private_key(65537, 1024)]
)
def test_a_weak_or_other_key_is_refused(key: Any) -> None:
    with pytest.raises(BoundaryError, match="no RSA key of 2048 bits or more"):
        clinic().check("lab", of_root(key=key))


def test_who_holds_the_roots_key_cannot_pass_for_a_pinned_peer() -> None:
    own = of_root("lab")
    made_up = of_root("lab", key=SIGNING)
    clinic().check("lab", made_up)  # this is what [peers] ends
    pinned = clinic({"lab": fingerprint(own)})
    pinned.check("lab", own)
    with pytest.raises(
        BoundaryError, match=r"\[peers\] in this organisation's party.toml says sha256:"
    ):
        pinned.check("lab", made_up)
    with pytest.raises(BoundaryError, match=r"party\.toml says None"):
        clinic({"bank": fingerprint(own)}).check("lab", own)


def test_a_signature_holds_for_one_context_and_one_text() -> None:
    mine = clinic()
    signature = mine.sign(b"here", b"text")
    mine.verify("clinic", mine.certificate, b"here", b"text", signature)
    for context, said in ((b"there", b"text"), (b"here", b"other"), (b"her", b"etext")):
        with pytest.raises(BoundaryError, match="is not by its certificate"):
            mine.verify("clinic", mine.certificate, context, said, signature)


def test_nothing_that_flare_has_a_site_sign_can_be_shown_here() -> None:
    """FLARE's client signs its own name and whatever text the relay sends it, by the
    same key."""
    nvflare = pytest.importorskip(
        "nvflare.lighter.utils", reason="needs the extra flare"
    )
    mine = clinic()
    text = "anything"
    signature = nvflare.sign_content(f"clinic{text}", mine.key, return_str=False)
    wanted = module._to_sign(b"here", b"text")
    assert wanted.startswith(b" ")  # and no site's name does
    with pytest.raises(BoundaryError, match="is not by its certificate"):
        mine.verify("clinic", mine.certificate, b"here", b"text", signature)
    # even of the very same bytes
    same = nvflare.sign_content(wanted, mine.key, return_str=False)
    with pytest.raises(BoundaryError, match="is not by its certificate"):
        mine.verify("clinic", mine.certificate, b"here", b"text", same)


def test_a_kits_certificate_and_the_fingerprint_that_its_owner_tells_the_others() -> (
    None
):
    assert certified(kits() / "lab") == (
        "lab",
        fingerprint(identity("lab").certificate),
    )
    assert (
        fingerprint(b"")
        == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    )


def test_a_kit_that_is_not_whole_or_not_this_sites_is_told(tmp_path: Path) -> None:
    issue({"lab": tmp_path})
    with pytest.raises(BoundaryError, match="that came for 'bank' is of 'lab'"):
        Identity.load(tmp_path, "bank")
    assert isinstance(
        load_pem_private_key((tmp_path / KEY).read_bytes(), None), rsa.RSAPrivateKey
    )
    whole = (tmp_path / KEY).read_bytes()
    (tmp_path / KEY).write_bytes((kits() / "lab" / KEY).read_bytes())
    with pytest.raises(ConfigError, match=r"client\.key does not belong to"):
        Identity.load(tmp_path, "lab")
    (tmp_path / KEY).write_bytes(whole[:50])
    with pytest.raises(ConfigError, match=r"client\.key is no key that can be read"):
        Identity.load(tmp_path, "lab")
    (tmp_path / KEY).write_bytes(whole)
    (tmp_path / ROOT).write_bytes((kits() / "lab" / ROOT).read_bytes())
    with pytest.raises(BoundaryError, match="not issued by the root of this kit"):
        Identity.load(tmp_path, "lab")
    (tmp_path / CERTIFICATE).unlink()
    with pytest.raises(
        ConfigError, match=r"client\.crt is no certificate that can be read"
    ):
        Identity.load(tmp_path, "lab")


def test_provisioned_kits_tell_sites_from_the_relay_and_the_lead(
    tmp_path: Path,
) -> None:
    """FLARE's own certificates, as `colonnade provision` has them made."""
    pytest.importorskip("nvflare", reason="needs the extra flare")
    from tests.federation.small import write

    from colonnade.federation import Settings
    from colonnade.flare.provision import provision
    from colonnade.transport.identity import read_certificate

    made = tmp_path / "kits"
    provision(Settings.from_toml(write(tmp_path / "all")), made, server="localhost")
    clinic = Identity.load(made / "parties" / "clinic" / "startup", "clinic")
    lab = Identity.load(made / "parties" / "lab" / "startup", "lab")
    clinic.check("lab", lab.certificate)
    for file, name, words in (
        ("relay/startup/server.crt", "lab", "is of 'localhost'"),
        ("relay/startup/server.crt", "localhost", "is the relay's"),
        ("lead/startup/client.crt", "lab", "is of 'lead@clinic.local'"),
        ("lead/startup/client.crt", "lead@clinic.local", "a person's"),
        ("lead/startup/rootCA.pem", "colonnade", "a person's or a root's"),
    ):
        shown = read_certificate(made / file).public_bytes(Encoding.DER)
        with pytest.raises(BoundaryError, match=words):
            clinic.check(name, shown)
