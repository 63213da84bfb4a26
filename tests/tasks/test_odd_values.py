"""Odd values beside a text, and odd names: every writer keeps them, or names the line that it refuses."""

import json
import math
import os

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tests.bulk.conftest import quick  # noqa: F401 - a fixture
from tests.support.command import assert_one_sentence, run_here
from unmask.search.index import Index

VALUES = {
    "half a character": "\ud83d",
    "half of one within": {"a": ["b \udc00"]},
    "half of one as a key": {"\ud83d": 1},
    "401 digits": 10**400,
    "64 bits": 2**63,
    "71 bits": -(2**70),
    "infinity": math.inf,
    "no number": math.nan,
    "deep": None,  # put in below, for Python would not print it
    "NUL": "\0",
}
for _ in range(300):
    VALUES["deep"] = [VALUES["deep"]]
ROWS = [{"text": "the river bank", "n": n, "odd": value} for n, value in enumerate(VALUES.values())]
MODEL = ("-m", "unmask-mini", "--pooling", "mean")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def same(found, expected):
    return json.dumps(found) == json.dumps(expected)  # as NaN is


@pytest.mark.usefixtures("quick")
def test_shards_keep_them(place):
    assert run_here("embed", "a.jsonl", *MODEL, "--engine", "processes", "-o", "out").code == 0
    for row, given in zip(lines(place / "out" / "part-00000.jsonl"), ROWS, strict=True):
        assert same({name: row[name] for name in given}, given)


@pytest.mark.usefixtures("quick")
def test_shards_keep_columns_of_parquet(place):
    columns = {
        "text": ["the river bank", "muddy"],
        "bytes": [b"\xff\xd8", None],
        "unsigned": pyarrow.array([2**64 - 1, None], pyarrow.uint64()),
        "exact": pyarrow.array([10**37, None], pyarrow.decimal128(38, 0)),
        "floats": [math.nan, -math.inf],
        "when": pyarrow.array([2**62, None], pyarrow.timestamp("ns")),
        "maps": pyarrow.array([[("a", 1), ("a", 2)], None], pyarrow.map_(pyarrow.string(), pyarrow.int8())),
    }
    parquet.write_table(pyarrow.table(columns), "b.parquet")
    assert run_here("embed", "b.parquet", *MODEL, "--engine", "processes", "-o", "out").code == 0
    found = parquet.read_table(place / "out" / "part-00000.parquet")
    expected = parquet.read_table("b.parquet")
    assert found.select(list(columns)).schema.equals(expected.schema)
    assert [repr(found[name]) for name in columns] == [repr(expected[name]) for name in columns]


@pytest.mark.parametrize("ending", ["jsonl", "npy", "npz", "parquet"])
def test_embeddings_of_such_rows_are_written(place, ending):
    assert run_here("embed", "a.jsonl", *MODEL, "-o", f"out.{ending}").code == 0


@pytest.mark.parametrize(("command", "model"), [("classify", "sequence"), ("tag", "tokens")])
def test_predictions_for_such_rows_are_written(place, models, command, model):
    assert run_here(command, "--file", "a.jsonl", "-m", models / model, "-o", "out.jsonl").code == 0
    assert len(lines(place / "out.jsonl")) == len(ROWS)


@pytest.mark.parametrize("options", [("-o", "p.json", "--squad"), ("-o", "p.jsonl")])
def test_ids_of_questions_are_kept_or_refused(place, models, options):
    for name, value in VALUES.items():
        row = {"id": value, "question": "the river", "context": "the river bank"}
        (place / "q.jsonl").write_text(json.dumps(row) + "\n")
        ran = run_here("answer", "--questions", "q.jsonl", "-m", models / "span", *options, "--overwrite")
        if isinstance(value, str) and value != "\0":
            assert_one_sentence(ran, "its id at line 1 of q.jsonl holds a lone surrogate U+D83D")
        else:
            assert ran.code == 0, name


def test_an_index_keeps_them_or_names_the_line(place):
    ran = run_here("index", "a.jsonl", "-o", "made", "--model", "default", "--json")
    skipped = dict(json.loads(ran.out)["added"]["skipped"])
    kept = {f"a.jsonl#{n}": row for n, row in enumerate(ROWS, 1) if f"a.jsonl#{n}" not in skipped}
    refused = {"half a character", "half of one within", "half of one as a key", "deep"}
    assert len(skipped) == len(refused)
    assert {list(VALUES)[int(name.partition("#")[2]) - 1] for name in skipped} == refused
    hits = Index.open(place / "made").search("river", 50, "bm25")
    found = {hit.document: hit.metadata for hit in hits}
    for name, row in kept.items():
        odd = row["odd"]
        odd = None if isinstance(odd, float) else odd  # JSON has no such number; documented
        assert found[name] == {"n": row["n"], "odd": odd}
    refused = run_here("index-export", "made", "-o", "out-pgvector", "--format", "pgvector")
    assert_one_sentence(refused, "'a.jsonl#10' has the character U+0000, which PostgreSQL cannot store")
    for kind in ("parquet", "opensearch"):
        assert run_here("index-export", "made", "-o", f"out-{kind}.{kind}", "--format", kind).code == 0
    exported = parquet.read_table("out-parquet.parquet").to_pylist()
    assert {row["document"]: json.loads(row["metadata"]) for row in exported} == found


NAME = os.fsdecode(b"caf\xe9")


@pytest.mark.long
def test_names_that_are_not_unicode_are_shown_as_escapes(place, models):
    """Of inputs, outputs and models, in sentences and in JSON."""
    (place / f"{NAME}.txt").write_text("the river\n")
    for ending in ("jsonl", "npy", "npz", "parquet"):
        ran = run_here("embed", f"{NAME}.txt", *MODEL, "-o", f"{NAME}.{ending}", "--json")
        assert json.loads(ran.out)["output"] == f"{NAME}.{ending}"
        ran = run_here("embed", f"{NAME}.txt", *MODEL, "-o", f"{NAME}.{ending}", "--overwrite")
        assert rf"caf\udce9.{ending}" in ran.out
    ran = run_here(
        "classify", "--file", f"{NAME}.txt", "-m", models / "sequence", "-o", f"{NAME}.jsonl", "--overwrite"
    )
    assert ran.out == "1 input, in caf\\udce9.jsonl\n"
    assert np.load(place / f"{NAME}.npy").shape[0] == 1
