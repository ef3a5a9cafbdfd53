"""The checks that all schemes share, and the scheme that encrypts nothing.

Other laws of all schemes are in tests/conformance/test_schemes.py.
"""

from __future__ import annotations

import pytest
import torch
from torch import Generator

from colonnade.core import Outbox
from colonnade.encryption import make_keys
from colonnade.encryption.scheme import check_capacity, checked_values
from colonnade.errors import DataError


def test_a_range_includes_its_ends() -> None:
    values = torch.tensor([-2.0, 0.0, 2.0])
    assert checked_values(values, 2.0, owner="ada", scheme="x").tolist() == [
        -2.0,
        0.0,
        2.0,
    ]
    with pytest.raises(
        DataError, match=r"'ada' has a value that it cannot add: .* from -1.5 to 1.5"
    ) as refused:
        checked_values(1.25 * values.abs(), 1.5, owner="ada", scheme="x", action="add")
    assert "2.5" not in str(refused.value)  # the text may travel to others
    assert checked_values(torch.empty(0), 1.0, owner="ada", scheme="x").numel() == 0


def test_a_bound_may_reach_the_capacity_and_no_further() -> None:
    check_capacity(4.0, 4.0, scheme="x", what="The sum")
    with pytest.raises(DataError, match="The sum could reach 5"):
        check_capacity(5.0, 4.0, scheme="x", what="The sum")


def test_plain_keys_warn_and_the_receipt_says_non_private() -> None:
    with pytest.warns(UserWarning, match='"plain" encrypts nothing'):
        secret = make_keys("plain")
    sent = Outbox("ada", Generator()).encrypt(
        torch.ones(3), "distances", key=secret.public
    )
    assert sent.receipt.codec == "plain"
    assert sent.receipt.event.kind == "non-private"
    assert torch.ones(3, dtype=torch.float64).numpy().tobytes() in sent.encrypted.data
