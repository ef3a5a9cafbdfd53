"""A budget in a run: it stops cleanly, keeps the model, and no way of running or
resuming spends more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tests.federation.small import (
    entries,
    equal,
    federation,
    frames,
    models_of,
    quick,
    splitnn,
)

from colonnade.core import DpEvent
from colonnade.errors import BudgetExhausted
from colonnade.federation import Federation, load
from colonnade.privacy import Binomial
from colonnade.privacy.accounting import key_of, known_batch
from colonnade.runs.run_directory import RunDirectory

NOISE = DpEvent("gaussian", {"noise_multiplier": 4.0, "clip": 1.0})
RULE = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 4.0}}}
FOUR = {"epochs": 4, "early_stop": False}


def cost(times: int) -> float:
    return known_batch({key_of(NOISE): times}, "replace-one", 1e-5)


def settings(
    times: float = 2, make: Any = quick, train: Any = FOUR, **federation: Any
) -> dict[str, Any]:
    """The lab can pay for so many appearances of a row."""
    epsilon = cost(int(times)) + (0.01 if times >= 1 else 0.0)
    parties = {"lab": {"outbox": RULE, "budget": {"epsilon": epsilon}}}
    tables: dict[str, Any] = make(parties=parties, train=train, federation=federation)
    return tables


def three() -> dict[str, pd.DataFrame]:
    """A second laboratory with columns of the same shape, so that both can be stacked."""
    found = frames()
    second = found["lab"].rename(columns={"iron": "gold", "zinc": "lead"})
    return {**found, "second": second.assign(gold=second["gold"] * -1)}


@pytest.mark.parametrize("make", [quick, splitnn])
def test_a_run_stops_when_the_next_epoch_is_too_dear_and_keeps_its_model(
    make: Any, tmp_path: Path
) -> None:
    one = federation(settings=settings(2, make))
    outcome = one.fit(tmp_path / "run")
    assert outcome.exhausted
    refused, cure = outcome.stopped.splitlines()
    assert (
        refused
        == f"'lab' will not release \"embedding\" again: epsilon would be {cost(3):.2f}"
        f" and its budget is {cost(2) + 0.01} at delta=1e-5."
    )
    assert "fewer epochs" in cure
    assert (outcome.summary["epochs"], outcome.summary["rounds"]) == (2, 8)
    # the test rows had not paid anything
    assert set(outcome.summary["metrics"]) == {"validation", "test"}
    again = load(tmp_path / "run", frames=frames())
    assert equal(models_of(one), models_of(again))
    assert again.accounts["lab"].worst == pytest.approx(cost(2))


def test_training_rows_are_released_exactly_once_per_epoch(tmp_path: Path) -> None:
    one = federation(settings=settings(4))
    outcome = one.fit(tmp_path / "run")
    assert not outcome.exhausted
    ((_, counts),) = one.accounts["lab"].by_row().items()
    rows = one.batches.splits
    assert counts[rows["train"].numpy()].tolist() == [4] * 56
    assert counts[rows["validation"].numpy()].tolist() == [4] * 8
    assert counts[rows["test"].numpy()].tolist() == [1] * 16
    assert "train" not in outcome.summary["metrics"]
    assert "privacy" in outcome.summary["not_measured"]["train"]
    assert outcome.summary["metrics"]["validation"] == outcome.history[-1]["validation"]
    assert RunDirectory(tmp_path / "run").summary() == outcome.summary


def test_a_plain_run_measures_its_training_rows_as_before() -> None:
    summary = federation().fit().summary
    assert set(summary["metrics"]) == {"train", "validation", "test"}
    assert summary["not_measured"] == {}


def test_the_ledger_shows_the_spend_over_time(tmp_path: Path) -> None:
    federation(settings=settings(4)).fit(tmp_path / "run")
    out = [
        e
        for e in entries(tmp_path / "run")
        if e["direction"] == "out" and e["owner"] == "lab"
    ]
    told = [e["epsilon"] for e in out if e["batch"].startswith("train")]
    assert told == pytest.approx(
        [cost(epoch) for epoch in (1, 2, 3, 4) for _ in range(4)]
    )
    assert all(
        e["epsilon"] is None
        for e in entries(tmp_path / "run")
        if e["direction"] != "out"
    )
    assert all(
        e["epsilon"] is None
        for e in entries(tmp_path / "run")
        if e["owner"] == "clinic"
    )


def test_resuming_spends_no_more(tmp_path: Path) -> None:
    federation(settings=settings(2)).fit(tmp_path / "run")
    lines = len(
        (tmp_path / "run" / "parties" / "lab" / "ledger.jsonl").read_text().splitlines()
    )
    for _ in range(2):
        one = federation(settings=settings(2))
        outcome = one.fit(tmp_path / "run", resume=True)
        assert outcome.exhausted
        assert outcome.summary["rounds"] == 8
        assert one.accounts["lab"].worst == pytest.approx(cost(2))
        assert set(outcome.summary["metrics"]) == {"validation", "test"}
    assert (
        len(
            (tmp_path / "run" / "parties" / "lab" / "ledger.jsonl")
            .read_text()
            .splitlines()
        )
        == lines
    )


def test_a_finished_run_that_is_resumed_releases_nothing(tmp_path: Path) -> None:
    first = federation(settings=settings(4)).fit(tmp_path / "run")
    one = federation(settings=settings(4))
    before = one.organisations["lab"].outbox.released
    again = one.fit(tmp_path / "run", resume=True)
    assert again.summary["metrics"] == first.summary["metrics"]
    # loaded from the checkpoint
    assert one.organisations["lab"].outbox.released > before
    assert one.organisations["lab"].ledger.entries == []


def test_a_killed_run_has_spent_what_it_released(tmp_path: Path) -> None:
    """Six batches after the last checkpoint: the second epoch's four are in its
    store, and paid for again."""
    one = federation(settings=settings(2))

    def killed(event: Any) -> None:
        if isinstance(event, dict) or event.batch.step < 5:
            return
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one.fit(tmp_path / "run", watch=killed)
    again = federation(settings=settings(2))
    outcome = again.fit(tmp_path / "run", resume=True)
    assert outcome.exhausted
    # the checkpoint's; its next batch was released twice already
    assert outcome.summary["rounds"] == 4
    ((_, counts),) = again.accounts["lab"].counts.items()
    assert counts.max() == 2


def test_predictions_are_paid_for_also_by_whoever_loads_the_run(tmp_path: Path) -> None:
    one = federation(settings=settings(2))
    one.fit(tmp_path / "run")
    trained = one.holdings.ids[int(one.batches.splits["train"][0])]
    tested = one.holdings.ids[int(one.batches.splits["test"][0])]
    with pytest.raises(BudgetExhausted, match="will not release"):
        load(tmp_path / "run", ids=[trained], frames=frames()).predict([trained])
    # its second release
    load(tmp_path / "run", ids=[tested], frames=frames()).predict([tested])
    with pytest.raises(BudgetExhausted):
        load(tmp_path / "run", ids=[tested], frames=frames()).predict([tested])
    with pytest.raises(BudgetExhausted):
        load(tmp_path / "run", frames=frames()).predict([tested])


def test_rows_pay_once_in_however_many_pieces_they_are_asked_for() -> None:
    """Each piece is in the ledger, and a row's epsilon is that of one answer."""
    ids = frames()["lab"]["patient"].tolist()
    spent = []
    lines = []
    for rows_at_once in (4096, 7):
        one = federation(settings=settings(3))
        one.is_trained = True
        driver = one.label_owners["clinic"]
        driver.answer_bytes = rows_at_once * driver.bytes_per_row(torch.arange(80))
        before = len(one.ledgers["lab"].entries)
        one.predict(ids)
        one.predict(ids[:10])
        account = one.accounts["lab"]
        spent.append([account.spent(), account.worst])
        sent = one.ledgers["lab"].entries[before:]
        lines.append([entry.shape[0] for entry in sent if entry.direction == "out"])
    assert spent[0] == spent[1]
    assert spent[0][1] == pytest.approx(cost(2))
    assert lines == [[80, 10], [*[7] * 11, 3, 7, 3]]


def test_two_organisations_budgets_are_independent() -> None:
    parties = {
        "lab": {"outbox": RULE, "budget": {"epsilon": cost(3) + 0.01}},
        "second": {
            "outbox": RULE,
            "budget": {"epsilon": cost(1) + 0.01, "relation": "replace-one"},
        },
    }
    one = federation(three(), quick(parties=parties, train=FOUR))
    outcome = one.fit()
    assert outcome.stopped.startswith("'second' will not release")
    assert outcome.summary["epochs"] == 1
    assert one.accounts["second"].worst == pytest.approx(cost(1))
    # it may have answered before the other refused
    assert one.accounts["lab"].worst <= cost(2) + 1e-9
    spent = {
        g["party"]: g["budget"]["spent"]
        for g in outcome.summary["privacy"]
        if g["budget"]
    }
    assert spent["second"] == pytest.approx(cost(1))


WAYS: list[dict[str, Any]] = [
    {"cohort": "on"},
    {"cohort": "off", "threads": "never"},
    {"cohort": "off", "threads": "always"},
    {"through_bytes": True},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_way_of_running_stops_at_the_same_batch_with_the_same_model(
    way: dict[str, Any],
) -> None:
    def run(**engine: Any) -> tuple[Federation, Any]:
        parties = {
            name: {"outbox": RULE, "budget": {"epsilon": cost(2) + 0.01}}
            for name in ("lab", "second")
        }
        one = federation(
            three(),
            quick(
                parties=parties, train=FOUR, federation={"noise": "seeded", **engine}
            ),
        )
        return one, one.fit()

    (one, outcome), (reference, expected) = (
        run(**way),
        run(cohort="off", threads="never"),
    )
    assert (
        (outcome.stopped, outcome.summary["rounds"])
        == (expected.stopped, expected.summary["rounds"])
        != ("", 16)
    )
    for name in ("lab", "second"):
        assert one.accounts[name].worst == pytest.approx(reference.accounts[name].worst)
    first = models_of(one)
    second = models_of(reference)
    assert first.keys() == second.keys()
    for place, tensor in first.items():
        torch.testing.assert_close(tensor, second[place], rtol=1e-4, atol=1e-5)


def test_binomial_noise_is_packed_and_paid_for(tmp_path: Path) -> None:
    rule = {
        "embedding": {
            "mechanism": {
                "name": "binomial",
                "levels": 4,
                "trials": 4092,
                "low": -2.0,
                "high": 2.0,
            }
        }
    }
    _, event = Binomial(4, 4092, 0.5, -2.0, 2.0).apply(
        torch.zeros(1, 4), torch.Generator()
    )
    budget = known_batch({key_of(event): 2}, "replace-one", 1e-5) + 0.001
    parties = {"lab": {"outbox": rule, "budget": {"epsilon": budget}}}
    outcome = federation(settings=quick(parties=parties, train=FOUR)).fit(
        tmp_path / "run"
    )
    assert outcome.exhausted
    assert outcome.summary["epochs"] == 2
    sent = [
        e
        for e in entries(tmp_path / "run")
        if e["direction"] == "out" and e["owner"] == "lab"
    ]
    assert {e["codec"] for e in sent} == {"integers"}
    assert all(e["bytes"] == e["shape"][0] * 6 for e in sent)  # 4 values of 12 bits
    assert sent[-1]["epsilon"] == pytest.approx(budget, abs=0.01)
