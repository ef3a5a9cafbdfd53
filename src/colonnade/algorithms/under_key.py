"""For algorithms whose parties compute under a key that somebody else made.

party k:       keeps to the first public key that it is given                          keep
               x M under it, and a mask, of an encrypted x and an M of its own         masked
key's maker:   takes the encryption off, and cannot look behind the mask               opened
party k:       takes the mask off                                                      mask_on
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from colonnade.core import (
    NON_PRIVATE,
    Ciphertext,
    Done,
    Organisation,
    Outbox,
    Released,
    Request,
    roles,
)
from colonnade.encryption import PublicKey, SecretKey
from colonnade.encryption.scheme import Key
from colonnade.errors import PartyError

K = TypeVar("K", bound=Key)
Form = TypeVar("Form", Released, Ciphertext)


class Keyed(roles.FeatureOwner, Generic[K]):
    """Computes under somebody else's public key."""

    _key: K | None = None

    def keep(self, key: K) -> Done:
        """Keep the first key, and refuse others: its maker has one key as long as it
        runs."""
        self.expect(
            self._key is None or self._key.id == key.id,
            "it was given another key before, and keeps to that",
        )
        self._key = key
        return Done()

    @property
    def key(self) -> K:
        return self.needed(self._key, "it was not given a key yet")


class Masking(Keyed[PublicKey]):
    """Hides what it computes from the key's maker, and keeps the mask until the result
    comes back."""

    def __init__(
        self,
        organisation: Organisation,
        features: Tensor,
        model: nn.Module,
        config: Any,
    ) -> None:
        super().__init__(organisation, features, model, config)
        # by batch: a number to remember, and the mask
        self._blinded: dict[str, tuple[float, Any]] = {}

    def masked(
        self,
        batch: str,
        x: Ciphertext,
        matrix: Tensor,
        number: float,
        asker: str | None,
    ) -> Ciphertext:
        blinded, mask = self.key.blind(
            self.key.product(x.encrypted, matrix, owner=self.name)
        )
        self._blinded.clear()
        self._blinded[batch] = number, mask
        return self.outbox.pass_on(blinded, "masked_gradient", batch, to=asker)

    def mask_on(self, batch: str, what: str) -> tuple[float, Any]:
        """The number and the mask, for one answer: whoever could try again would learn
        from what is refused."""
        self.expect(
            batch in self._blinded,
            f"{what} came for batch {batch}, and it has no mask for it",
        )
        return self._blinded.pop(batch)


def as_agreed(
    form: type[Form],
    values: Released | Ciphertext,
    party: str,
    request: Request[Any],
    batch: str,
) -> Form:
    """What a party sent, if it is readable, or encrypted, as was agreed."""
    if not isinstance(values, form):
        sent, agreed = (
            ("readable", "encrypted")
            if form is Ciphertext
            else ("encrypted", "readable")
        )
        cause = (
            f"it sent {sent} values, and by the agreed settings they are {agreed}; give"
            " all parties the same ones"
        )
        raise PartyError(party, request.kind, batch, cause)
    return values


def opened(
    secret: SecretKey, outbox: Outbox, sent: Ciphertext, masked: Ciphertext, as_: str
) -> Ciphertext:
    """Decrypt what is under a party's mask, to be sent back to it."""
    spent = sent.receipt.event.kind not in (NON_PRIVATE.kind, sent.encrypted.guarantee)
    # what a mechanism let through was counted when it was encrypted
    event = None if spent else NON_PRIVATE
    return outbox.pass_on(
        secret.open_blinded(masked.encrypted), as_, sent.receipt.batch, event=event
    )
