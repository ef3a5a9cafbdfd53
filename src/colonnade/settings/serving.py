"""Tables of an organisation's own party.toml that say whom it trusts with what: [serve]
and [peers].

Without [serve] no job makes a driver's site listen. Without [peers] a site takes any
certificate that the root of its kit issued to the name (`transport.identity`). Neither
is ever in the agreed file, and nothing of it comes with a job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from colonnade.errors import ConfigError
from colonnade.settings.schema import NotNegative, Rule, Table, Whole, WholeOrZero

LARGEST_PORT = 65535
FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")


class ServeSettings(Table):
    """What `colonnade serve` listens to, and how much it answers."""

    place: ClassVar[str] = "[serve]"

    host: str = Field(
        default="127.0.0.1",
        description="the address; other than this machine's needs a token",
    )
    port: Annotated[int, Field(ge=0, le=LARGEST_PORT)] = Field(
        default=8080, description="0 takes a free one"
    )
    token_file: (
        Annotated[str, Field(min_length=1), Rule("the name of a file")] | None
    ) = Field(default=None, description="callers must send the words in this file")
    limit: Whole = Field(default=1000, description="rows in a request")
    rate: NotNegative = Field(
        default=0.0,
        description="requests in a second, of all callers together; 0: any number",
    )
    cache: NotNegative = Field(
        default=60.0,
        description="seconds for which a row is answered again from memory",
    )
    connections: WholeOrZero = Field(
        default=256, description="that one address may hold; 0: any number"
    )
    unknown: WholeOrZero = Field(
        default=100,
        description=(
            "ids a day that nobody holds, for each address, where `align` is private;"
            " 0: any number"
        ),
    )
    name_missing: bool = Field(
        default=False,
        description=(
            "whether callers are told which ids cannot be predicted, and get the other"
            " rows"
        ),
    )
    proxy: bool = Field(
        default=False,
        description=(
            "whether a proxy on this machine says whose address a request is from"
        ),
    )
    window: NotNegative = Field(
        default=5.0,
        description=(
            "milliseconds in which requests become one question to the parties"
        ),
    )

    def below(self, folder: Path) -> ServeSettings:
        """The settings with their file relative to this folder."""
        if self.token_file is None:
            return self
        return self.changed(token_file=str((folder / self.token_file).resolve()))


def checked_pins(table: Any, others: Sequence[str], path: Path) -> dict[str, str]:
    """The table [peers] of a party.toml, which names all others or nobody: so none is
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
    missing = [name for name in others if name not in table]
    if table and missing:
        raise ConfigError(
            f"{path}: [peers] has no fingerprint of {' and '.join(map(repr, missing))}."
            " Name all the others, or nobody."
        )
    return dict(table)
