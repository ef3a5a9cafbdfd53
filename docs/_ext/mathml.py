"""Formulas as MathML, made when the site is built: pages show them without a script and
without a network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError


def mathml(latex: str, *, display: bool) -> str:
    """One formula. What the converter does not know it would print in red or leave as
    text: that is an error here."""
    made = convert(latex.strip(), display="block" if display else "inline")
    if "\\" in made:
        unknown = made[made.index("\\") :].split("<")[0]
        raise ExtensionError(
            f"A formula uses {unknown!r}, which cannot be drawn: {latex.strip()}"
        )
    return made


def visit_inline(self: Any, node: nodes.math) -> None:
    self.body.append(mathml(node.astext(), display=False))
    raise nodes.SkipNode


def visit_block(self: Any, node: nodes.math_block) -> None:
    number = (
        f'<span class="eqno">({node["number"]})</span>' if node.get("number") else ""
    )
    ids = "".join(f' id="{name}"' for name in node.get("ids", [])[:1])
    self.body.append(
        f'<div class="math"{ids}>{number}{mathml(node.astext(), display=True)}</div>\n'
    )
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
