"""A helper as a site without data: it compares keyed hashes, and the run is the one
that Diffie-Hellman would make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.federation import small_multi_sites
from tests.federation.small import checkpoint_of, quick
from tests.federation.small_sites import (
    ALONE,
    ask,
    folders,
    saved,
    sites,
    taken_at,
    told,
)
from tests.federation.test_rows_differ import ABLE
from tests.federation.test_rows_differ import three as differing
from tests.sites.kinds import same_bits
from tests.sites.test_rows_differ import between

from colonnade.alignment.helper import Begin
from colonnade.alignment.keyed import AgreeKeyed, HandOut
from colonnade.errors import BoundaryError, ConfigError, PartyError
from colonnade.federation import Federation
from colonnade.settings.party_file import OWN, read_own
from colonnade.settings.selection import SERVER
from colonnade.sites.driving import drive, rehearse

HELPED = {"protocol": "helper", "helper": "trust"}


def helped(**more: Any) -> dict[str, Any]:
    return quick(**ALONE, data={"align": "private"}, alignment=HELPED, **more)


def test_sites_train_as_one_process_does_and_predict(tmp_path: Path) -> None:
    file, _ = folders(tmp_path, settings=helped())
    Federation.from_toml(file).fit(tmp_path / "here")
    drive(sites(tmp_path)["clinic"], "run")
    same_bits(checkpoint_of(tmp_path / "here"), saved(tmp_path, "run"))
    lines = (
        (tmp_path / "lab" / "runs" / "run" / "parties" / "lab" / "ledger.jsonl")
        .read_text()
        .splitlines()
    )
    sent = [one for one in map(json.loads, lines) if one["name"] == "keyed_ids"]
    assert {(one["peer"], one["direction"]) for one in sent} == {("trust", "out")}
    assert "blinded_ids" not in "".join(lines)
    assert not (tmp_path / "trust" / "runs" / "run").exists()
    # by Diffie-Hellman, with each alone
    assert len(told(tmp_path, ["P003", "P001"])) == 2


def test_a_partner_that_lacks_rows_is_compared_with_the_label_owner_alone(
    tmp_path: Path,
) -> None:
    settings = between(ABLE[0])
    folders(tmp_path / "curve", differing(), settings)
    folders(tmp_path / "helper", differing(), {**settings, "alignment": HELPED})
    scores = {
        name: drive(sites(tmp_path / name)["clinic"], "run").summary["metrics"]
        for name in ("curve", "helper")
    }
    assert scores["curve"] == scores["helper"]


def test_several_label_owners_share_a_helper(tmp_path: Path) -> None:
    scores = {}
    for name, more in (("curve", {}), ("helper", {"alignment": HELPED})):
        small_multi_sites.folders(tmp_path / name, small_multi_sites.private(**more))
        scores[name] = drive(sites(tmp_path / name)[SERVER], "run").summary["metrics"]
    assert scores["curve"] == scores["helper"]


def lab_in(base: Path, **limits: int) -> dict[str, Any]:
    folders(base, settings=helped())
    path = base / "lab" / OWN
    path.write_text(
        f"{path.read_text()}\n[alignments]\n"
        + "".join(f"{key} = {n}\n" for key, n in limits.items())
    )
    every = sites(base)
    for site in (every["clinic"], every["lab"]):
        site.read()
    return every


def test_allowances_hold_for_it(tmp_path: Path) -> None:
    every = lab_in(tmp_path, per_day=2)
    for _ in range(2):
        every["clinic"].align()
    taken = taken_at(tmp_path, "lab")
    assert taken["clinic"]["alignments"] == 2
    with pytest.raises(PartyError, match="it aligns with 'clinic' 2 times a day"):
        every["clinic"].align()


def test_no_list_leaves_where_another_is_too_short(tmp_path: Path) -> None:
    every = lab_in(tmp_path, smallest=1000)
    with pytest.raises(
        PartyError,
        match="it compares lists of 1000 ids or more, and the shortest has 80",
    ):
        every["clinic"].align()
    assert not any(
        entry.direction == "out" for entry in every["lab"].keyed.ledger.entries
    )


def test_a_driver_that_has_the_key_is_given_no_list(tmp_path: Path) -> None:
    """It would test every id that it guesses; and a helper of its own making is nobody."""
    lab = lab_in(tmp_path)["lab"]
    both = ("clinic", "lab")
    ask(lab, "clinic", AgreeKeyed(both, "exact", "rows", both, "trust", "ab" * 32))
    with pytest.raises(BoundaryError, match="this is for trust to ask"):
        ask(lab, "clinic", HandOut(both, 80, 0, 10))
    with pytest.raises(PartyError, match="its settings say helper = 'trust'"):
        ask(lab, "clinic", AgreeKeyed(both, "exact", "rows", both, "clinic", "ab" * 32))


def test_the_helper_answers_label_owners_alone(tmp_path: Path) -> None:
    every = lab_in(tmp_path)
    with pytest.raises(BoundaryError, match="this is for clinic to ask"):
        ask(every["trust"], "lab", Begin(("clinic", "lab"), "rows", ()))


def test_a_helper_has_a_site_without_data(tmp_path: Path) -> None:
    folders(tmp_path, settings=helped())
    own = read_own(tmp_path / "trust" / OWN)
    assert own.names == ("clinic", "lab", "trust")
    assert own.feature_owners == ["lab"]
    assert own.section == ""
    assert rehearse(own) is None
    path = tmp_path / "trust" / OWN
    path.write_text('table = "people.csv"\n' + path.read_text())
    with pytest.raises(ConfigError, match="has no setting 'table'"):
        read_own(path)


def test_a_helper_needs_ids_that_are_found_privately(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"where they are found privately, and \[data\] align is 'exact'",
    ):
        folders(tmp_path, settings=quick(**ALONE, alignment=HELPED))
