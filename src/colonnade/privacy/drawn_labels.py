"""Labels that a label owner drew at random, kept over all its runs: a row's label is
drawn once and never again.

A run that drew anew would show each label once more, and whoever takes the majority of
many runs reads it, whatever epsilon each of them states. So a site's store keeps what
was drawn for each person in each label column, and every run learns from the same draw:
epsilon then holds for all runs together. A new row is drawn when it first trains.
Another rule (epsilon, mechanism or classes) would be a second look at the same labels,
and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.core.receipt import DpEvent
from colonnade.store import LabelColumn, SiteStore, Word

Draw = Callable[[Tensor], tuple[Tensor, DpEvent]]
"""Draws the labels of some rows, by their numbers."""

Rule = Mapping[str, str | float]


@dataclass(frozen=True)
class DrawnLabels:
    """The labels that one label owner drew, in its site's store for all its runs.

    Args:
        store: Opens the store, when labels are drawn.
        label: The label column.
        person: The column that says who somebody is.
        word: What the owner says about people whom the store does not know.
        draws_again: The owner's word that labels may be drawn once more of which it is
            not known whether they were drawn.
    """

    store: Callable[[], SiteStore]
    label: str
    person: str
    word: Word | None = None
    draws_again: bool = False

    def once(
        self, ids: NDArray[np.str_], labels: Tensor, rule: Rule, draw: Draw
    ) -> tuple[Tensor, DpEvent]:
        """The labels of rows as they were drawn when they first trained.

        Args:
            ids: Of the rows.
            labels: What the rows' labels are.
            rule: By which labels are drawn.
            draw: Is asked for the labels of rows that were never drawn.
        """
        store = self.store()
        people = store.numbers_of(ids.tolist(), self.person, self.word)
        _, event = draw(torch.empty(0, dtype=torch.int64))

        def drawn(places: NDArray[np.int64]) -> NDArray[np.int64]:
            classes, _ = draw(torch.from_numpy(places))
            return classes.cpu().numpy().astype(np.int64)

        result = store.draw_labels(
            LabelColumn("", self.label),
            people,
            labels.cpu().numpy().astype(np.int64),
            rule,
            drawn,
            again_after_a_loss=self.draws_again,
        )
        return torch.from_numpy(result.classes), event
