"""Many runs of the study at once on one GPU: the same arithmetic as Multi-VFL's
parties, without parties.

A run of 500 rounds takes minutes of an H200 by `study.py`, and both figures are over a
hundred of them. Here runs with one seed are stacked, K label owners each: their local
steps are one step of a stack, by `kernels.py`, in a CUDA graph. Rows, batches and first
weights are those of `study.federation`, the server's step is `optim.server`'s, and
`tests/reproduction/test_together.py` holds weights after several rounds equal to the
parties'. What it measures is kept as `study.py` would have kept it, so that `colonnade
reproduce multi-vfl --jobs 0 --out FOLDER` puts it together.

    python reproductions/multi_vfl/together.py FOLDER
    python reproductions/multi_vfl/together.py FOLDER --data mnist --seed 0 --lines main

The first runs all that FOLDER has no finished run of; `python
reproductions/multi_vfl/study.py FOLDER --known` puts the README's runs there before. A
run that was cut off begins again.

Max pooling goes before bias and ReLU, with which it commutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from colonnade import datasets, reproduction
from colonnade.algorithms.multi_vfl import server_optimizer
from colonnade.federation import Federation
from colonnade.reproduction import Plan, Study
from colonnade.reproduction.cells import KeptCells, script_of
from colonnade.rows.holdings import LabelledRows

STUDY = script_of(reproduction.plan("multi-vfl"))
LINES = {
    "main": [
        *(f"{scenario}, FedAvg" for scenario in STUDY.SCENARIOS),
        *(f"4niid, {name}" for name in STUDY.TUNED),
    ],
    "rates": [f"4niid, {name}" for name in (*STUDY.RATES, *STUDY.LOCAL[:-1])],
    "adam": [f"4niid, {name}" for name in STUDY.LOCAL[-1:]],
    "delta": [f"4niid, {name}" for name in STUDY.ADAPTIVE if name.endswith("-delta")],
    "larger": [
        f"4niid, {name}" for name in (*STUDY.LITERAL, *STUDY.BEYOND, *STUDY.LARGER)
    ],
}
VALIDATION = 5000  # rows that no label owner was dealt: rates are chosen by them
CHUNK = 1000  # rows that are scored at once
# loaded where there is a GPU: they need Triton
KERNELS = Path(__file__).with_name("kernels.py")
SCALE = 512.0  # of gradients in half precision


class Stack:
    """Runs with one seed, one shape and one local optimizer, K label owners each."""

    # w1 is the data owners', the others a label owner's
    names = ("w1", "w2", "b2", "w3", "b3", "w4", "b4")

    def __init__(self, runs: Sequence[Federation], device: torch.device) -> None:
        self.runs = list(runs)
        self.device = device
        self.round = 0
        first = self.runs[0]
        self.owners = list(first.holdings.label_owners)
        self.many, self.K, self.D = (
            len(self.runs),
            len(self.owners),
            len(first.holdings.columns),
        )
        strip = next(iter(first.holdings.columns.values())).features
        self.high, self.wide = strip.shape[-2:]
        self.batch = first.settings.train.batch_size
        self.longest = max(
            one.per_epoch for run in self.runs for one in run.agreed.values()
        )
        self.adam = first.settings.config.optimizer == "adam"
        self.W = {
            name: value.to(device) for name, value in self._first_weights().items()
        }
        self.x, self.y, self.offsets = self._rows()
        self.servers = [
            server_optimizer(run.settings.config, run.settings.train.epochs)
            for run in self.runs
        ]
        kinds = list(dict.fromkeys(self.servers))
        self.alike = [
            [at for at, one in enumerate(self.servers) if one == kind] for kind in kinds
        ]
        self.moments = [
            kind.init({name: self.W[name][alike] for name in self.names[1:]})
            for kind, alike in zip(kinds, self.alike, strict=True)
        ]
        rates = torch.tensor(
            [
                run.settings.config.learning_rate
                for run in self.runs
                for _ in self.owners
            ]
        )
        self.rate = rates.to(device)
        G = self.many * self.K
        self.w = {
            name: value.repeat_interleave(self.K, 0) for name, value in self.W.items()
        }
        self.m = (
            {name: torch.zeros_like(value) for name, value in self.w.items()}
            if self.adam
            else {}
        )
        self.v = (
            {name: torch.zeros_like(value) for name, value in self.w.items()}
            if self.adam
            else {}
        )
        self.steps = torch.zeros((), device=device)
        self.rows = torch.zeros(G, self.batch, dtype=torch.int64, device=device)
        # of a row in its batch's mean; 0 where there is none
        self.share = torch.zeros(G, self.batch, device=device)
        self.loss = torch.zeros(G, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.short = torch.float16  # of the kernels

    def _first_weights(self) -> dict[str, Tensor]:
        """The parties' own, of every run: [runs, ...]."""
        found: dict[str, list[Tensor]] = {name: [] for name in self.names}
        for run in self.runs:
            taps = []
            for owner in run.owners.values():
                conv = next(
                    one for one in owner.model.modules() if isinstance(one, nn.Conv2d)
                )
                taps.append(
                    torch.cat([conv.weight.flatten(1), _bias(conv)[:, None]], 1).T
                )
            found["w1"].append(torch.stack(taps))
            label_owner = run.label_owners[self.owners[0]]
            conv = next(
                one for one in label_owner.model.modules() if isinstance(one, nn.Conv2d)
            )
            hidden, last = (
                one for one in label_owner.model.modules() if isinstance(one, nn.Linear)
            )
            found["w2"].append(conv.weight.permute(0, 2, 3, 1))
            # channels come first there
            side = hidden.weight.reshape(len(hidden.weight), len(conv.weight), -1)
            found["w3"].append(side.permute(2, 1, 0).flatten(0, 1))
            found["w4"].append(last.weight.T)
            for name, layer in (("b2", conv), ("b3", hidden), ("b4", last)):
                found[name].append(_bias(layer))
        return {
            name: torch.stack(each).detach().cpu().clone().contiguous()
            for name, each in found.items()
        }

    def parties(self, run: int) -> tuple[list[Tensor], Tensor]:
        """The weights of a run as the parties have them: each data owner's, and the
        aggregated model's."""
        W = {name: value[run] for name, value in self.W.items()}
        owners = [torch.cat([one[:9].T.flatten(), one[9]]) for one in W["w1"]]
        hidden = (
            W["w3"].reshape(-1, len(W["b2"]), len(W["b3"])).permute(2, 1, 0).flatten()
        )
        parts = [
            W["w2"].permute(0, 3, 1, 2).flatten(),
            W["b2"],
            hidden,
            W["b3"],
            W["w4"].T.flatten(),
            W["b4"],
        ]
        return owners, torch.cat(parts)

    def _rows(self) -> tuple[Tensor, Tensor, list[int]]:
        """Every run's pictures with a border of zeros around each strip, and labels by
        place. Runs of one scenario have the same; these are kept once."""
        x = []
        y = []
        offsets = []
        known = {}
        total = 0
        for run in self.runs:
            held = run.holdings
            key = tuple(one.classes for one in run.settings.label_owners.values())
            if key not in known:
                known[key] = total
                strips = torch.stack([one.features for one in held.columns.values()], 1)
                labels = torch.zeros(len(strips), dtype=torch.int64)
                for share in held.label_owners.values():
                    labels[_placed(share)] = share.labels
                x.append(nn.functional.pad(strips, (1, 1, 1, 1)))
                y.append(labels)
                total += len(strips)
            offsets.append(known[key])
        return torch.cat(x).to(self.device), torch.cat(y).to(self.device), offsets

    def logits(self, w: dict[str, Tensor], x: Tensor) -> Tensor:
        """What a model with weights w says of pictures x [rows, D, high + 2, wide + 2]."""
        taps = w["w1"].transpose(1, 2)
        maps = [
            nn.functional.conv2d(
                x[:, at : at + 1], one[:, :9].unflatten(1, (1, 3, 3)), one[:, 9]
            )
            for at, one in enumerate(taps)
        ]
        y = nn.functional.conv2d(
            torch.cat(maps, 2).relu(), w["w2"].permute(0, 3, 1, 2), w["b2"], padding=1
        )
        a = nn.functional.max_pool2d(y, 2).relu().permute(0, 2, 3, 1).flatten(1)
        return (a @ w["w3"] + w["b3"]).relu() @ w["w4"] + w["b4"]

    def step(self) -> None:
        """One local step of every label owner and of its copies at the data owners."""
        self._move(
            self._by_kernels() if self.device.type == "cuda" else self._by_autograd()
        )

    def _by_autograd(self) -> dict[str, Tensor]:
        w = {name: value.requires_grad_() for name, value in self.w.items()}
        for g, rows in enumerate(self.rows):
            logits = self.logits(
                {name: value[g] for name, value in w.items()}, self.x[rows]
            )
            each = nn.functional.cross_entropy(logits, self.y[rows], reduction="none")
            self.loss[g] = (each * self.share[g]).sum()
        found = torch.autograd.grad(self.loss.sum(), list(w.values()))
        self.loss = self.loss.detach()
        for value in w.values():
            value.requires_grad_(False)
        return dict(zip(w, found, strict=True))

    def _by_kernels(self) -> dict[str, Tensor]:
        """The same, written out. Convolutions multiply half-precision numbers, of as
        many bits as TF32 has, and add in float32. Their exponents are short, so
        gradients are scaled."""
        kernels = script_of(
            dataclasses.replace(reproduction.plan("multi-vfl"), script=KERNELS)
        )
        w = self.w
        h, pooled, chosen = kernels.forward(self.x, self.rows, w, self.short)
        a = pooled.flatten(2)
        h3 = torch.baddbmm(w["b3"][:, None], a, w["w3"]).clamp_min_(0)
        logits = torch.baddbmm(w["b4"][:, None], h3, w["w4"])
        labels = self.y[self.rows][..., None]
        log_p = logits.log_softmax(-1)
        self.loss.copy_(-(log_p.gather(-1, labels)[..., 0] * self.share).sum(-1))
        minus_one = torch.full_like(self.share, -1.0)[..., None]
        dz4 = log_p.exp().scatter_add_(-1, labels, minus_one) * (
            SCALE * self.share[..., None]
        )
        dz3 = torch.bmm(dz4, w["w4"].transpose(1, 2)) * (h3 > 0)
        da = torch.bmm(dz3, w["w3"].transpose(1, 2))
        d = kernels.backward(self.x, self.rows, w, h, da, chosen)
        d |= {
            "w4": torch.bmm(h3.transpose(1, 2), dz4),
            "b4": dz4.sum(1),
            "b3": dz3.sum(1),
        }
        if self.adam:
            d["w3"] = torch.bmm(a.transpose(1, 2), dz3)
        else:  # the largest by far: its step is taken with its gradient
            w["w3"].baddbmm_(
                a.transpose(1, 2), (self.rate[:, None, None] / SCALE) * dz3, alpha=-1
            )
        return {name: gradient / SCALE for name, gradient in d.items()}

    def _move(self, d: dict[str, Tensor]) -> None:
        self.steps += 1
        for name, gradient in d.items():
            rate = self.rate.view(-1, *[1] * (gradient.dim() - 1))
            if not self.adam:
                self.w[name].sub_(rate * gradient)
                continue
            m = self.m[name]
            v = self.v[name]
            m.mul_(0.9).add_(gradient, alpha=0.1)
            v.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            root = (v / (1 - 0.999**self.steps)).sqrt() + 1e-8
            self.w[name].sub_(rate * m / (1 - 0.9**self.steps) / root)

    def train_round(self) -> list[float]:
        """One round of every run; gives each one's mean loss."""
        rows, share = self._batches()
        for name, value in self.W.items():
            self.w[name].copy_(value.repeat_interleave(self.K, 0))
        for moment in (*self.m.values(), *self.v.values(), self.steps, self.loss):
            moment.zero_()
        if self.round == 0 and self.device.type == "cuda":
            self._capture(rows[0], share[0])
        total = torch.zeros_like(self.loss)
        for at in range(len(rows)):
            self.rows.copy_(rows[at])
            self.share.copy_(share[at])
            self.step() if self.graph is None else self.graph.replay()
            total += self.loss * (share[at] > 0).sum(-1)
        self._aggregate()
        self.round += 1
        count = (share > 0).sum((0, 2)).float()
        return (total / count).view(self.many, self.K).mean(1).tolist()

    def _batches(self) -> tuple[Tensor, Tensor]:
        """Of a round, [batches, groups, batch size]: places of rows, and their shares."""
        per_owner: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
        for run, offset in zip(self.runs, self.offsets, strict=True):
            for name in self.owners:
                if (offset, name) in per_owner:
                    continue
                batches = run.agreed[name]
                owner = run.holdings.label_owners[name]
                sizes = torch.tensor(
                    [batch.size for batch in batches.of_epoch(self.round)]
                )
                full = nn.functional.pad(sizes, (0, self.longest - len(sizes)))[
                    :, None
                ] > torch.arange(self.batch)
                rows = torch.zeros(full.shape, dtype=torch.int64)
                rows[full] = _placed(owner)[batches.epoch_rows(self.round)] + offset
                per_owner[offset, name] = (
                    rows,
                    full / full.sum(1, keepdim=True).clamp_min(1),
                )
        every = [
            per_owner[offset, name] for offset in self.offsets for name in self.owners
        ]
        rows, share_of = (torch.stack(each, 1) for each in zip(*every, strict=True))
        return rows.to(self.device), share_of.to(self.device)

    def _capture(self, rows: Tensor, share: Tensor) -> None:
        """The step as a graph; what the trial steps changed is put back."""
        before = {name: value.clone() for name, value in self.w.items()}
        self.rows.copy_(rows)
        self.share.copy_(share)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        self.graph = graph
        for name, value in before.items():
            self.w[name].copy_(value)
        for moment in (*self.m.values(), *self.v.values(), self.steps, self.loss):
            moment.zero_()

    def _aggregate(self) -> None:
        """The mean of the copies; of the label owners' models by the run's server
        optimizer."""
        means = {
            name: value.view(self.many, self.K, *value.shape[1:]).mean(1)
            for name, value in self.w.items()
        }
        self.W["w1"] = means["w1"]
        for at, alike in enumerate(self.alike):
            W = {name: self.W[name][alike] for name in self.names[1:]}
            change = {name: means[name][alike] - W[name] for name in W}
            moved, self.moments[at] = self.servers[alike[0]].update(
                self.moments[at], W, change, self.round + 1
            )
            for name, value in moved.items():
                self.W[name][alike] = value

    @torch.no_grad()
    def right(self, run: int, x: Tensor, y: Tensor) -> float:
        """The share of pictures [rows, D, high + 2, wide + 2] that a run's aggregated
        model names."""
        W = {name: value[run] for name, value in self.W.items()}
        named = 0
        for at in range(0, len(x), CHUNK):
            named += int(
                (
                    self.logits(W, x[at : at + CHUNK]).argmax(1) == y[at : at + CHUNK]
                ).sum()
            )
        return named / len(x)

    def finite(self, run: int) -> bool:
        return all(bool(value[run].isfinite().all()) for value in self.W.values())


def _bias(layer: nn.Conv2d | nn.Linear) -> Tensor:
    assert layer.bias is not None
    return layer.bias


def _placed(share: LabelledRows) -> Tensor:
    """Where a label owner's rows are among all rows."""
    assert share.rows is not None
    return share.rows


def test_rows(run: Federation) -> Tensor:
    """Places of all test rows."""
    shares = run.holdings.label_owners.values()
    return torch.cat([_placed(share)[share.splits["test"]] for share in shares])


def validation_rows(run: Federation, data: str, seed: int) -> tuple[Tensor, Tensor]:
    """Training rows that nobody was dealt, scaled as the others are."""
    source = datasets.load(data).train
    held = torch.zeros(len(source), dtype=torch.bool)
    ids = torch.from_numpy(run.holdings.ids.astype(int))
    dealt = ids < len(source)
    held[ids[dealt]] = True
    free = (~held).nonzero()[:, 0]
    chosen = free[
        torch.randperm(len(free), generator=torch.Generator().manual_seed(seed))[
            :VALIDATION
        ]
    ]
    raw = torch.from_numpy(source.array()).float()
    known = torch.cat([one.features[dealt] for one in run.holdings.columns.values()], 1)
    there = raw[ids[dealt]]
    slope = known.std() / there.std()
    x = raw[chosen] * slope + (known.mean() - slope * there.mean())
    return x, torch.from_numpy(source.y)[chosen]


def follow(
    plan: Plan,
    data: str,
    seed: int,
    lines: Sequence[str],
    out: Path,
    until: int,
    device: torch.device,
) -> None:
    """Train those to the end that were not yet; what was found is kept every few
    rounds, a file for each run."""
    kept = KeptCells(plan, out / "cells")
    names = {f"{data}, {line}, seed {seed}": line for line in lines}
    done = kept.read(list(names), partly=False)
    lines = [line for name, line in names.items() if name not in done]
    if not lines:
        return
    runs: list[Federation] = []
    held: dict[str, Federation] = {}
    for line in lines:
        cell = STUDY.Cell(data, *line.split(", "))
        if cell.scenario in held:  # optimizers meet the same rows
            settings = STUDY.settings(plan, cell)
            other = held[cell.scenario]
            runs.append(
                Federation(
                    dataclasses.replace(settings, engine=other.settings.engine),
                    other.holdings,
                )
            )
        else:
            runs.append(STUDY.federation(plan, cell, seed))
            held[cell.scenario] = runs[-1]
    stack = Stack(runs, device)
    studies = [Study(plan) for _ in lines]
    titles = [f"{data}, {line}" for line in lines]
    tests = [test_rows(run) for run in runs]
    for found, title in zip(studies, titles, strict=True):
        found.curves[title], found.losses[title] = [[]], [[]]
    free = {
        scenario: validation_rows(run, data, seed) for scenario, run in held.items()
    }
    shares = [free[line.split(", ")[0]] for line in lines]
    last = start = time.monotonic()
    for number in range(1, min(until, max(plan.epochs)) + 1):
        losses = stack.train_round()
        look = number <= 2 or number % 10 == 0 or number in plan.epochs
        for at, (found, title) in enumerate(zip(studies, titles, strict=True)):
            found.losses[title][0].append((number, losses[at]))
            if not look:
                continue
            place = tests[at].to(device) + stack.offsets[at]
            finite = stack.finite(at)
            score = (
                stack.right(at, stack.x[place], stack.y[place]) if finite else math.nan
            )
            found.curves[title][0].append((number, score))
            if number in plan.epochs:
                x, y = shares[at]
                strips = nn.functional.pad(
                    torch.stack(x.tensor_split(stack.D, 1), 1), (1, 1, 1, 1)
                )
                found.record(f"{title}, round {number}", score)
                checked = (
                    stack.right(at, strips.to(device), y.to(device))
                    if finite
                    else math.nan
                )
                found.record(f"{title}, round {number}, validation rows", checked)
            if time.monotonic() - last > 5 or number in plan.epochs:
                kept.write(f"{title}, seed {seed}", found, number == max(plan.epochs))
        if look:
            last = time.monotonic()
        if number in (2, 10, 50) or number % 100 == 0:
            print(
                f"{data} seed {seed} {lines[0]}+{len(lines) - 1}: round {number},"
                f" {last - start:.0f} s",
                flush=True,
            )


def main() -> None:
    words = argparse.ArgumentParser(
        description="Run many lines of the study at once, on a GPU where there is one."
    )
    words.add_argument("folder", type=Path)
    words.add_argument("--data", nargs="+", default=["mnist", "fashion_mnist"])
    words.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2])
    words.add_argument("--lines", nargs="+", choices=LINES, default=list(LINES))
    words.add_argument(
        "--until", type=int, default=500, help="rounds after which it stops"
    )
    given = words.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    plan = reproduction.plan("multi-vfl")
    for data, lines, seed in itertools.product(given.data, given.lines, given.seed):
        follow(plan, data, seed, LINES[lines], given.folder, given.until, device)


if __name__ == "__main__":
    main()
