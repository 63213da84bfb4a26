"""An index written for other vector stores, read back as each store reads it."""

import json
import struct
import uuid
from itertools import pairwise

import numpy as np
import pytest

import unmask
from tests.search.test_index import WORDS, documents, write_reader
from tests.support.command import run_here
from unmask.errors import InvalidRequest, MissingExtra, OutputError
from unmask.search.documents import Document
from unmask.search.export import files, passages, run
from unmask.search.index import Index

QUERIES = ("river", "money and loans", "a file is read", "the stone bridge", "month of fish")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return unmask.load(write_reader(tmp_path_factory.mktemp("reader") / "tiny"))


@pytest.fixture(scope="module")
def index(model, tmp_path_factory):
    """Two segments with deleted documents, documents of several passages, pages and other alphabets."""
    made = Index.create(tmp_path_factory.mktemp("export") / "index", model, passage_tokens=24)
    made.add([*documents(), Document("gone", "The river is gone.")])
    drawn = np.random.default_rng(5)
    made.add(
        [Document(f"drawn {n}", " ".join(drawn.permutation(WORDS)), metadata={"n": n}) for n in range(12)]
        + [
            Document("été/日本", "Größe: 日本語 \t\\ \"'\r\n bridge", title="Über\n"),
            Document("pages", "A river. " * 30, pages=(0, 90, 180), kind="pdf"),
        ]
    )
    made.delete(["gone", "drawn 3"])
    return made


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(passages, "BLOCK_BYTES", 1000)


@pytest.fixture(scope="module")
def expected(index):
    """Every passage by document and start, found by searching: its hit and its vector."""
    hits = index.search("river", k=1000, mode="dense")
    assert len(hits) == index.passages > 30
    contents = index._contents
    vectors = {}
    for number in np.flatnonzero(contents.live_P).tolist():
        place = contents.place(number)
        vectors[contents.ids[place.document], place.start] = index._searcher.dense.vectors(
            np.array([number])
        )[0]
    return {(hit.document, hit.start): (hit, vectors[hit.document, hit.start]) for hit in hits}


def require_whole(rows, expected):
    """All passages are there, each once, with every field and the same bits of its vector."""
    assert len({str(uuid.UUID(str(row["id"]))) for row in rows}) == len(rows) == len(expected)
    for row in rows:
        hit, vector = expected[row["document"], row["start"]]
        for name in ("page", "end", "text", "title", "metadata"):
            assert row[name] == getattr(hit, name)
        assert np.asarray(row["vector"], np.float32).tobytes() == vector.tobytes()
    assert {row["page"] for row in rows} == {None, 1, 2, 3}


def nearest(rows, query_E, k=10):
    """Documents and starts of the best rows by the inner product, as the stores rank."""
    scores = np.array([row["vector"] for row in rows]) @ query_E.astype(np.float64)
    return [(rows[row]["document"], rows[row]["start"]) for row in np.argsort(-scores, kind="stable")[:k]]


def searched(index, query):
    return [(hit.document, hit.start) for hit in index.search(query, mode="dense")]


def of_parquet(file):
    parquet = pytest.importorskip("pyarrow.parquet", reason="it reads the file")
    table = parquet.read_table(file)
    assert table.schema.field("vector").type.list_size == len(table["vector"][0])
    rows = table.to_pylist()
    return [row | {"metadata": json.loads(row["metadata"])} for row in rows]


def of_copy(file):
    """The rows of a file in the binary format of COPY, read by its description."""
    content = file.read_bytes()
    assert content.startswith(b"PGCOPY\n\xff\r\n\0" + bytes(8))
    at, rows = 19, []
    while (count := struct.unpack_from(">h", content, at)[0]) != -1:
        assert count == 9
        at, fields = at + 2, []
        for _ in range(count):
            (size,) = struct.unpack_from(">i", content, at)
            at += 4
            fields.append(None if size == -1 else content[at : at + size])
            at += max(size, 0)
        id, document, title, page, start, end, text, metadata, vector = fields
        assert metadata[0] == 1
        width, unused = struct.unpack_from(">hh", vector)
        assert (len(vector), unused) == (4 + 4 * width, 0)
        rows.append(
            {
                "id": uuid.UUID(bytes=id),
                "document": document.decode(),
                "title": title.decode(),
                "page": None if page is None else struct.unpack(">i", page)[0],
                "start": struct.unpack(">i", start)[0],
                "end": struct.unpack(">i", end)[0],
                "text": text.decode(),
                "metadata": json.loads(metadata[1:]),
                "vector": np.frombuffer(vector, ">f4", offset=4).astype(np.float32),
            }
        )
    assert at + 2 == len(content)
    return rows


def of_bulk(folder, name):
    """The documents that bodies of _bulk requests store."""
    rows = []
    for file in sorted(folder.glob("bulk-*.ndjson")):
        content = file.read_bytes()
        assert content.endswith(b"\n")
        assert len(content) <= files.BULK_BYTES
        lines = [json.loads(line) for line in content.split(b"\n")[:-1]]
        for action, fields in zip(lines[::2], lines[1::2], strict=True):
            assert action["index"]["_index"] == name
            rows.append(fields | {"id": action["index"]["_id"]})
    return rows


def test_parquet_gives_back_every_bit(index, expected, tmp_path):
    told = []
    made = index.export(tmp_path / "a.parquet", "parquet", progress=lambda done, of: told.append((done, of)))
    rows = of_parquet(tmp_path / "a.parquet")
    require_whole(rows, expected)
    assert (made.passages, made.documents, made.views_left_out) == (len(rows), len(index), ("bm25",))
    assert made.dimensions == len(rows[0]["vector"])
    assert len(told) > 3
    assert told[-1] == (len(rows), len(rows))
    again = index.export(str(tmp_path / "b.parquet"), "parquet")
    assert again.output == str(tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_parquet_names_the_model(index, model, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="it reads the file")
    made = index.export(tmp_path / "a.parquet", "parquet")
    stored = json.loads(parquet.read_schema(tmp_path / "a.parquet").metadata[b"unmask"])
    assert stored["model"] == made.model.name == model.name
    assert (stored["sha256"], stored["dimensions"]) == (made.model.sha256, made.dimensions)
    assert parquet.ParquetFile(tmp_path / "a.parquet").num_row_groups > 3


@pytest.mark.parametrize("query", QUERIES)
def test_an_inner_product_with_what_was_written_ranks_as_search_does(index, model, query, tmp_path):
    index.export(tmp_path / "pg", "pgvector")
    rows = of_copy(tmp_path / "pg" / "passages.copy")
    assert nearest(rows, model.embed_query(query, normalize=True)) == searched(index, query)


def test_the_copy_file_and_its_script(index, expected, tmp_path):
    made = index.export(tmp_path / "pg", "pgvector", name="notes")
    require_whole(of_copy(tmp_path / "pg" / "notes.copy"), expected)
    script = (tmp_path / "pg" / "load.sql").read_text()
    assert 'CREATE TABLE "notes" (' in script
    assert f'"vector" vector({made.dimensions}) NOT NULL\n);' in script
    assert "\\copy \"notes\" FROM 'notes.copy' WITH (FORMAT binary)\n" in script
    assert [line.split('"')[1] for line in script.splitlines() if line.startswith("    ")] == [
        *("id", "document", "title", "page", "start", "end", "text", "metadata", "vector")
    ]


def test_bulk_requests_are_split_by_size(index, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BULK_BYTES", 3000)
    made = index.export(tmp_path / "os", "opensearch", name="notes")
    require_whole(of_bulk(tmp_path / "os", "notes"), expected)
    bodies = [file.read_bytes() for file in sorted((tmp_path / "os").glob("bulk-*.ndjson"))]
    assert len(bodies) > 3
    for body, after in pairwise(bodies):
        more = b"".join(after.splitlines(keepends=True)[:2])
        assert len(body) + len(more) > 3000, "a passage more would have fitted"
    mapping = json.loads((tmp_path / "os" / "mapping.json").read_text())
    fields = mapping["mappings"]["properties"]
    assert mapping["settings"] == {"index": {"knn": True}}
    assert (fields["vector"]["type"], fields["vector"]["dimension"]) == ("knn_vector", made.dimensions)
    assert fields["vector"]["method"]["space_type"] == "innerproduct"
    (some, *_) = of_bulk(tmp_path / "os", "notes")
    assert set(fields) == set(some) - {"id"}


def test_a_passage_larger_than_a_request_is_alone(index, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BULK_BYTES", 10)
    index.export(tmp_path / "os", "opensearch")
    bodies = list((tmp_path / "os").glob("bulk-*.ndjson"))
    assert len(bodies) == index.passages
    assert all(body.read_bytes().count(b"\n") == 2 for body in bodies)


def test_ids_are_the_same_after_the_index_is_compacted(model, tmp_path):
    made = Index.create(tmp_path / "index", model)
    made.add(documents())
    made.delete("bank")
    made.export(tmp_path / "before", "pgvector")
    made.compact()
    made.export(tmp_path / "after", "pgvector")
    before, after = (of_copy(tmp_path / name / "passages.copy") for name in ("before", "after"))
    assert [row["id"] for row in before] == [row["id"] for row in after]
    # Fixed for ever: another version must find the passages that this one wrote.
    space = uuid.UUID("e35431a3-5c20-594f-8863-aa8ca3dc2b68")
    for row in before:
        assert row["id"] == uuid.uuid5(space, f"{row['start']} {row['end']} {row['document']}")


def test_a_missing_package_is_named(index, tmp_path, monkeypatch):
    from unmask.base import optional

    monkeypatch.setattr(optional, "find_spec", lambda name: None)
    for format in ("parquet", "lance", "qdrant"):
        with pytest.raises(MissingExtra, match=rf"pip install 'unmask\[{format}\]', or name "):
            index.export(tmp_path / "x.parquet", format)
    assert left(tmp_path) == []


def left(folder):
    return sorted(one.name for one in folder.iterdir())


def test_what_cannot_be_written_is_refused(index, model, tmp_path):
    def refused(said, *arguments, error=InvalidRequest, of=index, **named):
        with pytest.raises(error, match=said):
            of.export(*arguments, **named)

    refused("format is 'csv'; it can be 'parquet', 'lance', 'qdrant', 'pgvector' or 'opensearch'", "x", "csv")
    refused("name is 'Notes'; it can have up to 63 letters", "x", "pgvector", name="Notes")
    refused("name is 7", "x", "pgvector", name=7)
    refused("output is None; name a file, a folder or an address", None, "pgvector")
    refused("does not end in .parquet", tmp_path / "x.csv", "parquet")
    refused("is written to a disk; name a path", "http://localhost:6333", "parquet")
    (tmp_path / "x.parquet").write_text("mine")
    refused("exists already", tmp_path / "x.parquet", "parquet", error=OutputError)
    refused("exists already", tmp_path, "opensearch", error=OutputError)
    refused("is not a folder", tmp_path / "none" / "x.parquet", "parquet", error=OutputError)
    words = Index.create(tmp_path / "words", [])
    words.add(documents())
    refused("the index has the views bm25 and other stores get the vectors", "x", "pgvector", of=words)
    empty = Index.create(tmp_path / "empty", model)
    refused("has no passages to write", "x", "pgvector", of=empty)
    assert (tmp_path / "x.parquet").read_text() == "mine"
    assert left(tmp_path) == ["empty", "words", "x.parquet"]


def test_vectors_longer_than_those_of_a_store_are_refused(index, tmp_path, monkeypatch):
    monkeypatch.setattr(passages, "MOST_DIMENSIONS", 2)
    for format, store in (("pgvector", "pgvector"), ("opensearch", "OpenSearch")):
        with pytest.raises(InvalidRequest, match=f"numbers and {store} stores at most 2"):
            index.export(tmp_path / "x", format)
    assert left(tmp_path) == []


def test_a_character_that_postgresql_lacks_is_refused(model, tmp_path):
    for number, (text, metadata) in enumerate((("a\0river", {}), ("a river", {"a": "\0"}))):
        made = Index.create(tmp_path / f"index {number}", model)
        made.add([*documents(), Document("zero", text, metadata=metadata)])
        with pytest.raises(InvalidRequest, match=r"document 'zero' has the character U\+0000"):
            made.export(tmp_path / "pg", "pgvector")
        assert not (tmp_path / "pg").exists()
        made.export(tmp_path / f"os {number}", "opensearch")
    assert left(tmp_path) == ["index 0", "index 1", "os 0", "os 1"]


@pytest.mark.parametrize("format", ["parquet", "pgvector", "opensearch", "qdrant"])
def test_nothing_is_left_of_what_is_stopped(index, format, tmp_path):
    if format == "qdrant":
        pytest.importorskip("qdrant_client", reason="it writes the collection")

    def stop(done, of):
        if done > 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.export(tmp_path / "x.parquet", format, progress=stop)
    assert left(tmp_path) == []


def test_blocks_are_bounded(index, monkeypatch):
    source = run._source(index._contents, index.settings, None)
    sizes = [len(block.passages) for block in source.blocks()]
    assert sum(sizes) == index.passages
    assert len(sizes) > 5
    most = passages.BLOCK_BYTES // (4 * source.dimensions) + 1
    assert max(sizes) <= most
    assert most > 3
    monkeypatch.setattr(passages, "BLOCK_BYTES", 1)
    assert {len(block.passages) for block in source.blocks()} == {1}


def test_the_command(index, expected, tmp_path):
    ran = run_here("index-export", index.path, "-o", tmp_path / "pg", "--format", "pgvector", "--json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert (told["passages"], told["format"], told["name"]) == (index.passages, "pgvector", "passages")
    assert told["views_left_out"] == ["bm25"]
    require_whole(of_copy(tmp_path / "pg" / "passages.copy"), expected)
    ran = run_here("index-export", index.path, "-o", tmp_path / "os", "--format", "opensearch")
    assert ran.out.startswith(f"{index.passages:,} passages of {len(index):,} documents are in ")
    assert ran.out.endswith("not written: bm25\n")
    for arguments, said in (
        (("-o", tmp_path / "pg", "--format", "pgvector"), "exists already"),
        (("-o", tmp_path / "new", "--format", "csv"), "csv"),
        (("-o", tmp_path / "new", "--format", "pgvector", "--name", "A"), "name is 'A'"),
    ):
        ran = run_here("index-export", index.path, *arguments)
        assert ran.code in (1, 2)
        assert said in ran.err
        assert ran.err.count("\n") == 1
    assert run_here("index-export", tmp_path, "-o", tmp_path / "n", "--format", "pgvector").code == 1
    assert not (tmp_path / "new").exists()


def test_every_column_of_copy_has_a_type():
    assert list(files.COLUMNS) == list(passages.ExportedPassage._fields)


def test_metadata_count_as_well(model, tmp_path):
    made = Index.create(tmp_path / "index", model)
    made.add([Document(str(n), "a river", metadata={"note": "n" * 300}) for n in range(8)])
    source = run._source(made._contents, made.settings, None)
    assert [len(block.passages) for block in source.blocks()] == [1] * 8
