"""``unmask embed``: the same numbers as the Python call, in order, and no work lost or mixed by a stop."""

import errno
import json
import os
import random
import shutil
import signal
import time
import weakref
import zipfile
from importlib import import_module

import numpy as np
import pytest
from pyarrow import parquet

from tests.support.command import Ran, assert_one_sentence, run_here
from tests.support.tiny import change_json
from unmask.base.resume import ResumableFile
from unmask.cli import inputs as lines_module
from unmask.cli import items as items_module
from unmask.cli.tasks import embed_rows
from unmask.errors import OutputError
from unmask.text import Line
from unmask.text import lines as text_lines

embed_module = import_module("unmask.cli.tasks.embed")
WORDS = ("the", "river", "bank", "was", "muddy", "text", "another", "a", "texts", "banking", "xyz", "!")
LIMIT = 19  # what sentence_bert_config.json of the tiny checkpoint says
PART = 7
ROWS = 70


def texts(count, seed=0):
    """Texts of 1 to 9 words, each at most `LIMIT` tokens with this seed."""
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=chosen.randint(1, 9))) for _ in range(count)]


TEXTS = texts(ROWS)


def as_lines(some):
    return "".join(f"{text}\n" for text in some).encode()


@pytest.fixture
def small_parts(monkeypatch):
    """The journal is written every few texts instead of every few thousand."""
    monkeypatch.setattr(lines_module, "TEXTS_PER_PART", PART)


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(as_lines(TEXTS))
    return path


@pytest.fixture(scope="module")
def expected(tiny_model):
    return tiny_model.embed(TEXTS)


def assert_close(found, wanted):
    """Equal but for the last bits, which depend on the texts that share a pass."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6)


def rows_of(jsonl):
    return [json.loads(line) for line in jsonl.splitlines()]


def embeddings_of(jsonl):
    return np.array([row["embedding"] for row in rows_of(jsonl)], dtype=np.float32)


# --- what comes out ------------------------------------------------------------------------------------


def test_a_matrix_of_a_file(tiny_folder, lines, expected, tmp_path, small_parts):
    ran = run_here("embed", lines, "-m", tiny_folder, "-o", tmp_path / "rows.npy")
    assert (ran.code, ran.err) == (0, "")
    found = np.load(tmp_path / "rows.npy")
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    assert_close(found, expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines.txt", "rows.npy"]


def test_json_lines_say_where_each_text_stood(
    tiny_folder, tiny_model, lines, expected, tmp_path, small_parts
):
    run_here("embed", lines, "-m", tiny_folder, "-o", tmp_path / "rows.jsonl")
    content = (tmp_path / "rows.jsonl").read_text()
    assert_close(embeddings_of(content), expected)
    lengths = [len(encoding) for encoding in tiny_model.tokenize(TEXTS)]
    assert [{key: row[key] for key in row if key != "embedding"} for row in rows_of(content)] == [
        {"source": str(lines), "line": number, "tokens": length, "original_tokens": length}
        for number, length in enumerate(lengths, start=1)
    ]


def test_standard_input_to_standard_output(tiny_folder, expected, small_parts):
    ran = run_here("embed", "-m", tiny_folder, "--json", stdin=as_lines(TEXTS))
    assert_close(embeddings_of(ran.out), expected)
    assert {row["source"] for row in rows_of(ran.out)} == {"<stdin>"}
    assert json.loads(ran.err)["texts"] == ROWS


def test_several_files_and_standard_input_in_the_order_given(tiny_folder, tiny_model, tmp_path):
    for name, content in (("b", "the river\n"), ("a", "muddy\r\nthe bank")):
        (tmp_path / name).write_bytes(content.encode())
    stdin = b"\xef\xbb\xbfa text\n"
    ran = run_here("embed", tmp_path / "b", "-", tmp_path / "a", "-m", tiny_folder, stdin=stdin)
    read = ["the river", "a text", "muddy", "the bank"]
    assert_close(embeddings_of(ran.out), tiny_model.embed(read))
    assert [(row["source"].rpartition("/")[2], row["line"]) for row in rows_of(ran.out)] == [
        ("b", 1),
        ("<stdin>", 1),
        ("a", 1),
        ("a", 2),
    ]


def test_a_field_of_json_lines(tiny_folder, tiny_model):
    stdin = b'{"id": 3, "t": "the river"}\n{"t": "caf\\u00e9 \\ud83d\\ude00"}\n'
    ran = run_here("embed", "--field", "t", "-m", tiny_folder, stdin=stdin)
    assert_close(embeddings_of(ran.out), tiny_model.embed(["the river", "café 😀"]))


def test_blank_lines_are_left_out_and_still_counted(tiny_folder, tiny_model):
    ran = run_here("embed", "--blank", "skip", "-m", tiny_folder, stdin=b"\nthe\n  \n\nriver\n")
    assert [row["line"] for row in rows_of(ran.out)] == [2, 5]
    assert_close(embeddings_of(ran.out), tiny_model.embed(["the", "river"]))


def test_a_text_too_long_is_cut_only_when_asked_and_both_numbers_are_told(tiny_folder, tiny_model, tmp_path):
    long = " ".join(["bank"] * 40)
    stdin, out = f"the\n{long}\nriver\n".encode(), tmp_path / "rows.jsonl"
    arguments = ("embed", "--truncation", "end", "-m", tiny_folder, "-o", out, "--overwrite")

    summary = json.loads(run_here(*arguments, "--json", stdin=stdin).out)
    assert summary["truncated_texts"] == 1
    (truncated,) = summary["truncated"]
    assert truncated == {"source": "<stdin>", "line": 2, "original_tokens": 42, "kept_tokens": LIMIT}
    row = rows_of(out.read_text())[1]
    assert (row["tokens"], row["original_tokens"]) == (LIMIT, 42)
    assert_close(embeddings_of(out.read_text()), tiny_model.embed(["the", long, "river"], truncation="end"))
    human = run_here(*arguments, stdin=stdin).out
    assert f"truncated to {LIMIT} tokens" in human
    assert "line 2 of <stdin>, had 42" in human


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (["--pooling", "cls"], {"pooling": "cls"}),
        (["--pooling", "max", "--no-normalize"], {"pooling": "max", "normalize": False}),
        (["--no-normalize"], {"normalize": False}),
    ],
)
def test_pooling_options(options, settings, tiny_folder, tiny_model, lines, tmp_path):
    run_here("embed", lines, *options, "-m", tiny_folder, "-o", tmp_path / "rows.npy")
    assert_close(np.load(tmp_path / "rows.npy"), tiny_model.embed(TEXTS, **settings))


def test_the_summary(tiny_folder, tiny_model, lines, tmp_path):
    out = tmp_path / "rows.npy"
    summary = json.loads(run_here("embed", lines, "-m", tiny_folder, "-o", out, "--json").out)
    assert summary.pop("seconds") > 0
    assert summary == {
        "model": "tiny",
        "revision": None,
        "texts": ROWS,
        "resumed_texts": 0,
        "tokens": sum(map(len, tiny_model.tokenize(TEXTS))),
        "width": tiny_model.width,
        "truncated_texts": 0,
        "truncated": [],
        "output": str(out),
    }
    human = run_here("embed", lines, "-m", tiny_folder, "-o", out, "--overwrite").out
    assert human.startswith(f"{ROWS} texts, ")
    assert str(out) in human


@pytest.mark.parametrize("fault", [b"\xff\n", b"\n"], ids=["not UTF-8", "blank"])
def test_a_bad_line_of_a_file_is_found_before_anything_is_embedded(fault, tiny_folder, lines, small_parts):
    lines.write_bytes(lines.read_bytes() + fault)
    ran = run_here("embed", lines, "-m", tiny_folder)
    assert_one_sentence(ran, f"line {ROWS + 1} of {lines}")
    assert ran.out == ""


def test_a_text_too_long_stops_the_run_and_keeps_what_was_written(
    tiny_folder, tiny_model, tmp_path, small_parts
):
    lines, out = tmp_path / "lines.txt", tmp_path / "rows.jsonl"
    long = "bank " * 40
    lines.write_bytes(as_lines([*TEXTS[:30], long, "the", long]))
    command = ("embed", lines, "-m", tiny_folder, "-o", out, "--json")
    ran = run_here(*command)
    assert_one_sentence(ran, "line 31 of", "1 of the 2 lines after it", "--truncation end")
    assert journaled_rows(out) == 28

    # Either way out keeps those rows: the line may be mended, or the text truncated.
    copies = [path.read_bytes() for path in partial_files(out)]
    summary = json.loads(run_here(*command, "--truncation", "end").out)
    assert (summary["resumed_texts"], summary["texts"], summary["truncated_texts"]) == (28, 33, 2)
    assert_close(
        embeddings_of(out.read_text()),
        tiny_model.embed([*TEXTS[:30], long, "the", long], truncation="end"),
    )
    out.unlink()
    for path, content in zip(partial_files(out), copies, strict=True):
        path.write_bytes(content)
    lines.write_bytes(as_lines([*TEXTS[:30], "the bank", "the"]))
    summary = json.loads(run_here(*command).out)
    assert (summary["resumed_texts"], summary["texts"]) == (28, 32)
    assert_close(embeddings_of(out.read_text()), tiny_model.embed([*TEXTS[:30], "the bank", "the"]))


def partial_files(out):
    return [out.with_name(out.name + ending) for ending in (".partial", ".partial.json")]


def test_a_pipe_is_read_as_a_stream_and_kept_beside_an_output(tiny_folder, expected, tmp_path, small_parts):
    """Without an output rows appear before the pipe ends; with one, lines are counted first."""
    for output in ([], ["-o", tmp_path / "rows.npy"]):
        read, write = os.pipe()
        with os.fdopen(write, "wb") as pipe:
            pipe.write(as_lines(TEXTS))
        ran = run_here("embed", f"/dev/fd/{read}", "-m", tiny_folder, *output)
        os.close(read)
        assert ran.code == 0
        found = np.load(output[1]) if output else embeddings_of(ran.out)
        assert_close(found, expected)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.npy"]


def test_standard_input_only_once(tiny_folder):
    assert_one_sentence(run_here("embed", "-", "-", "-m", tiny_folder, stdin=b"the\n"), "named twice")


def test_no_more_than_a_part_of_the_lines_is_held(tiny_folder, lines, monkeypatch, small_parts):
    """By what is alive when the last line is read."""
    alive = weakref.WeakValueDictionary()
    most = 0

    class Watched(items_module.Item):
        def __init__(self, *given, **named):
            nonlocal most
            super().__init__(*given, **named)
            alive[id(self)] = self
            most = max(most, len(alive))

    monkeypatch.setattr(items_module, "Item", Watched)
    assert run_here("embed", lines, "-m", tiny_folder).code == 0
    assert PART <= most <= 3 * PART


def test_a_part_has_a_bounded_number_of_characters(monkeypatch):
    monkeypatch.setattr(lines_module, "CHARACTERS_PER_PART", 100)
    lengths = [60, 30, 10, 1, 250, 60, 60]
    reader = lines_module.LineReader(Line("a" * length, "it", 1) for length in lengths)
    parts = []
    while part := reader.take():
        parts.append([len(line.text) for line in part])
    assert parts == [[60, 30, 10], [1], [250], [60], [60]]
    assert reader.done == len(lengths)


def test_a_file_that_changes_meanwhile_is_noticed(tiny_folder, lines, tmp_path, monkeypatch):
    survey = embed_module.survey

    def and_then_change(given):
        found = survey(given)
        lines.write_bytes(lines.read_bytes().replace(b"river", b"bank", 1))
        return found

    monkeypatch.setattr(embed_module, "survey", and_then_change)
    ran = run_here("embed", lines, "-m", tiny_folder, "-o", tmp_path / "rows.npy")
    assert_one_sentence(ran, "changed while it was read")
    assert not (tmp_path / "rows.npy").exists()


def test_a_line_without_an_end_is_refused(tiny_folder, monkeypatch):
    monkeypatch.setattr(text_lines, "LONGEST_LINE", 1000)
    ran = run_here("embed", "-m", tiny_folder, stdin=b"the\n" + b"a" * 2000)
    assert_one_sentence(ran, "line 2 of <stdin> is longer than 1,000 bytes")


def columns_of(path):
    table = parquet.read_table(path)
    return {name: table[name].to_pylist() for name in table.column_names}


@pytest.mark.parametrize("block_bytes", [1, 1000, 1 << 25])
def test_an_archive_and_a_parquet_file_say_what_json_lines_say(
    block_bytes, tiny_folder, lines, tmp_path, small_parts, monkeypatch
):
    """However many rows are converted at once."""
    monkeypatch.setattr(embed_rows, "BLOCK_BYTES", block_bytes)
    other = tmp_path / "other.txt"
    other.write_bytes(b"the river\n\n" + b"bank " * 40 + b"\n")
    for suffix in (".jsonl", ".npz", ".parquet"):
        command = ("embed", lines, other, "--blank", "skip", *CUT, "-m", tiny_folder)
        ran = run_here(*command, "-o", tmp_path / f"rows{suffix}")
        assert (ran.code, ran.err) == (0, "")
    rows = rows_of((tmp_path / "rows.jsonl").read_text())
    assert [row["line"] for row in rows[-2:]] == [1, 3]
    assert columns_of(tmp_path / "rows.parquet") == {name: [row[name] for row in rows] for name in rows[0]}
    groups = parquet.ParquetFile(tmp_path / "rows.parquet").num_row_groups
    assert groups == {1: ROWS + 2, 1000: 12, 1 << 25: 1}[block_bytes]
    with zipfile.ZipFile(tmp_path / "rows.npz") as archive:  # nothing in it depends on when it was written
        assert {member.date_time[0] for member in archive.infolist()} == {1980}
    with np.load(tmp_path / "rows.npz") as arrays:
        assert arrays["embeddings"].dtype == np.float32
        np.testing.assert_array_equal(arrays["embeddings"], [row["embedding"] for row in rows])
        for ours, theirs in (("sources", "source"), ("lines", "line"), ("tokens", "tokens")):
            assert arrays[ours].tolist() == [row[theirs] for row in rows]
    kept = {"lines.txt", "other.txt", "rows.jsonl", "rows.npz", "rows.parquet"}
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_tokens_that_were_not_all_counted_are_null_in_parquet(tiny_folder, tmp_path):
    stdin = b"the\n" + b"bank " * 100_000
    for suffix in (".jsonl", ".parquet"):
        run_here("embed", *CUT, "-m", tiny_folder, "-o", tmp_path / f"rows{suffix}", stdin=stdin)
    counts = [row["original_tokens"] for row in rows_of((tmp_path / "rows.jsonl").read_text())]
    assert counts == [3, None]
    assert columns_of(tmp_path / "rows.parquet")["original_tokens"] == counts


def test_rows_are_kept_if_the_file_cannot_be_made_of_them(
    tiny_folder, lines, expected, tmp_path, monkeypatch
):
    out = tmp_path / "rows.npz"
    command = ("embed", lines, "-m", tiny_folder, "-o", out, "--json")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(embed_rows.Archive, "finish", full)
        assert_one_sentence(run_here(*command), "cannot write", "No space left", "the rows are kept")
    assert journaled_rows(out) == ROWS
    assert not out.exists()
    assert json.loads(run_here(*command).out)["resumed_texts"] == ROWS
    with np.load(out) as arrays:
        assert_close(arrays["embeddings"], expected)
    assert {path.name for path in tmp_path.iterdir()} == {"lines.txt", "rows.npz"}


def test_parquet_without_its_package(lines, tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.base.optional.find_spec", lambda name: None)
    ran = run_here("embed", lines, "-m", tmp_path / "nowhere", "-o", tmp_path / "rows.parquet")
    assert_one_sentence(
        ran, "pyarrow is needed for reading and writing Parquet files: pip install 'unmask[parquet]'"
    )


def test_a_file_name_that_is_not_utf_8(tiny_folder, lines, tmp_path):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.txt")
    os.rename(lines, odd)
    for suffix in ("jsonl", "npz", "parquet"):
        ran = run_here("embed", odd, "-m", tiny_folder, "-o", tmp_path / f"rows.{suffix}")
        assert (ran.code, ran.err) == (0, "")
    found = rows_of((tmp_path / "rows.jsonl").read_text())[0]["source"]
    assert found == f"{tmp_path}/a\\udcff.txt"
    assert columns_of(tmp_path / "rows.parquet")["source"][0] == found


# --- a stop, and going on ------------------------------------------------------------------------------

SLOW = """
import os, time
import unmask.cli.inputs, unmask.base.resume
unmask.cli.inputs.TEXTS_PER_PART = PART
append = unmask.base.resume.ResumableFile.append

def slow(self, content, rows):
    while self.rows_done >= HELD_FROM and not os.path.exists(GATE):
        time.sleep(0.002)
    half = len(content) // 2
    self._file.write(content[:half])
    self._file.flush()
    time.sleep(PAUSE)  # the rows are half written here
    self._file.truncate(self._file.tell() - half)
    append(self, content, rows)
    time.sleep(PAUSE)

unmask.base.resume.ResumableFile.append = slow
"""
"""Small parts and slow writes, so that a kill meets the command in every state."""


def slowly(pause, held_from, gate=""):
    """Writes that take their time, and none beyond so many rows until the file ``gate`` is there."""
    return f"PART, PAUSE, HELD_FROM, GATE = {PART}, {pause}, {held_from}, {str(gate)!r}\n{SLOW}"


CUT = ("--truncation", "end")
"""An option that matters only once a limit changes: all of `TEXTS` fit."""


def journaled_rows(out):
    """How many rows the journal counts; it is replaced whole, so it can be read at any moment."""
    try:
        return json.loads(out.with_name(out.name + ".partial.json").read_text())["rows"]
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("suffix", [".jsonl", ".npy", ".npz", ".parquet"])
def test_after_kill_the_same_command_goes_on_to_the_same_bytes(
    suffix, apart, tiny_folder, lines, tmp_path, small_parts
):
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    run_here("embed", lines, "-m", tiny_folder, "-o", whole)
    moments = random.Random(suffix)
    done = 0
    for least in (1, PART + 1, 2 * PART + 1, 3 * PART + 1):
        before = slowly(0.04, held_from=least + PART)
        process = apart.start("embed", lines, "-m", tiny_folder, "-o", out, before=before)
        process.until(lambda least=least: journaled_rows(out) >= least)
        time.sleep(moments.uniform(0, 0.04))
        process.send(signal.SIGKILL)
        assert process.wait() == Ran(-signal.SIGKILL, "", "")
        assert not out.exists()
        assert journaled_rows(out) >= max(done, least)
        done = journaled_rows(out)
    assert done < ROWS

    summary = json.loads(run_here("embed", lines, "-m", tiny_folder, "-o", out, "--json").out)
    assert (summary["resumed_texts"], summary["texts"]) == (done, ROWS)
    assert out.read_bytes() == whole.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"lines.txt", whole.name, out.name}


def test_an_interrupt_says_so_and_keeps_what_is_done(apart, tiny_folder, lines, tmp_path):
    out = tmp_path / "rows.npy"
    process = apart.start("embed", lines, "-m", tiny_folder, "-o", out, before=slowly(0, held_from=PART))
    process.until(lambda: journaled_rows(out))
    process.send(signal.SIGINT)
    assert process.wait() == Ran(130, "", "unmask: stopped\n")
    assert journaled_rows(out) > 0


@pytest.fixture
def stopped(tiny_folder, lines, tmp_path, small_parts, monkeypatch):
    """An output that a run left in the middle, after two parts."""
    out = tmp_path / "rows.jsonl"
    append = ResumableFile.append

    def stop_after_two(self, content, rows):
        append(self, content, rows)
        if self.rows_done == 2 * PART:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ResumableFile, "append", stop_after_two)
        assert run_here("embed", lines, *CUT, "-m", tiny_folder, "-o", out).code == 130
    assert journaled_rows(out) == 2 * PART
    return out


def test_partial_rows_are_continued(stopped, tiny_folder, lines, expected):
    summary = json.loads(run_here("embed", lines, *CUT, "-m", tiny_folder, "-o", stopped, "--json").out)
    assert summary["resumed_texts"] == 2 * PART
    assert_close(embeddings_of(stopped.read_text()), expected)


def test_partial_rows_that_were_changed_are_refused(stopped, tiny_folder, lines):
    """As many bytes as before, but other numbers."""
    partial = stopped.with_name(stopped.name + ".partial")
    content = bytearray(partial.read_bytes())
    content[len(content) // 2] ^= 1
    partial.write_bytes(content)
    ran = run_here("embed", lines, *CUT, "-m", tiny_folder, "-o", stopped)
    assert_one_sentence(ran)
    assert "was changed after it was written; name another file, or start again with --restart" in ran.err
    assert run_here("embed", lines, *CUT, "-m", tiny_folder, "-o", stopped, "--restart").code == 0


def other_texts(lines, _):
    lines.write_bytes(lines.read_bytes().replace(b"river", b"bank", 1))


def one_text_more(lines, _):
    lines.write_bytes(lines.read_bytes() + b"more\n")


def other_order(lines, _):
    lines.write_bytes(b"".join(reversed(lines.read_bytes().splitlines(keepends=True))))


def other_activation(_, checkpoint):
    change_json(checkpoint / "config.json", hidden_act="relu")


def other_limit(_, checkpoint):
    change_json(checkpoint / "sentence_bert_config.json", max_seq_length=15)


def other_vocabulary(_, checkpoint):
    path = checkpoint / "vocab.txt"
    path.write_text(path.read_text().replace("\nriver\n", "\nlake\n"))


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (other_texts, ()),
        (other_order, ()),
        (other_activation, ()),
        (other_limit, ()),
        (other_vocabulary, ()),
        (None, ("--dtype", "bfloat16")),
        (None, ("--pooling", "max")),
        (None, ("--no-normalize",)),
        (None, ("--truncation", "error")),
        (None, ("--kernel", "reference")),
    ],
)
def test_partial_rows_of_other_texts_or_settings_are_refused(
    change, options, stopped, tiny_folder, lines, tmp_path
):
    checkpoint = shutil.copytree(tiny_folder, tmp_path / "elsewhere" / "tiny")
    if change is not None:
        change(lines, checkpoint)
    before = stopped.with_name("rows.jsonl.partial").read_bytes()
    usual = () if "--truncation" in options else CUT
    ran = run_here("embed", lines, *usual, *options, "-m", checkpoint, "-o", stopped)
    assert_one_sentence(ran, "rows.jsonl.partial", "other texts or settings", "--restart")
    assert stopped.with_name("rows.jsonl.partial").read_bytes() == before
    assert journaled_rows(stopped) == 2 * PART
    assert not stopped.exists()


def test_texts_may_be_added_after_a_stop(stopped, tiny_folder, tiny_model, lines):
    one_text_more(lines, None)
    summary = json.loads(run_here("embed", lines, *CUT, "-m", tiny_folder, "-o", stopped, "--json").out)
    assert (summary["resumed_texts"], summary["texts"]) == (2 * PART, ROWS + 1)
    assert_close(embeddings_of(stopped.read_text()), tiny_model.embed([*TEXTS, "more"]))


def test_restart_begins_again(stopped, tiny_folder, tiny_model, lines):
    one_text_more(lines, None)
    arguments = ("embed", lines, "-m", tiny_folder, "-o", stopped, "--restart", "--json")
    assert json.loads(run_here(*arguments).out)["resumed_texts"] == 0
    assert_close(embeddings_of(stopped.read_text()), tiny_model.embed([*TEXTS, "more"]))


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"rows": "x"}', b""])
def test_a_damaged_journal_is_refused(content, stopped, tiny_folder, lines):
    stopped.with_name("rows.jsonl.partial.json").write_bytes(content)
    ran = run_here("embed", lines, "-m", tiny_folder, "-o", stopped)
    assert_one_sentence(ran, "rows.jsonl.partial.json", "--restart")


def test_partial_rows_that_were_lost_are_refused(stopped, tiny_folder, lines):
    stopped.with_name("rows.jsonl.partial").write_bytes(b"{")
    ran = run_here("embed", lines, "-m", tiny_folder, "-o", stopped)
    assert_one_sentence(ran, "rows.jsonl.partial", "--restart")


def test_a_finished_output_is_replaced_only_when_asked_and_only_when_the_new_one_is_whole(
    tiny_folder, lines, expected, tmp_path, small_parts, monkeypatch
):
    out = tmp_path / "rows.npy"
    out.write_bytes(b"finished")
    arguments = ("embed", lines, "-m", tiny_folder, "-o", out)

    assert_one_sentence(run_here(*arguments), "rows.npy exists already", "--overwrite")
    assert_one_sentence(run_here(*arguments, "--restart"), "rows.npy exists already", "--overwrite")
    assert out.read_bytes() == b"finished"

    append = ResumableFile.append
    with monkeypatch.context() as patch:
        patch.setattr(ResumableFile, "append", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run_here(*arguments, "--overwrite").code == 130
    assert ResumableFile.append is append
    assert out.read_bytes() == b"finished"

    assert run_here(*arguments, "--overwrite").code == 0
    assert_close(np.load(out), expected)


def of(identity):
    """A fingerprint of rows that does not depend on their number."""
    return lambda rows: identity


# --- two at once ---------------------------------------------------------------------------------------


def test_two_writers_of_one_output(apart, tiny_folder, lines, expected, tmp_path):
    out, gate = tmp_path / "rows.npy", tmp_path / "gate"
    first = apart.start("embed", lines, "-m", tiny_folder, "-o", out, before=slowly(0, PART, gate))
    first.until(lambda: journaled_rows(out))
    for options in ((), ("--restart",), ("--overwrite",), ("--restart", "--overwrite")):
        second = run_here("embed", lines, "-m", tiny_folder, "-o", out, *options)
        assert_one_sentence(second, "another process is writing", "rows.npy")
    gate.touch()
    ran = first.wait()
    assert (ran.code, ran.err) == (0, "")
    assert_close(np.load(out), expected)


def test_waiting_for_what_a_command_does_ends_with_the_command(apart):
    process = apart.start("nothing")
    with pytest.raises(AssertionError, match="Unknown command"):
        process.until(lambda: False)


@pytest.mark.parametrize("restart", [False, True])
def test_a_file_in_use_is_left_alone(restart, tmp_path):
    path = tmp_path / "rows"
    with ResumableFile(path, of("a"), 2, header=b"h") as first:
        first.append(b"1", 1)
        with pytest.raises(OutputError, match="another process"):
            ResumableFile(path, of("a"), 2, header=b"h", restart=restart)
        first.append(b"2", 1)
    assert path.read_bytes() == b"h12"
    assert list(tmp_path.iterdir()) == [path]


def test_a_refused_file_is_free_again_at_once(tmp_path):
    path = tmp_path / "rows"
    first = ResumableFile(path, of("a"), 2)
    first.append(b"1", 1)
    first.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    with pytest.raises(OutputError, match="other texts") as refused:
        ResumableFile(path, of("b"), 2)
    with ResumableFile(path, of("a"), 2) as again:
        again.append(b"2", 1)
    assert path.read_bytes() == b"12"
    assert refused.value is not None


def test_rows_beyond_the_last_are_not_resumed(tmp_path):
    path = tmp_path / "rows"
    first = ResumableFile(path, of("a"), 3)
    first.append(b"12", 2)
    first.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    with pytest.raises(OutputError, match="was started with other texts"):
        ResumableFile(path, of("a"), 1)


def test_a_writer_that_opened_the_partial_file_before_it_was_renamed(tmp_path, monkeypatch):
    """The second waits between opening and locking while the first finishes: the result must stay whole."""
    import fcntl

    path = tmp_path / "rows"
    first = ResumableFile(path, of("a"), 1)
    first.append(b"1", 1)
    flock = fcntl.flock

    def finish_first(file, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        first.__exit__(None, None, None)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", finish_first)
    with pytest.raises(OutputError):
        ResumableFile(path, of("a"), 1)
    assert path.read_bytes() == b"1"


def test_a_writer_that_looked_before_the_output_was_finished(tmp_path, monkeypatch):
    """The first finishes after the second saw that there is no output yet: the result is not replaced."""
    path = tmp_path / "rows"
    first = ResumableFile(path, of("a"), 1)
    first.append(b"1", 1)
    exists = type(path).exists

    def exists_and_then_finish(self, **options):
        found = exists(self, **options)
        if self == path:
            monkeypatch.setattr(type(path), "exists", exists)
            first.__exit__(None, None, None)
        return found

    monkeypatch.setattr(type(path), "exists", exists_and_then_finish)
    with pytest.raises(OutputError, match="rows"):
        ResumableFile(path, of("b"), 1)
    assert path.read_bytes() == b"1"
    assert list(tmp_path.iterdir()) == [path]


KILLED_AT_A_RENAME = """
import os, signal
import unmask.cli.inputs
unmask.cli.inputs.TEXTS_PER_PART = 7
replace, calls = os.replace, []

def dying(*arguments):
    calls.append(arguments)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*arguments)

os.replace = dying
"""


def test_a_kill_in_the_middle_of_the_journal_leaves_nothing_behind(
    apart, tiny_folder, lines, expected, tmp_path, small_parts
):
    out = tmp_path / "rows.npy"
    ran = apart.run("embed", lines, "-m", tiny_folder, "-o", out, before=KILLED_AT_A_RENAME)
    assert ran.code == -signal.SIGKILL
    assert journaled_rows(out) == 2 * PART

    summary = json.loads(run_here("embed", lines, "-m", tiny_folder, "-o", out, "--json").out)
    assert summary["resumed_texts"] == 2 * PART
    assert_close(np.load(out), expected)
    assert {path.name for path in tmp_path.iterdir()} == {"lines.txt", "rows.npy"}


def test_other_faults_leave_no_empty_partial_file(tiny_folder, lines, tmp_path, monkeypatch):
    from unmask.errors import NonFiniteResult
    from unmask.models.load import Model

    def fail(*_, **__):
        raise NonFiniteResult("not finite")

    monkeypatch.setattr(Model, "embed_encodings", fail)
    assert_one_sentence(
        run_here("embed", lines, "-m", tiny_folder, "-o", tmp_path / "rows.npy"), "not finite"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["lines.txt"]
