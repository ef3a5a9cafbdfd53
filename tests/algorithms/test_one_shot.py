"""One shot: labels cannot leak by construction, and the label owner has what
scikit-learn learned."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from tests.cli.called import Caller
from tests.conformance.toy import federation as toy_federation
from tests.federation import small_sites
from tests.federation.small import Tables, federation, frames, quick, write
from torch import Tensor, nn

from colonnade.algorithms import one_shot
from colonnade.algorithms.algorithm import LocalInputs
from colonnade.attacks import audit_run
from colonnade.attacks.audit import audit_federation
from colonnade.errors import BudgetExhausted, ConfigError
from colonnade.export import export
from colonnade.federation import Federation, Settings, load
from colonnade.models import initialised
from colonnade.models.encoders import Encoder, Pca
from colonnade.optim import estimators
from colonnade.optim.losses import CrossEntropy, Logistic, Loss, Squared
from colonnade.planning.plan import plan
from colonnade.privacy import Gaussian
from colonnade.sites.driving import drive

LOGISTIC = {"name": "one_shot", "width": 1, "estimator": "logistic"}


def tables(**changes: Any) -> Tables:
    return {**quick(**changes), "algorithm": LOGISTIC | changes.get("algorithm", {})}


def test_whatever_the_labels_are_a_feature_owner_receives_the_same_bytes() -> None:
    """The attack is any attack: what does not depend on labels cannot tell them."""
    heard = []
    for seed in (0, 1):
        given = frames(80)
        given["clinic"]["diagnosis"] = np.random.default_rng(seed).permutation(
            given["clinic"]["diagnosis"]
        )
        made = federation(given, tables(), record=True)
        made.fit()
        assert made.recording is not None
        heard.append([(seen.batch, seen.message) for seen in made.recording.of("lab")])
        assert made.ledgers["lab"].total("in") == 0
    assert heard[0] == heard[1] != []


def test_each_row_leaves_once_in_four_bytes_a_number() -> None:
    made = federation(frames(80), tables(algorithm={"width": 2}, train={"epochs": 7}))
    outcome = made.fit()
    sent = [entry for entry in made.ledgers["lab"].entries if entry.direction == "out"]
    rows = sum(entry.shape[0] for entry in sent)
    assert rows == 80
    assert made.ledgers["lab"].total("out") == 80 * 2 * 4
    assert outcome.summary["epochs"] == outcome.summary["rounds"] == 1
    assert set(outcome.summary["metrics"]) == {"validation", "test"}
    assert "sent a single time" in outcome.summary["not_measured"]["train"]


def test_a_plan_says_its_bytes_exactly(tmp_path: Path) -> None:
    file = write(tmp_path, frames(90), tables(train={"epochs": 5}))
    planned = plan(Settings.from_toml(file), batches=2)
    ran = Federation.from_toml(file)
    ran.fit()
    assert planned.bytes == {
        n: {way: book.total(way) for way in ("out", "in")}
        for n, book in ran.ledgers.items()
    }
    assert planned.rounds == ran.batches.done == 1


def test_its_own_columns_are_not_narrowed_and_others_never_send_more_than_they_have() -> (
    None
):
    made = federation(frames(80), tables(algorithm={"width": 1}))
    assert made.shapes == {"clinic": (2,), "lab": (1,)}
    assert federation(frames(80), tables(algorithm={"width": 9})).shapes["lab"] == (2,)


def test_pca_is_that_of_the_training_rows_alone_and_typical_rows_have_length_one() -> (
    None
):
    made = federation(frames(80), tables(algorithm={"width": 1}))
    made.fit()
    owner = made.owners["lab"]
    x = owner.features[made.batches.splits["train"]].double()
    centred = x - x.mean(0)
    _, sizes, directions = torch.linalg.svd(centred, full_matrices=False)
    found = owner.model(owner.features).double()[:, 0]
    expected = (
        (owner.features.double() - x.mean(0))
        @ directions[0]
        / (sizes[0] / len(x) ** 0.5)
    )
    assert torch.allclose(found.abs(), expected.abs(), atol=1e-5)
    assert float(owner.model(x.float()).square().sum(1).mean()) == pytest.approx(
        1.0, abs=1e-4
    )


def test_what_was_learned_of_columns_stays_whoever_asks_again() -> None:
    part = Pca(3, 2)
    generator = torch.Generator().manual_seed(0)
    assert not part(torch.randn(4, 3)).any()
    part.learn(torch.randn(50, 3, generator=generator), generator)
    before = {name: value.clone() for name, value in part.state_dict().items()}
    part.learn(5 * torch.randn(50, 3, generator=generator), generator)
    assert all(
        torch.equal(value, part.state_dict()[name]) for name, value in before.items()
    )


def test_an_autoencoder_keeps_what_its_rows_have_in_common() -> None:
    """Six columns of two hidden numbers: two codes, learned without labels, hold them;
    those of its start do not."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(512, 2, generator=generator)
    x = hidden @ torch.randn(2, 6, generator=generator) + 0.05 * torch.randn(
        512, 6, generator=generator
    )
    left = {}
    for epochs in (1, 60):
        given = LocalInputs(
            x[:1],
            16,
            1,
            one_shot.Config(width=2, encoder="autoencoder", encoder_epochs=epochs),
        )
        with initialised(3):
            model = one_shot.encoder(nn.Sequential(nn.Linear(6, 16), nn.ReLU()), given)
        assert isinstance(model, Encoder)
        model.learn(x, generator)
        h = model(x).detach()
        assert float(h.square().sum(1).mean()) == pytest.approx(1.0, abs=1e-4)
        fitted = h @ torch.linalg.lstsq(h, x - x.mean(0)).solution
        left[epochs] = float(
            (fitted - (x - x.mean(0))).square().mean() / x.var(0).mean()
        )
    assert left[60] < 0.3
    assert left[60] < 0.7 * left[1]


def sample(task: str, rows: int = 200, seed: int = 0) -> tuple[Tensor, Tensor, Loss]:
    generator = torch.Generator().manual_seed(seed)
    x = (
        torch.randn(rows, 5, generator=generator)
        * torch.tensor([1.0, 10.0, 0.1, 1.0, 0.0])
        + 3
    )
    score = x[:, 0] + x[:, 1] / 5 + torch.randn(rows, generator=generator) / 2
    if task == "regression":
        return x, score, Squared()
    if task == "binary":
        return x, (score > score.median()).long(), Logistic()
    # classes 0 and 4 have no row
    return x, torch.bucketize(score, torch.tensor([3.0, 4.0])) + 1, CrossEntropy(5)


@pytest.mark.parametrize("task", ["regression", "binary", "classes"])
@pytest.mark.parametrize("name", estimators.NAMES)
def test_its_module_says_what_the_estimator_says(name: str, task: str) -> None:
    x, y, loss = sample(task)
    model = estimators.learn(name, x, y, loss, seed=3)
    is_regression = task == "regression"
    new = estimators.new_regressor if is_regression else estimators.new_classifier
    made: Any = new(name, 3, rows=len(y))
    columns = x.double().numpy()
    spread = np.where(columns.std(0) > 1e-12, columns.std(0), 1.0)
    prepared = (
        columns if name == "boosted_trees" else (columns - columns.mean(0)) / spread
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        made.fit(prepared, y.numpy())
    found = loss.scores(model([x[:, :2].double(), x[:, 2:].double()])).numpy()
    if is_regression:
        assert np.allclose(found[:, 0], made.predict(prepared), atol=1e-9)
    else:
        places = [0, 1] if task == "binary" else [1, 2, 3]
        assert np.allclose(found[:, places], made.predict_proba(prepared), atol=1e-9)
        assert np.allclose(np.delete(found, places, 1), 0, atol=1e-9)
    again = estimators.restore(model.state_dict())
    assert torch.equal(again([x]), model([x]))


@pytest.mark.parametrize("loss", [Logistic(), CrossEntropy(3)])
@pytest.mark.parametrize("label", [0, 1])
def test_where_every_training_row_has_one_label_it_is_said(
    loss: Loss, label: int
) -> None:
    x = torch.randn(6, 2)
    model = estimators.learn("logistic", x, torch.full((6,), label), loss, 0)
    assert loss.decide(model([x])).tolist() == [label] * 6


def test_of_three_classes_two_with_rows_are_told_apart() -> None:
    x = torch.linspace(-1, 1, 40)[:, None]
    y = 2 * (x[:, 0] > 0).long()
    model = estimators.learn("logistic", x, y, CrossEntropy(3), 0)
    assert torch.equal(CrossEntropy(3).decide(model([x])), y)


def test_text_never_chooses_code() -> None:
    name: Any
    for name in ("os:system", "sklearn.svm:SVC", ""):
        with pytest.raises(ConfigError, match=r"\(one_shot\) estimator must be one of"):
            one_shot.Config(estimator=name)


@pytest.mark.parametrize(
    "estimator", ["boosted_trees", pytest.param("mlp", marks=pytest.mark.long)]
)
def test_saved_loaded_and_exported_it_says_the_same(
    estimator: str, tmp_path: Path
) -> None:
    settings = tables(
        algorithm={
            "estimator": estimator,
            "encoder": "autoencoder",
            "encoder_epochs": 2,
        }
    )
    file = write(tmp_path, frames(60), settings)
    made = Federation.from_toml(file)
    made.fit(tmp_path / "run")
    expected = made.outputs("test")
    again = load(tmp_path / "run")
    assert torch.equal(again.outputs("test"), expected)
    folders = {path.name: path for path in export(tmp_path / "run", tmp_path / "out")}
    assert set(folders) == {"clinic", "lab"}
    rows = made.batches.splits["test"]
    parts = []
    for name in ("clinic", "lab"):
        program = torch.export.load(next(folders[name].rglob("columns/*.pt2"))).module()
        parts.append(program(made.owners[name].features[rows]))
    head = torch.export.load(next(folders["clinic"].rglob("labels/*.pt2"))).module()
    assert torch.allclose(head(parts), expected, atol=1e-5)


def test_resumed_it_is_finished_and_asks_nobody(tmp_path: Path, call_: Caller) -> None:
    file = write(tmp_path, frames(60), tables())
    assert call_("run", file, "--out", tmp_path / "run", "--quiet").code == 0
    ledger = (tmp_path / "run/parties/lab/ledger.jsonl").read_text()
    assert (
        call_("run", file, "--out", tmp_path / "run", "--resume", "--quiet").code == 0
    )
    assert (tmp_path / "run/parties/lab/ledger.jsonl").read_text() == ledger
    (tmp_path / "rows.csv").write_text("patient\nP003\nP001\n")
    found = call_(
        "predict", tmp_path / "run", "--rows", tmp_path / "rows.csv", "--json"
    )
    assert [one["patient"] for one in json.loads(found.out)] == ["P003", "P001"]


@pytest.fixture
def call_(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Caller:
    return Caller(monkeypatch, capfd)


def test_organisations_do_it_between_their_sites(tmp_path: Path) -> None:
    here = tables(federation={"cohort": "off", "device": "cpu"})
    file, _ = small_sites.folders(tmp_path, settings=here)
    drive(small_sites.sites(tmp_path)["clinic"], "run")
    alone = Federation.from_toml(file)
    alone.fit(tmp_path / "alone")
    runs = tmp_path / "alone", tmp_path / "clinic" / "runs" / "run"
    one, other = (json.loads((run / "summary.json").read_text()) for run in runs)
    assert one["rounds"] == other["rounds"] == 1
    assert one["metrics"]["test"] == other["metrics"]["test"]


def test_the_audit_inverts_it_and_finds_no_label_attack(tmp_path: Path) -> None:
    Federation.from_toml(
        write(tmp_path, frames(160), tables(algorithm={"width": 2}))
    ).fit(tmp_path / "run")
    found = audit_run(tmp_path / "run", rows=16)
    assert found.not_attacked == []
    assert not [one for one in found.findings if one.limit == "label_inference"]
    inverted = [
        one for one in found.findings if one.attack == "columns by model inversion"
    ]
    assert {one.victim for one in inverted} == {"lab"}
    # two numbers for two columns hold both
    assert max(one.score or 0.0 for one in inverted) > 0.9
    assert not [
        one
        for one in found.findings
        if one.attack == "columns by the known initial model"
    ]
    assert not [note for note in found.notes if "initial weights" in note]


def test_fewer_numbers_rebuild_less() -> None:
    """One number of two independent columns leaves one of them unknown."""
    scores = []
    for width in (1, 2):
        made = federation(frames(160), tables(algorithm={"width": width}), record=True)
        made.fit()
        found = audit_federation(made, rows=32).findings
        inverted = next(
            one for one in found if one.attack == "columns by model inversion"
        )
        scores.append(inverted.details["mean_r2"])
    assert scores[0] < 0.8 < scores[1]


def test_a_budget_is_for_that_one_release() -> None:
    rule = {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": "auto"}}
    party = {"outbox": {"embedding": rule}, "budget": {"epsilon": 4.0}}
    made = federation(frames(80), tables(parties={"lab": party}, train={"epochs": 9}))
    made.fit()
    assert made.accounts["lab"].worst == pytest.approx(4.0, abs=0.01)
    mechanism = made.organisations["lab"].outbox.rule("embedding").mechanism
    assert isinstance(mechanism, Gaussian)
    assert mechanism.sigma < 2.5  # for nine releases it would be three times as large
    with pytest.raises(BudgetExhausted):
        made.outputs("train")


def test_codecs_apply_to_it() -> None:
    party = {"outbox": {"embedding": {"codec": "half"}}}
    made = federation(frames(80), tables(parties={"lab": party}))
    made.fit()
    assert made.ledgers["lab"].total("out") == 80 * 2


@pytest.mark.parametrize("task", ["classes", "regression"])
def test_trees_learn_what_no_party_can_tell_alone(task: Any) -> None:
    config = one_shot.Config(width=4, estimator="boosted_trees")
    toy = toy_federation(one_shot.ALGORITHM, task=task, epochs=1, config=config)
    assert toy.run()[0] < 0.5 * toy.untrained()
    decided = toy.driver.loss.decide(toy.predict())
    truth = toy.truth()
    if task == "regression":
        assert float((decided - truth).square().mean()) < 0.5 * float(truth.var())
    else:
        assert (
            float((decided == truth).double().mean())
            > float(truth.bincount().max()) / len(truth) + 0.1
        )
