"""A small random search for settings, by validation rows alone. Test rows are not
looked at.

    trial 0          the file's own settings
    trial 1, 2 ...   each drawn by the seed and its number, so that a search that is resumed draws the same

Each trial is a run with a directory of its own. What is drawn follows from what the
algorithm has: how fast it learns and how much it is held back (`SCALED`), the rows of a
batch, and where organisations have models that learn, how wide these are and how
numbers are prepared. How long to train is left to early stopping.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from colonnade.algorithms import find
from colonnade.core import Step
from colonnade.core.files import write_text
from colonnade.errors import CheckpointError, ConfigError, Diverged, PartyError
from colonnade.federation import Federation, Settings
from colonnade.federation.fit import fit
from colonnade.federation.guarantees import planned_releases
from colonnade.federation.stopping import judged
from colonnade.planning.budgets import ROOM, epsilon_of, expected
from colonnade.planning.plan import plan
from colonnade.runs.layout import SETTINGS
from colonnade.runs.run_directory import to_json
from colonnade.settings.changes import laid_over
from colonnade.settings.sections import NUMBERS

SCALED = ("learning_rate", "rho", "l2")
"""Settings of algorithms that are tried between a quarter and four times what they are.
"""
SPREAD = 4.0
UNSEEN = "test"
STARTED = "started.toml"
TRIALS = "trials.jsonl"
BEGUN = "begun.txt"
"""In the folder of a search: the settings that it began with, a line for each finished
trial, and one for each time that a trial was begun."""

Record = dict[str, Any]
Draw = Callable[[random.Random], Any]


@dataclass(frozen=True)
class Trial:
    """Settings to be tried, and how they differ from the file."""

    number: int
    changes: dict[str, Any]  # by dotted key
    settings: Settings

    def folder(self, out: Path) -> Path:
        return out / f"trial-{self.number:03d}"


@dataclass(frozen=True)
class Forecast:
    """What the trials that are not done will take at most, and what all of them
    together spend."""

    sends: int  # bytes
    seconds: float
    # that are paid for: one that was broken off releases rows again when it goes on
    runs: int
    # of each party whose rules promise something, against who knows the batches
    epsilon: dict[str, float]


def choices(settings: Settings) -> dict[str, Draw]:
    """The settings that are searched over, by dotted key, each with a function that
    draws a value."""
    algorithm = find(settings.algorithm)
    draws: dict[str, Draw] = {}
    for name in SCALED:
        value = vars(settings.config).get(name)
        if isinstance(value, float) and value > 0:
            draws[f"algorithm.{name}"] = _scaled(value)
    size = settings.train.batch_size
    if (
        algorithm.config.in_batches
        and algorithm.trains
        and settings.train.sampling == "epoch"
    ):
        draws["train.batch_size"] = _one_of(sorted({max(size // 2, 1), size, size * 2}))
    if algorithm.local_model is None:
        return draws
    hidden = settings.model.get("hidden")
    if algorithm.intercept is None and settings.model.get("name") == "mlp" and hidden:
        draws["model.hidden"] = _one_of(
            [[max(int(n * by), 1) for n in hidden] for by in (0.5, 1, 2)]
        )
    if settings.data.dataset is None:
        draws["preprocess.numbers"] = _one_of(
            list(dict.fromkeys([settings.preprocess.numbers, *NUMBERS]))
        )
    return draws


def draw(settings: Settings, runs: int) -> list[Trial]:
    """Draw so many trials, of which the first has the settings as they are."""
    drawn = choices(settings)
    if not drawn and runs > 1:
        raise ConfigError(
            f"There is nothing to search over with {settings.algorithm}: it has none of"
            " these settings."
        )
    trials = [Trial(0, {}, settings)]
    for number in range(1, runs):
        chance = random.Random(f"{settings.engine.seed}/{number}")
        changes = {key: choose(chance) for key, choose in drawn.items()}
        tables = laid_over(
            settings.to_mapping(),
            [(tuple(k.split(".")), v) for k, v in changes.items()],
            "the search",
        )
        tried = Settings.from_mapping(
            tables, allow_models=settings.allow_models, saved=True
        )
        trials.append(Trial(number, changes, tried))
    return trials


def begin(settings: Settings) -> Federation:
    """Build the federation of the file; raise where its validation rows cannot compare
    settings."""
    federation = Federation.from_settings(settings)
    federation.settings.check_one_label_owner()
    if "validation" not in federation.batches.splits:
        raise ConfigError(
            "A search compares settings by validation rows, and there are none. Set"
            " [data] validation."
        )
    if drawn := federation.drawn_by:
        raise ConfigError(
            f"The labels of '{min(drawn)}' are drawn at random, anew in each run: every"
            " trial would tell more about them than its epsilon allows. Search without"
            " the rule on data that need none, or set values by hand."
        )
    return federation


def forecast(
    federation: Federation,
    trials: Sequence[Trial],
    done: Mapping[int, Record],
    out: Path,
) -> Forecast:
    """Forecast bytes and seconds by a plan for each batch size: what crosses depends on
    no other setting that is tried. Raise where a party's budget does not cover every
    trial, done or not; those that were broken off count again."""
    begun = (
        (out / BEGUN).read_text(encoding="utf-8").splitlines()
        if (out / BEGUN).exists()
        else []
    )
    runs = len(begun) + sum(trial.number not in done for trial in trials)
    again = f" ({runs - len(trials)} of them broken off)" if runs > len(trials) else ""
    epsilon = {}
    for party, account in federation.accounts.items():
        planned = [
            (b, split, n * runs)
            for b, split, n in planned_releases(federation, party)
            if split != UNSEEN
        ]
        epsilon[party] = spent = epsilon_of(expected(federation, party, planned))
        if account.budget is not None and spent > account.budget.epsilon * ROOM:
            raise ConfigError(
                f"'{party}' has a budget of epsilon {account.budget.epsilon:g}, and"
                f" {runs} runs{again} of {federation.settings.train.epochs} epochs"
                f" would spend {spent:.3g}. Nothing was sent. Search with fewer runs or"
                " epochs, with more noise (a number for sigma), or raise the budget."
            )
    sizes = [
        trial.settings.train.batch_size for trial in trials if trial.number not in done
    ]
    sends = 0
    seconds = 0.0
    for size in set(sizes):
        train = federation.settings.train.changed(batch_size=size)
        planned_run = plan(replace(federation.settings, train=train), batches=2)
        sends += sizes.count(size) * sum(party.sends for party in planned_run.parties)
        seconds += sizes.count(size) * planned_run.seconds.total
    return Forecast(sends, seconds, runs, epsilon)


def finished(out: Path, settings: Settings) -> dict[int, Record]:
    """The trials that are done in this folder; none where it is new."""
    text = settings.to_toml()
    started = out / STARTED
    if not started.exists():
        if out.exists() and any(out.iterdir()):
            raise ConfigError(
                f"{out} holds something else than a search. Choose another --out."
            )
        return {}
    if started.read_text(encoding="utf-8") != text:
        raise ConfigError(
            f"The search in {out} was begun with other settings or another seed, which"
            f" {started} has. Undo the change, or choose another --out."
        )
    done: dict[int, Record] = {}
    lines = (
        (out / TRIALS).read_text(encoding="utf-8").splitlines()
        if (out / TRIALS).exists()
        else []
    )
    for line in lines:
        try:
            record = json.loads(line)
            # an earlier version wrote none: refused
            done[int(record["trial"])] = {"score": record["score"], **record}
        except (ValueError, KeyError, TypeError):
            cure = "Remove the line: it is tried again."
            raise CheckpointError(
                f"{out / TRIALS} has a line that is no trial. {cure}"
            ) from None
    return done


def search(
    trials: Sequence[Trial],
    out: Path,
    done: dict[int, Record],
    watch: Callable[[float, dict[int, Record]], None],
) -> dict[int, Record]:
    """Run the trials that are not done, one after the other, and write each down as it
    ends. `watch` gets how many trials are done, with the part of the running one."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / STARTED).exists():
        write_text(out / STARTED, trials[0].settings.to_toml())
    for trial in trials:
        if trial.number in done:
            continue
        # first: what is released counts, however it ends
        with (out / BEGUN).open("a", encoding="utf-8") as file:
            file.write(f"{trial.number}\n")
        done[trial.number] = _run_trial(
            trial, out, lambda part: watch(len(done) + part, done)
        )
        write_text(
            out / TRIALS, "".join(to_json(record) + "\n" for record in done.values())
        )
        watch(len(done), done)
    return done


def _run_trial(trial: Trial, out: Path, watch: Callable[[float], None]) -> Record:
    folder = trial.folder(out)
    federation = Federation.from_settings(trial.settings)

    def on_step(event: Step | Record) -> None:
        if isinstance(event, Step):
            watch(event.batch.step / len(federation.batches))

    record: Record = {
        "trial": trial.number,
        "changes": trial.changes,
        "run": folder.name,
    }
    try:
        summary = fit(
            federation,
            folder,
            resume=(folder / SETTINGS).exists(),
            watch=on_step,
            unseen=(UNSEEN,),
        ).summary
    # these settings are no good, and others may be
    except (Diverged, PartyError) as error:
        sent = sum(book.total("out") for book in federation.ledgers.values())
        return record | {
            "failed": str(error),
            "score": None,
            "validation": {},
            "sent": sent,
        }
    sent = sum(traffic["out"] for traffic in summary["bytes"].values())
    ending = {
        key: summary.get(key) for key in ("best_epoch", "epochs", "stopped", "seconds")
    }
    scores = summary["metrics"].get("validation", {})
    # as early stopping does
    by, judgements = judged(federation, [{"validation": scores}] if scores else [])
    score = judgements[0] if judgements else None
    return (
        record | {"by": by, "score": score, "validation": scores, "sent": sent} | ending
    )


def ranked(done: Mapping[int, Record]) -> list[Record]:
    """The best trial first; of equal scores the lower loss, as early stopping has it,
    and then the earlier trial."""
    in_turn = [done[number] for number in sorted(done)]
    return sorted(
        in_turn, key=lambda record: tuple(record["score"] or (-math.inf,)), reverse=True
    )


def best(done: Mapping[int, Record]) -> Record:
    """The first of the trials, where any could be measured."""
    winner = ranked(done)[0]
    if winner["score"] is None:
        reason = done[min(done)].get("failed", "no validation score")
        raise ConfigError(f"No trial could be measured. The first: {reason}")
    return winner


def _scaled(value: float) -> Draw:
    return lambda chance: float(f"{value * SPREAD ** chance.uniform(-1, 1):.2g}")


def _one_of(values: Sequence[Any]) -> Draw:
    return lambda chance: chance.choice(values)
