"""The service at the site that drives, while a job of its federation runs there.

Where it listens, who may ask and how much is in the organisation's own party.toml, [serve]; without that table no job
opens a port. While it answers, `runs/RUN/serve.json` says where; whoever removes that file at the site stops it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

from colonnade.errors import ConfigError
from colonnade.runs.layout import ANSWERS
from colonnade.runs.run_directory import write_text
from colonnade.serving import service
from colonnade.serving.batcher import Batcher
from colonnade.serving.door import check_reach, listen, token_in, url_of
from colonnade.serving.limits import Limits
from colonnade.serving.site_source import SiteSource
from colonnade.settings.party_file import OWN
from colonnade.sites.session import check_asks
from colonnade.sites.site import Site

log = logging.getLogger("colonnade.serving")
GRACE = 6
"""Seconds for requests under way: FLARE gives an aborted job ten."""


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
        batcher = Batcher(source, window=own.window / 1000, cache=own.cache)
        answers, url = source.session.folder.path / ANSWERS, url_of(listener)
        log.info("%s predicts with %s at %s", source.label_owner, ", ".join(source.parties), url)
        write_text(answers, json.dumps({"url": url, "parties": source.parties, "token": token is not None}) + "\n")
        try:
            limits = Limits(own.limit, own.rate, token, connections=own.connections)
            service.serve_until(batcher, limits, listener, lambda: over() or not answers.exists(), grace=GRACE)
        finally:
            answers.unlink(missing_ok=True)
