"""What NVIDIA FLARE starts: a relay at its server, which only starts the driver, and a member at every site.

With `serving.flare_member`, a member that can listen, these are the only classes of Colonnade that a FLARE job names.
They take nothing about data from the job: a member reads its organisation's own files, from the folder `local` of its
startup kit (in a simulation: `COLONNADE_SITES`).

Where sites have certificates, calls between them are encrypted end to end and signed, and whatever is not signed and
does not come from the relay is dropped before it is read. The relay says under which address each site is to be found,
and FLARE takes certificates by address; so a site's address must begin with its name. Thus the relay can neither read
nor make up a call.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvflare.collab import collab
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC

from colonnade.errors import BoundaryError, BudgetExhausted, ColonnadeError, ConfigError, PartyError
from colonnade.federation.multi_site import MultiSite, site_for
from colonnade.federation.party_file import OWN, read_own, runs_of
from colonnade.federation.run_directory import to_json, write_text
from colonnade.federation.site import Site
from colonnade.transport.flare import Line

log = logging.getLogger("colonnade.party")
SITES = "COLONNADE_SITES"
SERVER = "server"
START, ASK = b"start", b"how is it"
RUNNING, DONE, FAILED = b"running", b"done", b"failed"
FAILURE = "failed.json"
Serve = Callable[[Site | MultiSite, dict[str, Line], str, str], None]
PATIENCE = 300.0
"""Seconds in which a driver must say how it is; it says so while it computes."""


class Relay:
    """At the server: asks the driver to begin, and then how it is, until it is done. It holds no data and no key."""

    def __init__(
        self, driver: str, run: str, resume: bool = False, predict: str = "", serve: bool = False, model: str = ""
    ) -> None:
        self.driver, self.wish = driver, {"run": run, "resume": resume, "predict": predict, "serve": serve}
        self.wish |= {"model": model} if model else {}

    def main(self) -> str:
        (driver,) = collab.get_clients([self.driver])
        state = driver(timeout=PATIENCE).call(START + json.dumps(self.wish).encode())
        wait = 0.1
        while state == RUNNING:
            time.sleep(wait)
            wait = min(2.0, wait * 1.3)
            state = driver(timeout=PATIENCE).call(ASK)
        if state != DONE:
            raise RuntimeError(f"the run failed at '{self.driver}': {bytes(state).decode(errors='replace')[:200]}")
        return "done"


class Member:
    """At a site: one organisation. One published call, bytes in, bytes out."""

    def __init__(self) -> None:
        self.site: Site | MultiSite | None = None
        self.state = b""
        self.secure = False
        self.serve: Serve | None = None  # set where the job's class can (`serving.flare_member`), never by a job
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """Build this organisation from its own files, and close its door to what is not signed."""
        name, folder = str(collab.site_name), os.environ.get(SITES)
        where = Path(folder) / name if folder else Path(collab.workspace.get_site_config_dir())
        runs = runs_of(where / OWN)
        (runs / FAILURE).unlink(missing_ok=True)
        try:
            self._build(name, where)
        except Exception as error:
            _told_at_home(runs, name, error)
            raise

    def _build(self, name: str, where: Path) -> None:
        own = read_own(where / OWN)
        if own.name != name:
            raise BoundaryError(f"{where / OWN} is of '{own.name}', and this site is '{name}'.")
        cell = collab.fl_ctx.get_engine().get_cell()
        self.secure = bool(cell.core_cell.supports_secure_messages())
        if self.secure:
            _check_addresses({proxy.name: proxy.backend.target_fqcn for proxy in collab.other_clients})
            cell.core_cell.add_incoming_filter(STREAM_CHANNEL, STREAM_DATA_TOPIC, _signed_only)
        else:
            log.warning("%s: this site has no certificate (a simulation): calls are not encrypted end to end", name)
        self.site = site_for(own)

    def call(self, data: bytes) -> bytes:
        """From another site a call for the desk; from the server only the wish that the driver begins."""
        if not isinstance(data, (bytes, bytearray, memoryview)):  # of a number, bytes() would make as many zeros
            raise BoundaryError(f"A call brings bytes; found {type(data).__name__}.")
        caller = str(collab.caller)
        if self.site is None:
            raise RuntimeError(f"this organisation could not be built; its own runs/{FAILURE} says why")
        if isinstance(self.site, MultiSite) and not self.site.lines:  # a label owner calls others while it answers
            self.site.lines = self._lines()
        if caller != SERVER:
            return self.site.desk(caller, bytes(data))
        if data == ASK:
            return self.state
        if data.startswith(START) and not self.state:
            wish = json.loads(data[len(START) :])
            self.state, arguments = RUNNING, (self.site, self._lines(), wish)
            self.thread = threading.Thread(target=self._drive, args=arguments, daemon=True, name="driver")
            self.thread.start()
            return self.state
        return FAILED

    def leave(self, patience: float) -> None:
        """The job ends: what this organisation drives is waited for, and what it answered is written down."""
        if self.thread is not None:
            self.thread.join(patience)
        if self.site is not None and self.site.reader is not None:
            self.site.reader.leave()

    def _lines(self) -> dict[str, Line]:
        return {proxy.name: self._line(proxy) for proxy in collab.other_clients}

    def _line(self, proxy: Any) -> Line:
        def line(data: bytes, deadline: float) -> bytes:
            return bytes(proxy(timeout=deadline, secure=self.secure).call(data))

        return line

    def _drive(self, site: Site | MultiSite, lines: dict[str, Line], wish: dict[str, Any]) -> None:
        run = str(wish["run"])
        site.own.runs.mkdir(parents=True, exist_ok=True)
        (site.own.runs / FAILURE).unlink(missing_ok=True)
        try:
            if wish.get("serve"):
                self._serve(site, lines, run, str(wish.get("model", "")))
            elif wish["predict"]:
                _predict(site, lines, run, str(wish["predict"]), str(wish.get("model", "")))
            else:
                outcome = site.drive(lines, run, resume=bool(wish["resume"]))
                if outcome.exhausted:
                    raise BudgetExhausted(outcome.stopped)
            self.state = DONE
        except BaseException as error:  # the server is told the kind alone, this organisation everything
            _told_at_home(site.own.runs, site.own.name, error)
            self.state = FAILED + f" ({type(error).__name__})".encode()

    def _serve(self, site: Site | MultiSite, lines: dict[str, Line], run: str, model: str) -> None:
        if self.serve is None:
            raise ConfigError(f"A job that serves names another class; this one cannot serve {run!r}.")
        self.serve(site, lines, run, model)


def _told_at_home(runs: Path, name: str, error: BaseException) -> None:
    """Why a run ended, or could not begin, in this organisation's own folder."""
    text = str(error) if isinstance(error, ColonnadeError) else f"{type(error).__name__}: {error}"
    log.error("%s: the run ended: %s", name, text, exc_info=not isinstance(error, ColonnadeError))
    about: dict[str, str | None] = {"error": type(error).__name__, "message": text}
    if isinstance(error, PartyError):
        about |= {"party": error.party, "request": error.request, "batch": error.batch, "cause": error.cause}
    runs.mkdir(parents=True, exist_ok=True)
    write_text(runs / FAILURE, to_json(about) + "\n")


def _predict(site: Site | MultiSite, lines: dict[str, Line], run: str, rows: str, model: str) -> None:
    """`model` is for several label owners, where there are two."""
    if isinstance(site, MultiSite):
        site.predict(lines, run, rows, model or "aggregated")
    else:
        site.predict(lines, run, rows)


def _check_addresses(addresses: Mapping[str, str]) -> None:
    """That nobody is to be found, or known, under another's address."""
    for name, address in addresses.items():
        if address.partition(".")[0] != name:
            raise BoundaryError(
                f"The relay says that {name[:80]!r} is to be found under {address[:80]!r}, and a site's address begins "
                "with its own name. This run does not begin; ask who runs the relay."
            )


def _signed_only(message: Message) -> Message | None:
    """Drops what does not come encrypted and signed, unless it is from the relay, who asks for nothing of anybody's.
    FLARE decrypts, and checks who signed, only where both headers say so."""
    origin = str(message.get_header(MessageHeaderKey.ORIGIN, ""))
    sealed = (MessageHeaderKey.SECURE, MessageHeaderKey.ENCRYPTED)
    if origin.partition(".")[0] == SERVER or all(message.get_header(key, False) for key in sealed):
        return None
    log.warning("refused a call that says it is from %.80r and is not signed", origin)
    return Message()


for _class, _name, _mark in (
    (Relay, "main", collab.main),
    (Member, "start", collab.init),
    (Member, "call", collab.publish),
):
    setattr(_class, _name, _mark(getattr(_class, _name)))
