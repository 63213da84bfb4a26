"""Vectors of the spans that fit a label, for checkpoints of GLiNER.

`EXPECTED` is the ``span_rep`` of the package gliner 0.2.24 in float64 on the folders that `write_gliner`
writes, for the first word of the second text.
"""

import json

import numpy as np
import pytest

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.tasks.test_label_encoders import OF_LABELS
from tests.tasks.test_labels import TEXTS, write_gliner
from unmask.bulk import BatchPredictor
from unmask.errors import InvalidRequest
from unmask.tasks.label_network import sigmoid
from unmask.tasks.tag import EntityVector

LABELS = ["person", "city", "a drug"]
EXPECTED = {
    "one encoder": [2.204007, -0.898957, 3.044246, -0.655412, 0.519442, -1.530385],
    "two encoders": [2.48822, -0.793155, 6.097878, -0.272169, 2.016955, -0.848359],
}
OPTIONS = {"labels": LABELS, "threshold": 0.003, "nested": True, "multi_label": True}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    place = tmp_path_factory.mktemp("gliner")
    return {
        "one encoder": unmask.load(write_gliner(place / "uni")),
        "two encoders": unmask.load(write_gliner(place / "bi", **OF_LABELS)),
    }


@pytest.mark.parametrize("kind", EXPECTED)
def test_vectors_are_those_of_gliner(models, kind):
    found = models[kind].tag(TEXTS, **OPTIONS, vectors=True)[1].entities
    (first,) = {entity.vector for entity in found if (entity.start, entity.end) == (0, 2)}
    assert first == pytest.approx(EXPECTED[kind], abs=1e-5)
    assert len({entity.vector for entity in found}) > 3


def test_all_else_is_as_without_vectors(models):
    for model in models.values():
        plain, found = model.tag(TEXTS, **OPTIONS), model.tag(TEXTS, **OPTIONS, vectors=True)
        for without, tagging in zip(plain, found, strict=True):
            assert all(isinstance(entity, EntityVector) for entity in tagging.entities)
            assert [
                {name: value for name, value in vars(entity).items() if name != "vector"}
                for entity in tagging.entities
            ] == [vars(entity) for entity in without.entities]


def test_the_product_with_the_vector_of_the_label_is_the_logit_in_every_window(models):
    model = models["two encoders"]
    network = model.reader.checkpoint_labels
    projected = network.project_labels(model.reader.label_vectors.of(LABELS))
    targets_CD = network._two_layers("prompt_rep_layer", projected)
    (tagging,) = model.tag(["Ada met Bob in Rome, the city. as a drug " * 20], **OPTIONS, vectors=True)
    assert tagging.windows > 3
    assert len(tagging.entities) > 100
    for entity in tagging.entities:
        logit = np.array(entity.vector) @ targets_CD[LABELS.index(entity.label)]
        assert sigmoid(logit) == pytest.approx(entity.score, abs=1e-5)


def test_a_text_without_entities_has_no_vectors(models):
    assert models["one encoder"].tag(TEXTS[0], labels=["city"], threshold=1, vectors=True).entities == ()


def test_where_there_are_none_they_are_refused(models, tmp_path):
    with pytest.raises(InvalidRequest, match="vectors are for labels"):
        unmask.load("unmask-mini").tag("Ada", vectors=True)
    with pytest.raises(InvalidRequest, match="vectors is 'no'"):
        models["one encoder"].tag(TEXTS, labels=LABELS, vectors="no")
    words = write_gliner(tmp_path / "words", span_mode="token_level")
    with pytest.raises(InvalidRequest, match="scores words, so spans have no vectors"):
        unmask.load(words).tag(TEXTS, labels=LABELS, vectors=True)
    task = BatchPredictor(str(words), method="tag", options={"labels": LABELS, "vectors": True})
    with pytest.raises(InvalidRequest, match="vectors are not written over shards"):
        task({"text": TEXTS})
    for given in (["--vectors"], ["--vectors", "--labels", "city"], ["--vectors", "--json"]):
        assert_one_sentence(
            run_here("tag", "-m", words, *given, TEXTS[0]), "--vectors needs --labels and --json"
        )


def test_the_command_and_a_server_give_the_same(models, tmp_path):
    pytest.importorskip("httpx", reason="starlette's test client needs httpx")
    from starlette.testclient import TestClient

    from unmask.serve import make_app

    expected = [
        list(it.vector) for it in models["one encoder"].tag(TEXTS[0], labels=LABELS, vectors=True).entities
    ]
    assert expected
    folder = write_gliner(tmp_path / "model")
    ran = run_here("tag", "-m", folder, "--labels", ",".join(LABELS), "--vectors", "--json", TEXTS[0])
    app = make_app({"spans": models["one encoder"]})
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:
        body = {"texts": TEXTS[0], "labels": LABELS}
        answer = client.post("/v1/entities", json=body | {"vectors": True}).json()
        plain = client.post("/v1/entities", json=body).json()
    app.state.service.close()
    assert "vector" not in plain["results"][0]["entities"][0]
    for entities in (json.loads(ran.out)["entities"], answer["results"][0]["entities"]):
        np.testing.assert_allclose([entity["vector"] for entity in entities], expected, atol=1e-5)
