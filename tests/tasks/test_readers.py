"""Every command that reads rows gives the same answer to the same file, however odd."""

import bz2
import gzip
import io
import json
import lzma
import os
import re

import pyarrow
import pytest
from pyarrow import parquet

from tests.bulk.conftest import quick  # noqa: F401 - a fixture
from tests.support.command import assert_one_sentence, run_here
from unmask.bulk import shards
from unmask.bulk.sources import FORMATS
from unmask.errors import InvalidRequest, InvalidText, UnmaskError
from unmask.search.index import Index
from unmask.text import lines as text_lines
from unmask.training.data.sources import SourceSpec, documents
from unmask.training.finetune.records import read_labeled
from unmask.training.finetune.settings import DataSettings

ODD = {
    "empty.txt": (b"", "there is no text in the input"),
    "nul.txt": (b"a\0b\n", "line 1 of nul.txt is not text: it holds a byte 0x00"),
    "latin.txt": (b"bank\ncaf\xe9\n", "line 2 of latin.txt is not UTF-8: byte 0xe9 at byte 4"),
    "blank.txt": (b"bank\n\nriver\n", "line 2 of blank.txt holds no text"),
    "broken.jsonl": (b'{"text": "bank"\n', "line 1 of broken.jsonl is not JSON"),
    "array.jsonl": (b'["bank"]\n', "line 1 of array.jsonl is not a JSON object"),
    "deep.jsonl": (b"[" * 99_999 + b"\n", "line 1 of deep.jsonl is not JSON"),
    "huge.jsonl": (
        b'{"text": "bank", "n": %s}\n' % (b"9" * 5000),
        "line 1 of huge.jsonl holds a whole number of more than 4,300 digits",
    ),
    "missing.jsonl": (b'{"body": "bank", "n": 1}\n', "line 1 of missing.jsonl has no 'text'"),
    "number.jsonl": (b'{"text": 3}\n', "line 1 of number.jsonl has no text under 'text'"),
    "half.jsonl": (b'{"text": "\\ud83d bank"}\n', "line 1 of half.jsonl holds a lone surrogate U+D83D"),
    "object.json": (b'{"data": []}', "object.json is not a JSON list of objects"),
    "numbers.json": (b"[1, 2]", "row 1 of numbers.json is not a JSON object"),
    "open.csv": (b'text\n"bank\n', "cannot read open.csv after row 1"),
    "short.csv": (b"text,n\nbank\n", "row 2 of short.csv has 1 values"),
    "semicolons.csv": (b"text;n\nbank;1\n", "has the single column 'text;n', so its values are separated"),
    "twice.csv": (b"text,text\nbank,river\n", "row 1 of twice.csv names two columns 'text'"),
    "sixteen.csv": ("text,n\nbank,1\n".encode("utf-16-le"), "line 1 of sixteen.csv is not text"),
    "cut.jsonl": (b'{"text": "bank"}\n{"text": "ri', "line 2 of cut.jsonl is not JSON"),
    "cut.json": (b'[{"text": "bank"}, {"text": "ri', "row 2 of cut.json is not JSON"),
    "huge.json": (b'[{"text": "bank", "n": %s}]' % (b"9" * 5000), "row 1 of huge.json holds a whole number"),
    "nul.csv": (b"text\nba\0nk\n", "line 2 of nul.csv is not text: it holds a byte 0x00"),
    "twice.tsv": (b"text\ttext\nbank\triver\n", "line 1 of twice.tsv names two columns 'text'"),
    "short.tsv": (b"text\tn\nbank\n", "line 2 of short.tsv has 1 values"),
    "broken.parquet": (b"PAR1xxxx", "cannot read broken.parquet after row 0"),
    "broken.csv.gz": (b"text\nbank\n", "cannot read broken.csv.gz: Not a gzipped file"),
    "broken.txt.zst": (b"bank\n", "cannot read broken.txt.zst: ZSTD decompress failed"),
    "cut.txt.bz2": (bz2.compress(b"bank\n" * 99)[:-9], "cannot read cut.txt.bz2"),
}
"""The content of each file, and what the sentence says that refuses it."""


CUT = {"cut.json", "cut.jsonl"}
"""Files whose first row is whole, of which an index takes that row and names the other."""

WITHOUT_DOCUMENTS = ODD.keys() - {"blank.txt", "missing.jsonl", "object.json", "numbers.json"} - CUT
"""An index takes a text with blank lines, a column `body` and settings in JSON for documents."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def doors(models, name):
    """Every command that reads rows, over one file."""
    given = {
        "embed": ("embed", name, "-m", models / "sequence", "--pooling", "mean"),
        "classify": ("classify", "--file", name, "-m", models / "sequence"),
        "tag": ("tag", "--file", name, "-m", models / "tokens"),
        "fill": ("fill", "--file", name, "-m", models / "masked"),
    }
    if not name.split(".")[1].startswith("txt"):
        columns = ("--question-field", "text", "--choices-field", "text,text")
        given["choose"] = ("choose", "--file", name, "-m", models / "choices", *columns)
        given["similarity"] = (
            *("similarity", "--file", name, "-m", models / "sequence", "--pooling", "mean"),
            *("--fields", "text", "text"),
        )
    return given


@pytest.mark.parametrize("name", ODD)
def test_an_odd_file_is_refused_alike(models, place, name):
    """By every command in the same words, but for the option that names a column."""
    content, sentence = ODD[name]
    (place / name).write_bytes(content)
    said = set()
    for command, arguments in doors(models, name).items():
        ran = run_here(*arguments)
        assert_one_sentence(ran, sentence)
        assert ran.out == "", command
        said.add(re.sub(r"set --\S+ to", "set --field to", ran.err))
    assert len(said) == 1


TEXTS_ONLY = {"blank.txt", "half.jsonl", "number.jsonl", "missing.jsonl"}
"""What is odd about a text or its column, which training says in its own words."""


@pytest.mark.parametrize("name", [name for name in ODD if "txt" not in name and name not in TEXTS_ONLY])
def test_training_refuses_it_in_the_same_words(place, name):
    content, sentence = ODD[name]
    (place / name).write_bytes(content)
    data = DataSettings(train=[name], label="text")
    ending = name.split(".")[1]
    if ending != "json":
        with pytest.raises(UnmaskError, match=re.escape(sentence)):
            list(read_labeled([name], data, place.relative_to(place)))
    if ending in ("jsonl", "csv", "parquet"):
        with pytest.raises(UnmaskError, match=re.escape(sentence)):
            list(documents(SourceSpec("a", (name,)), place.relative_to(place)))


def test_names_that_stand_twice_in_a_parquet_file(models, place):
    table = pyarrow.Table.from_arrays([pyarrow.array(["bank"]), pyarrow.array(["river"])], ["text", "text"])
    parquet.write_table(table, place / "twice.parquet")
    for arguments in doors(models, "twice.parquet").values():
        assert_one_sentence(run_here(*arguments), "twice.parquet names two columns 'text'; give each its own")


@pytest.mark.parametrize("name", sorted(WITHOUT_DOCUMENTS))
def test_an_index_names_it_and_fails(place, name):
    (place / name).write_bytes(ODD[name][0])
    ran = run_here("index", name, "-o", "made", "--model", "none")
    assert ran.code == 1
    assert not os.path.exists("made")
    assert name in ran.out
    assert_one_sentence(ran, name)


@pytest.mark.parametrize("name", sorted(CUT))
def test_an_index_takes_the_rows_before_the_end_that_is_missing(place, name):
    (place / name).write_bytes(ODD[name][0])
    added = json.loads(run_here("index", name, "-o", "made", "--model", "none", "--json").out)["added"]
    assert added["added"] == 1
    ((_, reason),) = added["skipped"]
    assert ODD[name][1] in reason


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", [name for name in ODD if name.endswith(tuple(FORMATS))])
def test_shards_refuse_it_too(place, name):
    content, sentence = ODD[name]
    (place / name).write_bytes(content)
    ran = run_here(
        "embed", name, "-m", "unmask-mini", "--pooling", "mean", "--engine", "processes", "-o", "out"
    )
    said = {
        "empty.txt": "holds no texts",
        "number.jsonl": "line 1 of number.jsonl is of type int",
        "broken.parquet": "is not a Parquet file",
    }
    assert_one_sentence(ran, said.get(name, sentence))
    assert not list(place.glob("out/part-*"))


ROWS = [{"n": 1, "text": "the river bank"}, {"n": 2, "text": "muddy"}]


def written(name):
    """The rows in the format of the file's name."""
    lines = "".join(row["text"] + "\r\n" for row in ROWS)
    objects = "".join(json.dumps(row) + "\n\n" for row in ROWS)
    table = "n,text\r\n" + "".join(f"{row['n']},{row['text']}\r\n" for row in ROWS)
    content = {
        "txt": "\ufeff" + lines,
        "jsonl": "\ufeff" + objects,
        "json": json.dumps(ROWS),
        "csv": "\ufeff" + table,
        "tsv": table.replace(",", "\t"),
    }[name.split(".")[1]].encode()
    packed = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": zstandard}
    return packed.get(os.path.splitext(name)[1], bytes)(content)


def zstandard(content):
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    "name",
    ["a.txt", "a.txt.bz2", "a.jsonl.zst", "a.json", "a.csv", "A.CSV", "a.tsv.xz", "a.parquet"],
)
def test_a_format_gives_the_same_texts_to_every_command(models, place, name):
    if name == "a.parquet":
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), place / name)
    else:
        (place / name).write_bytes(written(name.lower()))
    (place / "plain.txt").write_bytes(written("plain.txt"))
    given = ("-m", models / "sequence")
    shown = {}
    for file in (name, "plain.txt"):
        embedded = run_here("embed", file, *given, "--pooling", "mean")
        classified = run_here("classify", "--file", file, *given)
        tagged = run_here("tag", "--file", file, "-m", models / "tokens", "--words")
        shown[file] = (
            [json.loads(row)["embedding"] for row in embedded.out.splitlines()],
            classified.out,
            tagged.out,
        )
    assert len(shown["plain.txt"][0]) == 2
    assert shown[name] == shown["plain.txt"]
    if not name.startswith("a.txt"):
        ran = run_here("index", name, "-o", "made", "--model", "none", "--json")
        assert json.loads(ran.out)["documents"] == 2


def test_a_field_that_a_table_lacks_lists_its_columns(models, place):
    (place / "a.csv").write_text("title,body\nx,y\n")
    for command in (("embed", "a.csv"), ("classify", "--file", "a.csv"), ("tag", "--file", "a.csv")):
        model = models / ("tokens" if command[0] == "tag" else "sequence")
        assert_one_sentence(
            run_here(*command, "-m", model),
            "row 2 of a.csv has no 'text'; set --field to one of: title, body",
        )
    assert (
        run_here("embed", "a.csv", "--field", "body", "-m", models / "sequence", "--pooling", "mean").code
        == 0
    )


def test_a_context_is_unpacked_and_a_table_is_not_one(models, place):
    (place / "a.txt.gz").write_bytes(gzip.compress(b"the river bank was muddy"))
    (place / "a.jsonl").write_text('{"text": "the river bank was muddy"}\n')
    (place / "a.txt").write_text("the river bank was muddy")
    asked = ("answer", "--question", "the river", "-m", models / "span", "--file")
    packed, plain = (run_here(*asked, name) for name in ("a.txt.gz", "a.txt"))
    assert (packed.code, packed.out) == (0, plain.out)
    assert_one_sentence(run_here(*asked, "a.jsonl"), "a.jsonl is taken for a file of format jsonl")


def test_a_line_may_have_as_many_bytes_as_are_read(monkeypatch):
    monkeypatch.setattr("unmask.text.lines.LONGEST_LINE", 5)
    whole = text_lines.Stream("a", io.BytesIO(b"four\nfour\n"))
    assert list(text_lines.lines(whole)) == [(1, "four"), (2, "four")]
    with pytest.raises(InvalidText, match="line 2 of a is longer than 5 bytes"):
        list(text_lines.lines(text_lines.Stream("a", io.BytesIO(b"four\nfives\n"))))


def test_a_device_is_refused_by_name(models):
    for command in (("embed", "/dev/zero"), ("classify", "--file", "/dev/zero")):
        assert_one_sentence(
            run_here(*command, "-m", models / "sequence"), "/dev/zero: it is a device, not a file"
        )
    asked = run_here("answer", "--question", "x", "--file", "/dev/zero", "-m", models / "span")
    assert_one_sentence(asked, "/dev/zero: it is a device, not a file")


def test_a_bomb_is_one_sentence(models, place, monkeypatch):
    monkeypatch.setattr(text_lines, "LONGEST_LINE", 10_000)
    (place / "bomb.txt.gz").write_bytes(gzip.compress(b"a" * 99_999))
    ran = run_here("classify", "--file", "bomb.txt.gz", "-m", models / "sequence")
    assert_one_sentence(ran, "line 1 of bomb.txt.gz is longer than 10,000 bytes")


HALF = '{"text": "the bank", "id": "cut \\ud83d", "n": 1}\n{"text": "the river", "id": "b", "n": 2}\n'


@pytest.mark.parametrize(
    ("content", "sentence"),
    [('{"data": 3}', "a value is of another type; give data as a list"), ("{}", "the key 'data' is missing")],
)
def test_what_is_not_squad_says_what_is_missing(models, place, content, sentence):
    (place / "a.json").write_text(content)
    ran = run_here("answer", "--questions", "a.json", "-m", models / "span")
    assert_one_sentence(ran, f"a.json is not laid out as SQuAD: {sentence}")


@pytest.mark.usefixtures("quick")
def test_half_a_surrogate_beside_the_text_is_kept_in_shards(place):
    (place / "a.jsonl").write_text(HALF)
    given = ("-m", "unmask-mini", "--pooling", "mean", "--engine", "processes", "-o", "out")
    assert run_here("embed", "a.jsonl", *given).code == 0
    rows = [json.loads(line) for line in (place / "out" / "part-00000.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ["cut \ud83d", "b"]


@pytest.mark.usefixtures("quick")
def test_a_shard_that_cannot_be_written_names_its_rows(place, monkeypatch):
    (place / "a.jsonl").write_text(HALF)

    def fails(row):
        raise RecursionError("too deep")

    monkeypatch.setattr(shards, "_line", fails)
    given = ("-m", "unmask-mini", "--pooling", "mean", "--engine", "processes", "-o", "out")
    assert_one_sentence(
        run_here("embed", "a.jsonl", *given), "line 1 of a.jsonl to line 2 of a.jsonl cannot be"
    )


def test_half_a_surrogate_beside_the_text_skips_a_row_of_an_index(place):
    (place / "a.jsonl").write_text(
        HALF.replace('"id"', '"tweet"') + '{"text": "deep", "n": ' + "[" * 200 + "]" * 200 + "}"
    )
    ran = run_here("index", "a.jsonl", "-o", "made", "--model", "none", "--json")
    found = json.loads(ran.out)
    assert found["documents"] + len(found["added"]["skipped"]) == 3
    assert found["added"]["skipped"][0][0] == "a.jsonl#1"
    reasons = [reason for _, reason in found["added"]["skipped"]]
    assert "its column 'tweet' cannot be stored" in reasons[0]
    assert "lone surrogate" in reasons[0]
    assert "its column 'n' cannot be stored as JSON: they are nested more than 100 levels" in reasons[1]
    asked = run_here("answer", "--questions", "a.jsonl", "-m", "unmask-mini")
    assert_one_sentence(asked, "has no 'question'")


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"id": "\ud83d", "text": "x"}, "the id or title of document 1 cannot be"),
        (
            {"id": "a", "text": "x", "title": "\ud83d"},
            "the id or title of document 1 cannot be",
        ),
        ({"id": "a", "text": "x", "metadata": {"\ud83d": 1}}, "lone surrogate"),
        ({"id": "a", "text": "x", "metadata": {1: "a", "b": 2}}, "key"),
        ({"id": "a", "text": "x", "metadata": {"n": 10**5000}}, "cannot be stored as JSON"),
    ],
)
def test_what_an_index_cannot_store_is_refused_by_name(place, document, sentence):
    index = Index.create(place / "made", [])
    with pytest.raises(InvalidRequest, match=sentence):
        index.add([document])
