"""Half precision: two bytes for each value.

float16 has a relative error of 2^-11, and reaches up to 65504. bfloat16 has 2^-8, and
reaches as far as float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from colonnade.compression.rows import (
    as_rows,
    data_rows,
    floating_dtype,
    make_packed,
    rows_and_values,
    setting_of,
)
from colonnade.core.release import Packed
from colonnade.errors import ConfigError

HALF_BYTES = 2
TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Half:
    """Rounds values to half precision.

    Args:
        type: "float16" or "bfloat16".
    """

    name: ClassVar[str] = "half"
    type: str = "float16"

    def __post_init__(self) -> None:
        if not _is_type(self.type):
            raise ConfigError(
                f'half: type must be one of "float16", "bfloat16"; found {self.type!r}.'
            )

    def encode(
        self,
        tensor: Tensor,
        generator: Generator | None = None,  # noqa: ARG002
    ) -> Packed:
        """Round values to half precision. Values beyond its range are refused."""
        rows = as_rows(tensor, self.name)
        halves = rows.to(TYPES[self.type]).contiguous()
        if not halves.numel():
            return make_packed(self.name, b"", tensor, {"type": self.type})
        if not torch.isfinite(halves.abs().max()):
            raise ConfigError(
                f"half: {self.type} reaches up to {torch.finfo(halves.dtype).max:g};"
                f" found a value of {float(rows.abs().max()):g}.\n"
                "    Use bfloat16, or 'quantize' with a range."
            )
        data = halves.view(torch.uint8).numpy().tobytes()
        return make_packed(self.name, data, tensor, {"type": self.type})

    def decode(self, packed: Packed) -> Tensor:
        """Read values, in the type that the tensor had."""
        dtype = floating_dtype(packed)
        half_type = TYPES[setting_of(packed, "type", _is_type)]
        _, values = rows_and_values(packed.shape)
        data = data_rows(packed, HALF_BYTES * values)
        if not data.size:
            return torch.zeros(packed.shape, dtype=dtype)
        halves = torch.from_numpy(data.copy()).view(half_type)
        return halves.to(dtype).reshape(packed.shape)


def _is_type(value: Any) -> bool:
    return isinstance(value, str) and value in TYPES
