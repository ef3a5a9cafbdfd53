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

    colonnade-rows 1 5f0c91aa {"train": 318, "validation": 0, "test": 80}     a checksum of all that follows it
    keys of the rows' ids, side by side                                       as the account knows rows

The file is on the disk before a run answers; a site has one for all its runs. A damaged
file is an error. Where it is missing, for runs before there was such a file, every row
counts as used for everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.core.batches import Agreed
from colonnade.core.files import alone
from colonnade.core.release import Rule
from colonnade.errors import CheckpointError
from colonnade.privacy.accounting import key_of, known_batch
from colonnade.privacy.budget import rows_named
from colonnade.privacy.counts import keys_of, read_numbers, write_numbers
from colonnade.settings.sections import DELTA

MAGIC = b"colonnade-rows 1 "
SIDES = ("train", "validation", "test")
Keys = dict[str, NDArray[np.int64]]


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
        # None: there is no file, and only the uses of this run count
        self._on_file: Keys | None = None

    @cached_property
    def _keys(self) -> NDArray[np.int64]:
        """The keys of all rows, made when first needed: rows may be many, and most
        organisations have one rule."""
        return keys_of(self.ids().tolist())

    @cached_property
    def _in_this_run(self) -> Keys:
        """The rows on each side of this run; none where rows are only predicted."""
        splits = self.batches.splits
        return {
            side: self._keys[splits[side].numpy()] for side in SIDES if side in splits
        }

    @cached_property
    def _ever(self) -> dict[str, NDArray[np.bool_]]:
        """Which rows have ever been on each side."""
        keys = self._in_this_run if self._on_file is None else self._on_file
        none = np.empty(0, np.int64)
        return {side: np.isin(self._keys, keys.get(side, none)) for side in SIDES}

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
            side for side in SIDES if rows is None or bool(self._ever[side][rows].any())
        ]

    def keep(self, path: Path) -> None:
        """Count what the file says, and add the uses of this run to it."""
        on_file = self._read(path)
        used = self._in_this_run
        none = np.empty(0, np.int64)
        if used and (
            on_file is None
            or any(
                not np.isin(keys, on_file[side]).all() for side, keys in used.items()
            )
        ):
            with alone(path):
                before = self._read(path) or {}
                on_file = {
                    side: np.union1d(before.get(side, none), used.get(side, none))
                    for side in SIDES
                }
                write_numbers(
                    path,
                    MAGIC,
                    {side: len(keys) for side, keys in on_file.items()},
                    *on_file.values(),
                )
        self._on_file = dict.fromkeys(SIDES, self._keys) if on_file is None else on_file
        self.__dict__.pop("_ever", None)

    def _read(self, path: Path) -> Keys | None:
        try:
            sizes, numbers = read_numbers(path, MAGIC)
            return dict(
                zip(
                    SIDES,
                    np.split(numbers, np.cumsum([sizes[side] for side in SIDES])),
                    strict=False,
                )
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(
                f"{path} is damaged, and it has what rows of '{self.owner}' were used"
                " for, by which rules are chosen. Put back a copy of it; without the"
                " file every row is released by the strictest of its rules."
            ) from None


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
