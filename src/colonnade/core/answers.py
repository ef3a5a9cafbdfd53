"""What a driver looks at before it uses an answer: is it for this batch, of this shape, and made of numbers?

What does not fit ends the step before anything was learned from it, with an error that names the party. It is for
parties elsewhere: those of one process are the same program, and a diverged model there shows in the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from colonnade.core.message import Message, Request, batch_of
from colonnade.errors import ColonnadeError, PartyError


class Answers:
    """`rows` looks a batch up; `widths` are what the parties' cards said; what is released under a name in `per_row`
    has a row for each of the batch's."""

    def __init__(
        self,
        rows: Callable[[str], Tensor],
        widths: Mapping[str, int],
        per_row: Collection[str] = ("embedding", "logits"),
    ) -> None:
        self.rows, self.widths, self.per_row = rows, widths, per_row

    def check(self, party: str, request: Request[Any], reply: Message) -> None:
        """Raise a PartyError unless the reply can be used."""
        batch = batch_of(request)
        for released in reply.released():
            tensor, receipt = released.tensor, released.receipt
            if batch is not None and receipt.batch not in (None, batch):
                raise self._wrong(party, request, f"it answered for batch {receipt.batch}")
            if receipt.name in self.per_row and batch is not None and party in self.widths:
                self._check_shape(party, request, tuple(tensor.shape), self._size(batch))
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                bad = tensor.numel() - int(torch.isfinite(tensor).sum())
                cause = (
                    f"{bad} of the {tensor.numel()} values it sent as {receipt.name} are no numbers (NaN or infinite). "
                    "Its model may have diverged: lower learning_rate, or look at its columns"
                )
                raise self._wrong(party, request, cause)

    def _check_shape(self, party: str, request: Request[Any], shape: tuple[int, ...], rows: int | None) -> None:
        width = self.widths[party]
        if len(shape) < 2 or shape[-1] != width or (rows is not None and shape[0] != rows):
            raise self._wrong(party, request, f"it sent {list(shape)} values, and [{rows}, {width}] were asked for")

    def _size(self, batch: str) -> int | None:
        try:
            return len(self.rows(batch))
        except ColonnadeError:  # not a batch of rows
            return None

    def _wrong(self, party: str, request: Request[Any], cause: str) -> PartyError:
        return PartyError(party, request.kind, batch_of(request), cause)
