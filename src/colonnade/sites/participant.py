"""An organisation's own part of a run at its site: its folder of the run, its
checkpoints, its summary.

Each saves itself, and a run continues from what all have:

    driver                                       every other organisation
    its own checkpoint n
    Save n, keep m                          ->   its own checkpoint n; m stays, whatever lies between goes
    when all have answered, m = n
    KeepBest, at the end TakeBest           ->   its models when validation rows scored best, part of its checkpoints

m is the last one that all are known to have. So wherever a run breaks off, everybody
still has m, and at most one newer one besides: whoever is killed while it saves, two
are enough. To resume, the driver asks who has which (`Kept`) and all go back to the
newest that all have; what lies after it is trained again, from the same state, to the
same bits. What a budget spent stays spent: accounts are never taken back.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.core import Message, Party, Peers, Request, Step, files
from colonnade.core.files import write_text
from colonnade.core.party import Bounds
from colonnade.core.wire import Envelope
from colonnade.errors import CheckpointError, ConfigError, NoAnswer, StoreError
from colonnade.federation.coefficients import write_own
from colonnade.federation.federation import Federation
from colonnade.federation.fit import Outcome, Record, Watch, missing_of, pretrain
from colonnade.federation.guarantees import guarantees
from colonnade.federation.organisation import check_affordable, models_told
from colonnade.federation.soundness import say_nothing, silent
from colonnade.federation.stopping import keep_best, take_best
from colonnade.privacy import Account
from colonnade.privacy.plain_count import PlainCount
from colonnade.privacy.used_rows import UsedRows
from colonnade.runs.layout import HELD_OUT, SETTINGS, STARTED
from colonnade.runs.run_directory import WORDS, RunDirectory, column_of_people
from colonnade.runs.stores import A_RUN, is_run, open_site_store
from colonnade.settings.federation_file import Settings
from colonnade.settings.party_file import SiteConfig
from colonnade.sites.messages import Close, KeepBest, Kept, Save, TakeBest
from colonnade.store import SiteStore


def as_trained(settings: Settings, run: RunDirectory) -> Settings:
    """Give an organisation's own settings the algorithm and the models that a run was
    trained with: its files may say something else by now, and so may what is suggested
    where they say nothing."""
    if not (run.path / SETTINGS).exists():
        return settings
    then = run.settings(settings.allow_models)
    parties = {
        name: (
            party.changed(model=then.parties[name].model)
            if name in then.parties
            else party
        )
        for name, party in settings.parties.items()
    }
    return dataclasses.replace(
        settings,
        algorithm=then.algorithm,
        config=then.config,
        model=then.model,
        label_model=then.label_model,
        preprocess=then.preprocess,
        train=then.train,
        parties=parties,
    )


def keep_start(
    run: RunDirectory, federation: Federation, owner: str, *, resumed: bool
) -> None:
    """Keep, when a label owner's training begins, what it takes to predict later, and
    to explain: what everybody sends for a row, which of its rows are held out, and its
    heads as they are before it trains."""
    held = federation.holdings.label_owners[owner]
    place = run.party(owner)
    place.mkdir(parents=True, exist_ok=True)
    run.keep_widths(federation.shapes)
    if resumed:
        return
    held_out = {
        split: held.ids[rows.numpy()].tolist()
        for split, rows in held.splits.items()
        if split != "train"
    }
    write_text(place / HELD_OUT, files.json_with_digest(held_out))
    if (heads := federation.heads) is not None:
        files.write_state(place / STARTED, {"heads": heads.detach().cpu().clone()})


def started(
    folder: Path, owner: str
) -> tuple[dict[str, list[str]], torch.Tensor | None]:
    """Read what `keep_start` kept."""
    place = RunDirectory(folder).party(owner)
    try:
        held_out = files.read_json(place / HELD_OUT, "Restore it from a copy")
    except FileNotFoundError:
        raise CheckpointError(
            f"{place} does not say which rows were held out ({HELD_OUT}): the run was"
            " not trained from here, or by an earlier version. Train it again."
        ) from None
    return held_out, (
        files.read_state(place / STARTED)["heads"]
        if (place / STARTED).exists()
        else None
    )


def stand(run: RunDirectory, federation: Federation, number: int) -> None:
    """Let a federation be as that checkpoint of a run left it, or with 0 as before
    training, to release more of its rows. What is spent counts, and the run stays as it
    is."""
    if number:
        mark = run.marked(number)
        run.load(federation, mark)
        federation.batches.done = mark["step"]
    else:
        run.keep_accounts(federation)
    run.follow(federation)


def set_bounds(federation: Federation, own: SiteConfig) -> None:
    """Have an organisation hold others, and its own questions, to what its settings let
    a call take."""
    bounds = Bounds(federation.holdings.outputs, own.memory_per_call)
    federation.organisations[own.name].bounds = bounds


R = TypeVar("R", bound=Message)


class Listener(Protocol):
    """Hears what an organisation is asked while it repeats some of a run, and what it
    answers."""

    def asked(self, envelope: Envelope[Any]) -> None: ...
    def answered(self, envelope: Envelope[Any], reply: Message) -> None: ...


def open_own_store(own: SiteConfig) -> SiteStore:
    """Open the store of this organisation's site. What is wrong with it, and the cure,
    is for its owner's log; who asked is told that it failed."""
    try:
        return open_site_store(own.name, own.runs, own.anchor)
    except StoreError as error:
        log.error("%s", error)
        raise


class Participant:
    """One organisation while it takes part in a run that another drives, or answers for
    rows to predict.

    Args:
        own: Its settings.
        federation: Its part of the federation.
        folder: Of the run.
        predicts_for: Who asks for rows to predict; "" while it trains.
        moment: Of which moment of the run an audit repeats some; "" where none does.
        run_id: Of a run that begins.
        store: Gives the site's store. By default it is opened here, and closed when
            this organisation leaves.
    """

    def __init__(
        self,
        own: SiteConfig,
        federation: Federation,
        folder: Path,
        *,
        predicts_for: str = "",
        moment: str = "",
        run_id: str = "",
        store: Callable[[], SiteStore] | None = None,
    ) -> None:
        self.own = own
        self.federation = federation
        self.predicts_for = predicts_for
        self.moment = moment
        self.listener: Listener | None = None
        self.organisation = federation.organisations[own.name]
        set_bounds(federation, own)
        if not is_run(folder.name):
            raise ConfigError(
                f"'{own.name}' keeps no run called {folder.name!r}: a {A_RUN}. Rename"
                " it."
            )
        outbox = self.organisation.outbox
        if outbox.meter is None and own.name in own.feature_owners:
            outbox.meter = PlainCount(federation.agreed, self.own_ids)
        self.store: SiteStore | None = None
        if own.name in own.feature_owners or federation.accounts:
            self.store = open_own_store(own) if store is None else store()
        self._closes_store = store is None
        new_people = own.store.new_people
        self.run = RunDirectory(folder, self.store, run_id, new_people=new_people)
        self.measured: dict[str, dict[str, float]] = {}

    @property
    def predicts(self) -> bool:
        return bool(self.predicts_for)

    @property
    def trains(self) -> bool:
        """Whether it takes part in the run itself: only that is saved."""
        return not self.predicts and not self.moment

    def answer(self, envelope: Envelope[Any]) -> Message:
        """Have the algorithm's role answer; where an audit listens, it hears question
        and answer."""
        if self.listener is not None:
            self.listener.asked(envelope)
        reply: Message = self.role.handle(envelope)
        if self.listener is not None:
            self.listener.answered(envelope, reply)
        return reply

    @property
    def role(self) -> Party:
        """What answers the algorithm's requests."""
        return next(iter(self.organisation.roles.values()))

    @property
    def accounts(self) -> dict[str, Account]:
        return self.federation.accounts

    @property
    def ids(self) -> NDArray[np.str_]:
        return self.federation.holdings.ids

    def own_ids(self) -> NDArray[np.str_]:
        """What this organisation calls each row, by which it counts people."""
        return self.federation.holdings.own_ids(self.own.name)

    def begin(self, resumed: int | None) -> None:
        """Open this organisation's folder of the run: a new one, or as the checkpoint
        `resumed` left it, which is 0 where nobody had trained yet."""
        # its owner may have a rule for one purpose later
        if self.own.name in self.own.feature_owners:
            used = UsedRows(self.own.name, self.federation.agreed, self.own_ids)
            column = column_of_people(self.own.settings, self.own.name)
            assert self.store is not None
            used.keep(self.store, column, WORDS[self.own.store.new_people])
        if resumed is not None:
            self.run.back_to(resumed)
        if resumed:
            self.federation.settings.check_continues(
                self.run.settings(), self.run.path / SETTINGS
            )
            self.run.restore(self.federation)
            self.run.keep(self.federation.settings)
        else:
            pretrain(self.federation)
            self.run.begin(self.federation)
            self.save(0, 1)
        if "labels" in self.organisation.roles:
            keep_start(self.run, self.federation, self.own.name, resumed=bool(resumed))

    def ask(self, rows: torch.Tensor) -> None:
        """Let `predict` be these rows of those that were looked for. They are refused
        where the budget does not cover them, before any other party is asked for its
        own."""
        with self.role.undisturbed():
            check_affordable(
                self.federation,
                self.predicts_for,
                self.federation.agreed[self.predicts_for].ask(rows),
            )

    def save(self, step: int, number: int, common: int | None = None) -> None:
        """Save a checkpoint, where the driver says that training stands; `common` is
        kept as well."""
        self.federation.batches.done = step
        self.run.common = common
        self.run.checkpoint(self.federation, number=number)

    def best(self, take: bool) -> None:
        """Remember the models as they are, as the driver found none better on
        validation rows; or have them again."""
        with self.role.undisturbed():
            (take_best if take else keep_best)(self.federation)

    def measure(self, split: str, model: str) -> tuple[dict[str, float], int]:
        """Measure a label owner's scores on its own rows of a split, and count these."""
        batches = self.federation.agreed[self.own.name]
        if split not in batches.splits:
            return {}, 0
        self.measured[split] = self.federation.evaluate(split, model=model)
        return self.measured[split], len(batches.splits[split])

    def close(self, outcome: str, refused: int) -> None:
        """Write this organisation's own summary; another run may begin."""
        name = self.own.name
        book = self.organisation.ledger
        federation = self.federation
        is_one = federation.algorithm.nested is None and federation.algorithm.trains
        # numbers a row that are the same in all training rows
        constant = silent(federation.owners) if is_one else {}
        summary: dict[str, Any] = {
            "party": name,
            "algorithm": federation.settings.algorithm,
            "parties": {name: list(self.organisation.roles)},
            "models": models_told(federation.settings, federation.organisations),
            "rows": {
                split: len(rows) for split, rows in federation.batches.splits.items()
            },
            "rounds": federation.batches.done,
            "stopped": outcome,
            "bytes": {name: {"out": book.total("out"), "in": book.total("in")}},
            "refused_calls": refused,
            **(
                {"constant_outputs": constant, "findings": say_nothing(constant)}
                if constant
                else {}
            ),
            "privacy": [guarantee.to_json() for guarantee in guarantees(federation)],
        }
        if "labels" in self.organisation.roles:
            summary["metrics"] = self.measured
            missed = missing_of(federation)
            summary |= {} if missed is None else {"missing": missed}
        else:
            summary["outputs"] = federation.holdings.outputs
        write_own(federation, {name: self.run.party(name)}, {})
        self.run.write_summary(summary)
        self.run.finish()
        self.leave()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let go of the store where what is done in here fails."""
        try:
            yield
        except BaseException:
            self.leave()
            raise

    def settle(self) -> None:
        """Make the store short where it has grown, between two parts of a run."""
        if self.store is not None:
            self.store.settle()

    def leave(self) -> None:
        """Release nothing any more in this run."""
        for account in self.accounts.values():
            account.close()
        if self.store is not None and self._closes_store:
            self.store.close()
        self.store = None


log = logging.getLogger("colonnade.party")


class Saves:
    """The driver's side of checkpoints. It is `lenient` where it goes on without who
    does not answer, as [federation] on_missing may say."""

    def __init__(
        self, run: RunDirectory, others: Peers, *, lenient: bool = False
    ) -> None:
        self.run = run
        self.others = others
        self.lenient = lenient
        # the state before training, which everybody saves when it is prepared
        run.common = 1

    def go_back(self) -> int:
        """Find where all can continue. This organisation goes back there, and the
        others when they are prepared."""
        number = newest_of(self.run, self.others)
        self.run.back_to(number)
        self.run.common = number or 1
        return number

    def save(self, step: int) -> None:
        """Have everybody else save, after this organisation's own checkpoint."""
        number = self.run.mark()["number"]
        common = self.run.common
        assert common is not None
        if self._all(Save(number, step, common)):
            self.run.common = number

    def after(self, every: int, watch: Watch | None) -> Watch:
        """Pass on to `watch` what `fit` tells; whenever `fit` has saved, which is every
        so many epochs, so do the others."""

        def watched(event: Step | Record) -> None:
            if isinstance(event, dict) and every and event["epoch"] % every == 0:
                self.save(event["step"])
            if watch is not None:
                watch(event)

        return watched

    def best(self, take: bool) -> bool:
        """Everybody else keeps its model as the best, or has it again; False where
        somebody could not be told."""
        return self._all(TakeBest() if take else KeepBest())

    def close(self, outcome: Outcome) -> None:
        """Tell everybody that it is over and why, and no score."""
        self._all(Close(outcome.reason_for_all))

    def _all(self, request: Save | Close | KeepBest | TakeBest) -> bool:
        if not self.lenient:
            self.others.ask(request)
            return True
        requests = dict.fromkeys(self.others, request)
        return len(
            those_who_answer(self.others, requests, "The run goes on without it.")
        ) == len(requests)


def those_who_answer(
    others: Peers, requests: Mapping[str, Request[R]], consequence: str = ""
) -> dict[str, R]:
    """Ask where others may be missing: give the answers of those who do answer. Any
    other failure is raised."""
    answers, failures = others.attempt(requests)
    for error in failures.values():
        if not isinstance(error, NoAnswer):
            raise error
        if consequence:
            log.warning("%s %s", error, consequence)
    return answers


def numbers(run: RunDirectory) -> tuple[int, ...]:
    return tuple(mark["number"] for mark in run.marks())


def newest_of(run: RunDirectory, others: Peers) -> int:
    """The newest checkpoint of a run that this organisation and these others have."""
    answers = others.ask(Kept(run.path.name))
    return newest_common(
        {others.owner: numbers(run)}
        | {name: answer.numbers for name, answer in answers.items()}
    )


def newest_common(kept: Mapping[str, Sequence[int]]) -> int:
    """Find the newest checkpoint that all organisations have; 0 where not all have
    saved even once, so that nobody has trained."""
    common = set.intersection(*(set(numbers) for numbers in kept.values()))
    if common:
        return max(common)
    if all(number <= 1 for numbers in kept.values() for number in numbers):
        return 0
    named = "; ".join(
        f"'{name}' {' and '.join(map(str, numbers)) or 'none'}"
        for name, numbers in kept.items()
    )
    raise CheckpointError(
        f"There is no checkpoint that all have: {named}. Somebody's folder of this run"
        " is missing or of another run. Put it back, or start a new run."
    )
