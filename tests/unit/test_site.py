"""The documentation as a site: every page has its place, links lead somewhere, nothing public is left out.

Sphinx is needed by the last test alone.
"""

import posixpath
import re
import shlex
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from cyclopts import App

from tests.support.command import run_here
from tests.support.places import REPOSITORY
from unmask.cli.commands import PANELS

DOCS = REPOSITORY / "docs"
sys.path.append(str(DOCS))

from site_pages import commands, http, tables  # noqa: E402 - from the folder of the pages

MADE = {f"generated/{name}" for name in (*commands.pages(), "http.md")}
"""Pages that are written when the site is built."""
PAGES = {
    path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8")
    for path in DOCS.rglob("*.md")
    if not {"_build", "generated"} & {*path.relative_to(DOCS).parts}
} | {f"generated/{name}": text for name, text in {**commands.pages(), "http.md": http.page()}.items()}


# --- pages and links ------------------------------------------------------------------------------------


def in_toctrees(page):
    """The pages that a page's tables of contents name."""
    for block in re.findall(r"^```{toctree}\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL):
        for entry in re.findall(r"^(?!:)(\S+)$", block, re.MULTILINE):
            pattern = posixpath.normpath(f"{posixpath.dirname(page)}/{entry}.md").lstrip("/")
            found = {one for one in PAGES if Path(one).match(pattern)} - {page}
            yield from found if "*" in entry else [pattern]


def test_every_page_has_one_place():
    places = Counter(child for page in PAGES for child in in_toctrees(page))
    assert {name for name, count in places.items() if count != 1} == set()
    assert set(places) == set(PAGES) - {"index.md"}


def without_code(text):
    return re.sub(r"^(```+).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text):
    """The anchors that headings get, on a repository's page and on the site."""
    for heading in re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading.strip().lower())
        yield re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")


def dead_links(pages, other_files=()):
    """Links of pages to what is not there: another page, a heading or a file beside them."""
    for page, text in pages.items():
        for target in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", without_code(text)):
            path, _, anchor = target.partition("#")
            place = (DOCS / page).parent / path if path else DOCS / page
            name = Path(*place.parts).resolve().relative_to(REPOSITORY).as_posix().removeprefix("docs/")
            if name in pages:
                if anchor and anchor not in {*anchors(pages[name])}:
                    yield f"{page}: {target}"
            elif not name.startswith(tuple(other_files)):
                yield f"{page}: {target}"


def test_links_between_pages_lead_somewhere():
    assert [*dead_links(PAGES, ["pictures/"])] == []
    pictures = re.findall(r"\(pictures/([^)]+)\)", "".join(PAGES.values()))
    assert [name for name in pictures if not (DOCS / "pictures" / name).is_file()] == []


def test_a_dead_link_is_seen():
    pages = {"a.md": "# A\n[b](b.md#second) [c](c.md) [d](#a) [e](b.md#first)", "b.md": "# B\n## `Second`"}
    assert [*dead_links(pages)] == ["a.md: c.md", "a.md: b.md#first"]


# --- commands, routes, extras ---------------------------------------------------------------------------


def test_every_command_of_the_help_is_in_the_reference():
    shown = re.findall(r"^│ +([a-z-]+) ", run_here("--help").out, re.MULTILINE)
    named = {command.name for shelf in PANELS.values() for command in shelf}
    assert named <= {*shown}
    titles = re.findall(r"^##+ unmask (.+)$", "".join(PAGES[page] for page in MADE), re.MULTILINE)
    assert named <= {*titles}
    assert len(titles) == len({*titles})


def test_every_option_of_a_command_is_in_its_section():
    text = "".join(PAGES[page] for page in MADE)
    for shelf in PANELS.values():
        for name, function in ((command.name, command.load()) for command in shelf):
            if isinstance(function, App):
                continue
            section = text.partition(f"## unmask {name}\n")[2].partition("\n## ")[0]
            app = App()
            app.default(function)
            for argument in app.assemble_argument_collection():
                for option in argument.names if argument.names != ("*",) else ():
                    assert not option.startswith("-") or f"`{option}`" in section, (name, option)


def test_routes_and_extras_are_in_the_reference():
    from unmask.base.optional import EXTRAS
    from unmask.serve.routes import GETS, ROUTES

    titles = "".join(re.findall(r"^### (.*\n)", PAGES["generated/http.md"], re.MULTILINE))
    for route in (*ROUTES, *GETS):
        assert re.search(rf" {route.path}[,\n]", titles), route.path
    assert re.findall(r"^\| `([\w-]+)` \|", tables.table_of_extras(), re.MULTILINE) == sorted(EXTRAS)


# --- code on the pages that no other test runs --------------------------------------------------------------


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)


def test_python_of_the_first_page(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks("index.md", "python"):
        exec(compile(block, "index.md", "exec"), names)
    assert (names["vectors"].shape, names["scores"].shape) == ((2, 384), (1, 2))
    tokens = len(names["model"].tokenize(names["texts"][0]))
    assert names["weights"].shape == (tokens, tokens)


@pytest.mark.parametrize("page", ["index.md", "kernels.md", "install.md", "numerics.md", "security.md"])
def test_commands_of_pages(page):
    for line in "".join(blocks(page, "sh")).splitlines():
        *fed, command = line.split(" | ")
        text = shlex.split(fed[0])[1].replace("\\n", "\n") if fed else ""
        ran = run_here(*shlex.split(command)[1:], stdin=text.encode())
        assert ran.code == 0, ran.err
        assert ran.out


# --- the site itself ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    if find_spec("sphinx") is None or find_spec("furo") is None or find_spec("myst_parser") is None:
        pytest.skip("the packages of the docs extra are not installed")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    ran = subprocess.run([*command, DOCS, tmp_path], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    inventory = (tmp_path / "objects.inv").read_bytes()
    assert inventory
    made = {path.relative_to(tmp_path).with_suffix(".md").as_posix() for path in tmp_path.rglob("*.html")}
    assert set(PAGES) <= made
