"""The shape of the package in figures: `python -m tests.shape` prints each measure, what it is, its bound and the aim.

Cycles, casts, twins, switches and sizes are read from the syntax; which files a journey enters is found by running it.
`tests/test_shape.py` holds the bounds. They only go down: lower one in the change that brings its figure down.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "colonnade"
ORGANISATIONS = ("settings", "rows", "federation", "runs", "sites", "flare")  # those of these packages that exist
SETTINGS = ("settings", *(f"federation.{name}" for name in ("settings", "owners", "party_file", "rules")))
TWINS = [("Federation", "MultiFederation"), ("Member", "MultiMember"), ("Site", "MultiSite"), ("Holdings", "Shares")]
ALIKE = 8  # members that two classes may have in common

BOUNDS: dict[str, tuple[int | None, int | None]] = {  # the bound, and the aim
    "modules in import cycles": (0, 0),
    "casts": (0, 0),
    "unions of twins": (0, 0),
    "hasattr, getattr of a fixed name": (0, 0),
    "pairs of classes alike": (0, 0),
    "switches on several label owners": (8, 8),
    "files entered by a federation from TOML": (22, 22),
    "files entered by predict": (25, 25),
    "files entered by a step of VIMADMM": (13, 17),
    "files entered by predict at a site": (35, 35),
    "source lines": (None, 36_500),
    "source lines beside algorithms and codecs": (48_250, None),  # one that joins them is welcome
    "modules over 500 lines": (0, 0),
    "modules under 40 lines, one importer": (0, 0),
    "modules": (None, None),
    "test lines": (None, None),
}
Modules = dict[str, ast.Module]


def texts_of(package: Path) -> dict[str, str]:
    """Every module by its name: colonnade.core.party, and colonnade.core for its __init__."""
    names = {path: path.relative_to(package.parent).with_suffix("").parts for path in sorted(package.rglob("*.py"))}
    return {
        ".".join(words[:-1] if words[-1] == "__init__" else words): path.read_text(encoding="utf-8")
        for path, words in names.items()
    }


def within(modules: Modules, *places: str) -> Modules:
    """Those in these packages of colonnade, and the modules named themselves."""
    names = {f"colonnade.{place}" for place in places}
    return {name: tree for name, tree in modules.items() if any(f"{name}.".startswith(f"{one}.") for one in names)}


def imports_of(modules: Modules) -> dict[str, set[str]]:
    """Whom each module imports, also inside functions and for type checkers alone. That a package's __init__ runs
    before its modules is no import of theirs."""
    found = {}
    for module, tree in modules.items():
        names = set()
        for node in nodes_of(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inside = [f"{node.module}.{alias.name}" for alias in node.names]
                names |= {name if name in modules else node.module for name in inside}
        found[module] = names & modules.keys() - {module}
    return found


def cycles_of(imports: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules of which each imports every other, by way of others or directly."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        reached[start], left = set(), [start]
        while left:
            new = imports[left.pop()] - reached[start]
            reached[start] |= new
            left += new
    groups = {tuple(sorted(b for b in reached[a] if a in reached[b])) for a in imports if a in reached[a]}
    return [list(group) for group in sorted(groups)]


@cache
def nodes_of(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


def calls_of(tree: ast.Module, *names: str) -> Iterator[ast.Call]:
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def by_fixed_name(tree: ast.Module) -> list[str]:
    return [ast.unparse(one) for one in calls_of(tree, "hasattr", "getattr") if isinstance(one.args[1], ast.Constant)]


def unions_of(tree: ast.Module, pairs: list[tuple[str, str]]) -> list[str]:
    """Every `A | B | …` with both of a pair in it, once."""
    bars = [node for node in nodes_of(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)]
    inner = {id(bar.left) for bar in bars}
    names = {bar: {node.id for node in ast.walk(bar) if isinstance(node, ast.Name)} for bar in bars}
    return [ast.unparse(bar) for bar in bars if id(bar) not in inner and any({*pair} <= names[bar] for pair in pairs)]


def members_of(kind: ast.ClassDef) -> set[str]:
    """Methods, class attributes (so also a dataclass's fields) and what methods assign to self; no dunders."""
    found = {node.name for node in kind.body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(kind):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                found.add(name)
    for statement in kind.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in found if not (name.startswith("__") and name.endswith("__"))}


def pairs_alike(modules: Modules) -> list[tuple[int, str, str]]:
    """Classes that have more than so many members of the same names; protocols are there to be alike."""
    classes = {}
    for module, tree in modules.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not any("Protocol" in ast.unparse(base) for base in node.bases):
                classes[f"{module}.{node.name}"] = members_of(node)
    pairs = [(len(classes[a] & classes[b]), a, b) for a, b in combinations(classes, 2)]
    return sorted((pair for pair in pairs if pair[0] > ALIKE), reverse=True)


def switches_of(tree: ast.Module) -> list[str]:
    """Where it is asked whether there are several label owners.

    - The truth of `….label_owners`, `….several`, `settings.shared`, `….server` or `….get("label_owners")` in if, while,
      assert, and, or, not, bool() or a comprehension's if; but not of the report's `facts.several`, which only says
      "round" or "epoch".
    - isinstance of a twin.
    - Every use of NESTED, and none of its imports.
    """
    tested: list[ast.expr] = [argument for call in calls_of(tree, "bool") for argument in call.args]
    found = [node.id for node in nodes_of(tree) if isinstance(node, ast.Name) and node.id == "NESTED"]
    for node in nodes_of(tree):
        if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)):
            tested.append(node.test)
        elif isinstance(node, ast.BoolOp):
            tested += node.values
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            tested.append(node.operand)
        elif isinstance(node, ast.comprehension):
            tested += node.ifs
    asks = re.compile(r"(?!facts\.)[\w.]+\.(label_owners|several|(?<=settings\.)shared|server|get\('label_owners'\))")
    found += [text for text in map(ast.unparse, tested) if asks.fullmatch(text)]
    twins = {name for pair in TWINS for name in pair}
    for call in calls_of(tree, "isinstance"):
        if any(isinstance(node, ast.Name) and node.id in twins for node in ast.walk(call.args[1])):
            found.append(ast.unparse(call))
    return found


def entered_by(journey: Callable[[], object]) -> list[str]:
    """The modules of which a function ran. Bodies of modules and classes run when they are imported: none counts."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            files.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        journey()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(str(Path(file).relative_to(PACKAGE)) for file in files if Path(file).is_relative_to(PACKAGE))


def journeys() -> dict[str, list[str]]:
    """What each enters at a small clinic and its laboratory, once it was made before and so everything is imported."""
    from tests.federation import small_sites

    from colonnade.federation import Federation, load
    from colonnade.sites.driving import drive
    from colonnade.sites.prediction import predict

    with tempfile.TemporaryDirectory() as folder:
        base, ids = Path(folder), ["P003", "P001"]
        file, _ = small_sites.folders(base)
        Federation.from_toml(file).fit(base / "run")
        sites = small_sites.sites(base)
        drive(sites["clinic"], "run")
        rows = base / "clinic" / "runs" / "run" / "rows"
        rows.mkdir()
        (rows / "new.csv").write_text("\n".join(["patient", *ids]), encoding="utf-8")
        steps = Federation.from_toml(file).train()

        def predict_at_a_site() -> Path:
            return predict(small_sites.sites(base)["clinic"], "run", "new.csv")

        ways: dict[str, Callable[[], object]] = {
            "a federation from TOML": lambda: Federation.from_toml(file),
            "predict": lambda: load(base / "run", ids=ids).predict(ids),
            "a step of VIMADMM": lambda: next(steps),
            "predict at a site": predict_at_a_site,
        }
        return {name: (journey(), entered_by(journey))[1] for name, journey in ways.items()}


def listed() -> dict[str, list[str]]:
    """What each measure counts; of sizes, the lines."""
    texts = texts_of(PACKAGE)
    modules = {name: ast.parse(text) for name, text in texts.items()}
    organisations, imports = within(modules, *ORGANISATIONS), imports_of(modules)
    elsewhere = {name: tree for name, tree in modules.items() if name not in within(modules, *SETTINGS)}
    alike = pairs_alike(organisations)
    twins = [*TWINS, *((a.rpartition(".")[2], b.rpartition(".")[2]) for _, a, b in alike)]
    lines = {name: len(text.splitlines()) for name, text in texts.items()}
    joining = within(modules, "algorithms", "compression")
    importers = Counter(name for names in imports.values() for name in names)
    small = [name for name in modules if lines[name] < 40 and not any(one.startswith(f"{name}.") for one in modules)]
    script = "import json; from tests.shape import journeys; print(json.dumps(journeys()))"
    path = {**os.environ, "PYTHONPATH": f"{PACKAGE.parent}{os.pathsep}{ROOT}"}
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=path, check=True, stdout=subprocess.PIPE)

    def each(among: Modules, find: Callable[[ast.Module], list[str]]) -> list[str]:
        return [f"{name}: {one}" for name, tree in among.items() for one in find(tree)]

    return {
        "modules in import cycles": [f"{n}: {one}" for n, group in enumerate(cycles_of(imports), 1) for one in group],
        "casts": each(organisations, lambda tree: [ast.unparse(one) for one in calls_of(tree, "cast")]),
        "unions of twins": each(organisations, lambda tree: unions_of(tree, twins)),
        "hasattr, getattr of a fixed name": each(organisations, by_fixed_name),
        "pairs of classes alike": [f"{a} and {b}: {count}" for count, a, b in alike],
        "switches on several label owners": each(elsewhere, switches_of),
        **{f"files entered by {name}": files for name, files in json.loads(ran.stdout).items()},
        "source lines": [line for text in texts.values() for line in text.splitlines()],
        "source lines beside algorithms and codecs": [
            line for name, text in texts.items() if name not in joining for line in text.splitlines()
        ],
        "modules over 500 lines": [name for name in modules if lines[name] > 500],
        "modules under 40 lines, one importer": [name for name in small if importers[name] == 1],
        "modules": list(modules),
        "test lines": [line for text in texts_of(ROOT / "tests").values() for line in text.splitlines()],
    }


def main() -> None:
    """The table; with the beginning of a measure's name, also what it counts."""
    found = listed()
    print(f"{'measure':45}{'today':>8}{'bound':>8}{'aim':>8}")
    for name, (bound, aim) in BOUNDS.items():
        figures = [len(found[name]), bound, aim]
        print(f"{name:45}" + "".join("".rjust(8) if one is None else f"{one:8,}" for one in figures))
    for name in BOUNDS:
        if any(name.startswith(wanted) for wanted in sys.argv[1:]):
            print("", name, *found[name], sep="\n  ")


if __name__ == "__main__":
    main()
