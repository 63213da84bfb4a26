"""Few-shot classification: what it draws, learns, resumes and saves, beside scikit-learn and
sentence-transformers."""

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import sentence_transformers
import torch
from sklearn.linear_model import LogisticRegression

import unmask
from tests.support.tiny import MAX_TOKENS, change_json, tiny_bert, write_checkpoint
from tests.training.finetune.test_finetune import Heard, place, table
from unmask.errors import InvalidRequest, InvalidText, OutputError
from unmask.evaluate.protocols.runs import data_settings
from unmask.evaluate.protocols.scores import classification_scores
from unmask.training.finetune import few_shot
from unmask.training.finetune.few_shot import few_texts, write_body
from unmask.training.finetune.records import Labeled
from unmask.training.finetune.result import read_result
from unmask.training.finetune.run import FinetuneRun, finetune
from unmask.training.finetune.settings import settings_of_table
from unmask.training.run.log import read_events
from unmask.training.run.ranks import Ranks
from unmask.training.run.trainer import Stopped, Trainer

pytestmark = pytest.mark.long

__all__ = ["place"]

DATA = {"train": ["train.tsv"], "dev": ["dev.tsv"]}


def few(out, **changes):
    """A run of two epochs of 8 steps."""
    return table(out, **{"few_shot": {"shots": 8}, "batch_size": 16, "evaluation": {}} | changes)


def rows(path):
    return [line.split("\t") for line in path.read_text().splitlines()[1:]]


@pytest.fixture(scope="module")
def body(tmp_path_factory):
    """A tiny sentence embedder that reads 19 tokens."""
    return write_checkpoint(tmp_path_factory.mktemp("body") / "body", tiny_bert(initializer_range=0.1))


@pytest.mark.parametrize("classes", [2, 3])
def test_a_model_has_the_head_that_scikit_learn_fits(place, body, tmp_path, classes):
    """Vectors by sentence-transformers from the exported encoder, probabilities by scikit-learn."""
    texts, labels = zip(*((text, label) for text, label, _ in rows(place / "train.tsv")[:24]), strict=True)
    if classes == 3:
        labels = tuple("long" if len(text) > 25 else label for text, label in zip(texts, labels, strict=True))
    lines = [f"{text}\t{label}" for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "some.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    given = {
        "few_shot": {"head_c": 3.0, "max_pairs": 60},
        "data": {"train": [str(tmp_path / "some.tsv")]},
        "model": {"start_from": str(body)},
    }
    result = finetune(few(tmp_path / "run", **given), base=place)
    assert result.encoder == result.folder / "encoder"
    theirs = sentence_transformers.SentenceTransformer(str(result.encoder), device="cpu")
    read = [text for text, _, _ in rows(place / "dev.tsv")]
    before = sentence_transformers.SentenceTransformer(str(body), device="cpu").encode(read)
    assert np.abs(theirs.encode(read) - before).max() > 1e-3, "the encoder was trained"
    fitted = LogisticRegression(C=3.0, max_iter=1000).fit(theirs.encode(list(texts)).astype(float), labels)
    wanted = fitted.predict_proba(theirs.encode(read).astype(float))
    ours = unmask.load(result.folder)
    found = ours.classify(read)
    assert ours.spec.heads[0].labels == tuple(fitted.classes_) == tuple(sorted(set(labels)))
    probabilities = np.array([[one.scores[name] for name in fitted.classes_] for one in found])
    np.testing.assert_allclose(probabilities, wanted, rtol=0, atol=1e-4)
    assert np.ptp(probabilities[:, 0]) > 0.02, "texts differ"
    np.testing.assert_allclose(ours.embed(read), theirs.encode(read), rtol=0, atol=1e-5)
    assert ours.checkpoint.max_tokens == theirs.max_seq_length == MAX_TOKENS - 4


def test_a_run_learns_and_says_what_it_draws(place, tmp_path):
    heard = Heard()
    given = {"optimizer": {"learning_rate": 2e-3}, "epochs": 4, "evaluation": {"metric": "accuracy"}}
    result = finetune(few(tmp_path / "run", **given), base=place, callback=heard)
    assert result.dev["dev/accuracy"] > result.dev["before/accuracy"] + 0.05
    said = "\n".join(heard.said)
    assert "train: 16 texts" in said
    assert "labels 'dry' 8 (50.0%), 'wet' 8 (50.0%)" in said
    assert "64 pairs (56 different) of one label and 64 pairs (64 different) of two labels" in said
    assert "4 epochs of 8 steps, 32 in all, of 16 pairs" in said
    assert "the head is fitted to 16 texts; it classifies" in said
    assert "new weights there" not in said
    losses = [
        event["contrastive/loss"]
        for event in read_events(tmp_path / "run/log.jsonl")
        if event["event"] == "step"
    ]
    assert np.mean(losses[-8:]) < np.mean(losses[:8]) - 0.05
    scores = classification_scores(unmask.load(result.folder), data_settings({}, place / "dev.tsv"))
    assert scores.accuracy == result.dev["dev/accuracy"]
    card = (result.folder / "README.md").read_text()
    assert 'library_name: "unmask"' in card
    assert "few-shot: 8 texts of each label" in card
    assert "`transformers` cannot load it" in card
    settings = settings_of_table(few(tmp_path / "run", **given))
    assert read_result(settings, tmp_path / "run") == result


def test_a_run_with_very_many_pairs_says_how_to_have_fewer(place, tmp_path, monkeypatch):
    monkeypatch.setattr(few_shot, "MANY_PAIRS", 100)
    heard = Heard()
    for name, given in (("long", {}), ("short", {"num_iterations": 3})):
        out = tmp_path / name
        settings = settings_of_table(few(out, few_shot={"shots": 8, **given}))
        FinetuneRun(settings, place, out, Ranks(device=torch.device("cpu")), heard)
    assert [one for one in heard.said if "num_iterations = 3 takes 96 pairs" in one] == [
        one for one in heard.said if "64 pairs (64 different) of two labels; few_shot" in one
    ]
    assert sum("num_iterations" in one for one in heard.said) == 1


def test_the_figures_before_are_those_of_the_untouched_encoder(place, tmp_path):
    data = {**DATA, "train": [str(tmp_path / "some.tsv")]}
    kept = rows(place / "train.tsv")[:20]
    (tmp_path / "some.tsv").write_text("text\tlabel\n" + "".join(f"{t}\t{label}\n" for t, label, _ in kept))
    given = {"few_shot": {}, "data": data, "optimizer": {"learning_rate": 2e-3}}
    result = finetune(few(tmp_path / "run", **given), base=place)
    start = unmask.load(place / "tiny")

    def vectors(some):
        return start.embed([one[0] for one in some], pooling="mean", normalize=True).astype(float)

    fitted = LogisticRegression(max_iter=1000).fit(vectors(kept), [one[1] for one in kept])
    dev = rows(place / "dev.tsv")
    assert result.dev["before/accuracy"] == pytest.approx(fitted.score(vectors(dev), [one[1] for one in dev]))


def test_the_untrained_encoder_is_never_the_best_one(place, tmp_path, monkeypatch):
    values = iter([0.9, 0.5, 0.6])
    monkeypatch.setattr(
        "unmask.training.finetune.evaluate.Predicted.figures", lambda _: {"accuracy": next(values)}
    )
    result = finetune(few(tmp_path / "run", evaluation={"metric": "accuracy"}), base=place)
    assert result.best_step == 16
    assert result.dev == {"before/accuracy": 0.9, "dev/accuracy": 0.6}


@pytest.mark.parametrize("metric", ["accuracy", pytest.param(None, marks=pytest.mark.slow)])
def test_a_stopped_run_resumes_bit_by_bit(place, tmp_path, monkeypatch, metric):
    given = {"evaluation": {"every": 5} | ({"metric": metric} if metric else {})}
    if metric is None:
        given["data"] = {"train": ["train.tsv"]}
    whole = finetune(few(tmp_path / "whole", **given), base=place)
    steps = []
    step = Trainer._step

    def stop_once(self, reporter):
        step(self, reporter)
        steps.append(self.loop.step)
        if self.loop.step == 7 and steps.count(7) == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "_step", stop_once)
    with pytest.raises(Stopped):
        finetune(few(tmp_path / "broken", **given), base=place)
    again = finetune(few(tmp_path / "broken", **given), base=place)
    assert steps == [*range(1, 8), *range(8, 17)]
    assert (again.steps, again.best_step, again.dev) == (16, whole.best_step, whole.dev)
    assert bool(metric) == ("before/accuracy" in again.dev)
    names = ("model.safetensors", "config.json", "encoder/model.safetensors", "encoder/config.json")
    for name in names:
        assert (whole.folder / name).read_bytes() == (again.folder / name).read_bytes(), name
    finetune(few(tmp_path / "broken", **given), base=place)
    for name in names:
        assert (whole.folder / name).read_bytes() == (again.folder / name).read_bytes(), name


def test_dropout_in_the_run_and_none_in_the_head(place, tmp_path):
    """The head is fitted to states without dropout, so two fits of one encoder are the same."""
    result = finetune(few(tmp_path / "run", epochs=1, evaluation={"metric": "accuracy"}), base=place)
    best, exported = (
        unmask.load(folder).trainable_encoder().state_dict()
        for folder in (tmp_path / "run" / "best", result.folder)
    )
    assert best.keys() == exported.keys()
    for name, tensor in best.items():
        torch.testing.assert_close(exported[name], tensor, rtol=0, atol=0, msg=name)


def test_a_bfloat16_export_and_a_temperature(place, tmp_path):
    given = {"export_dtype": "bfloat16", "evaluation": {"calibrate": True}, "epochs": 1}
    result = finetune(few(tmp_path / "run", **given), base=place)
    for folder in (result.folder, result.encoder):
        assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    head = unmask.load(result.folder).spec.heads[0]
    assert head.temperature == pytest.approx(result.dev["dev/temperature"])
    assert head.temperature != 1


def test_an_encoder_that_cannot_be_written_leaves_the_one_before(place, body, tmp_path, monkeypatch):
    result = finetune(few(tmp_path / "run", epochs=1), base=place)
    before = (result.encoder / "model.safetensors").read_bytes()

    def full(*_):
        raise OutputError("the disk is full")

    monkeypatch.setattr("unmask.training.finetune.few_shot.save", full)
    with pytest.raises(OutputError):
        write_body(result.folder, unmask.load(result.encoder).checkpoint, result.encoder)
    assert (result.encoder / "model.safetensors").read_bytes() == before


def test_windows_of_long_texts_are_texts(place, body, tmp_path):
    long = " ".join(["river"] * 40)
    lines = [f"{long}\twet", "the muddy bank\twet", "a text\tdry", "another text\tdry"]
    (tmp_path / "some.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    data = {"train": [str(tmp_path / "some.tsv")], "long_texts": "window", "overlap_tokens": 3}
    heard = Heard()
    given = {"few_shot": {}, "data": data, "model": {"start_from": str(body)}, "epochs": 1}
    result = finetune(few(tmp_path / "run", **given), base=place, callback=heard)
    assert any("is fitted to 6 texts" in one for one in heard.said), "three windows and three short texts"
    assert unmask.load(result.folder).classify(long).windows == 3


@pytest.mark.parametrize(("pooling", "reads"), [("cls", "first"), ("mean", "mean")])
def test_the_head_reads_as_the_checkpoint_pools(place, body, tmp_path, pooling, reads):
    start = write_checkpoint(tmp_path / "start", tiny_bert(initializer_range=0.1))
    if pooling == "cls":
        modes = {"pooling_mode_mean_tokens": None, "pooling_mode_cls_token": True}
        change_json(start / "1_Pooling" / "config.json", **modes)
    given = {"model": {"start_from": str(start)}, "epochs": 1, "data": {"train": ["train.tsv"]}}
    result = finetune(few(tmp_path / "run", **given), base=place)
    head = unmask.load(result.folder).spec.heads[0]
    assert (head.reads, head.normalize) == (reads, True)
    theirs = sentence_transformers.SentenceTransformer(str(result.encoder), device="cpu")
    ours = unmask.load(result.folder).embed(["the river", "a bank was muddy"])
    np.testing.assert_allclose(ours, theirs.encode(["the river", "a bank was muddy"]), rtol=0, atol=1e-5)


def test_another_pooling_is_refused(place, tmp_path):
    start = write_checkpoint(tmp_path / "start")
    change_json(
        start / "1_Pooling" / "config.json", pooling_mode_mean_tokens=None, pooling_mode_max_tokens=True
    )
    with pytest.raises(InvalidRequest, match=r"pools by max, and the head of .* pooled by mean or cls"):
        finetune(few(tmp_path / "run", model={"start_from": str(start)}), base=place)


def test_a_head_of_the_checkpoint_is_left_out(place, tmp_path):
    """Also one with the same labels, and that of an earlier few-shot model."""
    ordinary = finetune(table(tmp_path / "ordinary", epochs=1), base=place)
    one = finetune(few(tmp_path / "a", model={"start_from": str(ordinary.folder)}, epochs=1), base=place)
    two = finetune(few(tmp_path / "b", model={"start_from": str(one.folder)}, epochs=1), base=place)
    assert unmask.load(two.folder).classify("the river").label in ("dry", "wet")


RECORDS = [Labeled(f"line {number}", f"t{number}", None, "ab"[number % 2]) for number in range(40)]


def test_shots_are_drawn_by_the_seed(tmp_path):
    settings = settings_of_table(few(tmp_path))
    one, same, other = (few_texts(RECORDS, ("a", "b"), replace(settings, seed=seed)) for seed in (1, 1, 2))
    assert one == same != other
    for some in (one, other):
        assert [record.label for record in some].count("a") == 8 == len(some) - 8
        places = [RECORDS.index(record) for record in some]
        assert places == sorted(set(places))
    everything = replace(settings, few_shot=replace(settings.few_shot, shots=None))
    assert few_texts(RECORDS, ("a", "b"), everything) == RECORDS


@pytest.mark.parametrize(
    ("shots", "records", "sentence"),
    [
        (21, RECORDS, "20 texts with the label 'a', and few_shot.shots is 21; add texts, or set fewer shots"),
        (2, RECORDS[:3], "1 text with the label 'b', and few_shot.shots is 2; add texts$"),
        (None, RECORDS[:3], "1 text with the label 'b', and pairs need at least 2 of each label; add texts$"),
        (None, RECORDS[::2], "0 texts with the label 'b', and pairs need"),
    ],
)
def test_too_few_texts_are_one_sentence(tmp_path, shots, records, sentence):
    settings = settings_of_table(few(tmp_path, few_shot={"shots": shots} if shots else {}))
    with pytest.raises(InvalidRequest, match=sentence):
        few_texts(records, ("a", "b"), settings)


def test_a_label_that_is_not_of_the_task_is_named(place, tmp_path):
    data = {"train": ["train.tsv"], "labels": ["dry", "damp"]}
    with pytest.raises(InvalidRequest, match="0 texts with the label 'damp'"):
        finetune(few(tmp_path / "run", data=data), base=place)
    (tmp_path / "some.tsv").write_text("text\tlabel\n" + "a\tdry\nb\tdamp\nc\twet\n" * 2)
    data = {"train": [str(tmp_path / "some.tsv")], "labels": ["dry", "damp"]}
    with pytest.raises(InvalidText, match=r"line 4 of .* has the label 'wet', which is none of"):
        finetune(few(tmp_path / "run", data=data, few_shot={}), base=place)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"task": "regression"}, "few_shot. is for classification with one label .*task is regression"),
        ({"task": "multi_label"}, "task is multi_label; leave it out"),
        ({"frozen": True}, "frozen and .few_shot. exclude each other"),
        ({"adapter": {}}, ".adapter. and .few_shot. exclude each other"),
        ({"class_weights": [1.0, 2.0]}, "class_weights and .few_shot."),
        ({"label_smoothing": 0.1}, "label_smoothing and .few_shot."),
        ({"r_drop": 1.0}, "r_drop and .few_shot."),
        ({"sift": {"weight": 1.0}}, ".sift. and .few_shot."),
        ({"model": {"start_from": "tiny", "head_dropout": 0.1}}, "model.head_dropout and .few_shot."),
        ({"few_shot": {"shots": 1}}, "shots is 1; it must be at least 2"),
        ({"few_shot": {"num_iterations": 0}}, "num_iterations is 0"),
        ({"few_shot": {"max_pairs": 1}}, "max_pairs is 1"),
        ({"few_shot": {"head_c": 0}}, "head_c is 0; it must be above 0"),
        ({"few_shot": {"sampling_strategy": "all"}}, "sampling_strategy"),
        (
            {"few_shot": {"num_iterations": 3, "sampling_strategy": "unique"}},
            "num_iterations is 3 and sampling_strategy is unique; give one of the two",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path, changes, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        settings_of_table(few(tmp_path, **changes))


def test_missing_epochs_and_batches_are_those_of_setfit(tmp_path):
    given = few(tmp_path)
    read = settings_of_table(given)
    assert (read.epochs, read.batch_size) == (2, 16)
    del given["epochs"], given["batch_size"]
    read = settings_of_table(given)
    assert (read.epochs, read.batch_size, read.optimizer.learning_rate) == (1, 16, 5e-3)
    del given["few_shot"], given["optimizer"]
    read = settings_of_table(given)
    assert (read.epochs, read.batch_size, read.optimizer.learning_rate) == (3, 32, 2e-5)


def test_a_sweep_over_shots(place, tmp_path):
    given = {"sweep": {"few_shot.shots": [2, 3]}, "evaluation": {"metric": "accuracy"}, "epochs": 1}
    result = finetune(few(tmp_path / "run", **given), base=place)
    assert sorted(one.values["few_shot.shots"] for one in result.trials) == [2, 3]
