"""The command line teaches itself, and turns every error of ours into one message and
an exit code."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.cli.called import Caller
from tests.federation.small import write
from typer.utils import get_params_from_function

import colonnade
from colonnade import cli
from colonnade.cli import app

COMMANDS = app.registered_commands

OPTIONS = {
    "demo": ["--out", "--quiet"],
    "init": ["--label", "--yes", "--out", "--force", "[CSV]..."],
    "align": ["--count", "--out", "--json", "--quiet", "FEDERATION.toml"],
    "select": [
        "--keep",
        "--method",
        "--bins",
        "--least-difference",
        "--write",
        "--out",
        "--json",
        "--quiet",
        "FEDERATION.toml",
    ],
    "plan": [
        "--batches",
        "--network",
        "--seed",
        "--engine",
        "--json",
        "FEDERATION.toml",
    ],
    "tune": ["--runs", "--out", "--seed", "--json", "--quiet", "FEDERATION.toml"],
    "run": [
        "--out",
        "--resume",
        "--seed",
        "--set",
        "--network",
        "--startup-kit",
        "--live",
        "--json",
        "FEDERATION.toml",
    ],
    "predict": ["--rows", "--out", "--table", "--as", "--model", "--json", "DIR"],
    "serve": [
        "--host",
        "--port",
        "--token-file",
        "--limit",
        "--rate",
        "--cache",
        "DIR",
    ],
    "export": ["--out", "--party", "DIR"],
    "provision": ["--out", "--server", "--port", "FEDERATION.toml"],
    "party": ["check", "party.toml"],
    "site": [
        "status",
        "logs",
        "drain",
        "metrics",
        "--follow",
        "--port",
        "--json",
        "party.toml",
    ],
    "ledger": [
        "--run",
        "--party",
        "--peer",
        "--release",
        "--direction",
        "--each",
        "--format",
        "--out",
    ],
    "explain": [
        "--retrain",
        "--noise",
        "--rows",
        "--by",
        "--out",
        "--json",
        "--quiet",
        "DIR",
    ],
    "audit": ["--rows", "--party", "--out", "--json", "--quiet", "DIR"],
    "privacy": ["--json", "DIR|FEDERATION.toml"],
    "report": ["--baselines", "--splits", "--out", "--quiet", "DIR"],
    "sign": ["--as", "--key", "--make-key", "--startup-kit", "RUN"],
    "verify": [
        "--run",
        "--signature",
        "--certificate",
        "--trust",
        "--json",
        "RUN|FILE",
    ],
    "compare": ["--out", "--quiet", "DIR DIR..."],
    "algorithms": ["--json"],
    "datasets": ["--json"],
    "schema": ["--out", "[federation|party]"],
    "reproduce": ["--quick", "--out", "--json"],
    "bench": ["--quick", "--json"],
    "doctor": ["--json"],
}


def test_the_commands_are_these(call: Caller) -> None:
    assert list(cli.COMMANDS) == list(OPTIONS)
    helped = call("--help")
    assert helped.code == 0
    for part in (*OPTIONS, "--version", "Exit codes", "colonnade demo"):
        assert part in helped.out


def test_messages_end_their_lines_between_words_at_a_terminal_alone(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = call.fails(2, "run", "nowhere.toml")
    assert whole.count("\n") == 1
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    lines = re.sub(r"\x1b\[[\d;]*m", "", call("run", "nowhere.toml").err).splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 40
    assert " ".join(lines) == whole.strip()


def test_lists_come_without_torch() -> None:
    code = (
        "import sys; from colonnade.cli import listings\nlistings.datasets();"
        " listings.algorithms()\n"
    )
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_help_of_all_comes_without_torch_and_says_of_each_what_its_own_says() -> None:
    code = (
        "import sys; sys.argv[1:] = ['--help']; from colonnade.cli import main\ntry:"
        " main()\nexcept SystemExit: pass\n"
    )
    code += "assert not {'torch', 'pandas', 'numpy'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    alone = {
        one.name: one.callback.__doc__
        for one in cli.commands(set()).registered_commands
        if one.callback
    }
    assert alone == {
        one.name: inspect.cleandoc(one.callback.__doc__ or "")
        for one in COMMANDS
        if one.callback
    }


@pytest.mark.parametrize("command", COMMANDS, ids=list(OPTIONS))
def test_help_takes_no_table_of_a_file_for_markup(command: Any) -> None:
    """[data] in a help text must be written \\[data], or it is not shown."""
    words = [
        param.default.help or ""
        for param in get_params_from_function(command.callback).values()
    ]
    written = "\n".join([command.callback.__doc__, *words])
    assert set(re.findall(r"(?<!\\)\[/?([a-z_]+)\]", written)) <= {"bold"}


@pytest.mark.parametrize("command", OPTIONS)
def test_help_tells_every_option(command: str, call: Caller) -> None:
    helped = call(command, "--help")
    assert helped.code == 0
    for option in OPTIONS[command]:
        assert option in helped.out


def test_without_arguments_it_helps(call: Caller) -> None:
    helped = call()
    assert "Usage" in helped.out + helped.err


def test_the_version_is_the_packages(call: Caller) -> None:
    called = call("--version")
    assert (called.code, called.out) == (0, f"{colonnade.__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["rnu"],
        ["run"],
        ["run", "a.toml", "--sed", "1"],
        ["run", "a.toml", "--seed", "x"],
    ],
)
def test_a_mistyped_line_is_code_2(arguments: list[str], call: Caller) -> None:
    called = call(*arguments)
    assert called.code == 2
    assert called.out == ""
    assert "Traceback" not in called.err


def test_a_message_is_printed_as_it_is(call: Caller, tmp_path: Path) -> None:
    """Brackets in it are no markup, and a pipe gets whole lines."""
    path = tmp_path / "federation.toml"
    path.write_text("[trian]\n")
    known = (
        "algorithm, data, preprocess, model, label_model, train, federation, audit,"
        " alignment, selection, tracking, parties, label_owners, data_owners"
    )
    message = call.fails(2, "run", path)
    assert (
        message
        == f"ConfigError: {path} has no table [trian] (did you mean 'train'?). It"
        f" knows: {known}.\n"
    )


def test_an_error_of_the_disk_is_one_message(call: Caller, tmp_path: Path) -> None:
    """Where a command does not say it better itself: here the name leaves no room for
    the file that becomes it."""
    write(tmp_path)
    tables = sorted(tmp_path.glob("*.csv"))
    called = call("init", *tables, "--yes", "--out", tmp_path / ("x" * 250))
    assert called.code == 2
    assert "File name too long" in called.err
    assert "Put it right, and try again." in called.err
    assert "Traceback" not in called.err
    assert not list(tmp_path.glob("*x*"))


def test_a_warning_is_its_words_alone_and_said_once() -> None:
    before = warnings.formatwarning
    written = cli._each_warning_once()
    assert (
        written("Labels leave.", UserWarning, "federation.py", 7)
        == "Warning: Labels leave.\n"
    )
    assert written("Labels leave.", UserWarning, "federation.py", 7) == ""
    assert (
        written("Columns leave.", UserWarning, "federation.py", 7)
        == "Warning: Columns leave.\n"
    )
    with pytest.raises(SystemExit):
        cli.main()
    assert warnings.formatwarning is before


def colonnade_in(folder: Path, *arguments: object) -> subprocess.Popen[str]:
    """As a shell calls it."""
    command = [
        sys.executable,
        "-c",
        "from colonnade.cli import main; main()",
        *map(str, arguments),
    ]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=one_thread,
    )


@pytest.mark.long
def test_as_a_process_it_trains_into_a_folder_and_says_nothing_or_fails_with_a_code(
    tmp_path: Path,
) -> None:
    done = colonnade_in(tmp_path, "run", write(tmp_path).name, "--quiet")
    failed = colonnade_in(tmp_path, "run", "none.toml")
    said, warned = done.communicate(timeout=120)
    assert said == ""
    # of so few rows, it may have
    assert not warned or warned.startswith("Warning: The model learned nothing")
    assert done.returncode == 0
    assert (tmp_path / "runs" / "federation" / "summary.json").exists()
    out, err = failed.communicate(timeout=120)
    assert (failed.returncode, out) == (2, "")
    assert (
        err
        == "ConfigError: The federation file none.toml cannot be read: No such file or"
        " directory.\n"
    )
