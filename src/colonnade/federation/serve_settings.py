"""The [serve] table of a driver's own party.toml: whether this organisation opens a port for predictions, and to whom.

Without it no job makes a site listen. It is never in the agreed file, and nothing of it comes with a job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from colonnade.core.checks import not_negative, whole
from colonnade.errors import ConfigError

MOST = 65535
"""Of a port."""


@dataclass(frozen=True)
class ServeSettings:
    """As the options of `colonnade serve`."""

    host: str = "127.0.0.1"  # other than this machine needs a token
    port: int = whole(default=8080, least=0)  # 0 takes a free one
    token_file: str | None = None  # callers must send what is in it
    limit: int = whole(default=1000)  # rows per request
    rate: float = not_negative(default=0.0)  # requests per second, of all callers together; 0: any
    cache: float = not_negative(default=60.0)  # seconds for which a row is answered again from memory
    window: float = not_negative(default=5.0)  # milliseconds in which requests become one question to the parties

    def __post_init__(self) -> None:
        if not isinstance(self.token_file, str | None) or self.token_file == "":
            raise ConfigError(f"[serve] token_file must name a file; found {self.token_file!r}.")
        if self.port > MOST:
            raise ConfigError(f"[serve] port must be at most {MOST}; found {self.port}.")

    def below(self, folder: Path) -> ServeSettings:
        """With its file relative to this folder."""
        return self if self.token_file is None else replace(self, token_file=str((folder / self.token_file).resolve()))
