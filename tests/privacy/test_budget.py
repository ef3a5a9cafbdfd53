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
from colonnade.errors import BudgetExhausted, CheckpointError, ConfigError, StoreError
from colonnade.privacy import Account, Budget, Gaussian
from colonnade.privacy.accounting import key_of, known_batch
from colonnade.settings.schema import checked
from colonnade.store import SiteStore, Word

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


def new_store(folder: Path) -> SiteStore:
    """A store on the disk that knows nobody yet."""
    return SiteStore.create(folder, "lab")


def kept(mine: Account, store: SiteStore) -> Account:
    """The account, which counts in the store from here on."""
    word = Word.FIRST_CONTACT if store.identity is None else Word.NEW_PEOPLE
    mine.keep(store, "patient", word)
    return mine


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
    mine = kept(account(cost(3) + 0.01), new_store(tmp_path / "store"))
    epoch(mine, 0)
    saved = mine.state()
    epoch(mine, 1)
    epoch(mine, 2)
    revived = account(cost(3) + 0.01)
    revived.load_state(saved)
    kept(revived, SiteStore.open(tmp_path / "store", "lab"))
    assert counted(revived) == counted(mine)
    assert revived.worst == pytest.approx(cost(3))
    with pytest.raises(BudgetExhausted):
        epoch(revived, 1)


def counted(mine: Account) -> dict[object, list[int]]:
    return {item: counts.tolist() for item, counts in mine.by_row().items()}


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


def test_two_accounts_of_one_store_count_what_both_release(tmp_path: Path) -> None:
    new_store(tmp_path / "store").close()
    one, two = (
        kept(account(cost(2) + 0.01), SiteStore.open(tmp_path / "store", "lab"))
        for _ in range(2)
    )
    one.charge("embedding", "test[0:5]", 5, NOISE)
    assert two.charge("embedding", "test[0:5]", 5, NOISE) == pytest.approx(cost(2))
    with pytest.raises(BudgetExhausted):
        one.charge("embedding", "test[4:5]", 1, NOISE)
    assert counted(one) == counted(two)


def test_an_account_counts_what_others_released_though_the_store_was_made_short(
    tmp_path: Path,
) -> None:
    new_store(tmp_path / "store").close()
    shared = SiteStore.open(tmp_path / "store", "lab")
    trained = kept(account(cost(3) + 0.01), shared)
    old = kept(account(cost(3) + 0.01), SiteStore.open(tmp_path / "store", "lab"))
    old.charge("embedding", "test[0:5]", 5, NOISE)
    epoch(trained, 0)
    shared.checkpoint()
    assert old.charge("embedding", "test[0:5]", 5, NOISE) == pytest.approx(cost(2))
    assert trained.charge("embedding", "test[0:5]", 5, NOISE) == pytest.approx(cost(3))
    with pytest.raises(BudgetExhausted):
        old.charge("embedding", "test[4:5]", 1, NOISE)
    assert counted(old) == counted(trained)


def test_accounts_in_threads_spend_no_more_than_there_is(tmp_path: Path) -> None:
    """Each reads, compares and writes: between the two, another must not."""
    store = new_store(tmp_path / "store")
    accounts = [kept(account(cost(20) + 0.01), store) for _ in range(4)]

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
    kept(mine, new_store(tmp_path / "store"))
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


def test_another_store_than_the_one_that_was_counted_in_is_refused(
    tmp_path: Path,
) -> None:
    mine = kept(account(), new_store(tmp_path / "store"))
    epoch(mine, 0)
    revived = account()
    revived.load_state(mine.state())
    with pytest.raises(StoreError, match="Put that store back"):
        kept(revived, new_store(tmp_path / "another"))


def test_what_was_counted_before_there_was_a_store_is_in_it(tmp_path: Path) -> None:
    mine = account(cost(3) + 0.01)
    epoch(mine, 0)
    epoch(mine, 1)
    before = counted(mine)
    kept(mine, new_store(tmp_path / "store"))
    assert counted(mine) == before
    assert mine.worst == pytest.approx(cost(2))
    epoch(mine, 2)
    with pytest.raises(BudgetExhausted):
        epoch(mine, 3)
    later = kept(account(), SiteStore.open(tmp_path / "store", "lab"))
    assert counted(later) == counted(mine)


def test_who_has_left_releases_nothing(tmp_path: Path) -> None:
    mine = kept(account(None), new_store(tmp_path / "store"))
    mine.charge("embedding", "test[0:5]", 5, NOISE)
    mine.close()
    with pytest.raises(CheckpointError, match="'lab' has left this run"):
        mine.charge("embedding", "test[0:5]", 5, NOISE)
    with pytest.raises(CheckpointError, match="'lab' has left this run"):
        mine.check("embedding", "test[0:5]", 5, NOISE)


def test_a_report_looks_at_a_store_and_changes_nothing(tmp_path: Path) -> None:
    epoch(kept(account(None), new_store(tmp_path / "store")), 0)
    nobody = Account("lab", Batches({}, batch_size=1, epochs=1, seed=0), ())
    nobody.look_at(SiteStore.peek(tmp_path / "store", "lab"))
    assert nobody.worst == pytest.approx(cost(1))
    with pytest.raises(StoreError, match="for reading only"):
        nobody.charge("embedding", None, 5, NOISE)


KILLED = """
import os, sys, torch
from pathlib import Path
from colonnade.core import Batches, DpEvent
from colonnade.privacy import Account, Budget
from colonnade.store import SiteStore
rows = Batches({"test": torch.arange(500)}, batch_size=8, epochs=1, seed=0)
mine = Account("lab", rows, [f"P{n}" for n in range(500)], Budget(epsilon=1e6))
store = SiteStore.open(Path(sys.argv[1]), "lab", is_forced=sys.argv[2] == "True")
mine.keep(store, "patient")
while True:
    mine.charge("embedding", "test[0:500]", 500, DpEvent("gaussian", {"noise_multiplier": 4.0, "clip": 1.0}))
    os.write(1, b".")
"""


@pytest.mark.parametrize(
    "is_forced", [True, pytest.param(False, marks=pytest.mark.long)]
)
def test_a_process_that_is_killed_at_any_moment_forgets_nothing(
    tmp_path: Path, is_forced: bool
) -> None:
    """Counted by whoever gets what is released, outside of the process; one more may be
    written down and not left."""
    with new_store(tmp_path / "store") as store:
        store.numbers_of(ids(500), "patient", Word.FIRST_CONTACT)
    left = 0
    for number in (1, 2):
        command = [
            sys.executable,
            "-c",
            KILLED,
            str(tmp_path / "store"),
            f"{is_forced}",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            left += len(child.stdout.read(20 * number))
            child.kill()
            left += len(child.stdout.read())
        with SiteStore.open(tmp_path / "store", "lab") as store:
            ((_, times),) = store.counts().items()
        assert left <= times.max() <= left + number
        assert left <= times.min()
