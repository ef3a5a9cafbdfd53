"""[train] pretrain: models begin with what they learned from their owners' rows alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.federation.small import checkpoint_of, equal, models_of
from tests.federation.small_sites import folders, saved, sites
from tests.federation.test_rows_differ import ABLE, settings, three
from tests.sites.kinds import same_bits
from torch import nn

from colonnade.errors import ConfigError
from colonnade.federation import Federation, Settings
from colonnade.federation.fit import pretrain as begin
from colonnade.models.encoders import pretrain
from colonnade.sites.driving import drive

ON = {"pretrain": 3}


def made(**train: Any) -> Federation:
    data = {"align": "private", "stratify": False}
    given = settings(ABLE[0], data=data, train={"epochs": 1, **train})
    return Federation.from_frames(
        three(), id="patient", label="diagnosis", settings=given
    )


def test_a_model_learns_to_fill_in_hidden_columns() -> None:
    """Of two columns that say the same and one that says nothing: what is hidden of the
    first two is found out."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 1, generator=draw)
    x = torch.cat([x, x, torch.randn(2000, 1, generator=draw)], 1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 8))
    pretrain(model, x, 20, draw)
    seen = x.clone()
    seen[:, 0] = 0.0  # hidden
    with torch.no_grad():
        h = model(seen)
        found = torch.linalg.lstsq(
            torch.cat([h, torch.ones(len(h), 1)], 1), x[:, :1]
        ).solution
        missed = (
            (torch.cat([h, torch.ones(len(h), 1)], 1) @ found - x[:, :1])
            .square()
            .mean()
        )
    assert missed < 0.1
    assert all(one.grad is None for one in model.parameters())


def test_a_head_that_the_algorithm_adds_is_not_pretrained() -> None:
    one = made(**ON)
    model = one.owners["lab"].model
    before = [weight.clone() for weight in model.parameters()]
    begin(one)
    changed = [
        not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)
    ]
    # the head is the last, without a bias
    assert changed == [True] * (len(before) - 1) + [False]


def test_it_is_done_alone_once_and_with_all_rows_that_nobody_holds_out() -> None:
    one = made(**ON)
    plain = made()
    assert equal(models_of(one), models_of(plain)), (
        "nothing is learned before training begins"
    )
    crossed = {name: len(book.entries) for name, book in one.ledgers.items()}
    begin(one)
    assert {name: len(book.entries) for name, book in one.ledgers.items()} == crossed, (
        "nothing crosses"
    )
    assert not equal(models_of(one), models_of(plain))
    holdings = one.holdings
    held_out = {
        holdings.ids[row]
        for split in ("validation", "test")
        for row in holdings.splits[split].tolist()
    }
    for name, frame in three().items():
        every = holdings.columns[name].every
        assert every is not None
        assert len(every) == sum(
            patient not in held_out for patient in frame["patient"]
        )
    begin(plain)
    assert plain.holdings.columns["lab"].every is None


def test_a_run_goes_on_where_it_stopped_and_sites_do_the_same(tmp_path: Path) -> None:
    data = {"align": "private", "stratify": False}
    given = settings(
        ABLE[0],
        data=data,
        train={"epochs": 2, **ON},
        federation={"device": "cpu", "cohort": "off"},
    )
    file, _ = folders(tmp_path, three(), given)
    Federation.from_toml(file).fit(tmp_path / "here")
    drive(sites(tmp_path)["clinic"], "run")
    same_bits(checkpoint_of(tmp_path / "here"), saved(tmp_path, "run"))
    file.write_text(file.read_text().replace("epochs = 2", "epochs = 1"))
    Federation.from_toml(file).fit(tmp_path / "twice")
    file.write_text(file.read_text().replace("epochs = 1", "epochs = 2"))
    Federation.from_toml(file).fit(tmp_path / "twice", resume=True)
    same_bits(checkpoint_of(tmp_path / "here"), checkpoint_of(tmp_path / "twice"))


@pytest.mark.parametrize(
    "algorithm", ["boosted_trees", "knn", "logistic_regression", "one_shot"]
)
def test_who_has_no_model_to_start_with_says_so(algorithm: str) -> None:
    with pytest.raises(
        ConfigError, match=r"\[train\] pretrain gives each party's model a start"
    ):
        Settings.from_mapping({"algorithm": {"name": algorithm}, "train": ON})
