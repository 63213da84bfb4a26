"""An index whose documents are computed by several processes is that of one process, byte by byte."""

import os
import signal

import pytest

from tests.support.command import assert_one_sentence, run_here
from unmask.errors import InvalidRequest, ProcessLost
from unmask.search import adding
from unmask.search import additions as workers
from unmask.search.index import Index

pytestmark = pytest.mark.long

TEXTS = [f"Document {number} is about the {word} of a river. " * 3 for number, word in enumerate("abcdefg")]


@pytest.fixture
def small_groups(monkeypatch):
    monkeypatch.setattr(adding, "CHARACTERS_AT_ONCE", 200)


def documents(change=""):
    return [{"id": str(number), "text": text + change * (number % 2)} for number, text in enumerate(TEXTS)]


def contents(path):
    """Every file of an index, by its place in it."""
    return {
        os.path.relpath(os.path.join(folder, name), path): open_bytes(os.path.join(folder, name))
        for folder, _, names in os.walk(path)
        for name in names
    }


def open_bytes(path):
    with open(path, "rb") as file:
        return file.read()


def test_the_files_are_those_of_one_process(small_groups, one_thread, tmp_path):
    several, one = Index.create(tmp_path / "several"), Index.create(tmp_path / "one")
    for change in ("", "It changed."):
        given = [*documents(change), {"id": "blank", "text": " "}]
        added = several.add(given, workers=2)
        assert added == one.add(given)
        assert (added.added, added.updated, len(added.skipped)) == ((7, 0, 1) if not change else (0, 3, 1))
    found, wanted = contents(tmp_path / "several"), contents(tmp_path / "one")
    assert found.keys() == wanted.keys()
    assert [name for name in found if found[name] != wanted[name]] == []
    assert several.search("the river of d")[0].document == "3"


def test_what_is_replaced_is_kept_until_its_successor_is_there(small_groups, tmp_path, monkeypatch):
    """Documents are read ahead of what is computed; a commit meanwhile must not delete what they replace."""
    index = Index.create(tmp_path / "index", [], passage_tokens=9)
    index.add(documents())
    read_ahead = workers.computed

    def stops(given, *arguments):
        for number, group in enumerate(read_ahead(list(given), *arguments)):
            if number == 1:
                raise KeyboardInterrupt
            yield group

    monkeypatch.setattr("unmask.search.additions.computed", stops)
    monkeypatch.setattr("unmask.search.additions.COMMIT_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        index.add(documents("It changed."))
    assert sorted(index.ids) == [str(number) for number in range(7)]


def test_a_worker_that_ends_is_one_sentence(small_groups, tmp_path, monkeypatch):
    index = Index.create(tmp_path / "index", [])
    monkeypatch.setattr(workers, "_Worker", lambda *arguments: Ended())
    with pytest.raises(ProcessLost, match="a worker ended while it computed documents"):
        index.add(documents(), workers=2)
    assert len(index) == 0


class Ended:
    """A worker that is killed."""

    def __call__(self, documents):
        os.kill(os.getpid(), signal.SIGKILL)


def test_workers_are_checked(tmp_path):
    index = Index.create(tmp_path / "index", [])
    with pytest.raises(InvalidRequest, match="workers is 0"):
        index.add(documents(), workers=0)
    command = ("index", "x", "-o", tmp_path / "other", "--workers")
    assert_one_sentence(run_here(*command, "0"), "--workers is 0; it must be at least 1")
    assert_one_sentence(run_here(*command, "2", "--threads", "4"), "--threads is 4", "leave --threads out")
