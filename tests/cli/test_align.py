"""`colonnade align` on files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.cli.called import Caller
from tests.federation import small_multi
from tests.federation.small import QUICK, frames, write
from tests.federation.test_rows_differ import settings as differing
from tests.federation.test_rows_differ import three

NAMED = {
    "data": {"id": [["first", "last"]]},
    "alignment": {"ids": "normalised", "duplicates": "first", "learners": ["lab"]},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    both = frames()
    return write(
        tmp_path, {"clinic": both["clinic"].iloc[:60], "lab": both["lab"].iloc[20:]}
    )


def test_it_says_sizes_and_what_each_learned(path: Path, call: Caller) -> None:
    both = frames()
    common = len(set(both["clinic"].patient[:60]) & set(both["lab"].patient[20:]))
    shown = call("align", path)
    assert shown.code == 0
    for part in (
        f"{common} rows are common to all 2 parties",
        "clinic (drives)",
        "which of its rows are common",
        "--out",
    ):
        assert part in shown.out
    assert call("align", path, "--quiet").out == ""


def test_the_rows_written_have_the_same_ids_in_the_same_order(
    path: Path, call: Caller, tmp_path: Path
) -> None:
    done = call("align", path, "--json", "--out", tmp_path / "aligned")
    assert (done.code, done.err) == (0, "")
    said = json.loads(done.out)
    ids = {}
    for name in ("clinic", "lab"):
        rows = np.load(tmp_path / "aligned" / "parties" / name / "rows.npy")
        ids[name] = pd.read_csv(path.parent / f"{name}.csv").patient.iloc[rows].tolist()
    assert ids["clinic"] == ids["lab"]
    assert len(ids["lab"]) == said["common"] > 20
    assert {
        key: value for key, value in said.items() if key != "seconds"
    } == json.loads((tmp_path / "aligned" / "alignment.json").read_text())


def test_a_count_says_no_more(path: Path, call: Caller, tmp_path: Path) -> None:
    done = call("align", path, "--count", "--json", "--out", tmp_path / "count")
    said = json.loads(done.out)
    assert (said["reveal"], list((tmp_path / "count").rglob("*.npy"))) == ("count", [])
    assert (
        said["parties"]["lab"]["learned"]
        == "the others' numbers of ids; how many rows are common"
    )
    assert said["common"] == json.loads(call("align", path, "--json").out)["common"]


def test_names_in_two_columns_match_whatever_their_form(
    tmp_path: Path, call: Caller
) -> None:
    clinic = pd.DataFrame(
        {
            "first": ["Zoë", "Max", "Max"],
            "last": ["Groß", "Li", "Ma"],
            "diagnosis": [1, 0, 1],
        }
    )
    lab = pd.DataFrame({"first": ["max", "ZOË", "max "], "last": ["li", "gross", "LI"]})
    path = write(tmp_path, {"clinic": clinic, "lab": lab}, NAMED)
    assert call("align", path, "--quiet", "--out", tmp_path / "aligned").code == 0
    assert sorted(np.load(tmp_path / "aligned/parties/lab/rows.npy").tolist()) == [0, 1]
    assert not (tmp_path / "aligned/parties/clinic/rows.npy").exists()
    said = json.loads((tmp_path / "aligned" / "alignment.json").read_text())
    assert (said["parties"]["lab"]["rows"], said["parties"]["lab"]["ids"]) == (3, 2)


def test_where_nothing_is_common_it_says_how_each_writes_its_ids(
    path: Path, call: Caller
) -> None:
    lab = path.parent / "lab.csv"
    lab.write_text(lab.read_text().replace("\nP", "\n"))
    for more in ([], ["--count", "--json"]):
        message = call.fails(2, "align", path, *more)
        assert (
            "They begin with 'P' in 'clinic', with '' in 'lab', and 45 would fit"
            " without that" in message
        )
    both = _edited(
        path,
        "[parties.lab]",
        '[alignment]\nids = "normalised"\nduplicates = "first"\n[parties.lab]',
    )
    assert "They begin with 'p' in 'clinic'" in call.fails(2, "align", both), (
        "as they are compared"
    )


def test_an_id_column_may_have_another_name_at_one_party(
    path: Path, call: Caller
) -> None:
    plain = json.loads(call("align", path, "--json").out)
    lab = path.parent / "lab.csv"
    lab.write_text(lab.read_text().replace("patient", "customer_no", 1))
    named = _edited(path, "[parties.lab]", '[parties.lab]\nid = "customer_no"')
    found = json.loads(call("align", named, "--json").out)
    assert (found["common"], found["parties"]) == (plain["common"], plain["parties"])


def test_errors_are_messages(path: Path, call: Caller, tmp_path: Path) -> None:
    assert "there is no such file" in call.fails(
        2, "align", _edited(path, 'lab.csv"', 'labs.csv"')
    )
    assert "has no column 'person'" in call.fails(
        2, "align", _edited(path, '"patient"', '"person"')
    )
    assert "cut into parties" in call.fails(
        2, "align", _edited(path, "[data]", '[data]\ndataset = "digits"')
    )
    assert "which is no party here" in call.fails(
        2, "align", _edited(path, "[data]", '[alignment]\nlearners=["x"]\n[data]')
    )
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    assert "holds no alignment" in call.fails(
        2, "align", path, "--quiet", "--out", tmp_path / "notes"
    )
    (path.parent / "lab.csv").write_text("patient,iron\nP001,1\nP001,2\n")
    assert "'lab' has 1 rows with an id that an earlier row has too" in call.fails(
        2, "align", path
    )
    alone = tmp_path / "alone.toml"
    alone.write_text('[parties.clinic]\ntable = "clinic.csv"\n')
    assert "two or more parties; found 1" in call.fails(2, "align", alone)


def _edited(path: Path, old: str, new: str) -> Path:
    other = path.with_name("edited.toml")
    assert old in path.read_text()
    other.write_text(path.read_text().replace(old, new))
    return other


def test_where_rows_differ_each_partner_is_compared_with_the_label_owner_alone(
    tmp_path: Path, call: Caller
) -> None:
    """The tables of two pairs, and in neither anything about the third party."""
    given = three()
    file = write(tmp_path, given, differing())
    found = json.loads(call("align", file, "--json").out)
    held = {name: set(frame["patient"]) for name, frame in given.items()}
    pairs = {name: set(pair["parties"]) for name, pair in found.items()}
    assert pairs == {"lab": {"clinic", "lab"}, "shop": {"clinic", "shop"}}
    for name, pair in found.items():
        assert pair["common"] == len(held["clinic"] & held[name])
        assert not any(
            "group" in party["learned"] for party in pair["parties"].values()
        )


def test_a_partner_who_shares_no_row_is_named_where_rows_differ(
    tmp_path: Path, call: Caller
) -> None:
    given = three()
    file = write(
        tmp_path,
        given | {"shop": given["shop"].assign(patient="X" + given["shop"]["patient"])},
        differing(),
    )
    assert "No id is held by all of 'clinic', 'shop', so there is no row" in call.fails(
        2, "align", file, "--json"
    )


def test_each_of_several_label_owners_is_compared_with_all_who_hold_columns(
    tmp_path: Path, call: Caller
) -> None:
    file = small_multi.write(tmp_path / "all")
    found = json.loads(call("align", file, "--json", "--out", tmp_path / "found").out)
    assert {name: one["common"] for name, one in found.items()} == {
        "north": 90,
        "south": 80,
    }
    assert list(found["north"]["parties"]) == ["north", "lab", "scan"]
    assert len(np.load(tmp_path / "found/south/parties/lab/rows.npy")) == 80
    counted = call("align", file, "--count", "--as", "south", "--json")
    assert json.loads(counted.out)["common"] == 80
    assert "'west' is no label owner here" in call.fails(
        2, "align", file, "--as", "west"
    )


def test_between_machines_rows_are_counted(path: Path, call: Caller) -> None:
    assert "so it takes --count" in call.fails(
        2, "align", path, "--engine", "flare-sim"
    )


def test_what_another_rule_would_match_is_counted_and_the_rule_finds_it(
    tmp_path: Path, call: Caller
) -> None:
    """One customer in ten has a zero in front at one organisation."""
    both = frames()
    ids = [str(10_000 + row) for row in range(len(both["clinic"]))]
    old = ids[::10]
    both["clinic"]["patient"] = ids
    both["lab"] = both["lab"][: len(ids)]
    both["lab"]["patient"] = [f"0{name}" if name in old else name for name in ids]
    private = {**QUICK, "data": {**QUICK.get("data", {}), "align": "private"}}
    path = write(tmp_path, both, private)
    words = " ".join(call("align", path).out.split())
    setting = 'patient = "digits" under [alignment.rules]'
    assert f"{len(old)} more would match without leading zeros: {setting}." in words
    found = json.loads(call("align", path, "--json").out)
    assert found["by_rule"]["digits"] == found["common"] + len(old) == len(ids)
    assert setting in call("plan", path, "--batches", "1").out.replace("\n", " ")
    path.write_text(path.read_text() + '\n[alignment.rules]\npatient = "digits"\n')
    by_rule = json.loads(call("align", path, "--json").out)
    assert by_rule["common"] == len(ids)
    assert "more would match" not in call("align", path).out
