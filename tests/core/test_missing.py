"""What stands in for a party that does not answer: its last answer for these very rows,
or nothing; always counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.conformance.toy import (
    Toy,
    assert_bit_equal,
    federation,
    module_of,
    sequential,
)

from colonnade.algorithms import fdml, splitnn, vafl, vimadmm, vimadmm_joint, vimsgd
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.core import Batch, Transport
from colonnade.core.missing import Missing
from colonnade.errors import NoAnswer
from colonnade.transport import Fault, Faulty

SUMS = [
    fdml.ALGORITHM,
    vafl.ALGORITHM,
    vimsgd.ALGORITHM,
    vimadmm.ALGORITHM,
    vimadmm_joint.ALGORITHM,
]
EVERY = [*SUMS, splitnn.ALGORITHM]
STEPS = 5
UP = 2  # batches in an epoch, and calls to a party in a step


def disturbed(algorithm: AnyAlgorithm, rule: str, faults: list[Fault]) -> Toy:
    def wrap(parties: Any) -> Transport:
        return Faulty(sequential(parties), faults)

    toy = federation(algorithm, wrap)
    allowed = toy.driver.config.stand_ins()
    driver = toy.driver
    toy.peers.missing = Missing(
        rule, allowed, driver.outbox, driver.rows, len(driver.labels)
    )
    return toy


def call(algorithm: AnyAlgorithm, step: int, part: int = 0) -> int:
    """The how-many-th call to a party is that of a step: after the introduction, and
    after a first head."""
    return 2 + (algorithm is vimadmm.ALGORITHM) + UP * step + part


def states(toy: Toy, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: state for name, state in toy.states().items() if name in names}


@pytest.mark.parametrize("algorithm", EVERY, ids=module_of)
def test_with_nobody_missing_nothing_changes(algorithm: AnyAlgorithm) -> None:
    plain = federation(algorithm)
    minded = disturbed(algorithm, "stale", [])
    assert plain.run(7) == minded.run(7)
    remembered = minded.states()
    del remembered["the driver"]["missing"]
    assert_bit_equal(plain.states(), remembered)
    assert minded.peers.missing is not None
    assert minded.peers.missing.take() == {}


@pytest.mark.parametrize("algorithm", SUMS, ids=module_of)
def test_a_party_left_out_is_no_term_of_the_sum(algorithm: AnyAlgorithm) -> None:
    """The loss of that step is that of the others' sum, and the party learns nothing
    from it."""
    toy = disturbed(algorithm, "skip", [Fault("drop", "bob", at=call(algorithm, 0))])
    batch = "train/0/0"
    parts = {
        name: party.model(party.x(batch)).detach()
        for name, party in toy.parties.items()
        if name != "bob"
    }
    before = toy.states()
    if algorithm in (fdml.ALGORITHM, vimadmm_joint.ALGORITHM):
        outputs = sum(parts.values())
    elif algorithm is vafl.ALGORITHM:
        model = toy.driver.model
        weights = dict(zip(toy.driver.widths, model.alpha, strict=True))
        outputs = model.linear(sum(weights[k] * h for k, h in parts.items()))
    else:
        heads = dict(
            zip(toy.driver.widths, torch.split(toy.driver.heads, 8), strict=True)
        )
        outputs = sum(h @ heads[k] for k, h in parts.items())
    expected = toy.driver.loss(outputs, toy.driver.y(batch)).item()
    (loss,) = toy.run(1)
    assert loss == pytest.approx(expected, rel=1e-5)
    after = toy.states()
    assert_bit_equal(before["bob"] | {"head": None}, after["bob"] | {"head": None})
    assert not torch.equal(
        *(next(iter(states["ada"]["model"].values())) for states in (before, after))
    )
    assert toy.peers.missing is not None
    assert toy.peers.missing.take() == {"bob": {"skip": 1}}
    toy.run(1)  # and it is back in the next
    assert toy.peers.missing.take() == {}


@pytest.mark.parametrize("algorithm", EVERY, ids=module_of)
def test_a_stale_answer_is_the_last_one_for_each_of_the_rows(
    algorithm: AnyAlgorithm,
) -> None:
    """Other batches are made every epoch, so what stands in comes from several of the
    epoch before."""
    toy = disturbed(
        algorithm, "stale", [Fault("drop", "bob", at=call(algorithm, STEPS))]
    )
    seen: dict[int, torch.Tensor] = {}
    asked: list[Mapping[str, Any]] = []
    ask_each = toy.peers.ask_each
    rows = toy.driver.rows

    def watched(requests: Any) -> Any:
        replies: Any = ask_each(requests)
        if hasattr(replies.get("bob"), "values"):
            batch = next(iter(requests.values())).batch
            asked.append({"batch": batch, "bob": replies["bob"].values.tensor})
        return replies

    toy.peers.ask_each = watched  # type: ignore[method-assign]
    toy.run(STEPS)
    for one in asked:
        seen |= dict(zip(rows(one["batch"]).tolist(), one["bob"], strict=True))
    toy.run(1)
    assert asked[-1]["batch"] == "train/1/0"
    assert torch.equal(
        asked[-1]["bob"], torch.stack([seen[row] for row in rows("train/1/0").tolist()])
    )
    assert toy.peers.missing is not None
    assert toy.peers.missing.take() == {"bob": {"stale": 1}}
    assert [
        e.batch
        for e in toy.driver.ledger.entries
        if e.direction == "in" and e.peer == "bob"
    ][-1] == "train/0/4"
    assert len(toy.run(2)) == 2


def test_without_an_earlier_answer_it_is_left_out_or_an_error() -> None:
    toy = disturbed(
        fdml.ALGORITHM, "stale", [Fault("drop", "bob", at=call(fdml.ALGORITHM, 0))]
    )
    toy.run(1)
    assert toy.peers.missing is not None
    assert toy.peers.missing.take() == {"bob": {"skip": 1}}
    toy = disturbed(
        splitnn.ALGORITHM,
        "stale",
        [Fault("drop", "bob", at=call(splitnn.ALGORITHM, 1))],
    )
    with pytest.raises(
        NoAnswer,
        match=(
            r"'bob' failed .* train/0/1: .* no earlier answer of its for all of these"
            r" rows"
        ),
    ):
        toy.run(2)


def test_a_lost_update_is_told_and_what_is_not_about_a_batch_is_an_error() -> None:
    toy = disturbed(
        vimsgd.ALGORITHM,
        "skip",
        [Fault("drop", "bob", at=call(vimsgd.ALGORITHM, 1, 1))],
    )
    toy.run(3)
    assert toy.peers.missing is not None
    assert toy.peers.missing.take() == {"bob": {"not_updated": 1}}
    # its first head
    toy = disturbed(vimadmm.ALGORITHM, "skip", [Fault("drop", "bob", at=2)])
    with pytest.raises(
        NoAnswer,
        match=r"'bob' failed while answering vimadmm\.Adopt: the call never arrived",
    ):
        toy.run(1)


def test_when_all_are_missing_it_is_an_error() -> None:
    toy = disturbed(
        fdml.ALGORITHM,
        "skip",
        [
            Fault("drop", name, at=call(fdml.ALGORITHM, 0))
            for name in ("ada", "bob", "cyd")
        ],
    )
    with pytest.raises(NoAnswer, match="'ada' failed while answering"):
        toy.run(1)


def test_a_prediction_says_who_was_missing() -> None:
    toy = disturbed(fdml.ALGORITHM, "skip", [Fault("drop", "bob", at=2)])
    rows: Batch | Any = toy.batches.chunks("test", 30)[0]
    outputs = fdml.ALGORITHM.predict(toy.driver, toy.peers, rows)
    parts = [
        p.model.eval()(p.x(rows.name))
        for name, p in toy.parties.items()
        if name != "bob"
    ]
    assert torch.allclose(outputs, sum(parts))
    assert toy.peers.missing is not None
    assert toy.peers.missing.of(rows.name) == ["bob"]
    fdml.ALGORITHM.predict(toy.driver, toy.peers, rows)
    assert toy.peers.missing.of(rows.name) == []


def test_memory_continues_from_a_checkpoint() -> None:
    """Saved after an epoch, the next one can begin with a party that is missing."""
    faults = [Fault("drop", "bob", at=call(splitnn.ALGORITHM, STEPS))]
    whole = disturbed(splitnn.ALGORITHM, "stale", faults)
    expected = whole.run(STEPS + 2)[STEPS:]
    first = disturbed(splitnn.ALGORITHM, "stale", [])
    second = disturbed(splitnn.ALGORITHM, "stale", [Fault("drop", "bob", at=2)])
    first.run(STEPS)
    assert first.peers.missing is not None
    assert second.peers.missing is not None
    for name, party in (first.parties | {"d": first.driver}).items():
        (second.parties | {"d": second.driver})[name].load_state(party.state())
    second.peers.missing.load_state(first.peers.missing.state())
    second.batches.done = STEPS
    assert second.run(2) == expected
    assert_bit_equal(whole.states(), second.states())
    other = Missing("stale", {"stale"}, first.driver.outbox, first.driver.rows, 3)
    other.load_state(first.peers.missing.state())
    assert other.state() == {}  # rows of another size are other rows
