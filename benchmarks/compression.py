"""What a codec costs: megabytes of float32 per second and core, packed and read back,
and what is left of them."""

from __future__ import annotations

import torch

from colonnade.benchmark import Result, race
from colonnade.compression import Half, Integers, Quantize, TopK, VectorQuantize
from colonnade.core import Codec, Identity
from colonnade.core.party import one_torch_thread

TARGET = 100  # MB/s, for scalar quantization and top-k
CODECS: list[tuple[str, Codec, bool]] = [  # with whether the target is for it
    ("identity", Identity(), False),
    ("half, float16", Half(), False),
    ("quantize, 16 levels", Quantize(16), True),
    ("quantize, 5 levels, dithered", Quantize(5, rounding="dithered"), True),
    ("top_k, 10 %", TopK(0.1), True),
    ("vector_quantize, 256 points", VectorQuantize(256), False),
    ("integers, 201 values", Integers(-100, 1, 201), False),
]


def run(quick: bool) -> list[Result]:
    with one_torch_thread():
        return [
            _speed(name, codec, wanted, shape, turns=10 if quick else 60)
            for shape in ((1024, 60), (1024, 1024))
            for name, codec, wanted in CODECS
        ]


def _speed(
    name: str, codec: Codec, wanted: bool, shape: tuple[int, int], turns: int
) -> Result:
    generator = torch.Generator().manual_seed(0)
    tensor = torch.randn(shape, generator=generator)
    if isinstance(codec, Integers):
        tensor = tensor.mul(20).round().clamp(-100, 100)
    packed = codec.encode(tensor, generator)
    best = race(
        {
            "encode": lambda: codec.encode(tensor, generator),
            "decode": lambda: codec.decode(packed),
        },
        turns=turns,
    )
    speed = {way: tensor.nbytes / 1e6 / seconds for way, seconds in best.items()}
    return Result(
        f"{name}, {shape[0]} x {shape[1]}",
        f"{speed['encode']:.0f} MB/s packed, {speed['decode']:.0f} MB/s read",
        f"{len(packed.data):,} bytes of {tensor.nbytes:,}",
        f"≥ {TARGET} MB/s each" if wanted else "",
        min(speed.values()) >= TARGET if wanted else None,
        {**speed, "bytes": float(len(packed.data))},
    )
