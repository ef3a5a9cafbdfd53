"""[[label_owners]] and [[data_owners]]: what they say comes back, and every mistake in
them is named."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from colonnade.errors import ConfigError
from colonnade.federation import Settings
from colonnade.settings.schema import place_of
from colonnade.settings.sections import Budget, LabelOwnerSettings, known_classes
from colonnade.settings.selection import SERVER

FULL: dict[str, Any] = {
    "algorithm": {"name": "multi_vfl", "server": "fedadam", "local_epochs": 2},
    "data": {"dataset": "digits", "split": "strips", "parts": 4},
    "label_model": {"name": "mlp", "hidden": [7]},
    "label_owners": [
        {
            "name": "north",
            "rows": 300,
            "classes": [0, 1],
            "outbox": {"gradient": {"mechanism": "plain"}},
        },
        {"name": "south", "rows": 200},
    ],
    "data_owners": [
        {
            "name": "party_1",
            "model": {"name": "linear", "width": 3},
            "budget": {"epsilon": 2.0},
        },
        {"name": "party_2", "outbox": {"test.embedding": {"codec": {"name": "half"}}}},
    ],
}
MULTI = '[algorithm]\nname = "multi_vfl"\n'
NORTH = '[[label_owners]]\nname = "north"\n'


def again(settings: Settings) -> Settings:
    return Settings.from_mapping(tomllib.loads(settings.to_toml()))


def test_everything_that_can_be_set_comes_back() -> None:
    settings = Settings.from_mapping(FULL)
    assert again(settings) == settings
    assert list(settings.label_owners) == ["north", "south"]
    assert settings.label_owners["north"] == LabelOwnerSettings(
        rows=300, classes=(0, 1), outbox={"gradient": {"mechanism": "plain"}}
    )
    assert settings.parties["party_1"].model == {"name": "linear", "width": 3}
    assert '[[label_owners]]\nname = "north"' in settings.to_toml()


def test_the_documented_file_is_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "federation-file.md").read_text(
        encoding="utf-8"
    )
    (block,) = [
        one
        for one in re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
        if "[[label_owners]]" in one
    ]
    settings = Settings.from_mapping(tomllib.loads(block))
    assert list(settings.label_owners) == ["north", "south"]
    assert settings.parties["lab"].budget == Budget(epsilon=8.0)
    assert again(settings) == settings


def test_tables_are_found_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(
        f'{MULTI}{NORTH}table = "n.csv"\nlabel = "y"\n[[data_owners]]\nname ='
        ' "lab"\ntable = "lab.csv"\n'
    )
    settings = Settings.from_toml(path)
    assert settings.label_owners["north"].table == str(tmp_path / "n.csv")
    assert settings.parties["lab"].table == str(tmp_path / "lab.csv")


def test_a_run_goes_on_with_the_same_owners_alone() -> None:
    saved = Settings.from_mapping(FULL)
    saved.check_continues(saved)
    north, south = FULL["label_owners"]
    changed: list[tuple[dict[str, Any], str]] = [
        (
            {"label_owners": [north, {**south, "rows": 100}]},
            r"\[label_owners\] south is .*100.* now and was .*200",
        ),
        ({"label_owners": [north]}, r"\[label_owners\] south is None now and was"),
        (
            {"data_owners": FULL["data_owners"][:1]},
            r"\[data_owners\] party_2 is None now and was",
        ),
        (
            {"label_model": {"name": "linear"}},
            r"\[label_model\] name is 'linear' now and was 'mlp'",
        ),
        (
            {"algorithm": {"name": "multi_vfl"}},
            r"\[algorithm\] server is 'fedavg' now and was 'fedadam'",
        ),
    ]
    for tables, told in changed:
        with pytest.raises(ConfigError, match=told):
            Settings.from_mapping({**FULL, **tables}).check_continues(saved)
    with pytest.raises(
        ConfigError, match=r"\[algorithm\] name is 'splitnn' now and was 'multi_vfl'"
    ):
        Settings.from_mapping({"algorithm": {"name": "splitnn"}}).check_continues(saved)


WRONG: list[tuple[str, str]] = [
    (
        MULTI,
        (
            r"'multi_vfl' needs organisations with labels, and there is none\. Add"
            r" \[\[label_owners\]\]"
        ),
    ),
    (
        NORTH,
        (
            r"\[label_owners\] is for algorithms with several label owners.*found with"
            r" 'splitnn'"
        ),
    ),
    ("[label_model]", r"\[label_model\] is for algorithms with several label owners"),
    (
        f"{MULTI}{NORTH}[parties.lab]",
        r"\[parties\] is for algorithms with one label owner; 'multi_vfl' takes",
    ),
    (
        f"{MULTI}[label_owners.north]",
        r"\[\[label_owners\]\] must be tables, each with a name",
    ),
    (
        f'{MULTI}[[label_owners]]\nlabel = "y"',
        r"\[\[label_owners\]\] number 1 must have a name.*found None",
    ),
    (
        MULTI + NORTH + NORTH,
        r"\[\[label_owners\]\] has two tables with the name 'north'",
    ),
    (
        f'{MULTI}[[label_owners]]\nname = "../a"',
        r"A party's name has 1 to 64 letters.*found '\.\./a'",
    ),
    (
        f'{MULTI}[[label_owners]]\nname = "{SERVER}"',
        r"organisation called 'aggregation_server', which is the name of",
    ),
    (
        f'{MULTI}{NORTH}tabel = "x"',
        (
            r"\[\[label_owners\]\] 'north' has no setting 'tabel' \(did you mean"
            r" 'table'\?\)"
        ),
    ),
    (
        f"{MULTI}{NORTH}label = 3",
        r"\[\[label_owners\]\] 'north' label must be text; found 3",
    ),
    (
        f"{MULTI}{NORTH}rows = 0",
        (
            r"\[\[label_owners\]\] 'north' rows must be a whole number, 1 or more;"
            r" found 0"
        ),
    ),
    (
        f"{MULTI}{NORTH}classes = []",
        r"\[\[label_owners\]\] 'north' classes must be a list of classes; found \[\]",
    ),
    (
        f"{MULTI}{NORTH}rows = 5",
        r"'north' has rows, which deals out a named data set, and there is none",
    ),
    (
        f'{MULTI}{NORTH}outbox = "x"',
        r"\[\[label_owners\]\] 'north' outbox must be a table of rules; found 'x'",
    ),
    (
        f"{MULTI}{NORTH}model = 3",
        r"\[\[label_owners\]\] 'north' has no setting 'model'",
    ),
    (
        f'{MULTI}{NORTH}[[data_owners]]\nname = "lab"\nlabel = "y"',
        (
            r"\[\[data_owners\]\] 'lab' holds columns, and its label 'y' belongs to a"
            r" label owner"
        ),
    ),
    (
        (
            f"{MULTI}{NORTH}[[data_owners]]\nname ="
            ' "lab"\n[data_owners.budget]\nepsilno = 1'
        ),
        (
            r"\[data_owners\.budget\] of 'lab' has no setting 'epsilno' \(did you mean"
            r" 'epsilon'\?\)"
        ),
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[text for text, _ in WRONG])
def test_a_mistake_is_named_with_its_rule(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "federation.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        Settings.from_toml(tmp_path / "federation.toml")


def test_classes_are_found_by_name_or_number() -> None:
    assert known_classes(
        "a", LabelOwnerSettings(classes=("no", "yes")), ("maybe", "no", "yes")
    ) == {1, 2}
    assert known_classes("a", LabelOwnerSettings(), (3, 4)) == {0, 1}
    assert known_classes("a", LabelOwnerSettings(classes=("4",)), (3, 4)) == {1}
    with pytest.raises(
        ConfigError,
        match=r"'a' has the class 'yess', which no row has \(did you mean 'yes'\?\)",
    ):
        known_classes("a", LabelOwnerSettings(classes=("yess",)), ("no", "yes"))


def test_places_are_told_as_the_file_writes_them() -> None:
    assert place_of("parties", "lab", "outbox") == "[parties.lab.outbox]"
    assert place_of("data_owners", "lab", "outbox") == "[data_owners.outbox] of 'lab'"
    assert place_of("label_owners", "north") == "[[label_owners]] 'north'"
