"""vFedCCE's Table 1 and Figure 2 on South German Credit, and the same epoch encrypted.

combinedNN is the same network on all columns in one place: a federation of one, whose
gradient is plain backpropagation. Each seed has its own training and test rows, initial
weights, batches and dropout.
"""

from __future__ import annotations

import dataclasses
import time
import warnings

import torch
from torch import Tensor

from colonnade.federation import Federation, Settings
from colonnade.reproduction import Study

SCORES = {"precision": "precision", "recall": "recall", "f1": "F-score", "auc": "AUC"}


def run(study: Study) -> None:
    settings = study.settings()
    epoch = max(study.plan.epochs)
    with warnings.catch_warnings():
        # public data, and this process holds all of it
        warnings.filterwarnings("ignore", "vfedcce in plaintext")
        for seed in study.plan.seeds:
            found = {}
            for title, chosen in (
                ("combinedNN", combined(settings)),
                ("vFedCCE", settings),
            ):
                found[title] = study.train(title, chosen, seed).evaluate("test")
                study.record(
                    f"{title}, training loss, epoch {epoch}",
                    study.losses[title][-1][-1][1],
                    "",
                )
                for score, name in SCORES.items():
                    study.record(f"{title}, {name}, epoch {epoch}", found[title][score])
            less = found["combinedNN"]["accuracy"] - found["vFedCCE"]["accuracy"]
            study.record(f"accuracy, combinedNN less vFedCCE, epoch {epoch}", less)
        encrypted(study, settings, study.plan.seeds[0])


def combined(settings: Settings) -> Settings:
    """All columns at the label owner."""
    columns = [
        column for party in settings.parties.values() for column in party.columns or ()
    ]
    owner = settings.data.labels_at
    party = settings.parties[owner].changed(columns=tuple(columns))
    return dataclasses.replace(settings, parties={owner: party})


def encrypted(study: Study, settings: Settings, seed: int) -> None:
    """One epoch as it is and one under encryption, with the default scheme: how far
    apart the models are then."""
    models = {}
    for mode in ("plaintext", "encrypted-coefficients"):
        federation = study.federation(in_mode(settings, mode), seed)
        start = time.process_time()
        for step in federation.train():
            if study.watch is not None:
                study.watch(f"{mode}, seed {seed}", step)
        study.record(
            f"one epoch, {mode}, processor seconds", time.process_time() - start, "s"
        )
        models[mode] = federation
    plain, hidden = models.values()
    for what, of in (("weight", weights), ("probability", probabilities)):
        most = float((of(hidden) - of(plain)).abs().max())
        study.record(f"one epoch encrypted, largest difference of a {what}", most, "")


def in_mode(settings: Settings, mode: str, epochs: int = 1) -> Settings:
    return dataclasses.replace(
        settings,
        config=settings.config.changed(mode=mode),
        train=settings.train.changed(epochs=epochs),
    )


def weights(federation: Federation) -> Tensor:
    federation.settle()
    parameters = [
        weight
        for owner in federation.owners.values()
        for weight in owner.model.parameters()
    ]
    return torch.cat([weight.detach().double().flatten() for weight in parameters])


def probabilities(federation: Federation) -> Tensor:
    return federation.holdings.loss.scores(federation.outputs("test")).double()
