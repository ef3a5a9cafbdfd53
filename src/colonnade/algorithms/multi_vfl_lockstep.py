"""Label owners in one process: asked in turn, or, where they are alike, in lockstep with everything stacked.

    K label owners, batch b of each --> f_{d,1} .. f_{d,K} as one --> g_1 .. g_K as one --> and back

The arithmetic and the order of steps are the roles' own (`Copy`, `local_round`). Every label owner and data owner keeps
its outbox, rules, random numbers and ledger: each embedding and each gradient is released by its owner under the name
of its batch, and written down by both sides. On a GPU what is computed between two releases is one captured graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from colonnade.algorithms.multi_vfl import LabelOwner, TrainRound, local_round
from colonnade.algorithms.multi_vfl_data_owner import DataOwner, Descend, Embed, Embedding
from colonnade.algorithms.multi_vfl_stacks import at_once, several
from colonnade.core import Batch, Message, Request
from colonnade.core.release import release_stack
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError, BudgetExhausted, PartyError
from colonnade.optim.capture import Captured
from colonnade.transport import InProcess
from colonnade.transport.cohort import STACKING_PAYS
from colonnade.transport.stacked import why_not_stackable

R = TypeVar("R", bound=Message)
Stacking = Literal["auto", "on", "off"]


class Together:
    """Label owners that are alike, and their copies at every data owner, in lockstep: a `Side` of all of them."""

    def __init__(self, members: Mapping[str, LabelOwner], data_owners: Mapping[str, DataOwner]) -> None:
        self.members, self.data_owners = dict(members), dict(data_owners)
        first = next(iter(self.members.values()))
        self.config, self.batches, self.loss, self.device = first.config, first.batches, first.loss, first.device
        self.g = several([owner.copy for owner in self.members.values()])
        self.f = {d: several([owner.copies[k] for k in self.members]) for d, owner in self.data_owners.items()}
        self.captures = self.device.type == "cuda"
        self._outputs, self._learn, self._step = (
            Captured(self._forward),
            Captured(self._both_ways),
            Captured(self._back),
        )
        self._x: list[Tensor] = []
        self._epoch = -1
        self._rows: dict[str, Tensor] = {}
        self._y = torch.empty(0)

    def open(self, round: int) -> None:  # noqa: A002
        for owner in self.members.values():
            owner.open(round)
        for d, copies in self.f.items():
            copies.restart(self.data_owners[d].model)
        self.g.restart(next(iter(self.members.values())).model)

    def embed(self, batch: Batch) -> list[Tensor]:
        at = self._place(batch)
        self._x = []
        for d, owner in self.data_owners.items():
            rows = self._rows[d][:, at]
            x = owner.features.index_select(0, rows.flatten())
            self._x.append(x.view(*rows.shape, *x.shape[1:]))
        if self.captures:
            found = self._outputs(*self._x)
        else:
            found = []
            for (d, copies), x in zip(self.f.items(), self._x, strict=True):
                with self._answering(d, batch):
                    found.append(copies.embed(x, batch.name))
        return [self._release(d, h, batch) for d, h in zip(self.f, found, strict=True)]

    def learn(self, h: Sequence[Tensor], batch: Batch) -> tuple[Tensor, list[Tensor]]:
        losses, *gradients = self._learn(*h, self._y[:, self._place(batch)])
        return losses, gradients

    def descend(self, gradients: Sequence[Tensor], batch: Batch) -> None:
        sent = [self._hand(d, gradient, batch) for d, gradient in zip(self.f, gradients, strict=True)]
        if self.captures:
            self._step(*self._x, *sent)
            return
        for copies, gradient in zip(self.f.values(), sent, strict=True):
            copies.descend(gradient)

    def _forward(self, *x: Tensor) -> list[Tensor]:
        tasks = [partial(copies.outputs, x_d) for copies, x_d in zip(self.f.values(), x, strict=True)]
        return at_once(tasks, self.device)

    def _both_ways(self, *h_and_y: Tensor) -> list[Tensor]:
        losses, gradients = self.g.learn(h_and_y[:-1], h_and_y[-1], self.loss, self.config.axis)
        return [losses, *gradients]

    def _back(self, *x_and_gradients: Tensor) -> None:
        """Forwards once more, so that what was kept for the way back need not outlive a graph."""
        halves = zip(self.f.values(), x_and_gradients[: len(self.f)], x_and_gradients[len(self.f) :], strict=True)
        at_once([partial(copies.step, x, gradient) for copies, x, gradient in halves], self.device)

    def _release(self, d: str, h: Tensor, batch: Batch) -> Tensor:
        """Each label owner's share, by the data owner."""
        owner, names = self.data_owners[d], self._names(batch)
        with self._answering(d, batch):
            to = [(owner.outbox, k) for k in self.members]
            whole, parts = release_stack(h, "embedding", to, list(names.values()))
        for k, part in zip(names, parts, strict=True):
            reply = Embedding(part)
            owner.ledger.write("out", k, reply)
            self._note("in", k, d, reply)
        return whole

    def _hand(self, d: str, gradient: Tensor, batch: Batch) -> Tensor:
        """To a data owner, by each label owner its share."""
        names, owner = self._names(batch), self.data_owners[d]
        by = [(label_owner.outbox, d) for label_owner in self.members.values()]
        whole, parts = release_stack(gradient, "gradient", by, list(names.values()))
        for (k, name), part in zip(names.items(), parts, strict=True):
            request = Descend(name, part)
            self._note("out", k, d, request)
            owner.ledger.write("in", k, request)
        return whole

    def _place(self, batch: Batch) -> slice:
        """Where a batch is in its epoch, whose rows are looked up once."""
        if batch.epoch != self._epoch:
            epoch, device = batch.epoch, self.device
            self._rows = {
                d: torch.stack([owner.agreed.epoch_rows(k, epoch, device) for k in self.members])
                for d, owner in self.data_owners.items()
            }
            each = (owner.labels[owner.batches.epoch_rows(epoch, device)] for owner in self.members.values())
            self._y, self._epoch = torch.stack(list(each)), epoch
        start = batch.number * self.batches.batch_size
        return slice(start, start + batch.size)

    def _names(self, batch: Batch) -> dict[str, str]:
        """The batch's name at each member: they differ in whose it is."""
        return {k: f"{k}:train/{batch.epoch}/{batch.number}" for k in self.members}

    def _note(self, direction: Literal["in", "out"], k: str, d: str, message: Message) -> None:
        if k != d:
            self.members[k].ledger.write(direction, d, message)

    @contextmanager
    def _answering(self, d: str, batch: Batch) -> Iterator[None]:
        """What goes wrong names the data owner, as when it is asked."""
        try:
            yield
        except (PartyError, BoundaryError, BudgetExhausted):
            raise
        except Exception as error:
            raise PartyError(d, Embed.kind, batch.name, f"{type(error).__name__}: {error}", private=True) from error


class Lockstep:
    """What carries the aggregation server's calls to label owners in this process. It stacks those that are alike where
    that is faster ("auto"), wherever it can ("on"), or never ("off")."""

    def __init__(
        self,
        label_owners: Mapping[str, LabelOwner],
        data_owners: Mapping[str, DataOwner],
        *,
        stack: Stacking = "auto",
        through_bytes: bool = False,
    ) -> None:
        self.label_owners, self.data_owners, self.stack = dict(label_owners), dict(data_owners), stack
        self._inner = InProcess(self.label_owners, through_bytes=through_bytes, parallel="never")
        self._stacks: dict[tuple[str, ...], Together] = {}

    def exchange(self, to: str, envelope: Envelope[Request[R]]) -> R:
        return self._inner.exchange(to, envelope)

    def exchange_each(self, envelopes: Mapping[str, Envelope[Request[R]]]) -> dict[str, R]:
        found: dict[str, R] = {}
        for to, answer in self.attempt_each(envelopes).items():
            if isinstance(answer, PartyError):
                raise answer
            found[to] = answer
        return found

    def attempt_each(self, envelopes: Mapping[str, Envelope[Request[R]]]) -> dict[str, R | PartyError]:
        """Each answer, or the failure in its place."""
        found: dict[str, R | PartyError] = {}
        for group in self._groups(envelopes):
            try:
                losses = self._train(group, envelopes[group[0]].message)
            except PartyError as error:  # a data owner's: none of them can finish
                found |= dict.fromkeys(group, error)
                continue
            for k, loss in zip(group, losses, strict=True):
                self.label_owners[k].ahead = loss
        for to, envelope in envelopes.items():
            if to not in found:
                try:
                    found[to] = self.exchange(to, envelope)
                except PartyError as error:
                    found[to] = error
        return {to: found[to] for to in envelopes}

    def _train(self, group: tuple[str, ...], request: Message) -> list[float]:
        assert isinstance(request, TrainRound)
        if group not in self._stacks:
            self._stacks.clear()  # a copy is a view of one stack only
            self._stacks[group] = Together({k: self.label_owners[k] for k in group}, self.data_owners)
        losses: list[float] = local_round(self._stacks[group], request.round).tolist()
        return losses

    def _groups(self, envelopes: Mapping[str, Envelope[Any]]) -> list[tuple[str, ...]]:
        """Who of those that are asked to train can do it together."""
        alike: dict[tuple[Any, ...], list[str]] = {}
        for k, envelope in envelopes.items():
            owner = self.label_owners.get(k)
            if owner is None or not isinstance(envelope.message, TrainRound) or self.stack == "off":
                continue
            if envelope.message.round == owner.round and owner.training_rows and self._stackable(owner):
                alike.setdefault(_kind(owner), []).append(k)
        groups = [tuple(group) for group in alike.values() if len(group) > 1]
        return [group for group in groups if self.stack == "on" or self._worth(self.label_owners[group[0]])]

    def _stackable(self, owner: LabelOwner) -> bool:
        """Whether its calls to data owners may be answered here: they would cross as they are, and nobody listens."""
        transport = owner.peers.transport
        plain = isinstance(transport, InProcess) and not transport.through_bytes
        models = [owner.copy.model, *(data_owner.model for data_owner in self.data_owners.values())]
        return plain and all(why_not_stackable(model) is None for model in models)

    def _worth(self, owner: LabelOwner) -> bool:
        """On a GPU always; on a CPU while a batch is little work."""
        if owner.device.type != "cpu":
            return True
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            h = [data_owner.model.eval()(data_owner.features[:1]) for data_owner in self.data_owners.values()]
            owner.model.eval()(torch.cat(h, dim=owner.config.axis))
        return owner.batches.batch_size * int(counter.get_total_flops()) <= STACKING_PAYS


def _kind(owner: LabelOwner) -> tuple[Any, ...]:
    """Equal where two label owners do the same with batches of the same sizes."""
    parameters = ((name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in owner.model.named_parameters())
    settings = repr(owner.config), repr(owner.loss), str(owner.device), repr(owner.model), tuple(owner.peers)
    return (*settings, tuple(parameters), owner.training_rows, owner.batches.batch_size)
