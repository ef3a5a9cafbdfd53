"""`colonnade sign` and `colonnade verify`: a statement about a run that binds who signs
it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.console import a_run, console, say, shown, typed
from colonnade.cli.options import Json
from colonnade.errors import ConfigError, NotAsSigned, printable
from colonnade.report.page import write as write_report
from colonnade.report.words import epsilon
from colonnade.runs.layout import SIGNING_KEYS
from colonnade.runs.run_directory import to_json
from colonnade.signing.keys import PublicKey, load_key, make_key
from colonnade.signing.signature import (
    STATEMENT,
    Signed,
    statements_in,
)
from colonnade.signing.signature import sign as sign_run
from colonnade.signing.signature import verify as verify_statement
from colonnade.signing.statement import Promise, check_signable

UNBOUND = (
    "This key is unbound: no certificate vouches for it. It shows that statements are"
    " by the holder of one key, not who that is."
)


def sign(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A finished run that was audited.")
    ],
    party: Annotated[
        str, typer.Option("--as", metavar="PARTY", help="Who signs; its part is here.")
    ],
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The signing key; else signing-keys/PARTY.pem beside the run.",
        ),
    ] = None,
    make_key_: Annotated[
        bool,
        typer.Option("--make-key", help="Make that key, and sign nothing."),
    ] = False,
    startup_kit: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --make-key: the site's kit (startup/), to bind the key to it.",
        ),
    ] = None,
) -> None:
    """Sign what a run did: its models and ledgers by SHA-256, who received what, every
    epsilon, and the audit's worst verdict.

    The statement is RUN/signed/PARTY/statement.json, which a person can read, with an
    Ed25519 signature beside it. The report is written anew, since its hash is in the
    statement. Without an audit of these very models nothing is signed.
    """
    file = key or run.resolve().parent / SIGNING_KEYS / f"{party}.pem"
    if make_key_:
        _make(file, party, startup_kit)
        return
    if startup_kit is not None:
        raise ConfigError(
            "--startup-kit is for --make-key, which binds a key to the site. Leave it"
            " out, or make a key."
        )
    a_run(run)
    if not file.exists():
        raise ConfigError(
            f"'{party}' has no signing key {file}. Make one: colonnade sign"
            f" {run} --as {party} --make-key, at a site with --startup-kit DIR."
        )
    signing_key = load_key(file, party)
    check_signable(run, party)
    write_report(run)
    folder = sign_run(run, party, signing_key)
    signed = verify_statement(folder / STATEMENT, run=run)
    _show(signed)
    console.print(
        f"Give {shown(folder)} to who is to check it: colonnade verify"
        f" {typed(folder / STATEMENT)}",
        soft_wrap=True,
        highlight=False,
    )


def verify(
    place: Annotated[
        Path,
        typer.Argument(metavar="RUN|FILE", help="A run, or a statement.json alone."),
    ],
    run: Annotated[
        Path | None,
        typer.Option(
            "--run", metavar="DIR", help="For a FILE: the run to compare it with."
        ),
    ] = None,
    signature: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Else statement.sig beside the statement."),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The signer's; else certificate.pem beside it."
        ),
    ] = None,
    trust: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|sha256:…",
            help="What you know the signer by: its certificate, root or fingerprint.",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Check what was signed, offline: the signature, whose key it is, and with the run
    that no model, ledger or report has changed since. Exit code 7 says what has.
    """
    files = [place]
    if place.is_dir():
        if run is not None or signature is not None or certificate is not None:
            raise ConfigError(
                "--run, --signature and --certificate are for a statement; found the"
                f" folder {place}. Name its statement.json."
            )
        run = place
        files = statements_in(place)
        if not files:
            raise ConfigError(
                f"Nothing is signed in {place}. Sign it: colonnade sign {place} --as"
                " PARTY."
            )
    results = []
    refused = []
    for file in files:
        try:
            signed = verify_statement(
                file,
                signature=signature,
                certificate=certificate,
                trust=trust,
                run=run,
            )
        except NotAsSigned as error:
            refused.append(f"{file}: {error}")
            continue
        results.append(signed)
        if not json_:
            _show(signed)
    if json_:
        typer.echo(to_json([_as_json(signed) for signed in results], indent=2))
    if refused:
        raise NotAsSigned("\n".join(refused))


def _make(file: Path, party: str, startup_kit: Path | None) -> None:
    made = make_key(file, party, startup_kit)
    console.print(
        f"The signing key of '{shown(party)}' is {shown(file)}: keep it, show nobody."
        f" Its fingerprint is {made.public.fingerprint}",
        soft_wrap=True,
        highlight=False,
    )
    if not made.public.is_bound:
        say(UNBOUND)


def _show(signed: Signed) -> None:
    """Print who signed what, and how far that was checked."""
    statement = signed.statement
    _tell(
        f"'{statement.party}' signed {statement.run_name}, the run {statement.run_id},"
        f" at {statement.made}."
    )
    _tell(f"  {_whose(signed.key, is_trusted=signed.is_trusted)}")
    inventory = statement.inventory
    counts = f"{len(inventory.models)} model files, {len(inventory.ledgers)} ledgers"
    records = f"{len(inventory.records)} records"
    compared = "are as they were signed" if signed.is_compared else "were not compared"
    _tell(f"  {counts} and {records} {compared}.")
    _tell(f"  Audit: {statement.verdict}")
    for promise in statement.privacy:
        _tell(f"  {promise.party}'s {promise.protects}: {_in_words(promise)}")


def _tell(text: str) -> None:
    """Print a line with words of others, which a terminal must not obey."""
    say(printable(text), soft_wrap=True)


def _in_words(promise: Promise) -> str:
    if promise.epsilon is None:
        return f"no guarantee against {promise.adversary}"
    return (
        f"epsilon {epsilon(promise.epsilon)} at delta {promise.delta:g} against"
        f" {promise.adversary} ({promise.relation})"
    )


def _whose(key: PublicKey, *, is_trusted: bool) -> str:
    if is_trusted:
        return f"The signer is the one that --trust names ({key.fingerprint})."
    if key.is_bound:
        return (
            f"By the site certificate {key.fingerprint}. Compare it with what"
            f" {key.party} told you, or name its root: --trust FILE."
        )
    return f"By the unbound key {key.fingerprint}, for which no certificate vouches."


def _as_json(signed: Signed) -> dict[str, object]:
    return {
        "statement": json.loads(signed.statement.text),
        "fingerprint": signed.key.fingerprint,
        "bound": signed.key.is_bound,
        "trusted": signed.is_trusted,
        "compared": signed.is_compared,
    }
