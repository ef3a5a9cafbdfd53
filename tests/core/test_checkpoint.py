"""A checkpoint gives back what was saved, appears whole or not at all, and says when it
is damaged."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from colonnade.core import files
from colonnade.errors import CheckpointError

WORDS = ["a/b", "a", "b", "$tensor", "$items", "0", "'a'/'b'"]
KEYS = st.text(max_size=4) | st.integers(-5, 5) | st.sampled_from(WORDS)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
TENSORS = st.builds(
    lambda shape, dtype, seed: (
        torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 50
    ).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(
        [
            torch.float32,
            torch.float64,
            torch.int64,
            torch.bool,
            torch.uint8,
            torch.bfloat16,
        ]
    ),
    st.integers(0, 99),
)
STATES = st.dictionaries(
    KEYS,
    st.recursive(
        PLAIN | TENSORS,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return (
            isinstance(b, Tensor)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and torch.equal(a, b)
        )
    if isinstance(a, dict):
        return (
            isinstance(b, dict)
            and list(a) == list(b)
            and all(same(a[key], b[key]) for key in a)
        )
    if isinstance(a, (list, tuple)):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


@given(state=STATES)
@settings(max_examples=100)
def test_what_is_saved_comes_back(
    tmp_path_factory: pytest.TempPathFactory, state: dict[Any, Any]
) -> None:
    folder = tmp_path_factory.mktemp("state") / "checkpoint-000001"
    files.write_state(folder, state)
    assert same(state, files.read_state(folder))


def test_two_tensors_never_share_a_name(tmp_path: Path) -> None:
    """As paths, all of these would be state/a/b or state/1."""
    one, two, three, four = torch.arange(4)
    state: dict[Any, Any] = {"a/b": one, "a": {"b": two}, 1: three, "1": four}
    files.write_state(tmp_path / "c", state)
    assert same(state, files.read_state(tmp_path / "c"))


def test_special_values_survive(tmp_path: Path) -> None:
    numbers = {"nan": math.nan, "inf": -math.inf, "big": 2**80}
    state: dict[str, Any] = {
        "numbers": numbers,
        "none": None,
        "empty": {},
        "list": [],
        "text": "Zürich",
    }
    files.write_state(tmp_path / "c", state)
    assert same(state, files.read_state(tmp_path / "c"))


def test_views_and_parameters_are_saved_as_they_look(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    state = {
        "t": whole.T,
        "row": whole[1],
        "twice": whole,
        "parameter": nn.Parameter(whole[:, ::2]),
    }
    files.write_state(tmp_path / "c", state)
    back = files.read_state(tmp_path / "c")
    assert all(torch.equal(back[name], state[name]) for name in state)
    assert not back["parameter"].requires_grad


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.Adam(p, 0.01, betas=(0.8, 0.99)),
        lambda p: torch.optim.SGD(p, 0.1),
    ],
    ids=["momentum", "adam", "plain"],
)
def test_a_model_and_its_optimizer_continue_bit_equal(
    tmp_path: Path, make: Any
) -> None:
    def start(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        return model, make(model.parameters())

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        torch.autograd.backward(model(data).square().mean())
        optimizer.step()

    data = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    (one, one_steps), (other, other_steps) = start(1), start(2)
    for _ in range(3):
        step(one, one_steps)
    files.write_state(
        tmp_path / "c", {"model": one.state_dict(), "optimizer": one_steps.state_dict()}
    )
    state = files.read_state(tmp_path / "c")
    other.load_state_dict(state["model"])
    other_steps.load_state_dict(state["optimizer"])
    for _ in range(3):
        step(one, one_steps)
        step(other, other_steps)
    assert all(bool(value.isfinite().all()) for value in one.state_dict().values())
    assert same(one.state_dict(), other.state_dict())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            {"x": object()},
            (
                "state/'x' is a object, and a checkpoint holds tensors and plain values"
                " only"
            ),
        ),
        ({"x": [1, {2}]}, "state/'x'/1 is a set"),
        ({"x": b"a"}, "is a bytes"),
        ({"x": nn.Linear(1, 1)}, "is a Linear"),
        ({"x": lambda: 0}, "is a function"),
        ({"x": {(1, 2): 3}}, "state/'x' has a key that is not a plain value"),
    ],
)
def test_what_is_neither_tensor_nor_plain_is_refused_by_its_place(
    tmp_path: Path, value: Any, text: str
) -> None:
    with pytest.raises(CheckpointError, match=text):
        files.write_state(tmp_path / "c", value)
    assert list(tmp_path.iterdir()) == []


def test_writing_again_replaces_the_whole_folder(tmp_path: Path) -> None:
    folder = tmp_path / "parties" / "bank" / "c"
    files.write_state(folder, {"a": torch.ones(1)})
    (folder / "left over").write_text("x")
    files.write_state(folder, {"b": torch.zeros(1)})
    assert same(files.read_state(folder), {"b": torch.zeros(1)})
    assert sorted(file.name for file in folder.iterdir()) == [
        files.STATE,
        files.TENSORS,
    ]
    assert [file.name for file in folder.parent.iterdir()] == ["c"]


@pytest.mark.parametrize(
    "crash",
    [OSError("disk full"), KeyboardInterrupt()],
    ids=["disk full", "interrupted"],
)
@pytest.mark.parametrize("when", ["tensors", "plain"])
def test_a_crash_while_writing_leaves_the_old_checkpoint_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: BaseException, when: str
) -> None:
    folder = tmp_path / "c"
    files.write_state(folder, {"a": torch.ones(3), "b": 1})
    real = safetensors.torch.save_file

    def half(tensors: dict[str, Tensor], path: Path) -> None:
        real(tensors, path)
        path.write_bytes(path.read_bytes()[:20])
        raise crash

    def dumps(value: Any, **_: Any) -> str:
        raise crash

    if when == "tensors":
        monkeypatch.setattr(safetensors.torch, "save_file", half)
    else:
        monkeypatch.setattr(json, "dumps", dumps)
    for target in (folder, tmp_path / "fresh"):
        with pytest.raises(type(crash)):
            files.write_state(target, {"a": torch.zeros(3), "b": 2})
    monkeypatch.undo()
    assert same(files.read_state(folder), {"a": torch.ones(3), "b": 1})
    assert [file.name for file in tmp_path.iterdir()] == ["c"]


def test_a_process_killed_while_writing_leaves_nothing_under_the_name(
    tmp_path: Path,
) -> None:
    script = (
        "import os, safetensors.torch, torch\n"
        "from pathlib import Path\n"
        "from colonnade.core import files\n"
        "real = safetensors.torch.save_file\n"
        "def killed(tensors, path):\n"
        "    real(tensors, path)\n"
        "    os._exit(9)\n"
        "safetensors.torch.save_file = killed\n"
        f"files.write_state(Path({str(tmp_path)!r}) / 'c', {{'a': torch.ones(3)}})\n"
    )
    source = str(Path(files.__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    assert (
        subprocess.run(
            [sys.executable, "-c", script], env=environment, check=False
        ).returncode
        == 9
    )
    assert not (tmp_path / "c").exists()
    files.write_state(tmp_path / "c", {"a": torch.zeros(3)})
    assert same(files.read_state(tmp_path / "c"), {"a": torch.zeros(3)})


@pytest.mark.parametrize("missing", [files.STATE, files.TENSORS])
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    files.write_state(tmp_path / "c", {"a": torch.ones(1)})
    (tmp_path / "c" / missing).unlink()
    with pytest.raises(
        CheckpointError,
        match=f"no checkpoint at {tmp_path / 'c'}: {missing} is missing",
    ):
        files.read_state(tmp_path / "c")


def test_a_folder_that_is_not_there_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=f"There is no checkpoint at {tmp_path / 'nowhere'}"
    ):
        files.read_state(tmp_path / "nowhere")


DAMAGE = [
    "",
    "{",
    "null",
    "3",
    "[]",
    '"text"',
    "{}",
    '{"$items": 3}',
    '{"$items": [3]}',
    '{"$items": [["a"]]}',
    '{"$items": [[[], 1]]}',
    '{"$items": [["a", {"$tensor": "state/other"}]]}',
    '{"$items": [["a", {"$tensor": []}]]}',
    '{"$tensor": "state/\'a\'"}',
    "[" * 100_000,
    '{"$items": [["a", {"b": 1}]]}',
    "9" * 10_000,
]


@pytest.mark.parametrize("text", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_state_names_the_folder(tmp_path: Path, text: str) -> None:
    files.write_state(tmp_path / "c", {"a": torch.ones(1)})
    (tmp_path / "c" / files.STATE).write_text(text)
    with pytest.raises(
        CheckpointError, match=f"The checkpoint at {tmp_path / 'c'} is damaged"
    ):
        files.read_state(tmp_path / "c")


def test_bytes_that_are_no_text_are_damage(tmp_path: Path) -> None:
    files.write_state(tmp_path / "c", {"a": torch.ones(1)})
    (tmp_path / "c" / files.STATE).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CheckpointError, match="is damaged"):
        files.read_state(tmp_path / "c")


def test_a_state_that_may_not_be_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(file: Path) -> None:
        raise PermissionError(13, "Permission denied", str(file))

    files.write_state(tmp_path / "c", {"a": torch.ones(1)})
    monkeypatch.setattr(files, "_digest_of", forbidden)
    with pytest.raises(
        CheckpointError,
        match=r"at .*c cannot be read: Permission denied\. Put it right",
    ):
        files.read_state(tmp_path / "c")


def test_tensors_cut_at_any_length_are_damage(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    files.write_state(folder, {"a": torch.ones(3), "b": torch.zeros(2)})
    whole = (folder / files.TENSORS).read_bytes()
    for length in range(len(whole)):
        (folder / files.TENSORS).write_bytes(whole[:length])
        with pytest.raises(
            CheckpointError, match=f"The checkpoint at {folder} is damaged"
        ):
            files.read_state(folder)


@pytest.mark.parametrize("name", [files.STATE, files.TENSORS])
def test_a_folder_in_place_of_a_file_is_damage(tmp_path: Path, name: str) -> None:
    files.write_state(tmp_path / "c", {"a": torch.ones(1)})
    (tmp_path / "c" / name).unlink()
    (tmp_path / "c" / name).mkdir()
    with pytest.raises(CheckpointError, match=str(tmp_path / "c")):
        files.read_state(tmp_path / "c")


def test_no_code_is_in_a_checkpoint(tmp_path: Path) -> None:
    files.write_state(tmp_path / "c", {"a": torch.ones(1), "b": [1, "x"]})
    state = json.loads((tmp_path / "c" / files.STATE).read_text())
    assert state["state"] == {
        "$items": [["a", {"$tensor": "state/'a'"}], ["b", [1, "x"]]]
    }
    assert all(len(state[key]) == 64 for key in ("tensors", "sha256"))


@pytest.mark.parametrize("every", [13, pytest.param(3, marks=pytest.mark.long)])
def test_any_flipped_bit_is_damage_and_never_another_state(
    tmp_path: Path, every: int
) -> None:
    folder = tmp_path / "c"
    state = {"a": torch.arange(6.0), "b": [1, "x"], "c": {"d": 0.125}}
    files.write_state(folder, state)
    for name in (files.STATE, files.TENSORS):
        whole = (folder / name).read_bytes()
        for bit in range(0, 8 * len(whole), every):
            cut = bytearray(whole)
            cut[bit // 8] ^= 1 << bit % 8
            (folder / name).write_bytes(cut)
            try:
                found = files.read_state(folder)
            except CheckpointError as error:
                assert f"The checkpoint at {folder} is damaged" in str(error)  # noqa: PT017
                assert "Restore the folder from a copy" in str(error)  # noqa: PT017
            else:
                assert name == files.STATE, "a tensor"
                assert same(found, state), bit  # the name of the digest's own key
        (folder / name).write_bytes(whole)


def test_tensors_of_another_checkpoint_are_damage(tmp_path: Path) -> None:
    for number in (1, 2):
        files.write_state(
            tmp_path / f"c{number}", {"a": torch.full((3,), float(number))}
        )
    (tmp_path / "c1" / files.TENSORS).replace(tmp_path / "c2" / files.TENSORS)
    with pytest.raises(
        CheckpointError, match=r"tensors\.safetensors: its content is not the one"
    ):
        files.read_state(tmp_path / "c2")


def test_a_folder_of_an_earlier_version_has_no_digest_and_is_read(
    tmp_path: Path,
) -> None:
    files.write_state(tmp_path / "c", {"a": torch.ones(3)})
    file = tmp_path / "c" / files.STATE
    file.write_text(json.dumps(json.loads(file.read_text())["state"]))
    assert same(files.read_state(tmp_path / "c"), {"a": torch.ones(3)})


def test_a_large_tensor_is_written_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = torch.randn(100)
    shared = torch.randn(10)
    copies: list[int] = []
    clone = Tensor.clone

    def counted(one: Tensor) -> Tensor:
        copies.append(one.numel())
        return clone(one)

    monkeypatch.setattr(Tensor, "clone", counted)
    state = {
        "alone": alone,
        "twice": shared,
        "again": shared,
        "part": shared[:3],
        "turned": torch.randn(4, 5).T,
    }
    files.write_state(tmp_path / "checkpoint-000001", state)
    assert sorted(copies) == [3, 10]  # only what shares its memory is copied
    assert same(state, files.read_state(tmp_path / "checkpoint-000001"))


@pytest.mark.parametrize("crashes", [0, 1])
def test_a_crash_while_a_folder_is_replaced_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashes: int
) -> None:
    """Before each of the two renames."""
    folder = tmp_path / "c"
    assert not files.has_state(folder)
    files.write_state(folder, {"a": torch.ones(1)})
    with monkeypatch.context() as crashing:
        rename = Path.rename
        calls = iter(range(9))

        def crash(source: Path, target: Path) -> Path:
            if next(calls) >= crashes:
                raise KeyboardInterrupt
            return rename(source, target)

        crashing.setattr(Path, "rename", crash)
        with pytest.raises(KeyboardInterrupt):
            files.write_state(folder, {"a": torch.zeros(1)})
    assert files.has_state(folder)
    assert same(files.read_state(folder), {"a": torch.ones(1)})
    files.write_state(folder, {"a": torch.zeros(2)})
    assert same(files.read_state(folder), {"a": torch.zeros(2)})
    assert list(tmp_path.iterdir()) == [folder]
