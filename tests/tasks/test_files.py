"""`unmask classify`, `tag` and `answer` on files: formats, and outputs that survive interruption."""

import gzip
import itertools
import json
import lzma
import random
import signal
import time

import pyarrow.parquet
import pytest

import unmask
from tests.support.command import Ran, assert_one_sentence, run_here
from tests.tasks.test_commands import lines
from tests.unit.test_embed_command import PART, journaled_rows, slowly
from unmask.base.resume import ResumableFile
from unmask.tasks.schemes import entities_of
from unmask.text.lines import Stream
from unmask.training.finetune.records import read_labeled
from unmask.training.finetune.settings import DataSettings

TEXTS = ["the river bank", "a text " * 20, "muddy", "another bank was muddy ."] * 5


def write(path, content):
    path.write_bytes({".xz": lzma.compress, ".gz": gzip.compress}.get(path.suffix, bytes)(content.encode()))
    return path


@pytest.fixture
def files(tmp_path):
    """The same texts and pairs in every format."""
    rows = [(text.strip(), f"river {number}") for number, text in enumerate(TEXTS)]
    write(tmp_path / "a.txt", "".join(f"{text}\n" for text, _ in rows))
    write(tmp_path / "pairs.tsv", "".join(f"{pair}\t{text}\n" for text, pair in rows))
    write(tmp_path / "a.tsv", "s\tt\n" + "".join(f"{text}\t{pair}\n" for text, pair in rows))
    write(tmp_path / "a.csv.gz", "s,t\n" + "".join(f'"{text}",{pair}\n' for text, pair in rows))
    write(
        tmp_path / "a.jsonl.xz",
        "".join(json.dumps({"s": text, "t": pair}) + "\n" for text, pair in rows),
    )
    write(tmp_path / "a.txt.xz", "".join(f"{text}\n" for text, _ in rows))
    write_parquet(tmp_path / "a.parquet", [{"s": text, "t": pair} for text, pair in rows])
    return tmp_path


def write_parquet(path, rows):
    """In groups of three rows."""
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=3)
    return path


@pytest.mark.parametrize("name", ["a.txt.xz", "a.tsv", "a.csv.gz", "a.jsonl.xz", "a.parquet"])
def test_a_text_is_classified_alike_in_every_format(models, files, name):
    given = ["classify", "--model", models / "sequence", "--json", "--file"]
    plain = lines(run_here(*given, files / "a.txt"))
    field = () if name == "a.txt.xz" else ("--field", "s")
    found = lines(run_here(*given, files / name, *field))
    for one, other in zip(found, plain, strict=True):
        assert one["source"] == str(files / name)
        assert (one["text"], one["scores"]) == (other["text"], other["scores"])
    unit = "row" if "csv" in name or "parquet" in name else "line"
    assert found[0][unit] == (2 if name in ("a.tsv", "a.csv.gz") else 1)


@pytest.mark.parametrize("name", ["a.tsv", "a.csv.gz", "a.jsonl.xz", "a.parquet"])
def test_pairs_of_a_table(models, files, name):
    given = ["classify", "--model", models / "sequence", "--json", "--file"]
    plain = lines(run_here(*given, files / "pairs.tsv", "--pairs"))
    found = lines(run_here(*given, files / name, "--field", "t", "--pair-field", "s"))
    assert [one["scores"] for one in found] == [one["scores"] for one in plain]
    assert (found[0]["text"], found[0]["pair"]) == ("river 0", "the river bank")


def test_standard_input_in_a_format(models):
    stdin = b"text,n\nthe bank,1\na river,2\n"
    given = ["classify", "--model", models / "sequence", "--json"]
    found = lines(run_here(*given, "--format", "csv", stdin=stdin))
    assert [(one["text"], one["row"], one["source"]) for one in found] == [
        ("the bank", 2, "<stdin>"),
        ("a river", 3, "<stdin>"),
    ]


CONLL = "-DOCSTART- -X- O\n\nThe DT O\nriver NN B-PER\nbank NN I-PER\n\n\nmuddy JJ O\n\x07 SYM O\na DT O\n"


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_conll_gets_a_column(models, tmp_path, separator):
    model = unmask.load(models / "tokens")
    path = write(tmp_path / "a.conll", CONLL.replace(" ", separator))
    ran = run_here("tag", "--model", models / "tokens", "--file", path)
    assert ran.code == 0, ran.err
    words = [["The", "river", "bank"], ["muddy", "\x07", "a"]]
    labels = [found.labels(3) for found in model.tag(words)]
    assert sum(map(len, labels)) == 6
    blocks = [block.splitlines() for block in ran.out.split("\n\n") if block]
    assert blocks[0] == [separator.join(("-DOCSTART-", "-X-", "O", "O"))]
    rows = [[line.split(separator) for line in block] for block in blocks[1:]]
    assert [[row[-1] for row in block] for block in rows] == labels
    assert [[row[0] for row in block] for block in rows] == words
    assert [[row[1] for row in block] for block in rows] == [["DT", "NN", "NN"], ["JJ", "SYM", "DT"]]
    # What is printed can be read again, with the gold labels as the column before the last.
    again = write(tmp_path / "b.conll", ran.out)
    read = list(read_labeled([str(again)], DataSettings(train=["x"]), tmp_path))
    assert [(list(one.text), one.label) for one in read] == list(zip(words, labels, strict=True))


def test_conll_of_texts_and_lists_of_words(models, tmp_path):
    model = unmask.load(models / "tokens")
    stdin = b'{"text": ["the", "bank!"]}\n{"text": "a river, muddy"}\n{"text": ["bank"]}\n'
    ran = run_here("tag", "--model", models / "tokens", "--format", "jsonl", "--conll", stdin=stdin)
    (first, third), second = model.tag([["the", "bank!"], ["bank"]]), model.tag("a river, muddy")
    expected = [
        ["the", "bank!", *first.labels()],
        ["a", "river", ",", "muddy", *second.labels()],
        ["bank", *third.labels()],
    ]
    blocks = [[line.split("\t") for line in block.splitlines()] for block in ran.out.split("\n\n") if block]
    assert [[word for word, _ in block] + [label for _, label in block] for block in blocks] == expected
    json_rows = lines(
        run_here("tag", "--model", models / "tokens", "--format", "jsonl", "--json", stdin=stdin)
    )
    assert [row["text"] for row in json_rows] == ["the bank!", "a river, muddy", "bank"]


CONLLU = (
    "# text = The river's bank\n1\tThe\tthe\tDET\t_\t_\t0\troot\t_\t_\n"
    "2-3\triver's\t_\t_\t_\t_\t_\t_\t_\t_\n2\triver\triver\tNOUN\t_\t_\t0\tdep\t_\t_\n"
    "3\ta\tbe\tPART\t_\t_\t0\tdep\t_\t_\n3.1\tempty\t_\t_\t_\t_\t_\t_\t_\t_\n\n"
    "1\tmuddy\tmud\tADJ\t_\t_\t0\troot\t_\t_\n"
)


def test_words_of_conllu(models, tmp_path):
    path = write(tmp_path / "a.conllu.xz", CONLLU)
    given = ["tag", "--model", models / "tokens", "--file", path]
    words = [["The", "river", "a"], ["muddy"]]
    found = unmask.load(models / "tokens").tag(words)
    labels = [one.labels(len(some)) for one, some in zip(found, words, strict=True)]
    rows = [list(zip(*pair, strict=True)) for pair in zip(words, labels, strict=True)]
    expected = "".join("".join(f"{word}\t{label}\n" for word, label in some) + "\n" for some in rows)
    assert run_here(*given, "--conll").out == expected
    found = lines(run_here(*given, "--json", "--words"))
    assert [(one["line"], one["text"]) for one in found] == [(2, "The river a"), (8, "muddy")]
    assert [[word["label"] for word in one["words"]] for one in found] == labels
    lemmas = lines(run_here(*given, "--json", "--field", "lemma"))
    assert [one["text"] for one in lemmas] == ["the river be", "mud"]


def test_lists_of_words_and_questions_in_parquet(models, tmp_path):
    words = write_parquet(tmp_path / "w.parquet", [{"text": ["the", "bank"]}, {"text": ["muddy"]}])
    found = lines(run_here("tag", "--model", models / "tokens", "--file", words, "--json"))
    assert [(one["row"], one["text"]) for one in found] == [(1, "the bank"), (2, "muddy")]
    rows = [{"question": "the bank?", "context": "A river bank.", "id": f"q{number}"} for number in (1, 2)]
    asked = write_parquet(tmp_path / "q.parquet", rows)
    found = lines(run_here("answer", "--model", models / "span", "--questions", asked, "--json"))
    assert [(one["id"], one["question"]) for one in found] == [("q1", "the bank?"), ("q2", "the bank?")]


class Unseekable(Stream):
    """A pipe."""

    def __init__(self, name, content):
        content.seekable = lambda: False
        super().__init__(name, content)


def test_parquet_without_its_package_and_from_a_pipe(models, files, monkeypatch):
    given = ["classify", "--model", models / "sequence", "--field", "s"]
    whole = run_here(*given, "--file", files / "a.parquet")
    stdin = (files / "a.parquet").read_bytes()
    assert run_here(*given, "--format", "parquet", stdin=stdin).out == whole.out
    with monkeypatch.context() as patch:
        patch.setattr("unmask.text.rows.Stream", Unseekable)
        patch.setattr("unmask.cli.items.Stream", Unseekable)
        ran = run_here(*given, "--format", "parquet", stdin=stdin)
    assert_one_sentence(ran, "cannot read <stdin> as Parquet, which is read from its end; name the file")
    monkeypatch.setattr("unmask.base.optional.find_spec", lambda module: None)
    ran = run_here(*given, "--file", files / "a.parquet")
    assert_one_sentence(
        ran, "pyarrow is needed for reading and writing Parquet files: pip install 'unmask[parquet]'"
    )


@pytest.mark.parametrize("scheme", ["IOB1", "BILOU"])
def test_labels_in_another_scheme(models, scheme):
    text = "the river bank was muddy , another river bank !"
    given = ["tag", "--model", models / "tokens", "--words", text]
    plain = [line.split("\t") for line in run_here(*given).out.splitlines() if line]
    found = [line.split("\t") for line in run_here(*given, "--scheme", scheme).out.splitlines() if line]
    labels, other = [row[2] for row in plain], [row[2] for row in found]
    assert entities_of(labels) == entities_of(other) != []
    assert labels != other
    assert [row[:2] + row[3:] for row in plain] == [row[:2] + row[3:] for row in found]


def squad(count=9):
    asked = [{"id": f"q{number}", "question": f"the bank {number} ?"} for number in range(count)]
    context = "The river bank was muddy. Another text!"
    return json.dumps({"data": [{"paragraphs": [{"context": context, "qas": asked}]}]}), context


def test_questions_of_a_file(models, tmp_path):
    content, context = squad()
    model = unmask.load(models / "span")
    path = write(tmp_path / "a.json.xz", content)
    given = ["answer", "--questions", path, "--model", models / "span", "--top", "3"]
    expected = [model.answer(f"the bank {number} ?", context, top_k=3) for number in range(9)]
    found = lines(run_here(*given, "--json"))
    assert [one["id"] for one in found] == [f"q{number}" for number in range(9)]
    for one, other in zip(found, expected, strict=True):
        assert [row["text"] for row in one["answers"]] == [best.text for best in other.answers]
        for row, best in zip(one["answers"], other.answers, strict=True):
            assert (row["start"], row["end"]) == (best.start, best.end)
            assert row["score"] == pytest.approx(best.score, rel=1e-4)
    rows = [line.split("\t") for line in run_here(*given).out.splitlines()]
    assert [(row[0], row[4]) for row in rows] == [
        (one["id"], row["text"]) for one in found for row in one["answers"]
    ]
    out, nbest = tmp_path / "predictions.json", tmp_path / "nbest.json"
    ran = run_here(*given, "--squad", "-o", out, "--nbest", nbest)
    assert (ran.code, ran.out) == (0, f"9 inputs, in {out}\n")
    assert json.loads(out.read_text()) == {one["id"]: one["answers"][0]["text"] for one in found}
    assert [row["text"] for row in json.loads(nbest.read_text())["q3"]] == [
        row["text"] for row in found[3]["answers"]
    ]


def test_a_table_of_questions(models):
    stdin = b"question\tcontext\nthe bank?\tA river bank.\nmuddy?\ta text\n"
    given = ["answer", "--questions", "-", "--format", "tsv", "--model", models / "span", "--json"]
    found = lines(run_here(*given, stdin=stdin))
    assert [(one["id"], one["question"]) for one in found] == [("2", "the bank?"), ("3", "muddy?")]
    expected = unmask.load(models / "span").answer(["the bank?", "muddy?"], ["A river bank.", "a text"])
    assert [one["answers"][0]["text"] for one in found] == [one.answers[0].text for one in expected]


def test_squad_with_and_without_an_answer(models, tmp_path):
    path = write(tmp_path / "a.json", squad()[0])
    given = [
        "answer",
        "--questions",
        path,
        "--model",
        models / "span",
        "--squad",
        "--no-answer",
        "--top",
        "2",
    ]
    texts = {}
    for threshold in ("0", "1"):
        out, nbest = tmp_path / f"{threshold}.json", tmp_path / f"{threshold}.nbest.json"
        assert run_here(*given, "--null-threshold", threshold, "-o", out, "--nbest", nbest).code == 0
        texts[threshold] = json.loads(out.read_text())
        best = json.loads(nbest.read_text())
    assert set(texts["0"].values()) == {""}
    assert all(texts["1"].values())
    assert all(sum(row["text"] == "" for row in rows) == 1 and len(rows) == 3 for rows in best.values())
    for rows in best.values():
        assert [row["probability"] for row in rows] == sorted(row["probability"] for row in rows)[::-1]


@pytest.fixture
def commands(models, files):
    write(files / "a.conll", "".join(f"{text.strip().replace(' ', ' O' + chr(10))} O\n\n" for text in TEXTS))
    write(files / "a.json", squad(20)[0])
    return {
        "classify": ["classify", "--model", models / "sequence", "--file", files / "a.txt"],
        "tag": ["tag", "--model", models / "tokens", "--file", files / "a.conll"],
        "parquet": ["tag", "--model", models / "tokens", "--file", files / "a.parquet", "--field", "s"],
        "answer": ["answer", "--model", models / "span", "--questions", files / "a.json", "--squad"],
        "rows": ["answer", "--model", models / "span", "--questions", files / "a.json", "--json"],
    }


@pytest.mark.parametrize("name", ["classify", "tag", "parquet", "answer", "rows"])
def test_what_is_written_is_what_is_printed_and_survives_stops(
    name, commands, tmp_path, small_parts, monkeypatch
):
    command, whole, out = commands[name], tmp_path / "whole", tmp_path / "out"
    assert run_here(*command, "-o", whole).code == 0
    if name != "answer":
        assert run_here(*command).out == whole.read_text()
    append = ResumableFile.append

    def stop_after_one(self, content, rows):
        append(self, content, rows)
        raise KeyboardInterrupt

    stops = 0
    with monkeypatch.context() as patch:
        patch.setattr(ResumableFile, "append", stop_after_one)
        while (ran := run_here(*command, "-o", out)).code == 130 and not out.exists():
            stops += 1
            assert journaled_rows(out) == min(20, PART * stops)
            if journaled_rows(out) == 20:
                break
    assert stops > 2
    ran = run_here(*command, "-o", out)
    assert (ran.code, ran.out) == (0, f"20 inputs, 20 of them by an earlier run, in {out}\n")
    assert out.read_bytes() == whole.read_bytes()
    refused = run_here(*command, "-o", out)
    assert (refused.code, refused.out) == (1, "")
    assert "exists already" in refused.err
    assert run_here(*command, "-o", out, "--overwrite").code == 0


def test_a_kill_loses_nothing(apart, commands, tmp_path, small_parts):
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    command = commands["tag"]
    assert run_here(*command, "-o", whole).code == 0
    assert json.loads(whole.read_text().splitlines()[0])["text"] == "the river bank"
    moments = random.Random(3)
    for least in (1, PART + 1):
        process = apart.start(*command, "-o", out, before=slowly(0.04, held_from=least + PART))
        process.until(lambda least=least: journaled_rows(out) >= least)
        time.sleep(moments.uniform(0, 0.04))
        process.send(signal.SIGKILL)
        assert process.wait() == Ran(-signal.SIGKILL, "", "")
        assert not out.exists()
    assert run_here(*command, "-o", out).code == 0
    assert out.read_bytes() == whole.read_bytes()


def changed_input(files, command):
    path = files / "a.txt"
    path.write_text(path.read_text().replace("river", "bank", 1))
    return command


@pytest.mark.parametrize(
    "change",
    [
        changed_input,
        lambda _, command: [*command, "--threshold", "0.4"],
        lambda _, command: [*command, "--json"],
        lambda _, command: [*command, "--overlap-tokens", "3"],
        lambda _, command: [*command, "--dtype", "float64"],
        lambda _, command: [*command, "--truncation", "end"],
    ],
    ids=["input", "threshold", "json", "overlap", "dtype", "truncation"],
)
def test_another_input_or_other_options_are_refused(change, commands, files, small_parts, monkeypatch):
    out = files / "out"
    append = ResumableFile.append

    def stop(self, content, rows):
        append(self, content, rows)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ResumableFile, "append", stop)
        assert run_here(*commands["classify"], "-o", out).code == 130
    command = change(files, commands["classify"])
    ran = run_here(*command, "-o", out)
    assert (ran.code, ran.out) == (1, "")
    assert "was started with other texts or settings" in ran.err
    assert len(ran.err.splitlines()) == 1
    assert run_here(*command, "-o", out, "--restart").code == 0


def test_an_input_that_changes_while_it_is_read_is_refused(models, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("the river\n")
    numbers = itertools.count()
    monkeypatch.setattr("unmask.cli.tasks.predict.LineReader.digest", lambda self: str(next(numbers)))
    command = ("classify", "--file", tmp_path / "a.txt", "-m", models / "sequence", "-o", tmp_path / "out")
    assert_one_sentence(run_here(*command), "the input changed while it was read; run the command again")


def test_no_more_than_a_part_is_held(models, monkeypatch, small_parts):
    """Results of a part are printed before the next part is read."""
    from unmask.cli import items

    printed = []
    read_lines = items.read_lines

    def watched(*given, **options):
        import sys

        for number, line in enumerate(read_lines(*given, **options)):
            printed.append((number, sys.stdout.written.count("\n")))
            yield line

    monkeypatch.setattr(items, "read_lines", watched)
    monkeypatch.setattr("unmask.cli.inputs._is_regular", lambda stream: False)
    stdin = "".join(f"{text}\n" for text in TEXTS).encode()
    assert run_here("classify", "--model", models / "sequence", stdin=stdin).code == 0
    assert printed == [(number, number // PART * PART) for number in range(20)]


@pytest.mark.parametrize(
    ("arguments", "content", "sentence"),
    [
        (["classify", "--file", "a.csv"], "s\nx\n", "row 2 of a.csv has no 'text'; set --field to one of: s"),
        (["classify", "--file", "a.csv"], 'text\n"x\n', "cannot read a.csv after row"),
        (["classify", "--file", "a.csv"], "text\n \n", "row 2 of a.csv holds no text"),
        (["classify", "--file", "a.jsonl"], '{"text": ["x"]}\n', "line 1 of a.jsonl has a list of words"),
        (["classify", "--file", "a.jsonl"], '{"text": 3}\n', "line 1 of a.jsonl has no text under 'text'"),
        (["classify", "--file", "a.conll"], "x O\n", "format conll, and this command reads lines, jsonl"),
        (["classify", "--file", "a.txt", "--pair-field", "x"], "x\n", "--pair-field is for columns"),
        (["classify", "--file", "a.txt", "--pairs", "--format", "csv"], "x\n", "--pairs is for lines"),
        (["classify", "--file", "a.parquet"], "x\n", "cannot read a.parquet after row 0"),
        (["tag", "--file", "a.conllu"], "1\tx\n", "line 1 of a.conllu has 2 columns separated by tabs"),
        (["tag", "--file", "a.conllu", "--field", "0"], "", "--field is '0'; in a CoNLL-U file it can be id"),
        (["classify", "--file", "a.conllu"], "", "format conllu, and this command reads lines, jsonl"),
        (["classify", "--file", "a.txt.xz"], "x\n", "cannot read a.txt.xz: Input format not supported"),
        (["classify", "--file", "a.txt.gz"], "x\n", "cannot read a.txt.gz: Not a gzipped file"),
        (["classify", "x", "--format", "csv"], "", "are for lines; leave them out"),
        (["tag", "--file", "a.conll"], "x O\ny\n", "line 2 of a.conll has 1 columns and"),
        (["tag", "--file", "a.conll", "--field", "2"], "x O\n", "--field is 2 and line 1 of a.conll has 2"),
        (["tag", "--file", "a.conll", "--field", "x"], "x O\n", "--field is 'x'; in a CoNLL file"),
        (["tag", "--file", "a.conll", "--truncation", "end"], "x O\n", "--truncation end would leave words"),
        (["answer", "--questions", "a.json"], "[", "a.json is not JSON"),
        (["answer", "--questions", "a.json"], "{}", "a.json is not laid out as SQuAD"),
        (["answer", "--questions", "a.csv"], "question,id\nx,1\n", "has no 'context'"),
        (["answer", "--questions", "a.csv"], "id,question,context\n1,x,y\n1,x,y\n", "id '1' of an earlier"),
        (["answer", "--questions", "a.json", "--squad"], "{}", "--squad writes a file; name"),
        (["answer", "--questions", "a.json", "--nbest", "b"], "{}", "--nbest is a second file"),
        (["answer", "--questions", "a.json", "--question", "b"], "{}", "--questions names a file"),
        (["answer", "x"], "", "there is no question; give --question TEXT"),
        (["answer", "x", "--question", "y", "-o", "z"], "", "are for --questions FILE"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_sentence(models, tmp_path, monkeypatch, arguments, content, sentence):
    monkeypatch.chdir(tmp_path)
    for argument in arguments:
        if argument.startswith("a."):
            (tmp_path / argument).write_text(content)
    model = {"classify": "sequence", "tag": "tokens", "answer": "span"}[arguments[0]]
    ran = run_here(*arguments, "--model", models / model)
    assert (ran.code, ran.out) == (1, "")
    assert sentence in ran.err
    assert len(ran.err.splitlines()) == 1
