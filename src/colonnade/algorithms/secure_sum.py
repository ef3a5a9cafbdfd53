"""Secure sums, for algorithms whose label owner needs only the sum of the parties'
logits: nobody sees the terms.

    party k:      a fresh public key                                                      MakeKey   -> PublicKey
                  everybody's public keys                                                 AgreeKeys -> Done
                  its logits, masked so that the masks cancel in the sum                  any reply with `values`

`encryption.masks` says what this assumes. Masks also follow what each party was told
(`Masked.follow`). Keys are never saved: they are agreed on anew when a run starts, is
resumed or loaded, and after a round that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from colonnade.algorithms.embedding import Embed
from colonnade.core import Done, Message, Party, Peers, Released, Request, Rows, serves
from colonnade.encryption.masks import Masks, one_round, open_sum
from colonnade.errors import ConfigError

Ask = Callable[[], Mapping[str, Sequence[Released]]]
"""Asks every party for its part of each sum."""


class PublicKey(Message):
    key: str  # X25519, as hex


class MakeKey(Request[PublicKey]):
    pass


class AgreeKeys(Request[Done]):
    keys: dict[str, str]  # everybody's, by party


class Masked(Party):
    """Holds keys for what leaves under masks."""

    def mask(self, *names: str) -> None:
        """Let nothing of these names leave unmasked from now on, also before any keys
        are agreed on."""
        masks = Masks(self.name)
        for name in names:
            self.outbox.seal(name, masks)

    def follow(self, *told: object) -> None:
        """Bind later masks to what this party was told and its model follows. Masks of
        parties that were told different things do not cancel, so nobody gets a sum in
        which one party moves and the others do not."""
        for value in told if self.outbox.seals else ():
            data = (
                value.tensor.cpu().numpy().tobytes()
                if isinstance(value, Released)
                else repr(value).encode()
            )
            self.outbox.follow(data)

    @serves
    def make_key(self, request: MakeKey) -> PublicKey:  # noqa: ARG002
        return PublicKey(self._masks().public_key())

    @serves
    def agree_keys(self, request: AgreeKeys) -> Done:
        self._masks().agree(request.keys)
        return Done()

    def _masks(self) -> Masks:
        seal = next(iter(self.outbox.seals.values()), None)
        return self.needed(
            seal if isinstance(seal, Masks) else None,
            'it has no keys to agree on, since its aggregation is "plain"',
        )


class Summing:
    """The label owner's side: the sum of what all parties answer, masked or not."""

    def __init__(self, is_secure: bool) -> None:
        self.is_secure = is_secure
        self.agreed: tuple[str, ...] = ()  # who holds keys for the next round

    def check(self, owner: str, parties: Collection[str]) -> None:
        """Raise where a sum would hide nothing."""
        others = set(parties) - {owner}
        if self.is_secure and len(others) < 2:
            raise ConfigError(
                f"A secure sum hides nothing here: besides '{owner}', which learns the"
                " sum, it would have "
                f'{len(others)} of the 2 parties it needs. Set aggregation = "plain",'
                " or add a party."
            )

    def of(self, peers: Peers, ask: Ask) -> list[Tensor]:
        """The sums over all parties; masked ones are in float64."""
        if not self.is_secure:
            return [
                torch.stack([part.tensor for part in parts]).sum(0)
                for parts in zip(*ask().values(), strict=True)
            ]
        agreed = self.agreed or agree(peers)
        self.agreed = ()
        answers = ask()
        rounds = [
            dict(zip(answers, parts, strict=True))
            for parts in zip(*answers.values(), strict=True)
        ]
        sums = [open_sum(one_round(shares, agreed), agreed) for shares in rounds]
        # only now: a round that failed leaves some parties a mask ahead of the others
        self.agreed = agreed
        return sums

    def scores(self, peers: Peers, rows: Rows) -> dict[str, Tensor]:
        """The outputs of parties' models for rows, to be added up: those of each party
        or, masked, their sum."""

        def ask() -> dict[str, list[Released]]:
            return {
                k: [reply.values] for k, reply in peers.ask(Embed(rows.name)).items()
            }

        if self.is_secure:
            return {"sum": self.of(peers, ask)[0]}
        return {k: values.tensor for k, (values,) in ask().items()}


def agree(peers: Peers) -> tuple[str, ...]:
    """Let the parties agree on keys; one by one, since each member of a cohort has its
    own."""
    keys = {k: peer.ask(MakeKey()).key for k, peer in peers.items()}
    for peer in peers.values():
        peer.ask(AgreeKeys(keys))
    return tuple(keys)
