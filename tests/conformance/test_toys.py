"""One file and one registration: everything works on an algorithm that nothing else was
ever told of.

`toy_neural` is a network whose releases have names of their own. `toy_rounds` has no
torch model and no optimizer, its step is a round over all rows, and a party's part is a
table of thresholds.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from docs._ext import pages, surface
from tests.cli.called import Caller
from tests.conformance import toy_neural, toy_rounds
from tests.federation import small_sites
from tests.federation.small import frames, quick, write

from colonnade import benchmark
from colonnade.algorithms import ALGORITHMS
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.attacks import audit_run
from colonnade.errors import ConfigError
from colonnade.explain import explain
from colonnade.export import export
from colonnade.federation import Federation, Settings, load
from colonnade.planning.plan import plan
from colonnade.planning.questions import algorithms_for
from colonnade.sites.driving import drive

ROOT = Path(__file__).parents[2]
TOYS: dict[str, AnyAlgorithm] = {
    "toy_neural": toy_neural.ALGORITHM,
    "toy_rounds": toy_rounds.ALGORITHM,
}
BATTERY = (
    "test_algorithms.py",
    "test_algorithm_checkpoints.py",
    "test_algorithm_faults.py",
    "test_served.py",
)
each_toy = pytest.mark.parametrize("name", TOYS)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, algorithm in TOYS.items():
        monkeypatch.setitem(ALGORITHMS, name, algorithm)
    surface.settings.cache_clear()
    yield
    surface.settings.cache_clear()


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Caller:
    return Caller(monkeypatch, capfd)


def tables(name: str, **changes: Any) -> dict[str, Any]:
    return {
        **quick(
            train={"epochs": 4, "early_stop": False, **changes.pop("train", {})},
            **changes,
        ),
        "algorithm": {"name": name},
    }


def script(file: str) -> ModuleType:
    """A program of the documentation, as a module."""
    spec = importlib.util.spec_from_file_location(
        f"toys_{file}", ROOT / "docs" / f"{file}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
@each_toy
def test_the_batteries_take_it(name: str) -> None:
    """In a process of its own, where the registration comes before the batteries are
    collected."""
    chosen = [f"tests/conformance/{file}" for file in BATTERY]
    program = (
        "import sys, pytest\nfrom colonnade.algorithms import ALGORITHMS\nfrom"
        f" tests.conformance import {name}\nALGORITHMS['{name}'] ="
        f" {name}.ALGORITHM\nsys.exit(pytest.main(['-q', '-p', 'no:cacheprovider',"
        f" '-k', '{name}', *{chosen!r}]))\n"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert "passed" in ran.stdout or "[100%]" in ran.stdout


@each_toy
def test_it_runs_resumes_and_predicts_bit_equal(
    name: str, call: Caller, tmp_path: Path
) -> None:
    whole = Federation.from_toml(write(tmp_path / "whole", frames(90), tables(name)))
    whole.fit()
    file = write(tmp_path / "half", frames(90), tables(name, train={"epochs": 2}))
    assert call("run", file, "--out", tmp_path / "run", "--quiet").code == 0
    file = write(tmp_path / "half", frames(90), tables(name))
    assert call("run", file, "--out", tmp_path / "run", "--resume", "--quiet").code == 0
    again = load(tmp_path / "run")
    assert torch.equal(again.outputs("test"), whole.outputs("test"))
    assert again.batches.done == whole.batches.done == 4 * whole.batches.per_epoch
    (tmp_path / "rows.csv").write_text("patient\nP003\nP001\n")
    found = call("predict", tmp_path / "run", "--rows", tmp_path / "rows.csv", "--json")
    assert [one["patient"] for one in json.loads(found.out)] == ["P003", "P001"]


@each_toy
def test_organisations_train_it_between_their_sites(name: str, tmp_path: Path) -> None:
    here = tables(name, federation={"cohort": "off", "device": "cpu"})
    file, _ = small_sites.folders(tmp_path, settings=here)
    drive(small_sites.sites(tmp_path)["clinic"], "run")
    alone = Federation.from_toml(file)
    alone.fit(tmp_path / "alone")
    runs = tmp_path / "alone", tmp_path / "clinic" / "runs" / "run"
    one, other = (json.loads((run / "summary.json").read_text()) for run in runs)
    assert one["rounds"] == other["rounds"] > 0
    assert one["metrics"]["test"] == other["metrics"]["test"]


def test_the_network_is_exported_and_the_tables_are_refused(tmp_path: Path) -> None:
    for name in TOYS:
        Federation.from_toml(write(tmp_path / name, frames(90), tables(name))).fit(
            tmp_path / name / "run"
        )
    assert {
        path.name for path in export(tmp_path / "toy_neural" / "run", tmp_path / "out")
    } == {"clinic", "lab"}
    with pytest.raises(
        ConfigError,
        match=(
            "'toy_rounds' has no model to export: its parties hold tables of thresholds"
        ),
    ):
        export(tmp_path / "toy_rounds" / "run", tmp_path / "out2")


@each_toy
def test_a_plan_says_its_bytes_exactly(name: str, tmp_path: Path) -> None:
    file = write(tmp_path, frames(90), tables(name))
    planned = plan(Settings.from_toml(file), batches=2)
    ran = Federation.from_toml(file)
    ran.fit()
    assert planned.bytes == {
        n: {way: book.total(way) for way in ("out", "in")}
        for n, book in ran.ledgers.items()
    }
    assert planned.rounds == ran.batches.done


@each_toy
def test_its_releases_are_attacked_by_what_they_are(name: str, tmp_path: Path) -> None:
    Federation.from_toml(write(tmp_path, frames(160), tables(name))).fit(
        tmp_path / "run"
    )
    found = audit_run(tmp_path / "run", rows=16)
    assert found.not_attacked == []
    attacked = {release for one in found.findings for release in one.releases}
    assert attacked == set(TOYS[name].releases)
    labels = [one for one in found.findings if one.limit == "label_inference"]
    assert max(one.score or 0.0 for one in labels) > 0.95


@each_toy
def test_it_says_who_matters(name: str, tmp_path: Path) -> None:
    federation = Federation.from_toml(write(tmp_path, frames(120), tables(name)))
    federation.fit()
    report = explain(federation, tsne_rows=20)
    assert set(report.measures) == {"permutation", "silenced", "noise"}
    assert set(report.ranking) == {"clinic", "lab"}


@each_toy
def test_it_is_offered_listed_and_documented(name: str, call: Caller) -> None:
    assert name in algorithms_for("classification", 3)
    assert name in json.loads(call("algorithms", "--json").out)
    assert "| `learning_rate` |" in pages.settings("algorithm.toy_neural")
    assert f"**`{name}`**" in pages.settings("algorithm.*")
    assert not [line for line in pages.unexplained_settings() if name in line]
    model = script("threat_model")
    diagrams = script("diagrams")
    text = model.DOCUMENT.read_text(encoding="utf-8")
    renewed = model.renewed(text)
    assert model.renewed(renewed) == renewed
    assert [found[0] for found in model.BLOCK.findall(renewed)] == list(
        model.subjects()
    )
    for release, tells in TOYS[name].reveals.items():
        assert f"| `{release}` | {tells} |" in renewed
        assert any(
            tells in words for line in diagrams.script(name) for words in line.words
        )
    assert diagrams.draw(name).startswith("<svg")
    choose: Any = benchmark._load("choose")
    assert choose.choices()[name].sends == TOYS[name].from_columns[0]
