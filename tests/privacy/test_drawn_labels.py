"""A label is drawn once: what the file says is used again, and only rows that it lacks
are drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from colonnade.core.receipt import DpEvent
from colonnade.errors import CheckpointError, ConfigError, InputError
from colonnade.privacy.drawn_labels import DrawnLabels

RULE: dict[str, str | float] = {"mechanism": "RandomizedResponse", "epsilon": 1.0}
EVENT = DpEvent("randomized-response", {"epsilon": 1.0})


class Drawing:
    """Counts which rows it was asked for; each draw is another number."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, rows: torch.Tensor) -> tuple[torch.Tensor, DpEvent]:
        self.asked.append(rows.tolist())
        return rows + 100 * len(self.asked), EVENT


def test_only_rows_that_were_never_drawn_are_drawn_in_whatever_order_they_come(
    tmp_path: Path,
) -> None:
    draw = Drawing()
    path = tmp_path / "runs" / "drawn.labels"
    first, event = DrawnLabels("clinic", path).once(
        np.array(["c", "a", "b"]), RULE, draw
    )
    assert (first.tolist(), event) == ([100, 101, 102], EVENT)
    again, event = DrawnLabels("clinic", path).once(
        np.array(["b", "x", "a", "c", "y"]), RULE, draw
    )
    assert again.tolist() == [102, 201, 101, 100, 204]
    last, _ = DrawnLabels("clinic", path).once(np.array(["y", "b"]), RULE, draw)
    assert last.tolist() == [204, 102]
    assert draw.asked == [[0, 1, 2], [1, 4], []]
    assert not [one for one in path.parent.iterdir() if one.suffix == ".tmp"]


def test_a_draw_that_fails_keeps_nothing(tmp_path: Path) -> None:
    path = tmp_path / "drawn.labels"

    def fails(rows: torch.Tensor) -> tuple[torch.Tensor, DpEvent]:
        raise InputError(f"{len(rows)}")

    with pytest.raises(InputError):
        DrawnLabels("clinic", path).once(np.array(["a"]), RULE, fails)
    assert not path.exists()


def test_every_damage_and_every_other_rule_is_an_error(tmp_path: Path) -> None:
    draw = Drawing()
    path = tmp_path / "drawn.labels"
    ids = np.array(["a", "b"])
    DrawnLabels("clinic", path).once(ids, RULE, draw)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(
            CheckpointError,
            match="is damaged, and it has the labels that 'clinic' drew",
        ):
            DrawnLabels("clinic", path).once(ids, RULE, draw)
    for cut in (0, 5, len(whole) - 8):
        path.write_bytes(whole[:cut])
        with pytest.raises(CheckpointError, match="is damaged"):
            DrawnLabels("clinic", path).once(ids, RULE, draw)
    path.write_bytes(whole)
    with pytest.raises(ConfigError, match="a second draw shows them once more"):
        DrawnLabels("clinic", path).once(ids, {**RULE, "epsilon": 2.0}, draw)
    assert len(draw.asked) == 1
