"""Search in the explorer: what the index holds, hits and what adds up to their scores, what is refused."""

from urllib.parse import quote

import pytest

from tests.explorer.conftest import Asking
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.errors import InvalidRequest
from unmask.explorer import Api
from unmask.models.load import load
from unmask.search.index import Index

TEXTS = {
    "bank": "The river bank was muddy. Another bank was near the river.",
    "text": "Another text has a muddy word in it.",
    "note": "A word of another text.",
}


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """A tiny embedding model."""
    return written(tmp_path_factory.mktemp("reader") / "tiny", seed=0)


@pytest.fixture(scope="module")
def namesake(tmp_path_factory):
    """Another model of the same name."""
    return written(tmp_path_factory.mktemp("namesake") / "tiny", seed=1)


def written(folder, seed):
    write_checkpoint(folder, tiny_bert(seed=seed, max_position_embeddings=64))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 64, "do_lower_case": false}')
    return load(folder)


@pytest.fixture(scope="module")
def index(reader, tmp_path_factory):
    made = Index.create(tmp_path_factory.mktemp("search") / "index", reader)
    made.add([{"id": id, "text": text, "metadata": {"year": 2000}} for id, text in TEXTS.items()])
    return made


@pytest.fixture(scope="module")
def searching(reader, index):
    api = Api([reader], index=index.path)
    yield Asking(api)
    api.close()


def search(text, **options):
    return "&".join([f"search?text={quote(text)}", *(f"{name}={value}" for name, value in options.items())])


def test_the_session_names_the_index_and_only_where_there_is_one(searching, asking):
    assert searching.json("session")["index"] == "index"
    assert asking.json("session")["index"] is None


def test_what_the_index_holds(searching, index, reader):
    answer = searching.json("index")
    assert answer["path"] == str(index.path)
    assert (answer["documents"], answer["passages"]) == (3, index.passages)
    assert answer["views"] == ["bm25", "dense"]
    assert answer["modes"] == ["hybrid", "bm25", "dense"]
    assert answer["models"] == [{"view": "dense", "name": reader.name, "revision": None}]


@pytest.mark.parametrize("mode", ["hybrid", "bm25", "dense"])
def test_hits_are_those_of_the_index(searching, index, mode):
    answer = searching.json(search("a muddy river", mode=mode, k=2, why="yes"))
    expected = index.search("a muddy river", k=2, mode=mode, why=True)
    assert (answer["mode"], answer["unit"], len(answer["hits"])) == (mode, "passage", 2)
    for hit, own in zip(answer["hits"], expected, strict=True):
        assert (hit["document"], hit["start"], hit["end"]) == (own.document, own.start, own.end)
        assert hit["score"] == pytest.approx(own.score, abs=1e-6)
        assert hit["metadata"] == {"year": 2000}
        text = index.document(hit["document"]).text
        assert hit["text"] == text[hit["start"] : hit["end"]]
        assert {text[start:end].lower() for start, end in hit["matches"]} <= {"muddy", "river"}
        for one in hit["why"]:
            total = sum(share["share"] for share in one["shares"]) + one["special"]
            assert total == pytest.approx(one["score"], abs=1e-5)
            for share in one["shares"]:
                for start, end in share["spans"]:
                    assert hit["start"] <= start < end <= hit["end"]


def test_without_a_mode_all_views_are_fused_as_the_page_adds_them_up(searching):
    index = searching.json("index")
    answer = searching.json(search("muddy", why="shares"))
    assert answer["mode"] == "hybrid"
    for hit in answer["hits"]:
        parts = [1 / (index["rank_constant"] + one["rank"]) for one in hit["why"]]
        assert sum(parts) == pytest.approx(hit["score"], abs=1e-6)


def test_explanations_come_on_request_and_attribution_only_where_it_is_asked_for(searching):
    def dense(why):
        return searching.json(search("muddy", mode="dense", k=1, why=why))["hits"][0]["why"]

    assert dense("no") is None
    ((shares,), (whole,)) = dense("shares"), dense("yes")
    assert shares["attribution"] == []
    assert len(whole["attribution"]) == len(whole["shares"]) > 0
    assert shares["shares"] == whole["shares"]


def test_documents_are_ranked_by_their_best_passage(searching):
    hits = searching.json(search("bank", unit="document", mode="dense"))["hits"]
    assert sorted(hit["document"] for hit in hits) == sorted(TEXTS)


def test_the_index_uses_a_model_of_the_explorer_and_no_other(searching, reader, namesake, index):
    searching.json(search("muddy"))
    held = searching.api._context.index
    assert held._opened().model("dense").engine is reader.engine
    assert namesake.name == reader.name
    api = Api([namesake], index=index.path)
    try:
        Asking(api).json(search("muddy"))
        assert api._context.index._opened().model("dense").engine is not namesake.engine
    finally:
        api.close()


def test_documents_that_were_added_since_are_found(reader, tmp_path):
    made = Index.create(tmp_path / "index", reader)
    made.add(["A river."])
    api = Api([reader], index=tmp_path / "index")
    try:
        asking = Asking(api)
        assert asking.json("index")["documents"] == 1
        made.add([{"id": "new", "text": "A muddy bank."}])
        assert asking.json("index")["documents"] == 2
        assert asking.json(search("muddy", mode="bm25"))["hits"][0]["document"] == "new"
    finally:
        api.close()


def test_what_cannot_be_searched_is_refused_in_a_sentence(searching, asking, tmp_path, reader):
    assert "unmask index FOLDER" in asking.problem("index", 409)["sentence"]
    assert "unmask index FOLDER" in asking.problem(search("river"), 409)["sentence"]
    assert searching.problem("search", 422)["kind"] == "EmptyText"
    for options, words in [
        ({"mode": "sparse"}, "bm25, dense"),
        ({"mode": "best"}, "must be one of"),
        ({"unit": "page"}, "must be one of"),
        ({"why": "1"}, "must be one of"),
        ({"k": 0}, "from 1 to 100"),
        ({"k": 101}, "from 1 to 100"),
    ]:
        assert words in searching.problem(search("river", **options), 400)["sentence"]
    assert searching.problem(search("river " * 99, mode="dense"), 422)["kind"] == "TextTooLong"
    api = Api([reader], index=tmp_path / "nothing")
    try:
        assert "nothing is not an index" in Asking(api).problem("index", 400)["sentence"]
    finally:
        api.close()


def test_an_index_takes_a_loaded_model_only_if_it_is_its_own(index, reader, namesake):
    opened = Index.open(index.path)
    opened.use(reader)
    assert opened.model("dense").engine is reader.engine
    with pytest.raises(InvalidRequest, match="the index was made with"):
        Index.open(index.path).use(namesake)


def test_the_command_opens_the_search_and_refuses_what_is_no_index(monkeypatch, tmp_path, index):
    from unmask.cli.look.explore import explore
    from unmask.explorer.server.server import _address

    calls = []
    monkeypatch.setattr("unmask.explorer.serve", lambda models, **options: calls.append(options))
    explore(index=index.path)
    assert calls[0]["index"] == index.path
    with pytest.raises(InvalidRequest, match="nothing is not an index"):
        explore(index=tmp_path / "nothing")
    assert len(calls) == 1
    host = "127.0.0.1"
    assert _address(host, 1, "t", None, searches=True).endswith("#v=3&view=search")
    assert "view=search" not in _address(host, 1, "t", "a text", searches=True)
    assert "#" not in _address(host, 1, "t", None)
    for said in ("", "#", "a text", "#text=a", "http://127.0.0.1:1/?token=a"):
        with pytest.raises(InvalidRequest, match="give an address of the page"):
            _address(host, 1, "t", None, said)
