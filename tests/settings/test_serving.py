"""[serve]: what it refuses, and where its file is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from colonnade.errors import ConfigError
from colonnade.settings.serving import ServeSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 65536},
        {"port": -1},
        {"port": True},
        {"limit": 0},
        {"rate": -1.0},
        {"cache": "long"},
        {"token_file": ""},
        {"window": float("nan")},
        {"token_file": 3},
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must"):
        ServeSettings(**wrong)


def test_a_token_file_is_relative_to_the_file_that_names_it(tmp_path: Path) -> None:
    assert ServeSettings(token_file="t.txt").below(tmp_path).token_file == str(
        tmp_path / "t.txt"
    )
    assert ServeSettings().below(tmp_path) == ServeSettings()
