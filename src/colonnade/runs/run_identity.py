"""The identity of a run: a random id, when it began, and the version that began it.

It is written once, when the run begins, and stays the same when the run is resumed,
renamed or copied. Between sites who drives the run draws the id, and tells it to all,
so that the statements that several organisations sign are seen to be about one run.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from colonnade.core import files
from colonnade.runs.layout import IDENTITY
from colonnade.version import __version__

RUN_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class RunIdentity:
    id: str
    begun: str  # UTC, by the clock of this machine
    version: str


def draw_id() -> str:
    return secrets.token_hex(16)


def identity_now(run_id: str) -> RunIdentity:
    """The identity of a run that begins now."""
    begun = datetime.now(UTC).isoformat(timespec="seconds")
    return RunIdentity(run_id, begun, __version__)


def write_identity(run: Path, identity: RunIdentity) -> None:
    files.write_text(run / IDENTITY, files.json_with_digest(asdict(identity)))


def read_identity(run: Path) -> RunIdentity | None:
    """The identity of the run in this folder; None where it never began, or was begun
    by a version without identities."""
    try:
        kept = files.read_json(run / IDENTITY)
    except FileNotFoundError:
        return None
    try:
        identity = RunIdentity(
            str(kept["id"]), str(kept["begun"]), str(kept["version"])
        )
    except KeyError as missing:
        raise files.damaged(run / IDENTITY, f"it has no {missing}") from None
    if RUN_ID.fullmatch(identity.id) is None:
        raise files.damaged(run / IDENTITY, f"{identity.id[:40]!r} is no id of a run")
    return identity
