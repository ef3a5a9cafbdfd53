"""Arrays that grow with the rows: in memory while they are small, from a size on in a file that is mapped into memory.

The system keeps of a mapped array what is in use and takes the rest back when memory is short, so a table may be larger
than memory. Values and results are the same either way. The file has no name: nobody else can open it, and it is gone
with the array, even if the process is killed. It lies in the folder TMPDIR, or else in /var/tmp, which must be on a
disk: in a file system that lives in memory nothing is gained.

COLONNADE_MAP_FROM is the size in megabytes from which arrays are mapped; 0 maps all.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from colonnade.errors import ConfigError, InputError

VARIABLE = "COLONNADE_MAP_FROM"
DEFAULT = 64.0
"""Megabytes. Less is not worth a file; a hundred parties in one process still fit into memory with what is below."""

DTYPES = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64}


def threshold() -> float:
    """The bytes above which an array is mapped."""
    given = os.environ.get(VARIABLE, str(DEFAULT))
    try:
        megabytes = float(given)
    except ValueError:
        megabytes = -1.0
    if not megabytes >= 0:
        raise ConfigError(f"{VARIABLE} is the size in megabytes from which arrays are mapped; found {given!r}.")
    return megabytes * 1e6


def folder() -> str:
    """Where mapped arrays lie."""
    return tempfile.gettempdir() if "TMPDIR" in os.environ or not os.access("/var/tmp", os.W_OK) else "/var/tmp"


def array(shape: Sequence[int], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """A new array of zeros."""
    kind = np.dtype(dtype)
    size = kind.itemsize * int(np.prod(shape, dtype=np.int64))
    if size <= threshold():
        return np.zeros(shape, kind)
    with tempfile.TemporaryFile(dir=folder()) as file:
        try:
            if hasattr(os, "posix_fallocate"):  # a disk that is full is told now; later it would kill the process
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise InputError(
                f"{size / 1e9:.1f} GB are needed in {folder()} for an array of shape {tuple(shape)}, and cannot be "
                f"had: {error.strerror}. Make room there, or set TMPDIR to a folder on a larger disk."
            ) from None
        return np.memmap(file, kind, "w+", shape=tuple(shape))


def zeros(shape: Sequence[int], dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
    """A new tensor of zeros; on a GPU it is in the GPU's memory, whatever its size."""
    dtype, device = dtype or torch.get_default_dtype(), torch.device(device or "cpu")
    if device.type != "cpu" or dtype not in DTYPES:
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    return torch.from_numpy(array(shape, DTYPES[dtype]))


def stack(tensors: Sequence[Tensor]) -> Tensor:
    """As torch.stack; large ones on the CPU are copied one after the other into a file."""
    first = tensors[0]
    if first.device.type != "cpu" or first.dtype not in DTYPES or first.nbytes * len(tensors) <= threshold():
        return torch.stack(list(tensors))
    out = array((len(tensors), *first.shape), DTYPES[first.dtype])
    for part, tensor in zip(out, tensors, strict=True):
        part[...] = tensor.numpy()
    let_go(out)
    return torch.from_numpy(out)


def permutation(rows: Tensor, generator: torch.Generator) -> Tensor:
    """Row numbers in random order."""
    drawn = torch.randperm(len(rows), generator=generator, out=zeros((len(rows),), torch.int64))
    return torch.index_select(rows, 0, drawn, out=zeros((len(rows),), torch.int64))


def let_go(values: NDArray[Any]) -> None:
    """Take a mapped array out of this process's memory until it is read again."""
    held = getattr(values, "_mmap", None)
    if isinstance(held, mmap.mmap) and hasattr(held, "madvise"):
        held.madvise(mmap.MADV_DONTNEED)
