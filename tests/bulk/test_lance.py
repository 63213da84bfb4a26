"""Lance datasets as inputs, and one made of shards."""

import json
import re

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tests.bulk.conftest import blocks
from unmask.bulk import BatchEmbedder, run_shards
from unmask.bulk import run as bulk_run
from unmask.bulk.shards import ShardWriter
from unmask.bulk.sources import plan
from unmask.errors import InvalidRequest, OutputError, ProcessLost

lance = pytest.importorskip("lance", reason="pylance is not installed: pip install unmask[lance]")

TEXTS = [f"Passage {number} of this test." for number in range(7)]
pytestmark = pytest.mark.slow
EMBEDDER = BatchEmbedder("unmask-mini", pooling="mean", threads=1)


@pytest.fixture
def dataset(tmp_path):
    """Seven passages in fragments of three rows, of which some were deleted before the last came."""
    path = tmp_path / "texts.lance"
    rows = [*TEXTS[:4], "deleted", "deleted, too", *TEXTS[4:]]
    lance.write_dataset(pyarrow.table({"id": range(9), "text": rows}), path, max_rows_per_file=3)
    lance.dataset(path).delete("id IN (4, 5)")
    return str(path)


def tables(folder):
    return [parquet.read_table(path) for path in sorted(folder.glob("part-*.parquet"))]


def test_a_dataset_gives_what_its_rows_give_as_lines(dataset, quick, tmp_path):
    lines = tmp_path / "texts.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    run_shards([dataset], str(tmp_path / "a"), EMBEDDER, rows_per_shard=2)
    run_shards([str(lines)], str(tmp_path / "b"), EMBEDDER, rows_per_shard=2)
    found = pyarrow.concat_tables(tables(tmp_path / "a")).to_pylist()
    parts = sorted((tmp_path / "b").glob("part-*"))
    wanted = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert [row.pop("id") for row in found] == [0, 1, 2, 3, 6, 7, 8]
    assert found == wanted


def test_rows_that_are_added_meanwhile_are_not_read(dataset, tmp_path):
    shards, _ = plan([dataset], 4)
    lance.dataset(dataset).delete("id = 0")
    lance.write_dataset(pyarrow.table({"id": [9], "text": ["new"]}), dataset, mode="append")
    (tmp_path / "out").mkdir()
    writer = ShardWriter(EMBEDDER, str(tmp_path / "out"))
    assert [writer(shard).rows for shard in shards] == [4, 3]
    assert pyarrow.concat_tables(tables(tmp_path / "out"))["text"].to_pylist() == TEXTS


def test_a_stopped_run_resumes_unless_the_dataset_has_changed(dataset, quick, tmp_path, monkeypatch):
    def stops(writer, shards, workers):
        yield from map(writer, shards[:1])
        raise ProcessLost("a worker ended")

    same, other = str(tmp_path / "same"), str(tmp_path / "other")
    with monkeypatch.context() as stopped:
        stopped.setitem(bulk_run.ENGINES, "processes", stops)
        for out in (same, other):
            with pytest.raises(ProcessLost):
                run_shards([dataset], out, EMBEDDER, rows_per_shard=2)
    lance.dataset(dataset).create_scalar_index("id", "BTREE")  # a new version of the same rows
    assert run_shards([dataset], same, EMBEDDER, rows_per_shard=2).resumed_shards == 1
    lance.dataset(dataset).delete("id = 8")
    with pytest.raises(OutputError, match="other texts or settings"):
        run_shards([dataset], other, EMBEDDER, rows_per_shard=2)


def test_a_folder_that_is_no_dataset_is_one_sentence(tmp_path):
    with pytest.raises(
        InvalidRequest, match=r"x\.lance cannot be read: Dataset at path .* was not found"
    ) as one:
        plan([str(tmp_path / "x.lance")], 2)
    assert not re.search(r"\.rs:\d", str(one.value))


def test_a_dataset_of_the_shards_finds_what_they_hold(dataset, quick, tmp_path, monkeypatch):
    run_shards([dataset], str(tmp_path / "vectors"), EMBEDDER, rows_per_shard=2)
    monkeypatch.chdir(tmp_path)
    (code,) = [block for block in blocks("python") if "import lance" in block]
    exec(code, {})
    made = lance.dataset(tmp_path / "vectors.lance")
    assert made.to_table() == pyarrow.concat_tables(tables(tmp_path / "vectors"))
    query = np.array(made.to_table()["embedding"][5].as_py(), dtype=np.float32)
    nearest = made.to_table(nearest={"column": "embedding", "q": query, "k": 1})
    assert nearest["text"].to_pylist() == [TEXTS[5]]
