"""What comes out of a joint model: predictions for ids, where budgets cover them, and scores on a split."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.algorithms import find
from colonnade.core import Rows, roles
from colonnade.evaluate.metrics import WEIGHTED, Quality, measure
from colonnade.rows.holdings import Holdings
from colonnade.runs.run_directory import Trained

if TYPE_CHECKING:
    import pandas as pd


EVERYBODY, ALONE = "everybody", "label owner alone"


@dataclass(frozen=True, eq=False)
class Predictions:
    """One row per id: the predicted label, and a score per class (or the value itself). Ids are text, as parties
    compare them; to join them to a table of numbers: `table.astype({"id": str}).merge(found.to_frame(), on="id")`.
    """

    ids: NDArray[np.str_]
    labels: NDArray[Any]
    scores: NDArray[np.float64]
    classes: tuple[Any, ...]
    degraded: tuple[str, ...] | None = None  # per row who was missing, "" for nobody; None: then it is an error
    id_column: str = "id"  # as the asker's table calls it

    def to_frame(self, id_column: str | None = None) -> pd.DataFrame:
        import pandas as pd

        frame = pd.DataFrame({"prediction": self.labels})
        frame.insert(0, id_column or self.id_column, self.ids, allow_duplicates=True)
        for number, name in enumerate(self.classes):
            frame[f"score_{name}"] = self.scores[:, number]
        if self.degraded is not None:
            frame["degraded"] = list(self.degraded)
        return frame

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        shown: Any = self.to_frame()
        return str(shown.to_html(max_rows=10, notebook=True))


@dataclass(frozen=True)
class Scores:
    """Of the joint model on a split: on all rows, and where there are several label owners, on the rows of each; where
    partners lack rows, on those that everybody holds, that one lacks, and that the label owner alone holds."""

    all: dict[str, float]
    each: dict[str, dict[str, float]] = field(default_factory=dict)
    quality: dict[str, Quality] = field(default_factory=dict)  # by label owner, for its own folder
    subsets: dict[str, dict[str, float]] = field(default_factory=dict)


def decoded(holdings: Holdings, ids: NDArray[np.str_], outputs: Tensor) -> Predictions:
    """Outputs as labels and scores."""
    loss, encoder = holdings.loss, holdings.encoder
    labels = encoder.decode(loss.decide(outputs))
    if encoder.task == "regression":
        return Predictions(ids, labels, labels[:, None], ())
    return Predictions(ids, labels, loss.scores(outputs).double().cpu().numpy(), encoder.classes)


def measured(holdings: Holdings, outputs: Tensor, labels: Tensor, weighted: float | None = None) -> dict[str, float]:
    """The loss and scores of outputs, errors in the label's own units. All rows count alike, so that runs can be
    compared; where training had weights of classes or rows, the loss that it made small stands beside it."""
    scores = measure(holdings.loss, outputs, labels)
    if weighted is not None:
        scores[WEIGHTED] = weighted
    for name in {"rmse", "mae"} & set(scores):
        scores[name] *= holdings.encoder.scale
    return scores


def by_subset(
    holdings: Holdings, partners: Sequence[str], outputs: Tensor, labels: Tensor, rows: Tensor
) -> dict[str, dict[str, float]]:
    """The number of rows, and the scores on them: with everybody, without each partner, and of the label owner alone.
    `rows` are those of a split, in the order of `outputs`. A kind of row that there is none of is left out."""
    lacks = {party: mask[rows] for party, mask in holdings.away.items()}
    nobody = torch.zeros(len(rows), dtype=torch.bool)
    kinds = {EVERYBODY: ~torch.stack([nobody, *lacks.values()]).any(0)}
    kinds |= {f"without {party}": lacks[party] for party in partners if party in lacks}
    if len(partners) > 1 and len(lacks) == len(partners):
        kinds[ALONE] = torch.stack(list(lacks.values())).all(0)
    found = {}
    for kind, chosen in kinds.items():
        if bool(chosen.any()):
            at = chosen.to(outputs.device)
            found[kind] = {"rows": int(chosen.sum()), **measured(holdings, outputs[at], labels[at])}
    return found


def mean_scores(each: Mapping[str, Mapping[str, float]], rows: Mapping[str, int]) -> dict[str, float]:
    """Weighted by rows, over those who have the score: AUC needs rows of both classes.

    Of the loss, accuracy and MAE this is the score on all rows together, and so it is of RMSE, whose squares are
    averaged. Of R squared, AUC, precision, recall and F1 it is a mean of the owners' scores and no more."""
    if len(each) == 1:
        return dict(next(iter(each.values())))
    means = {}
    for name in next(iter(each.values())):
        power = 2 if name == "rmse" else 1
        known = {owner: scores.get(name, float("nan")) for owner, scores in each.items()}
        values = {owner: score**power for owner, score in known.items() if np.isfinite(score)}
        total = sum(rows[owner] for owner in values)
        mean = sum(value * rows[owner] for owner, value in values.items()) / total if total else float("nan")
        means[name] = mean ** (1 / power)
    return means


def check_affordable(trained: Trained, to: str, chunks: Sequence[Rows], away: Collection[str] = ()) -> None:
    """Raise where a party here would refuse to release these rows to be predicted. It is asked before anybody is: who
    had answered by then would have charged its rows for nothing."""
    names = [name for name, one in find(trained.settings.algorithm).releases.items() if one.is_as_wide_as_told]
    for party, account in trained.accounts.items():
        organisation = trained.organisations[party]
        role = organisation.roles.get("features")
        if account.budget is None or party == to or party in away or not isinstance(role, roles.FeatureOwner):
            continue
        for name in names:
            row = torch.zeros(1, *role.introduce(roles.Introduce()).shape)
            for rows in chunks:
                rule = organisation.outbox.rule(name, rows.name, row.numel())
                account.check(name, rows.name, rows.size, rule.mechanism.apply(row, torch.Generator())[1])
