"""What parties must agree on before they align: the [alignment] table of a federation
file. What each of them allows: the [alignments] table of its own party.toml.

A named rule turns the many ways to write a value into one form, by which rows are
compared:

    exact        as it is; whole numbers as their decimal digits
    text         Unicode NFKC, case folded, white space stripped at the ends and made one space inside
    name         text without accents, and with hyphens, dots, commas and apostrophes as spaces: "Müller-Lüthi" and
                 "MULLER LUTHI" are one; "Mueller" is another
    email        text without any space
    code         letters and digits alone, in small letters: "AB-12 3" and "ab123"; zeros in front count
    digits       digits alone, without zeros in front
    phone        digits, with 00 in front as +; "phone +41" gives numbers that begin with one 0 that country's prefix
    date         a day as 1980-12-31, of 1980-12-31, 31.12.1980, 31/12/1980, 31-12-1980, 19801231 or a date; the day
                 comes before the month; "date month-first" takes 12/31/1980

A value that a rule cannot read is counted, and like a gap it matches nothing.
"""

from __future__ import annotations

import operator
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

from colonnade.core.checks import did_you_mean, one_of, whole
from colonnade.errors import ConfigError

Rule = Callable[[Any], str]
APART = re.compile(r"[-‐‑–—.,;'’`´\s]+")
PREFIX = re.compile(r"\+[1-9]\d{0,3}")
DAYS = (
    re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})"),
    re.compile(r"(\d{1,2})[/-](\d{1,2})[/-](\d{4})"),
)
ISO = re.compile(
    r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:[T ].*)?|(\d{4})(\d{2})(\d{2})"
)


def text_of(value: Any) -> str:
    """A cell as text, "" where it is a gap. Whole numbers that a gap in their column
    made floats are whole again."""
    if isinstance(value, str):
        return value.strip()
    if value is None or type(value).__name__ in ("NAType", "NaTType") or value != value:
        return ""
    if isinstance(value, date):
        return (
            value.date().isoformat()
            if isinstance(value, datetime)
            else value.isoformat()
        )
    try:
        return str(operator.index(value))
    except TypeError:
        return (
            str(int(value))
            if isinstance(value, float) and value.is_integer() and abs(value) < 2**53
            else ""
        )


def normalised(text: str) -> str:
    """The same for all forms of a name that differ in Unicode form, case or white
    space."""
    folded = unicodedata.normalize(
        "NFKC", unicodedata.normalize("NFKC", text).casefold()
    )
    return " ".join(folded.split())


def without_accents(text: str) -> str:
    apart = unicodedata.normalize("NFKD", normalised(text))
    bare = "".join(letter for letter in apart if not unicodedata.combining(letter))
    return " ".join(APART.sub(" ", bare).split())


def code(text: str) -> str:
    return "".join(letter for letter in normalised(text) if letter.isalnum())


def digits(text: str) -> str:
    kept = "".join(
        str(unicodedata.digit(letter)) for letter in text if letter.isdigit()
    )
    return kept.lstrip("0") or kept[:1]


def phone(text: str, prefix: str = "") -> str:
    """+41791234567, however it is written. A number without its country gets the
    prefix's."""
    bare = re.sub(r"[^\d+]", "", text.replace("(0)", ""))
    if bare.startswith("00"):
        bare = f"+{bare[2:]}"
    elif bare.startswith("0") and prefix:
        bare = prefix + bare[1:]
    return bare if len(bare) > 4 and "+" not in bare[1:] else ""


def day(text: str, month_first: bool = False) -> str:
    """1980-12-31; "" where it is no day."""
    if (iso := ISO.fullmatch(text)) is not None:
        parts = [int(part) for part in iso.groups() if part is not None]
    elif (
        match := next(filter(None, (form.fullmatch(text) for form in DAYS)), None)
    ) is not None:
        first, second, year = (int(part) for part in match.groups())
        parts = (
            [year, first, second]
            if month_first and "." not in text
            else [year, second, first]
        )
    else:
        return ""
    try:
        return date(*parts).isoformat()
    except ValueError:
        return ""


RULES: dict[str, Callable[[str], str]] = {
    "exact": lambda text: text,
    "text": normalised,
    "name": without_accents,
    "email": lambda text: normalised(text).replace(" ", ""),
    "code": code,
    "digits": digits,
    "phone": phone,
    "date": day,
    "date month-first": lambda text: day(text, month_first=True),
}


def find_rule(name: Any, where: str) -> Rule:
    """The rule of this name; it gives "" for a cell with nothing to compare."""
    word, _, prefix = name.partition(" ") if isinstance(name, str) else ("", "", "")
    if word == "phone" and PREFIX.fullmatch(prefix):
        return lambda value: phone(text_of(value), prefix)
    if not isinstance(name, str) or name not in RULES:
        near = did_you_mean(name, list(RULES)) if isinstance(name, str) else ""
        raise ConfigError(
            f'{where} must be one of {", ".join(RULES)}, or "phone +41"; found'
            f" {name!r}{near}."
        )
    rule = RULES[name]
    return lambda value: rule(text_of(value))


Key = tuple[str, ...]
"""The columns of one of the keys by which rows are matched: `alignment.keys`."""


def in_words(key: Key) -> str:
    return " + ".join(key)


@dataclass(frozen=True)
class AlignmentSettings:
    """A party refuses a driver that asks for other `ids` or `learners` than its
    settings say, or to `reveal` more."""

    # how ids are compared, also to train: `ids.normalised`
    ids: str = one_of("exact", "normalised", default="exact")
    # how a column of a key is compared
    rules: Mapping[str, str] = field(default_factory=dict)
    # of rows with one id: the first, or none
    duplicates: str = one_of("refuse", "first", "none", default="refuse")
    # which rows are common, or only how many
    reveal: str = one_of("rows", "count", default="rows")
    learners: tuple[str, ...] = ()  # the parties that are told; none named: all
    # auto: the helper, if named, above 100,000 ids
    protocol: str = one_of("ecdh", "helper", "auto", default="ecdh")
    # an organisation without data that compares keyed hashes, and learns as `helper`
    # says
    helper: str | None = None

    def __post_init__(self) -> None:
        names = self.learners
        named = isinstance(names, tuple) and all(
            isinstance(name, str) and name for name in names
        )
        if not named or len(set(names)) != len(names):
            raise ConfigError(
                "[alignment] learners must be a list of party names, each once; found"
                f" {names!r}."
            )
        if not isinstance(self.rules, Mapping):
            raise ConfigError(
                '[alignment] rules must be a table, as in phone = "phone"; found'
                f" {self.rules!r}."
            )
        for column, rule in self.rules.items():
            find_rule(rule, f"[alignment.rules] {column}")
        if not isinstance(self.helper, str | None) or self.helper == "":
            raise ConfigError(
                "[alignment] helper must be text, the name of a site; found"
                f" {self.helper!r}."
            )
        if self.protocol == "helper" and not self.helper:
            raise ConfigError(
                '[alignment] protocol = "helper" needs somebody who compares: an'
                " organisation without data that no party controls, as in helper ="
                ' "trust_centre". It learns how many ids each has and which blinded ids'
                " are equal, and could test ids if it colludes with a party; protocol ="
                ' "ecdh" needs nobody.'
            )
        if self.protocol == "ecdh" and self.helper:
            raise ConfigError(
                f'[alignment] helper = "{self.helper}" is for protocol = "helper" or'
                ' "auto", and protocol is "ecdh", which needs nobody. Remove one of'
                " them."
            )

    def rule_for(self, column: str) -> str:
        """The name of the rule by which a column of a key is compared."""
        return self.rules.get(column, "text" if self.ids == "normalised" else "exact")

    def check_keys(self, keys: Sequence[tuple[str, ...]]) -> None:
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


@dataclass(frozen=True)
class AllowanceSettings:
    """Between machines: how much of its ids an organisation lets each of the others
    compare with theirs."""

    # alignments to train; a run that is resumed aligns anew
    per_day: int = whole(default=10, least=0)
    # ids that are compared to predict them
    predicted_per_day: int = whole(default=1000, least=0)
    smallest: int = whole(default=10)  # distinct ids in a list, at least, to train
    # "count": nobody is told which are common: none train
    reveal: str = one_of("rows", "count", default="rows")
