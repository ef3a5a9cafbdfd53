"""`colonnade audit`: attack a run from each party's place, and say what could have been
learned."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from colonnade.attacks.audit import Audit, audit_run
from colonnade.attacks.finding import LIMITS, Finding, suggested
from colonnade.attacks.promises import CANARIES, Promises, audit_promises
from colonnade.attacks.report import REPORT, prepare, write, write_promises
from colonnade.attacks.scores import AUC, MOST_SUSPECTED
from colonnade.cli.console import a_run, a_table, console, error_console, numbers, shown
from colonnade.cli.options import AllowModel, Engine, Json, Owner, Quiet, StartupKit
from colonnade.errors import ConfigError
from colonnade.runs.layout import AUDIT, SETTINGS
from colonnade.runs.run_directory import to_json
from colonnade.settings.party_file import OWN


def audit(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run directory; it stays as it is.")
    ],
    rows: Annotated[
        int,
        typer.Option(min=8, help="Rows to rebuild; label attacks take 512 or more."),
    ] = 64,
    party: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only attacks by or on this party; others found before stay.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="For audit.json and pictures; by default DIR/audit."),
    ] = None,
    dp: Annotated[
        bool,
        typer.Option(
            "--dp", help="Attack what colonnade privacy promises, by planted rows."
        ),
    ] = False,
    canaries: Annotated[
        int, typer.Option(min=100, help="Rows to plant for --dp.")
    ] = CANARIES,
    owner: Owner = None,
    engine: Engine = "in-process",
    startup_kit: StartupKit = None,
    allow_model: AllowModel = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Attack a run with what each party received: guess labels, rebuild columns. Exit
    code 5 gates a release.

    It is 5 when a score is above its threshold in the run's \\[audit] table, or one is
    set and something that can be read was not attacked, or attacked on too few rows of
    some class to say; with --dp when canaries show an epsilon above the one that is
    promised. Between machines each site attacks at home
    and tells what \\[audit] in its own party.toml allows; with the label owner's
    thresholds there, one that does not tell has not passed.
    """
    place = out or folder / AUDIT
    result: Audit | Promises
    if engine != "in-process":
        if dp or party or out:
            raise ConfigError(
                f"--dp, --party and --out are for one process: on {engine} each site"
                " audits itself."
            )
        done = _at_sites(folder, engine, startup_kit, owner, rows)
        if done is None:
            return
        result, place = done
        files = list(place.iterdir())
    else:
        if owner is not None:
            raise ConfigError(
                "--as is for --engine: in one process everybody attacks. For one alone,"
                " use --party."
            )
        if canaries != CANARIES and not dp:
            raise ConfigError(
                "--canaries are planted for --dp. Add it, or leave --canaries out."
            )
        with error_console.status("…") as status:
            if quiet or json_:
                status.stop()
            run = a_run(folder)
            prepare(place)
            how: Any = {"say": status.update, "allow_models": allow_model or []}
            if dp:
                result = audit_promises(run, canaries=canaries, **how)
                files = [write_promises(result, place)]
            else:
                result = audit_run(run, rows=rows, party=party, **how)
                files = write(result, place)
    if json_:
        typer.echo(to_json(result.to_json(), indent=2))
    elif not quiet and isinstance(result, Promises):
        _show_promises(result, canaries)
        console.print(
            f"{files[0].name} is in [bold]{shown(place)}[/bold].", soft_wrap=True
        )
    elif not quiet and isinstance(result, Audit):
        _show(result)
        console.print(
            f"{len(files)} files are in [bold]{shown(place)}[/bold].", soft_wrap=True
        )
        if not result.limited:
            own_file = f"{folder / SETTINGS}, and remove its first line, a digest"
            _suggest(result, own_file if engine == "in-process" else OWN)
    result.check()


def _at_sites(
    folder: Path,
    engine: str,
    startup_kit: Path | None,
    owner: str | None,
    rows: int,
) -> tuple[Audit, Path] | None:
    """Have every site audit itself; gives the asker's audit and its folder. None where
    that folder is on another machine."""
    from colonnade.cli.on_flare import with_a_run

    results = with_a_run(
        folder, engine, startup_kit, owner, "audit", {"rows": rows}, AUDIT, whole=True
    )
    if results is None:
        return None
    saved = json.loads((results / REPORT).read_text(encoding="utf-8"))
    return Audit.from_json(saved), results


def _suggest(result: Audit, file: str) -> None:
    """Say how the audit becomes a gate."""
    limit, value = suggested(result.findings)
    console.print(
        "No threshold is set. For exit code 5 above one, as an example,\nadd"
        f" to {shown(file)}:\n    \\[audit]\n    {limit} = {value:g}",
        highlight=False,
        soft_wrap=True,
    )


HOW_TO_READ = (
    "AUC: how often a row of the class is suspected more than another row. 0.5 is"
    " guessing, 1 is every row; verdicts and thresholds go by the lower end of its 95 %"
    " interval. Right: rows whose label is said right; a guess is to say the commonest"
    f" class. In top {MOST_SUSPECTED:.0%}: rows of the rarer class (of several, of the"
    f" class told best) that are among the {MOST_SUSPECTED:.0%} of rows suspected most."
)
TOO_FEW_ROWS = (
    "is no pass: the attacked rows have too few of some class to tell a leak from luck."
    " Audit more rows: --rows."
)


def _show(result: Audit) -> None:
    console.print(
        f"What could have been learned from what {result.algorithm} sends", style="bold"
    )
    for table in tables_of(result):
        console.print(table)
    if any(finding.metric == AUC for finding in result.findings):
        console.print(f"\n{HOW_TO_READ}", highlight=False)
    if any(not finding.measures_every_class for finding in result.findings):
        console.print(f"\n[bold]Not measured[/bold] {TOO_FEW_ROWS}", highlight=False)
    if result.not_attacked:
        console.print(
            "\n[bold]Not attacked[/bold], so nothing is known of what it tells"
        )
        for release in result.not_attacked:
            console.print(f"    {shown(release)}", highlight=False, soft_wrap=True)
    for name, answer in result.sites.items():
        console.print(
            f"{shown(name)}, of its own columns: {shown(answer)}.", highlight=False
        )
    for note in result.notes:
        console.print(f"Note: {shown(note)}")


def _show_promises(result: Promises, canaries: int) -> None:
    console.print(
        f"What is promised, and what {canaries:,} canaries showed at 95 %", style="bold"
    )
    words = "of", "against", "neighbours"
    # wide enough for add-or-remove
    wide = [Column(heading, overflow="fold", min_width=13) for heading in words]
    table = Table(*wide, *numbers("claim", "at least", "baseline", no_wrap=True))
    for attempt in result.attempts:
        mark = "[red]{}[/red]" if attempt.broken else "{}"
        bound = (
            "not attacked"
            if attempt.bound is None
            else mark.format(f"{attempt.bound:.3f}")
        )
        base = "" if attempt.baseline is None else f"{attempt.baseline:.3f}"
        whose = f"{attempt.party}'s {attempt.protects}"
        table.add_row(
            whose,
            attempt.adversary,
            attempt.relation,
            f"{attempt.claim or 0.0:.3f}",
            bound,
            base,
        )
    if result.attempts:
        console.print(table)
        console.print(
            "Epsilon is above the bound; the baseline is Steinke et al.'s (2023)."
        )
    for note in [
        *result.notes,
        *dict.fromkeys(attempt.why for attempt in result.attempts if attempt.why),
    ]:
        console.print(f"Note: {note}", markup=False)


def tables_of(result: Audit) -> Iterator[Table]:
    """A table per attack, titled with what it assumes; a line per attacker, victim and
    moment."""
    by_attack: dict[str, list[Finding]] = {}
    for finding in sorted(result.findings, key=lambda one: LIMITS.index(one.limit)):
        by_attack.setdefault(finding.attack, []).append(finding)
    for attack, findings in by_attack.items():
        title = (
            f"\n[bold]{shown(attack)}[/bold], assuming an attacker that"
            f" {shown(min((one.assumes for one in findings), key=len))}"
        )
        if findings[0].metric == AUC:
            yield _table_of_classes(title, findings)
        else:
            yield _table_of_scores(title, findings)


def _table_of_classes(title: str, findings: Sequence[Finding]) -> Table:
    """How well an attack tells classes: AUC, and what that means for the rows."""
    scores = numbers(AUC, "right", f"in top {MOST_SUSPECTED:.0%}")
    table = a_table(
        title, "by", "on", "when", *scores, "verdict", title_style="not italic"
    )
    for finding in findings:
        told = finding.details
        table.add_row(
            shown(finding.attacker),
            shown(finding.victim),
            shown(_when(finding)),
            _score(finding),
            _beside(told.get("accuracy"), told.get("accuracy_without")),
            _beside(told.get("recall"), told.get("recall_without")),
            _verdict(finding),
        )
    return table


def _table_of_scores(title: str, findings: Sequence[Finding]) -> Table:
    """How well an attack tells columns, or labels that are numbers."""
    scores = numbers(shown(findings[0].metric), "without attack")
    table = a_table(
        title, "by", "on", "when", *scores, "verdict", title_style="not italic"
    )
    for finding in findings:
        table.add_row(
            shown(finding.attacker),
            shown(finding.victim),
            shown(_when(finding)),
            _score(finding),
            f"{finding.baseline:.3f}",
            _verdict(finding),
        )
    return table


def _when(finding: Finding) -> str:
    release = finding.details.get("release")
    return finding.moment if release is None else f"{finding.moment}\n{release}"


def _score(finding: Finding) -> str:
    """The score, and below it its interval."""
    if finding.score is None:
        return "–"
    if finding.low is None or finding.high is None:
        return f"{finding.score:.3f}"
    return f"{finding.score:.3f}\n{finding.low:.3f}–{finding.high:.3f}"


def _beside(share: float | None, by_guessing: float | None) -> str:
    """A share of rows, and below it what guessing gives."""
    if share is None or by_guessing is None:
        return "–"
    return f"{share:.1%}\nguess {by_guessing:.1%}"


def _verdict(finding: Finding) -> str:
    words = shown(finding.verdict)
    if finding.crossed:
        words += f"\n[red]above {finding.limit} = {finding.threshold}[/red]"
    if finding.unknown:
        words += f"\n[red]{finding.limit} = {finding.threshold}: not known[/red]"
    return words
