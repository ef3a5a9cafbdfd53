"""Arithmetic on secp256k1, a group of prime order, by coincurve (libsecp256k1): bytes
in, bytes out.

A point travels compressed, in 33 bytes. An id becomes a point by trying and
incrementing: the first of SHA-256(DOMAIN, counter, digest of the id) that is an
abscissa on the curve, with the even ordinate; two tries on average. This takes a time
that depends on the id: whoever can time a party's hashing closely learns something
about its ids. libsecp256k1's `tweak_mul`, by which points are multiplied, is not
constant in time either.

Processes run it by its path (`core.workers`), so it imports nothing of Colonnade. A
secret is not kept beyond a question.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

DOMAIN = b"colonnade/alignment/1/secp256k1/sha-256"
DIGEST = 32
POINT = 33
SECRET = 32
COUNTERS = [DOMAIN + counter.to_bytes(4, "big") for counter in range(256)]
"""One prefix for each try; the chance that all of them fail is 2 ** -256."""
BLIND = b"b"
MULTIPLY = b"m"
CHECK = b"c"
WIDTHS = {BLIND: DIGEST, MULTIPLY: POINT, CHECK: POINT}


def work(kind: bytes, items: Any, secret: bytes) -> Sequence[bytes] | int:
    """Turn digests into blinded points (BLIND), points into their products (MULTIPLY),
    or into nothing where all are points (CHECK); or give the number of the first that
    is none. Buffers that are made once save a tenth of the time of coincurve's classes.
    """
    from coincurve._libsecp256k1 import ffi, lib
    from coincurve.context import GLOBAL_CONTEXT

    context = GLOBAL_CONTEXT.ctx
    point = ffi.new("secp256k1_pubkey *")
    out = ffi.new(f"unsigned char[{POINT}]")
    size = ffi.new("size_t *", POINT)
    parse = lib.secp256k1_ec_pubkey_parse
    multiply = lib.secp256k1_ec_pubkey_tweak_mul
    write = lib.secp256k1_ec_pubkey_serialize
    view = ffi.buffer(out)
    data = bytes(items)
    width = WIDTHS[kind]
    products = []
    for number, start in enumerate(range(0, len(data), width)):
        piece = data[start : start + width]
        if kind == BLIND:
            tries = (hashlib.sha256(counter + piece).digest() for counter in COUNTERS)
            while not parse(context, point, b"\x02" + next(tries), POINT):
                pass
        elif not parse(context, point, piece, len(piece)):
            return number
        if kind != CHECK:
            if len(secret) != SECRET or not multiply(context, point, secret):
                raise ValueError(
                    "a secret multiplier is 32 bytes, from 1 to the group's order - 1"
                )
            write(context, out, size, point, lib.SECP256K1_EC_COMPRESSED)
            products.append(view[:])
    return [b"".join(products)]
