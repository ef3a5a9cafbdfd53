"""The tables of a federation file, one class each: what each may say, and what is
refused.

    [data] [preprocess] [train] [federation] [audit]     once in a file
    [parties.NAME]           each organisation, where one of them holds the labels
    [[label_owners]]         each organisation with labels, by its name
    [[data_owners]]          each organisation with columns, by its name
    [label_model]            the label owners' one architecture

The lists are for several organisations with labels. With a named data set instead of
tables, `rows` and `classes` say which rows are dealt to a label owner. An organisation
that stands in both lists plays both roles: it has one outbox, and calls between its own
roles cross no boundary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from colonnade.errors import ConfigError, did_you_mean
from colonnade.settings.algorithms import (
    ALGORITHM_SETTINGS,
    AlgorithmSettings,
    with_several_label_owners,
)
from colonnade.settings.alignment import Key
from colonnade.settings.schema import (
    LARGEST_INTEGER,
    Fraction,
    NotNegative,
    Positive,
    Rule,
    Table,
    Texts,
    Whole,
    WholeOrZero,
    place_of,
)
from colonnade.settings.selection import SERVER

LISTS = ("label_owners", "data_owners")
"""The tables in which organisations are listed, where several of them hold labels."""
LABELS = "labels"
"""The name of the outbox rule for labels."""
PURPOSES = ("train", "validation", "test", "predict")
"""Why a row is released. An outbox rule may be for one of them: "test.embedding"."""

AUTO = 0
"""What "auto" is of a number that follows from others, until the number is known."""
MOST_EPOCHS = 10**9
LARGEST_BATCH = 10**12
PARTY_DROPOUT = 0.2
"""How often a partner is left out of a training batch, where rows differ and nobody
says otherwise."""
DELTA = 1e-5
"""The delta of a budget, where nobody says otherwise."""

NumbersAs = Literal["auto", "standard", "quantile", "piecewise"]
NUMBERS = ("standard", "quantile", "piecewise")
ModelsFrom = Literal["secret", "seeded"]
Rules = dict[str, Any]
"""An outbox's rules, by the name of a release."""

FORM = 'a column, or a list of keys as in ["email", ["name", "birth_date"], "phone"]'
KEYS_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"type": "string"}},
                ]
            },
        },
    ]
}


def keys_in(given: Any, *, may_lack: bool = False) -> tuple[Key, ...]:
    """The columns of each key.

    Args:
        given: One column, or a list of keys. A key is a column or a list of columns.
        may_lack: Whether a key may be "", as of an organisation without such a column.
    """
    if isinstance(given, str):
        return ((given,),)
    if not isinstance(given, list | tuple) or not given:
        raise ValueError(f"must be {FORM}; found {given!r}.")
    keys = [_key(columns, may_lack) for columns in given]
    if len(set(keys)) != len(keys) and not may_lack:
        raise ValueError(f"has a key twice: {given!r}. Name each once.")
    return tuple(keys)


def _key(given: Any, may_lack: bool) -> Key:
    """One key of a list."""
    columns: tuple[Any, ...] = ()
    if isinstance(given, str):
        columns = (given,)
    elif isinstance(given, list | tuple):
        columns = tuple(given)
    if may_lack and columns == ("",):
        return columns
    are_names = all(isinstance(name, str) and name for name in columns)
    if not columns or not are_names or len(set(columns)) != len(columns):
        raise ValueError(
            f"must be {FORM}, each column once in a key; found {given!r} in it."
        )
    return columns


def _id_or_keys(given: Any) -> Any:
    return given if isinstance(given, str) else keys_in(given)


def _own_keys(given: Any) -> Any:
    if given is not None:
        keys_in(given, may_lack=True)
    return given


def _fraction_or_number(share: float) -> float:
    if share >= 1 and share % 1 != 0:
        raise ValueError
    return share


Share = Annotated[
    NotNegative,
    AfterValidator(_fraction_or_number),
    Rule("a fraction from 0 up to, not including, 1, or a whole number"),
]


def _auto_as_number(given: Any) -> Any:
    if given == "auto":
        return AUTO
    if given == AUTO:
        raise ValueError
    return given


def _number_or_auto(number: int) -> int | str:
    return "auto" if number == AUTO else number


def _json_of_number_or_auto(most: int) -> dict[str, Any]:
    number = {"type": "integer", "minimum": 1, "maximum": most}
    return {"anyOf": [{"const": "auto"}, number]}


_ReadsAuto = BeforeValidator(_auto_as_number)
_WritesAuto = PlainSerializer(_number_or_auto)
Epochs = Annotated[
    int,
    Field(le=MOST_EPOCHS, ge=0),
    _ReadsAuto,
    _WritesAuto,
    Rule(f'"auto" or a whole number, 1 or more, at most {MOST_EPOCHS}'),
    WithJsonSchema(_json_of_number_or_auto(MOST_EPOCHS)),
]
BatchSize = Annotated[
    int,
    Field(le=LARGEST_BATCH, ge=0),
    _ReadsAuto,
    _WritesAuto,
    Rule(f'"auto" or a whole number, 1 or more, at most {LARGEST_BATCH}'),
    WithJsonSchema(_json_of_number_or_auto(LARGEST_BATCH)),
]


def _names_as_text(given: Any) -> Any:
    """Classes are numbers in Python now and then, and always text in a file."""
    if isinstance(given, Mapping):
        return {str(name): weight for name, weight in given.items()}
    return given


ClassWeights = Annotated[
    Literal["equal", "balanced"] | Annotated[dict[str, Positive], Field(min_length=1)],
    BeforeValidator(_names_as_text),
    Rule('"equal", "balanced", or by class a number above 0, as in { yes = 5.0 }'),
]
Time = Annotated[str | int | float, Rule('a number, or a date as in "2024-01-31"')]


class DataSettings(Table):
    """Where rows come from and how they are divided."""

    place: ClassVar[str] = "[data]"

    id: Annotated[Any, AfterValidator(_id_or_keys), WithJsonSchema(KEYS_SCHEMA)] = (
        Field(
            default="id",
            description=(
                "the id column, where a party does not name its own; or a list of keys"
                " that are tried in turn"
            ),
        )
    )
    align: Literal["exact", "private"] = Field(
        default="exact",
        description="all hold the same ids; or find the common ones first",
    )
    rows: Literal["common", "label_owner"] = Field(
        default="common",
        description=(
            "which rows are trained on: those that all hold, or all of the label"
            " owner's, each with the partners that hold it"
        ),
    )
    validation: Share = Field(
        default=0.1,
        description=(
            "rows kept from training for stopping early: a fraction, or from 1 upwards"
            " their number"
        ),
    )
    test: Share = Field(
        default=0.2,
        description=(
            "rows kept for the final score: a fraction, or from 1 upwards their number"
        ),
    )
    stratify: bool = Field(
        default=True,
        description=(
            "every class is divided alike, where one organisation holds the labels"
        ),
    )
    split_by: Annotated[str, Rule("text, the name of a column")] | None = Field(
        default=None,
        description=(
            'a column of the label owner: "train", "validation", "test"; or times, the'
            " latest test"
        ),
    )
    test_from: Time | None = Field(
        default=None,
        description="with times in split_by: test rows are those from then on",
    )
    validation_from: Time | None = Field(
        default=None,
        description=(
            "with times in split_by: validation rows are those from then on, up to the"
            " test rows"
        ),
    )
    task: Literal["auto", "classification", "regression"] = Field(
        default="auto",
        description=(
            "`auto`: text, two values and whole numbers such as 0, 1, 2 are classes;"
            " numbers with a fraction, also 3.0, and more than 12 other whole numbers"
            " are regression; a warning says where it is in doubt"
        ),
    )
    positive: (
        Annotated[
            str | int | float | bool,
            Rule('one class, as the label column writes it, as in positive = "yes"'),
        ]
        | None
    ) = Field(
        default=None,
        description=(
            "of two classes, the one that precision, recall, curves, thresholds and the"
            " first score of a prediction are about, as the label column writes it;"
            " without it the rarer one of the training rows"
        ),
    )
    target_scale: Literal["auto", "log", "linear"] = Field(
        default="auto",
        description=(
            "on which scale labels that are numbers are trained: as they are, or as"
            " logarithms; `auto`: logarithms of labels that are above 0 and have a long"
            " tail (a skewness of 4 or more)"
        ),
    )
    dataset: str | None = Field(
        default=None,
        description="a named data set, cut into parties, instead of tables",
    )
    split: Literal["columns", "strips", "patches", "views"] = Field(
        default="columns", description="how a named data set is cut into parties"
    )
    parts: Annotated[
        int | Annotated[tuple[int, ...], Field(strict=False)],
        Rule("a whole number, or a list of them"),
    ] = Field(
        default=2,
        description=(
            "how many parties; for patches [rows, columns], for columns also their"
            " widths"
        ),
    )
    patch: int | None = Field(
        default=None,
        description=(
            "pixels a side of a patch, when patches overlap; else they divide the"
            " picture"
        ),
    )
    labels_at: str = Field(
        default="label_owner",
        description="with a named data set: the party that holds the labels",
    )

    @model_validator(mode="after")
    def _check_positive(self) -> Self:
        if self.positive is not None and self.task == "regression":
            raise ValueError(
                f"positive = {self.positive!r} names a class, and with task ="
                ' "regression" the label is a number. Remove one of them.'
            )
        return self

    @model_validator(mode="after")
    def _check_division(self) -> Self:
        for key in ("test_from", "validation_from"):
            if getattr(self, key) is not None and self.split_by is None:
                raise ValueError(
                    f"{key} needs split_by, the column whose times it is of. Name it."
                )
        if self.split_by is not None and self.dataset is not None:
            raise ValueError(
                "split_by names a column of a table, and dataset is no table. Remove"
                " one of them."
            )
        return self


class PreprocessSettings(Table):
    """How every owner's columns become numbers for its model, unless it says otherwise
    itself."""

    place: ClassVar[str] = "[preprocess]"

    numbers: NumbersAs = Field(
        default="auto",
        description=(
            "how numbers are prepared: scaled, ranked, or as quantile bins; `auto`:"
            " bins from 1,000 training rows on"
        ),
    )


class TrainSettings(Table):
    """How long training goes on, and what is kept on the way."""

    place: ClassVar[str] = "[train]"

    epochs: Epochs = Field(
        default=AUTO,
        description=(
            "passes over the training rows at most, or `auto`, which is 5 where noise"
            " is made for a budget; with several label owners, rounds"
        ),
    )
    batch_size: BatchSize = Field(
        default=AUTO, description="rows per exchange, or `auto`"
    )
    reshuffle: bool = Field(default=True, description="new batches every epoch")
    class_weights: ClassWeights = Field(
        default="equal",
        description=(
            "how much a row of each class counts: alike, `balanced`, or by class, as in"
            " `{ yes = 5.0 }`"
        ),
    )
    sampling: Literal["epoch", "poisson", "without_replacement"] = Field(
        default="epoch",
        description=(
            "`poisson` and `without_replacement` draw each batch from all rows"
        ),
    )
    party_dropout: Fraction | None = Field(
        default=None,
        description=(
            "how often a partner is left out of a training batch, so that the others"
            f" learn to do without it; by default {PARTY_DROPOUT} where rows differ,"
            " else never"
        ),
    )
    pretrain: WholeOrZero = Field(
        default=0,
        description=(
            "epochs in which each party's model first learns from all its owner's rows,"
            " without labels and without anybody"
        ),
    )
    early_stop: bool = Field(
        default=True,
        description=(
            "keep the models that validated best; stop by `patience`, or when nothing"
            " changes"
        ),
    )
    patience: Whole = Field(
        default=10, description="epochs without a better validation before it stops"
    )
    stop_on: Literal["auto", "loss", "score"] = Field(
        default="auto",
        description=(
            "`auto`: AUC of two classes where 100 validation rows are of the rarer one,"
            " or loss"
        ),
    )
    patience_drop: Fraction = Field(
        default=0.0,
        description=(
            "how much accuracy or R² may fall below its best before the run stops at"
            " once; 0: never"
        ),
    )
    checkpoint_every: WholeOrZero = Field(
        default=1, description="epochs between checkpoints; 0: only at the end"
    )


class EngineSettings(Table):
    """What carries the calls, and what computes: [federation]."""

    place: ClassVar[str] = "[federation]"

    seed: Annotated[int, Field(ge=0, le=LARGEST_INTEGER)] = Field(
        default=0,
        description=(
            "of rows and batches, and in one process of initial weights; never of noise"
        ),
    )
    device: str = Field(
        default="auto", description="`auto` takes a GPU when there is one"
    )
    through_bytes: bool = Field(
        default=False,
        description="send real frames between the parties of one process",
    )
    threads: Literal["auto", "always", "never"] = Field(
        default="auto",
        description=(
            "ask parties of one process at the same time; `auto`: when that is faster"
        ),
    )
    cohort: Literal["auto", "on", "off"] = Field(
        default="auto",
        description=(
            "compute parties of one shape together; `auto`: when that is faster"
        ),
    )
    deadline: Positive = Field(
        default=600.0,
        description=(
            "seconds for a call to a party elsewhere, before the call is made again"
        ),
    )
    retries: WholeOrZero = Field(
        default=3, description="how often a call that nobody answered is made again"
    )
    on_missing: Literal["fail", "wait", "stale", "skip"] = Field(
        default="fail",
        description=(
            "when a party still does not answer: end, wait, take its last answer, or go"
            " on without it"
        ),
    )
    noise: Literal["secret", "seeded"] = Field(
        default="secret",
        description="`seeded` repeats a run's noise and protects nobody",
    )


TELLS = ("nothing", "verdict", "figures")
"""What an organisation may tell a label owner of an audit at its site, from least to
most."""
AuditLimit = Annotated[float, Field(le=1)]


class AuditSettings(Table):
    """The scores that `colonnade audit` must not find exceeded. Where one is not given,
    any will do. They may change after the run."""

    place: ClassVar[str] = "[audit]"

    label_inference: AuditLimit | None = Field(
        default=None,
        description=(
            "AUC of guessed labels, by the lower end of its interval: 0.5 is guessing"
            " (of numbers: the squared correlation)"
        ),
    )
    inversion_ssim: AuditLimit | None = Field(
        default=None, description="likeness of rebuilt pictures"
    )
    inversion_r2: AuditLimit | None = Field(
        default=None, description="R² of the column that is rebuilt best"
    )
    recognition: AuditLimit | None = Field(
        default=None,
        description=(
            "AUC with which another classifier still sees the class of rebuilt rows, by"
            " the lower end of its interval"
        ),
    )
    tell: Literal["nothing", "verdict", "figures"] | None = Field(
        default=None,
        description=(
            "between sites, in a `party.toml`: what the label owner is told of this"
            " organisation's own columns: `nothing` (as without it), `verdict` by its"
            " own limits here, or `figures`; one of several label owners tells the"
            " aggregation server a verdict at most"
        ),
    )

    @property
    def limits(self) -> dict[str, float | None]:
        """By kind of score, the value that it must not exceed."""
        return {name: value for name, value in vars(self).items() if name != "tell"}


class Budget(Table):
    """(epsilon, delta) for every row of this owner's columns, under a neighbouring
    relation."""

    epsilon: Positive = Field(
        default=8.0, description="ε of the guarantee for each row, over all releases"
    )
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=DELTA, description="δ of the guarantee"
    )
    relation: Literal["replace-one", "add-or-remove"] = Field(
        default="replace-one",
        description="between neighbouring tables: a row is another's, or there or not",
    )


def _not_blank(words: tuple[str, ...]) -> tuple[str, ...]:
    if not all(word.strip() for word in words):
        raise ValueError
    return words


Gaps = Annotated[
    Texts,
    AfterValidator(_not_blank),
    Rule('a list of words, as in ["k.A.", "-999"]'),
]
OutboxTable = Annotated[Rules, Rule("a table of rules")]


class LabelOwnerSettings(Table):
    """One organisation that holds labels of rows of its own."""

    table: str | None = Field(
        default=None,
        description="the file with ids and labels; nothing else in it is read",
    )
    id: str | None = Field(
        default=None, description="its own name of the id column; without, `[data] id`"
    )
    label: str | None = Field(default=None, description="the label's column")
    rows: Whole | None = Field(
        default=None,
        description=(
            "of a named data set: how many training rows it is dealt; without, an even"
            " share"
        ),
    )
    classes: (
        Annotated[
            tuple[Any, ...],
            Field(strict=False, min_length=1),
            Rule("a list of classes"),
        ]
        | None
    ) = Field(
        default=None,
        description=(
            "of a named data set: which classes it is dealt; without, all of them"
        ),
    )
    gaps: Gaps = Field(default=(), description="its own words for a gap in the label")
    outbox: OutboxTable = Field(
        default={}, description="the owner's rules, as of a party"
    )
    models: ModelsFrom | None = Field(
        default=None, description="where its initial weights come from, as of a party"
    )


def _empty_is_none(given: Any) -> Any:
    return None if given == {} else given


_WAYS = ", ".join(f'"{way}"' for way in ("auto", *NUMBERS))


class PartySettings(Table):
    """One organisation's own part; where there are several machines, its own file."""

    table: str | None = Field(
        default=None,
        description=(
            "the party's `.csv`, `.csv.gz` or `.parquet` file, relative to the"
            " federation file"
        ),
    )
    id: Annotated[Any, AfterValidator(_own_keys), WithJsonSchema(KEYS_SCHEMA)] = Field(
        default=None,
        description=(
            "the party's own name of the id column, or its names of the keys; without,"
            " `[data] id`"
        ),
    )
    tables: Annotated[
        dict[str, Any], Rule("a table of tables, as in [tables.purchases]")
    ] = Field(
        default={},
        description=(
            "tables with many rows for one person: `[parties.NAME.tables.X]` with"
            " `table`, `by`, `order`, `group`"
        ),
    )
    label: str | None = Field(
        default=None,
        description="the label's column; exactly one party has it, and drives",
    )
    weights: Annotated[str, Rule("text, the name of a column")] | None = Field(
        default=None,
        description=(
            "of the one with the label: a column that says how much each row counts"
        ),
    )
    test_ids: Annotated[str, Rule("text, a path")] | None = Field(
        default=None,
        description="of the one with the label: a file with the ids of the test rows",
    )
    columns: Annotated[Texts, Rule("a list of column names")] | None = Field(
        default=None,
        description="which columns to use; without, all but the id and the label",
    )
    gaps: Gaps = Field(
        default=(),
        description=(
            "the party's own words for a gap, in all its columns but the id and"
            " whatever their case and spaces; of numbers, such as `-999`, the number"
        ),
    )
    scale: Literal["standard", "minmax", "none"] = Field(
        default="standard",
        description="of number columns, learned from the party's own training rows",
    )
    numbers: (
        Annotated[
            NumbersAs | dict[str, NumbersAs],
            Rule(f'one of {_WAYS}, or a table by column, as in {{ age = "quantile" }}'),
        ]
        | None
    ) = Field(
        default=None,
        description=(
            "how its numbers are prepared, where not as [preprocess] says: one word, or"
            " by column"
        ),
    )
    model: Annotated[str | dict[str, Any], Rule("a name or a table")] | None = Field(
        default=None,
        description="the party's own local model, in the place of `[model]`",
    )
    outbox: OutboxTable = Field(
        default={},
        description=(
            "the owner's rules: release name = `{ mechanism = …, codec = … }`"
        ),
    )
    budget: Annotated[Budget | None, BeforeValidator(_empty_is_none)] = Field(
        default=None, description="what the party's rows may cost in all"
    )
    models: ModelsFrom | None = Field(
        default=None,
        description=(
            "where its initial weights come from: `secret`, the operating system;"
            " `seeded`, the agreed seed, so that everybody knows them; without,"
            " `secret` at a site and `seeded` in one process"
        ),
    )


AnyOwner = TypeVar("AnyOwner", PartySettings, LabelOwnerSettings)


def by_name(section: str, given: Any) -> dict[str, dict[str, Any]]:
    """Turn a list of tables with names into a table for each name."""
    if not isinstance(given, list) or not all(
        isinstance(table, Mapping) for table in given
    ):
        raise ValueError(
            f"[[{section}]] must be tables, each with a name, as in\n   "
            f' [[{section}]]\n    name = "north"\nfound {given!r}.'
        )
    tables: dict[str, dict[str, Any]] = {}
    for number, owner in enumerate(given, 1):
        name = owner.get("name")
        if not isinstance(name, str):
            raise ValueError(
                f'[[{section}]] number {number} must have a name, as in name = "north";'
                f" found {name!r}."
            )
        if name in tables:
            raise ValueError(
                f"[[{section}]] has two tables with the name {name!r}. Give each"
                " organisation one."
            )
        if name == SERVER:
            raise ValueError(
                f"[[{section}]] has an organisation called {name!r}, which is the name"
                " of the party that adds the label owners' weights up. Choose another"
                " name."
            )
        tables[name] = {key: value for key, value in owner.items() if key != "name"}
    return tables


def mechanism_of(rule: Any) -> Mapping[str, Any]:
    """The mechanism of an outbox rule as a table, also where the rule only names it."""
    mechanism = rule.get("mechanism", {}) if isinstance(rule, Mapping) else {}
    return mechanism if isinstance(mechanism, Mapping) else {"name": mechanism}


def is_made_for_budget(rules: Mapping[str, Any]) -> bool:
    """Whether some rule leaves open how much noise there is: then it is the least with
    which all epochs fit."""
    return any(
        "auto" in (mechanism_of(rule).get("sigma"), mechanism_of(rule).get("trials"))
        for rule in rules.values()
    )


def check_lists(
    name: str, kind: type[AlgorithmSettings], tables: Mapping[str, Any]
) -> None:
    """Refuse lists of owners where one label owner drives, and one list of parties
    where several are asked for."""
    several = kind.several_label_owners
    for section in (*LISTS, "label_model"):
        if section in tables and not several:
            raise ConfigError(
                f"[{section}] is for algorithms with several label owners, as"
                f' [algorithm] name = "{with_several_label_owners()[0]}"; found with'
                f" {name!r}, where one party holds the labels. Name the parties as"
                " [parties.NAME]."
            )
    if several and "parties" in tables:
        raise ConfigError(
            f"[parties] is for algorithms with one label owner; {name!r} takes"
            " [[label_owners]] and [[data_owners]], each with a name. Move the parties"
            " there."
        )
    if several and not tables.get("label_owners"):
        raise ConfigError(
            f"{name!r} needs organisations with labels, and there is none. Add"
            " [[label_owners]]."
        )


def check_no_label(name: str, given: Any, section: str) -> None:
    """Refuse a label column of an organisation that is listed with columns alone."""
    if isinstance(given, Mapping) and "label" in given:
        raise ValueError(
            f"{place_of(section, name)} holds columns, and its label"
            f" {given['label']!r} belongs to a label owner. Add a [[label_owners]] with"
            " the same name and table, and leave the label column out of columns here."
        )


def check_label_owners_own(parties: Mapping[str, PartySettings], section: str) -> None:
    """Refuse settings about labels of an organisation that names no label."""
    purposes = {"test_ids": "who divides rows", "weights": "whose loss counts rows"}
    for name, party in parties.items():
        for key, purpose in purposes.items():
            if getattr(party, key) is not None and party.label is None:
                raise ConfigError(
                    f"{place_of(section, name)}: {key} is for the party with the"
                    f" label, {purpose}. Move it there."
                )


def check_keys(
    keys: Sequence[Key],
    parties: Mapping[str, Any],
    section: str,
    *,
    plain: bool,
    several: bool,
    tables: bool,
) -> None:
    """Check that all name the same keys, that there are tables which have them where
    ids are not plain, and that there is one key where several hold labels."""
    for name, party in parties.items():
        own = keys if party.id is None else keys_in(party.id, may_lack=True)
        fits = [
            mine == ("",) or len(mine) == len(key)
            for mine, key in zip(own, keys, strict=False)
        ]
        if len(own) != len(keys) or not all(fits):
            raise ConfigError(
                f"{place_of(section, name)} id must have the {len(keys)} keys of"
                ' [data] id, each of as many columns, or "" for one that it lacks;'
                " found"
                f" {party.id!r}."
            )
    if not plain and not tables:
        raise ConfigError(
            "Several keys, rules and duplicates are for tables, and [data] dataset is"
            " none. Remove them."
        )
    if len(keys) > 1 and several:
        raise ConfigError(
            "Several keys in [data] id are for one organisation with labels: where"
            " several have them, a row must be on the same side of the division at all,"
            " which follows from its name, and two of them may know a person by"
            " different keys. Name one key, which may have several columns, and rules"
            " under [alignment.rules]."
        )


def check_dealt(owners: Mapping[str, LabelOwnerSettings], dataset: str | None) -> None:
    """Refuse `rows` and `classes` without a named data set, which they deal out: a
    table has the rows it has."""
    for name, owner in owners.items():
        for key in ("rows", "classes"):
            if dataset is None and getattr(owner, key) is not None:
                raise ConfigError(
                    f"[[label_owners]] {name!r} has {key}, which deals out a named data"
                    " set, and there is none. Remove it, or set [data] dataset ="
                    ' "digits".'
                )


def known_classes(
    name: str, owner: LabelOwnerSettings, classes: tuple[Any, ...]
) -> set[int]:
    """The numbers of the classes that a label owner is dealt."""
    known = [str(one) for one in classes]
    numbers = set()
    for wanted in owner.classes if owner.classes is not None else classes:
        if str(wanted) not in known:
            hint = did_you_mean(str(wanted), known)
            raise ConfigError(
                f"[[label_owners]] {name!r} has the class {wanted!r}, which no row"
                f" has{hint}; there are {', '.join(known)}."
            )
        numbers.add(known.index(str(wanted)))
    return numbers


def with_paths(owner: AnyOwner, folder: Path) -> AnyOwner:
    """Resolve the paths in an organisation's part, which are relative to a folder."""
    paths: dict[str, Any] = {}
    for key in ("table", "test_ids"):
        file = getattr(owner, key, None)
        if file:
            paths[key] = str((folder / file).resolve())
    many_rows = getattr(owner, "tables", {})
    files = {
        name: table.get("table") if isinstance(table, Mapping) else None
        for name, table in many_rows.items()
    }
    if files and all(isinstance(file, str) for file in files.values()):
        paths["tables"] = {
            name: {**many_rows[name], "table": str((folder / str(file)).resolve())}
            for name, file in files.items()
        }
    return owner.changed(**paths)


def is_name(name: str) -> bool:
    """Whether an organisation can be called so: the name becomes that of a folder."""
    return 0 < len(name) <= 64 and all(c.isalnum() or c in "_-" for c in name)


def check_names(names: Iterable[str]) -> None:
    """Refuse names that cannot be folders.

    Two names that differ in capitals alone would share a folder, where a disk takes
    capitals and small letters for one.
    """
    alike: dict[str, str] = {}
    for name in names:
        if not is_name(name):
            raise ConfigError(
                "A party's name has 1 to 64 letters, digits, '-' or '_', since it names"
                f" a folder; found {name!r}."
            )
        if alike.setdefault(name.casefold(), name) != name:
            raise ConfigError(
                f"{alike[name.casefold()]!r} and {name!r} differ in capitals alone, and"
                " names are names of folders. Rename one of them."
            )


def dropout_of(rows: str, chosen: float | None) -> float:
    """How often a partner is left out: as chosen, or as usual for these rows."""
    if chosen is not None:
        return chosen
    return PARTY_DROPOUT if rows == "label_owner" else 0.0


def check_missing(name: str, config: AlgorithmSettings, on_missing: str) -> None:
    """Raise unless the algorithm can do what is asked when a party does not answer."""
    allowed = {"fail", "wait", *config.stand_ins()}
    if on_missing not in allowed:
        ways = ("fail", "wait", "stale", "skip")
        words = ", ".join(f'"{way}"' for way in ways if way in allowed)
        raise ConfigError(
            f"[federation] on_missing = {on_missing!r} cannot be used with {name} and"
            f" its settings: its maths needs an answer of every party. It allows"
            f" {words}."
        )


def check_can_lack(name: str, config: AlgorithmSettings, asked: str) -> None:
    """Raise unless the algorithm learns from a row without the part of a party that
    lacks it, or is left out."""
    if config.can_lack():
        return
    able = [other for other, kind in ALGORITHM_SETTINGS.items() if kind().can_lack()]
    raise ConfigError(
        f"{asked} cannot be used with {name} and its settings: its maths needs every"
        f" party's part of every row. {config.lacking} Those that can:"
        f" {', '.join(able)}."
    )


def check_train(
    name: str, config: AlgorithmSettings, data: DataSettings, train: TrainSettings
) -> None:
    """Check that the algorithm can divide, draw and start as asked to, and do without a
    partner's part of rows."""
    if config.several_label_owners and data.split_by is not None:
        raise ConfigError(
            "[data] split_by is for one organisation with labels: where several have"
            " them, a row must be on the same side at all, and that follows from its"
            " id. Remove it."
        )
    _check_sampling(name, config, data, train)
    _check_pretraining(name, config, train)
    differ = data.rows == "label_owner"
    if differ or dropout_of(data.rows, train.party_dropout):
        asked = '[data] rows = "label_owner"' if differ else "[train] party_dropout"
        check_can_lack(name, config, asked)


def _check_sampling(
    name: str, config: AlgorithmSettings, data: DataSettings, train: TrainSettings
) -> None:
    """Batches can be drawn by themselves where one label owner draws them from rows
    that all hold."""
    if train.sampling == "epoch":
        return
    reason = ""
    if config.several_label_owners:
        reason = "has several label owners, whose batches go together"
    elif not config.in_batches:
        reason = "takes all rows at once"
    if reason:
        raise ConfigError(
            f'[train] sampling = "{train.sampling}" draws each batch by itself, and'
            f' {name} {reason}. Set sampling = "epoch", or leave it out.'
        )
    if data.rows == "label_owner":
        raise ConfigError(
            f'[train] sampling = "{train.sampling}" draws each batch from all rows, and'
            " a partner that lacks some cannot tell which of its own are drawn. With"
            ' rows = "label_owner" set sampling = "epoch".'
        )


def _check_pretraining(
    name: str, config: AlgorithmSettings, train: TrainSettings
) -> None:
    """A model can learn first where each party has one that is trained step by step."""
    several = config.several_label_owners
    in_steps = not (config.converges or config.grows) and config.most_epochs is None
    if train.pretrain and (several or not in_steps):
        reason = (
            "each label owner has its own copy of it"
            if several
            else "it learns in its own way"
        )
        raise ConfigError(
            f"[train] pretrain gives each party's model a start, and {name} has none"
            f" that keeps it: {reason}. Remove it."
        )
