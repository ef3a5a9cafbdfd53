"""Hostile calls while rows are agreed on and partners chosen: refused ones leave no
trace there either."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from tests.fuzz.calls import Answered, Hostile
from tests.fuzz.corpus import corpus

from colonnade.alignment import in_process as alignment
from colonnade.alignment.ids import Ids
from colonnade.core import Party
from colonnade.errors import ColonnadeError
from colonnade.selection import in_process as selection


def common_rows() -> list[tuple[int, ...]]:
    """Which row of each is the same person's; their agreed order is a secret drawn
    anew."""
    held = {
        name: Ids.of(name, [[f"id{number}" for number in range(first, first + 12)]])
        for name, first in PARTIES
    }
    rows = alignment.align_here(held).rows
    return sorted(zip(*(rows[name].tolist() for name, _ in PARTIES), strict=True))


PARTIES = (("ada", 0), ("bob", 3), ("cyd", 5))


def chosen() -> tuple[list[str], dict[str, float]]:
    draw = np.random.default_rng(3)
    labels = draw.integers(0, 2, 40)
    features = {
        name: draw.normal(size=(40, 2)) + strength * labels[:, None]
        for name, strength in PARTIES
    }
    found = selection.select_here(
        features, labels, keep=2, scheme="plain", k=3, queries=10
    )
    return list(found.chosen), dict(found.scores)


def _hostile(
    rng: random.Random, frames: list[bytes], made: list[Hostile]
) -> Callable[..., Hostile]:
    def hostile(parties: Mapping[str, Party], **_: Any) -> Hostile:
        made.append(Hostile(parties, rng, rng.randrange(8), frames))
        return made[-1]

    return hostile


@pytest.mark.parametrize("trials", [8, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("module", "protocol"),
    [(alignment, common_rows), (selection, chosen)],
    ids=["alignment", "selection"],
)
@pytest.mark.filterwarnings("ignore:The encryption scheme")
def test_a_refused_call_changes_no_result(
    module: Any,
    protocol: Callable[[], Any],
    trials: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = protocol()
    frames = corpus(encrypted=False, recorded=False)
    ends = Counter[str]()
    survived = 0
    for seed in range(trials):
        made: list[Hostile] = []
        monkeypatch.setattr(
            module, "InProcess", _hostile(random.Random(seed), frames, made)
        )
        try:
            found = protocol()
        # parties are asked in threads, so another may be the first to notice
        except (Answered, ColonnadeError):
            assert any(one.ends["answered"] for one in made), seed
        else:
            assert found == honest, seed
            survived += 1
        ends += sum((one.ends for one in made), Counter())
    assert ends.total() > 2 * trials
    assert survived > 0, (
        "every trial ended with a mutant that was answered, so nothing was compared"
    )
