"""What a driver looks at before it uses an answer: is it for this batch, of this shape, and made of numbers?"""

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
    """What an algorithm says of a name that it releases under."""

    @property
    def kind(self) -> object: ...

    @property
    def per_row(self) -> bool: ...


class Answers:
    """What a driver looks at before it uses an answer: is it for this batch, of this shape, and made of numbers?

    What does not fit ends the step before anything was learned from it, with an error that names the party. It is for
    parties elsewhere: those of one process are the same program, and a diverged model there shows in the loss. `rows`
    looks a batch up. A field of a message says of which kinds its releases are, and `releases` what the algorithm says
    of each: one per row has a line for each of the batch's rows, and where its name is in `wide`, a line is as wide as
    the party said (`widths`). The name is the sender's word, so one that the field is not for is refused."""

    def __init__(
        self,
        rows: Callable[[str], Tensor],
        widths: Mapping[str, int],
        *,
        releases: Mapping[str, Declared],
        wide: Collection[str],
        held: Callable[[str, str], int] | None = None,
    ) -> None:
        self.rows, self.widths, self.releases, self.wide = rows, widths, releases, wide
        self.held = held  # of how many rows of a batch a party has something, where parties differ

    def check(self, party: str, request: Request[Any], reply: Message) -> None:
        """Raise a PartyError unless the reply can be used."""
        batch = batch_of(request)
        for field, kinds in reply.kinds().items():
            for item in reply.crossing(field):
                receipt = item.receipt
                if batch is not None and receipt.batch not in (None, batch):
                    raise self._wrong(party, request, f"it answered for batch {receipt.batch}")
                declared = self.releases.get(receipt.name)
                if declared is None or declared.kind not in kinds:
                    raise self._misnamed(party, request, f"{reply.kind}.{field}", kinds, item)
                if declared.per_row and batch is not None:
                    self._check_shape(party, request, receipt.name, item.shape)
        for released in reply.released():
            tensor, receipt = released.tensor, released.receipt
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                bad = tensor.numel() - int(torch.isfinite(tensor).sum())
                cause = (
                    f"{bad} of the {tensor.numel()} values it sent as {receipt.name} are no numbers (NaN or infinite). "
                    "Its model may have diverged: lower learning_rate, or look at its columns"
                )
                raise self._wrong(party, request, cause)

    def _misnamed(
        self, party: str, request: Request[Any], field: str, kinds: Collection[object], item: Released | Ciphertext
    ) -> PartyError:
        names = [repr(name) for name, declared in self.releases.items() if declared.kind in kinds]
        cause = (
            f"it sent {list(item.shape)} values in {field} as {item.receipt.name[:40]!r}, and only what this algorithm "
            f"releases as {' or '.join(names) or 'nothing'} may be there. Let it run the same version of Colonnade as "
            "you, unchanged"
        )
        return self._wrong(party, request, cause)

    def _check_shape(self, party: str, request: Request[Any], name: str, shape: tuple[int, ...]) -> None:
        try:
            batch = batch_of(request) or ""
            rows = len(self.rows(batch)) if self.held is None else self.held(party, batch)
        except ColonnadeError:  # not a batch of rows
            rows = None
        width = self.widths.get(party) if name in self.wide else None
        fits = (rows is None or shape[:1] == (rows,)) and (width is None or shape[-1:] == (width,))
        if not fits or (width is not None and len(shape) < 2):
            said = [word if known is None else str(known) for known, word in ((rows, "rows"), (width, "..."))]
            raise self._wrong(
                party, request, f"it sent {list(shape)} values, and [{', '.join(said)}] were asked for as {name}"
            )

    def _wrong(self, party: str, request: Request[Any], cause: str) -> PartyError:
        return PartyError(party, request.kind, batch_of(request), cause)
