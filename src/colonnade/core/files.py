"""What is kept on disk, so that a crash does no harm to it and damage is noticed.

Files and folders appear whole or not at all, after a power cut too: they are written
under a temporary name, forced onto the disk, and renamed. A folder that is replaced is
moved aside until then: after a crash between the two, it is what is read. A file may be
held by one process, which the system locks it for.

A party's state is such a folder, with its tensors in safetensors and the rest in JSON:

    parties/<name>/checkpoint-000530/    tensors.safetensors   state.json

Saved files know when they were damaged, since one flipped bit of a weight would give
another result and nobody would know. Each carries a digest (SHA-256) of all else that
is in it, with 64 zeros in the digest's place; state.json has one of
tensors.safetensors, too. Other files of a run do as well:

    summary.json       ..., "sha256": "9f2c…"}                       the last key of a JSON object
    federation.toml    # As Colonnade wrote it: sha256 9f2c…         the first line of any other text

It is no signature: who may write a file may write another digest. A file without one is
taken as it is: one of an earlier version, or one from which its owner removed the
digest to edit it.

Arrays that grow with the rows are in memory while they are small, and from a size on in
a file that is mapped into memory. The system keeps of a mapped array what is in use and
takes the rest back when memory is short, so a table may be larger than memory. Values
and results are the same either way. The file has no name: nobody else can open it, and
it is gone with the array, even if the process is killed. It lies in the folder TMPDIR,
or else in /var/tmp, which must be on a disk: in a file system that lives in memory
nothing is gained. COLONNADE_MAP_FROM is the size in megabytes from which arrays are
mapped; 0 maps all.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from colonnade.errors import CheckpointError, ConfigError, InputError

TENSORS = "tensors.safetensors"
STATE = "state.json"
CURE = "Restore the folder from a copy, or start a new run"
FORMAT = 1
"""Of a run directory: checkpoint.json keeps it. Who reads an older one reads it as it
was meant (a number is missing before there was one), and writes this one from its next
checkpoint on; a newer one is refused."""
KEY = "sha256"
NOTE = f"# As Colonnade wrote it: {KEY} "
HOW = "Remove this line to edit the file."
NONE = "0" * 64
AT_THE_END = re.compile(r'"([0-9a-f]{64})"\s*}\s*\Z')
NAMED = re.compile(rf'"{"." * len(KEY)}": ')
"""The digest's key, or what a flipped bit makes of it."""
AT_THE_TOP = re.compile(rf"{re.escape(NOTE)}([0-9a-f]{{64}})\. {re.escape(HOW)}\n")
REMAINS = re.compile(
    rf"As Colonnade wrote it|{KEY} [0-9a-f]{{32}}|[0-9a-f]{{32}}\."
    rf" Remove|{re.escape(HOW)}"
)
"""Any of it tells that a text begins with its digest, also where bits of the others are
flipped."""
RESTORE = "Restore it from a copy"
OTHER = "its content is not the one that its digest was made of"


@contextmanager
def replaced(path: Path, *vouched: Path) -> Iterator[Path]:
    """Where to write a file that takes the place of `path` when the block ends well;
    otherwise it is removed. Before it has that name, it and what it vouches for are
    forced onto the disk, all at once."""
    fresh = _fresh(path)
    try:
        yield fresh
        sync(fresh, *vouched)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def replaced_folder(
    path: Path, *, mode: int = 0o777, forced: bool = True
) -> Iterator[Path]:
    """An empty folder that takes the place of `path` when the block ends well;
    otherwise it is removed. The one that it replaces is moved aside until then: after a
    crash between the two, it is what there is (`aside`). Where it is not `forced` onto
    the disk, who calls does that, for several at once."""
    fresh = _fresh(path)
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True, mode=mode)
    try:
        yield fresh
        if forced:
            sync(*fresh.rglob("*"), fresh)
        if path.exists():
            shutil.rmtree(aside(path), ignore_errors=True)
            path.rename(aside(path))
        fresh.rename(path)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if forced:
        sync(path.parent)
        shutil.rmtree(aside(path), ignore_errors=True)


def write_text(path: Path, text: str, *vouched: Path) -> None:
    """The whole file or none of it; `vouched` is of `replaced`. An OSError has its
    path, also where a disk is full."""
    try:
        with replaced(path, *vouched) as fresh:
            fresh.write_text(text, encoding="utf-8")
    except OSError as error:
        error.filename = str(path)
        raise


def write_bytes(path: Path, pieces: Iterable[bytes]) -> None:
    """The same, of what an organisation must not lose: InputError where it cannot be
    written."""
    try:
        with replaced(path) as fresh, fresh.open("wb") as file:
            file.writelines(pieces)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}. Put it right, and"
            " try again."
        ) from error


def write_figure(
    figure: Any, stem: Path, kinds: Sequence[str] = ("png", "svg"), **options: Any
) -> list[Path]:
    """A figure of matplotlib's under that name, each file whole or not at all, and the
    same whenever it is written."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in kinds]
    for path, kind in zip(paths, kinds, strict=True):
        with replaced(path) as fresh:
            figure.savefig(
                fresh,
                format=kind,
                metadata={"Date": None} if kind == "svg" else None,
                **options,
            )
    return paths


@contextmanager
def written_out(what: str, place: Path) -> Iterator[None]:
    """Of what a command writes where --out says: InputError where it cannot be written."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{what} cannot be written to {place}: {error.strerror}. Choose another"
            " --out."
        ) from None


def sync(*paths: Path) -> None:
    """What was written is on the disk from here on: bytes of files, and which names
    folders have. A disk takes many at once in little more than the time of one."""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(_sync, paths))


def _sync(path: Path) -> None:
    # not every system can do it to a folder
    with suppress(OSError) if path.is_dir() else nullcontext():
        number = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def stamp(path: Path) -> tuple[int, int]:
    """When a file was written, and its size, by which a changed one is known; zeros
    where there is none."""
    try:
        about = path.stat()
    except OSError:
        return 0, 0
    return about.st_mtime_ns, about.st_size


def aside(folder: Path) -> Path:
    """Where a folder is while it is replaced."""
    return folder.with_name(f".{folder.name}.old.tmp")


def _fresh(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def hold(path: Path, otherwise: str) -> IO[str]:
    """The file, until it is closed; ConfigError where another process has it. OSError
    where the place has no locks; a system without them (Windows) keeps nobody out."""
    file = path.open("a", encoding="utf-8")
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        return file
    except BlockingIOError:
        file.close()
        raise ConfigError(otherwise) from None
    except OSError:
        file.close()
        raise
    return file


def write_state(folder: Path, state: dict[str, Any], *, forced: bool = True) -> None:
    """Save a state as `folder`; it replaces one that is there. `forced` is of
    `replaced_folder`."""
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


def has_state(folder: Path) -> bool:
    """Whether a state was saved as `folder`."""
    return _whole(folder).exists()


def read_state(folder: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The state that `write_state` saved as `folder`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = _whole(folder)
    try:
        about = _parsed(folder / STATE)
        if "tensors" in about and _digest_of(folder / TENSORS) != about["tensors"]:
            raise ValueError(f"{TENSORS}: {OTHER}")
        tensors = load_file(folder / TENSORS, device=str(device))
        state: dict[str, Any] = _join(
            about["state"] if "tensors" in about else about, tensors
        )
    except FileNotFoundError:
        missing = next(
            (name for name in (STATE, TENSORS) if not (folder / name).exists()),
            "a file",
        )
        raise CheckpointError(
            f"There is no checkpoint at {folder}: {missing} is missing."
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"The checkpoint at {folder} cannot be read: {error.strerror}. Put it"
            " right."
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(
            f"The checkpoint at {folder} is damaged: {error}. {CURE}."
        ) from None
    if not isinstance(state, dict):
        raise CheckpointError(
            f"The checkpoint at {folder} is damaged: its {STATE} holds no state."
            f" {CURE}."
        )
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
        if any(
            not isinstance(key, (str, int, float, bool, type(None))) for key in value
        ):
            raise CheckpointError(
                f"{path} has a key that is not a plain value, which a checkpoint cannot"
                " hold."
            )
        return {
            "$items": [
                [key, _split(item, f"{path}/{key!r}", tensors)]
                for key, item in value.items()
            ]
        }
    if isinstance(value, (list, tuple)):
        return [
            _split(item, f"{path}/{index}", tensors) for index, item in enumerate(value)
        ]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise CheckpointError(
        f"{path} is a {type(value).__name__}, and a checkpoint holds tensors and plain"
        " values only."
    )


def _own(tensor: Tensor, others: dict[str, Tensor]) -> Tensor:
    """The tensor itself if its memory is its alone, which safetensors wants and writes
    without a copy; else a copy."""
    alone = tensor.untyped_storage().nbytes() == tensor.nbytes
    place = tensor.untyped_storage().data_ptr()
    return (
        tensor
        if alone
        and all(place != o.untyped_storage().data_ptr() for o in others.values())
        else tensor.clone()
    )


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
    """What `json_with_digest` made, without the digest. OSError where it cannot be
    read; `cure` ends the error's sentence about a file that is damaged."""
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
        raise ValueError(  # noqa: TRY004
            f"it holds a {type(value).__name__}, and an object was written"
        )
    digest = AT_THE_END.search(text)
    if KEY in value or (
        digest is not None
        and NAMED.fullmatch(text, digest.start() - len(KEY) - 4, digest.start())
    ):
        _check(text, digest)
        value.pop(KEY)
    return value


def check_text(path: Path, text: str) -> str:
    """What `text_with_digest` made, as it was read from this file."""
    try:
        # not to a line's end, which a flip may make
        if REMAINS.search(text, 0, len(NOTE) + len(NONE) + len(HOW) + 2):
            _check(text, AT_THE_TOP.match(text))
    except ValueError as error:
        raise damaged(
            path,
            str(error),
            f"{RESTORE}; if you meant to edit it, remove its first line",
        ) from None
    return text


def damaged(path: Path, why: str, cure: str = RESTORE) -> CheckpointError:
    """The one sentence for saved state that is not as it was written."""
    return CheckpointError(f"{path} is damaged: {why}. {cure}.")


def _check(text: str, found: re.Match[str] | None) -> None:
    if (
        found is None
        or found[1]
        != hashlib.sha256(_zeroed(text, found.start(1)).encode()).hexdigest()
    ):
        raise ValueError(OTHER)


def _filled(text: str, at: int) -> str:
    return (
        text[:at] + hashlib.sha256(text.encode()).hexdigest() + text[at + len(NONE) :]
    )


def _zeroed(text: str, at: int) -> str:
    return text[:at] + NONE + text[at + len(NONE) :]


def check_format(run: Path, found: int, split: int, newest: int) -> None:
    """That a run was written by this version or an older one, which `newest` way of
    dividing rows says, too."""
    if int(found) > FORMAT or int(split) > newest:
        raise CheckpointError(
            f"{run} was written by a newer Colonnade: its format is {found}.{split},"
            f" and this one reads up to {FORMAT}.{newest}. It stays as it is. Upgrade"
            " Colonnade here, too, or start a new run."
        )


MAP_FROM = "COLONNADE_MAP_FROM"
DEFAULT = 64.0
"""Megabytes. Less is not worth a file; a hundred parties in one process still fit into
memory with what is below."""

MAPPABLE = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64}


def mapped_from() -> float:
    """The bytes above which an array is mapped."""
    given = os.environ.get(MAP_FROM, str(DEFAULT))
    try:
        megabytes = float(given)
    except ValueError:
        megabytes = -1.0
    if not megabytes >= 0:
        raise ConfigError(
            f"{MAP_FROM} is the size in megabytes from which arrays are mapped; found"
            f" {given!r}."
        )
    return megabytes * 1e6


def mapped_folder() -> str:
    """Where mapped arrays lie."""
    return (
        tempfile.gettempdir()
        if "TMPDIR" in os.environ or not os.access("/var/tmp", os.W_OK)
        else "/var/tmp"
    )


def mapped_array(shape: Sequence[int], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """A new array of zeros, mapped where it is large."""
    kind = np.dtype(dtype)
    size = kind.itemsize * int(np.prod(shape, dtype=np.int64))
    if size <= mapped_from():
        return np.zeros(shape, kind)
    with tempfile.TemporaryFile(dir=mapped_folder()) as file:
        try:
            # a disk that is full is told now; later it would kill the process
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise InputError(
                f"{size / 1e9:.1f} GB are needed in {mapped_folder()} for an array of"
                f" shape {tuple(shape)}, and cannot be had: {error.strerror}. Make room"
                " there, or set TMPDIR to a folder on a larger disk."
            ) from None
        return np.memmap(file, kind, "w+", shape=tuple(shape))


def mapped_zeros(
    shape: Sequence[int],
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """A new tensor of zeros; on a GPU it is in the GPU's memory, whatever its size."""
    dtype = dtype or torch.get_default_dtype()
    device = torch.device(device or "cpu")
    if device.type != "cpu" or dtype not in MAPPABLE:
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    return torch.from_numpy(mapped_array(shape, MAPPABLE[dtype]))


def mapped_stack(tensors: Sequence[Tensor]) -> Tensor:
    """As torch.stack; large ones on the CPU are copied one after the other into a file."""
    first = tensors[0]
    if (
        first.device.type != "cpu"
        or first.dtype not in MAPPABLE
        or first.nbytes * len(tensors) <= mapped_from()
    ):
        return torch.stack(list(tensors))
    out = mapped_array((len(tensors), *first.shape), MAPPABLE[first.dtype])
    for part, tensor in zip(out, tensors, strict=True):
        part[...] = tensor.numpy()
    let_go(out)
    return torch.from_numpy(out)


def let_go(values: NDArray[Any]) -> None:
    """Take a mapped array out of this process's memory until it is read again."""
    held = getattr(values, "_mmap", None)
    if isinstance(held, mmap.mmap) and hasattr(held, "madvise"):
        held.madvise(mmap.MADV_DONTNEED)
