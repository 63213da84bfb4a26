"""Calibration: the temperature that is fitted, what it changes, and where it is kept."""

import json
import random

import numpy as np
import pytest
import torch
import transformers
from scipy import optimize, special

import unmask
from tests.support.tiny import change_json, tiny_bert, write_tokenizer
from tests.training.finetune.test_finetune import Heard, place, table  # noqa: F401 - a fixture
from unmask.errors import CorruptCheckpoint, InvalidRequest
from unmask.tasks.logits import WindowedLogits
from unmask.text.windows import windows
from unmask.training.finetune.calibration import (
    calibration_figures,
    class_probabilities,
    figures_of,
    fitted_temperature,
)
from unmask.training.finetune.run import finetune
from unmask.training.finetune.settings import settings_of_table

pytestmark = pytest.mark.long


def texts(logits_SC, encoding):
    return [WindowedLogits(encoding, windows(encoding, None), [logits]) for logits in logits_SC]


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_the_scale_of_logits_is_found(tiny_model, scale):
    """Labels are drawn from the softmax of logits; of logits times ``scale`` the temperature is ``scale``."""
    draw = np.random.default_rng(0)
    logits_SC = draw.normal(size=(4000, 3)) * 2
    p_SC = np.exp(logits_SC) / np.exp(logits_SC).sum(-1, keepdims=True)
    gold_S = (draw.random((4000, 1)) > p_SC.cumsum(-1)).sum(-1)
    read = texts(logits_SC * scale, tiny_model.tokenizer.encode("a text"))
    found = fitted_temperature(read, gold_S)
    assert found == pytest.approx(scale, rel=0.05)
    best = calibration_figures(class_probabilities(read, found), gold_S)
    for other in (found * 0.9, found * 1.1, 1.0):
        assert best["nll"] <= calibration_figures(class_probabilities(read, other), gold_S)["nll"]
    assert best["ece"] < 0.03
    if scale == 3:
        assert calibration_figures(class_probabilities(read), gold_S)["ece"] > 0.1


@pytest.mark.parametrize("scale", [0.4, 2.5])
def test_several_labels_have_the_temperature_that_scipy_finds(tiny_model, scale):
    draw = np.random.default_rng(0)
    logits_SC = draw.normal(size=(600, 4)) * 2
    gold_SC = draw.random((600, 4)) < special.expit(logits_SC)
    read = texts(logits_SC * scale, tiny_model.tokenizer.encode("a text"))
    found = fitted_temperature(read, gold_SC, "multi_label_classification")

    def cross_entropy(temperature):
        signed = np.where(gold_SC, 1, -1) * logits_SC * scale / temperature
        return -special.log_expit(signed).mean()

    best = optimize.minimize(lambda x: cross_entropy(x[0]), [1.0], method="Nelder-Mead", tol=1e-9)
    assert found == pytest.approx(best.x[0], rel=1e-3)
    assert found == pytest.approx(scale, rel=0.1)
    p_SC = class_probabilities(read, found, "multi_label_classification")
    figures = figures_of(p_SC, gold_SC)
    assert figures["bce"] == pytest.approx(cross_entropy(found))
    assert figures["brier"] == pytest.approx(np.mean((p_SC - gold_SC) ** 2))
    assert figures["ece"] < 0.03
    assert fitted_temperature(read, logits_SC > 0, "multi_label_classification") is None


def test_a_run_of_several_labels_is_calibrated(place, tmp_path):  # noqa: F811
    draw, words = random.Random(1), ["the", "river", "bank", "was", "muddy", "a"]
    for part, count, wrong in (("train", 40, 0.0), ("dev", 60, 0.3)):
        rows = []
        for _ in range(count):
            some = draw.choices(words, k=5)
            labels = [one for one in ("river", "bank") if (one in some) != (draw.random() < wrong)]
            rows.append(json.dumps({"text": " ".join(some), "label": labels}))
        (place / f"many-{part}.jsonl").write_text("\n".join(rows))
    data = {"train": ["many-train.jsonl"], "dev": ["many-dev.jsonl"]}
    given = table(tmp_path / "run", task="multi_label", epochs=12, data=data, evaluation={"calibrate": True})
    result = finetune(given, base=place)
    temperature = result.dev["dev/temperature"]
    assert temperature > 1
    assert result.dev["dev/bce"] < result.dev["dev/bce_uncalibrated"]
    ours = unmask.load(result.folder)
    logits = ours.logits("the river").values[0]
    expected = special.expit(logits / temperature)
    np.testing.assert_allclose(list(ours.classify("the river").scores.values()), expected, atol=1e-6)


def test_nothing_is_fitted_without_a_mistake(tiny_model):
    read = texts(np.array([[2.0, 0], [0, 1]]), tiny_model.tokenizer.encode("a text"))
    assert fitted_temperature(read, np.array([0, 1])) is None
    assert fitted_temperature(read, np.array([0, 0])) is not None


def test_figures_by_hand():
    p_SC = np.array([[0.9, 0.1], [0.88, 0.12], [0.3, 0.7], [1.0, 0.0]])
    found = calibration_figures(p_SC, np.array([0, 1, 1, 0]))
    assert found["nll"] == pytest.approx(-np.log([0.9, 0.12, 0.7, 1.0]).mean())
    assert found["brier"] == pytest.approx(np.mean([0.02, 2 * 0.88**2, 0.18, 0]))
    # Of 15 bins 0.9 and 0.88 are in one, whose accuracy is 0.5; 0.7 and 1.0 are alone and right.
    assert found["ece"] == pytest.approx((abs(0.9 + 0.88 - 1) + 0.3 + 0) / 4)
    wrong = calibration_figures(np.array([[1.0, 0.0]]), np.array([1]))
    assert wrong["nll"] == pytest.approx(-np.log(1e-12))


@pytest.fixture(scope="module")
def noisy(place):  # noqa: F811
    """Data whose rule holds for every training text and not for a third of the dev texts."""
    draw = random.Random(1)
    for name, count, wrong in (("train", 40, 0.0), ("dev", 60, 0.35)):
        rows = []
        for _ in range(count):
            words = draw.choices(["the", "river", "bank", "was", "muddy", "a"], k=5)
            wet = (words[0] in ("river", "muddy")) != (draw.random() < wrong)
            rows.append(f"{' '.join(words)}\t{'wet' if wet else 'dry'}")
        (place / f"noisy-{name}.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    return place


def test_a_run_is_calibrated(noisy, tmp_path):
    data = {"train": ["noisy-train.tsv"], "dev": ["noisy-dev.tsv"]}
    result, heard = {}, Heard()
    for calibrate in (False, True):
        given = table(
            tmp_path / str(calibrate), epochs=8, data=data, evaluation={"calibrate": calibrate}, name="x"
        )
        result[calibrate] = finetune(given, base=noisy, callback=heard if calibrate else None)
    figures = result[True].dev
    assert figures["dev/temperature"] > 1
    for name in ("nll", "brier", "ece"):
        assert figures[f"dev/{name}"] < figures[f"dev/{name}_uncalibrated"]
    assert figures["dev/accuracy"] == result[False].dev["dev/accuracy"]
    assert any(sentence.startswith("calibrated with temperature") for sentence in heard.said)

    folder = result[True].folder
    config = json.loads((folder / "config.json").read_text())
    assert config["unmask"] == {"temperature": figures["dev/temperature"]}
    plain, ours = unmask.load(result[False].folder), unmask.load(folder)
    for text in ("the river", "muddy river bank", "a text " * 20):
        before, after = plain.classify(text), ours.classify(text)
        assert before.label == after.label
        assert after.score < before.score
    np.testing.assert_array_equal(plain.logits("the river").values, ours.logits("the river").values)
    logits = torch.from_numpy(ours.logits("the river").values[0])
    expected = (logits / figures["dev/temperature"]).softmax(-1)
    np.testing.assert_allclose(list(ours.classify("the river").scores.values()), expected, atol=1e-6)

    # transformers ignores the temperature.
    theirs = transformers.pipeline("text-classification", str(folder), device="cpu")("the river")[0]
    assert theirs["score"] == pytest.approx(plain.classify("the river").score, abs=1e-5)

    ours.save(tmp_path / "again")
    assert unmask.load(tmp_path / "again").classify("the river") == ours.classify("the river")
    # The same command again changes nothing.
    before = (folder / "config.json").read_bytes()
    given = table(tmp_path / "True", epochs=8, data=data, evaluation={"calibrate": True}, name="x")
    assert finetune(given, base=noisy).dev == result[True].dev
    assert (folder / "config.json").read_bytes() == before
    # A run from a calibrated checkpoint begins without its temperature.
    given = table(tmp_path / "next", data=data, evaluation={}, model={"start_from": str(folder)})
    again = finetune(given, base=noisy)
    assert "unmask" not in json.loads((again.folder / "config.json").read_text())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"task": "regression"},
            "the task classification or multi_label, and the task is regression",
        ),
        ({"data": {"train": ["x"]}}, "the task is classification with no dev data"),
    ],
)
def test_what_cannot_be_calibrated(changes, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        settings_of_table(table("x", evaluation={"calibrate": True}, **changes))


@pytest.mark.parametrize(
    "value", [{"temperature": 0}, {"temperature": "1"}, {"temperature": True}, {}, {"x": 1}]
)
def test_a_wrong_temperature_is_refused(tmp_path, value):
    write_tokenizer(tmp_path)
    tiny_bert("BertForSequenceClassification").save_pretrained(tmp_path)
    change_json(tmp_path / "config.json", unmask={"temperature": 2})
    assert unmask.load(tmp_path).spec.heads[0].temperature == 2
    change_json(tmp_path / "config.json", unmask=value)
    with pytest.raises(CorruptCheckpoint, match=r"config.json says unmask is .* a number above 0"):
        unmask.load(tmp_path)
