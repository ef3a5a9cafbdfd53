"""Links that leave docs/ work on a code host as they are; in the site they lead to a
page, or to a copy of the file."""

from __future__ import annotations

import os
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

PAGES = {
    "README.md": "index",
    "CONTRIBUTING.md": "how-to-add-an-algorithm",
    "examples/two_hospitals_two_centres/README.md": "examples",
}
"""Files of the repository that are pages of the site; any other file is copied into it.
"""


def redirect(app: Sphinx, doctree: nodes.document) -> None:
    root = Path(app.srcdir).resolve().parent
    for node in list(doctree.findall(addnodes.pending_xref)):
        target = str(node["reftarget"])
        if node.get("refdomain") != "doc" or target in app.env.found_docs:
            continue
        path = Path(target if target.endswith(".md") else f"{target}.md").resolve()
        if not path.is_file():
            continue  # no such file: it stays a link to nowhere, which fails the build
        name = path.relative_to(root).as_posix()
        if name in PAGES:
            node["reftarget"] = PAGES[name]
            continue
        here = Path(app.env.doc2path(app.env.docname)).parent
        copy = addnodes.download_reference(
            "", "", reftarget=os.path.relpath(path, here), refdoc=app.env.docname
        )
        copy.extend(node.children)
        node.replace_self(copy)


def setup(app: Sphinx) -> dict[str, bool]:
    # before Sphinx collects what to copy
    app.connect("doctree-read", redirect, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
