"""To sign a run, and to verify what was signed: offline, with or without the run.

`verify` asks four questions, and each may fail by itself:

    Is the statement as it was signed?      the Ed25519 signature over its bytes
    Whose key is it?                        the site's certificate signed the key, and has the party's name
    Is the certificate the right one?       only where the reader says which one to trust
    Is the run as it was signed?            only with the run's folder: its id, and all files hashed again
"""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from colonnade.core.files import replaced_folder, written_out
from colonnade.errors import CheckpointError, ConfigError, NotAsSigned
from colonnade.runs.layout import SIGNED
from colonnade.runs.run_directory import RunDirectory
from colonnade.runs.run_identity import read_identity
from colonnade.signing.inventory import (
    Digests,
    FileDigest,
    digest_of,
    take_inventory,
)
from colonnade.signing.keys import PublicKey, SigningKey, decoded
from colonnade.signing.statement import LARGEST, Statement, parse, state
from colonnade.transport.identity import is_issued_by, read_certificate

STATEMENT = "statement.json"
SIGNATURE = "statement.sig"
CERTIFICATE = "certificate.pem"
KIND = "colonnade signature 1"
SMALL = 1 << 20
"""Bytes of a signature or certificate that is read."""


@dataclass(frozen=True)
class Signed:
    """A statement whose signature holds."""

    file: Path
    statement: Statement
    key: PublicKey
    # the reader named the certificate, its root or its fingerprint
    is_trusted: bool
    # its files were compared with those of a run
    is_compared: bool


def sign(run: Path, party: str, key: SigningKey) -> Path:
    """Sign a run as a party, in place of what this party signed of it before; give the
    folder with statement and signature."""
    statement = state(run, party)
    if statement.part is not None and not key.public.is_bound:
        raise ConfigError(
            f"{run} is a part of a run between sites, where '{party}' has a certificate,"
            " and this key is not bound to it. Make one that is: --make-key"
            " --startup-kit DIR."
        )
    folder = run / SIGNED / party
    if folder.is_symlink() or folder.parent.is_symlink():
        raise ConfigError(f"{folder} is a link out of the run. Remove it.")
    with written_out("The signature", folder), replaced_folder(folder) as fresh:
        (fresh / STATEMENT).write_text(statement.text, encoding="utf-8")
        text = signature_text(key, statement.text.encode())
        (fresh / SIGNATURE).write_text(text, encoding="utf-8")
        if key.public.certificate is not None:
            certificate = x509.load_der_x509_certificate(key.public.certificate)
            (fresh / CERTIFICATE).write_bytes(certificate.public_bytes(Encoding.PEM))
    return folder


def signature_text(key: SigningKey, signed: bytes) -> str:
    """The signature of these bytes, as its file has it."""
    binding = key.public.binding
    about = {
        "kind": KIND,
        "party": key.public.party,
        "ed25519": base64.b64encode(key.public.ed25519).decode(),
        "signature": base64.b64encode(key.sign(signed)).decode(),
        "binding": None if binding is None else base64.b64encode(binding).decode(),
    }
    return json.dumps(about, indent=2) + "\n"


def statements_in(run: Path) -> list[Path]:
    """The statements that were signed of a run. CheckpointError where links stand for
    them, which may lead to another run's."""
    found = sorted((run / SIGNED).glob(f"*/{STATEMENT}"))
    for file in found:
        beside = (file.with_name(name) for name in (SIGNATURE, CERTIFICATE))
        for path in (file, *beside, file.parent, file.parent.parent):
            if path.is_symlink():
                raise CheckpointError(
                    f"{path} is a link out of its run. Put the file itself there."
                )
    return found


def verify(
    file: Path,
    *,
    signature: Path | None = None,
    certificate: Path | None = None,
    trust: str | None = None,
    run: Path | None = None,
) -> Signed:
    """Check a signed statement; NotAsSigned says what does not hold.

    Args:
        file: The statement.
        signature: Its signature; by default statement.sig beside it.
        certificate: The signer's certificate; by default certificate.pem beside it.
        trust: What the reader knows the signer by: a file with the certificate or with
            its root's, or the fingerprint of the certificate or of an unbound key.
        run: The run's folder, with whose files the statement is compared.
    """
    text = _read(file, LARGEST)
    statement = parse(text, str(file))
    shown = _shown_certificate(file, certificate)
    key, signed = _read_signature(signature or file.with_name(SIGNATURE), shown)
    if key.party != statement.party:
        raise NotAsSigned(
            f"The signature is by {key.party[:80]!r}, and the statement is of"
            f" {statement.party[:80]!r}: nobody signs for another."
        )
    key.check(text, signed)
    key.check_bound()
    if statement.part is not None and not key.is_bound:
        raise NotAsSigned(
            f"The statement is about a part of a run between sites, where"
            f" '{key.party}' has a certificate, and the key that signed is not bound to"
            " it. Anybody could have made that key."
        )
    _check_dates(key, statement)
    if trust is not None:
        _check_trusted(key, trust)
    if run is not None:
        _check_run(statement, run)
    return Signed(file, statement, key, trust is not None, run is not None)


def _shown_certificate(file: Path, named: Path | None) -> bytes | None:
    """The signer's certificate in DER; None where there is none, of an unbound key."""
    beside = file.with_name(CERTIFICATE)
    path = named or beside
    if named is None and not beside.exists():
        return None
    _read(path, SMALL)
    return read_certificate(path).public_bytes(Encoding.DER)


def _read_signature(file: Path, certificate: bytes | None) -> tuple[PublicKey, bytes]:
    """The key by which something was signed, and the signature."""
    try:
        about = json.loads(_read(file, SMALL))
        if not isinstance(about, dict) or about.get("kind") != KIND:
            raise ValueError(f'it is no "{KIND}"')
        party = about["party"]
        if not isinstance(party, str):
            raise TypeError("it names no party")
        signed = decoded(about.get("signature"))
        ed25519 = decoded(about.get("ed25519"))
        binding = None
        if about.get("binding") is not None:
            binding = decoded(about["binding"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotAsSigned(f"{file} is no signature: {str(error)[:200]}.") from None
    if binding is not None and certificate is None:
        raise ConfigError(
            f"{file} was made with a site's key, and the site's certificate is missing."
            " Put it beside as certificate.pem, or name it: --certificate FILE."
        )
    return PublicKey(party, ed25519, certificate, binding), signed


def _check_dates(key: PublicKey, statement: Statement) -> None:
    """Raise unless the certificate was valid when the statement says that it was made."""
    if key.certificate is None:
        return
    certificate = x509.load_der_x509_certificate(key.certificate)
    try:
        made = datetime.datetime.fromisoformat(statement.made)
        begins = certificate.not_valid_before_utc
        ends = certificate.not_valid_after_utc
        is_valid = begins <= made <= ends
    except (ValueError, TypeError):
        raise NotAsSigned(f"{statement.made[:80]!r} is no date in UTC.") from None
    if not is_valid:
        raise NotAsSigned(
            f"The statement says that it was made at {statement.made}, and the"
            f" certificate of '{statement.party}' is valid from {begins:%Y-%m-%d %H:%M}"
            f" to {ends:%Y-%m-%d %H:%M} UTC."
        )


def _check_trusted(key: PublicKey, trust: str) -> None:
    """Raise unless the signer is who the reader trusts."""
    if trust.startswith("sha256:"):
        if key.fingerprint != trust.strip().lower():
            raise NotAsSigned(
                f"The signer has the fingerprint {key.fingerprint}, and --trust says"
                f" {trust[:80]}. Somebody else signed in the name of '{key.party}'."
            )
        return
    trusted = read_certificate(Path(trust))
    if key.certificate is None:
        raise NotAsSigned(
            f"The signing key of '{key.party}' is unbound, so no certificate vouches"
            " for it. Trust its fingerprint, if you know it from its owner: --trust"
            f" {key.fingerprint}"
        )
    shown = x509.load_der_x509_certificate(key.certificate)
    if shown != trusted and not is_issued_by(shown, trusted):
        raise NotAsSigned(
            f"The signer's certificate is neither the one in {trust} nor issued by it."
            f" Somebody else signed in the name of '{key.party}'."
        )


def _check_run(statement: Statement, run: Path) -> None:
    """Raise unless this is the run of the statement, with its files as they were."""
    try:
        identity = read_identity(run)
        now = take_inventory(run)
    except CheckpointError as error:
        raise NotAsSigned(
            f"{run} is not as '{statement.party}' signed it at {statement.made}:"
            f" {error}"
        ) from None
    if identity is None or identity.id != statement.run_id:
        found = "none" if identity is None else identity.id
        raise NotAsSigned(
            f"The statement of '{statement.party}' is about the run"
            f" {statement.run_id[:80]}, and {run} is the run {found}."
        )
    signed = statement.inventory
    changes = [
        *_changes(signed.models, now.models, run),
        *_changes(signed.ledgers, now.ledgers, run, may_grow=True),
        *_changes(signed.records, now.records, run),
    ]
    if changes:
        lines = "\n".join(f"    {change}" for change in changes)
        raise NotAsSigned(
            f"{run} is not as '{statement.party}' signed it at {statement.made}:\n"
            f"{lines}\n    Restore what was signed, or audit and sign again."
        )
    if RunDirectory(run).part() != statement.part:
        raise NotAsSigned(
            f"The statement is about {_whole_or_part(statement.part)}, and {run} is"
            f" {_whole_or_part(RunDirectory(run).part())}."
        )


def _whole_or_part(party: str | None) -> str:
    return "a whole run" if party is None else f"the part of '{party}' in a run"


def _changes(
    signed: Digests, now: Digests, run: Path, *, may_grow: bool = False
) -> Iterator[str]:
    """What became of each file since it was signed."""
    for path, before in signed.items():
        found = now.get(path)
        if found is None:
            yield f"{path} is missing"
        elif found != before:
            grew = may_grow and _begins_with(run / path, before, found)
            yield (
                f"{path} grew by {found.bytes - before.bytes:,} bytes: what was signed"
                " is there, and more was released since"
                if grew
                else f"{path} was changed"
            )
    yield from (f"{path} is new" for path in now if path not in signed)


def _begins_with(path: Path, before: FileDigest, now: FileDigest) -> bool:
    # the path is one of the folder's own, since `now` has it
    return now.bytes > before.bytes and digest_of(path, before.bytes) == before


def _read(file: Path, most: int) -> bytes:
    """A whole file, if it is not too large."""
    if file.exists() and not file.is_file():
        raise ConfigError(f"{file} is no plain file. Name a file.")
    try:
        with file.open("rb") as opened:
            content = opened.read(most + 1)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from None
    if len(content) > most:
        raise NotAsSigned(f"{file} has more than {most:,} bytes, and none has so many.")
    return content
