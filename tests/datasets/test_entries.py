"""The list against the real data: sizes, classes, checksums."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from colonnade.datasets.catalogue import load
from colonnade.datasets.entries import CATALOGUE

# How many training rows the publishers say a class has.
COUNTS = {
    "breast_cancer": ("benign", 357),
    "digits": ("0", 178),
    "mnist": ("1", 6742),
    "fashion_mnist": ("Bag", 6000),
    "cifar10": ("frog", 5000),
    "south_german_credit": ("good", 700),
    "bank_marketing": ("yes", 5289),
    "modelnet10": ("chair", 889),
    "unbalance": ("1", 2000),
    "g2mg_4_70": ("1", 1024),
    "g2mg_128_10": ("2", 1024),
}


@pytest.mark.parametrize(
    "name",
    [
        # its pictures take long to decode
        pytest.param(name, marks=[pytest.mark.long] if name == "cifar10" else [])
        for name, entry in CATALOGUE.items()
        if not entry.supply
    ],
)
def test_a_data_set_is_what_its_entry_says(
    name: str, request: pytest.FixtureRequest
) -> None:
    entry = CATALOGUE[name]
    needs = "decoded" if name == "cifar10" else "real_data"
    folder = None if entry.built_in is not None else request.getfixturevalue(needs)
    data = load(name, folder=folder, offline=True)
    if name in COUNTS:
        label, count = COUNTS[name]
        assert int((data.train.y == data.classes.index(label)).sum()) == count
    assert (data.name, data.kind, data.classes) == (name, entry.kind, entry.classes)
    assert len(data.train) == entry.rows
    assert (0 if data.test is None else len(data.test)) == entry.test_rows
    for rows in (data.train, data.test):
        if rows is None:
            continue
        x = rows.x
        width = len(x) if isinstance(x, dict) else int(np.prod(x.shape[1:]))
        assert width == entry.columns
        assert rows.y.dtype == np.int64
        assert np.unique(rows.y).tolist() == list(range(len(entry.classes)))


def test_letters_keep_their_names_and_columns(real_data: Path) -> None:
    data = load("letter", folder=real_data, offline=True)
    assert "".join(data.classes[at] for at in data.train.y[:4]) == "TIDN"
    assert data.columns[:3] == ("x-box", "y-box", "width")
    assert data.train.array()[0, :4].tolist() == [2, 8, 3, 5]


@pytest.mark.long
def test_cifar_channel_means_are_the_known_ones(decoded: Path) -> None:
    data = load("cifar10", folder=decoded, offline=True)
    means = data.train.array()[:5000].mean(axis=(0, 1, 2)) / 255
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=0.01)


@pytest.mark.parametrize(
    ("name", "deviation"), [("g2mg_4_70", 99.0), ("g2mg_128_10", 80.0)]
)
def test_two_gaussians_have_the_centres_and_the_spread_of_their_description(
    real_data: Path, name: str, deviation: float
) -> None:
    data = load(name, folder=real_data, offline=True)
    halves = [data.train.array()[data.train.y == at] for at in (0, 1)]
    for centre, points in zip((500, 600), halves, strict=True):
        assert points.mean() == pytest.approx(centre, abs=5)
        assert points.std(axis=0).mean() == pytest.approx(deviation, rel=0.03)


def test_what_users_supply_has_the_sizes_of_the_vim_paper() -> None:
    sizes = {
        name: (entry.rows, entry.test_rows, len(entry.classes))
        for name, entry in CATALOGUE.items()
        if entry.supply
    }
    assert sizes == {
        "modelnet40": (8877 + 966, 2468, 40),
        "nus_wide": (54000 + 6000, 10000, 5),
    }
    assert CATALOGUE["nus_wide"].columns == 634 + 1000


def test_every_entry_can_be_shown_checked_and_got() -> None:
    for name, entry in CATALOGUE.items():
        assert all([entry.description, entry.licence, entry.home.startswith("http")]), (
            name
        )
        if entry.supply:
            assert not entry.checksum, name
            assert not entry.downloads, name
            assert not any(layout.exact for layout in entry.layouts), name
            assert [layout.slow for layout in entry.layouts] == [False, True], name
        elif entry.built_in is None:
            assert re.fullmatch("[0-9a-f]{64}", entry.checksum), name
            assert entry.downloads, name
            got = {file.name for file in entry.downloads}
            readable = [
                {file, f"{file}.gz"}
                for layout in entry.layouts
                for file in layout.files
            ]
            assert all(any(file in names for names in readable) for file in got), name
