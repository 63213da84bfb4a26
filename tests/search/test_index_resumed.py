"""An addition commits as it goes: what stops it loses little, and the same command resumes it."""

import json

import pytest

from tests.support.command import assert_one_sentence, run_here
from unmask.errors import InvalidRequest
from unmask.evaluate.retrieval.collection import collection_index
from unmask.search import additions
from unmask.search.adding import SegmentBuilder
from unmask.search.additions import COMMIT_SECONDS, Addition
from unmask.search.index import Index
from unmask.search.store import writing

COUNT = 7


@pytest.fixture(autouse=True)
def _one_document_at_once(monkeypatch):
    monkeypatch.setattr("unmask.search.adding.CHARACTERS_AT_ONCE", 1)


@pytest.fixture
def hasty(monkeypatch):
    """Every document is committed."""
    monkeypatch.setattr(additions, "COMMIT_SECONDS", 0.0)


def test_work_is_committed_by_time(tmp_path):
    path = tmp_path / "index"
    made = Index.create(path, [])
    seconds, committed = 0.0, []

    def documents():
        nonlocal seconds
        for number in range(COUNT):
            committed.append(len(Index.open(path)))
            seconds += COMMIT_SECONDS * 0.4  # of the work on this document
            yield {"id": str(number), "text": f"text {number}"}

    with writing(path) as writer:
        Addition(writer, made.settings, {}, clock=lambda: seconds).run(documents())
    assert committed == [0, 0, 0, 3, 3, 3, 6]
    assert made.refresh().ids == tuple(map(str, range(COUNT)))


@pytest.mark.usefixtures("hasty")
def test_nothing_is_committed_twice(tmp_path):
    made = Index.create(tmp_path / "index", [])
    made.add([{"id": "1", "text": "one"}, {"id": "2", "text": "two"}])
    made.add([{"id": "1", "text": "one"}, {"id": "2", "text": "three"}])
    assert made.generation == 4, "one to create it, two documents, one that changed"


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    texts = [{"_id": str(number), "text": f"text {number}"} for number in range(4)]
    path.write_text("".join(json.dumps(one) + "\n" for one in texts))
    return path


def stop_at(patch, wanted, error):
    """Let the computation of one document raise an error."""
    original, done = SegmentBuilder.compute, []

    def compute(self, documents):
        done.append(documents)
        if len(done) == wanted:
            raise error("it fails") if error is InvalidRequest else error
        return original(self, documents)

    patch.setattr(SegmentBuilder, "compute", compute)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt, 130), (InvalidRequest, 1)])
def test_what_was_committed_stays_and_the_same_command_resumes(
    rows, tmp_path, monkeypatch, error, code, existing
):
    path = tmp_path / "index"
    command = ("index", rows, "-o", path, "--model", "none", "--stemmer", "german", "--passage-tokens", 9)
    if existing:
        made = Index.create(path, [], stemmer="german", passage_tokens=9)
        made.add([{"id": "before", "text": "text"}])
    with monkeypatch.context() as patch:
        stop_at(patch, 3, error)
        stopped = run_here(*command)
    begins = "stopped" if code == 130 else "it fails"
    assert_one_sentence(
        stopped, f"{begins}; {path} has {2 + existing} documents; give the same command again", code=code
    )
    assert Index.verify(path) == ()
    assert [id for id in Index.open(path).ids if id != "before"] == ["0", "1"]
    resumed = run_here(*command, "--json")
    assert resumed.code == 0, resumed.err
    told = json.loads(resumed.out)["added"]
    assert (told["added"], told["unchanged"]) == (2, 2)


@pytest.mark.parametrize("error", [KeyboardInterrupt, InvalidRequest, MemoryError])
def test_a_new_index_without_documents_is_removed(rows, tmp_path, monkeypatch, error):
    stop_at(monkeypatch, 3, error)
    command = ("index", rows, "-o", tmp_path / "index", "--model", "none")
    if error is MemoryError:
        with pytest.raises(MemoryError):
            run_here(*command)
    else:
        ran = run_here(*command)
        assert ran.err in ("unmask: stopped\n", "unmask: it fails\n")
    assert not (tmp_path / "index").exists()


@pytest.mark.usefixtures("hasty")
def test_the_index_of_a_collection_keeps_what_was_committed(tmp_path, monkeypatch):
    stop_at(monkeypatch, 3, InvalidRequest)
    with pytest.raises(InvalidRequest), collection_index(None, [], tmp_path / "index") as index:
        index.add(["one", "two", "three"])
    assert len(index) == len(Index.open(tmp_path / "index")) == 2
    monkeypatch.undo()
    with pytest.raises(KeyboardInterrupt), collection_index(None, [], tmp_path / "other"):
        raise KeyboardInterrupt
    assert not (tmp_path / "other").exists()
