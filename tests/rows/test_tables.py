"""Tables whose ids are called and spelled otherwise at one organisation train what
tables written alike do, to the bit: in one process and at sites, with one label owner
and with several; and whoever asks reads its own words."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
import torch
from tests.cli.called import Caller
from tests.federation import small, small_multi, small_multi_sites, small_sites
from tests.federation.small_sites import ALONE, saved, sites, told

from colonnade.alignment.rules import normalised
from colonnade.errors import ConfigError, DataError, StoreError
from colonnade.federation import Federation, Settings
from colonnade.rows.holdings import labels_of, read_labels, read_tables, tables_of
from colonnade.runs.run_directory import RunDirectory
from colonnade.serving.batcher import Batcher
from colonnade.serving.limits import Limits
from colonnade.serving.service import application
from colonnade.serving.source import Source
from colonnade.settings.party_file import AGREED, OWN, asker_of, read_own
from colonnade.settings.selection import SERVER
from colonnade.sites.driving import drive
from colonnade.sites.messages import Prepare
from colonnade.sites.prediction import predict

ALIKE: dict[str, Any] = {"alignment": {"ids": "normalised"}}


def spelled(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """The same people, as another clerk writes them, under another heading."""
    changed = [
        f"  {one.lower()}" if n % 2 else f"{one}\u00a0"
        for n, one in enumerate(frame["patient"])
    ]
    return frame.assign(patient=changed).rename(columns={"patient": column})


def by_hand(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(patient=frame["patient"].map(normalised))


def settings(**more: Any) -> dict[str, Any]:
    return small.quick(**ALONE, **ALIKE, parties={"lab": {"id": "customer_no"}}, **more)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Organisations that have trained at their sites, and the same in one process."""
    given = small.frames()
    tmp_path = tmp_path_factory.mktemp("ids")
    file, _ = small_sites.folders(
        tmp_path, {**given, "lab": spelled(given["lab"], "customer_no")}, settings()
    )
    Federation.from_toml(file).fit(tmp_path / "here")
    drive(sites(tmp_path)["clinic"], "run")
    return tmp_path


def test_one_label_owner(
    base: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = {name: by_hand(frame) for name, frame in small.frames().items()}
    other = small.federation(plain, small.quick(**ALONE))
    other.fit(base / "plain")
    for found in (small.checkpoint_of(base / "here"), saved(base, "run")):
        assert small.equal(found, small.checkpoint_of(base / "plain"))
    assert "customer_no" not in (base / "clinic" / AGREED).read_text(), (
        "what its column is called, nobody else knows"
    )
    ids = ["P011", " p002", "p011"]
    expected = other.predict(["p011", "p002", "p011"]).scores
    there = told(base, ids)
    assert there["patient"].tolist() == ids
    assert np.array_equal(there.filter(like="score_").to_numpy(), expected)
    rows = pd.DataFrame({"patient": ids})
    rows.to_csv(base / "rows.csv", index=False)
    called = Caller(monkeypatch, capfd)(
        "predict",
        base / "here",
        "--rows",
        base / "rows.csv",
        "--out",
        base / "out.parquet",
    )
    assert called.code == 0
    here = pd.read_parquet(base / "out.parquet")
    assert here["patient"].tolist() == ids
    assert np.array_equal(here.filter(like="score_").to_numpy(), expected)
    released = (base / "here" / "parties" / "lab" / "ledger-after.jsonl").read_text()
    assert "[2,4]" in released, "two spellings of one row pay once"


def test_a_service_answers_in_the_words_of_who_asks(base: Path) -> None:
    batcher = Batcher(Source(base / "here"), window=0)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(application(batcher, Limits()))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://desk"
        ) as client:
            return await client.post(
                "/predict", json={"ids": ["P011", " p002", "p011"]}
            )

    told = asyncio.run(ask()).json()["predictions"]
    batcher.close()
    assert [row["id"] for row in told] == ["P011", " p002", "p011"]
    assert told[0] | {"id": ""} == told[2] | {"id": ""} != told[1] | {"id": ""}


def test_several_label_owners(tmp_path: Path) -> None:
    given = small_multi.frames()
    plain = {name: by_hand(frame) for name, frame in given.items()}
    train = {"train": {"epochs": 1, "batch_size": 64}}
    other = small_multi.federation(small_multi_sites.private(**train), plain)
    other.fit(tmp_path / "plain")
    own: Any = {
        "label_owners": [{"name": "north", "id": "case"}, {"name": "south"}],
        "data_owners": [{"name": "lab", "id": "customer_no"}, {"name": "scan"}],
    }
    given |= {
        "north": spelled(given["north"], "case"),
        "lab": spelled(given["lab"], "customer_no"),
    }
    file, _ = small_multi_sites.folders(
        tmp_path, small_multi_sites.private(**train, **ALIKE, **own), given
    )
    Federation.from_toml(file).fit(tmp_path / "here")
    drive(sites(tmp_path)[SERVER], "run")
    expected = small.checkpoint_of(tmp_path / "plain")
    for found in (small.checkpoint_of(tmp_path / "here"), saved(tmp_path, "run")):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)
    run = tmp_path / "north" / "runs" / "run"
    (run / "rows").mkdir()
    pd.DataFrame({"case": ["P020 ", "p003"]}).to_csv(
        run / "rows" / "new.csv", index=False
    )
    out = pd.read_csv(predict(sites(tmp_path)["north"], "run", "new.csv"))
    assert out["case"].tolist() == ["P020 ", "p003"]
    assert np.array_equal(
        out.filter(like="score_").to_numpy(),
        other.predict(["p020", "p003"], owner="north").scores,
    )


def test_a_frame_and_a_file_are_the_same_table(tmp_path: Path) -> None:
    given = small.frames()
    given["lab"] = spelled(given["lab"], "customer_no")
    checked = Settings.from_toml(small.write(tmp_path / "one", given, settings()))
    for held in (read_tables(checked), tables_of(checked, given)):
        assert held["lab"].columns == ["iron", "zinc"]
        assert (
            set(held["lab"].ids)
            == set(held["clinic"].ids)
            == {f"p{number:03d}" for number in range(80)}
        )
    assert (
        checked.id_column_of(asker_of(checked)),
        checked.id_of(checked.parties["lab"]),
    ) == ("patient", "customer_no")
    several = small_multi.frames()
    file = small_multi.write(
        tmp_path / "several",
        small_multi.quick(**ALIKE, data={"id": "patient"}),
        several,
    )
    owners = Settings.from_toml(file)
    labelled = small_multi.some(several, small_multi.LABELS)
    for held in (read_labels(owners), labels_of(owners, labelled)):
        assert held["north"].columns == []
        assert held["north"].ids[0] == "p000"


def test_ids_that_normalising_makes_one_are_refused_with_their_number() -> None:
    given: Any = small.frames()
    given["lab"].iloc[0, 0] = " " + given["lab"].iloc[1, 0].lower()
    given["clinic"].iloc[0, 0] = given["lab"].iloc[0, 0]
    with pytest.raises(
        DataError, match="'lab' has 1 rows whose id is an earlier row's once normalised"
    ):
        small.federation(
            {"clinic": given["clinic"].iloc[1:], "lab": given["lab"]},
            small.quick(**ALIKE),
        )
    small.federation(
        {"clinic": given["clinic"], "lab": given["lab"]},
        small.quick(data={"align": "private"}),
    )


def test_a_row_has_no_second_budget_under_another_spelling(tmp_path: Path) -> None:
    """What an organisation's rows paid is kept by the ids they are compared by; others
    would begin anew."""
    gaussian = {
        "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 4.0}}
    }
    _, checked = small_sites.folders(
        tmp_path, settings=small.quick(**ALONE, parties={"lab": {"outbox": gaussian}})
    )
    drive(sites(tmp_path)["clinic"], "run")
    for name in checked.parties:
        path = tmp_path / name / AGREED
        path.write_text(path.read_text() + '\n[alignment]\nids = "normalised"\n')
    every = sites(tmp_path)
    with pytest.raises(StoreError, match="has never counted 80, though it knows 80"):
        every["lab"].take_part(
            tmp_path / "lab" / "runs" / "new", None, Prepare("new", 1, False)
        )
    with pytest.raises(
        ConfigError, match=r"\[alignment\] ids is 'normalised' now and was 'exact'"
    ):
        every["clinic"].own.local.check_continues(
            RunDirectory(tmp_path / "clinic" / "runs" / "run").settings()
        )


def test_what_a_column_is_called_is_in_an_organisations_own_file(
    base: Path, tmp_path: Path
) -> None:
    assert 'id = "customer_no"' in (base / "lab" / OWN).read_text()
    assert read_own(base / "lab" / OWN).agreed == read_own(base / "clinic" / OWN).agreed
    shutil.copy(base / "clinic" / OWN, tmp_path / OWN)
    text = (base / "clinic" / AGREED).read_text()
    (tmp_path / AGREED).write_text(
        text.replace("[parties.lab]", '[parties.lab]\nid = "customer_no"')
    )
    with pytest.raises(ConfigError, match="agreed among all, and has 'id' of 'lab'"):
        read_own(tmp_path / OWN)
