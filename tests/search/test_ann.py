"""Approximate search: its scores are exact, its recall is high, and its cache is never trusted."""

import numpy as np
import pytest

from unmask.errors import InvalidRequest, MissingExtra
from unmask.search import ann
from unmask.search.ann import ApproximateSearch
from unmask.search.store import Store, writing

Index = pytest.importorskip("usearch.index").Index

WIDTH = 24
NONE = np.empty(0, np.int64)


def drawn(rows, seed=0, width=WIDTH):
    """Vectors in clusters, of different lengths."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).standard_normal((60, width))
    vectors = centers[rng.integers(0, 60, rows)] + 0.7 * rng.standard_normal((rows, width))
    return (vectors * rng.uniform(0.5, 2, (rows, 1))).astype(np.float32)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Two segments with graphs and one without, of which rows are deleted."""
    path = tmp_path_factory.mktemp("ann") / "index"
    Store.create(path, {})
    parts = [drawn(3000, 1), drawn(2500, 2).astype(np.float16), drawn(40, 3)]
    deleted = [np.arange(0, 3000, 7), NONE, np.arange(3)]
    with writing(path) as writer:
        names = [writer.add_segment(len(part), {"dense": part}, {}) for part in parts]
        generation = writer.commit(dict(zip(names, deleted, strict=True)))
    return path, generation, np.concatenate([part.astype(np.float32) for part in parts]), deleted


@pytest.fixture(autouse=True)
def _graphs_of_small_segments(monkeypatch):
    monkeypatch.setattr(ann, "EXACT_ROWS", 1000)
    monkeypatch.setattr(ann, "AT_ONCE", 500)


@pytest.fixture
def builds(monkeypatch):
    """The arrays of which graphs were built."""
    original, built = ann.built_graph, []

    def build(vectors, metric):
        built.append(len(vectors))
        return original(vectors, metric)

    monkeypatch.setattr(ann, "built_graph", build)
    return built


def exact(vectors, queries, metric, deleted, k):
    vectors = vectors.astype(np.float64)
    queries = queries.astype(np.float64)
    if metric == "cosine":
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    scores = queries @ vectors.T
    scores[:, deleted] = -np.inf
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, rows, 1), rows


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_recall_and_scores(stored, metric):
    _, generation, vectors, deleted = stored
    gone = np.concatenate([deleted[0], 5500 + deleted[2]])
    queries = drawn(100, 7)
    scores, rows = ApproximateSearch(generation, "dense", metric).search(queries, 10)
    wanted_scores, wanted = exact(vectors, queries, metric, gone, 10)
    assert (scores.dtype, rows.dtype, rows.shape) == (np.float32, np.int64, (100, 10))
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows, wanted, strict=True)])
    assert recall >= 0.98
    assert not np.isin(rows, gone).any()
    assert (np.diff(scores, axis=1) <= 0).all()
    same = rows == wanted
    assert same.mean() > 0.9  # a row that was missed moves those after it
    np.testing.assert_allclose(scores[same], wanted_scores[same], rtol=1e-5)


def test_the_same_whichever_the_batch_and_wherever_the_graph_is_from(stored, builds, tmp_path):
    path, generation, _, _ = stored
    queries = drawn(20, 8)
    search = ApproximateSearch(generation, "dense")
    scores, rows = search.search(queries, 5)
    for number in (0, 13):
        one = search.search(queries[number : number + 1], 5)
        assert np.array_equal(one[0][0], scores[number])
        assert np.array_equal(one[1][0], rows[number])
    builds.clear()
    for file in (path / "cache").iterdir():
        file.unlink()
    for _ in range(2):
        again = ApproximateSearch(Store.open(path), "dense").search(queries, 5)
        assert np.array_equal(again[0], scores)
        assert np.array_equal(again[1], rows)
    assert builds == [3000, 2500]


@pytest.mark.parametrize(
    "damage", ["flipped bit", "cut", "empty", "no seal", "another seal", "another graph"]
)
def test_a_damaged_cache_is_built_again(stored, builds, damage):
    path, generation, _, _ = stored
    queries = drawn(5, 9)
    wanted = ApproximateSearch(generation, "dense").search(queries, 5)
    builds.clear()
    # Other tests leave graphs of the other metric there.
    one, other = sorted(
        seal.with_suffix(".graph")
        for seal in (path / "cache").glob("*.json")
        if b'"metric": "cosine"' in seal.read_bytes()
    )
    content = one.read_bytes()
    if damage == "flipped bit":
        one.write_bytes(content[:50_000] + bytes([content[50_000] ^ 4]) + content[50_001:])
    elif damage == "cut":
        one.write_bytes(content[:-100])
    elif damage == "empty":
        one.write_bytes(b"")
    elif damage == "no seal":
        one.with_suffix(".json").unlink()
    elif damage == "another seal":
        one.with_suffix(".json").write_bytes(other.with_suffix(".json").read_bytes())
    else:
        one.write_bytes(other.read_bytes())
        one.with_suffix(".json").write_bytes(other.with_suffix(".json").read_bytes())
    found = ApproximateSearch(generation, "dense").search(queries, 5)
    assert builds == [3000]
    assert np.array_equal(found[1], wanted[1])
    assert one.read_bytes() == content
    assert Store.verify(path) == ()


def test_graphs_follow_the_segments(tmp_path, builds):
    path = tmp_path / "index"
    Store.create(path, {})
    with writing(path) as writer:
        one = writer.add_segment(1500, {"dense": drawn(1500, 1)}, {})
        ApproximateSearch(writer.commit({one: NONE}), "dense")
        two = writer.add_segment(1600, {"dense": drawn(1600, 2)}, {})
        ApproximateSearch(writer.commit({one: np.arange(5), two: NONE}), "dense")
        assert builds == [1500, 1600]
        writer.commit({two: NONE})
        writer.commit({two: np.arange(5)})
        three = writer.add_segment(1700, {"dense": drawn(1700, 3)}, {})
        ApproximateSearch(writer.commit({two: NONE, three: NONE}), "dense")
    assert builds == [1500, 1600, 1700]
    assert {file.name[:10] for file in (path / "cache").iterdir() if file.name != "lock"} == {two, three}


def test_many_deleted_rows_and_few_left(stored):
    _, generation, vectors, _ = stored
    queries = drawn(3, 4)
    most = [np.arange(1, 1499), np.arange(2500), np.arange(38)]
    search = ApproximateSearch(generation, "dense", "dot", deleted=most)
    gone = np.concatenate([most[0], 3000 + most[1], 5500 + most[2]])
    _, wanted = exact(vectors, queries, "dot", gone, 10)
    assert np.array_equal(search.search(queries, 10)[1], wanted)
    few = ApproximateSearch(generation, "dense", deleted=[np.arange(2999), most[1], np.arange(39)])
    scores, rows = few.search(queries, 4)
    assert (np.sort(rows, axis=1) == [-1, -1, 2999, 5539]).all()
    assert (scores[:, 2:] == -np.inf).all()


def test_near_rows_that_are_deleted_are_replaced_by_farther_ones(stored):
    """More candidates are asked for until enough of them are left."""
    _, generation, vectors, _ = stored
    query = drawn(1, 5)
    _, nearest = exact(vectors[:3000], query, "cosine", [], 500)
    _, wanted = exact(vectors, query, "cosine", nearest[0], 10)
    deleted = [nearest[0], NONE, NONE]
    _, rows = ApproximateSearch(generation, "dense", deleted=deleted).search(query, 10)
    assert len(set(rows[0]) & set(wanted[0])) >= 9


def test_equal_scores_are_in_the_order_of_rows(tmp_path):
    path = tmp_path / "index"
    Store.create(path, {})
    vectors = np.repeat(drawn(40), 60, axis=0)
    with writing(path) as writer:
        names = [writer.add_segment(len(vectors), {"dense": vectors}, {}) for _ in range(2)]
        generation = writer.commit(dict.fromkeys(names, NONE))
    _, rows = ApproximateSearch(generation, "dense").search(vectors[:1], 60)
    assert (np.diff(rows[0]) > 0).all()
    assert (vectors[rows[0] % len(vectors)] == vectors[0]).all()


def test_without_the_right_to_write_the_graph_is_kept_in_memory(stored, monkeypatch, builds):
    _, generation, _, _ = stored
    wanted = ApproximateSearch(generation, "dense").search(drawn(5), 5)
    builds.clear()
    monkeypatch.setattr(ann, "CACHE", "CURRENT")  # a file, so no folder of that name can be made
    found = ApproximateSearch(generation, "dense").search(drawn(5), 5)
    assert np.array_equal(found[1], wanted[1])
    assert builds == [3000, 2500]


def test_a_full_disk_leaves_the_graph_in_memory(stored, monkeypatch, builds):
    path, generation, _, _ = stored
    wanted = ApproximateSearch(generation, "dense", "dot").search(drawn(5), 5)
    for file in (path / "cache").iterdir():
        file.unlink()
    builds.clear()
    save = Index.save
    monkeypatch.setattr(Index, "save", lambda graph, file: save(graph, "/dev/full"))
    found = ApproximateSearch(generation, "dense", "dot").search(drawn(5), 5)
    assert np.array_equal(found[1], wanted[1])
    assert builds == [3000, 2500]
    assert [file.name for file in (path / "cache").iterdir()] == ["lock"]


def test_wrong_requests(stored, tmp_path, monkeypatch):
    _, generation, _, _ = stored
    search = ApproximateSearch(generation, "dense")
    with pytest.raises(InvalidRequest, match=r"the queries have shape \(2, 3\); give one row of 24 numbers"):
        search.search(np.zeros((2, 3)), 1)
    with pytest.raises(InvalidRequest, match="k is 0; it must be an integer from 1"):
        search.search(drawn(1), 0)
    with pytest.raises(InvalidRequest, match="metric is 'l2'; it can be 'cosine' or 'dot'"):
        ApproximateSearch(generation, "dense", "l2")
    with pytest.raises(InvalidRequest, match="has no array 'sparse'; it has dense"):
        ApproximateSearch(generation, "sparse")
    empty = Store.create(tmp_path / "index", {})
    scores, rows = ApproximateSearch(empty, "dense").search(drawn(2), 3)
    assert (rows == -1).all()
    assert (scores == -np.inf).all()
    with writing(empty.path) as writer:
        flat = writer.commit({writer.add_segment(3, {"dense": np.arange(3)}, {}): NONE})
    with pytest.raises(
        InvalidRequest, match=r"is int64 of shape \(3,\); approximate search needs 2-D arrays"
    ):
        ApproximateSearch(flat, "dense")
    with writing(empty.path) as writer:
        more = writer.commit({writer.add_segment(3, {"dense": drawn(4)}, {}): NONE})
    with pytest.raises(InvalidRequest, match="has 4 rows and the segment 3; say with deleted which rows"):
        ApproximateSearch(more, "dense")
    assert ApproximateSearch(more, "dense", deleted=[NONE]).search(drawn(1), 4)[1].max() == 3
    monkeypatch.setattr("unmask.base.optional.find_spec", lambda name: None)
    with pytest.raises(
        MissingExtra, match=r"usearch is needed for approximate search: pip install 'unmask\[ann\]'"
    ):
        ApproximateSearch(empty, "dense")
