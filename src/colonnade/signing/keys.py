"""The keys by which parties sign: Ed25519, each in a file of its owner's.

A site's certificate (`transport.identity`) has an RSA key, which signs calls. It also
signs, once, which Ed25519 key is the site's for statements. So whoever has the
certificate can follow the chain:

    certificate of the site  ->  binding: this Ed25519 key is mine  ->  signature of a statement

Where all parties are in one process there are no certificates. A key that is made there
is unbound: it shows that statements are by the holder of one key, and not who that is.

    signing-keys/NAME.pem    the private key, readable by its owner alone
    signing-keys/NAME.json   what others may see: party, public key, certificate, binding
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from colonnade.errors import BoundaryError, ConfigError, NotAsSigned
from colonnade.settings.sections import is_name
from colonnade.transport.identity import (
    Identity,
    check_is_site,
    check_names,
    check_signature,
    fingerprint,
    read_key,
    read_shown,
)

BINDING = b"colonnade signing key 1"
"""The context in which a certificate's key signs an Ed25519 key, and nothing else."""


@dataclass(frozen=True)
class PublicKey:
    """What a reader needs to check signatures of one party."""

    party: str
    ed25519: bytes
    # in DER, and by its key that `ed25519` is the party's; none of an unbound key
    certificate: bytes | None = None
    binding: bytes | None = None

    @property
    def is_bound(self) -> bool:
        return self.certificate is not None

    @property
    def fingerprint(self) -> str:
        """Of the certificate, as in [peers]; of the key itself where it is unbound."""
        if self.certificate is not None:
            return fingerprint(self.certificate)
        return f"sha256:{hashlib.sha256(self.ed25519).hexdigest()}"

    def check_bound(self) -> None:
        """Raise unless the certificate is a site's, of this party's name, and its key
        signed this Ed25519 key."""
        if self.certificate is None:
            return
        try:
            key, shown = read_shown(self.party, self.certificate)
            check_names(self.party, shown)
            check_is_site(self.party, shown)
            said = _to_bind(self.party, self.ed25519)
            check_signature(key, self.party, BINDING, said, self.binding or b"")
        except BoundaryError as error:
            raise NotAsSigned(
                f"The signing key is not bound to '{self.party}'. {error}"
            ) from None

    def check(self, signed: bytes, signature: bytes) -> None:
        """Raise unless this key signed these bytes."""
        try:
            Ed25519PublicKey.from_public_bytes(self.ed25519).verify(signature, signed)
        except (InvalidSignature, ValueError):
            raise NotAsSigned(
                "The signature does not fit the statement: the statement was changed"
                f" after '{self.party}' signed it, or it is another's signature."
            ) from None


@dataclass(frozen=True)
class SigningKey:
    private: Ed25519PrivateKey
    public: PublicKey

    def sign(self, text: bytes) -> bytes:
        return self.private.sign(text)


def make_key(file: Path, party: str, kit: Path | None = None) -> SigningKey:
    """Make a key for a party, in a file that must not exist yet.

    Args:
        file: Where the private key goes, as NAME.pem; NAME.json lies beside it.
        party: Who signs with it.
        kit: The folder `startup` of the site's startup kit, to which the key is bound.
            Without one the key is unbound.
    """
    if not is_name(party):
        raise ConfigError(f"{party!r} is no name of a party.")
    private = Ed25519PrivateKey.generate()
    ed25519 = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    public = PublicKey(party, ed25519)
    if kit is not None:
        identity = Identity.load(kit, party)
        binding = identity.sign(BINDING, _to_bind(party, ed25519))
        public = PublicKey(party, ed25519, identity.certificate, binding)
        public.check_bound()
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write_new(file, pem, mode=0o600)
    _write_new(file.with_suffix(".json"), to_json(public).encode(), mode=0o644)
    return SigningKey(private, public)


def load_key(file: Path, party: str) -> SigningKey:
    """Read a party's key; ConfigError where it is another's, or damaged."""
    private = read_key(file, "a copy")
    beside = file.with_suffix(".json")
    try:
        public = from_json(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{beside} cannot be read ({type(error).__name__}). Take it from a copy, or"
            f" remove it and {file.name} and make a new key: --make-key."
        ) from None
    if not isinstance(private, Ed25519PrivateKey):
        raise ConfigError(f"{file} is no Ed25519 key. Make one: --make-key.")
    if public.party != party:
        raise ConfigError(f"{file} is the key of {public.party!r}, not of {party!r}.")
    own = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    if own != public.ed25519:
        raise ConfigError(f"{beside} is of another key than {file}. Take a copy.")
    try:
        public.check_bound()
    except NotAsSigned as error:
        raise ConfigError(f"{beside}: {error}") from None
    return SigningKey(private, public)


def to_json(key: PublicKey) -> str:
    """A public key as text; `from_json` reads it."""
    about = {
        "party": key.party,
        "ed25519": base64.b64encode(key.ed25519).decode(),
        "certificate": _encoded(key.certificate),
        "binding": _encoded(key.binding),
    }
    return json.dumps(about, indent=2) + "\n"


def from_json(text: str) -> PublicKey:
    """Read a public key. ValueError says what is wrong with it."""
    about = json.loads(text)
    if not isinstance(about, dict) or not isinstance(about.get("party"), str):
        raise ValueError("it names no party")  # noqa: TRY004
    ed25519 = decoded(about.get("ed25519"))
    certificate = about.get("certificate")
    binding = about.get("binding")
    return PublicKey(
        about["party"],
        ed25519,
        None if certificate is None else decoded(certificate),
        None if binding is None else decoded(binding),
    )


def decoded(text: object) -> bytes:
    """Bytes in base64. ValueError where the text is none."""
    if not isinstance(text, str):
        raise ValueError("it lacks text in base64")  # noqa: TRY004
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("it is no base64") from None


def _encoded(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _to_bind(party: str, ed25519: bytes) -> bytes:
    return json.dumps({"party": party, "ed25519": ed25519.hex()}).encode()


def _write_new(file: Path, content: bytes, *, mode: int) -> None:
    """Write a file that must not be there yet."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise ConfigError(
            f"{file} is there already, and a key is never overwritten: what it signed"
            " could not be checked any more. Use it, or name another with --key."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror}. Name another with --key."
        ) from None
    with os.fdopen(number, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
