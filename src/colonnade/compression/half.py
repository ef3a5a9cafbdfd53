"""Half precision: two bytes per value, float16 (relative error 2^-11, up to 65504) or
bfloat16 (2^-8, any size)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from colonnade.compression.rows import floating, in_rows, rows_in, rows_of, setting
from colonnade.core.release import DTYPE_NAMES, Packed
from colonnade.errors import ConfigError

TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Half:
    """`type` is "float16" or "bfloat16"."""

    name: ClassVar[str] = "half"
    type: str = "float16"

    def __post_init__(self) -> None:
        if not _is_type(self.type):
            raise ConfigError(
                f'half: type must be one of "float16", "bfloat16"; found {self.type!r}.'
            )

    def encode(self, tensor: Tensor, generator: Generator | None = None) -> Packed:  # noqa: ARG002
        values = in_rows(tensor, self.name)
        halves = values.to(TYPES[self.type]).contiguous()
        if halves.numel() and not torch.isfinite(halves.abs().max()):
            raise ConfigError(
                f"half: {self.type} reaches up to {torch.finfo(halves.dtype).max:g};"
                f" found a value of {float(values.abs().max()):g}.\n    Use bfloat16,"
                " or 'quantize' with a range."
            )
        data = halves.view(torch.uint8).numpy().tobytes() if halves.numel() else b""
        return Packed(
            self.name,
            data,
            tuple(tensor.shape),
            DTYPE_NAMES[tensor.dtype],
            {"type": self.type},
        )

    def decode(self, packed: Packed) -> Tensor:
        dtype = floating(packed)
        kind = setting(packed, "type", _is_type)
        data = rows_in(packed, 2 * rows_of(packed.shape)[1])
        if not data.size:
            return torch.zeros(packed.shape, dtype=dtype)
        return (
            torch.from_numpy(data.copy())
            .view(TYPES[kind])
            .to(dtype)
            .reshape(packed.shape)
        )


def _is_type(kind: Any) -> bool:
    return isinstance(kind, str) and kind in TYPES
