"""What each party holds, in words and as a region: put together, the regions are the picture."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.explain.trained import trained

from colonnade.explain.holdings import regions
from colonnade.federation import Federation, Settings


def digits(**data: Any) -> Federation:
    tables = {
        "algorithm": {"name": "vimadmm"},
        "data": {"dataset": "digits", **data},
        "model": {"name": "mlp", "hidden": [4], "width": 3},
        "federation": {"device": "cpu"},
    }
    return Federation.from_settings(Settings.from_mapping(tables))


@pytest.mark.parametrize(
    ("data", "size"),
    [
        ({"split": "strips", "parts": 3}, [8, 8]),
        ({"split": "patches", "parts": [2, 4]}, [8, 8]),
        ({"split": "patches", "parts": [3, 3]}, [9, 9]),  # padded
    ],
)
def test_regions_cover_the_picture_once(data: dict[str, Any], size: list[int]) -> None:
    found = regions(digits(**data))
    covered = torch.zeros(size)
    for held in found.values():
        top, left, height, width = held["region"]
        covered[top : top + height, left : left + width] += 1
        assert held["picture"] == size
    assert bool((covered == 1).all())


def test_strips_go_down_and_patches_across_first() -> None:
    strips = [held["region"] for held in regions(digits(split="strips", parts=4)).values()]
    assert strips == [[0, 0, 2, 8], [2, 0, 2, 8], [4, 0, 2, 8], [6, 0, 2, 8]]
    patches = [held["region"] for held in regions(digits(split="patches", parts=[2, 2])).values()]
    assert patches == [[0, 0, 4, 4], [0, 4, 4, 4], [4, 0, 4, 4], [4, 4, 4, 4]]


def test_tables_and_columns_are_counted() -> None:
    assert regions(trained())["strong"] == {"holds": "2 columns"}
    assert regions(digits(split="columns", parts=4))["client_01"] == {"holds": "16 values"}
