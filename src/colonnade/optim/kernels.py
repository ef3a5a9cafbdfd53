"""What a GPU computes in few kernels of its own, in Triton:
`written_out.squared_steps`, and ADMM's z-update.

As torch's kernels a step of a small model is twenty-two, of some six microseconds each;
here it is eight. A product ends with what follows it (a bias, an activation, a slope),
sums over rows end in the optimizer's step, and the products are the tensor cores': a
number of float32 is the sum of three of bfloat16, and six products of these are the
product of two, to float32's last digit or two. Tiles were chosen by measuring on an
H200.

Triton comes with torch where torch has a GPU. Without it torch's kernels do the same
(`descent.kernels`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from colonnade.optim.written_out import Layers, Moving, times_slope

ROWS = 64
INNER = 32
COLUMNS = 128
"""The largest tile of a product: of its left factor, of what is added up at once, and
of its right factor."""
SIDE = 64
"""The largest tile of a sum over rows, which takes so many rows at once."""
RUN = 128
"""Rows that a sum over rows has at least in each of its runs."""
BUSY = 128
"""So many programs keep a large GPU busy."""
FORWARD = 0
ERROR = 1
BACK = 2


@triton.jit
def _times(a, b, total):  # type: ignore[no-untyped-def]
    """total + a b. Of the nine products of both factors' three parts the six that show,
    the smallest first."""
    a0 = a.to(tl.bfloat16)
    rest = a - a0.to(tl.float32)
    a1 = rest.to(tl.bfloat16)
    a2 = (rest - a1.to(tl.float32)).to(tl.bfloat16)
    b0 = b.to(tl.bfloat16)
    rest = b - b0.to(tl.float32)
    b1 = rest.to(tl.bfloat16)
    b2 = (rest - b1.to(tl.float32)).to(tl.bfloat16)
    total = tl.dot(a1, b1, total)
    total = tl.dot(a2, b0, total)
    total = tl.dot(a0, b2, total)
    total = tl.dot(a1, b0, total)
    total = tl.dot(a0, b1, total)
    return tl.dot(a0, b0, total)


@triton.jit  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    a,
    b,
    c,
    out,
    rows,
    inner,
    columns,
    scale,
    a_m,
    a_r,
    b_m,
    b_s,
    c_m,
    c_r,
    out_m,
    out_r,
    WAY: tl.constexpr,
    KIND: tl.constexpr,
    ADDS: tl.constexpr,
    TURNED: tl.constexpr,
    UNIT: tl.constexpr,
    R: tl.constexpr,
    I: tl.constexpr,
    C: tl.constexpr,
):
    """Forward: activation(a b + c). Error: scale (a b - c). Back: a b times the slope
    of the activation that gave c.

    Sizes and strides but of rows are in units: where these are of four numbers, four
    are loaded at once."""
    m = tl.program_id(2).to(tl.int64) * UNIT
    inner *= UNIT
    columns *= UNIT
    r = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    k = tl.program_id(1) * C + tl.arange(0, C)[None, :]
    here = r < rows
    at = here & (k < columns)
    total = tl.zeros((R, C), dtype=tl.float32)
    for start in range(0, inner, I):
        i = start + tl.arange(0, I)
        inside = i < inner
        left = tl.load(
            a + m * a_m + r * a_r * UNIT + i[None, :],
            mask=here & inside[None, :],
            other=0.0,
        )
        if TURNED:
            right = tl.load(
                b + m * b_m + i[:, None] + k * b_s * UNIT,
                mask=inside[:, None] & (k < columns),
                other=0.0,
            )
        else:
            right = tl.load(
                b + m * b_m + i[:, None] * b_s * UNIT + k,
                mask=inside[:, None] & (k < columns),
                other=0.0,
            )
        total = _times(left, right, total)
    y = total * 0.0
    if ADDS:
        y = tl.load(c + m * c_m + r * c_r * UNIT + k, mask=at, other=0.0)
    if WAY == 0:
        total += y
        if KIND == 1:
            total = tl.maximum(total, 0.0)
        elif KIND == 2:
            total = 2.0 * tl.sigmoid(2.0 * total) - 1.0
        elif KIND == 3:
            total = tl.sigmoid(total)
    elif WAY == 1:
        total = scale * (total - y)
    elif KIND == 1:
        total = tl.where(y > 0.0, total, 0.0)
    elif KIND == 2:
        total *= 1.0 - y * y
    elif KIND == 3:
        total *= y * (1.0 - y)
    tl.store(out + m * out_m + r * out_r * UNIT + k, total, mask=at)


@triton.jit  # type: ignore[untyped-decorator]
def _over_rows(  # type: ignore[no-untyped-def]
    g,
    x,
    runs,
    rows,
    outs,
    ins,
    run_of,
    size,
    weights_at,
    biases_at,
    g_m,
    g_r,
    x_m,
    x_r,
    BIAS: tl.constexpr,
    UNIT: tl.constexpr,
    O: tl.constexpr,
    I: tl.constexpr,
    R: tl.constexpr,
):
    """g^T x and the sums of g over a run of rows, each run into a vector of its own; in
    units as `_product`."""
    m = tl.program_id(2).to(tl.int64)
    outs *= UNIT
    ins *= UNIT
    run = tl.program_id(1)
    tiles = tl.cdiv(ins, I)
    o = (tl.program_id(0) // tiles) * O + tl.arange(0, O)
    i = (tl.program_id(0) % tiles) * I + tl.arange(0, I)
    total = tl.zeros((O, I), dtype=tl.float32)
    sums = tl.zeros((O,), dtype=tl.float32)
    end = tl.minimum(rows, (run + 1) * run_of)
    for start in range(run * run_of, end, R):
        r = start + tl.arange(0, R)[:, None]
        gs = tl.load(
            g + m * g_m * UNIT + r * g_r * UNIT + o[None, :],
            mask=(r < end) & (o[None, :] < outs),
            other=0.0,
        )
        xs = tl.load(
            x + m * x_m * UNIT + r * x_r * UNIT + i[None, :],
            mask=(r < end) & (i[None, :] < ins),
            other=0.0,
        )
        total = _times(tl.trans(gs), xs, total)
        if BIAS:
            sums += tl.sum(gs, 0)
    into = runs + run * size
    there = (o[:, None] < outs) & (i[None, :] < ins)
    tl.store(
        into + weights_at * UNIT + m * outs * ins + o[:, None] * ins + i[None, :],
        total,
        mask=there,
    )
    if BIAS and tl.program_id(0) % tiles == 0:
        tl.store(into + biases_at + m * outs + o, sums, mask=o < outs)


@triton.jit  # type: ignore[untyped-decorator]
def _move(  # type: ignore[no-untyped-def]
    values,
    moments,
    runs,
    size,
    run_size,
    sign,
    decay,
    rate,
    momentum,
    kept,
    FIRST: tl.constexpr,
    MOMENTUM: tl.constexpr,
    NESTEROV: tl.constexpr,
    RUNS: tl.constexpr,
    N: tl.constexpr,
):
    """A step of SGD, as `written_out.move` takes it, with a gradient in several runs."""
    n = tl.program_id(0) * N + tl.arange(0, N)
    at = n < size
    g = tl.zeros((N,), dtype=tl.float32)
    for run in tl.static_range(RUNS):
        g += tl.load(runs + run * run_size + n, mask=at, other=0.0)
    p = tl.load(values + n, mask=at, other=0.0)
    g = sign * g + decay * p
    if MOMENTUM:
        v = g
        if not FIRST:
            v = momentum * tl.load(moments + n, mask=at, other=0.0) + kept * g
        tl.store(moments + n, v, mask=at)
        if NESTEROV:
            g += momentum * v
        else:
            g = v
    tl.store(values + n, p - rate * g, mask=at)


@triton.jit  # type: ignore[untyped-decorator]
def _newton(  # type: ignore[no-untyped-def]
    o,
    pull,
    counts,
    out,
    worst,
    rows,
    columns,
    most,
    RHO: tl.constexpr,
    TOLERANCE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """The steps of `losses.ZUpdate`; each program goes on until its own rows are done."""
    r = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    k = tl.arange(0, C)[None, :]
    at = (r < rows) & (k < columns)
    start = tl.load(o + r * columns + k, mask=at, other=0.0)
    towards = tl.load(pull + r * columns + k, mask=at, other=0.0)
    w = tl.load(counts + r, mask=r < rows, other=1.0)
    rho = RHO / w
    z = start
    left = tl.max(tl.max(tl.abs(start), 1), 0) * 0.0 + 2.0 * TOLERANCE
    number = 0
    while (left > TOLERANCE) & (number < most):
        if C == 1:
            p = 1.0 / (1.0 + tl.exp(-z))
        else:
            e = tl.where(
                at,
                tl.exp(z - tl.max(tl.where(k < columns, z, -float("inf")), 1)[:, None]),
                0.0,
            )
            p = e / tl.maximum(tl.sum(e, 1)[:, None], 1e-300)
        gradient = tl.where(at, p * w - towards + RHO * (z - start), 0.0)
        left = tl.max(tl.max(tl.abs(gradient), 1), 0)
        slope = gradient / w
        if C == 1:
            d = slope / (p * (1.0 - p) + rho)
        else:
            pd = p / (p + rho)
            share = tl.sum(pd * slope, 1)[:, None] / (
                rho * tl.maximum(tl.sum(pd, 1)[:, None], 1e-300)
            )
            d = slope / (p + rho) + pd * share
        spread = (tl.maximum(tl.max(d, 1), 0.0) - tl.minimum(tl.min(d, 1), 0.0))[
            :, None
        ]
        z -= d * tl.where(
            spread > 1e-12, tl.log(1.0 + spread) / tl.maximum(spread, 1e-12), 1.0
        )
        number += 1
    tl.store(out + r * columns + k, z, mask=at)
    tl.store(worst + tl.program_id(0), left)


def _tile(size: int, most: int) -> int:
    """The smallest that holds it, of those that a product can have."""
    return min(most, max(16, 1 << (size - 1).bit_length()))


def _unit(*numbers: int) -> int:
    return 4 if all(number % 4 == 0 for number in numbers) else 1


def product(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    way: int,
    c: Tensor | None,
    *,
    kind: int = 0,
    scale: float = 1.0,
) -> None:
    """What `_product` says, for every party of a stack."""
    (parties, rows, inner), columns = a.shape, out.shape[-1]
    more = out if c is None else c.expand_as(out)
    turned = b.stride(-1) != 1
    strides = (
        *a.stride()[:2],
        b.stride(0),
        b.stride(-1 if turned else -2),
        *more.stride()[:2],
        *out.stride()[:2],
    )
    unit = _unit(inner, columns, *strides)
    tiles = ROWS, _tile(inner, INNER), _tile(columns, COLUMNS)
    grid = (triton.cdiv(rows, tiles[0]), triton.cdiv(columns, tiles[2]), parties)
    numbers = (
        rows,
        inner // unit,
        columns // unit,
        scale,
        *(stride // unit for stride in strides),
    )
    ways = way, kind, c is not None, turned, unit, *tiles
    _product[grid](a, b, more, out, *numbers, *ways, num_warps=4, num_stages=1)


def over_rows(
    g: Tensor, x: Tensor, runs: Tensor, weights: Tensor, biases: Tensor | None
) -> None:
    """g^T x and the sums of g over rows, in so many runs as `runs` has lines, at the
    places that gradients have."""
    (parties, rows, outs), ins = g.shape, x.shape[-1]
    begins = [
        0 if part is None else int(part.storage_offset()) for part in (weights, biases)
    ]
    strides = *g.stride()[:2], *x.stride()[:2]
    unit = _unit(outs, ins, begins[0], *strides)
    tiles = (_tile(outs, SIDE), _tile(ins, SIDE))
    grid = (
        triton.cdiv(outs, tiles[0]) * triton.cdiv(ins, tiles[1]),
        len(runs),
        parties,
    )
    sizes = (
        rows,
        outs // unit,
        ins // unit,
        triton.cdiv(rows, len(runs)),
        runs.shape[-1],
        begins[0] // unit,
        begins[1],
    )
    ways = biases is not None, unit, *tiles, SIDE
    _over_rows[grid](
        g,
        x,
        runs,
        *sizes,
        *(stride // unit for stride in strides),
        *ways,
        num_warps=4,
        num_stages=1,
    )


def move(moving: Moving, runs: Tensor, step: int) -> None:
    """One step of SGD, the `step`-th since its start."""
    settings = moving.settings
    size = len(moving.values)
    momentum = settings["momentum"]
    sign = -1.0 if settings["maximize"] else 1.0
    numbers = (
        sign,
        settings["weight_decay"],
        settings["lr"],
        momentum,
        1.0 - settings["dampening"],
    )
    ways = step == 1, momentum != 0.0, settings["nesterov"] != 0.0, len(runs), 1024
    vectors = moving.values, moving.moments[0], runs
    _move[(triton.cdiv(size, 1024),)](
        *vectors, size, runs.shape[-1], *numbers, *ways, num_warps=4
    )


def run_count(parties: int, rows: int) -> int:
    """In how many runs a sum over rows is taken, so that a large GPU is busy."""
    return max(1, min(-(-rows // RUN), -(-BUSY // parties)))


def squared_steps(
    layers: Layers,
    moving: Moving,
    steps: int,
    done: int,
    target: Tensor,
    scale: float,
    head: Tensor | None,
    error: Tensor,
) -> None:
    """As `written_out.squared_steps`, for SGD."""

    def stacked(tensors: list[Tensor]) -> list[Tensor]:
        return [tensor if tensor.dim() == 3 else tensor[None] for tensor in tensors]

    A, y, gy, gA = (
        stacked(each) for each in (layers.A, layers.y, layers.gy, layers.gA)
    )
    x, towards, off = stacked([layers.x, target, error])
    W = None if head is None else stacked([head])[0]
    last = len(A) - 1
    kinds = layers.activations
    runs = x.new_empty(
        run_count(*x.shape[:2]), triton.cdiv(len(moving.gradients), 16) * 16
    )
    for number in range(steps):
        for i, weights in enumerate(A):
            product(
                y[i - 1] if i else x,
                weights.mT,
                y[i],
                FORWARD,
                layers.b[i],
                kind=kinds[i],
            )
        if W is None:
            torch.sub(y[last], towards, out=gy[last]).mul_(scale)
            times_slope(gy[last], y[last], kinds[last])
        else:
            product(y[last], W, off, ERROR, towards, scale=scale)
            product(off, W.mT, gy[last], BACK, y[last], kind=kinds[last])
        for i in range(last, -1, -1):
            over_rows(gy[i], y[i - 1] if i else x, runs, gA[i], layers.gb[i])
            if i:
                product(gy[i], A[i], gy[i - 1], BACK, y[i - 1], kind=kinds[i - 1])
        move(moving, runs, done + number + 1)


def newton(
    o: Tensor, pull: Tensor, w: Tensor | None, rho: float, tolerance: float, most: int
) -> tuple[Tensor, Tensor]:
    """The z of each row, and the largest entry of a gradient before the last step."""
    rows, columns = o.shape
    z = torch.empty_like(o)
    R = 8
    counts = o.new_ones(rows) if w is None else w.contiguous()
    worst = o.new_empty(triton.cdiv(rows, R))
    ways = rho, tolerance, R, triton.next_power_of_2(columns)
    _newton[(len(worst),)](
        o.contiguous(),
        pull.contiguous(),
        counts,
        z,
        worst,
        rows,
        columns,
        most,
        *ways,
        num_warps=1,
    )
    return z, worst.max()
