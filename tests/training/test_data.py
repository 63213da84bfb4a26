"""Text to micro-batches: every format read, nothing lost, each chunk once an epoch, the same after a stop."""

import bz2
import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.full_disk import smallest_files
from tests.support.places import REPOSITORY, shared
from tests.support.tiny import VOCABULARY
from unmask.errors import InvalidRequest, InvalidText, OutputError
from unmask.text import Tokenizer
from unmask.training.data.chunking import Chunker, TokenBoundaries, sentences, units
from unmask.training.data.sampling import SourceCursor, draw, key_of, permute, permute_each, shares
from unmask.training.data.shards import ShardSet
from unmask.training.data.sources import SourceSpec, documents, texts
from unmask.training.data.stream import ChunkStream, held_out, pack
from unmask.training.data.writing import prepare, tokenized, write_shards
from unmask.training.vocabulary import Vocabulary

TOKENIZER = Tokenizer.from_files({"vocab.txt": "\n".join(VOCABULARY).encode()})
MARKS = TokenBoundaries.of(TOKENIZER, Vocabulary.of(TOKENIZER))
TEXTS = ("the river was muddy", "Zürich – ein Fluß: 河 \U0001f30a\u2028and a line", "a\nb\n\nc")
WORDS = ("the", "river", "bank.", "muddy,", "another!", "xylophones", "a", "3.")


def some_text(rng, words):
    return " ".join(rng.choice(WORDS, words))


def write_books(path, count, seed=0, longest=60):
    """Documents of one to three paragraphs, as JSON lines."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        paragraphs = [some_text(rng, rng.integers(1, longest)) for _ in range(rng.integers(1, 4))]
        rows.append({"text": "\n".join(paragraphs), "number": number})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


def shard_set(folder, name, count, seed=0, **changes):
    write_books(folder / f"{name}.jsonl", count, seed)
    values = {"split_by": "paragraph", "max_tokens": 40} | changes
    spec = SourceSpec(name, (f"{name}.jsonl",), **values)
    return write_shards(documents(spec, folder), TOKENIZER, spec, folder / name)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    return shard_set(folder, "one", 60, 1), shard_set(folder, "two", 25, 2, max_tokens=30)


def keys(micros):
    """What a micro-batch is, to compare."""
    return [[(chunk.document, chunk.ids.tolist()) for chunk in micro] for micro in micros]


# --- reading ----------------------------------------------------------------------------------------------


def spec_of(*files, **changes):
    return SourceSpec("source", files, **changes)


CSV_TEXTS = ('a, "" and', "two\nlines", "")


@pytest.mark.parametrize("ending", ["", ".xz", ".gz", ".bz2", ".zst"])
@pytest.mark.parametrize("form", ["text", "paragraphs", "lines", "jsonl", "csv"])
def test_every_text_format(form, ending, tmp_path):
    if form == "jsonl":
        name, content = "a.jsonl", "".join(json.dumps({"body": text}) + "\n" for text in TEXTS)
    elif form == "csv":
        name, content = "a.csv", "number,body\r\n" + "".join(f'1,"{text}"\r\n' for text in CSV_TEXTS)
    elif form == "lines":
        name, content = "a.txt", "\r\n".join(["one", TEXTS[1], "three"]) + "\n"
    else:
        name, content = "a.txt", f"\n\n{TEXTS[0]}\nmore\n \n\n{TEXTS[1]}\n"
    data = ("\ufeff" + content).encode()
    compress = {
        "": bytes,
        ".xz": lzma.compress,
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".zst": lambda content: pyarrow.compress(content, "zstd", asbytes=True),
    }[ending]
    (tmp_path / (name + ending)).write_bytes(compress(data))
    explicit = {"format": form} if form in ("lines", "paragraphs") else {}
    found = list(documents(spec_of("*.*", field="body", **explicit), tmp_path))
    wanted = {
        "jsonl": list(TEXTS),
        "lines": ["one", TEXTS[1], "three"],
        "paragraphs": [f"{TEXTS[0]}\nmore", TEXTS[1]],
        "text": [f"\n\n{TEXTS[0]}\nmore\n \n\n{TEXTS[1]}"],
        "csv": [text.replace('""', '"') for text in CSV_TEXTS],
    }
    assert found == wanted[form]


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra 'train' is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"text": list(TEXTS) * 700, "split": ["a", "b", "a"] * 700})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    assert list(documents(spec_of("a.parquet"), tmp_path)) == list(TEXTS) * 700
    kept = documents(spec_of("a.parquet", where={"split": "a"}), tmp_path)
    assert list(kept) == [TEXTS[0], TEXTS[2]] * 700
    with pytest.raises(
        InvalidText,
        match=r"row 1 of .*a\.parquet has no field 'body'; set field to .*: 'text', 'split'",
    ):
        list(documents(spec_of("a.parquet", field="body"), tmp_path))
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    with pytest.raises(InvalidText, match=r"cannot read .*b\.parquet after row 0"):
        list(documents(spec_of("b.parquet"), tmp_path))


def save_dataset(folder, *tables):
    """As `Dataset.save_to_disk` of the package datasets lays it out."""
    import pyarrow

    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{len(tables):05d}.arrow" for number in range(len(tables))]
    for name, columns in zip(names, tables, strict=True):
        table = pyarrow.table(columns)
        with (
            pyarrow.OSFile(str(folder / name), "wb") as file,
            pyarrow.ipc.new_stream(file, table.schema) as stream,
        ):
            stream.write_table(table, max_chunksize=2)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))


def test_a_saved_data_set(tmp_path):
    pytest.importorskip("pyarrow", reason="the extra 'train' is not installed")
    save_dataset(
        tmp_path / "all/train", {"text": list(TEXTS), "kept": [1, 0, 1]}, {"text": ["z"], "kept": [1]}
    )
    assert list(documents(spec_of("all/train"), tmp_path)) == [*TEXTS, "z"]
    assert list(documents(spec_of("all/train", where={"kept": [0]}), tmp_path)) == [TEXTS[1]]
    with pytest.raises(
        InvalidRequest, match=r"all is a folder but not a dataset .*; name one of those .* \(train\)"
    ):
        list(documents(spec_of("all"), tmp_path))
    first = tmp_path / "all/train/data-00000-of-00002.arrow"
    first.write_bytes(first.read_bytes()[:-200])
    with pytest.raises(InvalidText, match=r"cannot read .*train after row"):
        list(documents(spec_of("all/train"), tmp_path))


def test_records_from_python():
    rows = [(f"record {i}", {"text": text}) for i, text in enumerate(TEXTS)]
    assert list(texts(rows)) == list(TEXTS)
    with pytest.raises(InvalidText, match=r"record 0 has no field 'split'; set where to .*: 'text'"):
        list(texts(rows, where={"split": "train"}))


def test_where_and_globs(tmp_path):
    for name in ("b", "a"):
        rows = [{"text": f"{name}{i}", "split": split} for i, split in enumerate(("train", "dev", "test"))]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert list(documents(spec_of("*.jsonl", where={"split": "train"}), tmp_path)) == ["a0", "b0"]
    both = spec_of("b.jsonl", "*.jsonl", where={"split": ["train", "dev"]})
    assert list(documents(both, tmp_path)) == ["b0", "b1", "a0", "a1"]


BAD_FILES = {
    "not UTF-8": ("a.txt", b"fine\n\xff\n", r"line 2 of .*a\.txt is not UTF-8: byte 0xff at byte 1"),
    "not JSON": ("a.jsonl", b'{"text": "x"}\n{"text\n', r"line 2 of .*a\.jsonl is not JSON"),
    "no object": ("a.jsonl", b"[1]\n", r"line 1 of .*a\.jsonl is not a JSON object"),
    "no field": (
        "a.jsonl",
        b'\n{"body": "x"}\n',
        r"line 2 of .* has no field 'text'; set field to .*'body'",
    ),
    "null": ("a.jsonl", b'{"text": null}\n', r"line 1 of .*a\.jsonl has null under 'text'; set skip_null"),
    "a JSON array": ("a.json", b'[{"text": "x"}]\n', r"is not a JSON object; give one object per line"),
    "uneven csv": ("a.csv", b"text\na, b\n", r"row 2 of .*a\.csv has 2 values and the first row names 1"),
    "open csv": ("a.csv", b'text\n"a\n', r"cannot read .*a\.csv after row 1"),
    "csv field": ("a.csv", b"body\na\n", r"row 2 of .*a\.csv has no field 'text'; set field to .*'body'"),
    "no text": ("a.jsonl", b'{"text": 3}\n', r"line 1 of .*a\.jsonl has a value of type int under 'text'"),
    "a surrogate": ("a.jsonl", b'{"text": "\\ud800"}\n', r"line 1 of .* holds a lone surrogate U\+D800"),
    "cut xz": ("a.txt.xz", lzma.compress(b"text\n" * 99)[:-30], r"cannot read .*a\.txt\.xz after line"),
    "no xz": ("a.txt.xz", b"text", r"cannot read .*a\.txt\.xz: "),
    "cut gz": ("a.txt.gz", gzip.compress(os.urandom(999))[:-30], r"a\.txt\.gz"),
    "unknown ending": ("a.md", b"text", r"a\.md of source source ends in none of \.txt"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files(case, tmp_path):
    name, content, sentence = BAD_FILES[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises((InvalidText, InvalidRequest), match=sentence):
        list(documents(spec_of(name), tmp_path))


@pytest.mark.parametrize("name", ["absent.txt", "*.absent"])
def test_a_file_that_is_not_there(name, tmp_path):
    with pytest.raises(InvalidRequest, match=r"source source names .*absent.*no such file"):
        list(documents(spec_of(name), tmp_path))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "a/b"}, "is called 'a/b'"),
        ({"name": ""}, "is called ''"),
        ({"files": ()}, "has no files"),
        ({"format": "tsv"}, "format is 'tsv'; it can be text, paragraphs, lines"),
        ({"split_by": "word"}, "split_by is 'word'"),
        ({"min_tokens": 0}, "min_tokens 0"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens 9 and max_tokens 8"),
        ({"weight": 0.0}, "weight of source a is 0"),
        ({"weight": float("nan")}, "weight of source a is nan"),
    ],
)
def test_a_spec_out_of_range(changes, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        SourceSpec(**({"name": "a", "files": ("a.txt",)} | changes))


# --- cutting ----------------------------------------------------------------------------------------------


def test_sentences():
    text = (
        'He met Mr. Smith, J. R. Jones, etc. at 3.14 p.m. near the U.S. border. "Why?" she asked. '
        "(It was late.) Nobody knew… Then e.g. this! The end"
    )
    assert sentences(text) == [
        "He met Mr. Smith, J. R. Jones, etc. at 3.14 p.m. near the U.S. border.",
        '"Why?" she asked.',
        "(It was late.)",
        "Nobody knew…",
        "Then e.g. this!",
        "The end",
    ]
    assert sentences("  ") == []


def test_units():
    text = "One. Two.\n\n  \nThree.  "
    assert units(text, "document") == [(text, False)]
    assert units(text, "paragraph") == [("One. Two.", True), ("Three.", True)]
    assert units(text, "sentence") == [("One.", True), (" Two.", False), ("Three.", True)]
    assert units(" \n ", "document") == units("", "paragraph") == units("\n", "sentence") == []


@examples(60)
@given(
    words=st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=25), min_size=1, max_size=4),
    most=st.integers(1, 30),
    data=st.data(),
)
def test_cutting_keeps_every_token_in_order(words, most, data):
    least = data.draw(st.integers(1, most))
    ids = [TOKENIZER.engine.encode(" ".join(some), add_special_tokens=False).ids for some in words]
    cutter = Chunker(MARKS, most, least)
    made = cutter.chunks([(np.array(some), True) for some in ids])
    assert all(least <= len(chunk) <= most for chunk in made)
    whole = [id for some in ids for id in some]
    kept = [id for chunk in made for id in chunk.tolist()]
    assert kept == whole[: len(kept)]
    assert len(whole) - len(kept) == cutter.losses.dropped_tokens
    if not cutter.losses.cut_words:
        assert not any(VOCABULARY[chunk[0]].startswith("##") for chunk in made)
    if most >= 2 * least - 1 and len(whole) >= least:
        assert cutter.losses.dropped_tokens == 0


def chunks_of(document, tokenizer=TOKENIZER, **changes):
    spec = spec_of("a", **changes)
    cutter = Chunker(
        TokenBoundaries.of(tokenizer, Vocabulary.of(tokenizer)), spec.max_tokens, spec.min_tokens
    )
    (made,) = tokenized([document], tokenizer, cutter, spec)
    return [tokenizer.engine.decode(chunk.tolist()) for chunk in made], cutter.losses


def test_a_cut_is_made_after_a_sentence_or_before_a_word():
    text = "the river was muddy. a text! another river was muddy, another bank was muddy the river"
    made, _ = chunks_of(text, max_tokens=11)
    assert made == [
        "the river was muddy. a text!",
        "another river was muddy, another bank was muddy the river",
    ]
    made, _ = chunks_of("the the the the the", max_tokens=4)
    assert made == ["the the the the", "the"]  # a place at the very end is taken
    made, losses = chunks_of("the the the the, bank", max_tokens=4)
    assert made == ["the the the", "the, bank"]
    assert losses.cut_words == 0
    made, losses = chunks_of("the abcdefghij", max_tokens=4)
    assert made == ["the", "abcd", "##efgh", "##ij"]
    assert losses.cut_words == 2


def test_short_chunks_are_joined():
    text = "the bank\nthe river was muddy the river was muddy\na\nanother text"
    made, losses = chunks_of(text, split_by="paragraph", max_tokens=12, min_tokens=3)
    assert made == ["the bank the river was muddy the river was muddy", "a another text"]
    made, losses = chunks_of(
        "the river was muddy the river was muddy\na", split_by="paragraph", max_tokens=8, min_tokens=3
    )
    assert made == ["the river was muddy", "the river was muddy a"]
    made, losses = chunks_of("the river", split_by="paragraph", max_tokens=8, min_tokens=3)
    assert (made, losses.dropped_chunks, losses.dropped_tokens) == ([], 1, 2)
    _, losses = chunks_of(" \n", max_tokens=8, min_tokens=3)
    assert losses.blank_documents == 1


def test_a_line_break_stands_between_paragraphs_and_nowhere_else():
    (line_break,) = TOKENIZER.engine.encode("3", add_special_tokens=False).ids
    marks = replace(MARKS, between_paragraphs=np.array([line_break]))

    def cut(*parts, most=8):
        encoded = [
            (np.array(TOKENIZER.engine.encode(text, add_special_tokens=False).ids), begins)
            for text, begins in parts
        ]
        return [TOKENIZER.engine.decode(ids.tolist()) for ids in Chunker(marks, most, 3).chunks(encoded)]

    assert cut(("the river", True), ("was muddy", True)) == ["the river 3 was muddy"]
    assert cut(("the river", True), ("was muddy", False)) == ["the river was muddy"]
    assert cut(("the river was", True), ("a", True)) == ["the river was 3 a"]
    # What is left of a long paragraph follows its words, not a break.
    assert cut(("the river was muddy the river was muddy a", True)) == [
        "the river was muddy",
        "the river was muddy a",
    ]


# --- on disk ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split_by", ["document", "paragraph", "sentence"])
def test_shards_hold_what_the_tokenizer_says(split_by, tmp_path):
    rows = write_books(tmp_path / "a.jsonl", 30)
    spec = spec_of("a.jsonl", split_by=split_by, max_tokens=17, min_tokens=5)
    told = []
    made = write_shards(
        documents(spec, tmp_path),
        TOKENIZER,
        spec,
        tmp_path / "out",
        lambda *so_far: told.append(so_far),
        file_bytes=1,
    )
    opened = ShardSet.open(tmp_path / "out")
    kept = {}
    for chunk in range(opened.count):
        assert 5 <= opened.lengths[chunk] == len(opened.ids(chunk)) <= 17
        assert np.array_equal(opened.ids(chunk), made.ids(chunk))
        assert opened.ids(chunk).dtype == np.int64
        kept.setdefault(int(opened.documents[chunk]), []).extend(opened.ids(chunk).tolist())
    dropped = 0
    for number, row in enumerate(rows):
        whole = TOKENIZER.engine.encode(row["text"], add_special_tokens=False).ids
        assert kept.get(number, []) == whole[: len(kept.get(number, []))]
        dropped += len(whole) - len(kept.get(number, []))
    counts = opened.manifest["counts"]
    assert counts["dropped_tokens"] == dropped
    assert opened.document_count == 30
    assert opened.token_count == sum(map(len, kept.values())) == opened.lengths.sum()
    assert told[-1] == (30, opened.token_count)
    assert opened.manifest["dtype"] == "<u2"


def test_many_files_and_ids_of_four_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.training.data.writing.BATCH_CHARACTERS", 500)
    words = [f"w{number}" for number in range(66_000)]
    pieces = [*VOCABULARY[:5], *words]
    tokenizer = Tokenizer.from_files({"vocab.txt": "\n".join(pieces).encode()})
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, 30)) for _ in range(40)]
    spec = spec_of("a", max_tokens=8)
    made = write_shards(texts, tokenizer, spec, tmp_path / "out", file_bytes=1000)
    assert made.manifest["dtype"] == "<u4"
    assert sum(name.startswith("ids-") for name in made.manifest["files"]) > 4
    whole = np.concatenate(made.read(np.arange(made.count)))
    assert [pieces[id] for id in whole] == " ".join(texts).split()
    order = rng.permutation(made.count)
    assert all(np.array_equal(one, made.ids(int(i))) for i, one in zip(order, made.read(order), strict=True))
    with pytest.raises(InvalidRequest, match=f"which has {made.count}"):
        made.ids(made.count)


@pytest.mark.parametrize("name", ["ids-00000.bin", "lengths.npy", "documents.npy"])
def test_a_changed_byte_is_refused(name, tmp_path):
    folder = shard_set(tmp_path, "one", 9).folder
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(InvalidRequest, match=rf"{name} is not what was written.*remove .*one"):
        ShardSet.open(folder)
    (folder / name).write_bytes(data[:-1])
    with pytest.raises(InvalidRequest, match=f"{name} is not what was written"):
        ShardSet.open(folder, verify=False)
    (folder / name).unlink()
    with pytest.raises(InvalidRequest, match=f"cannot read .*{name}.*No such file"):
        ShardSet.open(folder, verify=False)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "holds no shards"), ("{", "is damaged"), ('{"version": 7}', "has version 7 of the format")],
)
def test_a_folder_without_a_manifest(content, sentence, tmp_path):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InvalidRequest, match=sentence):
        ShardSet.open(tmp_path)


def test_a_full_disk(tmp_path):
    write_books(tmp_path / "a.jsonl", 200)
    with smallest_files(), pytest.raises(OutputError, match=r"cannot write .*source-\w+: File too large"):
        prepare([spec_of("a.jsonl", split_by="paragraph")], TOKENIZER, tmp_path / "out", tmp_path)
    assert not [path for path in (tmp_path / "out").iterdir() if path.is_dir()]


def test_no_token_at_all(tmp_path):
    (tmp_path / "a.txt").write_text(" \n\n")
    with pytest.raises(InvalidRequest, match="source source gave 1 documents and no chunk"):
        prepare([spec_of("a.txt")], TOKENIZER, tmp_path / "out", tmp_path)


def test_a_folder_of_texts_is_answered_with_a_glob(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("a")
    with pytest.raises(InvalidRequest, match=r"texts is a folder .*; name its files, such as texts/\*\.txt"):
        list(documents(spec_of("texts"), tmp_path))


def test_null_texts_are_skipped_where_wanted_and_counted(tmp_path):
    rows = [{"text": "a river"}, {"text": None}, {"text": "a bank"}, {"text": None}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (made,) = prepare([spec_of("a.jsonl", skip_null=True)], TOKENIZER, tmp_path / "out", tmp_path)
    assert made.document_count == 2
    assert made.null_texts == 2


def test_a_file_of_text_is_one_document(tmp_path):
    """However many blank lines it has; its chunks are as long as they may be."""
    (tmp_path / "a.txt").write_text("\n\n".join(["the river bank was muddy"] * 30))
    whole, blocks = prepare(
        [
            SourceSpec("a", ("a.txt",), max_tokens=50),
            SourceSpec("b", ("a.txt",), format="paragraphs", max_tokens=50),
        ],
        TOKENIZER,
        tmp_path / "out",
        tmp_path,
    )
    assert (whole.document_count, blocks.document_count) == (1, 30)
    assert whole.lengths.tolist() == [50, 50, 50]
    assert blocks.lengths.tolist() == [5] * 30
    assert whole.token_count == blocks.token_count


def test_a_long_document_is_tokenized_in_parts(tmp_path, monkeypatch):
    text = "\n".join(["the river bank was muddy"] * 40)
    (tmp_path / "a.txt").write_text(text)
    (once,) = prepare([spec_of("a.txt", max_tokens=999)], TOKENIZER, tmp_path / "once", tmp_path)
    monkeypatch.setattr("unmask.training.data.chunking.MOST_CHARACTERS", 100)
    assert "".join(part for part, _ in units(text, "document")) == text
    assert len(units(text, "document")) > 5
    (often,) = prepare([spec_of("a.txt", max_tokens=999)], TOKENIZER, tmp_path / "often", tmp_path)
    assert np.concatenate(often.read(np.arange(often.count))).tolist() == once.ids(0).tolist()


def test_shards_of_a_changed_file_are_removed_and_others_stay(tmp_path):
    cache = tmp_path / "out"
    write_books(tmp_path / "a.jsonl", 20)
    specs = [SourceSpec("a", ("a.jsonl",)), SourceSpec("a", ("a.jsonl",), max_tokens=9)]
    (before,), (other,) = (prepare([spec], TOKENIZER, cache, tmp_path) for spec in specs)
    (tmp_path / "elsewhere").mkdir()
    write_books(tmp_path / "elsewhere/a.jsonl", 20, seed=4)
    (theirs,) = prepare([specs[0]], TOKENIZER, cache, tmp_path / "elsewhere")
    write_books(tmp_path / "a.jsonl", 20, seed=5)
    (after,) = prepare([specs[0]], TOKENIZER, cache, tmp_path)
    found = {path for path in cache.iterdir() if path.is_dir()}
    assert found == {other.folder, theirs.folder, after.folder}
    assert before.folder not in found


def test_a_source_is_made_once(tmp_path):
    write_books(tmp_path / "a.jsonl", 20)
    specs = [SourceSpec("a", ("a.jsonl",)), SourceSpec("b", ("a.jsonl",), max_tokens=9)]
    calls = []

    def again(specs, tokenizer=TOKENIZER):
        calls.clear()
        made = prepare(specs, tokenizer, tmp_path / "out", tmp_path, lambda spec, *_: calls.append(spec.name))
        return [one.folder for one in made]

    first = again(specs)
    assert calls == ["a", "b"]
    os.utime(tmp_path / "a.jsonl", (1, 1))
    assert again(specs) == first
    assert calls == []
    assert again([SourceSpec("a", ("a.jsonl",), weight=3.0)]) == first[:1]
    assert calls == []
    changes = {"min_tokens": 2, "max_tokens": 77, "split_by": "sentence", "where": {"number": [3, 4]}}
    for name, value in (*changes.items(), ("skip_null", True), ("format", "jsonl")):
        assert again([SourceSpec("a", ("a.jsonl",), **{name: value})]) != first[:1], name
        assert calls == ["a"], name
    other = Tokenizer.from_files({"vocab.txt": "\n".join([*VOCABULARY, "more"]).encode()})
    assert again(specs, other) != first
    size = (tmp_path / "a.jsonl").stat().st_size
    write_books(tmp_path / "a.jsonl", 20, seed=5)
    assert again(specs) != first
    assert calls == ["a", "b"]
    assert size != 0
    with pytest.raises(InvalidRequest, match="two sources are called 'a'"):
        again([specs[0], specs[0]])


KILLED = """
import sys, time
from pathlib import Path
import unmask.training.data.writing as writing
from tests.training.test_data import TOKENIZER, spec_of, prepare
writing.BATCH_CHARACTERS = 100
def slow(spec, documents, tokens):
    print("going", flush=True)
    time.sleep(30)
prepare([spec_of("a.jsonl")], TOKENIZER, Path(sys.argv[1]) / "out", Path(sys.argv[1]), slow)
"""


def test_a_kill_leaves_no_half_source(tmp_path):
    write_books(tmp_path / "a.jsonl", 40)
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
    ) as process:
        assert process.stdout.readline() == b"going\n"
        process.send_signal(signal.SIGKILL)
    left = [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()]
    assert len(left) == 1
    assert left[0].endswith(".partial")
    (made,) = prepare([spec_of("a.jsonl")], TOKENIZER, tmp_path / "out", tmp_path)
    (fresh,) = prepare([spec_of("a.jsonl")], TOKENIZER, tmp_path / "fresh", tmp_path)
    assert made.digest == fresh.digest
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()] == [made.folder.name]


# --- order ------------------------------------------------------------------------------------------------


@examples(60)
@given(count=st.integers(1, 2000), key=st.integers(0, 2**64 - 1))
def test_an_order_has_every_number_once(count, key):
    found = permute(np.arange(count), count, key)
    assert sorted(found.tolist()) == list(range(count))
    some = np.arange(count)[:: max(1, count // 7)]
    assert np.array_equal(permute(some, count, key), found[some])


def test_orders_differ_and_look_drawn():
    count, places = 1000, np.arange(1000)
    found = np.stack([permute(places, count, key_of("order", seed)) for seed in range(400)])
    # Each place's number is uniform over seeds: chi-squared of 10 cells, 9 degrees, summed over places.
    cells = np.apply_along_axis(lambda column: np.bincount(column // 100, minlength=10), 0, found)
    statistic = ((cells - 40.0) ** 2 / 40).sum()
    assert abs(statistic - 9 * count) < 6 * np.sqrt(2 * 9 * count)
    # Neighbors go their own ways, and two orders have nothing in common.
    steps = np.diff(found, axis=1).ravel()
    assert abs((steps > 0).mean() - 0.5) < 0.005
    assert abs(np.corrcoef(found[0], found[1])[0, 1]) < 0.15
    which = np.arange(1000) % 5
    mixed = permute_each(places, count, [key_of("order", seed) for seed in range(5)], which)
    assert np.array_equal(mixed, found[which, places])


def test_an_order_is_the_same_in_every_version():
    """Runs that were stopped go on with another version of the program: these numbers may not change."""
    key = key_of("order", 5, "one", 0)
    assert key == 13835633327176538330
    assert permute(np.arange(12), 12, key).tolist() == [4, 5, 0, 10, 8, 2, 11, 9, 6, 1, 3, 7]
    assert permute(np.array([0, 1, 999_999]), 10**6, 1).tolist() == [726769, 738773, 873612]
    costs = np.array([9, 7, 30, 12, 5, 22, 18, 3, 41, 16, 8, 11, 25, 6, 14, 2, 33, 10, 4, 20])
    made, left = pack(costs, 100, 3, 2)
    assert [some.tolist() for some in made] == [
        [0, 1, 8, 16, 17],
        [2, 12, 5, 19, 7],
        [6, 9, 14, 3, 11, 10, 13, 4, 18, 15],
    ]
    assert not len(left)


# --- mixing -----------------------------------------------------------------------------------------------


def one_by_one(chunks_of, weights, count):
    """The rule, a chunk at a time, with fractions in place of floating point."""
    from fractions import Fraction

    exact = [Fraction(weight) for weight in weights]
    given = [[0, 0] for _ in weights]
    order = []
    for _ in range(count):
        source = min(range(len(weights)), key=lambda s: given[s][1] / exact[s])
        length = int(chunks_of(source, given[source][0], 1)[0])
        order.append((source, given[source][0], length))
        given[source][0] += 1
        given[source][1] += length
    return order


@examples(30)
@given(data=st.data(), weights=st.lists(st.sampled_from([0.125, 0.25, 0.5, 1.0]), min_size=1, max_size=4))
def test_the_source_that_is_furthest_behind_comes_next(data, weights):
    share = np.array(weights)  # of powers of two, so that quotients are exact
    lengths = [np.array(data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=9))) for _ in weights]

    def chunks_of(source, start, count):
        return lengths[source][(start + np.arange(count)) % len(lengths[source])]

    means = [float(some.mean()) for some in lengths]
    state, found = [SourceCursor() for _ in weights], []
    for _ in range(data.draw(st.integers(1, 4))):
        cost = data.draw(st.integers(1, 3000))
        drawn, state = draw(chunks_of, state, share_S=share, mean_S=means, cost=cost, extra=2)
        found += list(
            zip(drawn.sources.tolist(), drawn.positions.tolist(), drawn.lengths.tolist(), strict=True)
        )
        assert drawn.lengths.sum() + 2 * len(drawn.lengths) >= cost
        assert drawn.lengths[:-1].sum() + 2 * len(drawn.lengths[:-1]) < cost
    assert found == one_by_one(chunks_of, weights, len(found))
    tokens = np.array([given.tokens for given in state])
    # No source is further ahead than its own longest chunk.
    assert all(
        given.tokens / weight <= (tokens / share).min() + max(some) / weight
        for given, weight, some in zip(state, weights, lengths, strict=True)
    )


def test_shares():
    assert shares([1, 3]).tolist() == [0.25, 0.75]
    with pytest.raises(InvalidRequest, match="weight -1"):
        shares([1, -1])
    with pytest.raises(InvalidRequest, match="at least one source"):
        shares([])


# --- packing ----------------------------------------------------------------------------------------------


@examples(80)
@given(data=st.data(), capacity=st.integers(1, 300))
def test_packing_uses_each_chunk_once_and_never_too_many(data, capacity):
    largest = data.draw(st.integers(1, capacity))
    costs = np.array(data.draw(st.lists(st.integers(1, largest), min_size=1, max_size=120)))
    bins = data.draw(st.none() | st.integers(1, 9))
    waited = data.draw(st.integers(0, len(costs)))
    made, left = pack(costs, capacity, bins, waited)
    assert sorted([i for some in made for i in some.tolist()] + left.tolist()) == list(range(len(costs)))
    assert all(0 < costs[some].sum() <= capacity for some in made)
    if bins is None:
        assert not len(left)
    else:
        assert len(made) <= bins
        # What is left fits nowhere.
        rooms = [capacity - costs[some].sum() for some in made]
        assert not len(left) or (len(made) == bins and costs[left].min() > max(rooms))
    if bins and costs[:waited].sum() + bins * largest <= bins * capacity:
        assert not (left < waited).any(), "a chunk that has waited waits again"


def test_bins_much_larger_than_chunks_are_nearly_full_and_never_too_full():
    costs = np.random.default_rng(0).integers(1, 40, 400)
    made, left = pack(costs, 512, 8)
    sums = [int(costs[some].sum()) for some in made]
    assert len(sums) == 8
    assert all(500 <= tokens <= 512 for tokens in sums)
    assert len(left) == 400 - sum(map(len, made))


def test_nothing_waits_for_ever():
    """A chunk that fits beside none of the others is found a bin in the second pool at the latest."""
    costs = np.array([300] * 8 + [250])
    _, left = pack(costs, 512, 8)
    assert left.tolist() == [8]
    made, left = pack(np.array([250] + [300] * 8), 512, 8, waited=1)
    assert 0 in made[0]
    assert 0 not in left


# --- the stream -------------------------------------------------------------------------------------------


@cache
def contents(each):
    """How often a set has a chunk."""
    return Counter((int(each.documents[i]), each.ids(i).tobytes()) for i in range(each.count))


@examples(15)
@given(
    seed=st.integers(0, 2**31),
    micro=st.integers(42, 600),
    pool=st.integers(1, 9),
    weights=st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)),
)
def test_every_chunk_once_an_epoch(sets, seed, micro, pool, weights):
    stream = ChunkStream(
        list(zip(sets, weights, strict=True)), seed=seed, micro_tokens=micro, extra_tokens=2, pool_bins=pool
    )
    first = sets[0].document_count
    seen = [Counter(), Counter()]
    for _ in range(3):
        for micro_batch in stream.next(pool * 3):
            assert 0 < sum(len(chunk.ids) + 2 for chunk in micro_batch) <= micro
            for chunk in micro_batch:
                source = int(chunk.document >= first)
                seen[source][chunk.document - source * first, chunk.ids.tobytes()] += 1
        # At the end of a pool what has come is all that was drawn but what is carried.
        state = stream.state()
        waiting = [Counter(), Counter()]
        for source, number in zip(
            stream._pool.carried_after.sources, stream._pool.carried_after.positions, strict=True
        ):
            waiting[source][number] += 1
        assert state["given"] == pool
        for source, (each, after) in enumerate(zip(sets, stream._pool.after, strict=True)):
            whole, rest = divmod(after.chunks, each.count)
            own = contents(each)
            assert sum(seen[source].values()) == after.chunks - sum(waiting[source].values())
            late = sum(waiting[source].values())
            for key, times in own.items():
                assert (whole * times) - late <= seen[source][key] <= (whole + bool(rest)) * times
            assert not set(seen[source]) - set(own)


def test_an_epoch_is_exact(sets):
    """By positions: none comes twice, and none is missing but those that are carried."""
    stream = ChunkStream(
        [(sets[0], 2.0), (sets[1], 1.0)], seed=3, micro_tokens=90, extra_tokens=2, pool_bins=4
    )
    seen = [[], []]
    for _ in range(30):
        pool = stream._pool
        for drawn, _ in pool.bins:
            for source, position in zip(drawn.sources.tolist(), drawn.positions.tolist(), strict=True):
                seen[source].append(position)
        stream.next(len(pool.bins))
        stream.next(1)
        stream.restore({**stream.state(), "given": 0})
    for source, before in enumerate(stream._pool.before):
        carried = stream._pool.carried_before
        waiting = carried.positions[carried.sources == source].tolist()
        assert sorted(seen[source] + waiting) == list(range(before.chunks))
        count = sets[source].count
        one = [stream._orders[source].chunks(np.arange(count * e, count * (e + 1))) for e in range(2)]
        assert all(sorted(some.tolist()) == list(range(count)) for some in one)
        assert one[0].tolist() != one[1].tolist()


def new_stream(sets, weights=(2.0, 1.0), **changes):
    values = {"seed": 5, "micro_tokens": 150, "extra_tokens": 2, "pool_bins": 6} | changes
    return ChunkStream(list(zip(sets, weights, strict=True)), **values)


@examples(12)
@given(before=st.lists(st.integers(0, 9), max_size=5), after=st.integers(1, 25))
def test_a_restored_stream_goes_on_as_if_nothing_had_been(sets, before, after):
    stream = new_stream(sets)
    for count in before:
        stream.next(count)
    state = json.loads(json.dumps(stream.state()))
    wanted = keys(stream.next(after))
    other = new_stream(sets)
    other.next(3)
    other.restore(state)
    assert other.state() == state
    assert keys(other.next(after)) == wanted
    assert other.state() == stream.state()
    assert (other.fill_ratio, other.epochs, other.tokens) == (stream.fill_ratio, stream.epochs, stream.tokens)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_ranks_share_one_order(world, sets):
    alone = new_stream(sets)
    ranks = [new_stream(sets) for _ in range(world)]
    for count in (7, 1, 12, 0):
        wanted = keys(alone.next(count))
        parts = [keys(stream.next(count, rank=rank, world=world)) for rank, stream in enumerate(ranks)]
        assert [parts[number % world][number // world] for number in range(count)] == wanted
        assert all(stream.state() == alone.state() for stream in ranks)


def test_seeds_and_epochs_differ(sets):
    assert keys(new_stream(sets).next(5)) == keys(new_stream(sets).next(5))
    assert keys(new_stream(sets).next(5)) != keys(new_stream(sets, seed=6).next(5))


def test_documents_are_told_apart(sets):
    found = {}
    for micro in new_stream(sets).next(120):
        for chunk in micro:
            found.setdefault(chunk.document, set()).add(chunk.ids.tobytes())
    assert set(found) == set(range(60 + 25))
    for document, some in found.items():
        each, number = (sets[0], document) if document < 60 else (sets[1], document - 60)
        own = {each.ids(int(i)).tobytes() for i in np.flatnonzero(each.documents == number)}
        assert some <= own


def test_tokens_are_mixed_by_weight(sets):
    weights = (0.7, 0.3)
    stream = ChunkStream(list(zip(sets, weights, strict=True)), seed=1, micro_tokens=200, extra_tokens=0)
    tokens = np.zeros(2)
    for micro in stream.next(2000):
        for chunk in micro:
            tokens[int(chunk.document >= 60)] += len(chunk.ids)
    assert tokens[0] / tokens.sum() == pytest.approx(0.7, abs=0.005)
    assert stream.tokens == tokens.sum()
    assert stream.epochs["one"] == pytest.approx(tokens[0] / sets[0].token_count, rel=0.05)


def test_what_a_stream_refuses(sets, tmp_path):
    with pytest.raises(InvalidRequest, match="source one has a chunk of 40 tokens, to which 2"):
        new_stream(sets, micro_tokens=41)
    with pytest.raises(InvalidRequest, match="called one, one; give each its own"):
        ChunkStream([(sets[0], 1.0), (sets[0], 1.0)], seed=0, micro_tokens=99, extra_tokens=2)
    with pytest.raises(InvalidRequest, match="rank is 2 of a world of 2"):
        new_stream(sets).next(1, rank=2, world=2)
    with pytest.raises(InvalidRequest, match="pool_bins is 0"):
        new_stream(sets, pool_bins=0)
    with pytest.raises(InvalidRequest, match="written with seed 5, and now it is 6"):
        new_stream(sets, seed=6).restore(new_stream(sets).state())
    for name, value in (("micro_tokens", 120), ("extra_tokens", 3), ("pool_bins", 3)):
        with pytest.raises(InvalidRequest, match=rf"written with {name} \d+, and now it is {value};"):
            new_stream(sets, **{name: value}).restore(new_stream(sets).state())
    with pytest.raises(InvalidRequest, match=r"written with weights \[0.5, 0.5\]"):
        new_stream(sets, weights=(1.0, 3.0)).restore(new_stream(sets, weights=(1.0, 1.0)).state())
    with pytest.raises(InvalidRequest, match="has version None"):
        new_stream(sets).restore({})
    tokenizer = Tokenizer.from_files({"vocab.txt": "\n".join([*VOCABULARY, "more"]).encode()})
    other = write_shards(["the river"], tokenizer, spec_of("a"), tmp_path / "other")
    with pytest.raises(InvalidRequest, match="one, source were made with different tokenizers"):
        ChunkStream([(sets[0], 1.0), (other, 1.0)], seed=0, micro_tokens=99, extra_tokens=2)


def test_sets_of_equal_sizes_are_told_apart_by_their_contents(tmp_path):
    texts = {"one": "the river was muddy", "two": "the bank was muddy"}
    one, two = (
        write_shards([text], TOKENIZER, spec_of("a"), tmp_path / name) for name, text in texts.items()
    )
    assert one.token_count == two.token_count
    assert one.digest != two.digest
    assert one.digest == ShardSet.open(tmp_path / "one").digest


def test_a_tiny_source_is_repeated_as_often_as_it_takes(tmp_path):
    made = write_shards(["the river", "a bank was muddy"], TOKENIZER, spec_of("a"), tmp_path / "out")
    stream = ChunkStream([(made, 1.0)], seed=0, micro_tokens=2048, extra_tokens=2)
    for micro in stream.next(64):
        assert Counter(len(chunk.ids) for chunk in micro).keys() == {2, 4}
    assert stream.fill_ratio > 0.99


def test_held_out_is_fixed(sets):
    every = held_out(sets[0], micro_tokens=300, extra_tokens=2)
    found = Counter(chunk.ids.tobytes() for micro in every for chunk in micro)
    assert found == Counter(sets[0].ids(i).tobytes() for i in range(sets[0].count))
    some = held_out(sets[0], micro_tokens=300, extra_tokens=2, tokens=500)
    assert keys(some) == keys(held_out(sets[0], micro_tokens=300, extra_tokens=2, tokens=500))
    cost = sum(len(chunk.ids) + 2 for micro in some for chunk in micro)
    assert 500 <= cost < 542
    with pytest.raises(InvalidRequest, match="raise micro_tokens"):
        held_out(sets[0], micro_tokens=20, extra_tokens=2)


def test_real_text_fills_micro_batches(tmp_path):
    path = shared("data/openstax/openstax_ccby.jsonl.xz")
    spec = SourceSpec("openstax", (path.name,), split_by="paragraph", max_tokens=126)
    few = [text for _, text in zip(range(60), documents(spec, path.parent), strict=False)]
    made = write_shards(few, TOKENIZER, spec, tmp_path / "out")
    assert made.token_count > 300_000
    for micro in (4096, 16384):
        stream = ChunkStream([(made, 1.0)], seed=0, micro_tokens=micro, extra_tokens=2)
        lengths = [[len(p.ids) for p in batch] for batch in stream.next(128)]
        assert stream.fill_ratio >= 0.99
        # A micro-batch has chunks of all lengths, not those of one length.
        overall = np.mean([np.mean(some) for some in lengths])
        assert np.std([np.mean(some) for some in lengths]) < 0.15 * overall
