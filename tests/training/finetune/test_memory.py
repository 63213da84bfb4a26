"""Fine-tuning on rows in memory is the run on the same rows in a file, whatever holds them."""

import json
from pathlib import Path

import pandas
import polars
import pyarrow
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value

import unmask
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.errors import InvalidRequest, InvalidText
from unmask.text.memory import Rows, tables_in_memory
from unmask.training.finetune.records import read_labeled
from unmask.training.finetune.settings import settings_of_table

ROWS = [
    {"text": "the river bank was muddy", "label": "bad"},
    {"text": "the bank was open", "label": "good"},
    {"text": "a river", "label": "good"},
    {"text": "a muddy river", "label": "bad"},
]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}
NAMES = ("bad", "good")
NUMBERED = {**COLUMNS, "label": [NAMES.index(label) for label in COLUMNS["label"]]}
FEATURES = Features({"text": Value("string"), "label": ClassLabel(names=list(NAMES))})
KINDS = {
    "list": lambda: ROWS,
    "tuple": lambda: tuple(ROWS),
    "generator": lambda: (dict(row) for row in ROWS),
    "columns": lambda: COLUMNS,
    "pandas": lambda: pandas.DataFrame(COLUMNS),
    "polars": lambda: polars.DataFrame(COLUMNS),
    "pyarrow": lambda: pyarrow.table(COLUMNS),
    "dataset": lambda: Dataset.from_dict(COLUMNS),
    "dataset with classes": lambda: Dataset.from_dict(NUMBERED, features=FEATURES),
    "two tables": lambda: [ROWS[:1], pandas.DataFrame(ROWS[1:])],
}


def settings_with(train, **more):
    table = {"name": "m", "task": "classification", "model": {"start_from": "m"}, "data": {"train": train}}
    return settings_of_table(table | more)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_same_rows(kind, tmp_path):
    settings = settings_with(KINDS[kind]())
    records = list(read_labeled(settings.data.train, settings.data, tmp_path))
    assert [(record.text, record.label) for record in records] == [tuple(row.values()) for row in ROWS]
    assert records[0].where == "row 1 of data.train"


def test_a_run_on_rows_in_memory_is_the_run_on_a_file(tmp_path):
    write_checkpoint(tmp_path / "tiny", tiny_bert(), sentence=False)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    table = {
        "name": "run", "task": "classification", "model": {"start_from": "tiny"},
        "epochs": 1, "batch_size": 2, "device": "cpu",
    }  # fmt: skip
    weights = {}
    for name, data in {
        "file": {"train": ["rows.jsonl"], "dev": ["rows.jsonl"]},
        "memory": {"train": pandas.DataFrame(COLUMNS), "dev": (dict(row) for row in ROWS)},
    }.items():
        unmask.finetune({**table, "out": name, "data": data}, base=tmp_path)
        weights[name] = (tmp_path / name / "model" / "model.safetensors").read_bytes()
    assert weights["file"] == weights["memory"]
    assert "4 rows in memory" in (tmp_path / "memory" / "model" / "README.md").read_text()
    changed = [{**ROWS[0], "label": "good"}, *ROWS[1:]]
    data = {"train": changed, "dev": ROWS}
    with pytest.raises(InvalidRequest, match="data"):
        unmask.finetune({**table, "out": "memory", "data": data}, base=tmp_path)


def test_names_of_classes_of_a_saved_dataset_are_its_labels(tmp_path):
    Dataset.from_dict(NUMBERED, features=FEATURES).save_to_disk(tmp_path / "saved")
    words = Dataset.from_dict(
        {"text": [["the", "bank"]], "label": [[0, 1]]},
        features=Features(
            {"text": Sequence(Value("string")), "label": Sequence(ClassLabel(names=["O", "B-X"]))}
        ),
    )
    words.save_to_disk(tmp_path / "words")
    for name, labels in (("saved", COLUMNS["label"]), ("words", [["O", "B-X"]])):
        settings = settings_with([name])
        records = read_labeled(settings.data.train, settings.data, tmp_path)
        assert [record.label for record in records] == labels
    unlabeled = Dataset.from_dict({"text": ["a"], "label": [-1]}, features=FEATURES)
    (record,) = read_labeled(settings_with(unlabeled).data.train, settings_with(ROWS).data, tmp_path)
    assert record.label is None


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        ([], "data: train is empty"),
        (iter(()), "data.train has no rows; give at least one"),
        (
            DatasetDict({"train": Dataset.from_dict(COLUMNS), "test": Dataset.from_dict(COLUMNS)}),
            "data.train is a dataset of several splits; choose one of them: 'train', 'test'",
        ),
        (pandas.DataFrame({"text": []}), "data.train has no rows"),
        (
            (pair for pair in [("a text", 1)]),
            r"row 1 of data.train is \('a text', 1\); give a list or generator",
        ),
        ({"text": ["a"], "label": ["x", "y"]}, r"columns of different lengths \(text 1, label 2\)"),
        ({"text": "a", "label": "x"}, "is one dictionary, and its values are no columns"),
        (7, "data.train is 7; give a list or generator of dictionaries"),
        ([7], r"data.train\[0\] is 7; it must be a string"),
    ],
)
def test_what_is_no_table_is_one_sentence(train, sentence):
    with pytest.raises(InvalidRequest, match=sentence) as refused:
        settings_with(train)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("label", [None, float("nan"), ""])
def test_an_empty_label_in_memory_is_refused_by_its_row(label, tmp_path):
    write_checkpoint(tmp_path / "tiny", tiny_bert(), sentence=False)
    table = {"name": "m", "task": "classification", "model": {"start_from": "tiny"}, "device": "cpu"}
    rows = [*ROWS, {"text": "a", "label": label}]
    with pytest.raises(InvalidText, match=r"row 5 of data\.train"):
        unmask.finetune({**table, "data": {"train": rows}}, base=tmp_path)


def test_rows_are_files_beside_files(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    settings = settings_with([Path("rows.jsonl"), ROWS[1:]])
    assert [str(name) for name in settings.data.train] == ["rows.jsonl", "3 rows in memory"]
    assert len(list(read_labeled(settings.data.train, settings.data, tmp_path))) == 4


def test_a_retriever_learns_from_rows_in_memory():
    from unmask.training.retrieval.records import read_ranked

    rows = [{"query": "a", "positive": "b", "negatives": ["c", "d"]}]
    settings = settings_with(rows)
    (ranked,) = read_ranked(settings.data.train, settings.data, Path())
    assert (ranked.query, ranked.documents) == ("a", ("b", "c", "d"))


def test_rows_survive_copies():
    import copy
    import pickle

    (rows,) = tables_in_memory(ROWS, "x")
    assert isinstance(rows, Rows)
    assert copy.deepcopy(rows) is rows
    assert pickle.loads(pickle.dumps(rows)).records == rows.records
