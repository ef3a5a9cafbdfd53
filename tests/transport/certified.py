"""Sites with certificates of one root, made once per process of tests: RSA keys take a
while. No FLARE is needed."""

from __future__ import annotations

import atexit
import datetime
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from colonnade.transport.channel import Channel
from colonnade.transport.identity import CERTIFICATE, KEY, ROOT, Identity
from colonnade.transport.remote import Endpoint, Route

NAMES = ("asker", "ada", "bob", "clinic", "lab")


def certificate_for(
    name: str,
    key: Any,
    issuer: str,
    issuer_key: rsa.RSAPrivateKey,
    *,
    days: float = 30.0,
    may_issue: bool = False,
    also: tuple[x509.NameAttribute[str], ...] = (),
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name), *also]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(
            x509.BasicConstraints(ca=may_issue, path_length=None), critical=True
        )
        .sign(issuer_key, hashes.SHA256())
    )


def issue(folders: Mapping[str, Path]) -> None:
    """A kit's three files in each folder."""
    root_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    root = certificate_for("root", root_key, "root", root_key, may_issue=True)
    for name, folder in folders.items():
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CERTIFICATE).write_bytes(
            certificate_for(name, key, "root", root_key).public_bytes(Encoding.PEM)
        )
        (folder / ROOT).write_bytes(root.public_bytes(Encoding.PEM))
        (folder / KEY).write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )


@cache
def kits() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="colonnade-kits-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    issue({name: folder / name for name in NAMES})
    return folder


@cache
def identity(name: str) -> Identity:
    return Identity.load(kits() / name, name)


def channel(name: str, run: str = "run") -> Channel:
    return Channel(identity(name), NAMES, run)


def carried_to(answerer: Channel, desk: Endpoint) -> Route:
    """An honest carrier."""
    return lambda data, _deadline: answerer.answer(data, desk, "who the carrier says")


class Mirror(Endpoint):
    """Answers what it was asked, and by whom; remembers what was refused."""

    def __init__(self) -> None:
        self.refusals: list[tuple[str, str]] = []
        self.calls: list[tuple[str, bytes]] = []
        super().__init__(
            "lab",
            lambda _: None,  # type: ignore[arg-type, return-value]
            admitted=(),
            allow=lambda *_: None,
            refused=lambda *why: self.refusals.append(why),
        )

    def __call__(self, caller: str, data: bytes) -> bytes:
        self.calls.append((caller, data))
        return b"to " + caller.encode() + b": " + data


class Wire:
    """A carrier that keeps all it carried, and does with it what a test says."""

    def __init__(self, answerer: Channel, desk: Endpoint) -> None:
        self.carry = carried_to(answerer, desk)
        self.seen: list[tuple[bytes, bytes]] = []
        self.there: Callable[[bytes], bytes] = lambda data: data
        self.back: Callable[[bytes], bytes] = lambda data: data

    def __call__(self, data: bytes, deadline: float) -> bytes:
        reply = self.carry(self.there(data), deadline)
        self.seen.append((data, reply))
        return self.back(reply)


def pair(
    caller: str = "clinic", answerer: str = "lab"
) -> tuple[Route, Wire, Mirror, Channel]:
    desk = Mirror()
    end = channel(answerer)
    wire = Wire(end, desk)
    return channel(caller).line(answerer, wire), wire, desk, end
