"""A PDF that is opened in the page: its text, or one sentence that says why there is none."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.small_pdf import small_pdf
from unmask.explorer.routes import session
from unmask.search.documents.pdf import pdf_documents

pytest.importorskip("pypdfium2", reason="the search extra is not installed")
TEXT = "The river bank was muddy."


def posted(asking, raw, name="a.pdf"):
    answer = asking.api.answer("POST", "pdf", {"name": name}, raw)
    return answer.status, json.loads(answer.data)


def test_the_text_of_a_pdf_page_after_page(asking):
    status, found = posted(asking, small_pdf([TEXT, "A second page."]))
    assert (status, found) == (200, {"text": f"{TEXT}\nA second page.", "pages": 2, "without_text": 0})


def test_pages_without_text_are_counted(asking):
    status, found = posted(asking, small_pdf([None, TEXT, None]))
    assert (status, found["pages"], found["without_text"]) == (200, 3, 2)
    assert found["text"].strip() == TEXT


@pytest.mark.parametrize(
    ("raw", "status", "kind", "words"),
    [
        (small_pdf([None]), 422, "NoText", "scan.pdf was not read: it has no text; run OCR first"),
        (small_pdf([""]), 422, "NoText", "scan.pdf was not read: it has no text; run OCR first"),
        (b"%PDF-1.7 nonsense", 422, "NoText", "scan.pdf was not read: it is not a PDF file that can be read"),
        (b"", 422, "NoText", "scan.pdf was not read: it is not a PDF file that can be read"),
    ],
)
def test_a_pdf_without_text_is_refused_in_one_sentence(asking, raw, status, kind, words):
    given, answer = posted(asking, raw, "scan.pdf")
    assert (given, answer["error"]["kind"]) == (status, kind)
    assert answer["error"]["sentence"].startswith(words)
    assert "\n" not in answer["error"]["sentence"]


def test_the_size_is_limited_and_the_page_knows_the_limit(asking, monkeypatch):
    assert asking.json("session")["limits"]["pdf_bytes"] == session.MAX_PDF_BYTES
    monkeypatch.setattr(session, "MAX_PDF_BYTES", 10)
    status, answer = posted(asking, small_pdf([TEXT]))
    assert status == 413
    assert "a PDF may have 10, not more" in answer["error"]["sentence"]


def test_without_the_packages_the_sentence_names_them(asking, monkeypatch):
    monkeypatch.setattr("unmask.base.optional._found", lambda module: module != "pypdfium2")
    status, answer = posted(asking, small_pdf([TEXT]))
    assert status == 409
    assert "pip install 'unmask[search]'" in answer["error"]["sentence"]


def test_several_at_once_are_read_one_after_the_other(asking, monkeypatch):
    """PDFium does not support several threads."""
    inside, most = [], []

    def slow(raw, name):
        inside.append(name)
        most.append(len(inside))
        time.sleep(0.01)
        yield from pdf_documents(raw, name)
        inside.remove(name)

    monkeypatch.setattr(session, "pdf_documents", slow)
    files = {f"{number}": small_pdf([f"Number {number}."]) for number in range(8)}
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda name: posted(asking, files[name], name)[1]["text"], files))
    assert found == [f"Number {number}." for number in files]
    assert max(most) == 1
