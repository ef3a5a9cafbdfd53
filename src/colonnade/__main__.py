"""Where the command line begins, `colonnade` or `python -m colonnade`. Ctrl-C while it imports is no traceback, and
the version is told at once."""

from __future__ import annotations

import gc
import sys

from colonnade import __version__


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print(__version__)
        return
    gc.disable()  # what is imported stays; to search it for garbage, again and again, takes a tenth of a run's start
    try:
        from colonnade import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
