"""A federation file says exactly one thing, and every mistake in it is named with its
rule and its cure."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from colonnade.errors import ConfigError
from colonnade.federation import Settings
from colonnade.settings.toml_text import to_toml

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        '"',
        "\\",
        '\\"',
        "'''",
        '"""',
        "\n",
        "\r\n",
        "\t",
        "\x00",
        "\x1b",
        "\x7f",
        "\x85",
        "é",
        "日本",
        "\u2028",
        "🏛",
        "#",
        "=",
    ]
)
SCALARS = (
    TEXT | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True)
FULL: dict[str, Any] = {
    "algorithm": {"name": "splitnn", "learning_rate": 1e-05, "head_hidden": 3},
    "data": {
        "id": "patient",
        "validation": 12,
        "test": 0.25,
        "dataset": "digits",
        "split": "patches",
        "parts": [2, 4],
    },
    "model": {"name": "mlp", "hidden": [8, 4], "width": 2},
    "train": {"epochs": 3, "early_stop": False},
    "federation": {
        "seed": 7,
        "device": "cpu",
        "threads": "never",
        "through_bytes": True,
        "cohort": "off",
    },
    "parties": {
        "clinic": {
            "label": "y",
            "columns": ["a", "b c"],
            "scale": "minmax",
            "model": "linear",
        },
        "lab-2": {
            "model": {"name": "mlp", "width": 9},
            "outbox": {
                "embedding": {"mechanism": "plain"},
                "test.embedding": {"codec": {"name": "identity"}},
            },
            "budget": {"epsilon": 2.5, "delta": 1e-06, "relation": "add-or-remove"},
        },
    },
}


def toml(folder: Path, text: str) -> Path:
    path = folder / "federation.toml"
    path.write_text(text, encoding="utf-8")
    return path


def again(settings: Settings) -> Settings:
    return Settings.from_mapping(tomllib.loads(settings.to_toml()))


def test_every_default_is_written_out_and_read_back() -> None:
    settings = Settings.from_mapping({})
    assert again(settings) == settings
    written = tomllib.loads(settings.to_toml())
    assert written["algorithm"] == {
        "name": "splitnn",
        "optimizer": "adam",
        "learning_rate": 0.002,
        "momentum": 0.9,
        "weight_decay": 0.001,
        "head_hidden": 64,
        "combine": "concat",
    }
    assert written["train"] == {
        "epochs": "auto",
        "batch_size": "auto",
        "early_stop": True,
        "patience": 10,
        "stop_on": "auto",
        "patience_drop": 0.0,
        "checkpoint_every": 1,
        "class_weights": "equal",
        "reshuffle": True,
        "sampling": "epoch",
        "pretrain": 0,
    }


def test_everything_that_can_be_set_comes_back() -> None:
    settings = Settings.from_mapping(FULL)
    assert again(settings) == settings
    assert settings.data.parts == (2, 4)
    assert settings.parties["clinic"].columns == ("a", "b c")


@given(
    word=TEXT,
    columns=st.lists(TEXT, max_size=3),
    party=NAMES,
    model=st.dictionaries(TEXT, VALUES, max_size=3),
)
@examples(max_examples=150)
def test_any_words_come_back(
    word: str, columns: list[str], party: str, model: dict[str, Any]
) -> None:
    tables = {
        "data": {"id": word, "labels_at": word},
        "model": model,
        "parties": {
            party: {
                "table": word,
                "label": word,
                "columns": columns,
                "outbox": {word: {"mechanism": word}},
            }
        },
    }
    settings = Settings.from_mapping(tables)
    assert again(settings) == settings


@given(
    tables=st.dictionaries(TEXT, st.dictionaries(TEXT, VALUES, max_size=3), max_size=3)
)
@examples(max_examples=150)
def test_to_toml_writes_what_toml_reads(tables: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(tables)) == tables


def test_tables_are_found_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    named = {"a": "a.csv", "b": "../b.csv", "c": "/data/c.csv"}
    tables = to_toml(
        {"parties": {name: {"table": table} for name, table in named.items()}}
    )
    path = toml(tmp_path / "here", tables + "[parties.d]\n")
    for way in (path, Path("here/federation.toml")):
        found = {
            name: party.table for name, party in Settings.from_toml(way).parties.items()
        }
        assert found == {
            "a": str(tmp_path / "here" / "a.csv"),
            "b": str(tmp_path / "b.csv"),
            "c": "/data/c.csv",
            "d": None,
        }


def test_a_model_may_be_a_name() -> None:
    assert Settings.from_mapping({"model": "linear"}).model == {"name": "linear"}


WRONG: list[tuple[str, str]] = [
    (
        "[trian]",
        (
            r"federation\.toml has no table \[trian\] \(did you mean 'train'\?\)\. It"
            r" knows: algorithm, data, "
        ),
    ),
    (
        "[train]\nepoch = 3",
        (
            r"\[train\] has no setting 'epoch' \(did you mean 'epochs'\?\)\. It knows:"
            r" epochs, "
        ),
    ),
    (
        "[train]\nepochs = 0",
        (
            r"\[train\] epochs must be \"auto\" or a whole number, 1 or more, at most"
            r" 1000000000; found 0\."
        ),
    ),
    (
        "[train]\nepochs = 2.5",
        (
            r"\[train\] epochs must be \"auto\" or a whole number, 1 or more, at most"
            r" 1000000000; found 2\.5\."
        ),
    ),
    (
        "[train]\npatience_drop = 1.0",
        r"patience_drop must be a number from 0 up to, not including, 1; found 1\.0\.",
    ),
    (
        '[train]\nearly_stop = "no"',
        r"\[train\] early_stop must be true or false; found 'no'\.",
    ),
    (
        "[data]\nvalidation = -0.1",
        r"\[data\] validation must be a fraction from 0 up to, not including, 1, or",
    ),
    (
        '[data]\ntask = "ranking"',
        r'\[data\] task must be one of "auto", "classification", "regression"; found',
    ),
    (
        "[data]\nid = 3",
        r"\[data\] id must be a column, or a list of keys as in .*; found 3\.",
    ),
    (
        "[federation]\nseed = -1",
        (
            r"\[federation\] seed must be a whole number, 0 or more, at most \d+;"
            r" found -1\."
        ),
    ),
    (
        f"[federation]\nseed = {2**63}",
        r"\[federation\] seed must be a whole number, 0 or more, at most \d+; found 9",
    ),
    (
        '[federation]\nthreads = "some"',
        (
            r'\[federation\] threads must be one of "auto", "always", "never"; found'
            r" \'some\'"
        ),
    ),
    (
        '[algorithm]\nname = "vimadm"',
        (
            r"There is no algorithm 'vimadm' \(did you mean 'vimadmm'\?\); there are"
            r" splitnn"
        ),
    ),
    ('[algorithm]\nname = ["vimadmm"]', r"There is no algorithm "),
    (
        '[algorithm]\nname = "vimadmm"\nroh = 2',
        r"\[algorithm\] \(vimadmm\) has no setting 'roh' \(did you mean 'rho'\?\)",
    ),
    (
        '[algorithm]\nname = "vimadmm"\nrho = 0',
        r"\(vimadmm\) rho must be a number above 0; found 0\.",
    ),
    (
        'algorithm = "vimadmm"',
        (
            r"\[algorithm\] must be a table of settings; found 'vimadmm'\. Write"
            r" algorithm = { name = .vim"
        ),
    ),
    ("model = 3", r"\[model\] must be a table of settings, or a name: .*; found 3\."),
    ("parties = []", r"\[parties\] must be a table of settings; found \[\]\."),
    (
        '[parties]\nlab = "lab.csv"',
        r"\[parties\.lab\] must be a table of settings; found 'lab\.csv'\.",
    ),
    (
        '[parties.lab]\ntabel = "x"',
        r"\[parties\.lab\] has no setting 'tabel' \(did you mean 'table'\?\)",
    ),
    ("[parties.lab]\ntable = 3", r"\[parties\.lab\] table must be text; found 3\."),
    ("[parties.lab]\nlabel = 3", r"\[parties\.lab\] label must be text; found 3\."),
    (
        '[parties.lab]\ncolumns = "age"',
        r"\[parties\.lab\] columns must be a list of .*names; found 'age'\.",
    ),
    (
        "[parties.lab]\ncolumns = [1]",
        r"\[parties\.lab\] columns must be a list of .*names; found \[1\]\.",
    ),
    (
        "[parties.lab]\nmodel = 3",
        r"\[parties\.lab\] model must be a name or a table; found 3\.",
    ),
    (
        "[parties.lab]\nbudget = 3",
        r"\[parties\.lab\.budget\] must be a table of settings; found 3\.",
    ),
    (
        "[parties.lab.budget]\nepsilon = 0",
        r"\[parties\.lab\.budget\] epsilon must be a number above 0; found 0\.",
    ),
    (
        "[parties.lab.budget]\nepsilno = 1",
        r"\[parties\.lab\.budget\] has no setting 'epsilno'",
    ),
    (
        '[federation]\nnoise = "none"',
        r'noise must be one of "secret", "seeded"; found \'none\'',
    ),
    (
        '[parties.lab]\noutbox = "plain"',
        r"\[parties\.lab\] outbox must be a table of rules; found 'plain'\.",
    ),
    (
        '[parties.lab]\nscale = "log"',
        (
            r'\[parties\.\w+\] scale must be one of "standard", "minmax", "none";'
            r" found \'log\'"
        ),
    ),
    (
        '[parties."../lab"]',
        (
            r"A party's name has 1 to 64 letters, digits, '-' or '_', since .* folder;"
            r" found '\.\./lab'"
        ),
    ),
    (
        "[parties.Lab]\n[parties.lab]",
        r"'Lab' and 'lab' differ in capitals alone, and names are names of folders",
    ),
    ('[parties.""]', r"A party's name has 1 to 64 letters.*; found ''"),
    (f"[parties.{'x' * 65}]", r"A party's name has 1 to 64 letters"),
    ("[train\n", r"The federation file .*federation\.toml is not TOML: .*line 1"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[text for text, _ in WRONG])
def test_a_mistake_is_named_with_its_rule(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings.from_toml(toml(tmp_path, text))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"The federation file .*none\.toml cannot be read: No such file",
    ):
        Settings.from_toml(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory"):
        Settings.from_toml(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'[data]\nid = "n\xe9"\n')
    with pytest.raises(ConfigError, match=r"latin\.toml is not TOML: .*utf-8"):
        Settings.from_toml(tmp_path / "latin.toml")


def test_a_run_may_go_on_longer_and_elsewhere_but_not_as_another() -> None:
    saved = Settings.from_mapping({})
    Settings.from_mapping(
        {"train": {"epochs": 99}, "federation": {"cohort": "off"}}
    ).check_continues(saved)
    Settings.from_mapping({"selection": {"k": 5}}).check_continues(saved)
    saved.check_continues(Settings.from_mapping({"selection": {"k": 5}}))
    changed: list[tuple[dict[str, Any], str]] = [
        (
            {"algorithm": {"head_hidden": 8}},
            r"\[algorithm\] head_hidden is 8 now and was 64",
        ),
        ({"federation": {"seed": 3}}, r"\[federation\] seed is 3 now and was 0"),
        ({"train": {"batch_size": 8}}, r"\[train\] batch_size is 8 now and was 'auto'"),
        ({"model": {"width": 5}}, r"\[model\] width is 5 now and was 'auto'"),
    ]
    for tables, told in changed:
        with pytest.raises(ConfigError, match=told):
            Settings.from_mapping(tables).check_continues(saved)


def test_how_to_select_is_written_again_where_it_is_said() -> None:
    settings = Settings.from_mapping({"selection": {"queries": 50, "fagin": False}})
    assert (
        settings.selection.queries,
        settings.selection.fagin,
        settings.selection.k,
    ) == (50, False, 3)
    assert Settings.from_mapping(tomllib.loads(settings.to_toml())) == settings
    assert "selection" not in Settings.from_mapping({}).to_mapping()
    with pytest.raises(
        ConfigError,
        match=r"\[selection\] has no setting 'query' \(did you mean 'queries'\?\)",
    ):
        Settings.from_mapping({"selection": {"query": 50}})


@pytest.mark.parametrize("value", [1.5, -0.1, "half"])
def test_held_out_rows_are_a_fraction_or_a_number(value: object) -> None:
    with pytest.raises(
        ConfigError,
        match=r"\[data\] validation must be a fraction from 0 .* or a whole number",
    ):
        Settings.from_mapping({"data": {"validation": value}})


def test_a_module_is_named_by_where_it_can_be_imported_from() -> None:
    message = (
        r"\[model\] must be a table of settings, or a name: .*"
        r' "my_package\.nets:Tower"; found Linear'
    )
    with pytest.raises(ConfigError, match=message):
        Settings.from_mapping({"model": torch.nn.Linear(2, 3)})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = " + "[" * 5000 + "]" * 5000, "its values are nested too deeply"),
        ("[train]\nepochs = " + "9" * 5000, "is not TOML: .*digits"),
        ("[train]\nepochs = 1" + "0" * 30, r"\[train\] epochs must be"),
        ("[train]\nbatch_size = 1" + "0" * 30, r"\[train\] batch_size must be"),
    ],
    ids=["nested", "digits", "epochs", "batch_size"],
)
def test_a_hostile_file_is_one_message(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "federation.toml").write_text(text)
    with pytest.raises(ConfigError, match=told):
        Settings.from_toml(tmp_path / "federation.toml")
