"""Fine-tuning runs: what they learn, resume and leave behind."""

import json
import random
import shutil

import numpy as np
import pytest
import torch
import transformers

import unmask
from tests.support.tiny import tiny_bert, write_tokenizer
from unmask.errors import InvalidRequest, InvalidText, UnmaskError
from unmask.training.finetune.evaluate import predicted
from unmask.training.finetune.run import FinetuneRun, finetune
from unmask.training.finetune.settings import settings_of_table
from unmask.training.finetune.start import task_checkpoint, task_encoder
from unmask.training.run.base_model import first_checkpoint
from unmask.training.run.callbacks import Callback
from unmask.training.run.ranks import Ranks
from unmask.training.run.trainer import Stopped, Trainer

pytestmark = pytest.mark.long

WORDS = ["the", "river", "bank", "was", "muddy", "a", "text", "another"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A tiny checkpoint, and data in which the first word decides the label."""
    folder = tmp_path_factory.mktemp("finetune")
    write_tokenizer(folder / "tiny")
    tiny_bert(initializer_range=0.1).save_pretrained(folder / "tiny")
    draw = random.Random(0)

    def rows(count):
        for _ in range(count):
            words = draw.choices(WORDS, k=draw.randint(2, 8))
            yield words, "wet" if words[0] in ("river", "muddy") else "dry"

    for name, count in (("train", 60), ("dev", 30)):
        made = list(rows(count))
        lines = [f"{' '.join(words)}\t{label}\t{len(words)}" for words, label in made]
        (folder / f"{name}.tsv").write_text("text\tlabel\tlength\n" + "\n".join(lines) + "\n")
        tagged = ["\n".join(f"{w}\t{'B-W' if w == 'river' else 'O'}" for w in words) for words, _ in made]
        (folder / f"{name}.conll").write_text("\n\n".join(tagged) + "\n")
        asked = [
            {
                "context": " ".join(words),
                "qas": [{
                    "id": f"{name}{number}", "question": "the bank",
                    "answers": [{"text": words[-1], "answer_start": len(" ".join(words)) - len(words[-1])}],
                }],
            }
            for number, (words, _) in enumerate(made)
        ]  # fmt: skip
        (folder / f"{name}.json").write_text(json.dumps({"data": [{"paragraphs": asked}]}))
    return folder


def table(out, **changes):
    return {
        "name": "tiny-task",
        "task": "classification",
        "epochs": 2,
        "batch_size": 8,
        "out": str(out),
        "model": {"start_from": "tiny"},
        "data": {"train": ["train.tsv"], "dev": ["dev.tsv"]},
        "optimizer": {"learning_rate": 5e-3},
        "evaluation": {"metric": "accuracy"},
        "log": {"every": 1},
    } | changes


class Heard(Callback):
    def __init__(self):
        self.said = []

    def say(self, sentence):
        self.said.append(sentence)

    def tokenizing(self, source, documents, tokens):
        pass

    def step(self, figures):
        pass


def test_a_run_learns_and_leaves_a_model_that_everyone_loads(place, tmp_path):
    heard = Heard()
    result = finetune(table(tmp_path / "run", epochs=6), base=place, callback=heard)
    assert result.dev["dev/accuracy"] > 0.9
    ours = unmask.load(result.folder)
    assert ours.spec.heads[0].labels == ("dry", "wet")
    texts = ["river bank", "the text was muddy"]
    found = ours.classify(texts)
    assert found[0].label == "wet"
    run = transformers.pipeline("text-classification", str(result.folder), device="cpu")
    for one, other in zip(found, run(texts), strict=True):
        assert (one.label, one.score) == (other["label"], pytest.approx(other["score"], abs=1e-5))
    assert any("has no heads.sequence.out" in one for one in heard.said)
    assert any("labels 'dry'" in one for one in heard.said)


@pytest.mark.parametrize(("rate", "calibrate"), [(5e-3, False), (0.3, False), (5e-3, True)])
def test_dev_texts_are_predicted_once_for_each_figure(place, tmp_path, monkeypatch, rate, calibrate):
    """Not again for the intervals of the last figures, unless the weights or probabilities have changed."""
    calls = []
    monkeypatch.setattr(
        "unmask.training.finetune.run.predicted", lambda *given: calls.append(1) or predicted(*given)
    )
    changes = {"optimizer": {"learning_rate": rate}, "epochs": 4}
    changes |= {"evaluation": {"metric": "accuracy", "calibrate": calibrate}}
    result = finetune(table(tmp_path / "run", **changes), base=place)
    again = result.best_step != result.steps
    assert len(calls) == 4 + again + calibrate
    between = result.intervals["dev/accuracy"]
    assert between.low <= result.dev["dev/accuracy"] <= between.high


METHODS = {
    "optimizer": {"learning_rate": 5e-3, "layer_decay": 0.8, "weight_decay": 1e-3, "decoupled": True},
    "r_drop": 0.5,
    "sift": {"weight": 2.0},
}


@pytest.mark.parametrize(
    ("metric", "methods"),
    [pytest.param("accuracy", {}, marks=pytest.mark.slow), (None, {}), ("accuracy", METHODS)],
    ids=["best", "last", "methods"],
)
def test_a_stopped_run_resumes_bit_by_bit(place, tmp_path, monkeypatch, metric, methods):
    given = {"evaluation": {"every": 5} | ({"metric": metric} if metric else {}), **methods}
    whole = finetune(table(tmp_path / "whole", **given), base=place)
    steps = []
    step = Trainer._step

    def stop_once(self, reporter):
        step(self, reporter)
        steps.append(self.loop.step)
        if self.loop.step == 7 and steps.count(7) == 1:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "_step", stop_once)
    with pytest.raises(Stopped):
        finetune(table(tmp_path / "broken", **given), base=place)
    again = finetune(table(tmp_path / "broken", **given), base=place)
    assert steps == [*range(1, 8), *range(8, whole.steps + 1)]
    assert (again.steps, again.best_step, again.dev) == (whole.steps, whole.best_step, whole.dev)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        if (whole.folder / name).exists():
            assert (whole.folder / name).read_bytes() == (again.folder / name).read_bytes(), name


def test_the_best_step_is_exported_and_patience_ends_a_run(place, tmp_path, monkeypatch):
    values = iter([0.5, 0.9, 0.9, 0.6, 0.95])  # an equal figure is not a better one
    monkeypatch.setattr(
        "unmask.training.finetune.evaluate.Predicted.figures", lambda _: {"accuracy": next(values)}
    )
    given = {"evaluation": {"every": 3, "metric": "accuracy", "patience": 2}, "epochs": 9}
    result = finetune(table(tmp_path / "run", **given), base=place)
    assert (result.steps, result.best_step) == (12, 6)
    assert result.dev == {"dev/accuracy": 0.95}, "the exported weights are evaluated once more"
    at_6 = unmask.load(tmp_path / "run" / "best")
    exported = unmask.load(result.folder)
    np.testing.assert_array_equal(at_6.logits(["the bank"]).values, exported.logits(["the bank"]).values)


def test_words_and_answers(place, tmp_path):
    data = {"train": ["train.conll"], "dev": ["dev.conll"]}
    given = {"task": "tagging", "data": data, "evaluation": {"metric": "f1"}, "epochs": 5}
    result = finetune(table(tmp_path / "tags", **given), base=place)
    assert result.dev["dev/f1"] > 0.9
    (entity,) = unmask.load(result.folder).tag("the muddy river !").entities
    assert (entity.label, entity.start, entity.end, entity.text) == ("W", 10, 15, "river")
    data = {"train": ["train.json"], "dev": ["dev.json"]}
    given = {"task": "answering", "data": data, "evaluation": {"metric": "f1"}, "epochs": 8}
    result = finetune(table(tmp_path / "answers", **given), base=place)
    assert result.dev["dev/exact_match"] > 60
    found = unmask.load(result.folder).answer("the bank", "the river was muddy")
    assert found.answers[0].text in "the river was muddy"


def test_regression_and_a_frozen_encoder(place, tmp_path):
    data = {"train": ["train.tsv"], "dev": ["dev.tsv"], "label": "length"}
    given = {"task": "regression", "data": data, "evaluation": {"metric": "pearson"}, "frozen": True}
    result = finetune(table(tmp_path / "run", **given), base=place)
    assert -1 <= result.dev["dev/pearson"] <= 1
    ours, start = unmask.load(result.folder), unmask.load(place / "tiny")
    trained, before = ours.trainable_encoder().state_dict(), start.trainable_encoder().state_dict()
    for name, tensor in before.items():
        if name.startswith(("embedding.", "layers.")):
            torch.testing.assert_close(trained[name], tensor, rtol=0, atol=0)


def test_the_step_is_that_of_transformers(place, tmp_path):
    """Loss and gradients of a batch of several texts, beside the class of transformers with padding."""
    from unmask.training.data.labeled import LabeledSequence
    from unmask.training.finetune.records import Labeled
    from unmask.training.objectives.labeled import LabeledObjective
    from unmask.weights.write.save import save

    settings = settings_of_table(table(tmp_path / "x"))
    begun = first_checkpoint(settings, place)
    checkpoint = task_checkpoint(settings, begun, ("dry", "wet"))
    encoder = task_encoder(settings, checkpoint, begun, lambda _: None).eval()
    save(encoder, checkpoint, tmp_path / "start")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "start").double()
    ours = LabeledObjective(encoder.double(), "sequence")
    texts, labels = ["the bank", "a muddy river was a text", "muddy"], [0, 1, 1]
    items = []
    for text, label in zip(texts, labels, strict=True):
        encoding = checkpoint.tokenizer.encode(Labeled("x", text, None, label).text)
        items.append(LabeledSequence(encoding.ids, encoding.token_type_ids, np.array(label)))
    example = ours.prepare(items, np.random.default_rng(0), 0.0)
    loss = ours(example, example.counts).loss
    loss.backward()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "start")
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    expected = theirs.eval()(**batch, labels=torch.tensor(labels)).loss
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-10)
    mine = encoder.heads["sequence"].out.weight.grad
    torch.testing.assert_close(mine, theirs.classifier.weight.grad, rtol=0, atol=1e-10)
    words = encoder.embedding.words.weight.grad
    torch.testing.assert_close(words, theirs.bert.embeddings.word_embeddings.weight.grad, rtol=0, atol=1e-10)


def test_several_labels(place, tmp_path):
    """Each of two words in a text gives it a label of its own."""
    draw = random.Random(1)
    with (tmp_path / "data.jsonl").open("w") as file:
        for _ in range(60):
            words = draw.sample(WORDS, 3)
            labels = [word for word in ("river", "bank") if word in words]
            file.write(json.dumps({"text": " ".join(words), "label": labels}) + "\n")
    data = {"train": [str(tmp_path / "data.jsonl")], "dev": [str(tmp_path / "data.jsonl")]}
    given = {"task": "multi_label", "data": data, "evaluation": {"metric": "micro_f1"}, "epochs": 30}
    result = finetune(table(tmp_path / "run", **given), base=place)
    assert result.dev["dev/micro_f1"] > 0.9
    ours = unmask.load(result.folder)
    assert ours.spec.heads[0].problem_type == "multi_label_classification"
    assert ours.classify("the river bank").labels == ("bank", "river")
    assert ours.classify("a muddy text").labels == ()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data": {"train": ["no.tsv"]}, "evaluation": {}}, "no.tsv, and there is no such file"),
        (
            {"data": {"train": ["train.tsv"], "label": "kind"}, "evaluation": {}},
            "no column 'kind'; set data.label",
        ),
        ({"evaluation": {"metric": "f2"}}, "evaluation.metric is 'f2'; of this task it can be accuracy"),
        (
            {"data": {"train": ["train.tsv"], "dev": ["dev.tsv"], "labels": ["dry", "damp"]}},
            "has the label 'wet', which is none of 'dry', 'damp'",
        ),
        ({"data": {"train": ["train.tsv"]}}, "evaluation.metric needs data.dev"),
        ({"task": "regression", "evaluation": {}}, "has 'dry' as its number|has 'wet' as its number"),
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"micro_batches": 9}, "micro_batches is 9"),
        ({"class_weights": [1.0]}, "class_weights has 1 numbers"),
        ({"lables": 1}, "no key 'lables'"),
    ],
)
def test_what_cannot_be_is_one_sentence(place, tmp_path, changes, sentence):
    with pytest.raises((InvalidRequest, InvalidText), match=sentence):
        finetune(table(tmp_path / "run", **changes), base=place)


@pytest.mark.parametrize(
    ("task", "data"),
    [
        ("classification", {}),
        ("regression", {"label": "length"}),
        ("multi_label", {"train": ["several.jsonl"], "dev": ["several.jsonl"]}),
        ("tagging", {"train": ["train.conll"], "dev": ["dev.conll"]}),
        ("answering", {"train": ["train.json"], "dev": ["dev.json"]}),
    ],
)
def test_a_metric_is_checked_before_training(place, tmp_path, monkeypatch, task, data):
    rows = [{"text": "the river", "label": ["a", "b"]}, {"text": "a bank", "label": ["b"]}]
    (place / "several.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = table(tmp_path / "run", task=task, evaluation={})
    given["data"] |= data
    run = FinetuneRun(settings_of_table(given), place, tmp_path / "run", Ranks(), Heard())
    names = [name.removeprefix("dev/") for name in run._evaluate()]
    monkeypatch.setattr(FinetuneRun, "train", lambda run: pytest.fail("training began"))
    with pytest.raises(InvalidRequest, match="metric is 'bleu'") as refused:
        finetune(given | {"evaluation": {"metric": "bleu"}}, base=place)
    assert str(refused.value).partition(" can be ")[2] == ", ".join(names)


@pytest.mark.parametrize(
    ("task", "label", "sentence"),
    [
        ("classification", ["a"], r"has \['a'\] as its label; classification needs one label"),
        ("regression", None, "has None as its label; regression needs a number"),
        ("multi_label", 3, "has 3 as its labels; multi_label needs a list"),
        ("tagging", "OO", "has 'OO' as its labels; tagging needs a list"),
        ("answering", "a", "line 1 of .* is not a question with answers"),
    ],
)
def test_a_label_of_another_kind_is_named(place, tmp_path, task, label, sentence):
    (tmp_path / "data.jsonl").write_text(json.dumps({"text": "the bank", "label": label}) + "\n")
    given = {"task": task, "data": {"train": [str(tmp_path / "data.jsonl")]}, "evaluation": {}}
    with pytest.raises(InvalidText, match=sentence):
        finetune(table(tmp_path / "run", **given), base=place)


def test_a_single_label_is_refused(place, tmp_path):
    (place / "one.tsv").write_text("text\tlabel\nthe bank\tdry\n")
    with pytest.raises(InvalidRequest, match="one label, dry, so there is nothing to learn"):
        finetune(table(tmp_path / "run", data={"train": ["one.tsv"]}, evaluation={}), base=place)


def test_changed_data_are_refused_on_resume_and_a_finished_run_says_so(place, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(place, data)
    finetune(table(tmp_path / "run", epochs=1), base=data)
    heard = Heard()
    finetune(table(tmp_path / "run", epochs=1), base=data, callback=heard)
    assert "the run has already taken all of its 8 steps; nothing is trained again" in heard.said
    for names, old, new, count in (
        (("train.tsv",), "\twet\t", "\tdry\t", 1),  # a label that was mended
        (("train.tsv", "dev.tsv"), "\twet\t", "\tsoaked\t", -1),  # another name of a class
        (("train.tsv",), "bank", "Bank", 1),  # which is the same to the tokenizer
        (("dev.tsv",), "\twet\t", "\tdry\t", 1),
    ):
        for name in names:
            (data / name).write_text((place / name).read_text().replace(old, new, count))
        with pytest.raises(InvalidRequest, match="texts or labels of the data files have changed"):
            finetune(table(tmp_path / "run", epochs=1), base=data)
        for name in names:
            shutil.copy(place / name, data / name)


def test_changed_settings_are_refused_on_resume(place, tmp_path):
    finetune(table(tmp_path / "run", epochs=1), base=place)
    with pytest.raises(UnmaskError, match="batch_size was 8 and is 4"):
        finetune(table(tmp_path / "run", epochs=1, batch_size=4), base=place)
