"""A party's state on disk: tensors in safetensors, the rest in JSON, in a folder that appears whole or not at all.

    parties/<name>/checkpoint-000530/    tensors.safetensors   state.json

A folder is written under a temporary name and renamed; nobody reads a folder whose name does not match. One that is
replaced is moved aside until then: after a crash between the two, it is what is read.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from colonnade.errors import CheckpointError

TENSORS, STATE = "tensors.safetensors", "state.json"


def write(folder: Path, state: dict[str, Any]) -> None:
    """Save a state as `folder`; it replaces one that is there."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    plain = _split(state, "state", tensors)
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        save_file(tensors, fresh / TENSORS)
        (fresh / STATE).write_text(json.dumps(plain), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(_aside(folder), ignore_errors=True)
            folder.rename(_aside(folder))
        fresh.rename(folder)
        shutil.rmtree(_aside(folder), ignore_errors=True)
    except SafetensorError as error:  # how its writer tells of a full disk
        shutil.rmtree(fresh, ignore_errors=True)
        raise OSError(str(error)) from None
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def exists(folder: Path) -> bool:
    """Whether a state was saved as `folder`."""
    return _whole(folder).exists()


def read(folder: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The state that `write` saved as `folder`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = _whole(folder)
    try:
        plain = json.loads((folder / STATE).read_text(encoding="utf-8"))
        tensors = load_file(folder / TENSORS, device=str(device))
        state: dict[str, Any] = _join(plain, tensors)
    except FileNotFoundError:
        missing = next((name for name in (STATE, TENSORS) if not (folder / name).exists()), "a file")
        raise CheckpointError(f"There is no checkpoint at {folder}: {missing} is missing.") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"The checkpoint at {folder} is damaged: {error}") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"The checkpoint at {folder} is damaged: its {STATE} holds no state.")
    return state


def _aside(folder: Path) -> Path:
    """Where a folder is while it is replaced."""
    return folder.with_name(f".{folder.name}.old.tmp")


def _whole(folder: Path) -> Path:
    return _aside(folder) if not folder.exists() and _aside(folder).exists() else folder


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
