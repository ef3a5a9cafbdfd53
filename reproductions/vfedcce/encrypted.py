"""vFedCCE's Table 1 under encryption, whole, and what crosses beside sending the
columns.

Every seed is trained twice from the same weights in the same batches: in plain text,
which shows client 1's columns to client 2, and with encrypted coefficients under the
default scheme. What differs are the scores at the end, the largest weight and
probability, processor seconds, and bytes. Whoever would rather send the columns sends
them once: that many bytes are counted for the rows that train, as float32.

A seed is a cell.
"""

from __future__ import annotations

import time
import warnings

from colonnade import reproduction
from colonnade.federation import Federation
from colonnade.reproduction import Plan, Study
from colonnade.reproduction.cells import script_of

MODES = {"plain text": "plaintext", "encrypted": "encrypted-coefficients"}


def cells(plan: Plan) -> list[str]:
    return [f"seed {seed}" for seed in plan.seeds]


def run(study: Study, cell: str) -> None:
    seed = int(cell.removeprefix("seed "))
    epochs = max(study.plan.epochs)
    credit = script_of(reproduction.plan("vfedcce"))
    models: dict[str, Federation] = {}
    with warnings.catch_warnings():
        # public data, and this process holds all of it
        warnings.filterwarnings("ignore", "vfedcce in plaintext")
        for title, mode in MODES.items():
            federation = study.federation(
                credit.in_mode(study.settings(), mode, epochs), seed
            )
            start = time.process_time()
            for step in federation.train():
                if study.watch is not None:
                    study.watch(f"{title}, seed {seed}", step)
            study.record(
                f"{title}, processor seconds", time.process_time() - start, "s"
            )
            study.record(f"{title}, sent in training", sent(federation) / 1e6, "MB")
            found = federation.evaluate("test")
            for score, name in {"accuracy": "accuracy", **credit.SCORES}.items():
                study.record(f"{title}, {name}, epoch {epochs}", found[score])
            models[title] = federation
    plain, hidden = models.values()
    columns = plain.holdings.columns["client_1"].features
    alone = 4 * len(plain.holdings.splits["train"]) * columns[0].numel()
    study.record("client 1's columns themselves", alone / 1e6, "MB")
    study.record("encrypted / the columns themselves", sent(hidden) / alone, "times")
    for what, of in (("weight", credit.weights), ("probability", credit.probabilities)):
        most = float((of(hidden) - of(plain)).abs().max())
        study.record(f"largest difference of a {what}, epoch {epochs}", most, "")


def sent(federation: Federation) -> float:
    """Bytes between the two clients in training, keys and all, both ways; what is sent
    to score test rows is not."""
    ledger = federation.ledgers[federation.holdings.label_owner]
    return float(
        sum(
            one.bytes
            for one in ledger.entries
            if not (one.batch or "").startswith("test")
        )
    )
