"""Every attack that applies to a run, scored: what could each party have learned from
what it received?

An attack gets one party's transcript and what that party holds anyway. Where it gets
more, it says so: inversion gets the victim's weights, a regression the columns of a few
rows. Where initial weights follow from the agreed seed, the label owner knows them
anyway. The scorer alone uses the truth, afterwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from colonnade.algorithms import Kind
from colonnade.attacks import trigger
from colonnade.attacks.finding import LIMITS, Finding, NotAttacked, not_attacked
from colonnade.attacks.inversion_audit import (
    EMBEDDINGS,
    Rebuilt,
    inversion_findings,
    joined,
    known_findings,
    rebuild,
)
from colonnade.attacks.label_audit import ATTACKS, Guesses, label_findings, partners
from colonnade.attacks.learned_model import (
    LEARNED,
    jacobian_findings,
    learned_findings,
    lengths_findings,
    sums_findings,
)
from colonnade.attacks.rehearsal import (
    TRAINED,
    Attacked,
    Rehearsal,
    Say,
    first_rounds,
    model_files,
    part_of,
    predictions,
    reopen,
    train_on,
)
from colonnade.core import Released
from colonnade.core.party import one_torch_thread
from colonnade.encryption.masks import SHARES
from colonnade.errors import AuditFailed, ConfigError, did_you_mean
from colonnade.federation import Federation


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class Audit:
    """The findings on a run, and the reconstructions behind them, which stay in memory.

    Args:
        run: The name of the run's folder.
        algorithm: What was trained.
        dataset: A public data set by name, whose pictures may be shown.
        thresholds: The settings in [audit].
        findings: The attacks that were made.
        not_attacked: What could be read, and no finding bounds.
        rebuilt: The reconstructions.
        notes: What else a reader should know.
        party: The one party by which or on which attacks were made; None for all.
        model_files: The SHA-256 of each file of the models that were attacked, by its
            path in the run's folder. Empty for a federation in memory.
        date: When the audit began, in UTC.
        drawn: Whose columns each picture shows, by the picture's name.
        sites: Between sites, what each of the others said of its own columns.
    """

    run: str
    algorithm: str
    dataset: str | None
    thresholds: dict[str, float | None]
    findings: list[Finding] = field(default_factory=list)
    not_attacked: list[NotAttacked] = field(default_factory=list)
    rebuilt: list[Rebuilt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    party: str | None = None
    model_files: dict[str, str] = field(default_factory=dict)
    date: str = field(default_factory=_now)
    drawn: dict[str, str] = field(default_factory=dict)
    sites: dict[str, str] = field(default_factory=dict)

    @property
    def crossed(self) -> list[Finding]:
        """The findings that are above their threshold."""
        return [finding for finding in self.findings if finding.crossed]

    @property
    def unknown(self) -> list[Finding]:
        """The findings of which it cannot be said whether they keep their threshold."""
        return [finding for finding in self.findings if finding.unknown]

    @property
    def passed(self) -> bool:
        """Whether everything that could be read was attacked, and every score is known
        to keep its threshold.

        Between sites every other site must say so too: a site that says nothing has not
        passed.
        """
        failures = (self.crossed, self.unknown, self.not_attacked, self.open_sites)
        return not any(failures)

    @property
    def open_sites(self) -> dict[str, str]:
        """The sites that are not known to have passed, and why not."""
        return {
            name: said
            for name, said in self.sites.items()
            if said not in (FIGURES, PASSED)
        }

    @property
    def limited(self) -> bool:
        """Whether some threshold is set, so that the audit is a gate."""
        return any(value is not None for value in self.thresholds.values())

    def to_json(self) -> dict[str, Any]:
        """Scores and names, no values of anybody's rows."""
        return {
            "run": self.run,
            "algorithm": self.algorithm,
            "date": self.date,
            "party": self.party,
            "model_files": self.model_files,
            "thresholds": {
                name: value
                for name, value in self.thresholds.items()
                if value is not None
            },
            "passed": self.passed,
            "findings": [finding.to_json() for finding in self.findings],
            "not_attacked": [dataclasses.asdict(item) for item in self.not_attacked],
            "notes": self.notes,
            "pictures": self.drawn,
            "sites": self.sites,
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Audit:
        """An audit as `to_json` wrote it, without reconstructions."""
        return cls(
            run=saved["run"],
            algorithm=saved["algorithm"],
            dataset=None,
            thresholds=dict.fromkeys(LIMITS) | dict(saved["thresholds"]),
            findings=[Finding.from_json(finding) for finding in saved["findings"]],
            not_attacked=[NotAttacked(**item) for item in saved["not_attacked"]],
            notes=list(saved["notes"]),
            party=saved["party"],
            model_files=dict(saved["model_files"]),
            date=saved["date"],
            drawn=dict(saved["pictures"]),
            sites=dict(saved["sites"]),
        )

    def check(self) -> None:
        """Raise when a threshold was crossed, or one is set and it is not known that
        everything keeps it."""
        if self.passed or not self.limited:
            return
        raise AuditFailed("\n".join(self._complaints()))

    def _complaints(self) -> Iterator[str]:
        """What is wrong, and what to do about it."""
        if self.crossed:
            yield (
                f"{len(self.crossed)} of {len(self.findings)} findings are above their"
                " threshold in [audit]:"
            )
            for finding in self.crossed:
                yield (
                    f"    {finding}: {finding.figure} is above"
                    f" {finding.limit} = {finding.threshold}"
                )
            yield (
                "    Protect what is released, in the owner's outbox rules, or raise"
                " the threshold."
            )
        if self.unknown:
            yield (
                f"{len(self.unknown)} of {len(self.findings)} findings are on too few"
                " rows of one class to say whether they keep their threshold:"
            )
            for finding in self.unknown:
                yield (
                    f"    {finding}: {finding.figure} on"
                    f" {finding.details.get('rows', 'some')} rows;"
                    f" {finding.limit} = {finding.threshold}"
                )
            yield "    Audit more rows: --rows."
        if self.not_attacked:
            yield (
                f"{len(self.not_attacked)} releases could be read and were not"
                " attacked, so nothing bounds them:"
            )
            yield from (f"    {item}" for item in self.not_attacked)
            yield (
                "    Hide them, or train an algorithm all of whose releases can be"
                " attacked here."
            )
        if self.open_sites:
            yield (
                f"{len(self.open_sites)} of {len(self.sites)} sites are not known to"
                " have passed:"
            )
            yield from (f"    {name}: {said}" for name, said in self.open_sites.items())
            yield (
                "    What a site tells of its own columns, it says under [audit] in its"
                " own party.toml."
            )


def audit_run(
    folder: Path,
    *,
    rows: int = 64,
    party: str | None = None,
    say: Say | None = None,
    allow_models: Sequence[str] = (),
) -> Audit:
    """Attack a finished run, which stays as it is.

    Args:
        folder: The run's folder.
        rows: How many rows are rebuilt; label attacks look at as many or more.
        party: Only attacks by or on this party.
        say: Told what is done now.
        allow_models: The import paths that the run's settings may name as models.
    """
    with reopen(folder, allow_models) as federation:
        if party is not None and party not in federation.organisations:
            hint = did_you_mean(party, list(federation.organisations))
            raise ConfigError(
                f"--party is {party!r}, which is no party of this run{hint}; there are "
                f"{', '.join(federation.organisations)}."
            )
        result = audit_federation(
            federation, folder.resolve().name, rows=rows, party=party, say=say
        )
        result.model_files = model_files(folder)
        return result


@one_torch_thread()  # the tensors are small, and threads would only wait for each other
def audit_federation(
    federation: Federation,
    run: str = "",
    *,
    rows: int = 64,
    party: str | None = None,
    say: Say | None = None,
) -> Audit:
    """As `audit_run`, for a recorded federation in memory. It is trained a little
    further on the way."""
    if federation.recording is None:
        raise ConfigError(
            "An audit needs a federation that records: Federation(..., record=True)."
        )
    settings = federation.settings
    result = Audit(
        run,
        settings.algorithm,
        settings.data.dataset,
        settings.audit.limits,
        party=party,
    )
    say = say or (lambda _: None)
    say("repeating the first rounds")
    first = first_rounds(federation, max(rows, LABEL_ROWS))
    asked = predictions(federation, rows)
    say("training a few batches further")
    trained = dataclasses.replace(
        train_on(federation, max(rows, LABEL_ROWS), TRAINED), begun=first.transcripts
    )
    rehearsals = (first, asked, trained)
    findings: list[Finding] = []
    for owner in federation.holdings.label_owners:
        part = part_of(federation, owner)
        own = (
            first.of(federation, owner),
            asked.of(federation, owner),
            trained.of(federation, owner),
        )
        note(result, part, own)
        findings += on_labels(part, own, party, say)
        findings += on_columns(result, part, own, rows, party, say)
    result.notes = list(dict.fromkeys(result.notes))
    result.findings = [finding.under(result.thresholds) for finding in findings]
    result.not_attacked = not_attacked(
        federation.algorithm, rehearsals, findings, reads=READS, party=party
    )
    if not findings:
        result.notes.append(NONE_APPLIES.format(result.algorithm))
    return result


Rehearsals = tuple[Rehearsal, Rehearsal, Rehearsal]
"""The first rounds, a prediction, and training further."""


def note(result: Audit, federation: Attacked, rehearsals: Rehearsals) -> None:
    """Note what was refused, what arrived masked, whose models are known, and whose
    rows came as the same numbers."""
    first = rehearsals[0]
    for rehearsal in rehearsals:
        if rehearsal.refused:
            result.notes.append(f"{rehearsal.moment}: {rehearsal.refused}")
    if masked := _masked(federation, first):
        result.notes.append(
            f"What {', '.join(masked)} sent for each row arrived masked:"
            f" {federation.holdings.label_owner} can read their sum alone, so attacks"
            " on the columns of one of them are on that sum, or do not apply."
        )
    result.notes += whose_models(federation, masked)
    result.notes += trigger.suspicious_rows(federation, first)


def on_labels(
    federation: Attacked,
    rehearsals: Rehearsals,
    party: str | None,
    say: Say,
    told_guesses: Guesses | None = None,
) -> Iterator[Finding]:
    """Guesses of labels, scored where the labels are; `told_guesses` are those of
    parties elsewhere."""
    for rehearsal in rehearsals[::2]:
        say(f"guessing labels: {rehearsal.moment}")
        yield from label_findings(federation, rehearsal, party, told_guesses)


def on_columns(
    result: Audit,
    federation: Attacked,
    rehearsals: Rehearsals,
    rows: int,
    party: str | None,
    say: Say,
) -> Iterator[Finding]:
    """Columns that were rebuilt, scored where the columns are; `result` keeps the
    reconstructions."""
    first, asked, trained = rehearsals
    for rehearsal in (first, trained):
        yield from jacobian_findings(federation, rehearsal, rows, party)
    moments = [asked, trained] if _differs(federation, trained, asked) else [asked]
    # what was released before is still known
    moments += [first] if asked.refused and trained.refused else []
    reconstructions: list[Rebuilt] = []
    for rehearsal in moments:
        say(f"inverting models: {rehearsal.moment}")
        rebuilt = list(rebuild(federation, rehearsal, rows, party))
        whole = joined(federation, rebuilt)
        reconstructions += rebuilt if whole is None else [*rebuilt, whole]
    result.rebuilt += reconstructions
    say("looking at what was rebuilt")
    yield from inversion_findings(federation, reconstructions)
    say("using what is known, and learning what is not")
    yield from known_findings(federation, first, rows, party)
    for rehearsal in (
        (asked, trained) if federation.algorithm.named(Kind.DIRECTIONS) else (trained,)
    ):
        yield from learned_findings(federation, rehearsal, party)
    yield from sums_findings(federation, trained, party)
    yield from lengths_findings(federation, first, party)


FIGURES = "told its figures"
PASSED = "passed by its own limits"
FAILED = "not passed by its own limits"
NO_LIMITS = (
    "not told: it has no limits, or one on what sites cannot measure (recognition)"
)
NOT_TOLD = "not told"
NOTHING_LEFT = (
    "not known: it released nothing again, as where its budget is spent, so nothing was"
    " attacked"
)
"""What a site said of its own columns."""
READS = frozenset(
    {kind for attack in ATTACKS for kind in (attack.reads, *attack.beside)}
    | {*LEARNED, Kind.JACOBIAN, Kind.HISTOGRAMS, Kind.LENGTHS}
)
"""The kinds of releases that some attack here is on."""
NONE_APPLIES = "No attack here applies to what {} sends between these parties."
LABEL_ROWS = 512
"""Label attacks look at this many training rows, or all there are: they cost little and
a share needs rows."""


def whose_models(federation: Attacked, masked: Collection[str]) -> Iterator[str]:
    """Of parties whose releases the label owner could read, whose models follow from
    the agreed seed, and whose not."""
    by_source: dict[str, list[str]] = {"seeded": [], "secret": []}
    readable = [
        name
        for name in federation.owners
        if name not in (federation.holdings.label_owner, *masked)
    ]
    algorithm = federation.algorithm
    for name in (
        readable if algorithm.draws_weights and not algorithm.learns_first else ()
    ):
        by_source[federation.settings.models_of(name)].append(name)
    if names := ", ".join(by_source["seeded"]):
        yield (
            f"This run was a rehearsal: the initial weights of {names} follow from the"
            " agreed seed. Whoever knows it has the models behind the first training"
            " batch, and that batch was attacked with them."
        )
    if names := ", ".join(by_source["secret"]):
        yield (
            f"The local models of {names} were secret: their initial weights came from"
            " the operating system. No attack on the first training batch knows them,"
            " and those that assume weights (white box) are for whoever stole them."
            " What a model that was learned from known rows gives away was measured."
        )


def _masked(federation: Attacked, rehearsal: Rehearsal) -> list[str]:
    """The parties whose releases reached the label owner as shares of a sum."""
    labels = federation.holdings.label_owner
    receipts = [
        released.receipt
        for seen in rehearsal.heard_by(labels)
        for released in seen.message.released()
    ]
    owners = {receipt.owner for receipt in receipts if receipt.codec == SHARES.name} - {
        labels
    }
    return [name for name in partners(federation) if name in owners]


def _differs(federation: Attacked, first: Rehearsal, second: Rehearsal) -> bool:
    """Whether embeddings were released by other rules, or to other parties, in one
    rehearsal than in the other."""
    names = federation.algorithm.named(*EMBEDDINGS)
    labels = federation.holdings.label_owner

    def releases(rehearsal: Rehearsal) -> set[tuple[object, ...]]:
        receipts = [
            (receiver, item.receipt)
            for receiver, item in rehearsal.arrivals()
            if isinstance(item, Released)
        ]
        return {
            (
                receiver,
                receipt.owner,
                receipt.codec,
                receipt.event.kind,
                *sorted(receipt.event.parameters.items()),
            )
            for receiver, receipt in receipts
            if receipt.name in names and receipt.owner not in (labels, receiver)
        }

    return releases(first) != releases(second)
