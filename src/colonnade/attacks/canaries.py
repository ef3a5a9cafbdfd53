"""Canary rows on the real path out of a party: its outbox with its owner's rules, codecs, account and noise, the wire,
calls that arrive twice, and a checkpoint between two releases.

A canary is far outside of what a rule lets through, so that a missing clip shows. From one release to the next its sign
changes, as the adversary knows: it adds up what it sees with these signs, so that independent noise adds up as ever and
noise that is used again cancels. An adversary that knows the agreed seed also makes the party's noise itself and
subtracts it, which is no use against noise from the operating system.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from colonnade.algorithms.embedding import Embed, Embedding
from colonnade.core import Batches, Ledger, Mechanism, Organisation, Party, Peers, Rule, serves
from colonnade.core.chance import Secret, Source, uniform
from colonnade.privacy import Account, Binomial, Gaussian
from colonnade.privacy.one_run import Guesses
from colonnade.settings.rules import PURPOSES
from colonnade.transport import Fault, Faulty, InProcess, Recording

BIG = 1e3
"""How far outside of its rule's bounds a canary lies."""
SURE = 0.1
"""The share of canaries on which the adversary of Steinke's bound makes a guess: those it is surest of."""
ADVERSARY = "the adversary"


@dataclass(frozen=True)
class Turn:
    """One release of every canary: under a name, and for a purpose, which decides about the rule."""

    release: str
    purpose: str  # train, validation, test, predict


@dataclass(frozen=True)
class Setup:
    """An owner's rules, noise and account, from which its organisation is built afresh, as in a process of its own."""

    owner: str
    rules: Mapping[str, Rule]
    width: int  # numbers of a row
    seed: int
    secret: bool  # whether noise comes from the operating system
    account: Callable[[Batches, Sequence[str]], Account]
    sampling: str = "epoch"  # how training batches are drawn: by default every canary is in every one
    share: float = 1.0  # of the rows that one training batch has
    batch_seed: int = 0

    def organisation(self, canaries: int) -> Organisation:
        splits = dict.fromkeys(PURPOSES, torch.arange(canaries))
        batches = Batches(
            splits, batch_size=max(int(self.share * canaries), 1), epochs=1, seed=self.batch_seed, reshuffle=False,
            sampling=self.sampling,
        )  # fmt: skip
        organisation = Organisation.at(self.owner, batches, seed=self.seed, rules=self.rules)
        organisation.outbox.noise = Secret() if self.secret else organisation.outbox.noise
        organisation.outbox.meter = self.account(batches, [str(row) for row in range(canaries)])
        return organisation


class CanaryOwner(Party):
    """A party all of whose rows are canaries; it answers what a party with columns answers."""

    turn = 0  # which release comes next

    def __init__(self, organisation: Organisation, rows: Tensor, turns: Sequence[Turn]) -> None:
        super().__init__(organisation)
        self.canaries, self.turns = rows, turns

    @serves
    def embed(self, request: Embed, asker: str | None) -> Embedding:
        sign, name = 1 - 2 * (self.turn % 2), self.turns[self.turn].release
        rows = sign * self.canaries[self.rows(request.batch)]
        return Embedding(self.outbox.release(rows, name, request.batch, to=asker))


def released(setup: Setup, rows: Tensor, turns: Sequence[Turn]) -> tuple[list[Tensor], Organisation]:
    """All that reached the adversary, turn by turn in the order of the rows, with NaN for a row that was not in the
    batch, and the organisation whose account paid for it. Each call comes twice, and a checkpoint is halfway."""
    organisation, seen, at = setup.organisation(len(rows)), [], len(turns) // 2
    for part in (range(at), range(at, len(turns))):
        if part.start:
            state = organisation.state()
            organisation = setup.organisation(len(rows))
            organisation.load_state(state)
        owner = CanaryOwner(organisation, rows, turns)
        recording = Recording(InProcess({setup.owner: owner}, through_bytes=True, parallel="never"))
        faults = [Fault("duplicate", setup.owner)]
        peers = Peers(ADVERSARY, [setup.owner], Faulty(recording, faults), Ledger(ADVERSARY))
        for number in part:
            owner.turn, batch = number, _batch(turns[number].purpose, number, len(rows), organisation.batches.per_epoch)
            peers[setup.owner].ask(Embed(batch))
            twice = torch.stack(recording.of(ADVERSARY).tensors(turns[number].release)[-2:])
            whole = torch.full((len(rows), *twice.shape[2:]), math.nan, dtype=torch.float64)
            whole[organisation.batches.rows(batch)] = twice.double().mean(0)
            seen.append(whole.flatten(1))
            recording.transcripts.clear()
    return seen, organisation


def _batch(purpose: str, number: int, rows: int, per_epoch: int) -> str:
    epoch, batch = divmod(number, per_epoch)
    return f"train/{epoch}/{batch}" if purpose == "train" else f"{purpose}[0:{rows}]"


CanaryGuesses = dict[str, tuple[Guesses, Guesses]]
"""The adversary's guesses on every canary, and on those it was surest of, by what it guessed from."""


def attack(setup: Setup, turns: Sequence[Turn], canaries: int, relation: str) -> tuple[CanaryGuesses, Organisation]:
    """Plant, release and guess canaries. Under replace-one a canary is one of two opposite rows, else a row or none."""
    coins = (uniform((canaries,), Secret()) < 0.5).double()
    values = 2 * coins - 1 if relation == "replace-one" else coins
    rows = (BIG * values)[:, None].expand(canaries, setup.width).float().contiguous()
    seen, organisation = released(setup, rows, turns)
    twin, _ = released(setup, torch.zeros_like(rows), turns)  # by an adversary that knows the agreed seed
    ends = (-1.0, 1.0) if relation == "replace-one" else (0.0, 1.0)
    scores = {"what left": score(setup, turns, seen, ends)}
    without = [noisy - noise for noisy, noise in zip(seen, twin, strict=True)]
    scores["what left, less the seed's noise"] = score(setup, turns, without, ends)
    truth = coins > 0.5
    guesses = {}
    for basis, likelihood in scores.items():
        whole = Guesses(canaries, canaries, int(((likelihood > 0) == truth).sum()))
        guesses[basis] = whole, surest(likelihood, truth)
    return guesses, organisation


def surest(scores: Tensor, truth: Tensor) -> Guesses:
    """A guess on those canaries whose scores are farthest from the middle."""
    guessed = max(1, round(SURE * len(scores)))
    chosen = scores.abs().topk(guessed).indices
    return Guesses(len(scores), guessed, int(((scores[chosen] > 0) == truth[chosen]).sum()))


def score(setup: Setup, turns: Sequence[Turn], seen: Sequence[Tensor], ends: tuple[float, float]) -> Tensor:
    """The log-likelihood of all of a canary's releases with its coin up, less that with its coin down: exact for
    Gaussian noise, and up to a monotone bend for others. `ends` are a canary's values with its coin down and up. Where
    batches are drawn and not known, a row that is not in a batch looks like an empty one: noise. Amplification assumes
    this, and a receiver of a batch without row numbers learns less."""
    total = torch.zeros(len(seen[0]), dtype=torch.float64)
    for number, (turn, values) in enumerate(zip(turns, seen, strict=True)):
        rule = setup.rules.get(f"{turn.purpose}.{turn.release}") or setup.rules.get(turn.release) or Rule()
        size, variance, centre = _shape(rule.mechanism, values.shape[1])
        sign = 1 - 2 * (number % 2)
        along = sign * (values - centre).sum(1) / math.sqrt(values.shape[1])  # on the canaries' own direction
        absent = along.isnan()
        if absent.any():
            empty, _ = rule.mechanism.apply(torch.zeros(int(absent.sum()), values.shape[1]), Secret())
            along[absent] = (empty.double() - centre).sum(1) / math.sqrt(values.shape[1])
            variance = min(variance, float(along.abs().median() / 0.6745) ** 2)  # as observed, where that is less
        down, up = ((along * end * size - (end * size) ** 2 / 2) / variance for end in ends)
        total += _drawn(up, setup.share) - _drawn(down, setup.share)
    return total


def _drawn(likelihood: Tensor, share: float) -> Tensor:
    """The likelihood of a row that is in a batch with this chance only, and empty otherwise."""
    if share >= 1:
        return likelihood
    return torch.logaddexp(torch.full_like(likelihood, math.log1p(-share)), likelihood + math.log(share))


def _shape(mechanism: Mechanism, width: int) -> tuple[float, float, float]:
    """How far a canary moves what its mechanism releases, along its direction; the noise's variance there; and the
    value between both ends. For other mechanisms these are 1, 1 and 0."""
    if isinstance(mechanism, Gaussian):
        return mechanism.clip, (mechanism.sigma * mechanism.clip) ** 2, 0.0
    if isinstance(mechanism, Binomial):
        variance = mechanism.step**2 * mechanism.trials * mechanism.p * (1 - mechanism.p)
        return (mechanism.high - mechanism.low) / 2 * math.sqrt(width), variance, (mechanism.low + mechanism.high) / 2
    return 1.0, 1.0, 0.0


def guess_labels(rule: Rule, make_noise: Callable[[], Source], canaries: int, classes: int) -> dict[str, Guesses]:
    """Guesses of labels 0 or 1, each set by a coin and then drawn by the rule: first wherever one of the two came out,
    then by an adversary that draws both ways with the agreed seed."""
    coins = (uniform((canaries,), Secret()) < 0.5).long()
    drawn, _ = rule.mechanism.apply(coins, make_noise())
    informative = drawn < min(2, classes)
    guesses = {"the drawn labels": Guesses(canaries, int(informative.sum()), int((drawn == coins)[informative].sum()))}
    zeros, ones = (rule.mechanism.apply(torch.full_like(coins, n), make_noise())[0] for n in (0, 1))
    differ = (zeros != ones) & ((drawn == zeros) | (drawn == ones))
    right = (drawn == ones).long()[differ] == coins[differ]
    guesses["the drawn labels, by the seed"] = Guesses(canaries, int(differ.sum()), int(right.sum()))
    return guesses
