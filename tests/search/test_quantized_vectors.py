"""Codes of dense vectors: the quantizer alone, and an index that stores them, while it changes."""

from types import SimpleNamespace

import numpy as np
import pytest

import unmask
from tests.search.test_compressed_vectors import WORDS, near, unit
from tests.search.test_index import write_reader
from unmask.engines.native.library import library_reason
from unmask.errors import InvalidRequest
from unmask.search import searcher
from unmask.search.index import Index
from unmask.search.views import compression
from unmask.search.views.compression import Quantizer
from unmask.search.views.vectors import Dense, _nth_largest
from unmask.spec import PairScore, PooledVector


def drawn(count, width, seed=1):
    return near(unit((30, width)), count, 0.8, seed).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return unmask.load(write_reader(tmp_path_factory.mktemp("reader") / "tiny"))


# --- the quantizer -----------------------------------------------------------------------------------------


def test_eight_bits_are_the_place_between_the_smallest_and_the_largest_value(monkeypatch):
    monkeypatch.setattr(compression, "NUMBERS_AT_ONCE", 13 * 100)
    vectors = drawn(700, 13)
    quantizer = Quantizer.learn(vectors, 8)
    codes = quantizer.encode(vectors)
    assert (codes.dtype, codes.shape, quantizer.vector_bytes) == (np.uint8, (700, 13), 13)
    low, high = vectors.min(axis=0), vectors.max(axis=0)
    assert ((codes.min(axis=0) == 0) & (codes.max(axis=0) == 255)).all()
    wanted = np.round((vectors.astype(np.float64) - low) / (high - low) * 255)
    assert (np.abs(codes - wanted) <= 1).all()
    assert (codes == wanted).mean() > 0.999
    stands_for = low + codes * ((high - low) / 255)
    assert np.abs(stands_for - vectors).max() <= 0.51 * ((high - low) / 255).max()
    stands_for /= np.linalg.norm(stands_for, axis=1, keepdims=True)
    np.testing.assert_allclose(quantizer.decode(codes), stands_for, atol=1e-6)
    assert quantizer.error(vectors, codes) == pytest.approx(
        1 - (stands_for * vectors).sum(1).mean(), abs=1e-6
    )
    # What lies outside gets the nearest code.
    outside = np.stack([high + 1, low - 1])
    assert quantizer.encode(outside).tolist() == [[255] * 13, [0] * 13]


@pytest.mark.parametrize("width", [13, 64, 70])
def test_one_bit_is_the_side_of_the_mean_after_a_rotation(width, monkeypatch):
    monkeypatch.setattr(compression, "NUMBERS_AT_ONCE", width * 100)
    vectors = drawn(700, width)
    quantizer = Quantizer.learn(vectors, 1)
    codes = quantizer.encode(vectors)
    assert (codes.dtype, codes.shape[1]) == (np.uint8, {13: 8, 64: 8, 70: 16}[width])
    turn = quantizer.rotation_EE.astype(np.float64)
    np.testing.assert_allclose(turn @ turn.T, np.eye(width), atol=1e-5)
    turned = vectors.astype(np.float64) @ turn
    mean = turned.mean(axis=0)
    bits = np.unpackbits(codes, axis=1)
    assert not bits[:, width:].any()
    assert (bits[:, :width] == (turned > mean)).mean() > 0.999
    signs = 2.0 * bits[:, :width] - 1
    stands_for = (mean + signs * np.abs(turned - mean).mean(axis=0)) @ turn.T
    stands_for /= np.linalg.norm(stands_for, axis=1, keepdims=True)
    np.testing.assert_allclose(quantizer.decode(codes), stands_for, atol=1e-5)
    assert quantizer.error(vectors, codes) == pytest.approx(
        1 - (stands_for * vectors).sum(1).mean(), abs=1e-5
    )


@pytest.mark.parametrize("backend", ["native", "numpy"])
@pytest.mark.parametrize("width", [13, 48, 200])
def test_nearness_is_the_product_with_codes_or_the_bits_that_agree(width, backend, monkeypatch):
    if backend == "numpy":
        monkeypatch.setenv("UNMASK_BACKEND", "torch")
    elif reason := library_reason("float32"):
        pytest.skip(f"no native library here: {reason}")
    monkeypatch.setattr(compression, "CODES_AT_ONCE", 7)
    monkeypatch.setattr(compression, "WORDS_AT_ONCE", 7)
    vectors, query = drawn(60, width), drawn(3, width, 5)[2]
    eight = Quantizer.learn(vectors, 8)
    codes = eight.encode(vectors)
    exact = (eight.center_E + (codes - 127.5) * eight.step_E.astype(np.float64)) @ query
    found = eight.near(query, codes)
    np.testing.assert_allclose(found - found[0], exact - exact[0], atol=1e-5)
    one = Quantizer.learn(vectors, 1)
    codes = one.encode(vectors)
    bits, asked = np.unpackbits(codes, axis=1), np.unpackbits(one.encode(query[None]), axis=1)
    assert one.near(query, codes).tolist() == (-(bits != asked).sum(axis=1)).tolist()


@pytest.mark.skipif(library_reason("float32") is not None, reason="the native library is not built here")
@pytest.mark.parametrize("bits", [8, 1])
def test_every_row_of_many_is_compared_by_two_threads(bits, monkeypatch):
    vectors = drawn(9001, 24)
    quantizer = Quantizer.learn(vectors, bits)
    codes = quantizer.encode(vectors)
    monkeypatch.setattr(compression, "thread_count", lambda: 2)
    natively = quantizer.near(vectors[8], codes)
    monkeypatch.setenv("UNMASK_BACKEND", "torch")
    np.testing.assert_allclose(natively, quantizer.near(vectors[8], codes), rtol=1e-5, atol=1e-5)


def test_a_rotation_finds_more_where_variances_differ(monkeypatch):
    """As after a principal component analysis, which static models have."""
    vectors = near(unit((40, 64)), 3000, 0.9).astype(np.float32) * np.geomspace(1, 0.02, 64, dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries, stored = vectors[:50], vectors[50:]

    def recall():
        quantizer = Quantizer.learn(stored, 1)
        view = Dense([{"dense/vectors": stored, "dense/codes": quantizer.encode(stored)}], quantizer)
        everything = np.ones(len(stored), bool)
        best = [np.argsort(-view.scores(query), kind="stable")[:10] for query in queries]
        return np.mean(
            [
                np.isin(wanted, view.proposed(query, everything, 100)).mean()
                for query, wanted in zip(queries, best, strict=True)
            ]
        )

    turned = recall()
    monkeypatch.setattr(compression, "_rotation", lambda width: np.eye(width, dtype=np.float32))
    assert turned > recall() + 0.05


def test_the_same_sample_gives_the_same_and_constants_do_no_harm(monkeypatch):
    monkeypatch.setattr(compression, "QUANTIZED_SAMPLE", 50)
    vectors = drawn(200, 9)
    for bits in (1, 8):
        first, again = Quantizer.learn(vectors, bits), Quantizer.learn(vectors, bits)
        for name, array in first.arrays().items():
            assert np.array_equal(array, again.arrays()[name])
        read = Quantizer.of_arrays(first.arrays())
        assert (read.bits, read.width) == (bits, 9)
        assert np.array_equal(read.encode(vectors), first.encode(vectors))
        alike = np.repeat(vectors[:1], 5, axis=0)
        learned = Quantizer.learn(alike, bits)
        assert np.isfinite(learned.decode(learned.encode(vectors))).all()
        np.testing.assert_allclose(learned.decode(learned.encode(alike)), alike, atol=2e-3)
        empty = first.encode(vectors[:0])
        assert (first.decode(empty).shape, first.near(vectors[0], empty).shape) == ((0, 9), (0,))
        assert first.error(vectors[:0], empty) == 0


@pytest.mark.parametrize("bits", [1, 8])
def test_codes_propose_the_nearest_of_those_that_are_eligible(bits):
    vectors = drawn(900, 48)
    quantizer = Quantizer.learn(vectors, bits)
    parts = (vectors[:500], vectors[500:])
    stored = [{"dense/vectors": part, "dense/codes": quantizer.encode(part)} for part in parts]
    coded = [{"dense/codes": arrays["dense/codes"]} for arrays in stored]
    view, codes_alone = Dense(stored, quantizer), Dense(coded, quantizer)
    query = drawn(1, 48, 8)[0]
    nearness = quantizer.near(query, quantizer.encode(vectors))
    everything = np.ones(900, bool)
    some = everything.copy()
    some[np.argsort(-nearness, kind="stable")[:20]] = False
    for eligible in (everything, some):
        proposed = view.proposed(query, eligible, 60)
        allowed = np.flatnonzero(eligible)
        least = np.sort(nearness[allowed])[-60]
        assert proposed.tolist() == [row for row in allowed.tolist() if nearness[row] >= least]
        assert len(proposed) >= 60
        assert codes_alone.proposed(query, eligible, 60).tolist() == proposed.tolist()
    assert view.proposed(query, some, 2000).tolist() == np.flatnonzero(some).tolist()
    decoded = quantizer.decode(quantizer.encode(vectors))
    rows = np.array([3, 499, 500, 899, 7])
    np.testing.assert_allclose(codes_alone.vectors(rows), decoded[rows], atol=1e-6)
    np.testing.assert_allclose(codes_alone.scores(query), decoded @ query, atol=1e-5)
    np.testing.assert_allclose(codes_alone.exact(query, rows), decoded[rows] @ query, atol=1e-6)
    assert view.code_score(query, 500) == pytest.approx(decoded[500] @ query, abs=1e-6)
    assert np.array_equal(view.vectors(rows), vectors[rows])


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
def test_the_smallest_of_the_largest(dtype):
    values = np.array([-3, 5, -3, 0, 5, 2], dtype)
    assert [_nth_largest(values, count) for count in range(1, 7)] == [5, 5, 2, 0, -3, -3]


# --- the index ---------------------------------------------------------------------------------------------


def check(index, model, wanted):
    """The index has exactly these texts, each with its own vector and code."""
    assert {id: index.document(id).text for id in index.ids} == wanted
    if not wanted:
        assert index.search("rivers", mode="dense", approximate=True) == ()
        return
    query = "rivers and money"
    asked = model.embed_query(query, normalize=True)
    floats = index.settings.vectors.dense_floats
    hits = index.search(query, k=99, mode="dense")
    again = index.search(query, k=99, mode="dense", approximate=True)
    assert [(hit.document, hit.score) for hit in again] == [(hit.document, hit.score) for hit in hits]
    assert {hit.document for hit in hits} == wanted.keys()
    for segment in index._contents.segments if floats else ():
        codes = index._contents.quantizer.encode(segment.arrays["dense/vectors"])
        assert np.array_equal(segment.arrays["dense/codes"], codes)
    for hit in hits:
        vector, stands_for = vectors_of(index, model, wanted[hit.document])
        assert hit.score == pytest.approx(float((vector if floats else stands_for) @ asked), abs=2e-5)


def vectors_of(index, model, text):
    """The vector of a text and what its code stands for."""
    vector, quantizer = model.embed_document(text, normalize=True), index._contents.quantizer
    return vector, quantizer.decode(quantizer.encode(vector[None]))[0]


@pytest.mark.parametrize("seed", range(10))
def test_random_changes_are_those_of_a_dictionary(model, tmp_path, seed):
    """Ten changes each, 100 in all: additions, replacements, deletions and compactions."""
    draw = np.random.default_rng(seed)
    bits, floats = int(draw.choice([1, 8])), bool(draw.integers(2))
    index = Index.create(tmp_path / "index", model, dense_bits=bits, dense_floats=floats)
    wanted, learned = {}, None
    for _ in range(10):
        change = draw.choice(["add", "add", "add", "delete", "compact"])
        if change == "add":
            ids = draw.choice(12, size=draw.integers(1, 5), replace=False)
            texts = {str(id): " ".join(draw.choice(WORDS, size=draw.integers(1, 9))) for id in ids}
            index.add([{"id": id, "text": text} for id, text in texts.items()])
            wanted |= texts
        elif change == "delete" and wanted:
            gone = str(draw.choice(sorted(wanted)))
            index.delete(gone)
            del wanted[gone]
        else:
            index.compact()
        segment = index._contents.quantizer_segment
        if learned is not None and segment is not None and wanted and not (floats and change == "compact"):
            assert segment.sha256 == learned, "additions and deletions learn nothing"
        learned = None if segment is None else segment.sha256
        check(index, model, wanted)
    assert Index.verify(index.path) == ()
    check(Index.open(index.path, model), model, wanted)


def test_compacting_learns_ranges_again(model, tmp_path):
    texts = [" ".join(WORDS[n : n + 4]) for n in range(8)]
    found = {}
    for floats in (True, False):
        index = Index.create(tmp_path / f"{floats}", model, dense_bits=8, dense_floats=floats)
        assert index.dense_compression is None
        index.add(texts[:1])
        first = index.dense_compression
        assert (first.bits, first.floats, first.vectors, first.learned_from) == (8, floats, 1, 1)
        assert first.error == first.first_error
        index.add(texts[1:])
        later = index.dense_compression
        assert later.first_error == first.first_error < later.error
        assert (later.vectors, later.learned_from) == (8, 1)
        assert "learned from 1 vector, and" in later.warning
        assert ("compact the index" if floats else "into a new folder") in later.warning
        index.compact()
        found[floats] = (later, index.dense_compression)
    later, compacted = found[True]
    assert compacted.error == compacted.first_error < later.error / 10
    assert compacted.learned_from == 8
    assert found[False][0] == found[False][1]


@pytest.mark.parametrize("floats", [True, False])
def test_explanations_are_of_the_stored_vector_and_state_what_differs(model, tmp_path, floats):
    index = Index.create(tmp_path / "index", model, dense_bits=1, dense_floats=floats)
    index.add([" ".join(WORDS[n : n + 4]) for n in range(8)])
    query = "rivers and money"
    asked = model.embed_query(query, normalize=True)
    for approximate in (False, True):
        hits = index.search(query, k=2, mode="dense", approximate=approximate, why="shares")
        for hit in hits:
            (why,) = hit.why
            vector, stands_for = vectors_of(index, model, hit.text)
            assert why.score == pytest.approx(hit.score, abs=1e-6)
            assert hit.score == pytest.approx((vector if floats else stands_for) @ asked, abs=2e-5)
            total = sum(share.share for share in why.shares) + why.special
            assert total == pytest.approx(hit.score, abs=1e-6)
            assert (why.first_score is None) == (not approximate)
            if approximate:
                assert why.first_score == pytest.approx(stands_for @ asked, abs=2e-5)
            assert (why.uncompressed_score is None) == floats
            if not floats:
                assert why.uncompressed_score == pytest.approx(vector @ asked, abs=1e-5)


def test_approximate_search_reads_no_other_vector(model, tmp_path, monkeypatch):
    """What codes propose is scored by its vectors, in dense and in hybrid search, with a filter, too."""
    monkeypatch.setitem(searcher.PROPOSED_BY_CODES, 8, (3, 1))
    index = Index.create(tmp_path / "index", model, dense_bits=8)
    draw = np.random.default_rng(3)
    texts = sorted({" ".join(draw.choice(WORDS, size=6)) for _ in range(60)})
    index.add([{"id": f"{n:02}", "text": text, "metadata": {"n": n % 2}} for n, text in enumerate(texts)])
    exact = index.search("rivers and money", k=60, mode="dense")
    monkeypatch.setattr(Dense, "scores", lambda *_: pytest.fail("every passage is scored"))
    hits = index.search("rivers and money", k=2, mode="dense", approximate=True)
    assert [(hit.document, hit.score) for hit in hits] == [(hit.document, hit.score) for hit in exact[:2]]
    odd = [hit for hit in exact if hit.metadata["n"] == 1]
    hits = index.search("rivers and money", k=2, mode="dense", approximate=True, filter={"n": 1})
    assert [(hit.document, hit.score) for hit in hits] == [(hit.document, hit.score) for hit in odd[:2]]
    monkeypatch.undo()
    monkeypatch.setitem(searcher.PROPOSED_BY_CODES, 8, (200, 1))
    for options in ({}, {"filter": {"n": 1}}):
        whole = index.search("rivers and money", k=9, **options)
        assert index.search("rivers and money", k=9, approximate=True, **options) == whole
    monkeypatch.setitem(searcher.PROPOSED_BY_CODES, 8, (1, 0))
    by_terms = {hit.document for hit in index.search("rivers and money", k=60, mode="bm25")}
    assert by_terms <= {hit.document for hit in index.search("rivers and money", k=60, approximate=True)}


@pytest.mark.parametrize(
    ("head", "scores"),
    [(PairScore(), True), (PairScore(labels=3), False), (PooledVector(("cls",)), True), (None, False)],
)
def test_what_scores_hits_again(model, monkeypatch, head, scores):
    monkeypatch.setattr(type(model), "checkpoint", SimpleNamespace(head=head))
    other = object.__new__(type(model))
    assert searcher.can_rerank(other) == scores
    assert not searcher.can_rerank("a name")


def test_candidates_say_how_many_are_proposed(model, tmp_path, monkeypatch):
    asked = []
    original = Dense.proposed
    monkeypatch.setattr(Dense, "proposed", lambda *given: asked.append(given[-1]) or original(*given))
    index = Index.create(tmp_path / "index", model, dense_bits=1)
    index.add([" ".join(WORDS[n : n + 3]) for n in range(9)])
    for options in ({"k": 2}, {"k": 100}, {"k": 2, "candidates": 7}):
        index.search("rivers", mode="dense", approximate=True, **options)
    assert asked == [2000, 3200, 7]
    with pytest.raises(InvalidRequest, match="candidates is 7 and has no effect"):
        index.search("rivers", k=2, mode="dense", candidates=7)
    with pytest.raises(InvalidRequest, match="approximate search is for mode dense"):
        index.search("rivers", mode="bm25", approximate=True)
    plain = Index.create(tmp_path / "plain", model)
    plain.add([{"id": word, "text": word, "metadata": {"n": 1}} for word in WORDS])
    for options in ({"mode": "hybrid"}, {"mode": "dense", "filter": ["n=1"]}):
        with pytest.raises(InvalidRequest, match="dense or hybrid with dense_bits"):
            plain.search("rivers", approximate=True, **options)


def test_other_uses_of_vectors_take_what_codes_stand_for(model, tmp_path):
    pyarrow = pytest.importorskip("pyarrow.parquet")
    index = Index.create(tmp_path / "index", model, dense_bits=8, dense_floats=False)
    texts = [" ".join(WORDS[n : n + 3]) for n in range(9)]
    index.add([{"id": str(n), "text": text} for n, text in enumerate(texts)])
    vectors = model.embed_document(texts, normalize=True)
    quantizer = index._contents.quantizer
    decoded = quantizer.decode(quantizer.encode(vectors))
    nearest = index.nearest_passages(decoded)
    assert list(nearest.documents) == [str(n) for n in range(9)]
    np.testing.assert_allclose(nearest.cosines, 1, atol=1e-5)
    index.export(tmp_path / "out.parquet", "parquet")
    rows = pyarrow.read_table(tmp_path / "out.parquet").to_pylist()
    for row in rows:
        np.testing.assert_allclose(row["vector"], decoded[int(row["document"])], atol=1e-5)


def test_what_cannot_be_stored_is_refused(model, tmp_path):
    for options, sentence in (
        ({"dense_bits": 4}, "dense_bits is 4; it can be 1, 8, None"),
        ({"dense_bits": True}, "dense_bits is True"),
        ({"dense_floats": False}, "no vector would be stored; give dense_bits"),
        ({"dense_bits": 8, "dense_floats": "no"}, "dense_floats is 'no'; it can be True, False"),
        ({"model": [], "dense_bits": 8}, "dense_bits is for models with one vector per passage"),
        ({"vector_bits": 2}, "vector_bits is for models with one vector per token"),
    ):
        with pytest.raises(InvalidRequest, match=sentence):
            Index.create(tmp_path / "index", **{"model": model} | options)
    assert not (tmp_path / "index").exists()
