"""A rehearsal is the run's own traffic made again, and leaves the run on disk as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tests.attacks.runs import (
    BUDGETED,
    GAUSSIAN,
    fingerprints,
    finished,
    settings,
    three,
    trained,
)
from tests.federation.small import federation

from colonnade.attacks.rehearsal import (
    TRAINED,
    first_rounds,
    predictions,
    reopen,
    train_on,
)
from colonnade.core import Transcript
from colonnade.errors import CheckpointError
from colonnade.federation import Federation


def values(transcript: Transcript) -> list[torch.Tensor]:
    return [
        released.tensor for seen in transcript for released in seen.message.released()
    ]


def alike(one: Transcript, other: Transcript, steps: int) -> bool:
    return all(
        torch.equal(a, b)
        for a, b in zip(values(one)[:steps], values(other)[:steps], strict=True)
    )


@pytest.mark.parametrize("algorithm", ["splitnn", "vimadmm"])
def test_the_first_rounds_are_the_runs_own(algorithm: str) -> None:
    live = federation(three(), settings(algorithm), record=True)
    live.fit()
    assert live.recording is not None
    heard = live.recording.of("lab")
    count = 4 if algorithm == "splitnn" else 5  # with the first head
    again = first_rounds(live, rows=100)
    assert again.moment == "first rounds"
    assert alike(heard, again.transcripts["lab"], count)
    assert len(values(again.transcripts["lab"])) in (4, 9)


def test_the_loaded_run_goes_on_where_it_stood(tmp_path: Path) -> None:
    run = finished(tmp_path)
    longer = Federation.from_toml(tmp_path / "federation.toml", record=True)
    with reopen(run) as loaded:
        done = loaded.batches.done
        rehearsal = train_on(loaded, 40, TRAINED)
    longer.batches.epochs += 1
    heard = []
    for step in longer.train():
        if step.batch.step >= done:
            heard.append(step)
        if len(heard) == 2:
            break
    assert longer.recording is not None
    whole = values(longer.recording.of("lab"))
    assert [seen.batch for seen in rehearsal.transcripts["lab"]][-1] == heard[
        -1
    ].batch.name
    assert torch.equal(values(rehearsal.transcripts["lab"])[-1], whole[-1])


def test_models_are_those_of_the_beginning() -> None:
    one = trained()
    before = {
        name: owner.model.state_dict()["0.weight"].clone()
        for name, owner in one.owners.items()
    }
    rehearsal = train_on(one, 64, TRAINED)
    for name, weight in before.items():
        assert torch.equal(rehearsal.models[name].state_dict()["0.weight"], weight)
        assert not torch.equal(one.owners[name].model.state_dict()["0.weight"], weight)


def test_rows_decide_how_much_is_asked() -> None:
    one = trained()
    asked = predictions(one, rows=10)
    (seen,) = [s for s in asked.transcripts["registry"] if s.sender == "lab"]
    assert seen.message.released()[0].tensor.shape[0] == 10
    (request,) = asked.transcripts["lab"].seen
    assert request.batch == "test[0:10]"
    train = len(one.batches.splits["train"])
    everything = train_on(one, 10_000, TRAINED)
    # every row once
    assert len(everything.transcripts["lab"].seen) == 2 * -(-train // 32)


def test_a_run_is_left_as_it_is_even_with_a_ledger_longer_than_its_checkpoint(
    tmp_path: Path,
) -> None:
    run = finished(tmp_path, parties={"lab": {"outbox": {"embedding": GAUSSIAN}}})
    with (run / "parties" / "lab" / "ledger.jsonl").open("a") as ledger:
        ledger.write('{"a line": "of a run that goes on meanwhile"}\n')
    before = fingerprints(run)
    with reopen(run) as one:
        train_on(one, 64, TRAINED)
        predictions(one, 8)
    assert fingerprints(run) == before


def test_what_is_no_run_is_refused_under_its_own_name(tmp_path: Path) -> None:
    with (
        pytest.raises(CheckpointError, match="is not a run directory"),
        reopen(tmp_path),
    ):
        pass
    run = finished(tmp_path)
    text = (tmp_path / "lab.csv").read_text().replace("0.", "1.")
    (tmp_path / "lab.csv").write_text(text)
    with pytest.raises(CheckpointError, match=str(run)), reopen(run):
        pass
    shutil.rmtree(run / "parties")
    with (
        pytest.raises(CheckpointError, match="a run has a folder per party under"),
        reopen(run),
    ):
        pass


def test_a_spent_budget_ends_a_rehearsal_with_its_reason() -> None:
    assert (
        "will not release"
        in train_on(trained(parties={"lab": BUDGETED}), 10_000, TRAINED).refused
    )
