"""How long the same messages take over a network: bytes over bandwidth, and a round trip per question."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from colonnade.errors import ConfigError

BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SECONDS = {"ms": 1e-3, "s": 1.0}
HEADER = 200
"""Bytes of a message besides its tensors, about; ledgers do not count them."""


@dataclass(frozen=True)
class Network:
    """Bits a second each way at every party, and seconds for a message and its answer."""

    bandwidth: float
    latency: float = 0.0

    @classmethod
    def parse(cls, bandwidth: str, latency: str = "0ms") -> Network:
        """From words: Network.parse("100Mbit", "20ms")."""
        bits = _number(bandwidth, BITS, "--bandwidth", "100Mbit")
        if not bits:
            raise ConfigError(f"--bandwidth must be above 0; found {bandwidth!r}.")
        return cls(bits, _number(latency, SECONDS, "--latency", "20ms"))

    def seconds(self, traffic: Mapping[str, Mapping[str, int]], exchanges: float) -> float:
        """For all of it: the busiest link carries its bytes, both ways at once, and every question waits."""
        busiest = max((max(ways.values()) for ways in traffic.values()), default=0)
        return (busiest + HEADER * exchanges) * 8 / self.bandwidth + exchanges * self.latency


def _number(text: str, units: Mapping[str, float], option: str, example: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+?)(?:/s|ps)?", text.strip().lower())
    if match is None or match[2] not in units:
        raise ConfigError(f"{option} must be a number with {', '.join(units)}, as in {example}; found {text!r}.")
    return float(match[1]) * units[match[2]]
