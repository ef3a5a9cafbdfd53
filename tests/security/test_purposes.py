"""A driver that chooses an owner's rule by what it says rows are for: the laboratory
sends embeddings of rows to predict as they are, and all others with noise. The driver
asks to predict rows that were trained on."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.federation import small_multi_sites
from tests.federation.small import federation, frames, quick
from tests.federation.small_sites import ALONE, ask, folders, new_people, sites

from colonnade.algorithms.embedding import Embed
from colonnade.algorithms.multi_vfl_data_owner import Embed as EmbedBy
from colonnade.core import Outbox, Released
from colonnade.errors import BudgetExhausted, PartyError
from colonnade.federation import load
from colonnade.rows.making import divide
from colonnade.settings.party_file import AGREED, OWN, read_own
from colonnade.sites.driving import drive
from colonnade.sites.keeping import recover_store
from colonnade.sites.messages import Join
from colonnade.sites.reader import Look, Take, digests_of
from colonnade.sites.site import Site


def noise(sigma: float) -> dict[str, Any]:
    return {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": sigma}}


PLAIN = {"mechanism": "plain"}
WEAK = {"embedding": noise(4.0), "predict.embedding": PLAIN}


def sent(values: Any, dtype: torch.dtype) -> Released:
    return Outbox("clinic", torch.Generator()).release(
        torch.tensor(values, dtype=dtype), "asked"
    )


def trained(
    base: Path, rules: dict[str, Any], **lab: Any
) -> tuple[Site, dict[str, list[str]]]:
    """The laboratory after a run, and the ids on each side of it."""
    settings = quick(
        **ALONE, train={"epochs": 1}, parties={"lab": {"outbox": rules, **lab}}
    )
    folders(base, settings=settings)
    drive(sites(base)["clinic"], "run")
    return sites(base)["lab"], sides(base)


def sides(base: Path) -> dict[str, list[str]]:
    own = read_own(base / "lab" / OWN)
    ids = np.array([f"P{number:03d}" for number in range(80)])
    found = divide(ids, own.settings.data, own.settings.engine.seed, "clinic")
    return {side: ids[rows.numpy()].tolist() for side, rows in found.items()}


def asked(lab: Site, ids: list[str]) -> Released:
    """What the laboratory sends for rows that are to be predicted, as it says."""
    digests = sent(
        [list(one) for one in digests_of(lab.own, np.array(ids))], torch.uint8
    )
    number = json.loads((lab.own.runs / "run" / "checkpoint.json").read_text())[
        "number"
    ]
    ask(lab, "clinic", Look("run", number, 1, digests))
    ask(lab, "clinic", Take(sent(list(range(len(ids))), torch.int64)))
    found: Released = ask(lab, "clinic", Embed(f"predict[0:{len(ids)}]")).values
    return found


def kind(released: Released) -> str:
    return released.receipt.event.kind


def test_rows_that_were_trained_on_keep_their_rule_whatever_they_are_asked_for(
    tmp_path: Path,
) -> None:
    """Also of a batch that hides one of them among others, and of rows that were tested
    on."""
    _, own = trained(tmp_path, WEAK)
    new = [one for one in new_people(tmp_path) if one >= "P080"]
    lab = sites(tmp_path)["lab"]
    assert kind(asked(lab, new)) == "non-private", "nobody ever used these"
    for ids in (
        own["train"][:1],
        own["train"],
        [*new, own["train"][3]],
        own["test"][:1],
        own["validation"],
    ):
        assert kind(asked(lab, ids)) == "gaussian"


def test_what_was_used_in_another_run_or_under_another_seed_stays_used(
    tmp_path: Path,
) -> None:
    """All agree on another seed, by which rows that were trained on are test rows,
    whose rule is weaker."""
    _, before = trained(tmp_path, {"embedding": noise(4.0), "test.embedding": PLAIN})
    for name in ("clinic", "lab"):
        path = tmp_path / name / AGREED
        path.write_text(path.read_text().replace("\nseed = 0\n", "\nseed = 5\n"))
    assert set(sides(tmp_path)["test"]) & set(before["train"]), (
        "some are on another side now"
    )
    drive(sites(tmp_path)["clinic"], "other")

    def events(run: str) -> set[str]:
        lines = (
            (tmp_path / "lab" / "runs" / run / "parties" / "lab" / "ledger.jsonl")
            .read_text()
            .splitlines()
        )
        return {
            one["event"]
            for one in map(json.loads, lines)
            if str(one["batch"]).startswith("test[")
        }

    assert events("run") == {"non-private"}
    assert events("other") == {"gaussian"}


def test_the_account_is_charged_for_the_rule_that_applied(tmp_path: Path) -> None:
    """Less noise to predict would cost more than the budget has; the noise that was
    added is paid for, to its end."""
    lab, own = trained(
        tmp_path,
        {"embedding": noise(4.0), "predict.embedding": noise(1.0)},
        budget={"epsilon": 6.0},
    )
    one = own["train"][0]
    first = asked(lab, [one])
    assert first.receipt.event.parameters["noise_multiplier"] == 4.0
    paid = 0
    with suppress(BudgetExhausted):
        while paid < 20:
            asked(lab, [one])
            paid += 1
    assert 0 < paid < 20, (
        "several times by the noise of 4, which by the noise of 1 would not do once"
    )
    with pytest.raises(BudgetExhausted):
        asked(lab, [one])


def test_without_knowing_what_rows_were_used_for_nothing_leaves_by_the_weaker_rule(
    tmp_path: Path,
) -> None:
    lab, own = trained(tmp_path, WEAK)
    new = [one for one in new_people(tmp_path) if one >= "P080"]
    shutil.rmtree(lab.own.runs / "store")
    with pytest.raises(PartyError, match="StoreError"):
        asked(sites(tmp_path)["lab"], new)
    recover_store(lab.own)
    own_file = tmp_path / "lab" / OWN
    own_file.write_text(f'{own_file.read_text()}\n[store]\nnew_people = "new"\n')
    lab = sites(tmp_path)["lab"]
    assert {kind(asked(lab, ids)) for ids in (new, own["train"])} == {"gaussian"}


def test_rows_that_another_label_owner_trained_on_are_no_different(
    tmp_path: Path,
) -> None:
    file, _ = small_multi_sites.folders(
        tmp_path, small_multi_sites.private(train={"epochs": 1, "batch_size": 64})
    )
    assert file.exists()
    path = tmp_path / "lab" / OWN
    rules = (
        'embedding = { mechanism = { name = "gaussian", clip = 1.0, sigma = 4.0 } }\n'
    )
    path.write_text(
        f'{path.read_text()}\n[outbox]\n{rules}"predict.embedding" = {{ mechanism ='
        ' "plain" }\n'
    )
    drive(sites(tmp_path)["aggregation_server"], "run")
    lab = sites(tmp_path)["lab"]
    ask(lab, "north", Join(lab.own.agreed))
    assert lab.table is not None
    number = json.loads((lab.own.runs / "run" / "checkpoint.json").read_text())[
        "number"
    ]
    ids = lab.table.ids.tolist()
    for one, other in (("north", "P100"), ("south", "P002")):  # whom the other knows
        # as a driver may say that they are common
        lab.id_owners[one].rows_by_key = [np.array([ids.index(other)])]
        lab.id_owners[one].predicts = True
        ask(lab, one, Look("run", number, 1, None))
        ask(lab, one, Take(sent([0], torch.int64)))
        assert (
            kind(ask(lab, one, EmbedBy(f"{one}:predict[0:1]", "aggregated")).values)
            == "gaussian"
        )
        lab.leave()


def test_it_is_the_same_in_one_process_also_when_loaded_again(tmp_path: Path) -> None:
    whole = federation(
        settings=quick(**ALONE, train={"epochs": 1}, parties={"lab": {"outbox": WEAK}})
    )
    whole.fit(tmp_path / "run")
    outbox = whole.organisations["lab"].outbox
    train = whole.batches.splits["train"][:2]
    with whole.agreed["clinic"].asking(train):
        assert (
            type(outbox.rule("embedding", "predict[0:2]").mechanism).__name__
            == "Gaussian"
        )
    ids = [str(one) for one in whole.ids[train.numpy()]]
    again = load(tmp_path / "run", ids=ids, frames=frames())
    with again.agreed["clinic"].asking(torch.arange(2)):
        assert (
            type(
                again.organisations["lab"]
                .outbox.rule("embedding", "predict[0:2]")
                .mechanism
            ).__name__
            == "Gaussian"
        )
