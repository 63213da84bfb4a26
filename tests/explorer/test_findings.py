"""The overview in the API: its findings, the example that is read ahead, and what a saved page holds."""

import threading
import time

import pytest

from tests.explorer.conftest import Asking
from tests.support.explorable import FakeModel
from tests.support.waiting import HANG_SECONDS, wait_until
from unmask.errors import InvalidRequest
from unmask.explorer import Api
from unmask.explorer.export.views import ViewSelection, view_paths
from unmask.explorer.page import EXAMPLES, OTHER_SCRIPTS
from unmask.explorer.sessions import background
from unmask.explorer.sessions import texts as texts_module
from unmask.interpret.corpus.batch import EqualLengthBatch
from unmask.interpret.corpus.measure import kept_totals
from unmask.interpret.corpus.texts import Corpus
from unmask.interpret.effects.ablation import ablate_each
from unmask.interpret.effects.target import Embedding
from unmask.interpret.overview.overview import attention_findings

RIVER = "the river bank was muddy and the bank was big"


@pytest.fixture(scope="module")
def text_id(asking):
    return asking.measured(RIVER)


def kinds(answer):
    return [finding["kind"] for finding in answer["findings"]]


def test_findings_are_those_of_python(asking, text_id, model):
    view = model.attention(RIVER)
    expected = attention_findings(view, view.statistics())
    answer = asking.json(f"texts/{text_id}/findings")
    assert answer["layers"] == answer["layers_measured"] == 3
    assert kinds(answer) == [finding.kind for finding in expected.findings]
    for one, other in zip(answer["findings"], expected.findings, strict=True):
        assert one["sentence"] == other.sentence
        assert one["value"] == pytest.approx(other.value, rel=1e-5)


OTHERS = ["a river, a bank!", "the text was another text.", "the bank and the bank", "a a a a"]


def other_texts(model, cache):
    return Asking(Api([model], corpus=Corpus.of_strings(OTHERS, "mine"), corpus_cache=cache))


def test_findings_are_ranked_by_the_texts_that_are_read(model, tmp_path):
    """Before the corpus is read they are there too, and say that they were compared with nothing."""
    view = model.attention(RIVER)
    expected = attention_findings(view, view.statistics(), model.attention_over(OTHERS).figures).findings
    asking = other_texts(model, tmp_path)
    text = asking.measured(RIVER)
    first = asking.json(f"texts/{text}/findings")["findings"]
    assert {(one["surprise"], one["compared"]) for one in first} == {(None, 0)}
    asking.problem(f"texts/{text}/findings?texts=4", 409)
    asking.json("corpus/0", "POST", {})
    wait_until(lambda: asking.json("corpus/0")["phase"] == "done")
    ranked = asking.json(f"texts/{text}/findings?texts=4")["findings"]
    assert [(one["kind"], one["surprise"], one["compared"]) for one in ranked] == [
        (one.kind, one.surprise, one.compared) for one in expected
    ]
    assert {one["compared"] for one in ranked} == {0, len(OTHERS)}
    asking.api.close()


def test_what_an_earlier_launch_kept_is_compared_with_and_nothing_waits_for_it(model, tmp_path, monkeypatch):
    first = other_texts(model, tmp_path)
    first.json("corpus/0", "POST", {})
    wait_until(lambda: first.json("corpus/0")["phase"] == "done")
    first.api.close()
    let = threading.Event()

    def slow(*arguments):
        let.wait(HANG_SECONDS)
        return kept_totals(*arguments)

    monkeypatch.setattr(background, "kept_totals", slow)
    monkeypatch.setattr(EqualLengthBatch, "run", None)
    again = other_texts(FakeModel(), tmp_path)
    text = again.measured(RIVER)

    def compared():
        return {one["compared"] for one in again.json(f"texts/{text}/findings")["findings"]}

    assert compared() == compared() == {0}
    let.set()
    wait_until(lambda: compared() == {0, len(OTHERS)})
    assert again.json("corpus/0")["phase"] == "none"
    again.api.close()


def test_weights_that_look_untrained_are_not_measured_either():
    asking = Asking(Api([FakeModel("blank", initializer_range=0.02)]))
    text = asking.measured(RIVER)
    assert kinds(asking.json(f"texts/{text}/findings")) == ["labels"]
    assert kinds(asking.json(f"texts/{text}/findings/measured")) == []
    asking.api.close()


def test_heads_are_measured_for_a_word_where_the_model_predicts_words(asking, text_id, model):
    encoding = model.tokenize(RIVER)
    words = [at for at in range(len(encoding)) if not encoding.special[at]]
    longest = max(words, key=lambda at: (len(encoding.surface(at)), at))
    answer = asking.json(f"texts/{text_id}/findings/measured")
    assert kinds(answer) == ["effect", "prediction"]
    assert [finding["query"] for finding in answer["findings"]] == [longest, longest]
    assert f"“{encoding.surface(longest)}”" in answer["findings"][0]["sentence"]
    # A special token is not a word.
    assert asking.json(f"texts/{text_id}/findings/measured?token=0") == answer
    bank = asking.json(f"texts/{text_id}/findings/measured?token=3")
    assert {finding["query"] for finding in bank["findings"]} == {3}
    assert "“bank”" in bank["findings"][0]["sentence"]
    effect = bank["findings"][0]
    ablated = asking.json(f"texts/{text_id}/ablate/{effect['layer']}/{effect['head']}?token=3&how=zero")
    assert effect["value"] == pytest.approx(ablated["effect"], rel=1e-4)


def test_a_mask_in_the_text_is_the_word(asking):
    text_id = asking.measured("the river [MASK] was muddy")
    answer = asking.json(f"texts/{text_id}/findings/measured")
    assert kinds(answer) == ["effect", "prediction"]
    assert answer["findings"][1]["query"] == 3
    assert answer["findings"][1]["sentence"].startswith("For the mask, the model predicts")


def test_a_model_without_words_is_measured_by_its_embedding(asking, other):
    text_id = asking.measured(RIVER, model=1)
    (one,) = asking.json(f"texts/{text_id}/findings/measured?token=2")["findings"]
    assert one["kind"] == "effect"
    assert "the text's embedding" in one["sentence"]
    every = ablate_each(other.attention(RIVER).cache, Embedding())
    assert one["value"] == pytest.approx(abs(every.effect).max(), rel=1e-3)


def test_a_text_of_symbols_has_no_word_to_mask(asking):
    text_id = asking.measured("? !")
    assert "prediction" not in kinds(asking.json(f"texts/{text_id}/findings/measured"))


def test_a_token_that_is_not_there(asking, text_id):
    asking.problem(f"texts/{text_id}/findings/measured?token=99", 400)


def test_what_a_saved_page_holds(asking, text_id):
    def paths(model, token):
        texts = [asking.measured(RIVER, model=model)]
        return view_paths(
            lambda path: asking.api.answer("GET", path), texts, ViewSelection(("overview",), 1, 2, token)
        )

    assert f"texts/{text_id}/findings" in paths(0, None)
    assert f"texts/{text_id}/findings/measured" in paths(0, None)
    assert f"texts/{text_id}/findings/measured?token=3" in paths(0, 3)
    assert any(path.startswith(f"texts/{text_id}/overview?") for path in paths(0, None))
    # The page asks this model about its embedding, whichever token is chosen.
    assert next(path for path in paths(1, 3) if "measured" in path).endswith("findings/measured")


def test_the_session_names_the_examples(asking):
    assert asking.json("session")["examples"][: len(EXAMPLES)] == list(EXAMPLES)


def test_texts_in_other_scripts_are_offered_where_the_model_reads_them(asking, default_model):
    """The tokenizer of the first has no such characters, that of the default model has all."""
    assert asking.json("session")["examples"] == list(EXAMPLES)
    offered = Asking(Api([default_model])).json("session")["examples"]
    assert offered == [*EXAMPLES, *OTHER_SCRIPTS]


def ahead(text, *, wait=None):
    """An API that reads a text ahead, and the state of that text when the second model began to load."""
    seen, begun = [], threading.Event()
    apis = []

    def second():
        begun.wait(HANG_SECONDS)
        held = list(apis[0]._context.texts._held.values())
        seen.append([(one.encoding.text, one.state().phase) for one in held])
        return FakeModel("other", seed=1)

    apis.append(Api([("one", FakeModel), ("two", second)], first_text=text))
    begun.set()
    end = time.monotonic() + HANG_SECONDS
    while not seen and time.monotonic() < end:
        time.sleep(0.01)
    return apis[0], seen


def test_the_first_text_is_read_before_anything_else_is_loaded():
    api, seen = ahead(RIVER)
    try:
        assert seen == [[(RIVER, "done")]]
        # The page finds the same text.
        read = api.ask("texts", {"text": RIVER, "model": 0})
        assert api.ask(f"texts/{read['id']}/state")["phase"] == "done"
    finally:
        api.close()


@pytest.mark.parametrize("text", [None, "", "word " * 99])
def test_a_first_text_that_cannot_be_read_stops_nothing(text):
    api, seen = ahead(text)
    try:
        assert seen == [[]]
        assert next(place.phase for place in api._context.models.places) == "ready"
    finally:
        api.close()


def test_a_model_that_cannot_be_loaded_is_not_read_with():
    def broken():
        raise InvalidRequest("no such model")

    api = Api([("one", broken), ("two", FakeModel)], first_text=RIVER)
    try:
        assert api._context.models.at(1).need() is not None
        assert api.ask("session")["models"][0]["phase"] == "failed"
    finally:
        api.close()


def test_a_long_first_text_does_not_keep_other_models_waiting(monkeypatch):
    monkeypatch.setattr(texts_module, "AHEAD_SECONDS", 0.0)
    api, seen = ahead(RIVER)
    try:
        assert len(seen) == 1
    finally:
        api.close()
