"""What a tracker is told: names and numbers. Never ids, rows, labels, columns, their names, or where a table lies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

SECTIONS = ("algorithm", "data", "model", "label_model", "train", "federation")
OWNERS = ("parties", "label_owners", "data_owners")
OF_AN_OWNER = ("scale", "model", "outbox", "budget", "rows", "classes")
OF_DATA = ("validation", "test", "task", "align", "dataset", "split", "parts", "patch", "labels_at")
COUNTED = "who knows the batches"
"""Against whom a budget is enforced; `epsilon` is told against them alone, and the privacy report has the others."""
LONGEST = 500
"""Characters of a setting that MLflow's servers of any version take."""


def parameters_of(tables: Mapping[str, Any]) -> dict[str, str]:
    """Settings, flattened: train.epochs, parties.lab.budget.epsilon. Only what is listed above is told."""
    found: dict[str, Any] = {}
    for section in SECTIONS:
        for key, value in tables.get(section, {}).items():
            if section != "data" or key in OF_DATA:
                found |= _flat(f"{section}.{key}", value)
    for section in OWNERS:
        held = tables.get(section, {})
        named = held.items() if isinstance(held, Mapping) else ((one["name"], one) for one in held)
        for name, owner in named:
            for key in OF_AN_OWNER:
                if key in owner:
                    found |= _flat(f"{section}.{name}.{key}", owner[key])
    return {
        key: text if len(text := str(value)) <= LONGEST else text[: LONGEST - 1] + "…" for key, value in found.items()
    }


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """One epoch: loss, validation/accuracy, bytes, seconds, epsilon/lab, missing/lab, left_out/north."""
    found: dict[str, Any] = {key: record[key] for key in ("epoch", "loss", "seconds", "bytes") if key in record}
    for group in ("validation", "losses", "epsilon"):
        found |= {f"{group}/{name}": value for name, value in record.get(group, {}).items()}
    for owner, scores in record.get("validation_each", {}).items():
        found |= {f"validation_each/{owner}/{name}": value for name, value in scores.items()}
    found |= {f"missing/{party}": sum(times.values()) for party, times in record.get("missing", {}).items()}
    found |= {f"left_out/{owner}": 1 for owner in record.get("left_out", {})}
    return _finite(found)


def totals_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """The end: scores of every split, bytes and epsilon of every party, who was missing."""
    found: dict[str, Any] = {"rounds": summary["rounds"], "seconds_in_all": summary["seconds"]}
    for split, scores in summary["metrics"].items():
        found |= {f"{split}/{name}": value for name, value in scores.items()}
    for party, traffic in summary["bytes"].items():
        found |= {f"bytes_{way}/{party}": count for way, count in traffic.items()}
    for party, times in summary.get("missing", {}).items():
        found[f"missing_in_all/{party}"] = sum(times.values())
    for one in summary["privacy"]:
        labels = one["protects"] == "labels"
        counted = [s["epsilon"] for s in one["statements"] if labels or s["adversary"].startswith(COUNTED)]
        if counted:  # the first is in the relation of the party's budget
            found[f"{'epsilon_labels' if labels else 'epsilon'}/{one['party']}"] = counted[0]
    return _finite(found)


def _flat(key: str, value: Any) -> dict[str, Any]:
    return dict(_leaves(key, value))


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for inner, one in value.items():
            yield from _leaves(f"{key}.{inner}", one)
    else:
        yield key, value


def _finite(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Without a score that is no number, as AUC without both classes, and an epsilon that promises nothing."""
    return {key: float(value) for key, value in numbers.items() if value is not None and math.isfinite(value)}
