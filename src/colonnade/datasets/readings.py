"""Text that means numbers or times, recognised by all cells of a column together.

    "1,234"  "€ 5"  "12 %"  "3,5"  "?"       numbers, with or without a sign of money, and gaps written as words
    "2024-01-31"  "31.01.2024 14:05"         times, as days since the first day of 1970

A column is read so only where every cell that is no gap fits the same way; with a word
such as "high" among numbers, the whole column stays categories, and a warning says so.
The way of training is kept by its name, so that new rows are read the same way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.first_use import pandas as pd

GAP_WORDS = frozenset(
    (
        "",
        "?",
        "-",
        "--",
        ".",
        "..",
        "*",
        "na",
        "n/a",
        "n.a.",
        "nan",
        "null",
        "none",
        "nil",
        "missing",
        "unknown",
        "unk",
    )
)
"""Words for a gap in a column of numbers or times, in small letters."""
CLASS_WORDS = frozenset(("-", "--", ".", "..", "*", "none", "nil"))
"""Those of them that may name a class, where the other cells of a label are words."""

MONEY = "€$£¥₹"
NUMBERS = {
    "numbers": (
        r"[+-]?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|[+-]?\.\d+|[+-]?(0|[1-9]\d*)\."
    ),
    "numbers with a comma at thousands": (
        r"[+-]?([1-9]\d{0,2}(,\d{3})+|0|[1-9]\d*)(\.\d+)?"
    ),
    "numbers with a decimal comma": (
        r"[+-]?(([1-9]\d{0,2}(\.\d{3})+|0|[1-9]\d*)(,\d+)?)"
    ),
    "numbers with spaces at thousands": (
        r"[+-]?([1-9]\d{0,2}([ '\u00a0\u202f]\d{3})+|0|[1-9]\d*)([.,]\d+)?"
    ),
}
TIMES = {
    "times (year-month-day)": ("ISO8601",),
    "times (year/month/day)": ("%Y/%m/%d", "%Y/%m/%d %H:%M", "%Y/%m/%d %H:%M:%S"),
    "times (day.month.year)": ("%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S"),
    "times (day/month/year)": ("%d/%m/%Y", "%d/%m/%Y %H:%M", "%d/%m/%Y %H:%M:%S"),
    "times (month/day/year)": ("%m/%d/%Y", "%m/%d/%Y %H:%M", "%m/%d/%Y %H:%M:%S"),
    "times (day-month-year)": ("%d-%m-%Y", "%d-%m-%Y %H:%M", "%d-%m-%Y %H:%M:%S"),
    "times (day month name year)": ("%d-%b-%Y", "%d %b %Y", "%d %B %Y", "%d-%b-%y"),
    "times (month name day, year)": ("%b %d, %Y", "%B %d, %Y"),
}
DROPPED = {
    "numbers with a comma at thousands": ",",
    "numbers with a decimal comma": ".",
    "numbers with spaces at thousands": " '\u00a0\u202f",
}
"""Signs between thousands."""
OF_TYPE = "times"
"""The way of a column that holds times already, and no text."""
ISO = re.compile(
    r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?"
)
LOOKS_LIKE_TIME = re.compile(
    r"\d{1,4}[-/. ]?(\d{1,2}|[A-Za-z]{3,9})[-/. ]\d{2,4}|[A-Za-z]{3,9} \d{1,2}, \d{4}"
)
DAY = 86_400.0


def recognise(cells: pd.Series[Any]) -> str | None:
    """The way in which all these cells, text or times, can be read as numbers; None if
    there is none."""
    if pd.api.types.is_datetime64_any_dtype(cells.dtype):
        return OF_TYPE
    stripped = (str(cell).strip() for cell in cells.dropna().unique())
    words = [word for word in stripped if word.lower() not in GAP_WORDS]
    if not words:
        return None
    for way, pattern in NUMBERS.items():
        fits = re.compile(pattern).fullmatch
        if all(fits(_bare(word)) for word in words):
            return way
    if LOOKS_LIKE_TIME.match(words[0]) is None:
        return None
    return next((way for way in TIMES if not np.isnan(_days(words, way)).any()), None)


def read(cells: pd.Series[Any], way: str) -> NDArray[np.float64]:
    """The cells as numbers, read in this way; gaps and cells that do not fit are NaN. A
    column that held times in training may be text now."""
    if pd.api.types.is_datetime64_any_dtype(cells.dtype):
        return since_1970(cells)
    if pd.api.types.is_numeric_dtype(cells.dtype):
        return np.asarray(cells.to_numpy(dtype=np.float64, na_value=np.nan))
    way = (recognise(cells) or OF_TYPE) if way == OF_TYPE else way
    places, words = pd.factorize(
        cells.astype(object).map(lambda cell: str(cell).strip(), na_action="ignore")
    )
    texts = [str(word) for word in words]
    values = np.full(len(texts), np.nan)
    if way in TIMES:
        values = _days(texts, way)
    elif way in NUMBERS:
        values = np.array([_number(word, way) for word in texts], dtype=np.float64)
    return np.append(values, np.nan)[places]  # the place of a gap is -1, the last


def described(way: str) -> dict[str, Any]:
    """How cells are read in a way, for programs without this module: as days since the
    first day of 1970 by one of `formats` ("ISO8601", which is none of strptime's; no
    formats: as they are), or as numbers without the characters to `drop` and with this
    `decimal` sign."""
    facts = {"way": way, "gaps": sorted(GAP_WORDS)}
    if way == OF_TYPE or way in TIMES:
        return facts | {"formats": list(TIMES.get(way, ()))}
    drop = "".join(dict.fromkeys(MONEY + "% \u00a0" + DROPPED.get(way, "")))
    return facts | {
        "drop": drop,
        "decimal": (
            "." if way in ("numbers", "numbers with a comma at thousands") else ","
        ),
    }


def read_times(cells: Any) -> NDArray[np.float64] | None:
    """Times or numbers, as numbers in the order of time; None if the cells are neither."""
    series = pd.Series(cells)
    if pd.api.types.is_bool_dtype(series.dtype):
        return None
    if pd.api.types.is_numeric_dtype(series.dtype):
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    way = recognise(series)
    return None if way is None else read(series, way)


def cells_no_numbers(cells: pd.Series[Any]) -> int:
    """How many cells keep a column from being numbers; 0 where many are no numbers
    anyway."""
    counts = Counter[str]()
    for cell, count in cells.value_counts().items():
        if count:  # a category may have no cells
            counts[str(cell).strip()] += int(count)
    fits = re.compile(NUMBERS["numbers"]).fullmatch
    odd = sum(
        count
        for word, count in counts.items()
        if word.lower() not in GAP_WORDS and not fits(word)
    )
    return odd if 0 < odd <= 0.2 * counts.total() and len(counts) > 2 else 0


def _bare(word: str) -> str:
    """The word without a sign of money or a per cent sign at either end."""
    sign, unsigned = (
        (word[0], word[1:].lstrip()) if word[:1] in ("+", "-") else ("", word)
    )
    return sign + unsigned.strip(MONEY + "% \u00a0").strip()


def _number(word: str, way: str) -> float:
    bare = _bare(word)
    if re.fullmatch(NUMBERS[way], bare) is None:
        return float("nan")
    for between in DROPPED.get(way, ""):
        bare = bare.replace(between, "")
    return float(bare.replace(",", "."))


def _days(words: Sequence[str], way: str) -> NDArray[np.float64]:
    """Days since the first day of 1970; what does not fit is NaN."""
    days = np.full(len(words), np.nan)
    for form in TIMES[way]:
        unread = [int(at) for at in np.flatnonzero(np.isnan(days))]
        if form == "ISO8601":  # it would take a bare year, which is a number
            unread = [at for at in unread if ISO.fullmatch(words[at])]
        if unread:
            text = pd.Series([words[at] for at in unread], dtype=object)
            days[unread] = since_1970(
                pd.to_datetime(text, format=form, errors="coerce", utc=True)
            )
    return days


def since_1970(times: pd.Series[Any]) -> NDArray[np.float64]:
    bare = (
        times.dt.tz_convert("UTC").dt.tz_localize(None)
        if times.dt.tz is not None
        else times
    )
    return np.asarray(
        (bare - pd.Timestamp(0)) / pd.Timedelta(seconds=DAY), dtype=np.float64
    )
