"""A party's state on disk: tensors in safetensors, the rest in JSON, in a folder that appears whole or not at all.

    parties/<name>/checkpoint-000530/    tensors.safetensors   state.json

A folder is written under a temporary name and renamed; nobody reads a folder whose name does not match. One that is
replaced is moved aside until then: after a crash between the two, it is what is read.

Saved files know when they were damaged, since one flipped bit of a weight would give another result and nobody would
know. Each carries a digest (SHA-256) of all else that is in it, with 64 zeros in the digest's place; state.json has one
of tensors.safetensors, too. Other files of a run do as well:

    summary.json       ..., "sha256": "9f2c…"}                       the last key of a JSON object
    federation.toml    # As Colonnade wrote it: sha256 9f2c…         the first line of any other text

It is no signature: who may write a file may write another digest. A file without one is taken as it is: one of an
earlier version, or one from which its owner removed the digest to edit it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from colonnade.core.files import aside, replaced_folder
from colonnade.errors import CheckpointError

TENSORS, STATE = "tensors.safetensors", "state.json"
CURE = "Restore the folder from a copy, or start a new run"
FORMAT = 1
"""Of a run directory: checkpoint.json keeps it. Who reads an older one reads it as it was meant (a number is missing
before there was one), and writes this one from its next checkpoint on; a newer one is refused."""
KEY = "sha256"
NOTE = f"# As Colonnade wrote it: {KEY} "
HOW = "Remove this line to edit the file."
NONE = "0" * 64
AT_THE_END = re.compile(r'"([0-9a-f]{64})"\s*}\s*\Z')
NAMED = re.compile(rf'"{"." * len(KEY)}": ')
"""The digest's key, or what a flipped bit makes of it."""
AT_THE_TOP = re.compile(rf"{re.escape(NOTE)}([0-9a-f]{{64}})\. {re.escape(HOW)}\n")
REMAINS = re.compile(rf"As Colonnade wrote it|{KEY} [0-9a-f]{{32}}|[0-9a-f]{{32}}\. Remove|{re.escape(HOW)}")
"""Any of it tells that a text begins with its digest, also where bits of the others are flipped."""
RESTORE = "Restore it from a copy"
OTHER = "its content is not the one that its digest was made of"


def write(folder: Path, state: dict[str, Any], *, forced: bool = True) -> None:
    """Save a state as `folder`; it replaces one that is there. `forced` is of `files.replaced_folder`."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    plain = _split(state, "state", tensors)
    with replaced_folder(folder, forced=forced) as fresh:
        try:
            save_file(tensors, fresh / TENSORS)
        except SafetensorError as error:  # how its writer tells of a full disk
            raise OSError(str(error)) from None
        about = {"tensors": _digest_of(fresh / TENSORS), "state": plain}
        (fresh / STATE).write_text(json_with_digest(about), encoding="utf-8")


def exists(folder: Path) -> bool:
    """Whether a state was saved as `folder`."""
    return _whole(folder).exists()


def read(folder: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The state that `write` saved as `folder`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = _whole(folder)
    try:
        about = _parsed(folder / STATE)
        if "tensors" in about and _digest_of(folder / TENSORS) != about["tensors"]:
            raise ValueError(f"{TENSORS}: {OTHER}")
        tensors = load_file(folder / TENSORS, device=str(device))
        state: dict[str, Any] = _join(about["state"] if "tensors" in about else about, tensors)
    except FileNotFoundError:
        missing = next((name for name in (STATE, TENSORS) if not (folder / name).exists()), "a file")
        raise CheckpointError(f"There is no checkpoint at {folder}: {missing} is missing.") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"The checkpoint at {folder} is damaged: {error}. {CURE}.") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"The checkpoint at {folder} is damaged: its {STATE} holds no state. {CURE}.")
    return state


def _parsed(file: Path) -> dict[str, Any]:
    try:
        return parse_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{STATE}: {error}") from None


def _whole(folder: Path) -> Path:
    return aside(folder) if not folder.exists() and aside(folder).exists() else folder


def _split(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[path] = _own(value.detach().contiguous(), tensors)
        return {"$tensor": path}
    if isinstance(value, dict):
        if any(not isinstance(key, (str, int, float, bool, type(None))) for key in value):
            raise CheckpointError(f"{path} has a key that is not a plain value, which a checkpoint cannot hold.")
        return {"$items": [[key, _split(item, f"{path}/{key!r}", tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_split(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise CheckpointError(f"{path} is a {type(value).__name__}, and a checkpoint holds tensors and plain values only.")


def _own(tensor: Tensor, others: dict[str, Tensor]) -> Tensor:
    """The tensor itself if its memory is its alone, which safetensors wants and writes without a copy; else a copy."""
    alone = tensor.untyped_storage().nbytes() == tensor.nbytes
    place = tensor.untyped_storage().data_ptr()
    return tensor if alone and all(place != o.untyped_storage().data_ptr() for o in others.values()) else tensor.clone()


def _join(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_join(item, tensors) for item in value]
    if isinstance(value, dict):
        if "$tensor" in value:
            return tensors[value["$tensor"]]
        return {key: _join(item, tensors) for key, item in value["$items"]}
    return value


def _digest_of(path: Path) -> str:
    """The digest of a whole file, however large."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_with_digest(value: Mapping[str, Any], indent: int | None = None) -> str:
    """A line of JSON of an object, or indented lines, with its digest as the last key."""
    text = json.dumps({**value, KEY: NONE}, indent=indent) + "\n"
    return _filled(text, text.rindex(NONE))


def text_with_digest(text: str) -> str:
    """A text whose lines may begin with #, as TOML, with its digest in the first one."""
    return _filled(f"{NOTE}{NONE}. {HOW}\n{text}", len(NOTE))


def read_json(path: Path, cure: str = RESTORE) -> dict[str, Any]:
    """What `json_with_digest` made, without the digest. OSError where it cannot be read; `cure` ends the error's
    sentence about a file that is damaged."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise damaged(path, str(error), cure) from None


def parse_json(text: str) -> dict[str, Any]:
    """The same of a text; ValueError says what is wrong with it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({type(error).__name__})") from None
    if not isinstance(value, dict):
        what = type(value).__name__
        raise ValueError(f"it holds a {what}, and an object was written")  # noqa: TRY004 - of a file
    found = AT_THE_END.search(text)
    if KEY in value or (found is not None and NAMED.fullmatch(text, found.start() - len(KEY) - 4, found.start())):
        _check(text, found)
        value.pop(KEY)
    return value


def check_text(path: Path, text: str, cure: str = RESTORE) -> str:
    """What `text_with_digest` made, as it was read from this file."""
    try:
        if REMAINS.search(text, 0, len(NOTE) + len(NONE) + len(HOW) + 2):  # not to a line's end, which a flip may make
            _check(text, AT_THE_TOP.match(text))
    except ValueError as error:
        raise damaged(path, str(error), f"{cure}; if you meant to edit it, remove its first line") from None
    return text


def damaged(path: Path, why: str, cure: str = RESTORE) -> CheckpointError:
    """The one sentence for saved state that is not as it was written."""
    return CheckpointError(f"{path} is damaged: {why}. {cure}.")


def _check(text: str, found: re.Match[str] | None) -> None:
    if found is None or found[1] != hashlib.sha256(_zeroed(text, found.start(1)).encode()).hexdigest():
        raise ValueError(OTHER)


def _filled(text: str, at: int) -> str:
    return text[:at] + hashlib.sha256(text.encode()).hexdigest() + text[at + len(NONE) :]


def _zeroed(text: str, at: int) -> str:
    return text[:at] + NONE + text[at + len(NONE) :]


def check_format(run: Path, found: int, split: int, newest: int) -> None:
    """That a run was written by this version or an older one, which `newest` way of dividing rows says, too."""
    if int(found) > FORMAT or int(split) > newest:
        raise CheckpointError(
            f"{run} was written by a newer Colonnade: its format is {found}.{split}, and this one reads up to "
            f"{FORMAT}.{newest}. It stays as it is. Upgrade Colonnade here, too, or start a new run."
        )
