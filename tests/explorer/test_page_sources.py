"""The sources of the page: nothing goes in circles, and every view lies in a folder of its id."""

import importlib
import re
from pathlib import Path

import pytest

from tests.support.places import REPOSITORY
from unmask.explorer.page import VIEWS

SOURCES = REPOSITORY / "web" / "src"
IMPORT = re.compile(r"""(?:from|import) '(\.[^']*)'""")

pytestmark = pytest.mark.skipif(not SOURCES.is_dir(), reason="the sources of the page are not in this copy")


def target(file: Path, named: str) -> Path | None:
    """The file that an import names, as Vite finds it; None for a style sheet or a picture."""
    place = (file.parent / named).resolve()
    ends = ("", ".ts", ".svelte.ts", "/index.ts")
    if place.suffix == ".svelte" and not place.is_file():
        ends = (".ts",)
    for end in ends:
        candidate = Path(f"{place}{end}")
        if candidate.is_file():
            return candidate if candidate.suffix in (".ts", ".svelte") else None
    raise AssertionError(f"{file.relative_to(SOURCES)} imports {named}, which is not there")


def graph(sources: Path) -> dict[Path, set[Path]]:
    files = [path for path in sorted(sources.rglob("*")) if path.suffix in (".ts", ".svelte")]
    return {
        file: {
            found
            for named in IMPORT.findall(file.read_text(encoding="utf-8"))
            if (found := target(file, named)) is not None
        }
        for file in files
    }


def circles(edges: dict[Path, set[Path]]) -> list[list[str]]:
    """Ways from a file back to itself, each once."""
    done: set[Path] = set()
    closed: list[list[str]] = []

    def visit(file: Path, way: tuple[Path, ...]) -> None:
        if file in way:
            closed.append([part.name for part in (*way[way.index(file) :], file)])
        elif file not in done:
            for other in sorted(edges.get(file, ())):
                visit(other, (*way, file))
            done.add(file)

    for file in edges:
        visit(file, ())
    return closed


def test_no_file_of_the_page_imports_itself_through_others():
    """Nor for its types."""
    assert circles(graph(SOURCES)) == []


def test_a_circle_is_seen(tmp_path):
    (tmp_path / "a.ts").write_text("import type { B } from './b';\n")
    (tmp_path / "b.ts").write_text("import C from './c.svelte';\n")
    (tmp_path / "c.svelte").write_text("import { a } from './a';\n")
    assert circles(graph(tmp_path)) == [["a.ts", "b.ts", "c.svelte", "a.ts"]]


def test_every_view_lies_in_a_folder_of_its_id():
    folders = {path.name: path for path in (SOURCES / "views").iterdir() if path.is_dir()}
    assert set(folders) == {view.id for view in VIEWS}
    for name, folder in folders.items():
        component = (folder / f"{name.capitalize()}.svelte").read_text(encoding="utf-8")
        assert "const { explorer }: { explorer: Explorer } = $props();" in component, name


def test_what_the_snippets_import_is_there():
    """What the page hands over imports from modules that exist; its source is not Python."""
    source = (SOURCES / "export" / "python.ts").read_text(encoding="utf-8")
    imports = re.findall(r"from (unmask[\w.]*) import (\w+(?:, \w+)*)", source)
    assert len(imports) > 20
    for module, names in imports:
        for name in names.split(", "):
            assert hasattr(importlib.import_module(module), name), f"from {module} import {name}"
