"""The one way in which rows are divided into training, validation and test rows: by id.

Which side a row falls on follows from its id and the agreed seed. So a row that two label owners know is on the same
side at both, nobody is tested on what another has trained with, and a row stays where it is when others are added.
(Numbers of rows in the place of shares do not always hold that where label owners have rows in common, and are refused
where they do not.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from colonnade.errors import ConfigError
from colonnade.rows.holdings import Ids
from colonnade.settings.federation_file import DataSettings

SPLIT = 2
"""The version of this way, which a run keeps: 1 divided the rows of one label owner by their position."""


def divide(ids: Ids, data: DataSettings, seed: int, owner: str, *, shared: bool = False) -> dict[str, Tensor]:
    """Training, validation and test rows, by a number from 0 to 1 that the seed gives each id: the lowest are test
    rows, those above them validation rows, and so many of each as the settings say.

    Where rows may be `shared` by several label owners, a share means all ids whose number is below it: about so many,
    and the same side for a row at everybody."""
    digests = (hashlib.blake2b(f"{seed}/{one}".encode(), digest_size=8).digest() for one in ids.tolist())
    place = np.frombuffer(b"".join(digests), dtype="<u8") / 2.0**64

    def upto(share: float, start: int, above: float) -> int:
        """How many rows a share takes together with the `start` rows below it, which end `above`."""
        if share >= 1:
            return start + int(share)
        return max(start, int((place < above + share).sum())) if shared else start + round(share * len(ids))

    test = upto(data.test, 0, 0.0)
    held_out = upto(data.validation, test, test / len(ids) if data.test >= 1 else data.test)
    if held_out >= len(ids):
        raise ConfigError(
            f"[data] validation = {data.validation} and test = {data.test} leave '{owner}' none of its {len(ids)} rows "
            "for training. Make them smaller."
        )
    order = torch.from_numpy(np.argsort(place, kind="stable"))
    cuts = {"train": order[held_out:], "validation": order[test:held_out], "test": order[:test]}
    for name, share in (("validation", data.validation), ("test", data.test)):
        if share and not len(cuts[name]):
            raise ConfigError(
                f"[data] {name} = {share} of the {len(ids)} rows of '{owner}' is no row at all. Use a larger share, "
                "or 0 for none."
            )
    return {name: rows.sort().values for name, rows in cuts.items() if len(rows)}


def check_sides(
    data: DataSettings, splits: Mapping[str, Mapping[str, Tensor]], at: Mapping[str, Tensor], rows: int
) -> None:
    """That no row is on one side of the division at one label owner and on another at another."""
    least, most = torch.full((rows,), 4, dtype=torch.int8), torch.zeros(rows, dtype=torch.int8)
    for owner, divided in splits.items():
        for side, name in enumerate(("train", "validation", "test"), 1):
            if name in divided:
                mine = at[owner][divided[name]]
                least[mine], most[mine] = least[mine].clamp_max(side), most[mine].clamp_min(side)
    torn = most > least
    if bool(torn.any()):
        owners = " and ".join(f"'{owner}'" for owner in at if bool(torn[at[owner]].any()))
        raise ConfigError(
            f"[data] validation = {data.validation:g} and test = {data.test:g} count rows, and {owners} would divide "
            f"{int(torn.sum())} rows that they share differently: one would be tested on what another has trained "
            "with. Give shares instead of numbers, as in validation = 0.1 and test = 0.2."
        )
