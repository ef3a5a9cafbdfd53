"""The agreed row order: every party holds an equal `Batches`, so a batch travels by name, never as row numbers.

    train/3/17        the 17th batch of epoch 3, shuffled by the agreed seed, anew every epoch unless `reshuffle` is off
    test[0:512]       rows 0 to 511 of the test rows, in order

A party looks the name up in its own copy. Whoever knows the seed knows the batches; they are no secret.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from colonnade.errors import ConfigError, WireError

COUNT = r"(0|[1-9][0-9]{0,11})"  # one spelling per number, so one name per batch
CHUNK = re.compile(rf"([\w-]{{1,64}})\[{COUNT}:{COUNT}\]")
TRAIN = re.compile(rf"train/{COUNT}/{COUNT}")


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


class Batches:
    """Iterating gives the training batches from `done` onwards; `rows` looks any name up."""

    def __init__(
        self, splits: Mapping[str, Tensor], *, batch_size: int, epochs: int, seed: int, reshuffle: bool = True
    ) -> None:
        for name, rows in splits.items():
            if not len(rows):
                raise ConfigError(f"The split {name!r} has no rows. Leave it out, or give it some.")
        self.splits = {name: rows.to(torch.int64) for name, rows in splits.items()}
        self.batch_size, self.epochs, self.seed, self.reshuffle = batch_size, epochs, seed, reshuffle
        self.done = 0
        self._shuffled: dict[tuple[int, str], Tensor] = {}

    @property
    def per_epoch(self) -> int:
        return -(-len(self.splits.get("train", ())) // self.batch_size)

    def __len__(self) -> int:
        return self.per_epoch * self.epochs

    def __iter__(self) -> Iterator[Batch]:
        while self.done < len(self):
            epoch, number = divmod(self.done, self.per_epoch)
            size = min(self.batch_size, len(self.splits["train"]) - number * self.batch_size)
            batch = Batch(f"train/{epoch}/{number}", size, epoch, number, self.done)
            self.done += 1
            yield batch

    def chunks(self, split: str, size: int | None = None) -> list[Rows]:
        """A split's rows in order, in pieces of at most `size`."""
        if split not in self.splits:
            raise ConfigError(f"There are no rows called {split!r}; there are {', '.join(map(repr, self.splits))}.")
        rows, size = len(self.splits[split]), size or max(self.batch_size, 4096)
        bounds = [(start, min(start + size, rows)) for start in range(0, rows, size)]
        return [Rows(f"{split}[{start}:{stop}]", stop - start) for start, stop in bounds]

    def rows(self, name: str, device: torch.device | str = "cpu") -> Tensor:
        """The row numbers behind a name; a name that no agreed batch has is refused."""
        if match := TRAIN.fullmatch(name):
            epoch, number = int(match[1]), int(match[2])
            if number < self.per_epoch:  # 0 where nobody trains
                start = number * self.batch_size
                return self._order(epoch, str(device))[start : start + self.batch_size]
        elif (match := CHUNK.fullmatch(name)) and match[1] in self.splits:
            start, stop = int(match[2]), int(match[3])
            if start < stop <= len(self.splits[match[1]]):
                return self.splits[match[1]][start:stop].to(device)
        raise WireError(f"No agreed batch is called {name[:80]!r}.")

    def _order(self, epoch: int, device: str) -> Tensor:
        epoch = epoch if self.reshuffle else 0
        order = self._shuffled.get((epoch, device))  # parties in threads may share this: look once
        if order is None:
            digest = hashlib.sha256(f"{self.seed}/{epoch}".encode()).digest()
            generator = Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            train = self.splits["train"]
            order = train[torch.randperm(len(train), generator=generator)].to(device)
            self._shuffled = dict([*self._shuffled.items()][-3:]) | {(epoch, device): order}
        return order

    def fingerprint(self) -> str:
        """Equal at two parties exactly when they agree on every batch."""
        digest = hashlib.sha256(f"{self.batch_size}/{self.seed}/{self.reshuffle}".encode())
        for name in sorted(self.splits):
            rows = self.splits[name]
            digest.update(f"/{name}[{len(rows)}]".encode() + rows.numpy().tobytes())
        return digest.hexdigest()[:16]
