"""Formulas become MathML when the site is built; one that cannot be drawn is an error,
not a page with a hole."""

from __future__ import annotations

import pytest

pytest.importorskip("sphinx")
pytest.importorskip("latex2mathml")

from docs._ext.mathml import mathml
from sphinx.errors import ExtensionError


def test_a_formula_becomes_mathml() -> None:
    made = mathml(r"\frac{\rho}{2}\|o - z\|^2", display=True)
    assert made.startswith("<math")
    assert 'display="block"' in made
    assert "<mfrac>" in made
    assert "\\" not in made


def test_an_unknown_command_is_refused() -> None:
    with pytest.raises(ExtensionError, match="nosuchthing"):
        mathml(r"a + \nosuchthing{b}", display=False)
