"""`colonnade site` and `colonnade ledger`: an organisation's own files, over all its
runs."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.called import Caller
from tests.federation.small import quick
from tests.federation.small_sites import folders, sites

from colonnade.cli import site
from colonnade.core.files import hold
from colonnade.errors import BoundaryError, PartyError
from colonnade.runs.history import crossings, to_csv
from colonnade.runs.layout import AFTER, LEDGER, LOCK, PARTIES, SITE_LOG
from colonnade.runs.site_state import LOG_FILES, keep_log, prometheus, state_of
from colonnade.settings.party_file import OWN
from colonnade.sites.driving import drive

GAUSSIAN = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 3.0}}}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs at two sites."""
    place = tmp_path_factory.mktemp("sites")
    folders(place, settings=quick(parties={"lab": {"outbox": GAUSSIAN}}))
    for run in ("first", "second"):
        drive(sites(place)["clinic"], run)
    return place


def test_what_was_released_is_added_up_over_all_runs_as_the_ledgers_have_it(
    base: Path,
) -> None:
    found = crossings(base / "lab" / OWN)
    assert [one.run for one in found] == ["first"] * (len(found) // 2) + ["second"] * (
        len(found) // 2
    )
    written = [
        json.loads(line)
        for name in (LEDGER, AFTER)
        for line in (
            (base / "lab" / "runs" / "first" / PARTIES / "lab" / name)
            .read_text()
            .splitlines()
            if (base / "lab" / "runs" / "first" / PARTIES / "lab" / name).exists()
            else []
        )
    ]
    sent = [
        one
        for one in written
        if one["direction"] == "out" and one["name"] == "embedding"
    ]
    (mine,) = crossings(
        base / "lab" / "runs", run="first", direction="sent", release="embedding"
    )
    assert mine.times == len(sent)
    assert mine.bytes == sum(one["bytes"] for one in sent)
    assert mine.rows == sum(one["shape"][0] for one in sent)
    assert mine.peer == "clinic"
    assert mine.epsilon == max(one["epsilon"] for one in sent)
    assert mine.mechanism == "gaussian, clip 1, sigma 3"
    each = crossings(base / "lab" / "runs" / "first", each=True)
    assert len(each) == len(written)
    assert [row["release"] for row in csv.DictReader(io.StringIO(to_csv(each)))] == [
        one["name"] for one in written
    ]


def test_the_ledger_command_filters_and_writes_files(
    base: Path, call: Caller, tmp_path: Path
) -> None:
    out = tmp_path / "sent.csv"
    called = call(
        "ledger",
        base / "lab" / OWN,
        "--direction",
        "sent",
        "--format",
        "csv",
        "--out",
        out,
    )
    assert called.code == 0
    assert {row["direction"] for row in csv.DictReader(out.open())} == {"sent"}
    own_role = ("--peer", "clinic", "--direction", "kept", "--format", "json")
    assert json.loads(call("ledger", base / "lab" / "runs", *own_role).out) == []
    shown = call("ledger", base / "lab" / "runs", "--run", "first").out
    assert "first, begun" in shown
    assert "second" not in shown
    assert call("ledger", tmp_path).code == 2


@pytest.mark.parametrize(
    ("option", "word", "meant"),
    [
        ("--run", "frist", "first"),
        ("--party", "labb", "lab"),
        ("--peer", "clinc", "clinic"),
        ("--release", "embeding", "embedding"),
    ],
)
def test_of_a_name_that_no_ledger_knows_it_is_not_said_that_nothing_crossed(
    option: str, word: str, meant: str, base: Path, call: Caller
) -> None:
    called = call("ledger", base / "lab" / "runs", option, word)
    assert called.code == 2
    assert f"{option} '{word}' is in no ledger" in called.err
    assert f"did you mean '{meant}'?" in called.err


def test_a_damaged_ledger_is_an_error_and_a_line_cut_short_is_not(
    base: Path, tmp_path: Path, call: Caller
) -> None:
    folder = tmp_path / "run" / PARTIES / "lab"
    folder.mkdir(parents=True)
    whole = (base / "lab" / "runs" / "first" / PARTIES / "lab" / LEDGER).read_text()
    (folder / LEDGER).write_text(whole[:-10])
    assert len(crossings(tmp_path / "run", each=True)) == len(whole.splitlines()) - 1
    (folder / LEDGER).write_text('{"direction": "sideways"}\n' + whole)
    called = call("ledger", tmp_path / "run")
    assert called.code == 2
    assert "line 1, is no entry of a ledger" in called.err


def test_status_says_what_the_files_say(base: Path, call: Caller) -> None:
    told = json.loads(call("site", "status", base / "lab" / OWN, "--json").out)
    assert told["healthy"]
    assert [(one["name"], one["state"]) for one in told["runs"]] == [
        ("first", "finished"),
        ("second", "finished"),
    ]
    held = hold(base / "lab" / "runs" / "first" / LOCK, "")
    try:
        assert state_of("lab", base / "lab" / "runs").runs[0].state == "training"
    finally:
        held.close()
    shown = call("site", "status", base / "lab" / OWN).out
    assert "ready" in shown


def test_a_draining_site_takes_no_new_run_and_takes_them_again(
    base: Path, call: Caller
) -> None:
    own = base / "lab" / OWN
    assert call("site", "drain", own).code == 0
    assert [call("site", "status", own, *as_).code for as_ in ((), ("--json",))] == [
        3,
        3,
    ]
    with pytest.raises(PartyError, match="draining"):
        drive(sites(base)["clinic"], "third")
    assert not (base / "lab" / "runs" / "third").exists()
    assert "colonnade_site_draining 1" in call("site", "metrics", own).out
    assert call("site", "resume", own).code == 0
    assert call("site", "status", own).code == 0
    assert "colonnade_site_up 1" in prometheus(state_of("lab", base / "lab" / "runs"))


BELL = "\x1b]0;owned\x07"


def test_what_a_sender_calls_its_tensors_runs_nowhere(
    base: Path, call: Caller, tmp_path: Path
) -> None:
    """Neither in a spreadsheet, nor in a terminal, nor as markup. A name comes with the
    tensor."""
    entry = json.loads(
        next(
            iter(
                (base / "lab/runs/first" / PARTIES / "lab" / LEDGER)
                .read_text()
                .splitlines()
            )
        )
    )
    folder = tmp_path / "run" / PARTIES / "lab"
    folder.mkdir(parents=True)
    names = ["=HYPERLINK(A1)", "@SUM(1)", f"a{BELL}", "[/nothing]"]
    lines = [
        json.dumps({**entry, "direction": "in", "name": name, "event": name})
        for name in names
    ]
    (folder / LEDGER).write_text("\n".join([*lines, ""]))
    rows = list(
        csv.DictReader(
            io.StringIO(call("ledger", tmp_path / "run", "--format", "csv").out)
        )
    )
    assert [row["release"] for row in rows] == [
        "'=HYPERLINK(A1)",
        "'@SUM(1)",
        f"a{BELL}",
        "[/nothing]",
    ]
    assert all(row["mechanism"][0] not in "=@" for row in rows)
    seen = call("ledger", tmp_path / "run").out
    assert "[/nothing]" in seen
    assert "\x1b" not in seen
    assert "\x07" not in seen
    (tmp_path / OWN).write_text('name = "lab"\n')
    (tmp_path / "runs").mkdir()
    forged = {
        "time": "t",
        "level": "info",
        "what": f"x{BELL}\n2026 info lab: all is well",
    }
    (tmp_path / "runs" / SITE_LOG).write_text(json.dumps(forged) + "\n")
    (told,) = call("site", "logs", tmp_path / OWN).out.splitlines()
    assert "\x1b" not in told


def test_the_log_has_events_and_no_data_is_rotated_and_is_read(
    tmp_path: Path, call: Caller
) -> None:
    (tmp_path / OWN).write_text('name = "lab"\n')
    runs = tmp_path / "runs"
    logger = logging.getLogger("colonnade")
    before = list(logger.handlers)
    try:
        keep_log(runs)
        keep_log(runs)
        (handler,) = [one for one in logger.handlers if one not in before]
        try:
            raise ValueError("P007 has 17.3")
        except ValueError:
            logging.getLogger("colonnade.party").warning("lab: an error", exc_info=True)
        handler.doRollover()  # type: ignore[attr-defined]
        logging.getLogger("colonnade.party").warning("lab: after it")
        # half a sign is no way out of the log; pytest's own could not carry it
        half = "lab: refused \ud800"
        handler.handle(
            logger.makeRecord("colonnade.party", logging.WARNING, "", 0, half, (), None)
        )
    finally:
        for one in [one for one in logger.handlers if one not in before]:
            logger.removeHandler(one)
            one.close()
    text = "".join(file.read_text() for file in runs.glob(f"{SITE_LOG}*"))
    assert "P007" not in text
    assert handler.backupCount == LOG_FILES  # type: ignore[attr-defined]
    told = call("site", "logs", tmp_path / OWN, "--last", "5").out.splitlines()
    assert told[0].endswith("lab: an error (ValueError)")
    assert told[1].endswith("lab: after it")
    assert "lab: refused" in told[2]
    assert (
        json.loads(call("site", "logs", tmp_path / OWN, "--json", "--last", "1").out)[
            "level"
        ]
        == "warning"
    )


def test_a_log_that_is_followed_has_each_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also lines that come while others are printed; and in a rotation the file is
    missing for a moment."""
    log = tmp_path / SITE_LOG
    log.write_text("1\n2\n3\n")
    waits: Iterator[Callable[[], object]] = iter(
        [int, int, log.unlink, lambda: log.write_text("6\n")]
    )
    monkeypatch.setattr(time, "sleep", lambda _: next(waits)())
    lines = site._log(log, 2, follow=True)
    assert [next(lines), next(lines)] == ["2", "3"]
    for number in (4, 5):
        with log.open("a") as file:
            file.write(f"{number}\n")
        assert next(lines) == str(number)
    assert next(lines) == "6"


def test_health_and_metrics_are_served_on_this_machine(base: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "colonnade",
        "site",
        "metrics",
        str(base / "lab" / OWN),
        "--port",
        "0",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "200"}
    )
    try:
        assert process.stdout is not None
        address = next(
            word
            for word in process.stdout.readline().split()
            if word.startswith("http://127.0.0.1:")
        )
        place = address.removesuffix("/metrics")
        with urllib.request.urlopen(f"{place}/metrics", timeout=10) as answer:
            assert b'colonnade_site_runs{state="finished"} 2' in answer.read()
        assert urllib.request.urlopen(f"{place}/health", timeout=10).read() == b"ok\n"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{place}/etc", timeout=10)
    finally:
        process.terminate()
        process.wait(30)


def test_a_store_is_made_once_copied_and_recovered(
    call: Caller, tmp_path: Path
) -> None:
    """An older copy of the store is put back. Its owner is told, recovers it, and its
    rows have paid for what was lost."""
    folders(
        tmp_path,
        settings=quick(
            parties={"lab": {"outbox": GAUSSIAN, "budget": {"epsilon": 99.0}}}
        ),
    )
    own = tmp_path / "lab" / OWN
    message = call.fails(2, "site", "init", own)
    assert "one is made once" in message
    drive(sites(tmp_path)["clinic"], "first")
    before = spent_of(call, own)
    copy = tmp_path / "copy.db"
    assert "up to entry" in call("site", "backup", own, "--out", copy).out
    drive(sites(tmp_path)["clinic"], "second")
    after = spent_of(call, own)
    assert after > before > 0
    shutil.rmtree(tmp_path / "lab" / "runs" / "store")
    with pytest.raises(BoundaryError, match="The store of 'lab' is gone"):
        drive(sites(tmp_path)["clinic"], "third")
    said = call("privacy", own, "--recover", "--backup", copy).out
    assert "Everybody is charged" in said
    assert spent_of(call, own) >= after
    drive(sites(tmp_path)["clinic"], "fourth")
    call("privacy", own, "--exhaust", "the laboratory has closed")
    assert "more than any epsilon" in call("party", "check", own).out


def spent_of(call: Caller, own: Path) -> float:
    """What the row that paid most has spent, as `party check` says."""
    said = " ".join(call("party", "check", own).out.split())
    found = re.search(r"paid most: epsilon ([0-9.]+) of", said)
    assert found is not None
    return float(found[1])


def test_a_backup_needs_the_name_of_a_file(call: Caller, base: Path) -> None:
    assert "--out FILE" in call.fails(2, "site", "backup", base / "lab" / OWN)
