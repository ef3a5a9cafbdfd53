"""Many runs of the study at once on one GPU: the same arithmetic as Multi-VFL's parties, without parties.

A run of 500 rounds takes minutes of an H200 by `study.py`, and both figures are over a hundred of them. Here runs with
one seed are stacked, K label owners each: their local steps are one step of a stack, with gradients written out, in a
CUDA graph. Rows, batches and first weights are those of `study.federation`, the server's step is `optim.server`'s, and
`tests/reproduction/test_together.py` holds weights after several rounds equal to the parties'. What it measures is
kept as `study.py` would have kept it, so that `colonnade reproduce multi-vfl --jobs 0 --out FOLDER` puts it together.

    python reproductions/multi_vfl/together.py FOLDER
    python reproductions/multi_vfl/together.py FOLDER --data mnist --seed 0 --lines main

The first runs all that FOLDER has no finished run of. A run that was cut off begins again.

Maps are stored with channels last. Max pooling goes before bias and ReLU, with which it commutes.
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
from colonnade.federation import Federation
from colonnade.reproduction import Plan, Study
from colonnade.reproduction.cells import Kept, script_of
from colonnade.rows.holdings import LabelledRows

LINES = {
    "main": [
        *("1niid, FedAvg", "2niid, FedAvg", "3niid, FedAvg", "4niid, FedAvg"),
        *("4niid, FedAdam", "4niid, FedYogi", "4niid, FedDemonAdam"),
    ],
    "rates": [
        *("4niid, FedAdam@0.003", "4niid, FedAdam@0.01", "4niid, FedAdam@0.03"),
        *("4niid, FedAvg/0.003", "4niid, FedAvg/0.01", "4niid, FedAvg/0.03"),
    ],
    "adam": ["4niid, FedAvg/adam"],
}
VALIDATION = 5000  # rows that no label owner was dealt: rates are chosen by them
CHUNK = 1000  # rows that are scored at once
TAPS = 16  # of a patch: nine pixels, a one for the bias, and zeros, since products like multiples of 8
aten = torch.ops.aten


class Stack:
    """Runs with one seed, one shape and one local optimizer, K label owners each."""

    names = ("w1", "w2", "b2", "w3", "b3", "w4", "b4")  # w1 is the data owners', the others a label owner's

    def __init__(self, runs: Sequence[Federation], device: torch.device) -> None:
        self.runs, self.device, self.round = list(runs), device, 0
        first = self.runs[0]
        self.owners = list(first.holdings.label_owners)
        self.many, self.K, self.D = len(self.runs), len(self.owners), len(first.holdings.columns)
        strip = next(iter(first.holdings.columns.values())).features
        self.high, self.wide = strip.shape[-2:]
        self.batch = first.settings.train.batch_size
        self.adam = first.settings.config.optimizer == "adam"
        self.W = {name: value.to(device) for name, value in self._first_weights().items()}
        self.x, self.y, self.offsets = self._rows()
        self.servers = [run.settings.config.server_optimizer(run.settings.train.epochs) for run in self.runs]
        kinds = list(dict.fromkeys(self.servers))
        self.alike = [[at for at, one in enumerate(self.servers) if one == kind] for kind in kinds]
        self.moments = [
            kind.init({name: self.W[name][alike] for name in self.names[1:]})
            for kind, alike in zip(kinds, self.alike, strict=True)
        ]
        rates = torch.tensor([run.settings.config.learning_rate for run in self.runs for _ in self.owners])
        self.rate = rates.to(device)
        G = self.many * self.K
        self.w = {name: value.repeat_interleave(self.K, 0) for name, value in self.W.items()}
        self.m = {name: torch.zeros_like(value) for name, value in self.w.items()} if self.adam else {}
        self.v = {name: torch.zeros_like(value) for name, value in self.w.items()} if self.adam else {}
        self.steps = torch.zeros((), device=device)
        self.rows = torch.zeros(G, self.batch, dtype=torch.int64, device=device)
        self.share = torch.zeros(G, self.batch, device=device)  # of a row in its batch's mean; 0 where there is none
        self.loss = torch.zeros(G, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        # On a GPU convolutions multiply half-precision numbers, of as many bits as TF32 has, and add in float32. Their
        # exponents are short, so gradients are scaled.
        self.short, self.scale = (torch.float16, 512.0) if device.type == "cuda" else (torch.float32, 1.0)

    def _first_weights(self) -> dict[str, Tensor]:
        """The parties' own, of every run: [runs, ...]."""
        found: dict[str, list[Tensor]] = {name: [] for name in self.names}
        for run in self.runs:
            taps = []
            for owner in run.owners.values():
                conv = next(one for one in owner.model.modules() if isinstance(one, nn.Conv2d))
                taps.append(torch.cat([conv.weight.flatten(1), _bias(conv)[:, None]], 1).T)
            found["w1"].append(torch.stack(taps))
            label_owner = run.label_owners[self.owners[0]]
            conv = next(one for one in label_owner.model.modules() if isinstance(one, nn.Conv2d))
            hidden, last = (one for one in label_owner.model.modules() if isinstance(one, nn.Linear))
            found["w2"].append(conv.weight.permute(0, 2, 3, 1))
            side = hidden.weight.reshape(len(hidden.weight), len(conv.weight), -1)  # channels come first there
            found["w3"].append(side.permute(2, 1, 0).flatten(0, 1))
            found["w4"].append(last.weight.T)
            for name, layer in (("b2", conv), ("b3", hidden), ("b4", last)):
                found[name].append(_bias(layer))
        return {name: torch.stack(each).detach().cpu().clone().contiguous() for name, each in found.items()}

    def parties(self, run: int) -> tuple[list[Tensor], Tensor]:
        """The weights of a run as the parties have them: each data owner's, and the aggregated model's."""
        W = {name: value[run] for name, value in self.W.items()}
        owners = [torch.cat([one[:9].T.flatten(), one[9]]) for one in W["w1"]]
        hidden = W["w3"].reshape(-1, len(W["b2"]), len(W["b3"])).permute(2, 1, 0).flatten()
        parts = [W["w2"].permute(0, 3, 1, 2).flatten(), W["b2"], hidden, W["b3"], W["w4"].T.flatten(), W["b4"]]
        return owners, torch.cat(parts)

    def _rows(self) -> tuple[Tensor, Tensor, list[int]]:
        """Every run's pictures with a border of zeros around each strip, and labels by place. Runs of one scenario
        have the same; these are kept once."""
        x, y, offsets, known, total = [], [], [], {}, 0
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

    def patches(self, rows: Tensor) -> Tensor:
        """[groups, D, rows, high, wide, TAPS]: nine pixels, a one, and zeros, for every place of every strip."""
        x = self.x[rows].unfold(-2, 3, 1).unfold(-2, 3, 1)  # [groups, rows, D, high, wide, 3, 3]
        shape = (len(rows), self.D, rows.shape[1], self.high, self.wide, TAPS)
        made = torch.zeros(shape, dtype=self.short, device=self.device)
        made[..., :9].view(*shape[:-1], 3, 3).copy_(x.transpose(1, 2))
        made[..., 9] = 1.0
        return made

    def maps(self, patches: Tensor, w1: Tensor) -> Tensor:
        """What data owners send, put together: [groups, rows, D * high, wide, channels]."""
        groups, D, rows = patches.shape[:3]
        w1 = nn.functional.pad(w1, (0, 0, 0, TAPS - 10)).to(self.short)
        z = torch.bmm(patches.view(groups * D, -1, TAPS), w1.reshape(groups * D, TAPS, -1))
        z = z.view(groups, D, rows, self.high, self.wide, -1).transpose(1, 2)
        sent = torch.empty(z.shape, dtype=self.short, device=self.device)
        return torch.clamp_min(z, 0, out=sent).flatten(2, 3)

    def step(self) -> None:
        """One local step of every label owner and of its copies at the data owners."""
        w, groups = self.w, len(self.rows)
        patches = self.patches(self.rows)
        h = self.maps(patches, w["w1"])
        w2 = w["w2"].to(self.short)
        y = torch.stack([_convolved(h[g], w2[g]).permute(0, 2, 3, 1) for g in range(groups)])
        pool = Pool(y)
        a = (pool.best.flatten(2) + w["b2"].repeat(1, pool.best[0, 0, ..., 0].numel())[:, None]).clamp_min(0)
        h3 = torch.baddbmm(w["b3"][:, None], a, w["w3"]).clamp_min(0)
        logits = torch.baddbmm(w["b4"][:, None], h3, w["w4"])
        labels = self.y[self.rows]
        log_p = logits.log_softmax(-1)
        self.loss -= (log_p.gather(-1, labels[..., None])[..., 0] * self.share).sum(-1)
        minus_one = torch.full_like(self.share, -1.0)[..., None]
        dz4 = log_p.exp().scatter_add_(-1, labels[..., None], minus_one) * (self.scale * self.share[..., None])
        dz3 = torch.bmm(dz4, w["w4"].transpose(1, 2)) * (h3 > 0)
        da = torch.bmm(dz3, w["w3"].transpose(1, 2)) * (a > 0)
        d = {
            "w4": torch.bmm(h3.transpose(1, 2), dz4),
            "b4": dz4.sum(1),
            "b3": dz3.sum(1),
            "b2": da.view(groups, -1, w["b2"].shape[1]).sum(1),
        }
        dy = pool.back(da.to(self.short))
        d1 = torch.empty(
            (groups, self.D, *h.shape[1:2], self.high, self.wide, h.shape[-1]), dtype=self.short, device=self.device
        )
        dw2 = torch.empty_like(w2)
        for g in range(groups):
            dh, dw, _ = aten.convolution_backward(
                dy[g].permute(0, 3, 1, 2), h[g].permute(0, 3, 1, 2), w2[g].permute(0, 3, 1, 2), None,
                [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False],
            )  # fmt: skip
            dw2[g] = dw.permute(0, 2, 3, 1)
            dh, kept = (one.unflatten(1, (self.D, self.high)) for one in (dh.permute(0, 2, 3, 1), h[g]))
            aten.threshold_backward.grad_input(dh, kept, 0, grad_input=d1[g].transpose(0, 1))
        d["w2"] = dw2.to(w["w2"].dtype)
        flat = patches.view(groups * self.D, -1, TAPS).transpose(1, 2)
        dw1 = torch.bmm(flat, d1.view(groups * self.D, -1, h.shape[-1])).view(groups, self.D, TAPS, -1)
        d["w1"] = dw1[:, :, :10].to(w["w1"].dtype)
        if self.adam:
            d["w3"] = torch.bmm(a.transpose(1, 2), dz3)
        else:  # the largest by far: its step is taken with its gradient
            w["w3"].baddbmm_(a.transpose(1, 2), (self.rate[:, None, None] / self.scale) * dz3, alpha=-1)
        self._move({name: gradient / self.scale for name, gradient in d.items()})

    def _move(self, d: dict[str, Tensor]) -> None:
        self.steps += 1
        for name, gradient in d.items():
            rate = self.rate.view(-1, *[1] * (gradient.dim() - 1))
            if not self.adam:
                self.w[name].sub_(rate * gradient)
                continue
            m, v = self.m[name], self.v[name]
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
            self.loss.zero_()
            self.step() if self.graph is None else self.graph.replay()
            total += self.loss * (share[at] > 0).sum(-1)
        self._aggregate()
        self.round += 1
        count = (share > 0).sum((0, 2)).float()
        return (total / count).view(self.many, self.K).mean(1).tolist()

    def _batches(self) -> tuple[Tensor, Tensor]:
        """Of a round, [batches, groups, batch size]: places of rows, and their shares."""
        per_owner: dict[tuple[int, str], tuple[list[Tensor], list[int]]] = {}
        every = []
        for run, offset in zip(self.runs, self.offsets, strict=True):
            for name in self.owners:
                if (offset, name) not in per_owner:
                    batches, share = run.agreed[name], run.holdings.label_owners[name]
                    sizes = [batch.size for batch in batches.of_epoch(self.round)]
                    order = _placed(share)[batches.epoch_rows(self.round)] + offset
                    per_owner[offset, name] = list(order.split(sizes)), sizes  # type: ignore[no-untyped-call]
                every.append(per_owner[offset, name][0])
        longest = max(map(len, every))
        rows = torch.zeros(longest, len(every), self.batch, dtype=torch.int64)
        share_of = torch.zeros(longest, len(every), self.batch)
        for group, parts in enumerate(every):
            for at, part in enumerate(parts):
                rows[at, group, : len(part)], share_of[at, group, : len(part)] = part, 1 / len(part)
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
        """The mean of the copies; of the label owners' models by the run's server optimizer."""
        means = {name: value.view(self.many, self.K, *value.shape[1:]).mean(1) for name, value in self.w.items()}
        self.W["w1"] = means["w1"]
        for at, alike in enumerate(self.alike):
            W = {name: self.W[name][alike] for name in self.names[1:]}
            change = {name: means[name][alike] - W[name] for name in W}
            moved, self.moments[at] = self.servers[alike[0]].update(self.moments[at], W, change, self.round + 1)
            for name, value in moved.items():
                self.W[name][alike] = value

    @torch.no_grad()
    def right(self, run: int, x: Tensor, y: Tensor) -> float:
        """The share of pictures [rows, D, high + 2, wide + 2] that a run's aggregated model names."""
        W, named, kept = {name: value[run] for name, value in self.W.items()}, 0, self.x
        for at in range(0, len(x), CHUNK):
            self.x = x[at : at + CHUNK]
            h = self.maps(self.patches(torch.arange(len(self.x), device=self.device)[None]), W["w1"][None])[0]
            best = nn.functional.max_pool2d(_convolved(h, W["w2"].to(self.short)), 2).permute(0, 2, 3, 1)
            a = (best + W["b2"]).clamp_min(0).flatten(1)
            logits = (a @ W["w3"] + W["b3"]).clamp_min(0) @ W["w4"] + W["b4"]
            named += int((logits.argmax(1) == y[at : at + CHUNK]).sum())
        self.x = kept
        return named / len(x)

    def finite(self, run: int) -> bool:
        return all(bool(value[run].isfinite().all()) for value in self.W.values())


class Pool:
    """2 x 2 max pooling of [..., height, width, channels], whose gradient goes to the first of equal values."""

    def __init__(self, y: Tensor) -> None:
        self.shape = y.shape
        self.pixels = self._cut(y)
        a, b, c, d = self.pixels
        above, below = torch.maximum(a, b), torch.maximum(c, d)
        self.best = torch.maximum(above, below)
        self.above, self.left, self.right = above >= below, a >= b, c >= d

    @staticmethod
    def _cut(y: Tensor) -> tuple[Tensor, ...]:
        *before, height, width, channels = y.shape
        v = y.view(*before, height // 2, 2, width // 2, 2, channels)
        return tuple(v[..., :, row, :, column, :] for row in (0, 1) for column in (0, 1))

    def back(self, gradient: Tensor) -> Tensor:
        made = torch.empty(self.shape, dtype=gradient.dtype, device=gradient.device)
        a, b, c, d = self._cut(made)
        gradient = gradient.view(self.best.shape)
        above = gradient * self.above
        below = gradient - above
        torch.mul(above, self.left, out=a)
        torch.sub(above, a, out=b)
        torch.mul(below, self.right, out=c)
        torch.sub(below, c, out=d)
        return made


def _bias(layer: nn.Conv2d | nn.Linear) -> Tensor:
    assert layer.bias is not None
    return layer.bias


def _placed(share: LabelledRows) -> Tensor:
    """Where a label owner's rows are among all rows."""
    assert share.rows is not None
    return share.rows


def _convolved(h: Tensor, w2: Tensor) -> Tensor:
    """3 x 3 over [rows, height, width, channels], seen as channels first."""
    return nn.functional.conv2d(h.permute(0, 3, 1, 2), w2.permute(0, 3, 1, 2), padding=1)


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
    chosen = free[torch.randperm(len(free), generator=torch.Generator().manual_seed(seed))[:VALIDATION]]
    raw = torch.from_numpy(source.array()).float()
    known = torch.cat([one.features[dealt] for one in run.holdings.columns.values()], 1)
    there = raw[ids[dealt]]
    slope = known.std() / there.std()
    x = raw[chosen] * slope + (known.mean() - slope * there.mean())
    return x, torch.from_numpy(source.y)[chosen]


def follow(plan: Plan, data: str, seed: int, lines: Sequence[str], out: Path, until: int, device: torch.device) -> None:
    """Train those to the end that were not yet; what was found is kept every few rounds, a file for each run."""
    study, kept = script_of(reproduction.plan("multi-vfl")), Kept(plan, out / "cells")
    names = {f"{data}, {line}, seed {seed}": line for line in lines}
    done = kept.read(list(names), partly=False)
    lines = [line for name, line in names.items() if name not in done]
    if not lines:
        return
    runs: list[Federation] = []
    held: dict[str, Federation] = {}
    for line in lines:
        cell = study.Cell(data, *line.split(", "))
        if cell.scenario in held:  # optimizers meet the same rows
            settings, other = study.settings(plan, cell), held[cell.scenario]
            runs.append(Federation(dataclasses.replace(settings, engine=other.settings.engine), other.holdings))
        else:
            runs.append(study.federation(plan, cell, seed))
            held[cell.scenario] = runs[-1]
    stack = Stack(runs, device)
    studies = [Study(plan) for _ in lines]
    titles = [f"{data}, {line}" for line in lines]
    tests = [test_rows(run) for run in runs]
    for found, title in zip(studies, titles, strict=True):
        found.curves[title], found.losses[title] = [[]], [[]]
    free = {scenario: validation_rows(run, data, seed) for scenario, run in held.items()}
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
            score = stack.right(at, stack.x[place], stack.y[place]) if stack.finite(at) else math.nan
            found.curves[title][0].append((number, score))
            if number in plan.epochs:
                x, y = shares[at]
                strips = nn.functional.pad(torch.stack(x.tensor_split(stack.D, 1), 1), (1, 1, 1, 1))
                found.record(f"{title}, round {number}", score)
                checked = stack.right(at, strips.to(device), y.to(device))
                found.record(f"{title}, round {number}, validation rows", checked)
            if time.monotonic() - last > 5 or number in plan.epochs:
                kept.write(f"{title}, seed {seed}", found, number == max(plan.epochs))
        if look:
            last = time.monotonic()
        if number in (2, 10, 50) or number % 100 == 0:
            print(f"{data} seed {seed} {lines[0]}+{len(lines) - 1}: round {number}, {last - start:.0f} s", flush=True)


def main() -> None:
    words = argparse.ArgumentParser(description="Run many lines of the study at once, on a GPU where there is one.")
    words.add_argument("folder", type=Path)
    words.add_argument("--data", nargs="+", default=["mnist", "fashion_mnist"])
    words.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2])
    words.add_argument("--lines", nargs="+", choices=LINES, default=list(LINES))
    words.add_argument("--until", type=int, default=500, help="rounds after which it stops")
    given = words.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    plan = reproduction.plan("multi-vfl")
    for data, lines, seed in itertools.product(given.data, given.lines, given.seed):
        follow(plan, data, seed, LINES[lines], given.folder, given.until, device)


if __name__ == "__main__":
    main()
