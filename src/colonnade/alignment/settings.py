"""What parties must agree on before they align, the [alignment] table of a federation file; and what each allows of it,
the [alignments] table of its own party.toml."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from colonnade.core.checks import one_of, whole
from colonnade.errors import ConfigError


@dataclass(frozen=True)
class AlignmentSettings:
    """A party refuses a driver that asks for other `ids` or `learners` than its settings say, or to `reveal` more."""

    id: tuple[str, ...] = ()  # the columns that together name a row; none: each party's id column
    ids: str = one_of("exact", "normalised", default="exact")  # how ids are compared, also to train: `ids.normalised`
    duplicates: str = one_of("refuse", "first", default="refuse")  # of an id's rows: none, or the first of them
    reveal: str = one_of("rows", "count", default="rows")  # which rows are common, or only how many
    learners: tuple[str, ...] = ()  # the parties that are told; none named: all
    protocol: str = one_of("ecdh", "helper", "auto", default="ecdh")  # auto: the helper, if named, above 100,000 ids
    helper: str | None = None  # an organisation without data that compares keyed hashes, and learns as `helper` says

    def __post_init__(self) -> None:
        for key, what in (("id", "column"), ("learners", "party")):
            names = getattr(self, key)
            named = isinstance(names, tuple) and all(isinstance(name, str) and name for name in names)
            if not named or len(set(names)) != len(names):
                raise ConfigError(f"[alignment] {key} must be a list of {what} names, each once; found {names!r}.")
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

    def check_trains(self) -> None:
        """Raise where training could not keep to it: it needs one id column, and everybody to know the common rows."""
        if replace(self, ids="exact", protocol="ecdh", helper=None) != AlignmentSettings():
            raise ConfigError(
                '[data] align = "private" lets all parties learn their common rows, by one id column each; found other '
                "settings in [alignment] than ids, protocol and helper. Remove them, or run `colonnade align` first "
                "and train on the rows it found."
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
