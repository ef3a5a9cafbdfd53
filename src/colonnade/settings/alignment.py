"""What parties must agree on before they align: [alignment] of a federation file.

What each of them allows the others is in [alignments] of its own party.toml. The rules
by which cells are compared are in `alignment.rules`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from colonnade.errors import ConfigError, did_you_mean
from colonnade.settings.schema import Rule, Table, Texts, Whole, WholeOrZero

Key = tuple[str, ...]
"""The columns of one of the keys by which rows are matched: `alignment.keys`."""

RULE_NAMES = (
    "exact",
    "text",
    "name",
    "email",
    "code",
    "digits",
    "phone",
    "date",
    "date month-first",
)
"""The rules by which cells of a key's column can be compared. "phone +41" is one, too.
"""
PHONE_WITH_PREFIX = re.compile(r"phone \+[1-9]\d{0,3}")


def in_words(key: Key) -> str:
    """A key's columns as people read them: "name + birth_date"."""
    return " + ".join(key)


def why_no_rule(name: Any) -> str:
    """What is wrong with the name of a rule, as the end of a sentence. Empty if nothing
    is."""
    if name in RULE_NAMES:
        return ""
    if isinstance(name, str) and PHONE_WITH_PREFIX.fullmatch(name):
        return ""
    hint = did_you_mean(name, RULE_NAMES) if isinstance(name, str) else ""
    names = ", ".join(RULE_NAMES)
    return f'must be one of {names}, or "phone +41"; found {name!r}{hint}.'


class AlignmentSettings(Table):
    """How common rows are found.

    A party refuses a driver that asks for other `ids` or `learners` than its settings
    say, or to `reveal` more.
    """

    place: ClassVar[str] = "[alignment]"

    ids: Literal["exact", "normalised"] = Field(
        default="exact",
        description=(
            "compare ids as they are, or whatever their Unicode form, case and white"
            " space; also in training and prediction"
        ),
    )
    rules: dict[str, Any] = Field(
        default={},
        description=(
            "by column of a key, how it is compared: exact, text, name, email, code,"
            " digits, phone, date"
        ),
    )
    duplicates: Literal["refuse", "first", "none"] = Field(
        default="refuse",
        description=(
            "where an id, or a value of a key, has several rows: refuse the table, take"
            " the first, or none of them"
        ),
    )
    reveal: Literal["rows", "count"] = Field(
        default="rows", description="which rows are common, or only how many"
    )
    learners: Annotated[Texts, Rule("a list of party names, each once")] = Field(
        default=(), description="the parties that are told; none named: all"
    )
    protocol: Literal["ecdh", "helper", "auto"] = Field(
        default="ecdh",
        description=(
            "who compares: the parties by Diffie-Hellman on a curve; or a helper, by"
            " hashes under the parties' key; `auto`: the helper where one is named and"
            " somebody has more than 100,000 ids"
        ),
    )
    helper: str | None = Field(
        default=None,
        description=(
            "the organisation without data that compares: it learns how many ids each"
            " has and which blinded ids are equal, and could test ids if it colludes"
            " with a party"
        ),
    )

    @field_validator("rules", mode="after")
    @classmethod
    def _check_rules(cls, rules: dict[str, Any]) -> dict[str, Any]:
        for column, rule in rules.items():
            wrong = why_no_rule(rule)
            if wrong:
                raise ValueError(f"[alignment.rules] {column} {wrong}")
        return rules

    @field_validator("learners", mode="after")
    @classmethod
    def _check_learners(cls, learners: tuple[str, ...]) -> tuple[str, ...]:
        if not all(learners) or len(set(learners)) != len(learners):
            raise ValueError
        return learners

    @model_validator(mode="after")
    def _check_helper_fits(self) -> Self:
        if self.helper == "":
            raise ValueError(
                "[alignment] helper must be text, the name of a site; found ''."
            )
        if self.protocol == "helper" and not self.helper:
            raise ValueError(
                '[alignment] protocol = "helper" needs somebody who compares: an'
                " organisation without data that no party controls, as in helper ="
                ' "trust_centre". It learns how many ids each has and which blinded ids'
                " are equal, and could test ids if it colludes with a party; protocol ="
                ' "ecdh" needs nobody.'
            )
        if self.protocol == "ecdh" and self.helper:
            raise ValueError(
                f'[alignment] helper = "{self.helper}" is for protocol = "helper" or'
                ' "auto", and protocol is "ecdh", which needs nobody. Remove one of'
                " them."
            )
        return self

    def rule_for(self, column: str) -> str:
        """The name of the rule by which a column of a key is compared."""
        usual = "text" if self.ids == "normalised" else "exact"
        rule: str = self.rules.get(column, usual)
        return rule

    def check_keys(self, keys: Sequence[Key]) -> None:
        """Raise where rules are for columns of no key, or where several keys could not
        be tried in turn."""
        columns = {name for key in keys for name in key}
        for column in self.rules:
            if column not in columns:
                known = ", ".join(sorted(columns))
                raise ConfigError(
                    f"[alignment.rules] has {column!r}, which is in no key of [data]"
                    f" id; there are {known}."
                )
        if len(keys) > 1 and (self.reveal != "rows" or self.learners):
            raise ConfigError(
                "Several keys in [data] id are tried over the rows that are unmatched,"
                " so all parties must learn which are. Remove reveal and learners from"
                " [alignment], or name one key."
            )

    def check_trains(self) -> None:
        """Raise where training could not keep to the settings: everybody must know the
        common rows."""
        if self.reveal != "rows" or self.learners:
            raise ConfigError(
                '[data] align = "private" lets all parties learn their common rows;'
                " found reveal or learners in [alignment]. Remove them, or run"
                " `colonnade align` first and train on the rows it found."
            )

    def check_helper(self, parties: Collection[str]) -> None:
        """Raise where the helper is one of the parties: they know the key."""
        if self.helper in parties:
            raise ConfigError(
                f"[alignment] helper = {self.helper!r} is a party, who knows the key"
                " and could test the others' ids. Name an organisation that takes no"
                " other part."
            )

    def learners_among(self, parties: tuple[str, ...]) -> tuple[str, ...]:
        """The learners among these parties, in their order."""
        for name in self.learners:
            if name not in parties:
                known = ", ".join(map(repr, parties))
                raise ConfigError(
                    f"[alignment] learners names {name!r}, which is no party here;"
                    f" there are {known}."
                )
        return tuple(
            name for name in parties if name in self.learners or not self.learners
        )


class AllowanceSettings(Table):
    """Between machines: how much of its ids an organisation lets each of the others
    compare with theirs."""

    place: ClassVar[str] = "[alignments]"

    per_day: WholeOrZero = Field(
        default=10,
        description="alignments to train; a run that is resumed aligns anew",
    )
    predicted_per_day: WholeOrZero = Field(
        default=1000, description="ids that are compared to predict them"
    )
    smallest: Whole = Field(
        default=10, description="distinct ids in a list, at least, to train"
    )
    reveal: Literal["rows", "count"] = Field(
        default="rows",
        description="`count`: nobody is told which rows are common, so none train",
    )
