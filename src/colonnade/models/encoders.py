"""Encoders turn many columns into few numbers. They learn from a party's own rows
without labels: PCA or autoencoder.

PCA:           h = c W (x - m)          m the mean, W the directions in which rows differ most, orthonormal
autoencoder:   h = c (f(x) - m)         f the party's own model and a linear layer; a decoder d, thrown away after
                                        learning, makes ||x - d(f(x))||^2 small
c scales h so that its mean squared length is 1, which a rule's clip of 1.0 is for

A model that is trained with others may first learn alone (`pretrain`): some numbers of
each row are hidden, and the model and a linear layer behind it, which is then
forgotten, learn to tell the whole row. Hidden columns are as in Yoon et al. (VIME,
NeurIPS 2020).
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn

from colonnade.models import initialised

BATCH = 256
RATE = 1e-3
HIDDEN = 64
"""For the autoencoder: rows in a step, Adam's step, and the width of its decoder."""
MASKED = 0.3
SEEN = 0.1
PRE_BATCH = 512
PRE_RATE = 0.002
"""For pretraining: the share of numbers that are hidden, the weight of a seen number
where a hidden one has 1, rows in a step, and Adam's step."""
LEAST = 1e-6
"""A direction with a smaller share of the variance than this is only rounding."""


class Encoder(nn.Module):
    """A model that learns without labels. Before it has learned, its output for every
    row is 0."""

    learned: Tensor
    centre: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("learned", torch.tensor(False))
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("scale", torch.zeros(()))

    def learn(self, x: Tensor, generator: Generator) -> None:
        """Learn from these rows, once; a second call changes nothing."""
        if bool(self.learned):
            return
        self.fit(x, generator)
        with torch.no_grad():
            h = self.codes(x).double()
            self.centre.copy_(h.mean(0))
            size = (h - h.mean(0)).square().sum(1).mean().sqrt()
            self.scale.copy_(1 / size if size > LEAST else torch.zeros(()))
            self.learned.fill_(True)

    def fit(self, x: Tensor, generator: Generator) -> None:
        raise NotImplementedError

    def codes(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return (self.codes(x) - self.centre) * self.scale


class Pca(Encoder):
    """The directions in which rows differ most."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__(width)
        self.flat = nn.Flatten()
        self.project = nn.Linear(columns, width, bias=False).requires_grad_(False)

    def fit(self, x: Tensor, generator: Generator) -> None:  # noqa: ARG002 - nothing is drawn
        rows = self.flat(x).double()
        rows = rows - rows.mean(0)
        _, directions = torch.linalg.eigh(rows.T @ rows)
        best = directions.flip(1)[:, : self.project.out_features].T
        largest = best.gather(1, best.abs().argmax(1, keepdim=True))
        # the sign of a direction is free: its largest entry is made positive
        with torch.no_grad():
            self.project.weight.copy_(best * largest.sign())

    def codes(self, x: Tensor) -> Tensor:
        h: Tensor = self.project(self.flat(x))
        return h


class Autoencoder(Encoder):
    """A party's own model, from whose few outputs its columns can be rebuilt as well as
    possible."""

    def __init__(self, model: nn.Module, inputs: int, width: int, epochs: int) -> None:
        super().__init__(width)
        self.model = model
        self.narrow = nn.Linear(inputs, width)
        self.epochs = epochs

    def fit(self, x: Tensor, generator: Generator) -> None:
        few = self.narrow.out_features
        many = math.prod(x.shape[1:])
        with initialised(generator):
            decoder = nn.Sequential(
                nn.Linear(few, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, many)
            ).to(x)
        self.train()
        optimizer = torch.optim.Adam(
            [
                *self.model.parameters(),
                *self.narrow.parameters(),
                *decoder.parameters(),
            ],
            RATE,
        )
        with torch.enable_grad():
            for _ in range(self.epochs):
                order = torch.randperm(
                    len(x), generator=generator, device=generator.device
                ).to(x.device)
                for rows in torch.split(order, BATCH):
                    optimizer.zero_grad(set_to_none=True)
                    loss = (
                        (decoder(self.codes(x[rows])) - x[rows].flatten(1))
                        .square()
                        .mean()
                    )
                    torch.autograd.backward(loss)
                    optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self.eval()

    def codes(self, x: Tensor) -> Tensor:
        h: Tensor = self.narrow(self.model(x))
        return h


def pretrain(model: nn.Module, x: Tensor, epochs: int, generator: Generator) -> None:
    """Let a model learn from these rows, without labels. Nothing leaves the party, so
    no budget pays."""
    training = model.training
    with torch.no_grad():
        width = model.eval()(x[:1]).flatten(1).shape[1]
    flat = x.flatten(1)
    mean = flat.mean(0)
    spread = flat.std(0, correction=0).clamp_min(1e-6)
    with initialised(generator):
        decoder = nn.Linear(width, math.prod(x.shape[1:])).to(x)
    optimizer = torch.optim.Adam([*model.parameters(), *decoder.parameters()], PRE_RATE)
    model.train()
    with torch.enable_grad():
        for _ in range(epochs):
            order = torch.randperm(
                len(x), generator=generator, device=generator.device
            ).to(x.device)
            for rows in torch.split(order, PRE_BATCH):
                drawn = torch.rand(
                    len(rows),
                    flat.shape[1],
                    generator=generator,
                    device=generator.device,
                )
                hidden = drawn.to(x.device) < MASKED
                seen = torch.where(hidden, mean, flat[rows]).reshape(x[rows].shape)
                errors = (decoder(model(seen).flatten(1)) - flat[rows]) / spread
                optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward((errors.square() * (hidden + SEEN)).mean())
                optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    model.train(training)
