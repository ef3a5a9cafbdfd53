"""A federation as its TOML file says it, checked before anything is read or sent, with
what is used where it is silent.

    [algorithm]                 which one, and its own settings           name = "vimadmm", rho = 2.0
    [data]                      rows and ids                              id = "patient", validation = 0.1, test = 0.2
    [preprocess]                how columns become numbers                numbers = "piecewise"
    [model]                     the local models, unless a party's says otherwise
    [train]                     epochs, batch size, stopping, checkpoints
    [federation]                seed, device, engine
    [audit]                     what an audit may find at most            label_inference = 0.6
    [alignment]                 whose ids are common, found in private    ids = "normalised", reveal = "count"
    [selection]                 for `colonnade select`                    queries = 256, k = 3
    [tracking]                  who else is told the numbers              tensorboard = true
    [parties.clinic]            one table per organisation                table = "clinic.csv", label = "diagnosis"
    [parties.clinic.outbox]     its owner's rules by release name         embedding = { mechanism = "plain" }
    [parties.clinic.budget]     what its owner's rows may pay in all      epsilon = 8.0, delta = 1e-5

Where several organisations hold labels, `sections` says what stands in the place of
[parties].

Where nobody says otherwise, the same is used for files, `colonnade init` and data
frames alike:

    [algorithm]    what its record has `for_tables`                         (its Config has its paper's settings)
    [model]        an mlp by training rows and classes, tanh                `sizes`; no unit can die, all are as wide
    [preprocess]   quantile bins                                            `prepared_as`
    [train]        batches and epochs by the number of training rows        `by_rows`; few with noise, `with_few_epochs`

A named data set is an experiment, and keeps the papers' settings; `preset` names those
of one for other data. Everything is written out in a run's own federation.toml, so what
a later version would suggest changes no run.

Paths are relative to the file. Python's `Federation.from_frames(settings=...)` takes
the same tables as a dict.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colonnade.algorithms import DEFAULT, find
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.alignment import AlignmentSettings
from colonnade.alignment.keys import names_of
from colonnade.alignment.settings import Key, normalised
from colonnade.core.checks import (
    AUTO,
    check_tables,
    did_you_mean,
    from_mapping,
    read_toml,
)
from colonnade.datasets.target_scale import TargetScale
from colonnade.errors import ConfigError
from colonnade.models import import_path
from colonnade.selection.settings import SERVER, SelectionSettings
from colonnade.settings.changes import Change, check_continues, laid_over
from colonnade.settings.known import LISTS, MODELS, SECTIONS
from colonnade.settings.rules import is_made_for_budget
from colonnade.settings.sections import (
    AuditSettings,
    DataSettings,
    EngineSettings,
    LabelOwnerSettings,
    PartySettings,
    PreprocessSettings,
    TrainSettings,
    by_name,
    check_dealt,
    check_keys,
    check_lists,
    check_names,
    check_train,
    dropout_of,
    keys_in,
    label_owner,
    party_of,
    with_paths,
)
from colonnade.settings.toml_text import to_toml
from colonnade.tracking import TrackingSettings

FOLLOW = ("epochs", "batch_size")
"""Of [train], what follows the rows unless somebody says otherwise."""
OLDER: dict[str, Any] = {"preprocess": {"numbers": "standard"}}


TABLES: dict[str, type[Any]] = {
    "data": DataSettings,
    "preprocess": PreprocessSettings,
    "train": TrainSettings,
    "federation": EngineSettings,
    "audit": AuditSettings,
    "alignment": AlignmentSettings,
    "selection": SelectionSettings,
    "tracking": TrackingSettings,
}
"""The tables that stand alone, and what they may say."""
ALWAYS = ("data", "train", "federation")
"""Those of which something must be known; of the others a file may say nothing."""
ALIGNMENT = AlignmentSettings()
SELECTION = SelectionSettings()
TRACKING = TrackingSettings()
AUDIT = AuditSettings()
PREPROCESS = PreprocessSettings()
SILENT = {
    "audit": AUDIT,
    "alignment": ALIGNMENT,
    "selection": SELECTION,
    "tracking": TRACKING,
}
"""Where it says nothing of them; what nobody said is not written out."""
FIELDS = {"federation": "engine"}
"""What a table is called in `Settings`, where not as in a file."""
MODEL: dict[str, Any] = {
    "name": "mlp",
    "hidden": "auto",
    "width": "auto",
    "activation": "tanh",
    "ending": "auto",
}
NARROW = 8
USUAL = 32
WIDE = 64
"""Numbers a row that a party sends: at least, at most for many rows, and at most for
many classes."""
LEAST = 16
MOST = 512
BATCHES = 24
"""Rows of a batch, and batches of an epoch where neither bound is met."""
STEPS = 3000
FEWEST = 20
LONGEST = 100
OPTIMAL = 300
"""Steps in all, and epochs, at most: early stopping ends a run sooner. To an optimum,
small tables take 15 to 160."""
FEW = 5
"""Epochs at most where noise is made for a budget: each of them makes all noise larger
(docs/how-to-tune.md)."""

SEVERAL = 10_000
"""Training rows for which batches and rounds are made where several organisations have
labels."""

_MLP: dict[str, Any] = {
    "name": "mlp",
    "hidden": [120],
    "width": 60,
    "activation": "relu",
    "ending": "same",
}
_VIM: dict[str, Any] = {
    "train": {"epochs": 10, "batch_size": 1024, "patience_drop": 0.02},
    "preprocess": {"numbers": "standard"},
}
PRESETS: dict[str, dict[str, Any]] = {
    "vim-mnist": {**_VIM, "model": _MLP},
    "vim-cifar": {
        **_VIM,
        "model": {"name": "cnn", "channels": [32, 64, 64, 128], "width": 60},
    },
}
"""Papers' settings by name, where a file leaves them out; the algorithm's own are then
those of its Config."""


@dataclass(frozen=True)
class Settings:
    """Everything that a federation file says. Where [[label_owners]] are listed,
    `parties` are the data owners."""

    algorithm: str
    config: Any
    data: DataSettings
    model: Mapping[str, Any]
    train: TrainSettings
    engine: EngineSettings
    parties: Mapping[str, PartySettings]
    audit: AuditSettings = AUDIT
    alignment: AlignmentSettings = ALIGNMENT
    selection: SelectionSettings = SELECTION
    tracking: TrackingSettings = TRACKING
    preprocess: PreprocessSettings = PREPROCESS
    label_owners: Mapping[str, LabelOwnerSettings] = field(default_factory=dict)
    label_model: Mapping[str, Any] = field(default_factory=dict)
    # by who runs this: no file of others says so
    allow_models: tuple[str, ...] = field(default=(), compare=False)

    @property
    def rows_differ(self) -> bool:
        """Whether partners may lack rows that are trained on."""
        return self.data.rows == "label_owner"

    @property
    def party_dropout(self) -> float:
        """How often a partner is left out of a training batch."""
        return dropout_of(self.data.rows, self.train.party_dropout)

    @property
    def may_lack(self) -> bool:
        """Whether rows are predicted without a partner that lacks them, or does not
        answer."""
        return (
            self.rows_differ
            or self.party_dropout > 0
            or self.engine.on_missing in ("stale", "skip")
        )

    @property
    def shared(self) -> bool:
        """Whether label owners may share rows: the side of a row then follows from its
        id alone, and the name of a batch says whose it is. One label owner's rows are
        all rows."""
        return bool(self.label_owners)

    @property
    def server(self) -> tuple[str, ...]:
        """Organisations without data: the server that adds up the weights of several
        label owners and drives them."""
        return (SERVER,) if self.label_owners else ()

    def check_one_label_owner(
        self,
        cure: str = "`predict`, `privacy`, `align`, `select`, `explain` and `audit` take both.",
    ) -> None:
        """Raise where several hold labels, for what works with one."""
        if self.label_owners:
            raise ConfigError(
                f"This works with one label owner, and {self.algorithm} has"
                f" {len(self.label_owners)}: {', '.join(self.label_owners)}. {cure}"
            )

    def check_target_scale(self) -> None:
        """Raise where a log scale is asked for and cannot be had."""
        if self.data.target_scale != "log":
            return
        if self.shared:
            raise ConfigError(
                '[data] target_scale = "log" works with one label owner, and there are'
                f" {len(self.label_owners)}: {', '.join(self.label_owners)}. Remove it."
            )
        if self.data.task == "classification":
            raise ConfigError(
                '[data] target_scale = "log" is for labels that are numbers, and task'
                ' = "classification" says that they are classes. Remove one of them.'
            )
        if getattr(self.config, "loss", "auto") == "poisson":
            raise ConfigError(
                '[data] target_scale = "log" does not go with loss = "poisson", which'
                " takes logarithms itself. Remove one of them."
            )

    @property
    def section(self) -> str:
        """The heading under which `parties` stand."""
        return "data_owners" if self.label_owners else "parties"

    def id_of(self, owner: PartySettings | LabelOwnerSettings | None) -> str:
        """What an owner calls the id column; where there are several keys, the first of
        them."""
        return " | ".join(self.keys_of(owner)[0])

    @property
    def keys(self) -> tuple[Key, ...]:
        """The columns of each key, by which rows are matched in turn."""
        return keys_in(self.data.id, "[data] id")

    def keys_of(
        self, owner: PartySettings | LabelOwnerSettings | None
    ) -> tuple[Key, ...]:
        """What an owner calls the columns of each key."""
        return (
            self.keys
            if owner is None or owner.id is None
            else keys_in(owner.id, "id", may_lack=True)
        )

    def aside_of(self, owner: PartySettings | LabelOwnerSettings) -> dict[str, str]:
        """By the setting that names it, each column of a label owner that is no
        feature."""
        named = {"split_by": self.data.split_by, "weights": vars(owner).get("weights")}
        return (
            {}
            if owner.label is None
            else {part: name for part, name in named.items() if name is not None}
        )

    @property
    def plain_ids(self) -> bool:
        """Whether a row is named by one column as it is written, and no two rows of a
        table have one name."""
        one_column = len(self.keys) == 1 and len(self.keys[0]) == 1
        return (
            one_column
            and not self.alignment.rules
            and self.alignment.duplicates == "refuse"
        )

    @property
    def counted_by(self) -> str:
        """What an owner's rows are known by over all its runs: by other keys, their
        budgets would begin anew."""
        if self.plain_ids:
            return self.alignment.ids
        keys = json.dumps(
            [self.alignment.ids, self.keys, dict(self.alignment.rules)], sort_keys=True
        )
        return f"keys-{hashlib.sha256(keys.encode()).hexdigest()[:16]}"

    def names_of(self, ids: Iterable[str]) -> list[str]:
        """Translate ids, as somebody writes who asks for them, into what rows are
        called."""
        if self.plain_ids:
            return (
                [normalised(name) for name in ids]
                if self.alignment.ids == "normalised"
                else list(ids)
            )
        return names_of(ids, self.keys, self.alignment)

    def keys_at(self, name: str) -> tuple[Key, ...]:
        """What the columns of each key are called at an organisation that asks for
        predictions."""
        return self.keys_of(self.label_owners.get(name) or self.parties.get(name))

    def id_column_of(self, name: str) -> str:
        """What the id column is called at an organisation that asks for predictions."""
        return " | ".join(self.keys_at(name)[0])

    def code(self) -> tuple[str, ...]:
        """The import paths that these settings name as models."""
        specs = [
            self.model,
            self.label_model,
            *(party.model for party in self.parties.values()),
        ]
        return tuple(
            dict.fromkeys(path for path in map(import_path, specs) if path is not None)
        )

    def models_of(self, name: str) -> str:
        """Where an organisation's initial weights come from: "secret" is from the
        operating system; "seeded" from the agreed seed, so that everybody who knows it
        knows them, as is right for a rehearsal in one process."""
        owners: list[PartySettings | LabelOwnerSettings | None] = [
            self.parties.get(name),
            self.label_owners.get(name),
        ]
        return (
            "secret"
            if any(own is not None and own.models == "secret" for own in owners)
            else "seeded"
        )

    @classmethod
    def from_mapping(
        cls,
        tables: Mapping[str, Any],
        *,
        where: str = "The mapping of settings",
        allow_models: Sequence[str] = (),
        saved: bool = False,
    ) -> Settings:
        """Check nested tables, as `tomllib` gives them. `allow_models` lists the import
        paths that may be imported. What the tables do not say is suggested, unless a
        run `saved` them: what it does not say, it did not have."""
        check_tables(tables, where, SECTIONS, lists=LISTS, words=MODELS)
        name = tables.get("algorithm", {}).get("name", DEFAULT)
        algorithm = find(str(name))
        tables = tables if saved else suggested(tables, algorithm, where)
        chosen = {
            key: value
            for key, value in tables.get("algorithm", {}).items()
            if key != "name"
        }
        several = algorithm.nested is not None
        check_lists(str(name), several, tables)
        section = "data_owners" if several else "parties"
        held = (
            by_name(section, tables.get(section, []))
            if several
            else tables.get(section, {})
        )
        parties = {
            party: party_of(party, given, section) for party, given in held.items()
        }
        labelled = by_name("label_owners", tables.get("label_owners", []))
        check_names([*held, *labelled])
        model, label_model = (
            {"name": m} if isinstance(m := tables.get(key, {}), str) else dict(m)
            for key in MODELS
        )
        settings = cls(
            algorithm=name,
            config=from_mapping(
                algorithm.config, chosen, where=f"[algorithm] ({name})"
            ),
            model=model,
            parties=parties,
            **{
                FIELDS.get(section, section): from_mapping(
                    kind, tables.get(section, {}), where=f"[{section}]"
                )
                for section, kind in TABLES.items()
                if tables.get(section) or section in ALWAYS
            },
            label_owners={
                party: label_owner(party, given) for party, given in labelled.items()
            },
            label_model=label_model,
            allow_models=_listed(allow_models),
        )
        if "alignment" in tables:
            settings.alignment.check_helper([*parties, *labelled])
            settings.alignment.check_keys(settings.keys)
        for section_, owners in (
            (section, parties),
            ("label_owners", settings.label_owners),
        ):
            check_keys(
                settings.keys,
                owners,
                section_,
                plain=settings.plain_ids,
                several=several,
                tables=settings.data.dataset is None,
            )
        if (
            len(settings.keys) > 1
            and settings.data.align != "private"
            and len(parties) > 1
        ):
            raise ConfigError(
                'Several keys are compared with [data] align = "private". Set it, or'
                " name one key."
            )
        check_dealt(settings.label_owners, settings.data.dataset)
        settings.check_target_scale()
        algorithm.check_missing(
            settings.algorithm, settings.config, settings.engine.on_missing
        )
        check_train(name, algorithm, settings.config, settings.data, settings.train)
        return settings

    @classmethod
    def from_toml(
        cls,
        path: Path,
        *,
        allow_models: Sequence[str] = (),
        saved: bool = False,
        changes: Sequence[Change] = (),
    ) -> Settings:
        """From a file; relative table paths are resolved against its folder.
        `allow_models` is not in the file, which may be somebody else's: it is the word
        of who runs it. A run that was `saved` by an earlier version has no
        [preprocess], and scaled its numbers. `changes` are laid over the file's tables.
        """
        tables = {
            **(OLDER if saved else {}),
            **read_toml(path, f"The federation file {path}"),
        }
        if (
            isinstance(engine := tables.get("federation"), dict)
            and engine.get("engine") == "in-process"
        ):
            del engine["engine"]  # once a setting, which had this value alone
        if changes:
            tables = laid_over(tables, changes, str(path))
        settings = cls.from_mapping(
            tables, where=str(path), allow_models=allow_models, saved=saved
        )

        def resolved(owners: Mapping[str, Any]) -> dict[str, Any]:
            return {
                name: with_paths(owner, path.parent) for name, owner in owners.items()
            }

        return dataclasses.replace(
            settings,
            parties=resolved(settings.parties),
            label_owners=resolved(settings.label_owners),
            tracking=(
                settings.tracking.below(path.parent)
                if "tracking" in tables
                else settings.tracking
            ),
        )

    def with_few_epochs(self) -> Settings:
        """Choose few epochs where nobody has said how many, and an owner's noise is
        made for its budget and all epochs. A site knows its own rules alone, and all
        must choose alike: there it is agreed on before (`write_agreed`)."""
        if self.train.epochs or not any(
            p.budget and is_made_for_budget(p.outbox) for p in self.parties.values()
        ):
            return self
        size: Any = self.train.batch_size or "auto"
        return dataclasses.replace(
            self, train=dataclasses.replace(self.train, epochs=FEW, batch_size=size)
        )

    def for_rows(self, rows: int, outputs: int) -> Settings:
        """Choose batches, epochs and models for so many training rows and outputs,
        where nobody has said otherwise."""
        algorithm = find(self.algorithm)
        # Of several label owners each knows its own rows alone, so then it is one
        # number for all, whatever they have.
        rows = rows if algorithm.nested is None else SEVERAL
        size, epochs = by_rows(
            rows, in_batches=algorithm.in_batches, converges=algorithm.converges
        )
        train = self.train
        fit = dataclasses.replace(
            train, epochs=train.epochs or epochs, batch_size=train.batch_size or size
        )
        return dataclasses.replace(
            self.with_models(sizes(rows, outputs), {}), train=fit
        )

    def with_seed(self, seed: int | None) -> Settings:
        """Replace the seed, where one is given."""
        return (
            self
            if seed is None
            else dataclasses.replace(
                self, engine=dataclasses.replace(self.engine, seed=seed)
            )
        )

    def with_models(
        self, agreed: Mapping[str, Any], own: Mapping[str, Any]
    ) -> Settings:
        """Put in these sizes of models, or by party its `own`, where the settings leave
        them open."""
        parties = {
            name: dataclasses.replace(
                party, model=sized(party.model, own.get(name) or agreed)
            )
            for name, party in self.parties.items()
        }
        return dataclasses.replace(
            self, model=sized(self.model, agreed), parties=parties
        )

    def to_mapping(self) -> dict[str, Any]:
        """Give the tables again, with every default written out."""
        parties: Any = {name: _table(party) for name, party in self.parties.items()}
        if self.label_owners:
            parties = [{"name": name} | party for name, party in parties.items()]
        labelled = [
            {"name": name} | _table(owner) for name, owner in self.label_owners.items()
        ]
        train = _table(self.train)
        return {
            "algorithm": {"name": self.algorithm} | _table(self.config),
            "data": _table(self.data),
            "preprocess": _table(self.preprocess),
            "model": dict(self.model),
            "train": {
                key: "auto" if value is AUTO and key in FOLLOW else value
                for key, value in train.items()
            },
            "federation": _table(self.engine),
            **{
                name: _table(vars(self)[name])
                for name, silent in SILENT.items()
                if vars(self)[name] != silent
            },
            **(
                {"label_model": dict(self.label_model), "label_owners": labelled}
                if labelled
                else {}
            ),
            self.section: parties,
        }

    def to_toml(self) -> str:
        """Write the resolved file that a run keeps."""
        return to_toml(self.to_mapping())

    def check_continues(
        self, saved: Settings, own: Path = Path("federation.toml")
    ) -> list[str]:
        """Raise unless a run that was started with `saved`, its own file, can go on
        with these; give what differs."""
        return check_continues(
            saved.to_mapping(),
            self.to_mapping(),
            saved.counted_by,
            self.counted_by,
            own,
        )


def suggested(
    tables: Mapping[str, Any], algorithm: AnyAlgorithm, where: str
) -> dict[str, Any]:
    """Complete the tables with what is suggested where they say nothing."""
    given = {section: value for section, value in tables.items() if section != "preset"}
    preset = tables.get("preset")
    if preset is not None:
        if not isinstance(preset, str) or preset not in PRESETS:
            hint = did_you_mean(str(preset), list(PRESETS))
            raise ConfigError(
                f"{where}: there is no preset {preset!r}{hint}; there are"
                f" {', '.join(PRESETS)}."
            )
        return _under(given, PRESETS[preset])
    data = given.get("data")
    if isinstance(data, Mapping) and data.get("dataset") is not None:
        return _under(
            given,
            {
                "train": _VIM["train"] | {"patience_drop": 0.0},
                "preprocess": _VIM["preprocess"],
            },
        )
    settings = dict(algorithm.for_tables)
    if may_lack_parties(given):
        settings |= algorithm.for_lacking_rows
    filled = _under(given, {"algorithm": settings})
    if algorithm.intercept is not None:
        return filled
    filled["model"] = _model(given.get("model", {}))
    for section in ("parties", "data_owners"):
        if section in filled:
            filled[section] = _each(filled[section])
    return filled


def may_lack_parties(given: Mapping[str, Any]) -> bool:
    """Whether these tables of a file say that a row may be trained on or predicted
    without a party's part."""

    def said(section: str, key: str) -> Any:
        table = given.get(section)
        return table.get(key) if isinstance(table, Mapping) else None

    rows_differ = said("data", "rows") == "label_owner"
    is_left_out = bool(said("train", "party_dropout"))
    is_skipped = said("federation", "on_missing") == "skip"
    return rows_differ or is_left_out or is_skipped


def by_rows(rows: int, *, in_batches: bool, converges: bool = False) -> tuple[int, int]:
    """Choose the size of a batch, and epochs at most: few rows get enough steps, and
    many not thousands of passes."""
    size = LEAST
    while size < MOST and size * BATCHES * 2 <= rows:
        size *= 2
    steps = -(-rows // size) if in_batches and rows else 1
    return size, max(FEWEST, min(OPTIMAL if converges else LONGEST, STEPS // steps))


def sizes(rows: int, outputs: int) -> dict[str, Any]:
    """The hidden layer, the width and the ending of an mlp, for so many training rows
    and outputs of the joint model. A wide one learns few rows by heart, so its hidden
    layer has the root of the rows, as a power of two; what it sends is half of that. A
    head tells classes apart by directions in what it is sent, and gets two for each,
    however few the rows; where that is more, directions bend, and else the last layer
    is linear."""
    width = NARROW
    while width < USUAL and (4 * width) ** 2 <= rows:
        width *= 2
    bends = width < min(2 * outputs, WIDE)
    while width < min(2 * outputs, WIDE):
        width *= 2
    return {
        "hidden": [2 * width],
        "width": width,
        "ending": "same" if bends else "none",
    }


def sized(model: Any, measures: Mapping[str, Any]) -> Any:
    """Put sizes into a model where it leaves them open; a model that is only named, or
    none, stays as it is."""
    if not isinstance(model, Mapping):
        return model
    return {
        key: measures.get(key, value) if value == "auto" else value
        for key, value in model.items()
    }


def _under(
    given: Mapping[str, Any], suggestion: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Lay the given tables over the suggested ones, key by key. Nothing is suggested
    for a model of another name."""
    merged = dict(given)
    for section, values in suggestion.items():
        own = given.get(section, {})
        if (
            section == "model"
            and (own if isinstance(own, str) else own.get("name", values["name"]))
            != values["name"]
        ):
            continue
        if isinstance(own, Mapping):
            merged[section] = {**values, **own}
    return merged


def _model(own: Any) -> Any:
    """Complete an mlp by what is suggested; another model stays as it is."""
    if isinstance(own, str):
        return MODEL if own == "mlp" else own
    if not isinstance(own, Mapping) or own.get("name", "mlp") != "mlp":
        return own
    return {**MODEL, **own}


def _each(parties: Any) -> Any:
    """Complete the models of owners who have one of their own, in a list or in tables
    by name."""
    if isinstance(parties, list):
        return [_with_model(party) for party in parties]
    if isinstance(parties, Mapping):
        return {name: _with_model(party) for name, party in parties.items()}
    return parties


def _with_model(party: Any) -> Any:
    if not isinstance(party, Mapping) or party.get("model") is None:
        return party
    return {**party, "model": _model(party["model"])}


def prepared_as(settings: Settings, party: str, outputs: int) -> dict[str, Any]:
    """How a party prepares its numbers for a joint model of so many outputs, as
    `Preprocessor.fit` takes it. Where the owner chose another scale, "auto" is that
    scale. Bins are for models that learn from labels what each is worth: distances
    between rows, and what is learned without labels, take all columns alike."""
    own = settings.parties.get(party, PartySettings())
    algorithm = find(settings.algorithm)
    bins = algorithm.local_model is not None and not algorithm.learns_first
    wanted = (
        own.numbers
        if isinstance(own.numbers, Mapping)
        else {"": own.numbers or settings.preprocess.numbers}
    )
    ways = {"": settings.preprocess.numbers, **wanted}
    ways = {
        name: "standard" if way == "auto" and own.scale != "standard" else way
        for name, way in ways.items()
    }
    return {
        "scale": own.scale,
        "numbers_as": ways,
        "classes": max(outputs, 2) if bins else 0,
    }


def target_scale_of(settings: Settings) -> TargetScale:
    """The scale on which labels that are numbers may be trained.

    Where nobody chose one, it stays linear for what is said in the label's own unit:
    coefficients, and a loss that the file names. Several label owners agree on a mean
    and a deviation, and on no logarithm.
    """
    wanted: Any = settings.data.target_scale
    if wanted != "auto":
        return wanted  # type: ignore[no-any-return]
    has_coefficients = find(settings.algorithm).intercept is not None
    names_a_loss = getattr(settings.config, "loss", "auto") != "auto"
    if settings.shared or has_coefficients or names_a_loss:
        return "linear"
    return "auto"


def _table(settings: Any) -> dict[str, Any]:
    """Write a dataclass as TOML values; what is None or empty is left out."""
    values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    plain = {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}
    return {
        key: value for key, value in plain.items() if value is not None and value != {}
    }


def _listed(allow_models: Any) -> tuple[str, ...]:
    if isinstance(allow_models, str) or not all(
        isinstance(one, str) and {*one} & {*":."} for one in allow_models
    ):
        raise ConfigError(
            "--allow-model and allow_models must be a list of import paths, as in "
            f'["my_package.nets:Tower"]; found {allow_models!r}.'
        )
    return tuple(allow_models)
