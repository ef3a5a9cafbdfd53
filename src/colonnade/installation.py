"""How this copy of Colonnade was installed, and the command that adds to it.

`pip install "colonnade[plots]"` works only for a copy that came from a package index. A
copy from a folder or from a wheel file has to be named by its path. pip writes down
where a copy came from, in `direct_url.json` (PEP 610).
"""

from __future__ import annotations

import json
import shutil
import sys
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

NAME = "colonnade"
REPOSITORY = Path(__file__).parents[2]
"""The root of the repository, if this copy runs from its sources."""


@cache
def hint(extra: str = "") -> str:
    """The command that installs what this copy of Colonnade needs for an extra.

    Args:
        extra: an extra of pyproject.toml, such as "plots"; "" for what is always needed.
    """
    brackets = f"[{extra}]" if extra else ""
    if (REPOSITORY / "pyproject.toml").is_file():
        return f'{_pip()} install -e "{REPOSITORY}{brackets}"'
    origin = _origin()
    if origin is None:
        return f'{_pip()} install "{NAME}{brackets}"'
    if "vcs_info" in origin:
        version_control = origin["vcs_info"]
        commit = version_control["commit_id"]
        address = f"{version_control['vcs']}+{origin['url']}@{commit}"
        return f'{_pip()} install "{NAME}{brackets} @ {address}"'
    path = _path(origin["url"])
    if path is None:
        return f'{_pip()} install "{NAME}{brackets} @ {origin["url"]}"'
    if path.exists():
        return f'{_pip()} install "{path}{brackets}"'
    # the wheel or the folder is gone, so the packages are named one by one
    packages = " ".join(f'"{package}"' for package in requirements(extra))
    return f"{_pip()} install {packages}"


def requirements(extra: str = "") -> list[str]:
    """The packages that an extra adds, as pip writes them; for "" those always needed."""
    found = []
    for line in metadata.requires(NAME) or ():
        package, _, marker = line.partition(";")
        of_extra = marker.partition("==")[2].strip().strip("'\"")
        if of_extra == extra:
            found.append(package.strip())
    return found


def can_draw() -> bool:
    """Whether matplotlib is installed, which draws the pictures."""
    return find_spec("matplotlib") is not None


def no_pictures() -> str:
    """The sentence that a command says where it leaves its pictures out."""
    return (
        "The pictures are left out, since matplotlib is not installed. To have them:"
        f" {hint('plots')}"
    )


def project_url(label: str) -> str:
    """An address under [project.urls] of pyproject.toml, by its label."""
    for line in metadata.metadata(NAME).get_all("Project-URL") or ():
        found, _, url = str(line).partition(", ")
        if found == label:
            return url
    raise KeyError(f"[project.urls] of pyproject.toml has no {label!r}.")


def _origin() -> dict[str, Any] | None:
    """Where pip took this copy from, as PEP 610 says it; None for a package index."""
    text = metadata.distribution(NAME).read_text("direct_url.json")
    origin: dict[str, Any] | None = json.loads(text) if text else None
    return origin


def _path(url: str) -> Path | None:
    """The file or folder that a file: URL means; None for any other URL."""
    parts = urlsplit(url)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


def _pip() -> str:
    """pip of the running Python; by its whole path where the shell's is another."""
    found = shutil.which("pip")
    is_ours = found is not None and Path(found).parent == Path(sys.executable).parent
    return "pip" if is_ours else f'"{sys.executable}" -m pip'
