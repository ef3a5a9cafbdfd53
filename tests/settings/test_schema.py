"""A setting that breaks its rule is refused with the rule and the value, wherever it is
written, and all mistakes of a file are told at once."""

from __future__ import annotations

import math
import tomllib
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from colonnade.errors import ConfigError, did_you_mean
from colonnade.settings.schema import (
    Fraction,
    NotNegative,
    Positive,
    Rule,
    Table,
    Texts,
    Whole,
    WholeOrZero,
    checked,
    rule_of,
)


class Oven(Table):
    place: ClassVar[str] = "[oven]"

    rate: Positive = 0.1
    decay: NotNegative = 0.0
    momentum: Fraction = 0.9
    steps: Whole = 20
    hidden: WholeOrZero = 0
    seed: Annotated[int, Field(ge=0, le=7)] = 0
    optimizer: Literal["sgd", "adam"] = "sgd"
    sizes: Annotated[tuple[int, ...], Field(strict=False)] = (1, 2)
    names: Texts = ()
    note: str = ""
    exact: bool = False
    limit: Annotated[float, Field(le=1)] | None = None
    own: Annotated[str | int, Rule("a name or a number")] = 1


class Kitchen(Table):
    holds_tables: ClassVar[bool] = True

    oven: Oven = Oven()
    parties: dict[str, Oven] = {}


RULES: dict[str, tuple[str, list[Any]]] = {
    "rate": (
        "a number above 0",
        [0, -1, 0.0, -1e-300, math.nan, math.inf, True, "1", None, [1], 10**400],
    ),
    "decay": (
        "a number, 0 or more",
        [-1, -1e-300, math.nan, -math.inf, False, "0", None, -(10**400)],
    ),
    "momentum": (
        "a number from 0 up to, not including, 1",
        [1, 1.0, -0.1, 2, math.nan, False, "0.5", None],
    ),
    "steps": (
        "a whole number, 1 or more",
        [0, -1, 1.0, 1.5, True, "1", None, math.inf],
    ),
    "hidden": ("a whole number, 0 or more", [-1, 0.0, False, "0", None]),
    "seed": ("a whole number, 0 or more, at most 7", [-1, 8, 10**40, 7.0]),
    "optimizer": ('one of "sgd", "adam"', ["SGD", "", "adamw", None, 1, True, ["sgd"]]),
    "sizes": ("a list of whole numbers", [1, "1", [1.5], [True], None]),
    "names": ("a list of texts", ["a", [1], None, [["a"]]]),
    "note": ("text", [3, True, None]),
    "exact": ("true or false", [1, "yes", None]),
    "limit": ("a number, at most 1", [2, True, "1", math.nan]),
    "own": ("a name or a number", [1.5, None, True, ["a"]]),
}


def short(value: object) -> str:
    return repr(value)[:20]


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, (_, bad) in RULES.items() for value in bad],
    ids=short,
)
def test_a_bad_value_is_refused_with_place_rule_and_value(
    name: str, value: Any
) -> None:
    with pytest.raises(ConfigError) as in_python:
        Oven(**{name: value})
    message = f"[oven] {name} must be {RULES[name][0]}; found {value!r}."
    assert str(in_python.value) == message
    with pytest.raises(ConfigError) as in_a_file:
        checked(Kitchen, {"oven": {name: value}}, whose="kitchen.toml")
    assert str(in_a_file.value) == f"kitchen.toml: {message}"


GOOD: dict[str, list[Any]] = {
    "rate": [1e-300, 1, 0.5, 10**20],
    "decay": [0, 0.0, 3, 1e300],
    "momentum": [0, 0.0, 0.999],
    "steps": [1, 10**30],
    "hidden": [0, 5],
    "seed": [0, 7],
    "optimizer": ["sgd", "adam"],
    "limit": [None, 1, -0.5],
    "own": ["a", 3],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, good in GOOD.items() for value in good]
)
def test_a_good_value_is_kept(name: str, value: Any) -> None:
    assert getattr(Oven(**{name: value}), name) == value


def test_whole_numbers_become_floats_where_floats_are_meant() -> None:
    assert type(Oven(rate=1).rate) is float
    assert type(Oven(decay=1).decay) is float
    assert type(Oven(steps=3).steps) is int


@given(
    st.floats()
    | st.integers()
    | st.booleans()
    | st.text(max_size=3)
    | st.none()
    | st.integers(10**300, 10**400)
)
@settings(max_examples=80)
def test_every_number_is_kept_or_refused(value: Any) -> None:
    for name in ("rate", "decay", "momentum", "steps", "hidden", "seed"):
        try:
            kept = getattr(Oven(**{name: value}), name)
        except ConfigError:
            continue
        assert kept == (float(value) if isinstance(kept, float) else value)
        assert not isinstance(kept, bool)


def test_settings_do_not_change_and_others_are_made_by_the_same_rules() -> None:
    with pytest.raises(AttributeError, match=r"changed\(rate=1.0\)"):
        Oven().rate = 1.0
    assert Oven(steps=3).changed(rate=2) == Oven(steps=3, rate=2.0)
    with pytest.raises(ConfigError, match="found -2"):
        Oven().changed(rate=-2)
    assert hash(Oven()) == hash(Oven())
    assert Oven().to_mapping()["sizes"] == [1, 2]
    assert "limit" not in Oven().to_mapping()


def test_a_table_becomes_settings() -> None:
    table = tomllib.loads('rate = 1\nsteps = 3\noptimizer = "adam"\nsizes = [3, 4]')
    wanted = Oven(rate=1, steps=3, optimizer="adam", sizes=(3, 4))
    assert checked(Oven, table, whose="oven.toml") == wanted
    assert checked(Oven, wanted.to_mapping(), whose="oven.toml") == wanted
    assert checked(Oven, {}, whose="oven.toml") == Oven()


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("rates", " (did you mean 'rate'?)"),
        ("momentun", " (did you mean 'momentum'?)"),
        ("xyz", ""),
    ],
)
def test_an_unknown_setting_is_refused_and_the_nearest_named(
    key: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(Oven, {"rate": 1, key: 1}, whose="")
    known = ", ".join(Oven.model_fields)
    assert (
        str(caught.value) == f"[oven] has no setting {key!r}{hint}. It knows: {known}."
    )


def test_all_mistakes_of_a_file_are_told_at_once() -> None:
    tables = {
        "oven": {"rate": -1, "stepz": 3},
        "ovens": {},
        "parties": {"lab": {"note": 3}, "shop": 7},
    }
    with pytest.raises(ConfigError) as caught:
        checked(Kitchen, tables, whose="kitchen.toml")
    message = str(caught.value)
    assert message.startswith("kitchen.toml has 5 mistakes:\n")
    for fact in (
        "[oven] rate must be a number above 0; found -1.",
        "[oven] has no setting 'stepz' (did you mean 'steps'?).",
        "has no table [ovens] (did you mean 'oven'?). It knows: oven, parties.",
        "[parties.lab] note must be text; found 3.",
        "[parties.shop] must be a table of settings; found 7.",
    ):
        assert fact in message
    for word in ("pydantic", "Input should", "validation", "http"):
        assert word not in message


def test_a_rule_is_told_without_an_error_too() -> None:
    told = {name: rule_of(field) for name, field in Oven.model_fields.items()}
    assert told == {name: rule for name, (rule, _) in RULES.items()}


def test_did_you_mean_is_silent_when_nothing_is_near() -> None:
    assert did_you_mean("mpl", ["mlp", "cnn"]) == " (did you mean 'mlp'?)"
    assert did_you_mean("transformer", ["mlp", "cnn"]) == ""
    assert did_you_mean("x", []) == ""
