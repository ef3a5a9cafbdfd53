"""Where parties lack rows, a plan's bytes are those of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.federation.test_rows_differ import ABLE, NAMES, settings, three

from colonnade.federation import Federation, Settings
from colonnade.planning.budgets import budget_ends
from colonnade.planning.cost import UNSEEN
from colonnade.planning.plan import plan


def written(
    folder: Path,
    algorithm: dict[str, Any],
    share: float = 0.6,
    rows: int = 300,
    **more: Any,
) -> Settings:
    """Of tables on disk, as a plan reads them."""
    parties: dict[str, dict[str, Any]] = {}
    for name, frame in three(lab=share, rows=rows).items():
        frame.to_csv(folder / f"{name}.csv", index=False)
        parties[name] = {
            "table": str(folder / f"{name}.csv"),
            **more.get("parties", {}).get(name, {}),
        }
    parties["clinic"]["label"] = "diagnosis"
    data = {"id": "patient", **more.pop("data", {})}
    return Settings.from_mapping(
        settings(algorithm, **{**more, "parties": parties, "data": data})
    )


@pytest.mark.parametrize("dropout", [0.3, pytest.param(0.0, marks=pytest.mark.long)])
@pytest.mark.parametrize("algorithm", ABLE, ids=NAMES)
def test_bytes_are_those_of_the_run(
    algorithm: dict[str, Any], dropout: float, tmp_path: Path
) -> None:
    given = written(tmp_path, algorithm, train={"party_dropout": dropout, "epochs": 3})
    planned = plan(given, batches=3)
    done = Federation.from_settings(given).fit().summary
    assert planned.bytes == done["bytes"]
    assert planned.estimates == ()
    assert planned.rounds == 3 * planned.batches


def test_alignment_is_in_it_and_a_partner_left_out_at_random_costs_less(
    tmp_path: Path,
) -> None:
    given = written(tmp_path, {"name": "fdml"}, data={"align": "private"}, rows=120)
    planned = plan(given)
    done = Federation.from_settings(given).fit().summary
    assert planned.bytes == done["bytes"]
    common = written(
        tmp_path,
        {"name": "fdml"},
        share=2,
        rows=120,
        data={"rows": "common", "align": "private"},
    )
    left_out = written(
        tmp_path,
        {"name": "fdml"},
        2,
        120,
        data={"rows": "common", "align": "private"},
        train={"party_dropout": 0.5},
    )
    assert (
        plan(left_out).bytes
        == Federation.from_settings(left_out).fit().summary["bytes"]
    )
    assert plan(left_out).bytes["lab"]["in"] < plan(common).bytes["lab"]["in"]


def test_what_is_packed_by_rows_is_an_estimate_and_who_holds_nothing_costs_nothing(
    tmp_path: Path,
) -> None:
    packed = {
        "lab": {"outbox": {"logits": {"codec": {"name": "quantize", "levels": 8}}}}
    }
    given = written(tmp_path, {"name": "fdml"}, share=-1, parties=packed)
    planned = plan(given)
    assert planned.bytes["lab"] == {"out": 0, "in": 0}
    assert UNSEEN.format("lab") not in planned.estimates
    given = written(tmp_path, {"name": "fdml"}, parties=packed)
    planned = plan(given, batches=2)
    done = Federation.from_settings(given).fit().summary
    assert planned.bytes["lab"]["out"] == pytest.approx(
        done["bytes"]["lab"]["out"], rel=0.02
    )


def test_a_budget_is_planned_for_the_rows_that_a_party_holds(tmp_path: Path) -> None:
    noise = {
        "outbox": {
            "logits": {"mechanism": {"name": "gaussian", "sigma": 4.0, "clip": 1.0}}
        }
    }
    party = {"lab": {**noise, "budget": {"epsilon": 1.5}}}
    federation = Federation.from_settings(
        written(tmp_path, {"name": "fdml"}, train={"epochs": 5}, parties=party)
    )
    (end,) = budget_ends(federation)
    held = ~federation.holdings.away["lab"]
    assert end.rows == int(held[federation.batches.splits["train"]].sum())
    assert end.row in federation.ids[held.numpy()]
