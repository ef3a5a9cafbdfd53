"""Each of several label owners attacks and is attacked by its own part; one label owner
is the case of one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.attacks.runs import few_steps, settings
from tests.federation import small_multi
from tests.federation.small import federation, frames
from tests.federation.small_multi import COLUMNS, LABELS, quick, write

from colonnade.attacks import audit_federation, audit_run
from colonnade.attacks.rehearsal import first_rounds, part_of
from colonnade.errors import AuditFailed
from colonnade.federation import Federation
from colonnade.settings.selection import SERVER

SETTINGS = quick(train={"epochs": 1}, audit={"inversion_r2": 1.0})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    Federation.from_toml(write(folder, SETTINGS)).fit(folder / "run")
    return folder / "run"


def test_every_label_owner_and_data_owner_is_attacked_by_who_received_its_secret(
    run: Path,
) -> None:
    with few_steps():
        found = audit_run(run, rows=8)
    labels = {
        (one.attacker, one.victim)
        for one in found.findings
        if one.limit == "label_inference"
    }
    assert labels == {(data, owner) for data in COLUMNS for owner in LABELS}
    columns = {
        (one.attacker, one.victim)
        for one in found.findings
        if one.attack == "columns by model inversion"
    }
    assert columns == {(owner, data) for data in COLUMNS for owner in LABELS}
    weights = {(one.owner, one.receiver) for one in found.not_attacked}
    assert weights == {(owner, SERVER) for owner in LABELS} | {
        (SERVER, owner) for owner in LABELS
    }
    with pytest.raises(
        AuditFailed, match="weights of north, read by aggregation_server"
    ):
        found.check()


def test_a_part_has_the_label_owners_rows_in_its_order() -> None:
    made = small_multi.federation(SETTINGS)
    several = Federation(made.settings, made.holdings, record=True)
    part = part_of(several, "south")
    given = small_multi.frames()
    assert part.holdings.label_owner == "south"
    iron = (
        given["lab"]
        .set_index("patient")
        .loc[part.holdings.ids.tolist(), "iron"]
        .to_numpy()
    )
    shown = part.owners["lab"].features[:, 0].double()
    assert (
        float(torch.corrcoef(torch.stack([shown, torch.from_numpy(iron.copy())]))[0, 1])
        > 0.9999
    )
    heard = first_rounds(several, 8).of(several, "south")
    assert {seen.sender for seen in heard.transcripts["lab"]} == {"south"}
    assert {seen.sender for seen in heard.transcripts["south"]} == {*COLUMNS, SERVER}


def test_of_one_label_owner_the_part_is_the_whole() -> None:
    whole = federation(frames(), settings("splitnn"), record=True)
    part = part_of(whole, "clinic")
    assert part.holdings is whole.holdings
    assert part.owners == whole.owners
    with few_steps():
        assert audit_federation(whole, rows=8).findings
