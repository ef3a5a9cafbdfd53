"""Boosted trees (SecureBoost): gradient-boosted trees over everybody's columns, from
encrypted gradients.

Cheng, Fan, Jin, Liu, Chen, Papadopoulos and Yang (2021), "SecureBoost: a lossless
federated learning framework", arXiv:1901.08755. A step is a round: a tree for each
output. With encryption = "elgamal":

    label owner:   g, h of each row, rounded at random to 8 bits, E(g), E(h)          Start  -> Sums
    party k:       for each way to part rows by a column of its own, the sum of E(g)
                   and E(h) over the rows that would go left, blinded
    label owner:   reads the sums, and for each node finds whose split gains most
    on every level below:
    party k:       of its own splits, which rows go left                              Split  -> Directions
    label owner:   tells everybody which rows went where                              Divide -> Sums
    party k:       the same sums for the smaller child of each pair; the other's follow
    label owner:   leaves -G/(H + l2) from exact gradients

    to predict     party k: a bit for each of its splits and rows                     Decide -> Directions

What crosses: encrypted gradients and which rows are in which node down, sums and
directions up. Ways to part rows come in an order shuffled for each round, and none is
told that would show the sum of fewer than `min_rows` rows.

What a party with columns learns: which rows end in the same nodes, from which labels
can be guessed, and which of its thresholds were chosen. What the label owner learns:
sums over bins whose columns and borders it does not know, and for each row on which
side of each chosen threshold it is. A threshold stays with its owner.

With encryption = "none" gradients cross as they are, which tell the labels: for
rehearsals, and for parties that may know them. The trees are the same, bit by bit, with
the same gradient_bits; 0 leaves gradients unrounded.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colonnade.algorithms.algorithm import (
    KEY,
    Algorithm,
    Crossing,
    Kind,
    Release,
    Tables,
)
from colonnade.algorithms.tree_equations import equations
from colonnade.algorithms.tree_histograms import Flags, Floats
from colonnade.algorithms.tree_learning import (
    Round,
    Rounded,
    first_trees,
    gains_of,
    joined,
    sampled,
    scores_of,
    splits_of,
)
from colonnade.algorithms.tree_objectives import objective_for
from colonnade.algorithms.tree_owner import (
    HALF,
    Decide,
    Divide,
    FeatureOwner,
    Split,
    Start,
    Sums,
    UseKey,
)
from colonnade.algorithms.tree_parts import (
    NodeTable,
    Part,
    completed,
    not_offered,
    once_for_all,
    rounds_with,
    shape_of,
)
from colonnade.algorithms.tree_pieces import Trees, splits_by_party, thresholds
from colonnade.compression import Integers
from colonnade.core import (
    NON_PRIVATE,
    Batches,
    Ciphertext,
    DpEvent,
    Organisation,
    Peers,
    Released,
    Rows,
    Rule,
    State,
    Step,
    roles,
)
from colonnade.core.batches import Batch
from colonnade.core.receipt import PUBLIC
from colonnade.encryption.elgamal import SCHEME, ElGamalSecretKey
from colonnade.errors import PartyError, WireError
from colonnade.optim.losses import Loss
from colonnade.settings import algorithms as settings

PACKED = {"nodes": Integers(0.0, 1.0, 3), "sample": Integers(0.0, 1.0, 2)}
"""The label owner's releases for every row, packed in two bits and in one."""


Config = settings.BoostedTrees


def crossing(config: Config) -> tuple[Crossing, Crossing]:
    """The party that decrypts sums can read them; nobody else can read gradients."""
    columns = {"sums": NON_PRIVATE, "directions": NON_PRIVATE}
    labels: Crossing = {"splits": NON_PRIVATE}
    shown = config.nodes == "shown"
    labels |= {"nodes": NON_PRIVATE} if shown else {}
    if shown and (config.row_share < 1 or config.goss_top):
        labels["sample"] = NON_PRIVATE
    if config.encryption == "none":
        return columns, {"gradients": NON_PRIVATE, "hessians": NON_PRIVATE} | labels
    return (
        columns,
        {"public_key": PUBLIC, "gradients": DpEvent(f"encrypted ({SCHEME})")} | labels,
    )


class Scored:
    """The scores of rows that are scored again and again while trees grow, so that only
    new rounds are asked about."""

    def __init__(self, rows: int, outputs: int) -> None:
        self.rounds = torch.zeros(rows, dtype=torch.int64)
        """How many rounds are in the score of each of the label owner's rows."""
        self.scores = torch.zeros(rows, outputs, dtype=torch.float64)

    def rounds_of(self, rows: Tensor) -> int:
        """The rounds that are in the scores of all of these rows: none where some have
        more of them than others."""
        rounds = self.rounds[rows]
        first = int(rounds[0])
        return first if bool((rounds == first).all()) else 0

    def note(self, rows: Tensor, rounds: int, scores: Tensor) -> None:
        self.rounds[rows] = rounds
        self.scores[rows] = scores


class LabelOwner(roles.LabelOwner):
    """Holds labels and leaves; drives."""

    # the trees' scores do not depend on how many rows are asked for at once, and less
    # memory is faster here: 13 s where 64 MiB take 20
    answer_bytes = 16 << 20
    loss: Loss
    config: Config

    def __init__(
        self, organisation: Organisation, labels: Tensor, loss: Loss, config: Config
    ) -> None:
        super().__init__(organisation, labels, loss, config)
        fitted = organisation.fitted.get("labels", {})
        self.objective = objective_for(
            loss, config.loss, fitted.get("mean", 0.0), fitted.get("scale", 1.0)
        )
        for name, codec in PACKED.items():
            self.outbox.rules.setdefault(name, Rule(codec=codec))
        self.rounds: list[NodeTable] = []
        self.base: Tensor | None = None  # where scores begin, [outputs]
        # of all rows, right for those that are trained on
        self.scores: Tensor | None = None
        self.secret: ElGamalSecretKey | None = None
        self.scored: Scored | None = None  # while it trains

    def begin(self) -> None:
        """Get ready for the first round."""
        train = self._training_rows()
        if self.base is None and train is not None:
            self.base = self.objective.start(
                self.labels[train].cpu(), self.weights(train)
            )
        assert self.base is not None
        if self.scores is None:
            self.scores = self.base.repeat(len(self.labels), 1)

    def weights(self, rows: Tensor) -> Tensor:
        """The weights of these rows, by row and by class: a row with a weight of 2
        counts as if it were there twice."""
        weights = self.loss.weigh(
            self.labels[rows],
            None if self.row_weights is None else self.row_weights[rows],
        )
        return (
            torch.ones(len(rows), dtype=torch.float64)
            if weights is None
            else weights.cpu()
        )

    def slopes(self, batch: str) -> tuple[float, Floats, Floats]:
        """The loss before a round, and the exact gradients and Hessians of its rows."""
        rows = self.rows(batch)
        assert self.scores is not None
        scores = self.scores[rows.cpu()]
        labels = self.labels[rows].cpu()
        weights = self.weights(rows)
        g, h = self.objective.slopes(self.followed(scores), labels)
        loss = self.objective.loss(self.averaged(scores), labels, weights)
        return loss, (g * weights[:, None]).numpy(), (h * weights[:, None]).numpy()

    def finish(self, batch: str, grown: Round, g: Floats, h: Floats) -> None:
        """Give leaves their values, and rows their new scores."""
        rows = self.rows(batch).cpu()
        assert self.scores is not None
        left = None
        if self.objective.medians:
            left = self.labels[rows].cpu().double()[:, None] - self.followed(
                self.scores[rows]
            )
        rate = 1.0 if self.config.is_forest else self.config.learning_rate
        table = grown.table(g, h, l2=self.config.l2, learning_rate=rate, left=left)
        scores = self.scores.clone()
        scores[rows] += table["value"][torch.from_numpy(grown.node.T)]
        self.scores = scores
        self.rounds = [*self.rounds, table]

    def outputs(self, directions: Mapping[str, Tensor]) -> Tensor:
        """The joint model's outputs, from each party's directions at all its splits,
        [rows, splits]."""
        return self.as_outputs(self.added(directions, 0))

    def as_outputs(self, scores: Tensor) -> Tensor:
        """Scores as the loss reads them."""
        return (
            self.objective.outputs(self.averaged(scores))
            .to(torch.get_default_dtype())
            .to(self.device)
        )

    def followed(self, scores: Tensor) -> Tensor:
        """The scores that the next tree begins with: in a forest those that the first
        tree began with."""
        return (
            self.base.expand_as(scores)
            if self.config.is_forest and self.base is not None
            else scores
        )

    def averaged(self, scores: Tensor) -> Tensor:
        """Scores in which a forest's trees are averaged, not added up."""
        start = self.followed(scores)
        trees = max(len(self.rounds), 1)
        return start + (scores - start) / trees if self.config.is_forest else scores

    def added(
        self,
        directions: Mapping[str, Tensor],
        first: int,
        scores: Tensor | None = None,
        *,
        lacks: Mapping[str, Flags] | None = None,
        rows: int = 0,
    ) -> Tensor:
        """Scores after all rounds, from the splits of the rounds since `first` and the
        scores before these. Rows that a party lacks, and all rows of a party that is
        not in `directions`, go as was learned."""
        names = list(self.shapes)
        left = {
            name: values.cpu().numpy() > HALF for name, values in directions.items()
        }
        rows = rows or len(next(iter(left.values())))
        if scores is None:
            base = (
                self.base
                if self.base is not None
                else torch.zeros(self.loss.outputs, dtype=torch.float64)
            )
            scores = base.repeat(rows, 1)
        starts = [0] * len(names)
        for table in self.rounds[first:]:
            of_round: list[Flags] = []
            for k, name in enumerate(names):
                stop = starts[k] + splits_of(table, k)
                given = left[name][:, starts[k] : stop] if name in left else None
                of_round.append(
                    completed(table, k, given, (lacks or {}).get(name), rows)
                )
                starts[k] = stop
            scores = scores + scores_of(table, scores.shape[1], of_round)
        return scores

    def bytes_per_row(self, rows: Tensor) -> int:
        """The bytes of one row in the largest answer about these rows: a number for each
        split of the party that has most, in the rounds that are asked about."""
        new_rounds = self.rounds[self.rounds_scored(rows) :]
        splits = [
            sum(splits_of(table, k) for table in new_rounds)
            for k in range(len(self.shapes))
        ]
        return roles.BYTES_PER_NUMBER * max(splits, default=1)

    def rounds_scored(self, rows: Tensor) -> int:
        """The first rounds that nobody need be asked about: while it trains, those that
        are in the scores of all of these rows already. Where a party is left out on
        purpose, these scores are of no use."""
        presence = self.peers.presence
        left_out = presence is not None and bool(presence.away)
        if self.scored is None or left_out:
            return 0
        return self.scored.rounds_of(rows.cpu())

    def importance(self) -> dict[str, float]:
        """Each party's share of the gains of all splits."""
        return gains_of(self.rounds, list(self.shapes))

    def summary_of_trees(self) -> dict[str, Any]:
        """How much each party's splits gained, and the first trees: whose each split
        is, and what leaves add."""
        first = first_trees(self.rounds, self.loss.outputs, list(self.shapes))
        return {
            "rounds": len(self.rounds),
            "importance": self.importance(),
            "first": first,
        }

    def state(self) -> State:
        state = super().state() | {"rounds": self.rounds}
        train = self._training_rows()
        if self.base is not None:
            state["base"] = self.base
        if self.scores is not None and train is not None:
            state["scores"] = self.scores[train.cpu()]
        return state

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.rounds = [
            {name: values.cpu() for name, values in table.items()}
            for table in state["rounds"]
        ]
        self.base, self.scores, train = state.get("base"), None, self._training_rows()
        if "scores" in state and train is not None and self.base is not None:
            self.scores = self.base.cpu().repeat(len(self.labels), 1)
            self.scores[train.cpu()] = state["scores"].cpu()


def train(driver: LabelOwner, peers: Peers, batches: Batches) -> Iterator[Step]:
    share_key(driver, peers)
    driver.begin()
    driver.scored = Scored(len(driver.labels), driver.loss.outputs)
    try:
        for batch in batches:
            loss, g, h = driver.slopes(batch.name)
            driver.finish(batch.name, grow(driver, peers, batch, g, h), g, h)
            yield Step(batch, loss)
    finally:
        driver.scored = None


def share_key(driver: LabelOwner, peers: Peers) -> None:
    """Send the public key before the first round: others can add up what only the label
    owner can read."""
    others = [k for k in peers if k != driver.name]
    if driver.config.encryption == "none":
        if others:
            warnings.warn(
                "boosted_trees without encryption: every party receives the gradient of"
                ' each row, which tells its label. Set encryption = "elgamal" where'
                " parties must not know labels.",
                stacklevel=3,
            )
    elif others:
        # of a level's nodes
        reported = (
            2 ** max(driver.config.depth - 2, 0)
            if driver.config.nodes == "hidden"
            else 1
        )
        driver.secret = driver.secret or ElGamalSecretKey(
            2 * driver.loss.outputs * reported
        )
        public = driver.outbox.publish(driver.secret.public.to_bytes(), "public_key")
        peers.ask_each(dict.fromkeys(others, UseKey(public)))


def grow(driver: LabelOwner, peers: Peers, batch: Batch, g: Floats, h: Floats) -> Round:
    """One round: a tree for each output, level by level."""
    config, names, hidden = driver.config, list(peers), driver.config.nodes == "hidden"
    rows, counts = sampled(
        g, config.row_share, config.goss_top, config.goss_rest, driver.generator
    )
    weights = counts[:, None]
    rounded = Rounded.of(
        g[rows] * weights, h[rows] * weights, config.gradient_bits, driver.generator
    )
    held = {
        name: None if peers.presence is None else peers.presence.of(name, batch.name)
        for name in names
    }
    grown = Round.begin(rounded, rows, batch.size, held)
    roots = list(range(grown.trees))
    replies = peers.ask_each(starts(driver, batch, grown, roots, 0))
    grown.open = roots
    grown.sums = read(driver, grown, replies, [roots] * len(names), batch.name)
    for level in range(config.depth):
        chosen = grown.best(
            leaves=config.leaves,
            l2=config.l2,
            min_gain=config.min_gain,
            min_child_weight=config.min_child_weight,
        )
        if not chosen:
            break
        asked: dict[str, Split] = {}
        for k, name in enumerate(names):
            number = grown.parts[k].number
            if own := [
                (0 if hidden else number(n), best.candidate)
                for n, best in chosen.items()
                if best.party == k
            ]:
                asked[name] = Split(
                    batch.name,
                    driver.outbox.release(torch.tensor(own), "splits", batch.name),
                )
        directions = grown.apply(
            chosen,
            grown.left_of(peers.ask_each(asked), chosen, batch.name, hidden=hidden),
        )
        if level + 1 == config.depth:
            break
        smaller = grown.smaller(chosen, hidden=hidden)
        if hidden:
            replies = peers.ask_each(
                starts(driver, batch, grown, smaller[0], level + 1)
            )
        else:
            replies = peers.ask_each(
                divides(driver, batch, grown, torch.from_numpy(directions))
            )
        grown.take_children(
            chosen, smaller, read(driver, grown, replies, smaller, batch.name)
        )
    return grown


def starts(
    driver: LabelOwner, batch: Batch, grown: Round, nodes: list[int], level: int
) -> dict[str, Start]:
    """The first request of a round or, where nodes are hidden, of a level. Gradients
    are plain to the label owner's own organisation, and without encryption. Each party
    gets those of its own rows."""
    outbox = driver.outbox
    hidden = driver.config.nodes == "hidden"
    name = batch.name
    both = grown.only_in(nodes) if hidden else (grown.rounded.g, grown.rounded.h)
    mask = None
    if len(grown.sampled) < batch.size and not hidden:
        mask = torch.zeros(batch.size, 1)
        mask[torch.from_numpy(grown.sampled)] = 1.0

    def released(
        part: Part, sealed: bool
    ) -> tuple[Released | Ciphertext, Released | None, Released | None]:
        g, h = (
            part.of_batch(values) if hidden else part.of_sampled(values, grown.sampled)
            for values in both
        )
        sample = (
            None
            if mask is None
            else outbox.release(part.of_batch(mask), "sample", name)
        )
        if sealed:
            assert driver.secret is not None
            return (
                outbox.encrypt(joined(g, h), "gradients", name, key=driver.secret),
                None,
                sample,
            )
        gradients = outbox.release(torch.from_numpy(g), "gradients", name)
        return gradients, outbox.release(torch.from_numpy(h), "hessians", name), sample

    sealed = {
        party: party != driver.name and driver.secret is not None
        for party in grown.asked
    }
    sent = once_for_all(
        grown.asked, lambda party, part: released(part, sealed[party]), sealed
    )
    rounds = {
        party: rounds_with(driver.rounds, k) for k, party in enumerate(grown.parties)
    }
    return {
        party: Start(name, rounds[party], level, *releases)
        for party, releases in sent.items()
    }


def divides(
    driver: LabelOwner, batch: Batch, grown: Round, directions: Tensor
) -> dict[str, Divide]:
    """Everybody's splits of a level, [rows of the batch, trees]; each party gets those
    of its own rows."""
    receivers = {
        party: part
        for party, part in grown.asked.items()
        if part.held is None or part.reported
    }

    def divide(_: str, part: Part) -> Divide:
        return Divide(
            batch.name,
            driver.outbox.release(part.of_batch(directions), "nodes", batch.name),
        )

    return once_for_all(receivers, divide)


def read(
    driver: LabelOwner,
    grown: Round,
    replies: Mapping[str, Sums],
    nodes: Sequence[list[int]],
    batch: str,
) -> list[Floats]:
    """Each party's sums for its nodes, [nodes, candidates, 2]; they must be of these
    nodes, and no larger than theirs. A party offers nothing for a node that it does not
    know (-1), and has no candidates where it was not asked."""
    sums: list[Floats] = []
    for k, (name, wanted) in enumerate(zip(grown.parties, nodes, strict=True)):
        before = grown.sums[k].shape[1] if grown.sums else None
        known = [node for node in wanted if node >= 0]
        reply = replies.get(name)
        if reply is None:
            sums.append(not_offered(len(wanted), before or 0))
            continue
        try:
            shape = shape_of(
                reply.sums,
                len(known),
                before,
                driver.widths[name] * (2 * driver.config.bins + 1),
            )
            values = _values(driver, grown, reply.sums, known, shape)
            if (
                isinstance(reply.sums, Ciphertext)
                and (values[..., 1] > grown.held_totals(k, known)[:, None, 1]).any()
            ):
                raise WireError(
                    "it sent a sum of Hessians that is larger than that of the whole"
                    " node"
                )
            sums.append(not_offered(len(wanted), values.shape[1]))
            sums[-1][np.array(wanted) >= 0] = values
        except WireError as error:
            raise PartyError(name, "sums", batch, str(error)) from error
    return sums


def _values(
    driver: LabelOwner,
    grown: Round,
    sums: Released | Ciphertext,
    nodes: range | list[int],
    shape: tuple[int, int, int],
) -> Floats:
    if isinstance(sums, Released):
        return sums.tensor.cpu().double().numpy()
    if driver.secret is None:
        raise WireError("it sent ciphertexts, and nothing was encrypted")
    hidden = driver.config.nodes == "hidden"
    places = range(len(nodes)) if hidden else [grown.tree[node] for node in nodes]
    blocks = [(2 * place, 2 * place + 1) for place in places]
    most = len(grown.sampled) * 2.0**driver.config.gradient_bits
    both = driver.secret.decrypt_sums(
        sums.encrypted, blocks, largest=most, may_be_negative=(True, False)
    )
    return both.numpy().reshape(shape)


def predict(driver: LabelOwner, peers: Peers, rows: Rows) -> Tensor:
    """Predict by one request to everybody: while it trains, only about rounds that are
    new since these rows were last scored. Rows that a party lacks go as the label owner
    learned."""
    places = driver.rows(rows.name).cpu()
    first = driver.rounds_scored(places)
    directions = directions_of(driver, peers, rows, first)
    lacks = lacking(peers, rows.name, directions)
    presence = peers.presence
    left_out = presence is not None and bool(presence.away)
    scored = None if left_out else driver.scored
    if scored is None and not lacks and directions:
        return driver.outputs(directions)
    before = scored.scores[places] if scored is not None and first else None
    scores = driver.added(directions, first, before, lacks=lacks, rows=rows.size)
    if scored is not None:
        scored.note(places, len(driver.rounds), scores)
    return driver.as_outputs(scores)


def directions_of(
    driver: LabelOwner, peers: Peers, rows: Rows, first: int
) -> dict[str, Tensor]:
    """Each party's directions at its splits of the rounds since `first`, [rows, splits]."""
    requests = {
        party: Decide(
            rows.name,
            rounds_with(driver.rounds[:first], k),
            rounds_with(driver.rounds, k),
        )
        for k, party in enumerate(peers)
    }
    replies = peers.ask_each(requests)
    for k, party in enumerate(peers):
        if party not in replies:
            continue
        splits = sum(splits_of(table, k) for table in driver.rounds[first:])
        shape = replies[party].values.shape
        if shape != (rows.size, splits):
            cause = (
                f"it sent {list(shape)} directions, and [{rows.size}, {splits}] were"
                " asked for"
            )
            raise PartyError(party, Decide.kind, rows.name, cause)
    return {party: reply.values.tensor for party, reply in replies.items()}


def lacking(peers: Peers, batch: str, parties: Iterable[str]) -> dict[str, Flags]:
    """By party, which rows of a batch it lacks; parties that hold all are left out."""
    lacks = {}
    for party in parties:
        held = None if peers.presence is None else peers.presence.of(party, batch)
        if held is not None:
            lacks[party] = ~held.cpu().numpy()
    return lacks


ALGORITHM = Algorithm(
    config=Config,
    feature_owner=FeatureOwner,
    label_owner=LabelOwner,
    train=train,
    predict=predict,
    weighs_rows=True,
    releases={
        "sums": Release(Kind.HISTOGRAMS, of="columns", per_row=False),
        "directions": Release(Kind.DIRECTIONS, of="columns", per_row=True),
        "public_key": KEY,
        "gradients": Release(Kind.LOGIT_GRADIENT, of="labels", per_row=True),
        "hessians": Release(Kind.LOGIT_CURVATURE, of="labels", per_row=True),
        "sample": Release(Kind.NODES, of="labels", per_row=True),
        "splits": Release(Kind.NODES, of="labels", per_row=False),
        "nodes": Release(Kind.NODES, of="labels", per_row=True),
    },
    crossing=crossing,
    modes={
        "elgamal": Config(),
        "elgamal, nodes hidden": Config(nodes="hidden"),
        "none": Config(encryption="none"),
    },
    for_rows=1000,
    about_tables=(
        "trees are the usual choice for tables, and of 20,000 rows and more they scored"
        " above the default; up to 100 rounds, fewer where validation rows stop gaining"
    ),
    local_model=None,
    head=Trees,
    tables=Tables(thresholds, splits_by_party),
    combine=LabelOwner.outputs,
    equations=lambda driver, answers, requests: equations(
        driver.secret, answers, requests
    ),
    column_importance=FeatureOwner.importance,
    trees=LabelOwner.summary_of_trees,
)
