"""GPU kernels of our own, in Triton: `written_out.squared_error_steps` for SGD, and
ADMM's z-update.

A step of a small model takes twenty-two of torch's kernels, of some six microseconds
each. Here it takes eight. A product ends with what follows it (a bias, an activation, a
slope), and sums over rows end in the optimizer's step.

Products run on the tensor cores, which multiply bfloat16. A float32 is the sum of three
numbers in bfloat16, and six of the nine products of these give the product of two
floats, to float32's last digit or two. The sizes of tiles were chosen by measuring on
an H200.

Triton comes with torch where torch has a GPU. Without it torch's kernels do the same
(`execution.gpu_kernels`). Triton sees no constant of this module, so kernels write
`FORWARD` and the activations as numbers, with their names in comments.

Kernels take strides and sizes, except the number of rows, in units. Where all of them
are multiples of four, the unit is four numbers, so that Triton loads four at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from colonnade.optim.written_out import (
    ChainTensors,
    OptimizerVectors,
    multiply_by_slope,
)

ROWS_OF_TILE = 64
INNER_OF_TILE = 32
COLUMNS_OF_TILE = 128
"""The largest tile of a product: rows of its left factor, numbers that are added up at
once, and columns of its right factor."""
SIDE_OF_SUM = 64
"""The largest tile of a sum over rows, and the rows that it adds at once."""
ROWS_OF_RUN = 128
"""A sum over rows is cut into runs of at least this many rows."""
PROGRAMS_OF_A_BUSY_GPU = 128
VALUES_OF_A_STEP = 1024
"""Parameters that one program of `_sgd_kernel` moves."""
ROWS_OF_NEWTON = 8
"""Rows that one program of `_newton_kernel` solves."""

FORWARD = 0
ERROR = 1
BACKWARD = 2
"""The ways in which a product can end. See `_product_kernel`."""


@triton.jit
def _add_product(a, b, total):  # type: ignore[no-untyped-def]
    """Compute total + a b from three parts of each factor, the smallest products first.
    Three of the nine products are too small to show in float32."""
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
def _product_kernel(  # type: ignore[no-untyped-def]
    a,
    b,
    c,
    out,
    rows,
    inner,
    columns,
    scale,
    a_party_stride,
    a_row_stride,
    b_party_stride,
    b_line_stride,
    c_party_stride,
    c_row_stride,
    out_party_stride,
    out_row_stride,
    ENDING: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_C: tl.constexpr,
    B_IS_TRANSPOSED: tl.constexpr,
    UNIT: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_INNER: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):
    """Compute one tile of a product for one party, and what follows the product.

    ENDING 0, FORWARD:   out = activation(a b + c)
    ENDING 1, ERROR:     out = scale (a b - c)
    ENDING 2, BACKWARD:  out = a b times the slope of the activation that gave c
    """
    party = tl.program_id(2).to(tl.int64) * UNIT
    inner *= UNIT
    columns *= UNIT
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)[:, None]
    column = tl.program_id(1) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)[None, :]
    has_row = row < rows
    has_entry = has_row & (column < columns)
    total = tl.zeros((TILE_ROWS, TILE_COLUMNS), dtype=tl.float32)
    for start in range(0, inner, TILE_INNER):
        i = start + tl.arange(0, TILE_INNER)
        has_inner = i < inner
        left = tl.load(
            a + party * a_party_stride + row * a_row_stride * UNIT + i[None, :],
            mask=has_row & has_inner[None, :],
            other=0.0,
        )
        if B_IS_TRANSPOSED:
            b_places = i[:, None] + column * b_line_stride * UNIT
        else:
            b_places = i[:, None] * b_line_stride * UNIT + column
        right = tl.load(
            b + party * b_party_stride + b_places,
            mask=has_inner[:, None] & (column < columns),
            other=0.0,
        )
        total = _add_product(left, right, total)
    y = total * 0.0
    if HAS_C:
        y = tl.load(
            c + party * c_party_stride + row * c_row_stride * UNIT + column,
            mask=has_entry,
            other=0.0,
        )
    if ENDING == 0:  # FORWARD
        total += y
        if ACTIVATION == 1:  # RELU
            total = tl.maximum(total, 0.0)
        elif ACTIVATION == 2:  # TANH
            total = 2.0 * tl.sigmoid(2.0 * total) - 1.0
        elif ACTIVATION == 3:  # SIGMOID
            total = tl.sigmoid(total)
    elif ENDING == 1:  # ERROR
        total = scale * (total - y)
    elif ACTIVATION == 1:  # RELU
        total = tl.where(y > 0.0, total, 0.0)
    elif ACTIVATION == 2:  # TANH
        total *= 1.0 - y * y
    elif ACTIVATION == 3:  # SIGMOID
        total *= y * (1.0 - y)
    out_places = party * out_party_stride + row * out_row_stride * UNIT + column
    tl.store(out + out_places, total, mask=has_entry)


@triton.jit  # type: ignore[untyped-decorator]
def _sum_over_rows_kernel(  # type: ignore[no-untyped-def]
    gradients,
    inputs,
    runs,
    rows,
    output_count,
    input_count,
    rows_of_run,
    run_size,
    weights_begin,
    biases_begin,
    gradient_party_stride,
    gradient_row_stride,
    input_party_stride,
    input_row_stride,
    HAS_BIAS: tl.constexpr,
    UNIT: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
):
    """Add up gradients^T inputs, and the gradients themselves, over one run of rows.

    Each run has a vector of its own in `runs`, so that programs never write to the same
    place. Sizes are in units as in `_product_kernel`.
    """
    party = tl.program_id(2).to(tl.int64)
    output_count *= UNIT
    input_count *= UNIT
    run = tl.program_id(1)
    tiles_across = tl.cdiv(input_count, TILE_INPUTS)
    tile_down = tl.program_id(0) // tiles_across
    tile_across = tl.program_id(0) % tiles_across
    o = tile_down * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    i = tile_across * TILE_INPUTS + tl.arange(0, TILE_INPUTS)
    weight_sums = tl.zeros((TILE_OUTPUTS, TILE_INPUTS), dtype=tl.float32)
    bias_sums = tl.zeros((TILE_OUTPUTS,), dtype=tl.float32)
    end = tl.minimum(rows, (run + 1) * rows_of_run)
    for start in range(run * rows_of_run, end, TILE_ROWS):
        row = start + tl.arange(0, TILE_ROWS)[:, None]
        gradient_places = (
            party * gradient_party_stride * UNIT
            + row * gradient_row_stride * UNIT
            + o[None, :]
        )
        input_places = (
            party * input_party_stride * UNIT
            + row * input_row_stride * UNIT
            + i[None, :]
        )
        row_gradients = tl.load(
            gradients + gradient_places,
            mask=(row < end) & (o[None, :] < output_count),
            other=0.0,
        )
        row_inputs = tl.load(
            inputs + input_places,
            mask=(row < end) & (i[None, :] < input_count),
            other=0.0,
        )
        weight_sums = _add_product(tl.trans(row_gradients), row_inputs, weight_sums)
        if HAS_BIAS:
            bias_sums += tl.sum(row_gradients, 0)
    own_run = runs + run * run_size
    weight_places = (
        weights_begin * UNIT
        + party * output_count * input_count
        + o[:, None] * input_count
        + i[None, :]
    )
    has_weight = (o[:, None] < output_count) & (i[None, :] < input_count)
    tl.store(own_run + weight_places, weight_sums, mask=has_weight)
    if HAS_BIAS and tile_across == 0:  # the other tiles have the same sums
        bias_places = biases_begin + party * output_count + o
        tl.store(own_run + bias_places, bias_sums, mask=o < output_count)


@triton.jit  # type: ignore[untyped-decorator]
def _sgd_kernel(  # type: ignore[no-untyped-def]
    values,
    moments,
    runs,
    size,
    run_size,
    sign,
    decay,
    rate,
    momentum,
    new_share,
    IS_FIRST: tl.constexpr,
    HAS_MOMENTUM: tl.constexpr,
    NESTEROV: tl.constexpr,
    RUNS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Take a step of SGD as `written_out.sgd_step` does. The gradient is the sum of
    several runs."""
    place = tl.program_id(0) * VALUES + tl.arange(0, VALUES)
    has_value = place < size
    gradient = tl.zeros((VALUES,), dtype=tl.float32)
    for run in tl.static_range(RUNS):
        gradient += tl.load(runs + run * run_size + place, mask=has_value, other=0.0)
    value = tl.load(values + place, mask=has_value, other=0.0)
    gradient = sign * gradient + decay * value
    if HAS_MOMENTUM:
        velocity = gradient
        if not IS_FIRST:
            velocity_before = tl.load(moments + place, mask=has_value, other=0.0)
            velocity = momentum * velocity_before + new_share * gradient
        tl.store(moments + place, velocity, mask=has_value)
        if NESTEROV:
            gradient += momentum * velocity
        else:
            gradient = velocity
    tl.store(values + place, value - rate * gradient, mask=has_value)


@triton.jit  # type: ignore[untyped-decorator]
def _newton_kernel(  # type: ignore[no-untyped-def]
    o,
    pull,
    counts,
    out,
    largest_gradients,
    rows,
    columns,
    most_steps,
    RHO: tl.constexpr,
    TOLERANCE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):
    """Take the steps of `written_out.newton` for some rows, until these rows are
    solved. One program does not wait for the rows of another."""
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)[:, None]
    column = tl.arange(0, TILE_COLUMNS)[None, :]
    has_entry = (row < rows) & (column < columns)
    places = row * columns + column
    start = tl.load(o + places, mask=has_entry, other=0.0)
    linear_term = tl.load(pull + places, mask=has_entry, other=0.0)
    count = tl.load(counts + row, mask=row < rows, other=1.0)
    curvature = RHO / count
    z = start
    # more than the tolerance, in the type of a maximum, so that the first step is taken
    largest = tl.max(tl.max(tl.abs(start), 1), 0) * 0.0 + 2.0 * TOLERANCE
    steps = 0
    while (largest > TOLERANCE) & (steps < most_steps):
        if TILE_COLUMNS == 1:
            p = 1.0 / (1.0 + tl.exp(-z))
        else:
            row_max = tl.max(tl.where(column < columns, z, -float("inf")), 1)[:, None]
            powers = tl.where(has_entry, tl.exp(z - row_max), 0.0)
            p = powers / tl.maximum(tl.sum(powers, 1)[:, None], 1e-300)
        gradient = tl.where(has_entry, p * count - linear_term + RHO * (z - start), 0.0)
        largest = tl.max(tl.max(tl.abs(gradient), 1), 0)
        gradient_per_count = gradient / count
        if TILE_COLUMNS == 1:
            direction = gradient_per_count / (p * (1.0 - p) + curvature)
        else:
            weights = p / (p + curvature)
            weight_sum = tl.maximum(tl.sum(weights, 1)[:, None], 1e-300)
            weighted_sum = tl.sum(weights * gradient_per_count, 1)[:, None]
            share = weighted_sum / (curvature * weight_sum)
            direction = gradient_per_count / (p + curvature) + weights * share
        highest = tl.maximum(tl.max(direction, 1), 0.0)
        lowest = tl.minimum(tl.min(direction, 1), 0.0)
        spread = (highest - lowest)[:, None]
        damping = tl.log(1.0 + spread) / tl.maximum(spread, 1e-12)
        z -= direction * tl.where(spread > 1e-12, damping, 1.0)
        steps += 1
    tl.store(out + places, z, mask=has_entry)
    tl.store(largest_gradients + tl.program_id(0), largest)


def tile_size(size: int, largest: int) -> int:
    """The smallest side of a product's tile that holds this size, but at most the
    largest. Triton's products have powers of two from 16."""
    return min(largest, max(16, 1 << (size - 1).bit_length()))


def unit_of(*numbers: int) -> int:
    """The unit in which all these sizes and strides are whole: 4, or else 1."""
    return 4 if all(number % 4 == 0 for number in numbers) else 1


def product(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    ending: int,
    c: Tensor | None,
    *,
    activation: int = 0,
    scale: float = 1.0,
) -> None:
    """Write a product with its ending into `out`, for every party of a stack.

    Args:
        a: The left factor, [parties, rows, inner].
        b: The right factor, [parties, inner, columns], transposed or not.
        out: Where the result is written, [parties, rows, columns].
        ending: FORWARD, ERROR or BACKWARD. `_product_kernel` has their equations.
        c: The third tensor of these equations, or None where there is none.
        activation: The activation, as `written_out` numbers it.
        scale: The factor of ERROR.
    """
    parties, rows, inner = a.shape
    columns = out.shape[-1]
    third = out if c is None else c.expand_as(out)
    is_transposed = b.stride(-1) != 1
    b_line_stride = b.stride(-1) if is_transposed else b.stride(-2)
    strides = (
        *a.stride()[:2],
        b.stride(0),
        b_line_stride,
        *third.stride()[:2],
        *out.stride()[:2],
    )
    unit = unit_of(inner, columns, *strides)
    tile_inner = tile_size(inner, INNER_OF_TILE)
    tile_columns = tile_size(columns, COLUMNS_OF_TILE)
    row_tiles = triton.cdiv(rows, ROWS_OF_TILE)
    column_tiles = triton.cdiv(columns, tile_columns)
    _product_kernel[row_tiles, column_tiles, parties](
        a,
        b,
        third,
        out,
        rows,
        inner // unit,
        columns // unit,
        scale,
        *(stride // unit for stride in strides),
        ENDING=ending,
        ACTIVATION=activation,
        HAS_C=c is not None,
        B_IS_TRANSPOSED=is_transposed,
        UNIT=unit,
        TILE_ROWS=ROWS_OF_TILE,
        TILE_INNER=tile_inner,
        TILE_COLUMNS=tile_columns,
        num_warps=4,
        num_stages=1,
    )


def sum_over_rows(
    gradients: Tensor,
    inputs: Tensor,
    runs: Tensor,
    weight_gradient: Tensor,
    bias_gradient: Tensor | None,
) -> None:
    """Write a layer's gradients, which are sums over rows, into `runs`.

    Args:
        gradients: The gradient by the layer's outputs, [parties, rows, outputs].
        inputs: The layer's inputs, [parties, rows, inputs].
        runs: A line for each run of rows, in the layout of the optimizer's gradients.
        weight_gradient: A view of the optimizer's gradients, for its place there.
        bias_gradient: The bias's view of the same, or None without a bias.
    """
    parties, rows, output_count = gradients.shape
    input_count = inputs.shape[-1]
    weights_begin = int(weight_gradient.storage_offset())
    biases_begin = 0 if bias_gradient is None else int(bias_gradient.storage_offset())
    strides = (*gradients.stride()[:2], *inputs.stride()[:2])
    unit = unit_of(output_count, input_count, weights_begin, *strides)
    tile_outputs = tile_size(output_count, SIDE_OF_SUM)
    tile_inputs = tile_size(input_count, SIDE_OF_SUM)
    tiles_down = triton.cdiv(output_count, tile_outputs)
    tiles_across = triton.cdiv(input_count, tile_inputs)
    _sum_over_rows_kernel[tiles_down * tiles_across, len(runs), parties](
        gradients,
        inputs,
        runs,
        rows,
        output_count // unit,
        input_count // unit,
        triton.cdiv(rows, len(runs)),
        runs.shape[-1],
        weights_begin // unit,
        biases_begin,
        *(stride // unit for stride in strides),
        HAS_BIAS=bias_gradient is not None,
        UNIT=unit,
        TILE_OUTPUTS=tile_outputs,
        TILE_INPUTS=tile_inputs,
        TILE_ROWS=SIDE_OF_SUM,
        num_warps=4,
        num_stages=1,
    )


def sgd_step(vectors: OptimizerVectors, runs: Tensor, step: int) -> None:
    """Take one step of SGD.

    Args:
        vectors: The optimizer's vectors.
        runs: The gradient, as lines whose sum it is.
        step: The number of this step since the optimizer's start, from 1.
    """
    settings = vectors.settings
    size = len(vectors.parameters)
    _sgd_kernel[triton.cdiv(size, VALUES_OF_A_STEP),](
        vectors.parameters,
        vectors.moments[0],
        runs,
        size,
        runs.shape[-1],
        -1.0 if settings["maximize"] else 1.0,
        settings["weight_decay"],
        settings["lr"],
        settings["momentum"],
        1.0 - settings["dampening"],
        IS_FIRST=step == 1,
        HAS_MOMENTUM=settings["momentum"] != 0.0,
        NESTEROV=settings["nesterov"] != 0.0,
        RUNS=len(runs),
        VALUES=VALUES_OF_A_STEP,
        num_warps=4,
    )


def run_count(parties: int, rows: int) -> int:
    """The number of runs into which a sum over rows is cut, so that a large GPU is busy
    and no run is short."""
    runs_by_rows = -(-rows // ROWS_OF_RUN)
    runs_to_be_busy = -(-PROGRAMS_OF_A_BUSY_GPU // parties)
    return max(1, min(runs_by_rows, runs_to_be_busy))


def squared_error_steps(
    chain: ChainTensors,
    vectors: OptimizerVectors,
    steps: int,
    steps_done: int,
    target: Tensor,
    scale: float,
    head: Tensor | None,
    error: Tensor,
) -> None:
    """Take the steps of `written_out.squared_error_steps`, for SGD and with the same
    arguments."""
    stacked = _stacked_chain(chain)
    targets = _stacked(target)
    rows_of_runs = run_count(*stacked.inputs.shape[:2])
    run_size = triton.cdiv(len(vectors.gradients), 16) * 16
    runs = stacked.inputs.new_empty(rows_of_runs, run_size)
    for number in range(steps):
        _forward(stacked)
        if head is None:
            _last_gradient(stacked, targets, scale)
        else:
            heads = _stacked(head)
            errors = _stacked(error)
            _last_gradient_through_head(stacked, targets, scale, heads, errors)
        _backward(stacked, runs)
        sgd_step(vectors, runs, steps_done + number + 1)


def _stacked(tensor: Tensor) -> Tensor:
    """One party's tensor as a stack of one. A stack stays as it is."""
    return tensor if tensor.dim() == 3 else tensor[None]


def _stacked_chain(chain: ChainTensors) -> ChainTensors:
    """A chain as a stack of chains. Biases fit as they are: they are expanded later."""
    return chain._replace(
        inputs=_stacked(chain.inputs),
        weights=[_stacked(weight) for weight in chain.weights],
        outputs=[_stacked(outputs) for outputs in chain.outputs],
        weight_gradients=[_stacked(gradient) for gradient in chain.weight_gradients],
        output_gradients=[_stacked(gradient) for gradient in chain.output_gradients],
    )


def _forward(chain: ChainTensors) -> None:
    """Compute the outputs of all layers, each in one kernel."""
    x = chain.inputs
    for i, weight in enumerate(chain.weights):
        y = chain.outputs[i]
        activation = chain.activations[i]
        product(x, weight.mT, y, FORWARD, chain.biases[i], activation=activation)
        x = y


def _last_gradient(chain: ChainTensors, target: Tensor, scale: float) -> None:
    """Compute the gradient of scale/2 ||y - target||^2 by the last linear outputs."""
    y = chain.outputs[-1]
    gradient = chain.output_gradients[-1]
    torch.sub(y, target, out=gradient).mul_(scale)
    multiply_by_slope(gradient, y, chain.activations[-1])


def _last_gradient_through_head(
    chain: ChainTensors, target: Tensor, scale: float, head: Tensor, error: Tensor
) -> None:
    """Compute the gradient of scale/2 ||y W - target||^2 by the last linear outputs."""
    y = chain.outputs[-1]
    gradient = chain.output_gradients[-1]
    activation = chain.activations[-1]
    product(y, head, error, ERROR, target, scale=scale)
    product(error, head.mT, gradient, BACKWARD, y, activation=activation)


def _backward(chain: ChainTensors, runs: Tensor) -> None:
    """Compute the gradients by every weight and bias, from the last layer to the first.

    The gradient by the last layer's linear outputs, before its activation, must stand
    in `output_gradients[-1]`. The results are written to `runs`.
    """
    for i in reversed(range(len(chain.weights))):
        inputs = chain.outputs[i - 1] if i > 0 else chain.inputs
        gradient = chain.output_gradients[i]
        weight_gradient = chain.weight_gradients[i]
        bias_gradient = chain.bias_gradients[i]
        sum_over_rows(gradient, inputs, runs, weight_gradient, bias_gradient)
        if i > 0:
            product(
                gradient,
                chain.weights[i],
                chain.output_gradients[i - 1],
                BACKWARD,
                inputs,
                activation=chain.activations[i - 1],
            )


def newton(
    o: Tensor,
    pull: Tensor,
    counts: Tensor | None,
    rho: float,
    tolerance: float,
    most_steps: int,
) -> tuple[Tensor, Tensor]:
    """Minimise as `written_out.newton` does, with rows and classes the other way round:
    `o` and `pull` are [rows, classes], and `counts` is [rows, 1]."""
    rows, columns = o.shape
    z = torch.empty_like(o)
    row_counts = o.new_ones(rows) if counts is None else counts.contiguous()
    programs = triton.cdiv(rows, ROWS_OF_NEWTON)
    largest_gradients = o.new_empty(programs)
    _newton_kernel[programs,](
        o.contiguous(),
        pull.contiguous(),
        row_counts,
        z,
        largest_gradients,
        rows,
        columns,
        most_steps,
        RHO=rho,
        TOLERANCE=tolerance,
        TILE_ROWS=ROWS_OF_NEWTON,
        TILE_COLUMNS=triton.next_power_of_2(columns),
        num_warps=1,
    )
    return z, largest_gradients.max()
