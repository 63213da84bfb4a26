"""What Sphinx cannot do by itself: pages made from the program, and names in docstrings that become links."""

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from extension import commands, explorer, extras, http, kernels, references


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect everything here to a build."""
    # What the pages embed; Sphinx asks for the folder before it builds anything.
    (Path(app.srcdir) / "generated" / "static").mkdir(parents=True, exist_ok=True)
    app.connect("builder-inited", write_pages)
    app.connect("doctree-read", references.title_for_file_name)
    app.connect("missing-reference", references.name_of_the_package)
    app.connect("autodoc-process-signature", references.short_types)
    app.connect("autodoc-process-docstring", references.drawn_tree)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_pages(app: Sphinx) -> None:
    """Write the pages that are not committed, each only if it has changed, so that a build can be resumed."""
    folder = Path(app.srcdir) / "generated"
    pages = {
        **commands.pages(),
        "http.md": http.page(),
        "extras.md": extras.table_of_extras(),
        "kernels.md": kernels.table_of_kernels(),
        "explorer.md": explorer.frames(folder / "static" / "saved"),
    }
    for old in set(folder.glob("*.md")) - {folder / name for name in pages}:
        old.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
