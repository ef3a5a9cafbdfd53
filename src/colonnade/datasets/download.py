"""Fetching a file: to a temporary name, checked, then renamed. A failure leaves nothing
behind."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from colonnade.datasets.progress import progress
from colonnade.errors import DataError

CHUNK = 1 << 18


def cache_folder(name: str = "datasets") -> Path:
    """Where downloads are kept when no folder is named: `~/.cache/colonnade/datasets`,
    or under XDG_CACHE_HOME."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "colonnade" / name


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name only when the block ends well; otherwise it is removed,
    also on Ctrl-C. Until then its name cannot be guessed: others may write the same
    file in this folder, or put something in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name}.", suffix=".part"
    )
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def fetch(
    url: str, path: Path, *, md5: str | None = None, timeout: float = 30.0
) -> Path:
    """Download `url` to `path`, and keep it only if it is complete and has this MD5,
    where one is given."""
    if not url.startswith(("https://", "http://")):
        raise DataError(
            f"{url} is no http or https address, and only these can be downloaded"
        )
    try:
        with written_whole(path) as stream:
            digest = _receive(url, stream, timeout)
            if md5 is not None and digest != md5:
                raise DataError(
                    f"{url} has MD5 {digest}, and {md5} was expected, so it was not"
                    " kept"
                )
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise DataError(
            f"{url} could not be downloaded ({str(reason) or type(error).__name__})"
        ) from None
    return path


def _receive(url: str, stream: IO[bytes], timeout: float) -> str:
    """Copy the answer into the stream; returns its MD5, which guards against damage,
    not against malice."""
    request = urllib.request.Request(url, headers={"User-Agent": "colonnade"})
    digest = hashlib.md5(usedforsecurity=False)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        announced = int(answer.headers.get("Content-Length") or 0)
        received = 0
        with progress(Path(url).name, announced, unit="bytes") as advance:
            while chunk := answer.read(CHUNK):
                stream.write(chunk)
                digest.update(chunk)
                received += len(chunk)
                advance(len(chunk))
    if received < announced:
        raise OSError(f"the connection ended after {received} of {announced} bytes")
    return digest.hexdigest()
