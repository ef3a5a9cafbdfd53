"""A cascade of keys: each is tried over what is still unmatched, all who share a row
call it the same, and what is lost is counted."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.alignment.parties import owner as id_owner
from tests.alignment.people import DATA, ID, OWN, RULES, people, settings

from colonnade import Federation, load
from colonnade.alignment import AlignmentSettings, Ids, align_here
from colonnade.alignment.id_owner import Agree
from colonnade.alignment.keys import counted, keyed, matched, names_of, written_in
from colonnade.errors import ConfigError, DataError, PartyError
from colonnade.rows.holdings import written_ids
from colonnade.settings.federation_file import Settings
from colonnade.settings.sections import keys_in

HELPED = {"protocol": "helper", "helper": "trust"}
Texts = dict[str, list[list[str]]]


def arrays(held: Texts) -> dict[str, list[Any]]:
    return {
        name: [np.array(key, dtype=np.str_) for key in keys]
        for name, keys in held.items()
    }


def ids(held: Texts) -> dict[str, list[Ids]]:
    return {
        name: [Ids.of_texts(name, key) for key in keys]
        for name, keys in arrays(held).items()
    }


def random_tables(seed: int, parties: int = 2, rows: int = 40, keys: int = 3) -> Texts:
    """Each key of a party's rows: distinct values of a common stock, or a gap."""
    draw = np.random.default_rng(seed)
    return {
        f"p{party}": [
            [
                str(one) if draw.random() < 0.7 else ""
                for one in draw.permutation(2 * rows)[:rows]
            ]
            for _ in range(keys)
        ]
        for party in range(parties)
    }


@pytest.mark.parametrize(
    ("seed", "parties", "helped"),
    [(0, 2, False), (1, 3, False), (2, 2, True), (3, 3, True)],
)
def test_a_cascade_in_private_finds_what_one_in_the_open_finds(
    seed: int, parties: int, helped: bool
) -> None:
    held = random_tables(seed, parties)
    chosen = AlignmentSettings(**HELPED) if helped else AlignmentSettings()  # type: ignore[arg-type]
    found = align_here(ids(held), chosen)
    wanted = matched(arrays(held))
    assert found.found.by_key == tuple(len(rows) for rows in wanted["p0"])
    assert found.found.common == sum(found.found.by_key)
    for number in range(3):
        pairs = {
            tuple(row)
            for row in zip(
                *(found.by_key[name][number].tolist() for name in held), strict=True
            )
        }
        assert pairs == set(
            zip(*(wanted[name][number].tolist() for name in held), strict=True)
        )


def test_the_open_cascade_is_the_definition() -> None:
    """Row by row: the first key by which all hold an unmatched row with this value."""
    held = random_tables(7, rows=30)
    left, right = (list(zip(*held[name], strict=True)) for name in held)
    taken: tuple[set[int], set[int]] = (set(), set())
    expected = []
    for number in range(3):
        pairs = [
            (i, j)
            for (i, a), (j, b) in itertools.product(enumerate(left), enumerate(right))
            if a[number]
            and a[number] == b[number]
            and i not in taken[0]
            and j not in taken[1]
        ]
        taken[0].update(i for i, _ in pairs)
        taken[1].update(j for _, j in pairs)
        expected.append(set(pairs))
    found = matched(arrays(held))
    assert [
        set(zip(a.tolist(), b.tolist(), strict=True))
        for a, b in zip(*found.values(), strict=True)
    ] == expected


def test_a_list_that_is_short_is_filled_up_and_what_fills_it_matches_nobody() -> None:
    ids_ = Ids.of_texts("lab", np.array(["a", "b", "", "c"]))
    left = ids_.left([np.array([0])], fill=True)
    assert len(left) == 100
    assert sorted(left.rows.tolist())[-2:] == [1, 3]
    assert (left.rows == -1).sum() == 98
    again = ids_.left([np.array([0])], fill=True)
    assert not {bytes(d) for d in left.digests[left.rows < 0]} & {
        bytes(d) for d in again.digests[again.rows < 0]
    }
    assert ids_.left([np.array([0])], fill=False).rows.tolist() == [1, 3]


def test_keys_are_compared_in_turn() -> None:
    """A driver that goes back to a key, or begins with a later one, would ask more than
    one alignment allows."""
    one = id_owner("lab", ["a", "b"])
    one.ids = [
        Ids.of_texts("lab", np.array(["a", "b"])),
        Ids.of_texts("lab", np.array(["c", "d"])),
    ]
    both = ("clinic", "lab")
    for key in (1, 2, -1):
        with pytest.raises(
            PartyError, match="its 2 keys are compared in turn, each once: 0 were begun"
        ):
            one.answer(Agree(both, "exact", "rows", both, 0, key))


def test_an_entry_that_fills_a_list_up_cannot_be_common() -> None:
    one = id_owner("lab", ["a", "b"])
    with pytest.raises(Exception, match="cannot be common"):
        one.learned(np.array([0, -1]))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("id", (("id",),)),
        (
            ["email", ["name", "born"], "phone"],
            (("email",), ("name", "born"), ("phone",)),
        ),
        ([["name", "born"]], (("name", "born"),)),
    ],
)
def test_keys_as_a_file_says_them(given: Any, wanted: Any) -> None:
    assert keys_in(given) == wanted
    settings = Settings.from_mapping({"data": {"id": given}})
    assert settings.keys == wanted
    assert Settings.from_mapping(settings.to_mapping()) == settings


@pytest.mark.parametrize(
    "wrong",
    [3, [], [[]], ["a", 3], ["a", ["b", "b"]], ["a", ""], ["a", "a"], [["a", []]]],
)
def test_keys_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"\[data\] id"):
        Settings.from_mapping({"data": {"id": wrong, "align": "private"}})


@pytest.mark.parametrize(
    ("rule", "texts", "twice"),
    [("none", ["", "b", "", ""], 2), ("first", ["a", "b", "", ""], 1)],
)
def test_a_value_that_several_rows_have_goes_by_the_rule(
    rule: Any, texts: list[str], twice: int
) -> None:
    chosen = AlignmentSettings(duplicates=rule)
    cells: dict[str, list[Any]] = {
        "k": ["a", "b", "a", None],
        "m": ["1", "2", "3", "4"],
    }
    found = keyed("lab", cells, (("k",), ("m",)), (("k",), ("m",)), chosen)
    assert found.texts[0].tolist() == texts
    assert list(found.lost[0].values()) == [1, twice]
    assert found.own.tolist()[2:] == ["key 2: 3", "key 2: 4"]
    with pytest.raises(
        DataError,
        match=(
            r"'lab' has 1 values of its key 'k' that several rows have; .* row 2,"
            r" counted"
        ),
    ):
        keyed("lab", cells, (("k",),), (("k",),), AlignmentSettings())


def test_parts_of_a_key_do_not_run_together() -> None:
    cells = {"a": ["x |", "x", "x"], "b": ["y", "| y", ""]}
    found = keyed("lab", cells, (("a", "b"),), (("a", "b"),), AlignmentSettings())
    assert len(set(found.texts[0].tolist())) == 3
    assert found.texts[0][2] == ""


def test_a_federation_trains_on_rows_matched_by_any_key(tmp_path: Path) -> None:
    """As if all had called each person the same from the beginning, to the bit."""
    frames = people()
    outcome = Federation.from_frames(
        frames, id=ID, label="ill", settings=settings()
    ).fit(tmp_path / "run")
    assert outcome.summary["matched"] == {
        "email": 30,
        "name + birth_date": 30,
        "phone": 30,
    }
    assert sum(outcome.summary["rows"].values()) == 90
    federation = load(tmp_path / "run", frames=frames)
    names = federation.ids.tolist()
    assert names[:2] == [
        "key 2: zoe muller a52 | 1962-01-25",
        "key 2: zoe muller b1 | 1951-01-02",
    ]
    assert "p0@x.org" in names
    alike = dict(zip(frames["clinic"]["email"], range(90), strict=True))
    number = [alike[name] if name in alike else _number(name) for name in names]
    assert sorted(number) == list(range(90))
    plain = {
        "clinic": frames["clinic"][["age", "ill"]].iloc[number].assign(id=names),
        "lab": frames["lab"][["iron", "zinc"]].iloc[::-1].iloc[number].assign(id=names),
    }
    same = {
        **settings(),
        "data": {"stratify": False},
        "alignment": {},
        "parties": {"clinic": {"label": "ill"}, "lab": {}},
    }
    other = Federation.from_frames(plain, id="id", label="ill", settings=same).fit()
    assert other.summary["metrics"] == outcome.summary["metrics"]
    predictions = federation.predict(names[:3]).to_frame()
    assert predictions["email"].tolist() == names[:3]


def _number(name: str) -> int:
    if name.startswith("key 2"):
        return int(name.split(" | ")[0].rsplit(" ", 1)[1][1:])
    return int(name.removeprefix("key 3: +4179"))


def test_new_rows_are_predicted_by_any_key(tmp_path: Path) -> None:
    frames = people()
    Federation.from_frames(frames, id=ID, label="ill", settings=settings()).fit(
        tmp_path / "run"
    )
    new = people(rows=12, seed=5)
    found = load(tmp_path / "run", ids="all", frames=new).predict().to_frame()
    assert counted(found["email"].tolist(), keys_in(ID)) == {
        "email": 4,
        "name + birth_date": 4,
        "phone": 4,
    }


def test_who_lacks_a_key_says_so() -> None:
    frames = people()
    frames["lab"] = frames["lab"].drop(columns="mail")
    own = settings(parties={"lab": {"id": ["", OWN[1], OWN[2]]}})
    outcome = Federation.from_frames(frames, id=ID, label="ill", settings=own).fit()
    assert outcome.summary["matched"] == {
        "email": 0,
        "name + birth_date": 60,
        "phone": 30,
    }
    with pytest.raises(
        ConfigError, match=r"\[parties.lab\] id must have the 3 keys of \[data\] id"
    ):
        Settings.from_mapping(settings(parties={"lab": {"id": OWN[:2]}}))


def test_rows_without_any_key_are_left_out_and_counted() -> None:
    frames = people()
    frames["lab"].loc[[20, 21], ["mail", "full_name", "tel"]] = ""
    with pytest.warns(
        UserWarning,
        match=(
            r"'lab' has 2 rows, of 100, without any of 'email' or 'name \+ birth_date'"
        ),
    ):
        outcome = Federation.from_frames(
            frames, id=ID, label="ill", settings=settings()
        ).fit()
    assert sum(outcome.summary["rows"].values()) == 88


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"data": {**DATA, "dataset": "digits"}}, "are for tables, and"),
        ({"data": {**DATA, "align": "exact"}}, 'with \\[data\\] align = "private"'),
        ({"alignment": {"reveal": "count"}}, "all parties must learn which are"),
        ({"alignment": {"learners": ["clinic"]}}, "all parties must learn which are"),
    ],
)
def test_what_does_not_go_with_several_keys_is_refused(
    wrong: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        Settings.from_mapping(settings(**wrong))


def test_budgets_are_kept_by_what_the_owner_calls_a_row() -> None:
    """A driver decides by which key a row is matched; it must not begin anew by that."""
    frames = people()
    noisy = {
        "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 5.0}}
    }
    own = settings(parties={"lab": {"outbox": noisy}})
    federation = Federation.from_frames(frames, id=ID, label="ill", settings=own)
    holdings = federation.holdings
    assert "p0@x.org" in holdings.ids
    changed = {
        **frames,
        "clinic": frames["clinic"].assign(email=[f"q{n}@x.org" for n in range(90)]),
    }
    again = Federation.from_frames(changed, id=ID, label="ill", settings=own).holdings
    by_key = {
        name: counted(one.ids.tolist(), keys_in(ID))
        for name, one in (("one", holdings), ("two", again))
    }
    assert by_key["two"]["email"] == 0 < by_key["one"]["email"]
    # 90 rows, the same names
    assert set(holdings.own_ids("lab").tolist()) == set(again.own_ids("lab").tolist())
    assert set(holdings.ids.tolist()) != set(again.ids.tolist())
    assert federation.settings.counted_by != "exact"


def test_the_command_says_what_was_matched_by_which_key_and_what_was_lost(
    tmp_path: Path,
) -> None:
    from typer.testing import CliRunner

    from colonnade.cli import app
    from colonnade.settings.toml_text import to_toml

    frames = people()
    frames["lab"].loc[[20, 21], ["mail", "full_name", "tel"]] = ""
    frames["lab"].loc[22, "tel"] = frames["lab"].loc[23, "tel"]
    given = settings(alignment={"duplicates": "none"})
    for name, frame in frames.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        given["parties"][name] = {**given["parties"][name], "table": f"{name}.csv"}
    (tmp_path / "federation.toml").write_text(to_toml(given))
    told = CliRunner().invoke(
        app, ["align", str(tmp_path / "federation.toml"), "--json"]
    )
    assert told.exit_code == 0, told.output
    found = json.loads(told.output)
    assert found["keys"] == ["email", "name + birth_date", "phone"]
    assert sum(found["by_key"]) == found["common"]
    assert found["lost"]["lab"]["without any key"] == 2
    assert found["lost"]["lab"]["by key"]["phone"] == {
        "without a value that can be read": 2,
        "with a value that several rows have": 2,
    }
    shown = CliRunner().invoke(app, ["align", str(tmp_path / "federation.toml")])
    assert "Matched by" in shown.output
    assert "without any key" in " ".join(shown.output.split())


def test_rules_make_ids_of_one_column_comparable_in_training() -> None:
    frame = pd.DataFrame(
        {"tel": [f"+41 79 {n:07d}" for n in range(40)], "ill": ["yes", "no"] * 20}
    )
    lab = pd.DataFrame(
        {"phone": [f"079{n:07d}" for n in range(40)], "iron": np.arange(40.0)}
    )
    given = settings(
        data={"id": "phone", "stratify": False},
        alignment={"rules": {"phone": "phone +41"}},
        parties={"clinic": {"id": "tel"}, "lab": {"id": "phone"}},
    )
    given["alignment"] = {"rules": {"phone": "phone +41"}}
    federation = Federation.from_frames(
        {"clinic": frame, "lab": lab}, id="phone", label="ill", settings=given
    )
    assert federation.ids.tolist()[:2] == ["+41790000000", "+41790000001"]
    written = ["079 000 00 03", "0041790000002"]
    assert federation.predict(written).ids.tolist() == written
    new = federation.predict(["0790000001"], frames={"lab": lab, "clinic": frame})
    assert new.scores.tolist() == federation.predict(["+41790000001"]).scores.tolist()
    with pytest.raises(
        DataError, match=r"1 of 1 ids are not among the 40 rows.*'nobody'"
    ):
        federation.predict(["nobody"])


def test_ids_are_written_by_any_key_and_go_by_its_rules(tmp_path: Path) -> None:
    keys = keys_in(ID)
    chosen = AlignmentSettings(rules=RULES)
    written = [
        "A@X.org",
        "key 2: Zoë Müller | 31.12.1980",
        "key 3: 07",
        "key 3: 079 123 45 67",
        "key 4: x",
        "a | b",
    ]
    names = [
        "a@x.org",
        "key 2: zoe muller | 1980-12-31",
        "key 3: 07",
        "key 3: +41791234567",
        "key4:x",
        "a|b",
    ]
    found = names_of(written, keys, chosen)
    assert found == names
    assert names_of(found, keys, chosen) == found, "as they are called, they are found"
    cells: dict[str, Any] = {
        "mail": ["A@X.org", "", None],
        "full_name": ["", "Zoë | M", "?"],
        "born": ["", "1980-12-31", ""],
    }
    own = (("mail",), ("full_name", "born"), ("tel",))
    assert written_in(cells, own) == ["A@X.org", "key 2: Zoë || M | 1980-12-31", ""]
    pd.DataFrame(cells).to_csv(tmp_path / "rows.csv", index=False)
    assert written_ids(tmp_path / "rows.csv", own, whose="--rows") == written_in(
        cells, own
    )
    pd.DataFrame(cells).to_csv(
        tmp_path / "rows.csv", index=False, sep=";", encoding="latin-1"
    )
    assert written_ids(tmp_path / "rows.csv", own, whose="--rows") == written_in(
        cells, own
    ), "as tables are read"
    (tmp_path / "rows.csv").write_bytes(b"mail\n\0\n")
    with pytest.raises(
        DataError, match=r"rows\.csv of --rows is not a CSV file .* Export it again"
    ):
        written_ids(tmp_path / "rows.csv", own, whose="--rows")


def test_rules_are_named_for_columns_of_keys() -> None:
    assert set(RULES) == {column for key in keys_in(ID) for column in key}
