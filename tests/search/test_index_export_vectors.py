"""Vectors of tokens written for Parquet, LanceDB and Qdrant, and searched there by MaxSim."""

import json
from importlib.util import find_spec

import numpy as np
import pytest

import unmask
from tests.search.test_compressed_vectors import write_many_vectors
from tests.search.test_index import WORDS, documents, write_reader
from tests.support.command import run_here
from unmask.errors import InvalidRequest, MissingExtra
from unmask.search.documents import Document
from unmask.search.export import files, passages, qdrant, run
from unmask.search.index import Index

needs_lance = pytest.mark.skipif(
    find_spec("lance") is None, reason="pylance is not installed: pip install unmask[lance]"
)
needs_lancedb = pytest.mark.skipif(find_spec("lancedb") is None, reason="lancedb is not installed")


QUERIES = ("river", "money and loans", "a file is read", "the stone bridge")


def index_of(model, place, **options):
    """Two segments with deleted documents, several passages of some and metadata of others."""
    index = Index.create(place, model, passage_tokens=24, **options)
    index.add([*documents(), Document("gone", "The river is gone.")])
    drawn = np.random.default_rng(5)
    index.add(
        [
            Document(f"drawn {n}", " ".join(drawn.permutation(WORDS)), metadata={"n": n % 3, "of": ["é"]})
            for n in range(12)
        ]
        + [Document("pages", "A river. " * 30, pages=(0, 90, 180), kind="pdf")]
    )
    index.delete(["gone", "drawn 3"])
    return index


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return unmask.load(write_many_vectors(tmp_path_factory.mktemp("many")))


@pytest.fixture(scope="module", params=[None, 2], ids=["float16", "2 bits"])
def index(request, model, tmp_path_factory):
    return index_of(model, tmp_path_factory.mktemp("export") / "index", vector_bits=request.param)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(passages, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(qdrant, "NUMBERS_AT_ONCE", 300)


def searched(index, query, k=10):
    return index.search(query, k=k, mode="multi_vector")


def require_alike(ranked, hits, tolerance):
    """The same passages with the same scores; passages as near as the rounding may change places."""
    assert [score for _, score in ranked] == pytest.approx([hit.score for hit in hits], abs=tolerance)
    scores = {(hit.document, hit.start): hit.score for hit in hits}
    for place, score in ranked:
        assert scores[place] == pytest.approx(score, abs=tolerance)


def tolerance_of(index):
    """Decoded vectors are rounded to float16, so that each of the query's products changes."""
    return 2e-5 if index.settings.vectors.bits is None else 4e-3


def of_parquet(file):
    parquet = pytest.importorskip("pyarrow.parquet", reason="it reads the file")
    return parquet.read_table(file).to_pylist()


def stored(index):
    """The vectors of each passage as search multiplies them, in the model's basis, float32."""
    contents, every = index._contents, {}
    for number in np.flatnonzero(contents.live_P).tolist():
        place = contents.place(number)
        ((segment, rows),) = index._searcher.vectors._split(np.array([number]))
        arrays = contents.segments[segment].arrays
        start, end = arrays["vectors/offsets"][rows[0] : rows[0] + 2]
        vectors = index._searcher.vectors._decoded(arrays, slice(start, end))
        if contents.codec is not None:
            vectors = vectors @ contents.codec.rotation_EE.T
        every[contents.ids[place.document], place.start] = vectors
    return every


def test_parquet_has_every_vector_of_every_passage(index, tmp_path):
    exported = index.export(tmp_path / "a.parquet", "parquet")
    rows, expected = of_parquet(tmp_path / "a.parquet"), stored(index)
    assert len(rows) == len(expected) == exported.passages == index.passages > 20
    assert exported.view == "multi_vector"
    assert exported.vectors == sum(map(len, expected.values())) > 5 * exported.passages
    assert exported.decoded == (index.settings.vectors.bits is not None)
    assert exported.views_left_out == ("bm25",)
    for row in rows:
        vectors = np.array(row["vectors"], np.float16)
        assert vectors.shape[1] == exported.dimensions == 7
        assert vectors.tobytes() == expected[row["document"], row["start"]].astype(np.float16).tobytes()
    hits = {(hit.document, hit.start): hit for hit in searched(index, "river", k=1000)}
    for row in rows:
        hit = hits[row["document"], row["start"]]
        assert json.loads(row["metadata"]) == hit.metadata
        assert [row[name] for name in ("page", "end", "text", "title")] == [
            getattr(hit, name) for name in ("page", "end", "text", "title")
        ]


@pytest.mark.parametrize("query", QUERIES)
def test_the_local_mode_of_qdrant_ranks_as_search_does(index, model, query, tmp_path):
    client = pytest.importorskip("qdrant_client", reason="it writes and searches the collection")
    index.export(tmp_path / "new", "qdrant", name="notes")
    opened = client.QdrantClient(path=str(tmp_path / "new"))
    try:
        asked = model.multi_vectors(query, "query").vectors_NE.tolist()
        points = opened.query_points("notes", query=asked, limit=1000).points
        ranked = [((point.payload["document"], point.payload["start"]), point.score) for point in points]
        require_alike(ranked, searched(index, query, k=1000), tolerance_of(index))
        only = client.models.Filter(
            must=[client.models.FieldCondition(key="metadata.n", match=client.models.MatchValue(value=1))]
        )
        chosen = opened.query_points("notes", query=asked, limit=1000, query_filter=only).points
        wanted = {
            (hit.document, hit.start)
            for hit in index.search(query, k=1000, mode="multi_vector", filter={"n": 1})
        }
        assert {(point.payload["document"], point.payload["start"]) for point in chosen} == wanted != set()
        config = opened.get_collection("notes").config
        assert config.params.vectors.multivector_config.comparator == "max_sim"
        assert config.params.vectors.datatype == client.models.Datatype.FLOAT16
        assert config.metadata["decoded"] == (index.settings.vectors.bits is not None)
        assert "MaxSim" in config.metadata["similarity"]
    finally:
        opened.close()


@needs_lance
@needs_lancedb
@pytest.mark.parametrize("query", QUERIES)
def test_lancedb_ranks_as_search_does(index, model, query, tmp_path):
    import lancedb

    index.export(tmp_path / "new", "lance", name="notes")
    table = lancedb.connect(tmp_path / "new").open_table("notes")
    assert table.count_rows() == index.passages
    asked = model.multi_vectors(query, "query").vectors_NE
    rows = table.search(asked.astype(np.float16)).distance_type("cosine").limit(1000).to_list()
    ranked = [((row["document"], row["start"]), len(asked) - row["_distance"]) for row in rows]
    # LanceDB rounds the query to float16 and divides by lengths of vectors that were rounded.
    require_alike(ranked, searched(index, query, k=1000), 1e-2)
    some = table.search(asked.astype(np.float16)).distance_type("cosine").where("document = 'pages'")
    assert {row["document"] for row in some.limit(50).to_list()} == {"pages"}


@needs_lance
def test_lance_holds_dense_vectors_and_refuses_other_lengths(model, index, tmp_path, monkeypatch):
    import lance

    dense = index_of(unmask.load(write_reader(tmp_path / "reader")), tmp_path / "dense")
    exported = dense.export(tmp_path / "new", "lance")
    rows = lance.dataset(str(tmp_path / "new" / "passages.lance")).to_table().to_pylist()
    dense.export(tmp_path / "same.parquet", "parquet")
    assert rows == of_parquet(tmp_path / "same.parquet")
    assert (exported.view, exported.vectors) == ("dense", len(rows))
    monkeypatch.setattr(files, "NEAR_ONE", -1.0)
    with pytest.raises(InvalidRequest, match="are not of length 1, and LanceDB compares vectors of tokens"):
        index.export(tmp_path / "other", "lance")
    assert not (tmp_path / "other").exists()


def test_a_passage_without_vectors_is_written_without(model, tmp_path, monkeypatch):
    client = pytest.importorskip("qdrant_client", reason="it writes the collection")
    index = index_of(model, tmp_path / "index")
    true_counts = passages.Source._counts

    def counts(self, segment):
        """The first passage of each segment loses its vectors."""
        return true_counts(self, segment) * (np.arange(len(true_counts(self, segment))) > 0)

    monkeypatch.setattr(passages.Source, "_counts", counts)
    true_vectors = passages.token_vectors
    monkeypatch.setattr(
        passages, "token_vectors", lambda arrays, rows, codec: true_vectors(arrays, rows[rows > 0], codec)
    )
    index.export(tmp_path / "new", "qdrant")
    opened = client.QdrantClient(path=str(tmp_path / "new"))
    points, _ = opened.scroll("passages", limit=1000, with_vectors=True)
    opened.close()
    assert len(points) == index.passages
    assert sum(not point.vector for point in points) == 2
    index.export(tmp_path / "a.parquet", "parquet")
    assert sum(not row["vectors"] for row in of_parquet(tmp_path / "a.parquet")) == 2


def test_requests_and_blocks_are_bounded(index, monkeypatch):
    source = run._source(index._contents, index.settings, None)
    blocks = list(source.blocks())
    assert sum(len(block.passages) for block in blocks) == index.passages
    largest = max(len(vectors) for block in blocks for vectors in block.vectors())
    assert max(block.vectors_NE.size for block in blocks) * 4 <= 2000 + largest * 7 * 4
    for block in blocks:
        parts = list(qdrant._requests(block))
        assert [passage for part in parts for passage in part.passages] == block.passages
        assert np.array_equal(np.concatenate([part.vectors_NE for part in parts]), block.vectors_NE)
        for part, after in zip(parts, [*parts[1:], None], strict=True):
            assert part.vectors_NE.size <= 300 or len(part.passages) == 1
            if after is not None:
                assert part.vectors_NE.size + next(after.vectors()).size > 300, (
                    "a passage more would have fitted"
                )
    monkeypatch.setattr(qdrant, "POINTS_AT_ONCE", 1)
    assert {len(part.passages) for block in blocks for part in qdrant._requests(block)} == {1}


def test_what_cannot_be_written_is_refused(index, model, tmp_path):
    for format in ("pgvector", "opensearch"):
        with pytest.raises(
            InvalidRequest, match=f"{format} holds one vector for each passage, and this is the"
        ):
            index.export(tmp_path / "x", format)
    with pytest.raises(InvalidRequest, match="has the views bm25, multi_vector and other stores get"):
        index.export(tmp_path / "x.parquet", "parquet", view="dense")
    with pytest.raises(InvalidRequest, match="view is 'bm25'; it can be 'dense' or 'multi_vector'"):
        index.export(tmp_path / "x.parquet", "parquet", view="bm25")
    if find_spec("lance") is None:
        with pytest.raises(MissingExtra, match=r"pip install 'unmask\[lance\]', or name another format"):
            index.export(tmp_path / "x", "lance")
    assert list(tmp_path.iterdir()) == []


def test_the_command_names_the_view_and_what_was_decoded(index, tmp_path):
    pytest.importorskip("pyarrow", reason="it writes the file")
    arguments = ("index-export", index.path, "--format", "parquet", "--view", "multi_vector")
    ran = run_here(*arguments, "-o", tmp_path / "a.parquet")
    assert ran.code == 0, ran.err
    compressed = index.settings.vectors.bits is not None
    assert ("the index stores codes alone: vectors are what these stand for" in ran.out) == compressed
    stated = json.loads(run_here(*arguments, "-o", tmp_path / "b.parquet", "--json").out)
    assert (stated["view"], stated["decoded"], stated["dimensions"]) == ("multi_vector", compressed, 7)
    assert f"with {stated['vectors']:,} vectors of 7 numbers made by" in ran.out
