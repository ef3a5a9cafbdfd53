"""An audit between organisations: each attacks at its own site, and reports what its
own party.toml allows.

    label owner                              everybody who holds columns
    Join, (Agree ...), Kept             ->   as before a run
    for the first rounds, a prediction, and training further:
    Prepare with a moment               ->   its part as it was then; nothing of it is saved
    Embed ... the algorithm's requests  ->   its feature owner, under its own rules and budget
    Attack                              ->   attacks at home, writes its page, and reports nothing, a verdict or figures

With several label owners the aggregation server steers them, and each of them does this
with those who hold columns:

    aggregation server                       label owner k
    Join, Align, Kept                   ->   as before a run
    GetReady with a moment              ->   Prepare with that moment
    TrainRound ..., or AskHeldOut       ->   Embed ... the algorithm's requests
    Gather                              ->   Attack; writes its page, and reports nothing, or whether it passed

Nothing is recorded while a run trains, so a part of the run is repeated. What is
released then counts as in training: it costs budget, and is in the ledgers. Scores need
the truth, so each attack is scored where the truth is:

    columns   at their owner's site, which has what left it, its model and its columns: no reconstruction ever travels.
              Its page says what others could learn. It does not know the label owner's own columns and labels.
    labels    at the label owner's site, which has what it sent to each party and to the aggregation server, and attacks
              itself with that. Attacks that need a party's own model are made at that party's site; its guesses
              travel where it reports figures.

So a site that lies can misstate its own columns alone. Its guesses of labels can show
that something leaks, never that nothing does; releases that no other attack covers are
listed as not attacked. By default a site reports nothing, since a score also informs
those who would rebuild its columns; it has then not passed.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from colonnade.attacks import audit
from colonnade.attacks.audit import LABEL_ROWS, READS, Audit, Rehearsals
from colonnade.attacks.finding import (
    ASSUMES,
    METRICS,
    Finding,
    NotAttacked,
    not_attacked,
)
from colonnade.attacks.label_audit import ATTACKS, FEWEST, guesses
from colonnade.attacks.received import Guess
from colonnade.attacks.rehearsal import (
    ASKED,
    FIRST,
    TRAINED,
    Attacked,
    Rehearsal,
    gradients,
    model_files,
    models_of,
    part_of,
    predictions,
    taken,
    train_on,
)
from colonnade.attacks.report import write
from colonnade.core import Done, Message, Party, Released, Request, Transcript, serves
from colonnade.core.message import batch_of
from colonnade.core.party import one_torch_thread
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError, ConfigError, PartyError
from colonnade.federation import Federation
from colonnade.runs.layout import AFTER, AUDIT
from colonnade.runs.run_directory import RunDirectory, to_json
from colonnade.settings.party_file import OWN, SiteConfig
from colonnade.sites.driving import aggregation, met
from colonnade.sites.host import MOST_OUTPUTS
from colonnade.sites.messages import GetReady
from colonnade.sites.participant import Participant, newest_of, stand
from colonnade.sites.prediction import check_asks
from colonnade.sites.site import Site

log = logging.getLogger("colonnade.party")
MOMENTS = (FIRST, ASKED, TRAINED)
GUESS = "audit_guess"
REVEALS = {
    GUESS: (
        "what this party could tell of the receiver's own labels, for these to be"
        " compared with the truth"
    )
}
TOLD = ("attack", "moment", "metric", "score", "baseline", "releases")
"""The part of a finding that may leave a site: no name of a column, and nothing by
column or row."""
MOST_ROWS = 1 << 16
"""The most rows that a label owner may have rebuilt, since a site computes that long.
"""
MOST_FIGURES = 1 << 6
"""The most figures that are read from one site; it has some ten."""
Page = Callable[[Path], object]
"""Writes the page of a run's folder, for those who answer for privacy."""


class AuditAnswer(Message):
    said: str  # what it says of its own columns (`audit.PASSED` and others)
    figures: str  # JSON; "[]" unless its owner lets figures be told
    about: tuple[str, ...]  # "attack/moment" of each guess
    # whose labels were guessed, by their number in the agreed order
    rows: tuple[Released, ...]
    # how strongly each class is suspected of each row: of classes ranks alone
    scores: tuple[Released, ...]


class Attack(Request[AuditAnswer]):
    """The moments are over: attack what left you and what you received, and report what
    you may."""

    rows: int  # to rebuild
    classes: int  # 0: labels are numbers


class AskHeldOut(Request[Done]):
    """From the aggregation server to a label owner: predict some of your held-out rows."""

    rows: int


class Outcome(Message):
    # whether a label owner's audit passed by its own limits, where its owner lets that
    # be told
    said: str


class Gather(Request[Outcome]):
    """From the aggregation server to a label owner: the moments are over; attack, and
    have partners attack."""

    rows: int  # to rebuild


class Recorded:
    """What one organisation received, and what it sent to whom, while it repeated one
    moment of a run."""

    def __init__(self, participant: Participant) -> None:
        self.federation = participant.federation
        self.moment = participant.moment
        self.party, self.models = participant.own.name, models_of(self.federation)
        self.received = Transcript(self.party)
        self.sent = dict[str, Transcript]()
        self.stepped: dict[str, torch.Tensor] = {}
        self.predicted: Rehearsal | None = None
        self._first: str | None = None

    def asked(self, envelope: Envelope[Any]) -> None:
        batch = batch_of(envelope.message)
        if batch is not None and not self.stepped:
            self._first = self._first or batch
            self.stepped = gradients(self.federation) if batch != self._first else {}
        self.received.add(envelope.sender, envelope.message)

    def answered(self, envelope: Envelope[Any], reply: Message) -> None:
        self.sent.setdefault(envelope.sender, Transcript(envelope.sender)).add(
            self.party, reply
        )

    def rehearsal(self, asker: str) -> Rehearsal:
        """What passed between this organisation and a label owner."""
        models = (
            models_of(self.federation)
            if self.federation.algorithm.learns_first
            else self.models
        )
        received = Transcript(self.party)
        sent = self.sent.get(asker, Transcript(asker))
        received.seen.extend(seen for seen in self.received if seen.sender == asker)
        refused = (
            "" if any(seen.message.crossing() for seen in sent) else "nothing left here"
        )
        batches = self.federation.agreed[asker]
        stepped = self.stepped or gradients(self.federation)
        return Rehearsal(
            self.moment,
            batches,
            {self.party: received, asker: sent},
            models,
            stepped,
            refused,
        )

    def as_label_owner(self) -> Rehearsal:
        """What passed between this label owner, those who hold columns, and the
        aggregation server."""
        transcripts = dict(
            taken(self.federation)
            if self.predicted is None
            else self.predicted.transcripts
        )
        transcripts.setdefault(self.party, Transcript(self.party)).seen.extend(
            self.received
        )
        refused = "" if self.predicted is None else self.predicted.refused
        batches = self.federation.agreed[self.party]
        return Rehearsal(
            self.moment, batches, transcripts | self.sent, {}, refused=refused
        )


class Auditor(Party):
    """Answers for an organisation in an audit, and records what is repeated of a run."""

    def __init__(self, site: Site, page: Page, askers: Collection[str]) -> None:
        super().__init__(site.seat())
        self.site = site
        self.page = page
        self.serves_for = frozenset(askers)
        self.recorded: dict[str, Recorded] = {}
        self.due: set[str] = set()  # who has not asked for results yet
        self.results: list[Audit] = []

    def listen(self, participant: Participant) -> Recorded:
        """Record one moment from here on."""
        if self.site.holds_labels:
            _check_measured(self.site.own)
        self.recorded[participant.moment] = recorded = Recorded(participant)
        self.due = set(self.serves_for or ())
        self.results = []
        return recorded

    def end_moments(
        self, asker: str, rows: int
    ) -> tuple[dict[str, Recorded], RunDirectory]:
        """What was recorded, once for each asker; when all have asked, this
        organisation takes part no longer."""
        why = "the moments of an audit were not repeated here before"
        participant = self.needed(self.site.participant, why)
        complete = participant.moment == TRAINED and len(self.recorded) == len(MOMENTS)
        self.expect(complete and asker in self.due, why)
        self.expect(FEWEST <= rows <= MOST_ROWS, f"nobody rebuilds {rows} rows")
        recorded = self.recorded
        self.due.remove(asker)
        if not self.due:
            self.recorded = {}
            self.site.leave()
        self.ledger.follow(participant.run.party(self.name) / AFTER)
        tells = self.site.own.audit.tell or "nothing"
        log.info(
            "%s: audits the run %s for '%s', and tells it: %s",
            self.name,
            participant.run.path.name,
            asker,
            tells,
        )
        return recorded, participant.run


class AuditHost(Auditor):
    """Answers for an organisation that holds columns."""

    @serves
    def attack(self, request: Attack, asker: str) -> AuditAnswer:
        self.expect(
            0 <= request.classes <= MOST_OUTPUTS,
            f"there are no {request.classes} classes",
        )
        recorded, run = self.end_moments(asker, request.rows)
        first, asked, trained = (
            recorded[moment].rehearsal(asker) for moment in MOMENTS
        )
        rehearsals = first, asked, replace(trained, begun=first.transcripts)
        part = part_of(recorded[TRAINED].federation, asker)
        tells = self.site.own.audit.tell
        with one_torch_thread():
            result = self._page(part, rehearsals, run.path, request.rows)
            guessed = (
                list(self._guesses(part, rehearsals, request.classes))
                if tells == "figures"
                else []
            )
        told = result.findings if tells == "figures" else []
        figures = [{key: vars(finding)[key] for key in TOLD} for finding in told]
        rows = tuple(self.outbox.release(guess.rows, GUESS) for _, guess in guessed)
        scores = tuple(self.outbox.release(guess.scores, GUESS) for _, guess in guessed)
        about = tuple(attack_and_moment for attack_and_moment, _ in guessed)
        spent = all(rehearsal.refused for rehearsal in rehearsals)
        return AuditAnswer(
            _statement(result, tells, spent), to_json(figures), about, rows, scores
        )

    def _page(
        self, federation: Attacked, rehearsals: Rehearsals, folder: Path, rows: int
    ) -> Audit:
        """Attack what one label owner could learn. The page on disk has what each label
        owner could."""
        own = self.site.own
        result = _empty_audit(folder, federation, own)
        audit.note(result, federation, rehearsals)
        findings = list(
            audit.on_columns(result, federation, rehearsals, rows, None, lambda _: None)
        )
        result.findings = [finding.under(result.thresholds) for finding in findings]
        crossed = not_attacked(federation.algorithm, rehearsals, findings, reads=READS)
        missing = list(
            _unrepeated(
                federation, rehearsals, own.name, federation.holdings.label_owner
            )
        )
        result.not_attacked = [
            *(item for item in crossed if item.owner == own.name),
            *missing,
        ]
        result.notes.append(
            f"This is about the columns of {own.name}, by what left it; what others"
            f" sent it is theirs to judge. {federation.holdings.label_owner} was told:"
            f" {own.audit.tell or 'nothing'}."
        )
        self.results.append(result)
        _write(
            _merged(self.results),
            folder,
            self.page,
            whole=not all(map(_left_out_moments, self.results)),
        )
        return result

    def _guesses(
        self, federation: Attacked, rehearsals: Rehearsals, classes: int
    ) -> Iterator[tuple[str, Guess]]:
        """Guesses by attacks that need this party's own model; the label owner can make
        all others itself. Of classes they leave as ranks, which is all that is scored.
        """
        if federation.settings.rows_differ:
            return
        for rehearsal in rehearsals[::2]:
            for attack, _, guess in guesses(federation, rehearsal, None, classes):
                guess = guess.by_row()
                if attack.own and len(guess.rows) >= FEWEST:
                    yield (
                        f"{attack.name}/{rehearsal.moment}",
                        guess.ranked() if classes else guess,
                    )


def _merged(results: Sequence[Audit]) -> Audit:
    """What each label owner could learn, as one audit."""
    return replace(
        results[0],
        findings=[finding for result in results for finding in result.findings],
        not_attacked=[item for result in results for item in result.not_attacked],
        rebuilt=[item for result in results for item in result.rebuilt],
        notes=list(dict.fromkeys(note for result in results for note in result.notes)),
    )


def _statement(result: Audit, tells: str | None, spent: bool = False) -> str:
    # what left before was not attacked now
    if spent and tells in ("figures", "verdict"):
        return audit.NOTHING_LEFT
    if tells == "figures":
        return audit.FIGURES
    if tells != "verdict":
        return audit.NOT_TOLD
    measured = result.limited and result.thresholds["recognition"] is None
    return (
        (audit.PASSED if result.passed else audit.FAILED)
        if measured
        else audit.NO_LIMITS
    )


class LabelAuditHost(Auditor):
    """Answers for one of several label owners; the aggregation server alone asks it."""

    @serves
    def ask_held_out(self, request: AskHeldOut) -> Done:
        participant = self.site.participant
        self.expect(
            participant is not None and participant.moment == ASKED,
            "no prediction is repeated here now",
        )
        self.expect(
            0 < request.rows <= MOST_ROWS, f"nobody predicts {request.rows} rows"
        )
        recorded = self.recorded[ASKED]
        with one_torch_thread():
            recorded.predicted = predictions(recorded.federation, request.rows)
        return Done()

    @serves
    def gather(self, request: Gather, asker: str) -> Outcome:
        recorded, run = self.end_moments(asker, request.rows)
        first, asked, trained = (
            recorded[moment].as_label_owner() for moment in MOMENTS
        )
        rehearsals = first, asked, replace(trained, begun=first.transcripts)
        result = gathered(
            self.site,
            run,
            recorded[TRAINED].federation,
            rehearsals,
            self.page,
            request.rows,
        )
        tells = self.site.own.audit.tell
        return Outcome(
            _statement(result, None if tells in (None, "nothing") else "verdict")
        )


def takes_part(site: Site, page: Page) -> None:
    """Let a site take part in audits that another steers."""
    own = site.own
    if site.reader is not None:
        host: Auditor = AuditHost(site, page, own.label_owners)
    elif site.holds_labels and not own.drives:
        host = LabelAuditHost(site, page, {own.driver})
    else:
        return
    site.audits = host.listen
    site.moments = MOMENTS
    site.roles.append(host)


def audit_at(site: Site, run: str, page: Page, *, rows: int = 64) -> tuple[Audit, Path]:
    """As the driver of a run: repeat a part of it with everybody, attack, and gather
    what the others report. The page and audit.json of each label owner, and of the
    driver, are in that organisation's own folder of the run."""
    own = site.own
    if not own.drives:
        raise BoundaryError(
            f"'{own.name}' audits when it is asked; in the federation it agreed to,"
            f" '{own.driver}' asks."
        )
    folder = RunDirectory(site.host.folder(run))
    result = (_as_label_owner if site.holds_labels else _as_server)(
        site, folder, page, rows
    )
    return result, folder.path / AUDIT


def _as_label_owner(site: Site, folder: RunDirectory, page: Page, rows: int) -> Audit:
    """The one label owner asks those who hold columns."""
    check_asks(site.own, folder.path.name)
    _check_measured(site.own)
    others = site.meet()
    site.align()
    number = newest_of(folder, others)
    step = folder.marked(number)["step"]

    def at(moment: str) -> Federation:
        checkpoint, steps = (0, 0) if moment == FIRST else (number, step)
        federation = site.prepare(
            folder.path, site.own_labels(folder), checkpoint, steps, moment
        )
        stand(folder, federation, checkpoint)
        return federation

    with one_torch_thread():
        first = train_on(at(FIRST), max(rows, LABEL_ROWS), FIRST)
        asked = predictions(at(ASKED), rows)
        federation = at(TRAINED)
        trained = replace(
            train_on(federation, max(rows, LABEL_ROWS), TRAINED),
            begun=first.transcripts,
        )
    return gathered(site, folder, federation, (first, asked, trained), page, rows)


def _as_server(site: Site, folder: RunDirectory, page: Page, rows: int) -> Audit:
    """The aggregation server asks several label owners, and learns at most whether each
    has passed."""
    own = site.own
    others = met(site)
    run = folder.path.name
    number = newest_of(folder, others)
    for moment in MOMENTS:
        at = 0 if moment == FIRST else number
        ready = others.ask(GetReady(run, True, at, moment))
        if moment == ASKED:
            others.ask(AskHeldOut(rows))
        else:
            federation = aggregation(site, ready, others, record=True)
            stand(folder, federation, at)
            train_on(federation, rows, moment)
    answers = others.ask(Gather(rows))
    result = _empty_audit(folder.path, federation, own)
    result.sites = _statements(answers)
    result.notes.append(
        "Each label owner has its own page, in its own folder of the run; this says"
        " what it told."
    )
    write(result, folder.path / AUDIT)
    page(folder.path)
    return result


def _empty_audit(folder: Path, federation: Attacked, own: SiteConfig) -> Audit:
    """An audit of a site's part of a run, by its own thresholds, without findings yet."""
    return Audit(
        folder.name,
        federation.settings.algorithm,
        federation.settings.data.dataset,
        own.audit.limits,
        model_files=model_files(folder),
    )


def _check_measured(own: SiteConfig) -> None:
    if own.audit.recognition is not None:
        raise ConfigError(
            f"[audit] recognition = {own.audit.recognition} in the {OWN} of"
            f" '{own.name}' is not measured between sites: it takes labels and others'"
            " columns in one place. Remove it; inversion_r2 bounds what is rebuilt."
        )


def gathered(
    site: Site,
    folder: RunDirectory,
    whole: Federation,
    rehearsals: Rehearsals,
    page: Page,
    rows: int,
) -> Audit:
    """As a label owner after the moments: attack itself with what it sent, and gather
    what the others report."""
    own, federation = site.own, part_of(whole, site.own.name)
    answers = site.partners().ask(
        Attack(rows, len(federation.holdings.encoder.classes))
    )
    result = _empty_audit(folder.path, federation, own)
    audit.note(result, federation, rehearsals)
    guessed: dict[tuple[str, str, str], Guess] = {}
    figures: list[Finding] = []
    for name, answer in answers.items():
        guessed |= _guessed(name, answer, federation)
        figures += _figures(name, answer, federation, rehearsals)
    with one_torch_thread():
        findings = [
            *audit.on_labels(federation, rehearsals, None, lambda _: None, guessed),
            *figures,
        ]
    result.sites = _statements(answers)
    result.findings = [finding.under(result.thresholds) for finding in findings]
    crossed = not_attacked(
        federation.algorithm, rehearsals, result.findings, reads=READS
    )
    result.not_attacked = [
        item
        for item in crossed
        if result.sites.get(item.owner, audit.FIGURES) == audit.FIGURES
    ]
    result.not_attacked += _unrepeated(federation, rehearsals, None, own.name)
    _write(result, folder.path, page, whole=not _left_out_moments(result))
    return result


ALL = "all that is sent"
UNREPEATED = "nothing was repeated of it: "


def _unrepeated(
    federation: Attacked, rehearsals: Rehearsals, owner: str | None, receiver: str
) -> Iterator[NotAttacked]:
    """The moments that the driver left out: nothing crossed, or nothing of the owner.
    Some runs only predict."""
    for rehearsal in rehearsals if federation.algorithm.trains else rehearsals[1:2]:
        if not any(
            owner in (None, item.receipt.owner) for _, item in rehearsal.arrivals()
        ):
            yield NotAttacked(
                ALL, owner or "anybody", receiver, UNREPEATED + rehearsal.moment
            )


def _left_out_moments(result: Audit) -> bool:
    return any(item.release == ALL for item in result.not_attacked)


def _write(result: Audit, folder: Path, page: Page, *, whole: bool) -> None:
    """Write an audit and its page. An audit that left out a moment does not replace an
    earlier one."""
    if whole or not (folder / AUDIT / "audit.json").exists():
        write(result, folder / AUDIT)
        page(folder)


def _statements(answers: Mapping[str, AuditAnswer | Outcome]) -> dict[str, str]:
    """What each site says of its own columns; words that are none of ours count as
    nothing."""
    known = (
        audit.FIGURES,
        audit.PASSED,
        audit.FAILED,
        audit.NO_LIMITS,
        audit.NOT_TOLD,
        audit.NOTHING_LEFT,
    )
    return {
        name: answer.said if answer.said in known else audit.NOT_TOLD
        for name, answer in answers.items()
    }


def _guessed(
    name: str, answer: AuditAnswer, federation: Attacked
) -> dict[tuple[str, str, str], Guess]:
    """A site's guesses of labels, by attack, attacker and moment; malformed ones end
    the audit with the site's name."""
    classes = len(federation.holdings.encoder.classes)
    count = len(federation.holdings.labelled.labels)
    known = {
        f"{attack.name}/{moment}": (attack.name, name, moment)
        for attack in ATTACKS
        if attack.own
        for moment in MOMENTS
    }
    by_attack = {}
    for about, sent_rows, sent_scores in zip(
        answer.about, answer.rows, answer.scores, strict=False
    ):
        rows = sent_rows.tensor.cpu()
        scores = sent_scores.tensor.cpu()
        fits = about in known and _are_rows(rows, count)
        if not fits or not _are_scores(scores, len(rows), classes):
            raise PartyError(
                name, Attack.kind, None, "it told guesses of labels that are none"
            )
        by_attack[known[about]] = Guess(rows, scores, named=True)
    return by_attack


def _are_rows(rows: torch.Tensor, count: int) -> bool:
    """Whether these are numbers of so many rows, each at most once."""
    if rows.dtype != torch.int64 or rows.dim() != 1:
        return False
    inside = bool(((rows >= 0) & (rows < count)).all())
    return inside and len(torch.unique(rows)) == len(rows)


def _are_scores(scores: torch.Tensor, rows: int, classes: int) -> bool:
    """Whether these are finite scores, one for each row and class."""
    if not scores.is_floating_point() or scores.shape != (rows, max(classes, 1)):
        return False
    return bool(torch.isfinite(scores).all())


def _figures(
    name: str, answer: AuditAnswer, federation: Attacked, rehearsals: Rehearsals
) -> Iterator[Finding]:
    """What a site reports of its own columns, as the victim: how well which known
    attack on what left it did. It names the attack; the words are ours."""
    names = federation.algorithm.releases
    owner = federation.holdings.label_owner
    try:
        lines = json.loads(answer.figures) if answer.said == audit.FIGURES else []
        if not isinstance(lines, list) or len(lines) > MOST_FIGURES:
            raise ValueError
        for line in lines:
            attack = str(line["attack"])
            metric = str(line["metric"])
            score = float(line["score"])
            baseline = float(line["baseline"])
            if not (score <= 1 and math.isfinite(score) and math.isfinite(baseline)):
                raise ValueError
            releases = tuple(
                str(release) for release in line["releases"] if release in names
            )
            yield Finding(
                attack=attack,
                attacker=owner,
                victim=name,
                moment=MOMENTS[MOMENTS.index(line["moment"])],
                assumes=ASSUMES[attack].format("some"),
                metric=metric,
                score=score,
                baseline=baseline,
                limit=METRICS[metric],
                releases=releases,
                details={"reached": _reached(rehearsals, name, releases)},
            )
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
        raise PartyError(
            name, Attack.kind, None, "it told figures that are none"
        ) from None


def _reached(
    rehearsals: Rehearsals, owner: str, releases: tuple[str, ...]
) -> list[str]:
    """The parties that a party's releases reached, by what this label owner sent and
    received."""
    arrivals = (arrival for rehearsal in rehearsals for arrival in rehearsal.arrivals())
    released = [
        (receiver, item.receipt)
        for receiver, item in arrivals
        if isinstance(item, Released)
    ]
    return list(
        dict.fromkeys(
            to
            for to, receipt in released
            if receipt.owner == owner and receipt.name in releases
        )
    )
