"""The command line: `colonnade --help` teaches it.

Exit codes: 0 done, 1 an error of ours, 2 bad input, 3 a party failed, 4 a privacy budget is spent,
5 an audit threshold was crossed, 6 a reproduction missed its figure.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, NoReturn

import typer

from colonnade.cli.align import align
from colonnade.cli.audit import audit
from colonnade.cli.console import error_console
from colonnade.cli.demo import demo
from colonnade.cli.deploy import party, provision
from colonnade.cli.doctor import doctor
from colonnade.cli.explain import explain
from colonnade.cli.export import export
from colonnade.cli.init import init
from colonnade.cli.listings import algorithms, datasets
from colonnade.cli.measure import bench, reproduce
from colonnade.cli.plan import plan
from colonnade.cli.predict import predict
from colonnade.cli.privacy import privacy
from colonnade.cli.report import compare, report
from colonnade.cli.run import run
from colonnade.cli.select import select
from colonnade.cli.serve import serve
from colonnade.errors import ColonnadeError

__all__ = ["app", "main"]

app = typer.Typer(
    name="colonnade",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Train one model over columns that belong to different organisations, without moving the columns.\n\n"
    "New here? [bold]colonnade demo[/bold] shows the whole in a minute.",
    epilog="Exit codes: 0 done · 2 bad input · 3 a party failed · 4 a privacy budget is spent · "
    "5 an audit threshold was crossed · 6 a figure was missed",
)
for command in (
    demo,
    init,
    align,
    select,
    plan,
    run,
    predict,
    serve,
    export,
    provision,
    party,
    explain,
    audit,
    privacy,
    report,
    compare,
    algorithms,
    datasets,
    reproduce,
    bench,
    doctor,
):
    app.command()(command)


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        from colonnade.version import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> NoReturn:
    """Run the command line; an error of ours, or of the disk, becomes one message and an exit code, never a traceback;
    a warning is its words alone, without where in our code it comes from."""
    before, warnings.formatwarning = warnings.formatwarning, _words
    try:
        app(standalone_mode=True)
    except ColonnadeError as error:
        error_console.print(f"[bold red]{type(error).__name__}:[/bold red] ", end="")
        error_console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:
        error_console.print(f"{type(error).__name__}: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    finally:
        warnings.formatwarning = before
    sys.exit(0)


def _words(message: Warning | str, *_: Any, **__: Any) -> str:
    return f"Warning: {message}\n"
