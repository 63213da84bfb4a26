"""Token vectors in a few bits: the codec alone, and an index that stores them, while it changes."""

from dataclasses import replace

import numpy as np
import pytest

import unmask
from tests.search.test_index import write_reader
from unmask.errors import InvalidRequest
from unmask.search.index import Index
from unmask.search.views.compression import Codec, centroid_count, nearest_rows, packed_width, pooled
from unmask.search.views.vectors import Vectors, VectorsBuilder
from unmask.spec import Dense, MultiVector
from unmask.tasks.late_interaction import late_interaction
from unmask.tasks.multi_vectors import TokenVectors
from unmask.weights.write.new_checkpoint import new_encoder
from unmask.weights.write.save import save

pytestmark = pytest.mark.long

WORDS = [
    "alpha", "beta", "gamma", "delta", "rivers", "banks", "loans", "and", "money", "fish", "swim", "stone"
]  # fmt: skip


def unit(shape, seed=0):
    drawn = np.random.default_rng(seed).normal(size=shape)
    return (drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)).astype(np.float32)


def near(centers, count, spread, seed=1):
    """Vectors around some centers."""
    draw = np.random.default_rng(seed)
    drawn = centers[draw.integers(len(centers), size=count)]
    drawn = drawn + spread * draw.normal(size=drawn.shape) / np.sqrt(drawn.shape[1])
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float16)


def write_many_vectors(place):
    """A model of many vectors, 7 numbers each, so that the last byte of a residual is not full."""
    checkpoint = unmask.load(write_reader(place / "tiny")).checkpoint
    many = replace(
        checkpoint,
        spec=replace(checkpoint.spec, pooler=None, heads=()),
        head=MultiVector((Dense(7, bias=False),)),
        sentence_files={},
    )
    save(new_encoder(many, seed=0), many, place / "model")
    return place / "model"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return unmask.load(write_many_vectors(tmp_path_factory.mktemp("many")))


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_decoded_vectors_are_the_centroid_and_the_bucket_of_each_number(bits):
    vectors = near(unit((20, 13)), 900, 0.5)
    codec = Codec.learn(vectors, bits)
    assert (codec.bits, codec.centroids_KE.shape) == (bits, (32, 13))
    codes, packed = codec.encode(vectors)
    assert (codes.dtype, packed.shape) == (np.uint16, (900, -(-13 * bits // 8)))
    exact, centroids = codec.rotated(vectors.astype(np.float32)), codec.centroids_KE.astype(np.float32)
    assert np.array_equal(codes, nearest_rows(exact, centroids))
    buckets = np.searchsorted(codec.cutoffs, exact - centroids[codes])
    wanted = centroids[codes] + codec.values[buckets]
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(codec.decode(codes, packed), wanted, atol=1e-6)
    assert codec.error(vectors, codes, packed) == pytest.approx(1 - (exact * wanted).sum(1).mean(), abs=1e-5)


def test_more_bits_are_nearer_and_buckets_are_equally_full():
    vectors = near(unit((40, 32)), 4000, 0.7)
    errors = []
    for bits in (1, 2, 4):
        codec = Codec.learn(vectors, bits)
        errors.append(codec.error(vectors, *codec.encode(vectors)))
        residuals = codec.rotated(vectors.astype(np.float32)) - codec.centroids[codec.encode(vectors)[0]]
        shares = np.bincount(np.searchsorted(codec.cutoffs, residuals.ravel())) / residuals.size
        np.testing.assert_allclose(shares, 1 / 2**bits, atol=0.03)
    assert errors[2] < errors[1] / 4 < errors[0] / 8


def test_a_rotation_keeps_products_and_lowers_errors_where_variances_differ(monkeypatch):
    narrow = near(unit((40, 32)), 4000, 0.7).astype(np.float32) * np.geomspace(1, 0.02, 32)
    vectors = (narrow / np.linalg.norm(narrow, axis=1, keepdims=True)).astype(np.float16)
    codec = Codec.learn(vectors, 2)
    few = vectors[:50].astype(np.float32)
    np.testing.assert_allclose(codec.rotated(few) @ codec.rotated(few).T, few @ few.T, atol=1e-6)
    monkeypatch.setattr(
        "unmask.search.views.compression._rotation", lambda width: np.eye(width, dtype=np.float32)
    )
    plain = Codec.learn(vectors, 2)
    errors = [each.error(vectors, *each.encode(vectors)) for each in (codec, plain)]
    assert errors[0] < 0.8 * errors[1]


def test_the_same_vectors_give_the_same_codec():
    vectors = near(unit((9, 8)), 500, 0.3)
    one, two = Codec.learn(vectors, 2), Codec.learn(vectors, 2)
    for name, array in one.arrays().items():
        assert np.array_equal(array, two.arrays()[name])
    read = Codec.of_arrays(one.arrays())
    assert all(map(np.array_equal, read.encode(vectors), one.encode(vectors)))


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize(
    ("count", "rows", "width"),
    [(7, 1, 5), (100, 2, 3), (97, 65, 100), (500, 64, 128), (193, 700, 8), (0, 4, 4)],
)
def test_the_nearest_row_has_the_largest_product(monkeypatch, backend, count, rows, width):
    """Also where all products are below 0, which what fills a table up is not."""
    monkeypatch.setenv("UNMASK_BACKEND", backend)
    table = unit((rows, width))
    vectors = np.concatenate([unit((count, width), 1), -np.abs(unit((min(count, 9), width), 2))])
    if count > 9:
        table = np.abs(table)
    products = vectors @ table.T
    nearest = nearest_rows(vectors, table)
    assert nearest.shape == (len(vectors),)
    chosen = np.take_along_axis(products, nearest[:, None].astype(np.int64), axis=1)
    # Rounding to 8 bits is a 254th of the largest number of a vector, and vectors have a length of 1.
    assert (chosen >= products.max(axis=1, keepdims=True) - (0.02 if backend == "native" else 1e-6)).all()
    again = nearest_rows(table, table) if count > 9 else np.arange(rows)
    assert np.array_equal(again, np.arange(rows)), "a row is the nearest to itself"


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_the_first_of_equal_rows_is_taken(monkeypatch, backend):
    monkeypatch.setenv("UNMASK_BACKEND", backend)
    table = np.repeat(np.eye(4, dtype=np.float32), [3, 40, 1, 50], axis=0)
    assert nearest_rows(np.eye(4, dtype=np.float32), table).tolist() == [0, 3, 43, 44]


def test_numbers_of_centroids_and_bytes():
    counts = [centroid_count(n) for n in (0, 1, 1000, 65_536, 1_000_000, 10**9)]
    assert counts == [1, 1, 32, 4096, 8192, 65_536]
    assert [2 + packed_width(128, bits) for bits in (1, 2, 4)] == [18, 34, 66]
    assert [2 + packed_width(384, bits) for bits in (1, 2, 4)] == [50, 98, 194]


def test_maxsim_explanations_and_merging_are_of_decoded_vectors(monkeypatch):
    monkeypatch.setattr("unmask.search.views.vectors.VECTORS_AT_ONCE", 7)
    passages = [near(unit((6, 10)), size, 0.5, seed) for seed, size in enumerate([3, 5, 0, 9, 1, 12])]
    codec = Codec.learn(np.concatenate(passages), 2)
    segments = []
    for part in (passages[:2], passages[2:]):
        builder = VectorsBuilder()
        for vectors in part:
            builder.add(vectors.astype(np.float32), np.zeros((len(vectors), 2), np.int32))
        segments.append(builder.arrays(10, codec))
    query = unit((4, 10), seed=9)
    view = Vectors(segments, codec)
    scores = view.scores(query)
    for passage, vectors in enumerate(passages):
        if not len(vectors):
            assert scores[passage] == -np.inf
            continue
        decoded = codec.decode(*codec.encode(vectors))
        assert scores[passage] == pytest.approx(late_interaction(codec.rotated(query), decoded), abs=1e-6)
        assert sum(one.score for one in view.explain(query, passage)) == pytest.approx(
            scores[passage], abs=1e-6
        )


def test_centroids_propose_the_passages_that_are_near():
    centers = unit((64, 16))
    draw = np.random.default_rng(3)
    passages = [near(centers[draw.integers(64, size=3)], 12, 0.3, seed) for seed in range(300)]
    codec = Codec.learn(np.concatenate(passages), 4)
    segments = []
    for part in (passages[:170], passages[170:]):
        builder = VectorsBuilder()
        for vectors in part:
            builder.add(vectors.astype(np.float32), np.zeros((len(vectors), 2), np.int32))
        segments.append(builder.arrays(16, codec))
    view = Vectors(segments, codec)
    everything = np.ones(300, bool)
    found = 0
    for number in range(40):
        query = near(centers[draw.integers(64, size=2)], 6, 0.2, 1000 + number).astype(np.float32)
        best = np.argsort(-view.scores(query), kind="stable")[:5]
        proposed = view.proposed(query, everything, 40)
        assert len(proposed) == 40
        assert np.all(np.diff(proposed) > 0)
        found += len(np.intersect1d(best, proposed))
        some = everything.copy()
        some[best[0]] = False
        assert best[0] not in view.proposed(query, some, 300)
    assert found >= 0.95 * 200


def test_pooling_joins_similar_vectors_and_keeps_the_first():
    centers = unit((5, 12))
    which = np.array([0, 1, 2, 1, 2, 3, 3, 1, 2])
    vectors = near(centers, 9, 0.0)
    vectors = centers[which] + 1e-3 * unit((9, 12), seed=4)
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    spans = np.stack((np.arange(9), np.arange(9) + 1), axis=1)
    given = TokenVectors(vectors, np.arange(9), spans, truncated_tokens=3)
    assert pooled(given, 1) is given
    found = pooled(given, 3)  # 8 // 3 + 1 = 3 clusters of the eight after the first
    assert (len(found), found.truncated_tokens) == (4, 3)
    assert np.array_equal(found.vectors_NE[0], vectors[0])
    assert {int(which[id]) for id in found.ids_N} == {0, 1, 2, 3}
    for vector, id in zip(found.vectors_NE[1:], found.ids_N[1:], strict=True):
        mean = vectors[1:][which[1:] == which[id]].mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-6)
        members = np.flatnonzero(which[1:] == which[id]) + 1
        assert id == members[(vectors[members] @ vector).argmax()]
    assert np.array_equal(found.spans_N2, spans[found.ids_N])
    assert len(pooled(TokenVectors(vectors[:2], np.arange(2), spans[:2]), 4)) == 2


def check(index, model, wanted):
    """The index has exactly these texts, each scored by its own encoded vectors."""
    assert {id: index.document(id).text for id in index.ids} == wanted
    if not wanted:
        assert index.search("rivers", mode="multi_vector", approximate=True) == ()
        return
    codec = index._contents.codec
    query = "rivers and money"
    asked = model.multi_vectors(query, "query").vectors_NE
    hits = index.search(query, k=99, mode="multi_vector", why="shares")
    assert {hit.document for hit in hits} == wanted.keys()
    for hit in hits:
        vectors = model.multi_vectors(wanted[hit.document], "document").vectors_NE
        decoded = codec.decode(*codec.encode(vectors.astype(np.float16)))
        assert hit.score == pytest.approx(late_interaction(codec.rotated(asked), decoded), abs=2e-5)
        (why,) = hit.why
        total = sum(share.share for share in why.shares) + why.special
        assert total == pytest.approx(hit.score, abs=1e-6)
        assert why.uncompressed_score == pytest.approx(late_interaction(asked, vectors), abs=1e-5)
    again = index.search(query, k=99, mode="multi_vector", approximate=True)
    assert [(hit.document, hit.score) for hit in again] == [(hit.document, hit.score) for hit in hits]


@pytest.mark.parametrize("seed", range(20))
def test_random_changes_are_those_of_a_dictionary(model, tmp_path, seed):
    """Ten changes each, 200 in all: additions, replacements, deletions and compactions."""
    draw = np.random.default_rng(seed)
    index = Index.create(tmp_path / "index", model, vector_bits=int(draw.choice([1, 2, 4])))
    wanted, codec = {}, None
    for _ in range(10):
        match draw.choice(["add", "add", "add", "delete", "compact"]):
            case "add":
                ids = draw.choice(12, size=draw.integers(1, 5), replace=False)
                texts = {str(id): " ".join(draw.choice(WORDS, size=draw.integers(1, 9))) for id in ids}
                index.add([{"id": id, "text": text} for id, text in texts.items()])
                wanted |= texts
            case "delete" if wanted:
                gone = str(draw.choice(sorted(wanted)))
                index.delete(gone)
                del wanted[gone]
            case _:
                index.compact()
        learned = index._contents.codec_segment
        if codec is not None and learned is not None and wanted:
            assert learned.sha256 == codec, "centroids are written once"
        codec = None if learned is None else learned.sha256
        check(index, model, wanted)
    assert Index.verify(index.path) == ()
    check(Index.open(index.path, model), model, wanted)


def test_compression_is_counted_and_drift_is_seen(model, tmp_path):
    index = Index.create(tmp_path / "index", model, vector_bits=2)
    assert index.compression is None
    index.add([" ".join(WORDS[: 1 + number % 3]) for number in range(3)])
    first = index.compression
    assert (first.bits, first.vector_bytes) == (2, 4)
    assert first.error == first.first_error > 0
    index.add([" ".join(WORDS[::-1][: 3 + number]) for number in range(6)])
    later = index.compression
    assert later.first_error == first.first_error < later.error
    assert later.vectors > first.vectors
    index.compact()
    assert index.compression == later
    assert first.learned_from == later.learned_from == first.vectors
    assert "from 34 vectors, and from fewer than 4,096 they are poor: index many" in first.warning
    assert replace(first, learned_from=4096).warning is None


def test_pooling_stores_fewer_vectors_and_says_what_it_changes(model, tmp_path):
    text = " ".join(WORDS)
    index = Index.create(tmp_path / "index", model, token_pooling=2)
    index.add([text])
    (hit,) = index.search("rivers", k=1, mode="multi_vector", why="shares")
    (stored,) = index._contents.segments
    every = model.multi_vectors(text, "document")
    assert len(stored.arrays["vectors/values"]) == (len(every) - 1) // 2 + 2
    asked = model.multi_vectors("rivers", "query")
    assert hit.why[0].uncompressed_score == pytest.approx(late_interaction(asked, every), abs=1e-5)
    assert hit.score == pytest.approx(late_interaction(asked, pooled(every, 2)), abs=2e-3)
    with pytest.raises(InvalidRequest, match="this index has float16; leave approximate out"):
        index.search("rivers", mode="multi_vector", approximate=True)


def test_what_cannot_be_compressed_is_refused(model, tmp_path):
    with pytest.raises(InvalidRequest, match="vector_bits is 3"):
        Index.create(tmp_path / "index", model, vector_bits=3)
    with pytest.raises(InvalidRequest, match="token_pooling is 0"):
        Index.create(tmp_path / "index", model, token_pooling=0)
    with pytest.raises(InvalidRequest, match="vector_bits is for models with one vector per token"):
        Index.create(tmp_path / "index", [], vector_bits=2)
    assert not (tmp_path / "index").exists()
