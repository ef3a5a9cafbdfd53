"""`colonnade align`: which rows the parties have in common, without showing ids."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from colonnade.alignment import Aligned, Ids, align_here
from colonnade.alignment.ids import matches_by_rule, more_by_rule, read_ids
from colonnade.alignment.in_process import check_free
from colonnade.alignment.keys import row_names
from colonnade.cli.console import BOLD, a_table, console, numbers, say, shown
from colonnade.cli.options import Engine, Json, Quiet, StartupKit
from colonnade.core.files import write_text
from colonnade.datasets.progress import watched
from colonnade.errors import ConfigError
from colonnade.report.words import size
from colonnade.rows.groups import lost, read_keyed
from colonnade.rows.holdings import written_ids
from colonnade.rows.matching import none_in_common
from colonnade.runs.layout import ALIGNMENT
from colonnade.settings.alignment import in_words
from colonnade.settings.federation_file import Settings
from colonnade.settings.party_file import asker_of
from colonnade.settings.schema import place_of
from colonnade.settings.sections import LISTS, LabelOwnerSettings, PartySettings

Held = tuple[Sequence[Ids], Mapping[str, Any]]
"""The ids that an organisation compares, by key, and how many of its rows no key can
match."""


def align(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FEDERATION.toml", help="Who takes part, with which tables."
        ),
    ],
    count: Annotated[
        bool, typer.Option("--count", help="Only how many rows are common, not which.")
    ] = False,
    owner: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="With several label owners: for this one; else for each.",
        ),
    ] = None,
    engine: Engine = "in-process",
    startup_kit: StartupKit = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="For alignment.json and parties/NAME/rows.npy."
        ),
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the rows that all parties hold, and one order for them, by private set
    intersection.

    Only id columns are read; settings are in the file's \\[alignment] table. Where
    \\[data] rows is "label_owner", each partner is compared with the label owner alone;
    where several hold labels, all data owners with each of them. Between machines,
    before a run, rows can be counted (--count --engine ...): which they are, each
    learns in training.
    """
    settings = Settings.from_toml(file)
    if out is not None:
        check_free(out)
    if engine != "in-process":
        from colonnade.cli.on_flare import before_a_run
        from colonnade.flare.job import Job

        if not count:
            raise ConfigError(
                f"With --engine {engine} rows are counted, so it takes --count: which"
                " rows are common, each organisation learns at its own site when it"
                " trains (`colonnade run`)."
            )
        job = partial(Job.to_do, do="count", how={}, owner=owner)
        counted = before_a_run(settings, engine, out, startup_kit, "count", job)
        if counted is not None:
            counts = json.loads((counted / ALIGNMENT).read_text(encoding="utf-8"))
            _show_counts(counts, out, json_=json_, quiet=quiet)
        return
    alignment = (
        settings.alignment.changed(reveal="count") if count else settings.alignment
    )
    groups = _groups(settings, owner)
    alignment.learners_among(
        tuple(name for together in groups.values() for name in together)
    )
    several = len(groups) > 1 or settings.rows_differ
    results = {}
    keys = [in_words(key) for key in settings.keys]
    aligned = None
    # one table per group: no party learns about another
    for name, group in groups.items():
        losses = {
            party: lost_rows for party, (_, lost_rows) in group.items() if lost_rows
        }
        start = time.perf_counter()
        ids = {party: held_ids for party, (held_ids, _) in group.items()}
        driver = next(iter(group))
        through_bytes = settings.engine.through_bytes
        with watched(f"aligning {name}" if several else "aligning") as watch:
            aligned = align_here(
                ids, alignment, driver=driver, through_bytes=through_bytes, watch=watch
            )
        seconds = time.perf_counter() - start
        if not aligned.found.common:
            raise none_in_common({party: _written(settings, party) for party in group})
        matches = _by_rule(settings, group)
        smallest = min(aligned.found.sizes.values())
        advice = more_by_rule(matches, smallest, keys[0])
        if out is not None:
            aligned.write(out / name if several else out)
        by_key = {"keys": keys, "lost": losses} if losses else {}
        by_rule = {"by_rule": matches} if advice else {}
        results[name] = aligned.to_json() | by_key | by_rule | {"seconds": seconds}
        if not (json_ or quiet):
            show(aligned, seconds)
            if losses:
                show_keys(aligned, keys, losses)
            if advice:
                say(advice)
    if json_:
        typer.echo(
            json.dumps(results if several else next(iter(results.values())), indent=2)
        )
    elif not quiet and out is not None:
        console.print(f"The alignment is in [bold]{shown(out)}[/bold].", soft_wrap=True)
    elif not quiet and aligned is not None and aligned.rows:
        console.print(
            "With --out DIR every learner's row numbers are written, in the agreed"
            " order."
        )


def _groups(settings: Settings, owner: str | None) -> dict[str, dict[str, Held]]:
    """Who is compared with whom, by name; the driver is the first of its group. Each
    label owner is compared with all who hold columns, or where rows may differ, each of
    those with it alone. Without labels, the first party drives."""
    count = len({*settings.parties, *settings.label_owners})
    if count < 2 and settings.data.dataset is None:
        raise ConfigError(
            f"An alignment takes two or more parties; found {count}. Add a"
            " [parties.NAME] with table = ..."
        )
    columns = _read(settings, settings.parties)
    labelled = _read(settings, settings.label_owners)
    if owner is not None:
        labelled = {
            name: ids
            for name, ids in labelled.items()
            if name == asker_of(settings, owner)
        }
    first = next(
        (name for name, party in settings.parties.items() if party.label is not None),
        next(iter(columns)),
    )
    labelled = labelled or {first: columns[first]}
    if settings.rows_differ:
        ((driver, ids),) = labelled.items()
        return {
            name: {driver: ids, name: held}
            for name, held in columns.items()
            if name != driver
        }
    return {
        name: (
            {name: ids}
            | {other: held for other, held in columns.items() if other != name}
        )
        for name, ids in labelled.items()
    }


def _written(settings: Settings, name: str) -> frozenset[str]:
    """What an organisation calls its rows, which nobody else is shown where these lie
    on several machines."""
    table = (settings.label_owners.get(name) or settings.parties[name]).table
    written = written_ids(Path(str(table)), settings.keys_at(name), whose=f"'{name}'")
    return frozenset(row_names(settings, written)) - {""}


def _by_rule(settings: Settings, parties: Iterable[str]) -> dict[str, int]:
    """How many rows would match by each rule, where ids are compared as they are. All
    tables are on this machine."""
    if not settings.plain_ids or settings.alignment.ids != "exact":
        return {}
    return matches_by_rule(*(_written(settings, party) for party in parties))


def _show_counts(
    counts: list[dict[str, Any]], out: Path | None, *, json_: bool, quiet: bool
) -> None:
    """Print and write what sites counted."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / ALIGNMENT, json.dumps(counts, indent=2) + "\n")
    if json_:
        typer.echo(json.dumps(counts, indent=2))
    elif not quiet:
        for count in counts:
            console.print(
                f"{count['common']:,} rows are common to {', '.join(count['sizes'])}.",
                highlight=False,
            )
            for name, learned in count["learned"].items():
                say(f"    {name} learned {learned}")


def show(aligned: Aligned, seconds: float) -> None:
    """Print sizes, traffic, and what each party knows now."""
    result = aligned.to_json()
    title = (
        f"{result['common']:,} rows are common to all {len(result['parties'])} parties"
    )
    counts = numbers("rows", "ids", "sent", "received")
    table = a_table(title, "party", *counts, "learned", title_style=BOLD)
    for name, party in result["parties"].items():
        driver = " (drives)" if name == result["driver"] else ""
        sent = size(party["bytes"]["out"])
        received = size(party["bytes"]["in"])
        table.add_row(
            name + driver,
            f"{party['rows']:,}",
            f"{party['ids']:,}",
            sent,
            received,
            party["learned"],
        )
    console.print(table)
    method = (
        "ECDH on secp256k1"
        if "helper" not in result
        else "Keyed hashes, compared by a helper"
    )
    console.print(
        f"{method}, {result['ids']} ids, {seconds:.1f} s. It protects among parties"
        " that follow it."
    )
    if "helper" in result:
        console.print(
            f"The helper '{result['helper']['name']}' learned"
            f" {result['helper']['learned']}.",
            markup=False,
        )


def show_keys(
    aligned: Aligned, keys: Sequence[str], losses: Mapping[str, Mapping[str, Any]]
) -> None:
    """Print how many rows each key matched, and how many each party loses, and why."""
    lost = (
        heading
        for name in losses
        for heading in (f"{name}: without a value", "with another's")
    )
    table = a_table("Matched by", "key", *numbers("rows", *lost), title_style=BOLD)
    for key, count in zip(keys, aligned.found.by_key, strict=False):
        why = [
            f"{n:,}" for loss in losses.values() for n in loss["by key"][key].values()
        ]
        table.add_row(key, f"{count:,}", *why)
    console.print(table)
    for name, loss in losses.items():
        rows = aligned.tables[name]
        without = loss["without any key"]
        unmatched = rows - aligned.found.common
        console.print(
            f"'{name}' loses {unmatched:,} of {rows:,} rows: {without:,} without any"
            f" key of their own, {unmatched - without:,} that not everybody holds.",
            markup=False,
        )


def _read(
    settings: Settings, owners: Mapping[str, PartySettings | LabelOwnerSettings]
) -> dict[str, Held]:
    """Read the ids of these organisations by key. Where keys are not plain ids, count
    rows that no key can match."""
    if settings.data.dataset is not None:
        raise ConfigError(
            "[data] dataset names one table that is cut into parties; its rows are"
            " aligned already."
        )
    held: dict[str, Held] = {}
    for name, party in owners.items():
        if party.table is None:
            section = settings.section if isinstance(party, PartySettings) else LISTS[0]
            raise ConfigError(
                f"{place_of(section, name)} must name its table, as in table ="
                f' "{name}.csv".'
            )
        if settings.plain_ids:
            columns = settings.keys_of(party)[0]
            ids = read_ids(
                party.table, owner=name, columns=columns, settings=settings.alignment
            )
            held[name] = (ids,), {}
            continue
        keyed = read_keyed(settings, name, party, party.table)
        held[name] = (
            tuple(Ids.of_texts(name, texts) for texts in keyed.texts),
            lost(keyed, settings),
        )
    return held
