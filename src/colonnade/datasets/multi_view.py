"""ModelNet40 as pictures from twelve sides: the shaded renderings of Su et al., "A
Deeper Look at 3D Shape Classifiers" (2018), in the authors' folders and names:

    modelnet40_images_new_12x/<class>/<train or test>/<object>_001.png ... <object>_012.png

Also `<object>.1.png` and `..._v001.png` are understood; what counts is the number at
the end. A row is an object, its array the twelve views [12, 56, 56] in the order of
their numbers. The pictures have 224 x 224 pixels; here they become one grey channel of
56 x 56, each new pixel the mean of 4 x 4. All twelve views of all 12,311 objects are
then 0.5 GB of bytes and four views as float32 0.6 GB, instead of 7.4 GB and 9.9 GB.
"""

from __future__ import annotations

import re
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from colonnade.datasets.dataset import Parts, Rows
from colonnade.datasets.formats import BROKEN, pillow
from colonnade.datasets.progress import progress
from colonnade.errors import DataError

VIEWS_FOLDER = "modelnet40_images_new_12x"
VIEWS_SUPPLY = (
    f"{VIEWS_FOLDER}/<class>/<train or test>/<object>_001.png to _012.png, for each of"
    " the 40 classes,"
)
VIEWS = 12
PIXELS = 224
REDUCED = 4
SIDE = PIXELS // REDUCED
# fmt: off
SHAPES = (
    "airplane", "bathtub", "bed", "bench", "bookshelf", "bottle", "bowl", "car", "chair", "cone", "cup", "curtain",
    "desk", "door", "dresser", "flower_pot", "glass_box", "guitar", "keyboard", "lamp", "laptop", "mantel", "monitor",
    "night_stand", "person", "piano", "plant", "radio", "range_hood", "sink", "sofa", "stairs", "stool", "table",
    "tent", "toilet", "tv_stand", "vase", "wardrobe", "xbox",
)
# fmt: on
NAME = re.compile(r"(.+)[._]v?(\d+)\.png")


def read_views(folder: Path) -> Parts:
    """All objects, class by class and by name."""
    objects_by_part = {part: _objects(folder, part) for part in ("train", "test")}
    with progress(
        "views of ModelNet40", sum(map(len, objects_by_part.values())), unit="items"
    ) as advance:
        rows = []
        for objects in objects_by_part.values():
            x = np.empty((len(objects), VIEWS, SIDE, SIDE), dtype=np.uint8)
            with ThreadPoolExecutor() as pool:
                for at, views in enumerate(
                    pool.map(
                        lambda paths: [*map(_picture, paths)], [p for _, p in objects]
                    )
                ):
                    x[at] = views
                    advance(1)
            rows.append(
                Rows(x, np.array([kind for kind, _ in objects], dtype=np.int64))
            )
    return rows[0], rows[1]


def _objects(folder: Path, part: str) -> list[tuple[int, list[Path]]]:
    """Class number and pictures of each object of a part."""
    objects = []
    for kind, shape in enumerate(SHAPES):
        pictures: dict[str, dict[int, Path]] = defaultdict(dict)
        for path in sorted((folder / shape / part).glob("*.png")):
            if match := NAME.fullmatch(path.name):
                pictures[match[1]][int(match[2])] = path
        if not pictures:
            raise DataError(
                f"Data set 'modelnet40' has no pictures of {shape!r} in"
                f" {folder / shape / part}, and every class has some in train and in"
                " test. Copy the folder from the publisher again."
            )
        for name, views in sorted(pictures.items()):
            if sorted(views) != list(range(1, VIEWS + 1)):
                absent = (
                    ", ".join(str(at) for at in range(1, VIEWS + 1) if at not in views)
                    or "none"
                )
                raise DataError(
                    f"Data set 'modelnet40' has {len(views)} pictures of {name} in"
                    f" {folder / shape / part}, and views 1 to {VIEWS} were expected;"
                    f" missing: {absent}. Copy the folder from the publisher again."
                )
            objects.append((kind, [views[at] for at in sorted(views)]))
    return objects


def _picture(path: Path) -> NDArray[np.uint8]:
    images = pillow("ModelNet40's pictures need")
    try:
        with images.open(path) as picture:
            size = picture.size
            grey = picture.convert("L")
    except BROKEN as error:
        raise DataError(
            f"Data set 'modelnet40': {path} is not a picture, or damaged"
            f" ({type(error).__name__}). Copy it again."
        ) from None
    if size != (PIXELS, PIXELS):
        raise DataError(
            f"Data set 'modelnet40': {path} has {size[0]} x {size[1]} pixels, and"
            f" {PIXELS} x {PIXELS} were expected. Copy it from the publisher again."
        )
    return np.asarray(grey.reduce(REDUCED))
