"""An index that was interrupted at any operation on the disk: no document is lost, doubled or mixed up."""

import shutil

import numpy as np
import pytest

import unmask
from tests.search.faulty import Stopped, disk_with, interrupted_at, refused_at, stop
from tests.search.test_compressed_vectors import write_many_vectors
from tests.search.test_index import write_reader
from unmask.errors import OutputError
from unmask.search.index import Index
from unmask.search.settings import view_of
from unmask.tasks.late_interaction import late_interaction

FIRST = {"a": "alpha rivers", "b": "beta banks", "c": "gamma loans and money"}
UPDATE = {"b": "delta fish swim", "d": "epsilon stone bridges"}
STATES = (
    {},
    FIRST,
    FIRST | UPDATE,
    {id: text for id, text in (FIRST | UPDATE).items() if id != "a"},
)
"""The documents after creation and after each change; compacting leaves the last as it is."""


def rows(texts):
    return [{"id": id, "text": text} for id, text in texts.items()]


CHANGES = (
    lambda path, model: Index.open(path, model).add(rows(FIRST)),
    lambda path, model: Index.open(path, model).add(rows(UPDATE)),
    lambda path, model: Index.open(path, model).delete("a"),
    lambda path, model: Index.open(path, model).compact(),
)


@pytest.fixture(scope="module", params=["dense", "multi_vector"])
def model(request, tmp_path_factory):
    """A model of one vector, which gets a code, too, or one of many, which the index compresses."""
    place = tmp_path_factory.mktemp("reader")
    if request.param == "dense":
        return unmask.load(write_reader(place / "tiny"))
    return unmask.load(write_many_vectors(place))


@pytest.fixture(scope="module")
def before(tmp_path_factory, model):
    """The index before each change, and the operations of the change."""
    place = tmp_path_factory.mktemp("life")
    path = place / "index"
    Index.create(
        path, model, **({"vector_bits": 2} if view_of(model) == "multi_vector" else {"dense_bits": 8})
    )
    found = []
    for number, change in enumerate(CHANGES):
        copied = shutil.copytree(path, place / f"before-{number}")
        with disk_with(lambda number, operation, path, act: act()) as done:
            change(path, model)
        found.append((copied, len(done)))
    return found


def check(path, model, allowed):
    """The index holds exactly the documents of one of the allowed states, each with its own views."""
    assert Index.verify(path) == ()
    index = Index.open(path, model)
    held = {id: index.document(id).text for id in index.ids}
    assert held in allowed
    for id, text in held.items():
        (hit,) = index.search(text.split()[0], mode="bm25")
        assert (hit.document, hit.text) == (id, text)
        hits = index.search(text, k=9, mode=view_of(model))
        assert len(hits) == len(held)
        assert index.search(text, k=9, mode=view_of(model), approximate=True) == hits
        scores = {hit.document: hit.score for hit in hits}
        assert scores[id] == pytest.approx(own_score(index, model, text), abs=2e-5)


def own_score(index, model, text):
    """The score of a text for itself as the index's view computes it."""
    if view_of(model) == "dense":
        vector = model.embed(text, normalize=True)
        return float(vector @ vector)
    codec, vectors = index._contents.codec, model.multi_vectors(text, "document").vectors_NE
    query = model.multi_vectors(text, "query").vectors_NE
    stored = codec.decode(*codec.encode(vectors.astype(np.float16)))
    return late_interaction(codec.rotated(query), stored)


@pytest.mark.parametrize("change", range(len(CHANGES)))
@pytest.mark.parametrize(("fault", "error"), [("kill", Stopped), ("disk full", OutputError)])
def test_interrupted_changes(change, fault, error, before, model, tmp_path):
    copied, operations = before[change]
    allowed = (STATES[change], STATES[min(change + 1, len(STATES) - 1)])
    for number in range(change % 2, operations, 2 if fault == "kill" else 3):
        path = shutil.copytree(copied, tmp_path / f"{number}")
        around = interrupted_at(number, stop) if fault == "kill" else refused_at(number)
        failed = True
        with disk_with(around):
            try:
                CHANGES[change](path, model)
            except error:
                pass
            else:  # what follows the commit, such as the removal of old files, may fail without harm
                assert fault == "disk full"
                failed = False
        check(path, model, allowed if failed else allowed[1:])
        CHANGES[change](path, model) if change != 2 or "a" in Index.open(path, model) else None
        check(path, model, allowed[1:])
        shutil.rmtree(path)
