"""A label owner that merely follows the protocol rebuilds columns where weights are
seeded, and not where not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.attacks.runs import score_of, three, trained
from tests.federation.small import Frames, splitnn
from tests.federation.small_sites import folders, sites
from torch import Tensor, nn

from colonnade import models
from colonnade.attacks import audit_federation
from colonnade.attacks.finding import ASSUMES, KNOWN_MODEL
from colonnade.attacks.inversion import TABLE, invert
from colonnade.attacks.inversion_audit import improved
from colonnade.attacks.received import received
from colonnade.attacks.scores import r_squared
from colonnade.core import Batches, Transcript
from colonnade.core.batches import seed_for
from colonnade.settings.party_file import OWN, read_own
from colonnade.sites import driving, site
from colonnade.sites.reader import own_columns, read_own_table
from colonnade.transport import Recording
from colonnade.transport.remote import Remote

COLUMNS = 12
ROWS = 120


def patients() -> Frames:
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, COLUMNS))
    ids = [f"P{number:03d}" for number in range(ROWS)]
    ill = np.where(x @ random.normal(size=COLUMNS) > 0, "ill", "well")
    lab = pd.DataFrame(
        {"patient": ids} | {f"c{number}": x[:, number] for number in range(COLUMNS)}
    )
    age = random.normal(size=ROWS)
    return {
        "clinic": pd.DataFrame({"patient": ids, "age": age, "diagnosis": ill}),
        "lab": lab,
    }


def drive(
    base: Path, monkeypatch: pytest.MonkeyPatch, models: str | None
) -> Transcript:
    """Train between sites; what the clinic received as the protocol has it, written
    down by the clinic."""
    heard: list[Recording] = []

    def listening(*lines: Any, **options: Any) -> Recording:
        heard.append(Recording(Remote(*lines, **options)))
        return heard[-1]

    monkeypatch.setattr(site, "Remote", listening)
    folders(base, patients(), WHOLE, models=models)
    driving.drive(sites(base)["clinic"], "run")
    transcript = Transcript("clinic")
    for one in heard:
        for seen in one.of("clinic"):
            transcript.add(seen.sender, seen.message)
    return transcript


def rebuilt(base: Path, transcript: Transcript) -> tuple[Tensor, Tensor, Tensor]:
    """The first training batch of the laboratory as the clinic rebuilds it from its own
    files; its truth and mean."""
    # nothing of the laboratory's, but how many columns it has
    own = read_own(base / "clinic" / OWN).settings
    train = own.train
    seed = own.engine.seed
    lab = read_own(base / "lab" / OWN)
    table = read_own_table(lab)
    held = own_columns(lab, table, {"clinic": table.ids}, outputs=1)
    batches = Batches(
        held.splits, batch_size=train.batch_size, epochs=train.epochs, seed=seed
    )
    first = next(received(transcript, batches, ("embedding",), "lab"))
    model = models.build(
        own.model or "mlp", (COLUMNS,), seed=seed_for(seed, "lab", "model"), owner="lab"
    )
    guess = improved(
        invert(first.values, model, (COLUMNS,), TABLE), first.values, model
    )
    features = held.columns["lab"].features
    return guess, features[first.rows], features[held.splits["train"]].mean(0)


MODEL = {
    "name": "mlp",
    "hidden": [64],
    "width": 32,
    "activation": "tanh",
    "ending": "same",
}
DEFAULT = {**splitnn(), "model": MODEL}  # a narrower embedding does not determine a row
SPANS = {f"c{number}": slice(number, number + 1) for number in range(COLUMNS)}
# sides follow from ids
WHOLE = {
    **DEFAULT,
    "train": {"epochs": 1, "batch_size": 1024},
    "data": {"stratify": False},
}


def test_with_seeded_models_training_rows_are_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = drive(tmp_path, monkeypatch, "seeded")
    guess, truth, _ = rebuilt(tmp_path, heard)
    assert len(truth) == 84, "all training rows are in the first batch"
    wrong = (guess - truth).abs().amax(1) > 1e-4  # in standard deviations
    assert int(wrong.sum()) <= 1, "but where fewer units than columns are awake"


def test_by_default_the_same_attack_is_no_better_than_guessing_the_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = drive(tmp_path, monkeypatch, None)
    guess, truth, mean = rebuilt(tmp_path, heard)
    found = r_squared(truth, guess, mean, SPANS)
    assert sum(found.values()) < 0, "on the whole worse than the mean"
    assert max(found.values()) < 0.3, (
        "a wrong model may agree with one column by chance"
    )


def test_a_guess_is_improved_until_its_embedding_is_the_one_that_came() -> None:
    generator = torch.Generator().manual_seed(0)
    model = models.build("mlp", (5,), seed=1, owner="lab")
    x = torch.randn(20, 5, generator=generator)
    with torch.no_grad():
        h = model(x)
    near = x + 0.1 * torch.randn(20, 5, generator=generator)
    assert (
        float((improved(near, h, model) - x).abs().max())
        < 1e-4
        < float((near - x).abs().max())
    )
    assert all(weight.grad is None for weight in model.parameters())
    lost = nn.Sequential(nn.Linear(5, 2))  # two numbers do not say five
    assert torch.equal(improved(near, lost(x), lost), near)


def test_the_audit_uses_the_known_model_where_it_is_known_and_says_which() -> None:
    found = audit_federation(trained(model={"hidden": [32], "width": 24}), rows=32)
    known = [one for one in found.findings if one.attack == KNOWN_MODEL]
    assert [(one.attacker, one.victim, one.moment) for one in known] == [
        ("registry", "clinic", "first rounds"),
        ("registry", "lab", "first rounds"),
    ]
    assert all(
        one.assumes == ASSUMES[KNOWN_MODEL] and one.details["mean_r2"] > 0.999
        for one in known
    )
    assert any(
        "a rehearsal: the initial weights of clinic, lab follow from the agreed seed"
        in n
        for n in found.notes
    )
    registry = [note for note in found.notes if "registry" in note]
    assert registry == [], "the attacker itself is no victim"
    secret = audit_federation(
        trained(given=three(), parties={"lab": {"models": "secret"}}), rows=8
    )
    assert [one.victim for one in secret.findings if one.attack == KNOWN_MODEL] == [
        "clinic"
    ]
    assert any("The local models of lab were secret" in note for note in secret.notes)


def test_noise_is_left_to_inversion() -> None:
    noise = {
        "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 5.0}}
    }
    found = audit_federation(
        trained(parties={"lab": {"outbox": noise}}, train={"epochs": 1}),
        rows=16,
        party="lab",
    )
    (known,) = [one for one in found.findings if one.attack == KNOWN_MODEL]
    assert known.details["release"] == "gaussian noise"
    assert score_of(known) < 0.5
