"""The README's tables, from what a run measured, and the same into expected.json:

python reproductions/vf_ps/tables.py OUT/measured.json [--keep "2 CPU cores (x86-64),
torch 2.13.0"]
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

SETS = (
    "Synthesis",
    "Simulated G2-4",
    "Simulated G2-128",
    "Bank",
    "Unbalance",
    "Letter",
    "Birch1",
    "Birch2",
)
EXPECTED = Path(__file__).with_name("expected.json")
Found = dict[str, list[float]]


def table(
    heads: Sequence[str], rows: Sequence[tuple[str, Callable[[str], str]]]
) -> str:
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    return (
        "\n".join(
            [
                *lines,
                *(
                    f"| {title} | {' | '.join(map(cell, heads))} |"
                    for title, cell in rows
                ),
            ]
        )
        + "\n"
    )


def mean(found: Found, what: str, form: Callable[[float], str]) -> str:
    """With the deviation between seeds where there are several."""
    values = found.get(what, [])
    if len(values) < 2:
        return form(values[0]) if values else "–"
    return f"{form(statistics.fmean(values))} ± {statistics.stdev(values):.3f}"


def share(value: float) -> str:
    return f"{value:.3f}"


def seconds(value: float) -> str:
    if value >= 2 * 86_400:
        return f"{value / 86_400:,.0f} days"
    return f"{value / 3600:,.0f} h" if value >= 7200 else short(value)


def short(value: float) -> str:
    """Two digits that count."""
    digits = max(0, 1 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:,.{digits}f}"


def tables(found: Found) -> str:
    def of(what: str, form: Callable[[float], str]) -> Callable[[str], str]:
        return lambda name: mean(found, f"{name}, {what}", form)

    def accuracy(model: str, method: str, part: str) -> Callable[[str], str]:
        return of(f"{model}, {method}, {part}", share)

    def printed(method: str, part: str) -> Callable[[str], str]:
        figures = json.loads(EXPECTED.read_text(encoding="utf-8"))["vf-ps"]["figures"]
        return lambda name: str(
            figures.get(f"{name}, kNN, {method}, {part}", {}).get("paper", "–")
        )

    second = [
        row
        for part in ("50 %", "25 %")
        for method in ("VF-PS", "brute force")
        for row in (
            (f"{method}, {part}", accuracy("kNN", method, part)),
            (f"*paper: {method}, {part}*", printed(method, part)),
        )
    ]
    models = [
        (f"{model}, {method}", accuracy(model, method, "50 %"))
        for model in ("kNN", "LR", "GBT")
        for method in ("ALL", "RANDOM", "LASSO", "VF-PS")
    ]
    took = {
        "selection (VF-PS)": "selection",
        "LASSO, centralized, in plain text": "LASSO, centralized",
        "brute force by kNN, in plain text": "brute force, in plain text",
        "kNN, plain text": "training kNN in plain text",
        "LR, plain text": "training LR in plain text",
        "kNN, encrypted, extrapolated": "training kNN encrypted, extrapolated",
        "LR, encrypted, extrapolated": "training LR encrypted, extrapolated",
    }
    ablation = "selection by 32 queries"
    ways = ("with both", "without Fagin", "without batching", "without both")
    parts = [
        table(SETS, second),
        table(SETS, models),
        table(
            SETS,
            [
                *((title, of(what, seconds)) for title, what in took.items()),
                *(
                    (
                        f"encrypted {m} / selection",
                        of(f"encrypted {m} takes so many selections", short),
                    )
                    for m in ("kNN", "LR")
                ),
            ],
        ),
        table(
            SETS,
            [
                *((way, of(f"{ablation}, {way}", short)) for way in ways),
                *(
                    (
                        f"{w}: times faster",
                        of(f"{w} makes it so many times faster", short),
                    )
                    for w in ("Fagin", "batching")
                ),
            ],
        ),
    ]
    return "\n".join(parts)


def scale(found: Found) -> str:
    rows = ("1,000 rows", "10,000 rows", "100,000 rows")

    def cell(participants: int) -> Callable[[str], str]:
        def told(size: str) -> str:
            this = f"{participants} participants, {size}"
            told = [
                mean(found, f"{this}, {what}", short)
                for what in ("processor seconds", "MB sent by all")
            ]
            candidates = mean(
                found,
                f"{this}, share of rows that are candidates",
                lambda value: f"{value:.0%}",
            )
            return f"{told[0]} s, {told[1]} MB, {candidates}"

        return told

    return table(
        rows, [(f"{count} participants", cell(count)) for count in (4, 16, 64)]
    )


def main() -> None:
    path, *rest = sys.argv[1:]
    told = json.loads(Path(path).read_text(encoding="utf-8"))
    found: Found = {
        one["what"]: [float(f"{value:.4g}") for value in one["by_seed"]] for one in told
    }
    is_scale = any("participants, " in what for what in found)
    print(scale(found) if is_scale else tables(found))
    if rest[:1] == ["--keep"]:
        expected = json.loads(EXPECTED.read_text(encoding="utf-8"))
        expected["vf-ps-scale" if is_scale else "vf-ps"]["measured"] = [
            {"hardware": rest[1], "values": found}
        ]
        EXPECTED.write_text(json.dumps(expected, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
