"""Files and folders that only their owner can read, and that are whole after a crash."""

from __future__ import annotations

import os
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700
BINARY = getattr(os, "O_BINARY", 0)
"""On Windows, bytes are written as they are only where this is asked for."""


def new_folder(path: Path) -> None:
    """Make a folder, and those above it, that only its owner can enter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=FOLDER_MODE)


def new_file(path: Path, data: bytes = b"") -> None:
    """Write a file that was not there, and force it onto the disk."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY
    descriptor = os.open(path, flags, FILE_MODE)
    try:
        write_at(descriptor, data, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_at(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of the bytes at a place of a file."""
    os.lseek(descriptor, offset, os.SEEK_SET)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read_at(descriptor: int, length: int, offset: int) -> bytes:
    """Read from a place of a file: fewer bytes where the file ends before."""
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, length)


def force(descriptor: int) -> None:
    """Force what was written to a file onto the disk."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def force_folder(path: Path) -> None:
    """Force the names in a folder onto the disk: the contents of files were before."""
    if os.name == "nt":
        return  # Windows has no such call, and renames are on the disk by themselves
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def inode_of(path: Path) -> tuple[int, int] | None:
    """Which file has this name now. None where there is none."""
    try:
        about = path.stat()
    except FileNotFoundError:
        return None
    return about.st_dev, about.st_ino
