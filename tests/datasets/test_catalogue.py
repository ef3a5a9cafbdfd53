from __future__ import annotations

import gzip
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.datasets.conftest import Site

from colonnade.datasets.catalogue import CATALOGUE, Entry, load
from colonnade.datasets.dataset import Rows, content_checksum
from colonnade.datasets.entries import Download
from colonnade.datasets.layouts import point_layouts
from colonnade.errors import ConfigError, DataError

FILES = {
    "small.data.gz": gzip.compress(b"1 2\n3 4\n5 6\n"),
    "small.labels0.gz": gzip.compress(b"1\n2\n1\n"),
}
CONTENT = Rows(np.array([[1, 2], [3, 4], [5, 6]]), np.array([0, 1, 0]))


def small(address: str) -> dict[str, Entry]:
    """A catalogue of one data set with three points, at home at this address."""
    entry = replace(
        CATALOGUE["unbalance"],
        classes=("1", "2"),
        home=address,
        checksum=content_checksum((CONTENT, None)),
        layouts=point_layouts("small"),
        downloads=tuple(Download(name, f"{address}/{name}") for name in FILES),
    )
    return {"small": entry}


def put(folder: Path, files: dict[str, bytes] = FILES) -> Path:
    (folder / "small").mkdir(parents=True)
    for name, content in files.items():
        (folder / "small" / name).write_bytes(content)
    return folder


@pytest.fixture
def home(site: Site) -> Site:
    site.pages.update({f"/{name}": content for name, content in FILES.items()})
    return site


def test_an_unknown_name_is_refused_with_the_likely_one() -> None:
    with pytest.raises(
        ConfigError,
        match=(
            r"There is no data set 'minst' \(did you mean 'mnist'\?\)\. The names are"
            r" breast"
        ),
    ):
        load("minst")


def test_built_in_sets_need_no_folder_and_no_network() -> None:
    data = load("digits", offline=True)
    assert data.train.array().shape == (1797, 8, 8)
    assert data.train.array().max() == 16
    assert load("breast_cancer", offline=True).train.frame().shape == (569, 30)


def test_built_in_sets_say_when_scikit_learn_is_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(
        DataError, match="'digits' comes with scikit-learn, which is not installed"
    ):
        load("digits")


def test_the_folder_argument_comes_before_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "COLONNADE_DATA", str(put(tmp_path / "damaged", dict.fromkeys(FILES, b"")))
    )
    data = load(
        "small",
        folder=put(tmp_path / "good"),
        offline=True,
        catalogue=small("http://127.0.0.1:9"),
    )
    assert data.train.array().tolist() == [[1, 2], [3, 4], [5, 6]]
    assert data.train.y.tolist() == [0, 1, 0]


def test_the_variable_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLONNADE_DATA", str(put(tmp_path / "data")))
    assert (
        len(load("small", offline=True, catalogue=small("http://127.0.0.1:9")).train)
        == 3
    )


def test_what_is_absent_is_downloaded_once_into_the_cache(
    home: Site, own_cache: Path
) -> None:
    for _ in range(2):
        assert len(load("small", catalogue=small(home.address)).train) == 3
    assert home.asked == ["/small.data.gz", "/small.labels0.gz"]
    assert sorted(path.name for path in (own_cache / "small").iterdir()) == sorted(
        FILES
    )


def test_a_named_folder_receives_the_download(
    home: Site, tmp_path: Path, own_cache: Path
) -> None:
    load("small", folder=tmp_path / "mine", catalogue=small(home.address))
    assert (tmp_path / "mine" / "small" / "small.data.gz").exists()
    assert not own_cache.exists()


def test_a_named_folder_that_cannot_be_written_is_passed_over(
    home: Site, tmp_path: Path, own_cache: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    load("small", folder=tmp_path / "file", catalogue=small(home.address))
    assert (own_cache / "small" / "small.data.gz").exists()


def test_other_content_from_the_home_is_not_kept(home: Site, own_cache: Path) -> None:
    home.pages["/small.data.gz"] = gzip.compress(b"1 2\n3 4\n5 7\n")
    with pytest.raises(DataError) as caught:
        load("small", catalogue=small(home.address))
    message = str(caught.value)
    assert message.startswith(
        "Data set 'small' was not found, and the download failed: Data set 'small' in "
    )
    assert "is not the published one: its content has SHA-256" in message
    assert (
        "set COLONNADE_DATA to a folder that holds small/small.npz or small/small.data."
        in message
    )
    assert list((own_cache / "small").iterdir()) == []


def test_a_failed_download_is_one_sentence_and_leaves_nothing(
    home: Site, own_cache: Path
) -> None:
    del home.pages["/small.labels0.gz"]
    with pytest.raises(DataError) as caught:
        load("small", catalogue=small(home.address))
    assert (
        str(caught.value) == "Data set 'small' was not found, and the download failed:"
        f" {home.address}/small.labels0.gz could not be downloaded (Not Found); set"
        " COLONNADE_DATA to a folder that holds small/small.npz or"
        " small/small.data."
    )
    assert caught.value.__suppress_context__
    assert list((own_cache / "small").iterdir()) == []


def test_a_home_without_the_files_a_layout_needs_says_so(home: Site) -> None:
    entry = small(home.address)["small"]
    with pytest.raises(
        DataError, match=r"'small' was fetched from .* and not found in"
    ):
        load(
            "small", catalogue={"small": replace(entry, downloads=entry.downloads[:1])}
        )


def test_offline_and_absent_is_one_sentence(
    tmp_path: Path, home: Site, own_cache: Path
) -> None:
    with pytest.raises(DataError) as caught:
        load(
            "small",
            folder=tmp_path / "data",
            offline=True,
            catalogue=small(home.address),
        )
    assert (
        str(caught.value)
        == f"Data set 'small' is not in {tmp_path / 'data' / 'small'} or"
        f" {own_cache / 'small'}, and offline=True forbids the download from"
        f" {home.address}: set COLONNADE_DATA to a folder that holds small/small.npz"
        " or small/small.data."
    )
    assert home.asked == []


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    put(tmp_path, {"small.npz": b"PK not really"})
    with pytest.raises(
        DataError,
        match=r"'small' cannot be read from .*small\.npz: the file is damaged",
    ) as caught:
        load(
            "small",
            folder=tmp_path,
            offline=True,
            catalogue=small("http://127.0.0.1:9"),
        )
    assert caught.value.__suppress_context__


def test_other_content_in_the_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    np.savez(
        put(tmp_path, {}) / "small" / "small.npz", x=np.zeros((3, 2)), y=np.ones(3)
    )
    with pytest.raises(
        DataError,
        match=r"'small' in .*small is not the published one: its content has SHA-256",
    ):
        load(
            "small",
            folder=tmp_path,
            offline=True,
            catalogue=small("http://127.0.0.1:9"),
        )
    assert (tmp_path / "small" / "small.npz").exists()


@pytest.mark.long
def test_decoded_pictures_are_kept_as_arrays_and_preferred(
    real_data: Path, decoded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = sorted(path.name for path in (decoded / "cifar10").iterdir())
    assert kept == ["x_test.npy", "x_train.npy", "y_test.npy", "y_train.npy"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(decoded.parents[1]))
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert len(load("cifar10", folder=real_data, offline=True).train) == 50000


def test_pictures_without_pillow_say_what_to_install(
    real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        DataError,
        match=r"needs Pillow, which is not installed\. Install it: .*plots",
    ):
        load("cifar10", folder=real_data, offline=True)
