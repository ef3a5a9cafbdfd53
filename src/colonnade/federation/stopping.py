"""When training ends before its last epoch, and of which epoch the models are kept;
what was chosen for a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol

from colonnade.core import Ledger, Step
from colonnade.evaluate.metrics import HEADLINE, WEIGHTED
from colonnade.federation.scores import Scores
from colonnade.rows.holdings import Holdings
from colonnade.runs.run_directory import Trained
from colonnade.settings.federation_file import Settings

WAYS = {"number": "scaled", "quantile": "quantile", "piecewise": "piecewise"}
"""How columns of numbers were prepared, by what was learned of them."""
CONVERGED = 1e-4
"""Relative change of the mean training loss, three epochs in a row, below which
training has converged."""
OPTIMUM = 1e-9
"""The same, of an algorithm that trains to the one optimum."""
NEAR = 1e-6
"""The same, from which on coefficients may still move by a thousandth."""
FEWEST_OF_RARER_CLASS = 100
"""Validation rows of the rarer class from which on AUC decides. The standard error of an
AUC of 0.75 is about 0.06 with 24 such rows and 0.03 with 100 (5 % of all rows): with
fewer, epochs differ by chance. The loss is a sum over all rows."""
Record = dict[str, Any]


class Trainable(Trained, Protocol):
    """What can be trained: a `Federation`."""

    given: Settings  # before rows decided what they leave open
    holdings: Holdings
    algorithm: Any
    owners: dict[str, Any]
    label_owners: dict[str, Any]
    elsewhere: Any
    history: list[Record]

    @property
    def ledgers(self) -> dict[str, Ledger]: ...
    def train(self) -> Iterator[Step]: ...
    def score(self, split: str) -> Scores: ...


def judged(
    trained: Trainable, history: Sequence[Record]
) -> tuple[str, list[tuple[float, float]]]:
    """The validation score that decides, and what it was after each epoch.

    Larger is better. Each value comes with minus the loss, which decides between epochs
    whose score is equal. The first score that all epochs have is taken.
    """
    records = [record["validation"] for record in history if "validation" in record]
    for name in _scores_to_try(trained):
        pairs = [(record.get(name), record["loss"]) for record in records]
        if not all(_are_known(pair) for pair in pairs):
            continue
        sign = -1.0 if name in ("loss", WEIGHTED) else 1.0
        return name, [(sign * float(score), -loss) for score, loss in pairs]
    return "loss", []


def _scores_to_try(trained: Trainable) -> list[str]:
    """The scores that may decide, as [train] stop_on says, the first one preferred."""
    stop_on = trained.settings.train.stop_on
    if stop_on == "score":
        return ["auc", HEADLINE[trained.holdings.encoder.task], "loss"]
    by_loss = [WEIGHTED, "loss"]
    if stop_on == "loss":
        return by_loss
    rarer = rows_of_rarer_class(trained)
    ranks_well = rarer is not None and rarer >= FEWEST_OF_RARER_CLASS
    return ["auc", *by_loss] if ranks_well else by_loss


def _are_known(pair: tuple[float | None, float]) -> bool:
    return all(value is not None and math.isfinite(value) for value in pair)


def rows_of_rarer_class(trained: Trainable) -> int | None:
    """How many validation rows are of the rarer one of two classes.

    None where labels are no two classes, or several organisations hold them: then
    nobody knows all labels, and the mean of their AUCs would be of fewer rows each.
    """
    holdings = trained.holdings
    if holdings.encoder.positive_class is None or len(holdings.label_owners) != 1:
        return None
    rows = holdings.splits.get("validation")
    if rows is None:
        return None
    labels = trained.label_owners[holdings.label_owner].labels
    of_second = int((labels[rows.to(labels.device)] == 1).sum())
    return min(of_second, len(rows) - of_second)


def _why_not_auc(trained: Trainable) -> str:
    """Words on why the loss decides for two classes, where the rows decided that."""
    rarer = rows_of_rarer_class(trained)
    is_chosen = trained.settings.train.stop_on == "auto"
    if not is_chosen or rarer is None or rarer >= FEWEST_OF_RARER_CLASS:
        return ""
    return (
        f"; the loss decides, since only {rarer} validation rows are of the rarer class,"
        f" and AUC needs {FEWEST_OF_RARER_CLASS}"
    )


def best_of(trained: Trainable, history: Sequence[Record]) -> Record | None:
    """Find the epoch whose models are kept: the first of those that validated best;
    None to keep the last ones."""
    if not trained.settings.train.early_stop or trained.algorithm.config.converges:
        return None
    _, scores = judged(trained, history)
    return history[scores.index(max(scores))] if scores else None


def is_best(trained: Trainable, history: Sequence[Record]) -> bool:
    return bool(history) and best_of(trained, history) is history[-1]


def keep_best(trained: Trainable) -> None:
    """Let everybody remember its models as they are now, the best so far. Where
    somebody elsewhere could not be told, nobody here does: models of two epochs do not
    fit together."""
    trained.settle()
    all_keep = trained.elsewhere.best(False)
    for organisation in trained.organisations.values():
        organisation.keep_best() if all_keep else organisation.drop_best()


def take_best(trained: Trainable) -> bool:
    """Give everybody its best models again, since training has ended; False where they
    are not known to all."""
    trained.settle()
    if any(
        organisation.best is None for organisation in trained.organisations.values()
    ):
        return False
    for organisation in trained.organisations.values():
        organisation.take_best()
    trained.restack()
    return bool(trained.elsewhere.best(True))


def go_on(trained: Trainable) -> None:
    """Train further from where training stopped, though everybody had its best models
    since."""
    trained.settle()
    for organisation in trained.organisations.values():
        organisation.go_on()
    trained.restack()


def why_stop(trained: Trainable, history: Sequence[Record]) -> tuple[str, str] | None:
    """Say why to stop, in full and as all are told: the loss converged, or validation
    was not better for as long as patience lasts. VIM's criterion, a fall by two points,
    is patience_drop = 0.02."""
    train = trained.settings.train
    if not train.early_stop:
        return None
    if changed(history) < (
        OPTIMUM if trained.algorithm.config.converges else CONVERGED
    ):
        return ("converged: the training loss no longer changes",) * 2
    if trained.algorithm.config.converges:
        return None
    name, scores = judged(trained, history)
    name = name.upper() if name == "auc" else name
    if scores and len(scores) - 1 - scores.index(max(scores)) >= train.patience:
        best = (
            f"{abs(max(scores)[0]):.4f} in epoch"
            f" {history[scores.index(max(scores))]['epoch']}"
        )
        return (
            f"validation {name} was best, {best}, and did not improve since"
            f"{_why_not_auc(trained)}",
            f"validation {name} did not improve",
        )
    name = HEADLINE[trained.holdings.encoder.task]
    drops = [
        record["validation"][name]
        for record in history
        if train.patience_drop and "validation" in record
    ]
    if drops and drops[-1] < max(drops) - train.patience_drop:
        return (
            f"validation {name} fell from {max(drops):.4f} to {drops[-1]:.4f}",
            f"validation {name} fell",
        )
    return None


def changed(history: Sequence[Record]) -> float:
    """The largest relative change of the training loss in the last three epochs;
    infinite before there are three."""
    losses = [record["loss"] for record in history[-4:]]
    changes = [
        abs(after - before) / max(abs(before), 1e-12)
        for before, after in pairwise(losses)
    ]
    return max(changes) if len(changes) == 3 else math.inf


def unfinished(trained: Trainable, history: Sequence[Record]) -> list[str]:
    """Write a sentence where an algorithm that trains to the one optimum ended on the
    way to it."""
    if (
        not trained.algorithm.config.converges
        or not history
        or (change := changed(history)) < NEAR
    ):
        return []
    still = (
        f"still changed by {change:.1e} of itself"
        if math.isfinite(change)
        else "had just begun to fall"
    )
    return [
        f"Training ended after {len(history)} epochs on the way to its optimum: the"
        f" loss {still}, so coefficients are not what they would become. Raise [train]"
        ' epochs, or leave it "auto"; a run that is resumed goes on from here.'
    ]


def chosen(trained: Trainable, history: Sequence[Record]) -> Record:
    """Tell what settings became that say "auto", by their names in a file, as far as it
    is known in this process."""
    by, validated = judged(trained, history)
    ways = {
        name: Counter(
            WAYS[kind]
            for column in columns.preprocessor.columns
            if (kind := column.state()["kind"]) in WAYS
        )
        for name, columns in trained.holdings.columns.items()
        if columns.preprocessor is not None
    }
    listed = {
        name: ", ".join(f"{n} {way}" for way, n in counts.items())
        for name, counts in ways.items()
    }
    tables = trained.given.to_mapping()
    now = trained.settings.to_mapping()
    open_ = [key for key, value in tables["algorithm"].items() if value == "auto"]
    known = (
        [owner.state() for owner in trained.label_owners.values()][:1] if open_ else []
    )
    encoder = trained.holdings.encoder
    scale = "log" if encoder.unit.is_log else "linear"
    became = {
        "algorithm": {
            key: state[key]
            for state in known
            for key in open_
            if state.get(key) is not None
        },
        "data": {
            "task": encoder.task,
            "target_scale": scale if encoder.task == "regression" else "",
        },
        "preprocess": {
            "numbers": "; ".join(
                f"{name}: {counts}" for name, counts in listed.items() if counts
            )
        },
        "model": {key: value for key, value in now["model"].items() if value != "auto"},
        "train": {
            **{key: value for key, value in now["train"].items() if value != "auto"},
            "stop_on": by if validated and trained.settings.train.early_stop else "",
        },
        "federation": {"device": str(trained.device)},
    }
    every = [
        (section, key, value)
        for section, table in became.items()
        for key, value in table.items()
    ]
    return {
        f"{section}.{key}": value
        for section, key, value in every
        if tables[section].get(key) == "auto" and value != ""
    }
