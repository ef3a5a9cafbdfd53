"""From data frames with different patients to a joint model, in Python: align, select
partners, train, predict.

Four organisations, of which one sells columns that say nothing about the diagnosis.
Public data (scikit-learn's breast cancer measurements), imaginary organisations.

Run:  python examples/align_select_train.py
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

import colonnade
from colonnade.alignment import Ids, align_here
from colonnade.selection import select_here


def tables() -> dict[str, pd.DataFrame]:
    """Each knows 95 % of the patients, in an order of its own."""
    random = np.random.default_rng(0)
    table = load_breast_cancer(as_frame=True).frame.rename_axis("patient").reset_index()
    table["patient"] = [f"P{number:04d}" for number in table["patient"]]
    table["diagnosis"] = table.pop("target").map({0: "malignant", 1: "benign"})
    for number in range(6):
        table[f"visits_{number}"] = random.normal(size=len(table))
    names = list(table.columns)
    held = {
        "clinic": [*names[1:11], "diagnosis"],
        "lab_north": names[11:21],
        "lab_south": names[21:31],
        "broker": [name for name in names if name.startswith("visits_")],
    }
    return {
        name: table.sample(frac=0.95, random_state=random)[["patient", *columns]]
        for name, columns in held.items()
    }


def main() -> dict[str, float]:
    frames = tables()

    aligned = align_here(
        {
            name: Ids.of(name, [frame["patient"].tolist()])
            for name, frame in frames.items()
        }
    )
    print(f"{aligned.found.common} patients are known to all of {', '.join(frames)}")
    frames = {
        name: frame.iloc[aligned.rows[name]].reset_index(drop=True)
        for name, frame in frames.items()
    }

    columns = {
        name: frame.drop(columns=["patient", "diagnosis"], errors="ignore")
        for name, frame in frames.items()
    }
    found = select_here(
        {name: held.to_numpy() for name, held in columns.items()},
        (frames["clinic"]["diagnosis"] == "malignant").to_numpy().astype(np.int64),
        keep=3,
        leader="clinic",
    )
    print(
        f"kept: {', '.join(found.chosen)}; left out:"
        f" {', '.join(set(found.ranking) - set(found.chosen))}"
    )

    federation = colonnade.Federation.from_frames(
        {name: frames[name] for name in frames if name in found.chosen},
        id="patient",
        label="diagnosis",
        settings={
            "algorithm": {"name": "vimadmm", "rho": 1.0, "local_steps": 10},
            "model": {"name": "mlp", "hidden": [16], "width": 8},
            "train": {"epochs": 8, "batch_size": 64},
        },
    )
    federation.fit()
    metrics = federation.evaluate("test")
    print(f"accuracy on test patients: {metrics['accuracy']:.3f}")
    print(
        federation.predict(list(federation.holdings.ids[:3]))
        .to_frame()
        .to_string(index=False)
    )
    return {
        "common": float(aligned.found.common),
        "kept the broker": float("broker" in found.chosen),
        **metrics,
    }


if __name__ == "__main__":
    main()
