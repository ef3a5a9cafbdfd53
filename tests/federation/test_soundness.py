"""A model that learned nothing, and a party that says nothing, are said, and others are
not."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.federation.small import Task, federation, frames, quick, splitnn
from tests.federation.small_sites import ALONE, folders, sites

from colonnade.explain.report import explain
from colonnade.federation.soundness import constant_loss, learned_nothing, rare_classes
from colonnade.optim.losses import CrossEntropy, Logistic, Squared
from colonnade.sites.driving import drive


def test_the_constant_loss_is_that_of_the_shares_or_of_the_mean() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    entropy = -(
        0.75 * torch.tensor(0.75).log() + 0.25 * torch.tensor(0.25).log()
    ).item()
    assert constant_loss(Logistic(), labels, labels) == pytest.approx(entropy, rel=1e-5)
    assert constant_loss(CrossEntropy(2), labels, labels) == pytest.approx(
        entropy, rel=1e-5
    )
    numbers = torch.tensor([1.0, 2.0, 6.0])
    mean = constant_loss(Squared(), numbers, numbers)
    assert mean == pytest.approx(float(Squared()(torch.full((3, 1), 3.0), numbers)))


@pytest.mark.parametrize("task", ["binary", "classes", "regression"])
def test_a_model_that_learned_nothing_is_said_and_one_that_learned_is_not(
    task: Task,
) -> None:
    given = frames(300, task=task)
    good = splitnn(
        algorithm={"optimizer": "adam", "learning_rate": 0.01}, train={"epochs": 15}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "findings" not in federation(given, good).fit().summary
    given["clinic"]["diagnosis"] = (
        given["clinic"]["diagnosis"].sample(frac=1, random_state=1).to_numpy()
    )
    wild = splitnn(
        algorithm={"learning_rate": 2.0}, train={"epochs": 8, "early_stop": False}
    )
    with pytest.warns(
        UserWarning, match="The model learned nothing that holds for other rows"
    ):
        outcome = federation(given, wild).fit()
    assert "Do not use it" in outcome.summary["findings"][0]


def test_a_class_of_very_few_rows_is_named_with_its_count() -> None:
    given = frames(300)
    given["clinic"].loc[7, "diagnosis"] = "maybe"
    with pytest.warns(UserWarning, match=r"'maybe' \(1\)"):
        summary = federation(given, splitnn()).fit().summary
    (finding,) = summary["label_findings"]
    assert finding.startswith(
        "'clinic' has fewer than 5 of its 300 rows in a class of the label: 'maybe'"
        " (1)."
    )
    assert "one of the 3 classes" in finding
    # partners see those
    assert not any("maybe" in text for text in summary.get("findings", []))
    assert "label_findings" not in federation(settings=splitnn()).fit().summary


def rare(classes: list[str], labels: torch.Tensor) -> list[str]:
    encoder: Any = SimpleNamespace(task="classification", classes=classes)
    owners: Any = {"clinic": SimpleNamespace(labels=labels)}
    return rare_classes(encoder, owners)


def test_classes_are_rare_only_beside_larger_ones() -> None:
    assert rare(["a", "b", "c"], torch.arange(12) % 3) == []
    assert rare(["a", "b"], torch.tensor([0] * 95 + [1] * 5)) == []
    assert rare(["a", "b"], torch.tensor([0] * 99 + [1]))[0].startswith(
        "'clinic' has fewer than 5 of its 100 rows"
    )
    many = torch.cat([torch.zeros(500), torch.arange(1, 9)])
    (finding,) = rare(list("abcdefghi"), many)
    assert "'b' (1), 'c' (1), 'd' (1), 'e' (1), 'f' (1) and 3 more." in finding


def test_where_noise_is_on_fewer_epochs_are_advised_not_more() -> None:
    labels = torch.tensor([0.0, 1.0] * 10)
    rows = {"train": torch.arange(10), "test": torch.arange(10, 20)}
    metrics = {"test": {"loss": 2.0}}
    plain = learned_nothing(Logistic(), "loss", labels, rows, metrics)
    noisy = learned_nothing(Logistic(), "loss", labels, rows, metrics, is_noisy=True)
    assert "more rows or epochs" in plain
    assert "more rows or epochs" not in noisy
    assert "train fewer epochs" in noisy
    assert '"one_shot"' in noisy


def dead(one: Any) -> None:
    """As if every unit of the laboratory's last layer had died."""
    with torch.no_grad():
        last = [
            layer
            for layer in one.owners["lab"].model
            if isinstance(layer, torch.nn.Linear)
        ][-1]
        last.weight.zero_()
        last.bias.fill_(-1.0)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_party_whose_units_died_is_named_by_run_and_by_explain() -> None:
    relu = {
        "name": "mlp",
        "hidden": [6],
        "width": 4,
        "activation": "relu",
        "ending": "same",
    }
    one = federation(settings=quick(model=relu, federation={"cohort": "off"}))
    dead(one)
    summary = one.fit().summary
    assert summary["constant_outputs"]["lab"] == [4, 4]
    (found,) = [text for text in summary["findings"] if "says nothing" in text]
    assert found.startswith(
        "'lab' says nothing: the 4 numbers that its model gives are the same for"
        " every row"
    )
    assert any("'lab' says nothing" in note for note in explain(one).notes)
    assert (
        "constant_outputs"
        not in federation(settings=quick(model={**relu, "activation": "tanh"}))
        .fit()
        .summary
    )


def test_at_a_site_of_its_own_it_is_told_its_owner(tmp_path: Any) -> None:
    relu = {
        "name": "mlp",
        "hidden": [6],
        "width": 4,
        "activation": "relu",
        "ending": "same",
    }
    folders(tmp_path, settings=quick(model=relu, train={"epochs": 1}, **ALONE))
    every = sites(tmp_path)
    killed: list[object] = []

    def kill(event: object) -> None:
        if not killed and every["lab"].participant is not None:
            dead(every["lab"].participant.federation)
            killed.append(event)

    drive(every["clinic"], "run", watch=kill)
    summary = (tmp_path / "lab" / "runs" / "run" / "summary.json").read_text()
    assert "'lab' says nothing" in summary
