"""One organisation's part of a run: it builds what one process would, and saves itself
in a folder of its own."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.federation.small import tensors
from tests.sites.kinds import made, same_bits, trains

from colonnade.algorithms.embedding import Embed
from colonnade.core import State
from colonnade.errors import CheckpointError, ConfigError, InputError, PartyError
from colonnade.evaluate.metrics import measure
from colonnade.federation.federation import Elsewhere, Federation
from colonnade.privacy.used_rows import UsedRows
from colonnade.rows.holdings import NOBODY, Holdings
from colonnade.rows.sides import sides_to_tell
from colonnade.settings.party_file import OWN, read_own
from colonnade.sites.participant import Participant
from colonnade.sites.reader import own_columns, read_own_table

organisation = pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("one", "lab"),
        ("several", "north"),
        ("several", "lab"),
    ],
)


def part(base: Path, whole: Federation, name: str) -> Holdings:
    """What one organisation would know of it; the laboratory of one label owner reads
    its own table."""
    every = whole.holdings
    own = read_own(base / name / OWN)
    if name not in every.columns:
        held = every.label_owners[name]
        held = replace(held, rows=torch.arange(len(held.ids)))
        return replace(
            every, columns={}, label_owners={name: held}, packed=held.packed, known_to=1
        )
    if not every.server:
        table = read_own_table(own)
        return own_columns(
            own,
            table,
            {"clinic": table.ids},
            every.outputs,
            sides_to_tell(table.ids, every.labelled),
        )
    owners = {k: replace(held, labels=NOBODY) for k, held in every.label_owners.items()}
    columns = {name: every.columns[name]}
    return replace(
        every, columns=columns, label_owners=owners, outputs_elsewhere=every.outputs
    )


def participant(base: Path, whole: Federation, name: str = "lab") -> Participant:
    own = read_own(base / name / OWN)
    federation = Federation(
        own.local,
        part(base, whole, name),
        elsewhere=Elsewhere({name}, list(whole.owners)),
        between=lambda asks, _: whole.label_owners[asks].peers.transport,
    )
    return Participant(own, federation, base / name / "runs" / "run")


def begun(
    base: Path, whole: Federation, name: str = "lab", resumed: int | None = None
) -> Participant:
    one = participant(base, whole, name)
    one.begin(resumed)
    return one


def state(one: Participant) -> State:
    return one.organisation.state()


def same(one: State, other: State) -> bool:
    mine = dict(tensors(one))
    theirs = dict(tensors(other))
    return mine.keys() == theirs.keys() and all(
        torch.equal(mine[key], theirs[key]) for key in mine
    )


def learn(one: Participant) -> None:
    with torch.no_grad():
        for parameter in one.role.model.parameters():  # type: ignore[attr-defined]
            parameter.add_(1.0)


@organisation
def test_it_is_what_one_process_would_have_made_of_it(
    tmp_path: Path, kind: str, name: str
) -> None:
    whole = Federation.from_toml(made(tmp_path, kind))
    one = participant(tmp_path, whole, name)
    same_bits(
        dict(tensors(state(one), name)),
        dict(tensors(whole.organisations[name].state(), name)),
    )
    assert one.organisation.fitted == whole.organisations[name].fitted
    assert (
        one.federation.ledgers.keys() == one.federation.organisations.keys() == {name}
    )
    for owner, batches in one.federation.agreed.items():
        assert batches.fingerprint() == whole.agreed[owner].fingerprint()
        assert (
            one.federation.holdings.label_owners[owner].ids.tolist()
            == whole.holdings.label_owners[owner].ids.tolist()
        )
    if name == "lab":
        assert one.federation.batches.fingerprint() == whole.batches.fingerprint(), (
            "who has columns knows all rows"
        )
        assert torch.equal(one.role.features, whole.owners[name].features)  # type: ignore[attr-defined]


@pytest.mark.parametrize("back_to", [2, 1])
@organisation
def test_it_saves_itself_continues_and_sums_up(
    tmp_path: Path, kind: str, name: str, back_to: int
) -> None:
    whole = Federation.from_toml(made(tmp_path, kind))
    first = begun(tmp_path, whole, name)
    run = tmp_path / name / "runs" / "run"
    learn(first)
    first.save(2, 2, 1)
    with pytest.raises(ConfigError, match="already holds a run"):
        begun(tmp_path, whole, name)
    second = begun(tmp_path, whole, name, back_to)
    assert second.federation.batches.done == (2 if back_to == 2 else 0)
    assert same(state(first), state(second)) == (back_to == 2)
    second.close("all epochs done", 3)
    summary = json.loads((run / "summary.json").read_text())
    told = (summary["rounds"], summary["stopped"], summary["refused_calls"])
    assert told == (second.federation.batches.done, "all epochs done", 3)


def test_it_goes_back_to_the_last_checkpoint_that_all_have_and_nothing_is_unspent(
    tmp_path: Path,
) -> None:
    rules = {
        "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 50.0}}
    }
    whole = Federation.from_toml(
        made(tmp_path, "one", parties={"lab": {"outbox": rules}})
    )
    lab = begun(tmp_path, whole)
    before = {
        place: tensor.clone() for place, tensor in tensors(state(lab)["features"])
    }
    lab.role.answer(Embed("train/0/0"))
    learn(lab)
    lab.save(1, 2, common=1)
    lab.role.answer(Embed("train/0/1"))  # never saved, but written down before it left
    spent = {item: counts.sum() for item, counts in lab.accounts["lab"].counts.items()}
    assert [mark["number"] for mark in lab.run.marks()] == [2, 1]
    lab.leave()
    again = begun(tmp_path, whole, resumed=1)
    same_bits(before, dict(tensors(state(again)["features"])))
    assert again.federation.batches.done == 0
    assert {
        item: counts.sum() for item, counts in again.accounts["lab"].counts.items()
    } == spent
    again.save(1, 2, common=1)
    again.save(2, 3, common=2)
    kept = sorted(path.name for path in again.run.party("lab").glob("checkpoint-*"))
    assert kept == ["checkpoint-000002", "checkpoint-000003"]


def test_what_not_all_had_begun_begins_again_and_never_with_another_table(
    tmp_path: Path,
) -> None:
    whole = Federation.from_toml(made(tmp_path, "one"))
    first = begun(tmp_path, whole)
    second = begun(tmp_path, whole, resumed=0)
    assert [mark["number"] for mark in second.run.marks()] == [1]
    assert same(state(first), state(second))
    table = tmp_path / "all" / "lab.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([lines[0], *(f"{line}1" for line in lines[1:])]))
    with pytest.raises(CheckpointError, match="is not the one"):
        begun(tmp_path, whole, resumed=1)


def test_its_scores_are_those_of_one_process(tmp_path: Path) -> None:
    whole = Federation.from_toml(made(tmp_path, "several"))
    one = participant(tmp_path, whole, "north")
    rows = whole.agreed["north"].splits["test"]
    assert one.measure("test", "aggregated") == (
        whole.score("test").each["north"],
        len(rows),
    )
    assert one.measure("nothing", "own") == ({}, 0)


def test_training_rows_are_measured_with_the_drawn_labels_since_the_score_goes_to_others(
    tmp_path: Path,
) -> None:
    drawn = {"labels": {"mechanism": {"name": "randomized_response", "epsilon": 0.5}}}
    file = made(tmp_path, "several", label_owners=[{"name": "north", "outbox": drawn}])
    one = participant(tmp_path, Federation.from_toml(file), "north")
    holdings = one.federation.holdings
    owner = one.federation.label_owners["north"]
    rows = one.federation.agreed["north"].splits["train"]
    true = holdings.labelled.labels
    outputs, (scores, _) = (
        one.federation.outputs("train"),
        one.measure("train", "aggregated"),
    )
    assert scores == measure(holdings.loss, outputs, owner.labels[rows])
    assert scores != measure(holdings.loss, outputs, true[rows])


def test_whatever_keeps_an_organisation_from_taking_part_frees_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {
        "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 50.0}}
    }
    made(tmp_path, "one", parties={"lab": {"outbox": rules}})
    alive: list[object] = []

    def full(rows: UsedRows, *_: object) -> None:
        alive.append(sys._getframe(1))  # whoever failed is not collected as garbage
        raise InputError(f"'{rows.owner}' has no room.")

    with monkeypatch.context() as disk:
        disk.setattr(UsedRows, "keep", full)
        with pytest.raises(PartyError, match=r"'lab' failed while .*: InputError"):
            trains(tmp_path, "one")
    assert alive
    trains(tmp_path, "one")
