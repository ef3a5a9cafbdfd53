"""The table of settings that is read without torch says what the settings' own classes
do."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from colonnade.settings.known import FILE

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_is_what_classes_and_records_say() -> None:
    """Written anew by `python docs/known.py`."""
    spec = importlib.util.spec_from_file_location("docs_known", DOCS / "known.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.written() == FILE.read_text(encoding="utf-8")
