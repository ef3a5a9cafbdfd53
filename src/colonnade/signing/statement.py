"""What one party signs about a run: one JSON object, the same to the byte wherever it is
written.

    kind            "colonnade statement 1"
    party           who signs
    made            when, UTC, by the clock of the machine that signs
    version         of Colonnade, which wrote the statement
    run             id, name, begun, version that began it, algorithm, and whose part this is
    audit           the worst verdict, and whether something leaks
    privacy         each guarantee: whose, of what, against whom, epsilon and delta
    sent            what left this party: a line per receiver and release, with its rule
    received        what came to this party, a line per sender and release
    columns         this party's own columns, and of nobody else
    records         SHA-256 and size of settings, measurements, columns, audit and report
    ledgers         the same of each ledger
    models          the same of each party's model files
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from colonnade.core.files import hold
from colonnade.errors import CheckpointError, ConfigError, NotAsSigned
from colonnade.federation.guarantees import of_run
from colonnade.runs.history import Crossing, crossings
from colonnade.runs.layout import LOCK, PARTIES
from colonnade.runs.run_directory import RunDirectory, plain
from colonnade.runs.run_identity import RUN_ID
from colonnade.settings.sections import is_name
from colonnade.signing.contents import Audited, Contents, contents_of, settings_of
from colonnade.signing.inventory import Digests, FileDigest, Inventory, take_inventory
from colonnade.version import __version__

KIND = "colonnade statement 1"
LARGEST = 64 << 20
"""Bytes of a statement that is read."""
KEYS = (
    "kind",
    "party",
    "made",
    "version",
    "run",
    "audit",
    "privacy",
    "sent",
    "received",
    "columns",
    "records",
    "ledgers",
    "models",
)
"""In the order of a statement, which is one for reading."""


@dataclass(frozen=True)
class Promise:
    """One (epsilon, delta), and against whom it holds; None is no guarantee."""

    party: str
    protects: str
    epsilon: float | None
    delta: float
    adversary: str
    relation: str


@dataclass(frozen=True)
class Statement:
    """A statement, as its text has it. The text is what is signed."""

    text: str
    party: str
    made: str
    run_id: str
    run_name: str
    part: str | None
    inventory: Inventory
    verdict: str
    privacy: tuple[Promise, ...]


def state(run: Path, party: str) -> Statement:
    """Make the statement of one party about a run that has finished and was audited."""
    contents = check_signable(run, party)
    identity = contents.identity
    audit = contents.audited
    assert identity is not None
    assert audit is not None
    lines = crossings(run, party=party)
    columns = contents.columns.get(party)
    statement = {
        "kind": KIND,
        "party": party,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "run": {
            **asdict(identity),
            "name": run.resolve().name,
            "algorithm": settings_of(run)["algorithm"]["name"],
            "part": contents.part,
        },
        "audit": asdict(audit.verdict),
        "privacy": [guarantee.to_json() for guarantee in of_run(RunDirectory(run))],
        "sent": list(_crossed(lines, "sent", "receiver")),
        "received": list(_crossed(lines, "received", "sender")),
        "columns": None if columns is None else asdict(columns),
        **asdict(contents.inventory),
    }
    statement = {key: statement[key] for key in KEYS}
    if take_inventory(run) != contents.inventory:
        raise CheckpointError(
            f"{run} changed while it was read. Wait until nobody trains or predicts"
            " with it, and sign again."
        )
    return parse(canonical(statement).encode(), "the statement")


def check_signable(run: Path, party: str) -> Contents:
    """What is said of a run. Raise unless it has finished, has an id and the part of
    this party, and was audited as it is."""
    _check_at_rest(run)
    contents = contents_of(run)
    if contents.identity is None:
        raise CheckpointError(
            f"{run} has no id: it was begun by an earlier version. Train it again to"
            " sign it."
        )
    here = sorted(path.name for path in (run / PARTIES).iterdir() if path.is_dir())
    if party not in here:
        raise ConfigError(
            f"--as is {party!r}, and {run} has the part of {' and '.join(here)} alone."
            " Name one of these."
        )
    _check_audit(run, party, contents.audited)
    return contents


def canonical(value: Mapping[str, Any]) -> str:
    """The one way in which a statement is written."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    return text + "\n"


def parse(text: bytes, where: str) -> Statement:
    """Read a statement, which may be anybody's. NotAsSigned unless it is one, written in
    the one way."""
    try:
        if len(text) > LARGEST:
            raise ValueError(f"it has more than {LARGEST:,} bytes")
        value = json.loads(text)
        # of a key that is there twice, readers take one or the other
        if canonical(value).encode() != text:
            raise ValueError("it is not written as Colonnade writes it")
        if tuple(value) != KEYS or value["kind"] != KIND:
            raise ValueError(f'it is no "{KIND}"')
        party = _text(value["party"])
        run_id = _text(value["run"]["id"])
        if not is_name(party) or RUN_ID.fullmatch(run_id) is None:
            raise ValueError("it names no party, or no run")
        return Statement(
            text.decode(),
            party,
            _text(value["made"]),
            run_id,
            _text(value["run"]["name"]),
            None if value["run"]["part"] is None else _text(value["run"]["part"]),
            Inventory(
                _digests(value["models"]),
                _digests(value["ledgers"]),
                _digests(value["records"]),
            ),
            _text(value["audit"]["text"]),
            tuple(_promises(value["privacy"])),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = str(error) if type(error) is ValueError else type(error).__name__
        raise NotAsSigned(
            f"{where} is not a statement that was signed: {why[:200]}. Ask whoever"
            " signed it for the file as it was."
        ) from None


def _check_at_rest(run: Path) -> None:
    """Raise where the run has not finished, or somebody trains it now."""
    if not RunDirectory(run).mark()["finished"]:
        raise CheckpointError(
            f"{run} has not finished, and only a finished run is signed. Finish it:"
            " colonnade run ... --resume."
        )
    if (run / LOCK).is_symlink():
        raise CheckpointError(f"{run / LOCK} is a link out of its run. Remove it.")
    try:
        hold(
            run / LOCK,
            f"{run} is trained by another process now, and only a finished run is"
            " signed. Wait for its end.",
        ).close()
    except OSError:
        return  # a place without locks keeps nobody out


def _check_audit(run: Path, party: str, audit: Audited | None) -> None:
    """Raise unless there is an audit of these models and of this party."""
    again = f"Audit it first: colonnade audit {run}"
    if audit is None:
        raise ConfigError(f"{run} was not audited, and no run is signed so. {again}")
    if not audit.is_current:
        raise ConfigError(
            f"The audit in {run} is of other models than those that are there now: the"
            f" run was trained since. {again}"
        )
    if audit.party not in (None, party):
        raise ConfigError(
            f"The audit in {run} looked at attacks by or on '{audit.party}' alone, and"
            f" '{party}' is to sign. {again}"
        )


def _crossed(
    lines: Iterable[Crossing], direction: str, peer: str
) -> Iterable[dict[str, Any]]:
    for line in lines:
        if line.direction == direction:
            yield {
                peer: line.peer,
                "release": line.release,
                "rule": line.mechanism,
                "during": line.during,
                "times": line.times,
                "rows": line.rows,
                "bytes": line.bytes,
            }


def _digests(value: Any) -> Digests:
    return {
        _text(path): FileDigest(_text(about["sha256"]), int(about["bytes"]))
        for path, about in value.items()
    }


def _promises(guarantees: Any) -> Iterator[Promise]:
    for guarantee in guarantees:
        for line in guarantee["statements"]:
            epsilon = line["epsilon"]
            yield Promise(
                _text(guarantee["party"]),
                _text(guarantee["protects"]),
                None if epsilon is None else float(epsilon),
                float(line["delta"]),
                _text(line["adversary"]),
                _text(line["relation"]),
            )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
