"""Tables of an organisation's own party.toml that say whom it trusts with what: [serve]
and [peers].

Without [serve] no job makes a driver's site listen. Without [peers] a site takes any
certificate that the root of its kit issued to the name (`transport.identity`). Neither
is ever in the agreed file, and nothing of it comes with a job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from colonnade.core.checks import not_negative, whole
from colonnade.errors import ConfigError

MOST = 65535
"""Of a port."""
FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class ServeSettings:
    """What the options of `colonnade serve` say."""

    host: str = "127.0.0.1"  # other than this machine needs a token
    port: int = whole(default=8080, least=0)  # 0 takes a free one
    token_file: str | None = None  # callers must send what is in it
    limit: int = whole(default=1000)  # rows per request
    # requests per second, of all callers together; 0: any
    rate: float = not_negative(default=0.0)
    # seconds for which a row is answered again from memory
    cache: float = not_negative(default=60.0)
    connections: int = whole(default=256, least=0)  # that one address may hold; 0: any
    # ids a day that nobody holds, per address, if align is private; 0: any
    unknown: int = whole(default=100, least=0)
    # whether callers are told which ids cannot be predicted, and get the other rows
    name_missing: bool = False
    # whether a proxy on this machine says whose address a request is from
    proxy: bool = False
    # milliseconds in which requests become one question to the parties
    window: float = not_negative(default=5.0)

    def __post_init__(self) -> None:
        if not isinstance(self.token_file, str | None) or self.token_file == "":
            raise ConfigError(
                f"[serve] token_file must name a file; found {self.token_file!r}."
            )
        if not isinstance(self.name_missing, bool):
            raise ConfigError(
                f"[serve] name_missing must be true or false; found {self.name_missing!r}."
            )
        if not isinstance(self.proxy, bool):
            raise ConfigError(
                f"[serve] proxy must be true or false; found {self.proxy!r}."
            )
        if self.port > MOST:
            raise ConfigError(
                f"[serve] port must be at most {MOST}; found {self.port}."
            )

    def below(self, folder: Path) -> ServeSettings:
        """With its file relative to this folder."""
        return (
            self
            if self.token_file is None
            else replace(self, token_file=str((folder / self.token_file).resolve()))
        )


def checked_pins(table: Any, others: Sequence[str], path: Path) -> dict[str, str]:
    """The table [peers] of a party.toml: of all others or of nobody, so that none is
    left to be made up."""
    if not isinstance(table, Mapping):
        raise ConfigError(
            f"{path}: [peers] must be a table of fingerprints; found {table!r}."
        )
    for name, value in table.items():
        if name not in others:
            raise ConfigError(
                f"{path}: [peers] has {name!r}, and the others here are"
                f" {', '.join(map(repr, others))}."
            )
        if not isinstance(value, str) or not FINGERPRINT.fullmatch(value):
            raise ConfigError(
                f"{path}: [peers] {name} must be 'sha256:' and 64 hexadecimal digits,"
                f" as `colonnade party check` prints it at {name!r}; found {value!r}."
            )
    if table and (missing := [name for name in others if name not in table]):
        raise ConfigError(
            f"{path}: [peers] has no fingerprint of {' and '.join(map(repr, missing))}."
            " Name all the others, or nobody."
        )
    return dict(table)
