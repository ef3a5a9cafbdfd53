"""What several owners release at once is what each would release alone."""

from __future__ import annotations

import pytest
import torch
from tests.core.test_release import Halves, Shift
from torch import Generator

from colonnade.core import Outbox, Rule
from colonnade.core.outbox import release_stack
from colonnade.core.receipt import DpEvent
from colonnade.core.release import CODECS

BATCHES = ["a:train/0/0", "b:train/0/0"]


class Counting:
    """A meter."""

    def __init__(self) -> None:
        self.charged: list[tuple[str, str | None, int]] = []

    def charge(
        self, name: str, batch: str | None, size: int, event: DpEvent
    ) -> float | None:
        self.charged.append((name, batch, size))
        return None

    def state(self) -> dict[str, object]:
        return {}

    def load_state(self, state: dict[str, object]) -> None: ...


def outboxes(first: dict[str, Rule], second: dict[str, Rule]) -> list[Outbox]:
    return [
        Outbox(name, Generator().manual_seed(0), rules)
        for name, rules in (("a", first), ("b", second))
    ]


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> Halves:
    codec = Halves()
    monkeypatch.setitem(CODECS, codec.name, codec)
    return codec


@pytest.mark.parametrize("kind", ["plain", "mechanism", "codec", "purpose", "metered"])
def test_it_is_each_owner_s_own_release(kind: str, halves: Halves) -> None:
    ruled = {
        "mechanism": {"h": Rule(Shift())},
        "codec": {"h": Rule(codec=halves)},
        "purpose": {"train.h": Rule(Shift())},
    }
    tensor = torch.randn(2, 5, 3, generator=Generator().manual_seed(1))
    alone, together = (outboxes({}, ruled.get(kind, {})) for _ in range(2))
    meters = [Counting(), Counting()]
    if kind == "metered":
        alone[0].meter, together[0].meter = meters
    expected = [box.release(tensor[i], "h", BATCHES[i]) for i, box in enumerate(alone)]
    whole, parts = release_stack(
        tensor,
        "h",
        [(box, "driver", batch) for box, batch in zip(together, BATCHES, strict=True)],
    )
    for index, (mine, theirs) in enumerate(zip(parts, expected, strict=True)):
        assert torch.equal(mine.tensor, theirs.tensor)
        assert torch.equal(whole[index], theirs.tensor)
        assert mine.receipt == theirs.receipt
        assert (mine.packed is None) == (theirs.packed is None)
    assert [box.released for box in together] == [1, 1]
    assert meters[0].charged == meters[1].charged


def test_it_shares_no_memory_with_what_is_private() -> None:
    tensor = torch.zeros(2, 5, 3, requires_grad=True)
    whole, parts = release_stack(
        tensor,
        "h",
        [
            (box, "driver", batch)
            for box, batch in zip(outboxes({}, {}), BATCHES, strict=True)
        ],
    )
    with torch.no_grad():
        tensor.add_(1)
    assert not whole.requires_grad
    assert all(part.tensor.sum() == 0 for part in parts)


def test_one_s_own_organisation_is_inside() -> None:
    shift = {"h": Rule(Shift())}
    a, b = outboxes(shift, shift)
    whole, _ = release_stack(
        torch.zeros(2, 4, 3), "h", [(a, "a", BATCHES[0]), (b, "a", BATCHES[1])]
    )
    assert (whole[0] == 0).all()
    assert (whole[1] == 1).all()
