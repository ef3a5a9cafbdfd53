"""Multi-VFL at the paper's MNIST sizes: the parties against one plain loop that holds
everything in one place.

4 data owners with strips of 7 x 28 pixels and one convolution to 32 channels each, 5
label owners with one convolution and two linear layers each, batches of 64, plain SGD.
The loop has no parties, messages, outboxes or ledgers: per label owner a copy of all
networks, trained on its rows, then the mean of the copies. Both sides draw the same
batches and must arrive at the same weights, or the times would mean nothing. Pictures
are random; only the time is of interest. On one torch thread CPU seconds are counted,
so that other programs disturb little; on a GPU seconds.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from colonnade import models
from colonnade.algorithms import multi_vfl
from colonnade.benchmark import Result, race
from colonnade.core import Agreed, Batches, Organisation, Peers, roles
from colonnade.core.party import one_torch_thread
from colonnade.optim.losses import CrossEntropy
from colonnade.optim.server import ServerOptimizer
from colonnade.transport import InProcess

CLASSES = 10
BATCH = 64
CHANNELS = 32
CONFIG = multi_vfl.Config(
    optimizer="sgd", momentum=0.0, learning_rate=0.001, concatenate="height"
)
FOREVER = 10**6  # rounds


class Sizes(NamedTuple):
    """So many owners, rows of each label owner, and pixels of a picture: strips of
    height / data_owners."""

    label_owners: int = 5
    data_owners: int = 4
    rows: int = 2 * BATCH
    height: int = 28
    width: int = 28


class Data(NamedTuple):
    """Random pictures: x[d] are data owner d's strips of all rows; label owner k has
    the k-th run of rows."""

    sizes: Sizes
    x: list[Tensor]
    y: list[Tensor]
    batches: dict[str, Batches]

    @classmethod
    def random(cls, sizes: Sizes, device: torch.device) -> Data:
        generator = torch.Generator().manual_seed(0)
        every = sizes.label_owners * sizes.rows
        pictures = torch.randn(
            every, sizes.height, sizes.width, generator=generator
        ).to(device)
        labels = torch.randint(CLASSES, (every,), generator=generator).to(device)
        train = {"train": torch.arange(sizes.rows)}
        names = [f"label_owner_{k + 1}" for k in range(sizes.label_owners)]
        batches = {
            k: Batches(train, batch_size=BATCH, epochs=FOREVER, seed=0, owner=k)
            for k in names
        }
        strips = list(pictures.tensor_split(sizes.data_owners, dim=1))
        return cls(
            sizes,
            [strip.contiguous() for strip in strips],
            list(labels.tensor_split(sizes.label_owners)),
            batches,
        )


def run(quick: bool) -> list[Result]:
    turns = 2 if quick else 5
    results = []
    with one_torch_thread():
        results.append(against_plain(turns + 1, torch.device("cpu"), 2 if quick else 5))
        results += [
            growth(name, turns, torch.device("cpu"), quick)
            for name in ("label owners", "data owners")
        ]
    if torch.cuda.is_available():
        gpu = torch.device("cuda")
        results.append(against_plain(3, gpu, 79))
        results += [
            growth(name, 3, gpu, quick) for name in ("label owners", "data owners")
        ]
    return results


def against_plain(turns: int, device: torch.device, batches: int) -> Result:
    """One round, ours and the plain loop's."""
    data = Data.random(Sizes(rows=batches * BATCH), device)
    owners, head = networks(data, device)
    training, server, data_owners = parties(data, owners, head, device)
    loop = plain(owners, head, data)
    best = race(
        {"ours": _rounds(training), "plain": _rounds(loop)},
        turns=turns,
        clock=_clock(device),
    )
    assert server.weights is not None
    torch.testing.assert_close(server.weights, vector(head), rtol=1e-3, atol=1e-5)
    for ours, theirs in zip(data_owners.values(), owners, strict=True):
        torch.testing.assert_close(
            vector(ours.model), vector(theirs), rtol=1e-3, atol=1e-5
        )
    ratio = best["ours"] / best["plain"]
    return Result(
        f"Multi-VFL round, 5 label owners x {data.sizes.rows} rows, 4 data owners,"
        f" {_machine(device)}",
        f"{best['ours']:.2f} s = {ratio:.2f} x",
        f"a plain loop of the same maths: {best['plain']:.2f} s",
        "≤ 1.2 x",
        ratio <= 1.2,
        best | {"ratio": ratio},
    )


def growth(of: str, turns: int, device: torch.device, quick: bool) -> Result:
    """Time per row with ever more label owners, each with its own rows; or with the
    same picture cut into ever more strips, so that the arithmetic stays the same."""
    many = (1, 5, 20) if quick else (1, 2, 5, 10, 20)
    strips = (2, 4, 16) if quick else (2, 4, 8, 16)
    per_owner = BATCH if device.type == "cpu" else 8 * BATCH
    sizes = (
        {str(k): Sizes(label_owners=k, rows=per_owner) for k in many}
        if of == "label owners"
        else {str(d): Sizes(data_owners=d, rows=per_owner, height=32) for d in strips}
    )
    runners: dict[str, Callable[[], None]] = {}
    for count, size in sizes.items():
        data = Data.random(size, device)
        nets, head = networks(data, device)
        runners[count] = _rounds(parties(data, nets, head, device)[0])
        runners[f"plain {count}"] = _rounds(plain(nets, head, data))
    best = race(runners, turns=turns, clock=_clock(device))
    rows = {count: size.label_owners * size.rows for count, size in sizes.items()}
    ours, theirs = (
        {n: 1e3 * best[f"{side}{n}"] / rows[n] for n in rows} for side in ("", "plain ")
    )
    spread, their_spread = (
        max(one.values()) / min(one.values()) for one in (ours, theirs)
    )
    told = ", ".join(f"{count}: {value:.2f}" for count, value in ours.items())
    return Result(
        f"Multi-VFL, ms per row of a round by the number of {of}, {_machine(device)}",
        f"{told}; dearest / cheapest {spread:.2f}",
        "a plain loop:"
        f" {', '.join(f'{count}: {value:.2f}' for count, value in theirs.items())};"
        f" {their_spread:.2f}",
        "near constant: ≤ 1.5",
        spread <= 1.5,
        ours | {"spread": spread},
    )


def networks(data: Data, device: torch.device) -> tuple[list[nn.Module], nn.Module]:
    """Everybody's first weights."""
    shapes = [tuple(strip.shape[1:]) for strip in data.x]
    spec = {"name": "convolution", "channels": CHANNELS}
    owners = [
        models.build(spec, shape, seed=d, owner=f"data_owner_{d + 1}")
        for d, shape in enumerate(shapes)
    ]
    joined = (CHANNELS, data.sizes.height, data.sizes.width)
    head = models.build_head("cnn", joined, CLASSES, seed=99, owner="label_owner_1")
    return [net.to(device) for net in owners], head.to(device)


def parties(
    data: Data,
    owners: Sequence[nn.Module],
    head: nn.Module,
    device: torch.device,
    config: multi_vfl.Config = CONFIG,
    parallel: Literal["auto", "never"] = "never",
) -> tuple[
    Iterator[object], multi_vfl.AggregationServer, dict[str, multi_vfl.DataOwner]
]:
    """The same as parties: a training that gives a round per step, the server, and the
    data owners."""
    every = torch.arange(data.sizes.label_owners * data.sizes.rows)
    orders = dict(
        zip(data.batches, every.tensor_split(data.sizes.label_owners), strict=True)
    )
    agreed = Agreed({k: (data.batches[k], order) for k, order in orders.items()})
    data_owners = {
        f"data_owner_{d + 1}": multi_vfl.DataOwner(
            Organisation.at(f"data_owner_{d + 1}", agreed, device=device),
            strip,
            copy.deepcopy(net),
            config,
            agreed,
        )
        for d, (strip, net) in enumerate(zip(data.x, owners, strict=True))
    }
    label_owners = {}
    for (k, batches), labels in zip(data.batches.items(), data.y, strict=True):
        organisation = Organisation.at(k, batches, device=device)
        owner = multi_vfl.LabelOwner(
            organisation,
            labels,
            CrossEntropy(CLASSES),
            config,
            batches,
            lambda _: copy.deepcopy(head),
        )
        owner.peers = Peers(
            k,
            list(data_owners),
            InProcess(data_owners, parallel=parallel),
            organisation.ledger,
        )
        owner.meet(owner.peers.ask(roles.Introduce()))
        label_owners[k] = owner
    organisation = Organisation.at("aggregation_server", agreed, device=device)
    server = multi_vfl.AggregationServer(organisation, config, FOREVER)
    peers = Peers(
        server.name,
        list(label_owners),
        InProcess(label_owners, parallel="never"),
        organisation.ledger,
    )
    return multi_vfl.train(server, peers, FOREVER), server, data_owners


def plain(
    owners: Sequence[nn.Module],
    head: nn.Module,
    data: Data,
    rate: float = CONFIG.learning_rate,
    server: ServerOptimizer | None = None,
) -> Iterator[float]:
    """Algorithm 1 as one would write it in a notebook; a round per step, by which
    `owners` and `head` move. Gives the mean loss over all rows. Without a server
    optimizer the head is the mean of the heads."""
    shared = [*owners, head]
    loss_of = nn.CrossEntropyLoss()
    number = 0
    device = data.x[0].device
    state = server.init(dict(head.named_parameters())) if server is not None else {}
    while True:
        means = [[torch.zeros_like(p) for p in net.parameters()] for net in shared]
        total = torch.zeros((), device=device)
        for k, (batches, y) in enumerate(
            zip(data.batches.values(), data.y, strict=True)
        ):
            nets = [copy.deepcopy(net) for net in shared]
            sgd = torch.optim.SGD([p for net in nets for p in net.parameters()], rate)
            x = [
                strip[k * data.sizes.rows : (k + 1) * data.sizes.rows]
                for strip in data.x
            ]
            for rows in _shuffled(batches, number).to(device).split(BATCH):  # type: ignore[no-untyped-call]
                h = torch.cat(
                    [net(strip[rows]) for net, strip in zip(nets[:-1], x, strict=True)],
                    dim=-2,
                )
                loss = loss_of(nets[-1](h), y[rows])
                sgd.zero_grad()
                loss.backward()
                sgd.step()
                total += loss.detach() * len(rows)
            for net, mean in zip(nets, means, strict=True):
                for m, p in zip(mean, net.parameters(), strict=True):
                    m.add_(p.detach(), alpha=1 / data.sizes.label_owners)
        number += 1
        with torch.no_grad():
            if server is not None:
                weights = dict(head.named_parameters())
                change = {
                    name: m - weights[name]
                    for name, m in zip(weights, means[-1], strict=True)
                }
                moved, state = server.update(state, weights, change, number)
                means[-1] = list(moved.values())
            for net, mean in zip(shared, means, strict=True):
                for p, m in zip(net.parameters(), mean, strict=True):
                    p.copy_(m)
        yield total.item() / data.sizes.label_owners / data.sizes.rows


def _shuffled(batches: Batches, epoch: int) -> Tensor:
    """The agreed order of an epoch."""
    return torch.cat(
        [
            batches.rows(f"{batches.owner}:train/{epoch}/{at}")
            for at in range(batches.per_epoch)
        ]
    )


def _rounds(training: Iterator[object]) -> Callable[[], None]:
    def go() -> None:
        next(training)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return go


def vector(net: nn.Module) -> Tensor:
    """All its weights, one after the other."""
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def _clock(device: torch.device) -> Callable[[], float]:
    return time.process_time if device.type == "cpu" else time.perf_counter


def _machine(device: torch.device) -> str:
    return "one thread, CPU s" if device.type == "cpu" else torch.cuda.get_device_name()
