"""The command line: `colonnade --help` teaches it.

Exit codes: 0 done, 1 an error of ours, 2 bad input, 3 a party failed, 4 a privacy
budget is spent, 5 an audit threshold was crossed, 6 a reproduction missed its figure,
7 something is not as it was signed.
"""

from __future__ import annotations

import ast
import gc
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from colonnade.datasets.progress import hide
from colonnade.errors import ColonnadeError, ConfigError, did_you_mean

__all__ = ["app", "main"]

COMMANDS = (
    "demo",
    "init",
    "align",
    "select",
    "plan",
    "tune",
    "run",
    "predict",
    "serve",
    "export",
    "provision",
    "party",
    "site",
    "ledger",
    "explain",
    "audit",
    "privacy",
    "report",
    "sign",
    "verify",
    "compare",
    "algorithms",
    "datasets",
    "schema",
    "reproduce",
    "bench",
    "doctor",
)
MODULES = {
    "provision": "deploy",
    "party": "deploy",
    "compare": "report",
    "verify": "sign",
    "algorithms": "listings",
    "datasets": "listings",
    "reproduce": "measure",
    "bench": "measure",
}
"""The modules of commands that are not in a module of their own name."""
TRAINING = ("run", "plan", "tune", "align", "select")
"""Commands that begin with a federation file."""


def commands(needed: set[str], names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command line. Commands in `needed` are imported; of the other `names` it has
    the help text alone, since their modules import torch, which takes longer than
    anybody waits for a word of help."""
    app = typer.Typer(
        name="colonnade",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        help=(
            "Train one model over columns that belong to different organisations,"
            " without moving the columns.\n\nNew here? [bold]colonnade demo[/bold]"
            " shows the whole in a minute."
        ),
        epilog=(
            "Exit codes: 0 done · 2 bad input · 3 a party failed · 4 a privacy budget"
            " is spent · 5 an audit threshold was crossed · 6 a figure was missed · 7"
            " not as it was signed"
        ),
    )
    for name in names:
        module = f"{__name__}.{MODULES.get(name, name)}"
        function = (
            getattr(import_module(module), name)
            if name in needed
            else _help_only(module, name)
        )
        # a line each: the terminal's width breaks lines, not ours
        paragraphs = (function.__doc__ or "").split("\n\n")
        app.command(
            name, help="\n\n".join(" ".join(words.split()) for words in paragraphs)
        )(function)
    app.callback(invoke_without_command=True)(_version)
    return app


def _help_only(module: str, name: str) -> Callable[[], None]:
    """A stand-in with a command's help text, which is read from its source without
    importing it."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    docs = [
        ast.get_docstring(node)
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]

    def command() -> None:
        raise AssertionError(f"{name} was not loaded")

    command.__doc__ = docs[0]
    return command


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return commands({*COMMANDS})


def _version(
    version: bool = typer.Option(
        False, "--version", help="Print the version and stop."
    ),
) -> None:
    if version:
        from colonnade.version import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> NoReturn:
    """Run the command line. An error of ours, or of the disk, becomes one message and
    an exit code, never a traceback. A warning is printed without the line of code that
    it comes from."""
    before = warnings.formatwarning
    warnings.formatwarning = _each_warning_once()
    try:
        words = sys.argv[1:]
        _check_file_early(words)
        command = commands(
            {*words}, words[:1] if {*words[:1]} & {*COMMANDS} else COMMANDS
        )
        if {*words[:1]} & {*TRAINING, "predict", "explain", "audit"}:
            import_module("pandas")  # which swallows Ctrl-C, and these need it
        # __main__ switched it off; what was imported is no garbage and need not be
        # scanned
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
            # till here, __main__ has Ctrl-C end all at once
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        command(standalone_mode=True)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except (ColonnadeError, OSError) as error:
        name = f"{type(error).__name__}:"
        cure = ". Put it right, and try again." if isinstance(error, OSError) else ""
        text = Text(_wrapped(f"{name} {error}{cure}"))
        text.stylize("bold red", 0, len(name))
        Console(stderr=True).print(text, soft_wrap=True)
        sys.exit(2 if isinstance(error, OSError) else error.exit_code)
    finally:
        warnings.formatwarning = before
        hide(False)  # --quiet was this call's wish
    sys.exit(0)


def _check_file_early(words: Sequence[str]) -> None:
    """Refuse a federation file with an error in it before torch is imported; with
    --set, later checks do."""
    if (
        words
        and words[0] in TRAINING
        and not any(word.startswith("--set") for word in words)
    ):
        from colonnade.settings.federation_file import Settings  # help needs none

        for before, word in pairwise(words):
            if (
                word.endswith(".toml")
                and not word.startswith("-")
                and not before.startswith("--")
            ):
                if not (file := Path(word)).exists():
                    hint = did_you_mean(
                        str(file), [str(path) for path in file.parent.glob("*.toml")]
                    )
                    raise ConfigError(
                        f"The federation file {file} cannot be read: No such file or"
                        f" directory{hint}."
                    )
                Settings.from_toml(file)


def _each_warning_once() -> Callable[..., str]:
    """A format for warnings that writes each text once, though several trials read the
    same table."""
    written: set[str] = set()

    def words(message: Warning | str, *_: Any, **__: Any) -> str:
        if str(message) in written:
            return ""
        written.add(str(message))
        return _wrapped(f"Warning: {message}") + "\n"

    return words


def _wrapped(text: str) -> str:
    """A message for standard error: long lines break between words at a terminal, and
    stay whole in a log."""
    screen = Console(stderr=True)
    if not screen.is_terminal:
        return text
    unbroken: Any = {"break_long_words": False, "break_on_hyphens": False}
    lines = [
        (line, " " * (len(line) - len(line.lstrip()))) for line in text.split("\n")
    ]
    return "\n".join(
        fill(line, screen.width, subsequent_indent=indent, **unbroken)
        for line, indent in lines
    )
