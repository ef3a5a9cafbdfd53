"""The list of named data sets: what each is, who may use it, where it lives, and the
checksum of its content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from colonnade.datasets import layouts
from colonnade.datasets.dataset import Kind, Parts, Rows
from colonnade.datasets.layouts import Layout
from colonnade.datasets.modelnet import FURNITURE
from colonnade.datasets.multi_view import SHAPES, SIDE, VIEWS, VIEWS_SUPPLY
from colonnade.datasets.nus_wide import CONCEPTS, NUS_WIDE_SUPPLY, WIDTH


@dataclass(frozen=True)
class Download:
    """A file at its public home, and its MD5 where the publisher gives one."""

    name: str
    url: str
    md5: str | None = None


@dataclass(frozen=True)
class Entry:
    """One data set. `rows` counts training rows, `columns` the features of a row,
    `home` is its public page.

    With `supply` it cannot be downloaded freely, and these are the files that a user
    has to put into the data folder; their checksum is not known.
    """

    description: str
    kind: Kind
    rows: int
    columns: int
    classes: tuple[str, ...]
    licence: str
    home: str
    test_rows: int = 0
    checksum: str = ""
    layouts: tuple[Layout, ...] = ()
    downloads: tuple[Download, ...] = ()
    built_in: Callable[[], Parts] | None = None
    supply: str = ""


TEN_DIGITS = tuple("0123456789")
# fmt: off
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# fmt: on
MNIST_MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist"
MNIST_MD5 = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
FASHION_HOME = "https://github.com/zalandoresearch/fashion-mnist"
CIFAR = "https://www.cs.toronto.edu/~kriz"
CIFAR_FILE = "cifar-10-binary.tar.gz"
UCI = "https://archive.ics.uci.edu"
PRINCETON = "https://3dvision.princeton.edu/projects/2014/3DShapeNets"
SUITE = "https://github.com/gagolews/clustering-data-v1"


def _points(
    name: str,
    description: str,
    rows: int,
    clusters: int,
    checksum: str,
    partitions: tuple[str, ...],
    at: str = "sipu",
) -> Entry:
    files = (f"{name}.data.gz", f"{name}.labels0.gz")
    return Entry(
        description,
        kind="points",
        rows=rows,
        columns=2,
        classes=tuple(str(number) for number in range(1, clusters + 1)),
        licence="for research; cite the authors",
        home=SUITE,
        checksum=checksum,
        layouts=layouts.point_layouts(name, partitions),
        downloads=tuple(
            Download(file, f"{SUITE}/raw/v1.1.0/{at}/{file}") for file in files
        ),
    )


def _gaussians(columns: int, spread: int, deviation: str, checksum: str) -> Entry:
    name = f"g2mg_{columns}_{spread}"
    about = (
        f"G2mg: two Gaussians around 500 and 600 in {columns} columns, standard"
        f" deviation {deviation}"
    )
    made = _points(name, about, 2048, 2, checksum, (), "g2mg")
    return replace(
        made,
        columns=columns,
        licence="CC BY 4.0",
        layouts=layouts.gaussian_layouts(name),
    )


def built_in_breast_cancer() -> Parts:
    """Wisconsin Diagnostic: 30 measurements."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    columns = {
        str(name): data.data[:, at].copy() for at, name in enumerate(data.feature_names)
    }
    return Rows(columns, data.target.astype(np.int64)), None


def built_in_digits() -> Parts:
    """8 x 8 digits with 17 grey levels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return Rows(data.images.astype(np.uint8), data.target.astype(np.int64)), None


CATALOGUE: dict[str, Entry] = {
    "breast_cancer": Entry(
        "Breast cancer Wisconsin (diagnostic): measurements of cell nuclei",
        kind="tabular",
        rows=569,
        columns=30,
        classes=("malignant", "benign"),
        licence="CC BY 4.0",
        home=f"{UCI}/dataset/17/breast+cancer+wisconsin+diagnostic",
        built_in=built_in_breast_cancer,
    ),
    "digits": Entry(
        "Handwritten digits, 8 x 8 pixels",
        kind="image",
        rows=1797,
        columns=64,
        classes=TEN_DIGITS,
        licence="CC BY 4.0",
        home=f"{UCI}/dataset/80/optical+recognition+of+handwritten+digits",
        built_in=built_in_digits,
    ),
    "mnist": Entry(
        "Handwritten digits, 28 x 28 pixels",
        kind="image",
        rows=60000,
        test_rows=10000,
        columns=784,
        classes=TEN_DIGITS,
        licence="none stated by the authors; often given as CC BY-SA 3.0",
        home="http://yann.lecun.com/exdb/mnist",
        checksum="0bbb064c768a464f412377e8a0930b4e9ef1f3232f97e55c44ea1c2daad03139",
        layouts=layouts.idx_layouts("mnist"),
        downloads=tuple(
            Download(f"{file}.gz", f"{MNIST_MIRROR}/{file}.gz", md5)
            for file, md5 in zip(layouts.IDX_FILES, MNIST_MD5, strict=True)
        ),
    ),
    "fashion_mnist": Entry(
        "Pictures of clothing, 28 x 28 pixels",
        kind="image",
        rows=60000,
        test_rows=10000,
        columns=784,
        classes=CLOTHES,
        licence="MIT",
        home=FASHION_HOME,
        checksum="182ee09e736500cb49cc0f25f9d33c57b62f8c42a920d74bb0ff8c3e3afd11c2",
        layouts=layouts.idx_layouts("fashion_mnist"),
        downloads=tuple(
            Download(f"{file}.gz", f"{FASHION_HOME}/raw/master/data/fashion/{file}.gz")
            for file in layouts.IDX_FILES
        ),
    ),
    "cifar10": Entry(
        "Colour photographs of ten things, 32 x 32 pixels",
        kind="image",
        rows=50000,
        test_rows=10000,
        columns=3072,
        classes=THINGS,
        licence="none stated by the authors; cite Krizhevsky 2009",
        home=f"{CIFAR}/cifar.html",
        checksum="e0bef8585c10c09a2553a400e9ec384af67bf6b9bc402cdea110b1edebd6460f",
        layouts=layouts.CIFAR_LAYOUTS,
        downloads=(
            Download(
                CIFAR_FILE, f"{CIFAR}/{CIFAR_FILE}", "c32a1d4ab5d03f1284b67883e8d87530"
            ),
        ),
    ),
    "south_german_credit": Entry(
        "Credit contracts of a German bank, 1973-75, with corrected codes",
        kind="tabular",
        rows=1000,
        columns=20,
        classes=("bad", "good"),
        licence="CC BY 4.0",
        home=f"{UCI}/dataset/522/south+german+credit",
        checksum="782769637e54415e985297e6658b81fa2703c8bd55017d26914f96b44b007e32",
        layouts=layouts.SOUTH_GERMAN_LAYOUTS,
        downloads=(
            Download(
                "south+german+credit.zip",
                f"{UCI}/static/public/522/south+german+credit.zip",
            ),
        ),
    ),
    "letter": Entry(
        "Capital letters in 20 fonts, described by 16 whole numbers",
        kind="tabular",
        rows=16000,
        test_rows=4000,
        columns=16,
        classes=tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        licence="CC BY 4.0",
        home=f"{UCI}/dataset/59/letter+recognition",
        checksum="efe57c0ed0acc4e810942f5a9d950b8517886ed921e9143799cf46816a3f9c82",
        layouts=layouts.LETTER_LAYOUTS,
        downloads=(
            Download(
                "letter+recognition.zip",
                f"{UCI}/static/public/59/letter+recognition.zip",
            ),
        ),
    ),
    "bank_marketing": Entry(
        "Calls of a Portuguese bank (bank-full); the column duration gives the outcome"
        " away",
        kind="tabular",
        rows=45211,
        columns=16,
        classes=("no", "yes"),
        licence="CC BY 4.0",
        home=f"{UCI}/dataset/222/bank+marketing",
        checksum="61dd155f95a453f0891988eb402d77c14d2bdf825e16c3efc61c87c4b1c8f14b",
        layouts=layouts.BANK_LAYOUTS,
        downloads=(
            Download(
                "bank+marketing.zip", f"{UCI}/static/public/222/bank+marketing.zip"
            ),
        ),
    ),
    "modelnet10": Entry(
        "Furniture as 30 x 30 x 30 binary voxels, which differ a little between the"
        " compact file and the meshes",
        kind="voxels",
        rows=3991,
        test_rows=908,
        columns=27000,
        classes=FURNITURE,
        licence="academic research only",
        home="https://modelnet.cs.princeton.edu",
        checksum="18b6985b53670e1e6194b0f98dd27ffba2622e5ca11c07b30a967b6d34c70139",
        layouts=layouts.voxel_layouts("modelnet10_voxel30.npz"),
        downloads=(Download("ModelNet10.zip", f"{PRINCETON}/ModelNet10.zip"),),
    ),
    "modelnet40": Entry(
        "Things as shaded pictures from 12 sides, made 56 x 56 pixels",
        kind="views",
        rows=9843,
        test_rows=2468,
        columns=VIEWS * SIDE * SIDE,
        classes=SHAPES,
        licence="academic research only",
        home="https://people.cs.umass.edu/~jcsu/papers/shape_recog",
        layouts=layouts.VIEW_LAYOUTS,
        supply=VIEWS_SUPPLY,
    ),
    "nus_wide": Entry(
        "Photographs as 634 image features and 1000 tags; those with exactly one of"
        " five concepts",
        kind="features",
        rows=60000,
        test_rows=10000,
        columns=WIDTH,
        classes=CONCEPTS,
        licence="for research; see the owner's page",
        home="https://lms.comp.nus.edu.sg/wp-content/uploads/2019/research/nuswide/NUS-WIDE.html",
        layouts=layouts.NUS_WIDE_LAYOUTS,
        supply=NUS_WIDE_SUPPLY,
    ),
    "birch1": _points(
        "birch1",
        "Birch 1: 100 clusters on a grid, in the plane",
        100000,
        100,
        "75618dd60adbf1436b6ad119a75684e833f0e5f73321acf4b589ec284a39f501",
        ("b1-gt.pa", "birch1-gt.pa"),
    ),
    "birch2": _points(
        "birch2",
        "Birch 2: 100 clusters on a sine curve, in the plane",
        100000,
        100,
        "1af16739070ae53f62f855544e60f1828205e3563e03d4cdaba5d875256a60ad",
        ("b2-gt.pa", "birch2-gt.pa"),
    ),
    "unbalance": _points(
        "unbalance",
        "Unbalance: 8 clusters of 2000 or 100 points, in the plane",
        6500,
        8,
        "2fb6223cee3b31d1942c33f95b1a8250c88f687726639adbcecda7e1ca1ea1cf",
        ("unbalance-gt.pa", "unbalance-gt-pa.zip"),
    ),
    "g2mg_4_70": _gaussians(
        4,
        70,
        "99.0",
        "92294cd1b7a74259d6f7d1baca0edab9e2581f0c48a8d623d9b63b70e94367c5",
    ),
    "g2mg_128_10": _gaussians(
        128,
        10,
        "80.0",
        "5fb53b62854c328f514aaffcaa57c9b2a86927a0aa83d6ad7690c7eba62fb6e9",
    ),
}
