"""Pictures decode, are not blank, show every party, and hold no more than the report.
Files appear whole, names are shortened, and a missing library is named. The picture of
embeddings: a dot per row and party, in the colour of its label. The picture of a
selection shows everybody, kept or not, with its score.
"""

from __future__ import annotations

import ast
import random
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.core.files import write_figure
from colonnade.evaluate import metric
from colonnade.explain import Report, pictures
from colonnade.explain.pictures import (
    CLASSES,
    STYLE,
    _colour,
    denoising,
    draw,
    draw_selection,
    importance,
    summarization,
    tsne,
)
from colonnade.installation import hint
from colonnade.selection import select_here

Rectangle = pytest.importorskip("matplotlib.patches").Rectangle
Image = pytest.importorskip("PIL.Image")


def made_up(
    parties: int, *, metric: str = "accuracy", mapped: bool = False, classes: int = 3
) -> Report:
    """A report with every part of one."""
    chance = random.Random(parties)
    names = [f"party_{number:02d}" for number in range(parties)]
    side = round(parties**0.5 + 0.5)
    holds: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(names):
        region = {
            "region": [4 * (number // side), 4 * (number % side), 4, 4],
            "picture": [4 * side, 4 * side],
        }
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
    labels = [
        chance.randrange(classes) if metric == "accuracy" else chance.gauss(0, 1)
        for _ in range(80)
    ]
    ends = dict.fromkeys([report.ranking[0], report.ranking[-1]])
    points = {
        name: [[chance.gauss(0, 1), chance.gauss(0, 9)] for _ in range(80)]
        for name in ends
    }
    shown = [f"class {at}" for at in range(classes)] if metric == "accuracy" else []
    report.tsne = {"rows": 80, "points": points, "labels": labels, "classes": shown}
    report.summarization = [
        {
            "share": share,
            "which": which,
            "parties": names[: share * parties // 100 or 1],
            "score": chance.random(),
        }
        for share, which in (
            (100, "all"),
            (50, "most"),
            (50, "least"),
            (20, "most"),
            (20, "least"),
        )
    ]
    heads = {"score": 0.9, "head_norm": values(1.8, 2.0), "head_change": values(0, 0.4)}
    report.denoising = {
        "party": names[0],
        "sigma": 1.0,
        "clean": heads,
        "noisy": {**heads, "score": 0.8},
    }
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
    assert [path.name for path in made] == [
        f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")
    ]
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
    assert [path.name for path in draw(report, tmp_path)] == [
        "importance.png",
        "importance.svg",
    ]


def test_bars_have_the_measures_lengths_and_party_order() -> None:
    report = made_up(6)
    figure = importance(report)
    panels = [axis for axis in figure.axes if axis.get_title(loc="left")]
    assert [text.get_text() for text in panels[0].get_yticklabels()] == [
        f"{n}  (4 columns)" for n in report.parties
    ]
    assert panels[0].get_ylim() == (5.5, -0.5)
    lengths = [
        bar.get_width() for bar in panels[2].patches if isinstance(bar, Rectangle)
    ]
    assert lengths == pytest.approx(
        [100 * value for value in report.measures["permutation"].values()]
    )
    dots = np.asarray(panels[0].lines[0].get_xdata())
    assert dots.tolist() == pytest.approx(list(report.measures["head_norm"].values()))


def test_regions_are_filled_where_the_party_is() -> None:
    report = made_up(4, mapped=True)
    small = [axis for axis in importance(report).axes if not axis.axison]
    filled = [axis.patches[1] for axis in small]
    corners = [one.get_xy() for one in filled if isinstance(one, Rectangle)]
    assert corners == [
        (held["region"][1], held["region"][0]) for held in report.holds.values()
    ]
    assert len(set(corners)) == 4


def test_retrained_pictures_show_their_numbers() -> None:
    from matplotlib import rc_context

    report = made_up(4)
    assert report.summarization is not None
    with rc_context(STYLE):
        bars = [
            bar.get_width()
            for bar in summarization(report).axes[0].patches
            if isinstance(bar, Rectangle)
        ]
        heads = denoising(report)
    assert bars == pytest.approx([100 * one["score"] for one in report.summarization])
    weights = [label.get_fontweight() for label in heads.axes[0].get_yticklabels()]
    assert weights == ["bold", "normal", "normal", "normal"]


pytest.importorskip("matplotlib")


def test_without_matplotlib_the_numbers_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.warns(UserWarning, match="pictures are left out") as told:
        written = pictures.write(made_up(3), tmp_path)
    assert hint("plots") in str(told[0].message)
    assert {path.suffix for path in written} == {".json"}
    assert {path.suffix for path in tmp_path.iterdir()} == {".json"}


@pytest.mark.parametrize(
    "path",
    sorted(Path(pictures.__file__).parent.glob("*.py")),
    ids=lambda path: path.name,
)
def test_heavy_libraries_are_imported_where_they_are_used(path: Path) -> None:
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names |= (
            {alias.name for alias in node.names}
            if isinstance(node, ast.Import)
            else set()
        )
        names |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
    assert not {name.split(".")[0] for name in names} & {
        "matplotlib",
        "sklearn",
        "scipy",
        "pandas",
    }


def test_a_picture_that_fails_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = pictures.page(2, 2)
    write_figure(figure, tmp_path / "kept")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(before) == ["kept.png", "kept.svg"]

    def cut_short(path: Path, **settings: object) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(figure, "savefig", cut_short)
    with pytest.raises(OSError, match="disk full"):
        write_figure(figure, tmp_path / "kept")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_names_and_scores_in_words() -> None:
    report = made_up(2)
    report.holds = {
        "a" * 40: {"holds": "1 column"},
        "b": {"holds": "x", "region": [0, 0, 1, 1]},
    }
    assert pictures.row_names(report) == ["a" * 23 + "…  (1 column)", "b"]
    assert pictures.score(report, 0.1234) == "12.3%"
    assert (
        pictures.score(report, None)
        == pictures.score(report, float("nan"))
        == "not known"
    )
    report.metric = "r2"
    assert (pictures.score(report, 0.5), metric(report.metric)) == ("0.500", "R²")


def test_many_parties_get_lower_rows() -> None:
    assert pictures.rows_height(64) <= 12
    assert pictures.rows_height(10) == pytest.approx(2.4)


colors = pytest.importorskip("matplotlib.colors")


def test_every_row_is_a_dot_in_its_labels_colour() -> None:
    report = made_up(4)
    assert report.tsne is not None
    figure = tsne(report)
    assert len(figure.axes) == 2
    for axis, party in zip(figure.axes, report.tsne["points"], strict=True):
        dots = axis.collections[0]
        given = np.array(report.tsne["points"][party])
        shown = np.asarray(dots.get_offsets())
        assert len(shown) == 80
        for at, shade in zip(shown, np.asarray(dots.get_facecolor()), strict=True):
            distance = np.abs((given - at) / np.ptp(given, axis=0)).max(1)
            assert distance.min() < 0.03
            near = [
                colors.to_rgb(CLASSES[report.tsne["labels"][one]])
                for one in np.flatnonzero(distance < 0.06)
            ]
            assert tuple(shade[:3]) in near


def test_the_legend_names_the_classes_that_can_be_told_apart() -> None:
    legend = tsne(made_up(3)).legends[0]
    assert [text.get_text() for text in legend.get_texts()] == [
        "class 0",
        "class 1",
        "class 2",
    ]
    assert not tsne(made_up(3, classes=40)).legends
    assert len({_colour(at, 10) for at in range(10)}) == 10
    assert len({_colour(at, 40) for at in range(40)}) == 40


def test_values_get_a_scale_instead() -> None:
    figure = tsne(made_up(3, metric="r2"))
    assert not figure.legends
    assert len(figure.axes) == 3


def test_rows_that_lie_on_each_other_are_spread_by_a_hair() -> None:
    report = made_up(3)
    assert report.tsne is not None
    party = next(iter(report.tsne["points"]))
    report.tsne["points"][party] = [[0.0, 0.0]] * 79 + [[1.0, 1.0]]
    shown = np.asarray(tsne(report).axes[0].collections[0].get_offsets())
    assert len(np.unique(shown, axis=0)) == 80
    assert np.ptp(shown, axis=0).max() < 1.1


def test_every_party_stands_in_the_picture_with_its_score(tmp_path: Path) -> None:
    labels = np.arange(120) % 2
    rng = np.random.default_rng(0)
    features = {
        name: labels[:, None] * shift + rng.normal(size=(120, 2))
        for name, shift in (("a", 3.0), ("b", 0.0))
    }
    found = select_here(features, labels, keep=1, queries=30, scheme="plain")
    made = draw_selection(found, tmp_path)
    assert [path.name for path in made] == ["selection.png", "selection.svg"]
    assert made[0].read_bytes().startswith(b"\x89PNG")
    (tmp_path / "both").mkdir()
    other = draw_selection(
        select_here(features, labels, keep=2, queries=30, scheme="plain"),
        tmp_path / "both",
    )
    assert made[1].read_bytes() != other[1].read_bytes()  # who is kept can be seen
