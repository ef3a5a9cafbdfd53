"""A run on disk: nothing private in it, nothing outside it, and an interrupted run ends
like an undisturbed one."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federation.small import (
    THREE,
    THREE_EACH,
    Frames,
    checkpoint_of,
    equal,
    federation,
    frames,
    ledgers,
    quick,
    records,
    write,
)

from colonnade.core import Step, files
from colonnade.core.files import hold
from colonnade.errors import CheckpointError, ConfigError, InputError, StoreError
from colonnade.federation import Federation, Outcome, Settings, load
from colonnade.runs.layout import LOCK
from colonnade.runs.run_directory import RunDirectory, to_json

STACKED = quick(train={"epochs": 3, "early_stop": False}, federation={"cohort": "on"})
ALONE = quick(train={"epochs": 3, "early_stop": False}, federation={"cohort": "off"})
Undisturbed = Callable[[Any], tuple[Path, Outcome]]


class Interrupted(Exception):  # noqa: N818 - it is what happened
    """As if the process had been killed."""


def after(number: int, kind: type) -> Callable[[Any], None]:
    """A watch that interrupts at the given step or record."""
    left = [number]

    def watch(event: Any) -> None:
        if isinstance(event, kind):
            left[0] -= 1
            if not left[0]:
                raise Interrupted

    return watch


def names_in(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    }


def same_run(a: Path, b: Path) -> bool:
    return (
        equal(checkpoint_of(a), checkpoint_of(b))
        and records(a) == records(b)
        and ledgers(a) == ledgers(b)
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The run directory and outcome of settings that ran to their end; each is run
    once."""
    done: dict[str, tuple[Path, Outcome]] = {}

    def run(settings: Any) -> tuple[Path, Outcome]:
        key = json.dumps(settings)
        if key not in done:
            folder = tmp_path_factory.mktemp("whole") / "run"
            done[key] = folder, federation(settings=settings).fit(folder)
        return done[key]

    return run


def test_the_files_are_those_that_are_documented_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "tables")
    before = names_in(tmp_path)
    monkeypatch.chdir(tmp_path)
    trained = Federation.from_toml(path)
    trained.fit(tmp_path / "run")
    parties = {
        f"run/parties/{name}/{file}"
        for name in ("clinic", "lab")
        for file in (
            "columns.json",
            "importance.json",
            "ledger.jsonl",
            "checkpoint-000004/tensors.safetensors",
            "checkpoint-000004/state.json",
        )
    }
    tops = {
        f"run/{name}"
        for name in (
            "federation.toml",
            "run.json",
            "metrics.jsonl",
            "summary.json",
            "checkpoint.json",
            ".lock",
        )
    }
    assert names_in(tmp_path) - before == tops | parties | {
        "run/parties/clinic/quality.json"
    }
    assert before <= names_in(tmp_path)
    assert Settings.from_toml(tmp_path / "run" / "federation.toml") == trained.settings
    assert json.loads((tmp_path / "run" / "checkpoint.json").read_text())["step"] == 8
    assert [record["epoch"] for record in records(tmp_path / "run")] == [1, 2]


@pytest.mark.parametrize("settings", THREE_EACH, ids=["vimadmm", "splitnn"])
def test_no_file_holds_a_raw_cell_an_id_or_a_label(
    settings: Any, tmp_path: Path
) -> None:
    given = frames()
    given["lab"]["patient"] = given["lab"]["patient"].replace("P007", "CANARY-ID-7f3a")
    given["clinic"]["patient"] = given["clinic"]["patient"].replace(
        "P007", "CANARY-ID-7f3a"
    )
    given["lab"].loc[given["lab"]["patient"] == "CANARY-ID-7f3a", "iron"] = 123456.789
    given["lab"]["ward"] = "east"
    given["lab"].loc[given["lab"].index[:30], "ward"] = "CANARY-WARD"
    given["clinic"]["diagnosis"] = given["clinic"]["diagnosis"].replace(
        "ill", "CANARY-ILL"
    )
    path = write(
        tmp_path / "tables", given, {**settings, "parties": {"lab": {"scale": "none"}}}
    )
    one = Federation.from_toml(path)
    one.fit(tmp_path / "run")
    one.predict(["CANARY-ID-7f3a"])
    one.save(tmp_path / "saved")
    number = 123456.789
    needles = [
        b"CANARY-ID",
        b"123456.78",
        b"123456.79",
        struct.pack("<d", number),
        struct.pack("<f", number),
    ]
    held = [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and "tables" not in path.parts
    ]
    assert len(held) > 20
    for file in held:
        content = file.read_bytes()
        assert not [needle for needle in needles if needle in content], file
        # names of classes and categories are what a party's own folder must remember,
        # and no other
        whose = {b"CANARY-ILL": "clinic", b"CANARY-WARD": "lab"}
        for needle, owner in whose.items():
            if needle in content:
                assert file.name == "columns.json" or (file.name, owner) == (
                    "quality.json",
                    "clinic",
                )
                assert file.parent.name == owner


def test_a_party_folder_holds_its_own_state_alone(tmp_path: Path) -> None:
    federation().fit(tmp_path / "run")
    found = checkpoint_of(tmp_path / "run")
    assert {place.split("/")[0] for place in found} == {"clinic", "lab"}
    rows = len(frames()["lab"])
    large = [
        place
        for place, tensor in found.items()
        if tensor.dim() and tensor.shape[0] == rows
    ]
    assert large == ["clinic/labels/duals"]  # per row, and at the label owner only


@pytest.mark.parametrize(
    "settings",
    [*THREE_EACH, STACKED, ALONE],
    ids=["vimadmm", "splitnn", "cohort", "alone"],
)
@pytest.mark.parametrize(
    ("number", "kind"), [(1, Step), (6, Step), (1, dict), (2, dict), (3, dict)]
)
def test_an_interrupted_run_ends_like_an_undisturbed_one(
    settings: Any, number: int, kind: type, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    folder, whole = undisturbed(settings)
    with pytest.raises(Interrupted):
        federation(settings=settings).fit(tmp_path / "cut", watch=after(number, kind))
    resumed = federation(settings=settings).fit(tmp_path / "cut", resume=True)
    assert same_run(folder, tmp_path / "cut")
    assert len(resumed.history) == len(whole.history) == 3
    for key in ("metrics", "bytes", "rounds", "epochs", "stopped"):
        assert resumed.summary[key] == whole.summary[key]


@pytest.mark.parametrize("every", [0, 2])
def test_rarer_checkpoints_lose_epochs_but_change_nothing(
    every: int, tmp_path: Path
) -> None:
    settings = quick(
        train={"epochs": 3, "early_stop": False, "checkpoint_every": every}
    )
    federation(settings=settings).fit(tmp_path / "whole")
    with pytest.raises(Interrupted):
        federation(settings=settings).fit(tmp_path / "cut", watch=after(11, Step))
    assert len(records(tmp_path / "cut")) == 2
    assert RunDirectory(tmp_path / "cut").mark()["step"] == (0 if every == 0 else 8)
    federation(settings=settings).fit(tmp_path / "cut", resume=True)
    assert same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("nth", range(2, 9))  # two parties and four checkpoints
def test_a_crash_while_saving_falls_back_to_the_checkpoint_before(
    nth: int, undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [0]
    real = files.write_state

    def crash(folder: Path, state: dict[str, Any], **options: Any) -> None:
        calls[0] += 1
        if calls[0] == nth + 1:
            raise Interrupted
        real(folder, state, **options)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_state", crash)
        with pytest.raises(Interrupted):
            federation(settings=THREE).fit(tmp_path / "cut")
    assert RunDirectory(tmp_path / "cut").mark()["number"] == nth // 2
    federation(settings=THREE).fit(tmp_path / "cut", resume=True)
    assert same_run(undisturbed(THREE)[0], tmp_path / "cut")


def test_a_line_that_a_crash_cut_short_is_dropped(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        federation(settings=THREE).fit(tmp_path / "cut", watch=after(2, dict))
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "st')
    with (tmp_path / "cut" / "parties" / "lab" / "ledger.jsonl").open("a") as file:
        file.write('{"direction":"out","pe')
    federation(settings=THREE).fit(tmp_path / "cut", resume=True)
    assert same_run(undisturbed(THREE)[0], tmp_path / "cut")


def test_resuming_a_finished_run_trains_no_more(tmp_path: Path) -> None:
    federation(settings=THREE).fit(tmp_path / "run")
    before = checkpoint_of(tmp_path / "run")
    lines = records(tmp_path / "run")
    outcome = federation(settings=THREE).fit(tmp_path / "run", resume=True)
    after_ = checkpoint_of(tmp_path / "run")
    assert equal(before, after_)
    assert records(tmp_path / "run") == lines
    assert outcome.summary["epochs"] == 3


def fewer(given: Frames) -> None:
    for name in given:
        given[name] = given[name][given[name]["patient"] != "P003"]


def renamed(given: Frames) -> None:
    for name in given:
        given[name]["patient"] = given[name]["patient"].replace("P003", "Q003")


def wider(given: Frames) -> None:
    given["lab"]["copper"] = np.linspace(0, 1, len(given["lab"]))


def other_values(given: Frames) -> None:
    given["lab"]["iron"] *= 1.01


def other_labels(given: Frames) -> None:
    given["clinic"]["diagnosis"] = given["clinic"]["diagnosis"].replace("ill", "sick")


@pytest.mark.parametrize("change", [fewer, renamed, wider, other_values, other_labels])
def test_a_changed_table_cannot_continue_a_run(
    change: Callable[[Frames], None], tmp_path: Path
) -> None:
    federation().fit(tmp_path / "run")
    given = frames()
    change(given)
    message = (
        r"is not the one that .*run was trained on|are not those that .*run was"
        r" trained on"
    )
    with pytest.raises(CheckpointError, match=message):
        federation(given).fit(tmp_path / "run", resume=True)
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path / "run", frames=given)


@pytest.mark.parametrize(
    "changes",
    [
        {"federation": {"seed": 1}},
        {"train": {"batch_size": 8}},
        {"data": {"test": 0.3}},
    ],
)
def test_another_seed_batch_size_or_split_cannot_continue_a_run(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    federation().fit(tmp_path / "run")
    with pytest.raises(
        ConfigError,
        match=r"A run is continued as it was started, and \[.*\] .* is .* now and was",
    ):
        federation(settings=quick(**changes)).fit(tmp_path / "run", resume=True)


def test_what_may_change_in_a_run_that_is_continued_is_said(tmp_path: Path) -> None:
    federation(settings=quick(train={"epochs": 2, "early_stop": False})).fit(
        tmp_path / "run"
    )
    said = (
        r"otherwise than it was started: \[train\] epochs is 1 now and was 2; \[train\]"
        r" early_stop is True now and was"
    )
    with pytest.warns(UserWarning, match=said):
        federation(settings=quick(train={"epochs": 1})).fit(
            tmp_path / "run", resume=True
        )


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    federation().fit(tmp_path / "run")
    before = {
        name: (tmp_path / "run" / name).read_bytes()
        for name in names_in(tmp_path / "run")
    }
    for again in (
        lambda: federation().fit(tmp_path / "run"),
        lambda: federation().save(tmp_path / "run"),
    ):
        with pytest.raises(
            ConfigError,
            match=(
                r"already holds a run\. Choose another folder, or continue it: --resume"
            ),
        ):
            again()
    assert before == {
        name: (tmp_path / "run" / name).read_bytes()
        for name in names_in(tmp_path / "run")
    }


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match=r"file is a file, and a run needs a folder"):
        federation().fit(tmp_path / "file")
    with pytest.raises(
        InputError, match=r"The run directory .*run cannot be written: Not a directory"
    ):
        federation().fit(tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"number": "x", "step": 1, "rows": ""}', "null"]
)
def test_a_damaged_mark_is_told(content: str, tmp_path: Path) -> None:
    federation().fit(tmp_path / "run")
    (tmp_path / "run" / "checkpoint.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"checkpoint\.json is damaged"):
        federation().fit(tmp_path / "run", resume=True)


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"none is not a run directory: federation\.toml is missing",
    ):
        load(tmp_path / "none")
    with pytest.raises(
        CheckpointError, match=r"is not a run directory: federation\.toml is missing"
    ):
        federation().fit(tmp_path / "none", resume=True)
    federation().fit(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "gone")
    shutil.rmtree(next((tmp_path / "gone" / "parties" / "lab").glob("checkpoint-*")))
    with pytest.raises(
        CheckpointError,
        match=(
            r"There is no checkpoint at .*lab/checkpoint-000004: state\.json is missing"
        ),
    ):
        load(tmp_path / "gone", frames=frames())
    for content in ("{", None):
        path = tmp_path / "run" / "parties" / "lab" / "columns.json"
        path.write_text(content) if content else path.unlink()
        for ids in (None, ["P001"]):
            with pytest.raises(
                CheckpointError, match=r"lab/columns\.json (is damaged|cannot be read)"
            ):
                load(tmp_path / "run", frames=frames(), ids=ids)


def test_a_finished_run_can_be_asked_for_more_epochs(tmp_path: Path) -> None:
    federation(settings=quick(train={"epochs": 1})).fit(tmp_path / "grown")
    grown = federation(settings=quick(train={"epochs": 3}))
    outcome = grown.fit(tmp_path / "grown", resume=True)
    whole = federation(settings=quick(train={"epochs": 3}))
    whole.fit()
    assert [record["epoch"] for record in outcome.history] == [1, 2, 3]
    assert load(tmp_path / "grown", frames=frames()).settings.train.epochs == 3
    for name, owner in whole.owners.items():
        for mine, theirs in zip(
            owner.model.parameters(), grown.owners[name].model.parameters(), strict=True
        ):
            assert torch.equal(mine, theirs)


def test_dropout_repeats_by_seed_and_resumes_bit_equal(tmp_path: Path) -> None:
    settings = quick(
        train={"epochs": 2},
        parties={"lab": {"model": "tests.federation.small:Forgetful"}},
    )
    undisturbed = federation(settings=settings)
    again = federation(settings=settings)
    undisturbed.fit()
    federation(settings={**settings, "train": {**settings["train"], "epochs": 1}}).fit(
        tmp_path / "run"
    )
    again.fit(tmp_path / "run", resume=True)
    for mine, theirs in zip(
        undisturbed.owners["lab"].model.parameters(),
        again.owners["lab"].model.parameters(),
        strict=True,
    ):
        assert torch.equal(mine, theirs)


def test_two_processes_cannot_train_in_one_folder_and_readers_need_not_wait(
    tmp_path: Path,
) -> None:
    one = federation(settings=quick(train={"epochs": 1, "early_stop": False}))
    seen: list[str] = []

    def meanwhile(event: Any) -> None:
        if isinstance(event, dict):
            with pytest.raises(
                ConfigError,
                match=(
                    r"run is trained further by another process now.*Wait for its end"
                ),
            ):
                federation(
                    settings=quick(train={"epochs": 2, "early_stop": False})
                ).fit(tmp_path / "run", resume=True)
            seen.extend(
                load(tmp_path / "run", frames=frames(), ids=["P001"])
                .predict(["P001"])
                .ids
            )

    one.fit(tmp_path / "run", watch=meanwhile)
    assert seen == ["P001"]
    longer = federation(settings=quick(train={"epochs": 2, "early_stop": False}))
    # when it has ended, another may
    assert len(longer.fit(tmp_path / "run", resume=True).history) == 2


def test_a_run_that_broke_off_can_be_resumed_at_once(tmp_path: Path) -> None:
    settings = quick(train={"epochs": 2, "early_stop": False})
    with pytest.raises(Interrupted):
        federation(settings=settings).fit(tmp_path / "run", watch=after(1, dict))
    assert (
        len(federation(settings=settings).fit(tmp_path / "run", resume=True).history)
        == 2
    )


def test_a_run_whose_store_is_gone_releases_nothing(tmp_path: Path) -> None:
    """It is not made anew: what rows have paid would be forgotten."""
    mechanism = {"name": "gaussian", "clip": 1.0, "sigma": 5.0}
    lab = {
        "outbox": {"embedding": {"mechanism": mechanism}},
        "budget": {"epsilon": 20.0},
    }

    def trained(epochs: int) -> Federation:
        return federation(
            settings=quick(
                parties={"lab": lab}, train={"epochs": epochs, "early_stop": False}
            )
        )

    trained(1).fit(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "parties" / "lab" / "store")
    before = ledgers(tmp_path / "run")
    with pytest.raises(StoreError, match="The store of 'lab' is gone"):
        trained(2).fit(tmp_path / "run", resume=True)
    with pytest.raises(StoreError, match="The store of 'lab' is gone"):
        load(tmp_path / "run", frames=frames())
    assert ledgers(tmp_path / "run") == before


def test_of_two_that_begin_a_run_at_once_the_one_that_comes_second_writes_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "run").mkdir()
    with (
        hold(tmp_path / "run" / LOCK, "taken"),
        pytest.raises(ConfigError, match="trained further by another process"),
    ):
        federation(settings=ALONE).fit(tmp_path / "run")
    assert names_in(tmp_path / "run") == {LOCK}


def test_a_folder_that_is_not_there_yet_is_claimed(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path / "runs" / "run")
    second = RunDirectory(tmp_path / "runs" / "run")
    first.claim()
    with pytest.raises(ConfigError, match="trained further by another process"):
        second.claim()
    first.leave()
    second.claim()
    second.leave()


def test_who_cannot_lock_a_folder_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(number: int) -> Callable[..., None]:
        def held(*_: Any) -> None:
            raise OSError(number, os.strerror(number))

        return held

    run = RunDirectory(tmp_path / "run")
    monkeypatch.setattr("colonnade.runs.run_directory.hold", refuse(errno.ENOLCK))
    with pytest.warns(UserWarning, match=r"takes no lock \(No locks available\)"):
        run.claim()
    monkeypatch.setattr("colonnade.runs.run_directory.hold", refuse(errno.EACCES))
    with pytest.raises(InputError, match="cannot be written: Permission denied"):
        run.claim()


def test_a_checkpoint_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation(settings=ALONE).save(tmp_path / "run")
    read: list[Path] = []
    original = files.read_state

    def counted(folder: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
        read.append(folder)
        return original(folder, device)

    monkeypatch.setattr(files, "read_state", counted)
    RunDirectory(tmp_path / "run").restore(federation(settings=ALONE))
    assert len(read) == len(set(read)) > 1


def test_what_is_no_number_is_null_wherever_it_stands() -> None:
    nan = float("nan")
    inf = float("inf")
    assert (
        to_json({"a": [nan, {"b": inf}], "c": (1.0, -inf)})
        == '{"a": [null, {"b": null}], "c": [1.0, null]}'
    )


@pytest.mark.parametrize("number", [0, 99])
def test_what_was_trained_is_not_deleted_by_going_back_to_what_is_not_kept(
    tmp_path: Path, number: int
) -> None:
    """A driver says from which checkpoint a run is resumed: its word must not cost what
    a site has trained."""
    federation().fit(tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    before = {
        path: path.read_bytes()
        for path in (tmp_path / "run").rglob("*")
        if path.is_file()
    }
    with pytest.raises(CheckpointError, match=f"was asked to go back to {number}"):
        run.back_to(number)
    assert {path: path.read_bytes() for path in before} == before
