"""Sphinx's configuration of the documentation: `make docs` builds it."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Generic, TypeVar

import numpy.typing

import unmask

sys.path.insert(0, str(Path(__file__).parent))

Scalar = TypeVar("Scalar")


class NDArray(Generic[Scalar]):
    """Stands for NumPy's alias, which a signature would show by what it is an alias of."""


numpy.typing.NDArray = NDArray  # before the modules are imported that write it

project = "unmask"
release = unmask.__version__
root_doc = "index"
included = ("explorer", "extras", "kernels")  # parts of pages
exclude_patterns = ["_build", *(f"generated/{part}.md" for part in included)]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_pages.extension"]
default_role = "py:obj"  # single backticks in docstrings name something of the package
highlight_language = "text"
smartquotes = False  # it would make a dash of the hyphens of an option

# Anchors are those that a repository's page gives to headings, and a link to one that is missing is an error.
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": True}
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_rtype = False
if find_spec("torch") is None:
    suppress_warnings = ["autodoc"]  # names that need torch are left out

html_theme = "furo"
html_title = f"unmask {release}"
html_static_path = ["_static", "generated/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
