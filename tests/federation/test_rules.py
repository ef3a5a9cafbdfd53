"""An owner's outbox rules: what is written is what the outbox does, and a rule that
would do nothing is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.federation.small import Spent, federation, quick

from colonnade.compression.integers import Integers
from colonnade.core import DpEvent, Identity, Mechanism, Plain, Rule
from colonnade.errors import ConfigError
from colonnade.federation import rules
from colonnade.privacy import Binomial, Budget, Gaussian
from colonnade.privacy.accounting import key_of, known_batch

RELEASES: dict[str, Any] = {
    "releases": ("embedding", "head"),
    "from_columns": ("embedding",),
}


def made(given: dict[str, Any]) -> dict[str, Rule]:
    return rules.rules_from(given, owner="lab", **RELEASES)


def test_a_rule_is_made_by_name_with_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanisms: dict[str, Callable[..., Mechanism]] = {"plain": Plain, "spent": Spent}
    monkeypatch.setattr(rules, "MECHANISMS", mechanisms)
    found = made(
        {
            "embedding": {"mechanism": {"name": "spent", "after": 7}},
            "test.embedding": {"mechanism": "plain", "codec": "identity"},
            "head": {},
        }
    )
    spent = found["embedding"].mechanism
    assert isinstance(spent, Spent)
    assert spent.left == 7
    assert found["test.embedding"] == found["head"] == Rule(Plain(), Identity())


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"embedding": {"mechanism": "plian"}},
        (
            r"\[parties\.lab\.outbox\] embedding: mechanism 'plian' is not known \(did"
            r" you mean 'plain'\?\); there are plain"
        ),
    ),
    (
        {"embedding": {"codec": "identiti"}},
        r"embedding: codec 'identiti' is not known \(did you mean 'identity'\?\)",
    ),
    (
        {"embedding": {"mechanism": {"sigma": 1}}},
        r"embedding: mechanism None is not known",
    ),
    ({"embedding": {"mechanism": 3}}, r"embedding: mechanism 3 is not known"),
    (
        {"embedding": {"mechanism": ["plain"]}},
        r"embedding: mechanism \['plain'\] is not known",
    ),
    (
        {"embedding": {"mechanism": {"name": "plain", "sigma": 1}}},
        r"'plain' has no setting 'sigma'; it has none",
    ),
    (
        {"embedding": "plain"},
        (
            r'embedding must look like \{ mechanism = "plain", codec = .* \}; found'
            r" \'plain\'"
        ),
    ),
    (
        {"embedding": {"mechanisme": "plain"}},
        r"embedding must look like .*; found \{'mechanisme': 'plain'\}",
    ),
    (
        {"embeding": {}},
        r"has a rule for 'embeding', which is never released \(did you mean"
        r" 'embedding'\?\)\. This "
        r"algorithm releases embedding, head;",
    ),
    (
        {"tset.embedding": {}},
        (
            r"a rule for 'tset\.embedding', which is never released \(did you mean"
            r" 'test\.embedding'"
        ),
    ),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_a_mistake_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(given)


def test_a_mechanism_brings_its_own_codec_unless_one_is_named() -> None:
    spec = {"name": "binomial", "levels": 4, "trials": 60, "low": -1.0, "high": 2.0}
    found = made(
        {
            "embedding": {"mechanism": spec},
            "test.embedding": {"mechanism": spec, "codec": "identity"},
        }
    )
    assert found["embedding"] == Rule(
        Binomial(4, 60, 0.5, -1.0, 2.0), Integers(-31.0, 1.0, 64)
    )
    assert found["test.embedding"].codec == Identity()
    assert made(
        {"embedding": {"mechanism": {"name": "gaussian", "clip": 1, "sigma": 2}}}
    )["embedding"] == Rule(Gaussian(1, 2), Identity())


def test_a_mechanisms_own_refusal_says_whose_rule_it_is() -> None:
    with pytest.raises(
        ConfigError,
        match=r"\[parties\.lab\.outbox\] embedding: mechanism: gaussian\.sigma must be",
    ):
        made(
            {
                "embedding": {
                    "mechanism": {"name": "gaussian", "clip": 1.0, "sigma": -1.0}
                }
            }
        )


AUTO = {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": "auto"}}
FIXED = {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 40.0}}


def test_automatic_noise_leaves_room_for_what_else_a_row_pays() -> None:
    """Two releases of every row: one with its own noise, one with what is left."""
    budget = Budget(epsilon=2.0)
    found = rules.rules_from(
        {"embedding": AUTO, "head": FIXED},
        owner="lab",
        **RELEASES,
        budget=budget,
        epochs=5,
    )
    alone = rules.rules_from(
        {"embedding": AUTO}, owner="lab", **RELEASES, budget=budget, epochs=5
    )
    sigmas = [one["embedding"].mechanism.sigma for one in (found, alone)]  # type: ignore[attr-defined]
    events = {
        key_of(DpEvent("gaussian", {"noise_multiplier": s, "clip": 1.0})): 5
        for s in (sigmas[0], 40.0)
    }
    assert known_batch(events, "replace-one", 1e-5) == pytest.approx(2.0, rel=1e-3)
    assert sigmas[0] > sigmas[1]


def test_automatic_noise_follows_the_purpose() -> None:
    """Test rows are released once, training rows every epoch."""
    budget = Budget(epsilon=2.0)
    once = rules.rules_from(
        {"embedding": FIXED, "test.embedding": AUTO},
        owner="lab",
        **RELEASES,
        budget=budget,
        epochs=50,
    )["test.embedding"].mechanism
    assert isinstance(once, Gaussian)
    event = key_of(DpEvent("gaussian", {"noise_multiplier": once.sigma, "clip": 1.0}))
    assert known_batch({event: 1}, "replace-one", 1e-5) == pytest.approx(2.0, rel=1e-3)


def test_automatic_noise_beside_binomial_noise_is_refused() -> None:
    other = {"mechanism": {"name": "binomial", "levels": 4, "trials": 60}}
    with pytest.raises(ConfigError, match="beside binomial noise for the same rows"):
        rules.rules_from(
            {"embedding": AUTO, "head": other},
            owner="lab",
            **RELEASES,
            budget=Budget(epsilon=2.0),
        )


FLIPS = {
    "mechanism": {
        "name": "binomial",
        "levels": 4,
        "trials": "auto",
        "values": 8,
        "low": 0.0,
        "high": 1.0,
    }
}


def test_automatic_coin_flips_are_what_the_budget_leaves_for_all_epochs() -> None:
    found = rules.rules_from(
        {"embedding": FLIPS},
        owner="lab",
        **RELEASES,
        budget=Budget(epsilon=8.0),
        epochs=3,
    )
    mechanism = found["embedding"].mechanism
    assert isinstance(mechanism, Binomial)
    about = {
        "levels": 4.0,
        "trials": float(mechanism.trials),
        "p": 0.5,
        "coordinates": 8.0,
    }
    assert (
        7.7
        < known_batch({key_of(DpEvent("binomial", about)): 3}, "replace-one", 1e-5)
        <= 8.0
    )
    assert found["embedding"].codec == Integers(*mechanism.grid)


@pytest.mark.parametrize(
    ("settings", "budget", "says"),
    [
        (
            {"embedding": FLIPS},
            None,
            'has trials = "auto", which is the smallest noise for a budget',
        ),
        (
            {"embedding": FLIPS, "head": FIXED},
            Budget(),
            'has trials = "auto" beside other noise',
        ),
        (
            {
                "embedding": {
                    "mechanism": {"name": "binomial", "levels": 4, "trials": "auto"}
                }
            },
            Budget(),
            'trials = "auto" needs values',
        ),
    ],
)
def test_coin_flips_that_cannot_be_found_are_refused(
    settings: Any, budget: Budget | None, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        rules.rules_from(settings, owner="lab", **RELEASES, budget=budget)


def test_a_spent_budget_is_told_where_its_owner_stands_in_the_file() -> None:
    spent = {
        "embedding": AUTO,
        "head": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 0.1}},
    }
    for section, place in (
        ("parties", "[parties.lab.budget]"),
        ("data_owners", "[data_owners.budget] of 'lab'"),
    ):
        with pytest.raises(
            ConfigError, match=f"^{re.escape(place)} epsilon 2.0 is spent by the rules"
        ):
            rules.rules_from(
                spent,
                owner="lab",
                **RELEASES,
                budget=Budget(epsilon=2.0),
                section=section,
            )


def test_a_budget_is_refused_where_nothing_of_columns_has_a_line_for_each_row() -> None:
    with pytest.raises(
        ConfigError,
        match="nothing that this algorithm releases of columns has a line for each row",
    ):
        rules.rules_from(
            {},
            owner="lab",
            releases=("sums",),
            from_columns=(),
            budget=Budget(epsilon=2.0),
        )


def test_a_federation_refuses_rules_that_protect_nothing() -> None:
    with pytest.raises(
        ConfigError,
        match=(
            r"\[parties\.lab\.outbox\] has a rule for 'gradient', which is never"
            r" released"
        ),
    ):
        federation(settings=quick(parties={"lab": {"outbox": {"gradient": {}}}}))
    with pytest.raises(
        ConfigError,
        match=(
            r"\[parties\.labs\] is no party of this federation \(did you mean 'lab'\?\)"
        ),
    ):
        federation(settings=quick(parties={"labs": {"outbox": {"embedding": {}}}}))
