"""TensorBoard's own reader finds what was told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.federation.small import THREE, checkpoint_of, equal, federation, records

from colonnade.core import Step
from colonnade.errors import ConfigError

pytest.importorskip("tensorboard", reason="TensorBoard is not installed")

INTO_THE_RUN = {**THREE, "tracking": {"tensorboard": True}}


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return events


def values(folder: Path, name: str) -> dict[int, float]:
    """By step; a step that is there twice would show."""
    found = [(event.step, event.value) for event in read(folder).Scalars(name)]
    assert len(dict(found)) == len(found)
    return dict(found)


def test_every_batch_and_epoch_is_there(tmp_path: Path) -> None:
    steps: list[Step] = []

    def watch(event: Any) -> None:
        if isinstance(event, Step):
            steps.append(event)

    outcome = federation(settings=INTO_THE_RUN).fit(tmp_path / "run", watch=watch)
    folder = tmp_path / "run" / "tensorboard"
    losses = values(folder, "batch/loss")
    assert losses == {
        step.batch.step + 1: pytest.approx(step.loss, rel=1e-6) for step in steps
    }
    for name, key in (("loss", "loss"), ("bytes", "bytes"), ("seconds", "seconds")):
        assert values(folder, name) == {
            one["step"]: pytest.approx(one[key], rel=1e-6) for one in outcome.history
        }
    test = outcome.summary["metrics"]["test"]["accuracy"]
    assert values(folder, "test/accuracy") == {
        outcome.summary["rounds"]: pytest.approx(test)
    }
    text = (
        read(folder)
        .Tensors("settings/text_summary")[0]
        .tensor_proto.string_val[0]
        .decode()
    )
    assert "| train.epochs | 3 |" in text
    assert "| algorithm | vimadmm |" in text


def test_it_changes_nothing_about_the_training(tmp_path: Path) -> None:
    federation(settings=INTO_THE_RUN).fit(tmp_path / "told")
    federation(settings=THREE).fit(tmp_path / "plain")
    assert equal(checkpoint_of(tmp_path / "told"), checkpoint_of(tmp_path / "plain"))
    assert records(tmp_path / "told") == records(tmp_path / "plain")


def test_a_resumed_run_counts_each_step_once(tmp_path: Path) -> None:
    settings = {**INTO_THE_RUN, "tracking": {"tensorboard": str(tmp_path / "boards")}}

    def killed(event: Any) -> None:
        # in the second epoch, three batches after a checkpoint
        if isinstance(event, Step) and event.batch.step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federation(settings=settings).fit(tmp_path / "run", watch=killed)
    folder = tmp_path / "boards" / "run"
    assert set(values(folder, "batch/loss")) == set(range(1, 8))
    outcome = federation(settings=settings).fit(tmp_path / "run", resume=True)
    assert set(values(folder, "batch/loss")) == set(range(1, 13))
    assert values(folder, "loss") == {
        one["step"]: pytest.approx(one["loss"], rel=1e-6) for one in outcome.history
    }


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_disk_that_fills_up_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """TensorBoard writes in a thread of its own, so it learns late that nothing more
    fits."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    def full(self: RecordWriter, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    def watch(event: Any) -> None:
        if isinstance(event, dict) and event["epoch"] == 1:
            monkeypatch.setattr(RecordWriter, "write", full)

    outcome = federation(settings=INTO_THE_RUN).fit(tmp_path / "run", watch=watch)
    assert len(outcome.history) == 3
    kept = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "No space left on device" in kept["tracking"]["tensorboard"]
    assert caplog.text.count("Training goes on without it.") == 1
    federation(settings=THREE).fit(tmp_path / "plain")
    assert equal(checkpoint_of(tmp_path / "run"), checkpoint_of(tmp_path / "plain"))


def test_a_file_in_the_folders_place_is_an_error_before_training(
    tmp_path: Path,
) -> None:
    (tmp_path / "boards").mkdir()
    (tmp_path / "boards" / "run").write_text("")
    settings = {**THREE, "tracking": {"tensorboard": str(tmp_path / "boards")}}
    with pytest.raises(
        ConfigError, match=r"tensorboard needs a folder, and .*boards/run is a file"
    ):
        federation(settings=settings).fit(tmp_path / "run")
    assert not (tmp_path / "run").exists()
