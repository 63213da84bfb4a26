"""Pages that keep the parser busy are skipped after their time, and those after them are read."""

import time

import pytest

from unmask.errors import InvalidText
from unmask.search.documents import read_documents
from unmask.search.documents.markup import html_text
from unmask.search.documents.pages import PARSED_HERE, PageParser

SLOW = {
    "attributes": "<div " + " ".join(f"a{n}=1" for n in range(300_000)) + ">x",
    "options": "<select>" + "<option>" * 300_000,
}
PLAIN = "<title>A &amp; b</title><p>the river</p>" + "<p>bank \u00e9</p>" * PARSED_HERE


def test_a_page_that_takes_too_long_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.search.documents.read.PageParser", lambda: PageParser(0.3))
    for name, source in SLOW.items():
        (tmp_path / f"{name}.html").write_text(source)
        (tmp_path / f"{name} after.html").write_text(PLAIN)
    began = time.monotonic()
    found = {getattr(one, "id", None) or one.name: one for one in read_documents(tmp_path)}
    assert time.monotonic() - began < 20
    for name in SLOW:
        said = found[f"{name}.html"].reason
        assert said == "parsing it takes more than 0.3 seconds; convert it to plain text first"
        text, title = html_text(PLAIN)
        after = found[f"{name} after.html"]
        assert (after.text, after.title) == (text, title)


def test_short_pages_are_never_slow():
    """They are parsed without a process."""
    for source in SLOW.values():
        began = time.process_time()
        html_text(source[:PARSED_HERE])
        assert time.process_time() - began < 1


def test_the_process_ends_with_the_block_and_errors_cross_it():
    with PageParser() as pages:
        assert pages.text(PLAIN) == html_text(PLAIN)
        process = pages._process
        with pytest.raises(InvalidText, match="nested more than 25,000 deep"):
            pages.text("<div>" * 30_000)
        assert pages._process is process
        process.kill()
        process.wait()
        with pytest.raises(InvalidText, match=r"parsing it ended its parser \(-9\)"):
            pages.text(PLAIN)
        assert pages.text(PLAIN) == html_text(PLAIN)
        process = pages._process
    assert process.poll() is not None
