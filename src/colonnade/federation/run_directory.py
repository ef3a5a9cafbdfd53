"""A run on disk: what was asked, what was measured, and each party's own folder. Nothing is written outside it.

    federation.toml              the settings, every default written out
    metrics.jsonl                one line per epoch
    summary.json                 final metrics, rounds, seconds, bytes per party and direction
    checkpoint.json              which checkpoint is the last that all parties saved
    parties/<name>/              columns.json  ledger.jsonl  spent.journal  checkpoint-<number>/

On one machine this is one folder; each `parties/<name>` belongs to that organisation alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from colonnade.core import checkpoint
from colonnade.errors import CheckpointError, ConfigError, InputError
from colonnade.federation import shares
from colonnade.federation.holdings import from_dataset, from_tables, to_predict
from colonnade.federation.settings import Settings

if TYPE_CHECKING:
    import pandas as pd

    from colonnade.federation.federation import Federation
    from colonnade.federation.multi import MultiFederation

    Trained: TypeAlias = "Federation | MultiFederation"

MARK, METRICS, SUMMARY, SETTINGS = "checkpoint.json", "metrics.jsonl", "summary.json", "federation.toml"


class RunDirectory:
    """One run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, federation: Trained) -> RunDirectory:
        """A new run; an existing one is never overwritten."""
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path} is a file, and a run needs a folder. Choose another --out.")
        if (path / SETTINGS).exists():
            raise ConfigError(f"{path} already holds a run. Choose another --out, or continue it with --resume.")
        run = cls(path)
        try:
            for name in federation.seats:
                run.party(name).mkdir(parents=True, exist_ok=True)
                write_text(run.party(name) / "columns.json", json.dumps(federation.holdings.state_of(name)))
            run.keep(federation.settings)
            federation.keep_accounts(run.party)
        except OSError as error:
            raise InputError(f"The run directory {path} cannot be written: {error.strerror}.") from None
        return run

    def keep(self, settings: Settings) -> None:
        write_text(self.path / SETTINGS, settings.to_toml())

    def party(self, name: str) -> Path:
        return self.path / "parties" / name

    def checkpoint(self, federation: Trained, *, finished: bool = False) -> None:
        """Let every party save itself; only when all have, the mark moves and older checkpoints go."""
        number = self.mark()["number"] + 1 if (self.path / MARK).exists() else 1
        rows = _fingerprint(federation)
        mark = {"number": number, "step": federation.batches.done, "rows": rows, "finished": finished}
        for name, seat in federation.seats.items():
            with self._saving(f"'{name}' cannot save its state in {self.party(name)}"):
                checkpoint.write(self._checkpoint(name, mark), federation.state_of(name))
                seat.ledger.flush(self.party(name) / "ledger.jsonl")
        with self._saving(f"The run directory {self.path} cannot be written"):
            write_text(self.path / MARK, json.dumps(mark))
        for account in federation.accounts.values():
            account.settled()
        for name in federation.seats:
            left_over = self.party(name).glob(".checkpoint-*.tmp")  # by a run that was killed while it saved
            for old in [*self.party(name).glob("checkpoint-*"), *left_over]:
                if old != self._checkpoint(name, mark):
                    shutil.rmtree(old, ignore_errors=True)

    @contextmanager
    def _saving(self, otherwise: str) -> Iterator[None]:
        """What cannot be written is told with what is still there."""
        try:
            yield
        except OSError as error:
            raise InputError(f"{otherwise}: {error.strerror or error}. {self._still_there()}") from error

    def _still_there(self) -> str:
        if not (self.path / MARK).exists():
            return "No checkpoint was saved yet. Put it right, and start again."
        step = self.mark()["step"]
        return f"The checkpoint of step {step} is intact. Put it right, and continue with --resume."

    def begun(self) -> bool:
        """Whether there is a checkpoint; a run that was killed before its first one has trained nothing yet."""
        return (self.path / MARK).exists()

    def restore(self, federation: Trained) -> None:
        """Continue from the last checkpoint that all parties saved."""
        mark = self.mark()
        if _fingerprint(federation) != mark["rows"]:
            raise CheckpointError(
                f"The rows of this federation are not those that {self.path} was trained on: a table, the split, the "
                "seed or the batch size changed. Undo the change, or start a new run."
            )
        for name in federation.seats:
            if self.fitted(name) != _about(json.dumps(federation.holdings.state_of(name))):
                raise CheckpointError(
                    f"The table of '{name}' is not the one that {self.path} was trained on: its columns, or values in "
                    "its training rows, changed. Undo the change, or start a new run."
                )
        self.load(federation, mark)
        for name, seat in federation.seats.items():
            state = checkpoint.read(self._checkpoint(name, mark))["seat"]["ledger"]
            seat.ledger.rewind(self.party(name) / "ledger.jsonl", state)
        federation.batches.done = mark["step"]

    def mark(self) -> dict[str, Any]:
        try:
            mark = json.loads((self.path / MARK).read_text(encoding="utf-8"))
            found = {"number": int(mark["number"]), "step": int(mark["step"]), "rows": str(mark["rows"])}
            return found | {"finished": mark.get("finished") is True}
        except FileNotFoundError:
            raise CheckpointError(
                f"{self.path} holds no finished checkpoint. Start the run without --resume."
            ) from None
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(f"{self.path / MARK} is damaged.") from None

    def fitted(self, name: str, read: Callable[[str], Any] | None = None) -> Any:
        """How a party's columns and labels became numbers, to about six digits unless `read` says otherwise."""
        path = self.party(name) / "columns.json"
        try:
            return (read or _about)(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} is missing or damaged ({type(error).__name__}).") from None

    def settings(self) -> Settings:
        if not (self.path / SETTINGS).exists():
            raise CheckpointError(f"{self.path} is not a run directory: {SETTINGS} is missing.")
        return Settings.from_toml(self.path / SETTINGS)

    def metrics(self) -> list[dict[str, Any]]:
        """The epochs measured so far, up to the last checkpoint."""
        path = self.path / METRICS
        if not path.exists():
            return []
        step = self.mark()["step"]
        kept = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:  # a crash cut this line short, so no checkpoint came after it
                break
            if record["step"] <= step:
                kept.append(record)
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
        return kept

    def add_metrics(self, record: Mapping[str, Any]) -> None:
        saving = self._saving(f"The run directory {self.path} cannot be written")
        with saving, (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(to_json(record) + "\n")

    def summary(self) -> dict[str, Any] | None:
        """What a finished run measured; None while there is none."""
        try:
            found: dict[str, Any] = json.loads((self.path / SUMMARY).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        with self._saving(f"The run directory {self.path} cannot be written"):
            write_text(self.path / SUMMARY, to_json(summary, indent=2) + "\n")

    def load(self, federation: Trained, mark: Mapping[str, Any]) -> None:
        for name in federation.seats:
            federation.load_state_of(name, checkpoint.read(self._checkpoint(name, mark), federation.device))
        federation.keep_accounts(self.party)
        federation.restack()

    def _checkpoint(self, name: str, mark: Mapping[str, Any]) -> Path:
        return self.party(name) / f"checkpoint-{mark['number']:06d}"


def load(
    folder: str | Path,
    *,
    ids: Sequence[str] | None = None,
    frames: Mapping[str, pd.DataFrame] | None = None,
    tables: Mapping[str, str] | None = None,
    record: bool = False,
) -> Federation:
    """A saved federation, trained as far as it was.

    With `ids` it is loaded for prediction: only those rows are read, and they may be new since training. Tables come
    from where the run's settings say, or from `frames` (needed when it was made from frames) or `tables` (files).
    """
    from colonnade.federation.federation import Federation, read_tables, tables_of

    run = RunDirectory(Path(folder))
    settings = run.settings()
    if settings.label_owners:
        raise ConfigError(
            f"This run has several label owners ({settings.algorithm}), and what was asked works on runs with one. "
            "`colonnade predict` and `colonnade privacy` take both; in Python use MultiFederation.load."
        )
    if settings.data.dataset is not None and frames is None:
        federation = Federation(settings, from_dataset(settings), record=record)
        run.restore(federation)
        return federation
    moved = {
        name: replace(party, table=(tables or {}).get(name, party.table)) for name, party in settings.parties.items()
    }
    settings = replace(settings, parties=moved)
    if ids is None:
        held = tables_of(settings, frames) if frames is not None else read_tables(settings)
        federation = Federation(settings, from_tables(settings, held), record=record)
        run.restore(federation)
        return federation
    fitted = {name: run.fitted(name, json.loads) for name in settings.parties}
    # Those who hold columns bring just these; a label column is neither needed nor read.
    columns = {n: tuple(c["name"] for c in s["columns"]["columns"]) for n, s in fitted.items() if "columns" in s}
    bring = {name: replace(moved[name], label=None, columns=names) for name, names in columns.items()}
    reading = replace(settings, parties=bring)
    may_lack = settings.engine.on_missing in ("stale", "skip")
    if frames is not None:
        held = tables_of(
            reading, {name: frame for name, frame in frames.items() if name not in fitted or name in bring}
        )
    else:
        there = {n: p for n, p in bring.items() if not may_lack or (p.table and Path(p.table).exists())}
        held = read_tables(replace(settings, parties=there))
    federation = Federation(settings, to_predict(held, fitted, ids, may_lack=may_lack), record=record)
    run.load(federation, run.mark())
    return federation


def load_multi(
    folder: str | Path,
    *,
    ids: Sequence[str] | None = None,
    owner: str | None = None,
    tables: Mapping[str, str] | None = None,
) -> MultiFederation:
    """A saved federation with several label owners.

    With `ids` it is loaded for a label owner's prediction (the first's unless `owner` is named): only those rows are
    read, and they may be new since training. `tables` are files that data owners have in the place of the run's.
    """
    from colonnade.federation.federation import read_tables
    from colonnade.federation.multi import MultiFederation

    run = RunDirectory(Path(folder))
    settings = run.settings()
    if ids is None or settings.data.dataset is not None:
        federation = MultiFederation.from_settings(settings)
        run.restore(federation)
        return federation
    moved = {n: replace(party, table=(tables or {}).get(n, party.table)) for n, party in settings.parties.items()}
    fitted = {name: run.fitted(name, json.loads) for name in {**moved, **settings.label_owners}}
    columns = {name: tuple(c["name"] for c in fitted[name]["columns"]["columns"]) for name in moved}
    bring = replace(settings, parties={n: replace(party, columns=columns[n]) for n, party in moved.items()})
    asks = owner if owner is not None and owner in settings.label_owners else next(iter(settings.label_owners))
    wanted = shares.to_predict(read_tables(bring), fitted, ids, asks)
    federation = MultiFederation(replace(settings, parties=moved), wanted)
    federation.owner_named(owner)
    run.load(federation, run.mark())
    return federation


def _fingerprint(federation: Trained) -> str:
    """Of the agreed batches and the ids behind their row numbers."""
    digest, ids = hashlib.sha256(federation.batches.fingerprint().encode()), federation.holdings.ids
    for start in range(0, len(ids), 65_536):
        digest.update("".join(f"\n{one}" for one in ids[start : start + 65_536].tolist()).encode())
    return digest.hexdigest()[:16]


def _about(text: str) -> Any:
    """JSON with its numbers to six digits, since another machine may add up in another order."""
    return json.loads(text, parse_float=lambda number: f"{float(number):.6g}")


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON that every reader takes: a score that is not a number, as AUC without both classes, becomes null."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(inner) for key, inner in value.items()}
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(value), indent=indent)


def write_text(path: Path, text: str) -> None:
    """The whole file or none of it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
