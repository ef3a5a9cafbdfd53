"""The scheme that encrypts nothing says so, wherever it is seen."""

from __future__ import annotations

import pytest
import torch
from torch import Generator

from colonnade.core import Outbox
from colonnade.encryption import make_keys


def test_it_warns_and_the_receipt_says_non_private() -> None:
    with pytest.warns(UserWarning, match='"plain" encrypts nothing'):
        secret = make_keys("plain")
    sent = Outbox("ada", Generator()).encrypt(torch.ones(3), "distances", key=secret.public)
    assert sent.receipt.codec == "plain"
    assert sent.receipt.event.kind == "non-private"
    assert torch.ones(3, dtype=torch.float64).numpy().tobytes() in sent.encrypted.data
