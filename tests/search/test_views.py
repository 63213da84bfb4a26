"""Each view against a reference: bm25s, direct sums, and the same passages in one segment or several."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from unmask.engines.native.library import library_reason
from unmask.search.analysis import Analyzer
from unmask.search.ranking import FusionSettings, fused
from unmask.search.store.arrays import all_strings, encode_strings, offsets_of, rows_of, string_at
from unmask.search.views.bm25 import K1, B, Bm25, Bm25Builder
from unmask.search.views.compression import Codec
from unmask.search.views.merge import _bm25, _sparse
from unmask.search.views.sparse import Sparse, SparseBuilder
from unmask.search.views.vectors import Dense, Vectors, VectorsBuilder, maxsim_natively

WORDS = ["river", "bank", "loan", "water", "deep", "money", "interest", "stream", "fish", "credit"]


def passages(count, seed=0):
    draw = np.random.default_rng(seed)
    return [list(draw.choice(WORDS, size=draw.integers(1, 12))) for _ in range(count)]


def bm25_of(*parts, live=None):
    segments = []
    for part in parts:
        builder = Bm25Builder()
        for terms in part:
            builder.add(terms)
        segments.append(builder.arrays())
    live = [np.ones(len(part), dtype=bool) for part in parts] if live is None else live
    return Bm25(segments, live)


def test_bm25_is_that_of_bm25s():
    bm25s = pytest.importorskip("bm25s", reason="the reference for BM25 is not installed")
    corpus = passages(60)
    reference = bm25s.BM25(method="lucene", k1=K1, b=B)
    reference.index(corpus, show_progress=False)
    ours = bm25_of(corpus)
    for query in (["river"], ["bank", "loan", "loan"], ["credit", "unknown"], WORDS):
        known = [term for term in query if term != "unknown"]
        np.testing.assert_allclose(ours.scores(query), reference.get_scores(known), rtol=1e-5, atol=1e-6)


def test_bm25_of_segments_and_deleted_passages_is_that_of_what_is_left():
    corpus = passages(40)
    live = np.random.default_rng(1).random(40) > 0.3
    kept = [terms for terms, alive in zip(corpus, live, strict=True) if alive]
    parted = bm25_of(corpus[:13], corpus[13:], live=[live[:13], live[13:]])
    query = ["water", "deep", "fish"]
    np.testing.assert_array_equal(parted.scores(query)[live], bm25_of(kept).scores(query))
    assert not parted.scores(query)[~live].any()


def test_bm25_weights_add_up_to_the_score_and_are_the_formula():
    corpus = passages(30)
    ours = bm25_of(corpus[:10], corpus[10:])
    query = ["bank", "money", "money", "nowhere"]
    scores = ours.scores(query)
    mean = sum(map(len, corpus)) / len(corpus)
    for passage, terms in enumerate(corpus):
        weights = ours.explain(query, passage)
        assert sum(one.weight for one in weights) == pytest.approx(scores[passage], rel=1e-6)
        for one in weights:
            holding = sum(one.term in other for other in corpus)
            idf = math.log(1 + (len(corpus) - holding + 0.5) / (holding + 0.5))
            n = Counter(terms)[one.term]
            wanted = idf * n / (n + K1 * (1 - B + B * len(terms) / mean)) * query.count(one.term)
            assert (one.count, one.weight) == (n, pytest.approx(wanted))


def test_merged_postings_are_those_of_one_segment():
    corpus = passages(50, seed=3)
    live = np.random.default_rng(4).random(50) > 0.4
    parts = [corpus[:20], corpus[20:21], corpus[21:]]
    masks = np.split(live, [20, 21])
    segments = []
    for part in parts:
        builder = Bm25Builder()
        for terms in part:
            builder.add(terms)
        segments.append(builder.arrays())
    whole = Bm25Builder()
    for terms, alive in zip(corpus, live, strict=True):
        if alive:
            whole.add(terms)
    merged = _bm25(segments, masks)
    for name, array in whole.arrays().items():
        np.testing.assert_array_equal(merged[name], array, err_msg=name)


def sparse_vectors(count, seed):
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        ids = np.sort(draw.choice(100, size=draw.integers(0, 9), replace=False))
        found.append((ids, draw.random(len(ids)).astype(np.float32)))
    return found


def test_sparse_scores_are_dot_products_also_over_segments_and_merged():
    vectors = sparse_vectors(30, 0)
    dense = np.zeros((30, 100))
    for row, (ids, weights) in enumerate(vectors):
        dense[row, ids] = weights
    segments = []
    for part in (vectors[:12], vectors[12:]):
        builder = SparseBuilder()
        for ids, weights in part:
            builder.add(ids, weights)
        segments.append(builder.arrays())
    ((ids, weights),) = sparse_vectors(1, 5)
    query = np.zeros(100)
    query[ids] = weights
    sparse = Sparse(segments, [12, 18])
    scores = sparse.scores(ids, weights)
    np.testing.assert_allclose(scores, dense @ query, rtol=1e-6, atol=1e-7)
    for passage in range(30):
        products = sparse.explain(ids, weights, passage)
        assert sum(value for _, value in products) == pytest.approx(scores[passage], rel=1e-6, abs=1e-6)
    live = np.random.default_rng(6).random(30) > 0.5
    merged = _sparse(segments, np.split(live, [12]))
    again = Sparse([merged], [int(live.sum())]).scores(ids, weights)
    np.testing.assert_array_equal(again, scores[live])


def test_dense_scores_of_segments_are_dot_products():
    draw = np.random.default_rng(0)
    vectors, query = draw.normal(size=(25, 8)).astype(np.float32), draw.normal(size=8).astype(np.float32)
    view = Dense([{"dense/vectors": part} for part in (vectors[:7], vectors[7:].astype(np.float16))])
    stored = np.concatenate((vectors[:7], vectors[7:].astype(np.float16).astype(np.float32)))
    np.testing.assert_allclose(view.scores(query), stored @ query, rtol=1e-5, atol=1e-6)
    chosen = np.array([24, 3, 7, 6])
    np.testing.assert_array_equal(
        view.exact(query, chosen),
        (stored[chosen].astype(np.float64) @ query.astype(np.float64)).astype(np.float32),
    )


def vectors_of(sizes, seed=0, width=6):
    draw = np.random.default_rng(seed)
    return [
        (
            draw.normal(size=(size, width)).astype(np.float32),
            np.stack((np.arange(size), np.arange(size) + 1), axis=1).astype(np.int32),
        )
        for size in sizes
    ]


def test_maxsim_is_the_sum_of_best_products_and_is_explained_by_them(monkeypatch):
    monkeypatch.setattr("unmask.search.views.vectors.VECTORS_AT_ONCE", 7)
    stored = vectors_of([3, 0, 5, 9, 1, 2, 12, 4])
    segments = []
    for part in (stored[:3], stored[3:]):
        builder = VectorsBuilder()
        for values, spans in part:
            builder.add(values, spans)
        segments.append(builder.arrays(6))
    view = Vectors(segments)
    query = vectors_of([4], seed=9)[0][0]
    scores = view.scores(query)
    for passage, (values, _) in enumerate(stored):
        if not len(values):
            assert scores[passage] == -np.inf
            continue
        products = query @ values.astype(np.float16).astype(np.float32).T
        assert scores[passage] == pytest.approx(products.max(axis=1).sum(), rel=1e-6)
        matches = view.explain(query, passage)
        assert sum(one.score for one in matches) == pytest.approx(scores[passage], rel=1e-6)
        assert [one.start for one in matches] == products.argmax(axis=1).tolist()
    some = np.array([0, 3, 6])
    np.testing.assert_allclose(view.scores(query, some), scores[some], atol=1e-6)


def test_reciprocal_rank_fusion_is_the_paper_s_sum():
    by_rank = FusionSettings()
    rankings = [np.array([4, 2, 7]), np.array([2, 9])]
    points = [
        by_rank.points("bm25", np.zeros(3, np.float32)),
        by_rank.points("dense", np.zeros(2, np.float32)),
    ]
    wanted = {4: 1 / 61, 2: 1 / 62 + 1 / 61, 7: 1 / 63, 9: 1 / 62}
    assert fused(zip(rankings, points, strict=True)) == pytest.approx(wanted)


def test_scores_are_brought_to_one_range_and_weighted():
    by_score = FusionSettings("min_max", {"dense": 3.0})
    scores = np.array([5.0, 3.0, 1.0], np.float32)
    assert by_score.points("bm25", scores).tolist() == [1.0, 0.5, 0.0]
    assert by_score.points("dense", scores).tolist() == [3.0, 1.5, 0.0]
    assert by_score.points("dense", scores[:1]).tolist() == [3.0]
    assert by_score.points("dense", scores[:0]).tolist() == []


def test_strings_and_lists_survive():
    values = ["", "naïve 😀", "a\nb", "x"]
    content, offsets = encode_strings(values)
    assert all_strings(content, offsets) == values
    assert [string_at(content, offsets, row) for row in range(4)] == values
    offsets = offsets_of([2, 0, 3, 1])
    assert rows_of(offsets, np.array([2, 1, 0])).tolist() == [2, 3, 4, 0, 1]
    assert rows_of(offsets, np.array([], dtype=int)).tolist() == []


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("The cats of Zürich", ["cat", "zürich"]),
        ("readFile read_file", ["readfil", "read", "file", "read_fil", "read", "file"]),
        ("HTTPServer2 and don't", ["httpserver2", "http", "server", "don", "t"]),
        ("IL-6 42", ["il", "6", "42"]),
        ("", []),
    ],
)
def test_terms(text, terms):
    assert Analyzer().counted(text) == terms


def test_terms_stand_where_they_say():
    text = "Öl: writeBoolean_now, größer ıİ 😀 fish"
    for found in Analyzer(stemmer="none").terms(text):
        assert text[found.start : found.end].lower() == found.term.replace("grösser", "größer").replace(
            "ıi", "ıi̇"
        )


# --- MaxSim in the native library ---------------------------------------------------------------------


def stored(draw, width, sizes, bits):
    """A segment of random vectors of length 1, its codec, and the vectors that it stands for."""
    builder = VectorsBuilder()
    for size in sizes:
        vectors = draw.standard_normal((size, width)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        builder.add(vectors, np.stack([np.arange(size)] * 2, axis=1).astype(np.int32))
    values = builder.values(width)
    codec = Codec.learn(values, bits) if bits else None
    arrays = builder.arrays(width, codec)
    if codec is None:
        return arrays, None, values.astype(np.float64)
    decoded = codec.decode(arrays["vectors/codes"], arrays["vectors/residuals"])
    return arrays, codec, decoded.astype(np.float64)


@pytest.mark.skipif(library_reason("float32") is not None, reason="the native library is not built here")
@pytest.mark.parametrize("queries", [1, 5, 32, 65])
@pytest.mark.parametrize("width", [3, 16, 100, 128])
@pytest.mark.parametrize("bits", [None, 1, 2, 4])
def test_maxsim_is_that_of_float64_natively_and_in_numpy(bits, width, queries, monkeypatch):
    draw = np.random.default_rng(width + queries)
    sizes = [0, 1, 7, 8, 9, 40, 0, 3, 0]
    arrays, codec, vectors = stored(draw, width, sizes, bits)
    query = draw.standard_normal((queries, width)).astype(np.float32)
    turned = (query if codec is None else codec.rotated(query)).astype(np.float64)
    offsets = arrays["vectors/offsets"]
    ends = list(pairwise(offsets))
    terms = [(turned @ vectors[start:end].T).max(axis=1, initial=-np.inf) for start, end in ends]
    in_basis = query if codec is None else codec.rotated(query)
    each = np.empty((3, queries), np.float32)
    maxsim_natively(arrays, codec, in_basis, np.array([5, 1, 0]), each)
    np.testing.assert_allclose(each, [terms[5], terms[1], terms[0]], rtol=1e-5, atol=1e-5)
    view = Vectors([arrays, arrays], codec)
    chosen = np.array([0, 2, 3, 5, 8, 9, 11, 14, 17])
    for backend in ("", "torch"):
        monkeypatch.setenv("UNMASK_BACKEND", backend)
        scores = view.scores(query, chosen)
        np.testing.assert_allclose(scores, [terms[p % 9].sum() for p in chosen], rtol=1e-5, atol=1e-5)
        for passage in (1, 5, 14):
            matches = view.explain(query, passage)
            np.testing.assert_allclose([m.score for m in matches], terms[passage % 9], rtol=1e-5, atol=1e-5)
            assert [m.start for m in matches] == (
                (turned @ vectors[slice(*ends[passage % 9])].T).argmax(axis=1).tolist()
            )
            assert sum(m.score for m in matches) == pytest.approx(
                float(view.scores(query)[passage]), abs=1e-6 * queries
            )


@pytest.mark.skipif(library_reason("float32") is not None, reason="the native library is not built here")
def test_proposals_of_the_native_library_are_those_of_numpy(monkeypatch):
    """Over several parts of a segment, and several segments; of equal totals the first passages are taken."""
    draw = np.random.default_rng(4)
    arrays, codec, _ = stored(draw, 16, draw.integers(0, 4, 40_000).tolist(), 2)
    fewer, _, _ = stored(draw, 16, [3] * 50, 2)
    fewer |= dict(
        zip(
            ("vectors/codes", "vectors/residuals"),
            codec.encode(draw.standard_normal((150, 16)).astype(np.float16)),
            strict=True,
        )
    )
    view = Vectors([arrays, fewer, arrays], codec)
    eligible = draw.random(view.passages) < 0.7
    for queries in (1, 9):
        query = draw.standard_normal((queries, 16)).astype(np.float32)
        proposals = []
        for backend in ("", "torch"):
            monkeypatch.setenv("UNMASK_BACKEND", backend)
            proposals.append(view.proposed(query, eligible, 300))
        np.testing.assert_array_equal(*proposals)
        assert len(proposals[0]) == 300
        assert eligible[proposals[0]].all()
        assert (np.diff(proposals[0]) > 0).all()


@pytest.mark.skipif(library_reason("float32") is not None, reason="the native library is not built here")
def test_a_vector_that_is_no_number_reaches_the_score():
    arrays, _, _ = stored(np.random.default_rng(0), 20, [5, 5], None)
    arrays["vectors/values"][6, 19] = np.nan
    scores = Vectors([arrays]).scores(np.ones((4, 20), np.float32))
    assert np.isfinite(scores[0])
    assert np.isnan(scores[1])
