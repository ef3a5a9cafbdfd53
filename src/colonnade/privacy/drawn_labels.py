"""Labels that a label owner drew at random, kept over all its runs: a row's label is
drawn once and never again.

A run that drew anew would show each label once more, and whoever takes the majority of
many runs reads it, whatever epsilon each of them states. So a site keeps what it drew
for each row, and every run learns from the same draw: epsilon then holds for all runs
together. A new row is drawn when it first trains. Another rule (epsilon, mechanism or
classes) would be a second look at the same labels, and is refused.

    colonnade-labels 1 5f0c91aa {"rule": {...}, "rows": 318}     a checksum of all that follows it
    keys of the rows' ids, and the classes drawn                 as the account knows rows

The file is on the disk before anything follows from a draw. A damaged file is an error;
whoever removes it has all labels drawn again, which costs epsilon again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.core.files import alone
from colonnade.core.receipt import DpEvent
from colonnade.errors import CheckpointError, ConfigError
from colonnade.privacy.counts import keys_of, read_numbers, write_numbers

MAGIC = b"colonnade-labels 1 "
Draw = Callable[[Tensor], tuple[Tensor, DpEvent]]
"""Draws the labels of some rows, by their numbers."""
Rule = Mapping[str, str | float]
Kept = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class DrawnLabels:
    """The labels that one label owner drew, in one file for all its runs."""

    owner: str
    path: Path

    def once(
        self, ids: NDArray[np.str_], rule: Rule, draw: Draw
    ) -> tuple[Tensor, DpEvent]:
        """The labels of these rows as they were drawn when they first trained; `draw`
        is asked for the others."""
        keys = keys_of(ids.tolist())
        with alone(self.path):
            known, classes = self._read(rule)
            new = np.flatnonzero(~np.isin(keys, known))
            drawn, event = draw(torch.from_numpy(new))
            if len(new):
                known = np.concatenate([known, keys[new]])
                classes = np.concatenate(
                    [classes, drawn.cpu().numpy().astype(np.int64)]
                )
                write_numbers(
                    self.path,
                    MAGIC,
                    {"rule": dict(rule), "rows": len(known)},
                    known,
                    classes,
                )
        order = np.argsort(known)
        return (
            torch.from_numpy(
                classes[order[np.searchsorted(known, keys, sorter=order)]]
            ),
            event,
        )

    def _read(self, rule: Rule) -> Kept:
        try:
            head, numbers = read_numbers(self.path, MAGIC)
            before = head["rule"]
            rows = int(head["rows"])
            known, classes = numbers.reshape(2, rows)
        except FileNotFoundError:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(
                f"{self.path} is damaged, and it has the labels that '{self.owner}'"
                " drew at random. Put back a copy of it; whoever removes it has all"
                " labels drawn again, which costs their epsilon again."
            ) from None
        if before != dict(rule):
            raise ConfigError(
                f"'{self.owner}' drew its labels by {before}, as {self.path} has it,"
                f" and now they are to be drawn by {dict(rule)}: a second draw shows"
                " them once more, and costs both epsilons together. Keep the rule, or"
                " move the file away where that is meant."
            )
        return known, classes
