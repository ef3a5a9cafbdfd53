"""The page of a run that is training: on this machine alone, up to date, and gone with
the run."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.federation.small import THREE, checkpoint_of, equal, federation

from colonnade.core import Step
from colonnade.errors import ConfigError
from colonnade.report import live as module
from colonnade.report.live import Live, newest, policy

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
ARGUMENTS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
    ),
    *("--disable-sync", "--no-first-run"),
)


def ask(
    page: Live, path: str, method: str = "GET", host: str | None = None
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(
        "127.0.0.1", page.server.server_port, timeout=20
    )
    try:
        connection.request(method, path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def state(page: Live) -> dict[str, Any]:
    code, _, text = ask(page, "/state")
    assert code == 200
    found: dict[str, Any] = json.loads(text)
    return found


def soon(true: Callable[[], bool], seconds: float = 15.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader may take all the time it needs."""
    monkeypatch.setattr(module, "SHARE", 0)
    monkeypatch.setattr(module, "PAUSE", 0.0)


class Training:
    """A federation that trains in a thread and waits wherever it is told to."""

    def __init__(self, run: Path, page: Live, wait_at: tuple[int, ...]) -> None:
        self.gates = {step: threading.Event() for step in wait_at}
        self.at = 0
        trained = federation(settings=THREE)
        page.expect(len(trained.batches), "batches")

        def watch(event: Any) -> None:
            page.watch(event)
            if isinstance(event, Step):
                self.at = event.batch.step + 1
                if self.at in self.gates:
                    assert self.gates[self.at].wait(30)

        def go() -> None:
            outcome = trained.fit(run, watch=watch)
            page.end(f"Finished: {outcome.stopped}")

        self.thread = threading.Thread(target=go)

    def __enter__(self) -> Training:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for gate in self.gates.values():
            gate.set()
        self.thread.join(30)

    def pass_by(self, step: int) -> None:
        self.gates[step].set()


@pytest.mark.usefixtures("quick")
def test_a_run_is_seen_from_before_its_first_batch_to_its_end(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with Live(lambda: [run]) as page:
        before = state(page)
        assert (before["finished"], before["progress"]["done"]) == (False, 0)
        assert "The tables are being read." in before["main"]
        with Training(run, page, (2, 6)) as training:
            soon(lambda: training.at == 2)
            inside = state(page)["progress"]
            assert (inside["done"], inside["total"]) == (2, 12)
            assert inside["words"].startswith("2 of 12 batches, epoch 1, loss 0.")
            training.pass_by(2)
            soon(lambda: training.at == 6)
            soon(lambda: state(page)["version"] > before["version"])
            soon(lambda: "1 epoch" in state(page)["main"])
            first = state(page)
            assert first["finished"] is False
        after = state(page)
        assert after["finished"] is True
        assert after["version"] > first["version"]
        assert after["progress"] == {
            "done": 12,
            "total": 12,
            "words": "Finished: all epochs done",
        }
        assert "3 epochs" in after["main"]
        _, _, text = ask(page, "/")
        assert "3 epochs" in text
        assert f'data-version="{after["version"]}"' in text
    with pytest.raises(OSError):  # noqa: PT011 - whatever the system says of a port where nobody listens
        ask(page, "/state")


def test_looking_changes_nothing_about_the_training(tmp_path: Path) -> None:
    with (
        Live(lambda: [tmp_path / "seen"]) as page,
        Training(tmp_path / "seen", page, ()) as training,
    ):
        while training.thread.is_alive():
            state(page)
    federation(settings=THREE).fit(tmp_path / "plain")
    assert equal(checkpoint_of(tmp_path / "seen"), checkpoint_of(tmp_path / "plain"))


def test_nothing_is_read_while_nobody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Path] = []
    monkeypatch.setattr(module, "read", lambda folder, **_: looks.append(folder))
    with Live(lambda: [tmp_path]):
        time.sleep(0.5)
    assert looks == []


def test_it_answers_two_questions_asked_by_this_machine(tmp_path: Path) -> None:
    federation(settings=THREE).fit(tmp_path / "run")
    with Live(lambda: [tmp_path / "run"]) as page:
        port = page.server.server_port
        assert page.server.server_address[0] == "127.0.0.1"
        assert page.address == f"http://127.0.0.1:{port}/"
        for path in ("/", "/state"):
            code, headers, _ = ask(page, path)
            assert code == 200
            assert headers["Cache-Control"] == "no-store"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert ask(page, path, host=f"localhost:{port}")[0] == 200
            for other in (
                "evil.example",
                f"evil.example:{port}",
                "127.0.0.1",
                f"127.0.0.1.evil.example:{port}",
                "",
            ):
                code, _, text = ask(page, path, host=other)
                assert (code, "epochs" in text) == (403, False)
        for path in (
            "/federation.toml",
            "/../federation.toml",
            "/state/",
            "/state?x=1",
            "/parties/lab/columns.json",
        ):
            assert ask(page, path)[0] == 404
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert ask(page, "/state", method)[0] == 501


def test_only_the_scripts_and_styles_of_the_page_itself_may_run(tmp_path: Path) -> None:
    with Live(lambda: [tmp_path]) as page:
        _, headers, text = ask(page, "/")
    told = headers["Content-Security-Policy"]
    assert told == policy(text)
    rules = dict(rule.strip().split(" ", 1) for rule in told.split(";"))
    assert (
        rules["default-src"]
        == rules["base-uri"]
        == rules["form-action"]
        == rules["frame-ancestors"]
        == "'none'"
    )
    assert "unsafe" not in rules["script-src"] + rules["style-src"]
    assert len(rules["script-src"].split()) == text.count("<script") == 2
    assert policy(text.replace("<script>", "<script>alert(1);", 1)) != told


def test_a_port_in_use_names_the_cure(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"Port {port} is in use. Choose another --port, or none"
        ):
            Live(lambda: [tmp_path], port=port)
    with pytest.raises(
        ConfigError, match="--port must be a number from 0 to 65535; found 70000"
    ):
        Live(lambda: [tmp_path], port=70_000)


def test_the_folder_that_was_written_last_counts(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("out", "site", "other")]
    assert newest(folders) == folders[0]
    for folder in folders:
        folder.mkdir()
        (folder / "federation.toml").write_text("")
    (folders[1] / "metrics.jsonl").write_text("")
    assert newest(folders) == folders[1]


def test_without_batches_it_counts_epochs(tmp_path: Path) -> None:
    """Over FLARE, only what is written after each epoch is known."""
    federation(settings=THREE).fit(tmp_path / "run")
    with Live(lambda: [tmp_path / "run"]) as page:
        assert state(page)["progress"] == {
            "done": 3,
            "total": 3,
            "words": "3 of 3 epochs",
        }


def test_it_lingers_only_for_those_who_look(tmp_path: Path) -> None:
    with Live(lambda: [tmp_path]) as page:
        page.end("Finished")
        started = time.monotonic()
        page.linger(20.0)
        assert time.monotonic() - started < 10
        state(page)
        page.end_seen = False
        threading.Timer(0.2, lambda: state(page)).start()
        page.linger(20.0)
        assert 0.1 < time.monotonic() - started < 15


@pytest.mark.usefixtures("quick")
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
def test_a_browser_shows_what_comes_without_being_told_to(tmp_path: Path) -> None:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed"
    )
    run = tmp_path / "run"
    said = []
    with Live(lambda: [run]) as page, playwright.sync_playwright() as start:
        browser = start.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        tab = browser.new_page()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.goto(page.address)
        tab.wait_for_selector("text=The tables are being read.")
        with Training(run, page, (2, 6, 10)) as training:
            tab.wait_for_selector("text=2 of 12 batches")
            assert tab.evaluate("document.querySelector('.live progress').value") == 2
            training.pass_by(2)
            tab.wait_for_selector("text=6 of 12 batches")
            tab.wait_for_selector("main >> text=1 epoch")
            training.pass_by(6)
            tab.wait_for_selector("text=10 of 12 batches")
            tab.wait_for_selector("main >> text=2 epochs")
            assert tab.locator("main svg.chart").count() > 0
        tab.wait_for_selector("text=Finished: all epochs done")
        tab.wait_for_selector("main >> text=3 epochs")
        assert tab.evaluate("document.querySelector('.live progress').value") == 12
        browser.close()
    assert said == []
