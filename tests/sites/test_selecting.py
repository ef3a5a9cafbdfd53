"""A selection between sites: the same result as in one process, and each organisation
decides whether it takes part."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.federation import small_multi, small_multi_sites
from tests.federation.small import Frames, quick
from tests.federation.small_sites import ask, folders, sites

from colonnade.core import Batches, Organisation, Released
from colonnade.encryption import read_public_key
from colonnade.errors import BoundaryError, ConfigError, PartyError
from colonnade.federation import Settings
from colonnade.federation.choosing import choose
from colonnade.selection import Selection, aggregation, participant, sorting
from colonnade.selection.sorting import AskPublicKey
from colonnade.settings.party_file import OWN, read_own
from colonnade.settings.selection import KEYS, SERVER
from colonnade.sites.candidate import Leave, TakePart
from colonnade.sites.messages import Prepare
from colonnade.sites.selecting import Chosen, SelectFor, _chosen, count_at, select_at
from colonnade.sites.site import Site

SETTINGS = {"k": 3, "queries": 30, "scheme": "plain"}
CANDIDATES = ("bank", "lab", "shop")


@pytest.fixture(autouse=True)
def _plain() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message='The encryption scheme "plain"')
        yield


def people(rows: int = 60, seed: int = 0) -> Frames:
    """A clinic with a diagnosis, and three organisations of which one knows most about
    it."""
    random = np.random.default_rng(seed)
    ill = random.integers(0, 2, rows)
    ids = [f"P{number:03d}" for number in range(rows)]
    found = {
        "clinic": pd.DataFrame(
            {"patient": ids, "age": random.normal(size=rows), "diagnosis": ill}
        )
    }
    for name, knows in (("bank", 0.2), ("lab", 2.0), ("shop", 0.0)):
        columns = {
            f"{name}{at}": ill * knows + random.normal(size=rows) for at in range(2)
        }
        found[name] = pd.DataFrame({"patient": ids, **columns}).sample(
            frac=1, random_state=2
        )
    return found


def made(base: Path, selection: Mapping[str, Any] = SETTINGS, **changes: Any) -> Path:
    """Folders of all organisations and both servers; candidates take part."""
    tables = quick(selection={**selection, "servers": True}, **changes)
    file, _ = folders(base, people(), tables)
    for name in CANDIDATES:
        allow(base, name)
    return file


def allow(base: Path, name: str, table: str = "[selections]\nper_day = 2\n") -> None:
    with (base / name / OWN).open("a", encoding="utf-8") as file:
        file.write(f"\n{table}")


def here(file: Path, keep: int = 2, method: str = "vf_ps") -> Selection:
    """The same in one process."""
    return choose(Settings.from_toml(file), keep, method)


def result(found: Selection) -> dict[str, Any]:
    """All of it but the seconds, and the bytes, by which ciphertexts differ each time."""
    told = found.to_json()
    told["cost"] = {
        key: value
        for key, value in told["cost"].items()
        if key not in ("seconds", "bytes")
    }
    return told


@pytest.mark.parametrize("align", ["exact", "private"])
def test_sites_choose_what_one_process_does_to_the_bit(
    tmp_path: Path, align: str
) -> None:
    file = made(tmp_path, data={"align": align})
    found = select_at(sites(tmp_path)["clinic"], "choice", 2, "vf_ps", {})
    same = here(file)
    assert result(found) == result(same)
    assert found.cost.bytes == same.cost.bytes
    assert found.chosen[0] == "lab"
    assert found.entropy is not None
    kept = json.loads((tmp_path / "clinic/runs/choice/selection.json").read_text())
    assert Selection.from_json(kept).to_json() == found.to_json()


@pytest.mark.parametrize(
    ("selection", "method"),
    [
        ({"decryptor": "participants"}, "leave_one_out"),
        ({"fagin": False}, "brute_force"),
        ({"scheme": "bfv"}, "vf_ps"),
    ],
)
def test_so_they_do_by_every_method_and_whoever_decrypts(
    tmp_path: Path, selection: dict[str, Any], method: str
) -> None:
    file = made(tmp_path, {**SETTINGS, **selection})
    assert result(select_at(sites(tmp_path)["clinic"], "c", 2, method, {})) == result(
        here(file, 2, method)
    )


def test_who_is_not_chosen_has_told_and_learned_what_the_selection_says(
    tmp_path: Path,
) -> None:
    """Its ledger is the one of the same selection in one process, and there is nothing
    else of it on its disk."""
    file = made(tmp_path)
    found = select_at(sites(tmp_path)["clinic"], "choice", 1, "vf_ps", {})
    same = here(file, 1)
    assert "shop" not in found.chosen
    assert found.learned == same.learned
    runs = tmp_path / "shop/runs"
    files = {
        str(path.relative_to(runs))
        for path in runs.rglob("*")
        if path.is_file() and path.name[0] != "."
    }
    assert files == {"choice/parties/shop/ledger-after.jsonl", "alignments.json"}
    lines = (runs / "choice/parties/shop/ledger-after.jsonl").read_text().splitlines()

    def crossed(entry: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(
            entry[key]
            for key in (
                "direction",
                "peer",
                "message",
                "name",
                "bytes",
                "codec",
                "event",
            )
        )

    told = [crossed(json.loads(line)) for line in lines]
    assert told == [crossed(entry._asdict()) for entry in same.ledgers["shop"].entries]
    assert {entry[3] for entry in told if entry[0] == "out"} == {
        "reach",
        "ranking",
        "distances",
    }


def test_who_does_not_say_that_it_takes_part_does_not(tmp_path: Path) -> None:
    folders(tmp_path, people(), quick(selection={**SETTINGS, "servers": True}))
    for name in ("bank", "shop"):
        allow(tmp_path, name)
    every = sites(tmp_path)
    with pytest.raises(
        PartyError,
        match=r"'lab' failed .*takes part in no selection: its party.toml has no \[sel",
    ):
        select_at(every["clinic"], "choice", 2, "vf_ps", {})
    assert not list((tmp_path / "lab/runs").rglob("*.jsonl"))
    assert [type(role).__name__ for role in every["lab"].roles] == [
        "ColumnHost",
        "Reader",
        "SelectionHost",
    ]


def test_it_takes_part_as_often_as_its_owner_says(tmp_path: Path) -> None:
    made(tmp_path)
    for number in range(2):
        select_at(
            sites(tmp_path)["clinic"], f"choice{number}", 2, "vf_ps", {"queries": 8}
        )
    with pytest.raises(
        PartyError, match="takes part in 2 selections of 'clinic' a day, had 2 today"
    ):
        select_at(sites(tmp_path)["clinic"], "choice2", 2, "vf_ps", {"queries": 8})


def begin(
    every: Mapping[str, Site], name: str, asker: str = "clinic", **changes: Any
) -> Any:
    """What a driver that may lie asks a site to take part in."""
    own = every[name].own
    given = {"run": "c", "agreed": own.agreed, "parties": 4, "queries": 5, **changes}
    return ask(every[name], asker, TakePart(**given))


def test_a_lying_driver_gets_no_more_than_the_owner_allows(tmp_path: Path) -> None:
    """It may say what it likes about the federation, how many rows it asks about, and
    who it is."""
    made(tmp_path)
    every = sites(tmp_path)
    for site in every.values():
        site.read()
    lies: list[tuple[dict[str, Any], str]] = [
        ({"agreed": "0" * 32}, "was asked for another federation"),
        (
            {"queries": 257},
            (
                r"neighbours of 256 rows be ranked \(\[selections\] queries in"
                r" party.toml\), and it was"
            ),
        ),
        ({"parties": 9}, "there are no 9 participants"),
        ({"run": "../../etc"}, "a run's name has letters"),
    ]
    for lie, why in lies:
        with pytest.raises(PartyError, match=why):
            begin(every, "lab", **lie)
    with pytest.raises(BoundaryError, match="this is for clinic to ask"):
        begin(every, "lab", asker="bank")
    assert begin(every, "lab").rows == 60
    lab = every["lab"]
    # the seed of pseudo ids is not for servers
    with pytest.raises(BoundaryError, match="this is for clinic to ask"):
        ask(lab, "aggregation_server", participant.Join(5))
    ask(lab, "clinic", participant.Join(5))
    with pytest.raises(
        PartyError, match="was told how rows are shuffled, and keeps to it"
    ):
        ask(lab, "clinic", participant.Join(6))
    outbox = Organisation.at(
        "aggregation_server", Batches({}, batch_size=1, epochs=1, seed=0)
    ).outbox

    def rank(*rows: int) -> participant.RankRows:
        return participant.RankRows(
            outbox.release(torch.tensor(rows, dtype=torch.int32), "candidates"), 0, 3
        )

    with pytest.raises(BoundaryError, match="this is for aggregation_server to ask"):
        ask(lab, "clinic", rank(0))
    ask(lab, "aggregation_server", rank(0, 1, 2))
    ask(lab, "aggregation_server", rank(2, 3, 4))
    with pytest.raises(
        PartyError,
        match="neighbours of 5 rows be ranked, and it was asked for those of 6",
    ):
        ask(lab, "aggregation_server", rank(5))
    ask(lab, "clinic", Leave())
    with pytest.raises(BoundaryError, match=r"does not serve participant\.RankRows"):
        ask(lab, "aggregation_server", rank(0))


def test_what_crosses_is_not_the_leaders_to_change(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"\[selection\] scheme says what crosses, so it is in the file",
    ):
        select_at(sites(tmp_path)["clinic"], "c", 2, "vf_ps", {"scheme": "bfv"})
    with pytest.raises(
        ConfigError, match='"lasso" fits one model to all columns in one place'
    ):
        select_at(sites(tmp_path)["clinic"], "c", 2, "lasso", {})
    with pytest.raises(BoundaryError, match="'lab' does not select"):
        select_at(sites(tmp_path)["lab"], "c", 2, "vf_ps", {})


def test_without_servers_in_the_agreed_file_there_is_none(tmp_path: Path) -> None:
    folders(tmp_path, people(), quick(selection=SETTINGS))
    with pytest.raises(
        ConfigError,
        match=(
            r"two servers, which the agreed file does not have. Set \[selection\]"
            r" servers"
        ),
    ):
        select_at(sites(tmp_path)["clinic"], "c", 2, "vf_ps", {})
    with pytest.raises(
        BoundaryError, match=r"'lab' does not serve candidate\.TakePart"
    ):
        begin(sites(tmp_path), "lab")


def test_rows_are_counted_before_anybody_learns_which_they_are(tmp_path: Path) -> None:
    made(tmp_path, data={"align": "private"})
    every = sites(tmp_path)
    (found,) = count_at(every["clinic"], "count")
    assert (found.common, found.sizes["lab"]) == (60, 60)
    assert all(
        owner.common_rows is None
        for site in every.values()
        for owner in site.id_owners.values()
    )
    (kept,) = json.loads((tmp_path / "clinic/runs/count/alignment.json").read_text())
    assert kept["common"] == 60
    assert (
        kept["learned"]["lab"] == "the others' numbers of ids; how many rows are common"
    )


def test_an_owner_may_let_rows_be_counted_and_nothing_more(tmp_path: Path) -> None:
    """Before any contract: [alignments] reveal in its own file."""
    made(tmp_path, data={"align": "private"})
    allow(tmp_path, "shop", '[alignments]\nreveal = "count"\n')
    assert count_at(sites(tmp_path)["clinic"], "count")[0].common == 60
    with pytest.raises(
        PartyError,
        match=(
            r"'shop' failed .* its settings say reveal = 'count', and it was asked for"
            r" 'rows'"
        ),
    ):
        select_at(sites(tmp_path)["clinic"], "choice", 2, "vf_ps", {})
    with pytest.raises(
        BoundaryError, match="'lab' does not ask others for their ids; clinic may"
    ):
        count_at(sites(tmp_path)["lab"], "count")
    with pytest.raises(ConfigError, match="A run's name has"):
        count_at(sites(tmp_path)["clinic"], "../count")


def several(base: Path) -> Path:
    """Two label owners and two organisations with columns."""
    file, _ = small_multi_sites.folders(
        base, small_multi_sites.private(selection={**SETTINGS, "servers": True})
    )
    for name in (*small_multi.LABELS, *small_multi.COLUMNS):
        allow(base, name)
    return file


def test_each_of_several_label_owners_selects_as_in_one_process(tmp_path: Path) -> None:
    file = several(tmp_path)
    found = select_at(sites(tmp_path)["north"], "choice", 1, "vf_ps", {})
    assert result(found) == result(
        choose(Settings.from_toml(file), 1, "vf_ps", owner="north")
    )
    assert set(found.ranking) == {"lab", "scan"}
    assert count_at(sites(tmp_path)["south"], "count")[0].common == 80


def test_several_label_owners_select_jointly_as_in_one_process(tmp_path: Path) -> None:
    file = several(tmp_path)
    found = select_at(sites(tmp_path)["aggregation_server"], "choice", 1, "vf_ps", {})
    same = choose(Settings.from_toml(file), 1, "vf_ps")
    assert {**result(found), "learned": {}, "label_owners": {}} == {
        **result(same),
        "learned": {},
        "label_owners": {},
    }
    assert {name: result(one) for name, one in found.each.items()} == {
        name: result(one) for name, one in same.each.items()
    }
    assert found.learned["aggregation_server"].endswith(
        "From each label owner, what it found"
    )
    mean = (
        sum(
            one.scores["lab"] * rows
            for one, rows in zip(found.each.values(), (72, 64), strict=True)
        )
        / 136
    )
    assert found.scores["lab"] == pytest.approx(mean, rel=0.02)


EVIL = "x\x1b[8A\x1b]0;owned\x1b\\[/nothing]"
FOUND: dict[str, Any] = {
    "method": "vf_ps",
    "chosen": ["lab"],
    "ranking": ["lab", "scan"],
    "scores": {"lab": 0.2, "scan": 0.1},
    "groups": [],
    "cost": {},
    "learned": {"lab": "nothing"},
}


CHANGES: list[dict[str, Any]] = [
    {"scores": {}},
    {"scores": {"lab": "a", "scan": 0.1}},
    {"scores": {"lab": 10**400, "scan": 0.1}},
    {"scores": {"lab": 0.2, "scan": 0.1, EVIL: 0.3}},
    {"ranking": [EVIL]},
    {"chosen": [EVIL]},
    {"method": EVIL},
    {"learned": {EVIL: ""}},
    {"label_owners": [1]},
    {"cost": {"seconds": "x"}},
    {"errors": {"lab": 0.1}},
    {"groups": [{"participants": ["lab"], "information": 1.0}]},
]


def test_a_label_owner_that_lies_about_what_it_found_is_named(tmp_path: Path) -> None:
    small_multi_sites.folders(tmp_path, small_multi_sites.private())
    own = read_own(tmp_path / "aggregation_server" / OWN)
    first = _chosen("north", Chosen(json.dumps(FOUND), 3), own, "vf_ps", None)
    assert first.scores == FOUND["scores"]
    wrong = [
        *(json.dumps(FOUND | change) for change in CHANGES),
        "[",
        "[1]",
        "[" * 9999,
    ]
    for found, rows in (*((one, 3) for one in wrong), (json.dumps(FOUND), 0)):
        with pytest.raises(PartyError, match=r"'south' .*a selection that is none"):
            _chosen("south", Chosen(found, rows), own, "vf_ps", first)
    said = _chosen(
        "south",
        Chosen(json.dumps(FOUND | {"learned": {"lab": EVIL}}), 3),
        own,
        "vf_ps",
        first,
    )
    assert "\x1b" not in said.learned["lab"]


def test_a_label_owner_that_does_not_say_so_tells_nobody_what_it_found(
    tmp_path: Path,
) -> None:
    small_multi_sites.folders(
        tmp_path, small_multi_sites.private(selection={**SETTINGS, "servers": True})
    )
    with pytest.raises(
        PartyError,
        match=(
            r"'north' failed .*its owner tells nobody: its party.toml has no"
            r" \[selections\]"
        ),
    ):
        select_at(sites(tmp_path)["aggregation_server"], "choice", 1, "vf_ps", {})
    with pytest.raises(BoundaryError, match="this is for aggregation_server to ask"):
        ask(sites(tmp_path)["north"], "lab", SelectFor("c", 1, "vf_ps", {}))


def test_a_refused_selection_leaves_the_one_before_as_it_was(tmp_path: Path) -> None:
    """It was ended, and could then be ended no more: the site took part in no selection
    until it was started again."""
    made(tmp_path)
    every = sites(tmp_path)
    for site in every.values():
        site.read()
    begin(every, "lab")
    before = list(every["lab"].roles)
    for lie in ({"queries": 257}, {"parties": 9}, {"run": "draining"}):
        with pytest.raises(PartyError):
            begin(every, "lab", **lie)
    begin(every, "lab")
    with pytest.raises(
        PartyError, match="takes part in 2 selections of 'clinic' a day, had 2 today"
    ):
        begin(every, "lab")
    assert ask(every["lab"], "clinic", participant.Join(5)).rows > 0
    assert ask(every["lab"], "clinic", Leave()).sent > 0
    assert len(every["lab"].roles) == len(before) - 1


@pytest.mark.parametrize(
    "run", ["draining", "Store", "refused.jsonl", "site.log", "failed.json"]
)
def test_no_driver_puts_a_run_in_the_place_of_a_sites_own_file(
    tmp_path: Path, run: str
) -> None:
    """A selection called `draining` would end all runs of a site, and one called
    `store` all with a budget."""
    made(tmp_path)
    every = sites(tmp_path)
    for site in every.values():
        site.read()
    for request in (
        lambda: begin(every, "lab", run=run),
        lambda: ask(every["lab"], "clinic", Prepare(run, 1, False)),
        lambda: count_at(every["clinic"], run),
        lambda: select_at(every["clinic"], run, 1, "vf_ps", {}),
    ):
        with pytest.raises(
            (PartyError, ConfigError), match="none of a file that lies beside runs"
        ):
            request()
    assert not (tmp_path / "lab/runs" / run).exists()
    assert not (tmp_path / "clinic/runs" / run).exists()


def test_a_small_frame_makes_no_server_and_no_candidate_find_room(
    tmp_path: Path,
) -> None:
    """Counts that no candidate has, rows that nobody holds, or one query many times:
    gigabytes for some bytes."""
    made(tmp_path)
    every = sites(tmp_path)
    for site in every.values():
        site.read()
    for name in (SERVER, KEYS, "lab"):
        begin(every, name)
    outbox = Organisation.at(SERVER, Batches({}, batch_size=1, epochs=1, seed=0)).outbox

    def sent(*numbers: int) -> Released:
        return outbox.release(torch.tensor(numbers, dtype=torch.int32), "candidates")

    public = ask(every[KEYS], "clinic", AskPublicKey()).public
    key = read_public_key(public, scheme="plain", use="sums")
    part = outbox.encrypt(
        torch.arange(3.0, dtype=torch.float64), "distances", key=key
    ).encrypted
    total = outbox.pass_on(next(iter(key.add_groups([part, part], [[0, 1]]))), "total")
    assert ask(
        every[KEYS], SERVER, sorting.Sort(0, total, sent(3), 2)
    ).order.tensor.tolist() == [[0, 1]]
    for counts in ((1 << 29,), (1 << 29, 3 - (1 << 29)), (3, *[0] * (1 << 23))):
        with pytest.raises(
            PartyError,
            match="the counts are not of the candidates that came, or differ too much",
        ):
            ask(every[KEYS], SERVER, sorting.Sort(0, total, sent(*counts), 2))
    ask(every[SERVER], "clinic", aggregation.Begin(1 << 40, {KEYS: public}))
    with pytest.raises(PartyError, match="no room for 1 queries of 1099511627776 rows"):
        ask(every[SERVER], "clinic", aggregation.Scan(("lab", "bank"), sent(0), 5))
    ask(every["lab"], "clinic", participant.Join(5))
    with pytest.raises(PartyError, match="each query is asked for once"):
        ask(every["lab"], SERVER, participant.RankRows(sent(0, 0), 0, 3))
