"""What a service asks between sites is what it would ask in one process."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tests.federation import small_multi
from tests.federation import small_multi_sites as several
from tests.federation.small import quick
from tests.federation.small_sites import SKIP, new_people, sites, trained

from colonnade.errors import NoAnswer
from colonnade.federation import Federation
from colonnade.serving.batcher import Batcher, Unknown
from colonnade.serving.site_service import SiteSource, hurried
from colonnade.serving.source import Source
from colonnade.settings.sections import EngineSettings
from colonnade.settings.selection import SERVER
from colonnade.sites.driving import drive


def of(base: Path) -> SiteSource:
    return SiteSource(sites(base)["clinic"], "run")


def test_its_face_is_that_of_one_process(tmp_path: Path) -> None:
    trained(tmp_path)
    there = of(tmp_path)
    here = Source(tmp_path / "here")
    for ids in (["P003", "P001"], ["P002"]):
        assert there.lacking([*ids, "P999"]) == here.lacking([*ids, "P999"]) == {"P999"}
        assert there.ask(ids) == here.ask(ids)
    assert there.ask(["P005"]) == here.ask(["P005"]), (
        "also where nobody asked before what is lacking"
    )
    assert (there.label_owner, there.parties, there.heartbeat()) == (
        here.label_owner,
        here.parties,
        here.heartbeat(),
    )
    there.close()
    here.close()


def test_with_several_label_owners_one_of_them_asks(tmp_path: Path) -> None:
    """Also of rows that come into data owners' tables while it is open."""
    file, _ = several.folders(
        tmp_path, several.private(train={"epochs": 1, "batch_size": 64})
    )
    Federation.from_toml(file).fit(tmp_path / "here")
    drive(sites(tmp_path)[SERVER], "run")
    there = SiteSource(
        sites(tmp_path, ("south", "lab", "scan"))["south"], "run", model="own"
    )
    here = Source(tmp_path / "here", owner="south", model="own")
    assert there.lacking(["P003", "P150"]) == {"P150"}
    assert (there.label_owner, there.parties, there.heartbeat()) == (
        here.label_owner,
        here.parties,
        here.heartbeat(),
    )
    assert there.ask(["P003", "P001"]) == here.ask(["P003", "P001"])
    for name in ("lab", "scan"):
        small_multi.frames(152)[name].to_csv(
            tmp_path / "all" / f"{name}.csv", index=False
        )
    assert there.lacking(["P001", "P150"]) == set()
    assert there.ask(["P150"])[0].missing == ()
    there.close()
    here.close()


def test_requests_that_come_together_are_one_batch_and_one_bad_one_is_its_own_matter(
    tmp_path: Path,
) -> None:
    trained(tmp_path)
    here = Source(tmp_path / "here")
    batcher = Batcher(of(tmp_path), window=0.2)
    good = batcher.ask(["P001", "P002"])
    bad = batcher.ask(["P999", "P001"])
    other = batcher.ask(["P002", "P003"])
    assert good.result() == here.ask(["P001", "P002"])
    assert other.result() == here.ask(["P002", "P003"])
    with pytest.raises(Unknown, match="1 of the 2 ids"):
        bad.result()
    assert batcher.metrics.total("batches") == 1
    after = tmp_path / "lab" / "runs" / "run" / "parties" / "lab" / "ledger-after.jsonl"
    crossed = after.read_text()
    assert batcher.ask(["P003"]).result() == here.ask(["P003"])
    assert after.read_text() == crossed, "a row from memory crosses nothing"
    batcher.close()
    here.close()


def test_what_its_own_table_lacks_is_asked_of_nobody(tmp_path: Path) -> None:
    trained(tmp_path)
    source = of(tmp_path)
    ids = new_people(tmp_path)
    table = tmp_path / "all" / "clinic.csv"
    frame = pd.read_csv(table)
    frame[frame["patient"] != ids[0]].to_csv(table, index=False)
    words = tmp_path / "lab" / "runs" / "run" / "parties" / "lab" / "ledger-after.jsonl"
    before = words.read_text() if words.exists() else ""
    assert source.lacking([ids[0]]) == {ids[0]}
    source.close()
    assert (words.read_text() if words.exists() else "") == before


def test_a_party_that_falls_silent_degrades_or_is_named(tmp_path: Path) -> None:
    trained(tmp_path, quick(**SKIP))
    clinic = sites(tmp_path)["clinic"]
    down = list[bool]()
    inner = clinic.routes["lab"]

    def sometimes(data: bytes, deadline: float) -> bytes:
        if down:
            raise ConnectionError("gone")
        return inner(data, deadline)

    clinic.routes["lab"] = sometimes
    source = SiteSource(clinic, "run")
    down.append(True)
    assert [(row.answered, row.missing) for row in source.ask(["P001"])] == [
        (("clinic",), ("lab",))
    ]
    assert source.heartbeat() == {"clinic": True, "lab": False}
    with pytest.raises(NoAnswer, match="'lab'"):  # the laboratory might hold it
        source.lacking(["P999"])
    down.clear()
    assert source.lacking(["P999"]) == {"P999"}
    assert source.ask(["P001"])[0].missing == ()


def test_nobody_waits_longer_for_a_caller_than_callers_do() -> None:
    agreed = EngineSettings(deadline=600, retries=3, on_missing="wait")
    assert (
        hurried(agreed).deadline,
        hurried(agreed).retries,
        hurried(agreed).on_missing,
    ) == (10, 1, "fail")
    assert hurried(
        EngineSettings(deadline=2, retries=0, on_missing="skip")
    ) == EngineSettings(deadline=2, retries=0, on_missing="skip")


def test_when_its_own_table_changes_what_is_kept_is_forgotten(tmp_path: Path) -> None:
    import threading

    trained(tmp_path)
    source = of(tmp_path)
    changed = threading.Event()
    source.watch(changed.set, every=0.02)
    new_people(tmp_path)
    assert changed.wait(5)
    source.close()
