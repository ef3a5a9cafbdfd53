"""The two roles that every algorithm has: one holds columns, one holds labels.

Algorithms subclass the roles and add the requests that they serve. Methods are written
for `[..., rows, features]`, so that the same method serves one party and a cohort of
stacked ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from colonnade.core.batches import Agreed
from colonnade.core.cipher import Ciphertext
from colonnade.core.message import Message, Ping, Pong, Request
from colonnade.core.party import Organisation, Party, State, serves
from colonnade.core.peers import Peers
from colonnade.core.receipt import DpEvent
from colonnade.core.release import Released
from colonnade.errors import BudgetExhausted, ConfigError

R = TypeVar("R", bound=Message)
Pending = TypeVar("Pending", bound=tuple[Any, ...])

BYTES_PER_NUMBER = 4
LARGEST_WIDTH = 1 << 18
"""Numbers that a party may send for a row. A label owner makes room for a model of so
many inputs."""


class Introduction(Message):
    """How a party with columns introduces itself to a label owner.

    `shape` is what it sends per row, `rows` how many rows they share, and `agreed` the
    fingerprint of what the party thinks was agreed on.
    """

    shape: tuple[int, ...]
    rows: int
    agreed: str


class Introduce(Request[Introduction]):
    """Introduce yourself. This is asked once, before anything else."""


class Reachable(Party):
    """A party that says that it is there, whatever it computes meanwhile."""

    aside = (Ping,)

    @serves
    def ping(self, request: Ping) -> Pong:  # noqa: ARG002
        return Pong()


class FeatureOwner(Reachable):
    """Holds columns and a local model f_k.

    Args:
        organisation: The organisation whose role it is.
        features: Its columns, one line per row.
        model: Its local model.
        config: The algorithm's settings.
    """

    row_axis = 0
    """The dimension of `features` that counts rows. In a cohort the parties' axis comes
    first."""
    stackable = True
    """Whether a cohort may answer for it. A role with keys, or with methods for one
    party's rows alone, sets this to False."""
    optimizer: torch.optim.Optimizer | None = None
    """None where the role does not learn by gradient steps."""

    def __init__(
        self,
        organisation: Organisation,
        features: Tensor,
        model: nn.Module,
        config: Any,
    ) -> None:
        super().__init__(organisation)
        self.features = features.to(self.device)
        self.model = model.to(self.device)
        self.config = config

    @property
    def steps_at_once(self) -> int:
        """How many steps on a batch the model takes in one call."""
        return 1

    def x(self, batch: str) -> Tensor:
        """This party's columns of a batch's rows."""
        rows = self.rows(batch)
        bounds = self.organisation.bounds
        if bounds is not None:
            size = len(rows) * bounds.outputs * BYTES_PER_NUMBER
            self.expect(
                size <= bounds.answer,
                f"outputs for {len(rows)} rows at once would take more than its"
                " memory_per_call",
            )
        return self.features.index_select(self.row_axis, rows)

    def expect_shape(
        self, what: str, given: Released | Ciphertext, *shape: int
    ) -> None:
        """Refuse a tensor that does not have the shape that this party's own rows and
        model give it: a frame of a few bytes may stand for a large tensor."""
        given_shape = tuple(given.shape)
        most_dimensions = len(shape) + self.row_axis  # in a cohort, one for the parties
        fits = given_shape[-len(shape) :] == shape
        self.expect(
            fits and len(given_shape) <= most_dimensions,
            f"{what} has the shape {list(given_shape)}, and here it is {list(shape)}",
        )

    def expect_pending(self, pending: Pending | None, batch: str, what: str) -> Pending:
        """What was set aside for a batch; refused where another batch is pending, or
        none.

        Args:
            pending: What was set aside: the batch's name, and then anything.
            batch: The batch that a request is about.
            what: What came for it, for the error.
        """
        pending_batch = None if pending is None else pending[0]
        self.expect(
            pending_batch == batch,
            f"{what} for batch {batch}, but {pending_batch} is pending",
        )
        assert pending is not None
        return pending

    def expect_outputs(self, outputs: int) -> None:
        """Refuse what is made for another number of outputs than this run has."""
        bounds = self.organisation.bounds
        self.expect(
            bounds is None or outputs == bounds.outputs,
            f"it is for {outputs} outputs, not those of this run",
        )

    def training(self, batch: str) -> bool:
        """Whether a batch is to learn from, and not only to be scored. The model is put
        into that mode."""
        is_training = batch.startswith("train/")
        if self.model.training != is_training:
            self.model.train(is_training)
        return is_training

    @serves
    def introduce(self, request: Introduce) -> Introduction:  # noqa: ARG002
        rows = self.features.shape[self.row_axis]
        self.model.eval()
        with torch.no_grad():
            first_row = self.features.narrow(self.row_axis, 0, min(1, rows))
            width = self.model(first_row).shape[-1]
        return Introduction((width,), rows, self.organisation.batches.fingerprint())

    def state(self) -> State:
        state = super().state() | {"model": self.model.state_dict()}
        if self.optimizer is not None:
            state["optimizer"] = self.optimizer.state_dict()
        return state

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.model.load_state_dict(state["model"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])


def check_shape(party: str, shape: tuple[int, ...]) -> None:
    """Refuse a party that would send no number for a row, or too many."""
    if not shape or min(shape) < 1 or math.prod(shape) > LARGEST_WIDTH:
        raise ConfigError(
            f"'{party}' says that it sends {list(shape)} numbers for a row, and one to"
            f" {LARGEST_WIDTH} can be taken.\n    Let its model end in fewer."
        )


class LabelOwner(Party):
    """Holds labels and drives. `meet` is called once, with the introductions of all
    feature owners.

    Args:
        organisation: The organisation whose role it is.
        labels: The label of each row.
        loss: The loss of outputs and labels.
        config: The algorithm's settings.
    """

    answer_bytes: ClassVar[int] = 64 << 20
    """Bytes of memory that one answer about rows to score may take; more rows are asked
    for in pieces. The last bits of a model's outputs depend on how many rows it is given
    at once, so this is more than the answers about `batches.USUAL_ROWS` rows take, unless
    a party sends thousands of numbers for each."""
    peers: Peers
    """The feature owners. They are set before `meet`."""
    shapes: dict[str, tuple[int, ...]]
    """What each party sends per row."""
    row_weights: Tensor | None = None
    """How much each row counts, as a column of the label owner's says; None where all
    count alike."""
    drawn: DpEvent | None = None
    """How labels were drawn, where the role learns from labels drawn at random."""
    agreed_apart: Mapping[str, str] = {}
    """The fingerprints of what parties that lack some rows agreed on."""

    def __init__(
        self, organisation: Organisation, labels: Tensor, loss: Any, config: Any
    ) -> None:
        super().__init__(organisation)
        self.labels = labels.to(self.device)
        self.loss = loss
        self.config = config

    def meet(self, introductions: Mapping[str, Introduction]) -> None:
        """Check that everybody agreed on the same rows, and learn what they send."""
        for party, told in introductions.items():
            self._check_agrees(party, told)
            check_shape(party, told.shape)
        self.shapes = {
            party: tuple(told.shape) for party, told in introductions.items()
        }

    def _check_agrees(self, party: str, told: Introduction) -> None:
        if party in self.agreed_apart:  # it lacks some rows, and its fingerprint counts
            rows = told.rows
            agreed = self.agreed_apart[party]
        else:
            rows = len(self.labels)
            agreed = self.agreed
        if (told.agreed, told.rows) != (agreed, rows):
            raise ConfigError(
                f"'{party}' and '{self.name}' do not agree on the rows: {told.rows}"
                f" rows with fingerprint {told.agreed} there, {rows} with {agreed}"
                " here.\n    Give both the same aligned rows, split, batch size and"
                " seed."
            )

    def _call(self, request: Request[R], asker: str | None) -> R:
        """Answer who drives this label owner in turn. By then everything that it asked
        of others is done, also where a budget is spent, since all are saved then."""
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

    @property
    def widths(self) -> dict[str, int]:
        """How many numbers each party's embedding has."""
        return {party: shape[-1] for party, shape in self.shapes.items()}

    def one_width(self, rule: str) -> int:
        """The width of everybody's embeddings.

        Args:
            rule: What an error says where they are not equally wide.
        """
        widths = set(self.widths.values())
        if len(widths) > 1:
            found = ", ".join(
                f"'{name}' {width}" for name, width in self.widths.items()
            )
            raise ConfigError(f"{rule}; found {found}.")
        return widths.pop()

    def bytes_per_row(self, rows: Tensor) -> int:  # noqa: ARG002
        """The bytes that one row takes in the largest answer from which the outputs for
        these rows are made. An algorithm whose parties send something else than their
        introductions say has a method of its own."""
        widest = max((math.prod(shape) for shape in self.shapes.values()), default=1)
        return BYTES_PER_NUMBER * widest

    def rows_at_once(self, rows: Tensor) -> int:
        """How many of these rows to ask for at once, so that no answer takes more than
        `answer_bytes`, or than half of what this organisation lets an answer take: one
        at least."""
        most = self.answer_bytes
        bounds = self.organisation.bounds
        if bounds is not None:
            most = min(most, bounds.answer // 2)
        return max(1, most // max(self.bytes_per_row(rows), 1))

    def y(self, batch: str) -> Tensor:
        """The labels of a batch's rows."""
        return self.labels.index_select(0, self.rows(batch))

    def counts(self, rows: Tensor) -> Tensor | None:
        """How much each of these rows counts; None where all count alike.

        Weights are 1 on average over the training rows. So a row that counts twice is
        like a row that is there twice, and learning rates keep their meaning.
        """
        return None if self._counts is None else self._counts[rows]

    @cached_property
    def _counts(self) -> Tensor | None:
        train = self._training_rows()
        if self.row_weights is None or train is None:
            return None
        return self.row_weights / self.row_weights[train].mean()

    def weighted_loss(self, outputs: Tensor, rows: Tensor) -> float | None:
        """The loss of these rows as they count; None where all count alike."""
        if self.row_weights is None and not self.loss.weights:
            return None
        return float(self.loss(outputs, self.labels[rows], self.counts(rows)))

    def lost(self, outputs: Tensor, batch: str) -> Tensor:
        """The mean loss of a batch's rows, as they count."""
        loss: Tensor = self.loss(outputs, self.y(batch), self.counts(self.rows(batch)))
        return loss

    def slope(self, outputs: Tensor, batch: str) -> tuple[float, Tensor]:
        """The mean loss of a batch, and its gradient by the outputs."""
        leaf = outputs.detach().requires_grad_()
        loss = self.lost(leaf, batch)
        (gradient,) = torch.autograd.grad(loss, leaf)
        return loss.item(), gradient

    def state(self) -> State:
        state = super().state()
        missing = self.peers.missing
        if missing is not None:
            state["missing"] = missing.state()
            state["held_out"] = missing.held_out
        train = self._training_rows()
        if self.drawn is not None and train is not None:
            state["drawn"] = self.labels[train]
        return state

    def load_state(self, state: State) -> None:
        super().load_state(state)
        missing = self.peers.missing
        if missing is not None:
            missing.load_state(state.get("missing", {}))
            missing.held_out = dict(state.get("held_out", {}))
        train = self._training_rows()
        # Labels are drawn once: a second draw would cost privacy again.
        if "drawn" in state and train is not None:
            self.labels[train] = state["drawn"].to(self.device)

    def _training_rows(self) -> Tensor | None:
        batches = self.organisation.batches
        own = batches[self.name] if isinstance(batches, Agreed) else batches
        train = own.splits.get("train")
        return None if train is None else train.to(self.device)


ELEMENTWISE = (
    nn.ReLU,
    nn.ELU,
    nn.GELU,
    nn.Tanh,
    nn.Sigmoid,
    nn.SiLU,
    nn.LeakyReLU,
    nn.Identity,
)


class ByRow(nn.Module):
    """A layer without weights that reads nothing but a row's last dimension."""


def by_row(layer: nn.Module) -> bool:
    """Whether a layer treats every row by itself, so that it runs for a stack of parties
    as it is."""
    return type(layer) in (nn.Linear, *ELEMENTWISE) or isinstance(layer, ByRow)
