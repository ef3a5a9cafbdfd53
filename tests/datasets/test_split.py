"""Laws: parts put together give the whole back, and row splits are disjoint, covering
and seeded."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from colonnade.datasets.split import (
    by_names,
    column_blocks,
    even_columns,
    image_patches,
    image_strips,
    party_names,
    picture_views,
    train_validation_test,
    views,
)
from colonnade.errors import ConfigError, DataError


def images(*shape: int) -> torch.Tensor:
    return torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape)


@settings(max_examples=50)
@given(st.integers(1, 200), st.integers(1, 200))
def test_even_columns_cover_in_order_and_differ_by_at_most_one(
    width: int, parts: int
) -> None:
    assume(parts <= width)
    runs = even_columns(width, parts)
    assert [at for run in runs for at in run] == list(range(width))
    sizes = [len(run) for run in runs]
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) <= 1
    assert all(first >= second for first, second in pairwise(sizes))


@pytest.mark.parametrize(("width", "parts"), [(3, 4), (3, 0), (0, 1)])
def test_more_parts_than_columns_are_refused(width: int, parts: int) -> None:
    with pytest.raises(
        ConfigError,
        match=f"{width} columns or pixels cannot be split into {parts} parts",
    ):
        even_columns(width, parts)


def test_names_sort_in_party_order() -> None:
    assert party_names(3) == ["client_01", "client_02", "client_03"]
    assert party_names(120) == sorted(party_names(120))


@settings(max_examples=50)
@given(st.integers(1, 12), st.integers(1, 12))
def test_column_blocks_put_side_by_side_give_the_matrix(width: int, parts: int) -> None:
    assume(parts <= width)
    whole = images(3, width)
    assert torch.equal(
        torch.cat(list(column_blocks(whole, parts).values()), dim=1), whole
    )


@settings(max_examples=50)
@given(st.sampled_from([(2, 9, 5), (2, 3, 9, 5)]), st.integers(1, 9))
def test_strips_put_below_each_other_give_the_images(
    shape: tuple[int, ...], parts: int
) -> None:
    whole = images(*shape)
    strips = image_strips(whole, parts)
    assert list(strips) == party_names(parts)
    assert torch.equal(torch.cat(list(strips.values()), dim=-2), whole)


def test_mnist_has_fourteen_strips_of_two_rows() -> None:
    strips = image_strips(np.zeros((5, 28, 28), dtype=np.uint8), 14)
    assert {tuple(strip.shape) for strip in strips.values()} == {(5, 2, 28)}
    assert strips["client_14"].dtype == torch.uint8


@settings(max_examples=50)
@given(st.sampled_from([(2, 7, 5), (2, 3, 7, 5)]), st.integers(1, 7), st.integers(1, 5))
def test_patches_put_in_their_grid_give_the_images(
    shape: tuple[int, ...], down: int, across: int
) -> None:
    whole = images(*shape)
    patches = list(image_patches(whole, (down, across)).values())
    rows = [
        torch.cat(patches[at * across : (at + 1) * across], dim=-1)
        for at in range(down)
    ]
    assert torch.equal(torch.cat(rows, dim=-2), whole)


def test_cifar_patches_are_eleven_eleven_ten() -> None:
    patches = image_patches(images(1, 3, 32, 32), (3, 3))
    assert [tuple(patch.shape[-2:]) for patch in patches.values()] == [
        (tall, wide) for tall in (11, 11, 10) for wide in (11, 11, 10)
    ]


def test_padding_adds_zeros_below_and_right_only() -> None:
    whole = images(1, 3, 32, 32) + 1
    bare, padded = (
        list(image_patches(whole, (3, 3), pad=pad).values()) for pad in (False, True)
    )
    for patch, wide in zip(bare, padded, strict=True):
        assert wide.shape[-2:] == (11, 11)
        assert torch.equal(wide[..., : patch.shape[-2], : patch.shape[-1]], patch)
        assert wide.sum() == patch.sum()


def test_overlapping_patches_are_spread_evenly() -> None:
    whole = images(2, 3, 32, 32)
    patches = list(image_patches(whole, (3, 3), size=16).values())
    starts = [(down, across) for down in (0, 8, 16) for across in (0, 8, 16)]
    assert len(patches) == 9
    for (down, across), patch in zip(starts, patches, strict=True):
        assert torch.equal(patch, whole[..., down : down + 16, across : across + 16])
    (one,) = image_patches(whole, (1, 1), size=32).values()
    assert torch.equal(one, whole)


def test_a_patch_must_fit_into_the_picture() -> None:
    for size in (0, 33):
        with pytest.raises(
            ConfigError,
            match=f"A patch of {size} pixels, 2 times, does not fit into 32 pixels",
        ):
            image_patches(images(1, 32, 32), (2, 2), size=size)


def test_a_part_carries_nothing_of_the_others_in_its_storage() -> None:
    whole = images(4, 6, 6)
    parts = [
        *image_strips(whole, 3).values(),
        *image_patches(whole, (2, 2)).values(),
        *image_strips(whole, 1).values(),
    ]
    assert all(part.untyped_storage().nbytes() == part.numel() * 4 for part in parts)
    assert all(
        part.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()
        for part in parts
    )


@settings(max_examples=50)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_blocks_of_given_widths_have_them_and_put_together_give_the_matrix(
    widths: list[int],
) -> None:
    whole = torch.arange(3.0 * sum(widths)).reshape(3, -1)
    blocks = column_blocks(whole, widths)
    assert list(blocks) == party_names(len(widths))
    assert [block.shape[1] for block in blocks.values()] == widths
    assert torch.equal(torch.cat(list(blocks.values()), dim=1), whole)


@pytest.mark.parametrize(
    ("widths", "found"),
    [
        ([3, 4], r"\[3, 4\], which are 7\."),
        ([3, 6], r"\[3, 6\], which are 9\."),
        ([8, 0], r"\[8, 0\]\."),
        ([9, -1], r"\[9, -1\]\."),
        ([4.0, 4.0], r"\[4\.0, 4\.0\]\."),
        ([7, True], r"\[7, True\]\."),
        ([], r"\[\], which are 0\."),
    ],
)
def test_widths_must_be_whole_numbers_that_add_up_to_all_columns(
    widths: list[int], found: str
) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"whole numbers, 1 or more, that add up to all 8 columns; found {found}",
    ):
        column_blocks(torch.zeros(2, 8), widths)


@pytest.mark.parametrize(
    ("parts", "taken"), [(1, [0]), (4, [0, 3, 6, 9]), (8, [0, 1, 3, 4, 6, 7, 9, 10])]
)
def test_picture_views_are_spread_evenly_over_the_sides(
    parts: int, taken: list[int]
) -> None:
    whole = images(2, 12, 5, 5)
    seen = picture_views(whole, parts)
    assert list(seen) == party_names(parts)
    for side, view in zip(taken, seen.values(), strict=True):
        assert torch.equal(view, whole[:, side])
        assert view.untyped_storage().nbytes() == view.numel() * view.element_size()


def test_more_parties_than_sides_are_refused() -> None:
    for parts in (0, 13):
        with pytest.raises(
            ConfigError,
            match=f"12 views cannot be given to {parts} parties: ask for 1 to 12",
        ):
            picture_views(images(2, 12, 5, 5), parts)
    with pytest.raises(
        ConfigError,
        match=r"This split needs views \[N, V, \.\.\.\], and was given shape \[2, 12\]",
    ):
        picture_views(torch.zeros(2, 12), 2)


def test_views_are_the_maxima_along_each_axis() -> None:
    voxels = np.zeros((1, 2, 3, 4), dtype=np.uint8)
    voxels[0, 1, 2, 3] = 1
    seen = views(voxels)
    assert [tuple(view.shape) for view in seen.values()] == [
        (1, 3, 4),
        (1, 2, 4),
        (1, 2, 3),
    ]
    assert [view.nonzero().tolist() for view in seen.values()] == [
        [[0, 2, 3]],
        [[0, 1, 3]],
        [[0, 1, 2]],
    ]


def test_turning_the_voxels_turns_the_views() -> None:
    voxels = torch.rand(2, 4, 5, 6, generator=torch.Generator().manual_seed(0))
    first, second, _ = views(voxels).values()
    turned = list(views(voxels.transpose(1, 2)).values())
    assert torch.equal(turned[0], second)
    assert torch.equal(turned[1], first)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (
            lambda: views(images(2, 3, 4)),
            r"needs voxels \[N, D, H, W\], and was given shape \[2, 3, 4\]",
        ),
        (
            lambda: image_strips(images(2, 3), 1),
            r"needs images .*, and was given shape \[2, 3\]",
        ),
        (
            lambda: column_blocks(images(2), 1),
            r"needs a matrix .*, and was given shape \[2\]",
        ),
    ],
)
def test_another_shape_is_refused(split: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        split()


FRAME = pd.DataFrame({"age": [1, 2], "income": [3, 4], "job": ["a", "b"]})


def test_named_columns_go_to_their_parties_and_join_again() -> None:
    parts = by_names(FRAME, {"bank": ["income"], "shop": ["age", "job"]})
    assert list(parts) == ["bank", "shop"]
    assert pd.concat(parts.values(), axis=1)[list(FRAME.columns)].equals(FRAME)


def test_a_column_for_two_parties_or_a_party_without_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match="A column goes to one party, and 'age' is given more than once",
    ):
        by_names(FRAME, {"bank": ["age"], "shop": ["age"]})
    with pytest.raises(ConfigError, match="'shop' is given no columns"):
        by_names(FRAME, {"bank": ["age"], "shop": []})
    with pytest.raises(
        DataError, match=r"'bank' has no column 'agee' \(did you mean 'age'\?\), "
    ):
        by_names(FRAME, {"bank": ["agee"]})


@settings(max_examples=50)
@given(st.integers(3, 300), st.floats(0, 0.4), st.integers(0, 1), st.integers(0, 2**40))
def test_row_splits_are_disjoint_covering_and_seeded(
    rows: int, validation: float, test: int, seed: int
) -> None:
    assume(validation == 0 or round(validation * rows) > 0)
    one, again = (
        train_validation_test(rows, validation=validation, test=test, seed=seed)
        for _ in range(2)
    )
    together = torch.cat([one.train, one.validation, one.test])
    assert together.dtype == torch.int64
    assert together.sort().values.tolist() == list(range(rows))
    assert len(one.validation) == round(validation * rows)
    assert len(one.test) == test
    assert one.train.tolist() == sorted(again.train.tolist())
    assert one.validation.tolist() == again.validation.tolist()


def test_another_seed_gives_another_split_and_no_global_state_is_used() -> None:
    before = torch.random.get_rng_state()
    one, two = (
        train_validation_test(100, validation=0.2, test=0.2, seed=seed)
        for seed in (1, 2)
    )
    assert one.test.tolist() != two.test.tolist()
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("rows", "validation", "test", "message"),
    [
        (
            10,
            0.5,
            0.5,
            (
                "validation=0.5 and test=0.5 take 10 of 10 rows and leave none for"
                " training"
            ),
        ),
        (
            10,
            5,
            9,
            "validation=5 and test=9 take 14 of 10 rows and leave none for training",
        ),
        (
            10,
            1.0,
            0,
            (
                "validation is 1.0, and it must be a fraction from 0 up to, but not"
                " including, 1"
            ),
        ),
        (10, 0, -1, "test is -1, and it must be a fraction"),
        (10, 0, float("nan"), "test is nan, and it must be a fraction"),
        (10, True, 0, "validation is True, and it must be a fraction"),
        (
            4,
            0.1,
            0,
            (
                "validation=0.1 of 4 rows is no row at all. Use a larger fraction, or 0"
                " for none"
            ),
        ),
        (0, 0, 0, "There are 0 rows to split"),
    ],
)
def test_a_split_that_cannot_be_is_refused(
    rows: int, validation: float, test: float, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        train_validation_test(rows, validation=validation, test=test, seed=0)
    assert message in str(caught.value)
