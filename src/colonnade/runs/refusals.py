"""Calls that an organisation did not answer, written down for whoever runs it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

from colonnade.runs.layout import REFUSED

MOST = 10 << 20
"""Bytes of lines that are kept: whoever calls for ever must not fill the disk. Beyond, calls are only counted."""


class Refusals:
    """One line per refused call, in its own folder of runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self._lock = threading.Lock()

    def __call__(self, caller: str, why: str) -> None:
        with self._lock:
            self.count += 1
            self.folder.mkdir(parents=True, exist_ok=True)
            line = json.dumps({"time": time.time(), "caller": caller[:80], "why": why})
            with (self.folder / REFUSED).open("a", encoding="utf-8") as file:
                if file.tell() < MOST:
                    file.write(line + "\n")
