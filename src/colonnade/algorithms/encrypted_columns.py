"""A party's columns times a gradient that it cannot read, for a label owner that cannot read the result either.

    label owner:  a public key, once                                            UseKey   -> Done
                  g of every row, under it                                      Multiply -> Product
    party k:      X_k^T g plus a mask, under the key
    label owner:  decrypts it, under the mask, and sends it back
    party k:      takes the mask off

This is for two that follow it. An opened number has 60 bits, and of two classes the first gradient has one a row: so a
party's exact sums tell its labels where rows are few (`ROWS_FOR_A_NUMBER`), and a party that multiplies by what it likes
reads dozens of labels off each number, a round. A label owner whose key or ciphertexts are made for it reads columns
behind their mask. Schemes that could notice either are not used here. Secret keys are made anew in every process and
never saved. `encryption.bfv` says what is rounded, and how little.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Annotated, Any

from torch import Tensor

from colonnade.algorithms.algorithm import Kind
from colonnade.core import (
    NON_PRIVATE,
    Ciphertext,
    Done,
    Message,
    Outbox,
    Peers,
    Released,
    Request,
    roles,
    serves,
)
from colonnade.encryption import PublicKey, SecretKey, make_keys, read_public_key
from colonnade.errors import PartyError
from colonnade.optim.descent import set_gradient


ROWS_FOR_A_NUMBER = 64
"""Rows that there must be for every number that is opened: with fewer, only one choice of labels may fit its bits."""


class UseKey(Request[Done]):
    public: Released  # the label owner's


class Product(Message):
    gradient: Annotated[Ciphertext, Kind.OTHER]  # [outputs, columns], under the label owner's key and the party's mask


class Multiply(Request[Product]):
    batch: str
    gradient: Ciphertext  # of every row, [rows, outputs], under the label owner's key


class Multiplying(roles.FeatureOwner):
    """Holds the label owner's key, and the mask on a product that is to come back."""

    _key: PublicKey | None = None
    _mask: tuple[str, float, Any] | None = None  # of a batch: what columns were divided by, and the mask

    @serves
    def use_key(self, request: UseKey) -> Done:
        """The first one stands: a label owner has one key as long as it runs."""
        self.expect(self.config.encryption != "none", 'it takes no key, since its encryption is "none"')
        key = read_public_key(request.public, scheme=self.config.encryption, use="columns")
        self.expect(self._key is None or self._key.id == key.id, "it was given another key before, and keeps to that")
        self._key = key
        return Done()

    @serves
    def multiply(self, request: Multiply, asker: str | None) -> Product:
        """Columns are divided by a power of two, so that every product fits and no bit is lost that could be kept."""
        key, x = self._given(), self.x(request.batch).flatten(1).double()
        self.expect_shape("the encrypted gradient", request.gradient, len(x), next(self.model.parameters()).shape[0])
        scale = power_of_two(float(x.abs().sum(0).max()) * key.limit / key.capacity)
        blinded, mask = key.blind(key.product(request.gradient.encrypted, x / scale, owner=self.name))
        self._mask = request.batch, scale, mask
        return Product(self.outbox.pass_on(blinded, "masked_gradient", request.batch, to=asker))

    def unmasked(self, batch: str, given: Ciphertext) -> Tensor:
        """X_k^T g, [columns, outputs]."""
        pending, scale, mask = self._mask or (None, 1.0, None)
        self.expect(pending == batch, f"a masked gradient came for batch {batch}, and {pending} is pending")
        weight = next(self.model.parameters())
        self.expect_shape("the masked gradient", given, *weight.shape)
        self._mask = None  # it is used once
        found = scale * self._given().unblind(given.encrypted, mask).to(self.device)
        if weight.grad is None:  # the first says most about labels: an audit looks at it
            set_gradient(found.flatten() / len(self.rows(batch)), [weight])
        return found.T

    def _given(self) -> PublicKey:
        self.expect(self._key is not None, "it was not given a key yet")
        assert self._key is not None
        return self._key


class Opening:
    """The label owner's side: its secret key, and how many numbers of each party it opens."""

    def __init__(self, scheme: str, outbox: Outbox) -> None:
        self.scheme, self.outbox = scheme, outbox
        self.secret: SecretKey | None = None
        self.columns: dict[str, int] = {}

    def share_key(self, peers: Peers, others: Collection[str], first: Tensor) -> None:
        """Before the first round. The key's limit tells a power of two, eight times the size of the first gradients or
        more, so that later ones fit, too."""
        limit = power_of_two(8 * float(first.abs().max()))
        self.secret = self.secret or make_keys(self.scheme, use="columns", limit=limit)
        public = self.outbox.publish(self.secret.public.to_bytes(), "public_key")
        peers.ask_each(dict.fromkeys(others, UseKey(public)))

    def ask(self, peers: Peers, others: Collection[str], batch: str, gradient: Tensor) -> dict[str, Ciphertext]:
        """For each of the others its product, opened under its mask."""
        assert self.secret is not None
        sent = self.outbox.encrypt(gradient, "gradient", batch, key=self.secret)
        products = peers.ask_each(dict.fromkeys(others, Multiply(batch, sent)))
        return {k: self.opened(k, sent, product) for k, product in products.items()}

    def opened(self, party: str, sent: Ciphertext, reply: Product) -> Ciphertext:
        """What is under a party's mask, where it is a number per column and so few that labels do not follow at once."""
        (rows, outputs), found, batch = sent.shape, reply.gradient.shape, sent.receipt.batch
        count = self.columns.setdefault(party, found[-1] if found else 0)
        if found != (outputs, count) or not 0 < ROWS_FOR_A_NUMBER * outputs * count <= rows:
            rule = f"only [{outputs}, columns] is opened, as many in all rounds, with {ROWS_FOR_A_NUMBER} rows a number"
            cure = 'Take more rows, fewer columns ([preprocess] numbers = "standard" has no bins), or no encryption.'
            why = f"it sent products {list(found)} of {rows} rows, and {rule}: else labels follow. {cure}"
            raise PartyError(party, reply.kind, batch, why)
        assert self.secret is not None
        spent = sent.receipt.event.kind not in (NON_PRIVATE.kind, sent.encrypted.guarantee)
        event = None if spent else NON_PRIVATE  # what a mechanism let through was counted when it was encrypted
        opened = self.secret.open_blinded(reply.gradient.encrypted)
        return self.outbox.pass_on(opened, "column_gradient", batch, event=event)


def power_of_two(value: float) -> float:
    """The next one above."""
    return 2.0 ** math.ceil(math.log2(max(value, 2.0**-40)))
