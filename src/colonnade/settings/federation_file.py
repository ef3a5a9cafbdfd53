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
[parties]. `suggested` says what is used where the file is silent. Everything is written
out in a run's own federation.toml, so what a later version would suggest changes no run.

Paths are relative to the file. Python's `Federation.from_frames(settings=...)` takes
the same tables as a dict.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field

from colonnade.errors import ConfigError
from colonnade.settings.algorithms import (
    DEFAULT,
    AlgorithmSettings,
    algorithm_settings,
)
from colonnade.settings.alignment import AlignmentSettings, Key
from colonnade.settings.changes import Change, check_continues, laid_over
from colonnade.settings.schema import Rule, Table, checked
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
    check_label_owners_own,
    check_lists,
    check_missing,
    check_names,
    check_no_label,
    check_train,
    dropout_of,
    is_made_for_budget,
    keys_in,
    with_paths,
)
from colonnade.settings.selection import SERVER, SelectionSettings
from colonnade.settings.suggested import (
    EPOCHS_WITH_NOISE,
    ROWS_OF_SEVERAL,
    by_rows,
    sized,
    sizes,
    suggested,
)
from colonnade.settings.toml_text import read_toml, to_toml
from colonnade.settings.tracking import TrackingSettings

SCALED_NUMBERS = {"preprocess": {"numbers": "standard"}}
"""How the runs of versions without [preprocess] prepared numbers."""
SILENT = ("audit", "alignment", "selection", "tracking")
"""Tables that are left out of a written file where they say nothing but defaults."""


def import_path(model: Any) -> str | None:
    """The import path that a model's description names. None where it names none, or a
    model of Colonnade's own."""
    name = model.get("name") if isinstance(model, Mapping) else model
    if not isinstance(name, str):
        return None
    module = name.replace(":", ".").rpartition(".")[0]
    return name if module else None


def _chosen_algorithm(given: Any) -> Any:
    """Check [algorithm] by the settings of the algorithm that it names."""
    if isinstance(given, AlgorithmSettings):
        return given
    if not isinstance(given, Mapping):
        raise ValueError(
            f"must be a table of settings; found {given!r}. Write algorithm ="
            f' {{ name = "{given}" }}.'
        )
    values = dict(given)
    name = str(values.pop("name", DEFAULT))
    try:
        kind = algorithm_settings(name)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return kind.model_validate(values)


def _named_model(given: Any) -> Any:
    """A model that is only named, as a table."""
    return {"name": given} if isinstance(given, str) else given


def _listed_by_name(section: str) -> BeforeValidator:
    """Organisations that a file lists, by their names."""

    def by_their_names(given: Any) -> Any:
        owners = by_name(section, given)
        if section == "data_owners":
            for name, owner in owners.items():
                check_no_label(name, owner, section)
        return owners

    return BeforeValidator(by_their_names)


def _names_of_folders(owners: dict[str, Any]) -> dict[str, Any]:
    try:
        check_names(owners)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return owners


Model = Annotated[
    dict[str, Any],
    BeforeValidator(_named_model),
    Rule(
        'a table of settings, or a name: "mlp", or of your own module'
        ' "my_package.nets:Tower"'
    ),
]
ByName = AfterValidator(_names_of_folders)


class FederationFile(Table):
    """The agreed file of a federation: federation.toml."""

    holds_tables: ClassVar[bool] = True

    algorithm: Annotated[AlgorithmSettings, BeforeValidator(_chosen_algorithm)] = Field(
        default_factory=algorithm_settings(DEFAULT),
        description="Which algorithm trains, by its `name`, and its own settings.",
    )
    data: DataSettings = DataSettings()
    preprocess: PreprocessSettings = PreprocessSettings()
    model: Model = Field(
        default={}, description="The local models, unless a party's says otherwise."
    )
    label_model: Model = Field(
        default={}, description="The model of every label owner, where several are."
    )
    train: TrainSettings = TrainSettings()
    federation: EngineSettings = EngineSettings()
    audit: AuditSettings = AuditSettings()
    alignment: AlignmentSettings = AlignmentSettings()
    selection: SelectionSettings = SelectionSettings()
    tracking: TrackingSettings = TrackingSettings()
    parties: Annotated[dict[str, PartySettings], ByName] = Field(
        default={}, description="The organisations, where one of them holds the labels."
    )
    label_owners: Annotated[
        dict[str, LabelOwnerSettings], _listed_by_name("label_owners"), ByName
    ] = Field(
        default={},
        description="The organisations with labels, where several have them.",
    )
    data_owners: Annotated[
        dict[str, PartySettings], _listed_by_name("data_owners"), ByName
    ] = Field(
        default={},
        description="The organisations with columns, where several have labels.",
    )


@dataclass(frozen=True)
class Settings:
    """Everything that a federation file says. Where [[label_owners]] are listed,
    `parties` are the data owners."""

    algorithm: str
    config: Any  # the algorithm's own settings, which its module calls Config
    data: DataSettings
    model: Mapping[str, Any]
    train: TrainSettings
    engine: EngineSettings
    parties: Mapping[str, PartySettings]
    audit: AuditSettings
    alignment: AlignmentSettings
    selection: SelectionSettings
    tracking: TrackingSettings
    preprocess: PreprocessSettings
    label_owners: Mapping[str, LabelOwnerSettings]
    label_model: Mapping[str, Any]
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
        cure: str = (
            "`predict`, `privacy`, `align`, `select`, `explain` and `audit` take both."
        ),
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
        return keys_in(self.data.id)

    def keys_of(
        self, owner: PartySettings | LabelOwnerSettings | None
    ) -> tuple[Key, ...]:
        """What an owner calls the columns of each key."""
        if owner is None or owner.id is None:
            return self.keys
        return keys_in(owner.id, may_lack=True)

    def aside_of(self, owner: PartySettings | LabelOwnerSettings) -> dict[str, str]:
        """By the setting that names it, each column of a label owner that is no
        feature."""
        if owner.label is None:
            return {}
        weights = getattr(owner, "weights", None)
        named = {"split_by": self.data.split_by, "weights": weights}
        return {part: name for part, name in named.items() if name is not None}

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
        name, kind = _algorithm_of(tables)
        check_lists(name, kind, tables)
        completed = tables if saved else suggested(tables, kind, where)
        written = {key: value for key, value in completed.items() if key != "preset"}
        file = checked(FederationFile, written, whose=where)
        check_names([*file.data_owners, *file.label_owners])
        settings = cls(
            algorithm=name,
            config=file.algorithm,
            data=file.data,
            model=file.model,
            train=file.train,
            engine=file.federation,
            parties=file.parties or file.data_owners,
            audit=file.audit,
            alignment=file.alignment,
            selection=file.selection,
            tracking=file.tracking,
            preprocess=file.preprocess,
            label_owners=file.label_owners,
            label_model=file.label_model,
            allow_models=_listed(allow_models),
        )
        settings.check_together()
        return settings

    def check_together(self) -> None:
        """Raise where settings of several tables do not go together."""
        check_label_owners_own(self.parties, self.section)
        self.alignment.check_helper([*self.parties, *self.label_owners])
        self.alignment.check_keys(self.keys)
        for section, owners in (
            (self.section, self.parties),
            ("label_owners", self.label_owners),
        ):
            check_keys(
                self.keys,
                owners,
                section,
                plain=self.plain_ids,
                several=bool(self.label_owners),
                tables=self.data.dataset is None,
            )
        several_keys = len(self.keys) > 1 and len(self.parties) > 1
        if several_keys and self.data.align != "private":
            raise ConfigError(
                'Several keys are compared with [data] align = "private". Set it, or'
                " name one key."
            )
        check_dealt(self.label_owners, self.data.dataset)
        self.check_target_scale()
        check_missing(self.algorithm, self.config, self.engine.on_missing)
        check_train(self.algorithm, self.config, self.data, self.train)

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
        tables = read_toml(path, f"The federation file {path}")
        if saved:
            tables = {**SCALED_NUMBERS, **tables}
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
        return dataclasses.replace(
            self, train=self.train.changed(epochs=EPOCHS_WITH_NOISE)
        )

    def for_rows(self, rows: int, outputs: int) -> Settings:
        """Choose batches, epochs and models for so many training rows and outputs,
        where nobody has said otherwise."""
        kind: AlgorithmSettings = self.config
        if kind.several_label_owners:
            rows = ROWS_OF_SEVERAL
        batch_size, epochs = by_rows(
            rows, in_batches=kind.in_batches, converges=kind.converges
        )
        train = self.train.changed(
            epochs=self.train.epochs or epochs,
            batch_size=self.train.batch_size or batch_size,
        )
        with_models = self.with_models(sizes(rows, outputs), {})
        return dataclasses.replace(with_models, train=train)

    def with_seed(self, seed: int | None) -> Settings:
        """Replace the seed, where one is given."""
        if seed is None:
            return self
        return dataclasses.replace(self, engine=self.engine.changed(seed=seed))

    def with_models(
        self, agreed: Mapping[str, Any], own: Mapping[str, Any]
    ) -> Settings:
        """Put in these sizes of models, or by party its `own`, where the settings leave
        them open."""
        parties = {
            name: party.changed(model=sized(party.model, own.get(name) or agreed))
            for name, party in self.parties.items()
        }
        return dataclasses.replace(
            self, model=sized(self.model, agreed), parties=parties
        )

    def to_mapping(self) -> dict[str, Any]:
        """Give the tables again, with every default written out."""
        tables: dict[str, Any] = {
            "algorithm": {"name": self.algorithm, **self.config.to_mapping()},
            "data": self.data.to_mapping(),
            "preprocess": self.preprocess.to_mapping(),
            "model": dict(self.model),
            "train": self.train.to_mapping(),
            "federation": self.engine.to_mapping(),
        }
        for section in SILENT:
            table: Table = getattr(self, section)
            if table != type(table)():
                tables[section] = table.to_mapping()
        parties = {name: party.to_mapping() for name, party in self.parties.items()}
        if not self.label_owners:
            return {**tables, "parties": parties}
        labelled = {
            name: owner.to_mapping() for name, owner in self.label_owners.items()
        }
        return {
            **tables,
            "label_model": dict(self.label_model),
            "label_owners": _listed_with_names(labelled),
            "data_owners": _listed_with_names(parties),
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


def _algorithm_of(tables: Mapping[str, Any]) -> tuple[str, type[AlgorithmSettings]]:
    """The name of the algorithm that a file chooses, and its settings.

    Where the table is wrong it is the default one, and the check of the file says what
    is.
    """
    chosen = tables.get("algorithm", {})
    name = chosen.get("name", DEFAULT) if isinstance(chosen, Mapping) else DEFAULT
    return str(name), algorithm_settings(str(name))


def _listed_with_names(owners: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, **owner} for name, owner in owners.items()]


def _listed(allow_models: Any) -> tuple[str, ...]:
    if isinstance(allow_models, str) or not all(
        isinstance(one, str) and {*one} & {*":."} for one in allow_models
    ):
        raise ConfigError(
            "--allow-model and allow_models must be a list of import paths, as in "
            f'["my_package.nets:Tower"]; found {allow_models!r}.'
        )
    return tuple(allow_models)
