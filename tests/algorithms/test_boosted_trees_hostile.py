"""What a party of a boosted-trees run sends against the protocol is refused, with its
name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from tests.algorithms.test_boosted_trees import between, table
from tests.conformance.toy import Toy

from colonnade.algorithms.boosted_trees import Config
from colonnade.algorithms.tree_owner import (
    Directions,
    Divide,
    Split,
    Start,
    Sums,
    UseKey,
)
from colonnade.core import Ciphertext, Envelope, Message, Transport
from colonnade.core.peers import Answer
from colonnade.encryption.elgamal import ElGamalSecretKey
from colonnade.encryption.scheme import wrap
from colonnade.errors import PartyError

R = TypeVar("R", bound=Message)
Change = Callable[[Any, Any], Any]


class Lying:
    """Between the label owner and 'lab': changes what goes there, or what comes back."""

    def __init__(
        self,
        inner: Transport,
        *,
        request: Change | None = None,
        reply: Change | None = None,
    ) -> None:
        self.inner = inner
        self.request = request
        self.reply = reply

    def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
        return [self._changed_reply(call) for call in self._changed_calls(calls)]

    def _changed_calls(self, calls: Sequence[Envelope[Any]]) -> list[Envelope[Any]]:
        if self.request is None:
            return list(calls)
        return [
            replace(call, message=self.request(call.message, self))
            if call.receiver == "lab"
            else call
            for call in calls
        ]

    def _changed_reply(self, call: Envelope[Any]) -> Answer:
        (answer,) = self.inner.exchange([call])
        if self.reply is None or call.receiver != "lab":
            return answer
        changed: Answer = self.reply(answer, self)
        return changed


def toy(config: Config | None = None, **changes: Any) -> Toy:
    x, y = table(rows=120)
    made = between(
        {"bank": x[:, :2], "lab": x[:, 2:]},
        y,
        config or Config(depth=2, bins=4, min_rows=2),
    )
    made.peers.transport = Lying(made.peers.transport, **changes)
    return made


def sealed(toy: Toy, values: torch.Tensor) -> Ciphertext:
    """Sums that a party made up, under the label owner's own key."""
    assert toy.driver.secret is not None
    made: Ciphertext = toy.driver.outbox.encrypt(
        values.double(), "sums", "train/0/0", key=toy.driver.secret
    )
    return made


def answered(found: Any, values: Ciphertext) -> Any:
    return Sums(values) if isinstance(found, Sums) else found


def refused(made: Toy, words: str) -> None:
    with pytest.raises(PartyError, match=words) as caught:
        made.run(1)
    assert caught.value.party == "lab"


def test_points_off_the_curve() -> None:
    def spoil(reply: Any, _: Any) -> Any:
        if not (isinstance(reply, Sums) and isinstance(reply.sums, Ciphertext)):
            return reply
        given = reply.sums.encrypted
        key = made.driver.secret.public
        body = b"\x02" + b"\xff" * 32 + given.data[8 + 33 :]
        return Sums(
            made.driver.outbox.pass_on(
                wrap(key, given.shape, "rows", given.bound, body), "sums", "train/0/0"
            )
        )

    made = toy(reply=spoil)
    refused(made, "something else than points")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (torch.full((12, 2), 10.0**6), "no whole number from"),
        (torch.tensor([[0.0, 20_000.0]] * 12), "larger than that of the whole node"),
        (torch.zeros(100_000, 2), "at most 36 candidates"),
    ],
    ids=["too large", "more than the node", "too many"],
)
def test_sums_that_cannot_be(values: torch.Tensor, words: str) -> None:
    values = values if len(values) < 1000 else values[:400]
    made: Toy = toy(reply=lambda reply, _: answered(reply, sealed(made, values)))
    refused(made, words)


def test_a_party_that_lies_about_sizes_after_the_first_level() -> None:
    def fewer(reply: Any, lying: Any) -> Any:
        if not isinstance(reply, Sums):
            return reply
        lying.seen = getattr(lying, "seen", 0) + 1
        return reply if lying.seen == 1 else Sums(sealed(made, torch.zeros(3, 2)))

    made = toy(reply=fewer)
    refused(made, r"it sent \[3, 2\] sums of 1 nodes with 12 candidates")


def test_directions_of_other_rows() -> None:
    def fewer(reply: Any, _: Any) -> Any:
        if not isinstance(reply, Directions):
            return reply
        return Directions(
            made.parties["lab"].outbox.release(
                torch.zeros(3, 1), "directions", "train/0/0"
            )
        )

    x, y = table(rows=120)
    made = between(
        {"bank": x[:, 5:], "lab": x[:, :5]}, y, Config(depth=2, bins=4, min_rows=2)
    )
    made.peers.transport = Lying(made.peers.transport, reply=fewer)
    refused(made, r"it sent \[3, 1\] directions, and \[90, 1\] were asked for")


def asking(change: Change) -> Toy:
    return toy(request=change)


def released(made: Toy, values: torch.Tensor, name: str) -> Any:
    return made.driver.outbox.release(values, name, "train/0/0")


def test_a_label_owner_cannot_ask_for_what_was_not_offered() -> None:
    def other(request: Any, _: Any) -> Any:
        if not isinstance(request, Divide):
            return request
        return Split("train/0/0", released(made, torch.tensor([[0, 10**6]]), "splits"))

    made = asking(other)
    refused(made, "candidate 1000000 was not offered for node 0")


def test_a_node_of_one_row_cannot_be_made_up() -> None:
    """A label owner that sends a single row left learns nothing about it: no sum is
    told of so few rows."""

    def one(request: Any, lying: Any) -> Any:
        if not isinstance(request, Divide):
            return request
        nodes = torch.full((90, 1), 2, dtype=torch.uint8)
        nodes[17] = 1
        return dataclasses.replace(request, nodes=released(made, nodes, "nodes"))

    def keep(reply: Any, lying: Any) -> Any:
        if isinstance(reply, Sums) and isinstance(reply.sums, Ciphertext):
            sums.append(
                np.array(
                    made.driver.secret.decrypt_sums(reply.sums.encrypted, [(0, 1)])
                )
            )
        return reply

    sums: list[Any] = []
    made = toy(request=one, reply=keep)
    made.run(1)
    assert (sums[0][:, 1] >= 0).any()
    assert (sums[1][:, 1] == -1).all()


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (torch.ones(3, 1, dtype=torch.uint8), "not a line for each row"),
        (
            torch.tensor([[1]] + [[0]] * 89, dtype=torch.uint8),
            "some rows of a node stay where others go on",
        ),
    ],
    ids=["rows", "half a node"],
)
def test_nodes_that_cannot_be(nodes: torch.Tensor, words: str) -> None:
    made = asking(
        lambda r, _: (
            dataclasses.replace(r, nodes=released(made, nodes, "nodes"))
            if isinstance(r, Divide)
            else r
        )
    )
    refused(made, words)


def test_a_second_key_and_gradients_of_other_rows() -> None:
    made = toy()
    made.run(1)
    other = made.driver.outbox.publish(
        ElGamalSecretKey(2).public.to_bytes(), "public_key"
    )
    with pytest.raises(PartyError, match="it was given another key before"):
        made.peers["lab"].ask(UseKey(other))
    few = sealed(made, torch.zeros(4, 2))
    with pytest.raises(PartyError, match="gradients of 4 rows, not of 90"):
        made.peers["lab"].ask(Start("train/0/0", 0, 0, few, None, None))
    with pytest.raises(PartyError, match="round 7 came, and it has seen 1"):
        made.peers["lab"].ask(Start("train/0/0", 7, 0, few, None, None))
