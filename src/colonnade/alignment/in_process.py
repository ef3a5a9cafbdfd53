"""An alignment whose parties all live in this process: for simulations, the command line, and tables to train on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.alignment import id_owner, keyed
from colonnade.alignment.helper import Helper, align_by_helper, takes_helper
from colonnade.alignment.id_owner import IdOwner
from colonnade.alignment.ids import Ids
from colonnade.alignment.intersection import Alignment, Watch, align
from colonnade.alignment.keyed import KeyedIds
from colonnade.alignment.settings import AlignmentSettings
from colonnade.core import Batches, Ledger, Organisation, Peers
from colonnade.core.files import replaced_folder
from colonnade.errors import ConfigError, InputError
from colonnade.transport import InProcess

SUMMARY, ROWS = "alignment.json", "rows.npy"
REVEALS = id_owner.REVEALS | keyed.REVEALS
"""What each release of an alignment tells its receiver."""


@dataclass(frozen=True)
class Aligned:
    """The outcome, and what each organisation holds of it."""

    found: Alignment
    rows: dict[str, NDArray[np.int64]]  # of each party that learned them: row numbers of its table, in the agreed order
    tables: dict[str, int]  # rows in each party's table
    ledgers: dict[str, Ledger]
    by_key: dict[str, list[NDArray[np.int64]]]  # of each party that learned them: the rows that each key matched

    def to_json(self) -> dict[str, Any]:
        """Sizes and settings; no row number and no id."""
        found = self.found
        return {
            "driver": found.driver,
            "protocol": found.protocol,
            **({"helper": {"name": found.helper, "learned": found.learned()[found.helper]}} if found.helper else {}),
            "ids": found.ids,
            "reveal": found.reveal,
            "learners": list(found.learners),
            "common": found.common,
            **({"by_key": list(found.by_key)} if len(found.by_key) > 1 else {}),
            "parties": {
                name: {
                    "rows": self.tables[name],
                    "ids": size,
                    "learned": found.learned()[name],
                    "bytes": {"out": self.ledgers[name].total("out"), "in": self.ledgers[name].total("in")},
                }
                for name, size in found.sizes.items()
            },
        }

    def write(self, folder: Path) -> None:
        """alignment.json, and each learner's parties/NAME/rows.npy: in a folder that appears whole or not at all."""
        check_free(folder)
        try:
            with replaced_folder(folder) as fresh:
                for name in self.found.sizes:
                    (fresh / "parties" / name).mkdir(parents=True)
                    if name in self.rows:
                        np.save(fresh / "parties" / name / ROWS, self.rows[name], allow_pickle=False)
                (fresh / SUMMARY).write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"The alignment cannot be written to {folder}: {error.strerror or error}.") from None


def check_free(folder: Path) -> None:
    """Refuse a folder that holds something else than an alignment."""
    if folder.exists() and not ((folder / SUMMARY).exists() or (folder.is_dir() and not any(folder.iterdir()))):
        raise ConfigError(f"{folder} exists and holds no alignment; it is left alone. Name another folder.")


def align_here(
    ids: Mapping[str, Ids | Sequence[Ids]],
    settings: AlignmentSettings | None = None,
    *,
    driver: str | None = None,
    through_bytes: bool = False,
    watch: Watch | None = None,
) -> Aligned:
    """Align parties by their ids, or by those of several keys in turn; the first drives, unless another is named.
    Where the settings name a helper and ask for it, it lives here, too."""
    settings = settings or AlignmentSettings()
    nothing = Batches({}, batch_size=1, epochs=1, seed=0)  # rows are agreed on here, not before
    parties = {
        name: IdOwner(Organisation.at(name, nothing), held, settings, among=tuple(ids)) for name, held in ids.items()
    }
    first = parties[driver or next(iter(parties))]
    ledgers = {name: party.ledger for name, party in parties.items()}
    if takes_helper(settings, [len(party.keys[0]) for party in parties.values()]):
        found = _by_helper(parties, first.name, settings, ledgers, through_bytes, watch)
    else:
        others = {name: party for name, party in parties.items() if party is not first}
        peers = Peers(first.name, others, InProcess(others, through_bytes=through_bytes), first.ledger)
        found = align(first, peers, watch=watch)
    return Aligned(
        found,
        {name: party.common_rows for name, party in parties.items() if party.common_rows is not None},
        {name: party.keys[0].total for name, party in parties.items()},
        ledgers,
        {name: party.found for name, party in parties.items() if party.found},
    )


def _by_helper(
    owners: Mapping[str, IdOwner],
    driver: str,
    settings: AlignmentSettings,
    ledgers: dict[str, Ledger],
    through_bytes: bool,
    watch: Watch | None,
) -> Alignment:
    """With a helper that lives here, too; `ledgers` grows by its own."""
    name = str(settings.helper)
    settings.check_helper(owners)
    keyed = {
        party: KeyedIds(owner.organisation, [owner], helper=name, askers={driver}) for party, owner in owners.items()
    }
    nothing = Organisation.at(name, Batches({}, batch_size=1, epochs=1, seed=0))
    helper = Helper(
        nothing, lambda names: Peers(name, names, carrier, nothing.ledger), askers=[driver], admitted=list(owners)
    )
    ledgers[name] = nothing.ledger
    carrier = InProcess({**keyed, name: helper}, through_bytes=through_bytes)
    names = [driver, *(party for party in owners if party != driver)]
    peers = Peers(driver, [*names[1:], name], carrier, owners[driver].ledger)
    return align_by_helper(keyed[driver], names, peers, watch=watch)
