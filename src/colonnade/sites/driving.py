"""The driver's side of a run between sites, from joining to the summaries; `sites.site`
has the order of calls."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch

from colonnade.core import Organisation, Peers
from colonnade.datasets.preprocess import Labels
from colonnade.datasets.table import packed
from colonnade.errors import (
    BoundaryError,
    CheckpointError,
    ConfigError,
    NoAnswer,
    PartyError,
)
from colonnade.evaluate.metrics import HEADLINE, SCORES
from colonnade.federation.federation import Elsewhere, Federation
from colonnade.federation.fit import Outcome, Watch, fit
from colonnade.federation.organisation import agreed_on, organise, training_rows
from colonnade.federation.scores import Scores, mean_scores
from colonnade.privacy.used_rows import SIDES
from colonnade.rows.holdings import Holdings, labelled_rows
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.party_file import SiteConfig
from colonnade.settings.selection import SERVER
from colonnade.sites.host import check_run
from colonnade.sites.label_sets import labels_alone
from colonnade.sites.messages import Align, GetReady, Join, Measure, Ready
from colonnade.sites.participant import Saves, keep_start
from colonnade.sites.reader import own_columns
from colonnade.sites.site import Site

log = logging.getLogger("colonnade.party")
MOST_COUNTED = 1 << 26
"""Rows of one label owner: an aggregation server finds a gigabyte for the numbers of so
many."""


def drive(
    site: Site, run: str, *, resume: bool = False, watch: Watch | None = None
) -> Outcome:
    """Train with the others; this organisation's part is in its own folder."""
    own = site.own
    if not own.drives:
        raise BoundaryError(
            f"'{own.name}' does not drive; in the federation it agreed to,"
            f" '{own.driver}' does."
        )
    check_run(run)
    return (_label_owner if site.holds_labels else _aggregate)(
        site, RunDirectory(own.runs / run), resume, watch
    )


def _label_owner(
    site: Site, folder: RunDirectory, resume: bool, watch: Watch | None
) -> Outcome:
    """Drive those who hold columns, as the one label owner."""
    own = site.own
    others = site.meet()
    site.align()
    saves = Saves(
        folder, others, lenient=own.settings.engine.on_missing in ("stale", "skip")
    )
    number = saves.go_back() if resume else 0
    step = folder.mark()["step"] if number else 0
    labels = site.own_labels(folder if number else None)
    federation = site.prepare(
        folder.path, labels, number if resume else None, step, run_id=folder.id
    )
    keep_start(folder, federation, own.name, resumed=number > 0)
    return _train(federation, folder, saves, number, watch, lenient=saves.lenient)


def _aggregate(
    site: Site, folder: RunDirectory, resume: bool, watch: Watch | None
) -> Outcome:
    """Drive several label owners, as the aggregation server."""
    others = met(site)
    # who is silent misses a round, and may miss a checkpoint
    saves = Saves(folder, others, lenient=True)
    number = saves.go_back() if resume else 0
    ready = others.ask(GetReady(folder.path.name, resume, number, run_id=folder.id))
    step = folder.mark()["step"] if number else 0
    for name, answer in ready.items():
        if answer.step != step:
            at = f"'{name}' is at round {answer.step} of this run"
            raise CheckpointError(f"{at}, and {step} are done. Start a new one.")
    return _train(
        aggregation(site, ready, others), folder, saves, number, watch, lenient=False
    )


def met(site: Site) -> Peers:
    """Meet the label owners, who then know which rows they share with data owners;
    there is no line to anybody else."""
    own = site.own
    for name in set(site.routes) - set(own.label_owners):
        del site.routes[name]
    others = site.peers(own.label_owners)
    others.ask(Join(own.agreed))
    others.ask(Align())
    return others


def _train(
    federation: Federation,
    folder: RunDirectory,
    saves: Saves,
    number: int,
    watch: Watch | None,
    *,
    lenient: bool,
) -> Outcome:
    """Train, and have everybody save after each checkpoint, and at the end close;
    `lenient` is about the end."""
    federation.elsewhere.best = saves.best
    watch = saves.after(federation.settings.train.checkpoint_every, watch)
    outcome = fit(federation, folder, resume=number > 0, watch=watch)
    saves.lenient = lenient
    saves.save(federation.batches.done)
    saves.close(outcome)
    return outcome


def aggregation(
    site: Site, ready: dict[str, Ready], others: Peers, *, record: bool = False
) -> Federation:
    """Build the aggregation server, whose label owners are all elsewhere. It knows of
    each how many rows it has, its losses and scores, and its weights: nothing by row,
    no id, and nothing of who holds columns."""
    nobody = np.array([], dtype=np.str_)
    owners = {}
    start = 0
    for name, about in ready.items():
        _check(name, about)
        splits = {}
        count = 0
        for split, rows in about.rows.items():
            splits[split], count = torch.arange(count, count + rows), count + rows
        owners[name] = labelled_rows(
            site.own.settings, name, nobody, splits, torch.arange(start, start + count)
        )
        start += count
    task: Any = next(iter(ready.values())).task
    holdings = Holdings(
        {}, owners, packed(nobody), Labels(SERVER, task), server=(SERVER,)
    )

    def score(split: str, model: str | None) -> Scores:
        """Each label owner measures its own rows; the mean is weighted by rows. Who is
        silent is left out of it."""
        measured, failed = others.attempt(
            dict.fromkeys(others, Measure(split, model or "aggregated"))
        )
        for error in failed.values():
            if not measured or not isinstance(error, NoAnswer):
                raise error
            log.warning("%s The score is without it.", error)
        for name, answer in measured.items():
            fits = answer.scores.keys() <= SCORES and 0 <= answer.rows <= MOST_COUNTED
            if not fits or (answer.rows and "loss" not in answer.scores):
                cause = (
                    f"{str(dict(answer.scores))[:80]!r} are no scores of {answer.rows}"
                    " rows"
                )
                raise PartyError(name, Measure.kind, None, cause)
        answers = {name: answer for name, answer in measured.items() if answer.rows}
        if not answers:
            there = ", ".join(
                {split for about in ready.values() for split in about.rows}
            )
            raise ConfigError(
                f"No label owner has rows called {split!r}; there are {there}."
            )
        each = {name: dict(answer.scores) for name, answer in answers.items()}
        return Scores(
            mean_scores(each, {name: answer.rows for name, answer in answers.items()}),
            each,
        )

    elsewhere = Elsewhere(
        {SERVER},
        list(ready),
        score,
        counts=any(about.counts for about in ready.values()),
    )
    return Federation(
        site.own.local,
        holdings,
        record=record,
        between=lambda *_: site.carrier(),
        elsewhere=elsewhere,
    )


def _check(name: str, ready: Ready) -> None:
    """Check that the server has room for what a label owner says of its rows."""
    fits = (
        all(split in SIDES and rows >= 0 for split, rows in ready.rows.items())
        and ready.task in HEADLINE
    )
    if not fits or sum(ready.rows.values()) > MOST_COUNTED:
        cause = (
            f"it says that it has {str(ready.rows)[:80]} rows for {ready.task[:20]!r};"
            f" at most {MOST_COUNTED:,} fit"
        )
        raise PartyError(name, Ready.kind, None, cause)


def rehearse(own: SiteConfig) -> tuple[Holdings, Organisation] | None:
    """Build what an organisation can check by itself before anybody calls: its table,
    columns, model, rules and budget, as if it shared all its rows; one without data has
    none of these."""
    if own.name not in (*own.label_owners, *own.feature_owners):
        return None
    site = Site(own)
    site.read()
    table = site.table
    if own.name in own.feature_owners:
        ids = {} if table is None else dict.fromkeys(own.label_owners, table.ids)
        holdings = own_columns(own, table, ids, outputs=1)
    else:
        holdings = labels_alone(own, table)
    settings = own.local.for_rows(training_rows(holdings), holdings.outputs)
    return holdings, organise(
        own.name, settings, holdings, agreed_on(settings, holdings), torch.device("cpu")
    )
