"""Entities of labels that a second encoder reads (bi-encoders of GLiNER).

`EXPECTED` was computed by the package gliner 0.2.24 in float64 on the folder that `write_gliner` writes.
"""

import pickle
import shutil

import numpy as np
import pytest

import unmask
from tests.tasks.test_labels import ENCODER, TEXTS, as_rows, write_gliner
from unmask.errors import CorruptCheckpoint, TensorMismatch, TextTooLong

LABELS = ["person", "city"]
OF_LABELS = {
    "labels_encoder": "labels",
    "labels_encoder_config": ENCODER | {"hidden_size": 10, "intermediate_size": 14},
}
THRESHOLD = {"markerV0": 0.005, "token_level": 0.1}
EXPECTED = {
    "markerV0": [
        [(0, 3, "city", 0.077231), (4, 11, "city", 0.077358), (12, 20, "city", 0.077418)],
        [
            (0, 2, "city", 0.077227),
            (2, 3, "city", 0.077269),
            (4, 14, "city", 0.077429),
            (15, 18, "city", 0.077205),
            (19, 23, "city", 0.077331),
            (24, 29, "city", 0.077426),
        ],
    ],
    "token_level": [
        [
            (0, 3, "city", 0.19139),
            (4, 7, "person", 0.235025),
            (8, 11, "city", 0.182055),
            (12, 14, "city", 0.20235),
            (15, 19, "city", 0.196236),
            (19, 20, "person", 0.229887),
        ],
        [
            (0, 2, "city", 0.354829),
            (2, 3, "city", 0.27266),
            (4, 7, "city", 0.303744),
            (8, 12, "person", 0.34628),
            (13, 14, "person", 0.325114),
            (15, 18, "city", 0.278112),
            (19, 23, "city", 0.210987),
            (24, 27, "person", 0.361936),
            (28, 29, "person", 0.353765),
        ],
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_gliner(tmp_path_factory.mktemp("gliner") / "model", span_mode="token_level", **OF_LABELS)


@pytest.fixture
def model(folder):
    return unmask.load(folder)


@pytest.mark.parametrize("mode", EXPECTED)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_entities_and_scores_are_those_of_gliner(tmp_path, mode, dtype):
    folder = write_gliner(tmp_path / "model", span_mode=mode, **OF_LABELS)
    found = unmask.load(folder, dtype=dtype).tag(TEXTS, labels=LABELS, threshold=THRESHOLD[mode])
    assert [as_rows(tagging) for tagging in found] == EXPECTED[mode]


def test_each_label_is_read_once(model, monkeypatch):
    read = []
    vectors = model.reader.label_vectors
    plain = vectors._read
    monkeypatch.setattr(vectors, "_read", lambda labels: read.append(list(labels)) or plain(labels))
    first = model.tag(TEXTS, labels=LABELS, threshold=0.1)
    assert model.tag(TEXTS, labels=LABELS, threshold=0.1) == first
    model.tag(TEXTS, labels=["drug", "city"])
    assert read == [LABELS, ["drug"]]


def test_more_labels_than_are_remembered_are_all_right(model, monkeypatch):
    monkeypatch.setattr("unmask.tasks.label_network.MOST_LABELS", 2)
    expected = model.tag(TEXTS, labels=LABELS, threshold=0.1)
    model.tag(TEXTS, labels=["drug"])
    assert list(model.reader.label_vectors._vectors) == ["drug"]
    assert model.tag(TEXTS, labels=LABELS, threshold=0.1) == expected
    assert model.reader.label_vectors.of(["drug", *LABELS]).shape == (3, 10)


def test_a_label_alone_has_the_vector_that_it_has_among_others(model):
    several = model.reader.label_vectors.of(["drug", "the city in the city", "person"])
    model.reader.label_vectors._vectors.clear()
    np.testing.assert_allclose(model.reader.label_vectors.of(["person"])[0], several[2], atol=1e-6)


def test_labels_take_no_room_of_the_text(model):
    text, labels = "Ada met Bob in Rome. " * 30, ["person", *(f"a{'s' * n}" for n in range(30))]
    (found,) = model.tag([text], labels=labels, threshold=0)
    (of_one,) = model.tag([text], labels=["person"], threshold=0)
    assert found.windows == of_one.windows > 3
    with pytest.raises(TextTooLong, match="special tokens take 2 of the 40 tokens"):
        model.tag("as" + "s" * 60, labels=["person"])


def test_a_copy_of_the_model_finds_the_same(model):
    again = pickle.loads(pickle.dumps(model))
    options = {"labels": LABELS, "threshold": 0.1}
    assert again.tag(TEXTS, **options) == model.tag(TEXTS, **options)


def test_a_saved_copy_finds_the_same(model, tmp_path):
    model.save(tmp_path / "copy")
    options = {"labels": LABELS, "threshold": 0.1}
    assert unmask.load(tmp_path / "copy").tag(TEXTS, **options) == model.tag(TEXTS, **options)


def test_a_label_that_is_too_long(model):
    with pytest.raises(TextTooLong, match="label 'person"):
        model.tag(TEXTS, labels=["person " * 50])


def test_a_folder_without_the_tokenizer_of_labels(folder, tmp_path):
    copied = shutil.copytree(folder, tmp_path / "model")
    shutil.rmtree(copied / "labels_encoder")
    with pytest.raises(CorruptCheckpoint, match="labels_encoder holds no tokenizer"):
        unmask.load(copied).tag(TEXTS, labels=LABELS)


def test_labels_as_wide_as_the_head_pass_through_no_matrix(tmp_path):
    of_labels = OF_LABELS["labels_encoder_config"] | {"hidden_size": 6}
    folder = write_gliner(tmp_path / "model", labels_encoder="labels", labels_encoder_config=of_labels)
    loaded = unmask.load(folder)
    assert loaded.tag("Ada", labels=LABELS, threshold=0).entities
    assert not any("labels_projection" in name for name in loaded.checkpoint.label_tensors)


def test_a_tensor_of_the_second_encoder_is_needed(tmp_path):
    config = OF_LABELS | {"labels_encoder_config": OF_LABELS["labels_encoder_config"]}
    folder = write_gliner(tmp_path / "model", **config)
    path = folder / "gliner_config.json"
    path.write_text(path.read_text().replace('"hidden_size": 10', '"hidden_size": 12'))
    with pytest.raises(TensorMismatch):
        unmask.load(folder).tag(TEXTS, labels=LABELS)
