"""The public files give the same content as the compact ones: each is written here from
the real data."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.datasets.test_formats import idx

from colonnade.datasets.catalogue import load
from colonnade.datasets.formats import text_of
from colonnade.datasets.layouts import IDX_FILES, LETTER_COLUMNS, Layout

GERMAN = (
    "laufkont laufzeit moral verw hoehe sparkont beszeit rate famges buerge wohnzeit"
    " verm alter weitkred wohn bishkred beruf pers telef gastarb kredit"
)
IDX_MD5 = (
    "6bbc9ace898e44ae57da46a324031adb",
    "a25bea736e30d166cdddb491f175f624",
    "2646ac647ad5339dbf082846283269ea",
    "27ae3e4e09519cfbb04c329615203637",
)


def loads(name: str, folder: Path) -> bool:
    """Loading compares the content with the recorded checksum, so that it succeeds only
    on the same values."""
    return load(name, folder=folder, offline=True).name == name


def zipped(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return packed.getvalue()


def credit_asc(real: Path) -> bytes:
    lines = text_of(
        real / "south_german_credit" / "south_german_credit.csv.gz"
    ).splitlines()[1:]
    return "".join(
        f"{line}\r\n" for line in [GERMAN, *(line.replace(",", " ") for line in lines)]
    ).encode()


def letter_data(real: Path) -> bytes:
    return text_of(real / "letter" / "letter.csv.gz").split("\n", 1)[1].encode()


def bank_csv(real: Path) -> bytes:
    """UCI's form: semicolons, and text in quotes."""
    text = text_of(real / "bank_marketing" / "bank-full.csv.gz").replace(",", ";")
    return re.sub(r"[a-z][^;\r\n]*", r'"\g<0>"', text).encode()


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("south_german_credit", "SouthGermanCredit.asc", credit_asc),
        (
            "south_german_credit",
            "south+german+credit.zip",
            lambda real: zipped("SouthGermanCredit.asc", credit_asc(real)),
        ),
        ("letter", "letter-recognition.data", letter_data),
        (
            "letter",
            "letter+recognition.zip",
            lambda real: zipped("letter-recognition.data", letter_data(real)),
        ),
        (
            "bank_marketing",
            "bank+marketing.zip",
            lambda real: zipped("bank.zip", zipped("bank-full.csv", bank_csv(real))),
        ),
    ],
)
def test_tables_load_from_the_files_of_their_public_home(
    name: str,
    file: str,
    content: Callable[[Path], bytes],
    real_data: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / file).write_bytes(content(real_data))
    assert loads(name, tmp_path)


def test_the_files_written_here_are_those_of_uci_byte_for_byte(real_data: Path) -> None:
    asc = hashlib.sha256(credit_asc(real_data)).hexdigest()
    assert asc == "5f363343f356ca38a0236baab849e472846399b2176ccc5bd686483dd8a7562f"
    assert len(letter_data(real_data)) == 712565
    assert len(LETTER_COLUMNS) == 17


def test_mnist_loads_from_idx_files_packed_or_not_with_the_published_checksums(
    real_data: Path, tmp_path: Path
) -> None:
    (tmp_path / "mnist").mkdir()
    with np.load(real_data / "mnist" / "mnist.npz") as arrays:
        contents = [
            idx(arrays[name]) for name in ("x_train", "y_train", "x_test", "y_test")
        ]
    assert tuple(hashlib.md5(content).hexdigest() for content in contents) == IDX_MD5
    for file, content in zip(IDX_FILES, contents, strict=True):
        packed = file.startswith("t10k")
        path = tmp_path / "mnist" / (f"{file}.gz" if packed else file)
        path.write_bytes(gzip.compress(content, 1) if packed else content)
    assert loads("mnist", tmp_path)


def test_points_load_from_text_files(real_data: Path, tmp_path: Path) -> None:
    (tmp_path / "unbalance").mkdir()
    with np.load(real_data / "unbalance" / "unbalance.npz") as arrays:
        for end, values in (("data", arrays["x"]), ("labels0", arrays["y"])):
            np.savetxt(tmp_path / "unbalance" / f"unbalance.{end}.gz", values, fmt="%d")
    assert loads("unbalance", tmp_path)


def partition(clusters: np.ndarray) -> str:
    """The ground truth as the benchmark of the University of Eastern Finland writes it."""
    head = ["VQ PARTITIONING 2.0", str(clusters.max()), str(len(clusters)), "-" * 37]
    return "".join(f"{line}\r\n" for line in [*head, *clusters.tolist()])


@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("birch1", "b1-gt.pa"),
        ("birch2", "birch2-gt.pa"),
        ("unbalance", "unbalance-gt.pa"),
        ("unbalance", "unbalance-gt-pa.zip"),
    ],
)
def test_points_load_from_the_original_benchmark(
    name: str, truth: str, real_data: Path, tmp_path: Path
) -> None:
    (tmp_path / name).mkdir()
    with np.load(real_data / name / f"{name}.npz") as arrays:
        points = "".join(f"    {x}    {y}\n" for x, y in arrays["x"].tolist())
        clusters = partition(arrays["y"]).encode()
    (tmp_path / name / f"{name}.txt").write_text(points)
    packed = truth.endswith(".zip")
    (tmp_path / name / truth).write_bytes(
        zipped(f"{name}-gt.pa", clusters) if packed else clusters
    )
    assert loads(name, tmp_path)


@pytest.mark.long
def test_cifar_loads_from_the_files_of_its_binary_archive(
    decoded: Path, tmp_path: Path
) -> None:
    data = load("cifar10", folder=decoded, offline=True)
    assert data.test is not None
    folder = tmp_path / "data" / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    names = [*(f"data_batch_{at}.bin" for at in range(1, 6)), "test_batch.bin"]
    parts = [(rows.array(), rows.y) for rows in (data.train, data.test)]
    batches = [
        (x[at : at + 10000], y[at : at + 10000])
        for x, y in parts
        for at in range(0, len(y), 10000)
    ]
    for name, (x, y) in zip(names, batches, strict=True):
        planes = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
        (folder / name).write_bytes(
            np.concatenate([y[:, None].astype(np.uint8), planes], axis=1).tobytes()
        )
    assert loads("cifar10", tmp_path / "data")


def test_a_layout_is_found_only_when_all_its_files_are_there(tmp_path: Path) -> None:
    layout = Layout(
        ("a", "b"), lambda paths: (_ for _ in ()).throw(AssertionError(paths))
    )
    (tmp_path / "a").touch()
    assert layout.paths_in(tmp_path) is None
    assert layout.missing(tmp_path) == ["b"]
    (tmp_path / "b.gz").touch()
    assert layout.missing(tmp_path) == []
    assert layout.paths_in(tmp_path) == [tmp_path / "a", tmp_path / "b.gz"]
