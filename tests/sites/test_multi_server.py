"""The aggregation server's side of a run: it counts rows and weighs scores, and holds nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.federation.small_multi_sites import private

from colonnade.core import Batches, Ledger, Party, Peers, Seat, serves
from colonnade.core.wire import Envelope
from colonnade.errors import ConfigError, NoAnswer, PartyError
from colonnade.federation import Settings
from colonnade.federation.fit import Outcome, summarise
from colonnade.settings.owners import SERVER
from colonnade.sites.multi_server import Aggregation, Measure, Measured, Ready
from colonnade.transport import InProcess

READY = {
    "north": Ready({"train": 60, "test": 20}, "classification", 0, False),
    "south": Ready({"train": 40, "validation": 5}, "classification", 0, True),
}
SCORES = {"north": {"loss": 0.5, "auc": float("nan")}, "south": {"loss": 1.0, "auc": 0.5}}


class Hospital(Party):
    """Says what it is told to."""

    def __init__(self, name: str) -> None:
        super().__init__(Seat.at(name, Batches({}, batch_size=1, epochs=1, seed=0)))

    @serves
    def measure(self, request: Measure) -> Measured:
        rows = READY[self.name].rows.get(request.split, 0)
        return Measured(SCORES[self.name] if rows else {}, rows)


class Silent:
    """One hospital does not answer, or fails."""

    def __init__(self, inner: Any, errors: Mapping[str, PartyError]) -> None:
        self.inner, self.errors = inner, errors

    def exchange(self, to: str, envelope: Envelope[Any]) -> Any:
        if to in self.errors:
            raise self.errors[to]
        return self.inner.exchange(to, envelope)

    def exchange_each(self, envelopes: Mapping[str, Envelope[Any]]) -> dict[str, Any]:
        return {to: self.exchange(to, envelope) for to, envelope in envelopes.items()}


def aggregation(errors: Mapping[str, PartyError] | None = None) -> Aggregation:
    owners = [{"name": name, "label": "y"} for name in READY]
    settings = Settings.from_mapping({**private(), "label_owners": owners, "data_owners": [{"name": "lab"}]})
    transport = Silent(InProcess({name: Hospital(name) for name in READY}), errors or {})
    ask = Peers(SERVER, READY, transport, Ledger(SERVER))
    return Aggregation(settings, READY, transport, ask, torch.device("cpu"))


def test_scores_are_weighted_by_rows_over_those_who_have_them() -> None:
    server = aggregation()
    scores = server.score("train")
    assert scores.all == {"loss": pytest.approx((60 * 0.5 + 40 * 1.0) / 100), "auc": 0.5}
    assert scores.each.keys() == {"north", "south"}
    assert server.score("validation").all["loss"] == 1.0
    with pytest.raises(ConfigError, match="No label owner has rows called 'predict'"):
        server.score("predict")


def test_who_is_silent_is_left_out_of_a_score_and_who_fails_is_not() -> None:
    silent = NoAnswer("north", "x", None, "gone")
    assert aggregation({"north": silent}).score("train").all["loss"] == 1.0
    with pytest.raises(NoAnswer, match="gone"):
        aggregation({"north": silent, "south": NoAnswer("south", "x", None, "gone")}).score("train")
    with pytest.raises(PartyError, match="broken"):
        aggregation({"north": PartyError("north", "x", None, "broken")}).score("train")


def test_its_summary_counts_rows_and_promises_nothing_for_others() -> None:
    summary = summarise(aggregation(), Outcome(), 1.0)  # type: ignore[arg-type]
    assert summary["rows"] == {"train": 100, "test": 20, "validation": 5}
    assert summary["parties"] == {SERVER: []}
    assert summary["privacy"] == []
    assert summary["not_measured"].keys() == {"train"}, "a data owner counts"
    assert summary["label_owners"]["north"]["rows"] == {"train": 60, "test": 20}


def test_it_remembers_what_a_whole_federations_server_would(tmp_path: Path) -> None:
    server = aggregation()
    assert list(server.seats) == [SERVER]
    assert server.state_of(SERVER).keys() == {"seat", "server"}
    server.driver.round = 3
    other = aggregation()
    other.load_state_of(SERVER, server.state_of(SERVER))
    assert other.driver.round == 3
    assert other.batches.fingerprint() == server.batches.fingerprint()
    server.keep_accounts(lambda name: tmp_path / name)
    server.restack()
    assert not list(tmp_path.iterdir())
    assert (server.accounts, server.ledgers[SERVER].entries) == ({}, [])
