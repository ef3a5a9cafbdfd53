"""The party that can decrypt sorts, and tells only the order. It is the key server,
which has no data and does not know which rows these are, or, as in Algorithm 1 of the
paper, a participant. (A leader who decrypts tells nobody.)

In Algorithm 1 all participants hold one secret key. Here a secret key never leaves the
party that made it: every participant makes its own, and a query's distances are
encrypted for the participant drawn to sort them.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.core import (
    Ciphertext,
    Encrypted,
    Message,
    Organisation,
    Party,
    Released,
    Request,
    serves,
)
from colonnade.core.party import Refused
from colonnade.encryption import make_keys
from colonnade.selection.neighbours import Ids, Numbers, ordered

ORDER = "order"
PACK = {"ckks": 4096, "bfv": 8192}
"""Values that share a ciphertext, in keys for sums."""
CAPACITY = {"ckks": 2.0**16, "bfv": 2.0**28}
"""The largest sum; without encryption it is scaled like CKKS."""
FEW = 1 << 24
UNEVEN = 64
"""How many places an order may always have; and beyond, for each candidate: queries
have about as many candidates."""


class Key(Message):
    public: Released


class AskPublicKey(Request[Key]):
    """Asked of whoever decrypts."""


class Sorted(Message):
    """Positions among each query's candidates, nearest first; -1 beyond the last."""

    order: Released


class Sort(Request[Sorted]):
    """Decrypt a group's sum of distances and sort it, query by query; `counts` says how
    many candidates each has."""

    group: int
    total: Ciphertext
    counts: Released
    first: int


class Further(Request[Sorted]):
    """More of what was sorted last, for some of the queries."""

    group: int
    queries: Released
    start: int
    stop: int


class Orders:
    """Candidates in the order of their distance, [queries, most candidates]."""

    def __init__(self, values: Numbers, counts: Ids, tolerance: float = 0.0) -> None:
        fits = (
            counts.ndim == 1
            and counts.min(initial=0) >= 0
            and counts.sum(dtype=np.int64) == len(values)
        )
        places = len(counts) * int(counts.max(initial=0)) if fits else 0
        # before memory is taken for them
        if not fits or places > max(FEW, UNEVEN * len(values)):
            raise Refused(
                "the counts are not of the candidates that came, or differ too much:"
                " ask for fewer queries"
            )
        padded = np.full((len(counts), int(counts.max(initial=0))), np.inf)
        present = np.arange(padded.shape[1]) < counts[:, None]
        padded[present] = values
        self._order = ordered(padded, tolerance).astype(np.int32)
        self._order[~present] = -1

    def part(
        self, start: int, stop: int, queries: NDArray[np.int64] | None = None
    ) -> Tensor:
        rows = self._order if queries is None else self._order[queries]
        return torch.from_numpy(np.ascontiguousarray(rows[:, start:stop]))


LEAST = 2
"""The fewest participants in a sum that is sorted."""


class Sorter:
    """A secret key, and what was sorted with it last."""

    def __init__(self, scheme: str, most: int) -> None:
        self.secret = make_keys(scheme, use="sums", limit=limit(scheme, most))
        self.operations = Counter[str]()
        self._orders: dict[int, Orders] = {}

    def sort(self, request: Sort) -> Tensor:
        if not request.group:
            self._orders.clear()
        values, noise = self.open(request.total)
        orders = self._orders[request.group] = Orders(
            values, request.counts.tensor.numpy(), noise
        )
        return orders.part(0, request.first)

    def open(self, total: Ciphertext) -> tuple[Numbers, float]:
        """The values, and the most by which two equal ones may differ."""
        self.operations["decryptions"] += packs(total.encrypted)
        values: Numbers = self.secret.decrypt(total.encrypted).numpy()
        return values, 2 * self.parties(total) * self.secret.public.error

    def further(self, request: Further) -> Tensor:
        if request.group not in self._orders:
            raise Refused(
                f"it has sorted nothing of group {request.group}, so there is no more"
                " of it"
            )
        return self._orders[request.group].part(
            request.start, request.stop, request.queries.tensor.numpy()
        )

    def parties(self, total: Ciphertext) -> int:
        """How many parties' values a sum has, by the bound that it carries."""
        return round(total.encrypted.bound / self.secret.public.limit)


def limit(scheme: str, most: int) -> float:
    """The largest value of each of `most` participants whose sum fits: a power of two,
    so that scaling is exact."""
    return 2.0 ** math.floor(math.log2(CAPACITY.get(scheme, 2.0**16) / most))


def packs(encrypted: Encrypted) -> int:
    """How many ciphertexts these values take."""
    return -(-math.prod(encrypted.shape) // PACK.get(encrypted.scheme, 4096))


class SortingParty(Party):
    """A party that may have a key, and then decrypts and sorts sums of two or more
    participants."""

    sorter: Sorter | None = None

    def make_keys(self, scheme: str, most: int) -> None:
        """Make keys to sort sums of at most `most` participants."""
        self.sorter = Sorter(scheme, most)

    @serves
    def ask_public_key(self, request: AskPublicKey) -> Key:  # noqa: ARG002
        return Key(
            self.outbox.publish(self._sorter().secret.public.to_bytes(), "public_key")
        )

    @serves
    def sort(self, request: Sort) -> Sorted:
        parties = self._sorter().parties(request.total)
        self.expect(
            parties >= LEAST,
            f"it sorts sums of {LEAST} or more participants, and this is of {parties}",
        )
        return Sorted(self.outbox.release(self._sorter().sort(request), ORDER))

    @serves
    def further(self, request: Further) -> Sorted:
        return Sorted(self.outbox.release(self._sorter().further(request), ORDER))

    def _sorter(self) -> Sorter:
        return self.needed(
            self.sorter, "it has made no keys, so nothing was encrypted for it"
        )


class KeyServer(SortingParty):
    """Trusted to work with nobody else; it holds no data."""

    sorter: Sorter

    def __init__(
        self, organisation: Organisation, *, scheme: str = "ckks", most: int
    ) -> None:
        super().__init__(organisation)
        self.make_keys(scheme, most)
