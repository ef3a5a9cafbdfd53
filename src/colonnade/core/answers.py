"""What a driver checks before it uses an answer: is it for this batch, of this shape,
and made of numbers?

An answer that does not fit ends the step before anything was learned from it, with an
error that names the party. The check is for parties elsewhere. Those of one process are
the same program, and a diverged model there shows in the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from colonnade.core.cipher import Ciphertext
from colonnade.core.message import Message, Request, batch_of
from colonnade.core.release import Released
from colonnade.errors import ColonnadeError, PartyError


class Declared(Protocol):
    """What an algorithm says of a name that it releases under: its kind, and whether it
    has a line for each row of its batch."""

    @property
    def kind(self) -> object: ...

    @property
    def per_row(self) -> bool: ...


class Answers:
    """Checks the answers of parties.

    A release's name is its sender's word. So a field of a message declares which kinds
    of release it is for, and a release of another kind is refused.

    Args:
        rows: Finds the rows of a batch by its name.
        widths: How many numbers each party said that it sends per row.
        releases: What the algorithm declares of each release.
        wide: The releases that are as wide as the party said.
        held: How many rows of a batch a party holds, where parties differ.
    """

    def __init__(
        self,
        rows: Callable[[str], Tensor],
        widths: Mapping[str, int],
        *,
        releases: Mapping[str, Declared],
        wide: Collection[str],
        held: Callable[[str, str], int] | None = None,
    ) -> None:
        self.rows = rows
        self.widths = widths
        self.releases = releases
        self.wide = wide
        self.held = held

    def check(self, party: str, request: Request[Any], reply: Message) -> None:
        """Raise a PartyError unless the reply can be used."""
        for field, kinds in reply.kinds().items():
            for value in reply.crossing(field):
                self._check_value(party, request, f"{reply.kind}.{field}", kinds, value)
        for released in reply.released():
            self._check_finite(party, request, released)

    def _check_value(
        self,
        party: str,
        request: Request[Any],
        field: str,
        kinds: Collection[object],
        value: Released | Ciphertext,
    ) -> None:
        """Refuse a value of another batch, of a kind that the field is not for, or of
        another shape."""
        receipt = value.receipt
        batch = batch_of(request)
        if batch is not None and receipt.batch not in (None, batch):
            cause = f"it answered for batch {receipt.batch}"
            raise self._wrong(party, request, cause)
        declared = self.releases.get(receipt.name)
        if declared is None or declared.kind not in kinds:
            raise self._misnamed(party, request, field, kinds, value)
        if declared.per_row and batch is not None:
            self._check_shape(party, request, receipt.name, value.shape)

    def _check_finite(
        self, party: str, request: Request[Any], released: Released
    ) -> None:
        tensor = released.tensor
        if not tensor.is_floating_point():
            return
        finite = torch.isfinite(tensor)
        if not bool(finite.all()):
            count = tensor.numel() - int(finite.sum())
            cause = (
                f"{count} of the {tensor.numel()} values it sent as"
                f" {released.receipt.name} are no numbers (NaN or infinite). Its model"
                " may have diverged: lower learning_rate, or look at its columns"
            )
            raise self._wrong(party, request, cause)

    def _check_shape(
        self, party: str, request: Request[Any], name: str, shape: tuple[int, ...]
    ) -> None:
        """Refuse a value that does not have a line for each row, or lines of another
        width than the party said."""
        rows = self._rows_of(party, batch_of(request) or "")
        width = self.widths.get(party) if name in self.wide else None
        has_rows = rows is None or shape[:1] == (rows,)
        has_width = width is None or (shape[-1:] == (width,) and len(shape) >= 2)
        if not (has_rows and has_width):
            wanted_rows = "rows" if rows is None else str(rows)
            wanted_width = "..." if width is None else str(width)
            cause = (
                f"it sent {list(shape)} values, and [{wanted_rows}, {wanted_width}]"
                f" were asked for as {name}"
            )
            raise self._wrong(party, request, cause)

    def _rows_of(self, party: str, batch: str) -> int | None:
        """How many rows of a batch a party answers for; None where it is no batch of
        rows."""
        try:
            if self.held is not None:
                return self.held(party, batch)
            return len(self.rows(batch))
        except ColonnadeError:
            return None

    def _misnamed(
        self,
        party: str,
        request: Request[Any],
        field: str,
        kinds: Collection[object],
        value: Released | Ciphertext,
    ) -> PartyError:
        allowed = [
            repr(name)
            for name, declared in self.releases.items()
            if declared.kind in kinds
        ]
        cause = (
            f"it sent {list(value.shape)} values in {field} as"
            f" {value.receipt.name[:40]!r}, and only what this algorithm releases as"
            f" {' or '.join(allowed) or 'nothing'} may be there. Let it run the same"
            " version of Colonnade as you, unchanged"
        )
        return self._wrong(party, request, cause)

    def _wrong(self, party: str, request: Request[Any], cause: str) -> PartyError:
        return PartyError(party, request.kind, batch_of(request), cause)
