"""No figure of the package's shape is above its bound, and the counts behind them count what they say."""

from __future__ import annotations

import ast

import pytest
from tests import shape

BOUND = {name: bound for name, (bound, _) in shape.BOUNDS.items() if bound is not None}


@pytest.fixture(scope="module")
def listed() -> dict[str, list[str]]:
    return shape.listed()


@pytest.mark.parametrize("measure", BOUND)
def test_no_figure_is_above_its_bound(listed: dict[str, list[str]], measure: str) -> None:
    """Where this fails: `python -m tests.shape MEASURE` lists what is counted. Bounds go down and never up."""
    found = listed[measure]
    shown = "" if measure.startswith("source lines") else "\n  ".join(["", *found])
    assert len(found) <= BOUND[measure], f"{measure}: {len(found)}, and the bound is {BOUND[measure]}{shown}"


def test_a_cycle_through_a_function_or_for_type_checkers_is_one() -> None:
    modules = {
        "colonnade.a": ast.parse("from colonnade.b import x"),
        "colonnade.b": ast.parse("def f():\n    from colonnade import c"),
        "colonnade.c": ast.parse("if TYPE_CHECKING:\n    import colonnade.a"),
        "colonnade.d": ast.parse("from colonnade import a"),
        "colonnade": ast.parse(""),
    }
    assert shape.cycles_of(shape.imports_of(modules)) == [["colonnade.a", "colonnade.b", "colonnade.c"]]


def test_members_are_methods_attributes_and_what_is_assigned_to_self() -> None:
    kind = ast.parse(
        "class A:\n    x = 1\n    y: int\n    def __init__(self): self.a, self.b = 1, 2\n    def m(self): z = self.c"
    ).body[0]
    assert isinstance(kind, ast.ClassDef)
    assert shape.members_of(kind) == {"x", "y", "a", "b", "m"}


def test_classes_are_alike_by_more_than_eight_members_and_protocols_never() -> None:
    same = "\n".join(f"    m{number} = 0" for number in range(9))
    fewer = same.replace("    m8 = 0", "")
    text = f"class A:\n{same}\nclass B:\n{same}\nclass C:\n{fewer}\nclass D(Protocol):\n{same}"
    assert shape.pairs_alike({"one": ast.parse(text)}) == [(9, "one.A", "one.B")]


def test_a_union_of_three_counts_once_and_only_with_both_twins() -> None:
    tree = ast.parse("def f(a: Site | MultiSite | None, b: Site | None, c: dict[str, MultiSite | Site]) -> None: ...")
    assert shape.unions_of(tree, shape.TWINS) == ["Site | MultiSite | None", "MultiSite | Site"]


def test_switches_are_truth_tests_twins_and_nested_names() -> None:
    asked = (
        "if settings.label_owners: pass\n"
        "x = 1 if not own.settings.label_owners else 2\n"
        "y = [one for one in z if one.several]\n"
        "w = isinstance(q, (int, MultiSite)) or name in NESTED\n"
    )
    other = (
        "from colonnade.algorithms import NESTED\n"
        "if name in settings.label_owners or facts.several: pass\n"
        "for one in settings.label_owners: pass\n"
    )
    assert len(shape.switches_of(ast.parse(asked))) == 5
    assert shape.switches_of(ast.parse(other)) == []


def test_a_journey_enters_the_files_whose_functions_run() -> None:
    from colonnade.core import Batches, checks

    entered = shape.entered_by(lambda: checks.did_you_mean("alpa", ["alpha"]))
    assert entered == ["core/checks.py"]
    assert "core/batches.py" in shape.entered_by(lambda: Batches({}, batch_size=1, epochs=1, seed=0))
