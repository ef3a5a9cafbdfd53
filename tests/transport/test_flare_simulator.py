"""Every algorithm over FLARE's simulator, each site a process: one job for all, since
starting one takes long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.battery import EVERY, STEPS, every_task
from tests.conformance.toy import Task, federation

from colonnade.algorithms.algorithm import AnyAlgorithm

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: the extra flare")
# the short form, with lines but without FLARE's processes, is in test_flare.py
pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from tests.transport.toy_sites import DRIVER, RESULTS, SITES

    from colonnade.flare.job import ALLOWED, Job, issue, write_job
    from colonnade.flare.simulator import simulator, starts

    work = tmp_path_factory.mktemp("simulator")
    member = "tests.transport.toy_sites.ToyMember"
    issue({}, ("lead", work / "lead"))
    job = write_job(
        work / "job", Job(DRIVER, tuple(SITES), "battery"), work / "lead", member
    )
    environment = {
        RESULTS: str(work / "found.json"),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        "OMP_NUM_THREADS": "1",
    }
    for _ in starts(work / "flare.log"):
        with simulator(
            job, work, SITES, environment, allowed=[*ALLOWED, member]
        ) as process:
            process.wait(timeout=540)
    assert (work / "found.json").exists(), (work / "flare.log").read_text()[-3000:]
    results: dict[str, Any] = json.loads((work / "found.json").read_text())
    assert "error" not in results, results["error"]
    return results


@every_task
def test_an_algorithm_learns_the_same_to_the_bit_at_every_site(
    algorithm: AnyAlgorithm, task: Task, found: dict[str, Any]
) -> None:
    from tests.transport.toy_sites import DRIVER, digest

    name = next(name for name, one in EVERY.items() if one is algorithm)
    there = found["algorithms"][f"{name}/{task}"]
    here = federation(algorithm, task=task, driver=DRIVER)
    assert here.run(STEPS) == there["losses"]
    states = {name: digest(party.state()) for name, party in here.parties.items()}
    assert states | {DRIVER: digest(here.driver.state())} == there["states"]
    assert digest(here.predict()) == there["predicted"]


def test_a_party_that_is_asked_may_drive_others(found: dict[str, Any]) -> None:
    assert found["others"]["nested"] == [2.0] * 10


def test_a_name_that_is_not_the_sites_own_is_refused(found: dict[str, Any]) -> None:
    error, cause = found["others"]["forged"]
    assert error == "BoundaryError"
    assert "says it is from 'bob', over the line of 'driver'" in cause


def test_a_large_message_arrives_and_is_not_held_twice(found: dict[str, Any]) -> None:
    large = found["others"]["large"]
    assert large["sum"] == large["size"] / 4
    for side in ("asker gained", "receiver gained"):
        assert large[side] < 1.5 * large["size"], large
    # the tensor, and its copy that is released
    assert large["party gained"] < 2.5 * large["size"]


def test_a_party_that_does_not_answer_in_time_is_named(found: dict[str, Any]) -> None:
    assert found["others"]["dead"].startswith(
        "NoAnswer: 'ada' failed while answering toy_sites.Rest: no answer"
    )
