"""Where the command line begins, `colonnade` or `python -m colonnade`. Ctrl-C ends it
at once while it imports, and the version is printed at once."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

from colonnade import __version__


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print(__version__)
        return
    # torch then takes large tensors in pages of 2 MB, since
    if Path("/sys/kernel/mm/transparent_hugepage").is_dir():
        # fresh pages of 4 kB cost three times the work on them
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # imported modules stay; to search them for garbage again and again takes a tenth of
    # a run's start
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # an import may swallow what that raises, and be done by half
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from colonnade import cli

    cli.main()


if __name__ == "__main__":
    main()
