"""Damaged ciphertexts and public keys, with fitting checksums, against the keys that
read them: native code included.

    python -m tests.fuzz.ciphertexts --tries 2000 --seed 0

Each is computed with, or refused with an error of ours that names its sender. Whatever
else a scheme raises, or a crash of the process, is a finding.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from tests.fuzz.mutate import flip_bits, overwrite

from colonnade import encryption
from colonnade.core import Encrypted
from colonnade.encryption import make_keys, read_public_key
from colonnade.encryption.scheme import join_parts, split_parts, wrap
from colonnade.errors import ColonnadeError, WireError

SCHEMES = ("ckks", "bfv", "plain")
LAYOUTS = ("paired", "tiled", "spread", "rows", "flat", "values", "product", "opened")
SHAPES: tuple[tuple[int, ...], ...] = (
    (4, 6),
    (24,),
    (6, 4),
    (1,),
    (),
    (0,),
    (0, 6),
    (64, 0),
    (3, 7),
    (4096,),
)
FEW_SECONDS = 5.0
SENDER = "eve"


def damaged(rng: random.Random, body: bytes) -> bytes:
    """Bits, runs, lengths and order of what a ciphertext is made of."""
    what = rng.randrange(5)
    if what == 0:
        return flip_bits(rng, body, [])
    if what == 1:
        return overwrite(rng, body, [])
    if what == 2:
        return body[: rng.randint(0, len(body))]
    if what == 3:  # a length, or SEAL's own header, which comes right after it
        at = rng.randrange(min(len(body), 160))
        return body[:at] + rng.randbytes(8) + body[at + 8 :]
    try:
        parts = split_parts(body) or [b""]
    except WireError:  # "plain" has no parts
        return body * 2
    return join_parts(rng.choices(parts, k=rng.randint(0, 3)))


def attack(scheme: str, tries: int, seed: int) -> Counter[str]:
    """How so many damaged ciphertexts and keys of a scheme ended."""
    rng = random.Random(seed)
    ends = Counter[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keys = {
            use: make_keys(scheme, use=use, limit=100.0)
            for use in encryption.SCHEMES[scheme].uses
        }
    made: dict[str, list[Encrypted]] = {}
    for use, secret in keys.items():
        values = torch.arange(24.0).reshape(4, 6)
        made[use] = [
            secret.encrypt(values, owner="ada"),
            secret.encrypt(values.flatten(), owner="ada"),
        ]
    for _ in range(tries):
        use = rng.choice(list(keys))
        secret = keys[use]
        x = rng.choice(made[use])
        body = damaged(rng, x.data[8:]) if rng.random() < 0.8 else x.data[8:]
        shape, layout = (
            (rng.choice(SHAPES), rng.choice(LAYOUTS))
            if rng.random() < 0.4
            else (x.shape, x.layout)
        )
        # others do not get through the wire
        bound = rng.choice((x.bound, x.bound, 1e-9, 1e300))
        bad = wrap(
            secret.public,
            shape,
            layout,
            bound,
            body,
            rng.choice(("encrypted", "blinded")),
        )
        bad = replace(bad, sender=SENDER)
        run = rng.choice(_operations(secret, bad, x, rng))
        start = time.process_time()
        try:
            run()
            ends["computed"] += 1
        except ColonnadeError as error:
            ends["refused"] += 1
            ends["named"] += f"'{SENDER}'" in str(error)
        except Exception as error:
            ends[type(error).__name__] += 1
        if time.process_time() - start > FEW_SECONDS:
            ends["slow"] += 1
    return ends


def _operations(
    secret: Any, bad: Encrypted, good: Encrypted, rng: random.Random
) -> list[Callable[[], Any]]:
    public = secret.public
    matrix = torch.ones(rng.choice((4, 24)), 3)
    return [
        lambda: secret.decrypt(bad),
        lambda: secret.open_blinded(bad),
        lambda: public.add(good, bad),
        lambda: public.product(bad, matrix, owner="ada"),
        lambda: public.combine(torch.ones(4), bad, owner="ada"),
        lambda: public.blind(bad),
        lambda: read_public_key(
            damaged(rng, public.to_bytes()), scheme=public.scheme, use=public.use
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    bad = 0
    for scheme in SCHEMES:
        ends = attack(scheme, chosen.tries, chosen.seed)
        bad += sum(
            times
            for end, times in ends.items()
            if end not in ("computed", "refused", "named")
        )
        print(f"{scheme}: {dict(ends)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
