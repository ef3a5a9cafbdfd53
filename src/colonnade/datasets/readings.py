"""Text that means numbers or times: which format a column has, and what its cells mean.

    "1,234.56"  "1.234,56"  "1 234,56"  "1'234.56"  "€ 5"  "12 %"    numbers
    "2024-01-31"  "31.01.2024 14:05"  "31.01.24"                     times, as days since 1970

A column has one format, the one that most of its cells fit. It is read so where at
least `ENOUGH` of the cells fit that are no gaps. The odd words among them (`">20"`)
become gaps, and their owner is told which they are (`odd_words`). With fewer cells that
fit, the column stays categories.

A trained model keeps the format's name, and new rows are read in the same format.

To add a format, add it to `NUMBER_FORMATS` or `TIME_FORMATS`. For another kind of
column, write a class with the methods of `Format` and add its formats to `FORMATS`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from colonnade.first_use import pandas as pd

ENOUGH = 0.8
"""The share of a column's cells, gaps left aside, that must fit a format."""

MONEY = "€$£¥₹"
SPACES = " \u00a0\u2009\u202f"
"""A space, and the no-break, thin and narrow no-break spaces that French numbers have."""
APOSTROPHES = "'’"

LAST_TWO_DIGIT_YEAR = 2029
"""A year of two digits is one from 1930 to 2029, as spreadsheets have it."""


class Format(Protocol):
    """One way in which the cells of a column may be written."""

    @property
    def name(self) -> str:
        """The name under which a trained model keeps the format."""

    def values(self, words: Sequence[str]) -> NDArray[np.float64]:
        """What each word means; NaN for a word that is not written in this format."""

    def described(self) -> dict[str, Any]:
        """How to read the format, as plain values for programs without this module."""


@dataclass(frozen=True)
class NumberFormat:
    """Numbers with one decimal sign and one kind of sign between thousands.

    Thousands are groups of three digits, counted from the right, after a first group of
    one to three. A number may have a sign, an exponent, and a sign of money or per cent
    at its ends. Digits after a leading zero, as in "007", are no number but a code.
    """

    name: str
    decimal: str = "."
    # the characters of which any may stand between thousands; "" where none may
    thousands: str = ""

    @cached_property
    def pattern(self) -> str:
        """A regular expression with the groups `sign` and `number`."""
        whole = "(?:0|[1-9][0-9]*)"
        if self.thousands:
            grouped = f"[1-9][0-9]{{0,2}}(?:[{self.thousands}][0-9]{{3}})+"
            whole = f"(?:{grouped}|{whole})"
        point = re.escape(self.decimal)
        digits = f"(?:{whole}(?:{point}[0-9]*)?|{point}[0-9]+)"
        number = f"(?P<number>{digits}(?:[eE][+-]?[0-9]+)?)"
        before = rf"[{MONEY}]?\s*(?P<sign>[+-]?)\s*[{MONEY}]?\s*"
        after = rf"\s*[{MONEY}%]?"
        return before + number + after

    @cached_property
    def _match(self) -> Any:
        return re.compile(self.pattern).fullmatch

    @cached_property
    def _as_python_writes(self) -> Any:
        """A table for `str.translate`, so that `float` can read the number."""
        return str.maketrans(self.decimal, ".", self.thousands)

    def value(self, word: str) -> float:
        """The number that a word means; NaN where it is not written in this format."""
        found = self._match(word)
        if found is None:
            return float("nan")
        number = found["number"].translate(self._as_python_writes)
        return float(found["sign"] + number)

    def values(self, words: Sequence[str]) -> NDArray[np.float64]:
        return np.array([self.value(word) for word in words], dtype=np.float64)

    def described(self) -> dict[str, Any]:
        return {
            "way": self.name,
            "pattern": self.pattern,
            "thousands": self.thousands,
            "decimal": self.decimal,
        }


@dataclass(frozen=True)
class TimeFormat:
    """Dates, or dates with a time of day, as days since the first day of 1970.

    `patterns` are those of `strptime`, or "ISO8601", and are tried in turn for each
    word: a column may have dates with and without a time of day.
    """

    name: str
    patterns: tuple[str, ...]

    def values(self, words: Sequence[str]) -> NDArray[np.float64]:
        days = np.full(len(words), np.nan)
        for pattern in self.patterns:
            unread = [int(place) for place in np.flatnonzero(np.isnan(days))]
            if pattern == "ISO8601":
                # pandas would take a bare year, which is a number
                unread = [at for at in unread if ISO_DATE.fullmatch(words[at])]
            if unread:
                days[unread] = _days([words[at] for at in unread], pattern)
        return days

    def described(self) -> dict[str, Any]:
        return {
            "way": self.name,
            "formats": list(self.patterns),
            "last_two_digit_year": LAST_TWO_DIGIT_YEAR,
        }


NUMBER_FORMATS = (
    NumberFormat("numbers"),
    NumberFormat("numbers with a comma at thousands", thousands=","),
    NumberFormat("numbers with a decimal comma", ",", "."),
    NumberFormat("numbers with spaces at thousands", ".", SPACES),
    NumberFormat("numbers with spaces at thousands and a decimal comma", ",", SPACES),
    NumberFormat("numbers with apostrophes at thousands", ".", APOSTROPHES),
    NumberFormat(
        "numbers with apostrophes at thousands and a decimal comma", ",", APOSTROPHES
    ),
)
"""Where several fit a column equally well, the first of them is taken."""


def _with_time_of_day(*dates: str) -> tuple[str, ...]:
    """These dates, also with hours and minutes, and with seconds."""
    return tuple(date + time for time in ("", " %H:%M", " %H:%M:%S") for date in dates)


TIME_FORMATS = (
    TimeFormat("times (year-month-day)", ("ISO8601",)),
    TimeFormat("times (year/month/day)", _with_time_of_day("%Y/%m/%d")),
    TimeFormat("times (day.month.year)", _with_time_of_day("%d.%m.%Y", "%d.%m.%y")),
    TimeFormat("times (day/month/year)", _with_time_of_day("%d/%m/%Y", "%d/%m/%y")),
    TimeFormat("times (month/day/year)", _with_time_of_day("%m/%d/%Y", "%m/%d/%y")),
    TimeFormat("times (day-month-year)", _with_time_of_day("%d-%m-%Y", "%d-%m-%y")),
    TimeFormat(
        "times (day month name year)",
        ("%d-%b-%Y", "%d %b %Y", "%d %B %Y", "%d-%b-%y", "%d %b %y"),
    ),
    TimeFormat("times (month name day, year)", ("%b %d, %Y", "%B %d, %Y")),
)
"""Where day and month cannot be told apart, the day comes first."""

FORMATS: Mapping[str, Format] = {
    known.name: known for known in (*NUMBER_FORMATS, *TIME_FORMATS)
}
NUMBERS = frozenset(known.name for known in NUMBER_FORMATS)
OF_TYPE = "times"
"""The way of a column whose cells are times already, and no text."""

ISO_DATE = re.compile(
    r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?"
)

UNSAID = frozenset(("", "na", "n/a", "#n/a", "nan", "nat", "null", "none", "<na>"))
"""Words, in small letters, that every reader of files takes for a gap."""
GAP_WORDS = UNSAID | frozenset(
    (
        *("?", "-", "--", ".", "..", "*", "nil"),
        *("missing", "unknown", "unk", "keine angabe", "unbekannt"),
        *("inconnu", "desconocido"),
    )
)
"""Words for a gap in a column of numbers or times, in small letters."""
GAP_LETTERS = frozenset(("na", "ka", "so", "nd", "sd", "nc"))
"""Abbreviations for a gap, which may have dots, slashes and spaces between letters:
n.a., k.A. (German: no answer), s.o., n.d., s/d (Spanish: no data), nc (French)."""
LONGEST_ABBREVIATION = len("n . a .")
LONGEST_GAP_WORD = 2 * max(map(len, GAP_WORDS))  # with spaces between letters
MAY_BE_CLASSES = frozenset(("-", "--", ".", "..", "*", "none", "nil", "ka"))
"""Of the words for a gap, those that may name a class where a label's cells are words."""
LETTERS_OF_CLASSES = frozenset(("so", "nd", "sd", "nc"))
"""Of the abbreviations, those that may name a class, such as ND for North Dakota."""


def is_gap(word: str) -> bool:
    """Whether a word stands for a gap among numbers or times."""
    if len(word) > LONGEST_GAP_WORD or word[:1].isdigit():
        return False
    plain = " ".join(word.casefold().split())
    if plain in GAP_WORDS:
        return True
    return len(plain) <= LONGEST_ABBREVIATION and _letters(plain) in GAP_LETTERS


def is_gap_of_label(word: str) -> bool:
    """Whether a word stands for a gap in a label whose other cells are words."""
    plain = word.strip().casefold()
    may_be_class = plain in MAY_BE_CLASSES or _letters(plain) in LETTERS_OF_CLASSES
    return is_gap(word) and not may_be_class


def _letters(word: str) -> str:
    """A word without dots, slashes and spaces."""
    return re.sub(r"[./\s]", "", word)


MOST_TOLD = 10


@dataclass(frozen=True)
class OddWords:
    """The words that are no numbers in a column that is numbers, and are read as gaps.

    Empty cells and words such as NA, which every reader takes for gaps, are not among
    them. Odd words are cells of the owner's table: show them to the owner alone.

    Attributes:
        counts: The cells of each of the most frequent odd words, the most frequent first.
        others: The cells with any other odd word.
    """

    counts: Mapping[str, int]
    others: int = 0

    @classmethod
    def among(cls, counts: Mapping[str, int]) -> OddWords:
        """The most frequent of these words; the rest are only counted."""
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        others = sum(count for _, count in ranked[MOST_TOLD:])
        return cls(dict(ranked[:MOST_TOLD]), others)

    @property
    def cells(self) -> int:
        """How many cells hold an odd word."""
        return sum(self.counts.values()) + self.others

    def __bool__(self) -> bool:
        return self.cells > 0

    def __str__(self) -> str:
        """`"k.A." 602, ">20" 8`: quoted as JSON, so that no cell breaks a line."""
        told = [f"{_quoted(word)} {count:,}" for word, count in self.counts.items()]
        if self.others:
            told.append(f"{self.others:,} other cells")
        return ", ".join(told)

    def without(self, known: Iterable[str]) -> OddWords:
        """The odd words but those known already."""
        unknown = {
            word: count for word, count in self.counts.items() if word not in known
        }
        return OddWords(unknown, self.others)

    def state(self) -> dict[str, Any]:
        """The odd words as JSON-able values."""
        return {"counts": dict(self.counts), "others": self.others}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> OddWords:
        """The odd words that `state()` described."""
        counts = {str(word): int(count) for word, count in state["counts"].items()}
        return cls(counts, int(state["others"]))


def _quoted(word: str) -> str:
    shown = word if len(word) <= 40 else word[:39] + "…"
    return json.dumps(shown, ensure_ascii=False)


def recognise(cells: pd.Series[Any], share: float = ENOUGH) -> str | None:
    """The name of the format in which a column's text is read as numbers or times.

    Args:
        cells: The column: text, mixed cells, or times.
        share: How many of the cells that are no gaps must fit, from 0 to 1.

    Returns:
        The format that most cells fit. None where too few fit any, where all cells are
        gaps, and where the cells are codes, such as "007" or an address.
    """
    if pd.api.types.is_datetime64_any_dtype(cells.dtype):
        return OF_TYPE
    counts = _without_gaps(_counted(cells))
    name = _best_fitting(counts, share)
    if name in NUMBERS and _look_like_codes(counts):
        return None
    return name


def are_codes(cells: pd.Series[Any]) -> bool:
    """Whether a column's text looks like numbers and names something instead: postcodes
    with zeros in front, network addresses, versions, telephone numbers."""
    counts = _without_gaps(_counted(cells))
    return bool(counts) and _look_like_codes(counts)


def is_all_gaps(cells: pd.Series[Any]) -> bool:
    """Whether all cells of a column of text are gaps, or words for gaps."""
    return all(is_gap(word) for word in _counted(cells))


def odd_words(column: pd.Series[Any], way: str | None = None) -> OddWords:
    """The words that are no numbers, in a column that is numbers or times.

    Args:
        column: The column as its owner has it.
        way: The format in which it is read; by default the one that is recognised. A
            column without one is categories, and has no odd words.
    """
    way = way or recognise(column)
    if way is None or way not in FORMATS or not is_text(column):
        return OddWords({})
    counts = _counted(column)
    values = FORMATS[way].values(list(counts))
    is_odd = dict(zip(counts, np.isnan(values).tolist(), strict=True))
    return OddWords.among(
        {
            word: count
            for word, count in counts.items()
            if is_odd[word] and word.casefold() not in UNSAID
        }
    )


def read(cells: pd.Series[Any], way: str) -> NDArray[np.float64]:
    """The cells as numbers, read in the format of this name.

    Gaps and cells that do not fit are NaN. Cells that are numbers or times already stay
    what they are; a column that held times in training may be text now.
    """
    if pd.api.types.is_datetime64_any_dtype(cells.dtype):
        return since_1970(cells)
    if pd.api.types.is_numeric_dtype(cells.dtype):
        return np.asarray(cells.to_numpy(dtype=np.float64, na_value=np.nan))
    if way == OF_TYPE:
        way = recognise(cells) or OF_TYPE
    stripped = cells.astype(object).map(_stripped, na_action="ignore")
    places, words = pd.factorize(stripped)
    texts = [str(word) for word in words]
    values = np.full(len(texts), np.nan)
    if way in FORMATS:
        values = FORMATS[way].values(texts)
    return np.append(values, np.nan)[places]  # the place of a gap is -1, the last


def described(way: str) -> dict[str, Any]:
    """How a column is read in this format, as plain values.

    For programs without this module. Numbers have a `pattern` whose group `number` is
    read without its `thousands` and with this `decimal` sign. Times have `formats` of
    strptime, or "ISO8601"; no formats where they are times already. What does not fit
    is a gap.
    """
    if way == OF_TYPE:
        return {"way": way, "formats": []}
    return FORMATS[way].described()


def read_times(cells: Any) -> NDArray[np.float64] | None:
    """Times or numbers, as numbers in the order of time; None if the cells are neither."""
    series = pd.Series(cells)
    if pd.api.types.is_bool_dtype(series.dtype):
        return None
    if pd.api.types.is_numeric_dtype(series.dtype):
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    way = recognise(series)
    return None if way is None else read(series, way)


def since_1970(times: pd.Series[Any]) -> NDArray[np.float64]:
    """Times as days since the first day of 1970, in UTC."""
    if times.dt.tz is not None:
        times = times.dt.tz_convert("UTC").dt.tz_localize(None)
    days = (times - pd.Timestamp(0)) / pd.Timedelta(days=1)
    return np.asarray(days, dtype=np.float64)


def _days(words: Sequence[str], pattern: str) -> NDArray[np.float64]:
    """Days since 1970 of words that are written by one pattern; else NaN."""
    text = pd.Series(words, dtype=object)
    times = pd.to_datetime(text, format=pattern, errors="coerce", utc=True)
    if "%y" in pattern:
        is_later = times.dt.year > LAST_TWO_DIGIT_YEAR
        times = times.mask(is_later, times - pd.DateOffset(years=100))
    return since_1970(times)


def is_text(cells: pd.Series[Any]) -> bool:
    """Whether a column's cells are neither numbers nor times by their type."""
    is_time = pd.api.types.is_datetime64_any_dtype(cells.dtype)
    return not is_time and not pd.api.types.is_numeric_dtype(cells.dtype)


def _stripped(cell: Any) -> str:
    return str(cell).strip()


def _counted(cells: pd.Series[Any]) -> dict[str, int]:
    """How many cells hold each word; gaps of the column's type are left out."""
    counts = Counter[str]()
    for cell, count in cells.value_counts().items():
        if count:  # a category may have no cells
            counts[_stripped(cell)] += int(count)
    return counts


def _without_gaps(counts: Mapping[str, int]) -> dict[str, int]:
    return {word: count for word, count in counts.items() if not is_gap(word)}


SAMPLE = 400
SURELY_TOO_FEW = 0.5
"""Of a sample, the share of cells below which no column is read as numbers or times."""


def _best_fitting(counts: Mapping[str, int], share: float) -> str | None:
    """The format that most cells fit, if this share of them does; of equals the first.

    Few formats fit a column, and columns may be long: a sample rules the others out.
    """
    sample = _sample(counts, SAMPLE)
    best = None
    best_share = 0.0
    for name, known in FORMATS.items():
        if _fitting_share(known, sample) < SURELY_TOO_FEW * share:
            continue
        fitting = _fitting_share(known, counts)
        if fitting == 1.0:
            return name
        if fitting >= share and fitting > best_share:
            best = name
            best_share = fitting
    return best


def _fitting_share(known: Format, counts: Mapping[str, int]) -> float:
    """The share of the cells with these words that fit a format."""
    if not counts:
        return 0.0
    cells = np.array(list(counts.values()))
    fits = ~np.isnan(known.values(list(counts)))
    return float(cells[fits].sum() / cells.sum())


def _sample(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """The most frequent words with their cells, and some of the others in the place of
    all of them, so that shares of cells are about those of the column."""
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    frequent = ranked[:size]
    others = ranked[size:]
    step = max(1, len(others) // size)
    return dict(frequent) | {word: count * step for word, count in others[::step]}


@dataclass(frozen=True)
class CodeForm:
    """Digits that name something, and are no quantity.

    A column holds such codes where nearly all its cells have the form `like`, which
    numbers may have, too, and more than a few have the form `surely`, which they don't.
    """

    name: str
    like: re.Pattern[str]
    surely: re.Pattern[str]

    def fits(self, counts: Mapping[str, int]) -> bool:
        """Whether a column with these words holds such codes."""
        cells = sum(counts.values())
        if _matching_cells(self.like, counts) < ENOUGH * cells:
            return False
        return _matching_cells(self.surely, counts) > SURE_CODES * cells


SURE_CODES = 0.01
"""In a column of whole numbers, a share of cells such as "007" above this one says that
all are codes. Below, they are slips of the pen."""

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_ADDRESS = re.compile(rf"{_BYTE}(?:\.{_BYTE}){{3}}")
_GROUPED = r"[0-9]{1,3}(?:\.[0-9]{3})+"

CODE_FORMS = (
    CodeForm("codes with zeros in front", re.compile("[0-9]+"), re.compile("0[0-9]+")),
    CodeForm("network addresses", _ADDRESS, _ADDRESS),
    CodeForm(
        "versions",
        re.compile(r"[0-9]+(?:\.[0-9]+)+"),
        re.compile(rf"(?!{_GROUPED}$)[0-9]+(?:\.[0-9]+){{2,}}"),
    ),
    CodeForm(
        "telephone numbers",
        re.compile(r"\+?[0-9][0-9 ()/.\u00a0-]{6,}"),
        re.compile(r"(?:\+[0-9]|0[0-9])[0-9 ()/\u00a0-]{6,}"),
    ),
)


MANY_WORDS = 5_000


def _look_like_codes(counts: Mapping[str, int]) -> bool:
    """Whether words have one of the forms of codes; of many, a sample is looked at."""
    sample = _sample(counts, MANY_WORDS)
    return any(form.fits(sample) for form in CODE_FORMS)


def _matching_cells(form: re.Pattern[str], counts: Mapping[str, int]) -> int:
    """How many cells have a word of this form."""
    return sum(count for word, count in counts.items() if form.fullmatch(word))
