"""VIMADMM-J whose label owner sees the sum alone: the same run as with plain logits,
and every law of the battery."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from tests.conformance.battery import STEPS, Gaussian
from tests.conformance.test_algorithm_checkpoints import load, save
from tests.conformance.toy import (
    TASKS,
    TRANSPORTS,
    Task,
    Toy,
    cohorts,
    difference,
    federation,
    sequential,
    variant,
)
from torch import Tensor, nn

import colonnade
from colonnade.algorithms import logistic_regression, vimadmm_joint
from colonnade.algorithms.embedding import Embed
from colonnade.algorithms.secure_sum import AgreeKeys, MakeKey, agree
from colonnade.core import Identity, Peers, Request, Rule
from colonnade.encryption.masks import one_round, open_sum
from colonnade.errors import BoundaryError, ConfigError, PartyError
from colonnade.federation import Federation
from colonnade.transport import Fault, Faulty, Recording

SECURE = variant(vimadmm_joint.ALGORITHM, aggregation="secure")
SAME = 1e-5


# The same run


def plain_run(task: Task, rule: Rule | None = None) -> Toy:
    toy = federation(
        vimadmm_joint.ALGORITHM,
        task=task,
        rules=None if rule is None else {"logits": rule},
    )
    toy.run(STEPS)
    return toy


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "transport", ["by reference", "through bytes", "threads", "cohorts"]
)
def test_it_is_the_plain_run_in_every_parameter(task: Task, transport: str) -> None:
    plain = plain_run(task)
    secure = federation(SECURE, TRANSPORTS[transport], task=task)
    secure.run(STEPS)
    assert difference(plain.states(), secure.states()) <= SAME
    assert difference(plain.predict(), secure.predict()) <= SAME


@pytest.mark.parametrize("transport", [sequential, cohorts])
def test_it_is_the_plain_run_when_resumed_with_new_keys(
    transport: Any, tmp_path: Path
) -> None:
    plain = plain_run("classes")
    first = federation(SECURE, transport)
    second = federation(SECURE, transport)
    first.run(3)
    save(first, tmp_path)
    load(second, tmp_path)
    second.run(STEPS - 3)
    assert difference(plain.states(), second.states()) <= SAME


def test_a_federation_in_files_is_resumed_and_loaded_as_the_plain_one(
    tmp_path: Path,
) -> None:
    generator = np.random.default_rng(0)
    columns = generator.normal(size=(3, 120, 2))
    ids = [f"row{number}" for number in range(120)]
    frames = {
        f"bank{k}": pd.DataFrame(x, columns=["a", "b"]).assign(id=ids)
        for k, x in enumerate(columns)
    }
    frames["clinic"] = pd.DataFrame({"id": ids, "sick": columns.sum((0, 2)) > 0})

    def made(aggregation: str, epochs: int) -> Federation:
        settings = {
            "algorithm": {
                "name": "vimadmm_joint",
                "aggregation": aggregation,
                "local_steps": 2,
            },
            "train": {"epochs": epochs, "batch_size": 32, "early_stop": False},
        }
        return Federation.from_frames(frames, id="id", label="sick", settings=settings)

    plain = made("plain", 3)
    plain.fit()
    made("secure", 1).fit(tmp_path / "run")
    made("secure", 3).fit(tmp_path / "run", resume=True)
    loaded = colonnade.load(tmp_path / "run", frames=frames, ids=ids[:7])
    assert np.allclose(
        loaded.predict().scores, plain.predict(ids[:7]).scores, rtol=SAME, atol=0
    )
    del frames["bank1"], frames["bank2"]
    with pytest.raises(ConfigError, match="hides nothing here: besides 'clinic'"):
        made("secure", 1)


def test_what_is_saved_holds_no_keys() -> None:
    secure = federation(SECURE)
    plain = federation(vimadmm_joint.ALGORITHM)
    for toy in (secure, plain):
        toy.run(1)
    assert {n: s.keys() for n, s in secure.states().items()} == {
        n: s.keys() for n, s in plain.states().items()
    }


@pytest.mark.parametrize("columns", [(4, 4, 4), (4, 3, 4, 3)])
def test_a_party_with_labels_and_columns_masks_its_own_share_too(
    columns: tuple[int, ...],
) -> None:
    plain, secure = (
        federation(a, columns=columns, driver="ada")
        for a in (vimadmm_joint.ALGORITHM, SECURE)
    )
    for toy in (plain, secure):
        toy.run(4)
    assert difference(plain.states(), secure.states()) <= SAME


# What the label owner sees


@pytest.mark.parametrize("transport", ["by reference", "through bytes", "cohorts"])
def test_the_label_owner_receives_uniform_shares_and_no_logits(transport: str) -> None:
    toy = federation(
        SECURE, lambda parties: Recording(TRANSPORTS[transport](parties)), epochs=4
    )
    toy.run()
    seen = toy.transport.of("label owner").tensors("logits")
    assert len(seen) == 3 * 20
    assert all(tensor.dtype == torch.int64 for tensor in seen)
    for k in range(3):
        share = torch.cat(seen[k::3]).flatten().double().numpy()
        assert stats.kstest((share + 2.0**63) / 2.0**64, "uniform").pvalue > 1e-6
    assert {e.codec for e in toy.driver.ledger.entries if e.name == "logits"} == {
        "masked"
    }


def test_no_logits_leave_before_keys_are_agreed_on_and_no_noise_is_spent() -> None:
    toy = federation(SECURE, rules={"logits": Rule(Gaussian(0.5, 1.0))})
    noise = toy.parties["ada"].generator.get_state()
    with pytest.raises(
        PartyError,
        match=(
            "'ada' has not agreed on keys with the others, and releases nothing"
            " unmasked"
        ),
    ):
        toy.peers.ask(Embed("train/0/0"))
    assert torch.equal(noise, toy.parties["ada"].generator.get_state())
    assert toy.parties["ada"].outbox.released == 0


@pytest.mark.parametrize("transport", [sequential, cohorts])
def test_members_that_are_asked_for_keys_as_one_release_nothing(transport: Any) -> None:
    """A cohort has no key of its own; each member must be asked."""
    toy = federation(SECURE, transport)
    keys = {name: reply.key for name, reply in toy.peers.ask(MakeKey()).items()}
    if transport is cohorts:
        with pytest.raises(PartyError):
            toy.peers.ask(AgreeKeys(keys))
        with pytest.raises(PartyError, match="releases nothing unmasked"):
            toy.peers.ask(Embed("train/0/0"))
    else:
        toy.peers.ask(AgreeKeys(keys))
    assert torch.isfinite(toy.predict()).all()


def test_a_round_asked_for_again_has_other_masks() -> None:
    """So that nobody can subtract one answer from another."""
    toy = federation(SECURE)
    toy.run(1)
    first, second = (toy.peers.ask(Embed("test[0:50]")) for _ in range(2))
    for name in toy.parties:
        assert (first[name].values.tensor != second[name].values.tensor).all()
    sums = [
        toy.driver.outputs({k: r.values.tensor for k, r in replies.items()})
        for replies in (first, second)
    ]
    assert torch.equal(*sums)


def test_asking_the_parties_for_different_rows_gives_no_sum() -> None:
    toy = federation(SECURE)
    toy.run(1)
    rows = {"ada": "test[0:50]", "bob": "test[0:50]", "cyd": "test[1:51]"}
    replies = toy.peers.ask_each({name: Embed(batch) for name, batch in rows.items()})
    with pytest.raises(BoundaryError, match="masks are left over"):
        toy.driver.sum.of(
            toy.peers, lambda: {k: [reply.values] for k, reply in replies.items()}
        )


def alike(toy: Toy, requests: Mapping[str, Any], ask: Any) -> None:
    """Tell each party something, agree on new keys, and open a sum of what follows from
    it."""
    for name, request in requests.items():
        toy.peers[name].ask(request)
    keys = agree(toy.peers)
    shares = {name: peer.ask(ask) for name, peer in toy.peers.items()}
    open_sum(
        one_round({name: share.values for name, share in shares.items()}, keys), keys
    )


def test_one_party_cannot_be_singled_out_by_telling_the_others_nothing() -> None:
    """A label owner that gives one party a gradient, and the others zeros, would see
    what that one makes of it as the sum of all. Masks follow what each was told, so
    that none cancel, also under keys agreed on afterwards."""
    regression = variant(logistic_regression.ALGORITHM, aggregation="secure")
    for algorithm in (SECURE, regression):
        for different in (False, True):
            toy = federation(algorithm, columns=(4, 4, 4))
            batch = "train/0/0"
            agree(toy.peers)
            toy.peers.ask(Embed(batch))
            told = torch.zeros(len(toy.batches.rows(batch)), 3)
            told[7] = 1.0
            each = {name: told * (name == "bob" or not different) for name in toy.peers}
            sent = {
                name: toy.driver.outbox.release(one, "gradient", batch)
                for name, one in each.items()
            }
            requests: dict[str, Any] = {
                name: vimadmm_joint.Improve(batch, one) for name, one in sent.items()
            }
            ask: Any = Embed(batch)
            if algorithm is regression:
                requests = {
                    name: logistic_regression.Move(batch, 0.0, one)
                    for name, one in sent.items()
                }
                ask = logistic_regression.Aim(batch, 0.0)
            if different:
                with pytest.raises(
                    BoundaryError, match="do not add up: masks are left over"
                ):
                    alike(toy, requests, ask)
            else:
                alike(toy, requests, ask)


def test_what_a_party_was_told_stays_in_its_masks_when_it_is_resumed(
    tmp_path: Path,
) -> None:
    begun = federation(SECURE)
    resumed = federation(SECURE)
    begun.run(2)
    save(begun, tmp_path)
    load(resumed, tmp_path)
    told = {name: party.outbox.followed for name, party in begun.parties.items()}
    assert len(set(told.values()) - {""}) == 1
    assert {
        name: party.outbox.followed for name, party in resumed.parties.items()
    } == told


# Noise


@pytest.mark.parametrize("transport", ["by reference", "cohorts"])
def test_the_owners_noise_is_in_the_sum_and_in_what_a_party_goes_on_from(
    transport: str,
) -> None:
    """The same draws as in a plain run, and so the same run; the ledgers say what was
    done."""
    rule = Rule(Gaussian(0.5, 1.0))
    plain = plain_run("classes", rule)
    secure = federation(SECURE, TRANSPORTS[transport], rules={"logits": rule})
    secure.run(STEPS)
    assert difference(plain.states(), secure.states()) <= SAME
    assert difference(plain_run("classes").states(), secure.states()) > 1e-2
    sent = [e for e in secure.parties["bob"].ledger.entries if e.name == "logits"]
    assert {(e.event, e.codec) for e in sent} == {("gaussian", "masked")}


def test_an_owners_codec_cannot_be_combined_with_masks() -> None:
    class Halves:
        name = "halves"
        encode = Identity.encode
        decode = Identity.decode

    rules: Any = {"test.logits": Rule(codec=Halves())}
    with pytest.raises(
        ConfigError,
        match=r"outbox rule for 'test.logits' of 'ada' has the codec 'halves'",
    ):
        federation(SECURE, rules=rules)
    assert federation(vimadmm_joint.ALGORITHM, rules={"logits": Rule()}).run(1)


# What goes wrong


class Lossy(Peers):
    """Peers that forget what one of them answers to Embed."""

    lost = ""

    def ask(self, request: Request[Any]) -> dict[str, Any]:
        replies = super().ask(request)
        if isinstance(request, Embed):
            return {to: reply for to, reply in replies.items() if to != self.lost}
        return replies


def test_an_answer_that_is_missing_is_named_and_nothing_is_learned_from_the_rest() -> (
    None
):
    toy = federation(SECURE)
    lossy = Lossy("label owner", list(toy.peers), toy.transport, toy.driver.ledger)
    toy.driver.peers = lossy
    toy.peers = lossy
    toy.run(2)
    before = toy.states()
    lossy.lost = "bob"
    with pytest.raises(BoundaryError, match="the share of 'bob' is missing"):
        toy.run(1)
    with pytest.raises(BoundaryError, match="the share of 'bob' is missing"):
        toy.predict()
    assert difference(before, toy.states()) == 0
    lossy.lost = ""
    assert torch.isfinite(toy.predict()).all()


@pytest.mark.parametrize("kind", ["drop", "fail"])
def test_after_a_lost_call_new_keys_are_agreed_on_and_sums_are_right_again(
    kind: Any,
) -> None:
    """Ada has answered the second round when bob does not: her masks are ahead of the
    others'."""
    toy = federation(
        SECURE, lambda parties: Faulty(sequential(parties), [Fault(kind, "bob", at=6)])
    )
    with pytest.raises(
        PartyError,
        match=r"'bob' failed while answering embedding\.Embed at batch train/0/1",
    ):
        toy.run(2)
    plain = federation(vimadmm_joint.ALGORITHM)
    plain.run(1)
    assert difference(plain.predict(), toy.predict()) <= SAME


class Says(nn.Module):
    """A model with one wrong value."""

    def __init__(self, model: nn.Module, value: float) -> None:
        super().__init__()
        self.model = model
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        o: Tensor = self.model(x)
        return o + torch.zeros_like(o).index_fill(-1, torch.tensor([1]), self.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e9])
@pytest.mark.parametrize("transport", [sequential, cohorts])
def test_a_value_that_cannot_be_summed_is_an_error_that_names_its_party_alone(
    transport: Any, value: float
) -> None:
    columns = (4, 4, 3) if transport is cohorts else (4, 4, 4)
    toy = federation(
        SECURE,
        transport,
        columns=columns,
        wrap_model={"bob": lambda model: Says(model, value)},
    )
    with pytest.raises(
        PartyError, match=r"'bob' has a value that does not fit.* to 1048576"
    ) as caught:
        toy.run(1)
    assert str(value) not in str(caught.value)
    assert caught.value.batch == "train/0/0"


@pytest.mark.parametrize(
    ("columns", "driver", "others"),
    [((6,), "label owner", 1), ((4, 4), "ada", 1), ((6,), "ada", 0)],
)
def test_a_sum_that_would_hide_nothing_is_refused(
    columns: tuple[int, ...], driver: str, others: int
) -> None:
    """Of one party the sum is what it released; of two of which one is the label
    owner's, it can subtract its own."""
    with pytest.raises(
        ConfigError,
        match=f"A secure sum hides nothing here.*{others} of the 2 parties it needs",
    ):
        federation(SECURE, columns=columns, driver=driver)


def test_parties_of_a_plain_run_have_no_keys_to_agree_on() -> None:
    toy = federation(vimadmm_joint.ALGORITHM)
    with pytest.raises(PartyError, match='its aggregation is "plain"'):
        toy.peers["ada"].ask(MakeKey())
    with pytest.raises(PartyError, match='its aggregation is "plain"'):
        toy.peers["ada"].ask(AgreeKeys({}))


def test_the_words_for_what_is_learned_speak_of_the_sum() -> None:
    assert "sum" in vimadmm_joint.ALGORITHM.reveals["logits"]
