"""What a label owner predicts with data owners elsewhere is what one process predicts; others may not ask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.federation.small_multi import COLUMNS, GAUSSIAN, LABELS, frames
from tests.federation.small_multi_sites import folders, line, lines_of, private, public_folders, sites
from tests.federation.test_multi_site import ask
from tests.federation.test_site_predict import asked

from colonnade.core import Outbox
from colonnade.errors import (
    BoundaryError,
    BudgetExhausted,
    CheckpointError,
    ConfigError,
    DataError,
    NoAnswer,
    PartyError,
)
from colonnade.federation import MultiFederation
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.owners import SERVER
from colonnade.sites.multi_clerks import Bring
from colonnade.sites.multi_site import MultiSite
from colonnade.sites.reader import Enough, Look, Take, digests_of
from colonnade.sites.saves import Save

pytest.importorskip("coincurve", reason='private alignment needs pip install "colonnade[crypto]"')
IDS = ["P083", "P002", "P120"]
CALM: Any = {"federation": {"retries": 0, "deadline": 5}}


def trained(base: Path, settings: Any = None) -> Path:
    """A run by sites."""
    file, _ = folders(base, settings or private(train={"epochs": 1, "batch_size": 64}, **CALM))
    every = sites(base)
    every[SERVER].drive(lines_of(SERVER, every), "run")
    return file


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """And the same in one process."""
    base = tmp_path_factory.mktemp("several")
    MultiFederation.from_toml(trained(base)).fit(base / "here")
    return base


def there(base: Path, owner: str = "north") -> dict[str, MultiSite]:
    """The asking label owner and the data owners; nobody else is needed."""
    return sites(base, (owner, *COLUMNS))


def told(base: Path, ids: list[str], owner: str = "north", model: str = "aggregated", **lines: Any) -> pd.DataFrame:
    every, run = there(base, owner), base / owner / "runs" / "run"
    out = every[owner].predict({**lines_of(owner, every), **lines}, "run", asked(run, ids), model)
    assert out == run / "predictions" / "new.csv"
    return pd.read_csv(out)


def here(base: Path, ids: list[str], owner: str = "north", model: Any = "aggregated") -> Any:
    return MultiFederation.load(base / "here", ids=ids, owner=owner).predict(ids, owner=owner, model=model)


def same(found: pd.DataFrame, mine: Any) -> None:
    assert found["patient"].tolist() == mine.ids.tolist()
    assert found["prediction"].tolist() == mine.labels.tolist()
    assert np.array_equal(found[[f"score_{name}" for name in mine.classes]].to_numpy(), mine.scores)
    assert "degraded" not in found, "no data owner may be missing"


def embeddings(base: Path, name: str) -> list[tuple[str, list[int]]]:
    path = base / name / "runs" / "run" / "parties" / name / "ledger-after.jsonl"
    left = [json.loads(one) for one in path.read_text().splitlines()] if path.exists() else []
    return [(one["batch"], one["shape"]) for one in left if one["name"] == "embedding"]


def test_what_sites_predict_is_what_one_process_predicts(run: Path) -> None:
    """To the bit, by any label owner's and the aggregated model, in the order asked for, also of rows that are new."""
    for name in COLUMNS:
        path, more = run / "all" / f"{name}.csv", frames(155)[name]
        pd.concat([pd.read_csv(path), more[more["patient"] >= "P150"]]).to_csv(path, index=False)
    ids, seen, before = [*IDS, "P152"], [], len(embeddings(run, "lab"))
    for owner in LABELS:
        for model in ("aggregated", "own"):
            found = told(run, ids, owner, model)
            same(found, here(run, ids, owner, model))
            seen.append(tuple(found.iloc[:, -1]))
    assert len(set(seen)) == 3, "the aggregated one is the same at both"
    batches = [(f"{owner}:predict[0:4]", [4, 4]) for owner in LABELS for _ in range(2)]
    assert embeddings(run, "lab")[before:] == batches
    for name in ("lab", "north"):
        words = (run / name / "runs" / "run" / "parties" / name / "ledger-after.jsonl").read_text()
        assert "asked_ids" not in words, "ids are compared privately"
        assert "P152" not in words


def test_a_row_that_a_data_owner_lacks_is_an_error_before_anything_is_released(run: Path) -> None:
    before = embeddings(run, "lab")
    with pytest.raises(DataError, match=r"'lab' holds no row for 1 of 2 ids, such as 'P999'\. .* every table holds\.$"):
        told(run, ["P001", "P999"])
    assert embeddings(run, "lab") == before


def test_a_data_owner_that_is_silent_ends_it(run: Path) -> None:
    inner = line(sites(run)["lab"], "south")

    def silent(data: bytes, deadline: float) -> bytes:
        if b"Embed" in data:
            raise ConnectionError("gone")
        return inner(data, deadline)

    told(run, IDS, "south")
    with pytest.raises(NoAnswer, match="'lab'"):
        told(run, ["P001"], "south", lab=silent)
    left = run / "south" / "runs" / "run" / "predictions" / "new.csv"
    assert pd.read_csv(left)["patient"].tolist() == IDS, "nothing is written"


def test_predictions_are_paid_from_the_data_owners_one_budget_whoever_asks(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    lab = {"name": "lab", "budget": {"epsilon": 5.0, "delta": 1e-5}, "outbox": GAUSSIAN}
    trained(tmp_path, private(train={"epochs": 1, "batch_size": 64}, data_owners=[lab]))
    times, owners = 0, LABELS
    while times < 40:
        try:
            told(tmp_path, ["P080"], owners[times % 2])  # known to both
            times += 1
        except BudgetExhausted:
            break
    assert 2 < times < 40
    for owner in owners:
        with pytest.raises(BudgetExhausted):
            told(tmp_path, ["P080"], owner)
    assert len(told(tmp_path, ["P001"])) == 1, "other rows have some left"


def test_only_label_owners_ask_and_data_owners_answer_one_at_a_time(run: Path) -> None:
    every = sites(run)
    for name in ("lab", SERVER):
        with pytest.raises(BoundaryError, match=f"'{name}' does not predict; .* label owners do: north, south"):
            every[name].predict(lines_of(name, every), "run", "new.csv")
    lab, look, held = every["lab"], Look("run", 2, 2, None), list[str]()
    for caller, why in (("bank", "no party of its federation"), ("scan", "to ask"), (SERVER, "to ask")):
        for request in (look, Enough()):
            with pytest.raises(BoundaryError, match=why):
                ask(lab, caller, request)
    with pytest.raises(PartyError, match="no alignment found any"):
        ask(lab, "north", look)
    take = Take(Outbox("south", torch.Generator()).release(torch.tensor([0]), "asked"))
    refused: list[tuple[Any, str]] = [(one, "it answers 'north' now") for one in (look, take, Enough())]
    refused += [(Bring("run", False, 0), "it answers a prediction now"), (Save(9, 9, 1), "was not prepared for a run")]

    def watched(data: bytes, deadline: float) -> bytes:
        if b"Embed" in data:  # south comes while north predicts
            for request, why in refused:
                with pytest.raises(PartyError, match=why):
                    ask(lab, "south", request)
                held.append(why)
        return line(lab, "north")(data, deadline)

    rows = asked(run / "north" / "runs" / "run", IDS)
    every["north"].predict({**lines_of("north", every), "lab": watched}, "run", rows)
    assert len(held) == len(refused)
    assert lab.member is None


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    folders(tmp_path, private())
    north = sites(tmp_path)["north"]
    with pytest.raises(ConfigError, match="A run's name has letters"):
        north.predict(north.lines, "../run", "new.csv")
    with pytest.raises(ConfigError, match="and no path"):
        north.predict(north.lines, "run", "../new.csv")
    with pytest.raises(DataError, match=r"There is no file .*new\.csv with the ids to predict"):
        north.predict(north.lines, "run", "new.csv")


def test_a_model_or_a_checkpoint_that_is_not_there_is_told(run: Path) -> None:
    with pytest.raises(ConfigError, match="one of aggregated, own; found 'best'"):
        told(run, IDS, model="best")
    every, other = there(run), run / "north" / "runs" / "other"
    other.mkdir()
    with pytest.raises(CheckpointError, match="there is nothing to predict with"):
        every["north"].predict(lines_of("north", every), "other", asked(other, IDS))


def test_rows_of_a_public_data_set_are_predicted_too(tmp_path: Path) -> None:
    whole, names = public_folders(tmp_path)
    whole.fit(tmp_path / "here")
    every = sites(tmp_path, names)
    every[SERVER].drive(lines_of(SERVER, every), "run")
    every, ids = sites(tmp_path, ("north", *whole.owners)), whole.holdings.label_owners["north"].ids[:5].tolist()
    run = tmp_path / "north" / "runs" / "run"
    (run / "rows").mkdir()
    pd.DataFrame({"id": ids}).to_csv(run / "rows" / "new.csv", index=False)
    found = pd.read_csv(every["north"].predict(lines_of("north", every), "run", "new.csv", "own"))
    mine = whole.predict(ids, owner="north", model="own")
    assert np.array_equal(found[[f"score_{name}" for name in mine.classes]].to_numpy(), mine.scores)


def test_another_takes_over_from_one_that_has_gone_and_never_while_it_is_answered(run: Path) -> None:
    every = sites(run, (*LABELS, *COLUMNS))
    lab = every["lab"]
    assert lab.reader is not None
    mark = RunDirectory(run / "lab" / "runs" / "run").mark()["number"]

    def look(owner: str, id_: str) -> None:
        rows = digests_of(lab.own, np.array([id_]))
        digests = torch.tensor([list(one) for one in rows], dtype=torch.uint8)
        ask(lab, owner, Look("run", mark, 1, Outbox(owner, torch.Generator()).release(digests, "x")))

    look("north", "P002")  # and then it dies
    with pytest.raises(PartyError, match="it answers 'north' now"):
        look("south", "P100")
    lab.reader.patience = 0.0
    with lab.reader.answering("north"), pytest.raises(PartyError, match="it answers 'north' now"):
        look("south", "P100")
    before = lab.member
    look("south", "P100")
    assert lab.member is not None
    assert lab.member is not before
    assert lab.member.holdings.ids.tolist() == ["P100"]
    lab.reader.patience = 60.0
    first = Outbox("north", torch.Generator()).release(torch.tensor([0]), "x")
    for late in (Take(first), Enough()):
        with pytest.raises(PartyError, match="it answers 'south' now"):
            ask(lab, "north", late)
    ask(lab, "south", Enough())
    look("north", "P002")
    ask(lab, "north", Enough())
