"""A vFedCCE step at the paper's sizes, in its three modes: seconds, and bytes of
ciphertext.

Two clients, 10 columns each, two dense layers of 128 and one of 2: 18,178 weights;
batches of 32; 2 classes. Client 2 has the labels, so what crosses is between it and
client 1. Columns are random: only time and traffic are of interest. Then what encrypted
coefficients would cost in other algorithms, from the same product at two sizes.
"""

from __future__ import annotations

import secrets
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from colonnade.benchmark import Result, race
from colonnade.datasets.preprocess import Labels
from colonnade.encryption import make_keys
from colonnade.federation import Federation, Settings
from colonnade.rows.holdings import Columns, Holdings

ROWS = 1024
BATCH = 32
CLASSES = 2
# per batch and party: coefficients, and the weights that they are multiplied into
ELSEWHERE = {
    "FDML at these sizes, 32 rows x 1 logit": (32, 18_048),
    "SplitNN at these sizes, 32 rows x 128": (32 * 128, 17_920),
    "FDML on MNIST (VIM), 1024 rows x 10": (1024 * 10, 14_700),
    "SplitNN on MNIST (VIM), 1024 rows x 60": (1024 * 60, 14_100),
}
PAILLIER_BITS = 3072  # as strong as the 128 bits of the others


def run(quick: bool) -> list[Result]:
    modes = {
        "ours": _federation("encrypted-coefficients"),
        "ours, ckks": _federation("encrypted-coefficients", scheme="ckks"),
        "jacobian": _federation("encrypted-jacobian"),
        "jacobian, ckks": _federation("encrypted-jacobian", scheme="ckks"),
        "plaintext": _federation("plaintext"),
    }
    cpu: dict[str, float] = {}
    best = race(
        {name: _step(federation, name, cpu) for name, federation in modes.items()},
        turns=1 if quick else 5,
    )
    sent = {name: _bytes(federation) for name, federation in modes.items()}
    weights = sum(
        weight.numel() for weight in modes["ours"].owners["client_1"].model.parameters()
    )
    results = []
    for scheme, end in (("BFV, the default", ""), ("CKKS", ", ckks")):
        ours = f"ours{end}"
        theirs = f"jacobian{end}"
        ratio = sent[theirs] / sent[ours]
        results += [
            Result(
                f"vFedCCE step, encrypted coefficients ({scheme})",
                f"{best[ours]:.2f} s, on one core",
                f"encrypted Jacobian {best[theirs]:.2f} s, plaintext"
                f" {best['plaintext']:.3f} s",
                "≤ 1 s",
                best[ours] <= 1,
                {
                    "seconds": best[ours],
                    "processor seconds": cpu[ours],
                    "jacobian seconds": best[theirs],
                },
            ),
            Result(
                "its ciphertexts, both ways",
                f"{sent[ours] / 1e6:.2f} MB = 1/{ratio:.0f}",
                f"encrypted Jacobian, packed: {sent[theirs] / 1e6:.1f} MB",
                "≥ 20 x fewer",
                ratio >= 20,
                {"bytes": float(sent[ours]), "jacobian bytes": float(sent[theirs])},
            ),
        ]
    return [*results, _paillier(weights, best["ours"]), *_elsewhere()]


def _federation(mode: str, **algorithm: Any) -> Federation:
    settings = Settings.from_mapping(
        {
            "algorithm": {"name": "vfedcce", "mode": mode, **algorithm},
            "preset": "vim-mnist",  # the algorithms as their papers set them
            "model": {"name": "mlp", "hidden": [128], "width": 128},
            "train": {"epochs": 1000, "batch_size": BATCH, "early_stop": False},
            "federation": {"device": "cpu"},
        }
    )
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, ROWS, 10, generator=generator)
    y = (x.sum((0, 2)) > 0).long()
    parties = {"client_1": Columns(x[0]), "client_2": Columns(x[1])}
    encoder = Labels("client_2", "classification", (0, 1))
    ids = np.arange(ROWS).astype(np.str_)
    splits = {"train": torch.arange(ROWS)}
    return Federation(
        settings, Holdings.of_one(parties, y, ids, splits, "client_2", encoder)
    )


def _step(
    federation: Federation, name: str, cpu: dict[str, float]
) -> Callable[[], None]:
    training = federation.train()

    def go() -> None:
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # plaintext is measured here, not used
            next(training)
        cpu[name] = min(cpu.get(name, float("inf")), time.process_time() - start)

    return go


def _bytes(federation: Federation) -> int:
    """What crossed for the last batch, log-odds and keys not counted."""
    entries = federation.ledgers["client_1"].entries
    last = entries[-1].batch
    return sum(
        entry.bytes
        for entry in entries
        if entry.batch == last and entry.name != "log_odds"
    )


def _elsewhere() -> list[Result]:
    """A coefficient costs one rotation, and a product per ciphertext of weights (8,192
    of them, BFV)."""
    rows = 32
    slots = 8192
    random = torch.Generator().manual_seed(0)
    secret = make_keys("bfv", use="products", limit=4.0)
    seconds = {1: float("inf"), 3: float("inf")}
    for chunks in (1, 3) * 3:
        jacobian = torch.rand(rows, chunks * slots, generator=random)
        coefficients = torch.rand(rows, generator=random)
        start = time.process_time()
        secret.public.product(
            secret.encrypt(coefficients, owner="client_2"), jacobian, owner="client_1"
        )
        seconds[chunks] = min(seconds[chunks], (time.process_time() - start) / rows)
    product = (seconds[3] - seconds[1]) / 2
    rotation = seconds[1] - product
    results = []
    for what, (count, weights) in ELSEWHERE.items():
        chunks = -(-weights // slots)
        results.append(
            Result(
                f"encrypted coefficients in {what}, computed",
                f"{count * (rotation + chunks * product):,.1f} s of one core a step",
                f"{count:,} coefficients x ({rotation * 1e3:.1f} + {chunks} x"
                f" {product * 1e3:.1f}) ms, measured",
                numbers={
                    "seconds": count * (rotation + chunks * product),
                    "weights per coefficient": weights / count,
                },
            )
        )
    return results


def _paillier(weights: int, ours: float) -> Result:
    """As printed, one ciphertext per entry of the Jacobian: one modular power each,
    measured here, and two moduli."""
    modulus = secrets.randbits(PAILLIER_BITS) | 1 | 1 << (PAILLIER_BITS - 1)
    base = secrets.randbits(PAILLIER_BITS)
    square = modulus * modulus
    start = time.perf_counter()
    pow(base, modulus, square)
    seconds = time.perf_counter() - start
    count = BATCH * CLASSES * weights
    size = count * 2 * PAILLIER_BITS // 8
    return Result(
        f"the same with Paillier ({PAILLIER_BITS} bit), one ciphertext per entry of the"
        " Jacobian, computed",
        f"{count * seconds / 3600:.0f} h of one core to encrypt, {size / 1e6:.0f} MB",
        f"{count:,} powers of {seconds * 1e3:.0f} ms (Python's own; GMP's are faster);"
        f" ours: {ours:.2f} s",
        numbers={"seconds": count * seconds, "bytes": float(size)},
    )
