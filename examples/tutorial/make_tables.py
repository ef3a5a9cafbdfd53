"""Write the tables of two hospitals and a laboratory, from scikit-learn's breast cancer
data (569 women).

    python examples/tutorial/make_tables.py study
    cd study

The data set is public, and the three organisations are imaginary: its columns are dealt
to them. Hospital A made the diagnoses and measured the cell nuclei (mean of each
measure), hospital B how much they vary (standard error), the laboratory their extremes
(worst). Each knows most of the patients, and keeps them in an order of its own. `new/`
has twelve further patients, who have no diagnosis yet.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

KNOWN = 0.95
NEW = 12


def main(folder: str | Path = "study") -> Path:
    """Write the tables into a folder; gives its path."""
    data = load_breast_cancer(as_frame=True)
    measured: pd.DataFrame = data["data"]
    measured.columns = [str(name).replace(" ", "_") for name in measured.columns]
    random = np.random.default_rng(0)
    measured.insert(
        0,
        "patient",
        [
            f"P{number:05d}"
            for number in random.choice(100_000, len(measured), replace=False)
        ],
    )
    measured["diagnosis"] = data["target"].map({0: "malignant", 1: "benign"})
    names = [str(name) for name in measured.columns]
    columns = {
        "hospital_a": [name for name in names if name.startswith("mean_")],
        "hospital_b": [name for name in names if name.endswith("_error")],
        "lab": [name for name in names if name.startswith("worst_")],
    }
    everybody = random.permutation(len(measured))
    new = everybody[:NEW]
    old = everybody[NEW:]
    out = Path(folder)
    (out / "new").mkdir(parents=True, exist_ok=True)
    for name, held in columns.items():
        rows = random.permutation(old)[: round(KNOWN * len(old))]
        label = ["diagnosis"] if name == "hospital_a" else []
        measured.iloc[rows][["patient", *held, *label]].to_csv(
            out / f"{name}.csv", index=False
        )
        measured.iloc[random.permutation(new)][["patient", *held]].to_csv(
            out / "new" / f"{name}.csv", index=False
        )
    return out


if __name__ == "__main__":
    made = main(sys.argv[1] if len(sys.argv) > 1 else "study")
    print(f"Three tables are in {made}, and twelve new patients in {made / 'new'}.")
