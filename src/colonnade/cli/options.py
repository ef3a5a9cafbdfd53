"""Options that several commands have, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colonnade.cli.console import say
from colonnade.datasets.progress import hide
from colonnade.errors import ConfigError

if TYPE_CHECKING:  # so that commands that compute nothing need no torch
    from colonnade.settings.federation_file import Settings

VARIABLE = "COLONNADE_TOKEN"
Seed = Annotated[
    int | None,
    typer.Option(min=0, max=2**63 - 1, help="Use this seed instead of the file's."),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON for machines instead of tables.")
]
AllowModel = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE:CLASS",
        help="A model outside Colonnade that may be named: its code runs. Repeatable.",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No progress bar, no tables.", callback=hide),
]
Table = Annotated[
    list[str] | None,
    typer.Option(metavar="PARTY=FILE", help="A party's table of new rows; repeatable."),
]
Owner = Annotated[
    str | None,
    typer.Option(
        "--as", metavar="NAME", help="Which label owner asks; else the first."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help=(
            "With several label owners: aggregated (the default), or own, the asker's."
        ),
    ),
]

Engine = Annotated[
    str,
    typer.Option(
        help="in-process, or NVIDIA FLARE: flare-sim, flare-poc (here), flare (sites)."
    ),
]
StartupKit = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="For --engine flare: the lead's kit (provision)."),
]

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting instead of the file's, as train.epochs=30; repeatable.",
    ),
]


def check_asker(settings: Settings, owner: str | None, model: str | None) -> None:
    """Raise unless --as names a label owner, and --model one of its models."""
    from colonnade.algorithms import find
    from colonnade.settings.party_file import asker_of

    asker_of(settings, owner)
    find(settings.algorithm).check_model(model)


def overrides(options: list[str], parties: Any) -> dict[str, str]:
    """The file of each party that a --table PARTY=FILE names."""
    pairs = dict(option.partition("=")[::2] for option in options)
    for name, path in pairs.items():
        if name not in parties or not path:
            raise ConfigError(
                f"--table takes PARTY=FILE with one of {', '.join(parties)}; found"
                f" {name}={path}."
            )
    return pairs


def say_how(url: str, *, token: bool) -> None:
    bearer = " -H 'Authorization: Bearer TOKEN'" if token else ""
    say(
        f"""curl -s {url}/predict -H 'Content-Type: application/json'{bearer} -d '{{"ids": ["ID"]}}'""",
        soft_wrap=True,
    )
