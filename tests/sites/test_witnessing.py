"""Sites tell each other how far their stores have come, and an older copy of a whole
disk is found by what others keep."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.federation.small import quick
from tests.federation.small_sites import ALONE, folders, sites

from colonnade.errors import BoundaryError, PartyError
from colonnade.runs.stores import peek_site_store
from colonnade.settings.party_file import OWN
from colonnade.sites.driving import drive
from colonnade.sites.keeping import recover_store
from colonnade.sites.site import Site
from colonnade.sites.witnessing import LONGEST, Statement, unpack
from colonnade.store import SiteStore

pytest.importorskip("dp_accounting")

REFUSED = (PartyError, BoundaryError)
NOISE = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 50.0}}}


def made(base: Path) -> None:
    """A clinic that drives, and a laboratory whose rows are counted."""
    lab: dict[str, Any] = {"outbox": NOISE}
    folders(base, settings=quick(**ALONE, parties={"lab": lab}, train={"epochs": 1}))


def trained(base: Path, run: str) -> dict[str, Site]:
    every = sites(base)
    drive(every["clinic"], run)
    return every


def disk_of(base: Path) -> list[Path]:
    """All of the laboratory's that could show that its store is older."""
    return [base / "lab" / "runs", base / "lab" / "runs.anchor"]


def save_disk(base: Path) -> None:
    for path in disk_of(base):
        shutil.copytree(path, base / "saved" / path.name)


def put_disk_back(base: Path) -> None:
    for path in disk_of(base):
        shutil.rmtree(path)
        shutil.copytree(base / "saved" / path.name, path)


def spent(base: Path) -> int:
    store = peek_site_store("lab", base / "lab" / "runs")
    assert store is not None
    return max((sum(way.values()) for way in store.ways()), default=0)


def test_the_driver_keeps_how_far_a_partners_store_has_come(tmp_path: Path) -> None:
    made(tmp_path)
    every = trained(tmp_path, "one")
    lab = every["lab"].store
    kept = every["clinic"].store.keeper.witness_of("lab")
    assert kept is not None
    assert kept.charges == lab.witness().charges > 0
    assert every["lab"].store.keeper.witness_of("clinic") is not None


def test_a_whole_disk_that_was_put_back_releases_nothing(tmp_path: Path) -> None:
    """At home nothing shows it: store and anchor are equally old."""
    made(tmp_path)
    trained(tmp_path, "one")
    save_disk(tmp_path)
    trained(tmp_path, "two")
    before = spent(tmp_path)
    put_disk_back(tmp_path)
    assert spent(tmp_path) < before
    with pytest.raises(REFUSED, match="is an older copy"):
        trained(tmp_path, "three")
    assert spent(tmp_path) < before, "nothing was released since"


def test_a_recovered_store_takes_part_again(tmp_path: Path) -> None:
    made(tmp_path)
    trained(tmp_path, "one")
    save_disk(tmp_path)
    every = trained(tmp_path, "two")
    before = spent(tmp_path)
    kept = every["clinic"].store.keeper.witness_of("lab")
    put_disk_back(tmp_path)
    assert kept is not None
    recover_store(sites(tmp_path)["lab"].own, witnesses=[kept])
    assert spent(tmp_path) >= before
    trained(tmp_path, "three")
    assert spent(tmp_path) > before


def test_a_store_that_was_begun_anew_is_not_taken_for_the_one_that_was_met(
    tmp_path: Path,
) -> None:
    made(tmp_path)
    trained(tmp_path, "one")
    for path in (tmp_path / "lab" / "runs" / "store", tmp_path / "lab" / "runs.anchor"):
        shutil.rmtree(path)
    anew = SiteStore.create(
        tmp_path / "lab" / "runs" / "store",
        "lab",
        anchor=tmp_path / "lab" / "runs.anchor",
    )
    anew.close()
    with pytest.raises(REFUSED, match="is not the one that"):
        trained(tmp_path, "two")


def test_a_driver_whose_own_disk_was_put_back_is_told_by_its_partner(
    tmp_path: Path,
) -> None:
    made(tmp_path)
    trained(tmp_path, "one")
    runs, anchor = tmp_path / "clinic" / "runs", tmp_path / "clinic" / "runs.anchor"
    for path in (runs, anchor):
        shutil.copytree(path, tmp_path / "saved" / path.name)
    every = sites(tmp_path)
    for number in range(3):
        every["clinic"].store.note_run(f"note-{number}", {})
    drive(every["clinic"], "two")
    for path in (runs, anchor):
        shutil.rmtree(path)
        shutil.copytree(tmp_path / "saved" / path.name, path)
    with pytest.raises(REFUSED, match="is an older copy"):
        trained(tmp_path, "three")


def test_a_peer_that_keeps_nothing_needs_the_owners_word_once_rows_were_released(
    tmp_path: Path,
) -> None:
    made(tmp_path)
    trained(tmp_path, "one")
    shutil.rmtree(tmp_path / "clinic" / "runs" / "store" / "witnesses")
    (tmp_path / "clinic" / "runs" / "store" / "witnesses").mkdir()
    with pytest.raises(REFUSED, match="had a right one before"):
        trained(tmp_path, "two")
    own = tmp_path / "lab" / OWN
    own.write_text(f"{own.read_text()}\n[store]\nnew_peers = true\n")
    with pytest.raises(REFUSED, match="had a right one before"):
        trained(tmp_path, "two")  # that is for peers that were never met


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        b"\xff\xff",
        b"\x02\x00[]",
        b"\x02\x00{}",
        b"\x04\x00[1,2",
        b"\x08\x00[1,2,3] ",
        b'\x0c\x00["x","",""] ',
        (LONGEST + 1).to_bytes(2, "little") + b" " * (LONGEST + 1),
    ],
)
def test_what_is_no_statement_is_refused(data: bytes) -> None:
    with pytest.raises(BoundaryError, match="does not begin with"):
        unpack(data)


def test_a_statement_survives_its_journey(tmp_path: Path) -> None:
    with SiteStore.create(tmp_path / "store", "lab") as store:
        said = Statement(store.witness(), store.public_key, None)
    assert unpack(said.pack() + b"the call") == (said, b"the call")
    assert unpack(Statement().pack()) == (Statement(), b"")
