"""ModelNet10 from its meshes: a small copy of the archive, with few shapes in each
class."""

from __future__ import annotations

import io
import re
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.datasets.conftest import Site
from tests.datasets.test_meshes import BOX, box, off

from colonnade.datasets.catalogue import CATALOGUE, Entry, load
from colonnade.datasets.dataset import Dataset, Parts
from colonnade.datasets.entries import Download
from colonnade.datasets.layouts import voxel_layouts
from colonnade.datasets.modelnet import (
    COUNTS,
    FURNITURE,
    Counts,
    read_kept_voxels,
    read_modelnet,
)
from colonnade.errors import DataError

FEW: Counts = {"train": (2, *[1] * 9), "test": (1,) * 10}
KEPT = ["x_test.npy", "x_train.npy", "y_test.npy", "y_train.npy"]


def meshes(counts: Counts = FEW) -> dict[str, bytes]:
    """A box of its own for each mesh, numbered through train and test as the publishers
    do."""
    files = {}
    for kind, label in enumerate(FURNITURE):
        first = 1
        for split in ("train", "test"):
            for number in range(first, first + counts[split][kind]):
                sides = (12, 1 + kind, 2 * number)
                files[f"ModelNet10/{label}/{split}/{label}_{number:04}.off"] = off(
                    box(*sides), BOX
                )
            first += counts[split][kind]
    return files


def archive(files: dict[str, bytes]) -> bytes:
    """As the publishers' zip: in no order, and with what a Mac leaves behind."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as opened:
        opened.writestr("ModelNet10/README.txt", "hello")
        opened.writestr("ModelNet10/bathtub/.DS_Store", "x")
        for name, content in reversed(files.items()):
            opened.writestr(name, content)
            hidden = Path(name)
            opened.writestr(f"__MACOSX/{hidden.parent}/._{hidden.name}", "x")
            opened.writestr(f"__MACOSX/{name}", "x")
    return packed.getvalue()


def catalogue(
    address: str = "http://127.0.0.1:9", counts: Counts = FEW
) -> dict[str, Entry]:
    entry = CATALOGUE["modelnet10"]
    layouts = voxel_layouts("modelnet10_voxel30.npz", counts)
    return {
        "modelnet10": replace(
            entry,
            layouts=layouts,
            downloads=(Download("ModelNet10.zip", f"{address}/ModelNet10.zip"),),
        )
    }


def zipped(folder: Path, files: dict[str, bytes]) -> Path:
    (folder / "modelnet10").mkdir(parents=True, exist_ok=True)
    path = folder / "modelnet10" / "ModelNet10.zip"
    path.write_bytes(archive(files))
    return path


def unpacked(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / "modelnet10" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder / "modelnet10" / "ModelNet10"


def same(first: Parts, second: Parts) -> bool:
    pairs = zip(first, second, strict=True)
    return all(
        a is not None
        and b is not None
        and np.array_equal(a.array(), b.array())
        and np.array_equal(a.y, b.y)
        for a, b in pairs
    )


def parts(data: Dataset) -> Parts:
    return data.train, data.test


def test_the_archive_and_the_folder_are_the_same_rows_in_the_same_order(
    tmp_path: Path,
) -> None:
    files = meshes()
    train, test = read_modelnet(zipped(tmp_path, files), FEW)
    assert same((train, test), read_modelnet(unpacked(tmp_path, files), FEW))
    assert test is not None
    assert train.array().shape == (11, 30, 30, 30)
    assert train.array().dtype == np.uint8
    assert (train.y.tolist(), test.y.tolist()) == ([0, *range(10)], list(range(10)))
    # Boxes 12 long, 1 + kind wide, 2 * number high; 24 voxels are 12.
    high = train.array().any(axis=(1, 2)).sum(axis=1)
    assert high.tolist() == [4, 8, *[4] * 9]
    assert test.array().any(axis=(1, 2)).sum(axis=1).tolist() == [12, *[8] * 9]


def test_the_published_counts_are_those_of_the_entry() -> None:
    entry = CATALOGUE["modelnet10"]
    assert (sum(COUNTS["train"]), sum(COUNTS["test"])) == (entry.rows, entry.test_rows)
    assert entry.classes == FURNITURE


@pytest.mark.parametrize("put", [zipped, unpacked])
def test_too_few_meshes_of_a_class_are_refused(
    put: Callable[[Path, dict[str, bytes]], Path], tmp_path: Path
) -> None:
    files = meshes()
    del files["ModelNet10/sofa/test/sofa_0002.off"]
    path = put(tmp_path, files)
    with pytest.raises(DataError) as caught:
        load("modelnet10", folder=tmp_path, offline=True, catalogue=catalogue())
    assert (
        str(caught.value)
        == f"Data set 'modelnet10' in {path} is not the published one: it has 0 meshes"
        " of sofa in test, and 1 were expected. Delete the files and load again."
    )


def test_the_public_catalogue_asks_for_the_published_counts(tmp_path: Path) -> None:
    zipped(tmp_path, meshes())
    with pytest.raises(
        DataError, match="it has 2 meshes of bathtub in train, and 106 were expected"
    ):
        load("modelnet10", folder=tmp_path, offline=True)


def test_the_archive_is_downloaded_once_and_its_voxels_kept(
    site: Site, own_cache: Path
) -> None:
    site.pages["/ModelNet10.zip"] = archive(meshes())
    first = load("modelnet10", catalogue=catalogue(site.address))
    assert sorted(path.name for path in (own_cache / "modelnet10").iterdir()) == [
        "ModelNet10.zip",
        *KEPT,
    ]
    (own_cache / "modelnet10" / "ModelNet10.zip").write_bytes(b"never read again")
    again = load("modelnet10", catalogue=catalogue(site.address))
    assert same(parts(first), parts(again))
    assert site.asked == ["/ModelNet10.zip"]
    assert first.classes == FURNITURE


def test_another_archive_at_the_home_is_not_kept(site: Site, own_cache: Path) -> None:
    site.pages["/ModelNet10.zip"] = archive({})
    with pytest.raises(
        DataError, match=r"the download failed: .* it has 0 meshes of bathtub in train"
    ):
        load("modelnet10", catalogue=catalogue(site.address))
    assert list((own_cache / "modelnet10").iterdir()) == []


def test_a_malformed_mesh_is_named(tmp_path: Path) -> None:
    files = meshes()
    files["ModelNet10/desk/train/desk_0001.off"] = b"OFF\n8 6 0\n"
    zipped(tmp_path, files)
    with pytest.raises(
        DataError,
        match=r"The OFF file ModelNet10/desk/train/desk_0001\.off announces 8 vertices",
    ):
        load("modelnet10", folder=tmp_path, offline=True, catalogue=catalogue())


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    zipped(tmp_path, {}).write_bytes(b"PK not really")
    with pytest.raises(
        DataError,
        match=(
            r"'modelnet10' cannot be read from .*ModelNet10\.zip: the file is damaged"
        ),
    ):
        load("modelnet10", folder=tmp_path, offline=True, catalogue=catalogue())


def test_kept_voxels_of_another_shape_or_number_are_refused(tmp_path: Path) -> None:
    zipped(tmp_path, meshes())
    few = catalogue()
    load("modelnet10", folder=tmp_path, offline=True, catalogue=few)
    cache = tmp_path / "cache" / "colonnade" / "datasets" / "modelnet10"
    paths = [
        cache / name
        for name in ("x_train.npy", "y_train.npy", "x_test.npy", "y_test.npy")
    ]
    with pytest.raises(
        DataError, match="it has 2 meshes of bathtub in train, and 106 were expected"
    ):
        read_kept_voxels(paths)
    np.save(paths[0], np.zeros((11, 5), dtype=np.uint8))
    with pytest.raises(
        DataError, match=r"cannot be read from .*x_train\.npy: the file is damaged"
    ):
        load("modelnet10", folder=tmp_path, offline=True, catalogue=few)


def test_the_compact_file_is_preferred_and_still_checked(tmp_path: Path) -> None:
    zipped(tmp_path, meshes())
    empty = np.zeros((1, 30, 30, 30), dtype=np.uint8)
    arrays = {"x_train": empty, "y_train": [0], "x_test": empty, "y_test": [0]}
    np.savez(tmp_path / "modelnet10" / "modelnet10_voxel30.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(
        DataError, match="is not the published one: its content has SHA-256"
    ):
        load("modelnet10", folder=tmp_path, offline=True, catalogue=catalogue())


def test_both_layouts_say_that_their_voxels_differ() -> None:
    assert "differ" in CATALOGUE["modelnet10"].description
    assert not any(layout.exact for layout in CATALOGUE["modelnet10"].layouts[1:])
    others = [
        entry
        for name, entry in CATALOGUE.items()
        if name != "modelnet10" and not entry.supply
    ]
    assert all(layout.exact for entry in others for layout in entry.layouts)


def test_a_terminal_sees_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    read_modelnet(zipped(tmp_path, meshes()), FEW)
    assert re.search(r"voxels of ModelNet10.*/21", terminal.getvalue())
