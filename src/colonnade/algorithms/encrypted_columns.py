"""A party's columns times a gradient that it cannot read, for a label owner that cannot
read the result either.

    label owner:  a public key, once                                            UseKey   -> Done
                  g of every row, under it                                      Multiply -> Product
    party k:      X_k^T g plus a mask, under the key
    label owner:  decrypts it, under the mask, and sends it back
    party k:      takes the mask off

This holds while both follow the protocol. An opened number has 60 bits, and with two
classes the first gradient has one bit a row: so exact sums tell labels where rows are
few (`ROWS_FOR_A_NUMBER`), and a party that multiplies by other numbers than its columns
reads dozens of labels off each opened number, in every round. A label owner with a key
or ciphertexts made for this purpose reads columns behind their mask. Schemes that could
notice either are not used here. Secret keys are made anew in every process and never
saved. `encryption.bfv` says what is rounded, and how little.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Annotated

from torch import Tensor

from colonnade.algorithms.algorithm import Kind
from colonnade.algorithms.under_key import Masking, opened
from colonnade.core import (
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
from colonnade.encryption import SecretKey, make_keys, read_public_key
from colonnade.errors import ConfigError, PartyError
from colonnade.optim.jacobians import set_gradient

ROWS_FOR_A_NUMBER = 64
"""The fewest rows for every number that is opened: with fewer, only one choice of
labels may fit its bits."""
LEAST = 1.0
"""The smallest limit of a key: a party scales its columns by it, and with a tiny one
would refuse large columns."""


class Introduced(roles.Introduction):
    """A party that has sums opened says first for how many columns: as many in all
    rounds."""

    columns: int


class UseKey(Request[Done]):
    public: Released  # the label owner's


class Product(Message):
    # [outputs, columns], under the label owner's key and the party's mask
    gradient: Annotated[Ciphertext, Kind.OTHER]


class Multiply(Request[Product]):
    batch: str
    gradient: Ciphertext  # of every row, [rows, outputs], under the label owner's key


class Multiplying(Masking):
    """Holds the label owner's key, and the mask on a product that is to come back."""

    @serves
    def introduce(self, request: roles.Introduce) -> roles.Introduction:
        introduction = super().introduce(request)
        if self.config.encryption == "none":
            return introduction
        return Introduced(
            introduction.shape,
            introduction.rows,
            introduction.agreed,
            self.features.shape[1:].numel(),
        )

    @serves
    def use_key(self, request: UseKey) -> Done:
        self.expect(
            self.config.encryption != "none",
            'it takes no key, since its encryption is "none"',
        )
        key = read_public_key(
            request.public, scheme=self.config.encryption, use="columns"
        )
        self.expect(
            key.limit >= LEAST,
            f"its key is for values up to {key.limit:g}, and gradients are larger",
        )
        return self.keep(key)

    @serves
    def multiply(self, request: Multiply, asker: str | None) -> Product:
        """Multiply by columns divided by a power of two: every product fits, and as few
        bits as possible are lost."""
        key = self.key
        x = self.x(request.batch).flatten(1).double()
        self.expect_shape(
            "the encrypted gradient",
            request.gradient,
            len(x),
            next(self.model.parameters()).shape[0],
        )
        scale = power_of_two(float(x.abs().sum(0).max()) * key.limit / key.capacity)
        return Product(
            self.masked(request.batch, request.gradient, x / scale, scale, asker)
        )

    def unmasked(self, batch: str, given: Ciphertext) -> Tensor:
        """X_k^T g, [columns, outputs]."""
        scale, mask = self.mask_on(batch, "a masked gradient")
        weight = next(self.model.parameters())
        self.expect_shape("the masked gradient", given, *weight.shape)
        product = scale * self.key.unblind(given.encrypted, mask).to(self.device)
        # the first gradient says most about labels: an audit looks at it
        if weight.grad is None:
            set_gradient(product.flatten() / len(self.rows(batch)), [weight])
        return product.T


class Opening:
    """The label owner's side: its secret key, and how many numbers of each party it
    opens."""

    def __init__(self, scheme: str, outbox: Outbox) -> None:
        self.scheme = scheme
        self.outbox = outbox
        self.secret: SecretKey | None = None
        self.columns: dict[str, int] = {}

    def share_key(self, peers: Peers, others: Collection[str], first: Tensor) -> None:
        """Send the key before the first round. Its limit tells a power of two, at least
        eight times the size of the first gradients, so that later ones fit, too."""
        limit = max(power_of_two(8 * float(first.abs().max())), LEAST)
        self.secret = self.secret or make_keys(self.scheme, use="columns", limit=limit)
        public = self.outbox.publish(self.secret.public.to_bytes(), "public_key")
        peers.ask_each(dict.fromkeys(others, UseKey(public)))

    def ask(
        self, peers: Peers, others: Collection[str], batch: str, gradient: Tensor
    ) -> dict[str, Ciphertext]:
        """The product of each of the others, opened under its mask."""
        assert self.secret is not None
        sent = self.outbox.encrypt(gradient, "gradient", batch, key=self.secret)
        products = peers.ask_each(dict.fromkeys(others, Multiply(batch, sent)))
        return {k: self.opened(k, sent, product) for k, product in products.items()}

    def meet(
        self, introductions: Mapping[str, roles.Introduction], rows: int, outputs: int
    ) -> None:
        """Remember how many columns each of the others has: so few that labels do not
        follow from their sums."""
        self.columns = {
            k: party.columns
            for k, party in introductions.items()
            if isinstance(party, Introduced)
        }
        for party, columns in self.columns.items():
            if rows and not 0 < (need := ROWS_FOR_A_NUMBER * outputs * columns) <= rows:
                raise ConfigError(
                    f'encryption = "{self.scheme}" opens {outputs} sums a round for'
                    f" each of the {columns} columns of "
                    f"'{party}', as they are after preparation. Of {rows:,} training"
                    " rows these tell labels: there "
                    f"must be {ROWS_FOR_A_NUMBER} for each sum, {need:,} here.\n   "
                    " Give more rows or fewer columns "
                    '([preprocess] numbers = "standard" makes no bins), or set'
                    ' encryption = "none".'
                )

    def remember(self, columns: Mapping[str, int]) -> None:
        """Refuse a party that now says another number of columns than when the run
        began."""
        for party, before in columns.items():
            if (now := self.columns.setdefault(party, before)) != before:
                raise ConfigError(
                    f"'{party}' says that it has {now} columns, and this run began with"
                    f" {before} of it: more sums tell more of labels.\n    Resume with"
                    " the columns it began with, or begin a new run."
                )

    def opened(self, party: str, sent: Ciphertext, reply: Product) -> Ciphertext:
        """Open what is under a party's mask, if it has a number for each column that
        the party said it has."""
        shape, wanted = (
            reply.gradient.shape,
            (
                sent.shape[-1],
                self.columns.get(party, 0),
            ),
        )
        if shape != wanted:
            why = (
                f"it sent products {list(shape)}, and {list(wanted)} are opened, by"
                " what it said of its columns"
            )
            raise PartyError(party, reply.kind, sent.receipt.batch, why)
        assert self.secret is not None
        return opened(self.secret, self.outbox, sent, reply.gradient, "column_gradient")


def power_of_two(value: float) -> float:
    """The next power of two that is not below the value."""
    return 2.0 ** math.ceil(math.log2(max(value, 2.0**-40)))
