"""How the site is built: `make docs`, which is `sphinx-build -W -n --keep-going docs
docs/_build`.

Strict: a warning, a link to nowhere, or a public name, command, setting or error
without a page fails the build. The pages work from disk, without a network: no script
or font comes from elsewhere, and formulas are MathML.
"""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

project = "Colonnade"
author = "The Colonnade team"
copyright = author  # noqa: A001 - Sphinx's name for it
release = version = version_of("colonnade")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "docs._ext.mathml",
    "docs._ext.reference",
    "docs._ext.repository_links",
]
exclude_patterns = ["_build", "_ext", "_static"]
nitpicky = True
default_role = "code"
highlight_language = "text"
smartquotes = False

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
myst_dmath_double_inline = True

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries = False

html_theme = "furo"
html_title = "Colonnade"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["colonnade.css"]
html_copy_source = False
html_show_sphinx = False
