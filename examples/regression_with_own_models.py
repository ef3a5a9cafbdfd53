"""Regression with SplitNN, a model of your own, and one party whose model differs from
the others'.

Run:  python examples/regression_with_own_models.py
"""

from __future__ import annotations

from sklearn.datasets import load_diabetes
from torch import Tensor, nn

import colonnade


class Residual(nn.Module):
    """Any module will do that maps rows to embeddings; it is told the shape of a row if
    it asks for it."""

    def __init__(self, shape: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(shape[0], width), nn.Tanh())
        self.around = nn.Linear(shape[0], width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inside(x) + self.around(x)
        return out


def main() -> dict[str, float]:
    table = load_diabetes(as_frame=True).frame.rename_axis("patient").reset_index()
    federation = colonnade.Federation.from_frames(
        {
            "practice": table[["patient", "age", "sex", "bmi", "bp", "target"]],
            "laboratory": table[["patient", "s1", "s2", "s3", "s4", "s5", "s6"]],
        },
        id="patient",
        label="target",
        settings={
            "algorithm": {
                "name": "splitnn",
                "optimizer": "adam",
                "learning_rate": 0.01,
                "weight_decay": 0.001,
            },
            "train": {"epochs": 30, "batch_size": 64},
            "parties": {
                "practice": {"model": {"name": f"{__name__}:Residual", "width": 8}},
                "laboratory": {"model": {"name": "mlp", "hidden": [16], "width": 8}},
            },
        },
    )
    outcome = federation.fit()
    print(
        f"R² on test rows: {outcome.summary['metrics']['test']['r2']:.3f}"
        f" ({outcome.stopped})"
    )
    metrics: dict[str, float] = outcome.summary["metrics"]["test"]
    return metrics


if __name__ == "__main__":
    main()
