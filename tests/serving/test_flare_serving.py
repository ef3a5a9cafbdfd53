"""The whole way once: a job in FLARE's simulator whose driver's site listens, asked
over HTTP, and ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.federation.small import quick, with_models, write
from tests.federation.small_sites import sites

from colonnade.federation import Federation, Settings
from colonnade.flare.engines import OnThisMachine, listening
from colonnade.flare.job import failure_in
from colonnade.flare.simulator import Simulator, write_sites
from colonnade.runs.layout import ANSWERS, FAILURE
from colonnade.serving.source import Source
from colonnade.settings.party_file import OWN, write_table
from colonnade.sites.driving import drive


@pytest.mark.long
def test_a_site_answers_while_its_job_runs(tmp_path: Path) -> None:
    pytest.importorskip(
        "nvflare",
        reason="NVIDIA FLARE is not installed: the extra flare",
    )
    file = write(
        tmp_path / "all", settings=quick(federation={"device": "cpu", "cohort": "off"})
    )
    settings = with_models(Settings.from_toml(file), "seeded")
    seen = list[dict[str, Any]]()
    Federation.from_toml(file).fit(tmp_path / "here")
    here = Source(tmp_path / "here")
    places = tmp_path / "work" / "sites"
    write_sites(places, settings)
    drive(sites(places)["clinic"], "run")
    write_table(places / "clinic" / OWN, "serve", {"port": 0})

    def watch(record: dict[str, Any]) -> None:
        seen.append(record)
        for ids in (["P003", "P001"], ["P002"]):
            answer = httpx.post(
                f"{record['url']}/predict", json={"ids": ids}, timeout=30
            ).json()
            assert [(one["id"], one["scores"]) for one in answer["predictions"]] == [
                (row.id, row.scores) for row in here.ask(ids)
            ]
        assert (
            httpx.post(
                f"{record['url']}/predict", json={"ids": ["P999"]}, timeout=30
            ).status_code
            == 404
        )
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        OnThisMachine(Simulator(tmp_path / "work")).serve(settings, "run", watch)
    assert [one["parties"] for one in seen] == [["clinic", "lab"]]
    assert not (places / "clinic" / "runs" / "run" / ANSWERS).exists()
    assert not (places / "clinic" / "runs" / FAILURE).exists(), "it ended as it should"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{seen[0]['url']}/health")
    here.close()


def test_a_driver_that_failed_before_is_not_taken_for_one_that_listens(
    tmp_path: Path,
) -> None:
    run = tmp_path / "runs" / "run"
    run.mkdir(parents=True)
    (run / ANSWERS).write_text("{}")
    (run.parent / FAILURE).write_text("{}")
    with listening(run) as answers:
        assert not answers.exists()
        assert failure_in(run.parent / FAILURE) is None
        answers.write_text("{}")
    assert not (run / ANSWERS).exists()
