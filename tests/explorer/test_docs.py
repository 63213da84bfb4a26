"""docs/explore.md: its keys and views are those of the page, its pictures are there and light."""

import re
import shlex

import pytest

from tests.support.command import run_here
from tests.support.places import REPOSITORY
from unmask.explorer.page import VIEWS
from unmask.search.store import Store

PAGE = REPOSITORY / "docs" / "explore.md"
TEXT = PAGE.read_text(encoding="utf-8")
SOURCES = REPOSITORY / "web" / "src"
PICTURES = REPOSITORY / "docs" / "pictures" / "explorer"
WRITTEN = {"\u2212": "-", "Esc": "Esc"}


def shown_keys():
    """Keys as the page's own help writes them."""
    keys = (SOURCES / "state" / "keys.ts").read_text(encoding="utf-8")
    table = keys.partition("BINDINGS: readonly Binding[] = [")[2].partition("];")[0]
    for key, rest in re.findall(r"bind\('([^']+)',(.*)", table):
        match = re.search(r"(?:true|false), '([^']+)'\)", rest)
        shown = match.group(1) if match else key
        yield WRITTEN.get(shown, shown)


def test_keys_are_those_of_the_page():
    table = TEXT.partition("## Keys")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))
    named = {key for row in listed for key in re.findall(r"`([^`]+)`", row)}
    named |= set(re.findall(r"`(Esc)`", table))
    assert len(set(shown_keys())) > 10
    assert named == {*shown_keys(), *(view.key for view in VIEWS)}


def test_every_view_is_explained():
    explained = re.findall(r"^\*\*([\w ]+)\*\* \(`(\w)`\):", TEXT, re.MULTILINE)
    assert explained == [(view.title, view.key) for view in VIEWS]


def test_pictures_are_there_and_light():
    named = set(re.findall(r"\]\(pictures/explorer/([^)]+)\)", TEXT))
    sizes = {path.name: path.stat().st_size for path in PICTURES.iterdir()}
    assert set(sizes) == named
    assert max(sizes.values()) < 300_000
    assert sum(sizes.values()) < 3_000_000


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT):
        assert (PAGE.parent / target).exists(), target


@pytest.mark.parametrize("line", re.findall(r"^unmask explore.*?(?=  #|$)", TEXT, re.MULTILINE))
def test_commands_are_understood(line, monkeypatch, tmp_path):
    """Up to the server, which is not started."""
    from unmask import explorer

    Store.create(tmp_path / "my-index", {})
    (tmp_path / "my-texts.txt").write_text("a text\n")
    monkeypatch.chdir(tmp_path)
    started = []
    monkeypatch.setattr(explorer, "serve", lambda models, **options: started.append((models, options)))
    ran = run_here(*shlex.split(line, comments=True)[1:])
    assert (ran.code, ran.err) == (0, "")
    ((models, _),) = started
    assert len(models) == (1 if "-m default" in line else 2)
