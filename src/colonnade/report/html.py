"""HTML whose text is always escaped: names come from other organisations.

`h("td", name)` escapes `name`; only what `h` itself made, an `Html`, goes in as it is.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from colonnade.report.words import listed

LONG = 26
"""The number of letters from which on a cell wraps."""
VOID = {"br", "wbr", "img", "input", "meta", "hr", "line", "rect", "path", "circle"}


class Html(str):
    """Markup that was made here, not text."""

    __slots__ = ()


Content = Any
"""Html, text, a number, None, or a list of these."""


def h(tag: str, *children: Content, **attributes: Any) -> Html:
    """An element. `class_` is class, `data_x` is data-x; attributes that are None are
    left out, True has no value."""
    named = {
        key.rstrip("_").replace("_", "-"): value
        for key, value in attributes.items()
        if value is not None
    }
    inside = "".join(
        f" {key}" if value is True else f' {key}="{html.escape(str(value))}"'
        for key, value in named.items()
        if value is not False
    )
    if tag in VOID and not children:
        return Html(f"<{tag}{inside}/>")
    return Html(f"<{tag}{inside}>{text(children)}</{tag}>")


def text(children: Content) -> Html:
    """Children as escaped text; markup stays as it is."""
    if isinstance(children, Html):
        return children
    if children is None:
        return Html("")
    if isinstance(children, (list, tuple)):
        return Html("".join(text(child) for child in children))
    return Html(html.escape(str(children)))


def note(words: Content) -> Html:
    """A paragraph in small print, about the table or the figure above it."""
    return h("p", words, class_="caption-note")


def joined(items: Sequence[Content]) -> Html:
    """A, B and C."""
    return Html(listed([text(item) for item in items]))


@dataclass(frozen=True)
class Cell:
    """A table's cell: what is shown, and by what it is sorted. Numbers are aligned
    right."""

    shown: Content
    key: float | None = None
    number: bool = True


def cell(value: Any, words: Callable[[Any], str]) -> Cell:
    """A number in these words: cell(1500, size) shows 1.5 kB."""
    return Cell(words(value), value)


def _long(shown: Content) -> bool:
    return isinstance(shown, str) and not isinstance(shown, Html) and len(shown) > LONG


def _breakable(shown: Content) -> Content:
    """Let a long name, which has no spaces, break after _ or -."""
    if not _long(shown) or all(len(word) <= LONG for word in shown.split()):
        return shown
    return [
        part
        for piece in re.split(r"(?<=[_-])(?=\w)", shown)
        for part in (h("wbr"), piece)
    ][1:]


def _element(content: Cell, *, first: bool) -> Html:
    tag, scope = ("th", "row") if first else ("td", None)
    kind = "n" if content.number else "words" if _long(content.shown) else None
    return h(
        tag, _breakable(content.shown), scope=scope, class_=kind, data_key=content.key
    )


def table(
    caption: Content,
    headings: Sequence[Content],
    rows: Iterable[Sequence[Content]],
    **attributes: Any,
) -> Html:
    """A sortable table; its first column names the rows. Where it is too wide, it
    scrolls and the page does not."""
    lines = [
        [
            content if isinstance(content, Cell) else Cell(content, number=False)
            for content in row
        ]
        for row in rows
    ]
    numeric = [
        any(len(line) > at and line[at].number for line in lines)
        for at in range(len(headings))
    ]
    kinds = ("n" if is_numeric else None for is_numeric in numeric)
    head = h(
        "tr",
        [
            h("th", heading, scope="col", class_=kind)
            for heading, kind in zip(headings, kinds, strict=True)
        ],
    )
    body = [
        h("tr", [_element(content, first=at == 0) for at, content in enumerate(line)])
        for line in lines
    ]
    sort = {"class_": "sortable"} if len(lines) > 1 else {}
    whole = h(
        "table",
        h("caption", caption),
        h("thead", head),
        h("tbody", body),
        **{**sort, **attributes},
    )
    return h("div", whole, class_="wide")
