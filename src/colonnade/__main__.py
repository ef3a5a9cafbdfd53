"""Where the command line begins, `colonnade` or `python -m colonnade`. Ctrl-C while it imports is no traceback, and
the version is told at once."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

from colonnade import __version__


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print(__version__)
        return
    if Path("/sys/kernel/mm/transparent_hugepage").is_dir():  # fresh pages of 4 kB cost three times what is done with
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # them: torch takes large tensors in pages of 2 MB
    gc.disable()  # what is imported stays; to search it for garbage, again and again, takes a tenth of a run's start
    try:
        from colonnade import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
