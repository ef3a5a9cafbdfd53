"""What each party of a finished run receives, made again in memory: nothing is written
into the run.

A run keeps no transcript. Training is deterministic, so a fresh federation with the
run's settings repeats its first rounds (but for secret noise and secret initial
weights, which are drawn anew); and the loaded one goes on from its last checkpoint for
a few batches, as if training had not ended.
"""

from __future__ import annotations

import copy
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from colonnade.algorithms.algorithm import AnyAlgorithm, Kind
from colonnade.core import Agreed, Batches, Ciphertext, Released, Transcript
from colonnade.errors import BudgetExhausted, CheckpointError
from colonnade.federation import Federation, load
from colonnade.rows.holdings import Holdings
from colonnade.runs.layout import MARK, PARTIES, SETTINGS
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.federation_file import Settings

FIRST = "first rounds"
ASKED = "prediction"
TRAINED = "trained model"
"""The moments at which a run is listened to."""
ROUNDS = 32
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """The transcripts of a few exchanges, and the local models as they were when these
    began."""

    moment: str
    batches: Batches
    transcripts: Mapping[str, Transcript]
    models: Mapping[str, nn.Module]
    # the gradient each party first stepped with
    stepped: Mapping[str, Tensor] = field(default_factory=dict)
    refused: str = ""  # why it ended early: a party would not release any more
    # what reached each when the run began, if earlier
    begun: Mapping[str, Transcript] = field(default_factory=dict)
    # for parties that lack rows, batches of those they hold
    apart: Mapping[str, Batches] = field(default_factory=dict)

    def of(self, federation: Federation, owner: str) -> Rehearsal:
        """The part that passed between one label owner and those who hold columns."""

        def kept(transcripts: Mapping[str, Transcript]) -> dict[str, Transcript]:
            return {
                party: Transcript(
                    party,
                    [seen for seen in transcript if owner in (party, seen.sender)],
                )
                for party, transcript in transcripts.items()
            }

        batches = federation.agreed[owner]
        begun = kept(self.begun)
        return replace(
            self, batches=batches, transcripts=kept(self.transcripts), begun=begun
        )

    def heard_by(self, party: str) -> Transcript:
        return self.transcripts.get(party, Transcript(party))

    def between(self, *parties: str) -> Batches:
        """The batches that these parties and the label owner exchange; a party that
        lacks rows has its own."""
        return next(
            (self.apart[party] for party in parties if party in self.apart),
            self.batches,
        )

    def arrivals(self) -> Iterator[tuple[str, Released | Ciphertext]]:
        """Everything that arrived, each with its receiver."""
        for receiver, transcript in self.transcripts.items():
            for seen in transcript:
                yield from ((receiver, item) for item in seen.message.crossing())


@dataclass(frozen=True, eq=False)
class Part:
    """The part of a federation that one label owner shares with those who hold columns;
    rows are in its order."""

    algorithm: AnyAlgorithm
    settings: Settings
    holdings: Holdings
    owners: Mapping[str, Any]
    label_owners: Mapping[str, Any]
    agreed: Agreed
    agreed_apart: Mapping[str, Agreed]
    driver: Any


Attacked = Federation | Part
"""What is attacked: a federation with one label owner, or the part of one of several.
Organisations that are elsewhere are missing in it."""


def part_of(whole: Federation, owner: str) -> Part:
    """A label owner's part; where there is one label owner, it is the whole."""
    held = whole.holdings
    owners = dict(whole.owners)
    order = whole.agreed.orders[owner]
    if order is not None:
        columns = {
            name: replace(columns, features=columns.features[order])
            for name, columns in held.columns.items()
        }
        labelled = {owner: replace(held.label_owners[owner], rows=None)}
        held = replace(
            held,
            columns=columns,
            label_owners=labelled,
            packed=labelled[owner].packed,
            server=(),
        )
        for name, party in owners.items():
            owners[name] = SimpleNamespace(
                features=party.features[order.to(party.features.device)],
                model=party.model,
            )
    label_owners = {
        name: party for name, party in whole.label_owners.items() if name == owner
    }
    agreed = Agreed({owner: (whole.agreed[owner], None)})
    return Part(
        whole.algorithm,
        whole.settings,
        held,
        owners,
        label_owners,
        agreed,
        whole.agreed_apart,
        whole.driver,
    )


def victims(federation: Attacked, party: str | None) -> list[str]:
    """Whom the label owner may attack; `party` narrows to attacks by or on it."""
    attacker = federation.holdings.label_owner
    return [
        name
        for name in federation.owners
        if name != attacker and party in (None, attacker, name)
    ]


def spans_of(federation: Attacked, victim: str) -> Mapping[str, slice]:
    """The numbers that each of the victim's columns became; the pixels of a picture are
    one span."""
    held = federation.holdings.columns[victim]
    features = federation.owners[victim].features
    if held.preprocessor:
        return held.preprocessor.spans
    width = features[0].numel()
    pixels = {"pixels": slice(0, width)}
    return (
        pixels
        if features.dim() > 2
        else {f"column {column}": slice(column, column + 1) for column in range(width)}
    )


@contextmanager
def reopen(folder: Path, allow_models: Sequence[str] = ()) -> Iterator[Federation]:
    """A run's federation, recorded; `allow_models` lists the code that its settings may
    name. It is loaded from a temporary copy, since loading may cut a ledger back, and
    an account notes on disk what is released."""
    run = RunDirectory(folder)
    run.settings()
    run.mark()
    run.check_whole()
    with tempfile.TemporaryDirectory(prefix="colonnade-audit-") as place:
        twin = Path(place) / "run"
        try:
            shutil.copytree(folder / PARTIES, twin / PARTIES)
            for name in (SETTINGS, MARK):
                shutil.copy2(folder / name, twin / name)
        except (OSError, shutil.Error) as error:
            raise CheckpointError(
                f"{folder} cannot be read as a whole ({type(error).__name__}): a run"
                f" has a folder per party under {folder / 'parties'}. Restore it from"
                " where it was trained."
            ) from None
        try:
            federation = load(twin, record=True, allow_models=allow_models)
        except CheckpointError as error:
            raise CheckpointError(str(error).replace(str(twin), str(folder))) from None
        yield federation


def model_files(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file of a run's last checkpoint, by its path in the folder.

    They name the models of all parties that have a part in the folder.
    """
    run = RunDirectory(folder)
    mark = run.mark()
    digests = {}
    for party in sorted((folder / PARTIES).iterdir()):
        checkpoint = run._checkpoint(party.name, mark)
        for path in sorted(checkpoint.rglob("*")):
            if path.is_file():
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                digests[path.relative_to(folder).as_posix()] = digest
    return digests


def first_rounds(federation: Federation, rows: int) -> Rehearsal:
    """The run's own first batches, until so many rows were seen, or all of them once."""
    return train_on(
        Federation(federation.settings, federation.holdings, record=True), rows, FIRST
    )


def predictions(federation: Federation, rows: int) -> Rehearsal:
    """The joint model is asked about test rows (validation or training rows where there
    are none)."""
    models = models_of(federation)
    refused = ""
    for owner, label_owner in federation.label_owners.items():
        batches = federation.agreed[owner]
        split = next(
            name for name in ("test", "validation", "train") if name in batches.splits
        )
        asked = batches.splits[split]
        most = label_owner.rows_at_once(asked)
        chunk = batches.chunks(split, min(rows, len(asked)), most=most)[0]
        try:
            federation.algorithm.outputs(label_owner, label_owner.peers, chunk, None)
        except BudgetExhausted as error:
            refused = str(error)
    return Rehearsal(
        ASKED,
        batches,
        taken(federation),
        models,
        refused=refused,
        apart=apart_of(federation),
    )


def train_on(federation: Federation, rows: int, moment: str) -> Rehearsal:
    """Train from where a recorded federation stands, until so many rows were seen, or
    all of them once. Where every round sends all rows along a new direction, many first
    rounds are recorded, since they tell more together."""
    progress = federation.batches
    batches = next(iter(federation.agreed.values()))
    rounds = (
        ROUNDS if moment == FIRST and federation.algorithm.named(Kind.LENGTHS) else 1
    )
    count = min(-(-rows // progress.batch_size), progress.per_epoch) * rounds
    progress.epochs = max(
        progress.epochs, (progress.done + count) // progress.per_epoch + 1
    )
    models = models_of(federation)
    refused = ""
    stepped: dict[str, Tensor] = {}
    for owner in federation.owners.values():
        owner.model.zero_grad()
    try:
        for _ in islice(federation.train(), count):
            stepped = stepped or gradients(federation)
    except BudgetExhausted as error:
        refused = str(error)
    models = models_of(federation) if federation.algorithm.learns_first else models
    return Rehearsal(
        moment,
        batches,
        taken(federation),
        models,
        stepped,
        refused,
        apart=apart_of(federation),
    )


def apart_of(federation: Federation) -> dict[str, Batches]:
    return {name: agreed.one for name, agreed in federation.agreed_apart.items()}


def gradients(federation: Federation) -> dict[str, Tensor]:
    """The gradients in each party's own weights after a step; parties that are computed
    as a cohort have none there."""
    gradient_by_party = {}
    for name, owner in federation.owners.items():
        parts = [
            weight.grad for weight in owner.model.parameters() if weight.requires_grad
        ]
        if parts and all(part is not None for part in parts):
            gradient_by_party[name] = torch.cat(
                [part.detach().cpu().flatten() for part in parts if part is not None]
            )
    return gradient_by_party


def models_of(federation: Federation) -> dict[str, nn.Module]:
    federation.settle()
    return {
        name: copy.deepcopy(owner.model) for name, owner in federation.owners.items()
    }


def taken(federation: Federation) -> dict[str, Transcript]:
    """Take what was recorded since the last call."""
    assert federation.recording is not None
    transcripts = dict(federation.recording.transcripts)
    # in place: each of several label owners has a recording of its own
    federation.recording.transcripts.clear()
    return transcripts
