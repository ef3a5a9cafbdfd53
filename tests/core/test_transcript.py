"""A transcript keeps what reached one party and weighs it by encoding, apart from the
ledgers."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

from colonnade.core import (
    Message,
    Outbox,
    Packed,
    Plain,
    Released,
    Request,
    Rule,
    Transcript,
)
from colonnade.core.transcript import wire_bytes


class Part(Message):
    values: Released


class Ask(Request[Part]):
    batch: str


class Bytes:
    """A codec that keeps one byte per number."""

    name = "test-bytes"

    def encode(self, tensor: Tensor, generator: Generator) -> Packed:
        return Packed(
            self.name,
            bytes(tensor.to(torch.uint8).flatten().tolist()),
            tuple(tensor.shape),
            "float32",
        )

    def decode(self, packed: Packed) -> Tensor:
        return torch.tensor(list(packed.data), dtype=torch.float32).reshape(
            packed.shape
        )


def part(owner: str, name: str, size: int, rule: Rule | None = None) -> Part:
    return Part(
        Outbox(owner, Generator(), default=rule).release(torch.full((size,), 7.0), name)
    )


@pytest.fixture
def transcript() -> Transcript:
    seen = Transcript("bank")
    seen.add("shop", part("shop", "embedding", 3))
    seen.add("zoo", part("zoo", "embedding", 5))
    seen.add("shop", part("shop", "gradient", 1))
    seen.add("shop", Ask("train/0/1"))
    seen.add("bank", part("bank", "embedding", 100))
    return seen


def test_it_keeps_the_order(transcript: Transcript) -> None:
    assert [seen.sender for seen in transcript] == [
        "shop",
        "zoo",
        "shop",
        "shop",
        "bank",
    ]
    assert [seen.batch for seen in transcript] == [None, None, None, "train/0/1", None]
    assert [seen.bytes for seen in transcript] == [12, 20, 4, 0, 400]


def test_tensors_are_found_by_name_and_sender(transcript: Transcript) -> None:
    assert [len(t) for t in transcript.tensors("embedding")] == [3, 5, 100]
    assert [len(t) for t in transcript.tensors("embedding", "zoo")] == [5]
    assert transcript.tensors("nothing") == []


def test_what_a_party_told_itself_did_not_arrive(transcript: Transcript) -> None:
    assert transcript.total() == 36
    assert transcript.total("shop") == 16
    assert transcript.total("bank") == 0


def test_a_packed_tensor_weighs_what_its_codec_made_of_it() -> None:
    released = part("shop", "embedding", 9, Rule(Plain(), Bytes())).values
    assert wire_bytes(released) == released.receipt.bytes == 9
    assert wire_bytes(part("shop", "embedding", 9).values) == 36
