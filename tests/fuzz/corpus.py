"""Real frames to start from: of every message class there is, with every codec and
scheme that may be inside.

Recorded: what crosses when each algorithm trains and predicts in every one of its
modes, and when ids are aligned. Made from their field types: one of each class, so that
a message nobody recorded is in it as well.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Union, get_args, get_origin

import torch
from tests.alignment.parties import meeting
from tests.conformance.battery import EVERY
from tests.conformance.toy import ALSO, config_for, federation, module_of, sequential

import colonnade
from colonnade.alignment import AlignmentSettings
from colonnade.compression import Half, Integers, Quantize, TopK, VectorQuantize
from colonnade.core import (
    Ciphertext,
    Codec,
    Envelope,
    Identity,
    Message,
    Outbox,
    Plain,
    Released,
    Request,
    Rule,
    wire,
)
from colonnade.core.message import MESSAGES
from colonnade.encryption import SecretKey, make_keys
from colonnade.transport import Recording

CODECS: tuple[Codec, ...] = (
    Identity(),
    Half(),
    Half("bfloat16"),
    Integers(-16.0, 1.0, 33),
    Quantize(5),
    Quantize(256, -20.0, 20.0),
    TopK(0.3),
    TopK(1),
    VectorQuantize(64),
    VectorQuantize(65536),
)
LARGEST = 200_000
"""Bytes; a recorded frame that is larger would only be slower to mutate."""


@functools.cache
def classes() -> list[type[Message]]:
    """Every message class of the package, whether or not anybody imported its module
    yet."""
    for module in pkgutil.walk_packages(colonnade.__path__, "colonnade."):
        if not module.name.endswith("__main__"):
            # of an extra that is not installed
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(module.name)
    ours = [
        kind for kind in MESSAGES.values() if kind.__module__.startswith("colonnade.")
    ]
    return [kind for kind in ours if kind not in (Message, Request)]


@functools.cache
def corpus(*, encrypted: bool = True, recorded: bool = True) -> list[bytes]:
    """Frames, in an order that does not depend on anything; `encrypted` adds real
    ciphertexts, which take seconds, and `recorded` those of whole trainings, which take
    longer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        messages = [*(_recorded() if recorded else ()), *_made(encrypted)]
    frames = [
        wire.encode(Envelope("ada", 1 + number, message))
        for number, message in enumerate(messages)
    ]
    return [frame for frame in frames if len(frame) <= LARGEST]


def _recorded() -> Iterator[Message]:
    for algorithm in EVERY.values():
        for settings in [{}, *ALSO.get(module_of(algorithm), [])]:
            toy = federation(
                algorithm,
                lambda parties: Recording(sequential(parties)),
                config=config_for(algorithm, **settings),
            )
            toy.run(1)
            toy.predict()
            yield from _distinct(toy.transport)
    for reveal in ("rows", "count"):
        there = meeting(
            {"clinic": ["a", "b", "c"], "lab": ["c", "a", "d"]},
            AlignmentSettings(reveal=reveal),
        )
        there.align()
        yield from _distinct(there.recording)


def _distinct(recording: Recording) -> Iterator[Message]:
    """The first of each class that each party received."""
    for transcript in recording.transcripts.values():
        yield from {
            type(seen.message): seen.message for seen in reversed(transcript.seen)
        }.values()


def _made(encrypted: bool) -> Iterator[Message]:
    outbox = Outbox("ada", torch.Generator().manual_seed(0))
    keys = [make_keys("plain", use="products")]
    keys += [make_keys(scheme) for scheme in ("ckks", "bfv")] if encrypted else []
    for kind in classes():
        holds = str(kind.hints().values())
        for codec in CODECS if "Released" in holds else CODECS[:1]:
            for key in keys if "Ciphertext" in holds else keys[:1]:
                yield kind(
                    **{
                        name: _value(hint, _maker(outbox, codec, key))
                        for name, hint in kind.hints().items()
                    }
                )


def _maker(outbox: Outbox, codec: Codec, key: SecretKey) -> Callable[[Any], Any]:
    values = torch.randint(-9, 9, (4, 6), generator=outbox.generator).float()

    def make(hint: Any) -> Any:
        outbox.default = Rule(Plain(), codec)
        if hint is Released:
            return outbox.release(values, "values", "train/0/1")
        outbox.default = Rule()
        return outbox.encrypt(values, "values", "train/0/1", key=key)

    return make


def _value(hint: Any, make: Callable[[Any], Any]) -> Any:
    """Something that fits a field's type."""
    origin = get_origin(hint)
    parts = get_args(hint)
    if hint in (Released, Ciphertext):
        return make(hint)
    if origin in (Union, types.UnionType):
        return _value(parts[0], make)
    if origin is tuple:
        return (_value(parts[0], make),) * 2
    if origin is dict:
        return {"ada": _value(parts[1], make), "bob": _value(parts[1], make)}
    return {str: "train/0/1", int: 2, float: 0.5, bool: True, type(None): None}[hint]
