"""The page of measurements is what its script makes of the files, and says what was
missed."""

from __future__ import annotations

import importlib.util
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from colonnade import benchmark

DOCS = Path(__file__).parents[2] / "docs"
CURE = "run: python docs/performance.py"


@pytest.fixture(scope="module")
def performance() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "docs_performance", DOCS / "performance.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_and_its_pictures_are_what_was_measured(
    performance: ModuleType,
) -> None:
    text, pictures = performance.page(performance.results())
    assert (DOCS / "performance.md").read_text(encoding="utf-8") == text, CURE
    there = {
        path.name: path.read_text(encoding="utf-8")
        for path in (DOCS / "images").glob("performance-*.svg")
    }
    assert there == pictures, CURE


def test_every_measured_benchmark_is_there_to_be_run_again(
    performance: ModuleType,
) -> None:
    assert {one["benchmark"] for one in performance.results()} <= set(benchmark.names())
    assert all(one["on"] for one in performance.results())


def test_what_was_missed_is_said_and_what_grows_is_drawn(
    performance: ModuleType,
) -> None:
    lines: list[dict[str, Any]] = [
        {
            "what": "a | b",
            "measured": "2",
            "against": "",
            "target": "≥ 3",
            "holds": False,
            "numbers": {"ratio": 2.0},
        },
        {
            "what": "by cores",
            "measured": "",
            "against": "",
            "target": "",
            "holds": None,
            "numbers": {"1 core": 1.0, "2 cores": 2.0, "4 cores": 3.0, "ratio": 3.0},
        },
    ]
    text, pictures = performance.page(
        [one | {"benchmark": "cores", "on": "a machine"} for one in lines]
    )
    assert r"| a \| b | 2 |  | ≥ 3 | **missed** |" in text
    assert list(pictures) == ["performance-cores-a-machine-0.svg"]
    (drawn,) = pictures.values()
    otherwise = [
        lines[1] | {"benchmark": "cores", "on": "a machine", "how": how}
        for how in ("", "by hand")
    ]
    assert len(performance.page(otherwise)[1]) == 2
    bars = [
        float(rect.attrib["width"])
        for rect in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}rect")
    ][1:]
    assert bars == pytest.approx([bars[2] / 3, bars[2] * 2 / 3, bars[2]], abs=0.1)
