"""Whose columns are worth having, where one process holds all tables: for one label
owner, or several jointly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from colonnade.errors import ConfigError
from colonnade.federation.organisation import holdings_of
from colonnade.selection import Selection, SelectionSettings, select_here
from colonnade.selection.choosing import as_labels, entropy, jointly
from colonnade.selection.leader import Watch
from colonnade.settings.federation_file import Settings
from colonnade.settings.party_file import asker_of, label_owners_of
from colonnade.settings.schema import checked


def choose(
    settings: Settings,
    keep: int,
    method: str = "vf_ps",
    *,
    owner: str | None = None,
    given: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
) -> Selection:
    """Select on training rows, by the file's settings and those given. Each of several
    label owners leads a selection of its own, on rows of its own, and all of them
    together choose, unless one `owner` is named."""
    leaders = (
        label_owners_of(settings) if owner is None else [asker_of(settings, owner)]
    )
    selections = {}
    rows = {}
    for name in leaders:
        alone = {
            owner: label_owner
            for owner, label_owner in settings.label_owners.items()
            if owner == name
        }
        # dealt to all label owners at once, so it gives all their parts
        public = settings.data.dataset is not None
        holdings = holdings_of(
            settings if public else replace(settings, label_owners=alone)
        )
        held = holdings.label_owners[name]
        train = held.splits["train"]
        task = holdings.encoder.task
        wanted = {**settings.selection.to_mapping(), **(given or {})}
        chosen = checked(SelectionSettings, wanted, whose="A selection").for_task(
            task, name
        )
        if not 1 <= keep <= len(holdings.columns):
            count = len(holdings.columns)
            raise ConfigError(
                f"--keep must be at most {count}, the number of parties with columns;"
                f" found {keep}."
            )
        if (given or {}).get("k", 0) >= len(train):
            raise ConfigError(
                f"--k must be less than {len(train)}, the training rows of '{name}';"
                f" found {chosen.k}."
            )
        mine = slice(None) if held.rows is None else held.rows
        features = {
            party: columns.features.flatten(1)[mine]
            for party, columns in holdings.columns.items()
        }
        how = {
            **chosen.to_mapping(),
            "seed": settings.engine.seed,
            "through_bytes": settings.engine.through_bytes,
        }
        how |= {"keep": keep, "method": method, "leader": name}
        selection = select_here(features, held.labels, rows=train, watch=watch, **how)
        if (
            selection.method not in ("lasso", "random")
            and chosen.estimator != "kraskov"
        ):
            selection = replace(
                selection,
                entropy=entropy(as_labels(name, held.labels, train.numpy(), chosen)),
            )
        selections[name], rows[name] = selection, len(train)
    return (
        selections[leaders[0]] if len(leaders) == 1 else jointly(selections, rows, keep)
    )
