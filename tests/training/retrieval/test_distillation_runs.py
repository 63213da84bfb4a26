"""Runs that distill a teacher's vectors: students with some layers, smaller ones, and stored vectors."""

import numpy as np
import pytest
import sentence_transformers

import unmask
from tests.training.finetune.test_finetune import Heard
from tests.training.retrieval.runs import files, stopped_and_resumed, table
from unmask.errors import InvalidRequest
from unmask.training.finetune.run import finetune
from unmask.training.finetune.settings import DataSettings, settings_of_table
from unmask.training.retrieval.records import read_texts
from unmask.training.run.log import read_events

pytestmark = pytest.mark.long

SMALL = {"start_from": "tiny", "config": {"hidden_size": 20, "num_attention_heads": 4}}
TEXTS = ["the river", "a bank was muddy"]


def cosines(run):
    return [
        event["distillation/cosine"] for event in read_events(run / "log.jsonl") if event["event"] == "step"
    ]


def given(**more):
    return {"kind": "distillation", "teacher": "tiny", **more}


@pytest.mark.parametrize(
    ("retrieval", "model", "width"),
    [
        ({"layers": [0, 2]}, {"start_from": "tiny"}, 30),
        ({"new_weights": True, "loss": "cosine"}, SMALL, 20),
    ],
    ids=["layers", "smaller"],
)
def test_a_student_learns_its_teachers_vectors(place, tmp_path, retrieval, model, width):
    heard = Heard()
    run = table(tmp_path / "run", given(**retrieval), model=model, epochs=4)
    result = finetune(run, base=place, callback=heard)
    found = cosines(tmp_path / "run")
    assert np.mean(found[-5:]) > np.mean(found[:5]) + 0.02
    ours = unmask.load(result.folder)
    theirs = sentence_transformers.SentenceTransformer(str(result.folder), device="cpu")
    assert ours.spec.width == width
    assert len(ours.spec.layers) == (2 if "layers" in retrieval else 3)
    np.testing.assert_allclose(ours.embed(TEXTS), theirs.encode(TEXTS), rtol=0, atol=1e-5)
    teacher = unmask.load(place / "tiny")
    assert ours.embed(TEXTS).shape == teacher.embed(TEXTS).shape
    assert (ours.embed(TEXTS) * teacher.embed(TEXTS)).sum(-1).min() > 0.5, "of vectors of length 1"
    assert "tiny encodes 240 texts once" in "\n".join(heard.said)
    assert len(list((tmp_path / "run").glob("teacher-*.npy"))) == 1


def test_a_student_with_all_layers_begins_as_its_teacher(place, tmp_path):
    finetune(table(tmp_path / "run", given(layers=[0, 1, 2]), optimizer={"learning_rate": 1e-9}), base=place)
    events = [one for one in read_events(tmp_path / "run/log.jsonl") if one["event"] == "held_out"]
    finetune(table(tmp_path / "dense", {}, optimizer={"learning_rate": 1e-9}), base=place)
    others = [one for one in read_events(tmp_path / "dense/log.jsonl") if one["event"] == "held_out"]
    assert events[0]["dev/ndcg@10"] == others[0]["dev/ndcg@10"]


def test_a_stopped_run_resumes_bit_by_bit(place, tmp_path, monkeypatch):
    run = {"retrieval": given(layers=[0, 2], tokens_per_pass=40), "epochs": 1, "batch_size": 16}
    whole = finetune(table(tmp_path / "whole") | run, base=place)
    again = stopped_and_resumed(monkeypatch, table(tmp_path / "broken") | run, place)
    assert (again.steps, again.dev) == (whole.steps, whole.dev)
    assert files(again.folder) == files(whole.folder)


def test_stored_vectors(place, tmp_path):
    texts = read_texts(["train.jsonl"], DataSettings(("x",)), place)
    assert len(texts) == 240
    vectors = unmask.load(place / "tiny").embed(texts)
    np.save(tmp_path / "vectors.npy", vectors.astype(np.float32))
    stored = {"kind": "distillation", "teacher_vectors": str(tmp_path / "vectors.npy")}
    short = {"epochs": 0.2, "evaluation": {}, "data": {"train": ["train.jsonl"]}}
    one = finetune(table(tmp_path / "a", stored, **short), base=place)
    other = finetune(table(tmp_path / "b", given(), **short), base=place)
    np.testing.assert_allclose(
        unmask.load(one.folder).embed(TEXTS), unmask.load(other.folder).embed(TEXTS), rtol=0, atol=1e-4
    )
    np.save(tmp_path / "vectors.npy", vectors[:-1])
    with pytest.raises(InvalidRequest, match=r"holds float32 numbers of shape \(239, 30\).* 240 texts"):
        finetune(table(tmp_path / "c", stored, **short), base=place)


@pytest.mark.parametrize(
    ("retrieval", "error"),
    [
        ({"kind": "distillation"}, "give one of teacher and teacher_vectors"),
        ({"kind": "distillation", "teacher": "x", "teacher_vectors": "y"}, "give one of teacher and"),
        ({"teacher": "x"}, "teacher is 'x' and is for the kind distillation"),
        ({"layers": [0], "new_weights": True}, "layers and new_weights exclude each other"),
        ({"kind": "distillation", "teacher": "x", "loss": "kl"}, "learns by one of: l2, mse, cosine"),
    ],
)
def test_settings_without_a_meaning_are_refused(tmp_path, retrieval, error):
    with pytest.raises(InvalidRequest) as refused:
        settings_of_table(table(tmp_path, retrieval))
    assert error in str(refused.value)


def test_layers_that_are_not_there(place, tmp_path):
    with pytest.raises(InvalidRequest, match="and the encoder has the layers 0 to 2"):
        finetune(table(tmp_path / "run", given(layers=[0, 3])), base=place)
