"""Tables full of values that can be recognised anywhere: as text, and as the bytes of
numbers.

A canary belongs to one organisation. Ids of rows that all hold are everybody's; the
rest is its owner's alone.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

ROWS = 90
PARTIES = {"ward": 7100, "lab": 5200, "bank": 3300}
"""Each organisation's numbers start here."""
FEDERATION = """
[federation]
through_bytes = true
seed = 3
[data]
id = "id"
align = "private"
[algorithm]
{algorithm}
[train]
epochs = 1
batch_size = 32
[model]
name = "mlp"
hidden = [8]
width = 4
[parties.ward]
table = "ward/table.csv"
label = "diagnosis"
[parties.lab]
table = "lab/table.csv"
[parties.bank]
table = "bank/table.csv"
"""


@dataclass
class Canaries:
    """What may be nowhere but at its owner, as bytes to search for; keys belong to
    nobody's files at all."""

    of: dict[str, set[bytes]] = field(
        default_factory=lambda: {name: set() for name in PARTIES}
    )
    ids: set[bytes] = field(default_factory=set)
    labels: set[bytes] = field(default_factory=set)
    keys: set[bytes] = field(default_factory=set)

    def key(self, secret: bytes) -> bytes:
        self.keys |= {
            secret,
            secret.hex().encode(),
            str(int.from_bytes(secret, "big")).encode(),
        }
        return secret

    def features(self, owner: str, values: Tensor) -> None:
        """What the model sees: of each row two numbers side by side, since four bytes
        alone may turn up by chance."""
        self.of[owner] |= {
            row.numpy().tobytes()
            for row in values[:, :2].contiguous()
            if float(row[0]) not in (0.0, 1.0)
        }

    def not_for(self, reader: str | None) -> set[bytes]:
        """What this organisation may not have anywhere, or, for None, what belongs into
        nothing that is shared."""
        others = {
            one
            for name, private in self.of.items()
            if name != reader
            for one in private
        }
        return (
            others
            | self.keys
            | (set() if reader == "ward" else self.labels)
            | (self.ids if reader is None else set())
        )


def write(folder: Path, algorithm: str) -> Canaries:
    """A federation file, and for each organisation a folder with its table."""
    canaries = Canaries()
    shared = [f"idcanary{number:04d}x" for number in range(ROWS)]
    canaries.ids |= {one.encode() for one in shared}
    for name, base in PARTIES.items():
        (folder / name).mkdir()
        own = [f"idcanary{name}{number:02d}only" for number in range(5)]
        canaries.of[name] |= {one.encode() for one in own}
        rows = [
            _row(name, base, one, canaries)
            for one in sorted([*shared, *own], key=lambda one: _share(one, name))
        ]
        header = f"id,{name}_value,{name}_kind" + (
            ",diagnosis" if name == "ward" else ""
        )
        (folder / name / "table.csv").write_text(
            "\n".join([header, *rows, ""]), encoding="utf-8"
        )
    (folder / "federation.toml").write_text(
        FEDERATION.format(algorithm=algorithm), encoding="utf-8"
    )
    return canaries


def _row(name: str, base: int, one: str, canaries: Canaries) -> str:
    value = round(base + 100 * _share(one, name, "value"), 6)
    kind = f"catcanary{name}{int(4 * _share(one, name, 'kind'))}"
    canaries.of[name] |= {
        f"{value:.4f}".encode(),
        struct.pack("<d", value),
        kind.encode(),
    }
    if name != "ward":
        return f"{one},{value:.6f},{kind}"
    label = "labelcanary" + (
        "yes" if _share(one, name, "value") + _share(one, "lab", "value") > 1 else "no"
    )
    canaries.labels.add(label.encode())
    return f"{one},{value:.6f},{kind},{label}"


def _share(*words: str) -> float:
    """A number from 0 to 1 that follows from the words."""
    return (
        int.from_bytes(hashlib.sha256("/".join(words).encode()).digest()[:4], "big")
        / 2**32
    )
