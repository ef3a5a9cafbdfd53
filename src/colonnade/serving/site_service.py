"""The service at the site that drives, while a job of its federation runs there.

Where it listens, who may ask and how much is in the organisation's own party.toml,
[serve]; without that table no job opens a port. While it answers, `runs/RUN/serve.json`
says where; whoever removes that file at the site stops it.

A party that is gone does not come back into a job that runs: a service without it would
answer 503 for ever. So the service ends after a while, and says whose site to start
again.

The service asks parties at other sites in a session, batch by batch
(`sites.prediction`). It asks once which ids of a batch can be predicted, and then
predicts those rows. A party may be asked about ids that it lacks; with `align =
"private"` it does not learn them.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from colonnade.core.files import write_text
from colonnade.core.message import Ping
from colonnade.errors import ConfigError, NoAnswer, PartyError
from colonnade.runs.layout import ANSWERS
from colonnade.serving.batcher import Batcher
from colonnade.serving.limits import Limits
from colonnade.serving.listening import (
    check_reach,
    listen,
    token_in,
    url_of,
)
from colonnade.serving.source import PredictionSource, Row, repeating, rows_of
from colonnade.settings.party_file import OWN
from colonnade.settings.sections import EngineSettings
from colonnade.sites.prediction import Rows, Session, check_asks
from colonnade.sites.reader import written
from colonnade.sites.site import Site

LONGEST = 10.0
"""Seconds in which a party must answer a caller's request, whatever was agreed for
training; it is asked twice."""


class SiteSource(PredictionSource):
    """A run, asked from the site that drives. Of several label owners one asks, with
    one `model` of its two."""

    def __init__(self, site: Site, run: str, *, model: str | None = None) -> None:
        super().__init__()
        self.settings = site.own.settings
        self.site = site
        self.label_owner = site.own.name
        self.session = Session(
            site, run, model=model, engine=hurried(site.own.settings.engine)
        )
        self.session.warm()
        self.federation = written(site.own)
        self.parties = self.session.names
        self.comparing_is_counted = site.own.private
        self._looked: Rows | None = None

    def lacking(self, ids: Sequence[str]) -> set[str]:
        """The ids that cannot be predicted. Others are not asked for ids that must be
        held here, and are not."""
        self._looked = None
        self._looked = self.session.find(
            np.array(list(dict.fromkeys(ids)), dtype=np.str_)
        )
        return {*self._looked.missing}

    def ask(self, ids: Sequence[str]) -> list[Row]:
        if self._looked is None or not {*self._looked.ids.tolist()} >= {*ids}:
            self.lacking(ids)
        assert self._looked is not None
        positions = {
            id_: position for position, id_ in enumerate(self._looked.ids.tolist())
        }
        try:
            batches = self.session.ask(
                self._looked,
                torch.tensor([positions[id_] for id_ in ids], dtype=torch.int64),
            )
        finally:
            self.site.keep_crossed(self.session.folder.path)
        return [
            row
            for _, predictions in batches
            for row in rows_of(predictions, self.parties)
        ]

    def heartbeat(self) -> dict[str, bool]:
        beats = self.session.there.heartbeat()
        return {
            name: name == self.label_owner or beats.get(name) is not None
            for name in self.parties
        }

    def refresh(self) -> bool:
        """Check this organisation's own table; the site's log says if it cannot be
        read."""
        if (version := written(self.site.own)) == self.federation:
            return False
        self.federation = version
        return True

    def close(self) -> None:
        super().close()
        self.session.close()


def hurried(engine: EngineSettings) -> EngineSettings:
    """The engine's settings with short deadlines: callers wait half a minute at most,
    not for a party to come back."""
    on_missing = "fail" if engine.on_missing == "wait" else engine.on_missing
    deadline = min(engine.deadline, LONGEST)
    retries = min(engine.retries, 1)
    return engine.changed(on_missing=on_missing, deadline=deadline, retries=retries)


log = logging.getLogger("colonnade.serving")
GRACE = 6
"""Seconds for requests under way: FLARE gives an aborted job ten."""
BEAT = 5.0
GONE = 60.0
"""Seconds between two heartbeats, and of silence after which a party that is needed
counts as gone."""


def serve_at(
    site: Site, run: str, over: Callable[[], bool], *, model: str | None = None
) -> None:
    """Answer until `over()`, or until the file that says where is removed; then finish
    what is under way."""
    check_asks(site.own, run)
    own = site.own.serve
    if own is None:
        raise ConfigError(
            f"'{site.own.name}' was asked to serve {run!r}, and its own {OWN} has no"
            " [serve]: no job opens a port that its organisation did not ask for. Add"
            " [serve], with port and token_file, to serve."
        )
    from colonnade.serving import service

    token = (
        None
        if own.token_file is None
        else token_in(Path(own.token_file), "[serve] token_file")
    )
    check_reach(
        own.host,
        token,
        f'[serve] host = "{own.host}"',
        'set token_file = "token.txt" under [serve]',
    )
    with listen(
        own.host, own.port, f"[serve] host = {own.host!r}, port = {own.port}"
    ) as listener:
        source = SiteSource(site, run, model=model)
        batcher = Batcher(
            source,
            window=own.window / 1000,
            cache=own.cache,
            unknown=own.unknown,
            name_missing=own.name_missing,
        )
        answers = source.session.folder.path / ANSWERS
        url = url_of(listener)
        log.info(
            "%s predicts with %s at %s",
            source.label_owner,
            ", ".join(source.parties),
            url,
        )
        write_text(
            answers,
            json.dumps(
                {"url": url, "parties": source.parties, "token": token is not None}
            )
            + "\n",
        )
        try:
            limits = Limits(
                own.limit,
                own.rate,
                token,
                connections=own.connections,
                proxy=own.proxy,
            )
            presence = Presence(source)

            def ended() -> bool:
                return over() or not answers.exists() or presence.gone is not None

            # In the end it may be waiting for somebody who is gone, and is not waited
            # for.
            with repeating(presence.check, BEAT, "presence", patience=1.0):
                service.serve_until(batcher, limits, listener, ended, grace=GRACE)
            if presence.gone is not None:
                raise presence.gone
        finally:
            answers.unlink(missing_ok=True)


class Presence:
    """Which parties are there. Once one that is needed has been silent for long, `gone`
    is the error."""

    def __init__(self, source: SiteSource) -> None:
        self.source = source
        self.gone: NoAnswer | None = None
        self._silent: dict[str, float] = {}

    def check(self) -> None:
        asked = time.monotonic()
        try:
            beats = self.source.heartbeat()
        except PartyError as error:
            beats = {error.party: False}
        allowed = self.source.settings.engine.on_missing in ("skip", "stale") and any(
            beats.values()
        )
        silent = (
            []
            if allowed
            else [name for name, is_there in beats.items() if not is_there]
        )
        self._silent = {name: self._silent.get(name, asked) for name in silent}
        for name, since in self._silent.items():
            if time.monotonic() - since >= GONE:
                self.gone = NoAnswer(
                    name,
                    Ping.kind,
                    None,
                    f"it has been silent for {GONE:.0f} s, and nothing can be predicted"
                    " without it. The service has ended: start it again when that site"
                    " is up",
                )
