"""The rules by which cells are compared when rows are matched: [alignment.rules].

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
from collections.abc import Callable
from datetime import date, datetime
from typing import Any

from colonnade.errors import ConfigError
from colonnade.settings.alignment import RULE_NAMES, why_no_rule

Rule = Callable[[Any], str]
APART = re.compile(r"[-‐‑–—.,;'’`´\s]+")
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
assert tuple(RULES) == RULE_NAMES


def find_rule(name: str, where: str) -> Rule:
    """The rule of this name. It gives "" for a cell with nothing to compare."""
    wrong = why_no_rule(name)
    if wrong:
        raise ConfigError(f"{where} {wrong}")
    if name in RULES:
        rule = RULES[name]
        return lambda value: rule(text_of(value))
    prefix = name.removeprefix("phone ")
    return lambda value: phone(text_of(value), prefix)
