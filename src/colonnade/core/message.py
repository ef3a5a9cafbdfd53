"""What may cross between parties: messages whose fields are released tensors and plain scalars, nothing else.

    class Embedding(Message):
        values: Released

    class Embed(Request[Embedding]):
        batch: str

A subclass becomes a frozen dataclass. Its field types are checked when it is first used, its values whenever one is
made, so a bare tensor fails in mypy and again here.
"""

from __future__ import annotations

import dataclasses
import types
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
from colonnade.core.release import Released
from colonnade.errors import BoundaryError

MESSAGES: dict[str, type[Message]] = {}
"""Every message class by its wire name, 'module.Class': the only names that a frame may carry."""

R = TypeVar("R", bound="Message")
SEALED = (Released, Ciphertext)
LEAVES: tuple[type, ...] = (Released, Ciphertext, str, int, float, bool, type(None))


@dataclass_transform(frozen_default=True)
class Message:
    """Something that may cross; subclass it and annotate its fields."""

    kind: ClassVar[str]
    _hints: ClassVar[dict[str, Any] | None]
    _kinds: ClassVar[dict[str, tuple[Any, ...]] | None]
    _plain: ClassVar[bool] = False  # no field can hold a tensor

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclass(frozen=True)(cls)
        cls.kind = f"{cls.__module__.rsplit('.', 1)[-1]}.{cls.__qualname__}"
        cls._hints = cls._kinds = None
        known = MESSAGES.get(cls.kind)
        if known is not None and known.__module__ != cls.__module__:
            raise TypeError(f"two message classes are called {cls.kind}: in {known.__module__} and {cls.__module__}")
        MESSAGES[cls.kind] = cls

    def __post_init__(self) -> None:
        for name, hint in self.hints().items():
            value = getattr(self, name)
            if type(value) is not hint:
                _check(value, hint, f"{self.kind}.{name}")

    @classmethod
    def hints(cls) -> dict[str, Any]:
        """Field name -> type, resolved once."""
        if cls._hints is None:
            every = get_type_hints(cls)
            hints = {field.name: every[field.name] for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
            for name, hint in hints.items():
                _allow(hint, f"{cls.kind}.{name}")
            cls._plain = not any(map(_may_hold, hints.values()))
            cls._hints = hints  # only now: a class that was refused once is refused again
        return cls._hints

    @classmethod
    def kinds(cls) -> dict[str, tuple[Any, ...]]:
        """Of each field that can hold a tensor, which kinds of releases it is for: what is beside its type in
        `Annotated[Released, ...]`."""
        if cls._kinds is None:
            every = get_type_hints(cls, include_extras=True)
            holding = [name for name, hint in cls.hints().items() if _may_hold(hint)]
            cls._kinds = {
                name: get_args(every[name])[1:] if get_origin(every[name]) is Annotated else () for name in holding
            }
        return cls._kinds

    def crossing(self, *fields: str) -> list[Released | Ciphertext]:
        """All in here, or in some fields, that went through an outbox, in field order."""
        found: list[Released | Ciphertext] = []
        for name in () if self._plain else fields or self.hints():
            value = getattr(self, name)
            if type(value) in SEALED:
                found.append(value)
            elif isinstance(value, (tuple, dict)):
                _collect(value, found)
        return found

    def released(self) -> list[Released]:
        """The tensors among a message's fields."""
        return [item for item in self.crossing() if isinstance(item, Released)]


class Request(Message, Generic[R]):
    """A message that is answered by an R."""


class Done(Message):
    """The answer that says only: it was done."""


def batch_of(message: Message) -> str | None:
    """The batch a message speaks of, where it has a field of that name; errors and ledgers name it."""
    batch: str | None = vars(message).get("batch")
    return batch


def _collect(value: Any, found: list[Released | Ciphertext]) -> None:
    for item in value.values() if isinstance(value, dict) else value:
        if type(item) in SEALED:
            found.append(item)
        elif isinstance(item, (tuple, dict)):
            _collect(item, found)


def _may_hold(hint: Any) -> bool:
    return hint in SEALED or any(_may_hold(part) for part in get_args(hint))


def _allow(hint: Any, where: str) -> None:
    """Raise unless a field of this type can only hold what may cross."""
    origin = get_origin(hint)
    if hint in LEAVES:
        return
    if origin in (Union, types.UnionType):
        for part in get_args(hint):
            _allow(part, where)
    elif origin is tuple and len(get_args(hint)) == 2 and get_args(hint)[1] is Ellipsis:
        _allow(get_args(hint)[0], where)
    elif origin is dict and get_args(hint)[0] is str:
        _allow(get_args(hint)[1], where)
    else:
        raise BoundaryError(
            f"{where} is declared as {getattr(hint, '__name__', hint)}, which may not cross a boundary.\n"
            "    Declare it as Released, Ciphertext, str, int, float or bool, or a tuple[..., ...] or dict[str, ...] "
            "of these."
        )


def _check(value: Any, hint: Any, where: str) -> None:
    """Raise unless the value fits its declared type."""
    if isinstance(value, Tensor):
        raise BoundaryError(
            f"{where} is a bare Tensor, and only Released tensors may leave a party.\n"
            '    Release it first: self.outbox.release(tensor, as_="embedding").'
        )
    if not _fits(value, hint):
        raise BoundaryError(f"{where} must be {getattr(hint, '__name__', hint)}; found {type(value).__name__}.")
    if isinstance(value, (tuple, dict)):
        if get_origin(hint) in (Union, types.UnionType):
            hint = next(part for part in get_args(hint) if _fits(value, part))
        part = get_args(hint)[0] if isinstance(value, tuple) else get_args(hint)[1]
        for item in value.values() if isinstance(value, dict) else value:
            _check(item, part, where)


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if origin is dict:
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


class Pong(Message):
    """The party is there."""


class Ping(Request[Pong]):
    """Is it there? Answered at once, whatever the party computes meanwhile, and with nothing of its data."""
