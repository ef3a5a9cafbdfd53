"""Where the command line begins, `colonnade` or `python -m colonnade`. Ctrl-C while it imports is no traceback."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from colonnade import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
