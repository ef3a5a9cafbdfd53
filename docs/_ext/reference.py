"""The reference: directives that write it, and a check that nothing a user can touch is
without a page.

```{command} run                  one command's usage, arguments and options
```{settings} train               one section's keys
```{errors}                       the tree of errors      ```{exit-codes}
```{public} colonnade.core        the names in the body, one per line, from their docstrings
"""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

from docs._ext import docstrings, pages, surface
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

logger = logging.getLogger(__name__)


class Written(SphinxDirective):
    """Parses Markdown that is made when the site is built."""

    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True

    def parsed(self, text: str, *covers: str) -> list[nodes.Node]:
        covered(self.env).setdefault(self.env.docname, set()).update(covers)
        place = nodes.container()
        self.state.nested_parse(
            StringList(text.splitlines(), source=self.env.docname), 0, place
        )
        return place.children


class Command(Written):
    def run(self) -> list[nodes.Node]:
        (name,) = self.arguments
        if name not in surface.commands():
            raise self.error(f"There is no command 'colonnade {name}'.")
        return self.parsed(pages.command(name), f"command {name}")


class Settings(Written):
    def run(self) -> list[nodes.Node]:
        (section,) = self.arguments
        named = surface.sections(section)
        if not set(named) & set(surface.settings()):
            raise self.error(f"The federation file has no section [{section}].")
        return self.parsed(
            pages.settings(section), *(f"section {one}" for one in named)
        )


class Errors(Written):
    def run(self) -> list[nodes.Node]:
        return self.parsed(
            pages.errors(), *(f"error {name}" for name in surface.errors())
        )


class ExitCodes(Written):
    def run(self) -> list[nodes.Node]:
        return self.parsed(pages.exit_codes())


class Public(Written):
    """Names of one package, each with what its docstring says; a name that lives
    elsewhere is a line with a link."""

    def run(self) -> list[nodes.Node]:
        (package,) = self.arguments
        module = surface.packages().get(package)
        if module is None:
            raise self.error(f"There is no public package {package}.")
        names = "\n".join(self.content).split()
        unknown = [name for name in names if name not in module.__all__]
        if unknown:
            raise self.error(f"{package} has no public name {', '.join(unknown)}.")
        text = "\n".join(line for name in names for line in _entry(module, name))
        return self.parsed(
            f"```{{eval-rst}}\n{text}\n```\n",
            *(f"name {package}.{name}" for name in names),
        )


def _entry(module: ModuleType, name: str) -> list[str]:
    full = f"{module.__name__}.{name}"
    value = getattr(module, name)
    home = home_of(full)
    if home != full:
        return [
            f".. py:data:: {full}",
            "   :no-index-entry:",
            "",
            f"   The same as :py:obj:`{home}`.",
            "",
        ]
    if inspect.ismodule(value):
        return [f".. automodule:: {full}", "   :members:", ""]
    if inspect.isclass(value):
        # a field of this name would be taken for the type
        hidden = "   :exclude-members: bytes"
        return [f".. autoclass:: {full}", "   :members:", hidden, ""]
    if inspect.isfunction(value):
        return [f".. autofunction:: {full}", ""]
    several = sum(name in other.__all__ for other in surface.packages().values()) > 1
    return [
        f".. autodata:: {full}",
        "   :no-value:",
        *(["   :no-index:"] if several else []),
        "",
    ]


def home_of(full: str) -> str:
    """Under which public name a thing is explained that has several: the shortest, else
    its own package's."""
    package, _, name = full.rpartition(".")
    value = getattr(importlib.import_module(package), name)
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return full
    same = [
        f"{other}.{name}"
        for other, module in surface.packages().items()
        if name in module.__all__ and getattr(module, name) is value
    ]
    own = [
        one
        for one in same
        if (value.__module__ or "").startswith(one.rpartition(".")[0])
    ]
    return min(own or same, key=lambda one: (one.count("."), one))


def covered(env: BuildEnvironment) -> dict[str, set[str]]:
    """Page -> what it explains; kept with the environment, so that a second build need
    not read every page again."""
    if not hasattr(env, "colonnade_covered"):
        env.colonnade_covered = {}  # type: ignore[attr-defined]
    found: dict[str, set[str]] = env.colonnade_covered  # type: ignore[attr-defined]
    return found


def forget(_: Sphinx, env: BuildEnvironment, docname: str) -> None:
    covered(env).pop(docname, None)


def check(_: Sphinx, env: BuildEnvironment) -> None:
    """Warn, which fails a strict build, of everything without a page or without words."""
    on_pages = set().union(*covered(env).values()) if covered(env) else set()
    wanted = {
        *(f"name {name}" for name in surface.public_names()),
        *(f"command {name}" for name in surface.commands()),
        *(f"section {name}" for name in surface.settings()),
        *(f"error {name}" for name in surface.errors()),
    }
    for one in pages.uncovered(wanted, on_pages):
        logger.warning("The reference has no page for %s.", one)
    for one in (*pages.unexplained_commands(), *pages.unexplained_errors()):
        logger.warning("%s has no words of help.", one)
    for one in pages.unexplained_settings():
        logger.warning("Nothing says what %s is for.", one)


def plain_docstring(
    _: Sphinx, what: str, _name: str, value: Any, _options: Any, lines: list[str]
) -> None:
    of_its_class = (
        inspect.cleandoc(type(value).__doc__ or "") if what == "data" else None
    )
    lines[:] = (
        [] if "\n".join(lines).strip() == of_its_class else docstrings.to_rst(lines)
    )


def resolve(
    app: Sphinx, env: BuildEnvironment, node: Any, contnode: nodes.Node
) -> nodes.Node | None:
    """A type in a signature is known by where it is defined: link it to where it is
    explained, or leave it as text where it is no public name of ours. What does not
    exist at all stays unresolved, and is a warning."""
    if node.get("refdomain") != "py":
        return None
    target = str(node["reftarget"])
    if not target.startswith("colonnade"):
        return contnode
    package, _, name = target.rpartition(".")
    try:
        value = getattr(importlib.import_module(package), name)
    except (ImportError, AttributeError, ValueError):
        return None
    for other, module in surface.packages().items():
        if (
            name in module.__all__
            and getattr(module, name) is value
            and f"{other}.{name}" != target
        ):
            python: Any = env.domains["py"]
            home = home_of(f"{other}.{name}")
            found: nodes.Node | None = python.resolve_xref(
                env, node["refdoc"], app.builder, "obj", home, node, contnode
            )
            return found or contnode
    return contnode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("command", Command)
    app.add_directive("settings", Settings)
    app.add_directive("errors", Errors)
    app.add_directive("exit-codes", ExitCodes)
    app.add_directive("public", Public)
    app.connect("env-purge-doc", forget)
    app.connect("env-check-consistency", check)
    app.connect("autodoc-process-docstring", plain_docstring)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
