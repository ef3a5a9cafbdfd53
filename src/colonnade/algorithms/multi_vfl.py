"""Multi-VFL: columns at D data owners, labels at K label owners, split learning inside
federated averaging.

Mugunthan, Goyal and Kagal, Multi-VFL: A Vertical Federated Learning System for Multiple
Data and Label Owners, 2021 (arXiv:2106.05468), Algorithm 1. In each round, every label
owner k in parallel, for E epochs of batches B of its rows:

    data owner d:   h_d = f_{d,k}(x_d[B])                              Embed   -> Embedding      line 3
    label owner k:  loss = l(g_k([h_1 .. h_D]), y_k[B]); step g_k      concatenated along features or height, 4-7
    data owner d:   step f_{d,k} with dloss/dh_d                       Descend -> Done           line 8
then
    server:         W <- ServerAggregation(mean of g_k - W)            TrainRound -> Trained     9-10, `optim.server`
    label owner k:  g_k <- W                                           Adopt   -> Done
    data owner d:   f_d <- mean of f_{d,k}; f_{d,k} <- f_d             Average -> Done           12-13

The server drives the label owners, each of them drives the data owners, and no data
owner ever talks to the server: it sees label owners' weights, row counts and mean
losses. So that both sides average over the same label owners, the server tells them
with the new weights who took part, and they pass it on; a data owner averages when the
first one does. Who fails in a round is left out of both means, starts the next one from
the average like everybody, and needs nothing that it missed. Means are weighted by
training rows, or uniform as in the paper's line 12. The paper's local steps have no
state; an optimizer's lives for one round here, at label owners and copies alike.

What crosses: embeddings up and their gradients down, between data and label owners;
weights between label owners and server. What a party learns: gradients reveal labels to
a data owner that looks; embeddings reveal columns to whoever knows f; weights say
something about the rows they were trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from colonnade.algorithms import heads
from colonnade.algorithms.algorithm import Algorithm, HeadInputs, Kind, Nested, Release
from colonnade.algorithms.embedding import EMBEDDING, GRADIENT
from colonnade.algorithms.multi_vfl_data_owner import (
    Average,
    Copy,
    DataOwner,
    Descend,
    Embed,
    Embedding,
    Open,
    flat,
    load,
    refuse_unaveraged,
    take,
)
from colonnade.core import (
    Batch,
    Batches,
    Done,
    Message,
    Organisation,
    Party,
    Peers,
    Released,
    Request,
    Rows,
    State,
    serves,
)
from colonnade.core.batches import RoundDone
from colonnade.core.roles import Introduction, Reachable
from colonnade.core.roles import LabelOwner as HoldsLabels
from colonnade.errors import ConfigError, PartyError
from colonnade.optim.losses import Loss
from colonnade.optim.server import SERVER_OPTIMIZERS, ServerOptimizer, mean
from colonnade.settings import algorithms as settings

__all__ = [
    "ALGORITHM",
    "Adopt",
    "AggregationServer",
    "Average",
    "Begin",
    "Beginning",
    "Config",
    "DataOwner",
    "Descend",
    "Embed",
    "Embedding",
    "LabelOwner",
    "Open",
    "TrainRound",
    "Trained",
    "predict",
    "server_optimizer",
    "train",
]


Config = settings.MultiVfl


def server_optimizer(config: Config, rounds: int) -> ServerOptimizer:
    """The optimizer by which the aggregation server takes the label owners' changes."""
    chosen: dict[str, Any] = {}
    if config.server_rate:
        chosen["rate"] = config.server_rate
    if config.server != "fedavg":
        for name in ("beta1", "beta2", "tau", "second_moment"):
            chosen[name] = getattr(config, name)
    if config.server == "feddemonadam":
        chosen["rounds"] = max(rounds, 1)
        chosen["demon"] = config.demon
    return SERVER_OPTIMIZERS[config.server](**chosen)


class Beginning(Message):
    weights: Annotated[Released, Kind.MODEL]
    rows: int


class Begin(Request[Beginning]):
    """Asked once: the weights to start from."""


class Trained(Message):
    weights: Annotated[Released, Kind.MODEL]  # [parameters], one after the other
    rows: int
    loss: float


class TrainRound(Request[Trained]):
    round: int  # so many are over


class Adopt(Request[Done]):
    round: int  # so many are over
    weights: Released
    took_part: tuple[str, ...]


class LabelOwner(Reachable, HoldsLabels):
    """Holds labels of its rows, g (the aggregated one, `model`) and g_k (`copy`);
    drives the data owners."""

    inputs: tuple[int, ...]  # of g, per row: all of these, joined
    model: nn.Module
    copy: Copy

    def __init__(
        self,
        organisation: Organisation,
        labels: Tensor,
        loss: Loss,
        config: Config,
        batches: Batches,
        build: Callable[[tuple[int, ...]], nn.Module],
    ) -> None:
        super().__init__(organisation, labels, loss, config)
        self.batches = batches
        self.build = build
        self.round = 0

    def meet(self, introductions: Mapping[str, Introduction]) -> None:
        """Check that data owners have the same rows, and make g for what they send."""
        super().meet(introductions)
        self.inputs = joined(self.shapes, self.config)
        self.model = self.build(self.inputs).to(self.device)
        refuse_unaveraged(self.model, self.name)
        self.copy = Copy(self.model, self.config, self.generator)

    @property
    def agreed(self) -> str:
        return self.batches.fingerprint()

    def rows(self, batch: str) -> Tensor:
        return self.batches.rows(batch, self.device)

    @property
    def training_rows(self) -> int:
        return len(self.batches.splits.get("train", ()))

    def y(self, batch: str) -> Tensor:
        """The labels of a batch's rows."""
        return take(self.labels, self.rows(batch))

    @serves
    def begin(self, request: Begin, asker: str | None) -> Beginning:  # noqa: ARG002
        return Beginning(
            self.outbox.release(flat(self.model), "weights", to=asker),
            self.training_rows,
        )

    @serves
    def adopt(self, request: Adopt) -> Done:
        load(self.model, request.weights.tensor)
        if request.round:
            self.peers.ask(Average(request.round, request.took_part))
        self.copy.stop()
        if self.name not in request.took_part:
            self.copy.load(self.model)
        self.round = request.round
        return Done()

    @serves
    def train_round(self, request: TrainRound, asker: str | None) -> Trained:
        self.expect(
            request.round == self.round,
            f"round {request.round} begins, and {self.round} are adopted here",
        )
        self.expect(self.training_rows > 0, "it has no training rows")
        self.peers.ask(Open(request.round))
        self.copy.restart(self.model)
        losses: list[Tensor] = []
        for batch in self.batches_of(request.round):
            h = self.received(self.peers.ask(Embed(batch.name)))  # line 3
            # lines 4 to 7
            loss, gradients = self.copy.learn(
                h, self.y(batch.name), self.loss, self.config.axis
            )
            self.peers.ask_each(self.handed_back(gradients, batch))  # line 8
            losses.append(loss * batch.size)
        mean_loss = torch.stack(losses).sum(0) / (
            self.config.local_epochs * self.training_rows
        )
        weights = self.outbox.release(
            flat(self.copy.model, self.model), "weights", to=asker
        )
        return Trained(weights, self.training_rows, self.outbox.number(mean_loss))

    def batches_of(self, round: int) -> Iterator[Batch]:  # noqa: A002
        """Those of a round's E epochs."""
        epochs = self.config.local_epochs
        for epoch in range(round * epochs, (round + 1) * epochs):
            yield from self.batches.of_epoch(epoch)

    def received(self, replies: Mapping[str, Embedding]) -> list[Tensor]:
        return [reply.values.tensor for reply in replies.values()]

    def outputs(self, h: Mapping[str, Tensor], model: str = "aggregated") -> Tensor:
        """What data owners sent, combined by the aggregated model, or by its own."""
        g = self.model if model == "aggregated" else self.copy.model
        with torch.no_grad():
            return g.eval()(torch.cat(list(h.values()), dim=self.config.axis))  # type: ignore[no-any-return]

    def handed_back(
        self, gradients: Sequence[Tensor], batch: Batch
    ) -> dict[str, Descend]:
        """To each data owner dloss/dh_d."""
        name = batch.name
        by_owner = zip(self.shapes, gradients, strict=True)
        return {
            d: Descend(name, self.outbox.release(gradient, "gradient", name, to=d))
            for d, gradient in by_owner
        }

    def state(self) -> State:
        return super().state() | {
            "model": self.model.state_dict(),
            "copy": self.copy.model.state_dict(),
            "round": self.round,
        }

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.model.load_state_dict(state["model"])
        self.copy.stop()
        self.copy.model.load_state_dict(state["copy"])
        self.round = int(state["round"])


class AggregationServer(Party):
    """Holds no data: W, and what the server optimizer remembers; drives the label
    owners."""

    peers: Peers

    def __init__(self, organisation: Organisation, config: Config, rounds: int) -> None:
        super().__init__(organisation)
        self.config = config
        self.optimizer = server_optimizer(config, rounds)
        self.weights: Tensor | None = None
        self.moments: dict[str, Tensor] = {}
        self.round = 0
        self.took_part: tuple[str, ...] = ()
        # label owner -> the round whose weights it has
        self.adopted: dict[str, int] = {}
        # label owners without training rows: they are told, not asked to train
        self.idle: list[str] = []

    def start(self, offers: Mapping[str, Beginning]) -> None:
        """From the first label owner's weights: they all have one architecture."""
        self.weights = next(iter(offers.values())).weights.tensor.clone()
        self.moments = self.optimizer.init({"W": self.weights})
        self.idle = [k for k, offer in offers.items() if not offer.rows]
        self._check(offers)

    def aggregate(self, trained: Mapping[str, Trained]) -> None:
        """Lines 9 and 10, over those that finished the round."""
        assert self.weights is not None
        self._check(trained)
        deltas = [
            {"W": reply.weights.tensor - self.weights} for reply in trained.values()
        ]
        delta = mean(
            deltas, [self.config.weight(reply.rows) for reply in trained.values()]
        )
        moved, self.moments = self.optimizer.update(
            self.moments, {"W": self.weights}, delta, self.round + 1
        )
        self.weights = moved["W"]
        self.round = self.round + 1
        self.took_part = tuple(trained)

    def _check(self, replies: Mapping[str, Beginning | Trained]) -> None:
        assert self.weights is not None
        for k, reply in replies.items():
            if reply.weights.shape != tuple(self.weights.shape):
                raise ConfigError(
                    f"'{k}' has a model of {reply.weights.tensor.numel()} parameters,"
                    f" and there are {self.weights.numel()} at the others. Give all"
                    " label owners the same architecture and classes."
                )

    def tell(self, peers: Peers) -> dict[str, PartyError]:
        """The weights, and who took part, to every label owner that does not have them;
        who could not be told."""
        assert self.weights is not None
        news = Adopt(
            self.round, self.outbox.release(self.weights, "weights"), self.took_part
        )
        behind = [k for k in peers if self.adopted.get(k) != self.round]
        reached, failed = peers.attempt(dict.fromkeys(behind, news))
        self.adopted |= dict.fromkeys(reached, self.round)
        return failed

    def state(self) -> State:
        return super().state() | {
            "weights": self.weights,
            "moments": self.moments,
            "round": self.round,
            "took_part": list(self.took_part),
            "adopted": self.adopted,
            "idle": self.idle,
        }

    def load_state(self, state: State) -> None:
        super().load_state(state)
        at = self.device
        self.weights = None if state["weights"] is None else state["weights"].to(at)
        self.moments = {
            name: moment.to(at) for name, moment in state["moments"].items()
        }
        self.round = int(state["round"])
        self.took_part = tuple(state["took_part"])
        self.adopted = dict(state["adopted"])
        self.idle = list(state["idle"])


def train(driver: AggregationServer, peers: Peers, rounds: int) -> Iterator[RoundDone]:
    """A round's loss is the mean over the training rows of those that took part."""
    if driver.weights is None:
        offers, failed = peers.attempt(dict.fromkeys(peers, Begin()))
        _somebody(offers, failed)
        driver.start(offers)
    while driver.round < rounds:
        number = driver.round
        failed = driver.tell(peers)
        present = [k for k in peers if k not in failed and k not in driver.idle]
        trained, more = peers.attempt(dict.fromkeys(present, TrainRound(number)))
        failed |= more
        _somebody(trained, failed)
        driver.aggregate(trained)
        driver.tell(peers)
        rows = sum(reply.rows for reply in trained.values())
        loss = sum(reply.loss * reply.rows for reply in trained.values()) / rows
        losses = {k: reply.loss for k, reply in trained.items()}
        batch = Batch(f"round/{number}", rows, number, 0, number)
        yield RoundDone(
            batch, loss, losses, {k: str(error) for k, error in failed.items()}
        )


def predict(
    driver: LabelOwner, peers: Peers, rows: Rows, model: str = "aggregated"
) -> Tensor:
    """Outputs for rows of a label owner, by the aggregated model, or by its own as its
    last round left it."""
    replies = peers.ask(Embed(rows.name, model))
    return driver.outputs(
        dict(zip(replies, driver.received(replies), strict=True)), model
    )


def _somebody(answers: Mapping[str, Message], failed: Mapping[str, PartyError]) -> None:
    """Where nobody answered, the first failure is raised."""
    if not answers:
        raise (
            next(iter(failed.values()))
            if failed
            else ConfigError("There is no label owner to train with.")
        )


def joined(shapes: Mapping[str, tuple[int, ...]], config: Config) -> tuple[int, ...]:
    """The shape per row of what data owners send, concatenated."""
    first = next(iter(shapes.values()), ())
    axis = len(first) + config.axis
    for party, shape in shapes.items():
        if axis < 0 or (*shape[:axis], *shape[axis + 1 :]) != (
            *first[:axis],
            *first[axis + 1 :],
        ):
            raise ConfigError(
                f"'{party}' sends {list(shape)} per row, which cannot be joined with"
                f" {list(first)} along the {config.concatenate}. Give data owners"
                " models whose outputs differ in that axis alone."
            )
    return (
        *first[:axis],
        sum(shape[axis] for shape in shapes.values()),
        *first[axis + 1 :],
    )


def aggregated(given: HeadInputs[Config]) -> nn.Module:
    """The label owners' model as the last round left it."""
    model = given.build(joined(given.shapes, given.config))
    return heads.Joining(
        heads.loaded(model, given.state["model"]),
        partial(torch.cat, dim=given.config.axis),
    )


ALGORITHM = Algorithm(
    config=Config,
    feature_owner=DataOwner,
    label_owner=LabelOwner,
    predict=predict,
    nested=Nested(aggregation_server=AggregationServer, train=train),
    models={"aggregated": predict, "own": partial(predict, model="own")},
    # of a batch; rounds are opened and averaged by all data owners
    releases={
        "embedding": EMBEDDING,
        "gradient": GRADIENT,
        "weights": Release(Kind.MODEL, of="labels", per_row=False),
    },
    head=aggregated,
    combine=LabelOwner.outputs,
)
