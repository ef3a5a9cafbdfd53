"""The generated parts of the reference, as Markdown: commands, settings, errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

import click
from docs._ext import surface

EXIT_CODES = {
    0: "done",
    1: "an error of ours: a bug, or something let out of a party that may not leave",
    2: "bad input: a setting, a table, an option; nothing was sent",
    3: "a party failed or did not answer",
    4: "a privacy budget is spent",
    5: (
        "an audit threshold was crossed, or one is set and something that can be read"
        " was not attacked, or attacked on too few rows to say"
    ),
    6: "a reproduction missed its figure",
    7: "something is not as it was signed, or somebody else signed it",
}


def command(name: str) -> str:
    """One command: usage, what it does, arguments and options."""
    found = surface.commands()[name]
    arguments = [one for one in found.params if one.param_type_name == "argument"]
    options = [
        one
        for one in found.params
        if one.param_type_name == "option" and not getattr(one, "hidden", False)
    ]
    usage = " ".join(
        [
            f"colonnade {name}",
            *(_argument(one) for one in arguments),
            "[OPTIONS]" if options else "",
        ]
    )
    lines = [
        f"```text\n{usage.strip()}\n```",
        "",
        _markdown(inspect.cleandoc(found.help or "")),
        "",
    ]
    rows = [(f"`{_argument(one)}`", one, "") for one in arguments]
    rows += [
        (", ".join(f"`{name}`" for name in _names(one)), one, _default(one))
        for one in options
    ]
    if rows:
        lines += ["| argument or option | what it does | default |", "|---|---|---|"]
        lines += [
            f"| {said} | {_cell(getattr(one, 'help', '') or '')} | {default} |"
            for said, one, default in rows
        ]
    return "\n".join(lines) + "\n"


def unexplained_commands() -> list[str]:
    """Commands without a help text, and arguments and options without one."""
    found = []
    for name, one in surface.commands().items():
        found += [] if one.help else [f"`colonnade {name}`"]
        for parameter in one.params:
            if parameter.name != "help" and not getattr(parameter, "help", None):
                found.append(f"`{parameter.name}` of `colonnade {name}`")
    return found


def settings(section: str) -> str:
    """One section's table; of "algorithm.*" those of all algorithms, each under its
    name."""
    if section.endswith(".*"):
        return "\n".join(
            f"**`{one.partition('.')[2]}`**\n\n{settings(one)}"
            for one in surface.sections(section)
        )
    keys = surface.settings()[section]
    if not keys:
        return "No settings of its own.\n"
    rows = [
        f"| `{one.key}` | {_cell(one.line)} | {_words(one.value)} |"
        f" {f'`{one.default}`' if one.default else ''} |"
        for one in keys
    ]
    return (
        "\n".join(
            ["| key | what it is for | value | default |", "|---|---|---|---|", *rows]
        )
        + "\n"
    )


def unexplained_settings() -> list[str]:
    """Keys for which nobody has written a line."""
    keys = [one for section in surface.settings().values() for one in section]
    return [f"`{one.key}` of `[{one.section}]`" for one in keys if len(one.line) < 4]


def errors() -> str:
    """The tree, one line per error with its parent and exit code, and the codes."""
    rows = []
    for name, kind in surface.errors().items():
        parents = [
            one.__name__ for one in kind.__mro__[1:] if one.__name__ in surface.errors()
        ]
        depth = "&nbsp;" * 4 * len(parents)
        rows.append(
            f"| {depth}`{name}` | {getattr(kind, 'exit_code', 1)} |"
            f" {_cell(_first(kind))} |"
        )
    return "\n".join(["| error | exit code | when |", "|---|---|---|", *rows]) + "\n"


def exit_codes() -> str:
    """What the shell sees."""
    used = {getattr(kind, "exit_code", 1) for kind in surface.errors().values()}
    unknown = sorted(used - set(EXIT_CODES))
    if unknown:
        raise ValueError(f"Exit codes without words in docs/_ext/pages.py: {unknown}.")
    return (
        "\n".join(
            [
                "| exit code | meaning |",
                "|---|---|",
                *(f"| {n} | {w} |" for n, w in EXIT_CODES.items()),
            ]
        )
        + "\n"
    )


def unexplained_errors() -> list[str]:
    """Errors without a docstring of their own."""
    return [
        f"`{name}`"
        for name, kind in surface.errors().items()
        if not (kind.__dict__.get("__doc__") or "").strip()
    ]


def _first(kind: type) -> str:
    return re.split(r"\n\s*\n", inspect.cleandoc(kind.__doc__ or ""))[0]


def _names(option: click.Parameter) -> list[str]:
    longest_last = [*option.opts, *option.secondary_opts]
    if getattr(option, "is_flag", False):
        return longest_last
    word = option.metavar or (option.name or "value").strip("_").upper()
    return [*longest_last[:-1], f"{longest_last[-1]} {word}"]


def _argument(one: click.Parameter) -> str:
    word = one.metavar or (one.name or "").upper()
    return word if one.required else f"[{word}]" if not word.startswith("[") else word


def _default(option: click.Parameter) -> str:
    value = option.default
    if (
        value is None
        or value is False
        or value is ...
        or value == ()
        or callable(value)
        or "Sentinel" in repr(value)
    ):
        return "required" if option.required else ""
    return f"`{value}`"


def _markdown(text: str) -> str:
    """Typer's help as Markdown: rich's markup becomes code, escaped brackets are
    brackets."""
    text = re.sub(r"\[/?(bold|italic|dim|/)?\]", "", text.replace("\\[", "\0")).replace(
        "\0", "["
    )
    return text.replace("<", "\\<").replace("*", "\\*")


def _cell(text: str) -> str:
    return " ".join(_markdown(text).split()).replace("|", "\\|")


def _words(rule: str) -> str:
    return re.sub(r'"[^"]+"', lambda found: f"`{found.group(0)}`", _cell(rule))


def uncovered(what: Iterable[str], documented: Iterable[str]) -> list[str]:
    """What has no page, in order."""
    return sorted(set(what) - set(documented))
