"""Only what may cross fits into a message."""

from __future__ import annotations

import dataclasses
from types import new_class
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from colonnade.algorithms import embedding
from colonnade.core import Done, Message, Outbox, Released, Request
from colonnade.core.message import MESSAGES, batch_of
from colonnade.errors import BoundaryError


class Scalars(Message):
    text: str
    count: int
    value: float
    flag: bool
    maybe: str | None = None


class One(Message):
    values: Released


class Several(Message):
    many: tuple[Released, ...]
    named: dict[str, Released]
    numbers: tuple[float, ...] = ()


class Optional(Message):
    many: tuple[Released, ...] | None = None
    named: dict[str, int] | str | None = None


class Nested(Message):
    deep: dict[str, tuple[Released, ...]]


class ATensor(Message):
    values: Tensor


class AnObject(Message):
    values: object


class AList(Message):
    values: list[int]


class AnUnionWithATensor(Message):
    values: Released | Tensor


class ATensorInside(Message):
    values: dict[str, tuple[Tensor, ...]]


class AFixedTuple(Message):
    values: tuple[int, str]


class AMapByNumber(Message):
    values: dict[int, str]


class Ask(Request[Done]):
    batch: str


def released(*shape: int) -> Released:
    return Outbox("bank", Generator()).release(torch.zeros(shape), "embedding")


BARE = (
    "{}.{} is a bare Tensor, and only Released tensors may leave a party.\n"
    '    Release it first: self.outbox.release(tensor, as_="embedding").'
)


def test_a_bare_tensor_is_refused_in_the_words_of_the_design() -> None:
    with pytest.raises(BoundaryError) as caught:
        embedding.Embedding(torch.zeros(2))  # type: ignore[arg-type]
    assert str(caught.value) == BARE.format("embedding.Embedding", "values")


@pytest.mark.parametrize(
    ("message", "field", "make"),
    [
        ("Several", "many", lambda t: Several((released(1), t), {})),
        ("Several", "named", lambda t: Several((), {"a": t})),
        ("Several", "numbers", lambda t: Several((), {}, (t,))),
        ("Scalars", "count", lambda t: Scalars("a", t, 1.0, True)),
        ("Optional", "many", lambda t: Optional((t,))),
        ("Optional", "named", lambda t: Optional(None, t)),
    ],
)
def test_a_bare_tensor_is_refused_wherever_it_hides(
    message: str, field: str, make: Any
) -> None:
    for bare in (torch.zeros(2), torch.tensor(1), torch.nn.Parameter(torch.zeros(2))):
        with pytest.raises(BoundaryError) as caught:
            make(bare)
        assert str(caught.value) == BARE.format(f"test_message.{message}", field)


UNSAFE = [
    ATensor,
    AnObject,
    AList,
    AnUnionWithATensor,
    ATensorInside,
    AFixedTuple,
    AMapByNumber,
]


@pytest.mark.parametrize("make", UNSAFE)
def test_a_type_that_could_hold_anything_else_is_refused(make: Any) -> None:
    with pytest.raises(
        BoundaryError,
        match=f"test_message.{make.__name__}.values is declared as .* may not cross",
    ):
        make(values=1)
    # also the second time: a refused class is not remembered as good
    with pytest.raises(BoundaryError):
        make(values=1)


@pytest.mark.parametrize(
    ("field", "wrong", "text"),
    [
        ("text", 1, "Scalars.text must be str; found int"),
        ("text", None, "Scalars.text must be str; found NoneType"),
        ("text", b"bytes", "Scalars.text must be str; found bytes"),
        ("count", 1.5, "Scalars.count must be int; found float"),
        ("count", True, "Scalars.count must be int; found bool"),
        ("value", "1", "Scalars.value must be float; found str"),
        ("value", True, "Scalars.value must be float; found bool"),
        ("flag", 1, "Scalars.flag must be bool; found int"),
        ("maybe", 3, r"Scalars.maybe must be str \| None; found int"),
        ("count", np.zeros(2), "Scalars.count must be int; found ndarray"),
    ],
)
def test_a_scalar_of_another_type_is_refused(
    field: str, wrong: object, text: str
) -> None:
    good: dict[str, Any] = {"text": "a", "count": 1, "value": 0.5, "flag": True}
    Scalars(**good)
    with pytest.raises(BoundaryError, match=text):
        Scalars(**(good | {field: wrong}))


def test_a_whole_number_will_do_for_a_float() -> None:
    assert Scalars("a", 1, 3, False).value == 3


def test_containers_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(BoundaryError, match="found list"):
        Several([released(1)], {})  # type: ignore[arg-type]
    with pytest.raises(BoundaryError, match="found dict"):
        Several((), {1: released(1)})  # type: ignore[dict-item]
    with pytest.raises(BoundaryError, match="found str"):
        Several(("a",), {})  # type: ignore[arg-type]


def test_a_container_in_a_union_is_checked_by_its_own_part() -> None:
    r = released(2)
    assert Optional((r, r)).released() == [r, r]
    assert Optional(None, {"a": 1}).named == {"a": 1}
    assert Optional(None, "a").named == "a"
    with pytest.raises(BoundaryError, match="found str"):
        Optional(None, {"a": "b"})  # type: ignore[dict-item]


def test_released_gives_every_tensor_in_field_order() -> None:
    a = released(1)
    b = released(2)
    c = released(3)
    assert Several((a, b), {"x": c}).released() == [a, b, c]
    assert Nested({"x": (a,), "y": (b, c)}).released() == [a, b, c]
    assert One(a).released() == [a]
    assert Scalars("a", 1, 1.0, True).released() == []


@given(st.sampled_from(["text", "count", "value", "flag", "maybe"]))
@settings(max_examples=10)
def test_a_message_is_frozen(field: str) -> None:
    message = Scalars("a", 1, 1.0, True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(message, field, "b")


def test_a_message_is_known_by_module_and_class() -> None:
    assert Scalars.kind == "test_message.Scalars"
    assert MESSAGES["test_message.Scalars"] is Scalars
    assert MESSAGES["embedding.Embed"] is embedding.Embed


def test_two_modules_cannot_give_the_same_wire_name() -> None:
    def body(namespace: dict[str, Any]) -> None:
        namespace["__module__"] = "elsewhere.embedding"

    with pytest.raises(
        TypeError,
        match=(
            r"embedding.Embed: in colonnade.algorithms.embedding and in"
            r" elsewhere.embedding"
        ),
    ):
        new_class("Embed", (Message,), exec_body=body)
    assert MESSAGES["embedding.Embed"] is embedding.Embed


def test_a_module_may_be_loaded_again() -> None:
    before = MESSAGES["test_message.Ask"]
    again = new_class(
        "Ask",
        (Message,),
        exec_body=lambda namespace: namespace.update(__module__=__name__),
    )
    assert MESSAGES["test_message.Ask"] is again
    MESSAGES["test_message.Ask"] = before


def test_batch_of_reads_the_field_called_batch() -> None:
    assert batch_of(Ask("train/0/1")) == "train/0/1"
    assert batch_of(Done()) is None
