"""NUS-WIDE from files in the publisher's format: numbers in their places, and only rows
of one concept."""

from __future__ import annotations

import dataclasses
import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from colonnade.datasets import Rows, load, nus_wide
from colonnade.datasets.nus_wide import (
    CONCEPTS,
    FEATURES,
    NUS_WIDE_FILES,
    read_nus_wide,
)
from colonnade.errors import ConfigError, DataError
from colonnade.federation import Federation
from colonnade.settings.federation_file import Settings

CONFIG = (
    Path(__file__).parents[2] / "reproductions" / "vim" / "configs" / "nus-wide.toml"
)
SIZES = {"Train": 40, "Test": 16}


@dataclasses.dataclass
class Written:
    """What was written: per part the features and tags [rows, 1634], and the concepts
    [rows, 5]."""

    folder: Path
    x: dict[str, NDArray[np.float64]]
    shown: dict[str, NDArray[np.int64]]

    def expected(self, part: str) -> tuple[NDArray[np.float32], list[int]]:
        """The label rule, row by row."""
        rows = [
            at for at, row in enumerate(self.shown[part].tolist()) if row.count(1) == 1
        ]
        return self.x[part][rows].astype(np.float32), [
            self.shown[part][at].tolist().index(1) for at in rows
        ]


def write(folder: Path) -> Written:
    draw = np.random.default_rng(3)
    written = Written(folder, {}, {})
    for name in ("Low_Level_Features", "NUS_WID_Tags", "Groundtruth/TrainTestLabels"):
        (folder / name).mkdir(parents=True)
    for part, rows in SIZES.items():
        # The publisher's files end their lines with a separator, and give six digits.
        blocks = [draw.random((rows, width)).round(6) for width in FEATURES.values()]
        for feature, block in zip(FEATURES, blocks, strict=True):
            lines = [
                "".join(f"{value:.6f} " for value in row) for row in block.tolist()
            ]
            text = "".join(f"{line}\n" for line in lines)
            (
                folder / "Low_Level_Features" / f"{part}_Normalized_{feature}.dat"
            ).write_text(text)
        tags = (draw.random((rows, 1000)) < 0.05).astype(int)
        text = "".join(
            "".join(f"{value}\t" for value in row) + "\n" for row in tags.tolist()
        )
        (folder / "NUS_WID_Tags" / f"{part}_Tags1k.dat").write_text(text)
        shown = np.eye(5, dtype=np.int64)[draw.integers(0, 5, rows)]
        shown[1], shown[4] = 0, [1, 0, 1, 0, 0]  # no concept, and two
        for at, concept in enumerate(CONCEPTS):
            path = (
                folder
                / "Groundtruth"
                / "TrainTestLabels"
                / f"Labels_{concept}_{part}.txt"
            )
            path.write_text("".join(f"{value}\n" for value in shown[:, at].tolist()))
        written.x[part], written.shown[part] = (
            np.concatenate([*blocks, tags], axis=1),
            shown,
        )
    return written


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return write(tmp_path / "data" / "nus_wide")


def rows_of(written: Written) -> tuple[Rows, Rows]:
    data = load("nus_wide", folder=written.folder.parent)
    assert data.test is not None
    return data.train, data.test


def test_the_columns_are_the_paper_s() -> None:
    assert sum(FEATURES.values()) == 634 == 300 + 334
    assert nus_wide.WIDTH == 1634
    assert len(NUS_WIDE_FILES) == 2 * (5 + 1 + 5)


def test_rows_of_exactly_one_concept_are_read_with_every_number_in_its_place(
    written: Written,
) -> None:
    for part, rows in zip(SIZES, rows_of(written), strict=True):
        x, y = written.expected(part)
        assert len(rows) == SIZES[part] - 2
        assert rows.array().dtype == np.float32
        np.testing.assert_array_equal(rows.array(), x)
        assert rows.y.tolist() == y
    data = load("nus_wide", folder=written.folder.parent)
    assert (data.kind, data.classes) == (
        "features",
        ("buildings", "grass", "animal", "water", "person"),
    )


def test_the_first_rows_are_taken_where_there_are_more(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nus_wide, "ROWS", {"Train": 7, "Test": 3})
    train, test = read_nus_wide([written.folder / name for name in NUS_WIDE_FILES])
    assert test is not None
    assert (len(train), len(test)) == (7, 3)
    np.testing.assert_array_equal(train.array(), written.expected("Train")[0][:7])
    assert test.y.tolist() == written.expected("Test")[1][:3]


def test_packed_files_are_read_too(written: Written) -> None:
    path = written.folder / "NUS_WID_Tags" / "Train_Tags1k.dat"
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    np.testing.assert_array_equal(
        rows_of(written)[0].array(), written.expected("Train")[0]
    )


def test_what_was_read_is_kept_until_the_files_change(
    written: Written, own_cache: Path
) -> None:
    before = rows_of(written)[0].array()
    kept = sorted(path.name for path in (own_cache / "nus_wide").iterdir())
    assert kept == [
        "made_of.txt",
        "x_test.npy",
        "x_train.npy",
        "y_test.npy",
        "y_train.npy",
    ]
    # to see which one is read
    np.save(own_cache / "nus_wide" / "x_train.npy", before + 1)
    np.testing.assert_array_equal(rows_of(written)[0].array(), before + 1)
    path = written.folder / NUS_WIDE_FILES[0]
    lines = path.read_text().split("\n")
    written.x["Train"][0, 0] = 0.75
    path.write_text("\n".join(["0.750000" + lines[0][8:], *lines[1:]]))
    os.utime(path, (0, 0))  # as if unpacked from an old archive
    np.testing.assert_array_equal(
        rows_of(written)[0].array(), written.expected("Train")[0]
    )
    written.folder.rename(written.folder.with_name("gone"))
    np.testing.assert_array_equal(
        rows_of(written)[0].array(), written.expected("Train")[0]
    )


def test_another_folder_is_not_answered_from_what_was_kept_of_the_first(
    written: Written, tmp_path: Path
) -> None:
    rows_of(written)
    other = write(tmp_path / "other" / "nus_wide")
    path = other.folder / "Groundtruth" / "TrainTestLabels" / "Labels_grass_Test.txt"
    path.write_text("0\n" * SIZES["Test"])
    other.shown["Test"][:, 1] = 0
    assert rows_of(other)[1].y.tolist() == other.expected("Test")[1]


def test_damaged_kept_arrays_are_refused(written: Written, own_cache: Path) -> None:
    rows_of(written)
    np.save(own_cache / "nus_wide" / "x_test.npy", np.zeros((14, 5), dtype=np.float32))
    with pytest.raises(
        DataError,
        match=(
            r"'nus_wide' cannot be read from .*x_train\.npy: .* Delete it and load"
            r" again"
        ),
    ):
        rows_of(written)


def test_absent_files_are_listed_with_their_owner_s_page(
    tmp_path: Path, own_cache: Path
) -> None:
    with pytest.raises(DataError) as caught:
        load("nus_wide", folder=tmp_path)
    told = str(caught.value)
    assert told.startswith(
        "Data set 'nus_wide' cannot be downloaded freely: its owner gives it out at"
        " https://lms.comp"
    )
    for piece in (
        (
            "put Low_Level_Features/{Train,Test}_Normalized_{CH,CM55,CORR,EDH,WT}.dat,"
            " NUS_WID_Tags/{Train,Test}_Tags1k.dat and"
            " Groundtruth/TrainTestLabels/Labels_{buildings,grass,animal,water,person}_{Train,Test}.txt"
            " into COLONNADE_DATA/nus_wide/"
        ),
        f"Looked in {tmp_path / 'nus_wide'} and {own_cache / 'nus_wide'}.",
        "compared with no checksum",
    ):
        assert piece in told
    assert "is missing" not in told


def test_of_files_that_are_partly_there_the_missing_ones_are_named(
    written: Written,
) -> None:
    for name in (
        "NUS_WID_Tags/Test_Tags1k.dat",
        "Low_Level_Features/Train_Normalized_EDH.dat",
    ):
        (written.folder / name).unlink()
    with pytest.raises(DataError) as caught:
        load("nus_wide", folder=written.folder.parent)
    missing = (
        "Low_Level_Features/Train_Normalized_EDH.dat, NUS_WID_Tags/Test_Tags1k.dat"
    )
    assert f"In {written.folder} is missing: {missing}. What you supply" in str(
        caught.value
    )


GRASS = "Groundtruth/TrainTestLabels/Labels_grass_Train.txt"
CH = "Low_Level_Features/Train_Normalized_CH.dat"
WT = "Low_Level_Features/Test_Normalized_WT.dat"
TAGGED = "NUS_WID_Tags/Test_Tags1k.dat"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            GRASS,
            "1\n0\n",
            (
                r"Labels_grass_Train\.txt has 2 lines and Labels_buildings_Train\.txt"
                r" has 40"
            ),
        ),
        (GRASS, "2\n" * 40, r"Labels_grass_Train\.txt must hold 0 or 1 on each line"),
        (
            WT,
            "0.5 " * 127 + "\n",
            (
                r"line 1 of .*Test_Normalized_WT\.dat has 127 numbers, and 128 were"
                r" expected"
            ),
        ),
        (
            TAGGED,
            ("0\t" * 1000 + "\n") * 17,
            r"Test_Tags1k\.dat has 17 lines and the concepts' files have 16",
        ),
        (
            TAGGED,
            ("3\t" * 1000 + "\n") * 16,
            r"Test_Tags1k\.dat must hold 0 or 1 for each tag",
        ),
        (
            CH,
            ("nan " * 64 + "\n") * 40,
            r"Train_Normalized_CH\.dat holds numbers that are not finite",
        ),
        (
            CH,
            ("many " * 64 + "\n") * 40,
            r"Train_Normalized_CH\.dat holds something that is no number",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_named(
    name: str, content: str, message: str, written: Written
) -> None:
    (written.folder / name).write_text(content)
    with pytest.raises(DataError, match=message):
        load("nus_wide", folder=written.folder.parent)


def test_files_without_a_row_of_one_concept_are_refused(written: Written) -> None:
    for concept in CONCEPTS:
        (
            written.folder
            / "Groundtruth"
            / "TrainTestLabels"
            / f"Labels_{concept}_Test.txt"
        ).write_text("0\n" * 16)
    with pytest.raises(
        DataError, match="has no photograph that shows exactly one of buildings, grass"
    ):
        load("nus_wide", folder=written.folder.parent)


def settings(parts: tuple[int, ...] = (300, 334, 500, 500)) -> Settings:
    paper = Settings.from_toml(CONFIG)
    assert (paper.data.parts, paper.data.validation) == ((300, 334, 500, 500), 6000)
    return dataclasses.replace(
        paper,
        data=paper.data.changed(validation=8, parts=parts),
        train=paper.train.changed(epochs=1, batch_size=10),
        engine=paper.engine.changed(device="cpu"),
    )


def test_the_paper_s_file_cuts_300_334_500_500_columns_as_published_and_trains(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLONNADE_DATA", str(written.folder.parent))
    federation = Federation.from_settings(settings())
    held = [party.features for party in federation.holdings.columns.values()]
    assert [tuple(x.shape[1:]) for x in held] == [(300,), (334,), (500,), (500,)]
    whole = np.concatenate([written.expected(part)[0] for part in SIZES])
    np.testing.assert_array_equal(torch.cat(held, dim=1).numpy(), whole)
    splits = {name: len(rows) for name, rows in federation.holdings.splits.items()}
    assert splits == {"train": 30, "validation": 8, "test": 14}
    assert len(federation.holdings.encoder.classes) == 5
    before = federation.outputs("test")
    federation.fit()
    after = federation.outputs("test")
    assert after.shape == (14, 5)
    assert not torch.equal(before, after)


def test_widths_that_do_not_add_up_are_refused(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLONNADE_DATA", str(written.folder.parent))
    with pytest.raises(
        ConfigError,
        match=r"add up to all 1634 columns; found \[300, 334, 500\], which are 1134",
    ):
        Federation.from_settings(settings((300, 334, 500)))
