"""What is agreed and what is one's own: kept apart, and checked against each other."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from tests.federation.small import quick, write
from tests.federation.small_sites import folders

from colonnade.errors import ConfigError
from colonnade.federation import Settings
from colonnade.settings.party_file import (
    AGREED,
    OWN,
    agreed_tables,
    at_sites,
    driver_of,
    fingerprint,
    read_own,
    write_agreed,
    write_own,
    write_table,
)
from colonnade.settings.sections import Budget
from colonnade.sites.site import Site

RULES = {
    "lab": {
        "columns": ["iron", "zinc"],
        "model": {"name": "mlp", "hidden": [3], "width": 4},
        "outbox": {
            "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 1.0}}
        },
        "budget": {"epsilon": 1e9, "delta": 1e-5},
    }
}


def test_the_agreed_file_has_nothing_of_a_partys_own(tmp_path: Path) -> None:
    folders(tmp_path, settings=quick(parties=RULES))
    text = (tmp_path / "lab" / AGREED).read_text()
    assert text == (tmp_path / "clinic" / AGREED).read_text()
    for private in (
        "iron",
        "gaussian",
        "epsilon",
        "lab.csv",
        str(tmp_path),
        "hidden = [3]",
    ):
        assert private not in text, private
    assert tomllib.loads(text)["parties"] == {
        "clinic": {"label": "diagnosis"},
        "lab": {},
    }


def test_an_organisation_has_its_own_part_and_the_others_names(tmp_path: Path) -> None:
    _, settings = folders(tmp_path, settings=quick(parties=RULES))
    lab, clinic = (read_own(tmp_path / name / OWN) for name in ("lab", "clinic"))
    assert (lab.name, lab.names, lab.driver, lab.drives) == (
        "lab",
        ("clinic", "lab"),
        "clinic",
        False,
    )
    assert clinic.drives
    assert lab.settings.parties["lab"] == settings.parties["lab"]
    assert lab.settings.parties["clinic"].table is None
    assert list(lab.local.parties) == ["lab"]
    assert lab.runs == tmp_path / "lab" / "runs"
    assert "gaussian" not in (tmp_path / "clinic" / OWN).read_text()


def test_copies_agree_exactly_when_what_is_agreed_is_equal(tmp_path: Path) -> None:
    file = write(tmp_path / "one", settings=quick(parties=RULES))
    other = write(tmp_path / "two")
    one = Settings.from_toml(file)
    two = Settings.from_toml(other)
    assert fingerprint(one) == fingerprint(two), (
        "a party's own part is none of the others' business"
    )
    for section, change in (
        ("train", {"epochs": 3}),
        ("federation", {"seed": 1}),
        ("model", {"width": 5}),
    ):
        changed = Settings.from_toml(
            write(tmp_path / section, settings=quick(**{section: change}))
        )
        assert fingerprint(changed) != fingerprint(one), section
    elsewhere = Settings.from_toml(
        write(tmp_path / "cohort", settings=quick(federation={"cohort": "off"}))
    )
    assert fingerprint(elsewhere) == fingerprint(one), (
        "how a machine computes is its owner's business"
    )
    assert Settings.from_mapping(agreed_tables(one)).train == one.train


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ('name = "lab"', 'name = "lib"'),
            r"is of 'lib', which is no party of federation.toml \(did you mean 'lab'",
        ),
        (('name = "lab"\n', ""), "must have the name of its organisation"),
        (("scale", "sclae"), r"has no setting 'sclae' \(did you mean 'scale'"),
        (('runs = "runs"', "runs = 7"), "runs must be text, a path; found 7"),
        (
            ('name = "lab"', 'name = "lab"\nlabel = "iron"'),
            "has label = 'iron', and federation.toml says None",
        ),
        (("table =", "# table ="), "must name the table of 'lab'"),
        (('name = "lab"', 'name = "lab'), "is not TOML"),
        (("federation.toml", "other.toml"), r"other.toml cannot be read: No such file"),
    ],
    ids=["name", "no name", "key", "runs", "label", "table", "syntax", "agreed"],
)
def test_a_wrong_file_says_what_is_wrong(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    folders(tmp_path)
    path = tmp_path / "lab" / OWN
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    with pytest.raises(ConfigError, match=message):
        read_own(path)


@pytest.mark.parametrize(
    "private", ['table = "x.csv"', "outbox = { embedding = { mechanism = 'plain' } }"]
)
def test_an_agreed_file_with_rules_for_a_party_is_refused(
    tmp_path: Path, private: str
) -> None:
    """Else whoever writes it could loosen what another protects itself with."""
    folders(tmp_path)
    path = tmp_path / "lab" / AGREED
    path.write_text(
        path.read_text().replace("[parties.lab]", f"[parties.lab]\n{private}")
    )
    with pytest.raises(ConfigError, match=r"is in its own party\.toml alone"):
        read_own(tmp_path / "lab" / OWN)


def test_a_part_that_is_not_there_yet_is_to_be_filled_in(tmp_path: Path) -> None:
    settings = Settings.from_mapping({"parties": {"a": {}, "b": {"label": "y"}}})
    write_agreed(tmp_path, settings)
    write_own(tmp_path, settings, "a")
    with pytest.raises(ConfigError, match="must name the table of 'a'"):
        read_own(tmp_path / OWN)
    text = (tmp_path / OWN).read_text()
    path = tmp_path / OWN
    path.write_text(
        "\n".join(
            line.removeprefix("# ")
            for line in text.splitlines()
            if "colonnade party" not in line
        )
    )
    own = read_own(path).settings.parties["a"]
    assert (own.table, own.columns, own.budget) == (
        "/data/a.csv",
        ("a", "b"),
        Budget(epsilon=8.0),
    )


def test_noise_that_others_can_repeat_is_refused(tmp_path: Path) -> None:
    folders(tmp_path, settings=quick(federation={"noise": "seeded"}))
    with pytest.raises(ConfigError, match="Between organisations noise is secret"):
        read_own(tmp_path / "lab" / OWN)


def test_who_drives_is_who_has_the_labels(tmp_path: Path) -> None:
    settings = Settings.from_mapping({"parties": {"a": {}, "b": {"label": "y"}}})
    assert driver_of(settings) == "b"
    assert (
        driver_of(
            Settings.from_mapping({"data": {"dataset": "digits", "labels_at": "owner"}})
        )
        == "owner"
    )
    with pytest.raises(
        ConfigError, match="Exactly one party must name its label column"
    ):
        driver_of(Settings.from_mapping({"parties": {"a": {}, "b": {}}}))


def test_only_who_drives_may_listen_and_only_its_own_file_says_so(
    tmp_path: Path,
) -> None:
    folders(tmp_path)
    assert read_own(tmp_path / "clinic" / OWN).serve is None
    write_table(
        tmp_path / "clinic" / OWN, "serve", {"port": 0, "token_file": "token.txt"}
    )
    before = fingerprint(read_own(tmp_path / "clinic" / OWN).settings)
    write_table(
        tmp_path / "clinic" / OWN, "serve", {"port": 9000, "token_file": "token.txt"}
    )
    own = read_own(tmp_path / "clinic" / OWN)
    assert own.serve is not None
    assert (own.serve.port, own.serve.token_file) == (
        9000,
        str(tmp_path / "clinic" / "token.txt"),
    )
    assert fingerprint(own.settings) == before, "it is none of the others' business"
    with pytest.raises(ConfigError, match=r"has \[serve\], and 'clinic' drives"):
        write_table(tmp_path / "lab" / OWN, "serve", {})
    path = tmp_path / "clinic" / OWN
    text = path.read_text().split("[serve]")[0]
    for wrong, said in (
        ("[serve]\nprt = 1", "did you mean 'port'"),
        ("[serve]\nport = 70000", "at most 65535"),
    ):
        path.write_text(f"{text}\n{wrong}\n")
        with pytest.raises(ConfigError, match=said):
            read_own(path)
    path.write_text(f"serve = 3\n{text}")
    with pytest.raises(ConfigError, match="must be a table"):
        read_own(path)
    agreed = tmp_path / "clinic" / AGREED
    agreed.write_text(agreed.read_text() + "\n[serve]\nport = 1\n")
    (tmp_path / "clinic" / OWN).write_text(text)
    with pytest.raises(ConfigError, match=r"agreed among all, and has \[serve\]"):
        read_own(tmp_path / "clinic" / OWN)


def test_models_are_secret_unless_the_owners_own_file_says_otherwise(
    tmp_path: Path,
) -> None:
    _, settings = folders(tmp_path, models=None)
    assert settings.models_of("lab") == "seeded", "in one process"
    file = tmp_path / "lab" / OWN
    assert read_own(file).settings.models_of("lab") == "secret"
    before = read_own(file).agreed
    file.write_text(f'models = "seeded"\n{file.read_text()}')
    assert read_own(file).settings.models_of("lab") == "seeded"
    assert read_own(file).agreed == before, "it is nobody else's business"
    file.write_text(file.read_text().replace('"seeded"', '"public"'))
    with pytest.raises(
        ConfigError,
        match=r'party.toml: models must be one of "secret", "seeded"; found \'public\'',
    ):
        read_own(file)
    agreed = tmp_path / "clinic" / AGREED
    agreed.write_text(
        agreed.read_text().replace("[parties.lab]", '[parties.lab]\nmodels = "seeded"')
    )
    with pytest.raises(
        ConfigError, match="is agreed among all, and has 'models' of 'lab'"
    ):
        read_own(tmp_path / "clinic" / OWN)


def test_a_simulation_of_sites_is_as_sites_are(tmp_path: Path) -> None:
    _, settings = folders(
        tmp_path, settings=quick(parties={"clinic": {"models": "seeded"}}), models=None
    )
    assert [at_sites(settings).models_of(name) for name in ("clinic", "lab")] == [
        "seeded",
        "secret",
    ]


def test_what_a_call_may_unpack_to_is_its_owners_choice(tmp_path: Path) -> None:
    folders(tmp_path)
    file = tmp_path / "lab" / OWN
    before = read_own(file)
    text = file.read_text()
    assert before.memory_per_call == 256 << 20
    file.write_text(f"memory_per_call = 3\n{text}")
    assert Site(read_own(file)).endpoint.most == 3 << 20
    assert read_own(file).agreed == before.agreed, "it is nobody else's business"
    for bad in ("0", "-1", "1.5", "true", '"much"', "4096"):
        file.write_text(f"memory_per_call = {bad}\n{text}")
        with pytest.raises(
            ConfigError,
            match=(
                "memory_per_call must be a whole number of MiB, from 1 to 2048; found"
            ),
        ):
            read_own(file)
