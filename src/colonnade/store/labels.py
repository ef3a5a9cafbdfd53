"""Labels that an organisation drew at random: each person's label in each column is
drawn once, for all runs.

A run that drew anew would show each label once more, and whoever takes the majority of
many runs reads it, whatever epsilon each of them states.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from colonnade.store.packing import to_json
from colonnade.store.places import IntArray

NOT_DRAWN = -1


class LabelColumn(NamedTuple):
    """A column of labels: another column holds other labels of the same people."""

    table: str
    column: str


@dataclass
class Draws:
    """What was drawn of one column.

    Args:
        rule: By which it was drawn, as canonical JSON.
        drawn: The class that was drawn for each person, or `NOT_DRAWN`.
        actual: The class that each person had when it was drawn.
    """

    rule: str
    drawn: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    actual: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def widen(self, people: int) -> None:
        """Make room for new people."""
        new = np.full(people - len(self.drawn), NOT_DRAWN, dtype=np.int64)
        self.drawn = np.concatenate([self.drawn, new])
        self.actual = np.concatenate([self.actual, new])

    def places_not_drawn(self, numbers: IntArray) -> IntArray:
        """The places in a list of people of those whose label was not drawn yet: the
        first place of each."""
        _, first_places = np.unique(numbers, return_index=True)
        places = np.sort(first_places)
        not_drawn: IntArray = places[self.drawn[numbers[places]] == NOT_DRAWN]
        return not_drawn

    def add(self, numbers: IntArray, drawn: IntArray, actual: IntArray) -> None:
        """Write down a draw."""
        self.drawn[numbers] = drawn
        self.actual[numbers] = actual


class Labels:
    """What was drawn of each column of labels."""

    def __init__(self) -> None:
        self._people = 0
        self._by_column: dict[LabelColumn, Draws] = {}
        self.some_may_be_lost = False

    def rule_of(self, column: LabelColumn) -> str | None:
        """The rule by which a column was drawn. None where nothing was drawn of it."""
        draws = self._by_column.get(column)
        return None if draws is None else draws.rule

    def of(self, column: LabelColumn, rule: str = "") -> Draws:
        """What was drawn of a column; nothing, where it is new."""
        draws = self._by_column.get(column)
        if draws is None:
            draws = Draws(rule)
            draws.widen(self._people)
        return draws

    def add(
        self,
        column: LabelColumn,
        rule: str,
        numbers: IntArray,
        drawn: IntArray,
        actual: IntArray,
    ) -> None:
        """Write down a draw."""
        draws = self.of(column, rule)
        draws.add(numbers, drawn, actual)
        self._by_column[column] = draws

    def widen(self, people: int) -> None:
        """Make room for new people."""
        self._people = people
        for draws in self._by_column.values():
            draws.widen(people)

    def plain(self) -> dict[str, Any]:
        """What a checkpoint keeps, but for arrays."""
        return {
            "people": self._people,
            "some_may_be_lost": self.some_may_be_lost,
            "columns": [
                [*column, draws.rule] for column, draws in self._by_column.items()
            ],
        }

    def arrays(self) -> dict[str, IntArray]:
        """The arrays that a checkpoint keeps."""
        arrays = {}
        for place, draws in enumerate(self._by_column.values()):
            arrays[f"drawn/{place}"] = draws.drawn
            arrays[f"actual/{place}"] = draws.actual
        return arrays

    def load(self, plain: dict[str, Any], arrays: dict[str, IntArray]) -> None:
        """Go on from a checkpoint."""
        self._people = int(plain["people"])
        self.some_may_be_lost = bool(plain["some_may_be_lost"])
        for place, (table, column, rule) in enumerate(plain["columns"]):
            self._by_column[LabelColumn(table, column)] = Draws(
                rule, arrays[f"drawn/{place}"], arrays[f"actual/{place}"]
            )


def rule_text(rule: dict[str, Any]) -> str:
    """The text by which two rules are compared."""
    return to_json(rule)
