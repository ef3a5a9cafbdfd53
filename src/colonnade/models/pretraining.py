"""What a party's model learns from its own rows alone, before anybody trains together: to fill in hidden columns.

Of each row some numbers are hidden, and the model and a linear layer behind it, which is then forgotten, say what the
row was. It needs no label and nobody else, so it takes all rows of the party, also those that no other party knows;
nothing leaves for it, and no budget pays. Hidden columns are as in Yoon et al. (VIME, NeurIPS 2020).
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn

from colonnade.models.networks import initialised

HIDDEN, SEEN = 0.3, 0.1
"""The share of numbers that are hidden, and what one that is seen counts beside a hidden one."""
BATCH, RATE = 512, 0.002


def pretrain(model: nn.Module, x: Tensor, epochs: int, generator: Generator) -> None:
    """Have a model learn from these rows."""
    training = model.training
    with torch.no_grad():
        width = model.eval()(x[:1]).flatten(1).shape[1]
    flat = x.flatten(1)
    mean, spread = flat.mean(0), flat.std(0, correction=0).clamp_min(1e-6)
    with initialised(generator):
        back = nn.Linear(width, math.prod(x.shape[1:])).to(x)
    optimizer = torch.optim.Adam([*model.parameters(), *back.parameters()], RATE)
    model.train()
    with torch.enable_grad():
        for _ in range(epochs):
            order = torch.randperm(len(x), generator=generator, device=generator.device).to(x.device)
            for rows in torch.split(order, BATCH):
                drawn = torch.rand(len(rows), flat.shape[1], generator=generator, device=generator.device)
                hidden = drawn.to(x.device) < HIDDEN
                seen = torch.where(hidden, mean, flat[rows]).reshape(x[rows].shape)
                missed = (back(model(seen).flatten(1)) - flat[rows]) / spread
                optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward((missed.square() * (hidden + SEEN)).mean())
                optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    model.train(training)
