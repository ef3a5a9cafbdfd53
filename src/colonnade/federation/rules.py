"""An owner's outbox rules, from its own settings.

[parties.clinic.outbox]
embedding = { mechanism = "plain", codec = "identity" }
"test.embedding" = { mechanism = "plain" }                # another rule for one purpose
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from colonnade.core.checks import did_you_mean
from colonnade.core.release import Codec, Identity, Mechanism, Plain, Rule
from colonnade.errors import ConfigError

MECHANISMS: dict[str, Callable[..., Mechanism]] = {"plain": Plain}
CODECS: dict[str, Callable[..., Codec]] = {"identity": Identity}


PURPOSES = ("train", "validation", "test", "predict")


def rules_from(settings: Mapping[str, Any], *, owner: str, releases: Collection[str]) -> dict[str, Rule]:
    """Release name -> rule; a rule for something that the algorithm never releases would protect nothing."""
    for name in settings:
        purpose, _, release = name.rpartition(".")
        if release not in releases or (purpose and purpose not in PURPOSES):
            hint = did_you_mean(name, [*releases, *(f"{p}.{r}" for p in PURPOSES for r in releases)])
            raise ConfigError(
                f"[parties.{owner}.outbox] has a rule for {name!r}, which is never released{hint}. This algorithm "
                f"releases {', '.join(releases)}; a purpose may come before, as in test.{next(iter(releases))}."
            )
    return {name: _rule(given, f"[parties.{owner}.outbox] {name}") for name, given in settings.items()}


def _rule(given: Any, where: str) -> Rule:
    if not isinstance(given, Mapping) or not set(given) <= {"mechanism", "codec"}:
        raise ConfigError(f'{where} must look like {{ mechanism = "plain", codec = "identity" }}; found {given!r}.')
    return Rule(
        mechanism=_made(MECHANISMS, given.get("mechanism", "plain"), f"{where}: mechanism"),
        codec=_made(CODECS, given.get("codec", "identity"), f"{where}: codec"),
    )


def _made(known: Mapping[str, Callable[..., Any]], spec: Any, where: str) -> Any:
    settings = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
    name = settings.pop("name", None)
    if not isinstance(name, str) or name not in known:
        hint = did_you_mean(str(name), list(known))
        raise ConfigError(f"{where} {name!r} is not known{hint}; there are {', '.join(known)}.")
    try:
        return known[name](**settings)
    except TypeError as error:
        raise ConfigError(f"{where} {name!r} cannot be made: {error}.") from None
