"""The record by which an algorithm declares itself: all that the rest of the project
knows about it.

    ALGORITHM = Algorithm(
        config=Config, feature_owner=FeatureOwner, label_owner=LabelOwner, train=train, predict=predict,
        releases={"embedding": Release(Kind.EMBEDDING, of="columns", per_row=True), ...},
    )

`Config` is its settings, which stand in `settings.algorithms`: they must be known before
torch is imported, and with them what the algorithm reveals and what can be asked of it.

It ends the algorithm's file. Attacks, shape checks, outbox rules, planning, export,
explanations, the threat model and the conformance battery read it, so nothing else
knows an algorithm or a release by its name. `Records` has all records by name; the
names are in `algorithms/__init__.py`.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Generator, Tensor, nn

from colonnade.core import (
    NON_PRIVATE,
    Agreed,
    Batches,
    DpEvent,
    Party,
    Peers,
    Rounds,
    Rows,
    Step,
    Transcript,
)
from colonnade.core.batches import Progress, RoundDone
from colonnade.core.receipt import PUBLIC
from colonnade.errors import ConfigError, check_named
from colonnade.models import initialised
from colonnade.privacy.accounting import costs_nothing
from colonnade.privacy.report import READER
from colonnade.settings.algorithms import ALGORITHM_SETTINGS, AlgorithmSettings

C = TypeVar("C", bound=AlgorithmSettings)  # its settings
F = TypeVar("F", bound=Party)  # who holds columns
L = TypeVar("L", bound=Party)  # who holds labels
S = TypeVar("S", bound=Party)  # who drives several label owners
Of = Literal["columns", "labels", "nothing"]
Crossing = dict[str, DpEvent]
"""The releases by name, and what each is without a mechanism: plain, encrypted, under a
mask, or public."""


class Kind(Enum):
    """What a release is. Attacks choose by this what they can read, whatever name it
    travels under."""

    EMBEDDING = (
        "what a local model makes of each row, for a model elsewhere to go on with"
    )
    LOGITS = "each row's outputs of a party's whole model"
    DISTANCES = "how far rows are from each other"
    NEIGHBOURS = "which rows are nearest"
    JACOBIAN = "how each row's outputs change with every weight of the local model"
    GRADIENT = "how the loss changes with each row's embedding"
    LOGIT_GRADIENT = "how the loss changes with each row's logits"
    BATCH_GRADIENT = (
        "how a batch's loss changes with every weight of the receiver's model"
    )
    RESIDUAL = "ADMM's r = z - o - lambda/rho of each row, where the settings have rho"
    LABELS = "labels, as they are or as they were drawn"
    HEAD = "weights that make outputs of the receiver's embedding, [width, outputs]"
    MODEL = "a model's weights and biases, layer by layer, or one after the other"
    LAYOUT = (
        "whose place each input of a MODEL is, the receiver's first; int64, as bytes"
    )
    NODES = "which rows are in which node of a tree, or are learned from at all"
    HISTOGRAMS = "sums of gradients over rows that some column puts together"
    DIRECTIONS = "for each row on which side of thresholds it is"
    LOGIT_CURVATURE = "how the slope of the loss changes with each row's logits"
    LENGTHS = (
        "how long the direction is along which the LOGITS of a message are, squared,"
        " over the rows, first of all"
    )
    KEY = "a public key"
    OTHER = "something else, which no attack here can read"


@dataclass(frozen=True)
class Release:
    """One name that an algorithm releases under."""

    kind: Kind
    of: Of  # what it is computed from, so whom it may betray
    per_row: bool  # it has a line for each row of its batch
    # of columns and per row: an owner's mechanism can protect every row of it
    takes_noise: bool = True
    # it tells about all training rows too, whichever rows it is asked for
    of_training: bool = False

    @property
    def is_as_wide_as_told(self) -> bool:
        """Whether a line has as many numbers as the party said when it introduced
        itself."""
        return self.of == "columns" and self.kind in (Kind.EMBEDDING, Kind.LOGITS)


KEY = Release(Kind.KEY, of="nothing", per_row=False)


@dataclass(frozen=True)
class HeadInputs(Generic[C]):
    """What a label owner's model is rebuilt from: its state in a checkpoint, and the
    agreed settings."""

    state: Mapping[str, Any]
    config: C
    # what each party sends for a row, in the order in which it is taken
    shapes: Mapping[str, tuple[int, ...]]
    outputs: int
    # [label_model], for inputs of this shape
    build: Callable[[tuple[int, ...]], nn.Module]
    mean: float = 0.0  # of labels that are numbers, in their own units
    scale: float = 1.0

    @property
    def widths(self) -> list[int]:
        return [shape[-1] for shape in self.shapes.values()]


@dataclass(frozen=True, eq=False)
class Equations:
    """What sums tell about groups of a batch's rows: weights times bits, which say
    whether a row is in the group, are these sums. The first two equations are over all
    rows, the second with weights above 0."""

    batch: str
    weights: Tensor  # [equations, rows]
    sums: Tensor  # [equations, groups]; NaN where a sum was not told


@dataclass(frozen=True)
class TableInputs:
    """What a party's part is rebuilt from where it is no torch model: its state, and
    how its columns became numbers."""

    state: Mapping[str, Any]
    fitted: Mapping[str, Any]


@dataclass(frozen=True)
class Tables:
    """For parties that hold tables in place of torch models: each as a model to export,
    and the shapes that each sends for a row, from a label owner's state and the names
    of these parties."""

    model: Callable[[TableInputs], nn.Module]
    shapes: Callable[[Mapping[str, Any], Sequence[str]], Mapping[str, tuple[int, ...]]]


@dataclass(frozen=True, kw_only=True)
class Nested(Generic[S]):
    """Several label owners: an aggregation server drives them, and each of them drives
    parties with columns."""

    aggregation_server: type[S]
    train: Callable[[S, Peers, int], Iterator[RoundDone]]  # for so many rounds


@dataclass(frozen=True)
class LocalInputs(Generic[C]):
    """What a party's model is completed by: a row of its columns, the width of its own
    model, and what was agreed."""

    row: Tensor  # [1, ...]
    width: int
    outputs: int
    config: C
    own: bool = False  # it belongs to the organisation that holds the labels


def as_it_is(model: nn.Module, given: LocalInputs[Any]) -> nn.Module:  # noqa: ARG001
    """The party's model without any change: it is a part of the joint model."""
    return model


@dataclass(frozen=True, kw_only=True, eq=False)
class Algorithm(Generic[C, F, L]):
    """An algorithm, as everybody else sees it."""

    config: type[C]
    feature_owner: type[F]
    label_owner: type[L]
    predict: Callable[[L, Peers, Rows], Tensor]
    releases: Mapping[str, Release]

    # Who drives: the label owner, unless the algorithm is nested.
    train: Callable[[L, Peers, Batches], Iterator[Step]] | None = None
    nested: Nested[Any] | None = None
    # to predict by, if several
    models: Mapping[str, Callable[[L, Peers, Rows], Tensor]] = field(
        default_factory=dict
    )

    # What crosses. Where settings decide about it, `crossing` has what crosses from
    # columns and from labels, and `modes` the settings that matter, by a name for each.
    crossing: Callable[[C], tuple[Crossing, Crossing]] | None = None
    modes: Mapping[str, C] = field(default_factory=dict)
    # of one party's columns, where parties differ
    sends: Callable[[L, str], Collection[str]] | None = None
    reader: str = READER  # who gets what crosses from columns
    covers: str = ""  # which rows noise protects, where these are not all
    separable: Callable[[C], bool] = lambda _: (
        True
    )  # the label owner sees what each party released, not only a sum of it

    # The models. None: the parties have no torch model, and are given one that passes
    # their columns through.
    local_model: Callable[[nn.Module, LocalInputs[C]], nn.Module] | None = as_it_is
    # a party's model is learned from its own rows before anything leaves: no seed gives
    # it
    learns_first: bool = False
    # of a label owner, where parties' models are one weight per column
    intercept: Callable[[L], Tensor] | None = None
    # what a label owner makes outputs with, to export it
    head: Callable[[HeadInputs[C]], nn.Module] | None = None
    # where parties have no torch model and there is something to export all the same
    tables: Tables | None = None
    # why there is nothing to export
    no_head: str = "its record says no head, by which a label owner makes outputs"

    # How much each party matters: of a label owner that combines one tensor per party
    # into outputs, and its heads.
    combine: Callable[[L, Mapping[str, Tensor]], Tensor] | None = None
    # none where a head mixes the parties
    head_norms: Callable[[L], Mapping[str, float]] | None = None
    # all as one matrix, a block of rows per party
    heads: Callable[[L], Tensor | None] | None = None

    # What a label owner can set up from the sums that a party told it, by both
    # transcripts: for an attack.
    equations: Callable[[L, Transcript, Transcript], Iterator[Equations]] | None = None

    # What trees say of themselves: of a party with columns how much each of these
    # matters, for its owner alone; of a label owner how much each party does, and the
    # first trees.
    column_importance: Callable[[F], Mapping[int, float]] | None = None
    trees: Callable[[L], Mapping[str, Any]] | None = None

    # What it can be used for: kinds of labels, and with its default settings so many
    # parties with columns.
    tasks: Collection[str] = ("classification", "regression")
    # a row of the label owner may count more than others, by a column of its own
    weighs_rows: bool = False
    # `init` points to it where tables have as many rows in common; `about_tables` says
    # why
    for_rows: int | None = None
    about_tables: str = ""
    suits: Callable[[int], bool] = lambda _: True

    def __post_init__(self) -> None:
        if (self.train is None) == (self.nested is None):
            raise ConfigError(
                "An algorithm has either train, which its label owner drives, or"
                f" nested; {self.feature_owner.__module__} has"
                f" {'neither' if self.train is None else 'both'}. Give one."
            )

        if self.config.several_label_owners != (self.nested is not None):
            raise ConfigError(
                f"The settings of {self.config.__name__} and its record must agree"
                " whether there are several label owners: several_label_owners is"
                f" {self.config.several_label_owners}, and nested is"
                f" {'not ' if self.nested is None else ''}given."
            )
        if set(self.config.reveals) != set(self.releases):
            raise ConfigError(
                f"The settings of {self.config.__name__} must say what each release"
                f" reveals: it releases {', '.join(self.releases)}, and reveals has"
                f" {', '.join(self.config.reveals) or 'none'}."
            )

    @property
    def reveals(self) -> dict[str, str]:
        """For each release by its name, what its receiver learns."""
        return dict(self.config.reveals)

    @property
    def per_row(self) -> frozenset[str]:
        """The releases that have a line for each row of their batch."""
        return frozenset(
            name for name, release in self.releases.items() if release.per_row
        )

    @property
    def of_told_width(self) -> frozenset[str]:
        """The releases as wide as a party's introduction says: none without a torch
        model, where these are columns."""
        names = [
            name
            for name, release in self.releases.items()
            if release.is_as_wide_as_told
        ]
        return frozenset(() if self.local_model is None else names)

    @property
    def from_columns(self) -> list[str]:
        """The releases of columns, per row, that their owner can put noise on: what a
        budget is for."""
        noisy = {
            name: release
            for name, release in self.releases.items()
            if release.per_row and release.takes_noise
        }
        return [name for name, release in noisy.items() if release.of == "columns"]

    def bare(self, config: C) -> list[str]:
        """The releases of columns that cross readable with these settings, and no
        owner's rule can put noise on."""
        columns = self.crosses(config)[0]
        return [
            name
            for name, event in columns.items()
            if not costs_nothing(event) and name not in self.from_columns
        ]

    @property
    def stackable(self) -> bool:
        """Whether a cohort may compute for its parties, settings permitting."""
        return self.feature_owner.stackable

    def complete(
        self,
        model: nn.Module,
        row: Tensor,
        outputs: int,
        *,
        seed: int | Generator,
        config: C | None = None,
        own: bool = False,
    ) -> nn.Module:
        """A party's model as the algorithm needs it: unchanged, or with a head for so
        many outputs; `row` is one input. `config` is the default one, unless given;
        `own` says that the party's organisation holds the labels."""
        if self.local_model is None:
            return nn.Flatten()
        if self.local_model is as_it_is:
            return model
        training = model.training
        with torch.no_grad():
            width = model.eval()(row).shape[-1]
        given = LocalInputs(
            row, width, outputs, self.config() if config is None else config, own
        )
        with initialised(seed):
            completed = self.local_model(model, given)
        return completed.train(training)

    def named(self, *kinds: Kind) -> tuple[str, ...]:
        """The names under which something of these kinds is released."""
        return tuple(
            name for name, release in self.releases.items() if release.kind in kinds
        )

    def crosses(self, config: C) -> tuple[Crossing, Crossing]:
        """What crosses from columns, and from labels, with these settings."""
        if self.crossing is not None:
            return self.crossing(config)
        columns: Crossing = {}
        others: Crossing = {}
        for name, release in self.releases.items():
            side = columns if release.of == "columns" else others
            side[name] = PUBLIC if release.of == "nothing" else NON_PRIVATE
        return columns, others

    @property
    def trains(self) -> bool:
        """Whether rows are released for training at all."""
        return self.config.most_epochs != 0

    @property
    def draws_weights(self) -> bool:
        """Whether a party's model begins with drawn weights, which follow from the
        seed."""
        return (
            self.trains and self.local_model is not None and not self.config.converges
        )

    @property
    def once(self) -> bool:
        """Whether a training row is released a single time, so that nobody asks for it
        again to score it."""
        return self.config.most_epochs == 1

    def passes(self, epochs: int) -> int:
        """How often training goes over its rows: once an epoch, unless the algorithm
        needs fewer passes, or none."""
        return (
            epochs
            if self.config.most_epochs is None
            else min(epochs, self.config.most_epochs)
        )

    def batch_size(self, wanted: int, rows: int) -> int:
        """How many rows a step of training has."""
        return wanted if self.config.in_batches else max(rows, 1)

    def progress(self, agreed: Agreed, epochs: int) -> Progress:
        """What counts its steps: the batches of a single label owner, or the rounds of
        several."""
        return agreed.one if self.nested is None else Rounds(agreed, epochs)

    def steps(self, driver: Any, peers: Peers, progress: Progress) -> Iterator[Step]:
        """The steps of its training, from where it stands, as the driver takes them."""
        if self.train is None:
            return self._rounds(driver, peers, progress)
        assert isinstance(progress, Batches)
        return self.train(driver, peers, progress)

    def _rounds(self, driver: Any, peers: Peers, progress: Progress) -> Iterator[Step]:
        assert self.nested is not None
        for step in self.nested.train(driver, peers, progress.epochs):
            progress.done = step.batch.step + 1
            yield step

    def check_model(self, model: str | None) -> None:
        """Raise unless a label owner can predict by a model of this name; without a
        name, by the joint one."""
        if model is not None and model not in self.models:
            models = (
                f"it predicts by one of {', '.join(self.models)}"
                if self.models
                else "here is one joint model"
            )
            raise ConfigError(
                f"No model of a label owner is called {model[:40]!r}: {models}."
            )

    def outputs(
        self, owner: L, peers: Peers, rows: Rows, model: str | None = None
    ) -> Tensor:
        """A label owner's predictions for these rows."""
        self.check_model(model)
        return (self.predict if model is None else self.models[model])(
            owner, peers, rows
        )


AnyAlgorithm = Algorithm[Any, Any, Any]
"""An algorithm of the registry, where each has types of its own."""


class Records(UserDict[str, AnyAlgorithm]):
    """Algorithms by name. An algorithm's file is imported when it is first asked for: a
    run needs one of them."""

    data: dict[str, Any]  # None until it is imported

    def __init__(self, package: str, *names: str) -> None:
        super().__init__()
        self._package = package
        self.data = dict.fromkeys(names)

    def __getitem__(self, name: str) -> AnyAlgorithm:
        record: AnyAlgorithm | None = self.data[name]
        if record is None:
            record = self.data[name] = import_module(
                f"{self._package}.{name}"
            ).ALGORITHM
        return record

    def find(self, name: str) -> AnyAlgorithm:
        """The algorithm of that name, or an error with the names that there are."""
        check_named("algorithm", name, list(self))
        return self[name]

    def __setitem__(self, name: str, record: AnyAlgorithm) -> None:
        super().__setitem__(name, record)
        ALGORITHM_SETTINGS[name] = record.config

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        ALGORITHM_SETTINGS.pop(name, None)
