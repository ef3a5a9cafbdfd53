"""A plan against the run that it is of: the same bytes, rounds, rows and promises."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.federation import small_multi
from tests.planning.three import GAUSSIAN, frames, settings, tables

from colonnade.errors import ConfigError
from colonnade.federation import Federation, Settings
from colonnade.planning.plan import columns, parameters, plan
from colonnade.settings.selection import SERVER
from colonnade.transport.faulty import Network

DRAWN = {"labels": {"mechanism": {"name": "randomized_response", "epsilon": 3.0}}}
AUTO = {
    "embedding": {
        "mechanism": {"name": "gaussian", "clip": 1.0, "sigma": "auto"},
        "codec": "half",
    }
}
CODECS = {"lab": "quantize", "scan": "top_k", "clinic": "vector_quantize"}

EXACT: dict[str, dict[str, Any]] = {
    **{
        name: {"algorithm": {"name": name}}
        for name in ("splitnn", "vafl", "fdml", "vimsgd", "vimadmm", "vimadmm_joint")
    },
    "labels for all": {"algorithm": {"name": "compressed_vfl", "local_steps": 2}},
    "turns": {"algorithm": {"name": "vafl", "schedule": "turns"}},
    "arrival": {"algorithm": {"name": "vafl", "schedule": "arrival"}},
    "rounds to an optimum": {"algorithm": {"name": "logistic_regression"}},
    "in secure sums": {
        "algorithm": {"name": "logistic_regression", "aggregation": "secure"}
    },
    "a secure sum": {"algorithm": {"name": "vimadmm_joint", "aggregation": "secure"}},
    "Jacobians": {"algorithm": {"name": "vfedcce", "mode": "plaintext"}},
    "neighbours": {"algorithm": {"name": "knn", "aggregation": "plain"}},
    "noise": {"parties": {"lab": {"outbox": GAUSSIAN}, "clinic": {"outbox": DRAWN}}},
    "a budget": {"parties": {"lab": {"outbox": AUTO, "budget": {"epsilon": 4.0}}}},
    "codecs": {
        "parties": {
            name: {"outbox": {"embedding": {"codec": codec}}}
            for name, codec in CODECS.items()
        }
    },
    "one batch": {"train": {"batch_size": 500}},
    "whole batches": {"train": {"batch_size": 21}},
    "no validation": {"data": {"validation": 0.0}},
    "no test, all noise": {
        "data": {"test": 0.0},
        "parties": {"lab": {"outbox": GAUSSIAN}, "scan": {"outbox": GAUSSIAN}},
    },
    "frames": {"federation": {"device": "cpu", "through_bytes": True}},
    "missing parties": {"federation": {"device": "cpu", "on_missing": "skip"}},
}
SEVERAL: dict[str, dict[str, Any]] = {
    "rounds": {},
    "noise": {"data_owners": [{"name": "lab", "outbox": small_multi.GAUSSIAN}]},
    "local epochs": {"algorithm": {"name": "multi_vfl", "local_epochs": 2}},
    "one round": {"train": {"epochs": 1, "batch_size": 16, "early_stop": False}},
}


def held_to_its_run(found: Settings) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planned = plan(found, batches=2)
        done = Federation.from_settings(found).fit().summary
    assert planned.bytes == done["bytes"]
    assert not planned.estimates
    assert [one.to_json() for one in planned.privacy] == done["privacy"]
    assert planned.rounds == done["rounds"]
    assert planned.rows == done["rows"]
    assert {party.name: list(party.holds) for party in planned.parties} == done[
        "parties"
    ]
    assert (planned.algorithm, planned.task, planned.device) == (
        done["algorithm"],
        done["task"],
        done["device"],
    )


@pytest.mark.parametrize("changes", EXACT.values(), ids=EXACT)
def test_bytes_rounds_and_epsilon_are_those_of_the_run(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    held_to_its_run(settings(tmp_path, tables(**changes)))


@pytest.mark.parametrize("changes", SEVERAL.values(), ids=SEVERAL)
def test_with_several_label_owners_too(changes: dict[str, Any], tmp_path: Path) -> None:
    held_to_its_run(
        Settings.from_toml(
            small_multi.write(tmp_path, {**small_multi.QUICK, **changes})
        )
    )


@pytest.mark.parametrize(
    "algorithm",
    [{"name": "knn", "k": 5}, {"name": "vfedcce"}],
    ids=["knn", "coefficients"],
)
def test_what_is_encrypted_is_estimated_and_says_so(
    algorithm: dict[str, Any], tmp_path: Path
) -> None:
    small = {
        "algorithm": algorithm,
        "model": {"name": "linear", "width": 2},
        "train": {"epochs": 1, "batch_size": 8},
    }
    found = settings(tmp_path, tables(**small), rows=20)
    planned = plan(found)
    done = Federation.from_settings(found).fit().summary
    assert any(word.startswith("bytes") for word in planned.estimates)
    for name, ways in done["bytes"].items():
        assert planned.bytes[name] == pytest.approx(ways, rel=0.03)
    assert [one.to_json() for one in planned.privacy] == done["privacy"]


def test_a_data_set_by_name_and_a_seed(tmp_path: Path) -> None:
    given = Settings.from_mapping(
        {"data": {"dataset": "breast_cancer", "parts": 3}, "train": {"epochs": 1}}
    )
    planned = plan(given, seed=5)
    done = Federation.from_settings(given, seed=5).fit().summary
    assert planned.bytes == done["bytes"]
    assert planned.may_stop_early


@pytest.mark.parametrize(
    "name", ["splitnn", "vafl", "fdml", "vimsgd", "vimadmm", "knn"]
)
def test_parameters_are_those_that_a_checkpoint_keeps(
    name: str, tmp_path: Path
) -> None:
    algorithm = {"name": name} | ({"aggregation": "plain"} if name == "knn" else {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        built = Federation.from_settings(
            settings(tmp_path, tables(algorithm=algorithm))
        )
    for party in built.organisations:
        state = built.organisations[party].state()
        kept = [
            state.get("features", {}).get("model", {}),
            state.get("labels", {}).get("model", {}),
        ]
        heads = state.get("labels", {}).get("heads", torch.empty(0)).numel()
        assert (
            parameters(built, party)
            == sum(w.numel() for model in kept for w in model.values()) + heads
        )
        assert columns(built, party) == len(frames()[party].columns) - (
            2 if party == "clinic" else 1
        )


def test_several_label_owners_have_their_own_models_and_the_server_none(
    tmp_path: Path,
) -> None:
    built = Federation.from_settings(Settings.from_toml(small_multi.write(tmp_path)))
    assert parameters(built, "north") == (8 * 5 + 5) + (5 + 1)
    assert parameters(built, "lab") == (2 * 6 + 6) + (6 * 4 + 4)
    assert parameters(built, SERVER) == 0


def test_nothing_is_written_and_nothing_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a budget that would refuse the very first batch."""
    given = settings(
        tmp_path,
        tables(parties={"lab": {"outbox": GAUSSIAN, "budget": {"epsilon": 0.1}}}),
    )
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    monkeypatch.chdir(tmp_path)
    planned = plan(given)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert [(end.party, end.epoch, end.times) for end in planned.ends] == [
        ("lab", 1, 0)
    ]


def test_time_is_the_measured_batches_and_the_network_comes_on_top(
    tmp_path: Path,
) -> None:
    given = settings(tmp_path, tables(algorithm={"name": "splitnn"}))
    planned = plan(given, batches=3, network=Network.parse("1Mbit,100ms"))
    seconds = planned.seconds
    assert seconds.training == pytest.approx(seconds.per_batch * planned.rounds)
    assert seconds.low <= seconds.total <= seconds.high
    # three whole ones in an epoch, and the first is slower
    assert seconds.batches == 3 - 1
    # embed, with descend ahead; validation; three splits at the end
    assert planned.exchanges == planned.rounds + 3 + 3
    assert planned.network == pytest.approx(
        Network(1e6, 0.1).seconds(planned.bytes, planned.exchanges)
    )
    assert planned.to_json()["seconds"]["total"] == seconds.total


def test_no_batches_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one batch; found 0"):
        plan(settings(tmp_path, tables()), batches=0)
