"""What goes wrong in a federation of any algorithm is named, and harms nobody else (6
of "Definition of done")."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

import pytest
import torch
from tests.conformance.battery import (
    every_algorithm,
    every_algorithm_that_stacks,
    every_algorithm_with_models,
    in_long_runs,
)
from tests.conformance.toy import (
    TRANSPORTS,
    Toy,
    assert_bit_equal,
    cohorts,
    federation,
    sequential,
)
from torch import Tensor, nn

from colonnade.algorithms import ALGORITHMS
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.core import Envelope, Message, Party, Released, Request, Transport
from colonnade.core.answers import Answers
from colonnade.core.message import batch_of
from colonnade.core.peers import Answer
from colonnade.errors import BoundaryError, PartyError
from colonnade.transport import Fault, Faulty

R = TypeVar("R", bound=Message)


class Watched:
    """Remembers the last call and what everybody knew before it."""

    def __init__(self, inner: Transport, parties: Mapping[str, Party]) -> None:
        self.inner = inner
        self.parties = parties

    def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
        self.before = {
            name: copy.deepcopy(party.state()) for name, party in self.parties.items()
        }
        self.requests = {call.receiver: call.message for call in calls}
        return self.inner.exchange(calls)


class Dies(nn.Module):
    """A model whose n-th forward pass fails."""

    def __init__(self, model: nn.Module, at: int) -> None:
        super().__init__()
        self.model = model
        self.at = at
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.at:
            raise ZeroDivisionError("the disk is gone")
        result: Tensor = self.model(x)
        return result


def assert_named(error: PartyError, party: str, watched: Watched) -> None:
    request = watched.requests[party]
    assert (error.party, error.request, error.batch) == (
        party,
        request.kind,
        batch_of(request),
    )
    assert f"'{party}'" in str(error)
    assert request.kind in str(error)
    assert str(error.batch or "") in str(error)


def assert_predicts(toy: Toy) -> None:
    """Where some followed a round that others did not, a sum under masks does not open:
    whoever drives could have done so on purpose."""
    followed = {party.outbox.followed for party in toy.parties.values()}
    if len(followed) == 1:
        assert torch.isfinite(toy.predict()).all()
    else:
        with pytest.raises(BoundaryError, match="Resume from the last checkpoint"):
            toy.predict()


@every_algorithm_with_models
@pytest.mark.parametrize("at", [2, 8, *map(in_long_runs, [3, 5])])
@pytest.mark.parametrize("inner", ["by reference", "through bytes", "threads"])
def test_a_party_that_dies_in_its_model_is_named(
    algorithm: AnyAlgorithm, at: int, inner: str
) -> None:
    toy = federation(
        algorithm,
        lambda parties: Watched(TRANSPORTS[inner](parties), parties),
        wrap_model={"bob": lambda model: Dies(model, at)},
    )
    with pytest.raises(PartyError) as caught:
        toy.run()
    assert_named(caught.value, "bob", toy.transport)
    assert caught.value.batch is not None
    assert caught.value.cause == "ZeroDivisionError: the disk is gone"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert_predicts(toy)


@every_algorithm
@pytest.mark.parametrize("at", [2, 5, *map(in_long_runs, [3, 4, 6])])
@pytest.mark.parametrize("kind", ["drop", "fail"])
def test_a_lost_call_is_named_and_changes_nothing_where_it_never_arrived(
    algorithm: AnyAlgorithm, at: int, kind: Any
) -> None:
    faults = [Fault(kind, "bob", at=at)]
    toy = federation(
        algorithm, lambda parties: Watched(Faulty(sequential(parties), faults), parties)
    )
    with pytest.raises(PartyError) as caught:
        toy.run()
    assert_named(caught.value, "bob", toy.transport)
    before = toy.transport.before
    after = toy.states()
    if kind == "drop":
        assert_bit_equal(before["bob"], after["bob"])
    assert_predicts(toy)


@every_algorithm_that_stacks
def test_a_member_that_dies_inside_a_cohort_names_the_cohort(
    algorithm: AnyAlgorithm,
) -> None:
    """One stacked computation cannot say which of its members failed; all are named."""
    toy = federation(
        algorithm,
        cohorts,
        wrap_model={
            name: lambda model: Dies(model, 3) for name in ("ada", "bob", "cyd")
        },
    )
    assert len(toy.cohorts()) == 1
    with pytest.raises(PartyError, match="the disk is gone") as caught:
        toy.run()
    assert caught.value.party == "ada, bob, cyd"
    assert caught.value.request in {
        request.kind for request in algorithm.feature_owner.served()
    }
    assert caught.value.batch is not None


@every_algorithm
@pytest.mark.parametrize("inner", ["by reference", "through bytes"])
@pytest.mark.parametrize(
    "fault",
    [Fault("duplicate", "bob"), Fault("delay", "bob", seconds=0.001)],
    ids=lambda f: f.kind,
)
def test_calls_that_come_twice_or_late_change_nothing(
    algorithm: AnyAlgorithm, inner: str, fault: Fault
) -> None:
    plain = federation(algorithm)
    disturbed = federation(
        algorithm, lambda parties: Faulty(TRANSPORTS[inner](parties), [fault])
    )
    assert plain.run(3) == disturbed.run(3)
    assert_bit_equal(plain.states(), disturbed.states())
    for name, party in plain.parties.items():
        assert party.ledger.entries == disturbed.parties[name].ledger.entries


@every_algorithm
def test_a_release_under_a_name_of_its_senders_choice_is_refused_and_named(
    algorithm: AnyAlgorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shapes follow from what the algorithm declared of a message's field: a partner
    cannot call a [9, 9] tensor by a name of which nothing is checked."""
    toy = federation(algorithm, sequential)
    widths = toy.driver.widths
    toy.peers.answers = Answers(
        toy.driver.rows,
        widths,
        releases=algorithm.releases,
        wide=algorithm.of_told_width,
    )
    toy.run(2)
    toy.predict()
    outbox = toy.parties["bob"].outbox
    honest: Callable[..., Released] = outbox.release
    for name in ["of no algorithm", *algorithm.releases]:

        def renamed(
            tensor: Tensor,
            as_: str,
            batch: str | None = None,
            *,
            to: str | None = None,
            name: str = name,
        ) -> Released:
            if not algorithm.releases[as_].per_row:
                return honest(tensor, as_, batch, to=to)
            return honest(torch.ones(9, 9), name, batch, to=to)

        monkeypatch.setattr(outbox, "release", renamed)
        with pytest.raises(PartyError, match=r"it sent \[9, 9\] values") as caught:
            toy.predict()
        assert caught.value.party == "bob"


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_what_may_be_in_one_field_of_an_answer_has_one_shape(
    algorithm: AnyAlgorithm,
) -> None:
    """So that no name that the field is for lets through what another would not."""
    for request in algorithm.feature_owner.served():
        (answer,) = (
            get_args(base)[0]
            for base in request.__orig_bases__
            if get_origin(base) is Request
        )
        for field, kinds in answer.kinds().items():
            fitting = {
                n: one
                for n, one in algorithm.releases.items()
                if one.kind in kinds and one.of != "labels"
            }
            assert kinds, (
                f"{answer.kind}.{field} says no kind: Annotated[Released, Kind. ...]"
            )
            assert fitting, (
                f"{algorithm.config.name} declares no release for {answer.kind}.{field}"
            )
            assert (
                len(
                    {
                        (one.per_row, name in algorithm.of_told_width)
                        for name, one in fitting.items()
                    }
                )
                == 1
            )
