"""The registry."""

from __future__ import annotations

import dataclasses
import inspect
from types import ModuleType

import pytest

from colonnade.algorithms import ALGORITHMS, find, splitnn, vimadmm
from colonnade.core import Message, Request, roles
from colonnade.errors import ConfigError

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


def test_algorithms_are_found_by_name() -> None:
    assert find("splitnn") is splitnn
    assert find("vimadmm") is vimadmm
    for name, algorithm in ALGORITHMS.items():
        assert find(name) is algorithm
        assert algorithm.__name__ == f"colonnade.algorithms.{name}"


@pytest.mark.parametrize(
    ("name", "hint"), [("splitn", " (did you mean 'splitnn'?)"), ("VIMADM", ""), ("xyz", ""), ("", "")]
)
def test_an_unknown_name_lists_the_known_ones(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find(name)
    assert str(caught.value) == f"There is no algorithm {name!r}{hint}; there are {', '.join(ALGORITHMS)}."


@every_algorithm
def test_an_algorithm_has_the_parts_that_everything_else_uses(algorithm: ModuleType) -> None:
    assert dataclasses.is_dataclass(algorithm.Config)
    assert issubclass(algorithm.FeatureOwner, roles.FeatureOwner)
    assert issubclass(algorithm.LabelOwner, roles.LabelOwner)
    assert list(inspect.signature(algorithm.train).parameters) == ["driver", "peers", "batches"]
    assert list(inspect.signature(algorithm.predict).parameters) == ["driver", "peers", "rows"]
    assert all(isinstance(text, str) and len(text) > 20 for text in algorithm.REVEALS.values())


@every_algorithm
def test_its_docstring_names_the_paper(algorithm: ModuleType) -> None:
    assert "arXiv:" in str(algorithm.__doc__)
    assert "What crosses:" in str(algorithm.__doc__)


@every_algorithm
def test_its_requests_are_served_and_its_messages_may_cross(algorithm: ModuleType) -> None:
    classes = [kind for kind in vars(algorithm).values() if inspect.isclass(kind) and issubclass(kind, Message)]
    messages = [kind for kind in classes if kind.__module__ == algorithm.__name__]
    requests = {kind for kind in messages if issubclass(kind, Request)}
    served = set(algorithm.FeatureOwner.served()) | set(algorithm.LabelOwner.served())
    assert requests
    assert requests <= served
    for message in messages:
        message.hints()  # raises unless each field's type may cross
