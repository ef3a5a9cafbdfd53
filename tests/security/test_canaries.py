"""No secret, feature, label or id where it does not belong: canaries are planted, and
all that a run wrote or sent is searched for them: frames, logs at every level, standard
output and error, and every file.

What may hold them is written down in `OWNER`; a file that is not there may hold none.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from tests.cli.called import Caller
from tests.security.canaries import PARTIES, Canaries, write

from colonnade.alignment import curve
from colonnade.core import roles, wire
from colonnade.encryption import masks

ALGORITHMS = {
    "secure sum": 'name = "vimadmm_joint"\naggregation = "secure"\nlocal_steps = 2',
    "splitnn": 'name = "splitnn"',
}
OTHERS = {
    "vafl": 'name = "vafl"',
    "fdml": 'name = "fdml"',
    "vimsgd": 'name = "vimsgd"',
    "vimadmm": 'name = "vimadmm"\nlocal_steps = 2',
    "compressed_vfl": 'name = "compressed_vfl"\nlocal_steps = 2',
    "vfedcce": 'name = "vfedcce"',
    "knn": 'name = "knn"',
    "one_shot": 'name = "one_shot"\nwidth = 2',
}
IN_LONG_RUNS = {"vafl", "fdml", "vimsgd", "vimadmm"}
"""Embeddings or logits go up and a gradient or residual comes down, as with
`ALGORITHMS`; the others have keys, tell labels, or send once, and are in every run."""
OWNER = (
    (r"(ward|lab|bank)/table\.csv", None),  # the tables themselves
    # models, encoders and ledgers, each at its owner
    (r"run/parties/(ward|lab|bank)/.*", None),
    (r"aligned/parties/(ward|lab|bank)/rows\.npy", None),
    # the label owner asked for these ids, and got their labels
    (r"ward/predictions\.csv|ward/rows\.csv", "ward"),
    (r"run/explain/.*|run/audit/.*", "ward"),  # the label owner's pictures and reports
)
"""Whose a file is: the organisation in its path, or the one named. Other files are
shared, as is all that travels."""
COMMANDS = (
    ("align", "federation.toml", "--out", "aligned"),
    ("run", "federation.toml", "--out", "run"),
    ("predict", "run", "--rows", "ward/rows.csv", "--out", "ward/predictions.csv"),
)
MORE = (("explain", "run"), ("audit", "run"), ("privacy", "run"))
"""With `ALGORITHMS` alone: what they read is the same for all."""


@dataclass
class Seen:
    """All that a federation did from the first command to the last."""

    canaries: Canaries
    folder: Path
    frames: list[bytes] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)


class _Everything(logging.Handler):
    """Keeps all that is logged by anybody, with arguments and tracebacks."""

    def __init__(self, kept: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self.kept = kept
        self.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(self.format(record))


@pytest.fixture(
    params=[
        *ALGORITHMS,
        *(
            pytest.param(one, marks=pytest.mark.long) if one in IN_LONG_RUNS else one
            for one in OTHERS
        ),
    ]
)
def seen(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Any:
    canaries = write(tmp_path, (ALGORITHMS | OTHERS)[request.param])
    found = Seen(canaries, tmp_path)
    (tmp_path / "ward" / "rows.csv").write_text(
        "id\nidcanary0001x\nidcanary0007x\n", encoding="utf-8"
    )
    encode = wire.encode
    new_key = masks.fresh_private_key
    fresh = curve.fresh_secret
    start = roles.FeatureOwner.__init__

    def kept(envelope: Any) -> bytes:
        found.frames.append(encode(envelope))
        return found.frames[-1]

    def key() -> Any:
        made = new_key()
        canaries.key(made.private_bytes_raw())
        return made

    def owner(self: Any, organisation: Any, features: Any, *rest: Any) -> None:
        canaries.features(organisation.name, features)
        start(self, organisation, features, *rest)

    monkeypatch.setattr(roles.FeatureOwner, "__init__", owner)
    monkeypatch.setattr(wire, "encode", kept)
    monkeypatch.setattr(masks, "fresh_private_key", key)
    monkeypatch.setattr(curve, "fresh_secret", lambda: canaries.key(fresh()))
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    handler = _Everything(found.logged)
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    call = Caller(monkeypatch, capfd)
    try:
        for command in COMMANDS + (MORE if request.param in ALGORITHMS else ()):
            called = call(*command)
            assert called.code == 0, called
            found.printed += [called.out, called.err]
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
    return found


def test_a_refusal_of_unaligned_tables_names_no_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    canaries = write(tmp_path, ALGORITHMS["splitnn"])
    file = tmp_path / "federation.toml"
    file.write_text(
        file.read_text(encoding="utf-8").replace('align = "private"\n', ""),
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    called = Caller(monkeypatch, capfd)("run", "federation.toml")
    assert called.code == 2
    assert "'lab' lacks 10 that others hold" in called.err
    assert told((called.out + called.err).encode(), canaries.not_for(None)) == []


def owner_of(path: str) -> str | None:
    for pattern, owner in OWNER:
        if match := re.fullmatch(pattern, path):
            return owner or match.group(1)
    return None


def told(data: bytes, secrets: set[bytes]) -> list[bytes]:
    """Which of them are in it: those whose first eight bytes are, looked at again."""
    begin = {np.frombuffer(one[:8], np.uint64)[0] for one in secrets}
    if len(data) < 8:
        return []
    words = sliding_window_view(np.frombuffer(data, np.uint8), 8).copy().view(np.uint64)
    if not np.isin(words, list(begin)).any():
        return []
    return sorted(one for one in secrets if one in data)


def test_nothing_is_where_it_does_not_belong(seen: Seen) -> None:
    everywhere = seen.canaries.not_for(None)
    assert len(seen.frames) > 30
    assert seen.canaries.keys
    assert min(map(len, everywhere)) >= 8
    assert [found for frame in seen.frames if (found := told(frame, everywhere))] == []
    assert [
        found for text in seen.printed if (found := told(text.encode(), everywhere))
    ] == []
    assert [
        found for text in seen.logged if (found := told(text.encode(), everywhere))
    ] == []
    read = 0
    for path in sorted(seen.folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(seen.folder).as_posix()
            data = path.read_bytes()
            read += 1
            assert told(data, seen.canaries.not_for(owner_of(name))) == [], name
    assert read > 15
    for party in PARTIES:  # the search can find: each table is full of its owner's
        table = (seen.folder / party / "table.csv").read_bytes()
        assert len(told(table, seen.canaries.of[party])) > 50
        assert told(table, seen.canaries.not_for(None))
