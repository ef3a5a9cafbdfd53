"""`colonnade provision` and `colonnade party check`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from colonnade.algorithms import find
from colonnade.alignment.allowance import ALIGNMENTS, IDS
from colonnade.cli.console import BOLD, a_table, console, say
from colonnade.core import Mechanism, Organisation, Plain
from colonnade.core.roles import FeatureOwner, Introduce
from colonnade.errors import ConfigError
from colonnade.federation import Settings
from colonnade.federation.organisation import accounts_of
from colonnade.flare.provision import provision as make_kits
from colonnade.privacy import LABEL_MECHANISMS, MECHANISMS, Budget
from colonnade.privacy.used_rows import weaker
from colonnade.runs.stores import peek_site_store
from colonnade.settings.party_file import (
    OWN,
    STARTUP,
    SiteConfig,
    all_sites,
    driver_of,
    in_own_words,
    read_own,
)
from colonnade.settings.sections import LABELS, PURPOSES
from colonnade.settings.selection import KEYS, SERVER
from colonnade.sites.driving import rehearse
from colonnade.sites.reader import ids_with_zeros


class Action(StrEnum):
    """What `colonnade party` can do."""

    check = "check"


HELPS = (
    "compares keyed hashes of ids: it learns how many each has and which blinded ids"
    " are equal, and could test ids if it colludes with a party"
)


def duties_of(settings: Settings, name: str) -> str:
    """What an organisation does besides answering for its columns or labels; "" where
    nothing."""
    weights = (
        "drives, and adds up weights: it sees those of label owners, and their scores"
    )
    duties = (
        [weights if name == SERVER else "holds the labels and drives"]
        if name == driver_of(settings)
        else []
    )
    duties += [HELPS] if name == settings.alignment.helper else []
    if settings.selection.servers and name == SERVER:
        duties.append("adds up in selections: it sees pseudo ids and ciphertexts")
    duties += (
        ["decrypts in selections: it sees sums of distances of nameless rows"]
        if name == KEYS
        else []
    )
    return "; it ".join(duties)


def provision(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FEDERATION.toml", help="What all agreed on, with parties' names."
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="A new folder for the startup kits.")
    ],
    server: Annotated[
        str, typer.Option(help="The relay's host name, as all sites can reach it.")
    ] = "localhost",
    port: Annotated[int, typer.Option(help="The relay's port for sites.")] = 8002,
    admin_port: Annotated[
        int, typer.Option(help="The relay's port for the lead.")
    ] = 8003,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help=(
                "state/ of earlier kits: the same root, for new organisations or"
                " --renew."
            ),
        ),
    ] = None,
    renew: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="With --state: whose certificate is new. Repeatable."
        ),
    ] = None,
) -> None:
    """Make a startup kit per organisation, with certificates for mutual TLS, and the
    agreed file in each."""
    settings = Settings.from_toml(file)
    make_kits(
        settings,
        out,
        server=server,
        port=port,
        admin_port=admin_port,
        state=state,
        renew=renew or (),
    )
    table = a_table(f"Startup kits in {out}", "folder", "for", title_style=BOLD)
    table.add_row("relay/", f"the machine {server}, which relays calls it cannot read")
    for name in all_sites(settings):
        duties = duties_of(settings, name)
        table.add_row(
            f"parties/{name}/", f"'{name}'" + (f", which {duties}" if duties else "")
        )
    table.add_row("lead/", f"whoever starts runs, at '{driver_of(settings)}'")
    table.add_row("state/", "nobody: the key that signs certificates. Keep it offline")
    console.print(table)
    console.print(
        f"Send each kit to its organisation alone. There: edit local/{OWN}, then"
        " `colonnade party check`."
    )


def party(
    action: Annotated[  # noqa: ARG001
        Action,
        typer.Argument(help="check: this organisation's own file, table and rules."),
    ],
    file: Annotated[
        Path, typer.Argument(metavar="party.toml", help="This organisation's own file.")
    ] = Path(OWN),
) -> None:
    """Check what one organisation brings against what all agreed on; nothing is sent."""
    own = read_own(file)
    name = own.name
    fingerprint = ""
    kit = file.resolve().parent.parent / STARTUP
    if (kit / "client.crt").exists():
        # needs cryptography, which kits come with
        from colonnade.transport.identity import certified

        name, fingerprint = certified(kit)
    if name != own.name:
        raise ConfigError(
            f"{file} is of '{own.name}', and the certificate in this startup kit is of"
            f" '{name}': this site would not start. Write '{name}' and its own table"
            f" and rules there, or use the kit of '{own.name}'."
        )
    with in_own_words(own.name, own.section):
        _check(own)
    if own.section:
        console.print(_models(own))
    if fingerprint:
        console.print(
            f"The certificate in its startup kit is of '{name}', too. Tell the others"
            " its fingerprint:"
        )
        console.print(fingerprint, highlight=False, soft_wrap=True)
        whose = (
            "those in [peers], and no others"
            if own.peers
            else "any that the root of its kit issued in their names"
        )
        console.print(f"Certificates it takes from the others: {whose}.", markup=False)


def _models(own: SiteConfig) -> str:
    """Which others can know the model that this organisation begins with."""
    if own.settings.models_of(own.name) == "secret":
        return (
            "Its initial weights come from the operating system: nobody else knows its"
            " model."
        )
    return (
        'It has models = "seeded": everybody who knows the agreed seed knows its'
        " initial weights, and can rebuild columns from what it sends. Remove that for"
        " real data."
    )


def _check(own: SiteConfig) -> None:
    """Print what an organisation brings: one that holds labels, columns or both, or the
    aggregation server."""
    name = own.name
    rehearsed = rehearse(own)
    others = ", ".join(repr(n) for n in own.names if n != name)
    if rehearsed is None:
        console.print(
            f"[bold]{name}[/bold] holds no data: it {duties_of(own.settings, name)}."
        )
        console.print(f"Agreed with {others}: {own.agreed}")
        return
    holdings, organisation = rehearsed
    labels = name in own.label_owners
    columns = (
        holdings.columns[name].features[0].numel() if name in holdings.columns else 0
    )
    brings = f"{columns} numbers a row after preparation" if columns else "its labels"
    console.print(f"[bold]{name}[/bold]: {len(holdings.ids):,} rows, {brings}.")
    if own.private and (advice := ids_with_zeros(own, holdings.ids)):
        say(advice)
    console.print(f"Agreed with {others}: {own.agreed}")
    askers = [own.driver] if labels else own.label_owners
    only = f"Only {' and '.join(map(repr, askers))} may ask it."
    holders = " and ".join(map(repr, own.label_owners)) + (
        " holds" if len(own.label_owners) == 1 else " hold"
    )
    console.print(
        f"{holders} the labels."
        f" {'It drives, and asks the others.' if own.drives else only}"
    )
    columns_of, driven = find(own.settings.algorithm).crosses(own.settings.config)
    _what_may_leave(own, organisation, list(driven if labels else columns_of))
    _say_weaker(organisation, list(driven if labels else columns_of))
    if own.private and own.helper:
        when = (
            ""
            if own.settings.alignment.protocol == "helper"
            else ", where somebody has more than 100,000"
        )
        console.print(
            f"Ids are compared by the helper '{own.helper}'{when}, {HELPS}.",
            markup=False,
        )
    if own.private and not labels:
        _say_alignments(own)
    if name in own.settings.parties:
        _say_budget(
            own,
            organisation,
            own.settings.parties[name].budget,
        )


def _what_may_leave(
    own: SiteConfig, organisation: Organisation, releases: list[str]
) -> None:
    table = a_table(
        "What may leave", "release", "mechanism", "codec", "tells", title_style=BOLD
    )
    reveals = find(own.settings.algorithm).reveals
    rules = organisation.outbox.rules
    for name in releases:
        by_purpose = [
            rule_name
            for rule_name in rules
            if rule_name != name and rule_name.rpartition(".")[2] == name
        ]
        for release in (name, *by_purpose):
            rule = rules.get(release) or organisation.outbox.rule_for(name)
            table.add_row(
                release, _in_words(rule.mechanism), rule.codec.name, reveals[name]
            )
    if LABELS in rules:
        meaning = (
            "drawn once before training; all that the label owner sends follows what"
            " was drawn"
        )
        table.add_row(LABELS, _in_words(rules[LABELS].mechanism), "", meaning)
    console.print(table)


def _say_weaker(organisation: Organisation, releases: Sequence[str]) -> None:
    """Warn of rules that protect less for one purpose than for another: who asks says
    what rows are for."""
    outbox = organisation.outbox
    columns = organisation.roles.get("features")
    wide = (
        columns.introduce(Introduce()).shape
        if isinstance(columns, FeatureOwner)
        else ()
    )
    for name in releases if outbox.by_purpose else ():
        if less := weaker(partial(outbox.rule_for, name), PURPOSES, math.prod(wide)):
            rules = ", ".join(f"{purpose}.{name}" for purpose in less)
            console.print(
                f"[bold yellow]Weaker than another rule for {name}:[/bold yellow]"
                f" {rules}. Who asks says what rows are for. So the weaker rule applies"
                " only to rows that its runs never used otherwise; a batch with any"
                " other row leaves by the strictest rule. Give all purposes one rule,"
                " if that is not what you mean.",
                highlight=False,
            )


def _in_words(mechanism: Mechanism) -> str:
    """A mechanism in the words of its owner's file: gaussian, clip 1, sigma 2."""
    if isinstance(mechanism, Plain):
        return "none: it leaves as it is"
    mechanisms = MECHANISMS | LABEL_MECHANISMS
    name = next(
        (name for name, kind in mechanisms.items() if kind is type(mechanism)),
        type(mechanism).__name__,
    )
    settings: Mapping[str, Any] = asdict(mechanism) if is_dataclass(mechanism) else {}
    return ", ".join([name, *(f"{key} {value:g}" for key, value in settings.items())])


def _say_alignments(own: SiteConfig) -> None:
    """Print how often others may align with its ids in a day, and how often they did
    today."""
    allowed = own.alignments
    store = peek_site_store(own.name, own.runs)
    say(
        f"In a day each who may ask aligns with it {allowed.per_day} times to train, by"
        f" lists of {allowed.smallest} ids or more, and compares"
        f" {allowed.predicted_per_day:,} ids to predict ([alignments])."
    )
    taken = {} if store is None else store.taken()
    for name, counts in taken.items():
        say(
            f"Today: '{name}' aligned {counts.get(ALIGNMENTS, 0)} times to train, and"
            f" compared {counts.get(IDS, 0):,} ids to predict."
        )


def _say_budget(
    own: SiteConfig, organisation: Organisation, budget: Budget | None
) -> None:
    """Print what its rows may spend, and what they have spent in its runs so far."""
    if budget is None:
        console.print("No budget: what its rules let through, they let through always.")
    else:
        limit = (
            f"epsilon {budget.epsilon:g} at delta {budget.delta:g} for every row,"
            f" {budget.relation}, over all runs"
        )
        console.print(f"Budget: {limit}.", highlight=False)
    covers = find(own.settings.algorithm).covers
    for account in accounts_of({own.name: organisation}).values():
        if covers:
            console.print(
                f"[bold yellow]Not all rows:[/bold yellow] its noise {covers}.",
                highlight=False,
            )
        store = peek_site_store(own.name, own.runs)
        if store is None or not store.ways():
            console.print(
                "Nothing of it is spent: there was no run yet."
                if budget
                else "There was no run yet."
            )
            continue
        account.look_at(store)
        spent = account.worst
        of_budget = "" if budget is None else f" of {budget.epsilon:g}"
        paid = (
            f"epsilon {spent:.4g}" if math.isfinite(spent) else "more than any epsilon"
        )
        console.print(
            f"Spent in its runs so far, by the row that paid most: {paid}{of_budget}.",
            highlight=False,
        )
