"""A served index after a commit: another thread opens it, and requests do not wait for it."""

import threading
import time

import pytest

import unmask
from tests.search.test_compressed_vectors import write_many_vectors
from tests.search.test_index import documents
from unmask.search.index import Index
from unmask.search.store.store import Store
from unmask.serve import searching
from unmask.serve.searching import ServedIndex


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return unmask.load(write_many_vectors(tmp_path_factory.mktemp("many")))


@pytest.fixture
def written(model, tmp_path):
    index = Index.create(tmp_path / "index", model, vector_bits=2)
    index.add(documents())
    return index


@pytest.fixture
def served(written, model):
    return ServedIndex("notes", Index.open(written.path, model=model))


def hits(index):
    return [hit.document for hit in index.search("a newer river", mode="multi_vector", approximate=True)]


def test_a_newer_generation_is_shown_with_its_lists(written, served):
    assert served.newest().generation == served.index.generation
    assert "newer" not in hits(served.index)
    written.add({"id": "newer", "text": "a newer river"})
    index = served.newest()
    assert index.generation == written.generation
    assert "lists" in vars(index._searcher.vectors), "the first search would build them"
    assert {"live_P", "ids"} <= vars(index._searcher.contents).keys()
    assert hits(index)[0] == "newer"
    assert served.opening._thread is None


def test_requests_find_what_was_there_while_it_is_opened(written, served, monkeypatch):
    """Only the first request waits, and nothing of a slow opening is shown before it ends."""
    monkeypatch.setattr(searching, "OPENING_SECONDS", 0.2)
    may_open, opened = threading.Event(), []
    true_open = Store.open

    def slow_open(path, **options):
        opened.append(threading.current_thread())
        assert may_open.wait(30)
        return true_open(path, **options)

    before = served.index.generation
    written.add({"id": "newer", "text": "a newer river"})
    monkeypatch.setattr(Store, "open", slow_open)
    start = time.monotonic()
    assert served.newest().generation == before
    assert time.monotonic() - start >= 0.2
    monkeypatch.setattr(searching, "OPENING_SECONDS", 30)
    for _ in range(3):
        assert served.newest().generation == before
        assert "newer" not in hits(served.index)
    assert time.monotonic() - start < 20
    assert len(opened) == 1
    assert opened[0] is not threading.current_thread()
    may_open.set()
    served.opening._thread.join()
    assert served.newest().generation == written.generation
    assert hits(served.index)[0] == "newer"


def test_an_index_that_cannot_be_read_stays_and_is_tried_again(written, served, monkeypatch):
    before = served.index.generation
    written.add({"id": "newer", "text": "a newer river"})
    true_open = Store.open

    def broken(path, **options):
        raise OSError("the disk is gone")

    monkeypatch.setattr(Store, "open", broken)
    assert served.newest().generation == before
    monkeypatch.setattr(Store, "open", true_open)
    assert served.newest().generation == written.generation
    (written.path / "CURRENT").unlink()
    assert served.newest().generation == written.generation


def test_a_refresh_is_shown_when_its_function_is_called(written, model):
    index = Index.open(written.path, model=model)
    written.add({"id": "newer", "text": "a newer river"})
    show = index.prepared_refresh()
    assert "newer" not in index
    show()
    assert "newer" in index
    assert hits(index) == hits(written)


def test_a_refresh_does_not_replace_a_newer_generation(written, model):
    index = Index.open(written.path, model=model)
    written.add({"id": "newer", "text": "a newer river"})
    show = index.prepared_refresh()
    written.add({"id": "newest", "text": "the newest river"})
    index.refresh()
    show()
    assert "newest" in index
    assert index.generation == written.generation
