"""The service at the site that drives, while a job of its federation runs there.

Where it listens, who may ask and how much is in the organisation's own party.toml, [serve]; without that table no job
opens a port. While it answers, `runs/RUN/serve.json` says where; whoever removes that file at the site stops it.

A party that is gone does not come back into a job that runs: a service without it would answer 503 for ever. After a
while it ends, and says whose site to start again.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from colonnade.core.message import Ping
from colonnade.errors import ConfigError, NoAnswer, PartyError
from colonnade.runs.layout import ANSWERS
from colonnade.runs.run_directory import write_text
from colonnade.serving import service
from colonnade.serving.batcher import Batcher
from colonnade.serving.door import check_reach, listen, token_in, url_of
from colonnade.serving.limits import Limits
from colonnade.serving.site_source import SiteSource
from colonnade.settings.party_file import OWN
from colonnade.sites.prediction import check_asks
from colonnade.sites.site import Site

log = logging.getLogger("colonnade.serving")
GRACE = 6
"""Seconds for requests under way: FLARE gives an aborted job ten."""
BEAT, GONE = 5.0, 60.0
"""Seconds between two times that all parties are asked whether they are there, and of silence after which one that
cannot be done without is gone."""


def serve_at(site: Site, run: str, over: Callable[[], bool], *, model: str | None = None) -> None:
    """Answer until it is over, or until the file that says where is removed; then finish what is under way. Of several
    label owners one answers, with one `model` of its two."""
    check_asks(site.own, run)
    own = site.own.serve
    if own is None:
        raise ConfigError(
            f"'{site.own.name}' was asked to serve {run!r}, and its own {OWN} has no [serve]: no job opens a port that "
            "its organisation did not ask for. Add [serve], with port and token_file, to serve."
        )
    service.needed()
    token = None if own.token_file is None else token_in(Path(own.token_file), "[serve] token_file")
    check_reach(own.host, token, f'[serve] host = "{own.host}"', 'set token_file = "token.txt" under [serve]')
    with listen(own.host, own.port, f"[serve] host = {own.host!r}, port = {own.port}") as listener:
        source = SiteSource(site, run, model=model)
        batcher = Batcher(source, window=own.window / 1000, cache=own.cache, unknown=own.unknown)
        answers, url = source.session.folder.path / ANSWERS, url_of(listener)
        log.info("%s predicts with %s at %s", source.label_owner, ", ".join(source.parties), url)
        write_text(answers, json.dumps({"url": url, "parties": source.parties, "token": token is not None}) + "\n")
        try:
            limits = Limits(own.limit, own.rate, token, connections=own.connections)
            with Presence(source) as presence:
                ended = partial(_ended, over, answers, presence)
                service.serve_until(batcher, limits, listener, ended, grace=GRACE)
            if presence.gone is not None:
                raise presence.gone
        finally:
            answers.unlink(missing_ok=True)


def _ended(over: Callable[[], bool], answers: Path, presence: Presence) -> bool:
    return over() or not answers.exists() or presence.gone is not None


class Presence:
    """Asks now and then who is there. `gone` is the error about a party that is not, once it has been silent for long
    and nothing can be predicted without it."""

    def __init__(self, source: SiteSource) -> None:
        self.source = source
        self.gone: NoAnswer | None = None
        self._ended, self._silent = threading.Event(), dict[str, float]()
        self._thread = threading.Thread(target=self._ask, daemon=True, name="presence")

    def __enter__(self) -> Presence:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(1.0)  # it may be waiting for somebody who is gone

    def _ask(self) -> None:
        while self.gone is None and not self._ended.wait(BEAT):
            asked = time.monotonic()
            silent = self._who_is_silent()
            self._silent = {name: self._silent.get(name, asked) for name in silent}
            for name, since in self._silent.items():
                if time.monotonic() - since >= GONE:
                    self.gone = NoAnswer(
                        name, Ping.kind, None,
                        f"it has been silent for {GONE:.0f} s, and nothing can be predicted without it. The service "
                        "has ended: start it again when that site is up",
                    )  # fmt: skip

    def _who_is_silent(self) -> list[str]:
        try:
            there = self.source.heartbeat()
        except PartyError as error:
            there = {error.party: False}
        allowed = self.source.settings.engine.on_missing in ("skip", "stale")
        return [] if allowed and any(there.values()) else [name for name, answers in there.items() if not answers]
