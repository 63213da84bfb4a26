"""`unmask classify`, `tag`, `answer` and `finetune` on the command line."""

import io
import json
import re
from contextlib import nullcontext

import pytest

import unmask
from tests.support.command import run_here
from tests.support.tiny import tiny_bert, write_tokenizer
from unmask.cli.output import LONGEST_HEADING, beside, marked, printable, progress
from unmask.cli.tasks.predict import _within


def lines(ran):
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def test_classify(models):
    model = str(models / "sequence")
    texts = ["the river bank", "a text " * 20]
    expected = unmask.load(model).classify(texts)
    stdin = ("\n".join(texts) + "\n").encode()
    found = lines(run_here("classify", "--model", model, "--json", stdin=stdin))
    for one, other, text in zip(found, expected, texts, strict=True):
        assert (one["label"], one["scores"], one["text"]) == (other.label, other.scores, text)
        assert (one["tokens_read"], one["windows"]) == (other.tokens_read, other.windows)
    assert [one["line"] for one in found] == [1, 2]
    assert found[1]["windows"] > 1
    plain = run_here("classify", "--model", model, texts[0])
    assert plain.out == f"{expected[0].label}\t{expected[0].score:.4f}\n"


@pytest.mark.parametrize(
    ("options", "threshold", "pattern"),
    [
        ({"num_labels": 1, "problem_type": "regression"}, "0.5", r"-?\d+\.\d{4}\n"),
        ({"problem_type": "multi_label_classification"}, "0", r"LABEL_0, LABEL_1\t0\.\d{4}\n"),
        ({"problem_type": "multi_label_classification"}, "1", r"none\t0\.\d{4}\n"),
    ],
)
def test_classify_numbers_and_several_labels(tmp_path, options, threshold, pattern):
    write_tokenizer(tmp_path / "model")
    tiny_bert("BertForSequenceClassification", **options).save_pretrained(tmp_path / "model")
    ran = run_here("classify", "--model", tmp_path / "model", "--threshold", threshold, "the bank")
    assert re.fullmatch(pattern, ran.out), ran


def test_classify_pairs(models):
    model = str(models / "sequence")
    (one,) = lines(run_here("classify", "--model", model, "--pairs", "--json", stdin=b"the bank\ta river\n"))
    assert one["scores"] == unmask.load(model).classify("the bank", "a river").scores
    ran = run_here("classify", "--model", model, "--pairs", stdin=b"the bank\n")
    assert (ran.code, ran.out) == (1, "")
    assert "line 1 of <stdin> has 0 tabs; write two texts with one tab" in ran.err


def test_a_long_text_says_how_many_windows_it_has(models, monkeypatch, tmp_path):
    """And its progress is counted in windows."""
    monkeypatch.setattr("unmask.cli.tasks.predict.MANY_WINDOWS", 3)
    told = []
    for module in ("predict", "answer"):
        reports = nullcontext(lambda done, of: told.append((done, of)))
        monkeypatch.setattr(f"unmask.cli.tasks.{module}.progress", lambda *_, reports=reports: reports)
    text = "the river bank " * 200
    note = r"note: {} is read in (\d+) windows; --truncation end reads its beginning alone\n"
    sequence, span = models / "sequence", models / "span"
    for command, name in (
        (("classify", "--model", sequence, text), "the text"),
        (("answer", "--model", span, "--question", "the bank", text), "the text"),
    ):
        ran = run_here(*command)
        windows = int(re.search(note.format(name), ran.err)[1])
        assert told[-1] == (windows, windows)
        assert ran.err.count("note:") == 1
    (tmp_path / "one.txt").write_text(f"{text}\n")
    ran = run_here("classify", "--model", sequence, "--file", tmp_path / "one.txt")
    assert re.search(note.format("line 1 of .*one.txt"), ran.err)
    short = run_here("classify", "--model", sequence, "the river bank")
    assert (short.code, "note" in short.err) == (0, False)


def test_tag(models):
    model, text = str(models / "tokens"), "the river, the bank"
    (one,) = lines(run_here("tag", "--model", model, "--json", "--words", text))
    expected = unmask.load(model).tag(text)
    assert [word["label"] for word in one["words"]] == [word.label for word in expected.words]
    assert [entity["text"] for entity in one["entities"]] == [entity.text for entity in expected.entities]
    assert set(one) >= {"entities", "tokens_read", "windows", "text", "model"}
    assert all(set(entity) == {"label", "start", "end", "text", "score"} for entity in one["entities"])
    plain = run_here("tag", "--model", model, "--words", text)
    rows = [line.split("\t") for line in plain.out.splitlines() if line]
    assert [text[int(row[0]) : int(row[1])] for row in rows] == [row[4] for row in rows]
    assert len(rows) == 5


def test_a_terminal_shows_columns_below_the_text(models, monkeypatch):
    """People get the text and aligned columns; JSON and CoNLL stay what they are for programs."""
    model, text = str(models / "tokens"), "the river, the bank"
    tag = ["tag", "--model", model, "--words", text]
    cells = [line.split("\t") for line in run_here(*tag).out.splitlines() if line]
    asked = {options: run_here(*tag[:3], *options, text).out for options in (("--json",), ("--conll",))}
    monkeypatch.setattr("unmask.cli.tasks.predict.on_terminal", lambda: True)
    heading, *rows = run_here(*tag).out.splitlines()
    assert heading == text
    assert [row.split() for row in rows] == cells
    assert len({row.rindex(line[-1]) for row, line in zip(rows, cells, strict=True)}) == 1, (
        "a column is aligned"
    )
    for options, out in asked.items():
        assert run_here(*tag[:3], *options, text).out == out
    heading, *_ = run_here(*tag[:3], "the \x1b[31mriver [bold] bank").out.splitlines()
    assert heading == r"the \u001b[31mriver [bold] bank", "a text cannot control the terminal"


def test_windows_of_a_part_are_progress_of_all_inputs():
    reported = []
    within = _within(lambda *at: reported.append(at), 10, 4, 20)
    for done in (0, 4, 8):
        within(done, 8)
    assert reported == [(10, 20), (12, 20), (14, 20)]


def test_only_a_heading_that_is_cut_ends_in_dots():
    whole = "a" * LONGEST_HEADING
    assert marked(whole).plain == whole
    assert marked(whole + "b").plain == whole + "…"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_what_is_printed_beside_a_bar_of_progress_stays_where_it_belongs(monkeypatch):
    """A bar on a terminal does not take the results that go to a file."""
    out, err = io.StringIO(), Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    with progress("reading", 3) as report:
        report(1, 3)
        with beside(report):
            print("a result")
        report(3, 3)
    assert out.getvalue() == "a result\n"
    assert "reading" in err.getvalue()
    assert "a result" not in err.getvalue()


def people(monkeypatch, *arguments):
    """The lines that a command shows on a terminal."""
    with monkeypatch.context() as patch:
        for module in ("output", "tasks.predict", "tasks.answer", "tasks.embed"):
            patch.setattr(f"unmask.cli.{module}.on_terminal", lambda: True)
        ran = run_here(*arguments)
    assert ran.code == 0, ran.err
    assert "\x1b" not in ran.out, "a text cannot control the terminal"
    return ran.out.splitlines()


HOSTILE = "the \x1b[31mriver [bold]\tbank"
CLEAN = r"the \u001b[31mriver [bold] bank"


def test_people_see_the_question_and_what_stands_around_an_answer(models, monkeypatch):
    given = ("answer", HOSTILE, "--question", HOSTILE, "-m", models / "span")
    score, context, start, end, text = run_here(*given).out.removesuffix("\n").split("\t")
    assert (context, text) == ("0", printable(HOSTILE[int(start) : int(end)]))
    heading, row = people(monkeypatch, *given)
    assert heading == CLEAN
    cells = [text, f"{start} to {end}", CLEAN]
    assert [cell in row for cell in cells] == [True] * 3
    assert row.strip().startswith(score)


def test_people_see_both_texts_beside_their_similarity(models, monkeypatch):
    given = ("similarity", HOSTILE, "bank", "-m", models / "tokens", "--pooling", "mean")
    (line,) = people(monkeypatch, *given)
    assert line == f"{float(run_here(*given).out):7.4f}  {CLEAN}  |  bank"


def test_people_see_a_summary_of_each_vector(models, monkeypatch, tmp_path):
    (tmp_path / "a.txt").write_text(f"bank\n{HOSTILE}\n")
    given = ("embed", tmp_path / "a.txt", "-m", models / "sequence", "--pooling", "mean")
    shown = people(monkeypatch, *given)
    for line, text, row in zip(shown, ("bank", CLEAN), lines(run_here(*given)), strict=True):
        assert line.startswith("30 numbers, norm ")
        assert " ".join(f"{number:.3f}" for number in row["embedding"][:3]) in line
        assert line.rstrip().endswith(text)


def test_answer(models, tmp_path):
    model, context = str(models / "span"), "The river bank was muddy."
    (tmp_path / "other.txt").write_text("a text\nanother text")
    given = ["--question", "the bank?", "--model", model, "--json", "--top", "3"]
    (one,) = lines(run_here("answer", context, *given, "--file", str(tmp_path / "other.txt")))
    texts = [context, "a text\nanother text"]
    assert 1 <= len(one["answers"]) <= 3
    for answer in one["answers"]:
        assert set(answer) == {"text", "start", "end", "score", "context"}
        assert texts[answer["context"]][answer["start"] : answer["end"]] == answer["text"]
    assert one["null_score"] is None
    (same,) = lines(run_here("answer", *given, stdin=context.encode()))
    assert {answer["context"] for answer in same["answers"]} == {0}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["classify", "x", "--model", "span"], "cannot classify texts, because its checkpoint"),
        (["tag", "x", "--model", "sequence"], "cannot label words, because its checkpoint has"),
        (["answer", "x", "--question", "y", "--model", "tokens"], "cannot answer questions"),
        (["answer", "x", "--question", " ", "--model", "span"], "has no words"),
        (["classify", "x", "--model", "sequence", "--threshold", "2"], "threshold is 2.0; it must be a"),
        (["tag", "x", "--model", "tokens", "--overlap-tokens", "-1"], "overlap_tokens is -1"),
        (["classify", "the " * 40, "--model", "sequence", "--overlap-tokens", "21"], "lower overlap_tokens"),
        (["finetune", "no.toml"], "cannot read no.toml: No such file"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(models, monkeypatch, arguments, sentence):
    monkeypatch.chdir(models)
    ran = run_here(*arguments)
    assert (ran.code, ran.out) == (1, "")
    assert sentence in ran.err
    assert len(ran.err.splitlines()) == 1


def test_finetune(models, tmp_path):
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "the bank\tdry\na river\twet\n" * 4)
    (tmp_path / "run.toml").write_text(
        f'name = "a"\ntask = "classification"\nepochs = 1\nbatch_size = 4\n'
        f'model.start_from = "{models / "sequence"}"\ndata.train = ["train.tsv"]\ndata.dev = ["train.tsv"]\n'
    )
    (one,) = lines(run_here("finetune", str(tmp_path / "run.toml"), "--json"))
    assert one["steps"] == 2
    assert 0 <= one["dev"]["dev/accuracy"] <= 1
    assert unmask.load(one["folder"]).classify("a river").label in ("dry", "wet")
