"""Arithmetic on secp256k1, a group of prime order, by coincurve (libsecp256k1): bytes in, bytes out.

A point travels compressed, in 33 bytes. An id becomes a point by trying and incrementing: the first of
SHA-256(DOMAIN, counter, digest of the id) that is an abscissa on the curve, with the even ordinate; two tries on
average. This takes a time that depends on the id: whoever can time a party's hashing closely learns something about its
ids. libsecp256k1's `tweak_mul`, by which points are multiplied, is not constant in time either.

Run as a program it is a worker (`alignment.curve`): it computes what comes through its standard input, writes the
result to its standard output, and ends with its input, or when nothing came for a minute. So it imports nothing of
Colonnade. Secrets come through the pipe alone, are not kept beyond a request, and never stand on a command line.
"""

import hashlib
import select
import struct
import sys
from typing import IO

DOMAIN = b"colonnade/alignment/1/secp256k1/sha-256"
DIGEST, POINT, SECRET = 32, 33, 32
COUNTERS = [DOMAIN + counter.to_bytes(4, "big") for counter in range(256)]
"""One prefix for each try; the chance that all of them fail is 2 ** -256."""
BLIND, MULTIPLY, CHECK = b"b", b"m", b"c"
WIDTHS = {BLIND: DIGEST, MULTIPLY: POINT, CHECK: POINT}
DONE, WRONG = b"d", b"w"
LENGTH = struct.Struct(">Q")
PATIENCE = 60.0
"""Seconds without work after which a worker ends."""


class NotAPoint(ValueError):  # noqa: N818 - whoever catches it says whose point it is
    """Bytes that are no point of the curve."""

    def __init__(self, at: int) -> None:
        self.at = at
        super().__init__(f"point {at} is not on the curve secp256k1")


def work(kind: bytes, data: bytes, secret: bytes) -> bytes:
    """Turn digests into blinded points (BLIND), points into their products (MULTIPLY), or into nothing where all are
    points (CHECK). Buffers that are made once save a tenth of the time of coincurve's classes."""
    from coincurve._libsecp256k1 import ffi, lib
    from coincurve.context import GLOBAL_CONTEXT

    context, point = GLOBAL_CONTEXT.ctx, ffi.new("secp256k1_pubkey *")
    out, size = ffi.new(f"unsigned char[{POINT}]"), ffi.new("size_t *", POINT)
    parse, multiply = lib.secp256k1_ec_pubkey_parse, lib.secp256k1_ec_pubkey_tweak_mul
    write, view = lib.secp256k1_ec_pubkey_serialize, ffi.buffer(out)
    products = []
    width = WIDTHS[kind]
    for number, start in enumerate(range(0, len(data), width)):
        piece = data[start : start + width]
        if kind == BLIND:
            tries = (hashlib.sha256(counter + piece).digest() for counter in COUNTERS)
            while not parse(context, point, b"\x02" + next(tries), POINT):
                pass
        elif not parse(context, point, piece, POINT):
            raise NotAPoint(number)
        if kind != CHECK:
            if not multiply(context, point, secret):
                raise ValueError("a secret multiplier is from 1 to the group's order - 1")
            write(context, out, size, point, lib.SECP256K1_EC_COMPRESSED)
            products.append(view[:])
    return b"".join(products)


def question(kind: bytes, data: bytes, secret: bytes) -> bytes:
    """The bytes that ask a worker."""
    return kind + secret.ljust(SECRET, b"\0") + LENGTH.pack(len(data)) + data


def read_answer(pipe: IO[bytes]) -> bytes:
    """Read a worker's answer; EOFError where it has ended."""
    outcome, size = exactly(pipe, 1), LENGTH.unpack(exactly(pipe, LENGTH.size))[0]
    if outcome == WRONG:
        raise NotAPoint(size)
    return exactly(pipe, size)


def exactly(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer until the input ends, or is silent for long. One question is on its way at a time, so that none waits in
    the buffer where `select` does not see it."""
    while select.select([source], [], [], PATIENCE)[0]:
        try:
            kind, secret = exactly(source, 1), exactly(source, SECRET)
            data = exactly(source, LENGTH.unpack(exactly(source, LENGTH.size))[0])
        except EOFError:
            return
        try:
            answer = work(kind, data, secret)
            sink.write(DONE + LENGTH.pack(len(answer)) + answer)
        except NotAPoint as error:
            sink.write(WRONG + LENGTH.pack(error.at))
        sink.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
