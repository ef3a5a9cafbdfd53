"""Progress bars and tables say what the numbers say."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from tests.federation.small import federation, frames

from colonnade.cli import console
from colonnade.errors import CheckpointError
from colonnade.report import words


def shown(table: Table) -> str:
    out = Console(file=io.StringIO(), width=120)
    out.print(table)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (12_345_678, "12.3 MB"),
        (5e9, "5.0 GB"),
        (7e12, "7000.0 GB"),
    ],
)
def test_sizes_for_people(count: float, text: str) -> None:
    assert words.size(count) == text


def test_the_bar_tells_epoch_loss_score_and_bytes_in_80_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = Console(file=io.StringIO(), width=80, force_terminal=True)
    monkeypatch.setattr(console, "error_console", out)
    one = federation()
    with console.progress_of(one, "a federation file with a long name") as watch:
        one.fit(watch=watch)
        watch(dataclasses.replace(next(federation().train()), loss=2.345e12))
    assert isinstance(out.file, io.StringIO)
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", out.file.getvalue())
    assert re.search(
        r"a federatio… \S+ epoch 1/2  loss 2.34e\+12  val. accuracy \d\.\d{3}  \d+\.\d"
        r" kB +\d\d:\d\d",
        text,
    )


def test_a_quiet_bar_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Console(file=io.StringIO(), force_terminal=True)
    monkeypatch.setattr(console, "error_console", out)
    one = federation(frames(task="regression"))
    with console.progress_of(one, "toy", quiet=True) as watch:
        one.fit(watch=watch)
    assert isinstance(out.file, io.StringIO)
    assert out.file.getvalue() == ""


def test_a_folder_without_a_run_says_where_one_is(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"is not a run directory.*colonnade run FEDERATION.toml"
    ):
        console.a_run(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.json").write_text("{}")
    assert console.a_run(tmp_path / "run") == tmp_path / "run"
    with pytest.raises(CheckpointError, match=rf"Did you mean {tmp_path}/run\?"):
        console.a_run(tmp_path)
    with pytest.raises(
        CheckpointError,
        match=rf"There is no folder .*/rum \(did you mean '{tmp_path}/run'\?\)",
    ):
        console.a_run(tmp_path / "rum")


def test_a_path_is_shown_and_typed_as_it_is() -> None:
    out = Console(file=io.StringIO(), width=120)
    path = Path("my [v2] runs/[bold]")
    out.print(f"[bold]{console.shown(path)}[/bold]: run {console.typed(path)}")
    assert isinstance(out.file, io.StringIO)
    assert out.file.getvalue() == "my [v2] runs/[bold]: run 'my [v2] runs/[bold]'\n"


def test_a_long_name_is_shown_whole() -> None:
    name = "x" * 60 + "last"
    table = console.traffic_table(
        {"bytes": {name: {"out": 2000, "in": 3000}}, "parties": {name: ["features"]}}
    )
    out = Console(file=io.StringIO(), width=60)
    out.print(table)
    assert isinstance(out.file, io.StringIO)
    assert out.file.getvalue().count("x") == 60
    assert "…" not in out.file.getvalue()


def test_tables_hold_every_split_and_every_party() -> None:
    metrics = shown(
        console.metrics_table(
            {
                "metrics": {
                    "train": {"loss": 0.5, "accuracy": 0.91},
                    "test": {"loss": None, "accuracy": 0.87},
                },
                "majority": {"train": {"share": 0.81}, "test": {"share": 0.83}},
            }
        )
    )
    for part in (
        "train rows",
        "test rows",
        "0.9100",
        "0.8700",
        "accuracy",
        "largest class",
        "0.8100",
        "0.8300",
    ):
        assert part in metrics
    summary = {
        "bytes": {"clinic": {"out": 2000, "in": 3000}},
        "parties": {"clinic": ["features", "labels"]},
    }
    traffic = shown(console.traffic_table(summary))
    for part in ("clinic", "features and labels", "2.0 kB", "3.0 kB"):
        assert part in traffic


def test_a_command_whose_reader_leaves_goes_on_and_writes_its_file(
    tmp_path: Path,
) -> None:
    """As `colonnade init ... | head` does."""
    file = tmp_path / "written"
    words = "for n in range(3): console.print(n)"
    code = (
        "import pathlib\nfrom colonnade.cli.console import"
        f" console\n{words}\npathlib.Path({str(file)!r}).touch()"
    )
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as out:
        assert (
            subprocess.run(
                [sys.executable, "-c", code], stdout=out, check=False
            ).returncode
            == 0
        )
    assert file.exists()


@pytest.mark.parametrize(("width", "framed"), [(90, True), (48, True), (40, False)])
def test_a_narrow_table_keeps_its_words_and_at_last_drops_its_frame(
    width: int, framed: bool
) -> None:
    words = ("party", "parameters", "features and labels", "epsilon")
    table = Table(*words)
    table.add_row("hospital", "312", "columns of the laboratory", "∞")
    out = type(console.console)(file=io.StringIO(), width=width)
    out.print(table)
    assert isinstance(out.file, io.StringIO)
    told = out.file.getvalue()
    assert max(map(len, told.splitlines())) <= width
    assert all(
        word in told
        for text in (*words, "hospital", "columns of the laboratory")
        for word in text.split()
    )
    assert ("┃" in told) is framed
