"""SuperGLUE's tasks: rows in the format of its files, as texts, pairs and choices, and a run of each."""

import json

import pytest

from tests.support.places import REPOSITORY
from tests.support.tiny import tiny_bert, write_tokenizer
from unmask.errors import InvalidText
from unmask.evaluate.protocols.glue import evaluate_glue
from unmask.evaluate.protocols.protocols import read_protocol
from unmask.training.finetune.examples import label_name
from unmask.training.finetune.records import read_labeled
from unmask.training.finetune.settings import DataSettings
from unmask.training.table import read_table

WSC = "The small boat left the harbor before the old ferry did, because it was late. Its captain waved."
"""Words are counted from 0, without regard to punctuation: "ferry" is word 9, "it" word 12, "Its" word 15."""

ROWS = {
    "boolq": [
        {"question": "is a river wet", "passage": "River -- A river is wet.", "idx": 0, "label": True},
        {"question": "is a bank a boat", "passage": "A bank is muddy.", "idx": 1, "label": False},
    ],
    "cb": [
        {"premise": "the bank was muddy", "hypothesis": "it was muddy", "label": "entailment", "idx": 0},
        {"premise": "the bank was muddy", "hypothesis": "it was dry", "label": "contradiction", "idx": 1},
        {"premise": "a boat went by", "hypothesis": "it was red", "label": "neutral", "idx": 2},
    ],
    "copa": [
        {
            "premise": "The bank was muddy.",
            "choice1": "It had rained.",
            "choice2": "A boat was red.",
            "question": "cause",
            "label": 0,
            "idx": 0,
        },
        {
            "premise": "The boat sank.",
            "choice1": "A text was read.",
            "choice2": "People swam.",
            "question": "effect",
            "label": 1,
            "idx": 1,
        },
    ],
    "rte": [
        {"premise": "the bank was muddy", "hypothesis": "it was muddy", "label": "entailment", "idx": 0},
        {"premise": "the bank was muddy", "hypothesis": "a boat sank", "label": "not_entailment", "idx": 1},
    ],
    "wic": [
        {
            "word": "bank",
            "sentence1": "The bank was muddy.",
            "sentence2": "He went to a bank.",
            "idx": 0,
            "label": False,
            "start1": 4,
            "end1": 8,
            "start2": 13,
            "end2": 17,
            "version": 1.1,
        },
        {
            "word": "text",
            "sentence1": "texts",
            "sentence2": "Another text",
            "idx": 1,
            "label": True,
            "start1": 0,
            "end1": 5,
            "start2": 8,
            "end2": 12,
            "version": 1.1,
        },
    ],
    "wsc": [
        {
            "text": WSC,
            "target": {
                "span1_index": 7,
                "span1_text": "The old ferry",
                "span2_index": 12,
                "span2_text": "it",
            },
            "idx": 0,
            "label": True,
        },
        {
            "text": WSC,
            "target": {
                "span2_index": 12,
                "span1_index": 15,
                "span1_text": "captain of Its",
                "span2_text": "it",
            },
            "idx": 1,
            "label": False,
        },
    ],
}
FOLDERS = {"boolq": "BoolQ", "cb": "CB", "copa": "COPA", "rte": "RTE", "wic": "WiC", "wsc": "WSC"}


def written(folder, task, rows):
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "val"):
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "train.jsonl"


def read(tmp_path, task, rows):
    """The records of a task's rows, and the task as its protocol has it."""
    path = written(tmp_path / FOLDERS[task], task, rows)
    chosen = read_protocol("superglue").tasks[task]
    data = read_table(DataSettings, {"train": [str(path)], **chosen.data}, "data")
    return list(read_labeled(data.train, data, tmp_path)), data


TEXTS = {
    "boolq": [
        ("is a river wet", "River -- A river is wet.", "yes"),
        ("is a bank a boat", "A bank is muddy.", "no"),
    ],
    "copa": [
        ("The bank was muddy. What was the cause of this?", None, "0"),
        ("The boat sank. What happened as a result?", None, "1"),
    ],
    "wic": [
        ("The *bank* was muddy.", "He went to a *bank*.", "different"),
        ("*texts*", "Another *text*", "same"),
    ],
    "wsc": [
        (WSC.replace("the old ferry", "*the old ferry*").replace(" it ", " #it# "), None, "same"),
        (
            WSC.replace(" it ", " #it# ").replace("Its captain waved.", "*Its captain waved.*"),
            None,
            "different",
        ),
    ],
}


@pytest.mark.parametrize("task", ROWS)
def test_rows_of_the_official_files_are_read(task, tmp_path):
    records, data = read(tmp_path, task, ROWS[task])
    if task in TEXTS:
        got = [(record.text, record.pair, label_name(record.label, data)) for record in records]
        assert got == TEXTS[task]
    else:
        assert [(record.text, record.pair) for record in records] == [
            (row["premise"], row["hypothesis"]) for row in ROWS[task]
        ]
    if data.labels:
        assert {label_name(record.label, data) for record in records} == set(data.labels)
    if task == "copa":
        assert [record.choices for record in records] == [
            (row["choice1"], row["choice2"]) for row in ROWS["copa"]
        ]


@pytest.mark.parametrize(
    ("task", "changes", "says"),
    [
        ("copa", {"question": "reason"}, "asks 'reason'; COPA asks for cause or effect"),
        ("copa", {"premise": None}, "has None under 'premise'; give text"),
        ("wic", {"end2": 99}, "from character 13 to 99 of sentence2, which has 18"),
        ("wic", {"start1": "4"}, "has '4' under 'start1'; give a whole number"),
        ("wic", {"start1": True}, "has True under 'start1'"),
        ("wsc", {"target": "ferry"}, "has 'ferry' under 'target'; give an object"),
        (
            "wsc",
            {"target": {**ROWS["wsc"][0]["target"], "span2_index": 18}},
            "span2_index 18, and its text has 18 words",
        ),
    ],
)
def test_a_row_of_another_form_is_named(task, changes, says, tmp_path):
    with pytest.raises(InvalidText, match=says) as error:
        read(tmp_path, task, [{**ROWS[task][0], **changes}])
    assert "line 1 of " in str(error.value)


def test_every_task_runs_and_reports_its_published_figures(tmp_path):
    write_tokenizer(tmp_path / "tiny")
    tiny_bert(initializer_range=0.1, max_position_embeddings=256).save_pretrained(tmp_path / "tiny")
    for task, rows in ROWS.items():
        written(tmp_path / "data" / FOLDERS[task], task, rows)
    for name in ("superglue", "superglue-data"):
        text = (REPOSITORY / "recipes" / "tasks" / "glue" / f"{name}.toml").read_text()
        (tmp_path / f"{name}.toml").write_text(text.replace("epochs = 10", "epochs = 1"))
    protocol, out = tmp_path / "superglue.toml", tmp_path / "out"
    report = evaluate_glue(
        str(tmp_path / "tiny"), protocol, tmp_path / "data", out, seeds=[1], keep_models=False
    )
    figures = {name: set(task.columns) for name, task in report.tasks.items()}
    published = {name: {f"{folder} accuracy"} for name, folder in FOLDERS.items()}
    assert figures == published | {"cb": {"CB accuracy", "CB macro F1"}}
