"""How a driver goes on without the answers of parties that are missing.

    "stale"   the party's last embedding of each row stands in. In an epoch that has none
              of these rows yet, the party is left out where the algorithm's maths
              allows it, and else the step fails.
    "skip"    the party is left out of the batch.

Which of the two an algorithm's maths allows it says itself (`missing(config)`). Nothing
is silent: each time is counted, by party and by what was done instead. A party that
gave no embedding for a batch gets no update for it either. What is not about a batch,
such as introductions, keys and first heads, cannot be missed.

A model that is used without a party was not trained without it, so its outputs are off.
The driver therefore remembers what everybody last said of validation rows: from that it
can tell what outputs without a party stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from colonnade.core.message import MESSAGES, Message, Request, batch_of
from colonnade.core.outbox import Outbox
from colonnade.core.wire import Envelope
from colonnade.errors import NoAnswer, PartyError

STALE = "stale"
SKIP = "skip"
NOT_UPDATED = "not_updated"
"""What is done about a missing party, as it is counted."""

VALIDATION = "validation["
"""How the names of batches of validation rows begin."""

LABELS = ""
"""The key under which labels stand beside the answers of parties. No party has this
name."""

Counts = dict[str, dict[str, int]]
Calls = Mapping[str, Envelope[Request[Any]]]
Lookup = Callable[[str], Tensor]
"""Finds the rows, or the labels, of a batch by its name."""


@dataclass
class Memory:
    """One party's last answer for each row.

    Args:
        kind: The kind of message that the answers came in.
        values: The answers, one line per row.
        known: For which rows there is an answer.
    """

    kind: str
    values: Tensor
    known: Tensor

    def has_all(self, rows: Tensor) -> bool:
        return bool(self.known[rows].all())


class Missing:
    """A driver's rule for missing parties, what it remembers for that, and how often it
    was needed.

    Args:
        rule: "stale" or "skip", as the settings say.
        allowed: What the algorithm's maths allows.
        outbox: The driver's own outbox.
        rows: Finds the rows of a batch.
        size: How many rows the driver has.
        labels: Finds the labels of a batch, to remember those of validation rows.
    """

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
        self.absent: dict[str, str] = {}
        """By party the batch that it gave nothing for."""
        self.known_away: Collection[str] = ()
        """Parties that are not to be asked at all, such as those without these rows."""
        self.counts: Counts = {}
        self.held_out: dict[str, dict[str, Tensor]] = {}
        """By batch of validation rows each party's last answer, and the labels."""
        self._memory: dict[str, Memory] = {}
        self._labels = labels

    def to_ask(self, calls: Calls) -> dict[str, Envelope[Request[Any]]]:
        """The calls to make: without parties that are known to be away, and without
        updates for a batch that a party gave nothing for."""
        return {
            name: call
            for name, call in calls.items()
            if name not in self.known_away and not self._has_no_part(name, call.message)
        }

    def complete(
        self,
        calls: Calls,
        replies: Mapping[str, Message],
        failures: Mapping[str, PartyError],
    ) -> dict[str, Message]:
        """The answers to go on with: those that came, and what stands in for others.

        Args:
            calls: All calls of the round, also those that were not made.
            replies: The replies that came.
            failures: Why the other parties did not answer.
        """
        for error in failures.values():
            if not isinstance(error, NoAnswer) or error.batch is None:
                raise error
        answers: dict[str, Message] = {}
        left_out = False
        for name, call in calls.items():
            request = call.message
            if name in replies:
                answers[name] = replies[name]
                self._remember(name, request, replies[name])
            elif self._has_no_part(name, request):
                left_out = True
            elif request.crossing():
                # The party's answer to the batch was used; it learns nothing from it.
                self._count(name, NOT_UPDATED)
            else:
                stand_in = self._stand_in(name, request, failures.get(name))
                if stand_in is not None:
                    answers[name] = stand_in
        if calls and not answers and not left_out:
            raise _first_or_nobody(failures)
        return answers

    def take(self) -> Counts:
        """How often each party was missing since this was last asked."""
        counts = self.counts
        self.counts = {}
        return counts

    def of(self, batch: str) -> list[str]:
        """The parties that gave nothing for a batch that was just asked for."""
        return [party for party, missed in self.absent.items() if missed == batch]

    def said(self, parties: Collection[str]) -> tuple[dict[str, Tensor], Tensor] | None:
        """What these parties last said of validation rows, and the rows' labels.

        Only batches count for which all of these parties said something. None where
        there is none.
        """
        wanted = set(parties)
        batches = [said for said in self.held_out.values() if wanted <= said.keys()]
        if not batches:
            return None
        labels = torch.cat([said[LABELS] for said in batches])
        answers = {
            party: torch.cat([said[party] for said in batches]) for party in parties
        }
        return answers, labels

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the answers that may have to stand in."""
        return {party: vars(memory) for party, memory in self._memory.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `state()`. Answers about another number of rows are left out,
        as where some rows are loaded to be predicted."""
        self._memory = {
            party: Memory(**kept)
            for party, kept in state.items()
            if len(kept["known"]) == self.size
        }

    def _has_no_part(self, party: str, request: Message) -> bool:
        """Whether a request updates a party that gave nothing for its batch."""
        is_update = bool(request.crossing())
        return is_update and self.absent.get(party, "") == batch_of(request)

    def _remember(self, party: str, request: Message, reply: Message) -> None:
        """Keep a party's answer for each row, where it may have to stand in later."""
        batch = batch_of(request)
        if not request.crossing():
            self.absent.pop(party, None)
        released = reply.released()
        if batch is None or len(released) != 1:
            return
        values = released[0].tensor.detach()
        rows = self.rows(batch)
        if len(values) != len(rows):  # it has no line for each row
            return
        may_skip = SKIP in self.allowed and self._labels is not None
        if may_skip and batch.startswith(VALIDATION):
            assert self._labels is not None
            said = self.held_out.setdefault(batch, {LABELS: self._labels(batch)})
            said[party] = values
        if self.rule == STALE:
            memory = self._memory_of(party, reply.kind, values)
            memory.values[rows] = values
            memory.known[rows] = True

    def _memory_of(self, party: str, kind: str, values: Tensor) -> Memory:
        """The memory of a party's answers, made for values like these."""
        if party not in self._memory:
            nothing = values.new_zeros(self.size, *values.shape[1:])
            known = torch.zeros(self.size, dtype=torch.bool, device=values.device)
            self._memory[party] = Memory(kind, nothing, known)
        return self._memory[party]

    def _stand_in(
        self, party: str, request: Message, error: PartyError | None
    ) -> Message | None:
        """What stands in for a party's answer; None where the party is left out."""
        batch = batch_of(request)
        assert batch is not None
        self.absent[party] = batch
        memory = self._memory.get(party)
        rows = self.rows(batch)
        if self.rule == STALE and memory is not None and memory.has_all(rows):
            self._count(party, STALE)
            # It crosses nothing: the driver has these values already.
            own = self.outbox.owner
            old = self.outbox.release(memory.values[rows], STALE, batch, to=own)
            return MESSAGES[memory.kind](old)  # type: ignore[call-arg]
        if SKIP in self.allowed:
            self._count(party, SKIP)
            return None
        cause = "it holds none of the rows" if error is None else error.cause
        raise NoAnswer(
            party,
            request.kind,
            batch,
            f"{cause}; and there is no earlier answer of its for all of these rows to"
            " go on with",
        ) from error

    def _count(self, party: str, what: str) -> None:
        times = self.counts.setdefault(party, {})
        times[what] = times.get(what, 0) + 1


def _first_or_nobody(failures: Mapping[str, PartyError]) -> PartyError:
    """The error of a round in which nobody answered."""
    nobody = NoAnswer("nobody", "a request", None, "all parties are missing")
    return next(iter(failures.values()), nobody)
