"""A site's identity towards the others: its own certificate and key, and the
certificates it knows the others by.

A startup kit (`federation.provision`) has a site's certificate, its key, and the
certificate of the root that issued those of all sites. A peer is who its certificate
says, where all of this holds:

    issued by the root of this site's own kit, and neither of the two is out of date
    its one common name is the peer's name in the agreed file
    no role (people who start jobs have one), not the relay's organisation, no certificate that may issue others
    where this organisation's party.toml has [peers]: the fingerprint that stands there

The relay has a certificate of the same root, under its host's name, so it passes for no
site. Whoever holds the root's key could make a certificate of any name; [peers] ends
that.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import NameOID

from colonnade.errors import BoundaryError, ConfigError

CERTIFICATE = "client.crt"
KEY = "client.key"
ROOT = "rootCA.pem"
RELAY = "relay"
LEAD = "lead"
"""The organisation in the relay's certificate, and the role in that of who starts runs
(`flare.provision`)."""
BITS = 2048
BEFORE = b" " * 64
"""As TLS 1.3 begins what it signs (RFC 8446, 4.4.3). FLARE signs a site's name and a
text of the relay's choosing with the same key, and no site's name begins with a space:
so nothing that FLARE signs can be shown here."""
PADDING = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


@dataclass(frozen=True)
class Identity:
    """One site's own: it signs as this site, and checks who signed."""

    name: str
    certificate: bytes  # DER
    key: rsa.RSAPrivateKey
    root: x509.Certificate
    # the peers' fingerprints, from party.toml; empty: whatever the root issued
    pinned: Mapping[str, str]

    @classmethod
    def load(
        cls, kit: Path, name: str, pinned: Mapping[str, str] | None = None
    ) -> Identity:
        """From a startup kit's folder `startup`. A kit of another's, or one that is out
        of date, is told at once."""
        own = read_certificate(kit / CERTIFICATE)
        root = read_certificate(kit / ROOT)
        key = read_key(kit / KEY, "the startup kit")
        if (
            not isinstance(key, rsa.RSAPrivateKey)
            or key.public_key() != own.public_key()
        ):
            raise ConfigError(
                f"{kit / KEY} does not belong to {kit / CERTIFICATE}. Take both from"
                " one startup kit."
            )
        identity = cls(
            name,
            own.public_bytes(serialization.Encoding.DER),
            key,
            root,
            dict(pinned or {}),
        )
        identity.check(name, identity.certificate)
        return identity

    def sign(self, context: bytes, said: bytes) -> bytes:
        return sign_with(self.key, context, said)

    def verify(
        self,
        name: str,
        certificate: bytes,
        context: bytes,
        said: bytes,
        signature: bytes,
    ) -> None:
        """That the site of this name signed what was said, in this context and no
        other."""
        check_signature(self.check(name, certificate), name, context, said, signature)

    def verify_lead(
        self,
        name: str,
        certificate: bytes,
        context: bytes,
        said: bytes,
        signature: bytes,
    ) -> None:
        """That the lead of this name did, who starts runs and is no site."""
        key, shown = self._issued(name, certificate)
        role = [
            office.value
            for office in shown.subject.get_attributes_for_oid(
                NameOID.UNSTRUCTURED_NAME
            )
        ]
        if role != [LEAD] or _may_issue(shown):
            raise BoundaryError(
                f"The certificate that came for {name!r} is not that of who starts"
                " runs."
            )
        check_signature(key, name, context, said, signature)

    def check(self, name: str, certificate: bytes) -> rsa.RSAPublicKey:
        """The key of the site of this name, where the certificate is its."""
        key, shown = self._issued(name, certificate)
        check_is_site(name, shown)
        if (
            self.pinned
            and name != self.name
            and self.pinned.get(name) != fingerprint(certificate)
        ):
            raise BoundaryError(
                f"The certificate of {name!r} has the fingerprint"
                f" {fingerprint(certificate)}, and [peers] in this organisation's"
                f" party.toml says {self.pinned.get(name)}. Ask {name!r} which is its"
                " own; somebody may have made a certificate in its name."
            )
        return key

    def _issued(
        self, name: str, certificate: bytes
    ) -> tuple[rsa.RSAPublicKey, x509.Certificate]:
        """A certificate of this name that the root of this kit issued and that is not
        out of date, and its key."""
        key, shown = read_shown(name, certificate)
        if not is_issued_by(shown, self.root):
            raise BoundaryError(
                f"The certificate of {name!r} is not issued by the root of this kit."
                " Use kits of one `provision`."
            )
        for whose, one in ((f"of {name!r}", shown), ("of the root", self.root)):
            if not one.not_valid_before_utc <= _now() <= one.not_valid_after_utc:
                raise BoundaryError(
                    f"The certificate {whose} is valid from"
                    f" {one.not_valid_before_utc:%Y-%m-%d %H:%M} to"
                    f" {one.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, and here it is"
                    f" {_now():%Y-%m-%d %H:%M}. Provision again, or set the clock."
                )
        check_names(name, shown)
        return key, shown


def read_shown(
    name: str, certificate: bytes
) -> tuple[rsa.RSAPublicKey, x509.Certificate]:
    """Read a certificate in DER that was shown as the one of this name, and its key.
    Nothing else of it is checked here."""
    try:
        shown = x509.load_der_x509_certificate(certificate)
        key = shown.public_key()
        common_name(shown), _may_issue(shown)
    except Exception:  # whatever a parser makes of hostile bytes
        raise BoundaryError(
            f"What came as the certificate of {name!r} is none that can be read."
        ) from None
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size < BITS:
        raise BoundaryError(
            f"The certificate of {name!r} has no RSA key of {BITS} bits or more."
        )
    return key, shown


def is_issued_by(shown: x509.Certificate, root: x509.Certificate) -> bool:
    try:
        shown.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def check_names(name: str, shown: x509.Certificate) -> None:
    """Raise unless a certificate is of this name."""
    if (found := common_name(shown)) != name:
        raise BoundaryError(
            f"The certificate that came for {name!r} is of {found[:80]!r}."
        )


def check_is_site(name: str, shown: x509.Certificate) -> None:
    """Raise unless a certificate is a site's: not a person's, a root's or the relay's."""
    offices = shown.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    roles = shown.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)
    if roles or _may_issue(shown):
        raise BoundaryError(
            f"The certificate that came for {name!r} is a person's or a root's, not a"
            " site's."
        )
    if any(office.value == RELAY for office in offices):
        raise BoundaryError(
            f"The certificate that came for {name!r} is the relay's, not a site's."
        )


def fingerprint(certificate: bytes) -> str:
    """The fingerprint of a certificate in DER, as [peers] has it."""
    return f"sha256:{hashlib.sha256(certificate).hexdigest()}"


def certified(kit: Path) -> tuple[str, str]:
    """The name in a startup kit's certificate, and its fingerprint."""
    certificate = read_certificate(kit / CERTIFICATE)
    return common_name(certificate), fingerprint(
        certificate.public_bytes(serialization.Encoding.DER)
    )


def read_key(file: Path, kit: str) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(file.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        raise ConfigError(
            f"{file} is no key that can be read. Take it from {kit} again."
        ) from None


def read_certificate(file: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError):
        raise ConfigError(
            f"{file} is no certificate that can be read. Take it from the startup kit"
            " again."
        ) from None


def common_name(certificate: x509.Certificate) -> str:
    """The one name in a certificate; "" where there is none, or more than one."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def _may_issue(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(
            x509.BasicConstraints
        ).value.ca
    except x509.ExtensionNotFound:
        return False


def sign_with(key: rsa.RSAPrivateKey, context: bytes, said: bytes) -> bytes:
    return key.sign(_to_sign(context, said), PADDING, hashes.SHA256())


def check_signature(
    key: rsa.RSAPublicKey, name: str, context: bytes, said: bytes, signature: bytes
) -> None:
    """Raise unless this key signed what was said, in this context and no other."""
    try:
        key.verify(signature, _to_sign(context, said), PADDING, hashes.SHA256())
    except InvalidSignature:
        raise BoundaryError(
            f"The signature that came in the name of {name!r} is not by its"
            " certificate."
        ) from None


def _to_sign(context: bytes, said: bytes) -> bytes:
    return BEFORE + context + b"\0" + hashlib.sha256(said).digest()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
