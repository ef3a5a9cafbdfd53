"""What comes out of an outbox is final, counted, and made by the owner's rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from colonnade.core import (
    NON_PRIVATE,
    DpEvent,
    Identity,
    Outbox,
    Packed,
    Plain,
    Receipt,
    Released,
    Rule,
)
from colonnade.core.batches import purpose
from colonnade.core.chance import Source, normal
from colonnade.core.release import CODECS, DTYPES
from colonnade.errors import BoundaryError, ConfigError


@dataclass
class Shift:
    """A mechanism that adds one, and remembers what it saw."""

    by: float = 1.0
    saw: list[Tensor] = field(default_factory=list)

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        self.saw.append(tensor.clone())
        return tensor + self.by, DpEvent("shift", {"by": self.by})


@dataclass
class Halves:
    """A codec that sends float16, and remembers what it saw."""

    name: str = "test-halves"
    saw: list[Tensor] = field(default_factory=list)

    def encode(self, tensor: Tensor, generator: Generator) -> Packed:
        self.saw.append(tensor.clone())
        return Packed(
            self.name, tensor.half().numpy().tobytes(), tuple(tensor.shape), "float32"
        )

    def decode(self, packed: Packed) -> Tensor:
        return (
            torch.frombuffer(bytearray(packed.data), dtype=torch.float16)
            .reshape(packed.shape)
            .float()
        )


class Slice:
    """A mechanism that gives a view into the private tensor, away from its start."""

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        return tensor[..., 1:] if tensor.ndim else tensor, NON_PRIVATE


class Learned:
    """A mechanism with a parameter of its own."""

    scale = torch.nn.Parameter(torch.tensor(2.0))

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        return tensor * self.scale, NON_PRIVATE


@pytest.fixture
def halves() -> Iterator[Halves]:
    codec = Halves()
    CODECS[codec.name] = codec
    yield codec
    del CODECS[codec.name]


def outbox(**rules: Rule) -> Outbox:
    return Outbox("bank", Generator(), rules)


def test_a_released_tensor_cannot_be_made_by_hand() -> None:
    with pytest.raises(
        BoundaryError, match=r"made by an outbox, not by hand.\n    Release it"
    ):
        Released()


def test_a_released_tensor_cannot_be_filled_with_another() -> None:
    released = outbox().release(torch.zeros(2), "embedding")
    for name in ("tensor", "receipt", "packed"):
        with pytest.raises(BoundaryError, match=f"its {name} cannot be replaced"):
            setattr(released, name, torch.ones(2))
    assert torch.equal(released.tensor, torch.zeros(2))


VIEWS = {
    "whole": lambda t: t,
    "transposed": lambda t: t.T,
    "every other row": lambda t: t[::2],
    "a column": lambda t: t[:, 1],
    "one number": lambda t: t[1, 1],
    "expanded": lambda t: t[0].expand(5, -1),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    "rule", [Rule(), Rule(Slice()), Rule(Shift()), Rule(Plain(), Halves())]
)
def test_what_is_released_does_not_follow_the_private_tensor(
    view: str, rule: Rule
) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    released = outbox(embedding=rule).release(VIEWS[view](whole), "embedding")
    before = released.tensor.clone()
    whole.fill_(-7)
    assert torch.equal(released.tensor, before)
    assert (
        released.tensor.untyped_storage().data_ptr()
        != whole.untyped_storage().data_ptr()
    )


@pytest.mark.parametrize(
    "rule", [Rule(), Rule(Shift()), Rule(Learned()), Rule(Plain(), Halves())]
)
def test_nothing_of_the_graph_leaves(rule: Rule) -> None:
    weights = torch.ones(3, requires_grad=True)
    released = outbox(embedding=rule).release(weights * 2, "embedding")
    assert not released.tensor.requires_grad
    assert released.tensor.grad_fn is None


def test_releasing_leaves_the_graph_of_the_private_tensor_alone() -> None:
    weights = torch.ones(3, requires_grad=True)
    h = weights * 2
    outbox().release(h, "embedding")
    torch.autograd.backward(h.sum())
    assert weights.grad is not None
    assert torch.equal(weights.grad, torch.full((3,), 2.0))


@pytest.mark.parametrize(
    ("batch", "of"),
    [
        ("test[0:512]", "test.embedding"),
        ("train/0/1", "embedding"),
        ("validation[0:2]", "embedding"),
        (None, "embedding"),
    ],
)
def test_the_rule_for_a_purpose_wins_over_the_rule_for_a_name(
    batch: str | None, of: str
) -> None:
    rules = {"test.embedding": Rule(Shift(1)), "embedding": Rule(Shift(2))}
    box = Outbox("bank", Generator(), rules, default=Rule(Shift(3)))
    assert box.rule("embedding", batch) is rules[of]
    assert box.rule("gradient", batch) is box.default
    released = box.release(torch.zeros(1), "embedding", batch)
    assert released.tensor.item() == {"test.embedding": 1, "embedding": 2}[of]
    assert box.release(torch.zeros(1), "gradient", batch).tensor.item() == 3


def test_the_owner_s_rules_are_copied() -> None:
    rules = {"embedding": Rule(Shift())}
    box = Outbox("bank", Generator(), rules)
    rules.clear()
    assert box.release(torch.zeros(1), "embedding").tensor.item() == 1


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ("train/3/17", "train"),
        ("test[0:512]", "test"),
        ("train[0:2]", "train"),
        ("", ""),
        (None, None),
        ("clinic:train/3/17", "train"),
        ("clinic:test[0:512]", "test"),
    ],
)
def test_the_purpose_of_a_batch_is_in_its_name(
    batch: str | None, expected: str | None
) -> None:
    assert purpose(batch) == expected


def test_the_codec_sees_what_the_mechanism_made_and_never_the_private_tensor(
    halves: Halves,
) -> None:
    mechanism = Shift()
    private = torch.tensor([1.0, 2.0, 3.0])
    released = outbox(embedding=Rule(mechanism, halves)).release(private, "embedding")
    assert torch.equal(mechanism.saw[0], private)
    assert torch.equal(halves.saw[0], private + 1)
    assert torch.equal(released.tensor, (private + 1).half().float())


def test_a_receipt_says_what_was_done_and_what_it_weighs(halves: Halves) -> None:
    box = outbox(embedding=Rule(Shift(2.0), halves))
    released = box.release(torch.zeros(3, 5), "embedding", "train/0/0")
    assert released.packed is not None
    assert len(released.packed.data) == 3 * 5 * 2
    event = DpEvent("shift", {"by": 2.0})
    assert released.receipt == Receipt(
        "bank", 1, "embedding", "train/0/0", event, "test-halves", 30
    )


@given(
    shape=st.lists(st.integers(0, 4), max_size=3), dtype=st.sampled_from(sorted(DTYPES))
)
@settings(max_examples=50)
def test_without_a_codec_a_tensor_weighs_its_own_bytes(
    shape: list[int], dtype: str
) -> None:
    tensor = torch.zeros(shape, dtype=DTYPES[dtype])
    released = outbox().release(tensor, "embedding")
    assert (
        released.receipt.bytes
        == tensor.nbytes
        == len(Identity().encode(released.tensor).data)
    )
    assert released.packed is None
    assert released.receipt.codec == "identity"


@given(
    shape=st.lists(st.integers(0, 4), max_size=3),
    dtype=st.sampled_from(sorted(DTYPES)),
    seed=st.integers(0, 99),
)
@settings(max_examples=50)
def test_identity_gives_back_the_very_tensor(
    shape: list[int], dtype: str, seed: int
) -> None:
    tensor = (torch.randn(shape, generator=Generator().manual_seed(seed)) * 3).to(
        DTYPES[dtype]
    )
    back = Identity().decode(Identity().encode(tensor))
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor)


def test_identity_sends_a_view_in_row_major_order() -> None:
    tensor = torch.arange(6).reshape(2, 3).T
    assert torch.equal(Identity().decode(Identity().encode(tensor)), tensor)


def test_receipts_count_the_owner_s_releases() -> None:
    box = outbox()
    assert [box.release(torch.zeros(1), name).receipt.number for name in "abcab"] == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert box.released == 5


def test_plain_changes_nothing_and_claims_nothing() -> None:
    tensor = torch.randn(3)
    out, event = Plain().apply(tensor, Generator())
    assert torch.equal(out, tensor)
    assert event == NON_PRIVATE
    assert outbox().release(tensor, "embedding").receipt.event.kind == "non-private"


def test_inside_an_organisation_no_rule_applies() -> None:
    box = outbox(embedding=Rule(Shift()))
    own, out, anybody = (
        box.release(torch.zeros(1), "embedding", to=to) for to in ("bank", "shop", None)
    )
    assert [r.tensor.item() for r in (own, out, anybody)] == [0, 1, 1]
    assert own.receipt.event == NON_PRIVATE


def test_the_mechanism_draws_from_the_owner_s_generator() -> None:
    class Noise:
        def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
            return tensor + normal(tensor.shape, source).float(), NON_PRIVATE

    def noisy(seed: int) -> Tensor:
        box = Outbox(
            "bank", Generator().manual_seed(seed), {"embedding": Rule(Noise())}
        )
        return box.release(torch.zeros(4), "embedding").tensor

    assert torch.equal(noisy(1), noisy(1))
    assert not torch.equal(noisy(1), noisy(2))


def test_repr_shows_what_and_whose_but_no_values() -> None:
    shown = repr(outbox().release(torch.full((2, 3), 123.5), "embedding"))
    assert shown == "Released('embedding' of 'bank', [2, 3], non-private, 24 bytes)"


# Seals


@dataclass
class Reversed:
    """A seal that turns the tensor round, and remembers for which batches."""

    batches: list[str | None] = field(default_factory=list)

    def on(self, batch: str | None) -> Turning:
        self.batches.append(batch)
        return Turning()


@dataclass
class Turning:
    name: str = "test-turning"

    def encode(self, tensor: Tensor, generator: Generator) -> Packed:
        return Packed(
            self.name,
            tensor.flip(0).contiguous().numpy().tobytes(),
            tuple(tensor.shape),
            "float32",
        )

    def decode(self, packed: Packed) -> Tensor:
        return torch.frombuffer(bytearray(packed.data), dtype=torch.float32).reshape(
            packed.shape
        )


def test_a_seal_comes_after_the_mechanism_and_only_the_owner_sees_before_it() -> None:
    box = outbox(logits=Rule(Shift()))
    seal = Reversed()
    box.seal("logits", seal)
    sent = box.release(torch.tensor([1.0, 2.0]), "logits", "train/0/0")
    assert sent.tensor.tolist() == [3.0, 2.0]
    assert box.own(sent).tolist() == [2.0, 3.0]
    assert (sent.receipt.codec, sent.receipt.event.kind) == ("test-turning", "shift")
    assert seal.batches == ["train/0/0"]


def test_a_seal_is_for_one_name_and_whoever_asks() -> None:
    box = outbox(logits=Rule(Shift()))
    box.seal("logits", Reversed())
    other = box.release(torch.tensor([1.0, 2.0]), "embedding")
    assert other.tensor.tolist() == box.own(other).tolist() == [1.0, 2.0]
    inside = box.release(torch.tensor([1.0, 2.0]), "logits", to="bank")
    assert inside.tensor.tolist() == [2.0, 1.0]  # sealed, though no rule applies inside
    assert box.own(inside).tolist() == [1.0, 2.0]


def test_only_the_last_sealed_release_can_be_opened() -> None:
    box = outbox()
    box.seal("logits", Reversed())
    first, last = (box.release(torch.tensor([n]), "logits") for n in (1.0, 2.0))
    assert box.own(last).item() == 2.0
    with pytest.raises(
        BoundaryError, match="'bank' opens only its last sealed release of 'logits'"
    ):
        box.own(first)


@pytest.mark.parametrize("name", ["logits", "test.logits"])
def test_a_codec_and_a_seal_exclude_each_other(name: str, halves: Halves) -> None:
    box = outbox(**{name: Rule(codec=halves), "embedding": Rule(codec=halves)})
    with pytest.raises(
        ConfigError, match=f"rule for '{name}' of .* has the codec 'test-halves'"
    ):
        box.seal("logits", Reversed())
    later = outbox()
    later.seal("logits", Reversed())
    later.rules[name] = Rule(codec=halves)
    with pytest.raises(ConfigError, match="has the codec 'test-halves'"):
        later.release(torch.zeros(1), "logits", "test[0:1]")
