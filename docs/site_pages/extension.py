"""The extension of Sphinx: writes the pages that are made from the program, and connects the links."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import unmask
from site_pages import commands, explorer, http, references, tables
from unmask import bulk


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect everything here to a build."""
    if find_spec("torch") is not None:
        import_lazy_names()
    # What the pages embed; Sphinx asks for the folder before it builds anything.
    (Path(app.srcdir) / "generated" / "static").mkdir(parents=True, exist_ok=True)
    app.connect("builder-inited", write_pages)
    app.connect("doctree-read", references.title_for_file_name)
    app.connect("doctree-read", references.dash_after_argument)
    app.connect("missing-reference", references.name_of_the_package)
    app.connect("autodoc-process-signature", references.readable_defaults)
    app.connect("autodoc-process-docstring", references.drawn_tree)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def import_lazy_names() -> None:
    """Import what packages import on first use, so that `automodule` finds all that they offer."""
    for package in (unmask.interpret, bulk):
        vars(package).update({name: getattr(package, name) for name in package.__all__})


def write_pages(app: Sphinx) -> None:
    """Write the pages that are not committed, each only if it has changed, so that a build can be resumed."""
    folder = Path(app.srcdir) / "generated"
    pages = {
        **commands.pages(),
        "http.md": http.page(),
        "extras.md": tables.table_of_extras(),
        "kernels.md": tables.table_of_kernels(),
        "explorer.md": explorer.frames(folder / "static" / "saved"),
    }
    for old in set(folder.glob("*.md")) - {folder / name for name in pages}:
        old.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
