"""How ids of people become one text each, and which names a file may have."""

from __future__ import annotations

import re
import unicodedata

from colonnade.errors import StoreError

WHOLE_NUMBER = re.compile(r"0*([0-9]+?)(\.0*)?")
"""A whole number as files write it: leading zeros, and the ".0" of a column that was
read as floats."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
RESERVED_NAMES = frozenset(
    ["con", "prn", "aux", "nul"]
    + [f"com{number}" for number in range(10)]
    + [f"lpt{number}" for number in range(10)]
)
"""Names that are devices on Windows, also with an ending: "nul.txt" is "nul"."""


def canonical_id(text: str) -> str:
    """The one text of an id, however a file writes it.

    The same person must have one count, whether a table was exported as "1", "01",
    " 1" or "1.0". So blanks around the id are removed, accents are written in one way
    (NFC), and a whole number loses its leading zeros and its ".0".
    """
    text = unicodedata.normalize("NFC", text).strip()
    number = WHOLE_NUMBER.fullmatch(text)
    return text if number is None else number[1]


def is_file_name(name: str) -> bool:
    """Whether a name can be a file's on every system."""
    stem = name.split(".")[0].lower()
    is_allowed = NAME.fullmatch(name) is not None and not name.endswith(".")
    return is_allowed and stem not in RESERVED_NAMES


def check_name(name: str, whose: str, what: str = "run") -> None:
    """Refuse a name that cannot be a file's name on every system.

    A run's name is chosen by whoever starts it, often another organisation, and becomes
    the name of a folder.
    """
    if is_file_name(name):
        return
    raise StoreError(
        f"'{whose}' cannot keep a {what} called {name[:100]!r}. A name has up to 100"
        " letters, digits, '-', '_' and '.', begins with a letter or digit, does not"
        " end with '.', and is no device of Windows such as CON or NUL. Choose another"
        " name."
    )
