"""`colonnade run`."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.called import Caller
from tests.federation.small import Spent, checkpoint_of, equal, quick, records, write

from colonnade.core import Mechanism, Plain
from colonnade.federation import Federation, load, rules
from colonnade.installation import hint
from colonnade.runs.run_directory import RunDirectory


def test_run_keeps_a_directory_and_shows_tables(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path)
    monkeypatch.chdir(tmp_path)
    called = call("run", path)
    assert called.code == 0
    for part in (
        "How good the joint model is",
        "accuracy",
        "largest class",
        "AUC",
        "What travelled",
        "clinic",
        "vimadmm: 2 epochs, 8 rounds",
    ):
        assert part in called.out
    assert (tmp_path / "runs" / "federation" / "summary.json").exists()
    assert call("run", path).code == 0  # a new one beside it
    assert (tmp_path / "runs" / "federation-2" / "summary.json").exists()


def test_json_is_the_summary_and_quiet_is_silent(call: Caller, tmp_path: Path) -> None:
    path = write(tmp_path)
    told = call("run", path, "--out", tmp_path / "a", "--json")
    assert json.loads(told.out) == RunDirectory(tmp_path / "a").summary()
    assert told.err == ""
    quiet = call("run", path, "--out", tmp_path / "b", "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    assert equal(checkpoint_of(tmp_path / "a"), checkpoint_of(tmp_path / "b"))


def test_the_seed_can_be_given(call: Caller, tmp_path: Path) -> None:
    path = write(tmp_path)
    told = call("run", path, "--out", tmp_path / "run", "--json", "--seed", 5)
    assert json.loads(told.out)["seed"] == 5
    other = Federation.from_toml(path, seed=5).fit()
    assert json.loads(told.out)["metrics"] == other.summary["metrics"]


def test_resume_continues_the_latest_run_of_that_file(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path)
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/federation", "runs/federation-2", "runs/federation-of-others"):
        with pytest.raises(KeyboardInterrupt):
            Federation.from_toml(path).fit(folder, watch=interrupt)
    called = call("run", path, "--resume", "--json")
    assert called.code == 0
    assert json.loads(called.out)["epochs"] == 2
    done = [
        name
        for name in ("federation", "federation-2", "federation-of-others")
        if Path(f"runs/{name}/summary.json").exists()
    ]
    assert done == ["federation-2"]
    Federation.from_toml(path).fit("whole")
    assert equal(checkpoint_of(Path("whole")), checkpoint_of(Path("runs/federation-2")))
    assert records(Path("whole")) == records(Path("runs/federation-2"))
    assert (
        call("run", path, "--resume", "--out", "runs/federation", "--quiet").code == 0
    )
    assert equal(checkpoint_of(Path("whole")), checkpoint_of(Path("runs/federation")))


def interrupt(event: Any) -> None:
    if isinstance(event, dict):
        raise KeyboardInterrupt


def test_ctrl_c_ends_without_a_traceback_and_says_how_to_go_on(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path)
    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        module = sys.modules["colonnade.cli.run"]  # as a name, it is the command
        patched.setattr(
            module, "progress_of", lambda *_, **__: contextlib.nullcontext(interrupt)
        )
        stopped = call("run", path, "--out", folder)
    assert stopped.code == 130
    assert "Traceback" not in stopped.err
    assert f"colonnade run {path} --out {folder} --resume" in stopped.err
    assert call("run", path, "--out", folder, "--resume").code == 0


def test_what_cannot_be_run_is_one_message_and_code_2(
    call: Caller, finished: Path, tmp_path: Path
) -> None:
    path = finished / "federation.toml"
    assert "cannot be read: No such file" in call.fails(
        2, "run", tmp_path / "none.toml"
    )
    (tmp_path / "bad.toml").write_text("[train\n")
    assert "is not TOML" in call.fails(2, "run", tmp_path / "bad.toml")
    # no table is read before it
    (tmp_path / "tables.toml").write_text(path.read_text().replace(".csv", ".none"))
    assert "already holds a run" in call.fails(
        2, "run", tmp_path / "tables.toml", "--out", finished / "run"
    )
    assert "There is no run to resume in" in call.fails(
        2, "run", path, "--out", tmp_path / "x", "--resume"
    )
    refused = call.fails(
        2, "run", path, "--out", finished / "run", "--resume", "--seed", 3
    )
    assert "--seed cannot change a run that is resumed" in refused
    assert "cannot be written" in call.fails(
        2, "run", path, "--out", path / "run", "--quiet"
    )
    near = path.with_name("federaton.toml")
    assert f"No such file or directory (did you mean '{path}'?)." in call.fails(
        2, "run", near
    )
    assert "--startup-kit is for sites elsewhere" in call.fails(
        2, "run", path, "--startup-kit", tmp_path
    )
    assert "found ['os']" in call.fails(2, "run", path, "--allow-model", "os")
    for seed in (-1, 2**63):
        assert "Invalid value for '--seed'" in call("run", path, "--seed", seed).err


def test_a_failing_party_is_code_3(call: Caller, tmp_path: Path) -> None:
    own = "tests.federation.small:Broken"
    path = write(tmp_path, settings=quick(parties={"lab": {"model": own}}))
    message = call.fails(
        3, "run", path, "--out", tmp_path / "run", "--quiet", "--allow-model", own
    )
    assert message.startswith("PartyError: 'lab' failed while answering")
    assert "the tower fell" in message


def test_a_spent_budget_is_code_4_and_leaves_a_model(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanisms: dict[str, Callable[..., Mechanism]] = {"plain": Plain, "spent": Spent}
    monkeypatch.setattr(rules, "MECHANISMS", mechanisms)
    lab = {"outbox": {"train.embedding": {"mechanism": {"name": "spent", "after": 5}}}}
    path = write(tmp_path, settings=quick(parties={"lab": lab}))
    message = call.fails(4, "run", path, "--out", tmp_path / "run", "--quiet")
    assert (
        message
        == "BudgetExhausted: 'lab' will not release \"embedding\" again: its budget is"
        " spent.\n"
    )
    assert load(tmp_path / "run", ids=["P001"]).predict().labels.shape == (1,)
    told = call("run", path, "--out", tmp_path / "told", "--json")
    assert told.code == 4
    assert json.loads(told.out)["rounds"] == 5
    # with tables, whatever could be measured
    assert call("run", path, "--out", tmp_path / "shown").code == 4
    never = {"outbox": {"embedding": {"mechanism": {"name": "spent", "after": 0}}}}
    nothing = call(
        "run",
        write(tmp_path, settings=quick(parties={"lab": never})),
        "--out",
        tmp_path / "nothing",
    )
    assert nothing.code == 4
    assert "No rows could be measured." in nothing.out


def test_live_says_where_its_page_is_and_stops_with_the_run(
    call: Caller, tmp_path: Path
) -> None:
    path = write(tmp_path)
    called = call("run", path, "--out", tmp_path / "run", "--live", "--json")
    assert called.code == 0
    (port,) = re.findall(
        r"^The report, as it comes: http://127\.0\.0\.1:(\d+)/$",
        called.err,
        re.MULTILINE,
    )
    # and nothing else: nobody sits at a pipe to press Ctrl-C
    assert json.loads(called.out)["epochs"] == 2
    with socket.socket() as free:
        assert free.connect_ex(("127.0.0.1", int(port))) != 0
    again = call(
        "run",
        path,
        "--out",
        tmp_path / "run",
        "--live",
        "--port",
        port,
        "--resume",
        "--quiet",
    )
    assert again.code == 0
    assert f":{port}/" in again.err


def test_a_page_that_cannot_be_shown_is_told_before_training(
    call: Caller, tmp_path: Path
) -> None:
    path = write(tmp_path)
    out = tmp_path / "run"
    assert "Add --live" in call.fails(2, "run", path, "--out", out, "--port", 8000)
    assert "its numbers stay at the sites" in call.fails(
        2, "run", path, "--out", out, "--live", "--engine", "flare"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"Port {port} is in use" in call.fails(
            2, "run", path, "--out", out, "--live", "--port", port
        )
    assert not out.exists()


def test_a_tracker_that_is_not_installed_is_told_before_training(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    path = write(tmp_path, settings=quick(tracking={"tensorboard": True}))
    message = call.fails(2, "run", path, "--out", tmp_path / "run", "--quiet")
    assert hint("tracking") in message
    assert not (tmp_path / "run").exists()


def test_a_run_imports_neither_scikit_learn_nor_torchs_compiler(tmp_path: Path) -> None:
    """Each takes as long as importing torch, and a run of plain models on tables needs
    neither."""
    path = write(tmp_path)
    script = (
        f"import sys; sys.argv[1:] = ['run', {str(path)!r}, '--quiet', '--out',"
        f" {str(tmp_path / 'run')!r}]\nfrom colonnade.cli import main\ntry:"
        " main()\nexcept SystemExit as end: assert not end.code, end.code\nassert not"
        " {'sklearn', 'scipy.stats', 'torch._dynamo'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)
