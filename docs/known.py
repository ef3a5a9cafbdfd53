"""The table by which a file's errors are told, and algorithms listed, without torch:
`python docs/known.py`."""

from __future__ import annotations

import json
from typing import Any

from colonnade.algorithms import ALGORITHMS, DEFAULT
from colonnade.settings.federation_file import TABLES
from colonnade.settings.known import FILE, described, described_algorithm
from colonnade.settings.sections import LabelOwnerSettings, PartySettings


def written() -> str:
    """The text of `known.json`, from the settings' classes and the algorithms' records."""
    owners = {
        "parties": PartySettings,
        "data_owners": PartySettings,
        "label_owners": LabelOwnerSettings,
    }
    told = {
        "default": DEFAULT,
        "tables": {section: described(kind) for section, kind in TABLES.items()},
        "owners": {section: described(kind) for section, kind in owners.items()},
        "algorithms": {
            name: described_algorithm(one) for name, one in ALGORITHMS.items()
        },
    }
    return _text(told) + "\n"


def _text(told: Any, depth: int = 0) -> str:
    """JSON with a line for every setting."""
    if depth > 3 or not isinstance(told, dict):
        return json.dumps(told, ensure_ascii=False)
    inner = (
        f"{' ' * (depth + 1)}{json.dumps(key)}: {_text(value, depth + 1)}"
        for key, value in told.items()
    )
    return "{\n" + ",\n".join(inner) + f"\n{' ' * depth}}}"


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
