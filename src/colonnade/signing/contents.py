"""What is said of a run on the page that somebody signs, in the report and in a
statement alike."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.attacks.report import Verdict, worst_verdict
from colonnade.core import files
from colonnade.errors import CheckpointError
from colonnade.runs.layout import COLUMNS, PARTIES, SETTINGS
from colonnade.runs.run_directory import RunDirectory
from colonnade.runs.run_identity import RunIdentity, read_identity
from colonnade.signing.inventory import AUDIT_FILE, Digests, Inventory, take_inventory


@dataclass(frozen=True)
class Audited:
    """What the audit in a run's folder found, and whether it is of these models."""

    verdict: Verdict
    is_current: bool
    party: str | None  # it looked at attacks by or on this party alone


@dataclass(frozen=True)
class Columns:
    """The names of an organisation's own columns."""

    features: tuple[str, ...]
    label: str | None


@dataclass(frozen=True)
class Contents:
    """What is said of a run, but for what crossed and for guarantees."""

    identity: RunIdentity | None
    # whose part of a run between sites this is; None: all parties' parts are here
    part: str | None
    inventory: Inventory
    audited: Audited | None
    columns: Mapping[str, Columns]  # by organisation, of those that are here


def contents_of(run: Path) -> Contents:
    """Read what is said of a run from its folder."""
    folder = RunDirectory(run)
    labels = labels_of(run)
    inventory = take_inventory(run)
    owners = [path.parent.name for path in sorted((run / PARTIES).glob(f"*/{COLUMNS}"))]
    return Contents(
        read_identity(run),
        folder.part(),
        inventory,
        audited(run, inventory.models),
        {name: columns_of(folder, name, labels.get(name)) for name in owners},
    )


def settings_of(run: Path) -> dict[str, Any]:
    """The run's settings as they are written, whatever models they name."""
    text = (run / SETTINGS).read_text(encoding="utf-8")
    return tomllib.loads(files.check_text(run / SETTINGS, text))


def labels_of(run: Path) -> dict[str, str]:
    """The label's column of each organisation whose column the run's settings name."""
    settings = settings_of(run)
    parties = list(settings.get("parties", {}).items())
    parties += [(party["name"], party) for party in settings.get("label_owners", [])]
    return {name: str(party["label"]) for name, party in parties if "label" in party}


def audited(run: Path, models: Digests) -> Audited | None:
    """The audit in a run's folder, and whether it is of the models that are there; None
    where there is no audit."""
    verdict = worst_verdict(run)
    if verdict is None:
        return None
    audit = files.read_json(run / AUDIT_FILE)
    party = audit.get("party")
    attacked = audit.get("model_files")
    is_current = attacked == {path: about.sha256 for path, about in models.items()}
    return Audited(verdict, is_current, None if party is None else str(party))


def columns_of(run: RunDirectory, name: str, label: str | None) -> Columns:
    """The names of an organisation's own columns, as its folder of the run has them."""
    fitted = run.fitted(name)
    listed = (fitted.get("columns") or {}).get("columns", [])
    try:
        features = tuple(str(column["name"]) for column in listed)
    except (KeyError, TypeError):
        raise CheckpointError(
            f"{run.party(name) / COLUMNS} does not name its columns. Restore it from a"
            " copy."
        ) from None
    return Columns(features, label if "labels" in fitted else None)
