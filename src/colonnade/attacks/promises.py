"""Every promise of `colonnade privacy`, attacked: a lower bound on epsilon beside the
claim.

For each owner whose rules promise something, canaries are released as often as the row
of this run that paid most: over all epochs, validations, tests, predictions and
explanations that its account counts, each call delivered twice and with a checkpoint in
between. Labels that are drawn at random are drawn anew with canaries among them. A
bound that is above its claim is measured again with fresh canaries, so that chance
alone does not accuse anybody.

Canaries take the real path out of a party: its outbox with its owner's rules, codecs,
account and noise, and the wire. A canary is far outside of what a rule lets through, so
that a missing clip shows. From one release to the next its sign changes, as the
adversary knows: it adds up what it sees with these signs, so that independent noise
adds up as ever and noise that is used again cancels. An adversary that knows the agreed
seed also makes the party's noise itself and subtracts it, which is no use against noise
from the operating system.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from colonnade.algorithms.embedding import Embed, Embedding
from colonnade.attacks.rehearsal import Say, reopen
from colonnade.core import (
    Batches,
    Ledger,
    Mechanism,
    Organisation,
    Party,
    Peers,
    Rule,
    serves,
)
from colonnade.core.batches import seed_for
from colonnade.core.chance import Secret, Source, uniform
from colonnade.errors import AuditFailed
from colonnade.federation import Federation
from colonnade.federation.guarantees import guarantees
from colonnade.privacy import (
    Account,
    Binomial,
    Gaussian,
    accounting,
    binomial,
    gaussian,
)
from colonnade.privacy.accounting import Key, event_of, is_private, key_of, known_batch
from colonnade.privacy.counts import Item, by_event
from colonnade.privacy.one_run import (
    CONFIDENCE,
    Guesses,
    f_dp,
    independent,
    mu_of,
    steinke,
)
from colonnade.privacy.report import HIDDEN, KNOWN, Guarantee, Statement
from colonnade.settings.sections import LABELS, PURPOSES
from colonnade.transport import Fault, Faulty, InProcess, Recording

CANARIES = 10_000
WAYS = 6
"""How many bounds are tried for one claim, three on each of two scores; each has an
equal share of the whole risk."""
CELLS = 5_000_000
"""The most canaries times training batches that are kept in memory."""
KNOWS = KNOWN.partition(":")[0]
BIG = 1e3
"""How far outside of its rule's bounds a canary lies."""
SURE = 0.1
"""The share of canaries on which the adversary of Steinke's bound makes a guess: those
it is surest of."""
ADVERSARY = "the adversary"


@dataclass(frozen=True)
class Attempt:
    """One statement of `colonnade privacy`, and what canaries showed."""

    party: str
    protects: str
    adversary: str
    relation: str
    claim: float | None
    delta: float
    bound: float | None = None  # the largest of the bounds; None: not attacked
    baseline: float | None = None  # Steinke et al.'s alone
    # the best that assumes nothing about how rows depend on each other
    any_rows: float | None = None
    canaries: int = 0
    releases: int = 0  # of each canary
    right: int = 0  # guesses, on all canaries
    by: str = ""  # what the adversary had in hand
    why: str = ""  # it was not attacked

    @property
    def broken(self) -> bool:
        return (
            self.bound is not None
            and self.claim is not None
            and self.bound > self.claim
        )


@dataclass
class Promises:
    """All attempts on one run."""

    run: str
    algorithm: str
    attempts: list[Attempt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def broken(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.broken]

    def to_json(self) -> dict[str, Any]:
        """The figures, as JSON can hold them."""
        attempts = [
            dataclasses.asdict(attempt) | {"broken": attempt.broken}
            for attempt in self.attempts
        ]
        return {
            "run": self.run,
            "algorithm": self.algorithm,
            "confidence": CONFIDENCE,
            "passed": not self.broken,
            "attempts": attempts,
            "notes": self.notes,
        }

    def check(self) -> None:
        """Raise when a promise does not hold."""
        if not self.broken:
            return
        lines = [
            f"{len(self.broken)} of {len(self.attempts)} promises do not hold, at"
            f" {CONFIDENCE:.0%}:"
        ]
        lines += [
            f"    {attempt.party}'s {attempt.protects} against {attempt.adversary}"
            f" ({attempt.relation}): epsilon is at least {attempt.bound:.3f}, and"
            f" {attempt.claim:.3f} is claimed; shown by {attempt.by}"
            for attempt in self.broken
        ]
        lines.append(
            "    Noise must be drawn anew for every release, from the operating system"
            ' (noise = "secret").'
        )
        raise AuditFailed("\n".join(lines))


def audit_promises(
    folder: Path,
    *,
    canaries: int = CANARIES,
    say: Say | None = None,
    allow_models: Sequence[str] = (),
) -> Promises:
    """Attack what a finished run promises; the run stays as it is, and nobody's budget
    is charged."""
    with reopen(folder, allow_models) as federation:
        federation.settings.check_one_label_owner()
        promises = Promises(folder.resolve().name, federation.settings.algorithm)
        for guarantee in guarantees(federation):
            (say or (lambda _: None))(
                f"planting canaries: {guarantee.party}'s {guarantee.protects}"
            )
            promises.attempts += attempts(federation, guarantee, canaries)
    if not any(attempt.claim is not None for attempt in promises.attempts):
        promises.notes.append(
            "Nothing is promised: no rule has noise, and no labels are drawn."
        )
    return promises


def attempts(
    federation: Federation, guarantee: Guarantee, canaries: int
) -> Iterator[Attempt]:
    """An attempt for each statement; a bound above its claim counts when fresh canaries
    show it again."""
    stated = [
        statement for statement in guarantee.statements if statement.epsilon is not None
    ]

    def same_attack(statement: Statement) -> tuple[bool, str, float]:
        return statement.adversary == HIDDEN, statement.relation, statement.delta

    bounds: dict[tuple[bool, str, float], Bound] = {}
    for key in dict.fromkeys(map(same_attack, stated)):
        alike = [statement for statement in stated if same_attack(statement) == key]
        bounds[key] = _bound(federation, guarantee, alike[0], canaries)
        if any(bounds[key].of(guarantee, statement).broken for statement in alike):
            again = _bound(federation, guarantee, alike[0], canaries)
            bounds[key] = min(bounds[key], again, key=lambda bound: bound.epsilon)
    yield from (
        bounds[same_attack(statement)].of(guarantee, statement) for statement in stated
    )


@dataclass(frozen=True)
class Bound:
    """What canaries showed under one relation."""

    epsilon: float
    baseline: float
    any_rows: float
    # what the account says these very releases cost; infinity where it keeps none
    counted: float
    canaries: int
    releases: int
    right: int
    by: str

    def of(self, guarantee: Guarantee, stated: Statement) -> Attempt:
        # the account is kept against this adversary
        knows_batches = stated.adversary.startswith(KNOWS)
        claim = (
            min(stated.epsilon or 0.0, self.counted)
            if knows_batches
            else stated.epsilon
        )
        return Attempt(
            guarantee.party,
            guarantee.protects,
            stated.adversary,
            stated.relation,
            claim,
            stated.delta,
            self.epsilon,
            self.baseline,
            self.any_rows,
            self.canaries,
            self.releases,
            self.right,
            self.by,
        )


def _bound(
    federation: Federation, guarantee: Guarantee, statement: Statement, canaries: int
) -> Bound:
    if guarantee.protects == "labels":
        return label_bound(federation, guarantee.party, canaries)
    account = federation.accounts[guarantee.party]
    if statement.adversary == HIDDEN:
        return hidden_bound(
            federation, guarantee.party, canaries, statement.relation, statement.delta
        )
    costliest = max(
        account.spent(),
        key=lambda counts: known_batch(
            by_event(counts), "replace-one", statement.delta
        ),
    )
    setup, turns = canary_setup(federation, guarantee.party, costliest)
    return column_bound(setup, turns, canaries, statement.relation, statement.delta)


def canary_setup(
    federation: Federation, party: str, counts: Mapping[Item, int]
) -> tuple[Setup, list[Turn]]:
    """A party's outbox as the run built it, and the turns that release a row as often
    as `counts` says."""
    outbox = federation.organisations[party].outbox
    engine = federation.settings.engine
    width = federation.widths[party]
    turns: list[Turn] = []
    for (name, key), times in counts.items():
        if not times or not is_private(event_of(key)):
            continue
        width = int(dict(key[1]).get("coordinates", width))
        row = torch.zeros(1, width)
        mechanisms = [
            outbox.rule(name, purpose, width).mechanism for purpose in PURPOSES
        ]
        keys = [
            key_of(mechanism.apply(row, torch.Generator())[1])
            for mechanism in mechanisms
        ]
        turns += [Turn(name, PURPOSES[keys.index(key)])] * times
    per_row = federation.algorithm.per_row

    def account(batches: Batches, ids: Sequence[str]) -> Account:
        return Account(party, batches, ids, per_row=per_row)

    return (
        Setup(
            party,
            outbox.rules,
            width,
            engine.seed,
            isinstance(outbox.noise, Secret),
            account,
        ),
        turns,
    )


def column_bound(
    setup: Setup, turns: Sequence[Turn], canaries: int, relation: str, delta: float
) -> Bound:
    """The bound on epsilon that these releases of canaries show."""
    attacked, organisation = attack(setup, turns, canaries, relation)
    account = organisation.outbox.meter
    p = (1 - CONFIDENCE) / WAYS
    assert isinstance(account, Account)
    spent = max(
        (by_event(counts) for counts in account.spent()),
        key=lambda counts: sum(counts.values()),
    )
    gaussians = all(key[0] == gaussian.KIND for key in spent)
    best: dict[str, tuple[float, float]] = {}
    for basis, (guesses, sure) in attacked.items():
        rows = [steinke(sure, delta, p)] + (
            [accounting.gaussian_epsilon(f_dp(guesses, p), delta)] if gaussians else []
        )
        tight = _as_epsilon(spent, mu_of(independent(guesses, p)), delta)
        best[basis] = max([*rows, tight]), max(rows)
    by = max(best, key=lambda basis: best[basis][0])
    baseline = max(steinke(sure, delta, p) for _, sure in attacked.values())
    counted, (guesses, _) = known_batch(spent, relation, delta), attacked[by]
    any_rows = max(rows for _, rows in best.values())
    return Bound(
        best[by][0],
        baseline,
        any_rows,
        counted,
        canaries,
        len(turns),
        guesses.right,
        by,
    )


def hidden_bound(
    federation: Federation, party: str, canaries: int, relation: str, delta: float
) -> Bound:
    """The bound for training alone, against an adversary that does not know the
    batches: canaries are drawn into as many batches as the run had, as it drew them.
    With one batch per row and epoch there is nothing to draw."""
    account = federation.accounts[party]
    ((item, rounds),) = (
        (item, rounds) for item, rounds in account.rounds.items() if rounds
    )
    setup, _ = canary_setup(federation, party, {item: 1})
    if account.sampling == "epoch":
        return column_bound(
            setup,
            [Turn(item[0], "train")] * account.released(item)[0],
            canaries,
            relation,
            delta,
        )
    seed = int(uniform((1,), Secret()) * 2**31)
    share = min(account.batch_size / account.rows, 1.0)
    drawn = dataclasses.replace(
        setup, sampling=account.sampling, share=share, batch_seed=seed
    )
    return sampled_bound(
        drawn, [Turn(item[0], "train")] * rounds, canaries, relation, delta
    )


def sampled_bound(
    setup: Setup, turns: Sequence[Turn], canaries: int, relation: str, delta: float
) -> Bound:
    """The bound on epsilon that drawn batches of canaries show to an adversary that
    does not know the batches."""
    canaries = min(canaries, max(CELLS // len(turns), 500))
    p = (1 - CONFIDENCE) / (WAYS - 2)
    attacked, _ = attack(setup, turns, canaries, relation)
    best: dict[str, float] = {}
    for basis, (guesses, sure) in attacked.items():
        variation = independent(guesses, p)
        tight = (
            math.log((1 + variation - 2 * delta) / (1 - variation))
            if variation > delta
            else 0.0
        )
        if setup.sampling == "poisson" and relation == "add-or-remove":
            tight = max(
                tight,
                accounting.poisson_epsilon(variation, setup.share, len(turns), delta),
            )
        best[basis] = max(tight, steinke(sure, delta, p))
    by = max(best, key=lambda basis: best[basis])
    baseline = max(steinke(sure, delta, p) for _, sure in attacked.values())
    return Bound(
        best[by],
        baseline,
        baseline,
        math.inf,
        canaries,
        len(turns),
        attacked[by][0].right,
        by,
    )


def _as_epsilon(spent: Mapping[Key, int], mu: float, delta: float) -> float:
    """The epsilon of the mechanism that was used, with so much less noise that a canary
    moves it by `mu` deviations: Gaussian as it is, and binomial with fewer trials."""
    if not mu:
        return 0.0
    binomials = [
        (key, times) for key, times in spent.items() if key[0] == binomial.KIND
    ]
    if not binomials:
        return accounting.gaussian_epsilon(mu, delta)
    ((key, times),) = binomials[:1]
    parameters = dict(key[1])
    moved = math.sqrt(parameters["coordinates"] * times) * (parameters["levels"] - 1)
    trials = moved**2 / (mu**2 * parameters["p"] * (1 - parameters["p"]))
    fewer = (
        binomial.KIND,
        tuple(sorted({**parameters, "trials": float(max(round(trials), 1))}.items())),
    )
    return accounting.binomial_pld([(fewer, times)], 0.0, delta)


def label_bound(federation: Federation, party: str, canaries: int) -> Bound:
    """The bound for labels that are drawn at random, as their owner draws them."""
    outbox = federation.organisations[party].outbox
    engine = federation.settings.engine
    rule = outbox.rules[LABELS]
    classes = len(federation.holdings.encoder.classes)

    def make_noise() -> Source:
        secret = isinstance(outbox.noise, Secret)
        return (
            Secret()
            if secret
            else torch.Generator().manual_seed(seed_for(engine.seed, party))
        )

    return bound_of_labels(rule, make_noise, canaries, classes)


def bound_of_labels(
    rule: Rule, make_noise: Callable[[], Source], canaries: int, classes: int
) -> Bound:
    """Guesses of drawn labels are trials of pure epsilon-DP: Steinke's bound is exact
    for them."""
    by_basis: dict[str, Guesses] = guess_labels(rule, make_noise, canaries, classes)
    bounds = {
        basis: steinke(guesses, 0.0, (1 - CONFIDENCE) / len(by_basis))
        for basis, guesses in by_basis.items()
    }
    by = max(bounds, key=bounds.__getitem__)
    return Bound(
        bounds[by],
        bounds[by],
        bounds[by],
        math.inf,
        canaries,
        1,
        by_basis[by].right,
        by,
    )


@dataclass(frozen=True)
class Turn:
    """One release of every canary: under a name, and for a purpose, which decides about
    the rule."""

    release: str
    purpose: str  # train, validation, test, predict


@dataclass(frozen=True)
class Setup:
    """An owner's rules, noise and account, from which its organisation is built afresh,
    as in a process of its own."""

    owner: str
    rules: Mapping[str, Rule]
    width: int  # numbers of a row
    seed: int
    secret: bool  # whether noise comes from the operating system
    account: Callable[[Batches, Sequence[str]], Account]
    # how training batches are drawn: by default every canary is in every one
    sampling: str = "epoch"
    share: float = 1.0  # of the rows that one training batch has
    batch_seed: int = 0

    def organisation(self, canaries: int) -> Organisation:
        splits = dict.fromkeys(PURPOSES, torch.arange(canaries))
        batches = Batches(
            splits,
            batch_size=max(int(self.share * canaries), 1),
            epochs=1,
            seed=self.batch_seed,
            reshuffle=False,
            sampling=self.sampling,
        )
        organisation = Organisation.at(
            self.owner, batches, seed=self.seed, rules=self.rules
        )
        organisation.outbox.noise = (
            Secret() if self.secret else organisation.outbox.noise
        )
        organisation.outbox.meter = self.account(
            batches, [str(row) for row in range(canaries)]
        )
        return organisation


class CanaryOwner(Party):
    """A party all of whose rows are canaries; it answers what a party with columns
    answers."""

    turn = 0  # which release comes next

    def __init__(
        self, organisation: Organisation, rows: Tensor, turns: Sequence[Turn]
    ) -> None:
        super().__init__(organisation)
        self.canaries = rows
        self.turns = turns

    @serves
    def embed(self, request: Embed, asker: str | None) -> Embedding:
        sign = 1 - 2 * (self.turn % 2)
        name = self.turns[self.turn].release
        rows = sign * self.canaries[self.rows(request.batch)]
        return Embedding(self.outbox.release(rows, name, request.batch, to=asker))


def released(
    setup: Setup, rows: Tensor, turns: Sequence[Turn]
) -> tuple[list[Tensor], Organisation]:
    """All that reached the adversary, turn by turn in the order of the rows, with NaN
    for a row that was not in the batch, and the organisation whose account paid for it.
    Each call comes twice, and a checkpoint is halfway."""
    organisation = setup.organisation(len(rows))
    seen = []
    at = len(turns) // 2
    for part in (range(at), range(at, len(turns))):
        if part.start:
            state = organisation.state()
            organisation = setup.organisation(len(rows))
            organisation.load_state(state)
        owner = CanaryOwner(organisation, rows, turns)
        recording = Recording(
            InProcess({setup.owner: owner}, through_bytes=True, parallel="never")
        )
        faults = [Fault("duplicate", setup.owner)]
        peers = Peers(
            ADVERSARY, [setup.owner], Faulty(recording, faults), Ledger(ADVERSARY)
        )
        for number in part:
            owner.turn = number
            batch = _batch(
                turns[number].purpose, number, len(rows), organisation.batches.per_epoch
            )
            peers[setup.owner].ask(Embed(batch))
            twice = torch.stack(
                recording.of(ADVERSARY).tensors(turns[number].release)[-2:]
            )
            whole = torch.full(
                (len(rows), *twice.shape[2:]), math.nan, dtype=torch.float64
            )
            whole[organisation.batches.rows(batch)] = twice.double().mean(0)
            seen.append(whole.flatten(1))
            recording.transcripts.clear()
    return seen, organisation


def _batch(purpose: str, number: int, rows: int, per_epoch: int) -> str:
    epoch, batch = divmod(number, per_epoch)
    return f"train/{epoch}/{batch}" if purpose == "train" else f"{purpose}[0:{rows}]"


CanaryGuesses = dict[str, tuple[Guesses, Guesses]]
"""The adversary's guesses on every canary, and on those it was surest of, by what it
guessed from."""


def attack(
    setup: Setup, turns: Sequence[Turn], canaries: int, relation: str
) -> tuple[CanaryGuesses, Organisation]:
    """Plant, release and guess canaries. Under replace-one a canary is one of two
    opposite rows, else a row or none."""
    coins = (uniform((canaries,), Secret()) < 0.5).double()
    values = 2 * coins - 1 if relation == "replace-one" else coins
    rows = (BIG * values)[:, None].expand(canaries, setup.width).float().contiguous()
    seen, organisation = released(setup, rows, turns)
    # by an adversary that knows the agreed seed
    twin, _ = released(setup, torch.zeros_like(rows), turns)
    ends = (-1.0, 1.0) if relation == "replace-one" else (0.0, 1.0)
    scores = {"what left": score(setup, turns, seen, ends)}
    without = [noisy - noise for noisy, noise in zip(seen, twin, strict=True)]
    scores["what left, less the seed's noise"] = score(setup, turns, without, ends)
    truth = coins > 0.5
    guesses = {}
    for basis, likelihood in scores.items():
        guesses[basis] = (
            Guesses(canaries, canaries, int(((likelihood > 0) == truth).sum())),
            surest(likelihood, truth),
        )
    return guesses, organisation


def surest(scores: Tensor, truth: Tensor) -> Guesses:
    """A guess on those canaries whose scores are farthest from the middle."""
    guessed = max(1, round(SURE * len(scores)))
    chosen = scores.abs().topk(guessed).indices
    return Guesses(
        len(scores), guessed, int(((scores[chosen] > 0) == truth[chosen]).sum())
    )


def score(
    setup: Setup,
    turns: Sequence[Turn],
    seen: Sequence[Tensor],
    ends: tuple[float, float],
) -> Tensor:
    """The log-likelihood of all of a canary's releases with its coin up, less that with
    its coin down: exact for Gaussian noise, and up to a monotone bend for others.
    `ends` are a canary's values with its coin down and up. Where batches are drawn and
    not known, a row that is not in a batch looks like an empty one: noise.
    Amplification assumes this, and a receiver of a batch without row numbers learns
    less."""
    total = torch.zeros(len(seen[0]), dtype=torch.float64)
    for number, (turn, values) in enumerate(zip(turns, seen, strict=True)):
        rule = (
            setup.rules.get(f"{turn.purpose}.{turn.release}")
            or setup.rules.get(turn.release)
            or Rule()
        )
        size, variance, centre = _shape(rule.mechanism, values.shape[1])
        sign = 1 - 2 * (number % 2)
        # on the canaries' own direction
        along = sign * (values - centre).sum(1) / math.sqrt(values.shape[1])
        absent = along.isnan()
        if absent.any():
            empty, _ = rule.mechanism.apply(
                torch.zeros(int(absent.sum()), values.shape[1]), Secret()
            )
            along[absent] = (empty.double() - centre).sum(1) / math.sqrt(
                values.shape[1]
            )
            # as observed, where that is less
            variance = min(variance, float(along.abs().median() / 0.6745) ** 2)
        down, up = (
            (along * end * size - (end * size) ** 2 / 2) / variance for end in ends
        )
        total += _drawn(up, setup.share) - _drawn(down, setup.share)
    return total


def _drawn(likelihood: Tensor, share: float) -> Tensor:
    """The likelihood of a row that is in a batch with this chance only, and empty
    otherwise."""
    if share >= 1:
        return likelihood
    return torch.logaddexp(
        torch.full_like(likelihood, math.log1p(-share)), likelihood + math.log(share)
    )


def _shape(mechanism: Mechanism, width: int) -> tuple[float, float, float]:
    """How far a canary moves what its mechanism releases, along its direction; the
    noise's variance there; and the value between both ends. For other mechanisms these
    are 1, 1 and 0."""
    if isinstance(mechanism, Gaussian):
        return mechanism.clip, (mechanism.sigma * mechanism.clip) ** 2, 0.0
    if isinstance(mechanism, Binomial):
        variance = (
            mechanism.step**2 * mechanism.trials * mechanism.p * (1 - mechanism.p)
        )
        return (
            (mechanism.high - mechanism.low) / 2 * math.sqrt(width),
            variance,
            (mechanism.low + mechanism.high) / 2,
        )
    return 1.0, 1.0, 0.0


def guess_labels(
    rule: Rule, make_noise: Callable[[], Source], canaries: int, classes: int
) -> dict[str, Guesses]:
    """Guesses of labels 0 or 1, each set by a coin and then drawn by the rule: first
    wherever one of the two came out, then by an adversary that draws both ways with the
    agreed seed."""
    coins = (uniform((canaries,), Secret()) < 0.5).long()
    drawn, _ = rule.mechanism.apply(coins, make_noise())
    informative = drawn < min(2, classes)
    guesses = {
        "the drawn labels": Guesses(
            canaries, int(informative.sum()), int((drawn == coins)[informative].sum())
        )
    }
    zeros, ones = (
        rule.mechanism.apply(torch.full_like(coins, n), make_noise())[0] for n in (0, 1)
    )
    differ = (zeros != ones) & ((drawn == zeros) | (drawn == ones))
    right = (drawn == ones).long()[differ] == coins[differ]
    guesses["the drawn labels, by the seed"] = Guesses(
        canaries, int(differ.sum()), int(right.sum())
    )
    return guesses
