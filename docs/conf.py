"""Sphinx's configuration of the documentation: `make docs` builds it."""

import sys
from pathlib import Path

import unmask

sys.path.insert(0, str(Path(__file__).parent))

project = "unmask"
release = unmask.__version__
root_doc = "index"
exclude_patterns = ["_build", *(f"generated/{part}.md" for part in ("explorer", "extras", "kernels"))]  # included
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "extension"]
default_role = "py:obj"  # single backticks in docstrings name something of the package
smartquotes = False  # it would make a dash of the hyphens of an option

# Anchors are those that a repository's page gives to headings, and a link to one that is missing is an error.
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": True, "show-inheritance": True}
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_rtype = False
if not __import__("importlib.util").util.find_spec("torch"):
    autodoc_mock_imports = ["torch"]

html_theme = "furo"
html_title = f"unmask {release}"
html_static_path = ["_static", "generated/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
