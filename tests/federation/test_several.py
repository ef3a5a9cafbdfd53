"""Several label owners: what is trained, measured, kept and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federation.small import (
    checkpoint_of,
    entries,
    equal,
    learned_of,
    ledgers,
    records,
)
from tests.federation.small_multi import (
    COLUMNS,
    GAUSSIAN,
    LABELS,
    Frames,
    federation,
    frames,
    quick,
    some,
    write,
)

from colonnade.core import Step
from colonnade.errors import ConfigError, DataError, PartyError
from colonnade.evaluate.metrics import measure
from colonnade.federation import Federation, load, stopping
from colonnade.federation.guarantees import guarantees, of_run
from colonnade.federation.scores import mean_scores
from colonnade.optim.losses import Squared
from colonnade.planning.budgets import plan
from colonnade.privacy.accounting import gaussian_epsilon
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.selection import SERVER
from colonnade.transport.faulty import Fault, Faulty


def test_scores_are_the_label_owners_own_weighted_by_rows() -> None:
    one = federation()
    one.fit()
    outputs = {k: one.outputs("test", k) for k in LABELS}
    labels = {
        k: s.labels[s.splits["test"]] for k, s in one.holdings.label_owners.items()
    }
    joined = measure(
        one.holdings.loss,
        torch.cat(list(outputs.values())),
        torch.cat(list(labels.values())),
        one.holdings.encoder.positive,
    )
    found = one.evaluate("test")
    each = one.score("test").each
    assert found["loss"] == pytest.approx(joined["loss"], rel=1e-6)
    assert found["accuracy"] == pytest.approx(joined["accuracy"])
    positive = one.holdings.encoder.positive
    for k in LABELS:
        assert each[k] == measure(one.holdings.loss, outputs[k], labels[k], positive)


def test_of_several_label_owners_the_loss_decides_when_to_stop() -> None:
    """Nobody knows all labels, and each owner's AUC is of its own few rows."""
    one = federation()
    assert stopping.rows_of_rarer_class(one) is None
    records = [
        {"epoch": 1, "loss": 1.0, "validation": {"auc": 0.9, "loss": 0.5}},
        {"epoch": 2, "loss": 0.9, "validation": {"auc": 0.8, "loss": 0.4}},
    ]
    assert stopping.judged(one, records)[0] == "loss"


def test_the_mean_rmse_is_that_of_all_rows_together() -> None:
    random = torch.Generator().manual_seed(0)
    labels = torch.randn(200, generator=random)
    outputs = (labels + torch.randn(200, generator=random) * torch.arange(200) / 50)[
        :, None
    ]
    parts = {"north": slice(0, 40), "south": slice(40, 200)}
    each = {
        name: measure(Squared(), outputs[part], labels[part])
        for name, part in parts.items()
    }
    found = mean_scores(each, {"north": 40, "south": 160})
    joined = measure(Squared(), outputs, labels)
    for name in ("loss", "rmse", "mae"):
        assert found[name] == pytest.approx(joined[name], rel=1e-5)
    assert found["r2"] == pytest.approx(
        0.2 * each["north"]["r2"] + 0.8 * each["south"]["r2"]
    )


def test_the_summary_tells_of_every_label_owner() -> None:
    outcome = federation().fit()
    summary = outcome.summary
    assert summary["rounds"] == summary["epochs"] == 3
    assert summary["parties"] == {
        "north": ["labels"],
        "south": ["labels"],
        "lab": ["features"],
        "scan": ["features"],
        SERVER: [],
    }
    rows = {k: about["rows"] for k, about in summary["label_owners"].items()}
    assert {k: sum(counts.values()) for k, counts in rows.items()} == {
        "north": 90,
        "south": 80,
    }
    assert summary["rows"] == {
        split: rows["north"][split] + rows["south"][split] for split in rows["north"]
    }
    assert all(
        set(about["metrics"]) == set(rows["north"])
        for about in summary["label_owners"].values()
    )
    assert set(outcome.history[0]["losses"]) == set(LABELS)
    assert outcome.history[0]["left_out"] == {}


def test_each_organisation_has_a_ledger_and_the_server_sees_weights_alone() -> None:
    one = federation()
    one.fit()
    for name, ledger in one.ledgers.items():
        seen = {(entry.name, entry.peer) for entry in ledger.entries}
        if name == SERVER:
            assert seen == {("weights", k) for k in LABELS}
        elif name in LABELS:
            assert seen == {("weights", SERVER)} | {
                (what, d) for what in ("embedding", "gradient") for d in COLUMNS
            }
        else:
            assert seen == {
                (what, k) for what in ("embedding", "gradient") for k in LABELS
            }
    sent = sum(ledger.total("out") for ledger in one.ledgers.values())
    assert sent == sum(ledger.total("in") for ledger in one.ledgers.values()) > 0


@pytest.mark.parametrize(
    "engine", [{"through_bytes": True}, {"cohort": "off"}, {"threads": "always"}]
)
def test_what_carries_the_calls_changes_nothing(engine: dict[str, Any]) -> None:
    one = federation(quick(federation={"cohort": "off"}))
    other = federation(quick(federation=engine))
    one.fit()
    other.fit()
    assert equal(learned_of(one), learned_of(other))
    assert one.evaluate() == other.evaluate()


def test_a_run_goes_on_bit_equal(tmp_path: Path) -> None:
    def interrupt(event: Step | dict[str, Any]) -> None:
        if isinstance(event, Step) and event.batch.epoch == 1:
            raise KeyboardInterrupt

    noisy = quick(data_owners=[{"name": "lab", "outbox": GAUSSIAN}])
    path = write(tmp_path, quick())
    whole = Federation.from_toml(path).fit(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        Federation.from_toml(path).fit(tmp_path / "cut", watch=interrupt)
    outcome = Federation.from_toml(path).fit(tmp_path / "cut", resume=True)
    assert equal(checkpoint_of(tmp_path / "whole"), checkpoint_of(tmp_path / "cut"))
    assert records(tmp_path / "whole") == records(tmp_path / "cut")
    assert ledgers(tmp_path / "whole") == ledgers(tmp_path / "cut")
    assert outcome.summary["metrics"] == whole.summary["metrics"]
    assert outcome.summary["label_owners"] == whole.summary["label_owners"]
    longer = Federation.from_toml(write(tmp_path, quick(train={"epochs": 4})))
    assert longer.fit(tmp_path / "cut", resume=True).summary["rounds"] == 4
    with pytest.raises(ConfigError, match=r"\[data_owners\] lab is .* now and was"):
        Federation.from_toml(write(tmp_path, noisy)).fit(tmp_path / "cut", resume=True)


def test_loaded_it_scores_and_predicts_as_saved(tmp_path: Path) -> None:
    one = Federation.from_toml(write(tmp_path))
    one.fit(tmp_path / "run")
    loaded = load(tmp_path / "run")
    assert loaded.evaluate() == one.evaluate()
    assert loaded.evaluate(model="own") == one.evaluate(model="own") != one.evaluate()
    for owner, model in (
        ("north", "aggregated"),
        ("south", "aggregated"),
        ("south", "own"),
    ):
        ids = frames()[owner]["patient"].tolist()[:7]
        expected = one.predict(ids, owner=owner, model=model)
        fresh = load(tmp_path / "run", ids=ids, owner=owner)
        found = fresh.predict(ids, owner=owner, model=model)
        assert found.ids.tolist() == ids
        assert np.allclose(found.scores, expected.scores, atol=1e-6)
        assert found.labels.tolist() == expected.labels.tolist()


def test_rows_that_no_hospital_knew_can_be_predicted(tmp_path: Path) -> None:
    given = frames()
    given["south"] = given["south"].iloc[:-5]
    Federation.from_toml(write(tmp_path, given=given)).fit(tmp_path / "run")
    new = ["P149", "P147", "P149"]  # in any order, and twice
    found = load(tmp_path / "run", ids=new).predict(new)
    assert found.ids.tolist() == new
    assert (found.scores[0] == found.scores[2]).all()
    with pytest.raises(
        DataError,
        match=r"1 of 2 ids are not among the 90 rows that 'north' shares with all",
    ):
        load(tmp_path / "run").predict(["P000", "P149"], strict=True)
    with pytest.raises(
        ConfigError, match=r"'nort' is no label owner here \(did you mean 'north'\?\)"
    ):
        load(tmp_path / "run", ids=new, owner="nort")


def test_a_label_owner_that_fails_is_left_out_and_comes_back(tmp_path: Path) -> None:
    one = federation()
    # the first call asks to begin, the second brings weights, the third trains
    peers = one.driver.peers
    peers.transport = Faulty(peers.transport, [Fault("drop", "south", at=3)])
    outcome = one.fit(tmp_path / "run")
    assert [sorted(record["left_out"]) for record in outcome.history] == [
        ["south"],
        [],
        [],
    ]
    assert "never arrived" in outcome.history[0]["left_out"]["south"]
    assert [sorted(record["losses"]) for record in outcome.history] == [
        ["north"],
        ["north", "south"],
        ["north", "south"],
    ]
    kept = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {k: about["left_out"] for k, about in kept["label_owners"].items()} == {
        "north": [],
        "south": [1],
    }
    assert records(tmp_path / "run")[0]["left_out"] == outcome.history[0]["left_out"]


def test_where_all_label_owners_fail_the_run_does() -> None:
    one = federation()
    one.driver.peers.transport = Faulty(
        one.driver.peers.transport, [Fault("drop", k, at=3) for k in LABELS]
    )
    with pytest.raises(PartyError, match="'north' failed"):
        one.fit()


def test_a_budget_ends_the_run_with_the_last_whole_round(tmp_path: Path) -> None:
    # a row that both hospitals know is released twice a round: 4 releases fit, a fifth
    # does not
    rule = {"name": "lab", "outbox": GAUSSIAN, "budget": {"epsilon": 4.6}}
    settings = quick(data_owners=[rule], train={"epochs": 9})
    one = federation(settings)
    outcome = one.fit(tmp_path / "run")
    assert outcome.exhausted
    assert "'lab' will not release \"embedding\" again" in outcome.stopped
    told = next(g for g in guarantees(one) if g.party == "lab")
    assert told.budget is not None
    assert (
        told.budget["spent"]
        == pytest.approx(gaussian_epsilon(2 / 4 * 4**0.5, 1e-5))
        == pytest.approx(4.38, abs=0.01)
    )
    assert outcome.summary["rounds"] == len(outcome.history) == 2
    assert [g.to_json() for g in of_run(RunDirectory(tmp_path / "run"))] == [
        g.to_json() for g in sorted(guarantees(one), key=lambda g: g.party)
    ]
    assert told.releases[0].appearances == 4
    assert not any("does not know the batches" in s.adversary for s in told.statements)


def test_a_plan_says_what_a_run_then_costs() -> None:
    settings = quick(
        data_owners=[{"name": "lab", "outbox": GAUSSIAN}], algorithm={"local_epochs": 2}
    )
    one = federation(settings)
    before = plan(one)
    one.fit()
    after = guarantees(one)
    assert [g.to_json() for g in before] == [g.to_json() for g in after]
    release = next(g for g in before if g.party == "lab").releases[0]
    assert release.appearances == 2 * 3 * 2  # two hospitals, three rounds of two epochs


def test_automatic_noise_lasts_for_all_rounds_exactly() -> None:
    auto = {
        "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": "auto"}}
    }
    settings = quick(
        data_owners=[{"name": "lab", "outbox": auto, "budget": {"epsilon": 3.0}}]
    )
    one = federation(settings)
    outcome = one.fit()
    assert not outcome.exhausted
    spent = next(g for g in guarantees(one) if g.party == "lab").budget
    assert spent is not None
    assert spent["spent"] == pytest.approx(3.0, rel=1e-3)


def test_labels_may_be_drawn_at_random_once(tmp_path: Path) -> None:
    rule = {"labels": {"mechanism": {"name": "randomized_response", "epsilon": 0.5}}}
    path = write(tmp_path, quick(label_owners=[{"name": "south", "outbox": rule}]))
    one = Federation.from_toml(path)
    train = one.holdings.label_owners["south"].splits["train"]
    drawn = one.label_owners["south"].labels.clone()
    true = one.holdings.label_owners["south"].labels
    assert (drawn[train] != true[train]).any()
    outside = torch.ones(len(true), dtype=torch.bool).index_fill(0, train, False)
    assert torch.equal(drawn[outside], true[outside])
    scores = one.fit(tmp_path / "run").summary["label_owners"]["south"]["metrics"][
        "train"
    ]
    outputs = one.outputs("train", "south")
    loss = one.holdings.loss
    positive = one.holdings.encoder.positive
    assert (
        scores
        == measure(loss, outputs, drawn[train], positive)
        != measure(loss, outputs, true[train], positive)
    )
    again = load(tmp_path / "run")
    assert torch.equal(again.label_owners["south"].labels, drawn)
    assert again.score("train").each["south"] == scores, (
        "the true labels of training rows are never measured with"
    )
    told = {
        (g.party, g.protects): g.statements[0]
        for g in of_run(RunDirectory(tmp_path / "run"))
    }
    assert told["south", "labels"].epsilon == 0.5
    assert (
        "up to n x epsilon for a row that n label owners know, here up to 2"
        in told["south", "labels"].note
    )
    assert told["south", "labels"] in [g.statements[0] for g in guarantees(again)]
    assert told["north", "labels"].epsilon is None


def test_an_organisation_may_hold_labels_and_columns() -> None:
    given = frames()
    labelled = some(given, LABELS)
    columns = {"lab": given["lab"], "north": given["scan"]}
    settings = quick(data_owners=[{"name": "north", "outbox": GAUSSIAN}])
    one = Federation.from_frames(
        columns,
        label_owners=labelled,
        id="patient",
        label="diagnosis",
        settings=settings,
    )
    outcome = one.fit()
    assert outcome.summary["parties"]["north"] == ["features", "labels"]
    inside = [entry for entry in one.ledgers["north"].entries if entry.peer == "north"]
    assert {entry.direction for entry in inside} == {"own"}
    # its rule is for others
    assert {entry.event for entry in inside} == {"non-private"}
    crossed = {
        e.event
        for e in one.ledgers["north"].entries
        if (e.direction, e.name) == ("out", "embedding")
    }
    assert crossed == {"gaussian"}
    totals = [
        sum(ledger.total(way) for ledger in one.ledgers.values())
        for way in ("in", "out")
    ]
    assert totals[0] == totals[1]
    told = [
        (g.party, g.protects, g.statements[0].note)
        for g in guarantees(one)
        if g.party == "north"
    ]
    assert [what for _, what, _ in told] == ["labels", "columns"]
    settings["data_owners"][0]["budget"] = {"epsilon": 1.0}
    with pytest.raises(
        ConfigError, match=r"\[data_owners\.budget\] of 'north' can never be kept"
    ):
        Federation.from_frames(
            columns,
            label_owners=labelled,
            id="patient",
            label="diagnosis",
            settings=settings,
        )


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"data_owners": [{"name": "lap"}]},
        (
            r"\[\[data_owners\]\] 'lap' is no party of this federation \(did you mean"
            r" 'lab'\?\)"
        ),
    ),
    (
        {
            "label_owners": [
                {"name": "north", "outbox": {"embedding": {"mechanism": "plain"}}}
            ]
        },
        (
            r"\[label_owners\.outbox\] of 'north' has a rule for 'embedding', which is"
            r" never released.*gradient, weights"
        ),
    ),
    (
        {"data_owners": [{"name": "lab", "budget": {"epsilon": 1.0}}]},
        (
            r"\[data_owners\.budget\] of 'lab' can never be kept: train\.embedding is"
            r" released with Plain"
        ),
    ),
    (
        {"label_model": {"name": "cnn"}},
        (
            r"The label model 'cnn' of 'north': hidden must be a whole number, 1 or"
            r" more; found \[5\]"
        ),
    ),
    (
        {"label_model": {"name": "cnn", "hidden": 5}},
        r"The label model 'cnn' needs feature maps",
    ),
]


@pytest.mark.parametrize(
    ("changes", "told"), WRONG, ids=[told[:40] for _, told in WRONG]
)
def test_mistakes_are_named(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        federation(quick(**changes))


def test_entries_on_disk_name_their_batches(tmp_path: Path) -> None:
    federation().fit(tmp_path / "run")
    batches = {
        entry["batch"].partition("/")[0].partition("[")[0]
        for entry in entries(tmp_path / "run")
        if entry["batch"]
    }
    assert batches == {
        f"{k}:{what}" for k in LABELS for what in ("train", "validation", "test")
    } | {f"{k}:train" for k in LABELS}


def test_label_owners_write_ids_in_their_own_way() -> None:
    """One key of two columns, by rules: as if all had written it alike, to the bit.
    Several keys are refused."""
    given = frames()
    apart = {
        name: one.assign(a=one["patient"].str[:2], b=one["patient"].str[2:])
        for name, one in given.items()
    }
    apart["north"]["a"] = apart["north"]["a"].str.lower() + " "
    alike = {
        name: one.assign(patient=one["a"].str.lower().str.strip() + " | " + one["b"])
        for name, one in apart.items()
    }
    apart = {name: one.drop(columns="patient") for name, one in apart.items()}
    alike = {name: one.drop(columns=["a", "b"]) for name, one in alike.items()}
    rules = {"rules": {"a": "text"}}

    def made(held: Frames, ids: Any, alignment: dict[str, Any]) -> Federation:
        settings = quick(alignment=alignment, train={"epochs": 1})
        labelled = some(held, LABELS)
        columns = some(held, COLUMNS)
        return Federation.from_frames(
            columns, label_owners=labelled, id=ids, label="diagnosis", settings=settings
        )

    one = made(apart, [["a", "b"]], rules)
    other = made(alike, "patient", {})
    assert one.ids.tolist() == other.ids.tolist()
    assert one.fit().summary["metrics"] == other.fit().summary["metrics"]
    with pytest.raises(
        ConfigError, match="two of them may know a person by different keys"
    ):
        made(apart, ["a", "b"], rules)
