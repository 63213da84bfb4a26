"""Another thread opens a newer generation while an index is searched."""

import ast
import copy
import inspect

import pytest

from tests.search.test_index import TEXTS, YEARS, found, index, model_folder, tiny_model  # noqa: F401
from unmask.search.index import Index
from unmask.search.searchable import SearchableIndex
from unmask.serve.searching import ServedIndex


class SwappingSearcher:
    """A searcher beside which another thread opens a newer generation after each ranking."""

    def __init__(self, searcher, swap):
        self.searcher, self.swap = searcher, swap

    def __getattr__(self, name):
        return getattr(self.searcher, name)

    def rank(self, *arguments, **options):
        ranking = self.searcher.rank(*arguments, **options)
        self.swap()
        return ranking


@pytest.fixture
def swapping(index):  # noqa: F811
    """An index that is opened again, with other documents at the same places, during each ranking."""
    other = Index.open(index.path)
    other.delete(list(TEXTS))
    other.add([{"id": "new", "text": "A river, a bank, and more of a river."}])
    newer = other._searcher
    index._searcher = SwappingSearcher(index._searcher, lambda: index._show_prepared(newer))
    return index


def test_a_search_is_of_one_generation(swapping):
    hits = swapping.search(["river bridge", "the bank"], mode="bm25", filter={"tags": "all"}, why=True)[0]
    assert {hit.document for hit in hits} == {"bridge", "fish"}
    for hit in hits:
        assert hit.text in TEXTS[hit.document]
        assert hit.metadata["year"] == YEARS[hit.document]
    assert found(swapping.search("river", mode="bm25")) == ["new"]


def test_ranked_documents_and_scores_of_a_reranker_are_of_one_generation(swapping, tiny_model):  # noqa: F811
    before = swapping._searcher
    (ranked,) = swapping.rank_documents(["bridge"], mode="bm25", reranker=tiny_model)
    assert {id for id, _ in ranked} == {"bridge", "fish"}
    swapping._searcher = before
    first, second = swapping.rank_documents(["bridge", "loan"], mode="bm25", among=list(TEXTS))
    assert ({id for id, _ in first}, [id for id, _ in second]) == ({"bridge", "fish"}, ["bank"])


def test_a_copy_keeps_its_generation(swapping):
    pinned = copy.copy(swapping)
    assert set(found(pinned.search("river", mode="bm25"))) == {"bridge", "fish"}
    assert (pinned.generation, swapping.generation) == (2, 4)
    assert (set(pinned.ids), swapping.ids) == (set(TEXTS), ("new",))


@pytest.mark.parametrize("kind", [Index, SearchableIndex])
def test_every_method_reads_the_generation_once(kind):
    """What is read twice can be of two generations, when another thread opens a newer one in between."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    for method in body.body:
        reads = [
            node
            for node in ast.walk(method)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Load)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
            and node.attr in ("_contents", "_searcher", "passages", "generation", "ids")
        ]
        assert len(reads) <= 1, f"{kind.__name__}.{method.name} reads the generation {len(reads)} times"


def test_a_served_index_reports_the_generation_of_its_hits(swapping):
    served = ServedIndex("notes", swapping)
    served.opening.newest = lambda: None
    pinned = served.newest()
    assert set(found(pinned.search("river", mode="bm25"))) == {"bridge", "fish"}
    assert pinned.generation == 2
