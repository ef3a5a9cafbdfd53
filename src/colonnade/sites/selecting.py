"""Before anybody trains, a label owner finds out at its site how many rows it shares
with the others, and whose columns are worth having.

    count_at       an alignment that tells nobody which rows are common    runs/RUN/alignment.json
    select_at      a selection, as its leader                              runs/RUN/selection.json

What comes of it stays in that folder of its own: a candidate does not hear whether it
was chosen. `sites.candidate` has what the others answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from colonnade.alignment.intersection import Alignment
from colonnade.core import Ledger, Message, Organisation, Party, Peers, Request, serves
from colonnade.core.files import write_text
from colonnade.errors import BoundaryError, ConfigError, PartyError, printable
from colonnade.rows.sides import sides_to_tell
from colonnade.runs.layout import ALIGNMENT, SELECTION
from colonnade.runs.stores import A_RUN, is_run
from colonnade.selection import choosing
from colonnade.selection.choosing import as_labels, check_parties
from colonnade.selection.leader import Leader
from colonnade.selection.result import Cost, Selection
from colonnade.settings.party_file import SiteConfig
from colonnade.settings.schema import checked
from colonnade.settings.selection import KEYS, SERVER, SelectionSettings
from colonnade.sites.candidate import Leave, TakePart, organisation_of, participant
from colonnade.sites.host import MOST_ROWS, Home, check_run, check_same
from colonnade.sites.label_sets import LARGEST
from colonnade.transport import InProcess, Recording
from colonnade.transport.kept_up import with_retries

LEADERS_OWN = ("k", "queries", "tests", "bins", "least_difference")
"""Settings that are about labels and how finely they are looked at: a leader may choose
them. All others say what crosses, and are in the agreed file."""


class Chosen(Message):
    """What a label owner found (`Selection.to_json`), and over how many rows."""

    found: str
    rows: int


class SelectFor(Request[Chosen]):
    """From the aggregation server to one of several label owners: choose for yourself,
    and tell it."""

    run: str
    keep: int
    method: str
    given: dict[str, int]


class LeadingHost(Party):
    """Stands for one of several label owners where they choose jointly; who drives asks
    it."""

    def __init__(self, organisation: Organisation, site: Home) -> None:
        super().__init__(organisation)
        self.site = site
        self.serves_for = frozenset({site.own.driver} - {site.own.name})

    @serves
    def select_for(self, request: SelectFor) -> Chosen:
        own = self.site.own
        self.expect(
            own.selections is not None,
            "its owner tells nobody: its party.toml has no [selections]",
        )
        self.expect(is_run(request.run), f"a {A_RUN}")
        selection, rows = select(
            self.site, request.run, request.keep, request.method, request.given
        )
        return Chosen(json.dumps(selection.to_json()), rows)


@dataclass
class Between:
    """A leader, and whom it met at other sites."""

    leader: Leader
    others: Peers
    mine: Party | None  # its own columns, where it has some
    recording: Recording | None = None

    @property
    def ledgers(self) -> dict[str, Ledger]:
        return {self.leader.name: self.leader.ledger}

    def cost(self, seconds: float) -> Cost:
        left = self.others.ask(Leave()).values()
        counted = choosing.counted_by(
            self.leader, *([] if self.mine is None else [self.mine])
        )
        for done in left:
            counted.update(done.operations)
        sent = self.leader.ledger.total("out") + sum(done.sent for done in left)
        return Cost.of(seconds, sent, counted, len(self.leader.queries))


def select(
    site: Home, run: str, keep: int, method: str, given: Mapping[str, Any]
) -> tuple[Selection, int]:
    """Choose `keep` of those who hold columns, as a label owner, and write it into this
    organisation's own folder; give it and over how many rows it was. `given` are
    settings of the leader's own."""
    own = site.own
    check_run(run)
    choosing.check_method(method)
    asked = settings_of(own, given)
    site.meet()
    site.compare()
    holdings = site.labels_alone()
    held = holdings.label_owners[own.name]
    every = site.shared_with(own.name, holdings)
    names = [
        name
        for name in own.names
        if name in own.feature_owners or name in holdings.columns
    ]
    choosing.check_keep(keep, names)
    wanted = asked.for_task(holdings.encoder.task, own.name)
    labels = as_labels(own.name, held.labels, held.splits["train"].numpy(), wanted)
    settled = wanted.settled(numbers=labels.dtype.kind == "f")
    rows = dict.fromkeys(names, len(labels))
    decryptor = asked.reads
    check_parties(rows, len(labels), leader=own.name, decryptor=decryptor)
    sides = sides_to_tell(every, held) if held.is_told else ""
    queries = min(settled.queries, len(labels))
    request = TakePart(
        run,
        own.agreed,
        len(names),
        queries,
        sides,
        site.digest(run, every),
        holdings.outputs,
    )
    engine = own.settings.engine
    organisation = organisation_of(own)
    mine = None
    if own.name in names:
        mine = participant(organisation, own, holdings, own.name, request)
        choosing.admit(mine, own.name)
        site.roles.append(mine)

    def meet() -> Between:
        servers = [SERVER, *([KEYS] if decryptor == "key_server" else [])]
        there = [name for name in (*names, *servers) if name != own.name]
        others = Peers(
            own.name, there, with_retries(site.carrier(), engine), organisation.ledger
        )
        for name, taking in others.ask(request).items():
            if name in names:
                check_same(own.name, len(every), name, taking.rows, taking.same)
        leader = Leader(organisation, labels, settled)
        reads = (
            []
            if decryptor == "leader"
            else choosing.readers(decryptor, names, own.name)
        )
        here = None if mine is None else InProcess({own.name: mine})
        reached = list(dict.fromkeys([*names, *reads, SERVER]))
        leader.meet(
            Peers(
                own.name,
                reached,
                with_retries(site.carrier(here), engine),
                organisation.ledger,
            ),
            names,
            reads,
        )
        return Between(leader, others, mine)

    try:
        selection = choosing.choose(
            names, keep, method, settled, leader=own.name, seed=engine.seed, meet=meet
        )
    finally:
        if mine is not None:
            site.roles.remove(mine)
        site.keep_crossed(own.runs / run, organisation.ledger)
    if selection.groups and settled.estimator != "kraskov":
        selection = replace(selection, entropy=choosing.entropy(labels))
    return keep_selection(own.runs / run, selection), len(labels)


def select_at(
    site: Home, run: str, keep: int, method: str, given: Mapping[str, Any]
) -> Selection:
    """Select as who drives: for the label owner that this is, or for several jointly,
    one after the other."""
    own = site.own
    if own.name in own.label_owners:
        return select(site, run, keep, method, given)[0]
    if not own.drives:
        raise BoundaryError(
            f"'{own.name}' does not select; in the federation it agreed to, label"
            " owners do."
        )
    check_run(run)
    settings = settings_of(own, given)
    told = {key: value for key, value in given.items() if key != "least_difference"}
    label_owners = site.peers(own.label_owners)
    answers = {
        name: label_owners.ask_one(name, SelectFor(run, keep, method, told))
        for name in label_owners
    }
    selections: dict[str, Selection] = {}
    for name, answer in answers.items():
        selections[name] = _chosen(
            name, answer, own, method, next(iter(selections.values()), None)
        )
    joint = choosing.jointly(
        selections, {name: answer.rows for name, answer in answers.items()}, keep
    )
    joint = replace(joint, least_difference=settings.least_difference)
    learned = f"{joint.learned.get(own.name, '')}. From each label owner, what it found".removeprefix(
        ". "
    )
    return keep_selection(
        own.runs / run, replace(joint, learned={**joint.learned, own.name: learned})
    )


def _chosen(
    name: str, answer: Chosen, own: SiteConfig, method: str, first: Selection | None
) -> Selection:
    """Read what a label owner found: of those who hold columns here, in numbers, by the
    groups that others tested."""
    try:
        selection = Selection.from_json(json.loads(answer.found))
        numbers = [
            number
            for by in (selection.scores, selection.groups, selection.errors)
            for number in by.values()
        ]
        numbers += [selection.entropy or 0.0, *asdict(selection.cost).values()]
        for found in selection.comparisons:
            numbers += [found.difference, found.error]
        parties = set(own.feature_owners)
        every = {*own.names, *own.label_owners, SERVER, KEYS}
        mentioned = {
            *selection.chosen,
            *(found.one for found in selection.comparisons),
            *(found.other for found in selection.comparisons),
            *(party for group in selection.groups for party in group),
        }
        named = set(selection.scores) == set(selection.ranking) == parties and set(
            selection.errors
        ) in (set(), parties)
        known = (
            mentioned <= parties
            and set(selection.learned) <= every
            and not selection.each
        )
        same = first is None or selection.groups.keys() == first.groups.keys()
        fits = (
            named
            and known
            and same
            and selection.method == method
            and 0 < answer.rows <= MOST_ROWS
        )
        if not fits or not all(abs(float(number)) <= LARGEST for number in numbers):
            raise ValueError
        return replace(
            selection,
            learned={who: printable(what) for who, what in selection.learned.items()},
        )
    except (
        ConfigError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ):
        raise PartyError(
            name, SelectFor.kind, None, "it told of a selection that is none"
        ) from None


def count_at(site: Home, run: str) -> list[Alignment]:
    """Count, as a label owner, how many rows are common with all who hold columns, or
    where rows may differ, with each. Nobody learns which they are; each site charges it
    as an alignment, or refuses."""
    own = site.own
    check_run(run)
    if own.name not in own.label_owners:
        raise BoundaryError(
            f"'{own.name}' does not ask others for their ids;"
            f" {', '.join(own.label_owners)} may."
        )
    if not own.private:
        raise ConfigError(
            'Rows are counted where ids are compared privately. Set align = "private"'
            " under [data] in the agreed file."
        )
    site.meet()
    alignments = site.compare("count")
    site.keep_crossed(own.runs / run)
    (own.runs / run).mkdir(parents=True, exist_ok=True)
    written = [
        asdict(alignment) | {"learned": alignment.learned()} for alignment in alignments
    ]
    write_text(own.runs / run / ALIGNMENT, json.dumps(written, indent=2) + "\n")
    return alignments


def settings_of(own: SiteConfig, given: Mapping[str, Any]) -> SelectionSettings:
    """Lay the leader's own settings over the agreed ones."""
    agreed = own.settings.selection
    if own.settings.rows_differ:
        raise ConfigError(
            "A selection between sites compares rows that all hold, and the agreed file"
            ' has [data] rows = "label_owner". Select with a file without it.'
        )
    if not agreed.servers:
        raise ConfigError(
            "A selection between sites takes two servers, which the agreed file does"
            " not have. Set [selection] servers = true there, and have `colonnade"
            " provision` make kits for them."
        )
    for key in given:
        if key not in LEADERS_OWN:
            raise ConfigError(
                f"[selection] {key} says what crosses, so it is in the file that all"
                f" agreed on. Set it there; {', '.join(LEADERS_OWN)} are the label"
                " owner's own."
            )
    return checked(SelectionSettings, {**agreed.to_mapping(), **given}, whose="select")


def keep_selection(folder: Path, selection: Selection) -> Selection:
    """Write a selection into this organisation's own folder; nobody is told."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / SELECTION, json.dumps(selection.to_json(), indent=2) + "\n")
    return selection
