"""A laboratory that follows the protocol and collects what it is told about labels in
many runs: were they drawn anew each time, most of what it heard of a row would be its
label. And whoever starts runs has as many as it likes."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tests.federation.small import frames, quick
from tests.federation.small_sites import ALONE, folders, sites

from colonnade.core import files
from colonnade.errors import StoreError
from colonnade.federation import Federation
from colonnade.settings.party_file import OWN
from colonnade.sites.driving import drive

EPSILON = "epsilon = 1.0"
ROWS = 40


def made(base: Path) -> None:
    rule = {"labels": {"mechanism": {"name": "randomized_response", "epsilon": 1.0}}}
    train = {"epochs": 1, "batch_size": 64, "early_stop": False}
    settings = quick(train=train, parties={"clinic": {"outbox": rule}}, **ALONE)
    folders(
        base, frames(rows=ROWS), {**settings, "algorithm": {"name": "compressed_vfl"}}
    )


def told(base: Path, run: str) -> dict[str, int]:
    """What the laboratory was told in a run of each person who trained."""
    drive(sites(base)["clinic"], run)
    state = files.read_state(
        max((base / "lab" / "runs" / run / "parties" / "lab").glob("checkpoint-*"))
    )
    # divided as at sites
    whole = Federation.from_toml(base / "all" / "federation.toml")
    return {
        str(whole.ids[row]): int(state["features"]["labels"][row])
        for row in whole.batches.splits["train"]
    }


def test_another_run_shows_no_label_once_more(tmp_path: Path) -> None:
    made(tmp_path)
    first = told(tmp_path, "run")
    for path in tmp_path.glob("all/*.csv"):  # ten people more, who are drawn now
        more = frames(rows=ROWS + 10, seed=3)[path.stem]
        pd.concat([pd.read_csv(path), more[more["patient"] >= f"P{ROWS:03d}"]]).to_csv(
            path, index=False
        )
    later = told(tmp_path, "again")
    both = first.keys() & later.keys()
    assert len(later) > len(first) >= len(both) > ROWS / 3
    assert {one: first[one] for one in both} == {one: later[one] for one in both}
    assert set(later.values()) == {0, 1}


def test_labels_are_not_drawn_by_another_rule_nor_from_a_store_that_is_gone(
    tmp_path: Path,
) -> None:
    made(tmp_path)
    first = told(tmp_path, "run")
    own = tmp_path / "clinic" / OWN
    settings = own.read_text()
    assert EPSILON in settings
    own.write_text(settings.replace(EPSILON, "epsilon = 2.0"))
    with pytest.raises(
        StoreError,
        match="A second draw shows them once more, and costs both epsilons together",
    ):
        told(tmp_path, "other")
    own.write_text(settings)
    store = tmp_path / "clinic" / "runs" / "store"
    store.rename(tmp_path / "aside")
    with pytest.raises(StoreError, match="The store of 'clinic' is gone"):
        told(tmp_path, "gone")
    (tmp_path / "aside").rename(store)
    assert told(tmp_path, "again") == first
