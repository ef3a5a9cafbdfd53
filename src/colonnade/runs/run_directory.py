"""A run on disk: what was asked, what was measured, and each party's own folder
(`runs.layout` has every file). Nothing is written outside it, but at a site its store,
beside its runs (`runs.stores`)."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.core import Organisation, files
from colonnade.core.batches import Progress
from colonnade.core.files import hold, write_text
from colonnade.errors import CheckpointError, ConfigError, InputError
from colonnade.privacy import Account
from colonnade.privacy.plain_count import PlainCount
from colonnade.privacy.used_rows import UsedRows
from colonnade.rows.making import SPLIT
from colonnade.runs.layout import (
    AFTER,
    COLUMNS,
    IDENTITY,
    LEDGER,
    LOCK,
    MARK,
    METRICS,
    PARTIES,
    QUALITY,
    SETTINGS,
    STORE,
    SUMMARY,
    WIDTHS,
)
from colonnade.runs.run_identity import (
    draw_id,
    identity_now,
    read_identity,
    write_identity,
)
from colonnade.runs.stores import make_run_store, open_run_store
from colonnade.settings.federation_file import Settings
from colonnade.settings.sections import is_name
from colonnade.store import SiteStore, Word

TWO = "two would overwrite each other's checkpoints"
CONTINUE = "--resume, or in Python fit(FOLDER, resume=True)"
WORDS = {
    "ask": None,
    "new": Word.NEW_PEOPLE,
    "same": Word.SAME_PEOPLE,
    "renamed": Word.RENAMED,
}
"""By what [store] new_people says."""
NEW_RUN = "Restore it from a copy, or start a new run"
AGAIN = "Restore it from a copy, or remove it and resume the run, which writes it again"


class Trained(Protocol):
    """What a run directory keeps: a federation, or one organisation's part of it."""

    settings: Settings
    organisations: dict[str, Organisation]
    batches: Progress
    device: torch.device

    @property
    def ids(self) -> NDArray[np.str_]: ...
    @property
    def accounts(self) -> dict[str, Account]: ...

    # before states are taken: stacked parties get their own parameters back
    def settle(self) -> None: ...

    # after states were loaded: stacked parties take them over
    def restack(self) -> None: ...


class RunDirectory:
    """One run's folder. Where parties are elsewhere, `common` is the number of the last
    checkpoint that all of them are known to have: it is kept beside the newest, for a
    run that breaks off while they save (`saves`).

    Args:
        path: The folder.
        site: The store of an organisation's site, where this is its part of a run
            between sites. None: each party's store is in the folder.
        new_people: What its owner says of rows that were never counted before, as
            [store] new_people does.
    """

    common: int | None = None

    def __init__(
        self,
        path: Path,
        site: SiteStore | None = None,
        run_id: str = "",
        *,
        new_people: str = "ask",
    ) -> None:
        self.path = path
        self.new_id = run_id or draw_id()  # that it has if it begins here
        self.site = site
        self.new_people = new_people
        self._stores: dict[str, SiteStore] = {}
        self._held: IO[str] | None = None

    @property
    def id(self) -> str:
        """The run's id: as its folder has it, or the one that it will have when it
        begins."""
        kept = read_identity(self.path)
        return self.new_id if kept is None else kept.id

    def begin(self, federation: Trained) -> None:
        """Begin a new run in this folder; an existing one is never overwritten."""
        self.check_free()
        with self._saving():
            self.path.mkdir(parents=True, exist_ok=True)
            write_identity(self.path, identity_now(self.new_id))
            for name, organisation in federation.organisations.items():
                self.party(name).mkdir(parents=True, exist_ok=True)
                text = files.json_with_digest(organisation.fitted)
                # without settings there is no run
                (self.party(name) / COLUMNS).write_text(text, encoding="utf-8")
            self.keep(
                federation.settings,
                self.path / PARTIES,
                *(self.path / PARTIES).rglob("*"),
            )
            self._make_stores(federation)
            self.keep_accounts(federation)

    def check_free(self) -> None:
        """Raise where there is a run already."""
        if (self.path / SETTINGS).exists():
            raise ConfigError(
                f"{self.path} already holds a run. Choose another folder, or continue"
                f" it: {CONTINUE}."
            )

    def claim(self) -> None:
        """Be the one process that trains in this folder, until `leave`; whoever reads
        it need not wait."""
        if self._held is not None:
            return
        if self.path.is_file():
            raise ConfigError(
                f"{self.path} is a file, and a run needs a folder. Choose another"
                " --out."
            )
        with self._saving():
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                rule = (
                    f"{self.path} is trained further by another process now, and {TWO}."
                    " Wait for its end, or stop it."
                )
                self._held = hold(self.path / LOCK, rule)
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                    raise
                warnings.warn(
                    f"{self.path} takes no lock ({error.strerror}), and {TWO}. Start"
                    " one.",
                    stacklevel=2,
                )

    def leave(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def keep(self, settings: Settings, *vouched: Path) -> None:
        write_text(
            self.path / SETTINGS, files.text_with_digest(settings.to_toml()), *vouched
        )

    def keep_accounts(self, federation: Trained) -> None:
        """Let every organisation write down what it spends before it releases anything:
        in the store of its site, or in its own one of this run. Where its rules differ
        by purpose, what its rows were used for is there, too."""
        for name, organisation in federation.organisations.items():
            for remembering in _that_remember(organisation):
                store = self._store_of(name)
                column = column_of_people(federation.settings, name)
                word = self._word_about_new_people(store, column)
                remembering.keep(store, column, word)

    def _make_stores(self, federation: Trained) -> None:
        """Make a store for each party that counts, where the run is on this machine."""
        if self.site is not None:
            return
        for name, organisation in federation.organisations.items():
            is_needed = bool(_that_remember(organisation))
            if is_needed and not (self.party(name) / STORE).exists():
                column = column_of_people(federation.settings, name)
                self._stores[name] = make_run_store(name, self.party(name), column)

    def _store_of(self, name: str) -> SiteStore:
        if self.site is not None:
            return self.site
        if name not in self._stores:
            self._stores[name] = open_run_store(name, self.party(name))
        return self._stores[name]

    def _word_about_new_people(self, store: SiteStore, column: str) -> Word | None:
        """What the owner says about people who were not counted before.

        On one machine whoever gives a run new rows has all tables at hand. A site's
        owner says it in its own file.
        """
        if self.site is not None:
            return WORDS[self.new_people]
        is_same_column = store.identity is not None and store.identity.column == column
        return Word.NEW_PEOPLE if is_same_column else None

    def party(self, name: str) -> Path:
        """Give a party's folder. Its name must be no path: it may come from a run that
        is somebody else's."""
        if not is_name(name):
            raise CheckpointError(
                f"{self.path} names a party {name[:80]!r}, which is no name of a party."
            )
        return self.path / PARTIES / name

    def checkpoint(
        self, federation: Trained, *, finished: bool = False, number: int | None = None
    ) -> None:
        """Let every party save itself; only when all have, the mark moves and older
        checkpoints go."""
        before = self.marks()
        number = number or (before[0]["number"] + 1 if before else 1)
        rows = _fingerprint(federation)
        mark = {
            "number": number,
            "step": federation.batches.done,
            "rows": rows,
            "finished": finished,
            "split": SPLIT,
        }
        kept = [older for older in before if older["number"] == self.common != number]
        mark |= {"measured": self._measured()} | ({"before": kept[0]} if kept else {})
        federation.settle()
        for name, organisation in federation.organisations.items():
            with self._saving(f"'{name}' cannot save its state in {self.party(name)}"):
                files.write_state(
                    self._checkpoint(name, mark), organisation.state(), forced=False
                )
                organisation.ledger.flush(self.party(name) / LEDGER)
        new = f"{PARTIES}/*/checkpoint-{number:06d}"
        fresh = (METRICS, f"{PARTIES}/*", f"{PARTIES}/*/{LEDGER}", new, f"{new}/*")
        self.keep_mark(
            mark, *(file for pattern in fresh for file in self.path.glob(pattern))
        )
        for store in self._stores.values():
            store.settle()
        for name in federation.organisations:
            # by a run that was killed while it saved
            left_over = self.party(name).glob(".checkpoint-*.tmp")
            for old in [*self.party(name).glob("checkpoint-*"), *left_over]:
                if old not in [
                    self._checkpoint(name, current) for current in (mark, *kept)
                ]:
                    shutil.rmtree(old, ignore_errors=True)

    def finish(self) -> None:
        """Mark the last checkpoint as the last of all: where somebody else drives, none
        is saved at the end."""
        if marks := self.marks():
            self.keep_mark(
                marks[0]
                | {"finished": True}
                | ({"before": marks[1]} if marks[1:] else {})
            )

    def keep_mark(self, mark: Mapping[str, Any], *vouched: Path) -> None:
        """Let this be the newest checkpoint from here on, with its files on the disk."""
        with self._saving():
            write_text(
                self.path / MARK,
                files.json_with_digest({"format": files.FORMAT, **mark}),
                *vouched,
            )

    def part(self) -> str | None:
        """The organisation whose part of a run between sites this folder is; None where
        all parties' parts are here."""
        here = [
            folder.name for folder in (self.path / PARTIES).glob("*") if folder.is_dir()
        ]
        if len(here) != 1:
            return None
        settings = self.settings()
        part = (self.summary() or {}).get("party")
        named = {*settings.label_owners, *settings.parties}
        # a run of tables has two parties or more
        more = settings.data.dataset is None or len(named) > 1
        return (
            here[0] if more or part == here[0] or {*self.widths()} - {*here} else None
        )

    def check_whole(self) -> None:
        """Check that the parts of all parties are here, as an attack or an explanation
        needs them."""
        if (party := self.part()) is not None:
            raise CheckpointError(
                f"{self.path} is the part of '{party}' in a run between sites, and this"
                " needs the parts of all parties in one folder. Rehearse the run where"
                " all tables are: colonnade run FEDERATION.toml --out DIR, in one"
                " process or with --engine flare-sim. On this folder `report`,"
                " `privacy` and `export` work; between sites `predict`, `serve`,"
                " `explain` and `audit` do, with --engine flare."
            )

    def widths(self) -> dict[str, tuple[int, ...]]:
        """Between sites, at a label owner: the shape of what each party sends for a
        row, in their order."""
        try:
            shapes = files.read_json(
                self.path / WIDTHS,
                "Restore it from a copy, or resume the run to write it",
            )
            return {
                str(k): tuple(v) if isinstance(v, list) else (int(v),)
                for k, v in shapes.items()
            }
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError):
            raise files.damaged(
                self.path / WIDTHS, "it does not list what each party sends"
            ) from None

    def keep_widths(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Keep what everybody sends for a row, in their order, for predictions and for
        whoever exports."""
        write_text(
            self.path / WIDTHS,
            files.json_with_digest(
                {name: list(shape) for name, shape in shapes.items()}
            ),
        )

    @contextmanager
    def _saving(self, otherwise: str = "") -> Iterator[None]:
        """Tell what cannot be written together with what is still there."""
        try:
            yield
        except OSError as error:
            still = "No checkpoint was saved yet. Put it right, and start again."
            if self.begun():
                step = self.mark()["step"]
                still = (
                    f"The checkpoint of step {step} is intact. Put it right, and"
                    " continue with --resume."
                )
            what = otherwise or f"The run directory {self.path} cannot be written"
            raise InputError(f"{what}: {error.strerror or error}. {still}") from error

    def begun(self) -> bool:
        """Whether there is a checkpoint; a run that was killed before its first one has
        trained nothing yet."""
        return (self.path / MARK).exists()

    def warn_unfinished(self, *, trains: bool) -> None:
        """Warn of models that are untrained, or of a training that was cut off; a
        federation that its owner saved is none of these, nor is one that never
        `trains`."""
        mark = self.mark()
        if (
            not mark["finished"]
            and trains
            and (mark["step"] == 0 or (self.path / METRICS).exists())
        ):
            warnings.warn(
                f"{self.path} holds a run that has not finished: its models were"
                f" trained for {mark['step']} steps. Finish it: colonnade run ..."
                " --resume.",
                stacklevel=3,
            )

    def restore(self, federation: Trained) -> None:
        """Continue from the last checkpoint that all parties saved: what ledgers hold
        beyond it is cut off."""
        for name, state in self.read(federation).items():
            federation.organisations[name].ledger.rewind(
                self.party(name) / LEDGER, state
            )
            federation.organisations[name].go_on()
        federation.restack()

    def read(self, federation: Trained) -> dict[str, Any]:
        """Read the last checkpoint that all parties saved, and give where it says that
        their ledgers stood. Nothing is changed here: somebody may be training in this
        very folder."""
        mark = self.mark()
        if _fingerprint(federation) != mark["rows"]:
            if mark["split"] == 1:
                raise CheckpointError(
                    f"{self.path} was trained by an older Colonnade, which divided rows"
                    " into training, validation and test rows by their position and"
                    " not by their ids; which rows it trained on cannot be told here."
                    " It can still predict ids that are named (colonnade predict"
                    " --rows FILE). To train further, explain or audit, start a new"
                    " run."
                )
            raise CheckpointError(
                f"The rows of this federation are not those that {self.path} was"
                " trained on: a table, the split, the seed or the batch size changed."
                " Undo the change, or start a new run."
            )
        for name, organisation in federation.organisations.items():
            if _about(self.fitted(name)) != _about(organisation.fitted):
                raise CheckpointError(
                    f"The table of '{name}' is not the one that {self.path} was trained"
                    " on: its columns, or values in its training rows, changed. Undo"
                    " the change, or start a new run."
                )
        stood = self.load(federation, mark)
        federation.batches.done = mark["step"]
        for name, state in stood.items():
            federation.organisations[name].ledger.recall(state)
        return stood

    def mark(self) -> dict[str, Any]:
        """The mark of the newest checkpoint."""
        for mark in self.marks():
            return mark
        raise CheckpointError(
            f"{self.path} holds no finished checkpoint. Start the run without --resume."
        )

    def marks(self) -> list[dict[str, Any]]:
        """The marks of all checkpoints that are kept, the newest first."""
        try:
            newest = files.read_json(self.path / MARK, NEW_RUN)
            files.check_format(
                self.path, newest.get("format", 1), newest.get("split", 1), SPLIT
            )
            return [
                {
                    "number": int(mark["number"]),
                    "step": int(mark["step"]),
                    "rows": str(mark["rows"]),
                }
                | {
                    "finished": mark.get("finished") is True,
                    "split": int(mark.get("split", 1)),
                }
                | ({"measured": mark["measured"]} if "measured" in mark else {})
                for mark in (
                    newest,
                    *([newest["before"]] if "before" in newest else []),
                )
            ]
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError):
            raise files.damaged(
                self.path / MARK, "it does not say which checkpoint is last", NEW_RUN
            ) from None

    def marked(self, number: int) -> dict[str, Any]:
        """The mark of this one of the checkpoints that are kept."""
        for mark in self.marks():
            if mark["number"] == number:
                return mark
        raise CheckpointError(
            f"{self.path} has no checkpoint that all have, so there is nothing to go on"
            " from. Train it."
        )

    def back_to(self, number: int) -> None:
        """Continue from this one of the checkpoints, though there is a newer one; with
        0, from the beginning."""
        marks = self.marks()
        kept = [mark for mark in marks if mark["number"] == number]
        if kept:
            self.keep_mark(kept[0])
        # whoever asks for it, what was trained stays
        elif any(mark["number"] > 1 for mark in marks):
            there = " and ".join(str(mark["number"]) for mark in marks)
            raise CheckpointError(
                f"{self.path} has the checkpoints {there}, and was asked to go back to"
                f" {number}. Resume from one of these, or start a run of another name."
            )
        else:
            for file in (MARK, SETTINGS, IDENTITY):
                (self.path / file).unlink(missing_ok=True)

    def fitted(self, name: str) -> dict[str, Any]:
        """How a party's columns and labels became numbers."""
        path = self.party(name) / COLUMNS
        try:
            return files.read_json(path, NEW_RUN)
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read: {error.strerror}. {NEW_RUN}."
            ) from None

    def all_fitted(self, settings: Settings) -> dict[str, dict[str, Any]]:
        """Do as `fitted`, for all organisations with data."""
        return {
            name: self.fitted(name)
            for name in {**settings.parties, **settings.label_owners}
        }

    def fitted_earlier(self, settings: Settings) -> dict[str, dict[str, Any]]:
        """Do as `all_fitted` where this run took it over from an earlier one; else give
        nothing: what a run learned from its own rows is learned again, and shows
        whether a table has changed since."""
        fitted = self.all_fitted(settings)
        return fitted if any(state.get("earlier") for state in fitted.values()) else {}

    def salt(self) -> str:
        """What the one label owner divided its rows with, where it was a site of its
        own; "" where all know."""
        here = sorted(
            folder.name
            for folder in (self.path / PARTIES).glob("*")
            if (folder / COLUMNS).exists()
        )
        return next(
            (
                str(fitted["salt"])
                for name in here
                if "salt" in (fitted := self.fitted(name))
            ),
            "",
        )

    def settings(self, allow_models: Sequence[str] = ()) -> Settings:
        """Read the run's settings, which may be somebody else's: the reader says which
        code they may name."""
        if not (self.path / SETTINGS).exists():
            raise CheckpointError(
                f"{self.path} is not a run directory: {SETTINGS} is missing."
            )
        self._check_links()
        path = self.path / SETTINGS
        with suppress(OSError, UnicodeDecodeError):  # told by who reads it
            files.check_text(path, path.read_text(encoding="utf-8"))
        settings = Settings.from_toml(path, allow_models=allow_models, saved=True)
        # it divided rows by their ids alone
        if self.begun() and self.mark()["split"] < SPLIT:
            settings = replace(settings, data=settings.data.changed(stratify=False))
        return settings

    def _check_links(self) -> None:
        """Refuse links: the run may be somebody else's, and who predicts would write
        out of its folder."""
        for pattern in ("*", f"{PARTIES}/*", f"{PARTIES}/*/*", f"{PARTIES}/*/*/*"):
            for path in self.path.glob(pattern):
                if path.is_symlink():
                    raise CheckpointError(
                        f"{path} is a link out of its run, which is one folder. Put the"
                        " file there."
                    )

    def metrics(self) -> list[dict[str, Any]]:
        """The epochs measured so far, up to the last checkpoint; when to stop follows
        from them."""
        path = self.path / METRICS
        mark = self.mark()
        if self._measured(mark.get("measured", {}).get("bytes", 0)) != mark.get(
            "measured", self._measured(0)
        ):
            raise files.damaged(
                path, "it is not as it was at the last checkpoint", NEW_RUN
            )
        if not path.exists():
            return []
        kept = []
        lines = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            # a crash cut this line short, so no checkpoint came after it
            except ValueError:
                break
            if record["step"] <= mark["step"]:
                kept.append(record)
                lines.append(line + "\n")
        write_text(path, "".join(lines))
        return kept

    def _measured(self, length: int = -1) -> dict[str, Any]:
        """Describe what metrics.jsonl holds, or the beginning of a longer file, for a
        checkpoint to know it again."""
        path = self.path / METRICS
        with path.open("rb") if path.exists() else io.BytesIO() as file:
            text = file.read(length)
        return {"bytes": len(text), files.KEY: hashlib.sha256(text).hexdigest()}

    def add_metrics(self, record: Mapping[str, Any]) -> None:
        with self._saving(), (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(to_json(record) + "\n")

    def summary(self) -> dict[str, Any] | None:
        """What a finished run measured; None while there is none."""
        try:
            return files.read_json(self.path / SUMMARY, AGAIN)
        except OSError:
            return None

    def write_quality(self, owner: str, quality: Mapping[str, Any]) -> None:
        """Write into a label owner's own folder how well the model ranks and decides on
        its rows."""
        with self._saving(f"'{owner}' cannot write to {self.party(owner)}"):
            write_text(self.party(owner) / QUALITY, to_json(quality) + "\n")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        with self._saving():
            write_text(
                self.path / SUMMARY, files.json_with_digest(plain(summary), indent=2)
            )

    def load(self, federation: Trained, mark: Mapping[str, Any]) -> dict[str, Any]:
        """Let a federation be as a checkpoint left it, and give where that says that
        the parties' ledgers stood."""
        stood = {}
        for name, organisation in federation.organisations.items():
            state = files.read_state(self._checkpoint(name, mark), federation.device)
            try:
                organisation.load_state(state)
                stood[name] = state["seat"]["ledger"]
            except (RuntimeError, KeyError) as error:  # torch's, of shapes that differ
                raise self.unfit(name, error) from None
        self.keep_accounts(federation)
        federation.restack()
        return stood

    def start(self, federation: Trained) -> None:
        """Let a new federation, whose rows may be others, start training with the
        models that this run ended with."""
        mark = self.mark()
        for name, organisation in federation.organisations.items():
            try:
                organisation.begin_with(
                    files.read_state(self._checkpoint(name, mark), federation.device)
                )
            except (RuntimeError, KeyError) as error:
                raise self.unfit(name, error) from None
        federation.restack()

    def unfit(self, name: str, error: Exception) -> CheckpointError:
        """Make the error that what a party saved is of another model."""
        return CheckpointError(
            f"What '{name}' saved in {self.party(name)} does not fit its model"
            f" ({type(error).__name__}): {SETTINGS} or columns.json there, the model's"
            " own code, or Colonnade has changed. Undo the change, or start a new run."
        )

    def follow(self, federation: Trained) -> None:
        """From here on every party writes down at once what crosses, in a file that no
        resumed training cuts back."""
        for name, organisation in federation.organisations.items():
            if not os.access(self.party(name), os.W_OK):
                raise InputError(
                    f"'{name}' cannot write down what leaves it, as {self.party(name)}"
                    " cannot be written. Make it so."
                )
            organisation.ledger.follow(self.party(name) / AFTER)
        for store in self._stores.values():
            store.force_writes()  # what is predicted leaves this process

    def _checkpoint(self, name: str, mark: Mapping[str, Any]) -> Path:
        return self.party(name) / f"checkpoint-{mark['number']:06d}"


def _that_remember(
    organisation: Organisation,
) -> list[Account | UsedRows | PlainCount]:
    """What of an organisation must remember beyond this process."""
    outbox = organisation.outbox
    return [
        one
        for one in (outbox.guard, outbox.meter)
        if isinstance(one, Account | UsedRows | PlainCount)
    ]


def column_of_people(settings: Settings, name: str) -> str:
    """The column of an organisation's table by which it counts people."""
    return settings.id_column_of(name)


def _fingerprint(federation: Trained) -> str:
    """A digest of the agreed batches and the ids behind their row numbers."""
    digest = hashlib.sha256(federation.batches.fingerprint().encode())
    ids = federation.ids
    for start in range(0, len(ids), 65_536):
        digest.update(
            "".join(
                f"\n{name}" for name in ids[start : start + 65_536].tolist()
            ).encode()
        )
    return digest.hexdigest()[:16]


def _about(value: Any) -> Any:
    """Give a value as JSON has it, with numbers to six digits, since another machine
    may add up in another order."""
    return json.loads(
        json.dumps(value), parse_float=lambda number: f"{float(number):.6g}"
    )


def to_json(value: Any, indent: int | None = None) -> str:
    """Write JSON that every reader takes: a score that is not a number, as AUC without
    both classes, becomes null."""
    return json.dumps(plain(value), indent=indent)


def plain(value: Any) -> Any:
    """Replace NaN and infinities, which not every reader of JSON takes, by None."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
