"""Encoders turn many columns into few numbers. They learn from a party's own rows,
without labels.

    PCA           h = c W (x - m)     m is the mean, and W has the orthonormal
                                      directions in which rows differ most
    autoencoder   h = c (f(x) - m)    f is the party's own model and a linear layer. A
                                      decoder d makes ||x - d(f(x))||^2 small, and is
                                      thrown away after learning

The factor c scales h so that its mean squared length is 1, for which a rule's clip of
1.0 is meant.

A model that is trained with others may first learn alone, by `pretrain`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Generator, Tensor, nn

from colonnade.models.randomness import initialised

AUTOENCODER_BATCH_ROWS = 256
AUTOENCODER_LEARNING_RATE = 1e-3
DECODER_UNITS = 64

PRETRAINING_BATCH_ROWS = 512
PRETRAINING_LEARNING_RATE = 0.002
HIDDEN_SHARE = 0.3
"""The share of numbers that are hidden in pretraining."""
WEIGHT_OF_SEEN = 0.1
"""The error of a number that was not hidden counts this much, and that of a hidden one
1 more."""

SMALLEST_SIZE = 1e-6
"""Codes that are smaller than this on average are rounding errors."""
SMALLEST_SPREAD = 1e-6
"""A column that varies less is divided by this instead of its standard deviation."""


class Encoder(nn.Module):
    """A model that learns without labels.

    A subclass has `fit` and `codes`. The outputs are its codes, moved and scaled so
    that over the training rows their mean is 0 and their mean squared length is 1. They
    are 0 until the model has learned, and stay 0 where all training rows have equal
    codes.
    """

    learned: Tensor
    centre: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("learned", torch.tensor(False))
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("scale", torch.zeros(()))

    def learn(self, x: Tensor, generator: Generator) -> None:
        """Learn from these rows, once. A second call changes nothing."""
        if bool(self.learned):
            return
        self.fit(x, generator)
        with torch.no_grad():
            codes = self.codes(x).double()
            centre = codes.mean(0)
            size = (codes - centre).square().sum(1).mean().sqrt()
            self.centre.copy_(centre)
            if size > SMALLEST_SIZE:
                self.scale.copy_(1 / size)
            self.learned.fill_(True)

    def fit(self, x: Tensor, generator: Generator) -> None:
        """Learn how to compute codes."""
        raise NotImplementedError

    def codes(self, x: Tensor) -> Tensor:
        """The few numbers of each row, before they are centred and scaled."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return (self.codes(x) - self.centre) * self.scale


class Pca(Encoder):
    """The principal components: the directions in which rows differ most."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__(width)
        self.flat = nn.Flatten()
        self.project = nn.Linear(columns, width, bias=False).requires_grad_(False)

    def fit(self, x: Tensor, generator: Generator) -> None:  # noqa: ARG002
        rows = self.flat(x).double()
        rows = rows - rows.mean(0)
        _, directions = torch.linalg.eigh(rows.T @ rows)  # by growing variance
        largest_first = directions.flip(1)
        best = largest_first[:, : self.project.out_features].T
        # the sign of a direction is free, so its largest entry is made positive
        largest_entry = best.gather(1, best.abs().argmax(1, keepdim=True))
        with torch.no_grad():
            self.project.weight.copy_(best * largest_entry.sign())

    def codes(self, x: Tensor) -> Tensor:
        projected: Tensor = self.project(self.flat(x))
        return projected


class Autoencoder(Encoder):
    """A party's own model and a linear layer, whose few outputs let the party's columns
    be rebuilt as well as possible.

    Args:
        model: The party's model.
        inputs: The number of the model's outputs.
        width: The number of codes.
        epochs: How many times all rows are learned from.
    """

    def __init__(self, model: nn.Module, inputs: int, width: int, epochs: int) -> None:
        super().__init__(width)
        self.model = model
        self.narrow = nn.Linear(inputs, width)
        self.epochs = epochs

    def fit(self, x: Tensor, generator: Generator) -> None:
        decoder = self._decoder(x, generator)
        self.train()
        parts = nn.ModuleList([self.model, self.narrow, decoder])
        optimizer = torch.optim.Adam(parts.parameters(), AUTOENCODER_LEARNING_RATE)
        batch_rows = AUTOENCODER_BATCH_ROWS
        with torch.enable_grad():
            for rows in shuffled_batches(x, self.epochs, batch_rows, generator):
                optimizer.zero_grad(set_to_none=True)
                rebuilt = decoder(self.codes(x[rows]))
                error = rebuilt - x[rows].flatten(1)
                torch.autograd.backward(error.square().mean())
                optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self.eval()

    def codes(self, x: Tensor) -> Tensor:
        narrowed: Tensor = self.narrow(self.model(x))
        return narrowed

    def _decoder(self, x: Tensor, generator: Generator) -> nn.Module:
        """A perceptron that is to rebuild the rows' columns from their codes."""
        columns = math.prod(x.shape[1:])
        with initialised(generator):
            to_hidden = nn.Linear(self.narrow.out_features, DECODER_UNITS)
            to_columns = nn.Linear(DECODER_UNITS, columns)
        return nn.Sequential(to_hidden, nn.ReLU(), to_columns).to(x)


def pretrain(model: nn.Module, x: Tensor, epochs: int, generator: Generator) -> None:
    """Let a model learn from rows without labels, before it is trained with others.

    Some numbers of each row are hidden behind their column's mean, and the model and a
    linear layer behind it learn to tell the whole row (Yoon et al., VIME, NeurIPS
    2020). The linear layer is then forgotten. Nothing leaves the party, so no privacy
    budget pays for it.

    Args:
        model: The model, which is changed.
        x: The party's training rows.
        epochs: How many times all rows are learned from.
        generator: The generator of batches, of hidden numbers and of the linear layer.
    """
    was_training = model.training
    flat = x.flatten(1)
    mean = flat.mean(0)
    spread = flat.std(0, correction=0).clamp_min(SMALLEST_SPREAD)
    with initialised(generator):
        decoder = nn.Linear(_output_count(model, x), flat.shape[1]).to(x)
    parts = nn.ModuleList([model, decoder])
    optimizer = torch.optim.Adam(parts.parameters(), PRETRAINING_LEARNING_RATE)
    model.train()
    with torch.enable_grad():
        for rows in shuffled_batches(x, epochs, PRETRAINING_BATCH_ROWS, generator):
            truth = flat[rows]
            is_hidden = _draw_hidden(truth, generator)
            shown = torch.where(is_hidden, mean, truth).reshape(x[rows].shape)
            rebuilt = decoder(model(shown).flatten(1))
            errors = (rebuilt - truth) / spread  # all columns count alike
            weights = is_hidden + WEIGHT_OF_SEEN
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward((errors.square() * weights).mean())
            optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    model.train(was_training)


def _output_count(model: nn.Module, x: Tensor) -> int:
    """The number of a model's outputs for one row. The model is in evaluation mode
    afterwards."""
    model.eval()
    with torch.no_grad():
        return model(x[:1]).flatten(1).shape[1]  # type: ignore[no-any-return]


def _draw_hidden(rows: Tensor, generator: Generator) -> Tensor:
    """Choose which numbers of these rows are hidden, each by itself."""
    drawn = torch.rand(rows.shape, generator=generator, device=generator.device)
    return drawn.to(rows.device) < HIDDEN_SHARE


def shuffled_batches(
    x: Tensor, epochs: int, batch_rows: int, generator: Generator
) -> Iterator[Tensor]:
    """The places of the rows of each batch, in a new order in every epoch."""
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator, device=generator.device)
        yield from torch.split(order.to(x.device), batch_rows)
