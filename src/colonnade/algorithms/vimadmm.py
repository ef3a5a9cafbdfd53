"""VIMADMM: one linear head per party, solved by ADMM, with many local steps per
exchange.

Xie, Chen, Zhang and Li, Improving Privacy-Preserving Vertical Federated Learning by
Efficient Communication with ADMM, 2022 (arXiv:2207.10226), Algorithm 1. With logits o =
sum_k h_k W_k, for each batch B:

    party k:      h_k = f_k(x_k[B])                                                   Embed   -> Embedding
    label owner:  z = argmin l(z; y) - lambda^T z + rho/2 ||o - z||^2                 Eq. 6
                  lambda <- lambda + rho (o - z)                                      Eq. 7
                  W_k <- one SGD step on, or the minimum of, the augmented loss       Eq. 8
                  r = z - o - lambda/rho, and the new W_k, to party k                 Improve -> Done
    party k:      tau steps on rho/2 ||r + h_k W_k^old - f_k(x_k) W_k||^2 / |B|       Eq. 10

The paper sends lambda and s_k = z - sum_{i != k} o_i. A party's objective depends on
both only through s_k - lambda/rho = r + o_k, and it knows o_k, what it sent times the
head it had: so one matrix r, the same for all, takes their place. Eq. 9 as printed puts
the new heads of the others into s_k (`residual_heads = "new"`: then o in r, and o_k,
are of the new heads) and diverges; the round's old heads are used. Losses are means
over the batch. Heads start uniform in +-1/sqrt(width), as a linear layer's do (from
zero, MNIST is two points behind after two epochs), and each party is told its first
one.

What crosses: embeddings up; r and a head down. What a party learns: z and lambda carry
labels (lambda is softmax(z) - y), so a party can read labels from r.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from colonnade.algorithms.algorithm import Algorithm, Kind, Release
from colonnade.algorithms.embedding import (
    EMBEDDING,
    RESIDUAL,
    AdmmFeatureOwner,
    AdmmLabelOwner,
    Embed,
    LinearHeads,
    beside,
    blocks,
    predict,
)
from colonnade.algorithms.heads import linear
from colonnade.core import (
    Batches,
    Done,
    Organisation,
    Peers,
    Released,
    Request,
    State,
    Step,
    roles,
    serves,
)
from colonnade.errors import Diverged
from colonnade.optim.execution import Arriving
from colonnade.settings import algorithms as settings

Config = settings.VimAdmm


class Adopt(Request[Done]):
    head: Released  # W_k at the start, [width, outputs]


class Improve(Request[Done]):
    batch: str
    residual: Released  # r, [rows, outputs]
    head: Released  # W_k, [width, outputs]


class FeatureOwner(AdmmFeatureOwner):
    """Holds columns, f_k, and the head it was last told."""

    config: Config
    released_as = "embedding"

    def __init__(
        self,
        organisation: Organisation,
        features: Tensor,
        model: nn.Module,
        config: Config,
    ) -> None:
        super().__init__(organisation, features, model, config)
        self.head: Tensor | None = None  # W_k, from the first Adopt on

    @serves
    def adopt(self, request: Adopt) -> Done:
        self.expect(len(request.head.shape) > 1, "a head is a matrix")
        self.expect_outputs(request.head.shape[-1])
        self.head = request.head.tensor
        return Done()

    @serves
    def improve(self, request: Improve) -> Done:
        h, x = self.sent(request.batch)
        old = self.needed(self.head, "it was told no head yet")
        (rows, width), outputs = h.shape[-2:], old.shape[-1]
        self.expect(old.shape[-2] == width, f"its head is not {width} wide")
        self.expect_shape("the head", request.head, width, outputs)
        self.expect_shape("the residual", request.residual, rows, outputs)
        self.head = request.head.tensor
        known = old if self.config.residual_heads == "old" else self.head
        self._descend(x, h, request.residual.tensor, known, self.head)
        return Done()

    def _scale(self, head: Tensor) -> Tensor | None:
        """The curvature of Eq. 10 grows with the square of the head. One SGD step
        hardly changes that; an exact head is as large as the embeddings are small, and
        where columns are many its local steps diverge. "exact_scaled" divides the
        objective by what the head has grown, which has the same minimum."""
        if self.config.head_update != "exact_scaled":
            return None
        start = (head.shape[-1] / 3) ** 0.5  # the expected norm of a uniform head
        grown: Tensor = torch.linalg.matrix_norm(head, keepdim=True) / start
        return 1 / grown.clamp_min(1.0)

    def _local_steps(
        self, x: Tensor, h: Tensor, r: Tensor, known: Tensor, head: Tensor
    ) -> None:
        """tau steps towards f_k(x_k) W_k = s_k - lambda/rho (Eq. 10)."""
        config = self.config
        scale = self._scale(head)
        target = r + h @ known
        if scale is not None:
            head = scale * head
            target = scale * target
        self.descent.towards(config.local_steps, x, target, rho=config.rho, head=head)

    def state(self) -> State:
        return super().state() | {"head": self.head}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.head = state["head"]


class LabelOwner(LinearHeads, AdmmLabelOwner):
    """Holds labels, heads W (one block of rows per party), and the duals lambda (one
    row per training row)."""

    config: Config

    def meet(self, introductions: Mapping[str, roles.Introduction]) -> None:
        super().meet(introductions)
        # exact heads may be no numbers
        self.looks_at_nothing = self.config.head_update == "sgd"

    def update(self, h: Mapping[str, Tensor], batch: str) -> tuple[Arriving, Tensor]:
        """Eq. 6 to 8 for a batch; gives what `loss_of` reads, and the parties' residual
        r."""
        measures, r, (heads,) = self.advance(
            batch, beside(h, self.widths, self.room), self.heads
        )
        self.heads = heads.clone()  # a replay would overwrite it
        return measures, r

    def arithmetic(self, H: Tensor, heads: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
        duals, *y = rows
        o = narrow(H, heads)
        z, duals, measures = self.split(o, duals, *y)
        new = self._next_heads(H, heads, o, z, duals)
        known = o if self.config.residual_heads == "old" else narrow(H, new)
        return z - known - duals / self.config.rho, duals, measures, new

    def _next_heads(
        self, H: Tensor, heads: Tensor, o: Tensor, z: Tensor, duals: Tensor
    ) -> Tensor:
        """Eq. 8: every head against the others' old ones, by one step or exactly."""
        rho = self.config.rho
        beta = self.config.weight_decay
        rows = H.shape[0]
        if self.config.head_update == "sgd":
            gradient = narrow(H.T, duals + rho * (o - z)) / rows + beta * heads
            return heads - self.config.head_learning_rate * gradient
        solved = []
        for h_k, W_k in zip(
            blocks(H.T, self.widths.values()),
            blocks(heads, self.widths.values()),
            strict=True,
        ):
            gram = rho * h_k @ h_k.T
            # dead units, one or all of them, must not make it singular
            ridge = (rows * beta + 1e-6 * gram.trace() / len(gram)).clamp_min(1e-12)
            gram.diagonal().add_(ridge)
            solved.append(
                torch.linalg.solve_ex(
                    gram, h_k @ (rho * (z - o + h_k.T @ W_k) - duals)
                )[0]
            )
        new = torch.cat(solved)
        if not new.isfinite().all():
            raise Diverged(
                "Training diverged: embeddings are too large, or no numbers, to solve"
                ' head_update = "exact" for. Lower learning_rate or local_steps, or set'
                ' head_update = "exact_scaled", or "sgd", the default.'
            )
        return new

    def first_heads(self) -> dict[str, Adopt]:
        heads = zip(self.widths, blocks(self.heads, self.widths.values()), strict=True)
        return {k: Adopt(self.outbox.release(W_k, "head")) for k, W_k in heads}

    def variables_for(self, residual: Tensor, batch: str) -> dict[str, Improve]:
        """To each party its head, and to all the same residual."""
        r = self.outbox.release(residual, "residual", batch)
        heads = self.outbox.release_blocks(
            self.heads, list(self.widths.values()), "head", batch
        )
        return {
            k: Improve(batch, r, W_k) for k, W_k in zip(self.widths, heads, strict=True)
        }

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.heads = state["heads"]


def narrow(a: Tensor, b: Tensor) -> Tensor:
    """a b, where b has few columns: a CPU is faster at the transposed product."""
    return (b.T @ a.T).T.contiguous()


def train(driver: LabelOwner, peers: Peers, batches: Batches) -> Iterator[Step]:
    if batches.done == 0:
        peers.ask_each(driver.first_heads())
    for batch in batches:
        h = {
            k: reply.values.tensor for k, reply in peers.ask(Embed(batch.name)).items()
        }
        measures, residual = driver.update(h, batch.name)
        peers.ask_each(driver.variables_for(residual, batch.name))
        yield Step(batch, driver.loss_of(measures))


ALGORITHM = Algorithm(
    config=Config,
    feature_owner=FeatureOwner,
    label_owner=LabelOwner,
    train=train,
    predict=predict,
    weighs_rows=True,
    releases={
        "embedding": EMBEDDING,
        "residual": RESIDUAL,
        "head": Release(Kind.HEAD, of="labels", per_row=False),
    },
    head=linear,
    combine=LabelOwner.outputs,
    head_norms=LabelOwner.head_norms,
    heads=lambda driver: driver.heads,
)
