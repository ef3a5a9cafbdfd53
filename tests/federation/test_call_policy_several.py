"""[federation] deadline, retries and on_missing where several organisations hold
labels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.federation.small import tensors
from tests.federation.small_multi import federation, quick

from colonnade.algorithms.multi_vfl import Embed
from colonnade.core import Envelope, Transport
from colonnade.core.message import batch_of
from colonnade.core.peers import Answer
from colonnade.errors import ConfigError, NoAnswer, PartyError
from colonnade.federation import Federation
from colonnade.settings.selection import SERVER
from colonnade.transport import Fault, Faulty, Retrying


def away(faults: dict[str, list[Fault]], **engine: Any) -> Federation:
    """The small federation, with a network between its parties: whoever asks meets its
    own faults."""
    settings = quick(
        federation={"cohort": "off", "retries": 0, "deadline": 20.0, **engine}
    )
    near = federation(settings)

    def between(asker: str, transport: Transport) -> Transport:
        return Faulty(transport, faults[asker]) if asker in faults else transport

    far = Federation(near.settings, near.holdings, between=between)
    for party in (far.driver, *far.label_owners.values()):
        assert isinstance(party.peers.transport, Retrying)
        party.peers.transport.pause = 0.0
    return far


def learned(one: Federation) -> dict[str, torch.Tensor]:
    return {
        k: t
        for name in one.organisations
        for k, t in tensors(one.organisations[name].state(), name)
        if "/seat/" not in k
    }


def same(one: Federation, other: Federation) -> bool:
    mine = learned(one)
    theirs = learned(other)
    return mine.keys() == theirs.keys() and all(
        torch.equal(mine[key], theirs[key]) for key in mine
    )


QUIET = {"cohort": "off"}


@pytest.mark.parametrize("asker", [SERVER, "north"])
def test_lost_calls_are_made_again_and_the_run_is_the_same(asker: str) -> None:
    to = "south" if asker == SERVER else "lab"
    quiet = federation(quick(federation=QUIET))
    lossy = away(
        {
            asker: [
                Fault("fail", to, at=3),
                Fault("drop", to, at=5),
                Fault("fail", to, at=6),
            ]
        },
        retries=2,
    )
    assert [r["loss"] for r in quiet.fit().history] == [
        r["loss"] for r in lossy.fit().history
    ]
    assert same(quiet, lossy)


def test_with_fail_a_silent_label_owner_is_left_out_and_comes_back() -> None:
    far = away({SERVER: [Fault("drop", "south", at=at) for at in (3, 4)]})
    outcome = far.fit()
    assert outcome.summary["label_owners"]["south"]["left_out"] == [1]
    assert "the call never arrived" in outcome.history[0]["left_out"]["south"]
    assert outcome.history[-1]["losses"].keys() == {"north", "south"}


def test_with_wait_it_is_waited_for() -> None:
    quiet = federation(quick(federation=QUIET))
    far = away(
        {SERVER: [Fault("drop", "south", at=at) for at in range(3, 9)]},
        on_missing="wait",
    )
    assert quiet.fit().history[-1]["losses"] == far.fit().history[-1]["losses"]
    assert same(quiet, far)


def test_a_data_owner_that_stays_silent_fails_the_round_of_who_asked_it() -> None:
    """And where nobody can go on the run ends, and says who was silent."""
    far = away({"north": [Fault("drop", "lab", at=4)]})
    assert list(far.fit().history[0]["left_out"]) == ["north"]
    gone = {
        name: [Fault("drop", "lab", at=at) for at in range(4, 99)]
        for name in ("north", "south")
    }
    with pytest.raises(
        PartyError,
        match=(
            r"'lab' failed while answering multi_vfl_data_owner\.\w+ at batch"
            r" north:train"
        ),
    ):
        away(gone).fit()


def test_a_data_owner_is_waited_for_below_while_the_server_waits_above() -> None:
    quiet = federation(quick(federation=QUIET))
    far = away(
        {"north": [Fault("drop", "lab", at=at) for at in range(4, 9)]},
        on_missing="wait",
    )
    far.fit()
    quiet.fit()
    assert same(quiet, far)


def test_with_stale_a_data_owners_last_embeddings_stand_in_and_it_is_said() -> None:
    """It misses a batch of the second round: north goes on with what it had of the same
    rows, and tells it nothing."""
    calls = list[tuple[str, str]]()
    lost = quick(
        federation={
            "cohort": "off",
            "retries": 0,
            "deadline": 20.0,
            "on_missing": "stale",
        }
    )
    near = federation(lost)

    class Noting(Faulty):
        def _exchange_one(self, call: Envelope[Any]) -> Answer:
            calls.append((call.receiver, str(batch_of(call.message))))
            if (
                call.receiver == "lab"
                and isinstance(call.message, Embed)
                and batch_of(call.message) == "north:train/1/0"
            ):
                return NoAnswer(
                    call.receiver,
                    Embed.kind,
                    batch_of(call.message),
                    "the call never arrived",
                )
            return super()._exchange_one(call)

    def between(asker: str, transport: Transport) -> Transport:
        return Noting(transport, []) if asker == "north" else transport

    far = Federation(near.settings, near.holdings, between=between)
    outcome = far.fit()
    assert outcome.summary["missing"] == {"lab": {"stale": 1}}
    assert not any(record["left_out"] for record in outcome.history)
    asked = [batch for to, batch in calls if to == "lab"]
    assert asked.count("north:train/1/1") == 2  # embedded, and its gradient came
    assert asked.count("north:train/1/0") == 1  # no gradient for what it did not embed
    assert not same(federation(quick(federation=QUIET)), far)


def test_what_the_maths_does_not_allow_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"on_missing = 'skip' cannot be used with multi_vfl .*It allows \"fail\"",
    ):
        federation(quick(federation={"on_missing": "skip"}))


def test_an_answer_that_is_no_number_ends_the_run_with_its_name() -> None:
    far = away({})
    with torch.no_grad():
        next(far.owners["scan"].model.parameters()).fill_(float("nan"))
    with pytest.raises(
        PartyError, match=r"'scan' failed .* values it sent as embedding are no numbers"
    ):
        far.fit()
