"""The loop around `train`: evaluate after every epoch, stop early, save, and sum up."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from colonnade.alignment.keys import counted
from colonnade.core import Step
from colonnade.core.batches import RoundDone
from colonnade.datasets.preprocess import Labels
from colonnade.errors import BudgetExhausted, ConfigError
from colonnade.evaluate import about_positive, metric
from colonnade.evaluate.metrics import WEIGHTED, beside_majority, in_order, majority
from colonnade.federation.coefficients import write_own
from colonnade.federation.guarantees import guarantees
from colonnade.federation.organisation import models_told
from colonnade.federation.scores import REPORTED, Scores
from colonnade.federation.soundness import (
    Finding,
    learned_nothing,
    rare_classes,
    say_nothing,
    silent,
)
from colonnade.federation.stopping import (
    Trainable,
    best_of,
    chosen,
    go_on,
    is_best,
    keep_best,
    take_best,
    unfinished,
    why_stop,
)
from colonnade.rows.holdings import Holdings
from colonnade.runs.layout import SETTINGS
from colonnade.runs.run_directory import RunDirectory
from colonnade.tracking import About, parameters_of, trackers_of
from colonnade.version import __version__

Record = dict[str, Any]
Watch = Callable[["Step | Record"], None]
"""Called with every step, and after each epoch with its record: for progress bars and
live views."""


COSTS_PRIVACY = "releasing training rows once more would cost privacy"
KEPT_APART = "they were kept apart for whoever trains with the settings that are chosen"
REMEMBERED = "they are the model, and each is the row that is nearest to itself"
SENT_ONCE = "training rows are sent a single time; their loss is the last epoch's"


@dataclass(repr=False)
class Outcome:
    """What came of a run: one record per epoch, why it stopped, and the summary."""

    history: list[Record] = field(default_factory=list)
    stopped: str = "all epochs done"
    exhausted: bool = False  # a party's privacy budget ended the run
    summary: Record = field(default_factory=dict)
    # of the epoch whose models were kept, which need not be the last
    best: Record | None = None
    early: str = ""  # why it stopped before the last epoch, without a number
    # by label owner: curves, counts, costs on held-out rows
    quality: dict[str, Record] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        """Show the metrics in a notebook."""
        metrics = beside_majority(self.summary)
        names = in_order(
            self.summary,
            dict.fromkeys(name for scores in metrics.values() for name in scores),
        )

        def line(name: str) -> str:
            cells = (
                "–" if scores.get(name) is None else f"{scores[name]:.4f}"
                for scores in metrics.values()
            )
            return f"<tr><th>{escape(metric(name))}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"

        head = "".join(f"<th>{escape(split)} rows</th>" for split in metrics)
        table = f"<table><tr><th></th>{head}</tr>{''.join(map(line, names))}</table>"
        positive = about_positive(self.summary)
        about = f"<p>{escape(positive)}</p>" if positive else ""
        return (
            f"{table}{about}<p>{len(self.history)} epochs; {escape(self.stopped)}</p>"
        )

    def __repr__(self) -> str:
        metrics = self.summary.get("metrics", {})
        split = next(
            (name for name in ("test", "validation", "train") if name in metrics), ""
        )
        known = {
            name: value
            for name, value in metrics.get(split, {}).items()
            if value is not None
        }
        scores = [
            f"{metric(name)} {known[name]:.4f}"
            for name in in_order(self.summary, known)
        ]
        measured = f"; on {split} rows {', '.join(scores)}" if split else ""
        return (
            f"<Outcome: {len(self.history)} epochs,"
            f" {self.stopped.rstrip('.')}{measured}>"
        )

    @property
    def reason_for_all(self) -> str:
        """Why it stopped, as every party may know it: scores, and what was spent, are
        their owners' business."""
        return (
            "a privacy budget is spent"
            if self.exhausted
            else self.early or "all epochs done"
        )


def fit(
    federation: Trainable,
    out: Path | RunDirectory | None,
    *,
    resume: bool,
    watch: Watch | None,
    unseen: Collection[str] = (),
) -> Outcome:
    """Train to the end of the last epoch, to an early stop, or until a party's budget
    is spent; tell the trackers."""
    run = RunDirectory(out) if isinstance(out, Path) else out
    if resume and run is None:
        raise ConfigError(
            "A run is resumed in its folder: fit(FOLDER, resume=True). In memory, fit()"
            " goes on by itself."
        )
    with ExitStack() as stack:
        if run is not None:
            stack.callback(run.leave)
        trackers = stack.enter_context(
            trackers_of(federation.settings.tracking, None if run is None else run.path)
        )
        outcome = Outcome(federation.history)
        finished = _begin(federation, run, outcome, resume=resume)
        clock = _Clock(sum(record["seconds"] for record in outcome.history))
        nothing_left = "" if resume else _go_on(federation, outcome)
        trackers.begin(_about(federation, run, resumed=resume))
        # where it is resumed, nobody has trained since
        if is_best(federation, outcome.history):
            keep_best(federation)

        def tell(event: Step | Record) -> None:
            trackers(event)
            if watch is not None:
                watch(event)

        _train(federation, run, outcome, clock, tell)
        best = best_of(federation, outcome.history)
        if best is not None and take_best(federation):
            outcome.best = best
        if nothing_left:
            outcome.stopped = (
                f"nothing was trained: {nothing_left} the federation anew to train from"
                " the start"
            )
        before = None if run is None else run.summary()
        outcome.summary = summarise(
            federation, outcome, clock.total(), before, finished, unseen
        )
        for finding in (
            *outcome.summary.get("findings", []),
            *outcome.summary.get("label_findings", []),
        ):
            warnings.warn(finding, Finding, stacklevel=2)
        if failures := trackers.finish(outcome.summary):
            outcome.summary["tracking"] = failures
        if run is not None:
            for owner, quality in outcome.quality.items():
                run.write_quality(owner, quality)
            write_own(
                federation,
                {name: run.party(name) for name in federation.organisations},
                federation.label_owners,
            )
            # first: a run is finished when its last checkpoint says so
            run.write_summary(outcome.summary)
            run.checkpoint(federation, finished=True)
        return outcome


def pretrain(federation: Trainable) -> None:
    """Everybody's model learns from its owner's rows alone, where [train] says so; not
    one that was trained before."""
    ways = [organisation.pretrain for organisation in federation.organisations.values()]
    mine = [learn for learn in ways if learn is not None]
    if mine and not federation.holdings.earlier:
        federation.settle()
        for learn in mine:
            learn()
        federation.restack()


def _begin(
    federation: Trainable, run: RunDirectory | None, outcome: Outcome, *, resume: bool
) -> bool:
    """Claim the run's folder, and write or take over what can be resumed; tell whether
    that had finished."""
    begun = run is not None and resume and run.begun()
    if not federation.batches.done and not begun:
        pretrain(federation)
    if run is None:
        return False
    if not resume:
        run.claim()  # first: of two that begin at once, one writes nothing
        run.begin(federation)
        for record in outcome.history:  # of what was trained before there was a run
            run.add_metrics(record)
        run.checkpoint(federation)  # from here on it can be resumed
        return False
    if changed := federation.settings.check_continues(
        run.settings(), run.path / SETTINGS
    ):
        warnings.warn(
            f"The run goes on otherwise than it was started: {'; '.join(changed)}.",
            stacklevel=3,
        )
    run.claim()
    if begun:
        run.restore(federation)
        outcome.history[:] = run.metrics()
    else:  # it was killed before it could save anything
        run.keep_accounts(federation)
        run.checkpoint(federation)
    run.keep(federation.settings)
    return begun and bool(run.mark()["finished"])


def _go_on(federation: Trainable, outcome: Outcome) -> str:
    """Let a federation that was trained before go on where training stood; say why
    nothing is left to train, or ""."""
    done = federation.batches.done
    if not done:
        return ""
    if outcome.history:
        go_on(federation)
    if 0 < len(federation.batches) <= done:
        return (
            f"all {federation.settings.train.epochs} epochs were done before. Set more"
            " epochs, or build"
        )
    if reason := why_stop(federation, outcome.history):
        return f"it had stopped early before: {reason[0]}. Build"
    warnings.warn(
        f"This federation was trained before, for {done:,} rounds, and goes on from"
        " there. To train from the start, build it anew.",
        stacklevel=3,
    )
    return ""


def _train(
    federation: Trainable,
    run: RunDirectory | None,
    outcome: Outcome,
    clock: _Clock,
    tell: Watch,
) -> None:
    """Train epoch by epoch, unless it had stopped before: measure, remember the best,
    save, see whether to stop."""
    every = federation.settings.train.checkpoint_every
    epoch = list[Step]()
    done = federation.batches.done
    reason = why_stop(federation, outcome.history)
    try:
        for step in () if reason else federation.train():
            done = step.batch.step + 1
            epoch.append(step)
            tell(step)
            if step.batch.number + 1 < federation.batches.per_epoch:
                continue
            record = _record(federation, epoch, clock)
            epoch.clear()
            outcome.history.append(record)
            if is_best(federation, outcome.history):
                keep_best(federation)
            if run is not None:
                # first: what a lost checkpoint leaves over is cut off when resuming
                run.add_metrics(record)
                if every and (step.batch.epoch + 1) % every == 0:
                    run.checkpoint(federation)
            tell(record)
            if reason := why_stop(federation, outcome.history):
                break
    except BudgetExhausted as error:
        outcome.stopped = str(error)
        outcome.exhausted = True
        federation.batches.done = done  # the batch that was refused is not done
    else:
        outcome.stopped, outcome.early = reason or (outcome.stopped, "")


def summarise(
    federation: Trainable,
    outcome: Outcome,
    took: float,
    before: Record | None,
    finished: bool,
    unseen: Collection[str],
) -> Record:
    """Final metrics, what training took, and what was promised to whom. `before` is the
    summary of the run that was resumed; if that had `finished`, what it measured is not
    measured again. Nor are the splits `unseen`."""
    settings = federation.settings
    holdings = federation.holdings
    algorithm = federation.algorithm
    private = bool(federation.accounts) or federation.elsewhere.counts
    reason = (
        COSTS_PRIVACY
        if private
        else SENT_ONCE
        if algorithm.once
        else None
        if algorithm.trains
        else REMEMBERED
    )
    same = (
        finished and before is not None and before["rounds"] == federation.batches.done
    )
    known = (
        _known(federation, outcome, before) if private or same or algorithm.once else {}
    )
    scores = _scores(
        federation, outcome, known, {*unseen, *(["train"] if reason else [])}
    )
    metrics = {split: measured.all for split, measured in scores.items()}
    findings, constant = _findings(federation, metrics, is_noisy=private)
    findings += unfinished(federation, outcome.history)
    missing = missing_of(federation)
    seen = [record.get("missing", {}) for record in outcome.history]
    several = bool(holdings.server)
    matched = len(settings.keys) > 1
    majorities, label_findings = (
        ({}, []) if several else _of_classes(federation, metrics)
    )
    only_where_there_is_some: Record = {
        "matched": (
            (holdings.matched or counted(holdings.ids.tolist(), settings.keys))
            if matched
            else {}
        ),
        "subsets": {
            split: measured.subsets
            for split, measured in scores.items()
            if measured.subsets
        },
        "majority": majorities,
        "positive": {} if several else positive_of(holdings.encoder),
        "findings": findings,
        "label_findings": label_findings,
        "constant_outputs": constant,
        "chosen": chosen(federation, outcome.history),
        "label_owners": _label_owners(holdings, scores, outcome) if several else {},
    }
    return {
        "algorithm": settings.algorithm,
        "task": holdings.encoder.task,
        "seed": settings.engine.seed,
        "device": str(federation.device),
        "parties": {name: holdings.roles(name) for name in federation.organisations},
        "models": models_told(settings, federation.organisations),
        "rows": {split: len(rows) for split, rows in federation.batches.splits.items()},
        "epochs": len(outcome.history),
        **({} if outcome.best is None else {"best_epoch": outcome.best["epoch"]}),
        "rounds": federation.batches.done,
        "stopped": outcome.stopped,
        "seconds": round(took, 3),
        "bytes": {
            name: {way: book.total(way) for way in ("out", "in")}
            for name, book in federation.ledgers.items()
        },
        "metrics": metrics,
        **{name: value for name, value in only_where_there_is_some.items() if value},
        "not_measured": (
            ({"train": reason} if reason else {}) | dict.fromkeys(unseen, KEPT_APART)
        ),
        **({} if missing is None else {"missing": _added([*seen, missing])}),
        "privacy": [guarantee.to_json() for guarantee in guarantees(federation)],
    }


def _scores(
    federation: Trainable,
    outcome: Outcome,
    known: dict[str, Scores],
    left_out: Collection[str],
) -> dict[str, Scores]:
    """Measure the splits that are not known yet, as far as budgets allow; those that a
    report is about, in detail."""
    scores = dict(known)
    for split in federation.batches.splits:
        if split not in scores and split not in left_out:
            try:
                scores[split] = federation.score(split)
            # what cannot be measured any more is left out
            except BudgetExhausted as error:
                outcome.stopped = outcome.stopped if outcome.exhausted else str(error)
                outcome.exhausted = True
    for split in [
        name
        for name in REPORTED
        if name in federation.batches.splits and name not in left_out
    ][:1]:
        details = scores[split].quality if split in scores else {}
        outcome.quality = {
            name: {"split": split, "owner": name, **quality}
            for name, quality in details.items()
        }
    return scores


def _known(
    federation: Trainable, outcome: Outcome, before: Record | None
) -> dict[str, Scores]:
    """Collect what is known about this very model already: measuring it again would
    release its rows again."""
    done = federation.batches.done
    if before is not None and before["rounds"] == done:
        owners = before.get("label_owners", {})
        subsets = before.get("subsets", {})
        return {
            split: Scores(
                dict(scores),
                {
                    name: owner["metrics"][split]
                    for name, owner in owners.items()
                    if split in owner["metrics"]
                },
                subsets=subsets.get(split, {}),
            )
            for split, scores in before["metrics"].items()
        }
    last = outcome.history[-1] if outcome.history else {}
    model = outcome.best or (last if last.get("step") == done else {})
    each = model.get("validation_each", {})
    return (
        {"validation": Scores(model["validation"], each)}
        if "validation" in model
        else {}
    )


def _findings(
    federation: Trainable, metrics: dict[str, Record], *, is_noisy: bool
) -> tuple[list[str], dict[str, list[int]]]:
    """Say in sentences what is wrong with the model, and of whose outputs how many are
    the same in all rows."""
    holdings = federation.holdings
    federation.settle()
    if federation.algorithm.nested is not None or not federation.algorithm.trains:
        return [], {}
    constant = silent(federation.owners)
    findings = say_nothing(constant)
    if holdings.label_owner in federation.label_owners:
        owner = federation.label_owners[holdings.label_owner]
        name = (
            WEIGHTED if owner.loss.weights or owner.row_weights is not None else "loss"
        )
        splits = federation.batches.splits
        finding = learned_nothing(
            owner.loss,
            name,
            owner.labels,
            splits,
            metrics,
            owner.counts,
            is_noisy=is_noisy,
        )
        findings += [finding] if finding else []
    return findings, constant


def _of_classes(
    federation: Trainable, metrics: dict[str, Record]
) -> tuple[dict[str, Record], list[str]]:
    """By split, tell the largest class's share, and whether of two classes one was
    always said; no class is named. Then say in sentences what is wrong with the labels,
    which is told to nobody who may not know them. The one label owner knows this of its
    own rows; of several, none tells the others."""
    holdings = federation.holdings
    majorities = {}
    if holdings.encoder.task != "classification":
        return {}, []
    labels = federation.label_owners[holdings.label_owner].labels
    for split, scores in metrics.items():
        share, always = majority(
            labels[federation.batches.splits[split].to(labels.device)],
            scores,
            holdings.encoder.positive,
        )
        majorities[split] = {"share": share, "always_one": always}
    return majorities, rare_classes(holdings.encoder, federation.label_owners)


def positive_of(encoder: Labels) -> Record:
    """Why one of two classes is the positive one; nothing of several classes or of
    numbers.

    The class is named only where the agreed settings name it: names of classes are the
    label owner's, and others may read a summary.
    """
    name = encoder.positive_class
    if name is None:
        return {}
    by = encoder.positive_by
    return {"by": by, "class": name} if by == "setting" else {"by": by}


def _label_owners(
    holdings: Holdings, scores: dict[str, Scores], outcome: Outcome
) -> dict[str, Record]:
    """By label owner: its rows, how good the joint model is on them, and the rounds in
    which it was left out."""
    return {
        name: {
            "rows": {split: len(rows) for split, rows in share.splits.items()},
            "metrics": {
                split: known.each[name]
                for split, known in scores.items()
                if name in known.each
            },
            "left_out": [
                record["epoch"]
                for record in outcome.history
                if name in record.get("left_out", {})
            ],
        }
        for name, share in holdings.label_owners.items()
    }


class _Clock:
    """Seconds of training, over all the pieces of a resumed run."""

    def __init__(self, before: float) -> None:
        self.before = before
        self.start = time.perf_counter()
        self.marked = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        seconds = now - self.marked
        self.marked = now
        return seconds

    def total(self) -> float:
        return self.before + time.perf_counter() - self.start


def _about(federation: Trainable, run: RunDirectory | None, *, resumed: bool) -> About:
    """Collect what trackers are told first."""
    settings = federation.settings
    holdings = federation.holdings
    tags = {
        "algorithm": settings.algorithm,
        "task": holdings.encoder.task,
        "device": str(federation.device),
        "parties": " ".join(holdings.names),
        "colonnade": __version__,
    }
    name = "run" if run is None else run.path.resolve().name
    return About(
        name,
        parameters_of(settings.to_mapping()),
        tags,
        federation.batches.done,
        resumed,
    )


def _record(federation: Trainable, steps: list[Step], clock: _Clock) -> Record:
    batch, rows = steps[-1].batch, sum(step.batch.size for step in steps)
    record: Record = {
        "epoch": batch.epoch + 1,
        "step": batch.step + 1,
        # the last batch may be shorter
        "loss": sum(step.loss * step.batch.size for step in steps) / rows,
        "seconds": round(clock.lap(), 4),
        "bytes": sum(book.total("out") for book in federation.ledgers.values()),
    }
    if isinstance(steps[-1], RoundDone):
        record |= {
            "losses": dict(steps[-1].losses),
            "left_out": dict(steps[-1].left_out),
        }
    if "validation" in federation.batches.splits:
        scores = federation.score("validation")
        record["validation"] = scores.all
        record |= {"validation_each": scores.each} if scores.each else {}
    if accounts := federation.accounts:
        record["epsilon"] = {name: account.worst for name, account in accounts.items()}
    missing = missing_of(federation)
    return record if missing is None else record | {"missing": missing}


def missing_of(federation: Trainable) -> Record | None:
    """Count what was done without each party's answer since this was last asked; None
    where each must answer."""
    minding = [
        owner.peers.missing
        for owner in federation.label_owners.values()
        if owner.peers.missing is not None
    ]
    return _added([missing.take() for missing in minding]) if minding else None


def _added(counts: list[Record]) -> Record:
    total: Record = {}
    for by_party in counts:
        for party, times in by_party.items():
            total.setdefault(party, Counter()).update(times)
    return total
