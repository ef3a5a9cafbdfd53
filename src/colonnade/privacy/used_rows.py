"""What an organisation's rows were ever used for, so that whoever asks does not choose
the rule by a batch's name.

A rule may be for one purpose: "predict.embedding" for rows to predict. The asker says
which rows these are, and may name rows that were trained on. So a row keeps the rules
of everything it was ever used for. **The strictest rule applies to a batch: of the rule
for the purpose named, and the rules for all sides (training, validation, test) on which
any of its rows has ever been.** Strictest is the rule whose one release, of as many
numbers as a row has, costs a row the least epsilon; where two cost the same, as plain
ones do, the one for the purpose named. The account is charged for the rule that was
applied.

What rows were used for is kept in the organisation's store, on the disk before a run
answers; a site has one store for all its runs. A store that has lost entries takes all
rows as used for everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.core.batches import Agreed
from colonnade.core.release import Rule
from colonnade.privacy.accounting import key_of, known_batch
from colonnade.privacy.budget import rows_named
from colonnade.settings.sections import DELTA
from colonnade.store import SiteStore, Word

SIDES = ("train", "validation", "test")


class UsedRows:
    """What the rows behind `batches` were used for; releases `of_training` tell about
    all training rows."""

    def __init__(
        self,
        owner: str,
        batches: Agreed,
        ids: Callable[[], NDArray[np.str_]],
        *,
        of_training: Collection[str] = (),
    ) -> None:
        self.owner = owner
        self.batches = batches
        self.ids = ids
        self.of_training = frozenset(of_training)
        # None: only the uses of this run count
        self._store: SiteStore | None = None
        self._people = np.empty(0, dtype=np.int64)
        self._known: dict[str, NDArray[np.bool_]] = {}

    def _ever(self, side: str) -> NDArray[np.bool_]:
        """Which rows have ever been on a side."""
        if self._store is None:
            used = np.zeros(len(self.ids()), dtype=np.bool_)
            splits = self.batches.splits
            if side in splits:
                used[splits[side].numpy()] = True
            return used
        if side not in self._known:
            self._known[side] = self._store.were_used(self._people, side)
        return self._known[side]

    def rule(
        self,
        as_: str,
        batch: str | None,
        named: str | None,
        rule_for: Callable[[str | None], Rule],
        width: int,
    ) -> Rule:
        """The strictest of the rules for a batch, of which the asker has named one."""
        chosen = rule_for(named)
        for side in self.sides(as_, batch):
            other = rule_for(side)
            if other is not chosen and cost(other, width) < cost(chosen, width):
                chosen = other
        return chosen

    def sides(self, as_: str, batch: str | None) -> list[str]:
        """The sides on which rows of a batch have been; all, for a batch that names no
        agreed rows."""
        if as_ in self.of_training:
            return list(SIDES)
        rows = rows_named(self.batches, batch)
        return [
            side for side in SIDES if rows is None or bool(self._ever(side)[rows].any())
        ]

    def keep(self, store: SiteStore, column: str, word: Word | None = None) -> None:
        """Count what the store says, and add the uses of this run to it.

        Args:
            store: The organisation's store.
            column: The column that the rows' ids are of.
            word: What the owner says about people whom the store does not know.
        """
        self._people = store.numbers_of(self.ids().tolist(), column, word)
        splits = self.batches.splits
        for side in SIDES:
            if side in splits:
                store.use(self._people[splits[side].numpy()], side)
        self._store = store
        self._known = {}


def cost(rule: Rule, width: int = 1) -> float:
    """The epsilon of one release of `width` numbers by a rule, infinite where it
    promises nothing. Some mechanisms pay for each number, so which of two rules is
    stricter depends on the width."""
    _, event = rule.mechanism.apply(torch.zeros(0, width), torch.Generator())
    return known_batch({key_of(event): 1}, "replace-one", DELTA)


def weaker(
    rule_for: Callable[[str | None], Rule], purposes: Iterable[str], width: int
) -> list[str]:
    """The purposes with a weaker rule than another has: it applies only to rows never
    used for that other purpose."""
    costs = {purpose: cost(rule_for(purpose), width) for purpose in purposes}
    least = min(costs.values(), default=math.inf)
    return [purpose for purpose, paid in costs.items() if paid > least]
