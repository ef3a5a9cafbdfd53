"""The agreed row order: every party holds an equal `Batches`, so a batch travels by
name, never as row numbers.

    train/3/17        the 17th batch of epoch 3: its share of the rows, shuffled by the agreed seed, anew every epoch
                      unless `reshuffle` is off; or, as `sampling` says, drawn anew from all rows
    test[0:512]       rows 0 to 511 of the test rows, in order
    predict[0:512]    rows 0 to 511 of those that were asked for (`Batches.ask`): no part of what was agreed
    test[2/8]         where not everybody holds all rows: the third of eight parts by id (`by_id`)

A party looks the name up in its own copy. Whoever knows the seed knows the batches;
they are no secret. Where several label owners have rows of their own, a name says
whose: clinic:train/3/17 (see `Agreed`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Generator, Tensor

from colonnade.core import by_id
from colonnade.core.files import mapped_from, mapped_zeros
from colonnade.errors import ConfigError, WireError

COUNT = r"(0|[1-9][0-9]{0,11})"  # one spelling per number, so one name per batch
CHUNK = re.compile(rf"([\w-]{{1,64}})\[{COUNT}:{COUNT}\]")
PART = re.compile(rf"([\w-]{{1,64}})\[{COUNT}/{COUNT}\]")
TRAIN = re.compile(rf"train/{COUNT}/{COUNT}")
PREDICT = "predict"
USUAL_ROWS = 4096
"""Rows that are scored at once, where a training batch has fewer."""
SAMPLINGS = ("epoch", "poisson", "without_replacement")
"""How training batches are made. "epoch": every row is in one batch of each epoch.
"poisson": every row is in every batch with the same chance, batch size / rows, whatever
becomes of the others (one without any row is drawn again). "without_replacement": every
batch is that many different rows, drawn from all. An epoch has as many batches as ever.
"""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows under a name that every party can look up."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Batch(Rows):
    """One batch of training rows; `step` counts batches from the start of training."""

    epoch: int
    number: int
    step: int


@dataclass(frozen=True, slots=True)
class Step:
    """What `train` yields after each batch."""

    batch: Batch
    loss: float


def seed_for(seed: int, *words: str) -> int:
    """A seed of its own for each use, so that nobody shares a stream of random numbers."""
    digest = hashlib.sha256("/".join([str(seed), *words]).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def shuffled(rows: Tensor, generator: torch.Generator) -> Tensor:
    """Row numbers in random order."""
    drawn = torch.randperm(
        len(rows), generator=generator, out=mapped_zeros((len(rows),), torch.int64)
    )
    return torch.index_select(
        rows, 0, drawn, out=mapped_zeros((len(rows),), torch.int64)
    )


class Batches:
    """Iterating gives the training batches from `done` onwards; `rows` looks any name
    up.

    Where parties hold some of the rows only, `numbers` has one for each row, by which
    it is found (`by_id`), and an epoch has so many `parts`: then equal parties agree on
    batches of which each holds its own rows."""

    steps_are = "batches"
    epoch_is = "epoch"

    def __init__(
        self,
        splits: Mapping[str, Tensor],
        *,
        batch_size: int,
        epochs: int,
        seed: int,
        reshuffle: bool = True,
        sampling: str = "epoch",
        owner: str = "",
        numbers: Tensor | None = None,
        parts: int = 0,
    ) -> None:
        for name, rows in splits.items():
            if not len(rows):
                raise ConfigError(
                    f"The split {name!r} has no rows. Leave it out, or give it some."
                )
        self.splits = {name: rows.to(torch.int64) for name, rows in splits.items()}
        self.numbers = numbers
        self.parts = parts
        if numbers is not None:
            self.splits = {
                name: rows[numbers[rows].argsort(stable=True)]
                for name, rows in self.splits.items()
            }
        self.batch_size = batch_size
        self.epochs = epochs
        self.seed = seed
        self.reshuffle = reshuffle
        self.sampling = sampling
        self._drawn: dict[tuple[int, int, str], Tensor] = {}
        self.owner = owner
        self.prefix = f"{owner}:" if owner else ""
        self.done = 0
        self._asked: dict[str, Tensor] = {}
        self._shuffled: dict[tuple[int, str], Tensor] = {}
        # each batch is looked up often
        self._looked_up: tuple[str, torch.device | str, Tensor] = "", "", torch.empty(0)
        # an epoch, and its numbers in order
        self._ascending: tuple[int, Tensor] = -1, torch.empty(0)
        self._known: tuple[dict[str, Tensor] | None, str] = None, ""

    @property
    def drawn_from(self) -> int:
        """Among how many rows a training batch is drawn."""
        return len(self.splits.get("train", ()))

    @property
    def per_epoch(self) -> int:
        return (
            -(-len(self.splits.get("train", ())) // self.batch_size)
            if self.numbers is None
            else self.parts
        )

    def __len__(self) -> int:
        return self.per_epoch * self.epochs

    def __iter__(self) -> Iterator[Batch]:
        while self.done < len(self):
            batch = self._batch(*divmod(self.done, self.per_epoch))
            self.done += 1
            yield batch

    def of_epoch(self, epoch: int) -> list[Batch]:
        """The training batches of one epoch, in order."""
        return [self._batch(epoch, number) for number in range(self.per_epoch)]

    def epoch_rows(self, epoch: int, device: torch.device | str = "cpu") -> Tensor:
        """The row numbers of one epoch's batches, one after the other."""
        if self.sampling != "epoch":
            return torch.cat(
                [
                    self._sampled(epoch, number, str(device))
                    for number in range(self.per_epoch)
                ]
            )
        return self._order(epoch, str(device))

    def most_often(self) -> int:
        """In how many training batches of all epochs one row is at most."""
        if self.sampling == "epoch" or not self.per_epoch:
            return self.epochs
        return int(self.appearances(self.epochs).max())

    def appearances(self, epochs: int) -> Tensor:
        """Of each training row, in their order, in how many batches of the first so
        many epochs it is."""
        train = self.splits["train"]
        if self.sampling == "epoch":
            return torch.full((len(train),), epochs)
        counts = torch.zeros(int(train.max()) + 1, dtype=torch.int64)
        for epoch in range(epochs):
            counts += torch.bincount(self.epoch_rows(epoch), minlength=len(counts))
        return counts[train]

    def _batch(self, epoch: int, number: int) -> Batch:
        start, stop = self._bounds(epoch, number)
        size = (
            stop - start
            if self.sampling == "epoch"
            else len(self._sampled(epoch, number, "cpu"))
        )
        if not size:
            raise ConfigError(
                f"Batch {number} of epoch {epoch} has no rows, since rows fall into"
                " batches by their ids. Make [train] batch_size larger than"
                f" {self.batch_size}."
            )
        return Batch(
            f"{self.prefix}train/{epoch}/{number}",
            size,
            epoch,
            number,
            epoch * self.per_epoch + number,
        )

    def ask(self, rows: Tensor, purpose: str = PREDICT) -> list[Rows]:
        """Let these rows go by the name of a purpose until others do; gives them in
        pieces. What was agreed stays."""
        self._asked[purpose] = rows
        return self.chunks(purpose)

    @contextmanager
    def asking(self, rows: Tensor, purpose: str = PREDICT) -> Iterator[list[Rows]]:
        """`ask`, as long as this lasts."""
        try:
            yield self.ask(rows, purpose)
        finally:
            del self._asked[purpose]

    def called(self, split: str) -> Tensor:
        """The row numbers of a split, or of the rows that are asked for by this name."""
        rows = self._called(split)
        if rows is None:
            raise ConfigError(
                f"There are no rows called {split!r}; there are"
                f" {', '.join(map(repr, self.splits))}."
            )
        return rows

    def chunks(
        self, split: str, size: int | None = None, *, most: int | None = None
    ) -> list[Rows]:
        """A split's rows in order, in pieces.

        Args:
            split: The name of a split, or of rows that are asked for.
            size: The rows of a piece: by default those of a training batch, and at
                least `USUAL_ROWS`.
            most: The most rows of a piece, whatever `size` says: the label owner knows
                how many rows' answers it can take at once (`roles.LabelOwner`).
        """
        all_rows = self.called(split)
        rows = len(all_rows)
        size = size or max(self.batch_size, USUAL_ROWS)
        if most is not None:
            size = min(size, most)
        if self.numbers is not None and split not in self._asked:
            count = -(-rows // size)
            cut = [
                (number, *by_id.bounds(self.numbers[all_rows], number, count))
                for number in range(count)
            ]
            return [
                Rows(f"{self.prefix}{split}[{number}/{count}]", b - a)
                for number, a, b in cut
                if b > a
            ]
        bounds = [(start, min(start + size, rows)) for start in range(0, rows, size)]
        return [
            Rows(f"{self.prefix}{split}[{start}:{stop}]", stop - start)
            for start, stop in bounds
        ]

    def rows(self, name: str, device: torch.device | str = "cpu") -> Tensor:
        """The row numbers behind a name; a name that no agreed batch has is refused."""
        known, there, looked_up = self._looked_up
        if known == name and there == device:
            return looked_up
        inner = name[len(self.prefix) :] if name.startswith(self.prefix) else ""
        if match := TRAIN.fullmatch(inner):
            epoch = int(match[1])
            number = int(match[2])
            if number < self.per_epoch and self.sampling != "epoch":
                return self._sampled(epoch, number, str(device))
            # 0 where nobody trains
            if number < self.per_epoch and "train" in self.splits:
                start, stop = self._bounds(epoch, number)
                rows = self._order(epoch, str(device))[..., start:stop]
                self._looked_up = name, device, rows
                return rows
        elif (
            self.numbers is not None
            and (match := PART.fullmatch(inner))
            and match[1] in self.splits
        ):
            mine = self.splits[match[1]]
            if int(match[2]) < int(match[3]):
                start, stop = by_id.bounds(
                    self.numbers[mine], int(match[2]), int(match[3])
                )
                return mine[start:stop].to(device)
        elif (match := CHUNK.fullmatch(inner)) and (
            called := self._called(match[1])
        ) is not None:
            start = int(match[2])
            stop = int(match[3])
            if start < stop <= len(called):
                return called[start:stop].to(device)
        raise WireError(f"No agreed batch is called {name[:80]!r}.")

    def _called(self, split: str) -> Tensor | None:
        return self._asked.get(split, self.splits.get(split))

    def _sampled(self, epoch: int, number: int, device: str) -> Tensor:
        """A batch that is drawn from all training rows, by itself."""
        # parties in threads may share this: look once
        rows = self._drawn.get((epoch, number, device))
        if rows is None:
            train = self.splits["train"]
            generator = self._generator(str(epoch), str(number), self.sampling)
            at = train.new_empty(0)
            while not len(at):
                if self.sampling == "poisson":
                    share = self.batch_size / len(train)
                    at = (
                        torch.rand(len(train), generator=generator, dtype=torch.float64)
                        < share
                    ).nonzero()[:, 0]
                else:
                    at = torch.randperm(len(train), generator=generator)[
                        : self.batch_size
                    ]
            rows = train[at].to(device)
            self._drawn = dict([*self._drawn.items()][-7:]) | {
                (epoch, number, device): rows
            }
        return rows

    def _generator(self, *words: str) -> Generator:
        return Generator().manual_seed(seed_for(self.seed, *words))

    def _bounds(self, epoch: int, number: int) -> tuple[int, int]:
        """Where a batch begins and ends in its epoch's order."""
        if self.numbers is None:
            start = number * self.batch_size
            return start, min(start + self.batch_size, len(self.splits["train"]))
        epoch = epoch if self.reshuffle else 0
        known, ascending = self._ascending
        if known != epoch:
            ascending = (
                by_id.of_epoch(self.numbers[self.splits["train"]], epoch).sort().values
            )
            self._ascending = epoch, ascending
        return by_id.bounds(ascending, number, self.parts)

    def _order(self, epoch: int, device: str) -> Tensor:
        epoch = epoch if self.reshuffle else 0
        # parties in threads may share this: look once
        order = self._shuffled.get((epoch, device))
        if order is None:
            train = self.splits["train"]
            if self.numbers is None:
                order = shuffled(train, self._generator(str(epoch))).to(device)
            else:
                order = train[
                    by_id.of_epoch(self.numbers[train], epoch).argsort(stable=True)
                ].to(device)
            # of large ones this epoch's and the last
            kept = 3 if order.nbytes < mapped_from() else 1
            self._shuffled = dict([*self._shuffled.items()][-kept:]) | {
                (epoch, device): order
            }
        return order

    def fingerprint(self) -> str:
        """Equal at two parties exactly when they agree on every batch."""
        # of the rows, which may be many: every party of a process asks
        splits, known = self._known
        if splits is not self.splits:
            digest = hashlib.sha256()
            for name in sorted(self.splits):
                rows = self.splits[name]
                # in whose table they stand is no matter
                rows = rows if self.numbers is None else self.numbers[rows]
                digest.update(f"/{name}[{len(rows)}]".encode())
                digest.update(rows.contiguous().numpy().data)
            splits, known = self._known = self.splits, digest.hexdigest()
        # as it was before there were others
        drawn = "" if self.sampling == "epoch" else f"/{self.sampling}"
        size = self.batch_size if self.numbers is None else f"{self.parts} parts"
        agreed = f"{self.prefix}{size}/{self.seed}/{self.reshuffle}{drawn}{known}"
        return hashlib.sha256(agreed.encode()).hexdigest()[:16]


def pieces(rows: Rows, size: int) -> list[Rows]:
    """The same rows under several names, of at most `size` rows each. Rows that are not
    named by where they begin and end stay together."""
    match = CHUNK.search(rows.name)
    if match is None or rows.size <= size:
        return [rows]
    prefix = rows.name[: match.start()]
    split = match[1]
    start = int(match[2])
    stop = int(match[3])
    bounds = [(at, min(at + size, stop)) for at in range(start, stop, size)]
    return [
        Rows(f"{prefix}{split}[{first}:{last}]", last - first) for first, last in bounds
    ]


@lru_cache(maxsize=64)  # all parties of a process are asked for the same batch
def purpose(batch: str | None) -> str | None:
    """What a batch is for, from its name: 'train/3/17' -> 'train', 'clinic:test[0:512]'
    -> 'test'."""
    return (
        None
        if batch is None
        else batch.replace("[", "/").partition("/")[0].rpartition(":")[2]
    )


class Agreed(Mapping[str, Batches]):
    """What an organisation agreed on with each label owner: that one's batches, and for
    each row of its order the row number in the organisation's own table. It looks all
    their names up, so that one account can count a row that several label owners know.
    Where there is one label owner and all rows stand in its order, no order is needed,
    and names do not say whose they are."""

    def __init__(self, orders: Mapping[str, tuple[Batches, Tensor | None]]) -> None:
        for name, (batches, _) in orders.items():
            if batches.owner != name and (batches.owner or len(orders) > 1):
                raise ConfigError(
                    f"The batches agreed on with {name!r} are those of"
                    f" {batches.owner!r}. Give its own."
                )
        self._batches = {name: batches for name, (batches, _) in orders.items()}
        self._whose = {batches.owner: name for name, batches in self._batches.items()}
        self.orders = {
            name: None if order is None else order.to(torch.int64)
            for name, (_, order) in orders.items()
        }
        self._moved: dict[tuple[str, str], Tensor] = {}
        self._union = {
            split: torch.unique(rows)
            for split, rows in self.all_rows().items()
            if len(orders) > 1
        }

    @property
    def drawn_from(self) -> int:
        """Among how many rows a training batch is drawn; 0 where label owners draw
        among their own, so that nothing can be said of who does not know the batches.
        """
        return len(self.splits.get("train", ())) if "" in self._whose else 0

    @property
    def one(self) -> Batches:
        """The batches of the one label owner."""
        if len(self) != 1:
            raise ConfigError(
                f"This works with one label owner, and here are {', '.join(self)}."
            )
        return next(iter(self._batches.values()))

    @property
    def splits(self) -> dict[str, Tensor]:
        """Per purpose the rows that some label owner uses for it, each once."""
        return self.all_rows() if len(self) == 1 else self._union

    def all_rows(self) -> dict[str, Tensor]:
        """By purpose the rows of all label owners; who is known to two is in it twice."""
        by_split: dict[str, list[Tensor]] = {}
        for owner, batches in self._batches.items():
            for split, rows in batches.splits.items():
                by_split.setdefault(split, []).append(self._placed(owner, rows))
        return {
            split: rows[0] if len(rows) == 1 else torch.cat(rows)
            for split, rows in by_split.items()
        }

    def __getitem__(self, owner: str) -> Batches:
        return self._batches[owner]

    def __iter__(self) -> Iterator[str]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def rows(self, name: str, device: torch.device | str = "cpu") -> Tensor:
        """The row numbers in the organisation's table behind a name, which says whose
        batch it is."""
        owner = self._whose.get(name.partition(":")[0], self._whose.get(""))
        if owner is None:
            raise WireError(f"No agreed batch is called {name[:80]!r}.")
        return self._placed(owner, self._batches[owner].rows(name, device))

    def epoch_rows(
        self, owner: str, epoch: int, device: torch.device | str = "cpu"
    ) -> Tensor:
        """The row numbers in the organisation's table of one label owner's epoch, one
        batch after the other."""
        return self._placed(owner, self._batches[owner].epoch_rows(epoch, device))

    def order(self, owner: str) -> Tensor:
        """Where one label owner's rows are in the organisation's table."""
        order = self.orders[owner]
        if order is None:
            raise ConfigError(
                f"All rows stand in the order of {owner!r}, so none is kept."
            )
        return order

    def shared_with(self, owner: str, all_rows: int) -> int:
        """How many of the organisation's rows a label owner knows."""
        order = self.orders[owner]
        return all_rows if order is None else len(order)

    def _placed(self, owner: str, rows: Tensor) -> Tensor:
        """Rows of a label owner's order as rows of the organisation's table."""
        order = self.orders[owner]
        if order is None:
            return rows
        if order.device != rows.device:
            key = owner, str(rows.device)
            if key not in self._moved:
                self._moved[key] = order.to(rows.device)
            order = self._moved[key]
        return order[rows]

    @property
    def batch_size(self) -> int:
        return max(
            (batches.batch_size for batches in self._batches.values()), default=0
        )

    @property
    def sampling(self) -> str:
        """How training batches are made; several label owners' are all made one way."""
        return next((batches.sampling for batches in self._batches.values()), "epoch")

    @property
    def per_epoch(self) -> int:
        """Batches of all label owners in one epoch."""
        return sum(batches.per_epoch for batches in self._batches.values())

    def fingerprint(self) -> str:
        """Equal at two organisations exactly when they agree on every batch of every
        label owner."""
        if len(self) == 1 and next(iter(self.orders.values())) is None:
            return self.one.fingerprint()
        digest = hashlib.sha256()
        for owner in sorted(self._batches):
            order = self.orders[owner]
            digest.update(self._batches[owner].fingerprint().encode())
            digest.update(b"" if order is None else order.numpy().tobytes())
        return digest.hexdigest()[:16]


class Progress(Protocol):
    """How far training has come: what `Batches` count in batches, and `Rounds` in
    rounds."""

    steps_are: str  # what training counts: "batches" or "rounds"
    epoch_is: str  # what going over all training rows is called
    epochs: int
    done: int

    def __len__(self) -> int: ...

    @property
    def per_epoch(self) -> int: ...

    @property
    def batch_size(self) -> int: ...

    @property
    def splits(self) -> Mapping[str, Tensor]: ...

    def fingerprint(self) -> str: ...


@dataclass(frozen=True, slots=True)
class RoundDone(Step):
    """One round of several label owners: the loss of each that took part, and why any
    other was left out."""

    losses: Mapping[str, float]
    left_out: Mapping[str, str]


class Rounds:
    """How far a federation with several label owners has come: an epoch is one round,
    in which every label owner trains on all its rows."""

    steps_are = "rounds"
    epoch_is = "round"
    per_epoch = 1

    def __init__(self, agreed: Agreed, epochs: int) -> None:
        self.agreed = agreed
        self.epochs = epochs
        self.done = 0

    def __len__(self) -> int:
        return self.epochs

    @property
    def batch_size(self) -> int:
        return self.agreed.batch_size

    @property
    def splits(self) -> dict[str, Tensor]:
        return self.agreed.all_rows()

    def fingerprint(self) -> str:
        return self.agreed.fingerprint()
