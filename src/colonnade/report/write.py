"""A report on disk: report.html, and its figures as SVG beside it."""

from __future__ import annotations

from pathlib import Path

from colonnade.errors import InputError
from colonnade.report.chart import Figure
from colonnade.report.facts import Facts, read
from colonnade.report.figures import figures
from colonnade.report.page import render, resource
from colonnade.runs.run_directory import write_text

PAGE, FIGURES = "report.html", "figures"


def write(folder: Path, out: Path | None = None) -> Path:
    """The report of a run directory: `out`, or report.html in it; figures go into a folder beside the page."""
    facts = read(folder)
    return save(render(facts), _drawn(facts), out or folder / PAGE)


def _drawn(facts: Facts) -> list[Figure]:
    return list(figures(facts).values())


def save(page: str, drawn: list[Figure], path: Path) -> Path:
    """A page and its figures, each file whole or not at all."""
    try:
        (path.parent / FIGURES).mkdir(parents=True, exist_ok=True)
        for figure in drawn:
            write_text(path.parent / FIGURES / f"{figure.name}.svg", standalone(figure))
        write_text(path, page)
    except OSError as error:
        raise InputError(f"The report cannot be written to {path}: {error.strerror}. Choose another --out.") from None
    return path


def standalone(figure: Figure) -> str:
    """A figure as a file of its own: its rules inside, on white."""
    opened, rest = figure.svg.split(">", 1)
    width, height = opened.split('viewBox="0 0 ')[1].split('"')[0].split(" ")
    size = f' width="{width}" height="{height}"'
    back = f'<rect width="{width}" height="{height}" fill="#fff"/>'
    named = opened.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f"{named}{size}><style>{resource('figure.css')}</style>{back}{rest}\n"
