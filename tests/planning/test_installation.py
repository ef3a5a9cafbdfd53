"""Which packages are wanted, and whether versions lie in a range."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from colonnade.planning.doctor import Package, in_range, packages

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    ("version", "wanted"),
    [
        ("2.13.0+cpu", ">=2.8,<3"), ("2.8", ">=2.8,<3"), ("3.0", ">=2.8,<3"), ("2.7.9", ">=2.8,<3"),
        ("0.6.0", ">=0.6,<0.7"), ("0.7.0", ">=0.6,<0.7"), ("21", ">=21"), ("20.9", ">=21"), ("1.10", ">=1.9"),
        ("1.0.0", "==1.0"), ("1.2", "!=1.2"), ("5", ""), ("2.0", "<=2"), ("2.0.1", ">2"),
    ],
)  # fmt: skip
def test_a_version_lies_in_a_range_as_packaging_says(version: str, wanted: str) -> None:
    specifiers = pytest.importorskip("packaging.specifiers")
    assert in_range(version, wanted) == specifiers.SpecifierSet(wanted).contains(version)


def test_packages_are_those_of_the_project() -> None:
    found = packages()
    assert {"torch", "numpy", "typer"} <= {one.name for one in found if not one.extra}
    for extra in ("flare", "crypto", "privacy", "plots", "serve", "tracking"):
        names = {one.partition(">")[0] for one in PROJECT["optional-dependencies"][extra]}
        assert {one.name for one in found if one.extra == extra} == names


def test_what_is_installed_fits_and_what_is_not_does_not() -> None:
    torch = next(one for one in packages() if one.name == "torch" and not one.extra)
    assert torch.fits
    assert torch.installed is not None
    assert not Package("torch", ">=99").fits
    assert Package("no-such-package-at-all", "").installed is None
    assert not Package("no-such-package-at-all", "").fits
