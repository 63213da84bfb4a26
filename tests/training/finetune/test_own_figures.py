"""Own metrics, a number of steps, and a test file that is predicted in the end."""

import json
import random

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.training.finetune.test_finetune import WORDS, place, table
from unmask.base.intervals import Interval
from unmask.errors import InvalidRequest, InvalidText
from unmask.training.finetune.settings import settings_of_table

pytestmark = pytest.mark.long

__all__ = ["place"]


def kappa(predictions, labels):
    return {"kappa": cohen_kappa_score(labels, predictions), "texts": np.int64(len(labels))}


def test_own_figures_are_beside_those_of_the_task_and_choose_the_best_step(place, tmp_path):
    given = table(tmp_path / "run", epochs=3, evaluation={"metric": "kappa"})
    result = unmask.finetune(given, base=place, metrics=kappa)
    dev = [line.split("\t") for line in (place / "dev.tsv").read_text().splitlines()[1:]]
    found = unmask.load(result.folder).classify([text for text, *_ in dev])
    expected = cohen_kappa_score([label for _, label, _ in dev], [one.label for one in found])
    assert result.dev["dev/kappa"] == pytest.approx(expected)
    assert result.dev["dev/texts"] == 30
    assert "| kappa |" in (result.folder / "README.md").read_text()
    table_of = json.loads((tmp_path / "run" / "result.json").read_text())
    assert table_of["dev"]["dev/kappa"] == result.dev["dev/kappa"]
    again = unmask.finetune(given, base=place, metrics=kappa)
    assert again == result


@pytest.mark.parametrize(
    ("task", "ending", "extra"),
    [
        ("classification", "tsv", {}),
        ("regression", "tsv", {"label": "length"}),
        ("tagging", "conll", {}),
        ("answering", "json", {}),
    ],
)
def test_predictions_and_labels_are_what_the_task_has(place, tmp_path, task, ending, extra):
    seen = []

    def counted(predictions, labels):
        seen.append((predictions, labels))
        return len(predictions)

    data = {"train": [f"train.{ending}"], "dev": [f"dev.{ending}"], **extra}
    given = table(tmp_path / "run", task=task, data=data, evaluation={}, max_steps=1)
    result = unmask.finetune(given, base=place, metrics=counted)
    assert result.dev["dev/counted"] == 30
    kinds = {"classification": str, "regression": float, "tagging": list, "answering": str}
    predictions, labels = seen[-1]
    assert {type(one) for one in predictions} == {kinds[task]}
    assert {type(one) for one in labels} == {tuple if task == "answering" else kinds[task]}
    if task == "tagging":
        assert [len(one) for one in predictions] == [len(one) for one in labels]


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        ({"kappa": kappa}, "metrics is .*; give a function of predictions and labels"),
        (lambda predictions: 1.0, "metrics is .*; give a function of predictions and labels"),
        (lambda predictions, labels: "high", "metrics returned 'high'; it must return a number, or numbers"),
        (lambda predictions, labels: {"accuracy": 1}, "metrics gives 'accuracy', which the task has already"),
        (kappa, "evaluation.metric is 'kapa'; of this task it can be accuracy, .*kappa, texts"),
    ],
)
def test_what_is_no_metric_is_refused_before_the_first_step(place, tmp_path, metrics, sentence):
    given = table(tmp_path / "run", evaluation={"metric": "kapa"} if metrics is kappa else {})
    with pytest.raises(InvalidRequest, match=sentence):
        unmask.finetune(given, base=place, metrics=metrics)
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_a_number_of_steps_replaces_epochs(place, tmp_path):
    said = []

    class Heard(unmask.Callback):
        def say(self, sentence):
            said.append(sentence)

    given = table(tmp_path / "run", max_steps=20, log={"every": 1}, evaluation={})
    result = unmask.finetune(given, base=place, callback=Heard())
    assert result.steps == 20
    assert any("tiny-task: 2.5 epochs of 8 steps, 20 in all" in one for one in said)
    rates = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    rates = [one["learning_rate"] for one in rates if one["event"] == "step"]
    assert rates[0] == pytest.approx(5e-3 / 2), "the schedule is that of 20 steps: two of warm-up"
    assert 0 < rates[-1] < rates[-2] < 6e-4
    assert "20 steps planned" in (result.folder / "README.md").read_text()
    with pytest.raises(InvalidRequest, match="max_steps is 0; it must be at least 1"):
        settings_of_table(table(tmp_path, max_steps=0))


@pytest.fixture(scope="module")
def unseen(tmp_path_factory):
    """Files with and without labels in the layouts of the training data."""
    folder = tmp_path_factory.mktemp("tests")
    draw = random.Random(3)
    words = [draw.choices(WORDS, k=draw.randint(2, 8)) for _ in range(12)]
    labels = ["wet" if one[0] in ("river", "muddy") else "dry" for one in words]
    rows = list(zip(map(" ".join, words), labels, strict=True))
    (folder / "with.tsv").write_text("text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in rows))
    (folder / "without.tsv").write_text("text\n" + "".join(f"{a}\n" for a, _ in rows))
    (folder / "hidden.jsonl").write_text(
        "".join(json.dumps({"text": a, "label": -1}) + "\n" for a, _ in rows)
    )
    (folder / "unknown.tsv").write_text("text\tlabel\n" + "".join(f"{a}\tdamp\n" for a, _ in rows))
    (folder / "with.conll").write_text(
        "\n".join("".join(f"{w}\t{'B-W' if w == 'river' else 'O'}\n" for w in some) for some in words)
    )
    asked = [
        {"context": text, "qas": [{"id": str(number), "question": "the bank"}]}
        for number, (text, _) in enumerate(rows)
    ]
    (folder / "without.json").write_text(json.dumps({"data": [{"paragraphs": asked}]}))
    return folder


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_test_file_is_predicted_in_the_end(place, tmp_path, unseen, capsys):
    given = table(tmp_path / "run", epochs=3)
    result = unmask.finetune(given, base=place, test=unseen / "with.tsv")
    assert result.predictions == tmp_path / "run" / "test.jsonl"
    found = lines(result.predictions)
    model = unmask.load(result.folder)
    expected = model.classify([one["text"] for one in found])
    assert [one["label"] for one in found] == [one.label for one in expected]
    assert [one["score"] for one in found] == pytest.approx([one.score for one in expected], abs=1e-6)
    gold = [line.split("\t")[1] for line in (unseen / "with.tsv").read_text().splitlines()[1:]]
    right = np.mean([one["label"] == label for one, label in zip(found, gold, strict=True)])
    assert result.test["test/accuracy"] == pytest.approx(right)
    assert isinstance(result.test_intervals["test/accuracy"], Interval)
    written = json.loads((tmp_path / "run" / "test.json").read_text())
    assert written["test"]["accuracy"] == result.test["test/accuracy"]
    assert set(written["intervals"]["accuracy"]) == {"low", "high"}
    assert "test: 12 texts of with.tsv predicted" in capsys.readouterr().err
    for name in ("without.tsv", "hidden.jsonl"):  # the run is finished, so nothing is trained again
        again = unmask.finetune(given, base=place, test=unseen / name)
        assert lines(again.predictions) == found
        assert (again.test, again.steps) == ({}, result.steps)
        assert not (tmp_path / "run" / "test.json").exists()


def test_words_and_answers_of_a_test_file(place, tmp_path, unseen):
    data = {"train": ["train.conll"], "dev": ["dev.conll"]}
    given = table(tmp_path / "tags", task="tagging", data=data, evaluation={}, max_steps=10)
    result = unmask.finetune(given, base=place, test=unseen / "with.conll")
    assert all(len(one["text"]) == len(one["labels"]) for one in lines(result.predictions))
    assert 0 <= result.test["test/f1"] <= 1
    data = {"train": ["train.json"]}
    given = table(tmp_path / "answers", task="answering", data=data, evaluation={}, max_steps=3)
    result = unmask.finetune(given, base=place, test=unseen / "without.json")
    assert all(
        one["context"][one["start"] : one["end"]] == one["answer"] for one in lines(result.predictions)
    )
    assert result.test == {}


def test_every_seed_predicts_it_also_where_all_are_finished(place, tmp_path, unseen):
    given = table(tmp_path / "run", seeds=[1, 2], max_steps=2)
    unmask.finetune(given, base=place)
    result = unmask.finetune(given, base=place, test=unseen / "with.tsv")
    assert [len(lines(one.predictions)) for one in result.runs.values()] == [12, 12]
    assert all("test/accuracy" in one.test for one in result.runs.values())


def test_the_program_predicts_it_and_refuses_what_it_cannot_read(place, tmp_path, unseen, monkeypatch):
    run = place / "test-run.toml"
    run.write_text(
        f'name = "t"\ntask = "classification"\nmax_steps = 3\nout = "{tmp_path / "run"}"\n'
        '[model]\nstart_from = "tiny"\n[data]\ntrain = ["train.tsv"]\n'
    )
    monkeypatch.chdir(unseen)
    ran = run_here("finetune", run, "--test", "with.tsv")
    assert ran.code == 0, ran.err
    assert "test/accuracy: " in ran.out
    assert "95 % interval" in ran.out
    found = json.loads(run_here("finetune", run, "--test", "with.tsv", "--json").out)
    assert 0 <= found["test_intervals"]["test/accuracy"]["low"] <= found["test"]["test/accuracy"]
    ran = run_here("finetune", run, "--test", "no.tsv")
    assert_one_sentence(ran, "the test file no.tsv does not exist")
    with pytest.raises(InvalidRequest, match="test is 5; give "):
        unmask.finetune(run, test=5)
    result = unmask.finetune(run, test=[{"text": "the river"}, {"text": "a bank"}])
    assert [one["text"] for one in lines(result.predictions)] == ["the river", "a bank"]
    with pytest.raises(InvalidText, match="has the label 'damp', which is none of 'dry', 'wet'"):
        unmask.finetune(run, test="unknown.tsv")


def test_a_test_file_with_an_unknown_label_is_refused_before_training(place, tmp_path, unseen):
    out = tmp_path / "run"
    with pytest.raises(InvalidText, match="has the label 'damp', which is none of 'dry', 'wet'"):
        unmask.finetune(table(out, max_steps=2), base=place, test=unseen / "unknown.tsv")
    assert not (out / "log.jsonl").exists()
    assert not (out / "model").exists()
