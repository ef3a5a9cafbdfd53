"""Bad settings are refused with their rule."""

from __future__ import annotations

from typing import Any

import pytest

from colonnade.core.checks import from_mapping
from colonnade.errors import ConfigError
from colonnade.selection import SelectionSettings


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"queries": 0}, "queries must be a whole number, 1 or more; found 0"),
        ({"scheme": "none"}, 'scheme must be one of "ckks", "bfv", "plain"; found \'none\''),
        ({"decryptor": "leader"}, 'decryptor must be one of "key_server", "participants"'),
        ({"fagin": "no"}, "fagin must be true or false; found 'no'"),
        ({"test": 3}, r"\[selection\] has no setting 'test'"),
    ],
)
def test_bad_settings(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        from_mapping(SelectionSettings, values, where="[selection]")


def test_encryption_is_on_unless_plain_is_asked_for_by_name() -> None:
    assert SelectionSettings().scheme == "ckks"
