"""Predictions of task heads in the explorer, beside what the models themselves predict."""

import numpy as np
import pytest

import unmask
from tests.explorer.conftest import Asking
from tests.support.explorable import FakeModel
from unmask.explorer import Api
from unmask.explorer.routes.tasks import _replaced
from unmask.interpret.effects.attribution import attribution
from unmask.interpret.effects.target import TokenClasses
from unmask.tasks.logits import WindowedLogits
from unmask.text.windows import windows

TEXT = "Marie Curie was born in Warsaw and worked in Paris."
QUESTION = "Where was Marie Curie born?"


@pytest.fixture(scope="module")
def models():
    return {name: unmask.load("default", adapter=name) for name in ("sentiment", "names", "answers")}


@pytest.fixture(scope="module")
def api(models):
    discriminator = FakeModel("detector", architectures=["ElectraForPreTraining"], model_type="electra")
    made = Api([*models.values(), discriminator])
    yield Asking(made)
    made.close()


def predicted(api, text, model, **options):
    text_id = api.measured(text, model=model, **options)
    return text_id, api.json(f"texts/{text_id}/prediction")


def test_classes_are_those_of_the_model(api, models):
    text = "A warm, funny and moving film."
    text_id, found = predicted(api, text, 0)
    own = models["sentiment"].classify(text)
    assert (found["kind"], found["value"], found["spans"]) == ("classes", False, [])
    assert {class_["label"]: class_["score"] for class_ in found["classes"]} == pytest.approx(
        dict(own.scores), abs=1e-6
    )
    assert [class_["label"] for class_ in found["classes"] if class_["applies"]] == [own.label]
    chosen = found["classes"][1]["id"]
    arrays, meta = api.arrays(f"texts/{text_id}/relevance?target=class&id={chosen}")
    assert arrays["values"].max() > 0
    assert "the class positive" in meta["words"]
    assert "0 to 1" in api.problem(f"texts/{text_id}/relevance?target=class&id=7", 409)["sentence"]


def test_names_and_what_they_rest_on(api, models):
    model = models["names"]
    text_id, found = predicted(api, TEXT, 1)
    own = model.tag(TEXT)
    answer = api.json(f"texts/{text_id}")
    spans = found["spans"]
    assert [(span["label"], span["text"]) for span in spans] == [
        (span.label, span.text) for span in own.entities
    ]
    for span, entity in zip(spans, own.entities, strict=True):
        tokens = answer["tokens"][span["first"] : span["stop"]]
        assert (tokens[0]["start"], tokens[-1]["end"]) == (entity.start, entity.end)
        assert span["score"] == pytest.approx(entity.score, abs=1e-6)
    name = spans[0]
    assert name["text"] == "Marie Curie"
    assert len(name["tokens"]) == 2
    pairs = ",".join(f"{token}:{one}" for token, one in zip(name["tokens"], name["classes"], strict=True))
    arrays, meta = api.arrays(f"texts/{text_id}/relevance?target=class&classes={pairs}")
    view = model.attention(TEXT)
    target = TokenClasses("tokens", tuple(name["tokens"]), tuple(name["classes"]))
    expected = attribution(view.cache, target, encoder=model.trainable_encoder(replace=False))
    np.testing.assert_allclose(arrays["values"], expected.values, rtol=1e-4, atol=1e-6)
    assert "at “Marie”" in meta["words"]


def test_answers_stand_in_the_second_text(api, models):
    text_id, found = predicted(api, QUESTION, 2, pair=TEXT)
    answer = api.json(f"texts/{text_id}")
    own = models["answers"].answer(QUESTION, TEXT, top_k=3)
    assert [span["text"] for span in found["spans"]] == [span.text for span in own.answers]
    best = found["spans"][0]
    assert best["score"] == pytest.approx(own.answers[0].score, abs=1e-6)
    assert best["tokens"] == [best["first"], best["stop"] - 1]
    shown = answer["tokens"][best["first"]]
    assert shown["in_pair"]
    assert TEXT[shown["start"] :].startswith(best["text"])
    arrays, _ = api.arrays(
        f"texts/{text_id}/relevance?target=class&classes={best['tokens'][0]}:0,{best['tokens'][1]}:1"
    )
    assert arrays["by_layer"].shape == (6, len(answer["tokens"]))
    alone, nothing = predicted(api, QUESTION, 2)
    assert (nothing["spans"], alone) != ([], text_id)
    assert "second" in nothing["note"]


def test_special_tokens_are_never_taken_for_replaced_ones():
    encoding = unmask.load("default").tokenizer.encode("the river", "a bank")
    read = WindowedLogits(encoding, windows(encoding, None), [np.ones((len(encoding), 1))])
    found = _replaced(read)
    assert [span.first for span in found.spans] == np.flatnonzero(~encoding.special).tolist()
    assert [span.in_pair for span in found.spans] == [False, False, True, True]


def test_bad_targets_get_one_sentence(api):
    text_id, _ = predicted(api, TEXT, 1)
    path = f"texts/{text_id}/relevance?target=class&classes="
    assert "write token:class" in api.problem(path + "1-5", 400)["sentence"]
    count = len(api.json(f"texts/{text_id}")["tokens"])
    for token in (99, count):
        refused = api.problem(f"{path}{token}:1", 400)["sentence"]
        assert refused == f"classes names a token from {count} on; the text has {count}"
    assert "classes 0 to" in api.problem(path + "1:99", 400)["sentence"]
    embedder = Asking(Api([FakeModel("plain", architectures=["BertModel"])]))
    plain_id = embedder.measured()
    assert "no classifier" in embedder.problem(f"texts/{plain_id}/prediction", 409)["sentence"]
    embedder.api.close()
