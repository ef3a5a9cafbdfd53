"""A world in which one organisation's store meets every accident, in random order.

The world counts for itself what really left, person by person: in a list that no
accident touches. Peers keep the newest witness that came with a release.

After each accident the owner does what the store's own error says. Two promises must
then hold: the store says of nobody less than what left, and nobody was released more
often than the limit allows.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import numpy as np
from tests.store.small import OWNER, OverLimitError, at_most

from colonnade.errors import StoreError
from colonnade.store import Item, Release, SiteStore, Witness, Word, recover
from colonnade.store.places import IntArray

LIMIT = 12
PEOPLE = 6
DEAREST = Item.of("embedding", "gaussian", {"noise_multiplier": 1.0})
CURES = re.compile(
    r"[Pp]ut |recover|create|[Oo]pen the store again|[Ss]ay |trusted|Give the ids"
    r"|Raise the|Wait for|Set the clock"
)
"""Words of which an error has some, so that its reader knows what to do."""


class World:
    """One organisation, its files, and what left it.

    Args:
        folder: Where the files lie.
        template: A store that was just made, with its anchor: making one takes long.
        seed: Of the accidents.
    """

    def __init__(self, folder: Path, template: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.folder = folder / "store"
        self.anchor = folder / "store.anchor"
        self.saved = folder / "saved"
        self.left = [0] * PEOPLE
        self.kept: Witness | None = None
        self.column = "ssn"
        self.played: list[str] = []
        shutil.copytree(template / "store", self.folder)
        shutil.copytree(template / "store.anchor", self.anchor)

    def play(self, length: int) -> None:
        """Let accidents happen among releases, and hold the promises after each."""
        for _ in range(length):
            action = self.chance.choice(ACTIONS)
            self.played.append(action.__name__)
            try:
                action(self)
            except StoreError as error:
                # damage that opening need not see, such as in old entries
                self.must_name_a_cure(error)
                self.recover(trust_unsigned=True)
            self.check()

    def check(self) -> None:
        """Hold the two promises."""
        with self.opened() as store:
            numbers = self.numbers(store)
            said = [0] * PEOPLE
            for counts in store.counts(_array(numbers)).values():
                said = [a + int(b) for a, b in zip(said, counts, strict=True)]
        for person in range(PEOPLE):
            assert said[person] >= self.left[person], self.played
            assert self.left[person] <= LIMIT, self.played

    def opened(self) -> SiteStore:
        """The store, after the owner has done what its errors say."""
        try:
            return self.tried()
        except StoreError as error:
            self.must_name_a_cure(error)
        try:
            self.recover(trust_unsigned=False)
        except StoreError as error:
            self.must_name_a_cure(error)
            self.recover(trust_unsigned=True)
            # the peer knew a key that is lost, and meets the store anew
            with SiteStore.open(self.folder, OWNER, is_forced=False) as store:
                self.kept = store.witness()
        return self.tried()

    def recover(self, *, trust_unsigned: bool) -> None:
        recover(
            self.folder,
            OWNER,
            DEAREST,
            witnesses=[] if self.kept is None else [self.kept],
            missing=None if self.kept is not None else 0,
            new_key=True,
            trust_unsigned=trust_unsigned,
        )

    def tried(self) -> SiteStore:
        store = SiteStore.open(self.folder, OWNER, is_forced=False)
        try:
            if self.kept is not None:
                store.hear("bank", self.kept)
        except BaseException:
            store.close()
            raise
        return store

    def must_name_a_cure(self, error: StoreError) -> None:
        assert CURES.search(str(error)), (str(error), self.played)

    def id_of(self, person: int) -> str:
        """A person's id, as one of several exports of the table writes it."""
        number = 100 + person
        if self.column == "email":
            return f"{number}@example.org"
        return self.chance.choice(
            [f"{number}", f"{number}.0", f"0{number}", f" {number}"]
        )

    def numbers(self, store: SiteStore) -> list[int]:
        ids = [self.id_of(person) for person in range(PEOPLE)]
        word = None
        if store.identity is None:
            word = Word.FIRST_CONTACT
        elif store.identity.column != self.column:
            # an older copy has come back, from before people had these ids
            word = Word.SAME_PEOPLE
        return [int(n) for n in store.numbers_of(ids, self.column, word)]

    def release_once(self, store: SiteStore, numbers: list[int]) -> list[int] | None:
        """Release some people, some of them twice. None where it was refused."""
        people = self.chance.choices(range(PEOPLE), k=self.chance.randint(1, 4))
        release = Release(
            "embedding",
            DEAREST.kind,
            DEAREST.parameters,
            _array([numbers[person] for person in people]),
        )
        try:
            receipt = store.release(release, at_most(LIMIT))
        except OverLimitError:
            return None
        self.kept = receipt.witness
        return people

    # What happens

    def releases(self) -> None:
        with self.opened() as store:
            numbers = self.numbers(store)
            for _ in range(self.chance.randint(1, 3)):
                for person in self.release_once(store, numbers) or []:
                    self.left[person] += 1

    def killed_while_releasing(self) -> None:
        self.opened().close()
        self.take_in([self.started_process()], dies_after=self.chance.random() * 0.02)

    def two_processes(self) -> None:
        self.opened().close()
        self.take_in([self.started_process(), self.started_process()], dies_after=None)

    def started_process(self) -> tuple[int, int]:
        """A process that releases, and says of each release that it left."""
        reading, writing = os.pipe()
        seed = self.chance.random()
        child = os.fork()
        if child:
            os.close(writing)
            return child, reading
        try:
            self.chance.seed(seed)
            with self.tried() as store:
                numbers = self.numbers(store)
                for _ in range(5):
                    people = self.release_once(store, numbers)
                    if people is not None and self.kept is not None:
                        said = f"{people}\t{self.kept.to_text()}\n"
                        os.write(writing, said.encode())
        finally:
            os._exit(0)

    def take_in(
        self, processes: list[tuple[int, int]], dies_after: float | None
    ) -> None:
        """Count what processes said that left, all of it or until they are killed."""
        if dies_after is not None:
            time.sleep(dies_after)
            for child, _ in processes:
                os.kill(child, signal.SIGKILL)
        for child, reading in processes:
            with os.fdopen(reading) as pipe:
                lines = pipe.readlines()
            os.waitpid(child, 0)
            for line in lines:
                people, witness = line.split("\t")
                for person in re.findall(r"\d+", people):
                    self.left[int(person)] += 1
                self.keep(Witness.from_text(witness.strip()))

    def keep(self, witness: Witness) -> None:
        """Keep a witness at a peer, which never goes back."""
        if self.kept is None or witness.serial > self.kept.serial:
            self.kept = witness

    def checkpoint(self) -> None:
        with self.opened() as store:
            store.checkpoint()

    def saves(self) -> None:
        """Copy the store as a backup tool does, also while it is open."""
        with self.opened() as store:
            if self.chance.random() < 0.5:
                self.numbers(store)
            shutil.rmtree(self.saved, ignore_errors=True)
            shutil.copytree(self.folder, self.saved / "store")
            shutil.copytree(self.anchor, self.saved / "anchor")

    def older_copy_put_back(self) -> None:
        if self.saved.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            shutil.copytree(self.saved / "store", self.folder)
            if self.chance.random() < 0.3:
                shutil.rmtree(self.anchor, ignore_errors=True)
                shutil.copytree(self.saved / "anchor", self.anchor)

    def deleted(self) -> None:
        self.leave_open_files_behind()
        chosen = self.chance.choice([self.folder, self.anchor, *self.files()])
        shutil.rmtree(chosen) if chosen.is_dir() else chosen.unlink()

    def cut(self) -> None:
        self.leave_open_files_behind()
        chosen = self.chance.choice(self.files())
        size = chosen.stat().st_size
        with chosen.open("r+b") as file:
            file.truncate(self.chance.randint(0, size))

    def flipped(self) -> None:
        self.leave_open_files_behind()
        chosen = self.chance.choice(
            [file for file in self.files() if file.stat().st_size]
        )
        data = bytearray(chosen.read_bytes())
        data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
        chosen.write_bytes(data)

    def leave_open_files_behind(self) -> None:
        """Be killed with the store open, so that its -wal file is there."""
        self.opened().close()
        child = os.fork()
        if not child:
            try:
                store = self.tried()
                store.note_refusal("mallory", "no")
                os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(0)
        os.waitpid(child, 0)

    def files(self) -> list[Path]:
        every = [*self.folder.glob("state.db*"), self.folder / "lock"]
        every += [self.anchor / "mark", self.anchor / "key.pem"]
        return sorted(file for file in every if file.is_file())

    def other_column(self) -> None:
        """The table's people are given by another column."""
        with self.opened() as store:
            self.numbers(store)
            other = "email" if self.column == "ssn" else "ssn"
            before = self.column
            self.column = other
            ids = [self.id_of(person) for person in range(PEOPLE)]
            try:
                store.numbers_of(ids, other)
            except StoreError as error:
                self.must_name_a_cure(error)
            else:
                raise AssertionError(self.played)
            if self.chance.random() < 0.5:
                store.numbers_of(ids, other, Word.SAME_PEOPLE)
            else:
                self.column = before

    def clock_back_and_forth(self) -> None:
        today = date(2026, 3, 1) + timedelta(days=self.chance.choice([0, 1, 4000]))
        with self.opened() as store:
            store.take("bank", "alignments", 1, most=2, day=today)


ACTIONS: list[Callable[[World], None]] = [
    World.releases,
    World.releases,
    World.killed_while_releasing,
    World.two_processes,
    World.checkpoint,
    World.saves,
    World.saves,
    World.older_copy_put_back,
    World.deleted,
    World.cut,
    World.flipped,
    World.other_column,
    World.clock_back_and_forth,
]


def _array(numbers: list[int]) -> IntArray:
    return np.array(numbers, dtype=np.int64)
