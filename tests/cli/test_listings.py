"""The lists say what there is, for people and for machines."""

from __future__ import annotations

import json

from tests.cli.called import Caller

from colonnade.algorithms import ALGORITHMS
from colonnade.datasets import CATALOGUE


def test_algorithms(call: Caller) -> None:
    told = json.loads(call("algorithms", "--json").out)
    assert list(told) == list(ALGORITHMS)
    for name, algorithm in ALGORITHMS.items():
        assert told[name]["reveals"] == algorithm.reveals
        assert told[name]["settings"] == {
            key: getattr(algorithm.config(), key) for key in told[name]["settings"]
        }
        assert told[name]["for_tables"] == dict(algorithm.config.for_tables)
        assert told[name]["about"].endswith(".")
    shown = call("algorithms")
    assert shown.code == 0
    for name in ALGORITHMS:
        assert name in shown.out
    assert "rho = 2.0" in shown.out
    assert "reveals by residual" in shown.out


def test_one_algorithm_is_shown_as_tables_have_it_and_as_its_paper_has_it(
    call: Caller,
) -> None:
    shown = " ".join(call("algorithms", "vimadmm").out.replace("│", " ").split())
    settings, _, papers = shown.partition("with a named data set")
    assert "local_steps = 5, optimizer = 'adam'" in settings
    assert "local_steps = 20, optimizer = 'sgd'" in papers
    assert "splitnn" not in shown
    assert list(json.loads(call("algorithms", "vimadmm", "--json").out)) == ["vimadmm"]
    assert "There is no algorithm 'vimadm' (did you mean 'vimadmm'?)" in call.fails(
        2, "algorithms", "vimadm"
    )


def test_datasets(call: Caller) -> None:
    told = json.loads(call("datasets", "--json").out)
    assert list(told) == list(CATALOGUE)
    assert told["mnist"]["rows"] == 60_000
    shown = call("datasets")
    assert shown.code == 0
    for name in CATALOGUE:
        assert name in shown.out
    assert "60,000" in shown.out
    said = " ".join(shown.out.split())
    for name, entry in CATALOGUE.items():
        assert (
            f"{name} cannot be downloaded freely: its owner gives it out at" in said
        ) == bool(entry.supply)
        assert told[name]["supply"] == entry.supply
