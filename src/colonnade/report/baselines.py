"""What the joint model is compared with: each party's columns alone, and all columns in
one place.

Both need every table on one machine, with the labels, so they exist in simulations and
where partners allow it. Nothing crosses between organisations and no budget pays: these
are other models, trained without noise by somebody who has all tables anyway.

Where several organisations hold labels, each of them is tried alone: with its own rows
and all columns.
"""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from colonnade.core import files
from colonnade.core.files import write_text
from colonnade.errors import ColonnadeError, ConfigError
from colonnade.evaluate.metrics import HEADLINE, lead
from colonnade.explain.experiments import only
from colonnade.federation import Federation, Settings
from colonnade.federation.scores import measured
from colonnade.federation.soundness import Finding
from colonnade.report.facts import BASELINES, Plain
from colonnade.report.words import capital
from colonnade.rows.holdings import Columns, Holdings, read_tables
from colonnade.rows.making import from_tables
from colonnade.rows.matching import in_common
from colonnade.rows.public import from_dataset
from colonnade.runs.run_directory import RunDirectory, plain

Scores = dict[str, float]
Say = Callable[[str, int, int], None]
"""Called before each training with its title, its number, and how many there are."""

ALONE = (
    "Each party alone: the run's algorithm, model and settings with this party's"
    " columns and the labels, without noise"
)
OWNER_ALONE = (
    "Each label owner alone: the run's algorithm, model and settings with its own rows"
    " and everybody's columns, without noise; tested on its own rows, as the joint"
    " model is beside it"
)
TOGETHER = "In one place: the same with one party that holds all columns"
USUAL = {
    "gradient boosting in one place": (
        "scikit-learn's HistGradientBoosting on all columns, as it comes"
    ),
    "linear model in one place": (
        "scikit-learn's logistic regression, or ridge regression of numbers, on all"
        " columns"
    ),
}
"""What a data scientist with all tables would try first, whatever the run's own model
is."""
SAME = "The same rows are trained on and tested on as in the run"


Kept = defaultdict[tuple[str, str], list[Scores]]
"""Scores by kind and name, one for each split of the rows: ("alone", party); ("joint",
""); ("together", ""), of all columns in one place; ("usual", model); with several label
owners, ("each", owner), of the joint model on its rows."""
Job = tuple[str, Callable[[], Sequence[str]]]
Jobs = Callable[[int, bool], Iterator[Job]]
"""What to train for a seed, and whether that includes the joint model again. A training
gives its own findings."""


def measure(
    folder: Path,
    *,
    splits: int = 1,
    say: Say | None = None,
    allow_models: Sequence[str] = (),
) -> Plain:
    """Train the baselines of a finished run and keep them in its baselines.json. With
    several `splits`, the first is the run's own; for each other one a new seed divides
    the rows anew, and the joint model is trained again too."""
    run = RunDirectory(folder)
    settings = run.settings(allow_models)
    summary = run.summary()
    run.check_whole()
    if summary is None:
        raise ConfigError(
            f"{folder} has no summary yet: baselines are compared with a finished run."
            " Finish it first."
        )
    where = next(
        (split for split in ("test", "validation") if split in summary["metrics"]), None
    )
    if where is None:
        raise ConfigError(
            "The run has no scores on test or validation rows, so there is nothing to"
            " compare with."
        )
    started = time.perf_counter()
    scores = Kept(list, {("joint", ""): [summary["metrics"][where]]})
    for owner, about in summary.get("label_owners", {}).items():
        scores["each", owner] = (
            [about["metrics"][where]] if where in about["metrics"] else []
        )
    several = bool(settings.label_owners)
    alone = partial(_several_label_owners, settings, scores, where)
    prepared = alone if several else _one_label_owner(settings, scores, where)
    notes: list[str] = []
    number = 0
    total = 0
    for split in range(splits):
        jobs = list(prepared(settings.engine.seed + split, bool(split)))
        # after the first, the joint model is one more
        total = total or splits * len(jobs) + splits - 1
        for title, train in jobs:
            number += 1
            if say is not None:
                say(title, number, total)
            try:
                # it would read as one on the run
                with warnings.catch_warnings(action="ignore", category=Finding):
                    notes += [
                        f"{title}, trained to compare with: {finding}"
                        for finding in train()
                    ]
            # the report notes what an algorithm cannot do with these columns
            except ColonnadeError as error:
                notes.append(f"{title} could not be trained: {error}")

    def of(kind: str) -> dict[str, list[Scores]]:
        return {
            name: values
            for (group, name), values in scores.items()
            if group == kind and values
        }

    usual = [
        f"{capital(name)}: {how}" for name, how in USUAL.items() if name in of("usual")
    ]
    divided = "" if splits == 1 else f", and {splits - 1} times with rows divided anew"
    measured_baselines = {
        "metric": lead(summary) or HEADLINE[str(summary["task"])],
        "split": where,
        "rows": summary["rows"][where],
        "splits": splits,
        "alone": of("alone"),
        "joint": scores["joint", ""],
        "together": scores["together", ""],
        "usual": of("usual"),
        **({"each": of("each")} if several else {}),
        "how": [
            *([OWNER_ALONE] if several else [ALONE, TOGETHER]),
            *usual,
            SAME + divided,
        ],
        "notes": list(dict.fromkeys(notes)),
        "seconds": round(time.perf_counter() - started, 3),
    }
    write_text(
        folder / BASELINES, files.json_with_digest(plain(measured_baselines), indent=2)
    )
    return measured_baselines


def _one_label_owner(settings: Settings, scores: Kept, where: str) -> Jobs:
    """What to train for a seed, with one label owner. Tables are read and aligned once."""
    tables: Mapping[str, Any] = {}
    if settings.data.dataset is None:
        tables = read_tables(settings)
        if settings.data.align == "private":
            owner = next(
                name for name, table in tables.items() if table.label is not None
            )
            tables, _ = in_common(settings, tables, owner)
            settings = replace(settings, data=settings.data.changed(align="exact"))

    def jobs(seed: int, again: bool) -> Iterator[Job]:
        seeded = settings.with_seed(seed)
        holdings = from_tables(seeded, tables) if tables else from_dataset(seeded)
        for party in holdings.columns:
            kept = _without_rules(seeded, [party, holdings.label_owner])
            yield (
                f"{party} alone",
                partial(
                    _train, kept, only(holdings, [party]), where, scores["alone", party]
                ),
            )
        if again:
            yield (
                "together",
                partial(_train, seeded, holdings, where, scores["joint", ""]),
            )
        whole = joined(seeded, holdings)
        if whole is not None:
            yield (
                "all in one place",
                partial(
                    _train,
                    _without_rules(seeded, []),
                    whole,
                    where,
                    scores["together", ""],
                ),
            )
            for name in (
                USUAL if whole.columns[whole.label_owner].features.dim() == 2 else ()
            ):
                yield name, partial(_usual, name, whole, where, scores["usual", name])

    return jobs


def _train(
    settings: Settings, holdings: Holdings, where: str, scores: list[Scores]
) -> Sequence[str]:
    federation = Federation(settings, holdings)
    findings: list[str] = federation.fit().summary.get("findings", [])
    scores.append(federation.evaluate(where))
    return findings


def _usual(
    name: str, whole: Holdings, where: str, scores: list[Scores]
) -> Sequence[str]:
    """Train scikit-learn's model on the training rows, and score it as the joint model
    is."""
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )
    from sklearn.linear_model import LogisticRegression, Ridge

    x = whole.columns[whole.label_owner].features.double().numpy()
    y = whole.labelled.labels.flatten().numpy()
    train = whole.splits["train"].numpy()
    test = whole.splits[where]
    numbers = whole.encoder.task == "regression"
    boosts = name == next(iter(USUAL))
    model: Any = (
        HistGradientBoostingClassifier(random_state=0)
        if boosts
        else LogisticRegression(max_iter=1000)
    )
    if numbers:
        model = HistGradientBoostingRegressor(random_state=0) if boosts else Ridge()
    model.fit(x[train], y[train])
    if numbers:
        outputs = torch.from_numpy(model.predict(x[test.numpy()]))[:, None]
    else:
        chances = torch.from_numpy(model.predict_proba(x[test.numpy()])).clamp(
            1e-9, 1 - 1e-9
        )
        outputs = (
            chances.log()
            if chances.shape[1] > 2
            else (chances[:, 1:] / chances[:, :1]).log()
        )
    scores.append(measured(whole, outputs.float(), whole.labelled.labels[test]))
    return ()


def _several_label_owners(
    settings: Settings, scores: Kept, where: str, seed: int, again: bool
) -> Iterator[Job]:
    """What to train for a seed, with several label owners: each of them by itself."""
    seeded = settings.with_seed(seed)
    # for its rows; it is trained only where it must be
    joint = Federation.from_settings(seeded)

    def alone(owner: str) -> Sequence[str]:
        rules = {owner: seeded.label_owners[owner].changed(outbox={})}
        own = replace(_without_rules(seeded, list(seeded.parties)), label_owners=rules)
        share = replace(
            joint.holdings,
            label_owners={owner: joint.holdings.label_owners[owner]},
            known_to=1,
        )
        return _train(own, share, where, scores["alone", owner])

    def together() -> Sequence[str]:
        findings: list[str] = joint.fit().summary.get("findings", [])
        of_joint = joint.score(where)
        scores["joint", ""].append(of_joint.all)
        for owner, of_owner in of_joint.each.items():
            scores["each", owner].append(of_owner)
        return findings

    for owner in seeded.label_owners:
        yield f"{owner} alone", partial(alone, owner)
    if again:
        yield "together", together


def _without_rules(settings: Settings, parties: list[str]) -> Settings:
    """The settings with these parties, without rules and budgets, since nothing leaves."""
    kept = {
        name: party.changed(outbox={}, budget=None)
        for name, party in settings.parties.items()
        if name in parties
    }
    return replace(settings, parties=kept)


def joined(settings: Settings, holdings: Holdings) -> Holdings | None:
    """The label owner with everybody's columns; None where parts cannot be laid side by
    side."""
    features = [held.features for held in holdings.columns.values()]
    if all(part.dim() == 2 for part in features):
        whole = torch.cat(features, dim=1)
    elif settings.data.dataset is not None and settings.data.split in (
        "columns",
        "strips",
        "patches",
    ):
        parts: Any = (1, 1) if settings.data.split == "patches" else 1
        uncut = from_dataset(
            replace(
                settings,
                data=settings.data.changed(parts=parts, patch=None),
                parties={},
            )
        )
        whole = next(held.features for held in uncut.columns.values())
    else:
        return None
    return replace(holdings, columns={holdings.label_owner: Columns(whole)})
