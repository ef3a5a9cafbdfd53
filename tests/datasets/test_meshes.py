"""Laws of meshes: how OFF files are read, and which voxels a shape fills."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from colonnade.datasets.modelnet import SPACING, read_off, voxelise
from colonnade.errors import DataError

# Corners are numbered as in product: 4 * x + 2 * y + z.
BOX = [
    (0, 1, 3, 2),
    (4, 6, 7, 5),
    (0, 4, 5, 1),
    (2, 3, 7, 6),
    (0, 2, 6, 4),
    (1, 5, 7, 3),
]
TETRAHEDRON = np.array([(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)])
GRID = np.indices((30, 30, 30)).reshape(3, -1).T + 0.5

fast = settings(max_examples=40)


def box(*sides: float) -> NDArray[np.float64]:
    return np.array(
        list(product(*((-side / 2, side / 2) for side in sides))), dtype=np.float64
    )


def off(vertices: NDArray[np.float64], faces: Sequence[Sequence[int]]) -> bytes:
    lines = ["OFF", f"{len(vertices)} {len(faces)} 0"]
    lines += [" ".join(map(repr, row)) for row in vertices.tolist()]
    lines += [" ".join(map(str, (len(face), *face))) for face in faces]
    return "\n".join(lines).encode()


def fans(faces: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
    return [
        (face[0], *face[at : at + 2])  # type: ignore[misc]
        for face in faces
        for at in range(1, len(face) - 1)
    ]


def box_voxels(*sides: float) -> NDArray[np.uint8]:
    return voxelise(*read_off(off(box(*sides), BOX)))


corners = st.lists(
    st.tuples(*[st.integers(-50, 50)] * 3), min_size=4, max_size=4, unique=True
).map(lambda points: np.array(points, dtype=np.float64))


@given(st.tuples(*[st.integers(1, 12)] * 3))
@fast
def test_a_box_is_solid_centred_and_has_its_sides_in_voxels(
    halves: tuple[int, ...],
) -> None:
    """In a grid whose longest side is the box's own, a box of n voxels fills n voxels."""
    size = 2 * max(halves)
    expected = np.zeros((size + 6,) * 3, dtype=np.uint8)
    expected[
        tuple(slice(size // 2 + 3 - half, size // 2 + 3 + half) for half in halves)
    ] = 1
    vertices, faces = read_off(off(box(*halves), BOX))
    np.testing.assert_array_equal(voxelise(vertices, faces, size=size), expected)


def test_a_cube_fills_24_voxels_each_way_and_z_stays_the_last_axis() -> None:
    cube = box_voxels(1, 1, 1)
    assert cube.shape == (30, 30, 30)
    assert cube.dtype == np.uint8
    assert int(cube.sum()) == 24**3
    post = box_voxels(1, 2, 4)
    assert [int(post.any(axis=other).any(axis=0).sum()) for other in (2, 0)] == [12, 24]
    assert int(post.sum()) == 6 * 12 * 24


@given(corners)
@fast
def test_a_tetrahedron_holds_all_that_is_inside_and_nothing_far_outside(
    vertices: NDArray[np.float64],
) -> None:
    edges = vertices[1:] - vertices[0]
    if abs(np.linalg.det(edges)) < 1e-6:
        return
    low = vertices.min(axis=0)
    high = vertices.max(axis=0)
    scale = 24 / (high - low).max()
    centres = (GRID - 15) / scale + (low + high) / 2
    weights = (centres - vertices[0]) @ np.linalg.inv(edges)
    weights = np.concatenate([weights, 1 - weights.sum(axis=1, keepdims=True)], axis=1)
    # A step of one voxel's half diagonal changes a weight by at most its gradient times
    # that step.
    gradients = np.linalg.inv(edges).T
    gradients = np.concatenate([gradients, -gradients.sum(axis=0, keepdims=True)])
    reach = np.linalg.norm(gradients, axis=1) * (np.sqrt(3) / 2 / scale + 1e-6)
    solid = voxelise(vertices, TETRAHEDRON).ravel().astype(bool)
    assert solid[(weights > 1e-6).all(axis=1)].all()
    assert not solid[(weights < -reach).any(axis=1)].any()


@given(
    corners,
    st.tuples(*[st.integers(-300, 300)] * 3),
    st.sampled_from([0.001, 0.3, 2.0, 1000.0]),
)
@fast
def test_moving_and_scaling_the_mesh_do_not_change_the_voxels(
    vertices: NDArray[np.float64], shift: tuple[int, ...], scale: float
) -> None:
    moved = (vertices + np.array(shift)) * scale
    np.testing.assert_array_equal(
        voxelise(moved, TETRAHEDRON), voxelise(vertices, TETRAHEDRON)
    )


@given(corners, st.permutations(range(3)))
@fast
def test_swapping_axes_of_the_mesh_swaps_those_of_the_voxels(
    vertices: NDArray[np.float64], axes: list[int]
) -> None:
    turned = voxelise(vertices[:, axes], TETRAHEDRON)
    np.testing.assert_array_equal(
        turned, voxelise(vertices, TETRAHEDRON).transpose(axes)
    )


@given(corners, st.integers(0, 2**32 - 1))
@fast
def test_every_point_of_the_surface_is_at_a_set_voxel(
    vertices: NDArray[np.float64], seed: int
) -> None:
    """Corners lie in set voxels; any other point at most SPACING / sqrt(3) from one."""
    solid = voxelise(vertices, TETRAHEDRON).astype(bool)
    low = vertices.min(axis=0)
    high = vertices.max(axis=0)
    placed = (vertices - (low + high) / 2) * 24 / (high - low).max() + 15
    weights = np.random.default_rng(seed).dirichlet(np.ones(3), size=200)
    points = np.einsum("sc,tcd->tsd", weights, placed[TETRAHEDRON]).reshape(-1, 3)
    assert _near(solid, placed, 1e-5).all()
    assert _near(solid, points, SPACING / np.sqrt(3) + 1e-5).all()


def _near(
    solid: NDArray[np.bool_], points: NDArray[np.float64], reach: float
) -> NDArray[np.bool_]:
    found = np.zeros(len(points), dtype=bool)
    for step in product((-reach, 0, reach), repeat=3):
        x, y, z = np.floor(points + np.array(step)).astype(np.int64).clip(0, 29).T
        found |= solid[x, y, z]
    return found


def test_the_inside_is_filled_only_where_the_surface_closes_it_off() -> None:
    vertices = box(1, 1, 1)
    open_box = fans(BOX[:-1])
    bowl = voxelise(vertices, np.array(open_box))
    assert int(bowl.sum()) == 24**3 - 22 * 22 * 23
    assert bowl[15, 15, 25] == 0


def test_padding_surrounds_the_shape() -> None:
    vertices, faces = read_off(off(box(1, 1, 1), BOX))
    bare = voxelise(vertices, faces, size=5, padding=0)
    assert bare.tolist() == np.ones((5, 5, 5)).tolist()
    np.testing.assert_array_equal(
        voxelise(vertices, faces, size=5, padding=2), np.pad(bare, 2)
    )


def test_stray_vertices_and_flat_or_pointlike_shapes_do_no_harm() -> None:
    vertices = np.concatenate([box(1, 1, 1), [[100.0, 100.0, 100.0]]])
    np.testing.assert_array_equal(
        voxelise(vertices, np.array(fans(BOX))), box_voxels(1, 1, 1)
    )
    assert int(box_voxels(1, 1, 0).sum()) == 24 * 24
    assert int(voxelise(np.ones((3, 3)), np.array([[0, 1, 2]])).sum()) == 1


@given(st.integers(3, 9))
@fast
def test_polygons_and_their_triangles_agree(sides: int) -> None:
    turns = np.arange(sides) * 2 * np.pi / sides
    ring = np.stack([np.cos(turns), np.sin(turns), np.zeros(sides)], axis=1)
    vertices = np.concatenate([ring, ring + np.array([0, 0, 1])])
    polygons = [tuple(range(sides)), tuple(range(sides, 2 * sides))]
    polygons += [
        (at, (at + 1) % sides, sides + (at + 1) % sides, sides + at)
        for at in range(sides)
    ]
    prism, triangles = (
        read_off(off(vertices, faces)) for faces in (polygons, fans(polygons))
    )
    np.testing.assert_array_equal(prism[1], triangles[1])
    np.testing.assert_array_equal(prism[0], vertices)
    assert len(prism[1]) == 2 * (sides - 2) + 2 * sides
    assert voxelise(*prism)[15, 15, 15] == 1


PLAIN = off(box(1, 2, 3), BOX)


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace(b"OFF\n", b"OFF"),
        PLAIN.replace(b"OFF\n", b"OFF "),
        PLAIN.replace(b"OFF\n", b"# made by hand\n\nOFF # of course\n# sizes\n"),
        PLAIN.replace(b"\n", b"\r\n") + b"\r\n\r\n",
        PLAIN.replace(b"4 1 5 7 3", b"4 1 5 7 3 255 0 0"),
        PLAIN.replace(b"8 6 0", b"8 6"),
    ],
    ids=["glued", "one line", "comments", "windows", "colour", "no edges"],
)
def test_the_ways_off_files_are_written_are_the_same_mesh(
    other: bytes, tmp_path: Path
) -> None:
    assert other != PLAIN
    (tmp_path / "a.off").write_bytes(other)
    for found, expected in zip(
        read_off((tmp_path / "a.off").read_bytes()), read_off(PLAIN), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "must begin with the word OFF"),
        (b"PK\x03\x04", "must begin with the word OFF"),
        (b"OFF", "must give the numbers of vertices and faces"),
        (b"OFF\neight six 0", "must give the numbers of vertices and faces"),
        (b"OFF\n0 0 0", "must have vertices and faces, and announces 0 and 0"),
        (
            PLAIN.rsplit(b"\n", 1)[0],
            "announces 8 vertices and 6 faces, one a line, and has only 13 lines",
        ),
        (
            PLAIN.replace(b"-1.5", b"nan"),
            "must give each vertex as three finite numbers",
        ),
        (PLAIN.replace(b"-1.5", b""), "must give each vertex as three finite numbers"),
        (
            PLAIN.replace(b"4 1 5 7 3", b"4 1 5 7"),
            "must give each face as its number of corners",
        ),
        (
            PLAIN.replace(b"4 1 5 7 3", b"2 1 5"),
            "must give each face as its number of corners",
        ),
        (
            PLAIN.replace(b"4 1 5 7 3", b"4 1 5 7 x"),
            "must give each face as its number of corners",
        ),
        (
            PLAIN.replace(b"4 1 5 7 3", b"4 1 5 7 %d" % 2**70),
            "must give each face as its number of corners",
        ),
        (
            PLAIN.replace(b"4 1 5 7 3", b"4 1 5 7 8"),
            "not among its vertices, which are numbered 0 to 7",
        ),
        (PLAIN.replace(b"4 1 5 7 3", b"4 1 5 7 -1"), "not among its vertices"),
    ],
)
def test_a_malformed_file_is_named_with_the_rule(content: bytes, rule: str) -> None:
    with pytest.raises(
        DataError, match=f"^The OFF file .*chair_0007.off .*{rule}"
    ) as caught:
        read_off(content, "sofa/chair_0007.off")
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    with pytest.raises(DataError, match=r"The OFF file in\.zip/chair\.off "):
        read_off(content, "in.zip/chair.off")


@given(
    st.binary(max_size=60),
    st.sampled_from([b"", b"OFF\n", b"OFF\n1 1 0\n", b"OFF\n1 1 0\n0 0 0\n"]),
)
@settings(max_examples=150)
def test_any_bytes_are_a_mesh_or_a_data_error(content: bytes, start: bytes) -> None:
    try:
        vertices, faces = read_off(start + content)
    except DataError:
        return
    assert vertices.shape[1] == faces.shape[1] == 3
    assert faces.max() < len(vertices)
