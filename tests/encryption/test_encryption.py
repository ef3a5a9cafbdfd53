"""Keys by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from colonnade.encryption import make_keys, read_public_key
from colonnade.errors import ConfigError, WireError


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"scheme": "ckk"}, r"no encryption scheme 'ckk' \(did you mean 'ckks'\?\); there are ckks, bfv, plain"),
        ({"scheme": "ckks", "use": "sum"}, r"no use of keys 'sum' \(did you mean 'sums'\?\)"),
        ({"scheme": "ckks", "limit": 0.0}, "a limit above 0; found 0.0"),
        ({"scheme": "ckks", "limit": math.nan}, "a limit above 0; found nan"),
    ],
)
def test_keys_that_cannot_be_made_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make_keys(**settings)


def test_no_public_key_is_no_public_key() -> None:
    with pytest.raises(WireError, match="no public key"):
        read_public_key(b"\x02\0\0\0\0\0\0\0{}")
