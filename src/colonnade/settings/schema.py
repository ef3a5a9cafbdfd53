"""The base of all settings: a closed table that checks itself, and tells its mistakes.

    class Train(Table):
        place: ClassVar[str] = "[train]"
        patience: Whole = Field(default=10, description="Epochs without a better one.")

Pydantic does the checking. Nobody who writes a settings file needs to know that, so
every mistake is told in words of our own: its place in the file, the rule, the value
that was found, and the nearest setting where a name is misspelt. All mistakes of a file
are told at once.

This module and its neighbours import no torch: a wrong file is refused within half a
second.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from colonnade.errors import ConfigError, did_you_mean

LARGEST_INTEGER = 2**63 - 1
"""TOML and torch's generators hold whole numbers up to here."""

AnyTable = TypeVar("AnyTable", bound="Table")


@dataclass(frozen=True)
class Rule:
    """The rule of a field in words, where the type alone does not say it.

    It stands in an annotation: `Annotated[str, Rule("a party's name")]`. An error then
    says that the field must be that, whatever inside it is wrong.
    """

    words: str


Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Proportion = Annotated[float, Field(gt=0, le=1)]
Whole = Annotated[int, Field(ge=1)]
WholeOrZero = Annotated[int, Field(ge=0)]
Texts = Annotated[tuple[str, ...], Field(strict=False)]
"""A list of texts, which TOML gives as a list and Python often as a tuple."""


class Table(BaseModel):
    """A table of settings: strict, closed, and not to be changed.

    A bad value is refused where it is written, in Python as in a file.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False
    )

    place: ClassVar[str] = ""
    """Where the table stands in a file, for errors. By default the name of the class.
    """
    holds_tables: ClassVar[bool] = False
    """Whether this is a whole file, whose settings all stand in tables of it."""

    def __init__(self, **values: Any) -> None:
        try:
            self.__pydantic_validator__.validate_python(values, self_instance=self)
        except ValidationError as error:
            raise ConfigError(_in_words(type(self), values, error, whose="")) from None

    # Pydantic calls an __init__ of one's own for every table inside a table. Ours would
    # end the check of a file at the first mistake, so it is marked as the usual one.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"Settings do not change: make others, as in changed({name}={value!r})."
        )

    @classmethod
    def kind_for(cls, values: Any) -> type[Table]:  # noqa: ARG003
        """The class that checks these values. A name in them may choose another one."""
        return cls

    def changed(self, **changes: Any) -> Self:
        """The same table with other values for some settings, which are checked."""
        return type(self)(**{**self.model_dump(), **changes})

    def to_mapping(self) -> dict[str, Any]:
        """The table as TOML has it, with every default. None and empty tables are left
        out."""
        values = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in self.model_dump().items()
        }
        return {
            key: value
            for key, value in values.items()
            if value is not None and value != {}
        }


def checked(kind: type[AnyTable], values: Mapping[str, Any], *, whose: str) -> AnyTable:
    """Check settings that somebody wrote, and tell all mistakes in them at once.

    Args:
        kind: The table that they are to be.
        values: The settings, as TOML gives them.
        whose: The file, or the argument, that they come from. It begins the error.
    """
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(_in_words(kind, values, error, whose=whose)) from None


def rule_of(field: FieldInfo) -> str:
    """What a setting must be, in words: "a whole number, 1 or more"."""
    return _rule(field.annotation, field.metadata)


def place_of(section: str, name: str, part: str = "") -> str:
    """The heading of an organisation's table: [parties.lab] or [data_owners.outbox] of
    'lab'."""
    if section == "parties":
        return f"[parties.{name}.{part}]" if part else f"[parties.{name}]"
    return f"[{section}.{part}] of '{name}'" if part else f"[[{section}]] '{name}'"


def _in_words(
    kind: type[Table], values: Mapping[str, Any], error: ValidationError, *, whose: str
) -> str:
    """One message for all mistakes that pydantic found in a table."""
    told: dict[str, None] = {}  # several errors can be about one value
    for details in error.errors(include_url=False):
        told[_mistake(kind, values, details, whose)] = None
    mistakes = list(told)
    if len(mistakes) > 1:
        listed = "\n    ".join(mistakes)
        return f"{whose or kind.__name__} has {len(mistakes)} mistakes:\n    {listed}"
    if not whose or mistakes[0].startswith(whose):
        return mistakes[0]
    return f"{whose}: {mistakes[0]}"


@dataclass(frozen=True)
class _Found:
    """What a mistake is about: a setting of a table, or the table itself."""

    table: type[Table]
    heading: str
    """Where the table stands, in words."""
    between: str
    """What stands between the heading and a setting: ": " after the name of a file."""
    key: str
    """The setting. Empty where the table itself is wrong."""
    value: Any

    @property
    def field(self) -> FieldInfo | None:
        return self.table.model_fields.get(self.key)

    @property
    def place(self) -> str:
        """The setting as people find it: "[train] epochs"."""
        if not self.key:
            return self.heading
        if self.table.holds_tables:
            return f"[{self.key}]"
        return f"{self.heading}{self.between}{self.key}"


def _mistake(
    kind: type[Table], values: Mapping[str, Any], details: ErrorDetails, whose: str
) -> str:
    """One of pydantic's errors, in words for somebody who wrote the file."""
    table = kind.kind_for(values)
    heading = table.place or whose or table.__name__
    between = " " if table.place else ": "
    found = _find(table, values, list(details["loc"]), heading, between)
    if details["type"] == "extra_forbidden":
        return _unknown(found)
    if details["type"] == "missing":
        return f"{found.place} must be given."
    field = found.field
    if details["type"] == "value_error" and (field is None or not _says_rule(field)):
        return _continued(found.place, str(details["ctx"]["error"]))
    rule = "a table of settings" if field is None else rule_of(field)
    return f"{found.place} must be {rule}; found {found.value!r}."


def _continued(place: str, words: str) -> str:
    """What a check of our own says. In small letters it goes on from the place."""
    if words[:1].islower():
        return f"{place} {words}"
    return words


def _unknown(found: _Found) -> str:
    """The error for a setting, or a table, that there is not."""
    known = list(found.table.model_fields)
    what = "setting " + repr(found.key)
    if found.table.holds_tables:
        what = f"table [{found.key}]"
    hint = did_you_mean(found.key, known)
    return f"{found.heading} has no {what}{hint}. It knows: {', '.join(known)}."


def _find(
    table: type[Table],
    given: Any,
    path: Sequence[int | str],
    heading: str,
    between: str = " ",
    party: tuple[str, str] | None = None,
) -> _Found:
    """Follow pydantic's path from a table to the setting that it is about.

    Args:
        table: The kind of the table.
        given: What somebody wrote in its place.
        path: The keys that lead on from here.
        heading: Where the table stands, in words.
        between: What stands between the heading and a setting of the table.
        party: The section and the name of the organisation whose table it is.
    """
    if not path:
        return _Found(table, heading, between, "", given)
    key = str(path[0])
    rest = path[1:]
    value = given.get(key) if isinstance(given, Mapping) else None
    field = table.model_fields.get(key)
    inner = _table_in(field.annotation) if field is not None else None
    if field is None or inner is None:
        return _Found(table, heading, between, key, value)
    if get_origin(field.annotation) is dict:  # organisations by their names
        if not rest:
            return _Found(table, heading, between, key, value)
        party = (key, str(rest[0]))
        owner = _owner(value, party[1])
        return _find(inner, owner, rest[1:], place_of(*party), party=party)
    inner = inner.kind_for(value)
    if party is not None:
        inner_heading = place_of(*party, key)
    else:
        inner_heading = inner.place or f"[{key}]"
    return _find(inner, value, rest, inner_heading, party=party)


def _owner(given: Any, name: str) -> Any:
    """The table of an organisation, from tables by name or a list of them."""
    if isinstance(given, Mapping):
        return given.get(name)
    owners = given if isinstance(given, list) else []
    for owner in owners:
        if isinstance(owner, Mapping) and owner.get("name") == name:
            return owner
    return None


def _says_rule(field: FieldInfo) -> bool:
    """Whether the field has a rule in words of its own."""
    return any(isinstance(note, Rule) for note in _notes(field.annotation)) or any(
        isinstance(note, Rule) for note in field.metadata
    )


def _notes(annotation: Any) -> Iterator[Any]:
    """What stands beside the types in an annotation."""
    for part in _parts(annotation):
        if get_origin(part) is Annotated:
            yield from get_args(part)[1:]


def _table_in(annotation: Any) -> type[Table] | None:
    """The kind of table that a field holds: alone, by name or in a list."""
    for part in _parts(annotation):
        if isinstance(part, type) and issubclass(part, Table):
            return part
    return None


def _parts(annotation: Any) -> Iterator[Any]:
    """An annotation, and those inside it."""
    yield annotation
    if get_origin(annotation) is not Literal:
        for inner in get_args(annotation):
            yield from _parts(inner)


def _rule(annotation: Any, metadata: Sequence[Any]) -> str:
    """The rule that an annotation and what stands beside it say."""
    for note in metadata:
        if isinstance(note, Rule):
            return note.words
    if get_origin(annotation) is Annotated:
        inner, *notes = get_args(annotation)
        return _rule(inner, [*metadata, *_unfolded(notes)])
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [one for one in get_args(annotation) if one is not type(None)]
        return " or ".join(_rule(kind, metadata) for kind in kinds)
    if get_origin(annotation) is Literal:
        words = ", ".join(f'"{word}"' for word in get_args(annotation))
        return f"one of {words}" if len(get_args(annotation)) > 1 else words
    if annotation is int:
        return _bounded_whole(metadata)
    if annotation is float:
        return _bounded_number(metadata)
    return _plain_type(annotation)


def _plain_type(annotation: Any) -> str:
    """The name of a type for people who write TOML."""
    if annotation is str:
        return "text"
    if annotation is bool:
        return "true or false"
    if get_origin(annotation) in (tuple, list):
        inner = get_args(annotation)[0]
        whose = {str: " of texts", int: " of whole numbers"}.get(inner, "")
        return f"a list{whose}"
    return "a table of settings"


def _unfolded(notes: Sequence[Any]) -> list[Any]:
    """The bounds in an annotation, with those that stand inside a Field."""
    bounds: list[Any] = []
    for note in notes:
        bounds += note.metadata if isinstance(note, FieldInfo) else [note]
    return bounds


def _bounded_whole(metadata: Sequence[Any]) -> str:
    """A whole number and its bounds: "a whole number, 1 or more, at most 64"."""
    words = "a whole number"
    for bound in metadata:
        if isinstance(bound, Ge):
            words += f", {bound.ge} or more"
        elif isinstance(bound, Le):
            words += f", at most {bound.le}"
    return words


def _bounded_number(metadata: Sequence[Any]) -> str:
    """A number and its bounds: "a number above 0, at most 1"."""
    bounds = {type(bound): bound for bound in metadata}
    if Ge in bounds and Lt in bounds:
        return (
            f"a number from {bounds[Ge].ge:g} up to, not including, {bounds[Lt].lt:g}"
        )
    words = "a number"
    if Gt in bounds:
        words += f" above {bounds[Gt].gt:g}"
    if Ge in bounds:
        words += f", {bounds[Ge].ge:g} or more"
    if Lt in bounds:
        words += f" and below {bounds[Lt].lt:g}"
    if Le in bounds:
        words += f", at most {bounds[Le].le:g}"
    return words
