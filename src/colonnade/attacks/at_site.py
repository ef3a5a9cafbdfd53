"""An audit between organisations: each attacks at its own site, and tells what its own party.toml allows.

    label owner                              everybody who holds columns
    Join, (Agree ...), Kept             ->   as before a run
    for the first rounds, a prediction, and training further:
    Prepare with a moment               ->   its part as it was then; nothing of it is saved
    Embed ... the algorithm's requests  ->   its feature owner, under its own rules and budget
    Attack                              ->   attacks at home, writes its page, and tells: nothing, a verdict, figures

With several label owners the aggregation server steers them, and each of them does this with those who hold columns:

    aggregation server                       label owner k
    Join, Align, Kept                   ->   as before a run
    GetReady with a moment              ->   Prepare with that moment
    TrainRound ..., or AskHeldOut       ->   Embed ... the algorithm's requests
    Gather                              ->   Attack; writes its page, and tells nothing, or whether it passed

Nothing is recorded while a run trains, so some of it is repeated, and what is released then counts as in training: it
costs budget, and is in the ledgers. Scores need the truth, so each attack is scored where the truth is:

    columns   at their owner's site: it has what left it, its model and its columns, so no reconstruction ever travels.
              Its page says what others could learn; a label owner's own columns and labels it does not know.
    labels    at the label owner's: it has what it sent to each party, and attacks itself with it, the aggregation
              server's part too. Attacks that need a party's own model are made at that party's site; its guesses
              travel where it tells figures.

So a site that lies can say wrong things of its own columns alone: its guesses of labels can show that something leaks,
and never that nothing does; what they alone are about is listed as not attacked. Unless its owner decides otherwise it
tells nothing, since how well columns can be rebuilt tells whoever would try; it has then not passed.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from colonnade.attacks import audit, known_model
from colonnade.attacks.audit import LABEL_ROWS, READS, Audit, Rehearsals
from colonnade.attacks.finding import Finding, NotAttacked, column_verdict, not_attacked
from colonnade.attacks.inversion_audit import ATTACK as INVERSION
from colonnade.attacks.inversion_audit import WHITE_BOX
from colonnade.attacks.label_audit import ATTACKS, FEWEST, guesses
from colonnade.attacks.received import Guess
from colonnade.attacks.rehearsal import (
    ASKED,
    FIRST,
    TRAINED,
    Attacked,
    Rehearsal,
    gradients,
    models_of,
    part_of,
    predictions,
    taken,
    train_on,
)
from colonnade.attacks.report import write
from colonnade.core import Batches, Done, Message, Organisation, Party, Released, Request, Transcript, serves
from colonnade.core.message import batch_of
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError, ConfigError, PartyError
from colonnade.federation import Federation
from colonnade.runs.layout import AFTER, AUDIT
from colonnade.runs.run_directory import RunDirectory, to_json
from colonnade.settings.party_file import OWN, SiteConfig
from colonnade.sites.driving import aggregation, met
from colonnade.sites.host import MOST_OUTPUTS
from colonnade.sites.messages import GetReady, Join
from colonnade.sites.participant import Participant, newest_of, stand
from colonnade.sites.prediction import check_asks
from colonnade.sites.site import Site
from colonnade.transport.in_process import one_torch_thread

log = logging.getLogger("colonnade.party")
MOMENTS = (FIRST, ASKED, TRAINED)
GUESS = "audit_guess"
REVEALS = {GUESS: "what this party could tell of the receiver's own labels, for these to be compared with the truth"}
MOST_ROWS = 1 << 16
"""That are rebuilt: a label owner says how many, and a site computes as long."""
MOST_TOLD = 1 << 6
"""Figures of one site that are read; it has some ten."""
SOME_ROWS = "knows the victim's columns of some rows, and no weights"
TOLD = {
    INVERSION: WHITE_BOX,
    known_model.ATTACK: known_model.ASSUMES,
    "columns by regression on known rows": SOME_ROWS,
    "columns from scores of many rounds": SOME_ROWS,
    "columns from sums of scores of many rounds": SOME_ROWS,
    "columns from sums over bins": SOME_ROWS,
    "columns from scores and lengths": "looks at what it receives, and tries both signs of each direction",
    "columns by dividing the Jacobian": "knows the shape of the victim's first layer, not its weights",
}
"""Attacks on columns, and what each assumes: a site says which, and no words of its own."""
METRICS = {
    "R² of the best column": "inversion_r2",
    "R² of the best column, over own data": "inversion_r2",
    "SSIM": "inversion_ssim",
}
"""How they are measured, and the limit on it."""
Page = Callable[[Path], object]
"""Writes the page of a run's folder, for whoever answers for privacy there."""


class AuditAnswer(Message):
    said: str  # what it says of its own columns (`audit.PASSED` and others)
    figures: str  # JSON; "[]" unless its owner lets figures be told
    about: tuple[str, ...]  # of each guess the attack, and when
    rows: tuple[Released, ...]  # whose labels were guessed, by their number in the agreed order
    labels: tuple[Released, ...]


class Attack(Request[AuditAnswer]):
    """The moments are over: attack what left you and what you received, and tell what you may."""

    rows: int  # to rebuild
    classes: int  # 0: labels are numbers


class AskHeldOut(Request[Done]):
    """From the aggregation server to a label owner: predict some of your held-out rows."""

    rows: int


class Verdict(Message):
    said: str  # whether a label owner's audit passed by its own limits, where its owner lets that be told


class Gather(Request[Verdict]):
    """From the aggregation server to a label owner: the moments are over; attack, and have partners attack."""

    rows: int  # to rebuild


class Heard:
    """What one organisation received, and what it sent to whom, while it repeated some of a run."""

    def __init__(self, participant: Participant) -> None:
        self.federation, self.moment = participant.federation, participant.moment
        self.party, self.models = participant.own.name, models_of(self.federation)
        self.received, self.sent = Transcript(self.party), dict[str, Transcript]()
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
        self.sent.setdefault(envelope.sender, Transcript(envelope.sender)).add(self.party, reply)

    def rehearsal(self, asker: str) -> Rehearsal:
        """What passed between this organisation and a label owner."""
        models = models_of(self.federation) if self.federation.algorithm.learns_first else self.models
        got, sent = Transcript(self.party), self.sent.get(asker, Transcript(asker))
        got.seen.extend(one for one in self.received if one.sender == asker)
        refused = "" if any(one.message.crossing() for one in sent) else "nothing left here"
        batches, stepped = self.federation.agreed[asker], self.stepped or gradients(self.federation)
        return Rehearsal(self.moment, batches, {self.party: got, asker: sent}, models, stepped, refused)

    def as_label_owner(self) -> Rehearsal:
        """What passed between this label owner, those who hold columns, and the aggregation server."""
        found = dict(taken(self.federation) if self.predicted is None else self.predicted.transcripts)
        found.setdefault(self.party, Transcript(self.party)).seen.extend(self.received)
        refused = "" if self.predicted is None else self.predicted.refused
        batches = self.federation.agreed[self.party]
        return Rehearsal(self.moment, batches, found | self.sent, {}, refused=refused)


class Listening(Party):
    """Answers for an organisation in an audit, and hears what of a run is repeated."""

    def __init__(self, organisation: Organisation, site: Site, page: Page, askers: Collection[str]) -> None:
        super().__init__(organisation)
        self.site, self.page, self.serves_for = site, page, frozenset(askers)
        self.heard: dict[str, Heard] = {}
        self.due: set[str] = set()  # who has not asked yet what was found
        self.found: list[Audit] = []

    def listen(self, participant: Participant) -> Heard:
        """From here on, to one moment."""
        if self.site.holds_labels:
            _check_measured(self.site.own)
        self.heard[participant.moment] = heard = Heard(participant)
        self.due, self.found = set(self.serves_for or ()), []
        return heard

    def over(self, asker: str, rows: int) -> tuple[dict[str, Heard], RunDirectory]:
        """What was heard, once for each who asks; when all have asked, this organisation takes part no longer."""
        taking = self.site.participant
        whole = taking is not None and taking.moment == TRAINED and len(self.heard) == len(MOMENTS)
        self.expect(whole and asker in self.due, "the moments of an audit were not repeated here before")
        self.expect(FEWEST <= rows <= MOST_ROWS, f"nobody rebuilds {rows} rows")
        assert taking is not None
        heard = self.heard
        self.due.remove(asker)
        if not self.due:
            self.heard = {}
            self.site.leave()
        self.ledger.follow(taking.run.party(self.name) / AFTER)
        tells = self.site.own.audit.tell or "nothing"
        log.info("%s: audits the run %s for '%s', and tells it: %s", self.name, taking.run.path.name, asker, tells)
        return heard, taking.run


class AuditHost(Listening):
    """Answers for an organisation that holds columns."""

    @serves
    def attack(self, request: Attack, asker: str) -> AuditAnswer:
        self.expect(0 <= request.classes <= MOST_OUTPUTS, f"there are no {request.classes} classes")
        heard, run = self.over(asker, request.rows)
        first, asked, trained = (heard[moment].rehearsal(asker) for moment in MOMENTS)
        rehearsals = first, asked, replace(trained, begun=first.transcripts)
        part, tells = part_of(heard[TRAINED].federation, asker), self.site.own.audit.tell
        with one_torch_thread():
            found = self._page(part, rehearsals, run.path, request.rows)
            guessed = list(self._guesses(part, rehearsals, request.classes))
        told = [_figure(one) for one in found.findings] if tells == "figures" else []
        every = guessed if tells == "figures" else []
        rows = tuple(self.outbox.release(guess.rows, GUESS) for _, guess in every)
        labels = tuple(self.outbox.release(guess.labels, GUESS) for _, guess in every)
        spent = all(one.refused for one in rehearsals)
        return AuditAnswer(_said(found, tells, spent), to_json(told), tuple(about for about, _ in every), rows, labels)

    def _page(self, federation: Attacked, rehearsals: Rehearsals, folder: Path, rows: int) -> Audit:
        """Of what one label owner could learn; the page of several label owners has what each of them could."""
        own, settings = self.site.own, federation.settings
        found = Audit(folder.name, settings.algorithm, settings.data.dataset, own.audit.limits)
        audit.note(found, federation, rehearsals)
        findings = list(audit.on_columns(found, federation, rehearsals, rows, None, lambda _: None))
        found.findings = [one.under(found.thresholds) for one in findings]
        crossed = not_attacked(federation.algorithm, rehearsals, findings, reads=READS)
        missing = list(_unrepeated(federation, rehearsals, own.name, federation.holdings.label_owner))
        found.not_attacked = [*(one for one in crossed if one.owner == own.name), *missing]
        found.notes.append(
            f"This is about the columns of {own.name}, by what left it; what others sent it is theirs to judge. "
            f"{federation.holdings.label_owner} was told: {own.audit.tell or 'nothing'}."
        )
        self.found.append(found)
        _keep(_together(self.found), folder, self.page, whole=not all(map(_repeats_nothing, self.found)))
        return found

    def _guesses(self, federation: Attacked, rehearsals: Rehearsals, classes: int) -> Iterator[tuple[str, Guess]]:
        """By attacks that need this party's own model; all others the label owner can make itself."""
        for rehearsal in () if federation.settings.rows_differ else rehearsals[::2]:
            for attack, _, guess in guesses(federation, rehearsal, None, classes):
                if attack.own and len(guess.rows) >= FEWEST:
                    yield f"{attack.name}/{rehearsal.moment}", guess


def _together(found: Sequence[Audit]) -> Audit:
    """One page of what each label owner could learn."""
    return replace(
        found[0],
        findings=[finding for one in found for finding in one.findings],
        not_attacked=[what for one in found for what in one.not_attacked],
        rebuilt=[what for one in found for what in one.rebuilt],
        notes=list(dict.fromkeys(note for one in found for note in one.notes)),
    )


def _figure(one: Finding) -> dict[str, Any]:
    """What leaves of a finding: no name of a column, and nothing by column or row."""
    keep = ("attack", "moment", "metric", "score", "baseline", "releases")
    return {key: value for key, value in asdict(one).items() if key in keep}


def _said(found: Audit, tells: str | None, spent: bool = False) -> str:
    if spent and tells in ("figures", "verdict"):  # what left before was not attacked now
        return audit.NOTHING_LEFT
    if tells == "figures":
        return audit.FIGURES
    if tells != "verdict":
        return audit.NOT_TOLD
    measured = found.limited and found.thresholds["recognition"] is None
    return (audit.PASSED if found.passed else audit.FAILED) if measured else audit.NO_LIMITS


class LabelAuditHost(Listening):
    """Answers for one of several label owners; the aggregation server alone asks it."""

    @serves
    def ask_held_out(self, request: AskHeldOut) -> Done:
        taking = self.site.participant
        self.expect(taking is not None and taking.moment == ASKED, "no prediction is repeated here now")
        self.expect(0 < request.rows <= MOST_ROWS, f"nobody predicts {request.rows} rows")
        heard = self.heard[ASKED]
        with one_torch_thread():
            heard.predicted = predictions(heard.federation, request.rows)
        return Done()

    @serves
    def gather(self, request: Gather, asker: str) -> Verdict:
        heard, run = self.over(asker, request.rows)
        own = self.site.own
        first, asked, trained = (heard[moment].as_label_owner() for moment in MOMENTS)
        rehearsals = first, asked, replace(trained, begun=first.transcripts)
        found = gathered(self.site, run, heard[TRAINED].federation, rehearsals, self.page, request.rows)
        return Verdict(_said(found, None if own.audit.tell in (None, "nothing") else "verdict"))


def takes_part(site: Site, page: Page) -> None:
    """Let a site take part in audits that another steers."""
    own, organisation = site.own, Organisation.at(site.own.name, Batches({}, batch_size=1, epochs=1, seed=0))
    host: Listening | None = None
    if site.reader is not None:
        host = AuditHost(organisation, site, page, own.label_owners)
    elif site.holds_labels and not own.drives:
        host = LabelAuditHost(organisation, site, page, {own.driver})
    if host is not None:
        site.audits, site.moments = host.listen, MOMENTS
        site.roles.append(host)


def audit_at(site: Site, run: str, page: Page, *, rows: int = 64) -> tuple[Audit, Path]:
    """As who drives a run: repeat some of it with everybody, attack, and gather what the others tell. Its own page and
    audit.json are in its own folder of the run, and those of every label owner in that one's."""
    own = site.own
    if not own.drives:
        raise BoundaryError(
            f"'{own.name}' audits when it is asked; in the federation it agreed to, '{own.driver}' asks."
        )
    folder = RunDirectory(site.host.folder(run))
    found = (_as_label_owner if site.holds_labels else _as_server)(site, folder, page, rows)
    return found, folder.path / AUDIT


def _as_label_owner(site: Site, folder: RunDirectory, page: Page, rows: int) -> Audit:
    """The one label owner asks those who hold columns."""
    own, others, run = site.own, site.partners(), folder.path.name
    check_asks(own, run)
    _check_measured(own)
    site.read()
    others.ask(Join(own.agreed))
    site.align()
    number = newest_of(folder, others)
    step = folder.marked(number)["step"]

    def at(moment: str) -> Federation:
        begins = moment == FIRST
        holdings = site.own_labels(folder)
        made = site.prepare(folder.path, holdings, 0 if begins else number, 0 if begins else step, moment)
        stand(folder, made, 0 if begins else number)
        return made

    with one_torch_thread():
        first = train_on(at(FIRST), max(rows, LABEL_ROWS), FIRST)
        asked = predictions(at(ASKED), rows)
        federation = at(TRAINED)
        trained = replace(train_on(federation, max(rows, LABEL_ROWS), TRAINED), begun=first.transcripts)
    return gathered(site, folder, federation, (first, asked, trained), page, rows)


def _as_server(site: Site, folder: RunDirectory, page: Page, rows: int) -> Audit:
    """The aggregation server asks several label owners, and is told at most whether each has passed."""
    own, others, run = site.own, met(site), folder.path.name
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
    told = others.ask(Gather(rows))
    found = Audit(run, federation.settings.algorithm, federation.settings.data.dataset, own.audit.limits)
    found.sites = {name: one.said if one.said in SAID else audit.NOT_TOLD for name, one in told.items()}
    found.notes.append("Each label owner has its own page, in its own folder of the run; this says what it told.")
    write(found, folder.path / AUDIT)
    page(folder.path)
    return found


def _check_measured(own: SiteConfig) -> None:
    if own.audit.recognition is not None:
        raise ConfigError(
            f"[audit] recognition = {own.audit.recognition} in the {OWN} of '{own.name}' is not measured between "
            "sites: it takes labels and others' columns in one place. Remove it; inversion_r2 bounds what is rebuilt."
        )


def gathered(
    site: Site, folder: RunDirectory, whole: Federation, rehearsals: Rehearsals, page: Page, rows: int
) -> Audit:
    """As a label owner after the moments: attack itself with what it sent, and gather what the others tell."""
    own, federation = site.own, part_of(whole, site.own.name)
    told = site.partners().ask(Attack(rows, len(federation.holdings.encoder.classes)))
    found = Audit(folder.path.name, federation.settings.algorithm, federation.settings.data.dataset, own.audit.limits)
    audit.note(found, federation, rehearsals)
    with one_torch_thread():
        guessed = {key: guess for name, one in told.items() for key, guess in _guessed(name, one, federation).items()}
        findings = list(audit.on_labels(federation, rehearsals, None, lambda _: None, guessed))
    findings += [one for name, said in told.items() for one in _figures(name, said, federation, rehearsals)]
    found.sites = {name: one.said if one.said in SAID else audit.NOT_TOLD for name, one in told.items()}
    found.findings = [one.under(found.thresholds) for one in findings]
    crossed = not_attacked(federation.algorithm, rehearsals, found.findings, reads=READS)
    found.not_attacked = [one for one in crossed if found.sites.get(one.owner, audit.FIGURES) == audit.FIGURES]
    found.not_attacked += _unrepeated(federation, rehearsals, None, own.name)
    _keep(found, folder.path, page, whole=not _repeats_nothing(found))
    return found


ALL = "all that is sent"
UNREPEATED = "nothing was repeated of it: "


def _unrepeated(
    federation: Attacked, rehearsals: Rehearsals, owner: str | None, receiver: str
) -> Iterator[NotAttacked]:
    """The moments in which nothing crossed, or nothing of an owner: whoever drives may leave them out. Where nobody
    trains, a prediction is all there is."""
    for one in rehearsals if federation.algorithm.trains else rehearsals[1:2]:
        items = (item for heard in one.transcripts.values() for seen in heard for item in seen.message.crossing())
        if not any(owner in (None, item.receipt.owner) for item in items):
            yield NotAttacked(ALL, owner or "anybody", receiver, UNREPEATED + one.moment)


def _repeats_nothing(found: Audit) -> bool:
    return any(one.release == ALL for one in found.not_attacked)


def _keep(found: Audit, folder: Path, page: Page, *, whole: bool) -> None:
    """Write an audit and its page. One that left out a moment takes no earlier one's place."""
    if whole or not (folder / AUDIT / "audit.json").exists():
        write(found, folder / AUDIT)
        page(folder)


SAID = (audit.FIGURES, audit.PASSED, audit.FAILED, audit.NO_LIMITS, audit.NOT_TOLD, audit.NOTHING_LEFT)


def _guessed(name: str, told: AuditAnswer, federation: Attacked) -> dict[tuple[str, str, str], Guess]:
    """A site's guesses, if they are such; others end the audit with its name."""
    classes, count = len(federation.holdings.encoder.classes), len(federation.holdings.labelled.labels)
    known = {f"{one.name}/{moment}": (one.name, name, moment) for one in ATTACKS if one.own for moment in MOMENTS}
    found = {}
    for about, rows, labels in zip(told.about, told.rows, told.labels, strict=False):
        at, said = rows.tensor.cpu(), labels.tensor.cpu()
        fits = about in known and at.dtype == torch.int64 and at.dim() == 1 and said.shape == at.shape
        fits = fits and bool(((at >= 0) & (at < count)).all()) and len(torch.unique(at)) == len(at)
        if classes:
            fits = fits and said.dtype == torch.int64 and bool(((said >= 0) & (said < classes)).all())
        else:
            fits = fits and said.is_floating_point() and bool(torch.isfinite(said).all())
        if not fits:
            raise PartyError(name, Attack.kind, None, "it told guesses of labels that are none")
        found[known[about]] = Guess(at, said, named=True)
    return found


def _figures(name: str, told: AuditAnswer, federation: Attacked, rehearsals: Rehearsals) -> Iterator[Finding]:
    """What a site says of its own columns: by which known attack, and how well. It is the victim, and the attack is on
    what reached this label owner and others."""
    names, owner = federation.algorithm.releases, federation.holdings.label_owner
    try:
        lines = json.loads(told.figures) if told.said == audit.FIGURES else []
        if not isinstance(lines, list) or len(lines) > MOST_TOLD:
            raise ValueError
        for one in lines:
            attack, metric, moment = str(one["attack"]), str(one["metric"]), MOMENTS[MOMENTS.index(one["moment"])]
            score, baseline = float(one["score"]), float(one["baseline"])
            if not (score <= 1 and math.isfinite(score) and math.isfinite(baseline)):
                raise ValueError
            releases = tuple(str(release) for release in one["releases"] if release in names)
            reached = _reached(rehearsals, name, releases)
            yield Finding(
                attack, owner, name, moment, TOLD[attack], metric, score, baseline, column_verdict(score, baseline),
                METRICS[metric], releases=releases, details={"reached": reached},
            )  # fmt: skip
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
        raise PartyError(name, Attack.kind, None, "it told figures that are none") from None


def _reached(rehearsals: Rehearsals, owner: str, releases: tuple[str, ...]) -> list[str]:
    """The parties that a party's releases reached, by what this label owner sent and received."""
    return [
        receiver
        for rehearsal in rehearsals
        for receiver, transcript in rehearsal.transcripts.items()
        if any(item.receipt.owner == owner and item.receipt.name in releases
               for seen in transcript for item in seen.message.released())
    ]  # fmt: skip
