"""The way of a table: read and prepared, next to pandas; its ids in memory; and many
rows predicted in a stream.

50 columns of random numbers, and ids of eight digits. Pandas reads the same file whole
and scales it, which is less: ids are checked, columns that say nothing are looked for,
medians are taken, gaps would be marked. CPU seconds of one process, in turns.
Predictions are those of the command line, which prepares, asks and writes piece by
piece: what counts is how much memory ten times as many rows take. Tables are in memory
up to 64 MB, and mapped beyond.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from colonnade.benchmark import Result, race
from colonnade.core.party import one_torch_thread
from colonnade.datasets import Preprocessor, read_table, table_from_frame
from colonnade.federation import Federation, Settings
from colonnade.rows.making import place

ROWS = 1_000_000
QUICK = 50_000
COLUMNS = 50
ID_BYTES = 20
ROW_BYTES = 256


def run(quick: bool) -> list[Result]:
    rows = QUICK if quick else ROWS
    with (
        tempfile.TemporaryDirectory(prefix="colonnade-data-") as name,
        one_torch_thread(),
    ):
        folder = Path(name)
        results = [_reading(folder, suffix, rows) for suffix in (".csv", ".parquet")]
        return [*results, _ids(rows), _predicting(folder, rows)]


def _frame(rows: int, columns: int = COLUMNS, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    cells = {f"c{at}": draw.normal(size=rows).round(4) for at in range(columns)}
    return pd.DataFrame({"id": [f"{one:08d}" for one in range(rows)], **cells})


def _write(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path)
    return path


def _reading(folder: Path, suffix: str, rows: int) -> Result:
    path = _write(_frame(rows), folder / f"table{suffix}")
    read: dict[str, Callable[[], pd.DataFrame]] = {
        ".csv": lambda: pd.read_csv(path, dtype={"id": str}),
        ".parquet": lambda: pd.read_parquet(path),
    }

    def ours() -> object:
        table = read_table(path, owner="party", id="id")
        return Preprocessor.fit(table).transform(table)

    def theirs() -> object:
        values = read[suffix]().drop(columns="id").to_numpy()
        return torch.from_numpy(
            ((values - values.mean(0)) / values.std(0)).astype(np.float32)
        )

    best = race({"ours": ours, "pandas": theirs}, turns=1, clock=time.process_time)
    ratio = best["ours"] / best["pandas"]
    return Result(
        f"{rows:,} x {COLUMNS} numbers, {suffix}, read and scaled",
        f"{best['ours']:.1f} CPU s = {ratio:.1f} x",
        f"pandas, read and scaled: {best['pandas']:.1f} CPU s",
        numbers=best | {"ratio": ratio},
    )


def _ids(rows: int) -> Result:
    frame = _frame(rows, 1)
    table = table_from_frame(frame, owner="party", id="id")
    held = place(
        Settings.from_mapping({"parties": {"a": {"label": "y"}, "b": {}}}),
        {"a": table.ids},
    )
    each = table.packed.nbytes / rows
    both = (held.packed.nbytes + held.labelled.packed.nbytes) / rows
    return Result(
        f"{rows:,} ids of eight digits in memory",
        f"{each:.0f} bytes each in a table, {both:.0f} in a federation, which has a"
        " list of all and one of its own",
        f"pandas: {frame['id'].memory_usage(deep=True) / rows:.0f} bytes; as text,"
        f" while they are used: {table.ids.nbytes / rows:.0f} bytes",
        f"≤ {ID_BYTES} bytes",
        max(each, both) <= ID_BYTES,
        {"bytes in a table": each, "bytes in a federation": both},
    )


def _predicting(folder: Path, rows: int) -> Result:
    """New rows of two parties, by a small model; each command in a process of its own."""
    few = {name: _frame(2_000, 5, seed) for seed, name in enumerate(("a", "b"))}
    few["a"]["y"] = (few["a"]["c0"] + few["b"]["c0"] > 0).astype(int)
    settings = {"train": {"epochs": 1}}
    Federation.from_frames(few, id="id", label="y", settings=settings).fit(
        folder / "run"
    )
    found: dict[str, float] = {}
    for count in (rows // 10, rows):
        given = []
        for seed, name in enumerate(("a", "b")):
            path = _write(_frame(count, 5, seed), folder / f"{name}.parquet")
            given += ["--table", f"{name}={path}"]
        command = [
            sys.executable,
            "-m",
            "colonnade",
            "predict",
            str(folder / "run"),
            "--rows",
            str(folder / "a.parquet"),
        ]
        words = [*command, *given, "--out", folder / "out.csv", "--quiet"]
        seconds, most = _spent(list(map(str, words)))
        found |= {f"seconds of {count}": seconds, f"bytes of {count}": most}
    more = (found[f"bytes of {rows}"] - found[f"bytes of {rows // 10}"]) / (
        rows - rows // 10
    )
    return Result(
        f"{rows:,} rows predicted into a file, 2 parties of 5 columns",
        f"{found[f'seconds of {rows}']:.1f} CPU s,"
        f" {found[f'bytes of {rows}'] / 1e9:.2f} GB",
        f"{rows // 10:,} rows: {found[f'bytes of {rows // 10}'] / 1e9:.2f} GB;"
        f" {more:.0f} bytes for a row more",
        f"≤ {ROW_BYTES} bytes for a row more",
        more <= ROW_BYTES,
        found | {"bytes for a row more": more},
    )


WATCH = """\
import json, resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
"""


def _spent(command: list[str]) -> tuple[float, float]:
    """CPU seconds and most bytes of a command. A small process starts it: a child
    counts what its parent has."""
    done = subprocess.run(
        [sys.executable, "-c", WATCH, *command],
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, most = json.loads(done.stdout.splitlines()[-1])
    return float(seconds), float(most)
