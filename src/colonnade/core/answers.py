"""What a driver makes of answers: it looks at each before it uses it (`Answers`), and
goes on without those that do not come (`Missing`): it takes a party's last answer for
the same rows, or leaves the party out.

    "stale"   H_k[rows], the party's last embedding of each row, stands in; in an epoch that has none of them yet it is
              left out where the algorithm's maths allows that, and else the step fails
    "skip"    the party is left out of the batch

Which of the two an algorithm's maths allows it says itself (`missing(config)`). Nothing
is silent: every time is counted by party, and what was done instead. A party that gave
no embedding for a batch gets no update for it either. What is not about a batch, such
as introductions, keys and first heads, cannot be missed.

A model that is used without a party was not trained without it, and its outputs are
off. So the driver remembers what everybody last said of validation rows: from that it
can tell what outputs without a party stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from colonnade.core.cipher import Ciphertext
from colonnade.core.message import MESSAGES, Message, Request, batch_of
from colonnade.core.outbox import Outbox
from colonnade.core.release import Released
from colonnade.core.wire import Envelope
from colonnade.errors import ColonnadeError, NoAnswer, PartyError

STALE = "stale"
SKIP = "skip"
NOT_UPDATED = "not_updated"
Counts = dict[str, dict[str, int]]
Calls = Mapping[str, Envelope[Request[Any]]]
Lookup = Callable[[str], Tensor]
"""Of a batch by its name."""
HELD_OUT = "validation["
"""How the names of batches begin whose rows are looked at and not learned from."""
LABELS = ""
"""Under which, as no party is called, their labels are remembered beside their answers.
"""


@dataclass
class Memory:
    """One party's last answer for each row."""

    kind: str  # of message
    values: Tensor
    known: Tensor  # for which rows there is one

    def __contains__(self, rows: Tensor) -> bool:
        return bool(self.known[rows].all())


class Missing:
    """A driver's rule for missing parties, what it remembers for it, and how often it
    was needed."""

    def __init__(
        self,
        rule: str,
        allowed: Collection[str],
        outbox: Outbox,
        rows: Lookup,
        size: int,
        labels: Lookup | None = None,
    ):
        self.rule = rule
        self.allowed = allowed
        self.outbox = outbox
        self.rows = rows
        self.size = size
        self.absent: dict[str, str] = {}  # party -> the batch it gave nothing for
        # not to be asked at all, such as who holds none of the rows
        self.known_away: Collection[str] = ()
        self.counts: Counts = {}
        # by batch of validation rows, each party's last answer
        self.held_out: dict[str, dict[str, Tensor]] = {}
        self._memory: dict[str, Memory] = {}
        self._labels = labels

    def to_ask(self, envelopes: Calls) -> dict[str, Envelope[Request[Any]]]:
        """Without updates for a batch that a party gave nothing for, and without who is
        known to be away."""
        return {
            to: e
            for to, e in envelopes.items()
            if to not in self.known_away and not self._left_out(to, e.message)
        }

    def complete(
        self,
        envelopes: Calls,
        replies: Mapping[str, Message],
        failures: Mapping[str, PartyError],
    ) -> dict[str, Message]:
        """The answers to go on with: those that came, and what stands in for the
        others."""
        for error in failures.values():
            if not isinstance(error, NoAnswer) or error.batch is None:
                raise error
        answers: dict[str, Message] = {}
        for to, envelope in envelopes.items():
            request = envelope.message
            if to in replies:
                answers[to] = replies[to]
                self._note(to, request, replies[to])
            elif self._left_out(to, request):
                continue
            # its answer to the batch was used, and it learns nothing from it
            elif request.crossing():
                self._count(to, NOT_UPDATED)
            else:
                away = NoAnswer(
                    to, request.kind, batch_of(request), "it holds none of the rows"
                )
                stand_in = self._instead(to, request, failures.get(to, away))
                answers |= {} if stand_in is None else {to: stand_in}
        if (
            envelopes
            and not answers
            and not any(self._left_out(to, e.message) for to, e in envelopes.items())
        ):
            raise next(
                iter(failures.values()),
                NoAnswer("nobody", "a request", None, "all parties are missing"),
            )
        return answers

    def take(self) -> Counts:
        """How often each party was missing since this was last asked."""
        counts = self.counts
        self.counts = {}
        return counts

    def of(self, batch: str) -> list[str]:
        """The parties that gave nothing for a batch that was just asked for."""
        return [party for party, missed in self.absent.items() if missed == batch]

    def _left_out(self, to: str, request: Message) -> bool:
        return bool(request.crossing()) and self.absent.get(to, "") == batch_of(request)

    def _note(self, to: str, request: Message, reply: Message) -> None:
        batch = batch_of(request)
        if not request.crossing():
            self.absent.pop(to, None)
        if batch is None or len(released := reply.released()) != 1:
            return
        h = released[0].tensor.detach()
        rows = self.rows(batch)
        if len(h) != len(rows):  # it has no line for each row
            return
        if (
            batch.startswith(HELD_OUT)
            and SKIP in self.allowed
            and self._labels is not None
        ):
            self.held_out.setdefault(batch, {LABELS: self._labels(batch)})[to] = h
        if self.rule != STALE:
            return
        if to not in self._memory:
            known = torch.zeros(self.size, dtype=torch.bool, device=h.device)
            self._memory[to] = Memory(
                reply.kind, h.new_zeros(self.size, *h.shape[1:]), known
            )
        memory = self._memory[to]
        memory.values[rows], memory.known[rows] = h, True

    def _instead(self, to: str, request: Message, error: PartyError) -> Message | None:
        batch = batch_of(request)
        assert batch is not None
        self.absent[to] = batch
        memory = self._memory.get(to)
        rows = self.rows(batch)
        if self.rule == STALE and memory is not None and rows in memory:
            self._count(to, STALE)
            mine = self.outbox.owner  # it crosses nothing: the driver has it already
            old = self.outbox.release(memory.values[rows], STALE, batch, to=mine)
            return MESSAGES[memory.kind](old)  # type: ignore[call-arg]
        if SKIP in self.allowed:
            self._count(to, SKIP)
            return None
        cause = (
            f"{error.cause}; and there is no earlier answer of its for all of these"
            " rows to go on with"
        )
        raise NoAnswer(error.party, error.request, error.batch, cause) from error

    def _count(self, to: str, what: str) -> None:
        times = self.counts.setdefault(to, {})
        times[what] = times.get(what, 0) + 1

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the answers that may have to stand in."""
        return {to: vars(memory) for to, memory in self._memory.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `state()`, unless it is of other rows, as where some are loaded
        to be predicted."""
        self._memory = {
            to: Memory(**one)
            for to, one in state.items()
            if len(one["known"]) == self.size
        }

    def said(self, parties: Collection[str]) -> tuple[dict[str, Tensor], Tensor] | None:
        """What these parties last said of the validation rows of which all of them said
        something, and their labels."""
        batches = [
            answers
            for answers in self.held_out.values()
            if set(parties) <= answers.keys()
        ]
        if not batches:
            return None
        labels = torch.cat([answers[LABELS] for answers in batches])
        return {
            party: torch.cat([answers[party] for answers in batches])
            for party in parties
        }, labels


class Declared(Protocol):
    """What an algorithm says of a name that it releases under."""

    @property
    def kind(self) -> object: ...

    @property
    def per_row(self) -> bool: ...


class Answers:
    """What a driver looks at before it uses an answer: is it for this batch, of this
    shape, and made of numbers?

    What does not fit ends the step before anything was learned from it, with an error
    that names the party. It is for parties elsewhere: those of one process are the same
    program, and a diverged model there shows in the loss. `rows` looks a batch up. A
    field of a message says of which kinds its releases are, and `releases` what the
    algorithm says of each: one per row has a line for each of the batch's rows, and
    where its name is in `wide`, a line is as wide as the party said (`widths`). The
    name is the sender's word, so one that the field is not for is refused."""

    def __init__(
        self,
        rows: Lookup,
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
        # of how many rows of a batch a party has something, where parties differ
        self.held = held

    def check(self, party: str, request: Request[Any], reply: Message) -> None:
        """Raise a PartyError unless the reply can be used."""
        batch = batch_of(request)
        for field, kinds in reply.kinds().items():
            for item in reply.crossing(field):
                receipt = item.receipt
                if batch is not None and receipt.batch not in (None, batch):
                    raise self._wrong(
                        party, request, f"it answered for batch {receipt.batch}"
                    )
                declared = self.releases.get(receipt.name)
                if declared is None or declared.kind not in kinds:
                    raise self._misnamed(
                        party, request, f"{reply.kind}.{field}", kinds, item
                    )
                if declared.per_row and batch is not None:
                    self._check_shape(party, request, receipt.name, item.shape)
        for released in reply.released():
            tensor = released.tensor
            receipt = released.receipt
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                bad = tensor.numel() - int(torch.isfinite(tensor).sum())
                cause = (
                    f"{bad} of the {tensor.numel()} values it sent as {receipt.name}"
                    " are no numbers (NaN or infinite). Its model may have diverged:"
                    " lower learning_rate, or look at its columns"
                )
                raise self._wrong(party, request, cause)

    def _misnamed(
        self,
        party: str,
        request: Request[Any],
        field: str,
        kinds: Collection[object],
        item: Released | Ciphertext,
    ) -> PartyError:
        names = [
            repr(name)
            for name, declared in self.releases.items()
            if declared.kind in kinds
        ]
        cause = (
            f"it sent {list(item.shape)} values in {field} as"
            f" {item.receipt.name[:40]!r}, and only what this algorithm releases as"
            f" {' or '.join(names) or 'nothing'} may be there. Let it run the same"
            " version of Colonnade as you, unchanged"
        )
        return self._wrong(party, request, cause)

    def _check_shape(
        self, party: str, request: Request[Any], name: str, shape: tuple[int, ...]
    ) -> None:
        try:
            batch = batch_of(request) or ""
            rows = (
                len(self.rows(batch)) if self.held is None else self.held(party, batch)
            )
        except ColonnadeError:  # not a batch of rows
            rows = None
        width = self.widths.get(party) if name in self.wide else None
        fits = (rows is None or shape[:1] == (rows,)) and (
            width is None or shape[-1:] == (width,)
        )
        if not fits or (width is not None and len(shape) < 2):
            said = [
                word if known is None else str(known)
                for known, word in ((rows, "rows"), (width, "..."))
            ]
            raise self._wrong(
                party,
                request,
                f"it sent {list(shape)} values, and [{', '.join(said)}] were asked for"
                f" as {name}",
            )

    def _wrong(self, party: str, request: Request[Any], cause: str) -> PartyError:
        return PartyError(party, request.kind, batch_of(request), cause)
