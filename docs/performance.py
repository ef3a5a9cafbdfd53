"""The page docs/performance.md and its pictures, from what benchmarks measured: `python
docs/performance.py`.

    colonnade bench cores --json > docs/measured/cores.json      on a machine that has nothing else to do
    python docs/performance.py

Every file in docs/measured is a list of results as `--json` prints it; a result says on
what machine it was measured, so files of several machines may lie beside each other. A
result that was not printed by the benchmark itself says `how` it was measured, and the
page repeats that above it.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MEASURED = HERE / "measured"
PAGE = HERE / "performance.md"
IMAGES = HERE / "images"
OPENING = """\
# How fast it is

This page is written by `python docs/performance.py` from the files in `docs/measured`. They are what
`colonnade bench NAME --json` printed, unless it is said how else they were measured. A target that was missed is listed
as missed. What the numbers mean for large federations: [how far it goes](explanation-scale.md); what a GPU does:
[how to use a GPU](how-to-gpu.md).
"""
MARKS = {None: "", True: "reached", False: "**missed**"}
WIDTH = 640
BAR = 22
GAP = 8
LEFT = 230
BLUE = "#3b6ea5"
GREY = "#8a8f98"


def results(folder: Path = MEASURED) -> list[dict[str, Any]]:
    """All that was measured, file by file."""
    return [
        one
        for path in sorted(folder.glob("*.json"))
        for one in json.loads(path.read_text(encoding="utf-8"))
    ]


def page(found: Iterable[Mapping[str, Any]]) -> tuple[str, dict[str, str]]:
    """The page, and its pictures by file name."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for one in found:
        groups.setdefault((one["benchmark"], one["on"], one.get("how", "")), []).append(
            one
        )
    parts = [OPENING]
    pictures = {}
    for (benchmark, machine, how), lines in groups.items():
        parts += [
            f"\n## `colonnade bench {benchmark}`\n",
            f"\nOn {machine}.{f' {how}' if how else ''}\n",
        ]
        parts.append(
            "\n| what | measured | against | target | |\n|---|---|---|---|---|\n"
        )
        for one in lines:
            cells = [
                _cell(str(one[key]))
                for key in ("what", "measured", "against", "target")
            ]
            parts.append(f"| {' | '.join(cells)} | {MARKS[one['holds']]} |\n")
        for one in lines:
            series = _series(one["numbers"])
            if len(series) > 2:
                stem = f"performance-{_slug(benchmark)}-{_slug(machine)}-"
                name = f"{stem}{sum(known.startswith(stem) for known in pictures)}.svg"
                pictures[name] = bars(str(one["what"]), series)
                parts.append(f"\n![{one['what']}](images/{name})\n")
    return "".join(parts), pictures


def _series(numbers: Mapping[str, float]) -> dict[str, float]:
    """Of a result's numbers those that begin with a count, as in "8 cores" or "16": one
    quantity as something grows."""
    return {name: value for name, value in numbers.items() if re.match(r"\d", name)}


def bars(title: str, values: Mapping[str, float]) -> str:
    """Horizontal bars from zero, with their values."""
    height = 40 + len(values) * (BAR + GAP)
    most = max(values.values())
    drawn = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
            f' width="{WIDTH}" role="img">'
        ),
        f"<title>{html.escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        '<g font-family="sans-serif" font-size="14" fill="#222">',
        f'<text x="10" y="22" font-weight="bold">{html.escape(title)}</text>',
    ]
    for number, (name, value) in enumerate(values.items()):
        y = 36 + number * (BAR + GAP)
        long = (WIDTH - LEFT - 90) * value / most if most else 0.0
        drawn += [
            (
                f'<text x="{LEFT - 10}" y="{y + 16}" text-anchor="end"'
                f' fill="{GREY}">{html.escape(name)}</text>'
            ),
            (
                f'<rect x="{LEFT}" y="{y}" width="{long:.1f}" height="{BAR}"'
                f' fill="{BLUE}"/>'
            ),
            f'<text x="{LEFT + long + 6:.1f}" y="{y + 16}">{value:,.4g}</text>',
        ]
    return "\n".join([*drawn, "</g>", "</svg>", ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")


def main() -> None:
    text, pictures = page(results())
    for old in IMAGES.glob("performance-*.svg"):
        old.unlink()
    for name, picture in pictures.items():
        (IMAGES / name).write_text(picture, encoding="utf-8")
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
