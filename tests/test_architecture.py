"""The shape of the package: which way imports go, that tests mirror it, and what no
module may do."""

from __future__ import annotations

import ast
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "colonnade"
MODULES = sorted(
    path for path in PACKAGE.rglob("*.py") if not path.parent.name.startswith("_")
)

LAYERS = (
    {"errors", "version", "first_use", "installation"},
    {"settings"},
    {"store"},
    {"core"},
    {
        "transport",
        "datasets",
        "models",
        "optim",
        "privacy",
        "compression",
        "encryption",
    },
    {"algorithms", "alignment", "selection"},
    {"evaluate", "tracking"},
    {"rows"},
    {"runs"},
    {"federation"},
    {"sites"},
    {"explain", "attacks"},
    {"signing"},
    {"report", "planning"},
    {"serving", "export"},
    {"flare"},
    {"reproduction"},
    {"benchmark"},
    {"cli"},
    {"__main__"},
)
NOT_MIRRORED = {"conformance", "docs", "examples", "faults", "security"}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def layer(part: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if part in names)


def part_of(path: Path) -> str:
    """The top-level part a module belongs to: core, transport, ..."""
    inside = path.relative_to(PACKAGE)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def imported_parts(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(tree_of(path)):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] == "colonnade"
        ):
            words = node.module.split(".")
            found |= (
                {words[1]} if len(words) > 1 else {alias.name for alias in node.names}
            )
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("colonnade.")
            }
    return found - {"__version__"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_imports_go_one_way() -> None:
    upward = [
        f"{relative(path)} imports colonnade.{other}, which is not below it"
        for path in MODULES
        if path != PACKAGE / "__init__.py"
        for other in imported_parts(path) - {part_of(path)}
        if layer(other) >= layer(part_of(path))
    ]
    assert not upward


def test_a_package_has_what_it_says_that_it_has() -> None:
    """Names that are imported when they are first asked for, too: nothing else notices
    one whose module has moved."""
    for path in MODULES:
        if path.name == "__init__.py" and part_of(path) != "flare":
            package = import_module(
                ".".join(path.relative_to(PACKAGE.parent).parent.parts)
            )
            names = vars(package).get("__all__", [])
            lacking = [name for name in names if getattr(package, name, None) is None]
            assert not lacking, f"{package.__name__} has no {lacking}."


def test_the_core_imports_torch_and_numpy_alone() -> None:
    allowed = {"torch", "numpy", "colonnade", "__future__", *sys.stdlib_module_names}
    for path in MODULES:
        if part_of(path) in ("core", "errors"):
            # an import inside a function is made where it is used
            for node in tree_of(path).body:
                names = (
                    [alias.name for alias in node.names]
                    if isinstance(node, ast.Import)
                    else []
                )
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert {name.split(".")[0] for name in names} <= allowed, relative(path)


def test_the_store_imports_numpy_and_cryptography_alone() -> None:
    allowed = {"numpy", "cryptography", "__future__", *sys.stdlib_module_names}
    for path in MODULES:
        if part_of(path) == "store":
            assert imported_parts(path) <= {"errors", "store"}, relative(path)
            names = {name.split(".")[0] for name in imported_names(path)}
            assert names - {"colonnade"} <= allowed, relative(path)


def imported_names(path: Path) -> set[str]:
    """The modules that a module imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def has_code(path: Path) -> bool:
    return any(
        isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in tree_of(path).body
    )


def test_every_package_has_its_tests() -> None:
    """Tests mirror packages and not single modules, so that merging two modules is not
    punished."""
    packages = {
        path.parent for path in MODULES if path.parent != PACKAGE and has_code(path)
    }
    folders = {
        package: ROOT / "tests" / package.relative_to(PACKAGE) for package in packages
    }
    assert not [
        relative(package)
        for package, folder in folders.items()
        if not any(folder.glob("test_*.py"))
    ]


def test_every_test_folder_has_its_package() -> None:
    folders = {
        path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")
    } - NOT_MIRRORED
    assert folders <= {path.name for path in PACKAGE.iterdir() if path.is_dir()}


def test_no_pickle_and_no_unsafe_load() -> None:
    unsafe = (
        "import pickle",
        "cloudpickle",
        "import dill",
        "torch.load(",
        "allow_pickle=True",
        "torch.save(",
    )
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        assert not [word for word in unsafe if word in text], relative(path)


def test_only_an_outbox_the_wire_and_a_cohort_seal_tensors() -> None:
    users = {
        relative(path)
        for path in MODULES
        if "._seal(" in path.read_text(encoding="utf-8")
    }
    assert users == {
        "src/colonnade/core/outbox.py",
        "src/colonnade/core/release.py",
        "src/colonnade/core/wire.py",
        "src/colonnade/transport/cohort.py",
    }
