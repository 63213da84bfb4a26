"""Shards are the same whichever worker computes them, and after any interruption."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import unmask
from tests.bulk.conftest import in_this_process
from tests.support.command import assert_one_sentence, environment, run_here
from unmask.bulk import BatchClassifier, BatchEmbedder, BatchTagger, run_shards
from unmask.bulk import run as bulk_run
from unmask.bulk.folder import Folder
from unmask.bulk.run import with_processes, with_ray
from unmask.bulk.shards import ShardWriter
from unmask.bulk.sources import plan
from unmask.errors import InvalidRequest, OutputError, ProcessLost, TextError

pytestmark = pytest.mark.long

TEXTS = [f"The {word} sat on the mat." for word in ("cat", "dog", "old bird", "very small child", "man")]
EMBEDDER = BatchEmbedder("unmask-mini", pooling="mean", threads=1)


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(TEXTS)))
    return str(path)


def contents(folder):
    return {name: (folder / name).read_bytes() for name in os.listdir(folder)}


def test_rows_keep_their_columns_and_the_manifest_has_their_digests(quick, lines, tmp_path):
    found = run_shards([lines], str(tmp_path / "out"), EMBEDDER, rows_per_shard=2)
    assert (found.texts, found.shards, found.resumed_shards) == (5, 3, 0)
    written = contents(tmp_path / "out")
    listed = json.loads(written.pop("manifest.json"))["shards"]
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in written.items()}
    assert {one["file"]: one["sha256"] for one in listed} == digests
    rows = [json.loads(line) for one in listed for line in written[one["file"]].splitlines()]
    assert [(row["id"], row["text"]) for row in rows] == list(enumerate(TEXTS))
    expected_SE = unmask.load("unmask-mini").embed(TEXTS, pooling="mean")
    np.testing.assert_allclose([row["embedding"] for row in rows], expected_SE, atol=1e-6)


def test_parquet_across_row_groups_and_lines_give_the_same_vectors(quick, lines, tmp_path):
    path = tmp_path / "texts.parquet"
    parquet.write_table(pyarrow.table({"text": TEXTS}), path, row_group_size=3)
    run_shards([lines], str(tmp_path / "a"), EMBEDDER, rows_per_shard=2)
    run_shards([str(path)], str(tmp_path / "b"), EMBEDDER, rows_per_shard=2)
    for part in range(3):
        table = parquet.read_table(tmp_path / "b" / f"part-0000{part}.parquet").to_pylist()
        rows = [
            json.loads(line) for line in (tmp_path / "a" / f"part-0000{part}.jsonl").read_text().splitlines()
        ]
        assert [row["text"] for row in table] == [row["text"] for row in rows]
        assert [row["embedding"] for row in table] == [row["embedding"] for row in rows]


def test_a_stopped_run_resumes_and_a_damaged_shard_is_computed_again(quick, lines, tmp_path, monkeypatch):
    run_shards([lines], str(tmp_path / "whole"), EMBEDDER, rows_per_shard=1)

    def stops(writer, shards, workers):
        yield from map(writer, shards[:3])
        raise ProcessLost("a worker ended")

    monkeypatch.setitem(bulk_run.ENGINES, "processes", stops)
    out = tmp_path / "out"
    with pytest.raises(ProcessLost):
        run_shards([lines], str(out), EMBEDDER, rows_per_shard=1)
    assert not (out / "manifest.json").exists()
    (out / "part-00001.jsonl").write_bytes(b"damaged")
    with pytest.raises(OutputError, match="other texts or settings"):
        run_shards([lines], str(out), EMBEDDER, rows_per_shard=2)
    monkeypatch.setitem(bulk_run.ENGINES, "processes", in_this_process)
    assert run_shards([lines], str(out), EMBEDDER, rows_per_shard=1).resumed_shards == 2
    assert contents(out) == contents(tmp_path / "whole")
    same = "finished already, with these texts, this model and these settings; name another folder"
    with pytest.raises(OutputError, match=same):
        run_shards([lines], str(out), EMBEDDER, rows_per_shard=1)
    path = Path(lines)
    path.write_text(path.read_text().replace("cat", "dog"))
    with pytest.raises(
        OutputError, match="finished already, with other texts, another model or other settings"
    ):
        run_shards([lines], str(out), EMBEDDER, rows_per_shard=1)
    (out / "manifest.json").write_text("{")
    with pytest.raises(OutputError, match="finished already, and its manifest is damaged"):
        run_shards([lines], str(out), EMBEDDER, rows_per_shard=1)


def test_a_run_that_ends_while_the_manifest_is_written_is_finished_by_the_next(
    quick, lines, tmp_path, monkeypatch
):
    """The plan goes after the manifest is there, or nothing would know whose the shards are."""
    out, write = tmp_path / "out", Folder.write

    def full(self, name, content):
        if name == bulk_run.MANIFEST:
            raise OutputError("the disk is full")
        write(self, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write", full)
        with pytest.raises(OutputError):
            run_shards([lines], str(out), EMBEDDER, rows_per_shard=2)
    found = run_shards([lines], str(out), EMBEDDER, rows_per_shard=2)
    assert (found.shards, found.resumed_shards) == (3, 3)


def test_inputs_that_are_cut_elsewhere_are_other_inputs(tmp_path):
    rows = [json.dumps({"text": text}) + "\n" for text in TEXTS]

    def digest(*parts):
        for number, part in enumerate(parts):
            (tmp_path / f"{number}.jsonl").write_text("".join(part))
        return plan([str(tmp_path / f"{number}.jsonl") for number in range(len(parts))], 2)[1]

    assert digest(rows[:2], rows[2:]) != digest(rows[:3], rows[3:])
    assert digest(rows[:2], rows[2:]) == digest(rows[:2], rows[2:])


def test_half_a_file_never_has_its_final_name(tmp_path, monkeypatch):
    whole = Path.write_bytes

    def half(path, content):
        whole(path, content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    folder = Folder(str(tmp_path))
    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises((OSError, OutputError)):
        folder.write("shard.jsonl", b"0123456789")
    assert folder.read("shard.jsonl") is None


def test_refusals_name_the_row_and_the_way_out(quick, tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "One."}\n{"text": "Two."}\n{"text": " "}\n')
    with pytest.raises(TextError, match=r"line 3 of .*texts\.jsonl"):
        run_shards([str(path)], str(tmp_path / "out"), EMBEDDER, rows_per_shard=2)
    with pytest.raises(InvalidRequest, match="ends in none of"):
        run_shards(["texts.xml"], str(tmp_path / "other"), EMBEDDER)
    with pytest.raises(OutputError, match="holds other files"):
        run_shards([str(path)], str(tmp_path), EMBEDDER)
    with pytest.raises(InvalidRequest, match="task is 'embed'; give a BatchTask"):
        run_shards([str(path)], str(tmp_path / "other"), "embed")
    with pytest.raises(InvalidRequest, match=r"\*\.parquet matches no file"):
        run_shards([str(tmp_path / "*.parquet")], str(tmp_path / "other"), EMBEDDER)
    for options, said in (
        (("--workers", "2"), "--workers needs --engine"),
        (("--engine", "processes", "--threads", "0"), "--threads is 0"),
        (("--engine", "processes", "--blank", "skip"), "--blank skip would shift the rows"),
        (("--engine", "processes", "--model", ""), "--model is empty"),
    ):
        assert_one_sentence(run_here("embed", str(path), "-o", str(tmp_path / "x"), *options), said)
    assert_one_sentence(run_here("embed", str(path), "--engine", "processes"), "name it with -o")
    piped = run_here("embed", "-", "-o", str(tmp_path / "x"), "--engine", "processes")
    assert_one_sentence(piped, "standard input is named")
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "other").exists()


def test_a_pattern_is_every_file_that_matches_in_order(quick, tmp_path):
    for name, text in (("b", "Two."), ("a", "One."), ("c.jsonl", "")):
        (tmp_path / f"{name}.txt").write_text(text)
    run_shards([str(tmp_path / "?.txt").replace("?", "*")], str(tmp_path / "out"), EMBEDDER)
    listed = json.loads((tmp_path / "out" / "manifest.json").read_text())["shards"]
    assert [(one["source"], one["rows"]) for one in listed] == [
        (str(tmp_path / "a.txt"), 1),
        (str(tmp_path / "b.txt"), 1),
    ]


def test_an_object_store_is_a_folder():
    folder = Folder("memory://bulk/out")
    folder.create()
    folder.write("part-00000.jsonl", b"rows")
    assert folder.read("part-00000.jsonl") == b"rows"
    assert folder.names() == ["part-00000.jsonl"]
    folder.remove("part-00000.jsonl")
    assert folder.read("part-00000.jsonl") is None


def test_only_settings_are_pickled_and_batches_keep_their_kind():
    columns = {"text": np.array(TEXTS, dtype=object)}
    embedded = EMBEDDER(columns)
    copy = pickle.loads(pickle.dumps(EMBEDDER))
    assert len(pickle.dumps(EMBEDDER)) < 2000
    np.testing.assert_array_equal(copy(columns)["embedding"], embedded["embedding"])
    (table,) = EMBEDDER.iterate([pyarrow.table({"text": TEXTS})])
    assert table["embedding"].to_pylist() == embedded["embedding"].tolist()
    with pytest.raises(InvalidRequest, match="no column 'body'"):
        BatchEmbedder("unmask-mini", column="body")(columns)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Ray warns about itself
@pytest.mark.parametrize("engine", ["processes", "ray"])
@pytest.mark.parametrize(
    "task",
    [EMBEDDER, BatchTagger(load={"adapter": "names"}), BatchClassifier(load={"adapter": "sentiment"})],
    ids=["embed", "tag", "classify"],
)
def test_engines_write_what_one_process_writes(engine, task, lines, tmp_path):
    if engine == "ray" and find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install unmask[ray]")
    shards, _ = plan([lines], 1)
    results = {}
    for name, run in (("a", in_this_process), ("b", {"processes": with_processes, "ray": with_ray}[engine])):
        (tmp_path / name).mkdir()
        results[name] = {
            one.file: one.sha256 for one in run(ShardWriter(task, str(tmp_path / name)), shards, 2)
        }
    assert results["a"] == results["b"]


def test_two_runs_never_write_to_one_folder(quick, lines, tmp_path, monkeypatch):
    output = str(tmp_path / "out")
    said = []

    def meanwhile(writer, shards, workers):
        with pytest.raises(OutputError, match=r"another run is writing to .*; wait until it ends") as refused:
            run_shards([lines], output, EMBEDDER, rows_per_shard=2)
        said.append(str(refused.value))
        return map(writer, shards)

    monkeypatch.setitem(bulk_run.ENGINES, "processes", meanwhile)
    assert run_shards([lines], output, EMBEDDER, rows_per_shard=2).shards == 3
    assert len(said) == 1
    monkeypatch.setitem(bulk_run.ENGINES, "processes", in_this_process)
    with pytest.raises(OutputError, match="is finished already"):
        run_shards([lines], output, EMBEDDER, rows_per_shard=2)


def test_options_of_loading_reach_the_workers(quick, lines, tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(bulk_run, "ShardWriter", lambda task, output: found.append(task) or 1 / 0)
    command = ("embed", lines, "-m", "unmask-mini", "--pooling", "mean", "-o", str(tmp_path / "out"))
    with pytest.raises(ZeroDivisionError):
        run_here(*command, "--engine", "processes", "--backend", "torch", "--dtype", "bfloat16")
    assert (found[0].load["backend"], found[0].load["dtype"]) == ("torch", "bfloat16")


KILLED = """
import sys, time
from unmask.bulk import run
from unmask.bulk import BatchEmbedder
class Slow:
    task = BatchEmbedder("unmask-mini")
    def __call__(self, shard):
        print(__import__("os").getpid(), flush=True)
        time.sleep(600)
if __name__ == "__main__":
    list(run.with_processes(Slow(), [1, 2], 2))
"""


def test_workers_end_with_a_killed_parent(tmp_path):
    (tmp_path / "killed.py").write_text(KILLED)
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "killed.py")], stdout=subprocess.PIPE, text=True, env=environment()
    )
    workers = [int(parent.stdout.readline()) for _ in range(2)]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 30
    while alive := [pid for pid in workers if os.path.exists(f"/proc/{pid}")]:
        assert time.monotonic() < until, f"{alive} outlived their parent"
        time.sleep(0.05)


@pytest.mark.parametrize("ending", ["csv", "tsv", "ndjson"])
def test_shards_of_named_values_hold_what_those_of_json_lines_hold(quick, lines, tmp_path, ending):
    """Names and values of CSV may have line breaks, and the last line may lack its end."""
    path = tmp_path / f"texts.{ending}"
    name, value = ('"a\nnote"', '"b,\r\nc"') if ending == "csv" else ("note", "b")
    table = [["id", "text", name], *([str(number), text, value] for number, text in enumerate(TEXTS))]
    separator = "," if ending == "csv" else "\t"
    content = "\ufeff" + "\r\n".join(separator.join(row) for row in table)
    path.write_bytes(Path(lines).read_bytes() if ending == "ndjson" else content.encode())
    run_shards([lines], str(tmp_path / "a"), EMBEDDER, rows_per_shard=2)
    found = run_shards([str(path)], str(tmp_path / "b"), EMBEDDER, rows_per_shard=2)
    assert (found.texts, found.shards) == (5, 3)
    for part in range(3):
        rows, expected = (
            list(map(json.loads, (tmp_path / run / f"part-0000{part}.jsonl").read_bytes().splitlines()))
            for run in "ba"
        )
        assert [row["embedding"] for row in rows] == [row["embedding"] for row in expected]
        assert [row["text"] for row in rows] == [row["text"] for row in expected]
        assert [int(row["id"]) for row in rows] == [row["id"] for row in expected]
        if ending == "csv":
            assert {row["a\nnote"] for row in rows} == {"b,\r\nc"}


def test_a_row_of_csv_is_named_as_everywhere(quick, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,n\n" + "bank,1\n" * 3 + " ,2\n")
    with pytest.raises(TextError, match=r"row 5 of .*a\.csv"):
        run_shards([str(path)], str(tmp_path / "out"), EMBEDDER, rows_per_shard=2)
    path.write_text("text,n\n" + "bank,1\n" * 3 + "bank\n")
    with pytest.raises(TextError, match=r"row 5 of .*a\.csv has 1 values"):
        run_shards([str(path)], str(tmp_path / "other"), EMBEDDER, rows_per_shard=2)
