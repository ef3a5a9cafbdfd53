"""Multi-VFL's convolutions for many label owners at once, each with weights of its own,
as Triton kernels for a GPU.

Libraries have no fast convolution for a few dozen groups of 64 rows and 32 channels.
Here one kernel does all groups: `maps` what data owners send, `pooled` the label
owner's convolution up to its pooled values, `back` the gradient of what was sent,
`weights` and `taps` those of the two convolutions. What is only needed in between is
never stored.

A tile is a number of places of the pooled maps, in any rows of one group. A place is
made of 2 x 2 pixels; these and their neighbours are 4 x 4. `chosen` says which of the 2
x 2 was the largest, 4 if the value is zero after ReLU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64  # places of a pooled map
STRIP = 128  # pixels of a strip
PARTS = 14  # sums of a group's gradient that are made apart, and added
# of a patch: nine pixels, a one for the bias, and zeros, since products like multiples
# of 16
TAPS = 16


@triton.jit  # type: ignore[untyped-decorator]
def _patch(x, place, strip, at, D, high, wide, taps):  # type: ignore[no-untyped-def]
    """[pixels, TAPS]: nine pixels around each, a one, and zeros. Strips have a border
    of zeros."""
    top = (place * D + strip) * (high + 2) + at // wide % high
    start = top * (wide + 2) + at % wide
    there = x + start[:, None] + (taps // 3 * (wide + 2) + taps % 3)[None, :]
    nine = tl.load(there, mask=(taps < 9)[None, :], other=0.0)
    return tl.where((taps == 9)[None, :], 1.0, nine)


@triton.jit  # type: ignore[untyped-decorator]
def _maps(
    x,
    rows,
    w1,
    h,
    B,
    D,
    high,
    wide,
    C: tl.constexpr,
    TAPS: tl.constexpr,
    STRIP: tl.constexpr,
):  # type: ignore[no-untyped-def]
    owner = tl.program_id(1)  # a data owner of a group
    group = owner // D
    strip = owner % D
    at = tl.program_id(0) * STRIP + tl.arange(0, STRIP)
    row = at // (high * wide)
    there = row < B
    taps = tl.arange(0, TAPS)
    c = tl.arange(0, C)
    place = tl.load(rows + group * B + row, mask=there, other=0)
    patch = _patch(x, place, strip, at, D, high, wide, taps)
    w = tl.load(
        w1 + (owner * 10 + taps)[:, None] * C + c[None, :],
        mask=(taps < 10)[:, None],
        other=0.0,
    )
    short = h.dtype.element_ty
    z = tl.dot(patch.to(short), w.to(short), input_precision="ieee")
    pixel = ((group * B + row) * D + strip) * high * wide + at % (high * wide)
    tl.store(
        h + pixel[:, None] * C + c[None, :],
        tl.maximum(z, 0.0).to(short),
        mask=there[:, None],
    )


@triton.jit  # type: ignore[untyped-decorator]
def _pixel(h, image, y, x, H, W, c, C: tl.constexpr, there):  # type: ignore[no-untyped-def]
    inside = there & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    return tl.load(
        h + ((image * H + y) * W + x)[:, None] * C + c[None, :],
        mask=inside[:, None],
        other=0.0,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _pooled(  # type: ignore[no-untyped-def]
    h, w2, b2, a, chosen, B, H, W, C: tl.constexpr, F: tl.constexpr, TILE: tl.constexpr
):
    group = tl.program_id(1)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    high = H // 2
    wide = W // 2
    row = at // (high * wide)
    py = at // wide % high
    px = at % wide
    there = row < B
    image = group * B + row
    c = tl.arange(0, C)
    f = tl.arange(0, F)
    w = w2 + ((group * F + f) * 9)[None, :] * C + c[:, None]
    s00 = tl.zeros((TILE, F), dtype=tl.float32)
    s01 = tl.zeros((TILE, F), dtype=tl.float32)
    s10 = tl.zeros((TILE, F), dtype=tl.float32)
    s11 = tl.zeros((TILE, F), dtype=tl.float32)
    for i in tl.static_range(4):
        for j in tl.static_range(4):
            pixel = _pixel(h, image, 2 * py + i - 1, 2 * px + j - 1, H, W, c, C, there)
            if i < 3 and j < 3:
                s00 = tl.dot(
                    pixel, tl.load(w + (i * 3 + j) * C), s00, input_precision="ieee"
                )
            if i < 3 and j > 0:
                s01 = tl.dot(
                    pixel, tl.load(w + (i * 3 + j - 1) * C), s01, input_precision="ieee"
                )
            if i > 0 and j < 3:
                s10 = tl.dot(
                    pixel, tl.load(w + (i * 3 - 3 + j) * C), s10, input_precision="ieee"
                )
            if i > 0 and j > 0:
                s11 = tl.dot(
                    pixel,
                    tl.load(w + (i * 3 - 3 + j - 1) * C),
                    s11,
                    input_precision="ieee",
                )
    above = tl.maximum(s00, s01)
    below = tl.maximum(s10, s11)
    which = tl.where(
        above >= below, tl.where(s00 >= s01, 0, 1), tl.where(s10 >= s11, 2, 3)
    )
    value = tl.maximum(above, below) + tl.load(b2 + group * F + f)[None, :]
    to = (group * B * high * wide + at)[:, None] * F + f[None, :]
    tl.store(a + to, tl.maximum(value, 0.0), mask=there[:, None])
    tl.store(
        chosen + to, tl.where(value > 0, which, 4).to(tl.uint8), mask=there[:, None]
    )


@triton.jit  # type: ignore[untyped-decorator]
def _back(  # type: ignore[no-untyped-def]
    h,
    w2,
    da,
    chosen,
    d1,
    B,
    D,
    H,
    W,
    C: tl.constexpr,
    F: tl.constexpr,
    TILE: tl.constexpr,
):
    group = tl.program_id(1)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    high = H // 2
    wide = W // 2
    row = at // (high * wide)
    py = at // wide % high
    px = at % wide
    there = row < B
    image = group * B + row
    c = tl.arange(0, C)
    f = tl.arange(0, F)
    short = h.dtype.element_ty
    w = w2 + ((group * F + f) * 9)[:, None] * C + c[None, :]
    s00 = tl.zeros((TILE, C), dtype=tl.float32)
    s01 = tl.zeros((TILE, C), dtype=tl.float32)
    s10 = tl.zeros((TILE, C), dtype=tl.float32)
    s11 = tl.zeros((TILE, C), dtype=tl.float32)
    for i in tl.static_range(4):
        for j in tl.static_range(4):
            y = py + (i + 1) // 2 - 1
            x = px + (j + 1) // 2 - 1  # the place that pixel i, j of the 4 x 4 is of
            inside = there & (y >= 0) & (y < high) & (x >= 0) & (x < wide)
            of = ((image * high + y) * wide + x)[:, None] * F + f[None, :]
            which = tl.load(chosen + of, mask=inside[:, None], other=4)
            d = tl.load(da + of, mask=inside[:, None], other=0.0)
            d = tl.where(which == (i + 1) % 2 * 2 + (j + 1) % 2, d, 0.0).to(short)
            if i < 3 and j < 3:
                s00 = tl.dot(
                    d,
                    tl.load(w + ((2 - i) * 3 + 2 - j) * C),
                    s00,
                    input_precision="ieee",
                )
            if i < 3 and j > 0:
                s01 = tl.dot(
                    d,
                    tl.load(w + ((2 - i) * 3 + 3 - j) * C),
                    s01,
                    input_precision="ieee",
                )
            if i > 0 and j < 3:
                s10 = tl.dot(
                    d,
                    tl.load(w + ((3 - i) * 3 + 2 - j) * C),
                    s10,
                    input_precision="ieee",
                )
            if i > 0 and j > 0:
                s11 = tl.dot(
                    d,
                    tl.load(w + ((3 - i) * 3 + 3 - j) * C),
                    s11,
                    input_precision="ieee",
                )
    strip = H // D
    for i in tl.static_range(2):
        for j in tl.static_range(2):
            y = 2 * py + i
            x = 2 * px + j
            sent = _pixel(h, image, y, x, H, W, c, C, there)
            moved = (s00 if j == 0 else s01) if i == 0 else (s10 if j == 0 else s11)
            to = ((group * D + y // strip) * B + row) * strip + y % strip
            to = (to * W + x)[:, None] * C + c[None, :]
            tl.store(
                d1 + to, tl.where(sent > 0, moved, 0.0).to(short), mask=there[:, None]
            )


@triton.jit  # type: ignore[untyped-decorator]
def _weights(  # type: ignore[no-untyped-def]
    h,
    da,
    chosen,
    dw2,
    db2,
    B,
    H,
    W,
    C: tl.constexpr,
    F: tl.constexpr,
    TILE: tl.constexpr,
    TURNS: tl.constexpr,
):
    """One part of a group's sum, for one row of the 3 x 3."""
    part = tl.program_id(0)
    group = tl.program_id(1)
    ky = tl.program_id(2)
    high = H // 2
    wide = W // 2
    c = tl.arange(0, C)
    f = tl.arange(0, F)
    short = h.dtype.element_ty
    k0 = tl.zeros((F, C), dtype=tl.float32)
    k1 = tl.zeros((F, C), dtype=tl.float32)
    k2 = tl.zeros((F, C), dtype=tl.float32)
    bias = tl.zeros((F,), dtype=tl.float32)
    for turn in range(TURNS):
        at = (turn * tl.num_programs(0) + part) * TILE + tl.arange(0, TILE)
        row = at // (high * wide)
        py = at // wide % high
        px = at % wide
        there = row < B
        image = group * B + row
        of = (group * B * high * wide + at)[:, None] * F + f[None, :]
        which = tl.load(chosen + of, mask=there[:, None], other=4)
        d = tl.load(da + of, mask=there[:, None], other=0.0)
        bias += tl.sum(tl.where(which < 4, d, 0.0), 0)
        for i in tl.static_range(2):
            left = tl.trans(tl.where(which == 2 * i, d, 0.0).to(short))
            right = tl.trans(tl.where(which == 2 * i + 1, d, 0.0).to(short))
            for j in tl.static_range(4):
                pixel = _pixel(
                    h, image, 2 * py + i + ky - 1, 2 * px + j - 1, H, W, c, C, there
                )
                if j == 0:
                    k0 = tl.dot(left, pixel, k0, input_precision="ieee")
                if j == 1:
                    k1 = tl.dot(left, pixel, k1, input_precision="ieee")
                    k0 = tl.dot(right, pixel, k0, input_precision="ieee")
                if j == 2:
                    k2 = tl.dot(left, pixel, k2, input_precision="ieee")
                    k1 = tl.dot(right, pixel, k1, input_precision="ieee")
                if j == 3:
                    k2 = tl.dot(right, pixel, k2, input_precision="ieee")
    to = (
        dw2
        + (((part * tl.num_programs(1) + group) * F + f) * 9 + ky * 3)[:, None] * C
        + c[None, :]
    )
    tl.store(to, k0)
    tl.store(to + C, k1)
    tl.store(to + 2 * C, k2)
    if ky == 0:
        tl.store(db2 + (part * tl.num_programs(1) + group) * F + f, bias)


@triton.jit  # type: ignore[untyped-decorator]
def _taps(  # type: ignore[no-untyped-def]
    x,
    rows,
    d1,
    dw1,
    B,
    D,
    high,
    wide,
    C: tl.constexpr,
    TAPS: tl.constexpr,
    STRIP: tl.constexpr,
    TURNS: tl.constexpr,
):
    part = tl.program_id(0)
    owner = tl.program_id(1)
    group = owner // D
    strip = owner % D
    taps = tl.arange(0, TAPS)
    c = tl.arange(0, C)
    short = d1.dtype.element_ty
    total = tl.zeros((TAPS, C), dtype=tl.float32)
    for turn in range(TURNS):
        at = (turn * tl.num_programs(0) + part) * STRIP + tl.arange(0, STRIP)
        row = at // (high * wide)
        there = row < B
        place = tl.load(rows + group * B + row, mask=there, other=0)
        patch = _patch(x, place, strip, at, D, high, wide, taps).to(short)
        d = tl.load(
            d1 + (owner * B * high * wide + at)[:, None] * C + c[None, :],
            mask=there[:, None],
            other=0.0,
        )
        total = tl.dot(tl.trans(patch), d, total, input_precision="ieee")
    to = ((part * tl.num_programs(1) + owner) * TAPS + taps)[:, None] * C + c[None, :]
    tl.store(dw1 + to, total)


def forward(
    x: Tensor, rows: Tensor, w: dict[str, Tensor], short: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Of pictures x at `rows` [groups, B]: what is sent, pooled values [groups, B,
    places, F], and `chosen`."""
    (groups, B), (D, high, wide) = (
        rows.shape,
        (
            x.shape[1],
            x.shape[2] - 2,
            x.shape[3] - 2,
        ),
    )
    C = w["w1"].shape[-1]
    F = w["w2"].shape[1]
    places = B * high * D // 2 * (wide // 2)
    h = torch.empty(groups, B, D * high, wide, C, dtype=short, device=x.device)
    _maps[triton.cdiv(B * high * wide, STRIP), groups * D](
        x, rows, w["w1"], h, B, D, high, wide, C, TAPS, STRIP
    )
    a = torch.empty(groups, B, places // B, F, device=x.device)
    chosen = torch.empty(a.shape, dtype=torch.uint8, device=x.device)
    w2 = w["w2"].to(short)
    _pooled[triton.cdiv(places, TILE), groups](
        h, w2, w["b2"], a, chosen, B, D * high, wide, C, F, TILE
    )
    return h, a, chosen


def backward(
    x: Tensor, rows: Tensor, w: dict[str, Tensor], h: Tensor, da: Tensor, chosen: Tensor
) -> dict[str, Tensor]:
    """Gradients of both convolutions' weights, by that of the pooled values."""
    (groups, B), (D, high, wide) = (
        rows.shape,
        (
            x.shape[1],
            x.shape[2] - 2,
            x.shape[3] - 2,
        ),
    )
    C = w["w1"].shape[-1]
    F = w["w2"].shape[1]
    H = D * high
    places = B * (D * high // 2) * (wide // 2)
    like = {"device": x.device}
    dw2 = torch.empty(PARTS, groups, F, 3, 3, C, **like)
    db2 = torch.empty(PARTS, groups, F, **like)
    turns = triton.cdiv(places, TILE * PARTS)
    _weights[PARTS, groups, 3](
        h, da, chosen, dw2, db2, B, H, wide, C, F, TILE, turns, num_warps=2
    )
    d1 = torch.empty(groups, D, B, high, wide, C, dtype=h.dtype, device=x.device)
    w2 = w["w2"].to(h.dtype)
    _back[triton.cdiv(places, TILE), groups](
        h, w2, da, chosen, d1, B, D, H, wide, C, F, TILE
    )
    dw1 = torch.empty(PARTS, groups, D, TAPS, C, **like)
    turns = triton.cdiv(B * high * wide, STRIP * PARTS)
    _taps[PARTS, groups * D](
        x, rows, d1, dw1, B, D, high, wide, C, TAPS, STRIP, turns, num_warps=2
    )
    return {"w1": dw1.sum(0)[:, :, :10], "w2": dw2.sum(0), "b2": db2.sum(0)}
