"""What NVIDIA FLARE starts: a relay at its server, which only starts the driver, and a
member at every site.

With `flare.serving`, a member that can listen, these are the only classes of Colonnade
that a FLARE job names. They take nothing about data from the job: a member reads its
organisation's own files, from the folder `local` of its startup kit (in a simulation:
`COLONNADE_SITES`).

Calls between sites are sealed end to end by the sites' certificates
(`transport.channel`), in a simulation too: what is not sealed by a party of the agreed
file is refused before it is read, whatever FLARE says about where it came from. FLARE
encrypts its connections, and is trusted with nothing but to carry. To begin takes an
order that the lead signed (`flare.orders`); how it is, the relay may ask, and that says
nothing of anybody's.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvflare.collab import collab

from colonnade.attacks.at_site import audit_at, takes_part
from colonnade.core import files
from colonnade.core.files import write_text
from colonnade.errors import (
    BoundaryError,
    BudgetExhausted,
    ColonnadeError,
    ConfigError,
    PartyError,
    WireError,
)
from colonnade.explain.at_site import explain_at
from colonnade.flare.job import SITES
from colonnade.flare.orders import lead_of, opened
from colonnade.report.page import write as write_page
from colonnade.runs.layout import DRAINING, FAILURE
from colonnade.runs.site_state import keep_log
from colonnade.settings.party_file import OWN, STARTUP, driver_of, read_own, runs_of
from colonnade.sites.driving import drive
from colonnade.sites.prediction import predict
from colonnade.sites.selecting import count_at, select_at
from colonnade.sites.site import Site
from colonnade.transport.channel import Channel
from colonnade.transport.identity import Identity
from colonnade.transport.remote import Route

log = logging.getLogger("colonnade.party")
SERVER = "server"
START = b"start"
ASK = b"how is it"
RUNNING = b"running"
DONE = b"done"
FAILED = b"failed"
Serve = Callable[[Site, str, str | None], None]
PATIENCE = 300.0
"""Seconds in which a driver must say how it is; it says so while it computes."""


class Relay:
    """At the server: brings the driver the lead's order to begin, and asks how it is
    until it is done. It holds no data and no key."""

    def __init__(self, driver: str, order: str) -> None:
        self.driver = driver
        self.order = order

    def main(self) -> str:
        (driver,) = collab.get_clients([self.driver])
        state = driver(timeout=PATIENCE).call(START + self.order.encode())
        wait = 0.1
        while state == RUNNING:
            time.sleep(wait)
            wait = min(2.0, wait * 1.3)
            state = driver(timeout=PATIENCE).call(ASK)
        if state != DONE:
            raise RuntimeError(
                f"the run failed at '{self.driver}':"
                f" {bytes(state).decode(errors='replace')[:200]}"
            )
        return "done"


class Member:
    """At a site: one organisation. One published call, bytes in, bytes out."""

    def __init__(self) -> None:
        self.site: Site | None = None
        self.channel: Channel | None = None
        self.identity: Identity | None = None
        self.state = b""
        # set where the job's class can (`flare.serving`), never by a job
        self.serve: Serve | None = None
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """Build this organisation from its own files, with its own certificate."""
        name = str(collab.site_name)
        folder = os.environ.get(SITES)
        where = (
            Path(folder) / name
            if folder
            else Path(collab.workspace.get_site_config_dir())
        )
        kit = (
            where / STARTUP if folder else Path(collab.workspace.get_startup_kit_dir())
        )
        runs = runs_of(where / OWN)
        os.umask(0o077)  # what a site writes is its owner's alone
        keep_log(runs)
        (runs / FAILURE).unlink(missing_ok=True)
        try:
            self._build(name, where, kit)
        except Exception as error:
            _told_at_home(runs, name, error)
            raise

    def _build(self, name: str, where: Path, kit: Path) -> None:
        own = read_own(where / OWN)
        if own.name != name:
            raise BoundaryError(
                f"{where / OWN} is of '{own.name}', and this site is '{name}'."
            )
        self.identity = Identity.load(kit, name, own.peers)
        self.channel = Channel(
            self.identity, own.everybody, run=str(collab.fl_ctx.get_job_id())
        )
        site = Site(own)
        takes_part(site, write_page)
        site.read()
        self.site = site

    def call(self, data: bytes) -> bytes:
        """A sealed call of another site, for the endpoint; or the relay's wish that the
        driver begins."""
        # of a number, bytes() would make as many zeros
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise BoundaryError(f"A call brings bytes; found {type(data).__name__}.")
        caller = str(collab.caller)
        data = bytes(data)
        if self.site is None or self.channel is None:
            raise RuntimeError(
                f"this organisation could not be built; its own runs/{FAILURE} says why"
            )
        if not self.site.routes:  # a label owner may call others while it answers
            self.site.routes = self._lines(self.channel)
        if caller != SERVER:
            return self.channel.answer(data, self.site.desk, caller)
        if data == ASK:
            return self.state
        if (
            data.startswith(START)
            and not self.state
            and (wish := self._ordered(self.site, data[len(START) :]))
        ):
            self.state = RUNNING
            arguments = (self.site, wish)
            self.thread = threading.Thread(
                target=self._drive, args=arguments, daemon=True, name="driver"
            )
            self.thread.start()
            return self.state
        return FAILED

    def _ordered(self, site: Site, order: bytes) -> dict[str, Any] | None:
        """What the lead of the agreed file wishes; None, and a line in refused.jsonl,
        where it wishes nothing."""
        assert self.identity is not None
        lead = lead_of(driver_of(site.own.settings))
        try:
            if (site.own.runs / DRAINING).exists():
                raise BoundaryError(
                    f"'{site.own.name}' takes no new runs now: its owner is"
                    " draining it."
                )
            return opened(order, self.identity, lead, lambda: site.store)
        except ColonnadeError as error:
            site.refused(SERVER, str(error))
            log.warning("%s: refused to begin: %s", site.own.name, error)
            return None

    def leave(self, patience: float) -> None:
        """The job ends: what this organisation drives is waited for, and what it
        answered is written down."""
        if self.thread is not None:
            self.thread.join(patience)
        if self.site is not None and self.site.reader is not None:
            self.site.reader.leave()

    def _lines(self, channel: Channel) -> dict[str, Route]:
        """To all parties of the agreed file that the relay says are here; whom it makes
        up, nobody calls."""
        return {
            p.name: channel.line(p.name, _carried_by(p))
            for p in collab.other_clients
            if p.name in channel.peers
        }

    def _drive(self, site: Site, wish: dict[str, Any]) -> None:
        run = str(wish["run"])
        model = str(wish.get("model", "")) or None
        site.own.runs.mkdir(parents=True, exist_ok=True)
        (site.own.runs / FAILURE).unlink(missing_ok=True)
        try:
            if wish.get("serve"):
                if self.serve is None:
                    raise ConfigError(
                        "A job that serves names another class; this one cannot serve"
                        f" {run!r}."
                    )
                self.serve(site, run, model)
            elif wish["predict"]:
                strict = bool(wish.get("strict"))
                predict(site, run, str(wish["predict"]), model, strict=strict)
            elif wish.get("do"):
                _perform(site, run, str(wish["do"]), wish["how"])
            else:
                outcome = drive(site, run, resume=bool(wish["resume"]))
                if outcome.exhausted:
                    raise BudgetExhausted(outcome.stopped)
            self.state = DONE
        # the server is told the kind alone, this organisation everything
        except BaseException as error:
            _told_at_home(site.own.runs, site.own.name, error)
            self.state = FAILED + f" ({type(error).__name__})".encode()


def _perform(site: Site, run: str, do: str, how: Mapping[str, Any]) -> None:
    """Something else than training, predicting and serving; what it finds is a file in
    its own folder of the run."""
    if do not in TASKS:
        raise ConfigError(
            f"There is no task {do[:40]!r}; there are {', '.join(TASKS)}."
        )
    TASKS[do](site, run, how)


def _known(how: Mapping[str, Any]) -> dict[str, Any]:
    """What an order may say about an explanation."""
    kinds: dict[str, type] = {"rows": int, "seed": int, "by": str}
    return {key: kinds[key](value) for key, value in how.items() if key in kinds}


TASKS: dict[str, Callable[[Site, str, Mapping[str, Any]], object]] = {
    "audit": (
        lambda site, run, how: audit_at(site, run, write_page, rows=int(how["rows"]))[
            0
        ].check()
    ),
    "count": lambda site, run, _: count_at(site, run),
    "explain": lambda site, run, how: explain_at(site, run, **_known(how)),
    "select": lambda site, run, how: select_at(
        site, run, int(how["keep"]), str(how["method"]), dict(how["given"])
    ),
}
"""What a job may ask a driver to do, by name (`Job.do`)."""


def _told_at_home(runs: Path, name: str, error: BaseException) -> None:
    """Why a run ended, or could not begin, in this organisation's own folder."""
    text = (
        str(error)
        if isinstance(error, ColonnadeError)
        else f"{type(error).__name__}: {error}"
    )
    # others' texts may quote data
    logged = text if isinstance(error, ColonnadeError) else type(error).__name__
    log.error("%s: the run ended: %s", name, logged)
    about: dict[str, str | None] = {"error": type(error).__name__, "message": text}
    if isinstance(error, PartyError):
        about |= {
            "party": error.party,
            "request": error.request,
            "batch": error.batch,
            "cause": error.cause,
        }
    runs.mkdir(parents=True, exist_ok=True)
    write_text(runs / FAILURE, files.json_with_digest(about))


def _carried_by(proxy: Any) -> Route:
    """FLARE's call of another site: bytes that it carries and everybody on the way may
    see and change."""

    def carry(data: bytes, deadline: float) -> bytes:
        reply = proxy(timeout=deadline).call(data)
        if not isinstance(reply, (bytes, bytearray, memoryview)):
            raise WireError(f"An answer brings bytes; found {type(reply).__name__}.")
        return bytes(reply)

    return carry


for _class, _name, _mark in (
    (Relay, "main", collab.main),
    (Member, "start", collab.init),
    (Member, "call", collab.publish),
):
    setattr(_class, _name, _mark(getattr(_class, _name)))
