"""Pictures decode, are not blank, show every party, and hold no more than the report."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.explain import Report
from colonnade.explain.canvas import STYLE
from colonnade.explain.pictures import denoising, draw, importance, summarization

Rectangle = pytest.importorskip("matplotlib.patches").Rectangle
Image = pytest.importorskip("PIL.Image")


def made_up(parties: int, *, metric: str = "accuracy", mapped: bool = False, classes: int = 3) -> Report:
    """A report with every part of one."""
    chance = random.Random(parties)
    names = [f"party_{number:02d}" for number in range(parties)]
    side = round(parties**0.5 + 0.5)
    holds: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(names):
        region = {"region": [4 * (number // side), 4 * (number % side), 4, 4], "picture": [4 * side, 4 * side]}
        holds[name] = {"holds": "4 columns", **(region if mapped else {})}

    def values(low: float, high: float) -> dict[str, float]:
        return {name: chance.uniform(low, high) for name in names}

    report = Report(
        algorithm="vimadmm",
        task="regression" if metric == "r2" else "classification",
        metric=metric,
        split="test",
        rows=1234,
        score=0.9,
        noise_sigma=3.0,
        repeats=5,
        seed=0,
        holds=holds,
        measures={
            "head_norm": values(1.8, 2.0),
            "head_change": values(0, 0.4),
            "permutation": values(-0.01, 0.1),
            "silenced": values(-0.01, 0.05),
            "noise": values(0, 0.3),
            "left_out": values(-0.02, 0.02),
        },
        deviations={"permutation": values(0, 0.01), "noise": values(0, 0.02)},
    )
    report.rank()
    labels = [chance.randrange(classes) if metric == "accuracy" else chance.gauss(0, 1) for _ in range(80)]
    ends = dict.fromkeys([report.ranking[0], report.ranking[-1]])
    points = {name: [[chance.gauss(0, 1), chance.gauss(0, 9)] for _ in range(80)] for name in ends}
    shown = [f"class {at}" for at in range(classes)] if metric == "accuracy" else []
    report.tsne = {"rows": 80, "points": points, "labels": labels, "classes": shown}
    report.summarization = [
        {"share": share, "which": which, "parties": names[: share * parties // 100 or 1], "score": chance.random()}
        for share, which in ((100, "all"), (50, "most"), (50, "least"), (20, "most"), (20, "least"))
    ]
    heads = {"score": 0.9, "head_norm": values(1.8, 2.0), "head_change": values(0, 0.4)}
    report.denoising = {"party": names[0], "sigma": 1.0, "clean": heads, "noisy": {**heads, "score": 0.8}}
    return report


@pytest.mark.parametrize(
    "report",
    [
        made_up(1),
        made_up(4, mapped=True),
        made_up(3, metric="r2"),
        pytest.param(made_up(24, classes=40), marks=pytest.mark.long),
    ],
    ids=["one", "mapped", "regression", "many"],
)
def test_pictures_decode_and_are_not_blank(report: Report, tmp_path: Path) -> None:
    made = draw(report, tmp_path)
    stems = ("importance", "tsne", "summarization", "denoising")
    assert [path.name for path in made] == [f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")]
    for path in made:
        if path.suffix == ".svg":
            assert ET.parse(path).getroot().tag.endswith("svg")
            continue
        pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
        assert (pixels[:5] == 255).all(), "the margin is white"
        assert 0.005 < (pixels.min(-1) < 250).mean() < 0.8
    assert sorted(tmp_path.iterdir()) == sorted(made)


def test_the_same_report_gives_the_same_pictures(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        report = made_up(2, mapped=True)
        report.summarization = report.denoising = None
        draw(report, tmp_path / folder)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_only_what_there_is_is_drawn(tmp_path: Path) -> None:
    report = made_up(3)
    report.tsne = {"rows": 80, "parties": ["party_00"], "file": "tsne.json"}
    report.summarization = report.denoising = None
    assert [path.name for path in draw(report, tmp_path)] == ["importance.png", "importance.svg"]


def test_bars_have_the_measures_lengths_and_party_order() -> None:
    report = made_up(6)
    figure = importance(report)
    panels = [axis for axis in figure.axes if axis.get_title(loc="left")]
    assert [text.get_text() for text in panels[0].get_yticklabels()] == [f"{n}  (4 columns)" for n in report.parties]
    assert panels[0].get_ylim() == (5.5, -0.5)
    lengths = [bar.get_width() for bar in panels[2].patches if isinstance(bar, Rectangle)]
    assert lengths == pytest.approx([100 * value for value in report.measures["permutation"].values()])
    dots = np.asarray(panels[0].lines[0].get_xdata())
    assert dots.tolist() == pytest.approx(list(report.measures["head_norm"].values()))


def test_regions_are_filled_where_the_party_is() -> None:
    report = made_up(4, mapped=True)
    small = [axis for axis in importance(report).axes if not axis.axison]
    filled = [axis.patches[1] for axis in small]
    corners = [one.get_xy() for one in filled if isinstance(one, Rectangle)]
    assert corners == [(held["region"][1], held["region"][0]) for held in report.holds.values()]
    assert len(set(corners)) == 4


def test_retrained_pictures_show_their_numbers() -> None:
    from matplotlib import rc_context

    report = made_up(4)
    assert report.summarization is not None
    with rc_context(STYLE):
        bars = [bar.get_width() for bar in summarization(report).axes[0].patches if isinstance(bar, Rectangle)]
        heads = denoising(report)
    assert bars == pytest.approx([100 * one["score"] for one in report.summarization])
    weights = [label.get_fontweight() for label in heads.axes[0].get_yticklabels()]
    assert weights == ["bold", "normal", "normal", "normal"]
