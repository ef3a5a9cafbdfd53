"""Reproductions: a paper's claims, run here, and what came out next to the paper's
figures.

    reproductions/<paper>/    README.md    expected.json    configs/*.toml    scripts of its own

`expected` reads `expected.json`; `study` trains and records; `cells` runs a plan's
parts, in many processes if asked; `pictures` draws its learning curves.
"""

from __future__ import annotations

from colonnade.reproduction.cells import reproduce
from colonnade.reproduction.expected import Figure, Plan, folder, plan, plans
from colonnade.reproduction.study import Measured, Study, Watch

__all__ = [
    "Figure",
    "Measured",
    "Plan",
    "Study",
    "Watch",
    "folder",
    "plan",
    "plans",
    "reproduce",
]
