"""The two roles that every algorithm has: algorithms subclass them and add the requests they serve.

Methods are written for `[..., rows, features]`: the same method serves one party and a cohort of stacked ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from colonnade.core.batches import Agreed
from colonnade.core.cipher import Ciphertext
from colonnade.core.message import Message, Ping, Pong, Request
from colonnade.core.party import Organisation, Party, State, serves
from colonnade.core.receipt import DpEvent
from colonnade.core.release import Released
from colonnade.errors import BudgetExhausted, ConfigError

Kept = TypeVar("Kept", bound=tuple[Any, ...])
R = TypeVar("R", bound=Message)
NUMBER = 4
"""Bytes of one."""
MOST_WIDTH = 1 << 18
"""Numbers that a party may send for a row: whoever is told makes room for a model of so many inputs."""
SAME = 1e-6
"""Outputs that differ by less than this share of their size are taken for one."""


class Introduction(Message):
    """How who holds columns introduces itself to a label owner: what it sends per row, how many rows they share, and
    what it thinks was agreed."""

    shape: tuple[int, ...]
    rows: int
    agreed: str


class Introduce(Request[Introduction]):
    """Asked once, before anything else."""


class Reachable(Party):
    """Says that it is there, whatever it computes meanwhile."""

    aside = (Ping,)

    @serves
    def ping(self, request: Ping) -> Pong:  # noqa: ARG002
        return Pong()


class FeatureOwner(Reachable):
    """Holds columns and a local model f_k."""

    row_axis = 0
    stackable = True  # False: no cohort may answer for it: it has keys, or methods for one party's rows alone
    optimizer: torch.optim.Optimizer | None = None  # None: it does not learn by gradient steps

    def __init__(self, organisation: Organisation, features: Tensor, model: nn.Module, config: Any) -> None:
        super().__init__(organisation)
        self.features, self.model, self.config = features.to(self.device), model.to(self.device), config

    @property
    def steps_at_once(self) -> int:
        """How many steps on a batch its model takes without the interpreter in between."""
        return 1

    def x(self, batch: str) -> Tensor:
        """This party's columns of a batch's rows."""
        rows, bounds = self.rows(batch), self.organisation.bounds
        if bounds is not None:
            fits = len(rows) * bounds.outputs * NUMBER <= bounds.answer
            self.expect(fits, f"outputs for {len(rows)} rows at once would take more than its memory_per_call")
        return self.features.index_select(self.row_axis, rows)

    def expect_shape(self, what: str, given: Released | Ciphertext, *shape: int) -> None:
        """Refuse what is not of the shape that this party's own rows and model give it: a frame of a few bytes may
        stand for a tensor that meets every row. In a cohort there is a party's axis before it, or one for all."""
        given_shape = tuple(given.shape)
        fits = given_shape[-len(shape) :] == shape and len(given_shape) <= len(shape) + self.row_axis
        self.expect(fits, f"{what} has the shape {list(given_shape)}, and here it is {list(shape)}")

    def expect_pending(self, pending: Kept | None, batch: str, what: str) -> Kept:
        """What was set aside for a batch, after its name; refused where another one is pending, or none."""
        there = None if pending is None else pending[0]
        self.expect(there == batch, f"{what} for batch {batch}, but {there} is pending")
        assert pending is not None
        return pending

    def expect_outputs(self, outputs: int) -> None:
        """Refuse what is made for another number of outputs than the run was prepared for."""
        bounds = self.organisation.bounds
        self.expect(bounds is None or outputs == bounds.outputs, f"it is for {outputs} outputs, not those of this run")

    def training(self, batch: str) -> bool:
        """Whether a batch is to learn from, not only training rows to be scored; the model is put into that mode."""
        training = batch.startswith("train/")
        if self.model.training != training:
            self.model.train(training)
        return training

    def constant(self, rows: Tensor) -> tuple[int, int]:
        """How many of the numbers that its model gives for a row are the same in all of these rows, and how many it
        gives: of a dead ReLU all are 0, and say nothing."""
        self.model.eval()
        with torch.no_grad():
            outputs = self.model(self.features.index_select(self.row_axis, rows.to(self.device))).flatten(1)
        spread = outputs.amax(0) - outputs.amin(0)
        return int((spread <= SAME * outputs.abs().amax(0).clamp_min(SAME)).sum()), spread.numel()

    def column_shares(self, spans: Mapping[str, slice], rows: Tensor) -> dict[str, float]:
        """By column what share of the variance of what its model gives depends on it, alone or together with others
        (Jansen's estimate of Sobol's total effect): its values are shuffled between these rows. Nothing leaves, and no
        label is needed."""
        self.model.eval()
        x = self.features.index_select(self.row_axis, rows.to(self.device))
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(self.device)
        shares = {}
        with torch.no_grad():
            outputs = self.model(x).flatten(1)
            total = 2 * float(outputs.double().var(0, correction=0).sum())
            for name, span in spans.items():
                shuffled = x.clone()
                shuffled[:, span] = x[order][:, span]
                change = (self.model(shuffled).flatten(1) - outputs).double().square().sum(1).mean()
                shares[name] = float(change) / total if total else 0.0
        return shares

    @serves
    def introduce(self, request: Introduce) -> Introduction:  # noqa: ARG002
        self.model.eval()
        with torch.no_grad():
            first_row = self.features.narrow(self.row_axis, 0, min(1, self.features.shape[self.row_axis]))
            width = self.model(first_row).shape[-1]
        return Introduction((width,), self.features.shape[self.row_axis], self.organisation.batches.fingerprint())

    def state(self) -> State:
        state = super().state() | {"model": self.model.state_dict()}
        return state if self.optimizer is None else state | {"optimizer": self.optimizer.state_dict()}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.model.load_state_dict(state["model"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])


def check_shape(party: str, shape: tuple[int, ...]) -> None:
    """Raise unless a party may send this much for a row."""
    if not shape or min(shape) < 1 or math.prod(shape) > MOST_WIDTH:
        raise ConfigError(
            f"'{party}' says that it sends {list(shape)} numbers for a row, and one to {MOST_WIDTH} can be taken.\n"
            "    Let its model end in fewer."
        )


class LabelOwner(Party):
    """Holds labels and drives. `meet` is called once, with the introductions of all feature owners."""

    shapes: dict[str, tuple[int, ...]]  # what each party sends per row
    row_weights: Tensor | None = None  # how much each row counts, as a column of its own says; None: all alike
    drawn: DpEvent | None = None  # how its labels were drawn, where it learns from labels drawn at random
    agreed_apart: Mapping[str, str] = {}  # fingerprints of what parties that lack some rows agreed on

    def __init__(self, organisation: Organisation, labels: Tensor, loss: Any, config: Any) -> None:
        super().__init__(organisation)
        self.labels, self.loss, self.config = labels.to(self.device), loss, config

    def meet(self, introductions: Mapping[str, Introduction]) -> None:
        """Check that everybody agreed to the same rows, and learn what they send per row."""
        agreed = self.agreed
        for party, told in introductions.items():
            apart = self.agreed_apart.get(party)
            mine, rows = (agreed, len(self.labels)) if apart is None else (apart, told.rows)  # which counts them
            if (told.agreed, told.rows) != (mine, rows):
                raise ConfigError(
                    f"'{party}' and '{self.name}' do not agree on the rows: {told.rows} rows with fingerprint "
                    f"{told.agreed} there, {rows} with {mine} here.\n"
                    "    Give both the same aligned rows, split, batch size and seed."
                )
            check_shape(party, told.shape)
        self.shapes = {party: tuple(told.shape) for party, told in introductions.items()}

    def _call(self, request: Request[R], asker: str | None) -> R:
        """Where somebody drives it in turn: when it answers, all that it asked of others is done; and where a budget is
        spent, since all are saved then."""
        try:
            reply = super()._call(request, asker)
        except BudgetExhausted:
            self.peers.settle()
            raise
        self.peers.settle()
        return reply

    @property
    def agreed(self) -> str:
        """The fingerprint of what all must have agreed on."""
        return self.organisation.batches.fingerprint()

    def one_width(self, rule: str) -> int:
        """How wide everybody's embeddings are; refused by this rule where they are not as wide as each other."""
        if len(set(self.widths.values())) > 1:
            widths = ", ".join(f"'{party}' {width}" for party, width in self.widths.items())
            raise ConfigError(f"{rule}; found {widths}.")
        return next(iter(self.widths.values()))

    @property
    def widths(self) -> dict[str, int]:
        """How wide each party's embeddings are."""
        return {party: shape[-1] for party, shape in self.shapes.items()}

    def y(self, batch: str) -> Tensor:
        """The labels of a batch's rows."""
        return self.labels.index_select(0, self.rows(batch))

    def counts(self, rows: Tensor) -> Tensor | None:
        """How much each of these rows counts, where they differ: 1 on average over the training rows, so that a row
        that counts twice is one that is there twice, and learning rates stay what they are."""
        if self.row_weights is None or (train := self._trained()) is None:
            return None
        return self.row_weights[rows] / self.row_weights[train].mean()

    def weighted_loss(self, outputs: Tensor, rows: Tensor) -> float | None:
        """The loss of these rows, where some count more than others."""
        if self.row_weights is None and not self.loss.weights:
            return None
        return float(self.loss(outputs, self.labels[rows], self.counts(rows)))

    def lost(self, outputs: Tensor, batch: str) -> Tensor:
        """The mean loss of a batch's rows, as they count."""
        loss: Tensor = self.loss(outputs, self.y(batch), self.counts(self.rows(batch)))
        return loss

    def slope(self, outputs: Tensor, batch: str) -> tuple[float, Tensor]:
        """That, and its gradient by the outputs."""
        leaf = outputs.detach().requires_grad_()
        loss = self.lost(leaf, batch)
        (gradient,) = torch.autograd.grad(loss, leaf)
        return loss.item(), gradient

    def state(self) -> State:
        state = super().state()
        if (missing := self.peers.missing) is not None:
            state["missing"] = missing.state()
            state["held_out"] = missing.held_out
        if self.drawn is not None and (train := self._trained()) is not None:
            state["drawn"] = self.labels[train]
        return state

    def load_state(self, state: State) -> None:
        super().load_state(state)
        if (missing := self.peers.missing) is not None:
            missing.load_state(state.get("missing", {}))
            missing.held_out = dict(state.get("held_out", {}))
        if "drawn" in state and (train := self._trained()) is not None:  # drawn once: a second draw would cost again
            self.labels[train] = state["drawn"].to(self.device)

    def _trained(self) -> Tensor | None:
        batches = self.organisation.batches
        train = (batches[self.name] if isinstance(batches, Agreed) else batches).splits.get("train")
        return None if train is None else train.to(self.device)


ELEMENTWISE = (nn.ReLU, nn.ELU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.LeakyReLU, nn.Identity)


class ByRow(nn.Module):
    """A layer without weights that reads nothing but a row's last dimension."""


def by_row(layer: nn.Module) -> bool:
    """Whether a layer is known to treat every row by itself, so that it runs for a stack of parties as it is."""
    return type(layer) in (nn.Linear, *ELEMENTWISE) or isinstance(layer, ByRow)
