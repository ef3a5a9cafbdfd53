"""Settings that check themselves: a frozen `Config` whose fields refuse a bad value
with the rule and the value.

    @dataclass(frozen=True)
    class Config:
        learning_rate: float = positive(default=0.1)

Each function returns a data descriptor. A dataclass takes its default from it and
assigns through it, also when frozen, so the rule runs wherever a value is written: in
Python, from a TOML file, from a saved run.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import sys
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_type_hints

from colonnade.errors import ConfigError

C = TypeVar("C")
P = ParamSpec("P")


class Checked:
    """A field with a rule in words and a function that gives the accepted value or
    None."""

    # by which of `RULES`, and with what
    made: tuple[str, Sequence[Any], Mapping[str, Any]]

    def __init__(self, rule: str, accept: Callable[[Any], Any], default: Any) -> None:
        self.rule = rule
        self.accept = accept
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        module = owner.__module__.rsplit(".", 1)[-1]
        self.label = (
            f"{module}.{name}"
            if owner.__name__ == "Config"
            else f"{owner.__name__}.{name}"
        )

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self.default if instance is None else instance.__dict__[self.name]

    def __set__(self, instance: Any, value: Any) -> None:
        accepted = self.accept(value)
        if accepted is None:
            raise ConfigError(f"{self.label} must be {self.rule}; found {value!r}.")
        instance.__dict__[self.name] = accepted


RULES: dict[str, Callable[..., Any]] = {}
"""Every kind of rule by its name, so that a field can be written down and made again.
"""


def _rule(make: Callable[P, Any]) -> Callable[P, Any]:
    def noted(*args: P.args, **kwargs: P.kwargs) -> Any:
        checked = make(*args, **kwargs)
        checked.made = make.__name__, args, kwargs
        return checked

    RULES[make.__name__] = noted
    return wraps(make)(noted)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # NaN, inf and 10**400 are not
    return float(value) if is_number and abs(value) <= sys.float_info.max else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _numeric(rule: str, fits: Callable[[float], bool], default: float) -> Checked:
    return Checked(
        rule,
        lambda v: n if (n := _number(v)) is not None and fits(n) else None,
        default,
    )


@_rule
def positive(*, default: float) -> Any:
    """A number above 0."""
    return _numeric("a number above 0", lambda n: n > 0, default)


@_rule
def not_negative(*, default: float) -> Any:
    """A number, 0 or more."""
    return _numeric("a number, 0 or more", lambda n: n >= 0, default)


@_rule
def not_negative_or_auto(*, default: float | str) -> Any:
    """A number, 0 or more, or "auto"."""
    rule = '"auto" or a number, 0 or more'
    return Checked(
        rule,
        lambda v: (
            v if v == "auto" or ((n := _number(v)) is not None and n >= 0) else None
        ),
        default,
    )


@_rule
def fraction(*, default: float) -> Any:
    """A number from 0 up to, not including, 1."""
    return _numeric(
        "a number from 0 up to, not including, 1", lambda n: 0 <= n < 1, default
    )


@_rule
def share(*, default: float) -> Any:
    """A fraction from 0 up to, not including, 1, or a whole number."""
    rule = "a fraction from 0 up to, not including, 1, or a whole number"
    return _numeric(rule, lambda n: n >= 0 and (n < 1 or n % 1 == 0), default)


@_rule
def proportion(*, default: float) -> Any:
    """A number above 0, at most 1."""
    return _numeric("a number above 0, at most 1", lambda n: 0 < n <= 1, default)


@_rule
def whole(*, default: int, least: int = 1, most: float = math.inf) -> Any:
    """A whole number from `least` upwards, `most` at most."""
    rule = f"a whole number, {least} or more" + (
        "" if most == math.inf else f", at most {most}"
    )
    return Checked(
        rule,
        lambda v: n if (n := _whole(v)) is not None and least <= n <= most else None,
        default,
    )


AUTO = 0
"""What "auto" is of a number that follows from others, until it is known."""


@_rule
def whole_or_auto(*, most: float = math.inf) -> Any:
    """A whole number from 1 upwards, `most` at most, or by default "auto"."""
    rule = f'"auto" or a whole number, 1 or more, at most {most}'

    def accept(value: Any) -> int | None:
        number = _whole(value)
        return (
            AUTO
            if value == "auto"
            else number
            if number is not None and 1 <= number <= most
            else None
        )

    return Checked(rule, accept, "auto")


@_rule
def one_of(*choices: str, default: str) -> Any:
    """One of a few words."""
    return Checked(
        "one of " + ", ".join(f'"{c}"' for c in choices),
        lambda v: v if v in choices else None,
        default,
    )


@_rule
def equal_or_by_class() -> Any:
    """How much classes count: "equal" by default, "balanced", or a number above 0 by
    class."""
    rule = '"equal", "balanced", or by class a number above 0, as in { yes = 5.0 }'

    def accept(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value if value in ("equal", "balanced") else None
        numbers = {str(key): _number(one) for key, one in value.items()}
        known = {
            key: number
            for key, number in numbers.items()
            if number is not None and number > 0
        }
        return known if known and len(known) == len(value) else None

    return Checked(rule, accept, "equal")


def from_mapping(config: type[C], values: Mapping[str, Any], *, where: str) -> C:
    """Build a `Config` from a TOML table; an unknown key is an error that names the
    nearest known one."""
    known = [field.name for field in dataclasses.fields(config)]  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            hint = did_you_mean(key, known)
            raise ConfigError(
                f"{where} has no setting {key!r}{hint}. It knows: {', '.join(known)}."
            )
    hints = get_type_hints(config)
    for key, kind in ((key, hints[key]) for key in values if hints[key] in (str, bool)):
        if not isinstance(values[key], kind):
            rule = "text" if kind is str else "true or false"
            raise ConfigError(f"{where}: {key} must be {rule}; found {values[key]!r}.")
    ready = {
        key: (
            tuple(value)
            if isinstance(value, list) and "tuple" in str(hints[key])
            else value
        )
        for key, value in values.items()
    }
    try:
        return config(**ready)
    # in a file a setting is known by its table, which may say whose it is
    except ConfigError as error:
        told = str(error)
        own = f"{config.__name__}."
        raise ConfigError(
            f"{where}: {told.removeprefix(own)}" if told.startswith(own) else told
        ) from None


def check_tables(
    tables: Mapping[str, Any],
    where: str,
    known: Collection[str],
    *,
    lists: Collection[str],
    words: Collection[str],
) -> None:
    """That a file has the tables there are, and that they are tables, or lists, or of a
    model a word."""
    for section in tables:
        if section == "preset":
            continue
        if section not in known:
            hint = did_you_mean(section, list(known))
            raise ConfigError(
                f"{where} has no table [{section}]{hint}. It knows: {', '.join(known)}."
            )
        if section in lists or (section in words and isinstance(tables[section], str)):
            continue
        if not isinstance(found := tables[section], Mapping):
            also = (
                ', or a name: "mlp", or of your own module "my_package.nets:Tower"'
                if section in words
                else ""
            )
            cure = (
                f' Write {section} = {{ name = "{found}" }}.'
                if section == "algorithm"
                else ""
            )
            raise ConfigError(
                f"{where}: [{section}] must be a table of settings{also}; found"
                f" {found!r}.{cure}"
            )


def check_named(what: str, name: str, known: list[str]) -> None:
    """Raise unless something is known by that name."""
    if name not in known:
        raise ConfigError(
            f"There is no {what} {name!r}{did_you_mean(name, known)}; there are"
            f" {', '.join(known)}."
        )


def did_you_mean(word: str, known: list[str]) -> str:
    """' (did you mean ...?)' when something known is close, else nothing."""
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The tables of a file, which may be somebody else's: whatever is wrong with it is
    told as an error of the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{what} cannot be read: {error.strerror}.") from None
    except RecursionError:
        raise ConfigError(
            f"{what} is not TOML that can be read: its values are nested too deeply."
        ) from None
    # not TOML, not UTF-8, or a number of thousands of digits
    except ValueError as error:
        raise ConfigError(f"{what} is not TOML: {str(error)[:200]}.") from None
