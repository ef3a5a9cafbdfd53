"""What a request may hold."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from colonnade.serving.service import Asked


@pytest.mark.parametrize("ids", [["17"], [17, "x"], [" spaced "], ["ü" * 256], [0]])
def test_ids_are_text_or_whole_numbers(ids: list[Any]) -> None:
    assert Asked.model_validate({"ids": ids}).ids == ids


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ids": []},
        {"ids": "17"},
        {"ids": [1.5]},
        {"ids": [True]},
        {"ids": [None]},
        {"ids": [["17"]]},
        {"ids": [""]},
        {"ids": [" "]},
        {"ids": ["\u0085"]},
        {"ids": ["17", "\x1f"]},
        {"ids": ["x" * 257]},
        {"ids": ["17\0"]},
        {"ids": ["17"], "labels": []},
        [],
        None,
    ],
)
def test_anything_else_is_refused(body: Any) -> None:
    with pytest.raises(ValidationError):
        Asked.model_validate(body)
