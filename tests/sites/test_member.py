"""An organisation with columns alone: what it builds is what one process would, and its folder is its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.federation.small import frames, learned_of, quick, tensors
from tests.federation.small_sites import folders

from colonnade.algorithms.embedding import Embed
from colonnade.errors import CheckpointError, ConfigError, DataError
from colonnade.federation import Federation
from colonnade.settings.party_file import OWN, read_own
from colonnade.sites.member import Member, own_holdings, read_own_table, rehearse

CPU = torch.device("cpu")


def member(base: Path, name: str = "lab", run: str = "run", *, resumed: int | None = None) -> Member:
    own = read_own(base / name / OWN)
    return Member(own, own_holdings(own, None), 1, base / name / "runs" / run, device=CPU, resumed=resumed)


def test_it_is_what_one_process_would_have_made_of_it(tmp_path: Path) -> None:
    file, _ = folders(tmp_path)
    whole, lab = Federation.from_toml(file), member(tmp_path)
    assert lab.batches.fingerprint() == whole.batches.fingerprint()
    assert torch.equal(lab.owner.features, whole.owners["lab"].features)
    mine = dict(tensors(lab.state_of("lab"), "lab"))
    theirs = {place: t for place, t in learned_of(whole).items() if place.startswith("lab/")}
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[place], theirs[place]) for place in mine)


def test_it_saves_itself_and_continues(tmp_path: Path) -> None:
    folders(tmp_path)
    first = member(tmp_path)
    with torch.no_grad():
        for parameter in first.owner.model.parameters():
            parameter.add_(1.0)
    first.save(5, 2)
    second = member(tmp_path, resumed=2)
    assert second.batches.done == 5
    one, other = dict(tensors(first.state_of("lab"))), dict(tensors(second.state_of("lab")))
    assert all(torch.equal(one[place], other[place]) for place in one)
    second.close("all epochs done", 3)
    summary = json.loads((tmp_path / "lab" / "runs" / "run" / "summary.json").read_text())
    assert (summary["rounds"], summary["stopped"], summary["refused_calls"]) == (5, "all epochs done", 3)


def test_it_goes_back_to_the_last_checkpoint_that_all_have_and_nothing_is_unspent(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    rules = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 50.0}}}
    folders(tmp_path, settings=quick(parties={"lab": {"outbox": rules}}))
    lab = member(tmp_path)
    before = {place: tensor.clone() for place, tensor in tensors(lab.state_of("lab")["features"])}
    lab.owner.answer(Embed("train/0/0"))
    with torch.no_grad():
        for parameter in lab.owner.model.parameters():
            parameter.add_(1.0)
    lab.save(1, 2, common=1)
    lab.owner.answer(Embed("train/0/1"))  # never saved, but written down before it left
    spent = {item: counts.sum() for item, counts in lab.accounts["lab"].counts.items()}
    assert [mark["number"] for mark in lab.run.marks()] == [2, 1]
    lab.purse.leave()
    again = member(tmp_path, resumed=1)
    after = dict(tensors(again.state_of("lab")["features"]))
    assert all(torch.equal(before[place], after[place]) for place in before)
    assert again.batches.done == 0
    assert {item: counts.sum() for item, counts in again.accounts["lab"].counts.items()} == spent
    again.save(1, 2, common=1)
    again.save(2, 3, common=2)
    kept = sorted(path.name for path in again.run.party("lab").glob("checkpoint-*"))
    assert kept == ["checkpoint-000002", "checkpoint-000003"]


def test_what_not_all_had_begun_begins_again(tmp_path: Path) -> None:
    folders(tmp_path)
    first = member(tmp_path)
    second = member(tmp_path, resumed=0)
    assert [mark["number"] for mark in second.run.marks()] == [1]
    one, other = dict(tensors(first.state_of("lab"))), dict(tensors(second.state_of("lab")))
    assert all(torch.equal(one[place], other[place]) for place in one)


def test_a_run_is_not_overwritten_and_not_continued_with_another_table(tmp_path: Path) -> None:
    folders(tmp_path)
    member(tmp_path)
    with pytest.raises(ConfigError, match="already holds a run"):
        member(tmp_path)
    table = tmp_path / "all" / "lab.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([lines[0], *(f"{line}1" for line in lines[1:])]))
    with pytest.raises(CheckpointError, match="is not the one"):
        member(tmp_path, resumed=1)


def test_rows_are_in_the_order_of_the_ids(tmp_path: Path) -> None:
    folders(tmp_path)
    own = read_own(tmp_path / "lab" / OWN)
    table = read_own_table(own, None)
    assert table.ids.tolist() == sorted(frames()["lab"]["patient"])
    some = read_own_table(own, torch.tensor([3, 1]).numpy())
    assert some.ids.tolist() == sorted(table.ids[[3, 1]].tolist())


def test_an_organisation_without_columns_has_no_place(tmp_path: Path) -> None:
    given = frames()
    given["lab"] = given["lab"][["patient"]]
    folders(tmp_path, given)
    with pytest.raises(DataError, match=r"'lab'"):
        own_holdings(read_own(tmp_path / "lab" / OWN), None)


def test_a_rehearsal_finds_what_would_fail_later(tmp_path: Path) -> None:
    folders(tmp_path)
    for name in ("clinic", "lab"):
        holdings, seat = rehearse(read_own(tmp_path / name / OWN))
        assert list(holdings.parties) == [name]
        assert seat.name == name
    for wrong, message in (
        ('[outbox]\nembeding = { mechanism = "plain" }', "which is never released"),
        ('model = "mlpp"', "mlpp"),
        ('columns = ["copper"]', "copper"),
        ("[budget]\nepsilon = 1.0", "can never be kept"),
    ):
        path = tmp_path / "lab" / OWN
        before = path.read_text()
        path.write_text(f"{before}\n{wrong}\n")
        with pytest.raises((ConfigError, DataError), match=message):
            rehearse(read_own(path))
        path.write_text(before)


def test_a_part_of_a_public_data_set_is_cut_out(tmp_path: Path) -> None:
    settings = quick(data={"dataset": "breast_cancer", "parts": [10, 20]})
    tables = {key: value for key, value in settings.items() if key != "parties"}
    from colonnade.federation import Settings
    from colonnade.rows.holdings import from_dataset
    from colonnade.settings.party_file import write_agreed, write_own

    checked = Settings.from_mapping(tables)
    whole = from_dataset(checked)
    named = Settings.from_mapping({**tables, "parties": {name: {} for name in whole.parties}})
    name = next(name for name, held in whole.parties.items() if held.features is not None)
    write_agreed(tmp_path, named)
    write_own(tmp_path, named, name)
    mine = own_holdings(read_own(tmp_path / OWN), None)
    assert list(mine.parties) == [name]
    features, same = mine.parties[name].features, whole.parties[name].features
    assert features is not None
    assert same is not None
    assert torch.equal(features, same)
