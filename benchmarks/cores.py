"""What more cores are worth: a round of training on 1, 2, 4, ... cores of this machine,
with the default settings.

14 parties with a strip of a picture of MNIST's size each, local models 56-120-60,
batches of 1,024 rows; pictures are random, since only the time is of interest. Every
number of cores is measured in a process of its own that may use no others, and the
numbers take turns. Seconds of the wall: of interest only on a machine that has nothing
else to do. Beside these, what other benchmarks measure of Multi-VFL, encrypted vFedCCE
and trees, an alignment and a selection, in the same way.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from colonnade import datasets
from colonnade.benchmark import Result
from colonnade.core.party import cores
from colonnade.datasets.preprocess import Labels
from colonnade.federation.federation import Federation
from colonnade.rows.holdings import Columns, Holdings
from colonnade.settings.federation_file import Settings

PARTIES = 14
BATCH = 1024
ROWS = 8192
ALGORITHMS = (
    "vimadmm",
    "vimadmm_joint",
    "fdml",
    "splitnn",
    "vimsgd",
    "vafl",
    "compressed_vfl",
)
OTHERS = ("multi_vfl", "vfedcce", "trees", "alignment", "selection")
"""Benchmarks beside this one, of which a part is measured (`_other`)."""
SIZES = {
    "multi_vfl": "5 label owners x 128 rows, 4 data owners",
    "vfedcce": "2 parties, encrypted coefficients",
    "trees": "2 parties, 3,000 rows, encrypted",
    "alignment": "of 2 x 10,000 ids",
    "selection": "4 participants, 4,000 rows, 32 queries",
}
TARGETS = {"vimadmm": {2: 1.8, 8: 4.5, 16: 7.0}}
"""At least so many times as fast as one core."""
AT_LEAST = 0.95
"""Never slower than one core; so much is noise."""


def run(quick: bool) -> list[Result]:
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= cores()]
    names = ALGORITHMS[:3] if quick else (*ALGORITHMS, *OTHERS)
    best: dict[str, dict[int, float]] = {
        name: dict.fromkeys(counts, float("inf")) for name in names
    }
    for _ in range(1 if quick else 2):
        for count in counts:
            for name, seconds in _measured(count, names).items():
                best[name][count] = min(best[name][count], seconds)
    return [_result(name, seconds) for name, seconds in best.items()]


def _result(name: str, seconds: dict[int, float]) -> Result:
    times = {count: seconds[1] / value for count, value in seconds.items() if count > 1}
    wanted = {count: TARGETS.get(name, {}).get(count, AT_LEAST) for count in times}
    return Result(
        f"a round of {name}, {SIZES.get(name, f'{PARTIES} parties')}, by the number of"
        " cores",
        ", ".join(f"{count}: {value:.1f} x" for count, value in times.items())
        or "there is one core here",
        f"one core: {seconds[1] * 1e3:.0f} ms",
        ", ".join(f"≥ {value} x on {count}" for count, value in wanted.items()),
        (
            all(times[count] >= value for count, value in wanted.items())
            if times
            else None
        ),
        {f"{count} cores": value for count, value in times.items()}
        | {"seconds on one core": seconds[1]},
    )


def _measured(count: int, names: Sequence[str]) -> dict[str, float]:
    """Seconds of a round of each, in a process with so many cores."""
    alone = {name: str(count) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    command = [sys.executable, __file__, str(count), *names]
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        env=dict(os.environ) | alone,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _holdings() -> Holdings:
    draw = torch.Generator().manual_seed(0)
    pictures = torch.randn(ROWS, 28, 28, generator=draw)
    labels = torch.randint(10, (ROWS,), generator=draw)
    parties = {
        name: Columns(strip)
        for name, strip in datasets.image_strips(pictures, PARTIES).items()
    }
    encoder = Labels("server", "classification", tuple(range(10)))
    ids = np.arange(ROWS).astype(np.str_)
    return Holdings.of_one(
        parties, labels, ids, {"train": torch.arange(ROWS)}, "server", encoder
    )


def _round(name: str) -> float:
    """The fastest of a few rounds, after the first ones, which warm up and decide how
    to compute."""
    tables: dict[str, Any] = {
        "algorithm": {"name": name},
        "preset": "vim-mnist",  # the algorithms as their papers set them
        "model": {"name": "mlp", "hidden": [120], "width": 60},
        "train": {"epochs": 1000, "batch_size": BATCH, "early_stop": False},
        "federation": {"device": "cpu"},
    }
    training = Federation(Settings.from_mapping(tables), _holdings()).train()
    for _ in range(4):
        next(training)
    return _fastest(lambda: next(training))


def _fastest(go: Callable[[], object]) -> float:
    """Seconds, after once to warm up."""
    go()
    best = float("inf")
    until = time.perf_counter() + 1.5
    while best == float("inf") or time.perf_counter() < until:
        start = time.perf_counter()
        go()
        best = min(best, time.perf_counter() - start)
    return best


def _other(name: str) -> float:
    """Seconds of what a benchmark beside this one measures."""
    module = importlib.import_module(name)
    if name == "multi_vfl":
        cpu = torch.device("cpu")
        data = module.Data.random(module.Sizes(), cpu)
        training = module.parties(
            data, *module.networks(data, cpu), cpu, parallel="auto"
        )[0]
        return _fastest(lambda: next(training))
    if name == "vfedcce":
        steps = module._federation("encrypted-coefficients").train()
        return _fastest(lambda: next(steps))
    if name == "trees":
        trees = module._federation(3_000, "elgamal", 1000).train()
        return _fastest(lambda: next(trees))
    if name == "alignment":
        ids = module._ids(10_000)
        return _fastest(lambda: module.align_here(ids))
    return _fastest(module._selecting(module._clusters(4, 4_000)))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.platform == "linux":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])
    torch.set_num_threads(int(sys.argv[1]))
    print(
        json.dumps(
            {
                name: _other(name) if name in OTHERS else _round(name)
                for name in sys.argv[2:]
            }
        )
    )
