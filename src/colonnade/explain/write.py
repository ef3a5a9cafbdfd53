"""explain.json, tsne.json and the pictures, in a folder."""

from __future__ import annotations

import json
from pathlib import Path

from colonnade.core.files import write_text
from colonnade.errors import InputError
from colonnade.explain.canvas import can_draw
from colonnade.explain.pictures import draw
from colonnade.explain.report import Report, summary_of

PICTURES = ("importance", "tsne", "summarization", "denoising")
OTHER_FILES = ("tsne.json", *(f"{name}.{kind}" for name in PICTURES for kind in ("png", "svg")))
"""The files that `write` may write beside explain.json."""


def write(report: Report, folder: Path, *, pictures: bool = True) -> list[Path]:
    """Write explain.json and, with `pictures`, the pictures. The plane of t-SNE has a file of its own, tsne.json."""
    if pictures:
        can_draw()
    prepare(folder)
    try:
        written = [folder / "explain.json"]
        write_text(written[0], summary_of(report).to_json())
        if report.tsne:
            written.append(folder / "tsne.json")
            write_text(written[1], json.dumps(report.tsne) + "\n")
        written += draw(report, folder) if pictures else []
        for old in (folder / name for name in OTHER_FILES):
            if old not in written:  # from an earlier report
                old.unlink(missing_ok=True)
        return written
    except OSError as error:
        raise _unwritable(folder, error) from None


def prepare(folder: Path) -> None:
    """Make the folder, before anything is measured that a party pays for."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from None


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(f"{folder} cannot be written: {error.strerror}. Choose another --out.")
