"""Labels as people have them: missing, numbers, differing in white space, prefixes without a type."""

import json
import math

import pytest

from unmask.errors import InvalidRequest, InvalidText
from unmask.tasks.schemes import Scheme, entities_of
from unmask.training.finetune.examples import check_kinds, labels_of
from unmask.training.finetune.records import Labeled, read_labeled
from unmask.training.finetune.settings import settings_of_table

BASE = {"name": "a", "out": "out", "model": {"start_from": "default"}, "optimizer": {"learning_rate": 1e-3}}


def settings(task="classification", **data):
    return settings_of_table({**BASE, "task": task, "data": {"train": ["a.jsonl"], **data}})


def labels(values, task="classification", **data):
    records = [Labeled(f"row {row}", "text", None, value) for row, value in enumerate(values, 1)]
    check_kinds(records, task)
    return labels_of(records, settings(task, **data))


@pytest.mark.parametrize("empty", ["", "  ", math.nan], ids=["empty", "blank", "NaN"])
def test_an_empty_label_is_refused_with_its_row(empty):
    with pytest.raises(InvalidText, match=r"row 2 has an empty label; give it one, or leave the row out"):
        labels(["good", empty, "bad"])


@pytest.mark.parametrize("empty", ["", None, math.nan])
@pytest.mark.parametrize("task", ["multi_label", "tagging"])
def test_an_empty_label_within_a_list_is_refused(task, empty):
    with pytest.raises(InvalidText, match=r"row 1 has an empty label"):
        labels([["a", empty], ["b"]], task)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_every_format_names_the_row_of_an_empty_label(tmp_path, suffix):
    rows = [("fine", "good"), ("missing", ""), ("bad", "bad")]
    if suffix == "jsonl":
        text = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
    else:
        comma = "," if suffix == "csv" else "\t"
        text = "\n".join(comma.join(row) for row in [("text", "label"), *rows]) + "\n"
    path = tmp_path / f"rows.{suffix}"
    path.write_text(text)
    records = list(read_labeled([str(path)], settings(label="label", text="text").data, tmp_path))
    with pytest.raises(InvalidText, match=rf"{'line' if suffix == 'jsonl' else 'row|line'}.* empty label"):
        check_kinds(records, "classification")


@pytest.mark.parametrize("kind", [int, str, float])
def test_whole_numbers_are_in_their_order(kind):
    assert labels([kind(number) for number in (*range(11, -1, -1), 3)]) == tuple(map(str, range(12)))
    assert labels([-1, 1, 0]) == ("-1", "0", "1")
    assert labels([2, "10", "x"]) == ("10", "2", "x")


def test_numbers_of_a_column_with_gaps_are_whole():
    assert labels([0.0, 10.0, 2.0, 0.5]) == ("0", "0.5", "10", "2")
    assert labels([0.0, 10.0, 2.0]) == ("0", "2", "10")


def test_labels_that_differ_in_white_space_are_refused():
    with pytest.raises(InvalidRequest, match=r"the labels 'a' and 'a ' differ in white space alone"):
        labels(["a", "b", "a "])
    assert labels(["a", "b", "a "], rename_labels={"a ": "a"}) == ("a", "b")


def test_prefixes_without_a_type_are_entities():
    assert Scheme(("O", "B", "I")).has_entities
    assert entities_of(["B", "I", "O", "B", "B"]) == [
        ("entity", 0, 2), ("entity", 3, 4), ("entity", 4, 5),
    ]  # fmt: skip
    assert not Scheme(("B", "E")).has_entities  # names of classes
    assert not Scheme(("O", "B", "N")).has_entities
    assert entities_of(["B-PER", "I-PER", "O"]) == [("PER", 0, 2)]
