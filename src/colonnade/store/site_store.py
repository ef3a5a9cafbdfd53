"""All that an organisation must remember beyond a process (see the package's page)."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import StoreError
from colonnade.store.allowances import Taken, time_text
from colonnade.store.chain import Entry
from colonnade.store.counts import Item, Way
from colonnade.store.database import Database, open_copy
from colonnade.store.disk import force_folder
from colonnade.store.identifiers import check_name
from colonnade.store.keeper import Keeper
from colonnade.store.labels import LabelColumn, rule_text
from colonnade.store.layout import DATABASE, Layout, first_entry
from colonnade.store.locking import LockFile
from colonnade.store.log import Draft, Log
from colonnade.store.marks import Mark
from colonnade.store.packing import pack
from colonnade.store.people import Identity
from colonnade.store.places import IntArray, Places, pack_places
from colonnade.store.state import (
    ALLOWANCE,
    EXHAUSTED,
    KEEPER,
    LABELS,
    LEDGER,
    ORDER,
    PEOPLE,
    REFUSAL,
    RELEASE,
    RUN,
    USED,
    State,
)
from colonnade.store.witness import Signer, Witness

log = logging.getLogger("colonnade.store")

FEW_PEOPLE = 3
"""Unknown people in one request that are let through without the owner's word."""

SHARE_OF_PEOPLE = 0.2
"""Of those asked for, and of those known, may be unknown before the owner is asked."""

FEW_UNCONFIRMED = 10
"""Unknown people that are let through in all, in a small store."""

ENTRIES_BEFORE_CHECKPOINT = 20_000
BYTES_BEFORE_CHECKPOINT = 32 << 20
"""After so much, `settle` writes a checkpoint."""

LONGEST_TEXT = 500
"""Characters that are kept of a text that came from elsewhere."""

Affordable = Callable[[Sequence[Way]], object]
"""Looks at the different ways in which people will have been released, and raises where
one costs too much."""


class Word(StrEnum):
    """What the owner says about people whom the store does not know.

    FIRST_CONTACT: nobody was ever counted here; this is the column that names people.
    RENAMED: the column has another name now, and the same ids.
    SAME_PEOPLE: these are people who are here already, under other ids. It is not known
        who is who, so everybody has spent as much as anybody.
    NEW_PEOPLE: nobody of them was ever counted here. They begin with nothing spent.
    """

    FIRST_CONTACT = "first_contact"
    RENAMED = "renamed"
    SAME_PEOPLE = "same_people"
    NEW_PEOPLE = "new_people"


@dataclass(frozen=True)
class Release:
    """A tensor that is about to leave.

    Args:
        name: Of the release, such as "embedding".
        event: The kind of what its rule did, such as "gaussian".
        parameters: Of the event, such as its noise multiplier.
        people: The number of the person in each of the tensor's rows; whoever is in it
            twice is here twice. None: it may depend on anybody.
        is_training: Whether it is a training batch.
        is_free: Whether it costs nobody anything, such as a public key.
        line: What the ledger says of it: to whom, which message, how many bytes.
    """

    name: str
    event: str
    parameters: Mapping[str, float]
    people: IntArray | None
    is_training: bool = False
    is_free: bool = False
    line: Mapping[str, Any] = field(default_factory=dict)

    @property
    def item(self) -> Item:
        """What is released, and how."""
        return Item.of(self.name, self.event, self.parameters)


class Receipt(NamedTuple):
    """That a release is written down.

    Args:
        serial: Of its entry.
        witness: Shows others how far the store has come with it.
    """

    serial: int
    witness: Witness


class Grant(NamedTuple):
    """What came of asking for something that is allowed so often a day.

    Args:
        counted: How much the asker has taken today, with this if it was given.
        is_given: Whether it was given. Otherwise nothing was counted.
    """

    counted: int
    is_given: bool


class DrawnLabels(NamedTuple):
    """The labels that were drawn for people.

    Args:
        classes: For each person asked for, the class that was drawn, once and for all.
        is_corrected: Whether the person's own label has changed since it was drawn.
    """

    classes: IntArray
    is_corrected: NDArray[np.bool_]


class SiteStore:
    """One organisation's store: `create` makes it, `open` opens it, and `in_memory` is
    for a rehearsal.

    Every change is an entry of one log, which is on the disk, and marked in a second
    place, before the method that makes it returns. Threads and processes may share a
    store.
    """

    def __init__(self, log: Log, layout: Layout | None) -> None:
        self._log = log
        self._layout = layout
        self._is_warned = False

    @classmethod
    def create(
        cls, folder: Path, owner: str, *, anchor: Path | None = None
    ) -> SiteStore:
        """Make a new store, and open it.

        Args:
            folder: Where the store is to lie. There must be nothing in it.
            owner: The organisation's name.
            anchor: Where its key and its newest witness are to lie; by default beside
                the folder, and best on another disk.
        """
        Layout.at(folder, anchor).create(owner)
        return cls.open(folder, owner, anchor=anchor)

    @classmethod
    def open(
        cls,
        folder: Path,
        owner: str,
        *,
        anchor: Path | None = None,
        is_forced: bool = True,
    ) -> SiteStore:
        """Open a store that was made before. Nothing is ever made here.

        Args:
            folder: Where the store lies.
            owner: The organisation's name, which must be the one that made it.
            anchor: Where its key and its newest witness lie.
            is_forced: Whether what is written is forced onto the disk at once. Without
                it, a process that is killed loses nothing, but a power cut may: for a
                rehearsal on one machine, where nothing leaves it.
        """
        layout = Layout.at(folder, anchor)
        layout.check_there(owner)
        lock = LockFile(layout.lock, owner)
        try:
            lock.check_excludes()
            signer = Signer.read(layout.key)
            mark = Mark(layout.mark, owner)
            with lock.held():
                database = Database(layout.database, owner, is_forced=is_forced)
        except BaseException:
            lock.close()
            raise
        opened = Log(database, lock, mark, signer, owner, is_forced=is_forced)
        try:
            opened.load()
            _check_belongs(opened.state, owner, signer, layout)
            opened.check_standing()
        except BaseException:
            opened.close()
            raise
        return cls(opened, layout)

    @classmethod
    def in_memory(cls, owner: str) -> SiteStore:
        """A store that forgets everything with the process, for a rehearsal.

        It counts as the others do, and refuses what its own counts show to be too
        much. It says once that it will forget.
        """
        signer = Signer.new()
        memory = Log(Database(None, owner), None, None, signer, owner)
        first = first_entry("0" * 32, owner, signer.public_key)
        with memory.database.transaction():
            memory.database.append(first)
        memory.load()
        return cls(memory, None)

    @classmethod
    def peek(cls, folder: Path, owner: str) -> SiteStore:
        """Look at what a store says, for a report. Nothing can be written.

        A copy is read, so neither its anchor nor a right to write is needed, and the
        store may be in use. That it is an older copy is not noticed.
        """
        with tempfile.TemporaryDirectory() as temporary:
            database = open_copy(folder / DATABASE, Path(temporary), owner)
            entries = list(database.entries())
            database.close()
        memory = Database(None, owner)
        with memory.transaction():
            for entry in entries:
                memory.append(entry)
        looked_at = Log(memory, None, None, Signer.new(), owner)
        looked_at.load()
        looked_at.is_for_reading = True
        return cls(looked_at, Layout.at(folder))

    @property
    def id(self) -> str:
        """The store's id, which its witnesses carry."""
        return self._log.state.store

    @property
    def owner(self) -> str:
        """The organisation's name."""
        return self._log.owner

    @property
    def public_key(self) -> str:
        """The key by which others check this store's witnesses."""
        return self._log.signer.public_key

    @property
    def forgets(self) -> bool:
        """Whether all of it is lost with this process."""
        return self._layout is None

    def __enter__(self) -> SiteStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all files."""
        self._log.close()

    # People

    @property
    def identity(self) -> Identity | None:
        """The column that names people. None before the first contact."""
        identity: Identity | None = self._log.read(lambda state: state.people.identity)
        return identity

    def numbers_of(
        self, ids: Sequence[str], column: str, word: Word | None = None
    ) -> IntArray:
        """The number of each person. People who were never seen get new numbers.

        Args:
            ids: Who they are, by the owner's own column.
            column: That column's name.
            word: What the owner says, where the store must not decide by itself:
                before the first contact, where another column names people than
                before, and where many people are unknown.
        """
        digests = np.empty(0, dtype=np.int64)

        def prepare() -> Draft | None:
            nonlocal digests
            people = self._log.state.people
            identity = self._identity_for(column, word)
            digests = people.digests(ids, identity)
            new = people.unknown_among(digests)
            is_known_column = identity == people.identity
            if is_known_column:
                self._check_newcomers(digests, new, column, word)
            if is_known_column and not len(new):
                return None
            content = {
                "column": identity.column,
                "first_name": identity.first_name,
                "word": None if word is None else word.value,
            }
            return Draft(PEOPLE, content, new.astype("<i8").tobytes())

        self._log.write(prepare)
        numbers: IntArray = self._log.state.people.find(digests)
        return numbers

    # Releases

    def release(
        self, release: Release, affordable: Affordable | None = None
    ) -> Receipt:
        """Count a release. Only after this may its tensor leave.

        Args:
            release: What is to leave.
            affordable: Is shown the different ways in which the people of the release
                will have been released after it, and raises where that is too much.
                Then nothing is counted. Without it everything is counted and nothing
                refused: counting goes on where no limit is set.
        """
        self._warn_that_it_forgets(affordable)

        def prepare() -> Draft:
            places = self._places_of(release.people)
            if affordable is not None:
                affordable(self._log.state.counts.ways_after(release.item, places))
            content = {
                "name": release.name,
                "event": release.item.event,
                "rounds": int(release.is_training),
                "is_free": release.is_free,
                "people": len(places.numbers),
                "at": time_text(datetime.now(UTC)),
                "line": dict(release.line),
            }
            most = 0 if release.is_free else int(places.times.max(initial=0))
            return Draft(RELEASE, content, pack_places(places), charges=most)

        entry = self._written(prepare)
        return Receipt(entry.serial, self._log.witness())

    def check(self, release: Release, affordable: Affordable) -> None:
        """Raise where `release` would, and count nothing."""

        def look(state: State) -> None:
            places = self._places_of(release.people)
            affordable(state.counts.ways_after(release.item, places))

        self._log.read(look)

    def ways(self, people: IntArray | None = None) -> list[Way]:
        """The different ways in which people were released; everybody by default."""
        ways: list[Way] = self._log.read(lambda state: state.counts.ways(people))
        return ways

    def counts(self, people: IntArray | None = None) -> dict[Item, IntArray]:
        """How often each person was released, by item; everybody by default."""

        def look(state: State) -> dict[Item, IntArray]:
            chosen = slice(None) if people is None else people
            return {
                item: state.counts.of(item)[chosen].copy()
                for item in state.counts.items
            }

        counts: dict[Item, IntArray] = self._log.read(look)
        return counts

    def rounds(self) -> dict[Item, int]:
        """How many training batches were released, by item."""
        rounds: dict[Item, int] = self._log.read(
            lambda state: dict(state.counts.rounds)
        )
        return rounds

    def newcomers(self) -> Way:
        """What a person begins with who was never seen: something, after a loss."""
        way: Way = self._log.read(lambda state: state.counts.newcomers())
        return way

    def exhaust(self, why: str) -> None:
        """Release nobody any more, whatever the budget: the owner's own decision."""
        content = {"why": why[:LONGEST_TEXT], "at": time_text(datetime.now(UTC))}
        self._log.write(lambda: Draft(EXHAUSTED, content, charges=1))

    # The ledger

    def write_lines(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write down what crossed without being counted, such as what arrived."""
        if not lines:
            return
        content = {"lines": [dict(line) for line in lines]}
        self._log.write(lambda: Draft(LEDGER, content))

    def lines(self) -> Iterator[dict[str, Any]]:
        """All lines of the ledger, the oldest first: those of releases, and others."""
        for entry in self._log.database.entries():
            if entry.kind in (RELEASE, LEDGER):
                entry.check_text()
            if entry.kind == RELEASE:
                yield {**entry.content["line"], "serial": entry.serial}
            elif entry.kind == LEDGER:
                yield from entry.content["lines"]

    # What rows were used for

    def use(self, people: IntArray, side: str) -> None:
        """Write down that people's rows are training, validation or test rows."""

        def prepare() -> Draft | None:
            lacking = self._log.state.uses.lacking(side, np.unique(people))
            if not len(lacking):
                return None
            return Draft(USED, {"side": side}, pack_places(Places.of(lacking)))

        self._log.write(prepare)

    def were_used(self, people: IntArray, side: str) -> NDArray[np.bool_]:
        """Whether each person's row was ever used on a side."""
        used: NDArray[np.bool_] = self._log.read(
            lambda state: state.uses.were_used_on(side, people)
        )
        return used

    # Drawn labels

    def draw_labels(
        self,
        column: LabelColumn,
        people: IntArray,
        actual: IntArray,
        rule: Mapping[str, str | float],
        draw: Callable[[IntArray], IntArray],
        *,
        again_after_a_loss: bool = False,
    ) -> DrawnLabels:
        """The labels of people as they were drawn when they were first needed.

        Args:
            column: Which labels: the owner's table, and its column.
            people: Whose.
            actual: Each person's own class now.
            rule: By which labels are drawn. Another rule than before would be a second
                look at the same labels, and is refused.
            draw: Is given places in `people`, and draws a class for each.
            again_after_a_loss: The owner's word that labels may be drawn once more of
                which it is not known whether they were drawn, since the store has lost
                entries, or people have other ids than before.
        """
        text = rule_text(dict(rule))

        def prepare() -> Draft | None:
            labels = self._log.state.labels
            self._check_rule(column, labels.rule_of(column), text)
            new = labels.of(column).places_not_drawn(people)
            if not len(new):
                return None
            if labels.some_may_be_lost and not again_after_a_loss:
                raise self._may_have_been_drawn(column, len(new))
            return _drawn(column, text, people[new], draw(new), actual[new])

        self._log.write(prepare)
        draws = self._log.state.labels.of(column)
        is_corrected = draws.actual[people] != actual
        if is_corrected.any():
            log.warning(
                "%s: %d labels of '%s' in table '%s' were changed since they were drawn"
                " at random; runs go on learning from what was drawn",
                self.owner,
                int(is_corrected.sum()),
                column.column,
                column.table,
            )
        return DrawnLabels(draws.drawn[people], is_corrected)

    # Allowances and orders

    def take(
        self, asker: str, kind: str, more: int, most: int, *, day: date | None = None
    ) -> Grant:
        """Take something off an asker's allowance of today, where enough is left.

        Args:
            asker: Who asks.
            kind: What is allowed, such as "alignments".
            more: How much is asked for.
            most: How much is allowed in a day.
            day: Today, by UTC.
        """
        today = (day or datetime.now(UTC).date()).isoformat()
        counted = 0
        is_given = False

        def prepare() -> Draft | None:
            nonlocal counted, is_given
            allowances = self._log.state.allowances
            if allowances.day > today:
                log.warning(
                    "%s: allowances were counted on %s, which is after today, %s; they"
                    " count as today's. Set the clock.",
                    self.owner,
                    allowances.day,
                    today,
                )
            counted = allowances.taken(today).get(asker, {}).get(kind, 0)
            if allowances.is_used_up and allowances.day >= today:
                counted = max(counted, most)  # entries are lost, and what they said
            if counted + more > most:
                return None
            is_given = True
            counted += more
            content = {"day": today, "asker": asker, "kind": kind, "more": more}
            return Draft(ALLOWANCE, content)

        self._log.write(prepare)
        return Grant(counted, is_given)

    def taken(self, day: date | None = None) -> Taken:
        """What everybody has taken today."""
        today = (day or datetime.now(UTC).date()).isoformat()
        taken: Taken = self._log.read(lambda state: state.allowances.taken(today))
        return {asker: dict(kinds) for asker, kinds in taken.items()}

    def take_order(
        self,
        number: str,
        written: datetime,
        valid_for: timedelta,
        *,
        now: datetime | None = None,
    ) -> None:
        """Take an order, which counts once.

        Args:
            number: By which the order is known: its writer draws it at random.
            written: When the order was written.
            valid_for: How long an order is good.
            now: The time now.
        """
        now = now or datetime.now(UTC)
        text = time_text(written)

        def prepare() -> Draft:
            orders = self._log.state.orders
            if abs(now - written) > valid_for:
                raise StoreError(
                    f"The order was written at {text}, and one is good for {valid_for}."
                    " Set the clocks, or write another order."
                )
            if orders.was_taken(number):
                raise StoreError(
                    f"The order of {text} was brought again, and each counts once."
                    " Write another order."
                )
            if text <= orders.refused_until:
                raise StoreError(
                    f"The order of {text} may have been taken: the store of"
                    f" '{self.owner}' has lost entries. Write another order."
                )
            return Draft(ORDER, {"number": number, "written": text})

        self._log.write(prepare)

    # Runs

    def note_run(self, name: str, about: Mapping[str, Any]) -> None:
        """Write down what is known of a run: its settings' digest, its rows', its end."""
        check_name(name, self.owner)

        def prepare() -> Draft:
            same = self._log.state.runs.same_but_for_case(name)
            if same is not None:
                raise StoreError(
                    f"'{self.owner}' has a run '{same}', and '{name}' would be the same"
                    " folder on some systems. Choose another name."
                )
            return Draft(RUN, {"name": name, "about": dict(about)})

        self._log.write(prepare)

    def run(self, name: str) -> dict[str, Any] | None:
        """What is known of a run. None where there is none of this name."""
        run: dict[str, Any] | None = self._log.read(lambda state: state.runs.get(name))
        return run

    def run_names(self) -> list[str]:
        """The names of all runs, the oldest first."""
        names: list[str] = self._log.read(lambda state: state.runs.names())
        return names

    # Refusals

    def note_refusal(self, caller: str, why: str) -> None:
        """Write down a call that was not answered. The newest are kept."""
        content = {
            "caller": caller[:LONGEST_TEXT],
            "why": why[:LONGEST_TEXT],
            "at": time_text(datetime.now(UTC)),
        }
        self._log.write(lambda: Draft(REFUSAL, content))

    def refusals(self) -> Iterator[dict[str, Any]]:
        """The calls that were not answered, the oldest that is kept first."""
        for entry in self._log.database.entries(kind=REFUSAL):
            if entry.text:
                entry.check_text()
                yield entry.content

    # Witnesses

    def witness(self) -> Witness:
        """A signed statement of how far this store has come, by whatever process, for
        others to keep."""
        witness: Witness = self._log.read(lambda _: self._log.witness())
        return witness

    def hear(
        self, keeper: str, witness: Witness | None, *, is_first_contact: bool = False
    ) -> None:
        """Look at what a keeper has of this store, and refuse to go on where it shows
        that entries are lost.

        A witness that this store's owner did not sign counts for nothing, so that
        nobody else can block the store. None, and such a one, say nothing: where the
        keeper never showed a right one, only the owner's word makes up for it. Where it
        did, nothing does.

        Args:
            keeper: Who kept the witness.
            witness: What the keeper has.
            is_first_contact: The owner's word that this keeper never had a witness.
        """
        state = self._log.state
        if witness is not None and witness.is_signed_by(state.public_keys):
            self._log.read(lambda _: self._log.check(witness))
            self._note_keeper(keeper)
            return
        shown = "no witness" if witness is None else "a witness that it did not sign"
        if keeper in state.keepers:
            raise StoreError(
                f"'{keeper}' keeps {shown} of the store of '{self.owner}', and had a"
                " right one before. It is not known whether this store is an older"
                f" copy. Ask '{keeper}' to put its own back; where it cannot, recover"
                " the store with what other parties kept."
            )
        if not is_first_contact:
            raise StoreError(
                f"'{keeper}' keeps {shown} of the store of '{self.owner}', so it is not"
                " known whether this store is an older copy. If they never met, say so"
                " (first contact). If the key that signed was lost since, recover the"
                " store with this witness (trust_unsigned=True)."
            )

    @property
    def keeper(self) -> Keeper:
        """What this organisation keeps of the stores of others."""
        if self._layout is None:
            raise StoreError(
                f"The store of '{self.owner}' is in memory, and keeps no witnesses of"
                " others: they would be forgotten. Make a store on a disk."
            )
        return Keeper(self._layout.witnesses, self.owner, self._layout.lock)

    # Care of the store

    def force_writes(self) -> None:
        """Force what is written from here on onto the disk at once, where the store was
        opened without that: from here on something leaves the machine."""
        self._log.force_writes()

    def settle(self) -> None:
        """Write a checkpoint where much was written since the last one: called at
        moments that have time for it."""
        is_long = self._log.entries_since_checkpoint > ENTRIES_BEFORE_CHECKPOINT
        is_large = self._log.bytes_since_checkpoint > BYTES_BEFORE_CHECKPOINT
        if is_long or is_large:
            self._log.checkpoint()

    def checkpoint(self) -> None:
        """Write all that is known down as one entry, so that the store opens quickly."""
        self._log.checkpoint()

    def verify(self) -> int:
        """Check every entry since the store was made. Returns how many there are."""
        count: int = self._log.read(lambda _: self._log.verify())
        return count

    def backup(self, path: Path) -> Witness:
        """Write a copy of the database as a new file.

        Putting it back later loses what was written since, so it is put back by
        `recover`, which charges everybody for that.

        Returns:
            How far the copy has come.
        """
        if path.exists():
            raise StoreError(f"{path} is there already. Choose another name.")
        unfinished = path.with_name(f".{path.name}.unfinished")

        def look(_: State) -> Witness:
            unfinished.unlink(missing_ok=True)
            self._log.database.copy_to(unfinished)
            unfinished.replace(path)
            force_folder(path.parent)
            return self._log.witness()

        witness: Witness = self._log.read(look)
        return witness

    def _written(self, prepare: Callable[[], Draft]) -> Entry:
        entry = self._log.write(prepare)
        assert entry is not None
        return entry

    def _places_of(self, people: IntArray | None) -> Places:
        known = len(self._log.state.people)
        if people is None:
            return Places.all_below(known)
        if len(people) and not 0 <= int(people.min()) <= int(people.max()) < known:
            raise StoreError(
                f"A release names people whom the store of '{self.owner}' does not"
                " know. Take their numbers from `numbers_of`."
            )
        return Places.of(people)

    def _identity_for(self, column: str, word: Word | None) -> Identity:
        """The identity that people are looked up by, if the owner's word allows it."""
        known = self._log.state.people.identity
        if known is None:
            if word is not Word.FIRST_CONTACT:
                raise StoreError(
                    f"'{self.owner}' has never counted anybody, and is to know people"
                    f" by column '{column}' for good. Say so (first contact), or name"
                    " another column."
                )
            return Identity(column, column)
        if column == known.column:
            return known
        if word is Word.RENAMED:
            return Identity(column, known.first_name)
        if word in (Word.SAME_PEOPLE, Word.NEW_PEOPLE):
            return Identity(column, column)
        raise StoreError(
            f"'{self.owner}' counts people by column '{known.column}', and was given"
            f" ids of column '{column}': the same people would begin with nothing"
            f" spent. Give the ids of '{known.column}'. If the column was renamed, or"
            " other ids are meant, say which (renamed, same people, new people)."
        )

    def _check_newcomers(
        self, digests: IntArray, new: IntArray, column: str, word: Word | None
    ) -> None:
        """Refuse many unknown people, unless the owner said who they are."""
        people = self._log.state.people
        if word in (Word.SAME_PEOPLE, Word.NEW_PEOPLE) or not len(people):
            return
        asked = len(np.unique(digests))
        is_much_at_once = len(new) > max(FEW_PEOPLE, SHARE_OF_PEOPLE * asked)
        most_in_all = max(FEW_UNCONFIRMED, SHARE_OF_PEOPLE * len(people))
        is_much_in_all = people.unconfirmed + len(new) > most_in_all
        if len(new) and (is_much_at_once or is_much_in_all):
            raise StoreError(
                f"Of {asked} people in column '{column}', '{self.owner}' has never"
                f" counted {len(new)}, though it knows {len(people)}. If their ids are"
                " written in another way than before, write them as they were. Else say"
                " whether they are new people, or the same people under other ids."
            )

    def _check_rule(self, column: LabelColumn, before: str | None, now: str) -> None:
        if before is not None and before != now:
            raise StoreError(
                f"'{self.owner}' drew the labels of '{column.column}' in table"
                f" '{column.table}' by {before}, and now they are to be drawn by {now}."
                " A second draw shows them once more, and costs both epsilons"
                " together. Keep the rule."
            )

    def _may_have_been_drawn(self, column: LabelColumn, count: int) -> StoreError:
        return StoreError(
            f"{count} labels of '{column.column}' in table '{column.table}' may have"
            f" been drawn before: the store of '{self.owner}' has lost entries, or"
            " people have other ids than before. Drawing them again costs their"
            " epsilon once more. Say that this is meant, or train without these rows."
        )

    def _note_keeper(self, keeper: str) -> None:
        def prepare() -> Draft | None:
            if keeper in self._log.state.keepers:
                return None
            return Draft(KEEPER, {"name": keeper, "since": self._log.serial + 1})

        self._log.write(prepare)

    def _warn_that_it_forgets(self, affordable: Affordable | None) -> None:
        if affordable is not None and self.forgets and not self._is_warned:
            self._is_warned = True
            log.warning(
                "%s: its budget is counted in memory only, and forgotten when this"
                " process ends",
                self.owner,
            )


def _drawn(
    column: LabelColumn, rule: str, numbers: IntArray, drawn: IntArray, actual: IntArray
) -> Draft:
    content = {"table": column.table, "column": column.column, "rule": rule}
    arrays = {"numbers": numbers, "drawn": drawn, "actual": actual}
    return Draft(LABELS, content, pack(None, arrays), charges=0)


def _check_belongs(state: State, owner: str, signer: Signer, layout: Layout) -> None:
    """Refuse the store of another organisation, and one with another key."""
    if state.owner != owner:
        raise StoreError(
            f"{layout.folder} has the store of '{state.owner}', and this is '{owner}'."
            " Name the folder of its own store."
        )
    if signer.public_key not in state.public_keys:
        raise StoreError(
            f"{layout.key} is not the key of the store of '{owner}'. Put back the"
            " store and the anchor that belong together; where the key is lost,"
            " `recover` with new_key=True makes another one."
        )
