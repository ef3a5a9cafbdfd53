"""The inputs of a selection, checked before anything is sent: columns as float64,
labels as classes or numbers.

How a leader and the parties it met choose participants: by which method, at what cost,
and who learned what.

The others may be in this process (`in_process`), or each at a site of its own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Generator, Tensor

from colonnade.core import Ledger, Party
from colonnade.core.batches import seed_for
from colonnade.errors import ConfigError, DataError, check_named
from colonnade.selection.aggregation import AggregationServer
from colonnade.selection.comparing import (
    Comparison,
    compare_all,
    jointly_compared,
)
from colonnade.selection.leader import Leader, Watch
from colonnade.selection.methods import (
    Group,
    Information,
    brute_force,
    draw_tests,
    leave_one_out,
    random,
    vf_ps,
)
from colonnade.selection.neighbours import Numbers, Whole
from colonnade.selection.participant import Join, Participant, Prepare
from colonnade.selection.result import (
    Cost,
    Scored,
    Selection,
    by_information,
    ranked,
    standard_errors,
)
from colonnade.selection.sorting import AskPublicKey, SortingParty
from colonnade.settings.selection import KEYS, SERVER, SelectionSettings
from colonnade.transport import Recording

Array = Tensor | NDArray[Any]
LARGEST = 1e150
"""The largest value: the squares of larger ones, summed over rows, overflow."""


def as_columns(name: str, values: Array, rows: Whole | None) -> Numbers:
    """A participant's columns, [N, F]; one dimension is one column."""
    columns = np.asarray(
        values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    )
    if (
        columns.ndim not in (1, 2)
        or 0 in columns.shape
        or columns.dtype.kind not in "fiub"
    ):
        raise DataError(
            f"'{name}' must give numbers as [rows, columns], at least one of each;"
            f" found {columns.dtype} {list(columns.shape)}. Encode text, and flatten"
            " pictures."
        )
    columns = columns.astype(np.float64).reshape(len(columns), -1)
    columns = columns if rows is None else columns[rows]
    if not (np.abs(columns) <= LARGEST).all():
        raise DataError(
            f"'{name}' has cells that are no finite numbers, or beyond {LARGEST:g},"
            " which have no distance. Fill or rescale them first."
        )
    return columns


def as_labels(
    owner: str, given: Array, rows: Whole | None, settings: SelectionSettings
) -> Whole | Numbers:
    """Classes as whole numbers from 0, or numbers as float64. Floats that are not all
    whole are numbers, unless the settings' estimator says what labels are; `bins` cuts
    numbers at quantiles into classes."""
    labels = np.asarray(
        given.detach().cpu().numpy() if isinstance(given, Tensor) else given
    )
    if labels.ndim != 1:
        raise DataError(
            f"'{owner}' must give one label for each row; found the shape"
            f" {list(labels.shape)}."
        )
    labels = labels if rows is None else labels[rows]
    floats = np.issubdtype(labels.dtype, np.floating)
    if floats and not (np.abs(labels.astype(np.float64)) <= LARGEST).all():
        raise DataError(
            f"'{owner}' has labels that are no finite numbers, or beyond {LARGEST:g}."
            " Leave them out."
        )
    chosen = settings.settled(
        numbers=bool(floats and (labels != np.round(labels)).any())
    )
    if (chosen.bins or chosen.estimator == "kraskov") and not np.issubdtype(
        labels.dtype, np.number
    ):
        raise ConfigError(
            'bins and estimator = "kraskov" take labels that are numbers, and those'
            f" of '{owner}' are {labels.dtype}. Leave them out to take labels as"
            " classes."
        )
    if chosen.estimator == "kraskov":
        return labels.astype(np.float64)
    if chosen.bins:
        if chosen.bins < 2:
            raise ConfigError(
                "bins cuts labels that are numbers into 2 or more; found"
                f" {chosen.bins}."
            )
        inner = np.quantile(labels, np.arange(1, chosen.bins) / chosen.bins)
        return np.searchsorted(inner, labels, side="right").astype(np.int64)
    try:
        return np.unique(labels, return_inverse=True)[1].astype(np.int64)
    except TypeError:
        raise DataError(
            f"'{owner}' has labels of several types, or none in some rows. Make them"
            " all text."
        ) from None


def check_parties(
    rows: Mapping[str, int], labels: int, *, leader: str, decryptor: str
) -> None:
    """Check that there are enough participants, each with as many `rows` as there are
    labels, and with its own name."""
    for name in (leader, *rows):
        if name in (SERVER, KEYS):
            raise ConfigError(
                f"A party cannot be called {name!r}, which is a server's name here."
                " Rename it."
            )
    for name, held in rows.items():
        if held != labels:
            raise DataError(
                f"'{name}' has {held} rows and there are {labels} labels. Align them"
                " first."
            )
    if len(rows) < 2:
        raise ConfigError(
            f"A selection takes 2 or more participants with columns; found {len(rows)}."
        )
    count = len(rows) - (decryptor == "leader" and leader in rows)
    if decryptor != "key_server" and count < 3:
        why = {
            "participants": (
                "participants where they sort: of two, who sorts could subtract its own"
                " part of their sum"
            ),
            "leader": (
                f"participants besides '{leader}', who decrypts for a label that is a"
                " number: of two it may read nothing but the sum of both, which ranks"
                " neither"
            ),
        }[decryptor]
        cure = {
            "participants": 'Set decryptor = "key_server".',
            "leader": (
                "Set bins, for example bins = 4: then ranks are enough, and so are two"
                " participants."
            ),
        }[decryptor]
        raise ConfigError(f"A selection takes 3 or more {why}; found {count}. {cure}")
    if labels < 3:
        raise DataError(f"A selection takes 3 or more rows; found {labels}.")


def check_hidden(groups: Sequence[Group], leader: str) -> None:
    """Where the leader decrypts, refuse a group with one participant besides it, whose
    distances it would read."""
    for group in groups:
        if len(set(group) - {leader}) == 1:
            raise ConfigError(
                f"'{leader}' decrypts each group's distances, and with the group"
                f" {list(group)} it would read those of one participant. Test groups"
                " with two or more besides it (brute_force: keep more); or set bins,"
                " for example bins = 4, if labels are numbers: then ranks are enough,"
                " and a group of one sorts by itself."
            )


def as_groups(names: Sequence[str], groups: Sequence[Sequence[str]]) -> list[Group]:
    """Groups of participants, each in the order of `names`."""
    checked = []
    for group in groups:
        unknown = [name for name in group if name not in names]
        if (
            unknown
            or not group
            or len(set(group)) != len(group)
            or isinstance(group, str)
        ):
            raise ConfigError(
                f"A group names participants, each once, of {list(names)}; found"
                f" {list(group)}."
            )
        checked.append(tuple(name for name in names if name in group))
    if not checked:
        raise ConfigError("groups is empty. Name at least one, or leave it out.")
    return checked


METHODS = ("vf_ps", "random", "lasso", "leave_one_out", "brute_force")
ASKING = ("vf_ps", "leave_one_out", "brute_force")
"""Methods that ask participants something."""
WITHOUT = {
    "random": "nothing",
    "lasso": (
        "all columns of all participants: a centralized baseline, which no federation"
        " would run"
    ),
    "brute_force": (
        "the score of every subset, whatever that takes; nothing crossed here"
    ),
}
"""What the leader learns by methods that run no protocol."""


class LeaderWithPeers(Protocol):
    """A leader who has met participants and servers."""

    leader: Leader
    recording: Recording | None

    @property
    def ledgers(self) -> dict[str, Ledger]: ...
    def cost(self, seconds: float) -> Cost: ...


def readers(decryptor: str, participants: Sequence[str], leader: str) -> list[str]:
    """The parties whose keys distances are encrypted for."""
    return {
        "key_server": [KEYS],
        "participants": list(participants),
        "leader": [leader],
    }[decryptor]


def counted_by(*parties: Party) -> Counter[str]:
    """How many operations of each kind these parties computed; the aggregation server
    counts candidates, too."""
    operations = Counter[str]()
    for party in parties:
        if isinstance(party, AggregationServer | Participant):
            operations.update(party.operations)
        if isinstance(party, SortingParty | Leader) and party.sorter is not None:
            operations.update(party.sorter.operations)
    return operations


def admit(party: Party, leader: str) -> None:
    """Let only the leader, and not the aggregation server, give a party the seed of the
    shuffle and the keys."""
    party.serves_for = frozenset({SERVER})
    party.reserved = dict.fromkeys((Join, Prepare, AskPublicKey), frozenset({leader}))


def check_method(method: str) -> None:
    check_named("selection method", method, list(METHODS))


def check_keep(keep: int, names: Sequence[str]) -> None:
    if (
        isinstance(keep, bool)
        or not isinstance(keep, int)
        or not 1 <= keep <= len(names)
    ):
        raise ConfigError(
            f"keep must be a whole number from 1 to {len(names)}, the participants;"
            f" found {keep!r}."
        )


def choose(
    names: Sequence[str],
    keep: int,
    method: str,
    settings: SelectionSettings,
    *,
    leader: str,
    seed: int,
    meet: Callable[[], LeaderWithPeers],
    groups: Sequence[Sequence[str]] | None = None,
    score: Callable[[Group], float] | None = None,
    fitted: Callable[[], dict[str, float]] | None = None,
    watch: Watch | None = None,
) -> Selection:
    """Choose `keep` of the participants. `meet` starts the protocol, when it is first
    needed; `fitted` gives lasso's scores, where all columns are in one place; the other
    arguments are those of `select_here`."""
    start = time.perf_counter()
    values = dict[Group, float]()
    met = None

    def tested(wanted: Sequence[Group]) -> dict[Group, float]:
        nonlocal met
        if settings.decryptor == "leader":
            check_hidden(wanted, leader)
        met = meet()
        values.update(met.leader.information(wanted, watch))
        return values

    def scored(wanted: Sequence[Group]) -> dict[Group, float]:
        assert score is not None
        values.update({group: float(score(group)) for group in wanted})
        return values

    best: Group = ()
    score_by: Scored | None = None
    if method == "vf_ps":
        least = 1 if settings.decryptor != "leader" else 3 if leader in names else 2
        drawn = draw_tests(
            names,
            settings.tests,
            Generator().manual_seed(seed_for(seed, "tests")),
            least=least,
        )
        score_by = partial(
            vf_ps, names, groups=drawn if groups is None else as_groups(names, groups)
        )
        scores = score_by(tested)
    elif method == "leave_one_out":
        score_by = partial(leave_one_out, names)
        scores = score_by(tested)
    elif method == "brute_force":
        judge: Information = tested if score is None else scored
        scores, best = brute_force(names, keep, judge)
    elif method == "lasso":
        if fitted is None:
            raise ConfigError(
                'method "lasso" fits one model to all columns in one place, which no'
                ' federation would do. Use "vf_ps".'
            )
        scores = fitted()
    else:
        scores = random(names, Generator().manual_seed(seed_for(seed, "random")))
    order = ranked(scores, best)
    seconds = time.perf_counter() - start
    if met is None:
        return Selection(
            method,
            order[:keep],
            order,
            scores,
            values,
            Cost(seconds),
            {leader: WITHOUT[method]},
        )
    cost = met.cost(seconds)
    learned = by_information(met.leader)
    errors: dict[str, float] = {}
    comparisons: list[Comparison] = []
    if score_by is not None:
        errors = standard_errors(met.leader.terms, score_by, seed)
        comparisons = compare_all(order, met.leader.terms)
    return Selection(
        method,
        order[:keep],
        order,
        scores,
        values,
        cost,
        learned,
        met.ledgers,
        met.recording,
        errors=errors,
        comparisons=tuple(comparisons),
        least_difference=settings.least_difference,
    )


def entropy(classes: NDArray[Any]) -> float:
    """The entropy, in nats."""
    _, counts = np.unique(classes, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def jointly(
    selections: Mapping[str, Selection], rows: Mapping[str, int], keep: int
) -> Selection:
    """Join the selections of several label owners. A score is then a mean over all
    their rows: what columns tell about the label of a row once it is known whose row it
    is."""
    first = next(iter(selections.values()))
    total = sum(rows[owner] for owner in selections)
    shares = [
        (rows[owner] / total, selection) for owner, selection in selections.items()
    ]
    scores = {
        name: sum(share * selection.scores[name] for share, selection in shares)
        for name in first.scores
    }
    groups = {
        group: sum(share * selection.groups[group] for share, selection in shares)
        for group in first.groups
    }
    order = ranked(scores)
    if first.method == "brute_force":
        scores = {
            name: max(value for group, value in groups.items() if name in group)
            for name in scores
        }
        order = ranked(scores, max(groups, key=lambda group: groups[group]))
    errors: dict[str, float] = {}
    if all(selection.errors for selection in selections.values()):
        for name in scores:
            variances = [
                (share * selection.errors[name]) ** 2 for share, selection in shares
            ]
            errors[name] = float(np.sqrt(sum(variances)))
    comparisons = jointly_compared(
        (share, selection.by_pair) for share, selection in shares
    )
    learned: dict[str, str] = {}
    for owner, selection in selections.items():
        for party, knowledge in selection.learned.items():
            text = f"of the rows of '{owner}': {knowledge}"
            learned[party] = (
                f"{learned[party]}. {text[0].upper()}{text[1:]}"
                if party in learned
                else text
            )
    summed = {
        field: sum(vars(selection.cost)[field] for selection in selections.values())
        for field in vars(Cost())
    }
    cost = replace(
        Cost(**summed),
        candidates=sum(
            share * selection.cost.candidates for share, selection in shares
        ),
    )
    entropies = [
        share * selection.entropy
        for share, selection in shares
        if selection.entropy is not None
    ]
    return Selection(
        first.method,
        order[:keep],
        order,
        scores,
        groups,
        cost,
        learned,
        entropy=sum(entropies) if len(entropies) == len(shares) else None,
        errors=errors,
        comparisons=tuple(comparisons),
        least_difference=first.least_difference,
        each=dict(selections),
    )
