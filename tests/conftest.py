"""What tests of several folders share: how examples are made, one thread of torch,
untraced threads, real data sets."""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile(
    "shared machine",
    deadline=None,  # the first call of a test may import, and others may be at work
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=True,  # what fails, fails again
)
hypothesis.settings.load_profile("shared machine")
NAMED = os.environ.get("COLONNADE_DATA")  # read before any test takes it away
REPOSITORY = Path(__file__).resolve().parents[1]
LONGEST = (
    *(
        "transport/test_flare_simulator.py",
        "conformance/test_algorithms.py",
        "faults/test_kill.py",
    ),
    *(
        "docs/test_tutorial.py",
        "docs/test_build.py",
        "examples/test_notebooks.py",
        "faults/test_kill_sites.py",
    ),
    *(
        "federation/test_flare.py",
        "federation/test_flare_sites.py",
        "federation/test_flare_multi.py",
    ),
    *(
        "serving/test_flare_serving.py",
        "serving/test_under_load.py",
        "reproduction/test_vim.py",
    ),
    *(
        "security/test_hostile_protocols.py",
        "security/test_canaries.py",
        "security/test_fuzz.py",
        "test_shape.py",
    ),
)
UNCOUNTED = (
    "faults",
    "security",
    "reproduction/test_vim.py",
    "reproduction/test_multi_vfl.py",
    "test_shape.py",
)
"""Folders and files that run for long what other tests have coverage count."""
counted: set[str] = set()


@pytest.fixture(scope="session", autouse=True)
def _no_power_cut() -> Iterator[None]:
    """Tests do not wait for the disk; `core/test_files.py` holds what is forced onto
    it, and when."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("colonnade.core.files._sync", lambda _: None)
        yield


@contextmanager
def uncounted(wanted: bool = True) -> Iterator[None]:
    """Without coverage, which makes Python code take half as long again or more."""
    tracer = sys.gettrace() if wanted else None
    if tracer is None:
        yield
        return
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What importing Colonnade runs is counted, and how pytest reads the tests is not."""
    if sys.gettrace() is not None:
        package = importlib.import_module("colonnade")
        for module in pkgutil.walk_packages(package.__path__, "colonnade."):
            with suppress(ImportError):  # what is optional may be missing
                importlib.import_module(module.name)
    with uncounted():
        return (yield)


@pytest.hookimpl(trylast=True)  # after those are gone that the command line deselects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: else one core still works on one of them when the others
    have nothing left.

    Coverage counts the first and the last case of each test, and none of the hundred
    examples of a property: they run few lines that no other test runs.
    """
    places = {name: place for place, name in enumerate(LONGEST)}
    inside = {
        item: item.path.relative_to(REPOSITORY / "tests").as_posix() for item in items
    }
    items.sort(key=lambda item: places.get(inside[item], len(places)))
    firsts = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
    lasts = {item.nodeid.partition("[")[0]: item for item in items}
    for item in (*firsts.values(), *lasts.values()):
        property_ = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        if not property_ and not inside[item].startswith(UNCOUNTED):
            counted.add(item.nodeid)


def pytest_collection_finish() -> None:
    """What is imported by now stays: the garbage collector need not go through it again
    and again."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with uncounted(item.nodeid not in counted):
        return (yield)


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    """The toys are too small for torch's own threads, which only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def untraced_threads() -> Iterator[None]:
    """Retries start threads by the thousand, and Python 3.11 cannot install a tracer,
    coverage's, in two at once."""
    tracer = threading.gettrace()
    threading.settrace(None)
    yield
    threading.settrace(tracer)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with the real data sets: COLONNADE_DATA, or a `data` folder of a
    neighbour of the repository."""
    beside = [
        path.parents[1]
        for path in sorted(REPOSITORY.parent.glob("*/data/mnist/mnist.npz"))
    ]
    folders = [Path(NAMED).expanduser()] if NAMED else beside
    if not folders or not folders[0].is_dir():
        pytest.skip("needs the real data sets: set COLONNADE_DATA to their folder")
    return folders[0]
