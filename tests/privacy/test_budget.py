"""An owner's account: per row, over everything that is released, and refusing before
anything is counted."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Generator

from colonnade.core import NON_PRIVATE, Batches, DpEvent, Outbox, Rule
from colonnade.errors import BudgetExhausted, CheckpointError, ConfigError
from colonnade.privacy import Account, Budget, Gaussian
from colonnade.privacy.accounting import key_of, known_batch
from colonnade.privacy.counts import Counts
from colonnade.privacy.journal import Journal
from colonnade.settings.schema import checked

ROWS = 50
NOISE = DpEvent("gaussian", {"noise_multiplier": 4.0, "clip": 1.0})
OTHER = DpEvent("gaussian", {"noise_multiplier": 6.0, "clip": 1.0})


def batches(epochs: int = 10, rows: int = ROWS, size: int = 8) -> Batches:
    order = torch.arange(rows)
    splits = {
        "train": order[: rows - 20],
        "validation": order[rows - 20 : rows - 10],
        "test": order[rows - 10 :],
    }
    return Batches(splits, batch_size=size, epochs=epochs, seed=0)


def ids(rows: int = ROWS) -> list[str]:
    return [f"P{number}" for number in range(rows)]


def account(
    epsilon: float | None = 8.0, agreed: Batches | None = None, **settings: object
) -> Account:
    budget = None if epsilon is None else Budget(epsilon=epsilon, **settings)  # type: ignore[arg-type]
    return Account("lab", agreed or batches(), ids(), budget)


def cost(
    times: int,
    relation: str = "replace-one",
    event: DpEvent = NOISE,
    delta: float = 1e-5,
) -> float:
    return known_batch({key_of(event): times}, relation, delta)


def epoch(mine: Account, number: int, event: DpEvent = NOISE) -> float | None:
    told = None
    for batch in range(mine.batches.per_epoch):
        name = f"train/{number}/{batch}"
        told = mine.charge("embedding", name, len(mine.batches.rows(name)), event)
    return told


def test_a_row_pays_for_its_own_appearances_alone() -> None:
    mine = account()
    assert [epoch(mine, number) for number in range(3)] == pytest.approx(
        [cost(1), cost(2), cost(3)]
    )
    # other rows
    assert mine.charge("embedding", "validation[0:10]", 10, NOISE) == pytest.approx(
        cost(3)
    )
    assert [dict(way) for way in mine.spent()] == [{("embedding", key_of(NOISE)): 3}]
    ((item, counts),) = mine.by_row().items()
    assert item == ("embedding", key_of(NOISE))
    assert counts.tolist() == [3] * 30 + [1] * 10 + [0] * 10
    assert mine.rounds[item] == 3 * 4


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove"])
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_the_release_that_would_go_over_is_refused_and_not_counted(
    relation: str, delta: float
) -> None:
    mine = account(
        cost(3, relation, delta=delta) + 0.01, relation=relation, delta=delta
    )
    for number in range(3):
        epoch(mine, number)
    before = mine.state()
    with pytest.raises(BudgetExhausted):
        mine.charge("embedding", "train/3/0", 8, NOISE)
    after = mine.state()
    assert torch.equal(before["counts"], after["counts"])
    assert before["items"] == after["items"]
    # those rows have paid nothing yet
    mine.charge("embedding", "test[0:10]", 10, NOISE)


def test_the_message_says_who_what_and_how_much() -> None:
    mine = account(2.0)
    epoch(mine, 0)
    message = (
        rf"'lab' will not release \"embedding\" again: epsilon would be {cost(2):.2f}"
        r" and its budget is 2\.0 at "
    )
    with pytest.raises(BudgetExhausted, match=message + "delta=1e-5"):
        epoch(mine, 1)
    with pytest.raises(
        BudgetExhausted, match="epsilon would be infinite and its budget is 2"
    ):
        mine.charge("embedding", "test[0:1]", 1, NON_PRIVATE)


def test_a_budget_of_exactly_the_cost_suffices() -> None:
    mine = account(cost(2))
    epoch(mine, 0)
    epoch(mine, 1)
    with pytest.raises(BudgetExhausted):
        epoch(mine, 2)


def test_every_name_and_purpose_counts_for_the_same_row() -> None:
    mine = account(None)
    epoch(mine, 0)
    told = mine.charge("logits", "train[0:30]", 30, OTHER)
    assert told == pytest.approx(
        known_batch({key_of(NOISE): 1, key_of(OTHER): 1}, "replace-one", 1e-5)
    )
    assert told is not None
    assert told > cost(1)


def test_a_row_that_is_asked_for_twice_at_once_pays_twice() -> None:
    mine = account(cost(2) + 0.01)
    assert isinstance(mine.batches, Batches)
    mine.batches.ask(torch.tensor([3, 3, 4]))
    assert mine.charge("embedding", "predict[0:3]", 3, NOISE) == pytest.approx(cost(2))
    with pytest.raises(BudgetExhausted):
        mine.charge("embedding", "predict[1:2]", 1, NOISE)
    mine.charge("embedding", "predict[2:3]", 1, NOISE)


@pytest.mark.parametrize(
    ("batch", "size"), [(None, 8), ("train/0/0", 7), ("of my own", 8)]
)
def test_what_is_not_one_row_per_row_of_data_is_not_private(
    batch: str | None, size: int
) -> None:
    assert account(None).charge("head", batch, size, NOISE) is None
    with pytest.raises(BudgetExhausted, match="infinite"):
        account().charge("head", batch, size, NOISE)


def test_without_a_budget_it_counts_and_never_refuses() -> None:
    mine = account(None)
    for number in range(10):
        told = epoch(mine, number)
    assert told == pytest.approx(cost(10))
    assert mine.charge("embedding", "test[0:10]", 10, NON_PRIVATE) is None
    assert epoch(mine, 10) is None  # a row without a guarantee stays without


def test_random_orders_of_releases_agree_with_counting_by_hand() -> None:
    random = np.random.default_rng(0)
    mine = account(None)
    by_hand = [Counter[DpEvent | str]() for _ in range(ROWS)]
    events = {"a": NOISE, "b": OTHER}
    worst = 0.0
    for _ in range(40):
        start, stop = sorted(random.choice(11, 2, replace=False))
        name = str(random.choice(["a", "b"]))
        split = str(random.choice(["train", "validation", "test"]))
        batch = f"{split}[{start}:{stop}]"
        told = mine.charge("embedding", batch, int(stop - start), events[name])
        for row in mine.batches.rows(batch).tolist():
            by_hand[row][name] += 1
        spent = [{key_of(events[str(n)]): c for n, c in row.items()} for row in by_hand]
        worst = max(known_batch(one, "replace-one", 1e-5) for one in spent)
        assert told == pytest.approx(worst)


def test_an_account_goes_on_when_rows_come_in_another_order_or_are_new() -> None:
    mine = account(cost(2) + 0.01)
    epoch(mine, 0)
    epoch(mine, 1)
    known = ["P99", "P29", "P0", "P45"]  # new, trained, trained, never released
    later = Account(
        "lab",
        Batches({"predict": torch.arange(4)}, batch_size=8, epochs=1, seed=0),
        known,
        mine.budget,
    )
    later.load_state(mine.state())
    for row, refused in enumerate([False, True, True, False]):
        if refused:
            with pytest.raises(BudgetExhausted):
                later.charge("embedding", f"predict[{row}:{row + 1}]", 1, NOISE)
        else:
            later.charge("embedding", f"predict[{row}:{row + 1}]", 1, NOISE)
    again = account(cost(2) + 0.01)
    again.load_state(later.state())
    ((_, counts),) = again.counts.items()
    assert counts[again.places].tolist() == [2] * 30 + [0] * 15 + [1] + [0] * 4
    assert counts.sum() == 62  # the new row is not forgotten
    assert (again.rows, again.batch_size) == (30, 8)


def test_a_killed_run_remembers_what_it_released_since_its_checkpoint(
    tmp_path: Path,
) -> None:
    mine = account(cost(3) + 0.01)
    mine.keep(tmp_path / "spent.journal")
    epoch(mine, 0)
    saved = mine.state()
    mine.settled()
    epoch(mine, 1)
    epoch(mine, 2)
    revived = account(cost(3) + 0.01)
    revived.load_state(saved)
    revived.keep(tmp_path / "spent.journal")
    assert torch.equal(revived.state()["counts"], mine.state()["counts"])
    assert revived.worst == pytest.approx(cost(3))
    with pytest.raises(BudgetExhausted):
        epoch(revived, 1)


def test_an_outbox_charges_before_anything_leaves() -> None:
    outbox = Outbox("lab", Generator().manual_seed(0), {"x": Rule(Gaussian(1.0, 4.0))})
    outbox.meter = mine = account(cost(1) + 0.01)
    released = outbox.release(torch.randn(8, 3), "x", "train/0/0")
    assert released.receipt.epsilon == pytest.approx(cost(1))
    with pytest.raises(BudgetExhausted):
        outbox.release(torch.randn(8, 3), "x", "train/0/0")
    assert outbox.released == 1
    # another role of the same organisation
    inside = outbox.release(torch.randn(8, 3), "x", "train/0/0", to="lab")
    assert inside.receipt.epsilon is None
    assert mine.released(("x", key_of(released.receipt.event))) == (1, 8)


def test_charging_costs_less_than_drawing_the_noise() -> None:
    agreed = batches(rows=60_000, size=1024)
    mine = Account("lab", agreed, ids(60_000), Budget(epsilon=100.0))
    x = torch.zeros(1024, 60)
    source = Generator().manual_seed(0)
    mechanism = Gaussian(1.0, 4.0)
    epoch(mine, 0)
    charging = []
    drawing = []
    for number in range(30):
        start = time.perf_counter()
        mine.charge("embedding", f"train/1/{number}", 1024, NOISE)
        charging.append(time.perf_counter() - start)
        start = time.perf_counter()
        mechanism.apply(x, source)
        drawing.append(time.perf_counter() - start)
    assert min(charging) < min(drawing)  # the fastest of many: the machine may be busy


WRONG = [
    ({"epsilon": 0}, "epsilon must be a number above 0; found 0"),
    ({"epsilon": math.inf}, "epsilon must be"),
    ({"delta": 0.0}, "delta must be a number above 0 and below 1"),
    ({"delta": 1.0}, "delta must be"),
    (
        {"relation": "replace"},
        'relation must be one of "replace-one", "add-or-remove"; found \'replace\'',
    ),
    ({"epsilom": 1.0}, r"has no setting 'epsilom' \(did you mean 'epsilon'\?\)"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_a_bad_budget_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(Budget, given, whose="[parties.lab.budget]")


def test_two_accounts_with_one_journal_count_what_both_release(tmp_path: Path) -> None:
    one = account(cost(2) + 0.01)
    two = account(cost(2) + 0.01)
    for mine in (one, two):
        mine.keep(tmp_path / "spent.journal")
    one.charge("embedding", "test[0:5]", 5, NOISE)
    assert two.charge("embedding", "test[0:5]", 5, NOISE) == pytest.approx(cost(2))
    with pytest.raises(BudgetExhausted):
        one.charge("embedding", "test[4:5]", 1, NOISE)
    assert torch.equal(one.state()["counts"], two.state()["counts"])


def test_an_account_counts_what_others_released_though_the_journal_was_written_anew(
    tmp_path: Path,
) -> None:
    path = tmp_path / "spent.journal"
    trained = account(cost(3) + 0.01)
    old = account(cost(3) + 0.01)
    for mine in (trained, old):
        mine.keep(path)
    old.charge("embedding", "test[0:5]", 5, NOISE)
    epoch(trained, 0)
    trained._rewrite(Journal(path))
    assert old.charge("embedding", "test[0:5]", 5, NOISE) == pytest.approx(cost(2))
    assert trained.charge("embedding", "test[0:5]", 5, NOISE) == pytest.approx(cost(3))
    with pytest.raises(BudgetExhausted):
        old.charge("embedding", "test[4:5]", 1, NOISE)
    assert torch.equal(old.state()["counts"], trained.state()["counts"])


def test_accounts_in_threads_spend_no_more_than_there_is(tmp_path: Path) -> None:
    """Each reads, compares and writes: between the two, another must not."""
    accounts = [account(cost(20) + 0.01) for _ in range(4)]
    for mine in accounts:
        mine.keep(tmp_path / "spent.journal", sync_every=10.0)

    def spend(mine: Account) -> int:
        times = 0
        with contextlib.suppress(BudgetExhausted):
            while True:
                mine.charge("embedding", "test[0:5]", 5, NOISE)
                times += 1
        return times

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(spend, accounts)) == 20
    assert accounts[0].released(("embedding", key_of(NOISE)))[0] <= 20


@pytest.mark.parametrize("loaded", [False, True])
def test_a_row_is_known_once_however_often_its_id_is_given(
    loaded: bool, tmp_path: Path
) -> None:
    """Else whoever asks for a row under 200 numbers gets 200 copies with noise of their
    own, for the price of one."""
    rows = Batches({"predict": torch.arange(200)}, batch_size=8, epochs=1, seed=0)
    mine = Account("lab", rows, ["P7"] * 200, Budget(epsilon=cost(3) + 0.01))
    if loaded:
        mine.load_state(account().state())
    mine.keep(tmp_path / "spent.journal")
    with pytest.raises(BudgetExhausted):
        mine.charge("embedding", "predict[0:200]", 200, NOISE)
    assert mine.charge("embedding", "predict[0:2]", 2, NOISE) == pytest.approx(cost(2))
    assert mine.charge("embedding", "predict[70:71]", 1, NOISE) == pytest.approx(
        cost(3)
    )
    for row in range(200):
        with pytest.raises(BudgetExhausted):
            mine.charge("embedding", f"predict[{row}:{row + 1}]", 1, NOISE)
    assert Account("lab", rows, ["P7"] * 200).counts == {}


def test_a_journal_that_was_there_and_is_gone_is_told(tmp_path: Path) -> None:
    path = tmp_path / "spent.journal"
    mine = account()
    mine.keep(path)
    epoch(mine, 0)
    saved = mine.state()
    path.unlink()
    with pytest.raises(CheckpointError, match=r"spent\.journal is gone"):
        epoch(mine, 1)
    revived = account()
    revived.load_state(saved)
    with pytest.raises(CheckpointError, match=r"spent\.journal is gone"):
        revived.keep(path)


def test_a_checkpoint_that_knows_more_than_the_journal_counts(tmp_path: Path) -> None:
    """As where an old copy of the journal was put back: each row has what either says,
    and the journal has it then."""
    path = tmp_path / "spent.journal"
    mine = account()
    mine.keep(path)
    epoch(mine, 0)
    before = path.read_bytes()
    epoch(mine, 1)
    mine.leave()
    path.write_bytes(before)
    revived = account()
    revived.load_state(mine.state())
    revived.keep(path)
    revived.charge("embedding", "test[0:5]", 5, NOISE)
    alone = account()
    alone.keep(path)
    ((_, counts),) = alone.counts.items()
    assert counts[alone.places].tolist() == [2] * 30 + [0] * 10 + [1] * 5 + [0] * 5


def test_who_has_left_releases_nothing_and_a_long_journal_is_made_short(
    tmp_path: Path,
) -> None:
    path = tmp_path / "spent.journal"
    mine = account(None)
    mine.keep(path, sync_every=10.0)
    for number in range(100):
        epoch(mine, number)
    before = mine.state()
    long = path.stat().st_size
    mine.settled()
    assert path.stat().st_size < long / 10
    again = account(None)
    again.keep(path)
    assert torch.equal(again.state()["counts"], before["counts"])
    assert (again.rounds, again.worst) == (mine.rounds, mine.worst)
    size = path.stat().st_size
    mine.charge("embedding", "test[0:5]", 5, NOISE)
    mine.settled()
    assert path.stat().st_size > size, "it is not worth it yet"
    mine.close()
    with pytest.raises(CheckpointError, match="'lab' has left this run"):
        mine.charge("embedding", "test[0:5]", 5, NOISE)


KILLED = """
import os, sys, torch
from colonnade.core import Batches, DpEvent
from colonnade.privacy import Account, Budget
rows = Batches({"test": torch.arange(500)}, batch_size=8, epochs=1, seed=0)
mine = Account("lab", rows, [f"P{n}" for n in range(500)], Budget(epsilon=1e6))
mine.keep(__import__("pathlib").Path(sys.argv[1]), sync_every=float(sys.argv[2]))
while True:
    mine.charge("embedding", "test[0:500]", 500, DpEvent("gaussian", {"noise_multiplier": 4.0, "clip": 1.0}))
    os.write(1, b".")
"""


@pytest.mark.parametrize(
    "sync_every", ["0.0", pytest.param("1000.0", marks=pytest.mark.long)]
)
def test_a_process_that_is_killed_at_any_moment_forgets_nothing(
    tmp_path: Path, sync_every: str
) -> None:
    """Counted by whoever gets what is released, outside of the process; one more may be
    written down and not left."""
    path = tmp_path / "spent.journal"
    left = 0
    for number in (1, 2):
        command = [sys.executable, "-c", KILLED, str(path), sync_every]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            left += len(child.stdout.read(20 * number))
            child.kill()
            left += len(child.stdout.read())
        counts = Counts()
        for record, _ in Journal(path).read():
            counts.add_record(record)
        ((_, times),) = counts.counts.items()
        assert left <= times.max() <= left + number
        assert left <= times.min()
