"""The public names, and what they cost to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import colonnade.datasets as datasets


def test_every_public_name_can_be_had_and_is_listed() -> None:
    names = vars(datasets)["__all__"]
    assert {"load", "read_table", "Preprocessor", "image_strips"} <= {*names}
    assert all(getattr(datasets, name) is not None for name in names)
    assert dir(datasets) == sorted(names)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(
        AttributeError, match=r"module 'colonnade\.datasets' has no attribute 'lode'"
    ):
        datasets.lode  # type: ignore[attr-defined]  # noqa: B018


ROOT = Path(__file__).resolve().parents[2]
BARE = """
import sys
for absent in ("pandas", "sklearn", "PIL", "pyarrow", "rich", "scipy"):
    sys.modules[absent] = None
import colonnade.datasets
assert "torch" not in sys.modules, "importing the package alone must be cheap"
from colonnade.datasets import image_strips, load, train_validation_test
points = load("unbalance", folder=sys.argv[1], offline=True)
digits = load("mnist", folder=sys.argv[1], offline=True)
strips = image_strips(digits.test.array(), 14)
rows = train_validation_test(10, validation=2, test=0.1, seed=1)
print(len(points.train), len(digits.train), len(strips), len(rows.train))
"""


def test_arrays_load_and_split_where_only_numpy_and_torch_are_installed(
    real_data: Path,
) -> None:
    command = [sys.executable, "-c", BARE, str(real_data)]
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": "src"},
        cwd=ROOT,
    )
    assert ran.stdout.split() == ["6500", "60000", "14", "7"], ran.stderr
