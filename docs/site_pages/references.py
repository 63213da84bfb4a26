"""Names in docstrings and file names in pages that become links."""

import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

OBJECT = re.compile(r"<(?:[^<>]|<[^<>]*>)*>")
FILE_NAME = re.compile(r"[\w./-]+\.md")


def title_for_file_name(app: Sphinx, doctree: nodes.document) -> None:
    """A link whose text is the name of a page, as pages are read in the repository, gets the page's title."""
    for node in doctree.findall(pending_xref):
        if node.get("reftype") == "myst" and FILE_NAME.fullmatch(node.astext()):
            node["refexplicit"] = False
            node.clear()


def dash_after_argument(app: Sphinx, doctree: nodes.document) -> None:
    """Between an argument and what it is stands a dash, which Sphinx writes as two hyphens."""
    for paragraph in doctree.findall(lambda node: isinstance(node, nodes.paragraph)):
        for text in paragraph.children:
            if isinstance(text, nodes.Text) and text.astext() == " -- ":
                paragraph.replace(text, nodes.Text(" \N{EN DASH} "))


def name_of_the_package(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Node | None:
    """A name in single backticks, such as `Model.embed`, refers to the only thing that ends with it.

    None, and then no link, if nothing or more than one does.
    """
    if node.get("refdomain") != "py":
        return None
    domain = env.domains["py"]
    assert isinstance(domain, PythonDomain)
    target = node["reftarget"].removesuffix("()")
    found = {
        entry.node_id: entry
        for name, entry in domain.objects.items()
        if name == target or name.endswith(f".{target}")
    }
    if len(found) != 1:
        return None
    (entry,) = found.values()
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, target)


def readable_defaults(  # noqa: PLR0917 - the arguments of the event
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """A default that Python writes as ``<function ...>`` becomes ``...``, so that Sphinx reads the rest."""
    return signature and OBJECT.sub("...", signature), returns


def drawn_tree(  # noqa: PLR0917 - the arguments of the event
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """The tree of errors is a drawing, which keeps its lines."""
    if name == "unmask.errors":
        lines[1:] = ["", ".. code-block:: text", "", *(f"   {line}" for line in lines[2:])]
