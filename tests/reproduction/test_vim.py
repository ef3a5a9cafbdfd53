"""VIM on MNIST, shortened to seconds: its 14 strips and models, a twentieth of the
rows, two epochs.

The bounds are the least that seeds 0 to 2 gave, less a point and a half (three for the
gradient methods, which are not far yet). `colonnade reproduce vim-mnist` runs the
whole.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from colonnade import reproduction
from colonnade.federation import Federation, Settings
from colonnade.rows.holdings import Holdings
from colonnade.rows.public import from_dataset

BOUNDS = {
    "VIMADMM": 0.898,
    "VIMADMM, exact heads": 0.885,
    "VIMADMM-J": 0.888,
    "VIMSGD": 0.826,
    "VAFL": 0.47,
    "FDML": 0.811,
}


def short(name: str) -> Settings:
    plan = reproduction.plan("vim-mnist")
    settings = reproduction.Study(plan).settings(plan.runs[name])
    return dataclasses.replace(
        settings,
        data=settings.data.changed(validation=0.0),
        train=settings.train.changed(epochs=2, batch_size=256),
        engine=settings.engine.changed(seed=0, device="cpu"),
    )


@pytest.fixture(scope="module")
def holdings(data_folder: Path) -> Holdings:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLONNADE_DATA", str(data_folder))
        held = from_dataset(short("VIMADMM"))
    return held.divided(
        lambda splits: {"train": splits["train"][::20], "test": splits["test"][::3]}
    )


def test_pictures_are_cut_as_in_the_paper(holdings: Holdings) -> None:
    shapes = [tuple(held.features.shape) for held in holdings.columns.values()]
    assert shapes == [(70_000, 2, 28)] * 14
    assert holdings.roles("label_owner") == ["labels"]
    official = holdings.splits["test"]
    assert torch.equal(official, torch.arange(60_000, 70_000)[::3])


@pytest.mark.parametrize(
    "name",
    [
        "VIMADMM",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in BOUNDS
            if name != "VIMADMM"
        ),
    ],
)
def test_two_short_epochs_reach_a_good_accuracy(name: str, holdings: Holdings) -> None:
    federation = Federation(short(name), holdings)
    first, second = federation.fit().history
    assert second["loss"] < first["loss"]
    assert federation.evaluate("test")["accuracy"] > BOUNDS[name]
    model = federation.owners["client_01"].model
    assert [tuple(p.shape) for p in model.parameters()][:4] == [
        (120, 56),
        (120,),
        (60, 120),
        (60,),
    ]
