"""Nearest neighbours over columns that several parties hold: nothing is trained, and a
row's neighbours vote.

The downstream model of VF-PS (Jiang et al., How to Select Important Participants in
Vertical Federated Learning, Efficiently and Securely?, NeurIPS 2022), with additively
homomorphic encryption as in Hardy et al. (arXiv:1711.10677). The squared distance
between two rows is a sum over parties, d = sum_k d_k. For the rows Q that are asked
about:

    party k:      d_k[q, j] = ||x_k[q] - x_k[j]||^2 for each training row j                AskDistances -> Distances

    aggregation = "encrypted"
    reader:       one of the parties; makes keys, everybody gets the public one            AskKey, UseKey
    label owner:  adds the others' d_k, which it cannot read, and passes the sum on
    reader:       decrypts, adds its own d_k, sorts; gives the k nearest j, nearest first  Rank -> Neighbours
    aggregation = "plain"
    label owner:  adds what it reads, and sorts                                            unsafe: must be asked for

    label owner:  the vote of their labels, or their mean where labels are numbers; the r-th nearest weighs r^-fade, and
                  with fade = "auto" it tries a few on the validation rows when these are scored, and keeps the best

What crosses: distances up, encrypted or not, their encrypted sum to the reader, and
neighbours back.

What the label owner learns: per row asked about, which k training rows are nearest, in
order, and no distance at all. What the reader learns: the sum of the others' distances,
each training row to each row asked about. So a sum of one would show that party's own
distances, and from enough distances a party's columns follow, up to a rotation:
encrypted aggregation is refused where the reader has a single other party to add to. In
plain text the label owner learns that much about every party. The others learn nothing.
All this holds while parties follow the protocol and the label owner and the reader do
not put together what they know.

Every party keeps its own columns of the training rows as its state, for rows that come
later. A mechanism in the outbox rule for "distances" protects the row that is asked
about; it says nothing about the training rows.

With ckks a distance is right to 2^-19 per party, so that neighbours closer to each
other than that may change places; with bfv to 2^-31. Both take squared distances up to
2^16 (2^28 with bfv) in sum: columns must be scaled.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from colonnade.algorithms.algorithm import KEY, Algorithm, Crossing, Kind, Release
from colonnade.algorithms.under_key import Keyed, as_agreed
from colonnade.core import (
    NON_PRIVATE,
    Batches,
    Ciphertext,
    Done,
    DpEvent,
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
from colonnade.core.batches import pieces
from colonnade.core.cipher import NOT_ENCRYPTED
from colonnade.core.receipt import PUBLIC
from colonnade.encryption import PublicKey, SecretKey, make_keys, read_public_key
from colonnade.errors import BoundaryError, ConfigError, PartyError
from colonnade.optim.losses import Logistic, Loss, Squared
from colonnade.settings import algorithms as settings

DISTANCES_AT_ONCE = 1 << 21
"""Distances in one answer: 16 megabytes. With twice as many, malloc gives the pages back
each time, and new ones cost more than the arithmetic."""
CAPACITY = {"ckks": 2.0**16, "bfv": 2.0**28, "plain": 2.0**28}
"""The largest sum of distances; keys are made for each party's share of it."""
MOST_PARTIES = 1024
"""The most parties in a sum that a key is made for."""
FADES = 0.75, 0.5, 1.0
"""The values that "auto" chooses from; it takes the first until validation rows were
scored."""
LEAST = 1e-6
"""The share that a class without a vote has in the loss, which would be infinite
otherwise."""


Config = settings.NearestNeighbours


class Key(Message):
    public: Annotated[Released, Kind.KEY]


class AskKey(Request[Key]):
    parties: int  # how many will be added up


class UseKey(Request[Done]):
    public: Released  # the reader's


class Distances(Message):
    values: Annotated[Released | Ciphertext, Kind.DISTANCES]  # [rows, training rows]


class AskDistances(Request[Distances]):
    batch: str


class Neighbours(Message):
    # [rows, k], places among the training rows, nearest first
    rows: Annotated[Released, Kind.NEIGHBOURS]


class Rank(Request[Neighbours]):
    batch: str
    # [rows, training rows], of all others; none where there are none
    total: tuple[Ciphertext, ...]


def crossing(config: Config) -> tuple[Crossing, Crossing]:
    """What crosses from columns; nothing crosses from labels. Whoever decrypts a sum
    knows it, so it is not private."""
    if config.aggregation == "plain":
        return {"distances": NON_PRIVATE}, {}
    summed = (
        NON_PRIVATE
        if config.scheme == NOT_ENCRYPTED
        else DpEvent(f"summed ({config.scheme})")
    )
    return {
        "distances": summed,
        "total": summed,
        "public_key": PUBLIC,
        "neighbours": NON_PRIVATE,
    }, {}


def sends(driver: LabelOwner, party: str) -> set[str]:
    """What crosses from one party's columns: the reader ranks, and the others give
    distances."""
    reads = driver.config.aggregation == "encrypted" and party == reading(
        driver, driver.peers
    )
    return {"public_key", "neighbours"} if reads else {"distances"}


class FeatureOwner(Keyed[PublicKey]):
    """Holds columns, and remembers those of the training rows."""

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
        self.memory = _remembered(organisation, self.features)
        self._known: tuple[Tensor, Tensor] | None = None
        self._secret: SecretKey | None = None

    @serves
    def ask_key(self, request: AskKey) -> Key:
        """Make keys, once per process: secret keys are never saved."""
        self._expect_encrypted()
        limit = CAPACITY[self.config.scheme] / max(request.parties, 1)
        self._secret = self._secret or make_keys(
            self.config.scheme, use="sums", limit=limit
        )
        return Key(self.outbox.publish(self._secret.public.to_bytes(), "public_key"))

    @serves
    def use_key(self, request: UseKey) -> Done:
        self._expect_encrypted()
        return self.keep(_readers_key(request.public, self.config))

    @serves
    def ask_distances(self, request: AskDistances, asker: str | None) -> Distances:
        d = self.distances(request.batch)
        if self.config.aggregation == "plain":
            return Distances(
                self.outbox.release(d, "distances", request.batch, to=asker)
            )
        return Distances(
            self.outbox.encrypt(d, "distances", request.batch, key=self.key, to=asker)
        )

    @serves
    def rank(self, request: Rank, asker: str | None) -> Neighbours:
        self._expect_encrypted()
        d = self.distances(request.batch)
        for total in request.total:
            secret = self.needed(self._secret, "it was not asked for a key yet")
            self.expect_shape("a sum of distances", total, *d.shape)
            d = d + secret.decrypt(total.encrypted).to(d.device)
        neighbours = nearest(d, self.config.k)
        return Neighbours(
            self.outbox.release(neighbours, "neighbours", request.batch, to=asker)
        )

    def distances(self, batch: str) -> Tensor:
        """d_k, squared, in float64."""
        a, (b, lengths) = self.model(self.x(batch)).double(), self._remembered()
        return (
            torch.addmm(lengths, a, b.T, alpha=-2)
            .add_(a.square().sum(1)[:, None])
            .clamp_(min=0)
        )

    def _remembered(self) -> tuple[Tensor, Tensor]:
        """Its training rows and their squared lengths, made once: rows may be asked for
        in many pieces."""
        if self._known is None:
            b = self.model(self.memory).double()
            self._known = b, b.square().sum(1)[None, :]
        return self._known

    def state(self) -> State:
        return {"memory": self.memory}

    def load_state(self, state: State) -> None:
        self.memory = state["memory"].to(self.device)
        self._known = None

    def _expect_encrypted(self) -> None:
        """Refuse what its own settings do not say, whatever it is asked."""
        own = self.config.aggregation
        self.expect(
            own == "encrypted",
            f"its aggregation is {own}, and this is part of encrypted",
        )


class LabelOwner(roles.LabelOwner):
    """Holds labels, and remembers those of the training rows; drives."""

    loss: Loss
    config: Config
    public: PublicKey | None = None

    def __init__(
        self, organisation: Organisation, labels: Tensor, loss: Loss, config: Config
    ) -> None:
        super().__init__(organisation, labels, loss, config)
        self.memory = _remembered(organisation, self.labels)
        self.fade = None if isinstance(config.fade, str) else float(config.fade)

    def meet(self, introductions: Mapping[str, roles.Introduction]) -> None:
        if self.config.aggregation == "encrypted" and len(introductions) == 2:
            reader = reading(self, introductions)
            (other,) = introductions.keys() - {reader}
            raise ConfigError(
                f"Encrypted distances hide nothing here: '{reader}', which decrypts"
                f" their sum, would know those of '{other}', the only other party with"
                ' columns. Add a party, or set aggregation = "plain", which shows'
                f" every party's distances to '{self.name}'."
            )
        if self.config.aggregation == "plain":
            warnings.warn(
                "knn with plain aggregation: the label owner receives how far rows are"
                " from each other in each party's columns, from which these follow up"
                ' to a rotation. Set aggregation = "encrypted" for data of others.',
                stacklevel=2,
            )
        super().meet(introductions)

    def learn_fade(self, neighbours: Tensor, batch: str) -> None:
        """Choose how fast votes fade, where that is left open: as suits these rows
        best."""
        losses = {
            fade: float(self.lost(self.vote(neighbours, fade), batch)) for fade in FADES
        }
        self.fade = min(losses, key=lambda fade: losses[fade])

    def vote(self, neighbours: Tensor, fade: float) -> Tensor:
        """Outputs for the rows whose neighbours these are: log-shares of the vote, or
        the mean."""
        labels = self.memory[neighbours]
        ranks = torch.arange(
            1, labels.shape[1] + 1, dtype=torch.float64, device=labels.device
        )
        weights = (ranks**-fade).expand(labels.shape)
        if isinstance(self.loss, Squared):
            return (
                (labels * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True)
            ).to(labels.dtype)
        binary = isinstance(self.loss, Logistic)
        by_class = self.loss.weigh(labels)
        weights = weights if by_class is None else weights * by_class
        weighted = (
            one_hot(labels, 2 if binary else self.loss.outputs) * weights[..., None]
        )
        votes = (weighted.sum(1) / weights.sum(1, keepdim=True)).to(
            torch.get_default_dtype()
        )
        log_p = votes.clamp_min(LEAST).log()
        return log_p[:, 1:] - log_p[:, :1] if binary else log_p

    def state(self) -> State:
        return {"memory": self.memory, "fade": self.fade}

    def load_state(self, state: State) -> None:
        self.memory, self.fade = (
            state["memory"].to(self.device),
            state.get("fade", self.fade),
        )


def train(driver: LabelOwner, peers: Peers, batches: Batches) -> Iterator[Step]:  # noqa: ARG001
    """There is no step: the training rows, which every party holds already, are the
    model."""
    return iter(())


def predict(driver: LabelOwner, peers: Peers, rows: Rows) -> Tensor:
    if driver.config.aggregation == "encrypted" and driver.public is None:
        share_key(driver, peers)
    find = encrypted if driver.config.aggregation == "encrypted" else plain
    # here and not by the label owner's `rows_at_once`: the fade is learned from all rows
    at_once = max(1, DISTANCES_AT_ONCE // max(len(driver.memory), 1))
    neighbours = torch.cat(
        [find(driver, peers, piece.name) for piece in pieces(rows, at_once)]
    )
    if driver.fade is None and rows.name.startswith("validation["):
        driver.learn_fade(neighbours, rows.name)
    return driver.vote(neighbours, FADES[0] if driver.fade is None else driver.fade)


def plain(driver: LabelOwner, peers: Peers, batch: str) -> Tensor:
    """Neighbours from distances that everybody shows."""
    request = AskDistances(batch)
    total = torch.zeros((), dtype=torch.float64)
    for name, reply in peers.ask(request).items():
        d = as_agreed(Released, reply.values, name, request, batch).tensor
        _check(driver, name, request, d, len(driver.memory))
        total = total.add_(d) if total.dim() else total + d.double()
    return nearest(total, driver.config.k)


def encrypted(driver: LabelOwner, peers: Peers, batch: str) -> Tensor:
    """Neighbours from distances that are added without being read."""
    reader = reading(driver, peers)
    total = []
    asked = AskDistances(batch)
    replies = peers.ask_each({k: asked for k in peers if k != reader})
    parts = [
        as_agreed(Ciphertext, reply.values, k, asked, batch).encrypted
        for k, reply in replies.items()
    ]
    if parts:
        assert driver.public is not None
        total = [
            driver.outbox.pass_on(
                driver.public.add(*parts), "total", batch, event=NON_PRIVATE
            )
        ]
    request = Rank(batch, tuple(total))
    neighbours = peers[reader].ask(request).rows.tensor
    most = len(driver.memory)
    _check(driver, reader, request, neighbours, min(driver.config.k, most))
    if neighbours.dtype != torch.int64 or not bool(
        ((neighbours >= 0) & (neighbours < most)).all()
    ):
        raise PartyError(
            reader,
            request.kind,
            batch,
            f"it named neighbours that are none of the {most} training rows",
        )
    return neighbours


def _check(
    driver: LabelOwner,
    party: str,
    request: AskDistances | Rank,
    values: Tensor,
    width: int,
) -> None:
    """Check the size of an answer: what is computed from it is larger."""
    expected = [len(driver.rows(request.batch)), width]
    if list(values.shape) != expected:
        cause = f"it sent {list(values.shape)} values, and {expected} were asked for"
        raise PartyError(party, request.kind, request.batch, cause)


def share_key(driver: LabelOwner, peers: Peers) -> None:
    """The reader makes keys; the others encrypt with the public one, and the label
    owner adds with it."""
    reader = reading(driver, peers)
    public = peers[reader].ask(AskKey(len(peers))).public
    peers.ask_each({k: UseKey(public) for k in peers if k != reader})
    driver.public = _readers_key(public, driver.config)


def reading(driver: LabelOwner, peers: Mapping[str, object]) -> str:
    """Who decrypts: the first of the parties with columns that is not the label owner's
    own organisation."""
    return next((k for k in peers if k != driver.name), driver.name)


def nearest(d: Tensor, k: int) -> Tensor:
    return d.topk(min(k, d.shape[1]), dim=1, largest=False).indices


def _readers_key(public: Released, config: Config) -> PublicKey:
    """The reader's key, if it is of the agreed scheme and made for a sum of a whole
    number of parties. A key for tiny values would tell, by what it refuses, how far
    rows are apart."""
    key = read_public_key(public, scheme=config.scheme, use="sums")
    parties = CAPACITY[config.scheme] / key.limit
    if not (parties.is_integer() and parties <= MOST_PARTIES):
        raise BoundaryError(
            f"A public key for values up to {key.limit:g} came, and distances are added"
            f" up over at most {MOST_PARTIES} parties: it must be for"
            f" {CAPACITY[config.scheme]:g} divided by how many there are."
        )
    return key


def _remembered(organisation: Organisation, values: Tensor) -> Tensor:
    """The values of the training rows; none where a saved federation is loaded to
    predict, until its state is."""
    train = organisation.batches.splits.get("train")
    return (
        values[:0] if train is None else values.index_select(0, train.to(values.device))
    )


ALGORITHM = Algorithm(
    config=Config,
    feature_owner=FeatureOwner,
    label_owner=LabelOwner,
    train=train,
    predict=predict,
    releases={
        "distances": Release(
            Kind.DISTANCES,
            of="columns",
            per_row=True,
            of_training=True,
        ),
        "total": Release(
            Kind.DISTANCES,
            of="columns",
            per_row=True,
            takes_noise=False,
            of_training=True,
        ),
        "public_key": KEY,
        "neighbours": Release(
            Kind.NEIGHBOURS,
            of="columns",
            per_row=True,
            takes_noise=False,
            of_training=True,
        ),
    },
    crossing=crossing,
    modes={how: Config(aggregation=how) for how in ("plain", "encrypted")},
    sends=sends,
    reader="whoever reads distances or their sum",
    covers=(
        "covers rows that are asked about; training rows enter every distance, and"
        " nothing is promised for them"
    ),
    local_model=None,  # distances are between the columns themselves
    no_head="it compares new rows with training rows, which stay with their owners",
    # many neighbours tell shares, and the nearest one of many classes
    suits=lambda parties: parties != 2,  # encrypted, the distances of two hide nothing
)
