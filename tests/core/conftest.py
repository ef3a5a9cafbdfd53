"""What tests of the wire share: a codec that is known while a test runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.core.frames import Fragile

from colonnade.core.release import CODECS


@pytest.fixture
def fragile() -> Iterator[Fragile]:
    codec = Fragile()
    CODECS[codec.name] = codec
    yield codec
    del CODECS[codec.name]
