"""ModelNet40's pictures in the authors' folders: views in order, made smaller by area
averaging, one for each party."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from colonnade.datasets import load
from colonnade.datasets.multi_view import PIXELS, SHAPES, SIDE, VIEWS, read_views
from colonnade.errors import DataError
from colonnade.federation import Federation
from colonnade.settings.federation_file import Settings

CONFIG = (
    Path(__file__).parents[2] / "reproductions" / "vim" / "configs" / "modelnet40.toml"
)
DETAILED = ("bed", "train", 3)


def drawn(kind: str, part: str, view: int) -> NDArray[np.uint8]:
    """A flat grey that tells the class, the part and the view; one picture is random."""
    if (kind, part, view) == DETAILED:
        return np.random.default_rng(0).integers(
            0, 256, (PIXELS, PIXELS), dtype=np.uint8
        )
    return np.full(
        (PIXELS, PIXELS),
        4 * SHAPES.index(kind) + 2 * view + (part == "test"),
        dtype=np.uint8,
    )


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One object of each class in train and in test, in the three ways to number a
    view; colours are kept as such."""
    folder = tmp_path_factory.mktemp("pictures")
    for at, kind in enumerate(SHAPES):
        for part in ("train", "test"):
            place = folder / kind / part
            place.mkdir(parents=True)
            (place / "notes.txt").write_text("no picture")
            for view in range(1, VIEWS + 1):
                name = (
                    f"{kind}_0001_{view:03d}",
                    f"{kind}_0001.{view}",
                    f"{kind}_0001.obj.shaded_v{view:03d}",
                )[at % 3]
                picture = Image.fromarray(drawn(kind, part, view))
                coloured = picture.convert("RGB") if view == 1 else picture
                coloured.save(place / f"{name}.png", compress_level=1)
    return folder


@pytest.fixture
def folder(pictures: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil, in the data folder."""
    copy = tmp_path / "data" / "modelnet40" / "modelnet40_images_new_12x"
    shutil.copytree(pictures, copy, copy_function=os.link)
    return copy


def averaged(pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The mean of each 4 x 4 pixels."""
    return np.asarray(pixels.astype(float).reshape(SIDE, 4, SIDE, 4).mean(axis=(1, 3)))


def test_there_are_forty_classes_in_the_order_of_the_alphabet() -> None:
    assert len(set(SHAPES)) == 40
    assert list(SHAPES) == sorted(SHAPES)


def test_views_are_read_in_the_order_of_their_numbers_and_averaged(
    folder: Path,
) -> None:
    data = load("modelnet40", folder=folder.parents[1])
    assert data.test is not None
    assert (data.kind, data.classes) == ("views", SHAPES)
    for part, rows in (("train", data.train), ("test", data.test)):
        assert rows.y.tolist() == list(range(40))
        x = rows.array()
        assert x.shape == (40, VIEWS, SIDE, SIDE)
        assert x.dtype == np.uint8
        for at, kind in enumerate(SHAPES):
            for view in range(1, VIEWS + 1):
                if (kind, part, view) != DETAILED:
                    assert (x[at, view - 1] == drawn(kind, part, view)[0, 0]).all(), (
                        kind,
                        part,
                        view,
                    )
    kind, part, view = DETAILED
    small = data.train.array()[SHAPES.index(kind), view - 1]
    # rounded once
    assert np.abs(small - averaged(drawn(kind, part, view))).max() <= 0.5


def test_several_objects_of_a_class_come_in_the_order_of_their_names(
    folder: Path,
) -> None:
    first = folder / "cone" / "test"
    for path in list(first.glob("cone_0001*.png")):
        os.link(path, path.with_name(path.name.replace("cone_0001", "cone_0000")))
    _, test = read_views(folder)
    assert test is not None
    assert test.y.tolist() == sorted([*range(40), SHAPES.index("cone")])


def test_what_was_read_is_kept_and_needs_no_pillow(
    folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load("modelnet40", folder=folder.parents[1])
    kept = sorted(path.name for path in (own_cache / "modelnet40").iterdir())
    assert kept == [
        "made_of.txt",
        "x_test.npy",
        "x_train.npy",
        "y_test.npy",
        "y_train.npy",
    ]
    monkeypatch.setitem(sys.modules, "PIL", None)
    np.testing.assert_array_equal(
        load("modelnet40", folder=folder.parents[1]).train.array(), before.train.array()
    )
    # now the pictures count again, and are not complete
    next((folder / "cup" / "test").glob("*.png")).unlink()
    with pytest.raises(DataError, match=r"11 pictures of cup_0001"):
        load("modelnet40", folder=folder.parents[1])


def test_pictures_without_pillow_say_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        DataError,
        match=r"need Pillow, which is not installed\. Install it: .*plots",
    ):
        read_views(folder)


def test_kept_arrays_of_another_shape_are_refused(
    folder: Path, own_cache: Path
) -> None:
    load("modelnet40", folder=folder.parents[1])
    np.save(
        own_cache / "modelnet40" / "x_test.npy",
        np.zeros((40, 12, 8, 8), dtype=np.uint8),
    )
    with pytest.raises(
        DataError, match=r"'modelnet40' cannot be read from .*Delete it and load again"
    ):
        load("modelnet40", folder=folder.parents[1])


def test_absent_pictures_are_listed_with_their_owner_s_page(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("modelnet40", folder=tmp_path, offline=True)
    told = str(caught.value)
    assert told.startswith(
        "Data set 'modelnet40' cannot be downloaded freely: its owner gives it out at"
        " https://"
    )
    assert (
        "put modelnet40_images_new_12x/<class>/<train or test>/<object>_001.png to"
        " _012.png, for each of" in told
    )


def test_a_class_without_test_pictures_is_named(folder: Path) -> None:
    shutil.rmtree(folder / "vase" / "test")
    with pytest.raises(
        DataError,
        match=(
            r"has no pictures of 'vase' in .*vase/test, and every class has some in"
            r" train"
        ),
    ):
        read_views(folder)


def test_an_object_without_all_views_is_named(folder: Path) -> None:
    (folder / "airplane" / "train" / "airplane_0001_004.png").unlink()
    with pytest.raises(
        DataError,
        match=(
            r"11 pictures of airplane_0001 in .*, and views 1 to 12 were expected;"
            r" missing: 4\."
        ),
    ):
        read_views(folder)


@pytest.mark.parametrize("size", [(224, 200), (56, 56)])
def test_a_picture_of_another_size_is_named(
    size: tuple[int, int], folder: Path
) -> None:
    path = folder / "airplane" / "train" / "airplane_0001_002.png"
    path.unlink()
    Image.new("L", size).save(path)
    with pytest.raises(
        DataError,
        match=(
            rf"airplane_0001_002\.png has {size[0]} x {size[1]} pixels, and 224 x 224"
            r" were"
        ),
    ):
        read_views(folder)


def test_a_damaged_picture_is_named(folder: Path) -> None:
    path = folder / "airplane" / "train" / "airplane_0001_002.png"
    whole = path.read_bytes()
    for content in (b"no picture", whole[: len(whole) // 2]):
        path.unlink()
        path.write_bytes(content)
        with pytest.raises(
            DataError, match=r"airplane_0001_002\.png is not a picture, or damaged"
        ):
            read_views(folder)


def test_the_paper_s_file_gives_each_party_every_third_view_and_trains(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLONNADE_DATA", str(folder.parents[1]))
    paper = Settings.from_toml(CONFIG)
    settings = dataclasses.replace(
        paper,
        data=paper.data.changed(validation=8),
        model={**paper.model, "channels": [4, 4]},
        train=paper.train.changed(epochs=1, batch_size=16),
        engine=paper.engine.changed(device="cpu"),
    )
    federation = Federation.from_settings(settings)
    data = load("modelnet40")
    assert data.test is not None
    pixels = torch.from_numpy(
        np.concatenate([data.train.array(), data.test.array()])
    ).float()
    train = federation.holdings.splits["train"]
    held = [party.features for party in federation.holdings.columns.values()]
    assert len(held) == 4
    for view, features in zip((0, 3, 6, 9), held, strict=True):
        seen = pixels[train, view]
        torch.testing.assert_close(
            features, (pixels[:, view] - seen.mean()) / seen.std()
        )
    assert {name: len(rows) for name, rows in federation.holdings.splits.items()} == {
        "train": 32,
        "validation": 8,
        "test": 40,
    }
    before = federation.outputs("test")
    federation.fit()
    after = federation.outputs("test")
    assert after.shape == (40, 40)
    assert not torch.equal(before, after)
