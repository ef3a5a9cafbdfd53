"""A run on disk: what was asked, what was measured, and each party's own folder. Nothing is written outside it.

    federation.toml              the settings, every default written out
    metrics.jsonl                one line per epoch
    summary.json                 final metrics, rounds, seconds, bytes per party and direction
    checkpoint.json              which checkpoint is the last that all parties saved
    parties/<name>/              columns.json  ledger.jsonl  checkpoint-<number>/

On one machine this is one folder; each `parties/<name>` belongs to that organisation alone.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colonnade.core import checkpoint
from colonnade.errors import CheckpointError, ConfigError, InputError
from colonnade.federation.holdings import from_dataset, from_tables
from colonnade.federation.settings import Settings

if TYPE_CHECKING:
    import pandas as pd

    from colonnade.federation.federation import Federation

MARK, METRICS, SUMMARY, SETTINGS = "checkpoint.json", "metrics.jsonl", "summary.json", "federation.toml"


class RunDirectory:
    """One run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, federation: Federation) -> RunDirectory:
        """A new run; an existing one is never overwritten."""
        if (path / SETTINGS).exists() or (path.exists() and not path.is_dir()):
            raise ConfigError(f"{path} already holds a run. Choose another --out, or continue it with --resume.")
        run = cls(path)
        try:
            for name in federation.seats:
                run.party(name).mkdir(parents=True, exist_ok=True)
                write_text(run.party(name) / "columns.json", json.dumps(federation.holdings.state_of(name)))
            write_text(path / SETTINGS, federation.settings.to_toml())
        except OSError as error:
            raise InputError(f"The run directory {path} cannot be written: {error.strerror}.") from None
        return run

    def party(self, name: str) -> Path:
        return self.path / "parties" / name

    def checkpoint(self, federation: Federation) -> None:
        """Let every party save itself; only when all have, the mark moves and older checkpoints go."""
        number = self.mark()["number"] + 1 if (self.path / MARK).exists() else 1
        mark = {"number": number, "step": federation.batches.done, "rows": federation.batches.fingerprint()}
        for name, seat in federation.seats.items():
            checkpoint.write(self._checkpoint(name, mark), federation.state_of(name))
            seat.ledger.flush(self.party(name) / "ledger.jsonl")
        write_text(self.path / MARK, json.dumps(mark))
        for name in federation.seats:
            for old in self.party(name).glob("checkpoint-*"):
                if old != self._checkpoint(name, mark):
                    shutil.rmtree(old, ignore_errors=True)

    def restore(self, federation: Federation) -> None:
        """Continue from the last checkpoint that all parties saved."""
        mark = self.mark()
        if federation.batches.fingerprint() != mark["rows"]:
            raise CheckpointError(
                f"The rows of this federation are not those that {self.path} was trained on: a table, the split, the "
                "seed or the batch size changed. Undo the change, or start a new run."
            )
        self._load(federation, mark)
        for name, seat in federation.seats.items():
            state = checkpoint.read(self._checkpoint(name, mark))["seat"]["ledger"]
            seat.ledger.rewind(self.party(name) / "ledger.jsonl", state)
        federation.batches.done = mark["step"]

    def mark(self) -> dict[str, Any]:
        try:
            mark = json.loads((self.path / MARK).read_text(encoding="utf-8"))
            return {"number": int(mark["number"]), "step": int(mark["step"]), "rows": str(mark["rows"])}
        except FileNotFoundError:
            raise CheckpointError(
                f"{self.path} holds no finished checkpoint. Start the run without --resume."
            ) from None
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(f"{self.path / MARK} is damaged.") from None

    def settings(self) -> Settings:
        if not (self.path / SETTINGS).exists():
            raise CheckpointError(f"{self.path} is not a run directory: {SETTINGS} is missing.")
        return Settings.from_toml(self.path / SETTINGS)

    def metrics(self) -> list[dict[str, Any]]:
        """The epochs measured so far, up to the last checkpoint."""
        path = self.path / METRICS
        if not path.exists():
            return []
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        kept = [line for line in lines if line["step"] <= self.mark()["step"]]
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
        return kept

    def add_metrics(self, record: Mapping[str, Any]) -> None:
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_text(self.path / SUMMARY, json.dumps(summary, indent=2) + "\n")

    def _load(self, federation: Federation, mark: Mapping[str, Any]) -> None:
        for name in federation.seats:
            federation.load_state_of(name, checkpoint.read(self._checkpoint(name, mark), federation.device))
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
    if settings.data.dataset is not None and frames is None:
        federation = Federation(settings, from_dataset(settings), record=record)
        run.restore(federation)
        return federation
    held = tables_of(settings, frames) if frames is not None else read_tables(settings, tables)
    if ids is None:
        federation = Federation(settings, from_tables(settings, held), record=record)
        run.restore(federation)
        return federation
    fitted = {name: json.loads((run.party(name) / "columns.json").read_text(encoding="utf-8")) for name in held}
    federation = Federation(settings, from_tables(settings, held, fitted=fitted, ids=ids), record=record)
    run._load(federation, run.mark())
    return federation


def write_text(path: Path, text: str) -> None:
    """The whole file or none of it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
