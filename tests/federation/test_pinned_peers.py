"""[peers] of a party.toml: fingerprints of the others' certificates."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.federation.small import write
from tests.federation.small_sites import folders

from colonnade.errors import ConfigError
from colonnade.federation import Settings
from colonnade.settings.party_file import OWN, read_own, write_agreed, write_own

GOOD = "sha256:" + "0f" * 32


def test_an_organisations_own_file_may_have_them(tmp_path: Path) -> None:
    folders(tmp_path)
    own = tmp_path / "lab" / OWN
    assert read_own(own).peers == {}
    own.write_text(f'{own.read_text()}\n[peers]\nclinic = "{GOOD}"\n')
    assert read_own(own).peers == {"clinic": GOOD}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            f'[peers]\nclinic = "{GOOD}"',
            r"no fingerprint of 'bank'\. Name all the others, or nobody",
        ),
        (
            f'[peers]\nlab = "{GOOD}"',
            "has 'lab', and the others here are 'clinic', 'bank'",
        ),
        (
            f'[peers]\nclinic = "{GOOD.upper()}"\nbank = "{GOOD}"',
            "must be 'sha256:' and 64 hexadecimal digits",
        ),
        (
            f'[peers]\nclinic = "{GOOD[:-1]}"\nbank = "{GOOD}"',
            "must be 'sha256:' and 64 hexadecimal digits",
        ),
        (
            f'[peers]\nclinic = 7\nbank = "{GOOD}"',
            "must be 'sha256:' and 64 hexadecimal digits",
        ),
    ],
)
def test_a_table_that_pins_less_than_it_seems_is_an_error(
    tmp_path: Path, table: str, words: str
) -> None:
    text = write(tmp_path / "all").read_text()
    bank = '[parties.bank]\ntable = "lab.csv"\n'
    (tmp_path / "all" / "three.toml").write_text(f"{text}\n{bank}")
    settings = Settings.from_toml(tmp_path / "all" / "three.toml")
    write_agreed(tmp_path, settings)
    write_own(tmp_path, settings, "lab")
    own = tmp_path / OWN
    own.write_text(f"{own.read_text()}\n{table}\n")
    with pytest.raises(ConfigError, match=words):
        read_own(own)


def test_it_is_a_table(tmp_path: Path) -> None:
    folders(tmp_path)
    own = tmp_path / "lab" / OWN
    own.write_text(f'peers = "sha256"\n{own.read_text()}')
    with pytest.raises(ConfigError, match="must be a table of fingerprints"):
        read_own(own)
