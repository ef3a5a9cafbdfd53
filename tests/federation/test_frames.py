"""What a Python caller may get wrong is refused with a sentence, before anything is
built or predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.federation.small import federation, frames, quick
from tests.federation.small_multi import COLUMNS, LABELS, some
from tests.federation.small_multi import frames as several

from colonnade.errors import ColonnadeError, ConfigError, DataError
from colonnade.federation import Federation, load

FRAME = pd.DataFrame({"id": [1, 2], "x": [0.5, 1.5], "outcome": [0, 1]})


@pytest.mark.parametrize(
    ("frames", "label", "message"),
    [
        (
            [FRAME],
            "outcome",
            (
                r"frames is a mapping, as \{\"clinic\": frame, \"lab\": frame\}; found"
                r" list\."
            ),
        ),
        (
            {"clinic": FRAME.to_numpy()},
            "outcome",
            "'clinic' brings a ndarray, and it must be a pandas DataFrame",
        ),
        (
            {"clinic": FRAME},
            "outcom",
            r"No frame has the label column 'outcom' \(did you mean 'outcome'\?\)",
        ),
        (
            {"clinic": FRAME, "lab": FRAME},
            "outcome",
            r"'clinic', 'lab' have the label column 'outcome', .* Drop it",
        ),
    ],
)
def test_frames_that_cannot_be_tables(frames: Any, label: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Federation.from_frames(frames, id="id", label=label)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"id": 0},
            "id names the column of ids, or lists keys that are tried in turn; found 0",
        ),
        ({"id": None}, "found None"),
        (
            {"settings": {"data": None}},
            r"settings\['data'\] is a mapping; found NoneType",
        ),
        (
            {"settings": {"parties": ["clinic"]}},
            r"settings\['parties'\] is a mapping; found list",
        ),
        ({"settings": "federation.toml"}, "For a file: Federation.from_toml"),
        ({"label_owners": [FRAME]}, "label_owners is a mapping, as"),
    ],
)
def test_arguments_that_are_something_else(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ColonnadeError, match=message) as refused:
        Federation.from_frames(
            {"clinic": FRAME}, **({"id": "id", "label": "outcome"} | given)
        )
    assert "1.5" not in str(refused.value), "no value of a table"


def test_several_label_owners_are_recorded_and_cannot_start_from_a_run() -> None:
    held = several()
    labels = some(held, LABELS)
    columns = some(held, COLUMNS)
    given: Any = {"id": "patient", "label": "diagnosis", "label_owners": labels}
    made = Federation.from_frames(columns, record=True, **given)
    assert made.recording is not None
    with pytest.raises(
        ConfigError, match="cannot start from another one yet: leave out start_from"
    ):
        Federation.from_frames(columns, start_from="a-run", **given)


@pytest.mark.parametrize(
    ("without", "message"),
    [
        (["labb"], r"found 'labb' \(did you mean 'lab'\?\)"),
        ("lab", "found 'lab'"),
        (["lab", "clinic"], "and not all; found all of them"),
    ],
)
def test_who_is_left_out_is_named(without: Any, message: str) -> None:
    one = federation(settings=quick(train={"party_dropout": 0.2, "epochs": 1}))
    with pytest.raises(ConfigError, match=message):
        one.evaluate(without=without)


def test_a_run_is_loaded_for_rows_and_tables_that_are_named_right(
    tmp_path: Path,
) -> None:
    one = federation(settings=quick(train={"epochs": 1}))
    one.fit(tmp_path / "run")
    with pytest.raises(DataError, match=r"found the text 'P003'. Write \['P003'\]"):
        load(tmp_path / "run", ids="P003", frames=frames())
    with pytest.raises(DataError, match="There are no ids to predict"):
        load(tmp_path / "run", ids=[], frames=frames())
    with pytest.raises(DataError, match="There are no ids to predict"):
        one.predict([], frames=frames())
    with pytest.raises(DataError, match="frames is a mapping"):
        one.predict(frames=[FRAME])  # type: ignore[arg-type]
    with pytest.raises(DataError, match="frames is a mapping"):
        load(tmp_path / "run", frames=[FRAME])  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError,
        match=r"a table for 'labb', which is no party here \(did you mean 'lab'\?\)",
    ):
        load(tmp_path / "run", ids="all", tables={"labb": "new.csv"})
    with pytest.raises(ConfigError, match="not from both"):
        load(tmp_path / "run", ids="all", frames=frames(), tables={"lab": "new.csv"})
