"""Messages: the only things that may cross between parties.

A message has fields that are released tensors or plain scalars, and nothing else:

    class Embedding(Message):
        values: Released

    class Embed(Request[Embedding]):
        batch: str

A subclass becomes a frozen dataclass. The types of its fields are checked when the class
is first used, and its values whenever a message is made. A bare tensor therefore fails
in mypy, and again here.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from torch import Tensor

from colonnade.core.cipher import Ciphertext
from colonnade.core.receipt import Receipt
from colonnade.core.release import Released
from colonnade.errors import BoundaryError

R = TypeVar("R", bound="Message")

MESSAGES: dict[str, type[Message]] = {}
"""Every message class by its name on the wire, "module.Class". A frame can name no other
class."""

THROUGH_AN_OUTBOX = (Released, Ciphertext)
"""The types of values that an outbox makes. They have a receipt."""

FIELD_TYPES = (Released, Ciphertext, str, int, float, bool, type(None))
"""The types that a field may have. It may also have a union, tuple or dict of them."""

Line = tuple[str, str | None, tuple[int, ...], Receipt]
"""What a ledger notes of a value that crosses: the message's kind, its batch, the
value's shape and its receipt."""


@dataclass_transform(frozen_default=True)
class Message:
    """Something that may cross between parties. Subclass it and annotate its fields."""

    kind: ClassVar[str]
    _hints: ClassVar[dict[str, Any] | None]
    _kinds: ClassVar[dict[str, tuple[Any, ...]] | None]
    _value_fields: ClassVar[Sequence[str]] = ()
    """The fields that can hold a value with a receipt."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclass(frozen=True)(cls)
        module = cls.__module__.rsplit(".", 1)[-1]
        cls.kind = f"{module}.{cls.__qualname__}"
        cls._hints = None
        cls._kinds = None
        known = MESSAGES.get(cls.kind)
        if known is not None and known.__module__ != cls.__module__:
            raise TypeError(
                f"Two message classes are called {cls.kind}: in {known.__module__} and"
                f" in {cls.__module__}. Rename one of them."
            )
        MESSAGES[cls.kind] = cls

    def __post_init__(self) -> None:
        for name, hint in self.hints().items():
            value = getattr(self, name)
            if type(value) is not hint:  # most values have just the declared type
                _check_value(value, hint, f"{self.kind}.{name}")

    @classmethod
    def hints(cls) -> dict[str, Any]:
        """The declared type of each field."""
        if cls._hints is None:
            declared = get_type_hints(cls)
            names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
            hints = {name: declared[name] for name in names}
            for name, hint in hints.items():
                _check_declaration(hint, f"{cls.kind}.{name}")
            cls._value_fields = [name for name in names if _may_hold_value(hints[name])]
            # Set last, so that a class that was refused is refused again.
            cls._hints = hints
        return cls._hints

    @classmethod
    def kinds(cls) -> dict[str, tuple[Any, ...]]:
        """The kinds of release that each field is for, where the field says so.

        A field declared as `Annotated[Released, Kind.EMBEDDING]` is for embeddings.
        """
        if cls._kinds is None:
            cls.hints()
            declared = get_type_hints(cls, include_extras=True)
            cls._kinds = {
                name: _annotations(declared[name]) for name in cls._value_fields
            }
        return cls._kinds

    def crossing(self, *fields: str) -> Sequence[Released | Ciphertext]:
        """The values that went through an outbox, in the order of the fields.

        Args:
            fields: The fields to look at. By default all.
        """
        found: list[Released | Ciphertext] = []
        for name in fields or self._value_fields:
            _collect_values(getattr(self, name), found)
        return found

    def lines(self) -> Sequence[Line]:
        """What a ledger notes of the values in this message.

        Sender and receiver both write them down, so they are made once.
        """
        if not self._value_fields:
            return ()
        known: Sequence[Line] | None = vars(self).get("_lines")
        if known is None:
            batch = batch_of(self)
            values = self.crossing()
            known = [(self.kind, batch, value.shape, value.receipt) for value in values]
            vars(self)["_lines"] = known
        return known

    def released(self) -> list[Released]:
        """The tensors in this message."""
        return [value for value in self.crossing() if isinstance(value, Released)]


class Request(Message, Generic[R]):
    """A message that is answered by an R."""


class Done(Message):
    """The request was carried out. There is nothing else to say."""


class Pong(Message):
    """The party is there."""


class Ping(Request[Pong]):
    """Is the party there? It answers at once, whatever it computes meanwhile, and says
    nothing about its data."""


_ANSWERS: dict[type[Request[Any]], type[Message]] = {}


def answered_by(request: type[Request[Any]]) -> type[Message]:
    """The message class that answers a request, as its declaration says."""
    if request not in _ANSWERS:
        _ANSWERS[request] = _declared_answer(request)
    return _ANSWERS[request]


def _declared_answer(request: type[Request[Any]]) -> type[Message]:
    for kind in request.__mro__:
        for base in getattr(kind, "__orig_bases__", ()):
            if get_origin(base) is Request and isinstance(get_args(base)[0], type):
                answer: type[Message] = get_args(base)[0]
                return answer
    return Message


def batch_of(message: Message) -> str | None:
    """The batch that a message is about, where it has a field of that name."""
    return vars(message).get("batch")


def _annotations(hint: Any) -> tuple[Any, ...]:
    is_annotated = get_origin(hint) is Annotated
    return get_args(hint)[1:] if is_annotated else ()


def _collect_values(value: Any, found: list[Released | Ciphertext]) -> None:
    """Append all values with a receipt, also those inside tuples and dicts."""
    if type(value) in THROUGH_AN_OUTBOX:
        found.append(value)
    elif isinstance(value, tuple):
        for item in value:
            _collect_values(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _collect_values(item, found)


def _may_hold_value(hint: Any) -> bool:
    """Whether a field of this type can hold a value with a receipt."""
    return hint in THROUGH_AN_OUTBOX or any(map(_may_hold_value, get_args(hint)))


def _check_declaration(hint: Any, where: str) -> None:
    """Refuse a field whose type could hold something that may not cross."""
    if hint in FIELD_TYPES:
        return
    parts = get_args(hint)
    if _is_union(hint):
        for part in parts:
            _check_declaration(part, where)
    elif get_origin(hint) is tuple and len(parts) == 2 and parts[1] is Ellipsis:
        _check_declaration(parts[0], where)
    elif get_origin(hint) is dict and parts[0] is str:
        _check_declaration(parts[1], where)
    else:
        raise BoundaryError(
            f"{where} is declared as {getattr(hint, '__name__', hint)}, which may not"
            " cross a boundary.\n    Declare it as Released, Ciphertext, str, int,"
            " float or bool, or a tuple[..., ...] or dict[str, ...] of these."
        )


def _check_value(value: Any, hint: Any, where: str) -> None:
    """Refuse a value that does not have the type that its field declares."""
    if isinstance(value, Tensor):
        raise BoundaryError(
            f"{where} is a bare Tensor, and only Released tensors may leave a party.\n"
            '    Release it first: self.outbox.release(tensor, as_="embedding").'
        )
    if not _fits(value, hint):
        raise BoundaryError(
            f"{where} must be {getattr(hint, '__name__', hint)}; found"
            f" {type(value).__name__}."
        )
    if _is_union(hint):
        hint = next(part for part in get_args(hint) if _fits(value, part))
    if isinstance(value, tuple):
        for item in value:
            _check_value(item, get_args(hint)[0], where)
    elif isinstance(value, dict):
        for item in value.values():
            _check_value(item, get_args(hint)[1], where)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has the declared type. What it contains is checked by itself."""
    if _is_union(hint):
        return any(_fits(value, part) for part in get_args(hint))
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if hint is float:  # a bool is an int for Python, and no number here
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, get_origin(hint) or hint)


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)
