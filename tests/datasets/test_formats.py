from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from colonnade.datasets.formats import (
    BROKEN,
    read_array,
    read_cifar_batches,
    read_columns,
    read_idx,
    read_npz,
    read_partition,
    read_tiles,
    save_array,
    text_of,
    zip_member,
)


def idx(values: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes()


@pytest.mark.parametrize("shape", [(5,), (4, 2, 3)])
def test_idx_files_are_read_packed_or_not(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    values = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    for name, content in (
        ("plain", idx(values)),
        ("packed.gz", gzip.compress(idx(values))),
    ):
        (tmp_path / name).write_bytes(content)
        np.testing.assert_array_equal(read_idx(tmp_path / name), values)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        idx(np.zeros(9))[:-1],
        gzip.compress(idx(np.zeros(9)), mtime=0)[:-4],
    ],
)
def test_a_damaged_idx_file_raises_what_the_catalogue_catches(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(BROKEN):
        read_idx(tmp_path / "f")


def test_arrays_are_written_whole_and_read_back(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.uint8).reshape(2, 3)
    save_array(tmp_path / "new" / "a.npy", values)
    np.testing.assert_array_equal(read_array(tmp_path / "new" / "a.npy"), values)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.npy"]


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    words = np.array([{"a": 1}], dtype=object)
    np.save(tmp_path / "a.npy", words, allow_pickle=True)
    np.savez(tmp_path / "a.npz", x=words)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read_array(tmp_path / "a.npy")
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read_npz(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="allow_pickle=False"):
        save_array(tmp_path / "b.npy", words)
    assert not (tmp_path / "b.npy").exists()


def test_cifar_batches_are_read_from_the_archive_and_from_its_folder(
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    records = np.concatenate(
        [
            np.array([[4], [0], [9]], np.uint8),
            images.transpose(0, 3, 1, 2).reshape(3, -1),
        ],
        axis=1,
    )
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "test_batch.bin").write_bytes(records.tobytes())
    (folder / "readme.html").write_text("not a batch")
    with tarfile.open(tmp_path / "c.tar.gz", "w:gz") as archive:
        archive.add(folder, "cifar-10-batches-bin")
    for source in (folder, tmp_path / "c.tar.gz"):
        batches = read_cifar_batches(source)
        assert list(batches) == ["test_batch.bin"]
        np.testing.assert_array_equal(batches["test_batch.bin"][0], images)
        assert batches["test_batch.bin"][1].tolist() == [4, 0, 9]


def test_tiles_are_cut_row_by_row(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)
    picture = np.concatenate(
        [np.concatenate(list(images[at : at + 3]), axis=1) for at in (0, 3)], axis=0
    )
    Image.fromarray(picture).save(tmp_path / "t.webp", lossless=True)
    np.testing.assert_array_equal(read_tiles(tmp_path / "t.webp", size=4), images)


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.integers(-(2**60), 2**60), st.text(alphabet='ab,;" é', min_size=1)
        ),
        min_size=1,
    )
)
def test_columns_come_back_from_text_with_their_types(
    rows: list[tuple[int, str]],
) -> None:
    quoted = "".join(
        f'{number};"{word.replace(chr(34), chr(34) * 2)}";0.5\n'
        for number, word in rows
    )
    columns = read_columns("n;w;f\n" + quoted, delimiter=";")
    assert columns["n"].dtype == np.int64
    assert columns["n"].tolist() == [number for number, _ in rows]
    assert columns["w"].tolist() == [word for _, word in rows]
    assert columns["f"].dtype == np.float64


def test_names_may_be_given_for_text_without_a_header() -> None:
    assert read_columns("1,2\n3,4\n", names=["a", "b"])["b"].tolist() == [2, 4]


@pytest.mark.parametrize("text", ["a,b\n1,2\n3\n", "a,b\n1,2,3\n"])
def test_ragged_text_is_broken(text: str) -> None:
    with pytest.raises(BROKEN):
        read_columns(text)


def test_text_may_be_packed_and_carry_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "t.gz").write_bytes(gzip.compress("\ufeffé".encode()))
    assert text_of(tmp_path / "t.gz") == "é"


def test_a_zip_member_is_found_in_folders_and_in_inner_zips(tmp_path: Path) -> None:
    inner = io.BytesIO()
    empty = io.BytesIO()
    zipfile.ZipFile(empty, "w").close()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("bank/full.csv", "inner")
    with zipfile.ZipFile(
        tmp_path / "o.zip", "w", compression=zipfile.ZIP_BZIP2
    ) as archive:
        archive.writestr("folder/top.csv", "outer")
        archive.writestr("other.zip", empty.getvalue())
        archive.writestr("inner.zip", inner.getvalue())
    assert zip_member(tmp_path / "o.zip", "top.csv") == b"outer"
    assert zip_member(tmp_path / "o.zip", "full.csv") == b"inner"
    with pytest.raises(KeyError, match=r"no gone\.csv in the archive"):
        zip_member(tmp_path / "o.zip", "gone.csv")


@given(
    st.lists(st.integers(1, 100), min_size=1),
    st.lists(st.sampled_from(["VQ PARTITIONING 2.0", "8", "- 3 -", ""])),
)
def test_a_partition_is_what_follows_the_line_of_dashes(
    clusters: list[int], head: list[str]
) -> None:
    text = "\n".join([*head, "-----", *(f" {cluster} " for cluster in clusters), ""])
    assert read_partition(text).tolist() == clusters


@pytest.mark.parametrize("text", ["", "1\n2\n", "head\n---\n1\ntwo\n"])
def test_a_partition_without_dashes_or_with_words_is_refused(text: str) -> None:
    with pytest.raises(BROKEN):
        read_partition(text)
