"""[data] align = "private": tables whose ids overlap in part train on what they share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.federation.small import equal, federation, frames, models_of, quick, write

from colonnade.errors import ConfigError, DataError
from colonnade.federation import Federation
from colonnade.federation.loading import load

PRIVATE = quick(data={"align": "private"})


def overlapping() -> dict[str, object]:
    both = frames()
    return {"clinic": both["clinic"].iloc[:60], "lab": both["lab"][both["lab"].patient >= "P010"]}


def test_it_trains_as_if_the_tables_held_the_common_rows_alone() -> None:
    given = overlapping()
    shared = {f"P{number:03d}" for number in range(10, 60)}
    cut = {name: frame[frame.patient.isin(shared)] for name, frame in frames().items()}
    private, plain = federation(given, PRIVATE), federation(cut)  # type: ignore[arg-type]
    assert set(private.holdings.ids.tolist()) == shared
    assert private.holdings.ids.tolist() == plain.holdings.ids.tolist()
    private.fit()
    plain.fit()
    assert equal(models_of(private), models_of(plain))


def test_without_it_ids_must_be_the_same() -> None:
    with pytest.raises(DataError, match="All parties must hold the same ids"):
        federation(overlapping())  # type: ignore[arg-type]


def test_a_run_resumes_and_predicts(tmp_path: Path) -> None:
    path = write(tmp_path, overlapping(), PRIVATE)  # type: ignore[arg-type]
    Federation.from_toml(path).fit(tmp_path / "run")
    longer = tmp_path / "federation.toml"
    longer.write_text(path.read_text().replace("epochs = 2", "epochs = 3"))
    Federation.from_toml(longer).fit(tmp_path / "run", resume=True)
    assert load(tmp_path / "run", ids=["P010", "P059"]).predict().ids.tolist() == ["P010", "P059"]


def test_nothing_in_common_is_refused() -> None:
    both = frames()
    apart = {"clinic": both["clinic"].iloc[:10], "lab": both["lab"][both["lab"].patient >= "P010"]}
    with pytest.raises(DataError, match="No id is held by all parties"):
        federation(apart, PRIVATE)


def test_other_alignments_are_not_for_training() -> None:
    settings = quick(data={"align": "private"}, alignment={"ids": "normalised"})
    with pytest.raises(ConfigError, match=r'align = "private" compares ids exactly'):
        federation(overlapping(), settings)  # type: ignore[arg-type]
