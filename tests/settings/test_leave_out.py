"""A rewritten federation file means the same without the parties left out, and reads
the same otherwise."""

from __future__ import annotations

import tomllib

import pytest

from colonnade.errors import ConfigError
from colonnade.settings.changes import leave_out

FILE = """\
# Whose idea this was.
[algorithm]
name = "vimadmm"   # as ever

[parties.clinic]
table = "clinic.csv"
label = "diagnosis"

# sells data by the row
[parties.broker]   # new
table = "broker.csv"
columns = [
    "a",   # [parties.clinic] in a comment is no header
]

[parties.broker.budget]
epsilon = 8.0

[parties."lab"]
table = "lab.csv"

[train]
epochs = 3
"""


@pytest.mark.parametrize("names", [{"broker"}, {"lab"}, {"broker", "lab"}, set()])
def test_only_the_parties_left_out_are_gone(names: set[str]) -> None:
    made = leave_out(FILE, names)
    before = tomllib.loads(FILE)
    assert tomllib.loads(made) == before | {
        "parties": {k: v for k, v in before["parties"].items() if k not in names}
    }
    gone = [line for line in FILE.splitlines() if line not in made.splitlines()]
    assert all(f"{name}.csv" not in made for name in names)
    assert "# Whose idea this was." in made
    assert 'name = "vimadmm"   # as ever' in made
    assert ("# sells data by the row" in gone) == ("broker" in names)
    assert made == FILE or names


def test_an_unknown_party_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"no party 'brokr'.*broker"):
        leave_out(FILE, {"brokr"})


@pytest.mark.parametrize(
    "columns",
    [
        "",
        'columns = ["age", "]"]  # both\n',
        "columns = [\n  'age',  # ] and more\n]\n",
        "columns = []\n",
    ],
)
def test_who_holds_the_label_stays_without_its_columns(columns: str) -> None:
    file = FILE.replace(
        'label = "diagnosis"\n',
        f'{columns}label = "diagnosis" # kept\n[parties.clinic.budget]\nepsilon=1\n',
    )
    parties = tomllib.loads(leave_out(file, {"broker", "clinic"}))["parties"]
    budget = {"budget": {"epsilon": 1}}
    assert parties == {
        "clinic": {
            "table": "clinic.csv",
            "columns": [],
            "label": "diagnosis",
            **budget,
        },
        "lab": {"table": "lab.csv"},
    }
    assert 'label = "diagnosis" # kept' in leave_out(file, {"clinic"})


@pytest.mark.parametrize(
    "text",
    [
        '[parties]\nlab = { table = "lab.csv", label = "ill" }\n',
        '[parties]\nlab = { table = "lab.csv" }\n',
        'parties.lab.table = "lab.csv"\n',
        '[parties]\nlab.table = "lab.csv"\n',
        '[notes]\nx = """\n[parties.lab]\n"""\n[parties.lab]\ntable = "lab.csv"\n',
    ],
)
def test_what_cannot_be_left_out_line_by_line_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="by hand"):
        leave_out(text, {"lab"})


SEVERAL = """[algorithm]
name = "multi_vfl"

[[label_owners]]
name = "north"
table = "north.csv"

# of the hospital's own laboratory
[[data_owners]]
table = "lab.csv"
name = 'lab'

[data_owners.budget]
epsilon = 8.0

[[data_owners]]  # pictures
name = "scan"

[train]
epochs = 2
"""


def test_owners_of_columns_in_a_list_are_left_out_with_their_tables() -> None:
    made = leave_out(SEVERAL, {"lab"})
    assert tomllib.loads(made)["data_owners"] == [{"name": "scan"}]
    assert "budget" not in made
    assert "laboratory" not in made
    assert "[[data_owners]]  # pictures" in made
    assert tomllib.loads(made)["train"] == {"epochs": 2}
    with pytest.raises(ConfigError, match="no party 'north'"):
        leave_out(SEVERAL, {"north"})
