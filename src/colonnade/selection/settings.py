"""How participants are selected: the [selection] table of a federation file, and
keywords of `select_here`. In how many selections an organisation takes part: the
[selections] table of its own party.toml."""

from __future__ import annotations

from dataclasses import dataclass, replace

from colonnade.core.checks import not_negative, one_of, whole
from colonnade.errors import ConfigError

SERVER = "aggregation_server"
KEYS = "key_server"
"""The party that adds up the label owners' weights, and ciphertexts in a selection; and
the party that decrypts sums in a selection. Neither holds data, so they have no tables
of their own in a file."""
BINS = 4
"""Quantiles that make classes of a label that is a number, unless Kraskov's estimator
is asked for: with classes only ranks travel, and with Kraskov the label owner must read
distances."""


@dataclass(frozen=True)
class SelectionSettings:
    """The defaults are the paper's, where it gives any."""

    k: int = whole(default=3)  # neighbours: for classes, with a query's own label
    # rows whose neighbours are looked for, drawn at random; at most all
    queries: int = whole(default=256)
    # test groups of vf_ps; 0: the paper's 10, or twice the participants
    tests: int = whole(default=0, least=0)
    # plain encrypts nothing: for tests and debugging
    scheme: str = one_of("ckks", "bfv", "plain", default="ckks")
    # Ross for classes, Kraskov for numbers
    estimator: str = one_of("auto", "ross", "kraskov", default="auto")
    # who reads sums: `learned`
    decryptor: str = one_of(
        "auto", "key_server", "participants", "leader", default="auto"
    )
    # False: every row is a candidate of every query, as they always are where the
    # leader decrypts
    fagin: bool = True
    batching: bool = True  # False: each test group runs by itself
    # each participant standardises its own columns
    scaling: str = one_of("standard", "none", default="standard")
    # so many quantiles make classes of labels that are numbers
    bins: int = whole(default=0, least=0)
    # in nats: a participant counts as better from this difference on, and never below
    # what queries and groups can tell apart
    least_difference: float = not_negative(default=0.0)
    # between machines: aggregation_server and key_server have sites, so there can be a
    # selection
    servers: bool = False

    def for_task(self, task: str, owner: str) -> SelectionSettings:
        """The settings for a kind of label: numbers are cut into classes, unless
        Kraskov's estimator is asked for."""
        if task == "classification" and (self.bins or self.estimator == "kraskov"):
            raise ConfigError(
                f"The label of '{owner}' is a class, and bins and estimator ="
                ' "kraskov" are for numbers. Leave them out, or set task ='
                ' "regression" in [data].'
            )
        if self.estimator != "auto":
            return self
        return replace(
            self,
            estimator="ross",
            bins=self.bins or (BINS if task == "regression" else 0),
        )

    @property
    def reads(self) -> str:
        """The kind of party that decrypts. It follows from the settings that all agreed
        to, whatever the labels are: a leader decrypts only where the file says so."""
        needed = "leader" if self.estimator == "kraskov" else "key_server"
        return needed if self.decryptor == "auto" else self.decryptor

    def settled(self, *, numbers: bool) -> SelectionSettings:
        """The settings without "auto", by whether labels are numbers. Ross's estimate
        needs ranks, for which a key server sorts; Kraskov's compares distances with
        those of labels, so the leader must read sums of them."""
        fitting = "kraskov" if numbers and not self.bins else "ross"
        estimator = fitting if self.estimator == "auto" else self.estimator
        if estimator == "kraskov" and self.bins:
            raise ConfigError(
                'bins makes classes of labels, and estimator = "kraskov" is for'
                f" numbers; found bins = {self.bins}. Leave one of them out."
            )
        decryptor = replace(self, estimator=estimator).reads
        if estimator == "kraskov" and decryptor != "leader":
            raise ConfigError(
                "Labels that are numbers are compared with distances (Kraskov's"
                " estimate), which the leader must "
                f'decrypt for that; found decryptor = "{decryptor}". Set decryptor ='
                ' "leader"; or set bins, for '
                "example bins = 4, to take quantiles as classes, for which ranks are"
                " enough."
            )
        return replace(self, estimator=estimator, decryptor=decryptor)


@dataclass(frozen=True)
class SelectionAllowance:
    """Between machines: how much an organisation lets each label owner learn of its
    columns before anybody trains. An organisation without such a table takes part in no
    selection."""

    per_day: int = whole(default=1, least=0)  # selections
    queries: int = whole(default=256)  # in one of them: rows whose neighbours it ranks
