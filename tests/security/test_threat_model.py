"""The threat model's tables are those of the message classes, and it leaves nothing out
that exchanges messages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from tests.fuzz.corpus import classes

from colonnade.algorithms import ALGORITHMS
from colonnade.core import Request
from colonnade.core.failure import Failure

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "threat_model", DOCS / "threat_model.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    __import__("sys").modules["threat_model"] = module
    spec.loader.exec_module(module)
    return module


def test_its_tables_are_up_to_date(generator: ModuleType) -> None:
    text = generator.DOCUMENT.read_text(encoding="utf-8")
    assert text == generator.renewed(text), "run: python docs/threat_model.py"


def test_everything_that_exchanges_messages_has_its_section(
    generator: ModuleType,
) -> None:
    text = generator.DOCUMENT.read_text(encoding="utf-8")
    assert [found[0] for found in generator.BLOCK.findall(text)] == list(
        generator.subjects()
    )


def test_every_request_stands_in_a_table(generator: ModuleType) -> None:
    served = {
        request
        for subject in generator.subjects().values()
        for role in subject.roles
        for request in role.served()
    }
    asked = {kind for kind in classes() if issubclass(kind, Request)}
    assert asked <= served, (
        f"no role in the document serves {[kind.kind for kind in asked - served]}"
    )
    assert Failure not in served


def test_a_changed_table_is_noticed(generator: ModuleType) -> None:
    text = generator.DOCUMENT.read_text(encoding="utf-8")
    assert generator.renewed(text.replace("| `Embed(", "| `Forget(", 1)) == text


def test_no_answer_of_who_holds_columns_has_a_bare_number(
    generator: ModuleType,
) -> None:
    """What is computed from columns leaves through the outbox, by its owner's rules and
    under its budget; a float in a message would pass by all of it."""
    for name, algorithm in ALGORITHMS.items():
        for request in algorithm.feature_owner.served():
            hints = generator._reply(request).hints()
            assert float not in hints.values(), (
                f"{name}: {request.kind} is answered with {hints}"
            )
