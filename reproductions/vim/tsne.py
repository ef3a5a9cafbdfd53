"""VIM's Figures 4 and 6: what the most and the least important party's embeddings look
like in the plane.

VIMADMM is trained on Letter (in NUS-WIDE's place, Figure 4), MNIST, CIFAR-10 and
ModelNet10 (in ModelNet40's, Figure 6); t-SNE lays out 1,000 test rows of the parties
with the largest and the smallest head norm. How well a party's embeddings tell classes
apart is also a number: the share of test rows whose class a linear model on them alone
names, fitted to 2,000 training rows. A data set is a cell.
"""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

from colonnade.explain import explain, gather, head_norms
from colonnade.explain.pictures import tsne
from colonnade.federation import Federation, Settings
from colonnade.reproduction import Plan, Study

DATA = {"letter": 10, "modelnet10": 10, "mnist": 2, "cifar": 2}  # and epochs
ROWS = 1000
FITTED = 2000


def cells(plan: Plan) -> list[str]:
    return ["letter"] if plan.short else list(DATA)


def run(study: Study, cell: str) -> None:
    settings = Settings.from_toml(study.plan.folder / "configs" / f"{cell}.toml")
    epochs = max(study.plan.epochs) if study.plan.short else DATA[cell]
    settings = dataclasses.replace(
        settings, train=settings.train.changed(epochs=epochs)
    )
    federation = study.federation(settings, study.plan.seeds[0])
    for step in federation.train():
        if study.watch is not None:
            study.watch(cell, step)
    norms = head_norms(federation)
    most = max(norms, key=lambda party: norms[party])
    least = min(norms, key=lambda party: norms[party])
    for which, party in (("most", most), ("least", least)):
        study.record(
            f"{cell}: head norm of the {which} important, {party}", norms[party], ""
        )
        study.record(
            f"{cell}: classes told by the {which} important alone",
            told(federation, party),
        )
    picture = tsne(
        explain(federation, by="head_norm", rows=ROWS, tsne_rows=ROWS, repeats=1)
    )
    drawn = io.BytesIO()
    picture.savefig(drawn, format="png", dpi=100)
    study.arrays[cell] = np.frombuffer(drawn.getvalue(), dtype=np.uint8)


def told(federation: Federation, party: str) -> float:
    """By a linear model on one party's embeddings."""
    fit, test = (
        gather(federation, split, rows=rows)
        for split, rows in (("train", FITTED), ("test", ROWS))
    )
    x, z = (one.parts[party].detach().cpu().numpy() for one in (fit, test))
    model = LogisticRegression(max_iter=300).fit(x, fit.labels.cpu().numpy())
    return float(model.score(z, test.labels.cpu().numpy()))


def draw(study: Study, out: Path) -> list[Path]:
    """The pictures as each cell drew them."""
    paths = []
    out.mkdir(parents=True, exist_ok=True)
    for cell, drawn in study.arrays.items():
        path = out / f"vim-tsne-{cell}.png"
        path.write_bytes(drawn.tobytes())
        paths.append(path)
    return paths
