"""How a party prepares its numbers, by its settings and the agreed ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colonnade.algorithms import find
from colonnade.settings.federation_file import Settings
from colonnade.settings.sections import PartySettings


def prepared_as(settings: Settings, party: str, outputs: int) -> dict[str, Any]:
    """How a party prepares its numbers, as `Preprocessor.fit` takes it.

    Where the owner chose another scale, "auto" is that scale. Bins are for models that
    learn from labels what each is worth: distances between rows, and what is learned
    without labels, take all columns alike.

    Args:
        settings: The agreed settings, and what is known of the party's own.
        party: Its name.
        outputs: How many outputs the joint model has.
    """
    own = settings.parties.get(party, PartySettings())
    algorithm = find(settings.algorithm)
    learns_worth = algorithm.local_model is not None and not algorithm.learns_first
    usual = settings.preprocess.numbers
    ways: dict[str, str] = {"": usual}  # by column; "" is any other
    if isinstance(own.numbers, Mapping):
        ways |= own.numbers
    elif own.numbers is not None:
        ways[""] = own.numbers
    if own.scale != "standard":
        for name, way in ways.items():
            ways[name] = "standard" if way == "auto" else way
    return {
        "scale": own.scale,
        "numbers_as": ways,
        "classes": max(outputs, 2) if learns_worth else 0,
    }
