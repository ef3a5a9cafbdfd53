"""Tables as organisations write them: numbers of other countries, odd words, own words
for gaps, codes. Training and prediction read them alike."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import colonnade
from colonnade import Federation
from colonnade.errors import ConfigError
from colonnade.federation import Settings
from colonnade.planning.plan import plan
from colonnade.report.facts import read as facts_of
from colonnade.report.page import render
from colonnade.rows.holdings import read_tables

ROWS = 1_500
FILE = """
[algorithm]
name = "splitnn"
[data]
id = "kunde"
[train]
epochs = 6
[parties.bank]
table = "bank.csv"
label = "ausfall"
{gaps}
[parties.partner]
table = "partner.csv"
"""


def german(number: float) -> str:
    return f"{number:,.2f}".translate(str.maketrans(",.", ".,"))


def write_tables(folder: Path, word: str) -> Path:
    """A bank's table, as a German program exports it, and a partner's, in the alphabet of
    Windows.

    One income in ten is this word, and some are ">20".
    """
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(7)
    income = random.lognormal(8, 0.6, ROWS)
    size = random.normal(size=ROWS)
    chance = 1 / (1 + np.exp(1.2 * size - 2 * (np.log(income) - 8)))
    defaults = random.random(ROWS) < chance
    cells = np.array([german(number) for number in income], dtype=object)
    cells[random.random(ROWS) < 0.1] = word
    cells[5:13] = ">20" if word else ""
    ids = [f"K{number:05d}" for number in range(ROWS)]
    bank = {
        "kunde": ids,
        "einkünfte": cells,
        "ausfall": np.where(defaults, "ja", "nein"),
    }
    partner = {"kunde": ids, "größe": [german(1000 * number) for number in size]}
    for name, table, encoding in (
        ("bank.csv", bank, "utf-8-sig"),
        ("partner.csv", partner, "cp1252"),
    ):
        frame = pd.DataFrame(table)
        frame.to_csv(folder / name, sep=";", index=False, encoding=encoding)
    file = folder / "federation.toml"
    file.write_text(FILE.format(gaps=""), encoding="utf-8")
    return file


def auc(file: Path, only: str = "") -> float:
    """The AUC on test rows of what is trained; by `only` one party's columns alone."""
    settings = Settings.from_toml(file)
    if only:
        text = file.read_text(encoding="utf-8").split("[parties.partner]")[0]
        alone = file.with_name("alone.toml")
        alone.write_text(text, encoding="utf-8")
        settings = Settings.from_toml(alone)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        summary = Federation.from_settings(settings).fit().summary
    return float(summary["metrics"]["test"]["auc"])


def test_a_word_in_one_cell_of_ten_costs_no_column(tmp_path: Path) -> None:
    odd = write_tables(tmp_path / "odd", "k.A.")
    empty = write_tables(tmp_path / "empty", "")
    with pytest.warns(UserWarning, match="einkünfte") as told:
        federation = Federation.from_settings(Settings.from_toml(odd))
    cells = pd.read_csv(odd.with_name("bank.csv"), sep=";")["einkünfte"]
    counted = int((cells == "k.A.").sum())
    (words,) = [str(one.message) for one in told if "einkünfte" in str(one.message)]
    assert """'bank' has words in columns of numbers""" in words
    assert f"""'einkünfte' has "k.A." {counted}, ">20" 8.""" in words
    prepared = federation.holdings.columns["bank"].preprocessor
    assert prepared is not None
    assert prepared.readings == {"einkünfte": "numbers with a decimal comma"}
    assert prepared.names[-1] == "einkünfte is missing"
    assert abs(auc(odd) - auc(empty)) < 0.01, "together"
    assert abs(auc(odd, only="bank") - auc(empty, only="bank")) < 0.01, "alone"


def test_a_plan_a_run_and_its_report_tell_the_owner_alone(tmp_path: Path) -> None:
    file = write_tables(tmp_path, "k.A.")
    settings = Settings.from_toml(file)
    assert (
        sum('"k.A." 1' in warning for warning in plan(settings, batches=1).warnings)
        == 1
    )
    run = tmp_path / "run"
    with pytest.warns(UserWarning, match='">20" 8'):
        Federation.from_settings(settings).fit(run)
    assert "&quot;&gt;20&quot; 8" in render(facts_of(run))
    holders = {
        path.relative_to(run).as_posix()
        for path in run.rglob("*")
        # three bytes stand among a tensor's by chance
        if path.is_file()
        and path.suffix != ".safetensors"
        and b">20" in path.read_bytes()
    }
    assert holders == {"parties/bank/columns.json"}, "no other file has the words"


def test_new_rows_are_read_as_in_training(tmp_path: Path) -> None:
    """ "1.234" and "2.500" alone would be small English numbers; here they are not."""
    file = write_tables(tmp_path, "k.A.")
    run = tmp_path / "run"
    with pytest.warns(UserWarning, match="einkünfte"):
        Federation.from_settings(Settings.from_toml(file)).fit(run)
    ids = ["K00001", "K00002", "K00003"]
    partner = {"kunde": ids, "größe": ["0", "1.000", "-1.000"]}
    scores = {}
    for name, incomes in {
        "whole": ["1.234", "2.500", "4.000"],
        "plain": ["1234,00", "2500,00", "4000,00"],
        "odd": ["1.234", "<5", "k. A."],
        "empty": ["1.234", "", ""],
    }.items():
        pd.DataFrame(partner).to_csv(tmp_path / "new_partner.csv", sep=";", index=False)
        new = {"kunde": ids, "einkünfte": incomes}
        pd.DataFrame(new).to_csv(tmp_path / "new.csv", sep=";", index=False)
        tables = {
            "bank": str(tmp_path / "new.csv"),
            "partner": str(tmp_path / "new_partner.csv"),
        }
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            loaded = colonnade.load(run, ids="all", tables=tables)
        scores[name] = loaded.predict().scores
        assert any('"<5" 1' in str(one.message) for one in told) == (name == "odd"), (
            "what training had not is told"
        )
    np.testing.assert_array_equal(scores["whole"], scores["plain"])
    np.testing.assert_array_equal(scores["odd"], scores["empty"])


def test_an_owners_own_words_for_gaps_are_gaps_in_every_column(tmp_path: Path) -> None:
    write_tables(tmp_path, "k.A.")
    rows = 40
    pd.DataFrame(
        {
            "kunde": [f"K{number:05d}" for number in range(rows)],
            "einkünfte": ["1.234,5", "Geheim", ">20", "7", "2.000"] * 8,
            "punkte": [5, 7, -999, 8] * 10,
            "beruf": ["Koch", " GEHEIM ", "Arzt", "k.A."] * 10,
            "ausfall": ["ja", "nein", "geheim", "nein"] * 10,
        }
    ).to_csv(tmp_path / "bank.csv", sep=";", index=False)
    file = tmp_path / "federation.toml"
    file.write_text(
        FILE.format(gaps='gaps = ["geheim", ">20", "-999"]'), encoding="utf-8"
    )
    settings = Settings.from_toml(file)
    table = read_tables(settings)["bank"]
    assert table.label is not None
    assert table.label.isna().sum() == 10
    assert table.features["punkte"].isna().sum() == 10
    assert table.features["beruf"].isna().sum() == 10, "k.A. may be a category"
    assert table.features["einkünfte"].isna().sum() == 16
    partner = pd.read_csv(tmp_path / "partner.csv", sep=";", encoding="cp1252")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        federation = Federation.from_frames(
            {
                "bank": pd.read_csv(tmp_path / "bank.csv", sep=";"),
                "partner": partner[:rows],
            },
            id="kunde",
            label="ausfall",
            settings={"parties": {"bank": {"gaps": ["geheim", ">20", "-999"]}}},
        )
    assert not [one for one in told if "words in columns" in str(one.message)], (
        "the owner knows them"
    )
    prepared = federation.holdings.columns["bank"].preprocessor
    assert prepared is not None
    assert not prepared.odd
    assert "beruf=missing" in prepared.names


def test_gaps_must_be_words(tmp_path: Path) -> None:
    file = write_tables(tmp_path, "")
    for wrong in ('"k.A."', "[3]", '[" "]'):
        file.write_text(FILE.format(gaps=f"gaps = {wrong}"), encoding="utf-8")
        with pytest.raises(
            ConfigError, match=r"\[parties\.bank\].*gaps must be a list"
        ):
            Settings.from_toml(file)


def test_postcodes_and_telephones_in_a_file_stay_text(tmp_path: Path) -> None:
    file = write_tables(tmp_path, "")
    ids = [f"K{number:05d}" for number in range(ROWS)]
    pd.DataFrame(
        {
            "kunde": ids,
            "plz": ["01067", "80331", "10115"] * 500,
            "telefon": ["+41791234567", "+41791234568", ""] * 500,
            "alter": [str(20 + number % 50) for number in range(ROWS - 1)] + ["034"],
        }
    ).to_csv(tmp_path / "partner.csv", sep=";", index=False)
    table = read_tables(Settings.from_toml(file))["partner"]
    assert sorted(set(table.features["plz"])) == ["01067", "10115", "80331"]
    assert set(table.features["telefon"].dropna()) == {"+41791234567", "+41791234568"}
    assert table.features["alter"].max() == 69, "one slip of the pen makes no code"
    run = tmp_path / "run"
    Federation.from_settings(Settings.from_toml(file)).fit(run)
    fitted = json.loads((run / "parties/partner/columns.json").read_text("utf-8"))
    (plz, *_) = fitted["columns"]["columns"]
    assert plz["frequent"] == ["01067", "10115", "80331"]
    few = {"kunde": ids[:2], "plz": ["80331", "10115"], "telefon": "", "alter": 30}
    pd.DataFrame(few).to_csv(tmp_path / "few.csv", sep=";", index=False)
    tables = {"partner": str(tmp_path / "few.csv")}
    loaded = colonnade.load(run, ids=ids[:2], tables=tables)
    columns = loaded.holdings.columns["partner"].features
    assert columns[:, :3].tolist() == [[0, 0, 1], [0, 1, 0]], (
        "a file without a leading zero has the same postcodes"
    )
