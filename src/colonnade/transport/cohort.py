"""M same-shaped feature owners in one process, answered as one: stacked parameters, one
kernel instead of M.

    requests of ask_each --stack--> one request --the algorithm's own method--> one reply --unstack--> replies

The algorithm does not know. Each member keeps its own outbox, rules, random numbers and
ledger, and each call passes the checks that it passes alone (`as_one`); only the
arithmetic is shared. Calls that do not go to the whole cohort are answered by the
member itself, after its share of the state was handed back.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from colonnade.core.cipher import Ciphertext, Encrypted
from colonnade.core.files import mapped_stack
from colonnade.core.ledger import Ledger
from colonnade.core.message import Message, Request, batch_of
from colonnade.core.outbox import Outbox, release_stack
from colonnade.core.party import (
    ALL_THREADS_PAY,
    Organisation,
    Party,
    State,
    all_undisturbed,
    one_torch_thread,
)
from colonnade.core.peers import Answer, Transport
from colonnade.core.receipt import NON_PRIVATE, DpEvent, Receipt
from colonnade.core.release import Released
from colonnade.core.roles import FeatureOwner, by_row
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError, PartyError

R = TypeVar("R", bound=Message)
M = TypeVar("M", bound=Message)
T = TypeVar("T")
STACKING_PAYS = 30_000_000
"""Operations of one party's steps on a batch up to which stacking pays on a CPU,
whatever it computes.

With less to do, a party mostly waits for Python, about half a millisecond a batch, and
one call for all saves most of that. With more, parties in threads use every core where
many steps are one call (`steps_at_once`): a round of 14 parties of 56-120-60 with 20
steps took 151, 63 and 51 ms on 2, 8 and 16 cores, and stacked, with torch's own
threads, 178, 58 and 74. Where every step needs Python, threads wait for the interpreter
(FDML: 21, 18, 16 ms), and stacked products do not (11, 4.8, 6.4). One run each
(docs/performance.md). Other models than plain chains of layers, as convolutions, are
slower stacked. The rule is the same everywhere, so that the machine does not decide on
the last bits.
"""


A_STEP = 3
"""Forward passes that a step is worth: its own, and twice that for the gradients."""


def at_once(
    tasks: Sequence[Callable[[], T]], device: torch.device, streams: Sequence[Any] = ()
) -> list[T]:
    """On a GPU each task on a stream of its own, between what came before and what
    comes after; else in turn."""
    if device.type != "cuda" or len(tasks) < 2:
        return [task() for task in tasks]
    here = torch.cuda.current_stream(device)
    streams = streams or [torch.cuda.Stream(device) for _ in tasks]  # type: ignore[no-untyped-call]
    done = []
    for stream, task in zip(streams, tasks, strict=False):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            done.append(task())
    for stream in streams[: len(tasks)]:
        here.wait_stream(stream)
    return done


def work(model: nn.Module, row: Tensor, rows: int) -> int:
    """Floating-point operations of one forward pass over so many rows: counted, not
    timed, so that what follows from it is the same in every run."""
    if type(model) is nn.Sequential and all(
        by_row(layer) or type(layer) is nn.Flatten for layer in model
    ):
        return rows * _products(model, row)
    # which imports torch's compiler, as long as torch itself
    from torch.utils.flop_counter import FlopCounterMode

    training = model.training
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(row)
    model.train(training)
    return rows * int(counter.get_total_flops())


def _products(layers: nn.Sequential, row: Tensor) -> int:
    """The operations of a plain chain's products: the same number."""
    operations = 0
    x = row.new_empty(row.shape, device="meta")
    for layer in layers:
        if isinstance(layer, nn.Linear):
            operations += 2 * x.numel() * layer.out_features
            x = x.new_empty((*x.shape[:-1], layer.out_features))
        elif isinstance(layer, nn.Flatten):
            x = layer(x)
    return operations


class Whole(Released):
    """What the members released, stacked; each one's own is kept beside it."""

    __slots__ = ("parts",)
    parts: Sequence[Released]

    @classmethod
    def of(
        cls, tensor: torch.Tensor, parts: Sequence[Released], receipt: Receipt
    ) -> Whole:
        whole = cls._seal(tensor, receipt)
        object.__setattr__(whole, "parts", parts)
        assert isinstance(whole, Whole)
        return whole


class Each(float):
    """Every member's number where a message has one."""

    each: Sequence[float]


class CohortOutbox(Outbox):
    """One release for all members, made by each member's own outbox under its own
    rules.

    `names` are the askers, or those that the batches belong to, where they differ from
    member to member: what stands under the name of all, `owner`, then stands under each
    one's own.
    """

    def __init__(
        self, outboxes: Sequence[Outbox], owner: str, names: Sequence[str] | None = None
    ) -> None:
        super().__init__(owner, outboxes[0].generator)
        self.outboxes = outboxes
        self.names = names or [owner] * len(outboxes)

    def _each(
        self, batch: str | None, to: str | None
    ) -> list[tuple[Outbox, str | None, str | None]]:
        """Every member's outbox, who gets what leaves it, and the batch by that one's
        name."""
        who = zip(self.outboxes, self.names, strict=True)
        return [
            (outbox, name if to == self.owner else to, renamed(batch, self.owner, name))
            for outbox, name in who
        ]

    def bounded(
        self,
        tensor: torch.Tensor,
        as_: str,
        batch: str | None = None,
        *,
        to: str | None = None,
    ) -> torch.Tensor:
        width = math.prod(tensor.shape[2:])
        bounds = [
            outbox.bound(as_, name, asker, width)
            for outbox, asker, name in self._each(batch, to)
        ]
        if not any(bounds):
            return tensor
        parts = zip(bounds, tensor, strict=True)
        return torch.stack(
            [part if bound is None else bound(part) for bound, part in parts]
        )

    def release(
        self,
        tensor: torch.Tensor,
        as_: str,
        batch: str | None = None,
        *,
        to: str | None = None,
    ) -> Released:
        whole, parts = release_stack(tensor, as_, self._each(batch, to))
        self.released += 1
        return Whole.of(
            whole,
            parts,
            Receipt(self.owner, self.released, as_, batch, NON_PRIVATE, "identity", 0),
        )

    def follow(self, told: bytes) -> None:
        for outbox in self.outboxes:
            outbox.follow(told)

    def own(self, released: Released) -> torch.Tensor:
        if released.receipt.name not in self.seals or not isinstance(released, Whole):
            return released.tensor
        return torch.stack(
            [
                outbox.own(part)
                for outbox, part in zip(self.outboxes, released.parts, strict=True)
            ]
        )

    def number(self, value: torch.Tensor) -> float:
        number = Each("nan")  # of all of them there is none
        number.each = value.tolist()
        return number

    def _sealed(
        self,
        encrypted: Encrypted,  # noqa: ARG002
        as_: str,
        batch: str | None,  # noqa: ARG002
        event: DpEvent | None,  # noqa: ARG002
    ) -> Ciphertext:
        raise BoundaryError(
            f"'{self.owner}' are answered for as one, and each must encrypt {as_} for"
            " itself.\n    Set stackable = False on their FeatureOwner."
        )


def renamed(name: str | None, whole: str, member: str) -> str | None:
    """A batch of all of them by the name that it has at one: 'north, south:train/0/3'
    is north's 'north:train/0/3'."""
    return (
        member + name[len(whole) :]
        if name is not None and name.startswith(f"{whole}:")
        else name
    )


def shares(message: M, whole: str, names: Sequence[str]) -> list[M]:
    """Every member's share of a message; it is the same for all where it has nothing of
    each."""
    fields = {
        name: _shares(getattr(message, name), whole, names) for name in message.hints()
    }
    if all(each is None for each in fields.values()):
        return [message] * len(names)
    columns = [
        [getattr(message, name)] * len(names) if each is None else each
        for name, each in fields.items()
    ]
    return [type(message)(*row) for row in zip(*columns, strict=True)]


def _shares(value: Any, whole: str, names: Sequence[str]) -> Sequence[Any] | None:
    """Every member's share of a field; None where it is the same for all."""
    if isinstance(value, str):
        return (
            [renamed(value, whole, name) for name in names]
            if value.startswith(f"{whole}:")
            else None
        )
    if isinstance(value, Whole):
        return value.parts
    if isinstance(value, Each):
        return value.each
    if isinstance(value, (tuple, dict)):
        items = list(value.values() if isinstance(value, dict) else value)
        rows = list(
            zip(
                *(_shares(item, whole, names) or [item] * len(names) for item in items),
                strict=True,
            )
        )
        if isinstance(value, dict):
            return [dict(zip(value, row, strict=True)) for row in rows] or None
        return rows or None
    return None


def as_one(
    twin: Party,
    request: Request[R],
    asker: str,
    calls: Sequence[tuple[Party, Envelope[Request[R]]]],
) -> tuple[R, list[R]] | None:
    """Answer calls by one stacked computation, as `Party.handle` answers each: who may
    not ask is refused, and so is an old call; what came and went is written down, and
    remembered. Gives the whole reply and each one's; None where a call was answered
    before, so that each must be answered alone."""
    outbox = twin.outbox
    assert isinstance(outbox, CohortOutbox)
    with all_undisturbed(dict.fromkeys(party for party, _ in calls)):
        for party, envelope in calls:
            party.allow(envelope.sender, type(envelope.message))
        known = [party.remembered(envelope) for party, envelope in calls]
        if any(reply is not None for reply in known):
            return None
        try:
            whole = twin.answer(request, asker)
        finally:  # a GPU works meanwhile
            for party, envelope in calls:
                party.ledger.write("in", envelope.sender, envelope.message)
        replies = shares(whole, outbox.owner, outbox.names)
        for (party, envelope), reply in zip(calls, replies, strict=True):
            party.conclude(envelope, reply)
    return whole, replies


class Cohort:
    """The members and their stacked twin."""

    def __init__(self, members: Mapping[str, FeatureOwner]) -> None:
        self.members = dict(members)
        parties = list(self.members.values())
        first = parties[0]
        name = ", ".join(self.members)
        self.outbox = CohortOutbox([party.outbox for party in parties], name)
        organisation = Organisation(
            name,
            self.outbox,
            first.organisation.batches,
            first.generator,
            Ledger(name),
            first.device,
        )
        features = mapped_stack([party.features for party in parties])
        models = [party.model for party in parties]
        whole = Stacked(models, abreast=better_abreast(models[0]), channels_last=True)
        self.twin = type(first)(organisation, features, whole, first.config)
        self.twin.row_axis = 1
        for index, party in enumerate(parties):
            # the members' columns are views: one copy in memory
            party.features = features[index]
        self._lock = threading.Lock()
        on_cpu = first.device.type == "cpu"
        self.small = (
            on_cpu
            and len(parties)
            * work(
                first.model, first.features[:1], first.organisation.batches.batch_size
            )
            < ALL_THREADS_PAY
        )
        self.restack()

    def restack(self) -> None:
        """Take the members' state over, if it can be stacked: members that trained
        alone may have come apart."""
        states = [party.state() for party in self.members.values()]
        self.alike = alike(states)
        if self.alike:
            self.twin.load_state(stack(states))
        self.fresh = True
        self.stale = False

    def settle(self) -> None:
        """Hand the state back, so that each member's model is its own again; nothing to
        do when it is."""
        with self._lock:
            if not self.fresh:
                states = unstack(self.twin.state(), len(self.members))
                for party, state in zip(self.members.values(), states, strict=True):
                    party.load_state(state)
                self.fresh = True

    def leave(self) -> None:
        """Members are about to be asked alone: they get their state, and the twin's is
        out of date from here on."""
        self.settle()
        self.stale = True

    def takes(self, envelopes: Mapping[str, Envelope[Request[Any]]]) -> bool:
        """Whether all members are asked, and something that is not answered aside."""
        asked = [envelopes[name] for name in self.members if name in envelopes]
        return (
            len(asked) == len(self.members)
            and type(asked[0].message) not in self.twin.aside
        )

    def together(self) -> bool:
        """Whether the members can be answered as one, with the state they have now."""
        if self.stale:
            self.restack()
        return self.alike

    def answer(
        self, envelopes: Mapping[str, Envelope[Request[R]]]
    ) -> dict[str, R] | None:
        """One stacked answer, taken apart; None where a member has answered its call
        before."""
        calls = [(party, envelopes[name]) for name, party in self.members.items()]
        request = self._join([envelope.message for _, envelope in calls])
        sender = calls[0][1].sender
        self.fresh = False
        try:
            with one_torch_thread(self.small):
                answered = as_one(self.twin, request, sender, calls)
        except PartyError as error:
            if error.party != self.twin.name:
                raise
            cause = (
                f'{error.cause} (they were answered as one; cohort = "off" under'
                " [federation] asks each by itself)"
            )
            raise PartyError(
                error.party, error.request, error.batch, cause, private=error.private
            ) from error
        return answered and dict(zip(self.members, answered[1], strict=True))

    def _join(self, requests: Sequence[Request[R]]) -> Request[R]:
        """One request from M: a tensor that all share stays one, the others are
        stacked; plain fields must agree."""
        first = requests[0]
        if all(request is first for request in requests):
            return first
        if any(type(request) is not type(first) for request in requests):
            raise self._differ(first, "requests")
        fields = {
            name: self._stack([getattr(r, name) for r in requests], first, name)
            for name in first.hints()
        }
        return type(first)(**fields)

    def _stack(self, values: list[Any], request: Message, name: str) -> Any:
        first = values[0]
        if all(value is first for value in values):
            return first
        if any(type(value) is not type(first) for value in values):
            raise self._differ(request, f"values of {name}")
        if isinstance(first, Released):
            return Whole.of(
                torch.stack([value.tensor for value in values]), values, first.receipt
            )
        if isinstance(first, tuple) and all(
            len(value) == len(first) for value in values
        ):
            return tuple(
                self._stack(list(items), request, name)
                for items in zip(*values, strict=True)
            )
        if isinstance(first, dict) and all(
            value.keys() == first.keys() for value in values
        ):
            return {
                key: self._stack([value[key] for value in values], request, name)
                for key in first
            }
        if any(value != first for value in values):
            raise self._differ(request, f"values of {name}")
        return first

    def _differ(self, request: Message, what: str) -> PartyError:
        cause = f"its members were sent different {what}; run with cohort = 'off'"
        return PartyError(self.twin.name, request.kind, batch_of(request), cause)


class Cohorts:
    """A transport that answers whole cohorts stacked and passes everything else on."""

    def __init__(self, inner: Transport, cohorts: Sequence[Cohort]) -> None:
        self.inner = inner
        self.cohorts = cohorts

    def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
        by_party = {call.receiver: call for call in calls}
        if len(by_party) < len(calls):  # several calls to one party are not stacked
            return self._alone(calls)
        answers: dict[str, Answer] = {}
        for cohort in self.cohorts:
            if cohort.takes(by_party) and cohort.together():
                answers |= self._together(cohort, by_party)
        rest = [call for call in calls if call.receiver not in answers]
        if rest:
            receivers = [call.receiver for call in rest]
            answers |= dict(zip(receivers, self._alone(rest), strict=True))
        return [answers[call.receiver] for call in calls]

    def _together(
        self, cohort: Cohort, calls: Mapping[str, Envelope[Any]]
    ) -> Mapping[str, Answer]:
        """The members' answers; nothing where they must be asked one by one."""
        try:
            return cohort.answer(calls) or {}
        except PartyError as error:
            return dict.fromkeys(cohort.members, error)

    def _alone(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
        receivers = {call.receiver for call in calls}
        for cohort in self.cohorts:
            if cohort.members.keys() & receivers:
                cohort.leave()
        return self.inner.exchange(calls)

    def settle(self) -> None:
        for cohort in self.cohorts:
            cohort.settle()


def groups(parties: Mapping[str, Party]) -> list[dict[str, FeatureOwner]]:
    """The largest sets of two or more parties that can be stacked: same role, settings,
    device, columns, model and agreed rows."""
    alike_parties: dict[tuple[Any, ...], dict[str, FeatureOwner]] = {}
    for name, party in parties.items():
        if (
            isinstance(party, FeatureOwner)
            and party.stackable
            and why_not_stackable(party.model) is None
        ):
            alike_parties.setdefault(_shape(party), {})[name] = party
    return [group for group in alike_parties.values() if len(group) > 1]


def worth_stacking(group: Mapping[str, FeatureOwner], rows: int) -> bool:
    """Whether a cohort is faster. On a GPU always; on a CPU where a party's steps need
    the interpreter one by one, or it has little to do for a batch."""
    first = next(iter(group.values()))
    if first.device.type != "cpu" or (
        first.steps_at_once == 1 and is_chain(first.model)
    ):
        return True
    return (
        A_STEP * first.steps_at_once * work(first.model, first.features[:1], rows)
        <= STACKING_PAYS
    )


PLAIN = set(vars(nn.Module()))
"""What every module has; its other attributes are settings, and equal modules have
equal ones."""


def _shape(party: FeatureOwner) -> tuple[Any, ...]:
    model = party.model
    parameters = (
        (name, tuple(p.shape), p.dtype, p.requires_grad)
        for name, p in model.named_parameters()
    )
    kinds = (
        (type(part), repr({k: v for k, v in vars(part).items() if k not in PLAIN}))
        for part in model.modules()
    )
    settings = (
        type(party),
        repr(party.config),
        str(party.device),
        tuple(party.features.shape),
        party.features.dtype,
    )
    return (
        *settings,
        party.organisation.batches.fingerprint(),
        repr(model),
        tuple(kinds),
        tuple(parameters),
    )


class Stacked(nn.Module):
    """`[M, rows, ...] -> [M, rows, width]`, the k-th slice through the k-th module.

    Its state dict has the modules' own names, each tensor with the M in front. A plain
    chain of linear layers and element-wise activations runs as batched matrix products;
    everything else through `vmap`, or `abreast` each slice through a module of its own,
    on a GPU on a stream of its own. There `channels_last` has a picture's channels side
    by side in memory, for which convolutions in TF32 are faster (CIFAR-10's nine
    parties: 7.6 against 12.0 s an epoch).
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        *,
        abreast: bool = False,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        self.abreast = abreast
        self.channels_last = channels_last
        self.one = copy.deepcopy(modules[0])
        for path, submodule in self.one.named_modules():
            for name in list(submodule._parameters):
                twins = [
                    module.get_submodule(path)._parameters[name] for module in modules
                ]
                if twins[0] is not None:
                    stacked = torch.stack(
                        [twin.detach() for twin in twins if twin is not None]
                    )
                    submodule._parameters[name] = nn.Parameter(
                        stacked, requires_grad=twins[0].requires_grad
                    )
        # in a list: not a submodule
        self._base = [copy.deepcopy(modules[0]).to("meta")]
        self._chain = is_chain(modules[0])

    @property
    def stacked_chain(self) -> nn.Sequential | None:
        """The layers, with stacked parameters, where running them one after the other
        is all there is to do."""
        return self.one if self._chain and isinstance(self.one, nn.Sequential) else None

    def forward(self, x: Tensor) -> Tensor:
        if self.stacked_chain is not None:
            for layer in self.stacked_chain:
                x = (
                    _stacked_linear(layer, x)
                    if isinstance(layer, nn.Linear)
                    else layer(x)
                )
            return x
        base = self._base[0].train(self.training)
        if self.abreast:
            each = zip(
                *(parameter.unbind() for parameter in self.one.parameters()),
                strict=True,
            )
            names = [name for name, _ in self.one.named_parameters()]
            own = [dict(zip(names, parameters, strict=True)) for parameters in each]
            layout = (
                torch.channels_last
                if self.channels_last and x.dim() == 5
                else torch.contiguous_format
            )
            each_x = (rows.contiguous(memory_format=layout) for rows in x)
            tasks = [
                partial(functional_call, base, mine, (rows,))
                for mine, rows in zip(own, each_x, strict=True)
            ]
            return torch.stack(at_once(tasks, x.device))
        call = torch.vmap(
            lambda parameters, rows: functional_call(base, parameters, (rows,))
        )
        return call(dict(self.one.named_parameters()), x)  # type: ignore[no-any-return]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.one.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        return self.one.load_state_dict(state_dict, *args, **kwargs)


def why_not_stackable(module: nn.Module) -> str | None:
    """Why a module cannot be stacked, or None: stacked runs must equal the runs one by
    one."""
    if next(module.buffers(), None) is not None:
        return "its model keeps buffers (batch statistics)"
    if any(isinstance(part, _DropoutNd) for part in module.modules()):
        return "its model draws random numbers (dropout)"
    if len(list(module.named_parameters(remove_duplicate=False))) != len(
        list(module.parameters())
    ):
        return "its model uses a parameter in two places"
    if any(parameter.dim() == 0 for parameter in module.parameters()):
        return "its model has a parameter that is a single number"
    return None


def share_memory(whole: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Make the modules' parameters views of those of their stack: what is done to one
    of both is done to the other."""
    for stacked, *parts in zip(
        whole.parameters(), *(module.parameters() for module in modules), strict=True
    ):
        for index, part in enumerate(parts):
            part.data = stacked.data[index]


def better_abreast(module: nn.Module) -> bool:
    """Whether it has convolutions of several channels and is on a GPU. Stacked they
    become grouped ones, and an H200 takes four times as long for those as for the same
    convolutions side by side (5 of 32 channels on 28 x 28: 3.0 against 0.8 ms a step).
    """
    on_gpu = any(parameter.device.type == "cuda" for parameter in module.parameters())
    return on_gpu and any(
        isinstance(part, _ConvNd) and part.in_channels > 1 for part in module.modules()
    )


def alike(states: Sequence[Any]) -> bool:
    """Whether M states can be one: the same names and shapes, and equal values where
    `stack` keeps only the first."""
    first = states[0]
    if any(type(state) is not type(first) for state in states):
        return False
    if isinstance(first, Tensor):
        return all(
            s.shape == first.shape and (s.dim() > 0 or torch.equal(s, first))
            for s in states
        )
    if isinstance(first, dict):
        same = all(state.keys() == first.keys() for state in states)
        return same and all(alike([state[key] for state in states]) for key in first)
    if isinstance(first, list):
        same = all(len(state) == len(first) for state in states)
        return same and all(
            alike([state[index] for state in states]) for index in range(len(first))
        )
    return all(state == first for state in states)


def stack(states: Sequence[Any]) -> Any:
    """One state from M: tensors stacked, everything else from the first (step counters
    are equal by construction)."""
    first = states[0]
    if isinstance(first, Tensor):
        return torch.stack(list(states)) if first.dim() else first
    if isinstance(first, dict):
        return {key: stack([state[key] for state in states]) for key in first}
    if isinstance(first, list):
        return [
            stack([state[index] for state in states]) for index in range(len(first))
        ]
    return first


def slice_(state: Any, index: int) -> Any:
    """The index-th of M states that were stacked."""
    if isinstance(state, Tensor):
        return state[index].clone() if state.dim() else state.clone()
    if isinstance(state, dict):
        return {key: slice_(value, index) for key, value in state.items()}
    if isinstance(state, list):
        return [slice_(value, index) for value in state]
    return state


def unstack(state: State, count: int) -> list[State]:
    """The M states in a stacked one."""
    return [slice_(state, index) for index in range(count)]


def is_chain(module: nn.Module) -> bool:
    """Whether the layers can be run here, one after the other: none of their own
    making, and none watched by hooks."""
    layers = list(module) if type(module) is nn.Sequential else []
    hooked = any(
        part._forward_hooks or part._forward_pre_hooks for part in module.modules()
    )
    known = (
        by_row(layer) or (type(layer) is nn.Flatten and layer.start_dim < 0)
        for layer in layers
    )
    return bool(layers) and not hooked and all(known)


def _stacked_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    bias: Tensor | None = layer.bias
    if x.dim() > 3:
        return _stacked_linear(layer, x.flatten(1, -2)).reshape(*x.shape[:-1], -1)
    return (
        torch.bmm(x, layer.weight.mT)
        if bias is None
        else torch.baddbmm(bias[:, None], x, layer.weight.mT)
    )
