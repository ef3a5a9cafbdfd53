"""An alignment whose parties all live in this process: for simulations, the command
line, and tables to train on."""

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
from colonnade.core import Batches, Ledger, Organisation, Peers
from colonnade.core.files import replaced_folder
from colonnade.errors import ConfigError, InputError
from colonnade.settings.alignment import AlignmentSettings
from colonnade.transport import InProcess

SUMMARY = "alignment.json"
ROWS = "rows.npy"
REVEALS = id_owner.REVEALS | keyed.REVEALS
"""What each release of an alignment tells its receiver."""


@dataclass(frozen=True)
class Aligned:
    """What the driver found, and what each organisation holds of it."""

    found: Alignment
    # by party that learned them: row numbers of its table, in the agreed order
    rows: dict[str, NDArray[np.int64]]
    tables: dict[str, int]  # rows in each party's table
    ledgers: dict[str, Ledger]
    # by party that learned them: the rows that each key matched
    by_key: dict[str, list[NDArray[np.int64]]]

    def to_json(self) -> dict[str, Any]:
        """Sizes and settings; no row number and no id."""
        outcome = self.found
        return {
            "driver": outcome.driver,
            "protocol": outcome.protocol,
            **(
                {
                    "helper": {
                        "name": outcome.helper,
                        "learned": outcome.learned()[outcome.helper],
                    }
                }
                if outcome.helper
                else {}
            ),
            "ids": outcome.ids,
            "reveal": outcome.reveal,
            "learners": list(outcome.learners),
            "common": outcome.common,
            **({"by_key": list(outcome.by_key)} if len(outcome.by_key) > 1 else {}),
            "parties": {
                name: {
                    "rows": self.tables[name],
                    "ids": size,
                    "learned": outcome.learned()[name],
                    "bytes": {
                        "out": self.ledgers[name].total("out"),
                        "in": self.ledgers[name].total("in"),
                    },
                }
                for name, size in outcome.sizes.items()
            },
        }

    def write(self, folder: Path) -> None:
        """Write alignment.json, and each learner's parties/NAME/rows.npy; the folder
        appears whole or not at all."""
        check_free(folder)
        try:
            with replaced_folder(folder) as fresh:
                for name in self.found.sizes:
                    (fresh / "parties" / name).mkdir(parents=True)
                    if name in self.rows:
                        np.save(
                            fresh / "parties" / name / ROWS,
                            self.rows[name],
                            allow_pickle=False,
                        )
                (fresh / SUMMARY).write_text(
                    json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8"
                )
        except OSError as error:
            raise InputError(
                f"The alignment cannot be written to {folder}:"
                f" {error.strerror or error}."
            ) from None


def check_free(folder: Path) -> None:
    """Refuse a folder that holds something else than an alignment."""
    empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not empty and not (folder / SUMMARY).exists():
        raise ConfigError(
            f"{folder} exists and holds no alignment; it is left alone. Name another"
            " folder."
        )


def align_here(
    ids: Mapping[str, Ids | Sequence[Ids]],
    settings: AlignmentSettings | None = None,
    *,
    driver: str | None = None,
    through_bytes: bool = False,
    watch: Watch | None = None,
) -> Aligned:
    """Align parties by their ids, or by those of several keys in turn; the first
    drives, unless another is named. Where the settings name a helper and ask for it, it
    runs in this process, too."""
    settings = settings or AlignmentSettings()
    # the rows are agreed on here, not before
    no_rows = Batches({}, batch_size=1, epochs=1, seed=0)
    parties = {
        name: IdOwner(Organisation.at(name, no_rows), held, settings, among=tuple(ids))
        for name, held in ids.items()
    }
    leader = parties[driver or next(iter(parties))]
    ledgers = {name: party.ledger for name, party in parties.items()}
    if takes_helper(settings, [len(party.keys[0]) for party in parties.values()]):
        alignment = _by_helper(
            parties, leader.name, settings, ledgers, through_bytes, watch
        )
    else:
        others = {name: party for name, party in parties.items() if party is not leader}
        peers = Peers(
            leader.name,
            others,
            InProcess(others, through_bytes=through_bytes),
            leader.ledger,
        )
        alignment = align(leader, peers, watch=watch)
    return Aligned(
        alignment,
        {
            name: party.common_rows
            for name, party in parties.items()
            if party.common_rows is not None
        },
        {name: party.keys[0].total for name, party in parties.items()},
        ledgers,
        {
            name: party.rows_by_key
            for name, party in parties.items()
            if party.rows_by_key
        },
    )


def _by_helper(
    owners: Mapping[str, IdOwner],
    driver: str,
    settings: AlignmentSettings,
    ledgers: dict[str, Ledger],
    through_bytes: bool,
    watch: Watch | None,
) -> Alignment:
    """Align with a helper in this process, whose ledger is added to `ledgers`."""
    name = str(settings.helper)
    settings.check_helper(owners)
    keyed = {
        party: KeyedIds(owner.organisation, [owner], helper=name, askers={driver})
        for party, owner in owners.items()
    }
    organisation = Organisation.at(name, Batches({}, batch_size=1, epochs=1, seed=0))
    helper = Helper(
        organisation,
        lambda names: Peers(name, names, carrier, organisation.ledger),
        askers=[driver],
        admitted=list(owners),
    )
    ledgers[name] = organisation.ledger
    carrier = InProcess({**keyed, name: helper}, through_bytes=through_bytes)
    names = [driver, *(party for party in owners if party != driver)]
    peers = Peers(driver, [*names[1:], name], carrier, owners[driver].ledger)
    return align_by_helper(keyed[driver], names, peers, watch=watch)
