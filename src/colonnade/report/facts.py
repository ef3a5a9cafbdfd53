"""All that is known about one run, as plain values, from its directory: finished,
killed or still running.

What is optional and is missing, or cannot be read yet, is None or empty.

What crossed between parties is added up from the ledgers in the run directory. A tensor
is counted as its sender's ledger has it; where that ledger is on the sender's own
machine, as the receiver's has it.
"""

from __future__ import annotations

import base64
import json
import math
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colonnade import alignment
from colonnade.algorithms import find
from colonnade.core import files
from colonnade.datasets.readings import OddWords
from colonnade.errors import CheckpointError, ColonnadeError
from colonnade.evaluate.metrics import HEADLINE, lead
from colonnade.federation.guarantees import of_run
from colonnade.runs.history import entries
from colonnade.runs.layout import (
    AFTER,
    IMPORTANCE,
    LEDGER,
    MARK,
    METRICS,
    PARTIES,
    QUALITY,
    SETTINGS,
    SUMMARY,
    TREES,
)
from colonnade.runs.run_directory import RunDirectory, plain
from colonnade.settings.algorithms import DEFAULT
from colonnade.signing.contents import Contents, contents_of

Flow = dict[str, Any]


def flows(folder: Path, reveals: Mapping[str, str], ledger: str = LEDGER) -> list[Flow]:
    """One line, with totals, per sender, receiver, release name, owner and protection,
    in the order in which they first crossed. `epsilon` is of the sender's row that paid
    most, by the last release; `told_by` is whose ledger says so."""
    ledgers = {
        path.parent.name: path
        for path in sorted((folder / PARTIES).glob(f"*/{ledger}"))
    }
    by_key: dict[tuple[Any, ...], Flow] = {}
    for party, path in ledgers.items():
        for entry, how in entries(path):
            if entry.direction == "own" or (
                entry.direction == "in" and entry.peer in ledgers
            ):
                continue
            sender, receiver = (
                (party, entry.peer) if entry.direction == "out" else (entry.peer, party)
            )
            about = {
                "from": sender,
                "to": receiver,
                "name": entry.name,
                "owner": entry.owner,
                "codec": entry.codec,
            }
            told = {
                "protection": how,
                "meaning": reveals.get(entry.name, "not described"),
                "told_by": party,
            }
            counted = {"epsilon": None, "times": 0, "values": 0, "bytes": 0}
            line = by_key.setdefault((*about.values(), how), about | told | counted)
            line["times"] += 1
            line["values"] += math.prod(entry.shape)
            line["bytes"] += entry.bytes
            line["epsilon"] = (
                line["epsilon"] if entry.epsilon is None else entry.epsilon
            )
    return list(by_key.values())


def totals(lines: list[Flow]) -> dict[str, dict[str, int]]:
    """Bytes out and in, by party."""
    by_party: dict[str, dict[str, int]] = {}
    for line in lines:
        for party, way in ((line["from"], "out"), (line["to"], "in")):
            by_party.setdefault(party, {"out": 0, "in": 0})[way] += line["bytes"]
    return by_party


BASELINES = "baselines.json"
KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
LARGEST = 1_500_000
"""The most bytes of a picture that still goes into the page."""

Plain = dict[str, Any]


@dataclass(frozen=True)
class Facts:
    """What is known about a run. `summary` is None until the run has finished; `flows`
    are the ledgers added up."""

    name: str
    settings: Plain = field(default_factory=dict)
    metrics: list[Plain] = field(default_factory=list)
    summary: Plain | None = None
    columns: dict[str, int] = field(default_factory=dict)
    # by party and column, words among numbers that were read as gaps
    odd_words: dict[str, dict[str, OddWords]] = field(default_factory=dict)
    flows: list[Flow] = field(default_factory=list)
    # what crossed after training, to predict or to explain
    later: list[Flow] = field(default_factory=list)
    # the parties whose ledgers are in the directory
    ledgers: list[str] = field(default_factory=list)
    privacy: list[Plain] = field(default_factory=list)
    baselines: Plain | None = None
    importance: Plain | None = None
    selection: Plain | None = None
    alignment: Plain | None = None
    audit: Plain | None = None
    # how well it ranks and decides, as the one label owner measured it
    quality: Plain | None = None
    # whose splits gained how much, and the first trees, as the one label owner says
    trees: Plain | None = None
    # in one organisation's part: how much trees use each of its columns
    own_columns: dict[str, float] | None = None
    # of the audit, by file name, as data: addresses
    pictures: dict[str, str] = field(default_factory=dict)
    # whose part of a run between sites this is; None: all parties' parts are here
    part: str | None = None
    # for who signs; None until the run has finished
    contents: Contents | None = None

    @property
    def finished(self) -> bool:
        return self.summary is not None

    @property
    def outcome(self) -> Plain:
        """The summary, or an empty one before there is one."""
        return self.summary or {}

    @property
    def rows(self) -> dict[str, int]:
        """How many each split has, where that is known."""
        return self.outcome.get("rows") or {}

    @property
    def algorithm(self) -> str:
        return str(self.settings.get("algorithm", {}).get("name", DEFAULT))

    @property
    def parties(self) -> dict[str, list[str]]:
        """What each holds, in the run's order; before the summary is written, by
        settings and folders."""
        if isinstance(self.outcome.get("parties"), dict):
            return dict(self.outcome["parties"])
        roles: dict[str, list[str]] = {}
        for name, party in self.settings.get("parties", {}).items():
            roles[name] = ["features", "labels"] if "label" in party else ["features"]
        for section, role in (("label_owners", "labels"), ("data_owners", "features")):
            for party in self.settings.get(section, []):
                roles.setdefault(party["name"], []).append(role)
        for name in self.ledgers:
            roles.setdefault(name, ["features"] if name in self.columns else [])
        return roles

    @property
    def several(self) -> bool:
        """Whether there are several label owners; an epoch is then a round."""
        return bool(self.settings.get("label_owners"))

    @property
    def epochs(self) -> int:
        return len(self.metrics)

    @property
    def rounds(self) -> int:
        if self.summary is not None:
            return int(self.summary.get("rounds", 0))
        return int(self.metrics[-1].get("step", 0)) if self.metrics else 0

    @property
    def seconds(self) -> float:
        if self.summary is not None:
            return float(self.summary.get("seconds", 0.0))
        return float(sum(record.get("seconds", 0.0) for record in self.metrics))

    @property
    def traffic(self) -> dict[str, dict[str, int]]:
        """Bytes out and in by party."""
        return (
            dict(self.outcome["bytes"])
            if "bytes" in self.outcome
            else totals(self.flows)
        )

    @property
    def others(self) -> list[str]:
        """The parties with which this one organisation exchanged anything."""
        met = dict.fromkeys(
            name for line in self.flows for name in (line["from"], line["to"])
        )
        return [name for name in met if name != self.part]

    @property
    def sent(self) -> int:
        return sum(traffic["out"] for traffic in self.traffic.values())

    @property
    def scores(self) -> dict[str, dict[str, Any]]:
        """Scores by split; while a run is running, the last epoch's validation."""
        if self.summary is not None:
            return dict(self.summary.get("metrics", {}))
        last = next(
            (
                record["validation"]
                for record in reversed(self.metrics)
                if "validation" in record
            ),
            None,
        )
        return {} if last is None else {"validation": last}

    @property
    def metric(self) -> str:
        """The metric that is named first: accuracy or R squared, or one that shows more
        where classes are uneven."""
        if led := lead(self.outcome):
            return led
        known = [
            *self.scores.values(),
            *(record.get("validation", {}) for record in self.metrics),
        ]
        return next(
            (name for scores in known for name in HEADLINE.values() if name in scores),
            "accuracy",
        )


def read(folder: Path, *, quick: bool = False) -> Facts:
    """The facts of a run directory; an error only where there is no run at all. A
    `quick` look leaves out what takes long: adding the ledgers up, and counting what an
    unfinished run has cost in privacy."""
    if not (folder / SETTINGS).exists():
        raise CheckpointError(
            f"{folder} is not a run directory: {SETTINGS} is missing."
        )
    settings: Plain = {}
    with suppress(OSError, ValueError):
        settings = tomllib.loads(
            files.check_text(
                folder / SETTINGS, (folder / SETTINGS).read_text(encoding="utf-8")
            )
        )
    summary = _json(folder / SUMMARY)
    mark = _json(folder / MARK)
    # it was resumed, and goes on
    if mark is not None and mark.get("finished") is False:
        summary = None
    try:
        reveals = find(str(settings.get("algorithm", {}).get("name", DEFAULT))).reveals
    except ColonnadeError:
        reveals = {}
    # Imported here: a run that is no part of a site needs no protocol of sites.
    from colonnade.sites.reader import REVEALS as OF_SITES

    reveals |= {**alignment.REVEALS, **OF_SITES}
    part = None
    # its settings are damaged, or of another version
    with suppress(ColonnadeError, OSError):
        part = RunDirectory(folder).part()
    return Facts(
        name=folder.resolve().name,
        settings=settings,
        metrics=_epochs(folder / METRICS),
        summary=summary,
        columns=_columns(folder),
        odd_words=_odd_words(folder, part),
        flows=[] if quick else flows(folder, reveals),
        later=[] if quick else flows(folder, reveals, AFTER),
        ledgers=sorted(
            path.parent.name for path in (folder / PARTIES).glob(f"*/{LEDGER}")
        ),
        privacy=_privacy(folder, summary, quick=quick),
        baselines=_sound(
            _json(
                folder / BASELINES,
                "metric",
                "split",
                "rows",
                "splits",
                "alone",
                "joint",
                "together",
            )
        ),
        importance=_json(
            folder / "explain" / "explain.json",
            "measures",
            "ranking",
            "ranked_by",
            "metric",
            "rows",
        ),
        selection=_first(
            folder,
            "selection",
            "method",
            "chosen",
            "ranking",
            "scores",
            "cost",
            "learned",
        ),
        alignment=_first(folder, "alignment", "common", "parties", "driver", "ids"),
        audit=_json(folder / "audit" / "audit.json", "findings", "model_files"),
        quality=(
            _only(folder, QUALITY, "rows", "split", "owner")
            if summary is not None
            else None
        ),
        trees=(
            _only(folder, TREES, "importance", "first") if summary is not None else None
        ),
        own_columns=(
            None if part is None else _json(folder / PARTIES / part / IMPORTANCE)
        ),
        pictures=_pictures(folder / "audit"),
        part=part,
        contents=None if quick or summary is None else _contents(folder),
    )


def _only(folder: Path, file: str, *keys: str) -> Plain | None:
    """The file of the one label owner; several label owners have reports of their own."""
    contents = [
        _json(path, *keys) for path in sorted((folder / PARTIES).glob(f"*/{file}"))
    ]
    return contents[0] if len(contents) == 1 else None


def _json(path: Path, *keys: str) -> Plain | None:
    """A file's content; None where it is missing or lacks a key. A damaged file is an
    error, since half a report would look like a whole one of another run."""
    try:
        content = files.read_json(path)
    except OSError:
        return None
    return content if all(key in content for key in keys) else None


def _sound(baselines: Plain | None) -> Plain | None:
    """Baselines whose values are all of the kinds that we write; None for others, as in
    a file made by hand."""

    def are_scores(values: Any) -> bool:
        return isinstance(values, list) and all(
            isinstance(scores, dict)
            and all(isinstance(value, int | float | None) for value in scores.values())
            for scores in values
        )

    if baselines is None:
        return None
    kinds = {
        "metric": str,
        "split": str,
        "rows": int,
        "splits": int,
        "seconds": float,
        "how": list,
        "notes": list,
    }
    by_party = [baselines["alone"], baselines.get("each", {})]
    sound = (
        all(
            isinstance(baselines[key], kind)
            for key, kind in kinds.items()
            if key in baselines
        )
        and all(
            isinstance(part, dict) and all(map(are_scores, part.values()))
            for part in by_party
        )
        and are_scores(baselines["joint"])
        and are_scores(baselines["together"])
        and all(
            isinstance(line, str)
            for key in ("how", "notes")
            for line in baselines.get(key, [])
        )
    )
    return baselines if sound else None


def _first(folder: Path, name: str, *keys: str) -> Plain | None:
    """What a command wrote, whose --out may be the run directory itself or a folder in
    it."""
    contents = (
        _json(place / f"{name}.json", *keys) for place in (folder, folder / name)
    )
    return next((content for content in contents if content is not None), None)


def _epochs(path: Path) -> list[Plain]:
    """All whole lines, of which there is none at first; the last may be cut, while a
    run is writing it."""
    records = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(ValueError):
            records.append(json.loads(line))
    return [record for record in records if isinstance(record, dict)]


def _columns(folder: Path) -> dict[str, int]:
    """How many columns each party has; their names stay in its folder."""
    counts = {}
    for path in sorted((folder / PARTIES).glob("*/columns.json")):
        about = (_json(path) or {}).get("columns")
        if isinstance(about, dict) and isinstance(listed := about.get("columns"), list):
            counts[path.parent.name] = len(listed)
    return counts


def _odd_words(folder: Path, part: str | None) -> dict[str, dict[str, OddWords]]:
    """The words that parties have among numbers. They are cells of a party's table, so
    they come from its own folder alone, and `part` of a run shows its own alone."""
    found = {}
    for path in sorted((folder / PARTIES).glob("*/columns.json")):
        party = path.parent.name
        learned = (_json(path) or {}).get("columns")
        if part not in (None, party) or not isinstance(learned, dict):
            continue
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            found[party] = {
                str(column): OddWords.from_state(words)
                for column, words in learned["odd_words"].items()
            }
    return found


def _privacy(folder: Path, summary: Plain | None, *, quick: bool) -> list[Plain]:
    """Guarantees as the summary has them; where a party's folder is here, with what it
    released since."""
    at_end: list[Plain] = (summary or {}).get("privacy", [])
    if quick:
        return at_end
    by_now = {
        (guarantee["party"], guarantee["protects"]): guarantee
        for guarantee in _spent(folder)
    }
    updated = [
        by_now.get((guarantee["party"], guarantee["protects"]), guarantee)
        for guarantee in at_end
    ]
    return updated or list(by_now.values())


def _spent(folder: Path) -> list[Plain]:
    """What a run has cost so far, by its last checkpoint and the parties' stores."""
    guarantees: list[Plain] = []
    with suppress(
        ColonnadeError,
        OSError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        ImportError,
    ):
        guarantees = plain(
            [guarantee.to_json() for guarantee in of_run(RunDirectory(folder))]
        )
    return guarantees  # none where nothing is saved yet, or is being saved right now


def _contents(folder: Path) -> Contents | None:
    """What somebody could sign; None where a file of the run cannot be read."""
    with suppress(ColonnadeError, OSError, ValueError, KeyError):
        return contents_of(folder)
    return None


def _pictures(folder: Path) -> dict[str, str]:
    """A picture per name: the SVG, or the PNG where the SVG is too large."""
    addresses: dict[str, str] = {}
    for kind, content in KINDS.items():
        for path in sorted(folder.glob(f"inversion-*{kind}")):
            with suppress(OSError):
                if path.stem not in addresses and path.stat().st_size <= LARGEST:
                    text = base64.b64encode(path.read_bytes()).decode("ascii")
                    addresses[path.stem] = f"data:{content};base64,{text}"
    return addresses
