"""One organisation's part: built from its own rows it is what one process would have made of it; it saves itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.federation.small import tensors
from tests.federation.small_multi import LABELS, federation
from tests.federation.small_multi_sites import folders, private

from colonnade.errors import ConfigError
from colonnade.evaluate.metrics import measure
from colonnade.federation import MultiFederation
from colonnade.rows.shares import Shares
from colonnade.settings.party_file import OWN, read_own
from colonnade.sites.multi_member import MultiMember, agreed_on

pytest.importorskip("coincurve", reason='private alignment needs pip install "colonnade[crypto]"')
CPU = torch.device("cpu")


def part(whole: MultiFederation, name: str) -> Shares:
    """What one organisation would know of it."""
    all_ = whole.holdings
    if name in all_.data_owners:
        return Shares(all_.label_owners, {name: all_.data_owners[name]}, all_.ids, all_.encoder, all_.known_to)
    share = all_.label_owners[name]
    return Shares({name: share}, {}, share.ids, all_.encoder, 1)


def member(base: Path, whole: MultiFederation, name: str) -> MultiMember:
    one = MultiMember(read_own(base / name / OWN), part(whole, name), CPU)
    if name in LABELS:
        one.owner.peers = whole.label_owners[name].peers
        one.owner.meet(one.owner.peers.ask(one.nested.introduce()))
    return one


@pytest.mark.parametrize("name", ["north", "lab"])
def test_it_is_what_one_process_would_have_made_of_it(tmp_path: Path, name: str) -> None:
    file, _ = folders(tmp_path, private())
    whole = MultiFederation.from_toml(file)
    one = member(tmp_path, whole, name)
    mine, theirs = (dict(tensors(state, name)) for state in (one.state_of(name), whole.state_of(name)))
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert one.holdings.state_of(name) == whole.holdings.state_of(name)
    assert one.ledgers.keys() == one.seats.keys() == {name}
    if name == "lab":
        assert one.batches.fingerprint() == whole.batches.fingerprint(), "a data owner knows all rows"


@pytest.mark.parametrize("back_to", [2, 1])
@pytest.mark.parametrize("name", ["north", "lab"])
def test_it_saves_itself_continues_and_sums_up(tmp_path: Path, name: str, back_to: int) -> None:
    file, _ = folders(tmp_path, private())
    whole = MultiFederation.from_toml(file)
    first, run = member(tmp_path, whole, name), tmp_path / name / "runs" / "run"
    first.open(run, None)
    with torch.no_grad():
        for parameter in first.owner.model.parameters():
            parameter.add_(1.0)
    first.save(2, 2, 1)
    with pytest.raises(ConfigError, match="already holds a run"):
        member(tmp_path, whole, name).open(run, None)
    second = member(tmp_path, whole, name)
    second.open(run, back_to)
    assert second.batches.done == (2 if back_to == 2 else 0)
    one, other = dict(tensors(first.state_of(name))), dict(tensors(second.state_of(name)))
    assert all(torch.equal(one[key], other[key]) for key in one) == (back_to == 2)
    second.close("all epochs done", 3)
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["rounds"], summary["stopped"], summary["refused_calls"]) == (
        second.batches.done, "all epochs done", 3
    )  # fmt: skip


def test_rows_are_agreed_on_by_what_each_knows() -> None:
    whole = federation()
    for name in ("north", "lab"):
        assert (
            agreed_on(whole.settings, part(whole, name))["north"].fingerprint() == whole.agreed["north"].fingerprint()
        )


def test_its_scores_are_those_of_one_process(tmp_path: Path) -> None:
    file, _ = folders(tmp_path, private())
    whole = MultiFederation.from_toml(file)
    one = member(tmp_path, whole, "north")
    assert one.measure("test", "aggregated") == (
        whole.score("test").each["north"],
        len(whole.agreed["north"].splits["test"]),
    )
    assert one.measure("nothing", "own") == ({}, 0)


def test_training_rows_are_measured_with_the_drawn_labels_since_the_score_goes_to_others(tmp_path: Path) -> None:
    drawn = {"labels": {"mechanism": {"name": "randomized_response", "epsilon": 0.5}}}
    file, _ = folders(tmp_path, private(label_owners=[{"name": "north", "outbox": drawn}]))
    one = member(tmp_path, MultiFederation.from_toml(file), "north")
    rows, true = one.agreed["north"].splits["train"], one.holdings.label_owners["north"].labels
    outputs, (scores, _) = one.outputs("train", "aggregated"), one.measure("train", "aggregated")
    assert scores == measure(one.holdings.loss, outputs, one.owner.labels[rows])
    assert scores != measure(one.holdings.loss, outputs, true[rows])
