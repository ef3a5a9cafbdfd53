"""A setting that breaks its rule is refused with the rule and the value, wherever it is
written."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.algorithms import splitnn, vimadmm
from colonnade.core.checks import (
    did_you_mean,
    fraction,
    from_mapping,
    not_negative,
    one_of,
    positive,
    whole,
)
from colonnade.errors import ConfigError


@dataclass(frozen=True)
class Config:
    rate: float = positive(default=0.1)
    decay: float = not_negative(default=0.0)
    momentum: float = fraction(default=0.9)
    steps: int = whole(default=20)
    hidden: int = whole(default=0, least=0)
    seed: int = whole(default=0, least=0, most=7)
    optimizer: str = one_of("sgd", "adam", default="sgd")
    sizes: tuple[int, ...] = (1, 2)
    note: str = ""
    exact: bool = False


@dataclass(frozen=True)
class Other:
    rate: float = positive(default=1.0)


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
}


def short(value: object) -> str:
    return repr(value)[:20]


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, (_, bad) in RULES.items() for value in bad],
    ids=short,
)
def test_a_bad_value_is_refused_with_rule_and_value(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(**{name: value})
    assert (
        str(caught.value)
        == f"test_checks.{name} must be {RULES[name][0]}; found {value!r}."
    )


GOOD: dict[str, list[Any]] = {
    "rate": [1e-300, 1, 0.5, 10**20],
    "decay": [0, 0.0, 3, 1e300],
    "momentum": [0, 0.0, 0.999],
    "steps": [1, 10**30],
    "hidden": [0, 5],
    "seed": [0, 7],
    "optimizer": ["sgd", "adam"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, good in GOOD.items() for value in good]
)
def test_a_good_value_is_kept(name: str, value: Any) -> None:
    assert getattr(Config(**{name: value}), name) == value


def test_whole_numbers_become_floats_where_floats_are_meant() -> None:
    assert type(Config(rate=1).rate) is float
    assert type(Config(decay=1).decay) is float
    assert type(Config(steps=3).steps) is int


@given(
    st.floats()
    | st.integers()
    | st.booleans()
    | st.text(max_size=3)
    | st.none()
    | st.integers(10**300, 10**400)
)
@settings(max_examples=80)
def test_every_value_is_kept_or_refused(value: Any) -> None:
    for name in RULES:
        try:
            kept = getattr(Config(**{name: value}), name)
        except ConfigError:
            continue
        assert kept == (float(value) if isinstance(kept, float) else value)
        assert not isinstance(kept, bool)


def test_defaults_are_checked_values_too() -> None:
    @dataclass(frozen=True)
    class Wrong:
        rate: float = positive(default=-1.0)

    with pytest.raises(
        ConfigError, match=r"Wrong.rate must be a number above 0; found -1.0"
    ):
        Wrong()
    assert Config() == Config(rate=0.1, momentum=0.9)
    assert Config.rate == 0.1


def test_a_config_is_frozen_and_replaced_through_the_same_rules() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().rate = 1.0  # type: ignore[misc]
    assert dataclasses.replace(Config(), rate=2).rate == 2
    with pytest.raises(ConfigError, match="found -2"):
        dataclasses.replace(Config(), rate=-2)
    assert hash(Config()) == hash(Config())
    assert dataclasses.asdict(Config())["steps"] == 20


def test_two_configs_do_not_share_values() -> None:
    one = Config(rate=1)
    other = Config(rate=2)
    assert (one.rate, other.rate) == (1, 2)


def test_a_class_that_is_not_called_config_goes_by_its_own_name() -> None:
    with pytest.raises(ConfigError, match=r"^Other.rate must be"):
        Other(rate=0)


def test_a_table_becomes_a_config() -> None:
    table = tomllib.loads('rate = 1\nsteps = 3\noptimizer = "adam"\nsizes = [3, 4]')
    assert from_mapping(Config, table, where="[algorithm]") == Config(
        1, steps=3, optimizer="adam", sizes=(3, 4)
    )
    assert from_mapping(Config, {}, where="x") == Config()


def test_a_table_is_held_to_the_rules() -> None:
    with pytest.raises(
        ConfigError, match=r"test_checks.rate must be a number above 0; found -1"
    ):
        from_mapping(Config, {"rate": -1}, where="[algorithm]")


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("note", 3, "text"),
        ("note", True, "text"),
        ("exact", 1, "true or false"),
        ("exact", "yes", "true or false"),
    ],
)
def test_a_table_is_held_to_plain_types_too(key: str, value: object, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_mapping(Config, {key: value}, where="[algorithm]")
    assert str(caught.value) == f"[algorithm]: {key} must be {rule}; found {value!r}."
    assert from_mapping(Config, {"note": "a", "exact": True}, where="x") == Config(
        note="a", exact=True
    )


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("rates", " (did you mean 'rate'?)"),
        ("momentun", " (did you mean 'momentum'?)"),
        ("xyz", ""),
    ],
)
def test_an_unknown_key_is_refused_and_the_nearest_named(key: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_mapping(Config, {"rate": 1, key: 1}, where="[algorithm]")
    known = "rate, decay, momentum, steps, hidden, seed, optimizer, sizes, note, exact"
    assert (
        str(caught.value)
        == f"[algorithm] has no setting {key!r}{hint}. It knows: {known}."
    )


def test_did_you_mean_is_silent_when_nothing_is_near() -> None:
    assert did_you_mean("mpl", ["mlp", "cnn"]) == " (did you mean 'mlp'?)"
    assert did_you_mean("transformer", ["mlp", "cnn"]) == ""
    assert did_you_mean("x", []) == ""


@pytest.mark.parametrize("algorithm", [splitnn.ALGORITHM, vimadmm.ALGORITHM])
def test_every_setting_of_an_algorithm_has_a_rule(algorithm: Any) -> None:
    for field in dataclasses.fields(algorithm.config):
        with pytest.raises(
            ConfigError,
            match=(
                rf"{algorithm.config.__module__.rsplit('.')[-1]}.{field.name} must be"
                r" .*; found"
            ),
        ):
            algorithm.config(**{field.name: object()})
