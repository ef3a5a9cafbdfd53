"""Write the tables of two hospitals and two testing centres, from scikit-learn's breast
cancer data (569 women).

    python examples/two_hospitals_two_centres/make_tables.py hospitals
    colonnade run hospitals/federation.toml --out hospitals/run

The hospitals know diagnoses, each of its own patients; 57 women were at both. The
centres measured the tumours and know no diagnosis: one the shape of the cell nuclei,
one the rest, such as texture. Some patients went to one centre only, and each centre
has records of people that neither hospital knows; referred.csv has the ids of some of
them.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

SHAPE = ("radius", "perimeter", "area", "concavity", "concave points")


def main(folder: str | Path = "hospitals") -> Path:
    """Write the tables and the federation file into a folder; gives the path of the
    file."""
    data = load_breast_cancer(as_frame=True)
    measured: pd.DataFrame = data["data"]
    random = np.random.default_rng(0)
    people = pd.Series(
        [
            f"W{number:05d}"
            for number in random.choice(100_000, len(measured), replace=False)
        ]
    )
    diagnosis = data["target"].map({0: "malignant", 1: "benign"})
    shape = [name for name in measured.columns if any(word in name for word in SHAPE)]
    texture = [name for name in measured.columns if name not in shape]

    place = random.permutation(len(people))
    north = place[:290]
    south = place[233:513]  # 57 at both; 56 people are patients of neither
    first, second = (random.permutation(place)[:556] for _ in range(2))
    diagnosed = pd.DataFrame({"person": people, "diagnosis": diagnosis})
    measured.insert(0, "person", people)
    tables = {
        "north": diagnosed.iloc[north],
        "south": diagnosed.iloc[south],
        "shape_centre": measured[["person", *shape]].iloc[first],
        "texture_centre": measured[["person", *texture]].iloc[second],
    }
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    new = np.setdiff1d(np.intersect1d(first, second), np.union1d(north, south))
    tables["referred"] = measured[["person"]].iloc[new[:10]]
    for name, table in tables.items():
        table.to_csv(out / f"{name}.csv", index=False)
    here = Path(__file__).with_name("federation.toml")
    there = out / "federation.toml"
    # tables may be made beside the script
    if not there.exists() or not here.samefile(there):
        shutil.copyfile(here, there)
    return there


if __name__ == "__main__":
    print(
        "Now run: colonnade run"
        f" {main(sys.argv[1] if len(sys.argv) > 1 else 'hospitals')}"
    )
