"""Label-DP: randomized response against two stages, at the same epsilon.

SplitNN learns from labels that were drawn once: MNIST in two strips, of which the label
owner holds the upper, and bank marketing (bank-full) with the customers' columns at the
bank that also knows the answers and the calls at an agency. Test labels are true ones.
Without MNIST and bank marketing under COLONNADE_DATA, and with `--quick`:
scikit-learn's digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean, pstdev
from typing import Any

from colonnade.benchmark import Result
from colonnade.core.party import one_torch_thread
from colonnade.datasets import load
from colonnade.errors import DataError
from colonnade.federation import Federation, Settings

EPSILONS = (1.0, 2.0)
MECHANISMS = ("randomized_response", "two_stage")
TASKS: dict[str, dict[str, Any]] = {
    "mnist": {"split": "strips", "parts": 2},
    "bank_marketing": {"split": "columns", "parts": 2},
    "digits": {"split": "columns", "parts": 2},
}
EPOCHS = {"mnist": 1, "bank_marketing": 2, "digits": 15}


def run(quick: bool) -> list[Result]:
    names = (
        ["digits"]
        if quick
        else [name for name in ("mnist", "bank_marketing") if _there(name)]
        or ["digits"]
    )
    with one_torch_thread():
        return [result for name in names for result in _task(name, quick)]


def _there(name: str) -> bool:
    try:
        load(name)
    except DataError:
        return False
    return True


def _task(name: str, quick: bool) -> Iterator[Result]:
    seeds = range(1 if quick else 3)
    scores = [_trained(name, seed, {}) for seed in seeds]
    yield Result(f"{name}: true labels", _told(scores), numbers=_means(scores))
    for epsilon in (1.0,) if quick else EPSILONS:
        found = {}
        for kind in MECHANISMS:
            rule = {
                "outbox": {"labels": {"mechanism": {"name": kind, "epsilon": epsilon}}}
            }
            found[kind] = [_trained(name, seed, rule) for seed in seeds]
        one, two = (_means(found[kind]) for kind in MECHANISMS)
        numbers = (
            {"epsilon": epsilon}
            | {f"one {k}": v for k, v in one.items()}
            | {f"two {k}": v for k, v in two.items()}
        )
        told = f"two stages {_told(found['two_stage'])}"
        yield Result(
            f"{name}: ε = {epsilon:g}",
            told,
            f"one {_told(found['randomized_response'])}",
            numbers=numbers,
        )


def _trained(name: str, seed: int, rule: Mapping[str, Any]) -> dict[str, float]:
    """Scores on test rows, and how many training labels stayed what they were."""
    owner = "client_01"
    settings = Settings.from_mapping(
        {
            "algorithm": {"name": "splitnn", "learning_rate": 0.05},
            "data": {"dataset": name, "labels_at": owner, **TASKS[name]},
            "model": {"name": "mlp", "hidden": [64], "width": 16},
            "preprocess": {"numbers": "standard"},
            "train": {"epochs": EPOCHS[name], "batch_size": 256, "early_stop": False},
            "federation": {"seed": seed, "device": "cpu"},
            "parties": {owner: dict(rule)} if rule else {},
        }
    )
    made = Federation.from_settings(settings)
    for _ in made.train():
        pass
    train = made.batches.splits["train"]
    stayed = (
        (made.labels[train] == made.holdings.labelled.labels[train]).double().mean()
    )
    return {**made.evaluate("test"), "stayed": float(stayed)}


def _means(scores: list[dict[str, float]]) -> dict[str, float]:
    kept = [key for key in ("accuracy", "auc", "stayed") if key in scores[0]]
    return {key: fmean(one[key] for one in scores) for key in kept}


def _told(scores: list[dict[str, float]]) -> str:
    means = _means(scores)
    spread = pstdev(one["accuracy"] for one in scores)
    auc = f", AUC {means['auc']:.3f}" if "auc" in means else ""
    return (
        f"accuracy {means['accuracy']:.3f} ± {spread:.3f}{auc}, {means['stayed']:.2f}"
        " of labels stayed"
    )
