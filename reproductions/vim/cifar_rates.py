"""Which rate each method has on CIFAR-10: the best of a few on validation rows, seed 0,
as the paper searches them.

The paper's grid (Appendix B.3: 0.003 to 0.1) is too low here for the gradient methods,
whose best rate it would cut off; theirs goes further. ADMM's methods are looked at
after one epoch, the others after six. A run is a cell.
"""

from __future__ import annotations

import math

from colonnade import reproduction
from colonnade.reproduction import Plan, Study
from colonnade.reproduction.cells import script_of

RATES = {
    "VIMADMM": (0.01, 0.03, 0.05),
    "VIMADMM-J": (0.01, 0.03, 0.05),
    "VIMSGD": (0.01, 0.03, 0.05, 0.1),
    "VAFL": (0.05, 0.1, 0.2, 0.4),
    "FDML": (0.03, 0.05, 0.1, 0.2),
}
QUICK = {"FDML": (0.01, 0.1)}
UNTIL = {"VIMADMM": 1, "VIMADMM-J": 1}


def table(plan: Plan) -> dict[str, tuple[str, float]]:
    wanted = QUICK if plan.short else RATES
    return {
        f"{method}, rate {rate:g}": (method, rate)
        for method, rates in wanted.items()
        for rate in rates
    }


def cells(plan: Plan) -> list[str]:
    return list(table(plan))


def run(study: Study, cell: str) -> None:
    method, rate = table(study.plan)[cell]
    dp, grid = (
        script_of(reproduction.plan(name)) for name in ("vim-dp", "vim-dp-grid")
    )
    told = dp.at_rate(study, reproduction.plan("vim-cifar").runs[method], rate)
    made = study.settings({"algorithm": told, "until": UNTIL.get(method, math.inf)})
    grid.follow(study, cell, study.federation(made, study.plan.seeds[0]))


def finish(study: Study) -> None:
    """Of each method the rate that validation rows choose, at the last epoch that all
    its rates have come to."""
    found = {what: one.mean for what, one in study.measured.items()}
    for method in dict.fromkeys(method for method, _ in table(study.plan).values()):
        titles = {
            title: rate
            for title, (whose, rate) in table(study.plan).items()
            if whose == method
        }
        for epoch in reversed(study.plan.epochs):
            scores = {
                rate: found.get(f"{title}, epoch {epoch}, validation")
                for title, rate in titles.items()
            }
            known = {
                rate: score
                for rate, score in scores.items()
                if score is not None and math.isfinite(score)
            }
            if known and None not in scores.values():
                study.record(
                    f"{method}: rate by validation rows",
                    max(known, key=lambda rate: known[rate]),
                    "",
                )
                break
