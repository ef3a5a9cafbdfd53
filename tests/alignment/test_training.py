"""[data] align = "private": tables whose ids overlap in part train on what they share."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.federation.small import equal, federation, frames, models_of, quick, write

from colonnade.alignment import REVEALS, Ids, align_here
from colonnade.alignment.rules import normalised
from colonnade.errors import ConfigError, DataError
from colonnade.federation import Federation, Settings, load
from colonnade.planning.plan import plan
from colonnade.report import facts
from colonnade.runs.layout import AFTER

PRIVATE = quick(data={"align": "private"})
NORMALISED = {"ids": "normalised"}


def overlapping() -> dict[str, object]:
    both = frames()
    return {
        "clinic": both["clinic"].iloc[:60],
        "lab": both["lab"][both["lab"].patient >= "P010"],
    }


def test_it_trains_as_if_the_tables_held_the_common_rows_alone() -> None:
    given = overlapping()
    shared = {f"P{number:03d}" for number in range(10, 60)}
    cut = {name: frame[frame.patient.isin(shared)] for name, frame in frames().items()}
    private = federation(given, PRIVATE)  # type: ignore[arg-type]
    plain = federation(cut)
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
    assert load(tmp_path / "run", ids=["P010", "P059"]).predict().ids.tolist() == [
        "P010",
        "P059",
    ]


def test_nothing_in_common_is_refused() -> None:
    both = frames()
    apart = {
        "clinic": both["clinic"].iloc[:10],
        "lab": both["lab"][both["lab"].patient >= "P010"],
    }
    with pytest.raises(DataError, match="No id is held by all of "):
        federation(apart, PRIVATE)


def test_other_alignments_are_not_for_training() -> None:
    settings = quick(data={"align": "private"}, alignment={"reveal": "count"})
    with pytest.raises(
        ConfigError,
        match=r'align = "private" lets all parties learn .* found reveal or learners',
    ):
        federation(overlapping(), settings)  # type: ignore[arg-type]


def aligned_lines(
    run: Path, party: str, file: str = "ledger.jsonl"
) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "parties" / party / file).read_text().splitlines())
    return [line for line in lines if line["batch"] == "align"]


def test_a_ledger_begins_with_the_alignment(tmp_path: Path) -> None:
    """As `align_here` alone notes it, whose ledgers are held to a transcript; counted,
    free, and again when resumed."""
    given = overlapping()
    path = write(tmp_path, given, PRIVATE)  # type: ignore[arg-type]
    whole = Federation.from_toml(path).fit(tmp_path / "run").summary
    ids = {name: Ids.of(name, [sorted(frame.patient)]) for name, frame in given.items()}  # type: ignore[attr-defined]
    alone = align_here(ids, driver="clinic").ledgers
    for name, book in alone.items():
        lines = (
            (tmp_path / "run" / "parties" / name / "ledger.jsonl")
            .read_text()
            .splitlines()
        )
        noted = aligned_lines(tmp_path / "run", name)
        assert [json.loads(line) for line in lines[: len(noted)]] == noted, (
            "first of all"
        )
        about = [
            (e.direction, e.peer, e.name, list(e.shape), e.bytes, e.event)
            for e in book.entries
        ]
        mine = [
            (e["direction"], e["peer"], e["name"], e["shape"], e["bytes"], e["event"])
            for e in noted
        ]
        assert sorted(mine) == sorted(about)
        assert {line["epsilon"] for line in noted} == {None}
        every = [json.loads(line) for line in lines]
        for way in ("out", "in"):
            assert whole["bytes"][name][way] == sum(
                e["bytes"] for e in every if e["direction"] == way
            )
    settings = Settings.from_toml(path)
    every_epoch = dataclasses.replace(
        settings, train=settings.train.changed(early_stop=False)
    )
    ran = Federation.from_settings(every_epoch).fit().summary["bytes"]
    assert plan(every_epoch).bytes == ran, "a plan counts it, too"
    path.write_text(path.read_text().replace("epochs = 2", "epochs = 3"))
    Federation.from_toml(path).fit(tmp_path / "run", resume=True)
    again = load(tmp_path / "run")  # rows are found once more, after the training
    assert again.ledgers["lab"].total("out") > whole["bytes"]["lab"]["out"]
    for name, book in alone.items():
        assert len(aligned_lines(tmp_path / "run", name)) == 2 * len(book.entries), (
            "it crossed once more"
        )
        assert len(aligned_lines(tmp_path / "run", name, AFTER)) == len(book.entries)
    told = {
        (line["from"], line["name"]): line
        for line in facts.read(tmp_path / "run").flows
    }
    for name in ("clinic", "lab"):
        assert told[name, "blinded_ids"]["meaning"] == REVEALS["blinded_ids"]
        assert told[name, "blinded_ids"]["protection"].startswith("blinded (secp256k1)")


def spelled(frame: pd.DataFrame, column: str = "patient") -> pd.DataFrame:
    """The same people, as another clerk writes them."""
    changed = [
        f"  {one.lower()}" if n % 2 else f"{one}\u00a0"
        for n, one in enumerate(frame["patient"])
    ]
    return frame.assign(patient=changed).rename(columns={"patient": column})


@pytest.mark.parametrize("align", ["exact", "private"])
def test_normalised_ids_train_what_ids_normalised_by_hand_do(
    tmp_path: Path, align: str
) -> None:
    """To the bit; and whoever predicts reads its own spelling."""
    given: Any = overlapping() if align == "private" else frames()
    by_hand = {
        name: frame.assign(patient=frame["patient"].map(normalised))
        for name, frame in given.items()
    }
    settings = quick(data={"align": align}, alignment={"ids": "normalised"})
    one = federation({**given, "lab": spelled(given["lab"])}, settings)
    other = federation(by_hand, quick(data={"align": align}))
    one.fit(tmp_path / "run")
    other.fit()
    assert equal(models_of(one), models_of(other))
    assert one.holdings.ids.tolist() == other.holdings.ids.tolist()
    ids = ["P021", " p020 ", "p022"]
    found = load(tmp_path / "run", ids=[*ids, "P020"], frames=given).predict(ids)
    assert found.ids.tolist() == ids
    assert (
        found.labels.tolist() == other.predict(["p021", "p020", "p022"]).labels.tolist()
    )


def test_an_organisation_may_call_its_ids_otherwise(tmp_path: Path) -> None:
    """As if the column had been renamed by hand, to the bit; with several label owners,
    too."""
    given: Any = frames()
    named = {"parties": {"lab": {"id": "customer_no"}}}
    one = federation(
        {**given, "lab": spelled(given["lab"], "customer_no")},
        quick(**named, alignment=NORMALISED),
    )
    other = federation(
        {**given, "lab": spelled(given["lab"])}, quick(alignment=NORMALISED)
    )
    one.fit(tmp_path / "run")
    other.fit()
    assert equal(models_of(one), models_of(other))
    assert one.settings.id_of(one.settings.parties["clinic"]) == "patient"
    with pytest.raises(DataError, match=r"'lab'.*'customer_no'"):
        federation(given, quick(**named))
    with pytest.raises(
        ConfigError,
        match=r"\[parties.lab\] id must be a column, or a list of keys.*; found 3",
    ):
        federation(given, quick(parties={"lab": {"id": 3}}))
