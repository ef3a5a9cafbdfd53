"""How participants are selected: the [selection] table of a federation file, and keywords of `select_here`."""

from __future__ import annotations

from dataclasses import dataclass

from colonnade.core.checks import one_of, whole


@dataclass(frozen=True)
class SelectionSettings:
    """The defaults are the paper's, where it gives any."""

    k: int = whole(default=3)  # neighbours with a query's own label
    queries: int = whole(default=256)  # rows whose neighbours are looked for, drawn at random; at most all
    tests: int = whole(default=10)  # test groups of vf_ps
    scheme: str = one_of("ckks", "bfv", "plain", default="ckks")  # plain encrypts nothing: for tests and debugging
    decryptor: str = one_of("key_server", "participants", default="key_server")  # who sorts; see `learned`
    fagin: bool = True  # False: every row is a candidate of every query
    batching: bool = True  # False: each test group runs by itself
    scaling: str = one_of("standard", "none", default="standard")  # each participant standardises its own columns
    bins: int = whole(default=0, least=0)  # so many quantiles make classes of labels that are numbers
