"""Bad settings are refused with their rule."""

from __future__ import annotations

from typing import Any

import pytest

from colonnade.errors import ConfigError
from colonnade.selection import SelectionSettings
from colonnade.settings.schema import checked


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"queries": 0}, "queries must be a whole number, 1 or more; found 0"),
        (
            {"scheme": "none"},
            'scheme must be one of "ckks", "bfv", "plain"; found \'none\'',
        ),
        (
            {"decryptor": "lead"},
            'decryptor must be one of "auto", "key_server", "participants", "leader"',
        ),
        ({"fagin": "no"}, "fagin must be true or false; found 'no'"),
        ({"test": 3}, r"has no setting 'test'"),
    ],
)
def test_bad_settings(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        checked(SelectionSettings, values, whose="[selection]")


@pytest.mark.parametrize(
    ("numbers", "values", "estimator", "decryptor"),
    [
        (False, {}, "ross", "key_server"),
        (True, {}, "kraskov", "leader"),
        (True, {"bins": 4}, "ross", "key_server"),
        (True, {"estimator": "ross"}, "ross", "key_server"),
        (False, {"estimator": "kraskov"}, "kraskov", "leader"),
        (False, {"decryptor": "leader"}, "ross", "leader"),
        (True, {"bins": 4, "decryptor": "participants"}, "ross", "participants"),
    ],
)
def test_auto_is_settled_by_the_labels(
    numbers: bool, values: dict[str, Any], estimator: str, decryptor: str
) -> None:
    found = SelectionSettings(**values).settled(numbers=numbers)
    assert (found.estimator, found.decryptor) == (estimator, decryptor)
    assert found.settled(numbers=numbers) == found


def test_encryption_is_on_unless_plain_is_asked_for_by_name() -> None:
    assert SelectionSettings().scheme == "ckks"
