"""Who drives: it counts rows and weighs scores, goes on without who is silent, and
holds nothing of anybody else's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.federation.small_multi import LABELS
from tests.federation.small_multi_sites import folders, private
from tests.federation.small_sites import ask, saved, sites
from tests.sites.kinds import DRIVER, each_kind, made
from tests.transport.one_by_one import OneByOne, only

from colonnade.core import Batches, Ledger, Organisation, Party, Peers, serves
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError, ConfigError, DataError, NoAnswer, PartyError
from colonnade.federation import Federation
from colonnade.federation.fit import Outcome, summarise
from colonnade.settings.party_file import OWN, read_own
from colonnade.settings.selection import SERVER
from colonnade.sites.driving import aggregation, drive, rehearse
from colonnade.sites.messages import Measure, Measured, Prepare, Ready
from colonnade.transport import InProcess
from colonnade.transport.remote import Route

READY = {
    "north": Ready({"train": 60, "test": 20}, "classification", 0, False),
    "south": Ready({"train": 40, "validation": 5}, "classification", 0, True),
}
SCORES = {
    "north": {"loss": 0.5, "auc": float("nan")},
    "south": {"loss": 1.0, "auc": 0.5},
}


class Hospital(Party):
    """Says what it is told to."""

    def __init__(self, name: str) -> None:
        super().__init__(
            Organisation.at(name, Batches({}, batch_size=1, epochs=1, seed=0))
        )

    @serves
    def measure(self, request: Measure) -> Measured:
        rows = READY[self.name].rows.get(request.split, 0)
        return Measured(SCORES[self.name] if rows else {}, rows)


class Silent(OneByOne):
    """One hospital does not answer, or fails."""

    def __init__(self, inner: Any, errors: Mapping[str, PartyError]) -> None:
        self.inner = inner
        self.errors = errors

    def one(self, call: Envelope[Any]) -> Any:
        if call.receiver in self.errors:
            raise self.errors[call.receiver]
        return only(self.inner, call)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folders(tmp_path, private())
    return tmp_path


def server(
    base: Path, *errors: PartyError, ready: dict[str, Ready] = READY
) -> Federation:
    hospitals = Silent(
        InProcess({name: Hospital(name) for name in READY}),
        {one.party: one for one in errors},
    )
    return aggregation(
        sites(base, [SERVER])[SERVER],
        ready,
        Peers(SERVER, READY, hospitals, Ledger(SERVER)),
    )


@pytest.mark.parametrize(
    "lie",
    [
        Ready({"train": -5}, "classification", 0, False),
        Ready({"train": 1 << 27}, "classification", 0, False),
        Ready({"nowhere": 5}, "classification", 0, False),
        Ready({"train": 5}, "guessing", 0, False),
    ],
)
def test_a_label_owner_that_lies_about_its_rows_is_named(
    base: Path, lie: Ready
) -> None:
    with pytest.raises(PartyError, match=r"'north' failed .* it says that it has"):
        server(base, ready={**READY, "north": lie})


def test_scores_are_weighted_by_rows_over_those_who_have_them(base: Path) -> None:
    scores = server(base).score("train")
    assert scores.all == {
        "loss": pytest.approx((60 * 0.5 + 40 * 1.0) / 100),
        "auc": 0.5,
    }
    assert scores.each.keys() == {"north", "south"}
    assert server(base).score("validation").all["loss"] == 1.0
    with pytest.raises(ConfigError, match="No label owner has rows called 'predict'"):
        server(base).score("predict")


@pytest.mark.parametrize("lie", [{"\x1b[2J": 1.0}, {"accuracy": 1.0}])
def test_scores_that_are_none_end_with_the_name_of_who_says_them(
    base: Path, lie: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCORES, "north", lie)
    with pytest.raises(
        PartyError, match=r"'north' failed .* are no scores of 60 rows"
    ) as refused:
        server(base).score("train")
    assert "\x1b" not in str(refused.value)


def test_who_is_silent_is_left_out_of_a_score_and_who_fails_is_not(base: Path) -> None:
    silent = [NoAnswer(name, "x", None, "gone") for name in LABELS]
    assert server(base, silent[0]).score("train").all["loss"] == 1.0
    with pytest.raises(NoAnswer, match="gone"):
        server(base, *silent).score("train")
    with pytest.raises(PartyError, match="broken"):
        server(base, PartyError("north", "x", None, "broken")).score("train")


def test_its_summary_counts_rows_and_promises_nothing_for_others(base: Path) -> None:
    summary = summarise(
        server(base), Outcome(), 1.0, before=None, finished=False, unseen=()
    )
    assert summary["rows"] == {"train": 100, "test": 20, "validation": 5}
    assert summary["parties"] == {SERVER: []}
    assert summary["privacy"] == []
    assert summary["not_measured"].keys() == {"train"}, "a data owner counts"
    assert summary["label_owners"]["north"]["rows"] == {"train": 60, "test": 20}


def test_it_remembers_what_a_whole_federations_server_would(base: Path) -> None:
    one = server(base)
    other = server(base)
    assert list(one.organisations) == [SERVER]
    assert one.organisations[SERVER].state().keys() == {"seat", "server"}
    one.driver.round = 3
    other.organisations[SERVER].load_state(one.organisations[SERVER].state())
    assert other.driver.round == 3
    assert other.batches.fingerprint() == one.batches.fingerprint()
    assert (one.accounts, one.ledgers[SERVER].entries, len(one.ids)) == ({}, [], 0)


class Cut:
    """A line that is dead while calls number `first` to `last` are made."""

    def __init__(self, line: Route, first: int, last: int) -> None:
        self.line = line
        self.first = first
        self.last = last
        self.calls = 0

    def __call__(self, data: bytes, deadline: float) -> bytes:
        self.calls += 1
        if self.first <= self.calls <= self.last:
            raise ConnectionError("cut")
        return self.line(data, deadline)


def test_a_label_owner_that_is_silent_for_a_while_is_left_out_and_comes_back(
    tmp_path: Path,
) -> None:
    """Of the round, its score and its checkpoint; nobody else's are held up by it."""
    made(
        tmp_path,
        "several",
        train={"epochs": 4, "batch_size": 64},
        federation={"retries": 0},
    )
    one = sites(tmp_path)[SERVER]
    one.routes["south"] = Cut(one.routes["south"], 12, 16)
    outcome = drive(one, "run")
    left_out = outcome.summary["label_owners"]["south"]["left_out"]
    assert left_out
    assert left_out[-1] < 4
    assert outcome.summary["label_owners"]["north"]["left_out"] == []
    assert "south" in outcome.history[-1]["losses"]
    models = [
        saved(tmp_path, "run")[f"{name}/labels/model/0.weight"] for name in LABELS
    ]
    assert torch.equal(*models), "and has everybody's model in the end"


@each_kind
def test_a_party_that_does_not_drive_cannot(tmp_path: Path, kind: str) -> None:
    made(tmp_path, kind)
    for name, site in sites(tmp_path).items():
        if name != DRIVER[kind]:
            told = (
                f"'{name}' does not drive; in the federation it agreed to,"
                f" '{DRIVER[kind]}' does"
            )
            with pytest.raises(BoundaryError, match=told):
                drive(site, "run")


@pytest.mark.parametrize("run", ["../elsewhere", "", ".hidden", "a/b", "x" * 101])
@each_kind
def test_a_run_cannot_be_named_so_that_it_lies_elsewhere(
    tmp_path: Path, kind: str, run: str
) -> None:
    made(tmp_path, kind)
    every = sites(tmp_path)
    with pytest.raises(ConfigError, match="A run's name has letters"):
        drive(every[DRIVER[kind]], run)
    with pytest.raises(PartyError, match="a run's name has letters"):
        ask(
            every["lab"], "clinic" if kind == "one" else "north", Prepare(run, 1, False)
        )


@each_kind
def test_an_organisation_can_check_itself_before_anybody_calls(
    tmp_path: Path, kind: str
) -> None:
    made(tmp_path, kind)
    found: dict[str, tuple[int, int] | None] = {}
    for name in sites(tmp_path):
        if (rehearsed := rehearse(read_own(tmp_path / name / OWN))) is None:
            found[name] = None
            continue
        holdings, organisation = rehearsed
        assert organisation.name == name
        assert holdings.columns.keys() <= {name}
        found[name] = (
            len(holdings.ids),
            sum(held.features.shape[1] for held in holdings.columns.values()),
        )
    assert found == (
        {"clinic": (80, 2), "lab": (80, 2)}
        if kind == "one"
        else {
            "north": (90, 0),
            "south": (80, 0),
            "lab": (150, 2),
            "scan": (150, 2),
            SERVER: None,
        }
    )
    path = tmp_path / "lab" / OWN
    before = path.read_text()
    for wrong, message in (
        ('[outbox]\nembeding = { mechanism = "plain" }', "which is never released"),
        ('model = "mlpp"', "mlpp"),
        ('columns = ["copper"]', "copper"),
        ("[budget]\nepsilon = 1.0", "can never be kept"),
    ):
        path.write_text(f"{before}\n{wrong}\n")
        with pytest.raises((ConfigError, DataError), match=message):
            rehearse(read_own(path))


def test_a_data_owner_that_misses_a_batch_is_stood_in_for_at_the_label_owners_site(
    tmp_path: Path,
) -> None:
    engine = {"on_missing": "stale", "retries": 0, "deadline": 5}
    folders(tmp_path, private(train={"epochs": 2}, federation=engine))
    every = sites(tmp_path)
    reach = every["north"].routes["lab"]

    def lossy(data: bytes, deadline: float) -> bytes:
        if b"north:train/1/0" in data and b".Embed" in data:
            raise TimeoutError
        return reach(data, deadline)

    every["north"].routes["lab"] = lossy
    drive(every[SERVER], "run")
    told = {
        name: json.loads((tmp_path / name / "runs/run/summary.json").read_text())
        for name in ("north", "south")
    }
    assert told["north"]["missing"] == {"lab": {"stale": 1}}
    assert told["south"]["missing"] == {}
