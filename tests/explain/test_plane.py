"""The picture of embeddings: a dot per row and party, in the colour of its label."""

from __future__ import annotations

import numpy as np
import pytest
from tests.explain.test_pictures import made_up

from colonnade.explain.pictures import CLASSES, _colour, tsne

colors = pytest.importorskip("matplotlib.colors")


def test_every_row_is_a_dot_in_its_labels_colour() -> None:
    report = made_up(4)
    assert report.tsne is not None
    figure = tsne(report)
    assert len(figure.axes) == 2
    for axis, party in zip(figure.axes, report.tsne["points"], strict=True):
        dots = axis.collections[0]
        given, shown = np.array(report.tsne["points"][party]), np.asarray(dots.get_offsets())
        assert len(shown) == 80
        for at, shade in zip(shown, np.asarray(dots.get_facecolor()), strict=True):
            distance = np.abs((given - at) / np.ptp(given, axis=0)).max(1)
            assert distance.min() < 0.03
            near = [colors.to_rgb(CLASSES[report.tsne["labels"][one]]) for one in np.flatnonzero(distance < 0.06)]
            assert tuple(shade[:3]) in near


def test_the_legend_names_the_classes_that_can_be_told_apart() -> None:
    legend = tsne(made_up(3)).legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["class 0", "class 1", "class 2"]
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
