"""A driver or a party that says much with few bytes: what a call costs follows from
what its receiver holds itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.algorithms.test_boosted_trees import between, table
from tests.federation.small import frames, quick
from tests.federation.small_sites import ALONE, ask, folders, sites

from colonnade.algorithms import (
    compressed_vfl,
    logistic_regression,
    vimadmm,
    vimadmm_joint,
)
from colonnade.algorithms.boosted_trees import Config
from colonnade.algorithms.embedding import Embed
from colonnade.algorithms.tree_owner import Split, Start, UseKey
from colonnade.compression import TopK
from colonnade.core import Envelope, Outbox, Rule
from colonnade.core.party import Bounds
from colonnade.core.roles import LARGEST_WIDTH, Introduction, check_shape
from colonnade.encryption.elgamal import ElGamalSecretKey
from colonnade.errors import ConfigError, PartyError
from colonnade.sites.driving import drive
from colonnade.sites.messages import Join, Prepare
from colonnade.sites.site import Site

ONE_BATCH = {"epochs": 1, "batch_size": 64, "early_stop": False}
WIDE = 1 << 12


def site(base: Path, name: str, outputs: int = 1, **config: Any) -> Site:
    """The laboratory's, prepared for a run of so many outputs."""
    settings = {**quick(train=ONE_BATCH, **ALONE), "algorithm": {"name": name} | config}
    folders(base, frames(), settings)
    lab = sites(base)["lab"]
    ask(lab, "clinic", Join(lab.own.agreed))
    ask(lab, "clinic", Prepare("run", outputs, False, 0))
    return lab


def refused(lab: Site, request: Any, why: str) -> None:
    with pytest.raises(PartyError, match=why):
        ask(lab, "clinic", request)


def outbox() -> Outbox:
    """One that packs a matrix of nearly only zeros into few bytes."""
    return Outbox("clinic", torch.Generator(), {"head": Rule(codec=TopK(1 / 1024))})


def test_a_head_is_as_large_as_the_run_was_prepared_for(tmp_path: Path) -> None:
    """[4, 2^20], packed to some kilobytes, met every row of a batch."""
    lab = site(tmp_path, "vimadmm")
    out = outbox()
    width = ask(lab, "clinic", Embed("train/0/0")).values.shape[1]
    wide = out.release(torch.zeros(width, WIDE), "head")
    refused(lab, vimadmm.Adopt(wide), f"it is for {WIDE} outputs")
    good, small = (
        out.release(torch.zeros(*shape), "residual") for shape in ((width, 1), (1, 1))
    )
    rows = ask(lab, "clinic", Embed("train/0/0")).values.shape[0]
    refused(lab, vimadmm.Improve("train/0/0", small, good), "it was told no head yet")
    ask(lab, "clinic", vimadmm.Adopt(good))
    refused(lab, vimadmm.Improve("train/0/0", small, wide), r"the head has the shape")
    refused(
        lab,
        vimadmm.Improve("train/0/0", small, good),
        rf"the residual has the shape \[1, 1\].*\[{rows}, 1\]",
    )


def test_so_are_a_joint_residual_and_a_model_of_compressed_vfl(tmp_path: Path) -> None:
    for name in ("joint", "compressed", "logistic"):
        (tmp_path / name).mkdir()
    lab = site(tmp_path / "joint", "vimadmm_joint")
    out = outbox()
    rows = ask(lab, "clinic", Embed("train/0/0")).values.shape[0]
    many = out.release(torch.zeros(WIDE, rows, 1), "head")
    refused(lab, vimadmm_joint.Improve("train/0/0", many), "the residual has the shape")
    lab = site(tmp_path / "logistic", "logistic_regression")
    refused(
        lab,
        logistic_regression.Move("train/0/0", 1.0, many),
        "the gradient has the shape",
    )
    lab = site(tmp_path / "compressed", "compressed_vfl")
    rows, width = ask(lab, "clinic", Embed("train/0/0")).values.shape
    labels = out.release(torch.zeros(rows, dtype=torch.int64), "targets")
    again = out.publish(
        torch.zeros(WIDE, dtype=torch.int64).numpy().tobytes(), "inputs"
    )
    refused(
        lab,
        compressed_vfl.Join(f"train[0:{rows}]", labels, again),
        "each input of the model has one place",
    )
    inputs = out.publish(torch.arange(width).numpy().tobytes(), "inputs")
    ask(lab, "clinic", compressed_vfl.Join(f"train[0:{rows}]", labels, inputs))
    for outputs, why in (
        (WIDE, f"it is for {WIDE} outputs"),
        (1, "a part of the model has the shape"),
    ):
        model = tuple(
            out.release(torch.zeros(*shape), "head")
            for shape in ((WIDE, width), (outputs,))
        )
        refused(lab, compressed_vfl.Improve("train/0/0", (), model), why)


def test_no_run_has_outputs_that_nobody_has_room_for(tmp_path: Path) -> None:
    """2^20 of them, and logits of a few rows: hundreds of bytes for gigabytes."""
    folders(
        tmp_path,
        frames(),
        {**quick(train=ONE_BATCH, **ALONE), "algorithm": {"name": "fdml"}},
    )
    lab = sites(tmp_path)["lab"]
    ask(lab, "clinic", Join(lab.own.agreed))
    refused(
        lab, Prepare("run", 1 << 20, False, 0), "a model cannot have 1048576 outputs"
    )
    ask(lab, "clinic", Prepare("run", WIDE, False, 0))
    assert lab.participant is not None
    lab.participant.organisation.bounds = Bounds(WIDE, 40 * WIDE * 4)
    refused(
        lab, Embed("train/0/0"), "rows at once would take more than its memory_per_call"
    )
    assert ask(lab, "clinic", Embed("train[0:40]")).values.shape == (40, WIDE)


def prepared_trees(**config: Any) -> tuple[Any, Outbox, int]:
    x, y = table()
    toy = between({"bank": x[:, :2], "lab": x[:, 2:]}, y, Config(**config))
    lab = toy.parties["lab"]
    lab.organisation.bounds = Bounds(1, 1 << 28)
    return lab, toy.driver.outbox, len(toy.batches.splits["train"])


def told(lab: Any, request: Any, number: int) -> Any:
    return lab.handle(Envelope("bank", (1 << 61) + number, request))


@pytest.mark.filterwarnings("ignore:boosted_trees without encryption")
def test_trees_are_as_many_as_outputs_and_learn_from_rows() -> None:
    """Gradients of no rows and thousands of trees: a frame of a kilobyte, and minutes
    of work."""
    lab, out, rows = prepared_trees(encryption="none")
    nobody = out.release(torch.zeros(rows, 1), "sample", "train/0/0")
    for shape, sample, why in (
        ((0, 1), nobody, "a round came that learns from no row"),
        ((rows, 2), None, "2 trees came for 1 outputs"),
        ((rows, 0), None, "0 trees came for 1 outputs"),
    ):
        g, h = (
            out.release(torch.zeros(*shape), name, "train/0/0")
            for name in ("gradients", "hessians")
        )
        with pytest.raises(PartyError, match=why):
            told(lab, Start("train/0/0", 0, 0, g, h, sample), 1)
    for nodes, most in (("shown", 2), ("hidden", 16)):
        lab, out, _ = prepared_trees(nodes=nodes)
        with pytest.raises(PartyError, match="trees came for 1 outputs"):
            told(
                lab,
                UseKey(
                    out.publish(
                        ElGamalSecretKey(most + 2).public.to_bytes(), "public_key"
                    )
                ),
                1,
            )
        told(
            lab,
            UseKey(out.publish(ElGamalSecretKey(most).public.to_bytes(), "public_key")),
            2,
        )


@pytest.mark.filterwarnings("ignore:boosted_trees without encryption")
def test_a_node_is_split_once() -> None:
    """One that was named again and again took quadratic time, and made every later
    answer longer."""
    lab, out, rows = prepared_trees(encryption="none")
    g, h = (
        out.release(torch.ones(rows, 1), name, "train/0/0")
        for name in ("gradients", "hessians")
    )
    told(lab, Start("train/0/0", 0, 0, g, h, None), 1)
    chosen = int(lab._growing.open[0].offered.nonzero()[0][0])

    def split(times: int) -> Split:
        return Split(
            "train/0/0",
            out.release(torch.tensor([[0, chosen]] * times), "splits", "train/0/0"),
        )

    with pytest.raises(PartyError, match="a node is split once"):
        told(lab, split(2), 2)
    told(lab, split(1), 3)
    with pytest.raises(PartyError, match="a node is split once"):
        told(lab, split(1), 4)
    assert [len(one["column"]) for one in lab.rounds] == [1]


@pytest.mark.parametrize("shape", [(1 << 27,), (1 << 10, 1 << 10), (0,), (-1,), ()])
def test_a_party_cannot_say_that_it_sends_more_than_there_is_room_for(
    shape: tuple[int, ...],
) -> None:
    with pytest.raises(ConfigError, match="'lab' says that it sends"):
        check_shape("lab", shape)
    check_shape("lab", (LARGEST_WIDTH,))


@pytest.mark.parametrize("name", ["splitnn", "vimadmm", "boosted_trees"])
def test_a_label_owner_makes_no_room_for_a_width_that_a_party_made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folders(
        tmp_path,
        frames(),
        {**quick(train=ONE_BATCH, **ALONE), "algorithm": {"name": name}},
    )
    every = sites(tmp_path)
    honest = Introduction.__init__

    def lying(
        self: Introduction, shape: tuple[int, ...], rows: int, agreed: str
    ) -> None:
        honest(self, (1 << 27,), rows, agreed)

    monkeypatch.setattr(Introduction, "__init__", lying)
    with pytest.raises(
        ConfigError, match=r"says that it sends \[134217728\] numbers for a row"
    ):
        drive(every["clinic"], "run")
