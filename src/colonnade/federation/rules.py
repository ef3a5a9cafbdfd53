"""An owner's outbox rules, from its own settings.

[parties.clinic.outbox]
embedding = { mechanism = "plain", codec = "identity" }
"test.embedding" = { mechanism = "plain" }                # another rule for one purpose
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from colonnade.core.checks import did_you_mean
from colonnade.core.release import Codec, Identity, Mechanism, Plain, Rule
from colonnade.errors import ConfigError

MECHANISMS: dict[str, Callable[..., Mechanism]] = {"plain": Plain}
CODECS: dict[str, Callable[..., Codec]] = {"identity": Identity}


def rules_from(settings: Mapping[str, Any], *, owner: str) -> dict[str, Rule]:
    """Release name -> rule."""
    return {name: _rule(given, f"[parties.{owner}.outbox] {name}") for name, given in settings.items()}


def _rule(given: Any, where: str) -> Rule:
    if not isinstance(given, Mapping) or not set(given) <= {"mechanism", "codec"}:
        raise ConfigError(f'{where} must look like {{ mechanism = "plain", codec = "identity" }}; found {given!r}.')
    return Rule(
        mechanism=_made(MECHANISMS, given.get("mechanism", "plain"), f"{where}: mechanism"),
        codec=_made(CODECS, given.get("codec", "identity"), f"{where}: codec"),
    )


def _made(known: Mapping[str, Callable[..., Any]], spec: Any, where: str) -> Any:
    settings = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = settings.pop("name", None)
    if name not in known:
        hint = did_you_mean(str(name), list(known))
        raise ConfigError(f"{where} {name!r} is not known{hint}; there are {', '.join(known)}.")
    try:
        return known[name](**settings)
    except TypeError as error:
        raise ConfigError(f"{where} {name!r} cannot be made: {error}.") from None
