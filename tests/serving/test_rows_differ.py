"""A service of a run whose partners lack rows: every row is answered, and its answer
says who took part."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.federation.test_rows_differ import three
from tests.planning.test_apart import written

from colonnade.federation import Federation, load
from colonnade.serving.batcher import Batcher
from colonnade.serving.limits import Limits
from colonnade.serving.service import serve_until
from colonnade.serving.source import Source

TREES: dict[str, Any] = {"name": "boosted_trees", "encryption": "none", "depth": 3}


@pytest.mark.parametrize("algorithm", [{"name": "fdml"}, TREES], ids=["fdml", "trees"])
def test_over_http_each_answer_says_who_took_part(
    algorithm: dict[str, Any], tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        federation = Federation.from_settings(written(tmp_path, algorithm, rows=120))
        federation.fit(tmp_path / "run")
    ids = federation.ids.tolist()
    holds = {name: ~mask.numpy() for name, mask in federation.holdings.away.items()}
    batcher = Batcher(Source(tmp_path / "run"), window=0)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = threading.Thread(
            target=serve_until,
            args=(batcher, Limits(), listener, over.is_set),
            daemon=True,
        )
        server.start()
        body = json.dumps({"ids": ids}).encode()
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/predict",
            body,
            {"Content-Type": "application/json"},
            method="POST",
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            told = json.load(answer)
        over.set()
        server.join(30)
    rows = told["predictions"]
    for row, lab, shop in zip(rows, holds["lab"], holds["shop"], strict=True):
        there = [
            name
            for name, is_there in (("clinic", True), ("lab", lab), ("shop", shop))
            if is_there
        ]
        assert row["answered"] == there
        assert row["missing"] == [
            name for name in ("clinic", "lab", "shop") if name not in there
        ]
    assert told["degraded"] == int((~holds["lab"] | ~holds["shop"]).sum())
    expected = federation.predict(ids)
    assert np.allclose(
        [list(row["scores"].values()) for row in rows], expected.scores, atol=1e-6
    )


def test_new_frames_need_not_hold_all_rows(tmp_path: Path) -> None:
    """In Python as from files, and a partner's frame may be missing altogether."""
    settings = written(tmp_path, {"name": "fdml"}, rows=120)
    federation = Federation.from_settings(settings)
    federation.fit(tmp_path / "run")
    frames = three(rows=120)
    ids = frames["clinic"]["patient"].tolist()[:20]
    some = federation.predict(ids, frames=frames)
    assert (
        some.degraded
        == load(tmp_path / "run", ids=ids, frames=frames).predict(ids).degraded
    )
    assert np.allclose(some.scores, federation.predict(ids).scores, atol=1e-6)
    alone = federation.predict(ids, frames={"clinic": frames["clinic"]})
    assert alone.degraded == ("lab shop",) * len(ids)
