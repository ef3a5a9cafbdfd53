"""An owner's outbox rules, from its own settings.

[parties.clinic.outbox] embedding = { mechanism = { name = "gaussian", clip = 1.0, sigma
= "auto" }, codec = "identity" }
"test.embedding" = { mechanism = "plain" }                # another rule for one purpose
labels = { mechanism = { name = "randomized_response", epsilon = 2.0 } }                # where labels are held
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from colonnade.compression import READERS, Integers
from colonnade.core.release import Codec, Identity, Rule
from colonnade.errors import ConfigError, did_you_mean
from colonnade.privacy import LABEL_MECHANISMS, MECHANISMS, Binomial
from colonnade.privacy.accounting import is_private
from colonnade.privacy.calibrate import smallest_sigma, smallest_trials
from colonnade.settings.schema import place_of
from colonnade.settings.sections import LABELS, PURPOSES, Budget, mechanism_of

CODECS: dict[str, Callable[..., Codec]] = {
    codec.name: type(codec) for codec in (Identity(), *READERS)
}


def rules_from(
    settings: Mapping[str, Any],
    *,
    owner: str,
    releases: Collection[str],
    from_columns: Collection[str],
    classes: int | None = None,
    budget: Budget | None = None,
    epochs: int = 1,
    known_to: int = 1,
    section: str = "parties",
) -> dict[str, Rule]:
    """Release name -> rule; a rule for something that the algorithm never releases
    would protect nothing.

    `from_columns` are those that a budget is for: the owner makes them of every row
    that it is asked about. `classes` is given where the owner holds the labels (0: they
    are numbers, not classes). `budget` and `epochs` decide about sigma = "auto", with
    the number of label owners that a row is `known_to` at most. `section` is where the
    owner stands in the file.
    """
    where = place_of(section, owner, "outbox")
    for name in settings:
        purpose, _, release = name.rpartition(".")
        if name == LABELS and classes is not None:
            continue
        if release not in releases or (purpose and purpose not in PURPOSES):
            own = [LABELS] if classes is not None else []
            hint = did_you_mean(
                name,
                [*own, *releases, *(f"{p}.{r}" for p in PURPOSES for r in releases)],
            )
            raise ConfigError(
                f"{where} has a rule for {name!r}, which is never released{hint}. This"
                f" algorithm releases {', '.join(releases)}; a purpose may come before,"
                f" as in test.{next(iter(releases))}."
            )
    appearances = {k: n * known_to for k, n in planned(epochs).items()}
    budget_at = place_of(section, owner, "budget")
    noise = {"sigma": _automatic(settings, where, budget_at, budget, appearances)}
    noise["trials"] = _automatic_trials(settings, where, budget_at, budget, appearances)
    rules = {
        name: _rule(given, f"{where} {name}", noise)
        for name, given in settings.items()
        if name != LABELS
    }
    if LABELS in settings:
        rules[LABELS] = _label_rule(settings[LABELS], f"{where} {LABELS}", classes or 0)
    if budget is not None:
        _coverable(rules, budget_at, from_columns)
    return rules


def chosen(rules: Mapping[str, Any], name: str, purpose: str) -> Any:
    """The rule for one purpose, as an outbox chooses it; None where there is none."""
    return rules.get(f"{purpose}.{name}") or rules.get(name)


def _coverable(
    rules: Mapping[str, Rule], where: str, from_columns: Collection[str]
) -> None:
    """Refuse a budget that no release could ever fit into."""
    if not from_columns:
        raise ConfigError(
            f"{where} can never be kept: nothing that this algorithm releases of"
            " columns has a line for each row, so no noise protects a row. Remove the"
            " budget, or choose another algorithm."
        )
    for name in from_columns:
        for purpose in PURPOSES:
            rule = chosen(rules, name, purpose) or Rule()
            _, event = rule.mechanism.apply(torch.zeros(0, 1), torch.Generator())
            if not is_private(event):
                raise ConfigError(
                    f"{where} can never be kept: {purpose}.{name} is released with "
                    f"{rule.mechanism!r}, which promises nothing (epsilon is infinite)."
                    " Give every purpose a "
                    f"mechanism with noise, as in outbox = {{ {name} = "
                    f'{{ mechanism = {{ name = "gaussian", clip = 1.0, sigma = "auto"'
                    f" }} }} }}, or remove the budget."
                )


def _automatics(
    key: str,
    settings: Mapping[str, Any],
    where: str,
    budget_at: str,
    budget: Budget | None,
) -> dict[str, Mapping[str, Any]]:
    """The mechanisms in which sigma or trials is "auto", by the name of their rule;
    raise without a budget for it."""
    autos = {
        name: mechanism_of(given)
        for name, given in settings.items()
        if mechanism_of(given).get(key) == "auto"
    }
    if autos and budget is None:
        raise ConfigError(
            f'{where} {min(autos)} has {key} = "auto", which is the smallest noise for'
            f" a budget, and there is none. Add {budget_at} epsilon = 8.0, or give"
            f" {key} a number."
        )
    return autos


def _automatic(
    settings: Mapping[str, Any],
    where: str,
    budget_at: str,
    budget: Budget | None,
    appearances: Mapping[str, int],
) -> float | None:
    """What sigma = "auto" is for this owner; None where no rule says so."""
    if not _automatics("sigma", settings, where, budget_at, budget) or budget is None:
        return None
    rows = []
    for purpose, times in appearances.items():
        specs = _used(settings, purpose)
        mine = sum(spec.get("sigma") == "auto" for spec in specs)
        rest = [spec for spec in specs if spec.get("sigma") != "auto"]
        if mine and any(spec.get("name") == "binomial" for spec in rest):
            raise ConfigError(
                f'{where} has sigma = "auto" beside binomial noise for the same rows;'
                " how they add up is known only for numbers. Give sigma a number."
            )
        sigmas = [
            spec["sigma"]
            for spec in rest
            if isinstance(spec.get("sigma"), (int, float)) and spec["sigma"] > 0
        ]
        rows.append((mine * times, sum(times / sigma**2 for sigma in sigmas)))
    return smallest_sigma(budget, rows, where=budget_at)


def _automatic_trials(
    settings: Mapping[str, Any],
    where: str,
    budget_at: str,
    budget: Budget | None,
    appearances: Mapping[str, int],
) -> int | None:
    """What trials = "auto" is for this owner's binomial noise; None where no rule says
    so."""
    autos = _automatics("trials", settings, where, budget_at, budget)
    if not autos or budget is None:
        return None
    where = f"{where} {min(autos)}"
    name = min(autos)
    spec = autos[name]
    values = autos[name].get("values")
    if not isinstance(values, int) or isinstance(values, bool) or values < 1:
        raise ConfigError(
            f'{where}: trials = "auto" needs values, how many numbers a row of'
            f" {name.rpartition('.')[2]} has (the width of an embedding); found"
            f" {values!r}. The budget counts how many it really has."
        )
    mine = {n.rpartition(".")[2] for n in autos}
    times = [0]
    for purpose, often in appearances.items():
        specs = _used(settings, purpose)
        same = [other for other in specs if other == spec]
        if same and (
            len(mine) > 1
            or len([other for other in specs if other.get("name") != "plain"])
            > len(same)
        ):
            raise ConfigError(
                f'{where} has trials = "auto" beside other noise for the same rows; how'
                " they add up is known only for numbers. Give trials a number."
            )
        times.append(often * len(same))
    levels = spec.get("levels")
    p = spec.get("p", 0.5)
    Binomial(levels, 0, p)  # type: ignore[arg-type]  # says what is wrong with them
    assert isinstance(levels, int)
    return smallest_trials(budget, levels, p, values, max(times), where=budget_at)


def _used(settings: Mapping[str, Any], purpose: str) -> list[Mapping[str, Any]]:
    """The mechanisms of what is released of columns for a purpose."""
    names = {name.rpartition(".")[2] for name in settings} - {LABELS}
    return [
        mechanism_of(given)
        for name in names
        if (given := chosen(settings, name, purpose))
    ]


def _rule(given: Any, where: str, noise: Mapping[str, float | None]) -> Rule:
    if not isinstance(given, Mapping) or not set(given) <= {"mechanism", "codec"}:
        raise ConfigError(
            f'{where} must look like {{ mechanism = "plain", codec = "identity" }};'
            f" found {given!r}."
        )
    spec = given.get("mechanism", "plain")
    for name, amount in noise.items():
        if mechanism_of(given).get(name) == "auto":
            spec = {key: value for key, value in spec.items() if key != "values"} | {
                name: amount
            }
    mechanism = _built(MECHANISMS, spec, f"{where}: mechanism")
    codec = (
        _built(CODECS, given["codec"], f"{where}: codec") if "codec" in given else None
    )
    if codec is None:  # values that lie on a grid are sent as the grid's numbers
        codec = (
            Integers(*mechanism.grid) if isinstance(mechanism, Binomial) else Identity()
        )
    return Rule(mechanism, codec)


def _label_rule(given: Any, where: str, classes: int) -> Rule:
    if not isinstance(given, Mapping) or set(given) != {"mechanism"}:
        raise ConfigError(
            f'{where} must look like {{ mechanism = {{ name = "randomized_response",'
            f" epsilon = 2.0 }} }}; found {given!r}."
        )
    if classes < 2:
        raise ConfigError(
            f"{where}: randomized response needs classes, and this label is a number."
            " Remove the rule."
        )
    spec = given["mechanism"]
    if isinstance(spec, Mapping):
        if "classes" in spec:
            raise ConfigError(
                f"{where}: how many classes there are is taken from the labels"
                f" ({classes}), since a wrong number would leave some of them"
                f" unprotected; found classes = {spec['classes']!r}. Remove it."
            )
        spec = {**spec, "classes": classes}
    return Rule(_built(LABEL_MECHANISMS, spec, f"{where}: mechanism"))


def _built(known: Mapping[str, Callable[..., Any]], spec: Any, where: str) -> Any:
    settings = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
    name = settings.pop("name", None)
    if not isinstance(name, str) or name not in known:
        hint = did_you_mean(str(name), list(known))
        raise ConfigError(
            f"{where} {name!r} is not known{hint}; there are {', '.join(known)}."
        )
    takes = [key for key in inspect.signature(known[name]).parameters if key != "name"]
    for key in settings:
        if key not in takes:
            has = ", ".join(takes) or "none"
            raise ConfigError(
                f"{where} {name!r} has no setting {key!r}{did_you_mean(key, takes)}; it"
                f" has {has}."
            )
    try:
        return known[name](**settings)
    except TypeError as error:
        raise ConfigError(f"{where} {name!r} cannot be made: {error}.") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def planned(epochs: int) -> dict[str, int]:
    """How often a run releases a row, by what it is for. A prediction is not planned;
    one of a new row always fits."""
    return {"train": epochs, "validation": max(epochs, 1), "test": 1, "predict": 1}
