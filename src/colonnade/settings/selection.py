"""How participants are selected: the [selection] table of a federation file, and
keywords of `select_here`.

In how many selections an organisation takes part is in [selections] of its own
party.toml.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from colonnade.errors import ConfigError
from colonnade.settings.schema import NotNegative, Table, Whole, WholeOrZero

SERVER = "aggregation_server"
"""The party without data that adds up label owners' weights, and ciphertexts in a
selection."""
KEYS = "key_server"
"""The party without data that decrypts sums in a selection."""
BINS = 4
"""Quantiles that make classes of a label that is a number, unless Kraskov's estimator
is asked for: with classes only ranks travel, and with Kraskov the label owner must read
distances."""


class SelectionSettings(Table):
    """How participants are compared. The defaults are the paper's, where it has any."""

    place: ClassVar[str] = "[selection]"

    k: Whole = Field(
        default=3, description="neighbours: for classes, with a query's own label"
    )
    queries: Whole = Field(
        default=256,
        description=(
            "rows whose neighbours are looked for, drawn at random; at most all"
        ),
    )
    tests: WholeOrZero = Field(
        default=0,
        description=(
            "test groups of vf_ps; 0: the paper's 10, or twice the participants"
        ),
    )
    scheme: Literal["ckks", "bfv", "plain"] = Field(
        default="ckks",
        description="of encryption; `plain` encrypts nothing: for tests and debugging",
    )
    estimator: Literal["auto", "ross", "kraskov"] = Field(
        default="auto", description="Ross for classes, Kraskov for numbers"
    )
    decryptor: Literal["auto", "key_server", "participants", "leader"] = Field(
        default="auto",
        description=(
            "who reads sums of distances; `auto`: the key server, or with Kraskov's"
            " estimate the label owner"
        ),
    )
    fagin: bool = Field(
        default=True,
        description=(
            "look at few candidates by Fagin's algorithm; `false`: at all rows, as"
            " always where the label owner reads sums"
        ),
    )
    batching: bool = Field(
        default=True,
        description="all test groups in one pass; `false`: one after the other",
    )
    scaling: Literal["standard", "none"] = Field(
        default="standard",
        description="each participant standardises its own columns",
    )
    bins: WholeOrZero = Field(
        default=0,
        description="so many quantiles make classes of labels that are numbers",
    )
    least_difference: NotNegative = Field(
        default=0.0,
        description=(
            "in nats: a participant counts as better from this difference on, and never"
            " below what queries and groups can tell apart"
        ),
    )
    servers: bool = Field(
        default=False,
        description=(
            "between machines: `aggregation_server` and `key_server` have sites of"
            " their own, so that there can be a selection"
        ),
    )

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
        usual_bins = BINS if task == "regression" else 0
        return self.changed(estimator="ross", bins=self.bins or usual_bins)

    @property
    def reads(self) -> str:
        """The kind of party that decrypts. It follows from the settings that all agreed
        to, whatever the labels are: a leader decrypts only where the file says so."""
        needed = "leader" if self.estimator == "kraskov" else "key_server"
        return needed if self.decryptor == "auto" else self.decryptor

    def settled(self, *, numbers: bool) -> SelectionSettings:
        """The settings without "auto", by whether labels are numbers.

        Ross's estimate needs ranks, for which a key server sorts. Kraskov's compares
        distances with those of labels, so the leader must read sums of them.
        """
        fitting = "kraskov" if numbers and not self.bins else "ross"
        estimator = fitting if self.estimator == "auto" else self.estimator
        if estimator == "kraskov" and self.bins:
            raise ConfigError(
                'bins makes classes of labels, and estimator = "kraskov" is for'
                f" numbers; found bins = {self.bins}. Leave one of them out."
            )
        decryptor = self.changed(estimator=estimator).reads
        if estimator == "kraskov" and decryptor != "leader":
            raise ConfigError(
                "Labels that are numbers are compared with distances (Kraskov's"
                " estimate), which the leader must decrypt for that; found decryptor ="
                f' "{decryptor}". Set decryptor = "leader"; or set bins, for example'
                " bins"
                " = 4, to take quantiles as classes, for which ranks are enough."
            )
        return self.changed(estimator=estimator, decryptor=decryptor)


class SelectionAllowance(Table):
    """Between machines: how much an organisation lets each label owner learn of its
    columns before anybody trains.

    An organisation without such a table takes part in no selection.
    """

    place: ClassVar[str] = "[selections]"

    per_day: WholeOrZero = Field(
        default=1, description="selections that each label owner may make in a day"
    )
    queries: Whole = Field(
        default=256, description="rows whose neighbours it ranks in one selection"
    )
