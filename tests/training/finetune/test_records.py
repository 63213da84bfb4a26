"""Labeled files of every format, and lines that are wrong."""

import json

import pytest

from unmask.errors import InvalidRequest, InvalidText
from unmask.training.finetune.records import Gold, ReadingNotes, labeled_files, read_labeled
from unmask.training.finetune.settings import DataSettings, settings_of_table

CONLLU = (
    "# text = a b\n1\ta\t_\tDET\tD\t_\t2\tdet\t_\t_\n2-3\tbc\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "2\tb\t_\tNOUN\tN\t_\t0\troot\t_\t_\n2.1\tx\t_\t_\t_\t_\t_\t_\t_\t_\n\n"
)


def read(tmp_path, name, content, **settings):
    path = tmp_path / name
    path.write_text(content)
    return [
        (one.text, one.pair, one.label)
        for one in read_labeled([name], DataSettings(train=[name], **settings), tmp_path)
    ]


@pytest.mark.parametrize(
    ("name", "content", "settings", "expected"),
    [
        ("a.tsv", 'text\tlabel\nhe said "x\t1\n', {}, [('he said "x', None, "1")]),
        ("a.tsv", "c\t0\t*\tx y\n", {"columns": ["a", "label", "b", "text"]}, [("x y", None, "0")]),
        ("a.csv", 'text,label\n"x, y",no\n', {}, [("x, y", None, "no")]),
        ("a.jsonl", '{"p": "x", "h": "y", "label": 2}\n', {"text": "p", "pair": "h"}, [("x", "y", 2)]),
        ("a.jsonl", '{"text": ["x", "y"], "label": ["O", "B-A"]}\n', {}, [(("x", "y"), None, ["O", "B-A"])]),
        ("a.conll", "x\tO\ny\tB\n\n\nz\tO\n", {}, [(("x", "y"), None, ["O", "B"]), (("z",), None, ["O"])]),
        ("a.conll", "-DOCSTART- X O\n\nx N O\ny V B-A\n", {}, [(("x", "y"), None, ["O", "B-A"])]),
        ("a.conll", "x N O\n", {"label": "1"}, [(("x",), None, ["N"])]),
        ("a.conll", "en:x O\nen:y B-A\n", {"strip_prefix": "en:"}, [(("x", "y"), None, ["O", "B-A"])]),
        ("a.conll", "x I-A\ny B-A\nz I-A\n", {"scheme": "BILOU"}, [
            (("x", "y", "z"), None, ["U-A", "B-A", "L-A"])
        ]),
        ("a.jsonl", '{"text": ["x", "y"], "label": [1, 2]}\n', {
            "scheme": "IOB2", "rename_labels": {"1": "I-A", "2": "O"},
        }, [(("x", "y"), None, ["B-A", "O"])]),
        ("a.conllu", CONLLU, {}, [(("a", "b"), None, ["DET", "NOUN"])]),
        ("a.conllu", CONLLU, {"label": "xpos"}, [(("a", "b"), None, ["D", "N"])]),
    ],
)  # fmt: skip
def test_every_format(tmp_path, name, content, settings, expected):
    assert read(tmp_path, name, content, **settings) == expected


def squad(answer_start, text="bank", **more):
    asked = {
        "id": "q",
        "question": "where",
        "answers": [{"text": text, "answer_start": answer_start}],
        **more,
    }
    return json.dumps({"data": [{"paragraphs": [{"context": "the bank", "qas": [asked]}]}]})


def test_squad(tmp_path):
    assert read(tmp_path, "a.json", squad(4)) == [("where", "the bank", Gold("q", (("bank", 4),)))]
    (one,) = read(tmp_path, "a.json", squad(4, is_impossible=True))
    assert one[2].answers == ()


TWO_BANKS = "a bank and  the bank"


def of_two_banks(*answers):
    asked = [
        {"id": f"q{number}", "question": "where", "answers": [{"text": text, "answer_start": start}]}
        for number, (text, start) in enumerate(answers)
    ]
    return json.dumps({"data": [{"paragraphs": [{"context": TWO_BANKS, "qas": asked}]}]})


@pytest.mark.parametrize(
    ("text", "start", "moved"),
    [
        ("bank", 2, ("bank", 2)),
        ("bank", 8, ("bank", 2)),
        ("bank", 10, ("bank", 16)),
        (" bank", 2, (" bank", 1)),
        ("bank ", 99, ("bank ", 2)),
        (" the", 12, (" the", 11)),
        ("  bank", 17, ("bank", 16)),
        ("bank", -1, ("bank", 2)),
    ],
)
def test_an_answer_away_from_its_offset_is_its_nearest_occurrence(tmp_path, text, start, moved):
    content = of_two_banks((text, start))
    ((_, _, gold),) = read(tmp_path, "a.json", content, answer_offsets="nearest")
    assert gold.answers == (moved,)
    assert TWO_BANKS[moved[1] :].startswith(moved[0])


def test_moved_answers_are_counted_and_named(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(of_two_banks(("bank", 2), ("bank", 3), ("the", 0)))
    notes = ReadingNotes()
    data = DataSettings((str(path),), answer_offsets="nearest")
    assert len(list(read_labeled([str(path)], data, tmp_path, notes))) == 3
    (said,) = notes.sentences()
    assert said.startswith(
        "a.json: 2 answers are not at answer_start, so the nearest occurrence is taken, first"
    )
    assert "question q1 of" in said
    with pytest.raises(InvalidText, match=r"2 of 3 questions of .* the first question q1 of"):
        list(read_labeled([str(path)], DataSettings((str(path),)), tmp_path))
    assert [one.label.answers for one in read_labeled([str(path)], data, tmp_path, offsets=False)] == [
        (("bank", 2),), (("bank", 3),), (("the", 0),),
    ]  # fmt: skip


def test_an_answer_that_its_context_lacks_is_refused(tmp_path):
    with pytest.raises(
        InvalidText, match=r"question q0 of .* has the answer 'rivers', which its context does"
    ):
        read(tmp_path, "a.json", of_two_banks(("rivers", 0)), answer_offsets="nearest")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.tsv", "text\tlabel\nx\n", r"line 2 of .*a.tsv has 1 values separated by tabs.*2 columns"),
        (
            "a.tsv",
            "text,label\nx,1\n",
            r"line 1 of .* has the single column .* separated by ','",
        ),
        (
            "a.tsv",
            "text;label\nx;1\n",
            r"separated by ';'.* a .tsv file needs tabs",
        ),
        ("a.csv", "text\tlabel\nx\t1\n", r"separated by '\\t'; a .csv file needs commas"),
        ("a.tsv", "text\ttext\nx\t1\n", r"line 1 of .* names two columns 'text'"),
        ("a.conll", "x O\ny\n", r"line 2 of .* has 1 columns and the lines before it 2"),
        ("a.conll", "x\n", r"line 1 of .* has 1 columns and a word and a label are needed"),
        ("a.conllu", "1\tx\n", r"line 1 of .* has 2 columns.*CoNLL-U has 10"),
        ("a.conllu", CONLLU.replace("2\t", "3\t"), r"is word '3' where word 2 should be"),
        (
            "a.json",
            squad(3),
            r"1 of 1 question of .*a.json has an answer that is not at its answer_start, the first question "
            r"q of .*a.json: 'bank' at 3; mend them, or set data.answer_offsets = \"nearest\"",
        ),
        ("a.json", squad("4"), "is not laid out as SQuAD"),
        ("a.json", '{"data": [{}]}', "is not laid out as SQuAD"),
        ("a.json", "[", "is not JSON"),
        ("a.jsonl", '{"text": 1, "label": 2}\n', "has no text under 'text'"),
    ],
)
def test_a_broken_line_is_named(tmp_path, name, content, sentence):
    with pytest.raises(InvalidText, match=sentence):
        read(tmp_path, name, content)


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("a.txt", {}, "ends in none of .tsv"),
        ("a.conll", {"label": "kind"}, "it must be a column number"),
        ("a.conll", {"label": "--1"}, "it must be a column number"),
        ("a.conll", {"label": "5"}, r"line 1 of .* has 2 columns, and data.label is column 5; columns are"),
        ("a.conll", {"label": "-3"}, "has 2 columns, and data.label is column -3"),
        ("a.conll", {"text": "2"}, "has 2 columns, and data.text is column 2"),
        ("a.conllu", {"label": "pos"}, "it can be id, form"),
    ],
)
def test_settings_that_do_not_fit(tmp_path, name, settings, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        read(tmp_path, name, "x O\n", **settings)


@pytest.mark.parametrize(
    ("content", "settings", "sentence"),
    [
        (
            "en:x O\nde:y O\n",
            {"strip_prefix": "en:"},
            r"line 1 of .* has the word 'de:y', which is not 'en:'",
        ),
        ("en: O\n", {"strip_prefix": "en:"}, "has the word 'en:', which is not 'en:' followed by a word"),
        ("x NOUN\n", {"scheme": "IOB2"}, "has the label 'NOUN', which is of no tagging scheme"),
    ],
)
def test_words_and_labels_that_do_not_fit_the_settings(tmp_path, content, settings, sentence):
    with pytest.raises(InvalidText, match=sentence):
        read(tmp_path, "a.conll", content, **settings)


def test_a_scheme_is_for_tagging():
    table = {"name": "x", "task": "regression", "model": {"start_from": "x"}, "data": {"train": ["x"]}}
    table["data"]["scheme"] = "IOB2"
    with pytest.raises(InvalidRequest, match=r"data.scheme is for tagging and the task is regression"):
        settings_of_table(table)


def test_questions_without_answers_cannot_be_trained_on(tmp_path):
    content = squad(4).replace('"answers"', '"other"')
    with pytest.raises(InvalidText, match=r"question q of .* has no answers, which are needed here"):
        read(tmp_path, "a.json", content)


def test_a_file_that_is_named_twice_is_read_once(tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("text,label\na,b\n")
    names = ("b.csv", "*.csv", "a.csv")
    assert labeled_files(names, tmp_path) == [tmp_path / "b.csv", tmp_path / "a.csv"]
