"""Where the command line begins, `colonnade` or `python -m colonnade`. Ctrl-C while it imports is no traceback, and
the version is told at once."""

from __future__ import annotations

import sys

from colonnade import __version__


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print(__version__)
        return
    try:
        from colonnade import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
