"""Agreed and own files where several organisations hold labels, and a site of its own
adds their weights up."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from tests.federation.small_multi import COLUMNS, GAUSSIAN, LABELS, QUICK, write
from tests.federation.small_multi_sites import EVERY, folders, private

from colonnade.errors import ConfigError
from colonnade.federation import Settings
from colonnade.settings.party_file import (
    AGREED,
    OWN,
    driver_of,
    fingerprint,
    read_own,
    sites_of,
    write_own,
    write_table,
)
from colonnade.settings.selection import SERVER

RULES = private(
    data_owners=[
        {"name": "lab", "outbox": GAUSSIAN, "columns": ["iron"], "model": "linear"}
    ]
)


def test_the_agreed_file_has_names_and_nothing_of_anybodys_own(tmp_path: Path) -> None:
    folders(tmp_path, RULES)
    texts = {(tmp_path / name / AGREED).read_text() for name in EVERY}
    assert len(texts) == 1
    tables = tomllib.loads(texts.pop())
    assert tables["label_owners"] == [
        {"name": name, "label": "diagnosis"} for name in LABELS
    ]
    assert tables["data_owners"] == [{"name": name} for name in COLUMNS]


def test_everybody_has_its_own_part_and_the_others_names(tmp_path: Path) -> None:
    _, settings = folders(tmp_path, RULES)
    for name in EVERY:
        own = read_own(tmp_path / name / OWN)
        assert (own.name, own.names, own.driver, own.drives) == (
            name,
            EVERY,
            SERVER,
            name == SERVER,
        )
        tables = {n: one.table for n, one in own.settings.label_owners.items()}
        tables |= {n: one.table for n, one in own.settings.parties.items()}
        assert [n for n, table in tables.items() if table] == (
            [] if name == SERVER else [name]
        )
        assert own.agreed == fingerprint(settings)
        assert own.local.label_owners.keys() == set(LABELS)
    lab = read_own(tmp_path / "lab" / OWN).settings
    assert lab.parties["lab"] == settings.parties["lab"]
    assert set(tomllib.loads((tmp_path / SERVER / OWN).read_text())) == {
        "name",
        "federation",
        "runs",
    }


@pytest.mark.parametrize(
    ("whose", "change", "message"),
    [
        (
            "north",
            ('name = "north"', 'name = "nort"'),
            r"is of 'nort', which is no party of federation.toml \(did you",
        ),
        (
            "north",
            ('name = "north"', 'name = "north"\nscale = "none"'),
            "has no setting 'scale'",
        ),
        (
            "north",
            ('label = "diagnosis"', 'label = "age"'),
            "has label = 'age', and federation.toml says 'diagnosis'",
        ),
        ("north", ("table =", "# table ="), "must name the table of 'north'"),
        (
            "lab",
            ('name = "lab"', 'name = "lab"\nlabel = "iron"'),
            "its label 'iron' belongs to a label owner",
        ),
        (
            SERVER,
            ('runs = "runs"', 'runs = "runs"\ntable = "x.csv"'),
            "has no setting 'table'",
        ),
    ],
    ids=[
        "name",
        "key",
        "label",
        "table",
        "a label at a data owner",
        "a table at the server",
    ],
)
def test_a_wrong_file_says_what_is_wrong(
    tmp_path: Path, whose: str, change: tuple[str, str], message: str
) -> None:
    folders(tmp_path, private())
    path = tmp_path / whose / OWN
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    with pytest.raises(ConfigError, match=message):
        read_own(path)


def test_a_label_column_may_be_told_by_its_owner_alone(tmp_path: Path) -> None:
    folders(tmp_path, private())
    agreed = tmp_path / "north" / AGREED
    own = tmp_path / "north" / OWN
    agreed.write_text(agreed.read_text().replace('label = "diagnosis"\n', ""))
    assert read_own(own).settings.label_owners["north"].label == "diagnosis"
    own.write_text(own.read_text().replace('label = "diagnosis"\n', ""))
    with pytest.raises(ConfigError, match="must name the label column of 'north'"):
        read_own(own)


def test_label_owners_may_serve_and_nobody_else(tmp_path: Path) -> None:
    folders(tmp_path, private())
    for name in ("north", "south"):
        write_table(tmp_path / name / OWN, "serve", {"port": 0})
        assert read_own(tmp_path / name / OWN).serve is not None
    for name in ("lab", SERVER):
        with pytest.raises(
            ConfigError,
            match=r"has \[serve\], and 'north' and 'south' predict: only there",
        ):
            write_table(tmp_path / name / OWN, "serve", {"port": 0})


@pytest.mark.parametrize("section", ["label_owners", "data_owners"])
def test_an_agreed_file_with_rules_for_somebody_is_refused(
    tmp_path: Path, section: str
) -> None:
    folders(tmp_path, private())
    path = tmp_path / "lab" / AGREED
    path.write_text(
        path.read_text().replace(f"[[{section}]]", f'[[{section}]]\ntable = "x.csv"', 1)
    )
    with pytest.raises(
        ConfigError, match=r"is agreed among all, and has 'table' of '\w+'"
    ):
        read_own(tmp_path / "lab" / OWN)


def test_who_is_not_there_yet_is_to_be_filled_in(tmp_path: Path) -> None:
    owners = {
        "label_owners": [{"name": "north"}, {"name": "south"}],
        "data_owners": [{"name": "lab"}],
    }
    settings = Settings.from_mapping({**private(), **owners})
    for name, word in (
        ("north", '# label = "diagnosis"'),
        ("lab", "# epsilon = 8.0"),
        (SERVER, "name ="),
    ):
        write_own(tmp_path, settings, name)
        assert word in (tmp_path / OWN).read_text()
    assert "#" not in (tmp_path / OWN).read_text()


def test_what_cannot_be_carried_between_machines_is_refused(tmp_path: Path) -> None:
    exact = Settings.from_toml(write(tmp_path, QUICK))
    assert driver_of(exact) == SERVER
    with pytest.raises(
        ConfigError,
        match=(
            r'find the rows they share by \[data\] align = "private"; found \'exact\''
        ),
    ):
        sites_of(exact)
    owners = {
        "label_owners": [{"name": "north"}],
        "data_owners": [{"name": "north"}, {"name": "lab"}],
    }
    with pytest.raises(
        ConfigError, match=r"Give it two names, as in 'north' and 'north_columns'"
    ):
        sites_of(Settings.from_mapping({**private(), **owners}))
