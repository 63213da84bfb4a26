"""docs/start: every page, followed from top to bottom, prints what it shows."""

import re
from contextlib import ExitStack

import pytest

from tests.support.pages import blocks_of, is_shown, run_shell, wrong_outputs
from tests.support.places import REPOSITORY, default_folder
from unmask import serve
from unmask.base.optional import EXTRAS
from unmask.serve import make_app

pytestmark = pytest.mark.long

PAGES = sorted((REPOSITORY / "docs" / "start").glob("*.md"))
NEAR = {"finetune.md": 0.3}
"""How far numbers may be from those shown: what dropout drops in training depends on the machine."""


@pytest.fixture(params=PAGES, ids=lambda page: page.stem)
def page(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return request.param


def shown_commands(content):
    """The commands that a page shows without running them."""
    blocks = [block.code for block in blocks_of(content) if block.language == "console"]
    return [line.removeprefix("$ ") for code in blocks for line in code.splitlines() if line.startswith("$ ")]


class Server:
    """The server that a page starts, asked without a socket."""

    def __init__(self, stack):
        self.client, self._stack = None, stack

    def serve(self, models, *, on_ready, **options):
        from starlette.testclient import TestClient

        app = make_app({name: load() for name, load in models.items()})
        self._stack.callback(app.state.service.close)
        self.client = self._stack.enter_context(TestClient(app, base_url="http://127.0.0.1:8080"))
        on_ready("http://127.0.0.1:8080")


def test_it_prints_what_it_shows(page, monkeypatch, tmp_path):
    default_folder()
    content = page.read_text(encoding="utf-8")
    if "import transformers" in content or "from transformers" in content:
        pytest.importorskip("transformers", reason="the page compares with transformers")
    for block in blocks_of(content):
        if block.language == "toml":
            (name,) = re.findall(r"as `(\w+\.toml)`", content)
            (tmp_path / name).write_text(block.code)
    with ExitStack() as stack:
        server = Server(stack)
        monkeypatch.setattr(serve, "serve", server.serve)
        assert not wrong_outputs(content, page.name, near=NEAR.get(page.name, 0.015), server=server)


def test_it_begins_with_a_title_and_the_extras_that_there_are(page):
    content = page.read_text(encoding="utf-8")
    assert content.startswith("# ")
    first = shown_commands(content)[0]
    (extras,) = re.findall(r"^pip install (?:unmask|'unmask\[([\w,]+)\]')$", first)
    assert {*filter(None, extras.split(","))} <= {*EXTRAS}


def test_there_are_five_pages():
    assert [page.stem for page in PAGES] == ["embed", "finetune", "look", "search", "serve"]


def test_a_wrong_output_would_be_seen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_shown("a [0.5  0.25]\n1,\n2 ... 0.3 s", "a [0.51 0.25] 1,2 and more 0.9 s\n", 0.015)
    assert not is_shown("0.5", "0.52", 0.015)
    assert not is_shown("5 texts", "6 texts", 0.015)
    assert not is_shown("a", "a b", 0.015)
    wrong = "```python\nprint(1)\n```\n\n```text\n2\n```\n"
    assert wrong_outputs(wrong, "a.md") == [("print(1)\n", "2\n", "1\n")]
    assert run_shell("unmask nothing").startswith("unmask: ")
