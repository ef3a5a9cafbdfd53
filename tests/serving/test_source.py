"""What a service asks: every row that can be predicted, read again when a file changes,
answered as `predict` would."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from tests.federation.small import frames, quick, splitnn, write
from tests.federation.small_multi import write as write_multi

from colonnade.errors import BudgetExhausted, ConfigError
from colonnade.federation import Federation, load
from colonnade.serving.source import Row, Source


def copy(finished: Path, to: Path) -> Path:
    """With tables of its own."""
    shutil.copytree(finished, to, dirs_exist_ok=True)
    settings = to / "run" / "federation.toml"
    # without the digest in its first line, as an owner edits it
    _, text = settings.read_text().split("\n", 1)
    settings.write_text(text.replace(str(finished), str(to)))
    return to


def scores(rows: list[Row]) -> NDArray[np.float64]:
    return np.array([list(row.scores.values()) for row in rows], dtype=np.float64)


def consume(answers: Iterator[object]) -> None:
    for _ in answers:
        pass


def touch(path: Path, frame: pd.DataFrame) -> None:
    """Another table in its place, with another time."""
    frame.to_csv(path, index=False)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10_000_000))


def test_rows_are_those_of_predict_and_all_can_be_asked_for(finished: Path) -> None:
    source = Source(finished / "run")
    ids = frames()["lab"]["patient"].tolist()
    expected = load(finished / "run", ids=ids).predict(ids)
    rows = source.ask(ids)
    assert [row.id for row in rows] == ids
    assert [row.prediction for row in rows] == expected.labels.tolist()
    np.testing.assert_allclose(scores(rows), expected.scores, rtol=1e-5)
    assert {tuple(row.scores) for row in rows} == {("ill", "well")}
    assert {(row.answered, row.missing) for row in rows} == {(("clinic", "lab"), ())}
    assert (source.lacking(ids), source.lacking(["X", "P001", "", "P0010"])) == (
        set(),
        {"X", "", "P0010"},
    )
    assert (source.label_owner, source.parties) == ("clinic", ["clinic", "lab"])
    assert source.heartbeat() == {"clinic": True, "lab": True}


def test_a_changed_table_is_read_and_a_broken_one_is_not_used(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy(finished, tmp_path)
    source = Source(folder / "run")
    assert not source.refresh()
    before = source.ask(["P001"])[0].scores["ill"]
    given = frames()
    for name, frame in given.items():
        extra = frame.iloc[:1].assign(patient="new")
        touch(folder / f"{name}.csv", pd.concat([frame, extra]))
    assert len(source.lacking(["new"])) == 1
    assert source.refresh()
    assert len(source.lacking(["new"])) == 0
    assert source.ask(["P001"])[0].scores["ill"] == pytest.approx(before)
    touch(folder / "lab.csv", given["lab"].drop(columns="zinc"))
    assert not source.refresh()
    assert vars(source)["failed"] == "DataError"
    assert source.ask(["new"])[0].prediction in ("ill", "well")
    touch(folder / "lab.csv", given["lab"].assign(iron=given["lab"]["iron"] + 1))
    assert source.refresh()
    assert vars(source)["failed"] is None
    assert source.ask(["P001"])[0].scores["ill"] != pytest.approx(before)
    touch(folder / "lab.csv", given["lab"])
    # then too, it looks on
    monkeypatch.setattr(source, "_load", lambda: dict[str, str]()["of a library"])
    assert not source.refresh()
    assert vars(source)["failed"] == "KeyError"


def test_a_changed_table_with_many_rows_for_one_person_is_read(tmp_path: Path) -> None:
    blood = pd.DataFrame({"patient": frames()["lab"]["patient"].repeat(2)})
    blood["sugar"] = np.random.default_rng(3).normal(size=len(blood)).round(3)
    file = write(tmp_path)
    blood.to_csv(tmp_path / "blood.csv", index=False)
    file.write_text(
        file.read_text()
        + '\n[parties.lab.tables.blood]\ntable = "blood.csv"\ngroup = { sugar ='
        ' "mean" }\n'
    )
    Federation.from_toml(file).fit(tmp_path / "run")
    source = Source(tmp_path / "run")
    before = source.ask(["P001"])[0].scores["ill"]
    touch(tmp_path / "blood.csv", blood.assign(sugar=blood["sugar"] + 2))
    assert source.refresh()
    assert source.ask(["P001"])[0].scores["ill"] != before


def test_rows_that_a_party_lacks_say_so_where_that_is_allowed(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        settings={
            **quick(federation={"on_missing": "skip"}),
            "algorithm": {"name": "fdml"},
        },
    )
    Federation.from_toml(file).fit(tmp_path / "run")
    lab = frames()["lab"]
    lab[lab["patient"] != "P007"].to_csv(tmp_path / "lab.csv", index=False)
    source = Source(tmp_path / "run")
    whole, partly = source.ask(["P008", "P007"])
    assert (whole.answered, whole.missing) == (("clinic", "lab"), ())
    assert (partly.answered, partly.missing) == (("clinic",), ("lab",))
    assert len(source.lacking(["nobody"])) == 1


def test_nobody_is_there_whose_part_of_the_run_was_deleted(
    finished: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(finished / "run", tmp_path / "run")
    source = Source(run)
    shutil.rmtree(run / "parties" / "lab")
    assert source.heartbeat() == {"clinic": True, "lab": False}
    shutil.rmtree(run)
    assert source.heartbeat() == {"clinic": False, "lab": False}


def test_with_several_label_owners_one_of_them_asks(tmp_path: Path) -> None:
    Federation.from_toml(write_multi(tmp_path)).fit(tmp_path / "run")
    ids = ["P001", "P120"]
    for owner, model in ((None, None), ("south", "own")):
        source = Source(tmp_path / "run", owner=owner, model=model)
        rows = source.ask(ids)
        one = load(tmp_path / "run", ids=ids, owner=owner)
        expected = one.predict(ids, owner=owner, model="own" if model else "aggregated")
        np.testing.assert_allclose(scores(rows), expected.scores, rtol=1e-5)
        assert source.label_owner == (owner or "north")
        assert source.heartbeat() == {"lab": True, "scan": True}
        assert len(source.lacking(["P149", "P150"])) == 1
    with pytest.raises(ConfigError, match="is no label owner here"):
        Source(tmp_path / "run", owner="east")


def test_what_is_left_of_budgets_is_known_and_another_reading_goes_on_counting(
    tmp_path: Path,
) -> None:
    rule = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 4.0}}}
    lab = {"outbox": rule, "budget": {"epsilon": 8.0}}
    settings = splitnn(parties={"lab": lab}, train={"epochs": 1})
    Federation.from_toml(write(tmp_path, settings=settings)).fit(tmp_path / "run")
    source = Source(tmp_path / "run")
    left = source.budgets()["lab"]
    assert 0 < left < 8
    source.ask(["P001"])
    spent = source.budgets()["lab"]
    assert spent < left
    touch(tmp_path / "lab.csv", frames()["lab"])
    old = source.federation
    assert source.refresh()
    assert source.budgets()["lab"] == pytest.approx(spent)
    old.predict(["P001"])  # a batch that was under way
    source.ask(["P001"])  # the new one knows what the old one released
    assert source.budgets()["lab"] < spent
    counts = source.federation.accounts["lab"].counts
    assert max(int(count.max()) for count in counts.values()) >= 4
    with pytest.raises(BudgetExhausted):
        consume(source.ask(["P001"]) for _ in range(200))


def test_a_row_that_one_party_refuses_is_charged_at_no_other(tmp_path: Path) -> None:
    """Rows of others that were asked for with a spent one were charged by whoever had
    answered, and then once more."""
    given = frames()
    given["bank"] = given["lab"].rename(columns={"iron": "income", "zinc": "loans"})
    rule = {
        "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 20.0}}
    }
    parties = {
        name: {"outbox": rule, "budget": {"epsilon": e}}
        for name, e in (("lab", 0.75), ("bank", 50.0))
    }
    engine = {"device": "cpu", "cohort": "off"}
    train = {"epochs": 1, "early_stop": False}
    file = write(
        tmp_path / "all", given, quick(train=train, parties=parties, federation=engine)
    )
    Federation.from_toml(file).fit(tmp_path / "here")
    source = Source(tmp_path / "here")
    with suppress(BudgetExhausted):
        for _ in range(20):
            source.ask(["P001"])
    bank = source.federation.accounts["bank"]
    before = int(sum(one.sum() for one in bank.counts.values()))
    with pytest.raises(BudgetExhausted):
        source.ask(["P002", "P001"])
    assert int(sum(one.sum() for one in bank.counts.values())) == before
    source.ask(["P002"])
    assert int(sum(one.sum() for one in bank.counts.values())) == before + 1
