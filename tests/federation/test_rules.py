"""An owner's outbox rules: what is written is what the outbox does, and a rule that would do nothing is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.federation.small import Spent, federation, quick

from colonnade.core import Identity, Mechanism, Plain, Rule
from colonnade.errors import ConfigError
from colonnade.federation import rules

RELEASES = ("embedding", "head")


def made(given: dict[str, Any]) -> dict[str, Rule]:
    return rules.rules_from(given, owner="lab", releases=RELEASES)


def test_a_rule_is_made_by_name_with_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanisms: dict[str, Callable[..., Mechanism]] = {"plain": Plain, "spent": Spent}
    monkeypatch.setattr(rules, "MECHANISMS", mechanisms)
    found = made({
        "embedding": {"mechanism": {"name": "spent", "after": 7}},
        "test.embedding": {"mechanism": "plain", "codec": "identity"},
        "head": {},
    })  # fmt: skip
    spent = found["embedding"].mechanism
    assert isinstance(spent, Spent)
    assert spent.left == 7
    assert found["test.embedding"] == found["head"] == Rule(Plain(), Identity())


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"embedding": {"mechanism": "plian"}},
     r"\[parties\.lab\.outbox\] embedding: mechanism 'plian' is not known \(did you mean 'plain'\?\); there are plain"),
    ({"embedding": {"codec": "identiti"}}, r"embedding: codec 'identiti' is not known \(did you mean 'identity'\?\)"),
    ({"embedding": {"mechanism": {"sigma": 1}}}, r"embedding: mechanism None is not known"),
    ({"embedding": {"mechanism": 3}}, r"embedding: mechanism 3 is not known"),
    ({"embedding": {"mechanism": ["plain"]}}, r"embedding: mechanism \['plain'\] is not known"),
    ({"embedding": {"mechanism": {"name": "plain", "sigma": 1}}}, r"mechanism 'plain' cannot be made: .*'sigma'"),
    ({"embedding": "plain"}, r'embedding must look like \{ mechanism = "plain", codec = .* \}; found \'plain\''),
    ({"embedding": {"mechanisme": "plain"}}, r"embedding must look like .*; found \{'mechanisme': 'plain'\}"),
    ({"embeding": {}}, r"has a rule for 'embeding', which is never released \(did you mean 'embedding'\?\)\. This "
                       r"algorithm releases embedding, head;"),
    ({"tset.embedding": {}}, r"a rule for 'tset\.embedding', which is never released \(did you mean 'test\.embedding'"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_a_mistake_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(given)


def test_a_federation_refuses_rules_that_protect_nothing() -> None:
    with pytest.raises(
        ConfigError, match=r"\[parties\.lab\.outbox\] has a rule for 'gradient', which is never released"
    ):
        federation(settings=quick(parties={"lab": {"outbox": {"gradient": {}}}}))
    with pytest.raises(ConfigError, match=r"\[parties\.labs\] is no party of this federation \(did you mean 'lab'\?\)"):
        federation(settings=quick(parties={"labs": {"outbox": {"embedding": {}}}}))
