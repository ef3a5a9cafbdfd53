"""A run's report while it trains, on this machine alone: `colonnade run --live`.

    GET /         the page
    GET /state    {"version": 7, "finished": false, "main": "...", "progress": {...}}: the page asks for it each second

The page shows what the run directory holds, so it changes after each epoch; `watch`
says how far training is. The directory is read when somebody looks and it has changed;
reading takes a small share of the time, however large it is.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import re
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from colonnade.core import Step
from colonnade.core.files import stamp
from colonnade.errors import ColonnadeError, ConfigError
from colonnade.report import page
from colonnade.report.facts import Facts, read
from colonnade.report.html import Html, h
from colonnade.runs.layout import MARK, METRICS, SETTINGS, SUMMARY

HERE = "127.0.0.1"
SHARE = 30
"""Reading takes at most one part in so many of the time that passes, and counting as
much again."""
PAUSE = 1.0
"""The fewest seconds between two readings."""
LONG = 5.0
"""Seconds without a request after which nobody is looking."""
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Server(ThreadingHTTPServer):
    """A server for this machine alone, so it looks up no host name; a browser that
    hangs up is no error."""

    daemon_threads = True

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self.server_name = HERE
        self.server_port = self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


@dataclass(frozen=True)
class Snapshot:
    """What the page shows at one time."""

    version: int = 0
    facts: Facts = Facts(name="")  # noqa: RUF009 - frozen
    main: Html = Html()  # noqa: RUF009
    json: str = ""
    known: tuple[Any, ...] = ()  # the stamps of the files it was read from
    # the stamps of the files when ledgers and privacy were last counted
    counted: tuple[Any, ...] = ()
    final: bool = False


class Live:
    """A server and a reader in threads, which live as long as the `with` block.
    `folders` are where the run directory may be: the one that was written last counts.
    """

    def __init__(self, folders: Callable[[], Sequence[Path]], *, port: int = 0) -> None:
        self.folders = folders
        self.done = 0
        self.total = 0
        self.unit = "epochs"
        self.words = ""
        self.ended = self.end_seen = False  # end_seen: a browser has shown the end
        self.looked = -LONG
        self.shown = Snapshot()
        self._reading = threading.Lock()
        self._stopped = threading.Event()
        self._again = self._count_again = 0.0
        try:
            self.server = Server((HERE, port), _handler(self))
        except OSError as error:
            why = (
                "is in use"
                if error.errno == errno.EADDRINUSE
                else f"cannot be used: {error.strerror}"
            )
            raise ConfigError(
                f"Port {port} {why}. Choose another --port, or none: then a free one is"
                " taken."
            ) from None
        except OverflowError:
            raise ConfigError(
                f"--port must be a number from 0 to 65535; found {port}."
            ) from None
        self.address = f"http://{HERE}:{self.server.server_port}/"
        self._threads = [
            threading.Thread(
                target=self.server.serve_forever,
                args=(0.1,),
                name="live-server",
                daemon=True,
            ),
            threading.Thread(target=self._read_on, name="live-reader", daemon=True),
        ]

    def __enter__(self) -> Live:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.server.shutdown()
        self.server.server_close()
        for thread in self._threads:
            thread.join()

    def expect(self, total: int, unit: str) -> None:
        """How many batches, or rounds, `watch` will see."""
        self.total = total
        self.unit = unit

    def watch(self, event: Step | dict[str, Any]) -> None:
        """Called by training, so it does next to nothing."""
        if isinstance(event, Step):
            epoch = "" if self.unit == "rounds" else f"epoch {event.batch.epoch + 1}, "
            self.done = event.batch.step + 1
            self.words = f"{epoch}loss {event.loss:.4f}"

    def end(self, words: str) -> None:
        """Training has ended: from now on the page shows all of it."""
        self.words = words
        self.ended = True

    def linger(self, seconds: float = 3.0) -> None:
        """Wait until a browser that is looking has shown the end, if there is one."""
        until = time.monotonic() + seconds
        while (
            not self.end_seen
            and time.monotonic() < until
            and time.monotonic() - self.looked < LONG
        ):
            time.sleep(0.05)

    def document(self) -> str:
        """The whole page as it is now."""
        shown = self._look()
        state = self._progress(shown)
        bar = h(
            "progress",
            max=state["total"] or 1,
            value=state["done"],
            aria_label="Training so far",
        )
        bar = h(
            "div", h("div", bar, h("p", state["words"], role="status")), class_="live"
        )
        return page.document(
            f"{shown.facts.name}: Colonnade run report",
            shown.main,
            live=bar,
            version=shown.version,
        )

    def state(self) -> str:
        """What has changed, as JSON."""
        shown = self._look()
        about = {
            "version": shown.version,
            "finished": shown.final,
            "progress": self._progress(shown),
        }
        self.end_seen = shown.final
        return f'{json.dumps(about)[:-1]}, "main": {shown.json}}}'

    def _look(self) -> Snapshot:
        self.looked = time.monotonic()
        if not self.shown.version or self.ended != self.shown.final:
            self._refresh()
        return self.shown

    def _progress(self, shown: Snapshot) -> dict[str, Any]:
        done = self.done
        total = self.total
        words = self.words
        if not total:  # nobody says more than what is written after each epoch
            done = shown.facts.epochs
            total = int(shown.facts.settings.get("train", {}).get("epochs", 0))
        if shown.final:
            return {"done": total, "total": total, "words": words}
        progress = f"{done:,} of {total:,} {self.unit}, {words}".rstrip(", ")
        return {
            "done": done,
            "total": total,
            "words": progress if done else "Training is about to start.",
        }

    def _read_on(self) -> None:
        while not self._stopped.wait(0.2):
            if time.monotonic() - self.looked < LONG:
                self._refresh()

    def _refresh(self) -> None:
        """Read the run directory again, if it has changed and reading has not taken too
        much of the time. Ledgers, and what the run has cost so far in privacy, are
        counted more rarely, since that takes longest."""
        with self._reading:
            now = time.monotonic()
            ended = self.ended
            old = self.shown
            folder = newest(self.folders())
            known = (
                folder,
                *(stamp(folder / name) for name in (SETTINGS, METRICS, MARK, SUMMARY)),
            )
            final = ended and not old.final
            count = (
                bool(old.version) and known != old.counted and now >= self._count_again
            )
            if not final and (now < self._again or not (count or known != old.known)):
                return
            started = time.thread_time()
            try:
                facts = read(folder, quick=not (count or final))
                if not (count or final):
                    kept = {
                        name: getattr(old.facts, name)
                        for name in ("flows", "later", "privacy")
                    }
                    facts = replace(facts, **kept)
                main = page.main_of(facts)
            except (ColonnadeError, OSError):  # there is nothing to read yet
                facts = Facts(name=folder.name)
                title = h("h1", "Run report: ", h("b", folder.name))
                main = h(
                    "header", title, h("p", "The tables are being read.", class_="lede")
                )
            counted = known if count or final else old.counted
            self.shown = Snapshot(
                old.version + 1, facts, main, json.dumps(main), known, counted, ended
            )
            took = SHARE * (time.thread_time() - started)
            self._again = time.monotonic() + (PAUSE if count else max(PAUSE, took))
            if count:  # the first takes longest, since libraries are loaded for it
                self._count_again = time.monotonic() + (
                    took if old.counted else min(took, LONG)
                )


def newest(folders: Sequence[Path]) -> Path:
    """The folder whose metrics were written last."""
    return max(
        folders,
        key=lambda folder: (stamp(folder / METRICS)[0], stamp(folder / SETTINGS)[0]),
    )


def policy(text: str) -> str:
    """What a browser may do with this page: run the scripts that are in it now, and ask
    this server."""
    hashes_by_tag = {}
    for tag in ("script", "style"):
        inside = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", text, re.DOTALL)
        hashes = (
            base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            for content in inside
        )
        hashes_by_tag[tag] = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {hashes_by_tag['script']}; style-src"
        f" {hashes_by_tag['style']}; style-src-attr 'unsafe-inline'; img-src data:"
        " blob:; connect-src 'self'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    )


def _handler(live: Live) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Serves two addresses, and refuses requests under another host's name (DNS
        rebinding)."""

        server_version = "colonnade"
        sys_version = ""
        timeout = 30

        def do_GET(self) -> None:
            port = live.server.server_address[1]
            if self.headers.get("Host") not in (f"{HERE}:{port}", f"localhost:{port}"):
                self._answer(403, "text/plain", f"This page is at {live.address}\n")
            elif self.path == "/":
                text = live.document()
                self._answer(
                    200, "text/html", text, {"Content-Security-Policy": policy(text)}
                )
            elif self.path == "/state":
                self._answer(200, "application/json", live.state())
            else:
                self._answer(404, "text/plain", f"There is one page: {live.address}\n")

        def _answer(
            self, code: int, kind: str, text: str, more: dict[str, str] | None = None
        ) -> None:
            body = text.encode()
            self.send_response(code)
            for key, value in (HEADERS | (more or {})).items():
                self.send_header(key, value)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its parent calls it
            """No request is logged."""

    return Handler
