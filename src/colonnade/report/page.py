"""The page of one run: a single HTML document that needs nothing outside itself.

On disk its figures lie beside it as SVG.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from colonnade.core.files import write_text, written_out
from colonnade.report.chart import Figure
from colonnade.report.course import (
    about_section,
    missing_section,
    settings_section,
    timing_section,
)
from colonnade.report.crossing import crossing_section, parties_section
from colonnade.report.facts import Facts, read
from colonnade.report.figures import figures
from colonnade.report.html import Content, Html, h
from colonnade.report.partners import (
    alignment_section,
    audit_section,
    importance_section,
    selection_section,
)
from colonnade.report.quality import quality_section
from colonnade.report.result import opening, result_section
from colonnade.report.signing import signing_section
from colonnade.report.spending import spending
from colonnade.report.trees import trees_section

Section = tuple[str, str, list[Content] | None]
"""A section's id, its title, and its content; None where there is nothing to say."""


def resource(name: str) -> str:
    """A file of this package."""
    return (files("colonnade.report") / name).read_text(encoding="utf-8")


def render(facts: Facts) -> str:
    return document(f"{facts.name}: Colonnade run report", main_of(facts))


def document(
    title: str, main: Html, *, live: Html | None = None, version: int | None = None
) -> str:
    """A page around the content of <main>. With `live`, which stands above it, it asks
    its server every second for what is newer than this version."""
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
        " img-src data: blob:"
    )
    head = [
        h("meta", charset="utf-8"),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h(
            "meta",
            http_equiv="Content-Security-Policy",
            content=policy + ("; connect-src 'self'" if live else ""),
        ),
        h("meta", name="color-scheme", content="light dark"),
        h("title", title),
        h("style", Html(resource("figure.css")), id="figure-rules"),
        *(
            h("style", Html(resource(name)))
            for name in ("page.css", *(["live.css"] if live else []))
        ),
    ]
    scripts = [
        h("script", Html(resource(name)))
        for name in (*(["live.js"] if live else []), "page.js")
    ]
    about = {"data_live": "yes" if live else None, "data_version": version}
    body = h("body", live, h("main", main), scripts, **about)
    return f"<!doctype html>\n{h('html', h('head', head), body, lang='en')}\n"


def main_of(facts: Facts) -> Html:
    """The content of <main>."""
    drawn = figures(facts)
    sections: list[Section] = [
        ("sign", "What you sign", signing_section(facts)),
        ("result", "Result", result_section(facts, drawn)),
        (
            "quality",
            "How well it decides",
            quality_section(facts, drawn) if facts.quality else None,
        ),
        ("parties", "What was run", parties_section(facts)),
        ("crossing", "What each party sent", crossing_section(facts, drawn)),
        ("privacy", "Privacy", spending(facts)),
        (
            "audit",
            "What attacks could learn",
            audit_section(facts, drawn) if facts.audit else None,
        ),
        (
            "importance",
            "Who matters",
            importance_section(facts, drawn) if facts.importance else None,
        ),
        (
            "trees",
            "The trees",
            trees_section(facts, drawn) if facts.trees or facts.own_columns else None,
        ),
        (
            "selection",
            "Participant selection",
            selection_section(facts, drawn) if facts.selection else None,
        ),
        (
            "alignment",
            "Shared rows",
            alignment_section(facts) if facts.alignment else None,
        ),
        (
            "timing",
            "Time",
            (
                timing_section(facts, drawn)
                if facts.part is None or facts.metrics
                else None
            ),
        ),
        ("settings", "Settings", settings_section(facts)),
        (
            "missing",
            "Not in this report",
            missing_section(facts) if facts.finished else None,
        ),
        ("about", "About this page", about_section()),
    ]
    return assembled(opening(facts), sections)


def assembled(header: Html, sections: list[Section]) -> Html:
    """The page: header, contents, and the sections that have content."""
    sections = [section for section in sections if section[2] is not None]
    listed = [h("li", h("a", title, href=f"#{name}")) for name, title, _ in sections]
    contents = h(
        "nav",
        h("h2", "Contents", id="contents"),
        h("ul", listed),
        aria_labelledby="contents",
    )
    bodies = [
        h("section", h("h2", title, id=name), content, aria_labelledby=name)
        for name, title, content in sections
    ]
    return Html(header + contents + "".join(bodies))


PAGE = "report.html"
FIGURES = "figures"


def write(folder: Path, out: Path | None = None) -> Path:
    """The report of a run directory: `out`, or report.html in it; figures go into a
    folder beside the page."""
    facts = read(folder)
    return save(render(facts), figures(facts).values(), out or folder / PAGE)


def save(page: str, drawn: Iterable[Figure], path: Path) -> Path:
    """A page and its figures, each file whole or not at all."""
    with written_out("The report", path):
        (path.parent / FIGURES).mkdir(parents=True, exist_ok=True)
        for figure in drawn:
            write_text(path.parent / FIGURES / f"{figure.name}.svg", standalone(figure))
        write_text(path, page)
    return path


def standalone(figure: Figure) -> str:
    """A figure as a file of its own: its rules inside, on white."""
    opened, rest = figure.svg.split(">", 1)
    width, height = opened.split('viewBox="0 0 ')[1].split('"')[0].split(" ")
    size = f' width="{width}" height="{height}"'
    back = f'<rect width="{width}" height="{height}" fill="#fff"/>'
    named = opened.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f"{named}{size}><style>{resource('figure.css')}</style>{back}{rest}\n"
