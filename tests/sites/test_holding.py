"""Between sites a round is one journey: parties get the same calls in the same order,
in fewer frames."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.federation.small_sites import saved, sites
from tests.sites.kinds import DRIVER, each_kind, made, same_bits
from tests.sites.test_site import LOUD

from colonnade.algorithms.vimadmm import FeatureOwner, Improve
from colonnade.core import Done, serves, wire
from colonnade.core.message import batch_of
from colonnade.errors import PartyError
from colonnade.privacy.gaussian import Gaussian
from colonnade.settings.selection import SERVER
from colonnade.sites.driving import drive
from colonnade.transport.remote import HEAD, Route

Told = list[list[tuple[str, str | None]]]
BY_DONE = ("Adopt", "Improve", "Open", "Descend", "Average")


def heard(route: Route, told: Told) -> Route:
    """A line whose frames are read on the way: each is a list of calls."""

    def call(data: bytes, deadline: float) -> bytes:
        calls = [
            call.unpack().message
            for call in wire.calls(memoryview(bytearray(data[HEAD.size :])))
        ]
        told.append(
            [(message.kind.partition(".")[2], batch_of(message)) for message in calls]
        )
        return route(data, deadline)

    return call


def frames(base: Path, kind: str, run: str) -> dict[tuple[str, str], Told]:
    """What every organisation sends to every other one in a run."""
    every = sites(base)
    found = dict[tuple[str, str], Told]()
    for name, site in every.items():
        for to, route in site.routes.items():
            found[name, to] = []
            site.routes[to] = heard(route, found[name, to])
    drive(every[DRIVER[kind]], run)
    return found


@each_kind
@pytest.mark.parametrize(
    "validation", [True, False], ids=["validated", "not validated"]
)
def test_the_same_calls_in_the_same_order_in_fewer_frames(
    tmp_path: Path, kind: str, validation: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever saves itself has done all that came before, though what is answered by
    Done came with another call."""
    split = {} if validation else {"data": {"validation": 0.0}}
    made(
        tmp_path,
        kind,
        train={"epochs": 2, "batch_size": 16, "early_stop": False},
        **split,
    )
    joint = frames(tmp_path, kind, "run")
    monkeypatch.setattr("colonnade.transport.kept_up.Holding", lambda inner: inner)
    alone = frames(tmp_path, kind, "alone")
    same_bits(saved(tmp_path, "run"), saved(tmp_path, "alone"))
    trained = 0
    for pair, told in alone.items():
        assert all(len(frame) == 1 for frame in told)
        assert [call for frame in joint[pair] for call in frame] == [
            call for frame in told for call in frame
        ]
        if pair[0] == SERVER:  # which goes on without a label owner that is silent
            assert joint[pair] == told
            continue
        by_done = sum(frame[0][0] in BY_DONE for frame in told)
        # sent without a next call
        settled = sum(frame[-1][0] in BY_DONE for frame in joint[pair])
        assert len(joint[pair]) == len(told) - by_done + settled
        if by_done:
            trained += 1
            assert settled < by_done / 2
    assert trained == {"one": 1, "several": 4}[kind]


@each_kind
def test_where_a_budget_is_spent_all_are_saved_with_the_updates_that_waited(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = {"outbox": LOUD, "budget": {"epsilon": 0.5, "delta": 1e-5}}
    whose = (
        {"parties": {"lab": lab}}
        if kind == "one"
        else {"data_owners": [{"name": "lab", **lab}]}
    )
    bases = [tmp_path / "joint", tmp_path / "alone"]
    # whose noise is secret between sites: here two runs are compared
    apply = Gaussian.apply
    monkeypatch.setattr(
        Gaussian,
        "apply",
        lambda self, t, source: (self.bounded(t), apply(self, t, source)[1]),
    )
    for base in bases:
        made(base, kind, train={"epochs": 50, "batch_size": 16}, **whose)
        assert drive(sites(base)[DRIVER[kind]], "run").exhausted
        monkeypatch.setattr("colonnade.transport.kept_up.Holding", lambda inner: inner)
    same_bits(*(saved(base, "run") for base in bases))


@pytest.mark.parametrize(
    "which", [0, -1], ids=["with the next call", "before a checkpoint"]
)
def test_what_fails_while_it_waits_ends_the_run_with_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """After the last request of all comes nothing but a checkpoint: nobody saves a
    model without it."""
    made(
        tmp_path,
        "one",
        train={"epochs": 1, "early_stop": False},
        data={"validation": 0.0, "test": 0.0},
    )
    whole = frames(tmp_path, "one", "whole")["clinic", "lab"]
    batch = [batch for frame in whole for kind, batch in frame if kind == "Improve"][
        which
    ]
    clinic = sites(tmp_path)["clinic"]
    told = Told()
    improve = FeatureOwner.improve
    clinic.routes["lab"] = heard(clinic.routes["lab"], told)

    @serves
    def fails(self, request: Improve) -> Done:  # type: ignore[no-untyped-def]
        if request.batch != batch or self.name != "lab":
            return improve(self, request)
        raise ZeroDivisionError

    monkeypatch.setattr(FeatureOwner, "improve", fails)
    monkeypatch.setattr(FeatureOwner, "_served", None)
    with pytest.raises(PartyError) as caught:
        drive(clinic, "run")
    assert (caught.value.party, caught.value.request, caught.value.batch) == (
        "lab",
        "vimadmm.Improve",
        batch,
    )
    assert told[-1][0] == ("Improve", batch)
    assert len(told[-1]) == (2 if which == 0 else 1)
    assert "Save" not in [kind for frame in told for kind, _ in frame]
