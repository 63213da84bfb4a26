"""Methods of fine-tuning through the run file: what they log, refuse and change."""

import shutil
from typing import get_args

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

import unmask
from tests.training.finetune.test_finetune import METHODS, place, table
from unmask.errors import InvalidRequest
from unmask.training.finetune.run import finetune
from unmask.training.finetune.settings import settings_of_table
from unmask.training.finetune.tasks import Task
from unmask.training.run.log import read_events

pytestmark = pytest.mark.long

__all__ = ["place"]

NO_DROPOUT = {
    "start_from": "tiny",
    "config": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}
TASKS = {
    "classification": {},
    "regression": {
        "task": "regression",
        "data": {"train": ["train.tsv"], "label": "length"},
        "evaluation": {},
    },
    "tagging": {"task": "tagging", "data": {"train": ["train.conll"]}, "evaluation": {}},
    "answering": {"task": "answering", "data": {"train": ["train.json"]}, "evaluation": {}},
}


def steps(out):
    return [one for one in read_events(out / "log.jsonl") if one["event"] == "step"]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_logs_the_divergences(place, tmp_path, task):
    finetune(table(tmp_path / "run", epochs=1, **TASKS[task], **METHODS), base=place)
    for line in steps(tmp_path / "run"):
        found = {name.split("/")[1]: value for name, value in line.items() if "/" in name}
        assert found["r_drop"] > 0
        assert found["sift"] > 0
        assert found["loss"] > 0
        assert line["learning_rate"] <= 5e-3
    rates = [line["learning_rate"] for line in steps(tmp_path / "run")]
    assert max(rates) == pytest.approx(5e-3), "the full rate, not that of a layer"


def test_without_them_nothing_is_logged(place, tmp_path):
    finetune(table(tmp_path / "run", epochs=1), base=place)
    assert {name for line in steps(tmp_path / "run") for name in line if "/" in name} == {
        "classification/loss",
        "classification/accuracy",
    }


def test_balanced_class_weights(place, tmp_path):
    """The numbers of scikit-learn, in the order of the labels."""
    rows = [line.split("\t")[1] for line in (place / "train.tsv").read_text().splitlines()[1:]]
    expected = compute_class_weight("balanced", classes=np.array(["dry", "wet"]), y=np.array(rows))
    assert expected[0] != pytest.approx(expected[1])
    runs = [
        finetune(table(tmp_path / name, epochs=1, class_weights=weights), base=place)
        for name, weights in (("balanced", "balanced"), ("given", expected.tolist()))
    ]
    one, other = ((run.folder / "model.safetensors").read_bytes() for run in runs)
    assert one == other
    assert steps(tmp_path / "balanced")[0]["classification/loss"] == pytest.approx(
        steps(tmp_path / "given")[0]["classification/loss"]
    )
    assert "class weights balanced" in (runs[0].folder / "README.md").read_text()
    data = {"train": ["train.tsv"], "dev": ["dev.tsv"], "labels": ["dry", "wet", "ice"]}
    with pytest.raises(InvalidRequest, match="balanced and no training text has the label ice"):
        finetune(table(tmp_path / "none", class_weights="balanced", data=data), base=place)


def test_r_drop_needs_a_model_with_dropout(place, tmp_path):
    given = table(tmp_path / "run", epochs=1, r_drop=1.0, model=NO_DROPOUT)
    with pytest.raises(InvalidRequest, match="r_drop is 1 and all dropouts of the model are 0"):
        finetune(given, base=place)
    finetune(
        table(tmp_path / "head", epochs=1, r_drop=1.0, model={**NO_DROPOUT, "head_dropout": 0.1}), base=place
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"r_drop": -1.0}, "r_drop is -1; it must be at least 0 and finite"),
        ({"r_drop": float("nan")}, "r_drop is nan; it must be at least 0"),
        (
            {"task": "multi_label", "class_weights": "balanced"},
            "class_weights is balanced and task is multi_l",
        ),
        ({"class_weights": "even"}, "class_weights is 'even'; it can be balanced"),
        ({"sift": {}}, "sift needs weight, and it is not given"),
        ({"sift": {"weight": -1.0}}, "sift: weight is -1; it must be above 0"),
        ({"frozen": True, "optimizer": {"layer_decay": 0.5}}, "no layer of an encoder is trained"),
        ({"optimizer": {"layer_decay": 2.0}}, "optimizer: layer_decay must be above 0 and at most 1, not 2"),
    ],
)
def test_what_cannot_be_is_one_sentence(place, tmp_path, changes, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        finetune(table(tmp_path / "run", **changes), base=place)


@pytest.mark.parametrize(
    ("name", "value", "ignored"),
    [
        ("label_smoothing", 0.1, ("answering", "regression", "multi_label", "retrieval")),
        ("class_weights", [1.0, 2.0], ("answering", "regression", "multiple_choice", "retrieval")),
    ],
)
def test_what_a_loss_would_ignore_is_refused(name, value, ignored):
    for task in get_args(Task):
        data = {"train": ["a"]} | ({"choices": ["a"]} if task == "multiple_choice" else {})
        given = {"name": "a", "task": task, "model": {"start_from": "x"}, "data": data, name: value}
        if task not in ignored:
            settings_of_table(given)
            continue
        with pytest.raises(InvalidRequest, match=rf"{name} is .* and the task is {task}, .*; leave it out"):
            settings_of_table(given)


# --- soft labels --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def teacher(place, tmp_path_factory):
    """The model of a run of the task classification."""
    return finetune(table(tmp_path_factory.mktemp("teacher"), epochs=4), base=place).folder


def divergence(teacher, student, temperature):
    first, other = (logits / temperature for logits in (teacher, student))
    first = first - np.logaddexp.reduce(first, axis=-1, keepdims=True)
    other = other - np.logaddexp.reduce(other, axis=-1, keepdims=True)
    return temperature**2 * (np.exp(first) * (first - other)).sum(-1).mean()


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_soft_labels_are_hintons_divergence(place, teacher, tmp_path, temperature):
    """The first step's figure, from logits of the saved teacher and of the student before training."""
    soft = {"teacher": str(teacher), "temperature": temperature, "weight": 0.7}
    config = {**NO_DROPOUT, "head_dropout": 0.0}
    given = table(tmp_path / "run", epochs=1, batch_size=60, soft_labels=soft, model=config)
    given["optimizer"] = {"learning_rate": 1e-9}
    result = finetune(given, base=place)
    texts = [line.split("\t")[0] for line in (place / "train.tsv").read_text().splitlines()[1:]]

    def logits(folder):
        rows = unmask.load(folder).classify(texts)
        return np.log([[score for _, score in sorted(row.scores.items())] for row in rows])

    expected = divergence(logits(teacher), logits(result.folder), temperature)
    (line,) = steps(tmp_path / "run")
    assert line["classification/teacher"] == pytest.approx(expected, rel=1e-3)
    assert "soft labels of" in (result.folder / "README.md").read_text()


@pytest.mark.parametrize("task", TASKS)
def test_every_task_learns_from_a_teacher(place, tmp_path, task):
    """With nothing but a teacher's predictions, a student comes nearer to it."""
    finetune(table(tmp_path / "teacher", epochs=2, **TASKS[task]), base=place)
    soft = {"teacher": str(tmp_path / "teacher" / "model"), "weight": 1.0}
    finetune(table(tmp_path / "student", epochs=6, **TASKS[task], soft_labels=soft), base=place)
    apart = [
        value for line in steps(tmp_path / "student") for name, value in line.items() if "/teacher" in name
    ]
    assert np.mean(apart[-5:]) < np.mean(apart[:5]) / 2


@pytest.mark.parametrize(
    ("soft", "says"),
    [
        ({"weight": 0.0}, r"weight is 0; it must be above 0"),
        ({"temperature": 0.0}, r"temperature is 0; it must be above 0"),
        ({"teacher": "tiny"}, "which has no sequence head; fine-tune it for the task first"),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused(place, teacher, tmp_path, soft, says):
    with pytest.raises(InvalidRequest, match=says):
        finetune(table(tmp_path, soft_labels={"teacher": str(teacher)} | soft), base=place)


def test_a_teacher_of_other_labels_is_refused(place, teacher, tmp_path):
    data = {"train": ["train.tsv"], "labels": ["wet", "dry"]}
    with pytest.raises(InvalidRequest, match="predicts dry, wet, and the run wet, dry; name its labels"):
        finetune(table(tmp_path, data=data, evaluation={}, soft_labels={"teacher": str(teacher)}), base=place)


def test_a_teacher_of_another_vocabulary_is_refused(place, teacher, tmp_path):
    shutil.copytree(teacher, tmp_path / "other")
    for path in (tmp_path / "other").iterdir():
        if path.name in ("vocab.txt", "tokenizer.json"):
            path.write_text(path.read_text().replace("muddy", "middy"))
    (tmp_path / "other" / "unmask_checksums.json").unlink()
    with pytest.raises(InvalidRequest, match="has another vocabulary than the model"):
        finetune(table(tmp_path / "run", soft_labels={"teacher": str(tmp_path / "other")}), base=place)
