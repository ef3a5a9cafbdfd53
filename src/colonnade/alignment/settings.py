"""What parties must agree on before they align, the [alignment] table of a federation file; and what each allows of it,
the [alignments] table of its own party.toml."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from colonnade.alignment.rules import find_rule
from colonnade.core.checks import one_of, whole
from colonnade.errors import ConfigError

Key = tuple[str, ...]
"""The columns of one of the keys by which rows are matched: `alignment.keys`."""
FORM = 'a column, or a list of keys as in ["email", ["name", "birth_date"], "phone"]'


def keys_in(given: Any, where: str, *, may_lack: bool = False) -> tuple[Key, ...]:
    """The columns of each key. With `may_lack` a key may be "", of who has no such column."""
    if isinstance(given, str):
        return ((given,),)
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(f"{where} must be {FORM}; found {given!r}.")
    keys = []
    for one in given:
        key = (one,) if isinstance(one, str) else tuple(one) if isinstance(one, list | tuple) else ()
        named = bool(key) and all(isinstance(name, str) and name for name in key)
        if not (named or (may_lack and key == ("",))) or len(set(key)) != len(key):
            raise ConfigError(f"{where} must be {FORM}, each column once in a key; found {one!r} in it.")
        keys.append(key)
    if len(set(keys)) != len(keys) and not may_lack:
        raise ConfigError(f"{where} has a key twice: {given!r}. Name each once.")
    return tuple(keys)


def is_plain(keys: Sequence[Key]) -> bool:
    """Whether rows have one column that names them."""
    return len(keys) == 1 and len(keys[0]) == 1


def in_words(key: Key) -> str:
    return " + ".join(key)


@dataclass(frozen=True)
class AlignmentSettings:
    """A party refuses a driver that asks for other `ids` or `learners` than its settings say, or to `reveal` more."""

    ids: str = one_of("exact", "normalised", default="exact")  # how ids are compared, also to train: `ids.normalised`
    rules: Mapping[str, str] = field(default_factory=dict)  # how a column of a key is compared: `alignment.rules`
    duplicates: str = one_of("refuse", "first", "none", default="refuse")  # of rows with one id: the first, or none
    reveal: str = one_of("rows", "count", default="rows")  # which rows are common, or only how many
    learners: tuple[str, ...] = ()  # the parties that are told; none named: all
    protocol: str = one_of("ecdh", "helper", "auto", default="ecdh")  # auto: the helper, if named, above 100,000 ids
    helper: str | None = None  # an organisation without data that compares keyed hashes, and learns as `helper` says

    def __post_init__(self) -> None:
        names = self.learners
        named = isinstance(names, tuple) and all(isinstance(name, str) and name for name in names)
        if not named or len(set(names)) != len(names):
            raise ConfigError(f"[alignment] learners must be a list of party names, each once; found {names!r}.")
        if not isinstance(self.rules, Mapping):
            raise ConfigError(f'[alignment] rules must be a table, as in phone = "phone"; found {self.rules!r}.')
        for column, rule in self.rules.items():
            find_rule(rule, f"[alignment.rules] {column}")
        if not isinstance(self.helper, str | None) or self.helper == "":
            raise ConfigError(f"[alignment] helper must be text, the name of a site; found {self.helper!r}.")
        if self.protocol == "helper" and not self.helper:
            raise ConfigError(
                '[alignment] protocol = "helper" needs somebody who compares: an organisation without data that no '
                'party controls, as in helper = "trust_centre". It learns how many ids each has and which blinded '
                'ids are equal, and could test ids if it colludes with a party; protocol = "ecdh" needs nobody.'
            )
        if self.protocol == "ecdh" and self.helper:
            raise ConfigError(
                f'[alignment] helper = "{self.helper}" is for protocol = "helper" or "auto", and protocol is "ecdh", '
                "which needs nobody. Remove one of them."
            )

    def rule_for(self, column: str) -> str:
        """The name of the rule by which a column of a key is compared."""
        return self.rules.get(column, "text" if self.ids == "normalised" else "exact")

    def check_keys(self, keys: Sequence[tuple[str, ...]]) -> None:
        """Raise where rules are for columns of no key, or where several keys could not be tried in turn."""
        columns = {name for key in keys for name in key}
        for column in self.rules:
            if column not in columns:
                there = ", ".join(sorted(columns))
                raise ConfigError(
                    f"[alignment.rules] has {column!r}, which is in no key of [data] id; there are {there}."
                )
        if len(keys) > 1 and (self.reveal != "rows" or self.learners):
            raise ConfigError(
                "Several keys in [data] id are tried over the rows that are unmatched, so all parties must learn which "
                "are. Remove reveal and learners from [alignment], or name one key."
            )

    def check_trains(self) -> None:
        """Raise where training could not keep to it: everybody must know the common rows."""
        if self.reveal != "rows" or self.learners:
            raise ConfigError(
                '[data] align = "private" lets all parties learn their common rows; found reveal or learners in '
                "[alignment]. Remove them, or run `colonnade align` first and train on the rows it found."
            )

    def check_helper(self, parties: Collection[str]) -> None:
        """Raise unless the helper is somebody else than who takes part: a party has the key."""
        if self.helper in parties:
            raise ConfigError(
                f"[alignment] helper = {self.helper!r} is a party, who knows the key and could test the others' ids. "
                "Name an organisation that takes no other part."
            )

    def told(self, parties: tuple[str, ...]) -> tuple[str, ...]:
        """The learners among these parties, in their order."""
        for name in self.learners:
            if name not in parties:
                there = ", ".join(map(repr, parties))
                raise ConfigError(f"[alignment] learners names {name!r}, which is no party here; there are {there}.")
        return tuple(name for name in parties if name in self.learners or not self.learners)


@dataclass(frozen=True)
class AllowanceSettings:
    """Between machines: how much of its ids an organisation lets each of the others compare with theirs."""

    per_day: int = whole(default=10, least=0)  # alignments to train; a run that is resumed aligns anew
    predicted_per_day: int = whole(default=1000, least=0)  # ids that are compared to predict them
    smallest: int = whole(default=10)  # distinct ids in a list, at least, to train
    reveal: str = one_of("rows", "count", default="rows")  # "count": nobody is told which are common: none train
