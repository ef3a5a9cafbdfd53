"""Logistic regression over everybody's columns, to its optimum; of numbers, ridge
regression.

    minimise over w_1 .. w_M, b:   sum_i l(b + sum_k x_ik w_k, y_i) + l2/2 sum_k ||w_k||^2       b is not penalised

by conjugate gradients (Polak and Ribiere, 1969), each party's own curvature as the
scale of its step, and a line search that asks nobody: scores are linear in the step.
(Hardy et al., arXiv:1711.10677, have the model, and approximate it.) The label owner
keeps o = b + sum_k X_k w_k of its training rows. They are one batch, and a round is

    party k:      p_k = -z_k + beta p_k;  d_k = X_k p_k                       Aim  -> Aimed (d_k, p_k.p_k, w_k.p_k)
    label owner:  t minimises the objective at o + t sum_k d_k;  o, b move by it
                  g = dl/do                                                   Move -> Moved (its parts of beta)
    party k:      w_k += t p_k;  e_k = X_k^T g + l2 w_k;  z_k = C_k^-1 e_k    C_k = c X_k^T X_k + l2 I

What crosses: per row how a step changes a party's part of the score, and when rows are
scored that part itself; the gradient down, the same to all; a few sums over all rows.
With aggregation = "secure" scores and sums leave under pairwise masks (`secure_sum`),
and the label owner sees their totals alone. What a party learns: the gradient is the
probability minus the label, and its sign is the label. With encryption = "bfv" it comes
encrypted (`encrypted_columns`, which says whom it is no protection from), and a party
learns X_k^T g alone, the sums it steps with. Of few rows these tell all labels, and it
is refused; of more, it guesses them as well as its own columns tell. A role of the
label owner's organisation gets g as it is. Coefficients stay with their columns, the
intercept with labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.func import functional_call

from colonnade.algorithms.algorithm import (
    KEY,
    Algorithm,
    Crossing,
    Kind,
    LocalInputs,
    Release,
)
from colonnade.algorithms.embedding import Embed, Embedding
from colonnade.algorithms.encrypted_columns import Multiplying, Opening
from colonnade.algorithms.heads import Shifted
from colonnade.algorithms.secure_sum import Masked, Summing
from colonnade.core import (
    Batches,
    Ciphertext,
    Message,
    Organisation,
    Peers,
    Released,
    Request,
    Rows,
    State,
    Step,
    roles,
    serves,
)
from colonnade.core.receipt import NON_PRIVATE, PUBLIC, DpEvent
from colonnade.errors import PartyError
from colonnade.optim.losses import CrossEntropy, Loss, Squared
from colonnade.settings import algorithms as settings

SEARCH = 60
"""The most steps of a line search; each halves the interval, or is one of Newton's."""
RIDGE = 1e-8
"""Added to a party's curvature, relative to it, so that columns which say the same
leave it invertible."""
ROUNDED = 2.0**-24
"""A row's share of lengths below which these are only rounding, once they were masked.
"""


Config = settings.LogisticRegression


def crossing(config: Config) -> tuple[Crossing, Crossing]:
    """What crosses from columns and from labels. A sum of scores can be read, so no
    epsilon follows from the masks."""
    event = (
        DpEvent("summed (secure aggregation)")
        if config.aggregation == "secure"
        else NON_PRIVATE
    )
    columns = {"logits": event, "lengths": event}
    labels = {"gradient": NON_PRIVATE}
    if config.encryption == "none":
        return columns, labels
    encrypted, blinded = (
        DpEvent(f"{how} ({config.encryption})") for how in ("encrypted", "blinded")
    )
    columns["masked_gradient"] = blinded
    return columns, {
        "public_key": PUBLIC,
        "gradient": encrypted,
        "column_gradient": NON_PRIVATE,
    }


class Aimed(Message):
    values: Annotated[Released, Kind.LOGITS]  # d_k = X_k p_k, [rows, outputs]
    # p_k.p_k and w_k.p_k, over the number of rows
    lengths: Annotated[Released, Kind.LENGTHS]


class Aim(Request[Aimed]):
    batch: str
    beta: float


class Moved(Message):
    # e_k.z_k, and e_k times the z_k before, over the number of rows
    lengths: Annotated[Released, Kind.LENGTHS]


class Move(Request[Moved]):
    batch: str
    step: float
    # dl/do, [rows, outputs]; or of the party's columns, [outputs, columns], masked
    gradient: Released | Ciphertext


class FeatureOwner(Masked, Multiplying):
    """Holds columns and w_k, which begin at zero."""

    config: Config
    stackable = False

    def __init__(
        self,
        organisation: Organisation,
        features: Tensor,
        model: nn.Module,
        config: Config,
    ) -> None:
        super().__init__(organisation, features, model, config)
        if config.aggregation == "secure":
            self.mask("logits", "lengths")
        weight = self._weight()
        self.w = torch.zeros(
            weight.shape[1], weight.shape[0], dtype=torch.float64, device=self.device
        )
        self.p, self.z = torch.zeros_like(self.w), torch.zeros_like(self.w)
        self._curvature: Tensor | None = None
        self._update_model()

    def _weight(self) -> Tensor:
        return next(self.model.parameters()).detach()

    def _update_model(self) -> None:
        """Copy the coefficients into the model."""
        self._weight().copy_(self.w.T)

    @serves
    def embed(self, request: Embed, asker: str | None) -> Embedding:
        with torch.no_grad():
            d = self.model(self.x(request.batch))
        return Embedding(self.outbox.release(d, "logits", request.batch, to=asker))

    @serves
    def aim(self, request: Aim, asker: str | None) -> Aimed:
        self.p = request.beta * self.p - self.z
        self.follow(request.beta)
        name, _ = next(self.model.named_parameters())
        with torch.no_grad():
            d = functional_call(
                self.model, {name: self.p.T}, (self.x(request.batch).double(),)
            ).to(self.features.dtype)
        released = self.outbox.release(d, "logits", request.batch, to=asker)
        return Aimed(
            released,
            self._lengths(
                self.p.square().sum(), (self.w * self.p).sum(), request.batch, asker
            ),
        )

    @serves
    def move(self, request: Move, asker: str | None) -> Moved:
        of_columns = self._of_columns(request.batch, request.gradient, asker)
        self.follow(
            request.step,
            *([request.gradient] if self.config.encryption == "none" else []),
        )
        self.w = self.w + request.step * self.p
        e = of_columns + self.config.l2 * self.w
        before = (e * self.z).sum()
        # as a checkpoint has it
        self.z = torch.cholesky_solve(e, self._factor(request.batch)).contiguous()
        self._update_model()
        return Moved(self._lengths((e * self.z).sum(), before, request.batch, asker))

    def _of_columns(
        self, batch: str, gradient: Released | Ciphertext, asker: str | None
    ) -> Tensor:
        """X_k^T g, from g, or with the mask taken off."""
        if isinstance(gradient, Ciphertext):
            return self.unmasked(batch, gradient)
        readable = self.config.encryption == "none" or asker in (None, self.name)
        self.expect(
            readable,
            "a gradient came readable, and its encryption is"
            f' "{self.config.encryption}"',
        )
        self.expect_shape(
            "the gradient", gradient, len(self.rows(batch)), self.w.shape[1]
        )
        return self.x(batch).flatten(1).double().T @ gradient.tensor.double()

    def _lengths(
        self, first: Tensor, second: Tensor, batch: str, asker: str | None
    ) -> Released:
        """Release sums over all rows through the outbox, too: by gradients of its
        choice, an asker reads products of any two rows off them. They are divided by
        the rows, so that masks have room for those of many rows."""
        per_row = torch.stack([first, second]) / max(len(self.rows(batch)), 1)
        return self.outbox.release(per_row, "lengths", batch, to=asker)

    def _factor(self, batch: str) -> Tensor:
        """The factor of C_k, from the training rows in their own order, so that a
        resumed run has the same bits."""
        if self._curvature is None:
            x = (
                self.features.index_select(0, self.rows(batch).sort().values)
                .flatten(1)
                .double()
            )
            gram = x.T @ x * curvature(self._weight().shape[0])
            ridge = self.config.l2 + RIDGE * (gram.trace() / len(gram) + 1)
            self._curvature = torch.linalg.cholesky(
                gram + ridge * torch.eye(len(gram), dtype=x.dtype, device=x.device)
            )
        return self._curvature

    def state(self) -> State:
        return super().state() | {"w": self.w, "p": self.p, "z": self.z}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.w = state["w"]
        self.p = state["p"]
        self.z = state["z"]


class LabelOwner(roles.LabelOwner):
    """Holds labels, the intercept b, and o of its training rows; drives."""

    loss: Loss
    config: Config

    def __init__(
        self, organisation: Organisation, labels: Tensor, loss: Loss, config: Config
    ) -> None:
        super().__init__(organisation, labels, loss, config)
        self.sum = Summing(config.aggregation == "secure")
        zero = torch.zeros(loss.outputs, dtype=torch.float64, device=self.device)
        self.b = zero
        self.p = zero
        self.z = zero
        self.o = torch.zeros(
            len(labels), loss.outputs, dtype=torch.float64, device=self.device
        )
        # the gradient's, in the curvature's measure, before the next step
        self.size = 0.0
        self.beta = 0.0  # how much of the last direction is kept
        self.opening = Opening(config.encryption, self.outbox)

    def meet(self, introductions: Mapping[str, roles.Introduction]) -> None:
        self.sum.check(self.name, introductions)
        super().meet(introductions)
        others = {
            k: introduction
            for k, introduction in introductions.items()
            if k != self.name
        }
        self.opening.meet(
            others,
            0 if (train := self._training_rows()) is None else len(train),
            self.loss.outputs,
        )

    def outputs(self, o: Mapping[str, Tensor]) -> Tensor:
        """b + sum_k o_k."""
        total = torch.stack(list(o.values())).sum(0)
        return total + self.b.to(total.dtype)

    def gradient(self, batch: str, o: Tensor) -> Tensor:
        """dl/do of the sum of losses."""
        y = self.y(batch)
        if isinstance(self.loss, CrossEntropy):
            e = o.softmax(-1) - nn.functional.one_hot(y, self.loss.outputs)
        else:
            e = (o if isinstance(self.loss, Squared) else o.sigmoid()) - y.double()[
                :, None
            ]
        weights = self.loss.weigh(y, self.counts(self.rows(batch)))
        return e if weights is None else e * weights[:, None]

    def search(self, batch: str, d: Tensor, direction: float, along: float) -> float:
        """The step t that minimises the objective along d: where its slope, which grows
        with t, is zero."""
        o = self.o[self.rows(batch)]
        l2 = self.config.l2

        def slope(t: float) -> float:
            return float((self.gradient(batch, o + t * d) * d).sum()) + l2 * (
                along + t * direction
            )

        low = 0.0
        high = 1.0
        if slope(low) >= 0:
            return 0.0
        while slope(high) < 0 and high < 2.0**SEARCH:
            low = high
            high = 2 * high
        for _ in range(SEARCH):
            at_low = slope(low)
            at_high = slope(high)
            guess = (
                low - at_low * (high - low) / (at_high - at_low)
                if at_high > at_low
                else (low + high) / 2
            )
            for t in (guess, (low + high) / 2):
                if low < t < high:
                    low, high = (t, high) if slope(t) < 0 else (low, t)
            if high - low <= 1e-12 * high:
                break
        return (low + high) / 2

    def move(self, batch: str, d: Tensor, t: float) -> Tensor:
        """Move o and b. Returns the gradient there, with which parties go on."""
        rows = self.rows(batch)
        self.b = self.b + t * self.p
        self.o[rows] += t * d
        return self.gradient(batch, self.o[rows]).to(torch.float32)

    def turn(self, batch: str, lengths: Tensor) -> float:
        """The next beta, from everybody's part and the intercept's own."""
        rows = self.rows(batch)
        e = self.gradient(batch, self.o[rows]).sum(0)
        now, before = (lengths.double() * len(rows)).tolist()
        before += float((e * self.z).sum())
        self.z = e / (curvature(self.loss.outputs) * max(len(rows), 1))
        size = float((e * self.z).sum()) + now
        least = ROUNDED * len(rows) if self.sum.is_secure else 0.0
        beta = max(0.0, (size - before) / self.size) if self.size > least else 0.0
        self.size = size
        return beta

    def state(self) -> State:
        return super().state() | {
            "b": self.b,
            "p": self.p,
            "z": self.z,
            "o": self.o,
            "size": self.size,
            "beta": self.beta,
            "columns": self.opening.columns,
        }

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.b, self.p, self.z, self.size, self.beta = (
            state[key] for key in ("b", "p", "z", "size", "beta")
        )
        self.o = state["o"].clone()
        self.opening.remember(state.get("columns", {}))


def curvature(outputs: int) -> float:
    """The most that a loss curves with a score; for numbers it is 1, and 1/4 does,
    since it only scales the step."""
    return 0.25 if outputs == 1 else 0.5


def lengths_of(party: str, reply: Aimed | Moved, batch: str) -> Released:
    """A party's lengths, which are two numbers."""
    if reply.lengths.shape != (2,):
        shape = list(reply.lengths.shape)
        raise PartyError(
            party,
            reply.kind,
            batch,
            f"it sent lengths of shape {shape}, and two numbers were expected",
        )
    return reply.lengths


def partners(driver: LabelOwner, peers: Peers) -> list[str]:
    """The parties that get gradients encrypted."""
    return [k for k in peers if k != driver.name and driver.config.encryption != "none"]


def aimed(peers: Peers, batch: str, beta: float) -> dict[str, list[Released]]:
    """Everybody's scores along its direction, and lengths."""
    return {
        k: [reply.values, lengths_of(k, reply, batch)]
        for k, reply in peers.ask(Aim(batch, beta)).items()
    }


def moved(
    driver: LabelOwner, peers: Peers, batch: str, t: float, g: Tensor
) -> dict[str, list[Released]]:
    """Everybody's lengths after it moved."""
    others = partners(driver, peers)
    hidden = driver.opening.ask(peers, others, batch, g) if others else {}
    plain = (
        driver.outbox.release(g, "gradient", batch)
        if len(others) < len(peers)
        else None
    )
    moves = {
        k: Move(batch, t, given)
        for k in peers
        if (given := hidden.get(k) or plain) is not None
    }
    return {
        k: [lengths_of(k, reply, batch)] for k, reply in peers.ask_each(moves).items()
    }


def train(driver: LabelOwner, peers: Peers, batches: Batches) -> Iterator[Step]:
    for number, batch in enumerate(batches):
        name = batch.name
        no_step = torch.zeros(1, dtype=torch.float64, device=driver.device)
        if number == 0 and (others := partners(driver, peers)):
            zero = torch.zeros_like(driver.o[driver.rows(name)])
            driver.opening.share_key(peers, others, driver.gradient(name, zero))
        if batch.step == 0:
            g = driver.move(name, no_step, 0.0)
            driver.turn(
                name, *driver.sum.of(peers, partial(moved, driver, peers, name, 0.0, g))
            )
        driver.p = driver.beta * driver.p - driver.z
        scores, lengths = driver.sum.of(peers, partial(aimed, peers, name, driver.beta))
        d = scores.double() + driver.p
        direction, along = (lengths.double() * batch.size).tolist()
        loss = float(driver.lost(driver.o[driver.rows(name)], name))
        t = driver.search(name, d, direction, along)
        g = driver.move(name, d, t)
        driver.beta = driver.turn(
            name, *driver.sum.of(peers, partial(moved, driver, peers, name, t, g))
        )
        yield Step(batch, loss)


def predict(driver: LabelOwner, peers: Peers, rows: Rows) -> Tensor:
    with torch.no_grad():
        return driver.outputs(driver.sum.scores(peers, rows)).to(torch.float32)


def one_weight_per_column(model: nn.Module, given: LocalInputs[Config]) -> nn.Module:  # noqa: ARG001
    """A party's whole model, whatever [model] says. It has no bias, since the intercept
    is the label owner's."""
    shape = given.row.shape[1:]
    flatten: list[nn.Module] = [] if len(shape) == 1 else [nn.Flatten(-len(shape))]
    return nn.Sequential(
        *flatten, nn.Linear(shape.numel(), given.outputs, bias=False)
    ).to(given.row.dtype)


ALGORITHM = Algorithm(
    config=Config,
    feature_owner=FeatureOwner,
    label_owner=LabelOwner,
    train=train,
    predict=predict,
    weighs_rows=True,
    releases={
        "logits": Release(Kind.LOGITS, of="columns", per_row=True),
        "lengths": Release(Kind.LENGTHS, of="columns", per_row=False),
        "gradient": Release(Kind.LOGIT_GRADIENT, of="labels", per_row=True),
        "public_key": KEY,
        "masked_gradient": Release(Kind.OTHER, of="columns", per_row=False),
        "column_gradient": Release(Kind.BATCH_GRADIENT, of="labels", per_row=False),
    },
    crossing=crossing,
    modes={
        "plain": Config(),
        "secure": Config(aggregation="secure"),
        "bfv": Config(encryption="bfv"),
        "secure, bfv": Config(aggregation="secure", encryption="bfv"),
    },
    separable=lambda config: config.aggregation == "plain",
    local_model=one_weight_per_column,
    head=lambda given: Shifted(given.state["b"].float()),
    combine=LabelOwner.outputs,
    intercept=lambda driver: driver.b,
)
