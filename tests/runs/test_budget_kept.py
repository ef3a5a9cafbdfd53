"""One budget over all runs, in whatever order a hostile driver begins, resumes, kills,
predicts with and names them.

What truly left is counted here, id by id, where it arrives, and its epsilon is computed
by another formula than the account's: it never exceeds the budget, and no account ever
says less.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federation.small import federation, frames, quick
from tests.federation.small_multi_sites import folders as multi_folders
from tests.federation.small_multi_sites import private
from tests.federation.small_sites import folders

from colonnade.algorithms import multi_vfl
from colonnade.algorithms.embedding import Embed
from colonnade.core import Batches, Outbox, Released
from colonnade.errors import BudgetExhausted, CheckpointError
from colonnade.federation import Federation, load
from colonnade.federation.federation import Elsewhere
from colonnade.privacy import Account
from colonnade.runs.run_directory import RunDirectory
from colonnade.runs.stores import peek_site_store
from colonnade.settings.party_file import OWN, read_own
from colonnade.sites import participant as participant_module
from colonnade.sites.participant import Participant, stand
from colonnade.sites.reader import Asked, own_columns, read_own_table

CPU = torch.device("cpu")
SIGMA = 4.0
DELTA = 1e-5
RULES = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": SIGMA}}}


@cache
def true_epsilon(times: int) -> float:
    """Of so many Gaussian releases of a row that moves by 2C, by bisection of the exact
    curve of delta."""
    if not times:
        return 0.0
    mu = 2 * math.sqrt(times) / SIGMA
    low = 0.0
    high = 1e3

    def normal(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    for _ in range(200):
        epsilon = (low + high) / 2
        second = normal(-mu / 2 - epsilon / mu)
        delta = normal(mu / 2 - epsilon / mu) - (
            math.exp(epsilon) * second if second else 0.0
        )
        low, high = (epsilon, high) if delta > DELTA else (low, epsilon)
    return high


BUDGET = true_epsilon(7) + 0.01
"""A row may be released seven times."""


class Truth:
    """What left, counted by whoever gets it."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()

    def note(self, ids: Any) -> None:
        self.times.update(ids.tolist())

    def check(self, account: Account | None) -> None:
        worst = max(self.times.values(), default=0)
        assert true_epsilon(worst) <= BUDGET, f"a row was released {worst} times"
        if account is None:
            return
        assert account.worst >= true_epsilon(worst) - 1e-6, (
            "the account says less than the truth"
        )
        said = self._said_by(account)
        assert all(said[one] >= times for one, times in self.times.items())

    def check_exact(self, account: Account) -> None:
        """Nothing was cut short here, so that nothing is counted twice either."""
        assert self._said_by(account) == self.times
        assert len(account.counts) == 1

    def _said_by(self, account: Account) -> Counter[str]:
        """How often each row was released, as the account's store says."""
        ids = list(self.times)
        asked = Account("lab", Batches({}, batch_size=1, epochs=1, seed=0), ids)
        asked.keep(account.store, "patient")
        counted = sum(
            account.store.counts(asked.places).values(),
            start=np.zeros(len(ids), dtype=np.int64),
        )
        return Counter(dict(zip(ids, counted.tolist(), strict=True)))


class Lab:
    """An organisation with a budget, as a driver can call it; of several label owners
    two know some of its rows."""

    def __init__(self, base: Path, several: bool) -> None:
        lab: dict[str, Any] = {"outbox": RULES, "budget": {"epsilon": BUDGET}}
        self.asker = "south" if several else "clinic"
        if several:
            file, _ = multi_folders(base, private(data_owners=[{"name": "lab", **lab}]))
        else:
            file, _ = folders(base, settings=quick(parties={"lab": lab}))
        self.own = read_own(base / "lab" / OWN)
        self.runs = self.own.runs
        ids = {
            name: held.ids
            for name, held in Federation.from_toml(file).holdings.label_owners.items()
        }
        self.held = own_columns(self.own, read_own_table(self.own), ids, outputs=1)

    def begin(self, run: str, resumed: int | None) -> Participant:
        federation = Federation(self.own.local, self.held, elsewhere=Elsewhere({"lab"}))
        participant = Participant(self.own, federation, self.runs / run)
        participant.begin(resumed)
        return participant

    def predict(self, run: str, number: int, ids: list[str]) -> Participant:
        rows = np.array([self.held.ids.tolist().index(one) for one in ids])
        asked = Asked(
            self.asker,
            self.held.ids[rows],
            self.held.columns["lab"].features[rows],
            number,
            1,
        )
        holdings = asked.holdings(self.own, RunDirectory(self.runs / run))
        federation = Federation(self.own.local, holdings, elsewhere=Elsewhere({"lab"}))
        participant = Participant(
            self.own, federation, self.runs / run, predicts_for=self.asker
        )
        stand(participant.run, federation, number)
        return participant

    def batches(self, participant: Participant) -> list[str]:
        if participant.predicts:
            prefix = participant.federation.agreed[self.asker].prefix
            return [
                f"{prefix}predict[0:{len(participant.ids)}]",
                f"{prefix}predict[0:1]",
            ]
        if not self.own.settings.shared:
            return [f"train/{epoch}/{n}" for epoch in range(3) for n in range(3)] + [
                "validation[0:3]",
                "train[0:9]",
            ]
        train = [
            f"{owner}:train[{n}:{n + 16}]"
            for owner in ("north", "south")
            for n in range(0, 32, 4)
        ]
        return [*train, "north:test[0:3]", "south:validation[0:4]"]

    def ids(self, participant: Participant, batch: str) -> Any:
        return participant.ids[participant.federation.agreed.rows(batch).numpy()]


def killed(member: Any) -> None:
    """Nothing more is written, and nothing is closed."""
    member.accounts["lab"].close()


class Hostile:
    """A driver that does whatever comes to its mind."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab = lab
        self.random = random.Random(seed)
        self.truth = Truth()
        self.member: Any = None
        self.begun: list[str] = []
        self.refused = 0

    def act(self) -> None:
        ways = (
            [self.begin, self.resume, self.predict]
            if self.member is None
            else [*[self.ask] * 4, self.kill, self.end]
        )
        self.random.choice(ways)()
        self.truth.check(None if self.member is None else self.member.accounts["lab"])

    def begin(self) -> None:
        self.begun.append(f"run{len(self.begun)}")
        self.member = self.lab.begin(self.begun[-1], None)

    def resume(self) -> None:
        for run in self.random.sample(self.begun, min(1, len(self.begun))):
            numbers = [
                mark["number"] for mark in RunDirectory(self.lab.runs / run).marks()
            ]
            # nothing goes back to before what was trained
            with contextlib.suppress(CheckpointError):
                self.member = self.lab.begin(
                    run, self.random.choice([*numbers, *numbers, 0])
                )

    def predict(self) -> None:
        for run in self.random.sample(self.begun, min(1, len(self.begun))):
            for mark in RunDirectory(self.lab.runs / run).marks()[:1]:
                ids = self.random.sample([f"P{n:03d}" for n in range(80)], 3)
                self.member = self.lab.predict(run, mark["number"], ids)

    def ask(self) -> None:
        member, batch = self.member, self.random.choice(self.lab.batches(self.member))
        asker = batch.partition(":")[0] if ":" in batch else "clinic"
        try:
            member.role.answer(
                (
                    multi_vfl.Embed(batch)
                    if self.lab.own.settings.shared
                    else Embed(batch)
                ),
                asker,
            )
        except BudgetExhausted:
            self.refused += 1
        else:
            self.truth.note(self.lab.ids(member, batch))
        if not member.predicts and self.random.random() < 0.3:
            number = member.run.mark()["number"]
            member.save(
                member.federation.batches.done + 1,
                number + 1,
                self.random.choice([None, number]),
            )

    def kill(self) -> None:
        if self.member is not None:
            killed(self.member)
        self.member = None

    def end(self) -> None:
        if self.member.predicts:
            self.member.settle()
            self.member.leave()
        else:
            self.member.close("because it wants to", 0)
        self.member = None


@pytest.mark.parametrize("several", [False, True], ids=["one label owner", "several"])
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))]
)
def test_no_order_of_runs_spends_more_than_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, several: bool, seed: int
) -> None:
    # the report of what was spent takes a second
    monkeypatch.setattr(participant_module, "guarantees", lambda _: [])
    driver = Hostile(Lab(tmp_path, several), seed)
    for _ in range(120):
        driver.act()
    assert driver.refused, "the budget was reached"
    driver.kill()
    account = driver.lab.begin("last", None).accounts["lab"]
    driver.truth.check_exact(account)


def test_runs_begun_resumed_and_killed_spend_one_budget(tmp_path: Path) -> None:
    """What a driver did to have every row sixty-six times: six runs are begun, each is
    killed, resumed, and asked until it refuses."""
    lab = Lab(tmp_path, several=False)
    truth = Truth()
    for run in range(6):
        killed(lab.begin(f"run{run}", None))
    for run in range(6):
        member = lab.begin(f"run{run}", 1)
        for _ in range(12):
            with contextlib.suppress(BudgetExhausted):
                member.role.answer(Embed("train[0:30]"))
                truth.note(lab.ids(member, "train[0:30]"))
        killed(member)
    truth.check(None)
    assert set(truth.times.values()) == {7}


class InOneProcess:
    """A run directory of a federation in one process, which is trained, killed,
    resumed, loaded and predicted with."""

    def __init__(self, run: Path, seed: int, truth: Truth) -> None:
        self.run = run
        self.random = random.Random(seed)
        self.truth = truth
        self.asked = None
        self.made: Federation | None = None

    def act(self) -> None:
        self.random.choice([self.train, self.train, self.predict])()

    def train(self) -> None:
        epochs = self.random.randrange(1, 6)
        lab = {"outbox": RULES, "budget": {"epsilon": BUDGET}}
        settings = quick(
            parties={"lab": lab}, train={"epochs": epochs, "early_stop": False}
        )
        self.made, last = federation(settings=settings), self.random.randrange(1, 12)

        def killed(event: Any) -> None:
            nonlocal last
            last -= 1
            if not last:
                raise KeyboardInterrupt

        resume = (self.run / "federation.toml").exists()
        with contextlib.suppress(KeyboardInterrupt):
            self.made.fit(self.run, resume=resume, watch=killed)
        self.truth.check(self.made.accounts["lab"])

    def predict(self) -> None:
        if (self.run / "checkpoint.json").exists():
            ids = self.random.sample([f"P{n:03d}" for n in range(80)], 5)
            self.made = load(
                self.run,
                ids=self.random.choice([ids, None, [*ids, ids[0]]]),
                frames=frames(),
            )
            with contextlib.suppress(BudgetExhausted):
                self.made.predict(ids)
            self.truth.check(self.made.accounts["lab"])


@pytest.fixture
def truth(monkeypatch: pytest.MonkeyPatch) -> tuple[Truth, list[InOneProcess]]:
    """What the laboratory's outbox gave away in one process."""
    counted = Truth()
    who = list[InOneProcess]()
    release = Outbox.release

    def noted(
        self: Outbox,
        tensor: torch.Tensor,
        as_: str,
        batch: str | None = None,
        *,
        to: str | None = None,
    ) -> Released:
        left = release(self, tensor, as_, batch, to=to)
        if self.owner == "lab" and as_ == "embedding":
            made = who[0].made
            assert made is not None
            assert batch is not None
            assert made.organisations["lab"].outbox is self
            counted.note(made.holdings.ids[made.agreed.one.rows(batch).numpy()])
        return left

    monkeypatch.setattr(Outbox, "release", noted)
    return counted, who


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))]
)
def test_no_order_of_trainings_and_predictions_of_one_run_directory_spends_more(
    tmp_path: Path, truth: tuple[Truth, list[InOneProcess]], seed: int
) -> None:
    counted, who = truth
    who.append(InOneProcess(tmp_path / "run", seed, counted))
    for _ in range(25):
        who[0].act()
    assert max(counted.times.values()) == 7
    again = load(tmp_path / "run", frames=frames())
    counted.check_exact(again.accounts["lab"])


def test_who_only_looks_is_told_what_all_runs_spent(tmp_path: Path) -> None:
    lab = Lab(tmp_path, several=False)
    member = lab.begin("one", None)
    member.role.answer(Embed("train[0:30]"))
    nobody = Account("lab", member.federation.agreed, member.ids.tolist())
    seen = peek_site_store("lab", lab.runs)
    assert seen is not None
    nobody.look_at(seen)
    assert nobody.worst == pytest.approx(true_epsilon(1), abs=1e-6)
