"""A model is built by name or import path, from its own seed, and a bad description is
explained."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from colonnade import models
from colonnade.errors import ConfigError
from colonnade.models import MODELS, cnn, identity, linear, mlp
from colonnade.settings.federation_file import import_path

NETS = """
from torch import nn

PI = 3.14

class Tower(nn.Module):
    def __init__(self, shape, depth=1):
        super().__init__()
        self.shape, self.depth = shape, depth
        self.layer = nn.Linear(shape[0], 4)

class Shapeless(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.settings = settings

def number(shape):
    return 3

def leaves(shape):
    raise SystemExit(0)
"""
OWN = (
    "my_nets:Tower",
    "my_nets.Shapeless",
    "my_nets:number",
    "my_nets:leaves",
    "my_nets:Towre",
    "my_nets:PI",
)
OTHERS = (
    "no_such_package.nets:Tower",
    "..my_nets:Tower",
    "subprocess:Popen",
    "builtins:exit",
    "leaving:Tower",
)


def build(
    spec: Any, shape: tuple[int, ...], *, seed: int = 0, owner: str = "bank"
) -> nn.Module:
    """By an owner who allows what these tests name."""
    return models.build(spec, shape, seed=seed, owner=owner, allow=[*OWN, *OTHERS])


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "my_nets.py").write_text(NETS)
    (tmp_path / "leaving.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_nets", None)


def weights(model: nn.Module) -> list[Tensor]:
    return list(model.state_dict().values())


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(map(torch.equal, weights(a), weights(b)))


def test_the_registry_is_literal() -> None:
    assert dict(MODELS) == {
        "mlp": mlp,
        "cnn": cnn,
        "linear": linear,
        "identity": identity,
    }


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(5, 6), (3, 8, 8)])
def test_a_name_alone_will_do(name: str, shape: tuple[int, ...]) -> None:
    width = math.prod(shape) if name == "identity" else 60
    assert build(name, shape, seed=0, owner="bank")(torch.randn(2, *shape)).shape == (
        2,
        width,
    )


def test_settings_reach_the_model_and_the_name_may_be_left_out() -> None:
    model = build({"hidden": [3, 4], "width": 5}, (7,), seed=0, owner="bank")
    sizes = [
        (part.in_features, part.out_features)
        for part in model.modules()
        if isinstance(part, nn.Linear)
    ]
    assert sizes == [(7, 3), (3, 4), (4, 5)]


def test_the_description_is_left_as_it_was() -> None:
    spec = {"name": "mlp", "width": 5}
    build(spec, (7,), seed=0, owner="bank")
    assert spec == {"name": "mlp", "width": 5}


@pytest.mark.parametrize("path", ["my_nets:Tower", "my_nets.Tower"])
def test_an_import_path_is_called_with_its_settings_and_the_shape(path: str) -> None:
    model: Any = build({"name": path, "depth": 3}, (7,), seed=0, owner="bank")
    assert (type(model).__name__, model.shape, model.depth) == ("Tower", (7,), 3)


def test_a_model_that_takes_no_shape_gets_none() -> None:
    model: Any = build(
        {"name": "my_nets:Shapeless", "a": 1}, (7,), seed=0, owner="bank"
    )
    assert model.settings == {"a": 1}


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            "mpl",
            (
                r"The model of 'bank' is 'mpl' \(did you mean 'mlp'\?\). Use one of"
                r" mlp, cnn, linear, identity,"
            ),
        ),
        ("transformer", "The model of 'bank' is 'transformer'. Use one of"),
        ("", "The model of 'bank' is ''"),
        (":", "The model of 'bank' is ':'"),
        (
            "no_such_package.nets:Tower",
            (
                "'no_such_package.nets:Tower' of 'bank' cannot be imported: No module"
                " named"
            ),
        ),
        (
            "my_nets:Towre",
            (
                "'my_nets:Towre' of 'bank' cannot be imported: module 'my_nets' has no"
                " attribute 'Towre'"
            ),
        ),
        ("..my_nets:Tower", "'..my_nets:Tower' of 'bank' cannot be imported"),
        ("my_nets:PI", "'my_nets:PI' of 'bank' is a float, which cannot be called"),
        (
            "subprocess:Popen",
            (
                "'subprocess:Popen' of 'bank' is a class, and no subclass of"
                " torch.nn.Module"
            ),
        ),
        ("builtins:exit", "'builtins:exit' of 'bank' cannot be made: SystemExit"),
        ("my_nets:leaves", "'my_nets:leaves' of 'bank' cannot be made: SystemExit: 0"),
        ("leaving:Tower", "'leaving:Tower' of 'bank' cannot be imported: 0"),
        (
            "my_nets:number",
            "'my_nets:number' of 'bank' is a int, not a torch.nn.Module",
        ),
        (
            {"name": "mlp", "widht": 3},
            (
                r"'mlp' of 'bank' has no setting 'widht' \(did you mean 'width'\?\). It"
                r" knows: hidden, width, activation,"
            ),
        ),
        ({"name": "mlp", "shape": [3]}, "'mlp' of 'bank' has no setting 'shape'"),
        (
            {"name": "my_nets:Tower", "deep": 3},
            r"'deep' \(did you mean 'depth'\?\). It knows: depth\.",
        ),
        (
            {"name": "mlp", "hidden": 5},
            "'mlp' of 'bank': hidden must be a list of whole numbers, 1 or more each",
        ),
        *(
            ({"name": "mlp", "hidden": [one]}, "hidden must be a list of whole")
            for one in ("a", -3, 0, 1.5, True)
        ),
        *(
            ({"name": "mlp", "width": one}, "width must be a whole number")
            for one in ("a", -2, 0, 1.5, True, [3])
        ),
        ({"name": "cnn", "channels": 8}, "channels must be a list of whole numbers"),
        ({"name": "convolution", "channels": [8]}, "channels must be a whole number"),
        ({"name": "cnn"}, "'cnn' needs rows of"),
    ],
)
def test_a_bad_description_is_explained(spec: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        build(spec, (7,), seed=0, owner="bank")


def test_nothing_is_imported_that_the_owner_did_not_list(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Tower: pass"
    )
    for allow in ((), ("planted:Towers", "planted", "Tower", "planted.Tower.x")):
        with pytest.raises(
            ConfigError,
            match=r"'planted:Tower' of 'bank' is code from .*\s+--allow-model planted",
        ):
            models.build("planted:Tower", (7,), seed=0, owner="bank", allow=allow)
        with pytest.raises(
            ConfigError, match=r"in your own party\.toml, in Python by allow_models="
        ):
            models.build_head(
                {"name": "planted:Tower"}, (7,), 2, seed=0, owner="bank", allow=allow
            )
    assert "planted" not in sys.modules
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ("mlp", None),
        ({"hidden": [3]}, None),
        (None, None),
        ({}, None),
        (3, None),
        ({"name": 3}, None),
        (":", None),
        ("a.b:C", "a.b:C"),
        ({"name": "a.C", "depth": 3}, "a.C"),
    ],
)
def test_a_description_names_code_or_not(spec: Any, path: str | None) -> None:
    assert import_path(spec) == path


@pytest.mark.parametrize("name", ["mlp", "cnn", "linear", "my_nets:Tower"])
def test_equal_seeds_give_equal_weights_and_others_do_not(name: str) -> None:
    one, again, other = (
        build(name, (6, 6), seed=seed, owner="bank") for seed in (3, 3, 4)
    )
    assert same(one, again)
    assert not same(one, other)


@pytest.mark.parametrize("spec", ["mlp", "cnn", "my_nets:number"])
def test_no_global_random_number_is_used_or_changed(spec: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    try:
        first = build(spec, (6, 6), seed=3, owner="bank")
    except ConfigError:
        assert torch.equal(torch.get_rng_state(), before)
        return
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert same(first, build(spec, (6, 6), seed=3, owner="bank"))
