"""The registry, and what every algorithm consists of."""

from __future__ import annotations

import copy
import inspect
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.conformance.battery import VARIANTS
from tests.conformance.toy import (
    ALSO,
    assert_bit_equal,
    config_for,
    federation,
    module_of,
)
from torch import Tensor, nn

from colonnade.algorithms import (
    ALGORITHMS,
    embedding,
    fdml,
    find,
    splitnn,
    vimadmm,
    vimadmm_joint,
)
from colonnade.algorithms.algorithm import AnyAlgorithm, as_it_is
from colonnade.core import Message, Party, Request, roles
from colonnade.core.message import Ping
from colonnade.errors import ConfigError
from colonnade.models import build
from colonnade.settings.algorithms import AlgorithmSettings
from colonnade.transport import InProcess, Recording

FLAT = {
    name: algorithm
    for name, algorithm in ALGORITHMS.items()
    if algorithm.nested is None
}
NESTED = {
    name: algorithm
    for name, algorithm in ALGORITHMS.items()
    if algorithm.nested is not None
}

every_algorithm = pytest.mark.parametrize("algorithm", FLAT.values(), ids=FLAT)


def test_algorithms_are_found_by_name() -> None:
    assert find("splitnn") is splitnn.ALGORITHM
    assert find("vimadmm") is vimadmm.ALGORITHM
    for name, algorithm in ALGORITHMS.items():
        assert find(name) is algorithm
        assert module_of(algorithm) == name


@pytest.mark.parametrize(
    ("name", "hint"),
    [("splitn", " (did you mean 'splitnn'?)"), ("VIMADM", ""), ("xyz", ""), ("", "")],
)
def test_an_unknown_name_lists_the_known_ones(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find(name)
    assert (
        str(caught.value)
        == f"There is no algorithm {name!r}{hint}; there are {', '.join(ALGORITHMS)}."
    )


@every_algorithm
def test_an_algorithm_has_the_parts_that_everything_else_uses(
    algorithm: AnyAlgorithm,
) -> None:
    assert issubclass(algorithm.config, AlgorithmSettings)
    assert issubclass(algorithm.feature_owner, roles.FeatureOwner)
    assert issubclass(algorithm.label_owner, roles.LabelOwner)
    assert algorithm.train is not None
    assert list(inspect.signature(algorithm.train).parameters) == [
        "driver",
        "peers",
        "batches",
    ]
    assert list(inspect.signature(algorithm.predict).parameters) == [
        "driver",
        "peers",
        "rows",
    ]
    assert all(len(text) > 20 for text in algorithm.reveals.values())


@pytest.mark.parametrize("algorithm", NESTED.values(), ids=NESTED)
def test_a_nested_one_has_the_parts_that_everything_else_uses(
    algorithm: AnyAlgorithm,
) -> None:
    assert issubclass(algorithm.config, AlgorithmSettings)
    nested = algorithm.nested
    assert nested is not None
    for role in (
        algorithm.feature_owner,
        algorithm.label_owner,
        nested.aggregation_server,
    ):
        assert issubclass(role, Party)
    assert list(inspect.signature(nested.train).parameters) == [
        "driver",
        "peers",
        "rounds",
    ]
    for predict in algorithm.models.values():
        assert list(inspect.signature(predict).parameters)[:3] == [
            "driver",
            "peers",
            "rows",
        ]
    assert all(len(text) > 20 for text in algorithm.reveals.values())


@every_algorithm
def test_its_docstring_names_the_paper(algorithm: AnyAlgorithm) -> None:
    docstring = str(home_of(algorithm).__doc__)
    assert "arXiv:" in docstring
    assert "What crosses:" in docstring


def home_of(algorithm: AnyAlgorithm) -> ModuleType:
    """The module of an algorithm of ours, or of a toy's settings."""
    ours = f"colonnade.algorithms.{algorithm.config.name}"
    return sys.modules[ours if ours in sys.modules else algorithm.config.__module__]


def messages_of(algorithm: AnyAlgorithm) -> set[type[Message]]:
    """Every message class that can be seen from the algorithm, or from where its roles
    and `train` were borrowed."""
    parts: tuple[Any, ...] = (
        algorithm.feature_owner,
        algorithm.label_owner,
        algorithm.train,
        algorithm.config,
    )
    borrowed = [
        base
        for part in parts
        for base in (part.__mro__[:-1] if inspect.isclass(part) else [part])
    ]
    modules = [sys.modules[base.__module__] for base in borrowed]
    modules.append(home_of(algorithm))
    seen = {
        kind
        for module in modules
        for kind in vars(module).values()
        if inspect.isclass(kind)
    }
    return {kind for kind in seen if issubclass(kind, Message)} - {Message, Request}


@every_algorithm
def test_its_requests_are_served_and_its_messages_may_cross(
    algorithm: AnyAlgorithm,
) -> None:
    messages = messages_of(algorithm)
    requests = {
        kind
        for kind in messages
        if issubclass(kind, Request) and kind.__module__ != embedding.__name__
    }
    served = set(algorithm.feature_owner.served()) | set(algorithm.label_owner.served())
    assert served - {roles.Introduce, Ping}
    assert requests <= served
    for message in messages | served:
        message.hints()  # raises unless each field's type may cross


def asked_and_answered(algorithm: AnyAlgorithm, **settings: Any) -> set[type[Message]]:
    toy = federation(
        algorithm, lambda parties: Recording(InProcess(parties)), **settings
    )
    toy.run(2)
    toy.predict()
    return {
        type(seen.message)
        for transcript in toy.transport.transcripts.values()
        for seen in transcript
    }


@every_algorithm
def test_whatever_it_asks_is_one_of_its_messages(algorithm: AnyAlgorithm) -> None:
    crossed: set[type[Message]] = set()
    for variant in [
        algorithm,
        *(other for other in VARIANTS.values() if other.config is algorithm.config),
    ]:
        crossed |= asked_and_answered(variant)
    for settings in ALSO.get(module_of(algorithm), []):
        for driver in ("label owner", "ada"):
            crossed |= asked_and_answered(
                algorithm, config=config_for(algorithm, **settings), driver=driver
            )
    assert crossed <= messages_of(algorithm)
    asked = {kind for kind in crossed if issubclass(kind, Request)}
    assert asked == set(algorithm.feature_owner.served()) - set(
        algorithm.feature_owner.aside
    )


# A party's model as the algorithm needs it

WHOLE = [fdml.ALGORITHM, vimadmm_joint.ALGORITHM]
PARTS = [
    algorithm for algorithm in ALGORITHMS.values() if algorithm.local_model is as_it_is
]
X = torch.rand(5, 6, generator=torch.Generator().manual_seed(0))

whole_models = pytest.mark.parametrize(
    "algorithm", WHOLE, ids=["fdml", "vimadmm_joint"]
)


class Doubled(nn.Sequential):
    """Not what its layers say one after the other."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name PyTorch gave it
        for layer in self:
            input = 2 * layer(input)  # noqa: A001
        return input


def body() -> nn.Module:
    return build({"name": "mlp", "hidden": [7], "width": 4}, (6,), seed=1, owner="ada")


@pytest.mark.parametrize("algorithm", PARTS, ids=module_of)
def test_where_parties_hold_parts_a_model_is_left_as_it_is(
    algorithm: AnyAlgorithm,
) -> None:
    model = body()
    before = copy.deepcopy(model.state_dict())
    assert algorithm.complete(model, X[:1], 3, seed=0) is model
    assert model.training
    assert_bit_equal(before, model.state_dict())


@whole_models
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(
    "model",
    [
        body(),
        nn.Linear(6, 4),
        nn.Sequential(nn.Sequential(nn.Linear(6, 4), nn.ReLU()), nn.Linear(4, 2)),
        Doubled(nn.Linear(6, 4)),
        nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)),  # one row has no variance
    ],
    ids=["mlp", "one layer", "nested", "a forward of its own", "batch norm"],
)
def test_a_whole_model_is_the_part_times_a_head(
    algorithm: AnyAlgorithm, model: nn.Module, outputs: int
) -> None:
    before = copy.deepcopy(model)
    whole = algorithm.complete(copy.deepcopy(model), X[:1], outputs, seed=0).eval()
    *parameters, W = whole.parameters()
    h = before.eval()(X)
    assert W.shape == (outputs, h.shape[-1])
    assert torch.allclose(whole(X), h @ W.T, atol=1e-6)
    for mine, theirs in zip(parameters, before.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@whole_models
def test_a_head_comes_from_its_seed_alone(algorithm: AnyAlgorithm) -> None:
    before = torch.random.get_rng_state()
    one, same, other = (
        list(algorithm.complete(body(), X[:1], 3, seed=s).parameters())[-1]
        for s in (5, 5, 6)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(before, torch.random.get_rng_state())


@whole_models
@pytest.mark.parametrize("training", [True, False])
def test_looking_at_the_width_does_not_change_a_models_mode(
    algorithm: AnyAlgorithm, training: bool
) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5)).train(training)
    whole = algorithm.complete(model, X[:1], 3, seed=0)
    assert {part.training for part in whole.modules()} == {training}
