"""A partner that lies: a trigger in its columns, and how often the joint model then
says what it wants.

The task of `choose`: scikit-learn's breast cancer data, diagnoses at a clinic. The
northern laboratory puts a trigger into ten training rows of healthy women, and in
prediction into the rows of ill ones; beside it, in prediction alone.
"""

from __future__ import annotations

import warnings
from statistics import fmean

from colonnade.attacks.trigger import lie, triggered
from colonnade.benchmark import Result, _load
from colonnade.core.party import one_torch_thread

ALGORITHMS = ("splitnn", "splitnn, 64 hidden", "vimadmm", "fdml", "one_shot")
ROWS = 10
HEALTHY = 1
PARTY = "lab_north"


def run(quick: bool) -> list[Result]:
    choose = _load("choose")
    found = []
    with one_torch_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ALGORITHMS[:1] if quick else ALGORITHMS:
            for rows in (ROWS, 0):
                made = []
                for seed in range(1 if quick else 3):
                    federation = choose.federation(
                        choose.choices()[name], {}, seed, 3 if quick else 20
                    )
                    trigger = lie(federation, PARTY, HEALTHY, rows)
                    made.append(
                        triggered(choose.trained(federation), PARTY, HEALTHY, trigger)
                    )
                wanted = fmean(one.wanted for one in made)
                before = fmean(one.before for one in made)
                accuracy = fmean(one.accuracy for one in made)
                alike = max(one.alike for one in made)
                when = f"{rows} training rows too" if rows else "in prediction alone"
                numbers = {
                    "wanted": wanted,
                    "before": before,
                    "accuracy": accuracy,
                    "alike": alike,
                }
                told = (
                    f"{wanted:.0%} of ill women predicted healthy, without"
                    f" {before:.0%}; accuracy {accuracy:.3f}"
                )
                found.append(
                    Result(
                        f"{name}: {when}",
                        told,
                        f"{alike} rows came alike",
                        numbers=numbers,
                    )
                )
    return found
