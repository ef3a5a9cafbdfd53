"""What a federation of data frames is told in Python, checked and brought into the form
of a federation file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from colonnade.errors import ConfigError, DataError, did_you_mean
from colonnade.settings.algorithms import with_several_label_owners
from colonnade.settings.federation_file import Settings

if TYPE_CHECKING:
    import pandas as pd

Frames = Mapping[str, "pd.DataFrame"]


def settings_for(
    frames: Frames,
    id: str | Sequence[str | Sequence[str]],  # noqa: A002 - the word users know
    label: str,
    settings: Mapping[str, Any],
    label_owners: Frames | None = None,
    positive: Any = None,
) -> Settings:
    """The settings of a federation of these frames. They are the caller's own, and so
    is the code that they name."""
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"settings is a mapping of tables; found {settings!r}. For a file:"
            " Federation.from_toml."
        )
    if not isinstance(id, (str, list, tuple)):
        raise ConfigError(
            "id names the column of ids, or lists keys that are tried in turn; found"
            f" {id!r}."
        )
    given = dict(settings)
    for section in ("data", "parties"):
        if not isinstance(given.get(section, {}), Mapping):
            raise ConfigError(
                f"settings[{section!r}] is a mapping; found"
                f" {type(given[section]).__name__}."
            )
    given["data"] = {
        **given.get("data", {}),
        "id": id if isinstance(id, str) else list(id),
    }
    if positive is not None:
        # a class read from a column is NumPy's, and a file holds plain values
        given["data"]["positive"] = getattr(positive, "item", lambda: positive)()
    check_frames(frames)
    if label_owners is None:
        named = given.get("parties", {})
        parties: dict[str, dict[str, Any]] = {
            name: dict(named.get(name, {})) for name in [*frames, *named]
        }
        parties[_holder(frames, label)]["label"] = label
        given["parties"] = parties
    else:
        check_frames(label_owners, "label_owners")
        given = {"algorithm": {"name": with_several_label_owners()[0]}, **given}
        for section, held in (("label_owners", label_owners), ("data_owners", frames)):
            known = {owner.get("name"): owner for owner in given.get(section, [])}
            given[section] = [known.pop(name, {"name": name}) for name in held] + list(
                known.values()
            )
        given["label_owners"] = [
            {"label": label, **owner} for owner in given["label_owners"]
        ]
    checked = Settings.from_mapping(given)
    return dataclasses.replace(checked, allow_models=checked.code())


def check_frames(frames: Frames, what: str = "frames") -> None:
    """Check that this is a mapping of frames."""
    import pandas as pd

    if not isinstance(frames, Mapping):
        raise DataError(
            f'{what} is a mapping, as {{"clinic": frame, "lab": frame}}; found'
            f" {type(frames).__name__}."
        )
    for name, frame in frames.items():
        if not isinstance(frame, pd.DataFrame):
            raise DataError(
                f"{name!r} brings a {type(frame).__name__}, and it must be a pandas"
                " DataFrame."
            )


def _holder(frames: Frames, label: str) -> str:
    """The organisation whose frame has the label."""
    holders = [name for name, frame in frames.items() if label in frame.columns]
    if len(holders) > 1:
        held = ", ".join(map(repr, holders))
        raise DataError(
            f"{held} have the label column {label!r}, and one must have it. Drop it"
            " from the others."
        )
    if not holders:
        near = did_you_mean(
            label,
            [str(column) for frame in frames.values() for column in frame.columns],
        )
        raise DataError(
            f"No frame has the label column {label!r}{near}, and one must have it."
        )
    return holders[0]
