"""How one organisation's site is, from its own files: for who runs it. Nothing here is
about rows, and nothing is sent.

draining       takes no new run or prediction; what is under way ends (`colonnade site drain`)
site.log       one JSON line per event: time, level, what happened. The newest 10 MB, and four older files
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from colonnade.core.files import hold, parse_json
from colonnade.errors import ConfigError
from colonnade.runs.history import begun
from colonnade.runs.layout import (
    ANSWERS,
    DRAINING,
    FAILURE,
    LOCK,
    MARK,
    PARTIES,
    REFUSED,
    SITE_LOG,
    SUMMARY,
)

LOG_BYTES = 10 << 20
LOG_FILES = 4
DAY = 86_400.0


@dataclass(frozen=True)
class RunState:
    """One run at a site."""

    name: str
    begun: str
    state: str  # training, finished, or broken off
    checkpoint: int
    bytes: int  # on disk


@dataclass
class SiteState:
    """The state of a site, as who runs it wants to know it."""

    name: str
    runs: list[RunState] = field(default_factory=list)
    draining: bool = False
    serving: str = ""  # where it answers HTTP requests
    refused: int = 0  # calls in the last day
    failure: str = ""  # why the last run ended, or could not begin
    certificate_days: float | None = None  # until it ends
    disk_free: int = 0

    @property
    def healthy(self) -> bool:
        """Whether it can take part in a run now."""
        return (
            not self.draining
            and (self.certificate_days is None or self.certificate_days > 0)
            and self.disk_free > 0
        )


def state_of(name: str, runs: Path, kit: Path | None = None) -> SiteState:
    """Tell the state of an organisation's site from its runs, and from its startup kit
    where there is one."""
    site = SiteState(name, draining=(runs / DRAINING).exists())
    for folder in sorted(
        (parties.parent for parties in runs.glob(f"*/{PARTIES}")), key=begun
    ):
        site.runs.append(_run(folder))
        if (folder / ANSWERS).exists():
            site.serving = str(_json(folder / ANSWERS).get("url", folder.name))
    site.refused = _refused(runs / REFUSED)
    site.failure = str(_json(runs / FAILURE).get("message", ""))
    if kit is not None and (kit / "client.crt").exists():
        # needs cryptography, which kits come with
        from colonnade.transport.identity import read_certificate

        ends = read_certificate(kit / "client.crt").not_valid_after_utc
        site.certificate_days = (ends - datetime.now(UTC)).total_seconds() / DAY
    where = next(folder for folder in (runs, *runs.parents) if folder.exists())
    site.disk_free = shutil.disk_usage(where).free
    return site


def _run(folder: Path) -> RunState:
    mark = _json(folder / MARK)
    state = (
        "finished"
        if mark.get("finished") or (folder / SUMMARY).exists()
        else "broken off"
    )
    if _held(folder / LOCK):
        state = "training"
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    when = datetime.fromtimestamp(begun(folder), UTC).isoformat(timespec="seconds")
    return RunState(folder.name, when, state, int(mark.get("number", 0)), size)


def _held(lock: Path) -> bool:
    try:
        if lock.exists():
            hold(lock, "held").close()
    except ConfigError:
        return True
    except OSError:
        pass
    return False


def _refused(path: Path) -> int:
    if not path.exists():
        return 0
    since = time.time() - DAY
    with path.open(encoding="utf-8") as file:
        return sum(float(_parsed(line).get("time", 0.0)) > since for line in file)


def _json(path: Path) -> dict[str, Any]:
    return _parsed(path.read_text(encoding="utf-8")) if path.exists() else {}


def _parsed(text: str) -> dict[str, Any]:
    try:
        return parse_json(text)
    except ValueError:
        return {}


def drain(runs: Path, on: bool) -> None:
    """Take no new runs from here on; or, with `on` false, take them again."""
    runs.mkdir(parents=True, exist_ok=True)
    if on:
        (runs / DRAINING).touch()
    else:
        (runs / DRAINING).unlink(missing_ok=True)


def prometheus(state: SiteState) -> str:
    """Write the state of a site as Prometheus reads it."""
    kinds = ("training", "finished", "broken off")
    lines = [
        *_gauge(
            "site_up",
            "Whether this site can take part in a run",
            {"": float(state.healthy)},
        ),
        *_gauge(
            "site_draining", "Whether it takes no new runs", {"": float(state.draining)}
        ),
        *_gauge(
            "site_serving",
            "Whether it answers HTTP requests",
            {"": float(bool(state.serving))},
        ),
        *_gauge(
            "site_runs",
            "Runs by state",
            {
                f'{{state="{kind}"}}': float(
                    sum(run.state == kind for run in state.runs)
                )
                for kind in kinds
            },
        ),
        *_gauge(
            "site_run_bytes",
            "Bytes of all runs on disk",
            {"": float(sum(run.bytes for run in state.runs))},
        ),
        *_gauge(
            "site_refused_calls",
            "Calls that were not answered in the last day",
            {"": float(state.refused)},
        ),
        *_gauge(
            "site_disk_free_bytes",
            "Bytes free where runs are kept",
            {"": float(state.disk_free)},
        ),
    ]
    if state.certificate_days is not None:
        lines += _gauge(
            "site_certificate_days",
            "Days until its certificate ends",
            {"": state.certificate_days},
        )
    return "\n".join(lines) + "\n"


def _gauge(name: str, about: str, values: dict[str, float]) -> list[str]:
    head = [f"# HELP colonnade_{name} {about}.", f"# TYPE colonnade_{name} gauge"]
    return head + [
        f"colonnade_{name}{labels} {value:.9g}" for labels, value in values.items()
    ]


class AsJson(logging.Formatter):
    """Writes one line of JSON for each event. An exception's text may quote data, so
    its kind is enough."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": (
                datetime.fromtimestamp(record.created, UTC).isoformat(
                    timespec="milliseconds"
                )
            ),
            "level": record.levelname.lower(),
            "from": record.name,
            "what": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0]:
            line["error"] = record.exc_info[0].__name__
        return json.dumps(line, ensure_ascii=False)


def keep_log(runs: Path) -> None:
    """From here on what this process logs is also in site.log; once is enough."""
    logger = logging.getLogger("colonnade")
    path = (runs / SITE_LOG).resolve()
    rotating = [
        handler
        for handler in logger.handlers
        if isinstance(handler, RotatingFileHandler)
    ]
    if any(Path(handler.baseFilename) == path for handler in rotating):
        return
    runs.mkdir(parents=True, exist_ok=True)
    handler = RotatingFileHandler(
        path,
        maxBytes=LOG_BYTES,
        backupCount=LOG_FILES,
        encoding="utf-8",
        delay=True,
        errors="backslashreplace",
    )  # whatever text a call brings, its line is written
    handler.setFormatter(AsJson())
    logger.addHandler(handler)
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
