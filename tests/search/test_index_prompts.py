"""An index whose model reads queries and documents after prompts."""

import numpy as np
import pytest

import unmask
from tests.support.tiny import write_prompts
from unmask.errors import InvalidRequest
from unmask.search.index import Index

QUERY_PROMPT, PROMPT = "a text ", "another the "
LONGEST = 30
TEXTS = {
    "a": "The river bank, was muddy.",
    "b": "another text, another bank",
    "same": "The river bank, was muddy.",
    "long": "The muddy river was a bank. " * 9,
}


PROMPTS = {"query": QUERY_PROMPT, "passage": PROMPT}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return unmask.load(write_prompts(tmp_path_factory.mktemp("prompted") / "model", PROMPTS, LONGEST))


@pytest.fixture(scope="module")
def sparing(tmp_path_factory):
    """A model that does not pool the tokens of its prompts."""
    folder = write_prompts(
        tmp_path_factory.mktemp("sparing") / "model", PROMPTS, LONGEST, include_prompt=False
    )
    return unmask.load(folder)


def filled(path, model, **options):
    made = Index.create(path, model, bm25=False, **options)
    return made, made.add([{"id": id, "text": text} for id, text in TEXTS.items()])


@pytest.mark.parametrize("which", ["model", "sparing"])
def test_scores_are_products_of_the_prompted_texts(which, request, tmp_path):
    model = request.getfixturevalue(which)
    index, added = filled(tmp_path / "index", model)
    hits = index.search("a muddy river", k=100)
    assert len(hits) == index.passages > len(TEXTS)
    assert added.dropped_tokens == 0
    query = model.embed("a muddy river", prompt=QUERY_PROMPT)
    for hit in hits:
        prompted = model.embed(hit.text, prompt=PROMPT)
        assert hit.score == pytest.approx(float(query @ prompted), abs=1e-5), hit
    assert {hit.score for hit in hits if hit.document == "a"} == {
        hit.score for hit in hits if hit.document == "same"
    }
    unprompted = model.embed(hits[0].text, prompt="")
    assert hits[0].score != pytest.approx(float(query @ unprompted), abs=1e-3)


def test_passages_leave_room_for_the_prompt(model, tmp_path):
    index, _ = filled(tmp_path / "index", model)
    taken = len(model.tokenizer.encode(PROMPT)) - 2
    passages = {len(model.tokenizer.encode(hit.text)) for hit in index.search("bank", k=100)}
    assert LONGEST - taken - 8 < max(passages) <= LONGEST - taken


def test_whole_documents_are_truncated_as_embed_truncates_them(model, tmp_path):
    index, added = filled(tmp_path / "index", model, whole_documents=True)
    (hit,) = (one for one in index.search("bank") if one.document == "long")
    query, prompted = model.embed_query("bank"), model.embed_document(TEXTS["long"], truncation="end")
    assert hit.score == pytest.approx(float(query @ prompted), abs=1e-5)
    prompted = model.tokenize(PROMPT + TEXTS["long"], truncation="end")
    assert added.truncated_documents == ("long",)
    assert added.dropped_tokens == prompted.truncated_tokens


@pytest.mark.parametrize("whole", [False, True])
def test_a_prompt_that_makes_a_passage_too_long(tmp_path, whole):
    """The prompt ends inside a word, so that the word after it is split into letters: the passage is cut once
    more, and a whole document loses its end, which is counted."""
    folder = write_prompts(tmp_path / "model", {"document": "x"}, LONGEST)
    index = Index.create(tmp_path / "index", folder, bm25=False, whole_documents=whole)
    added = index.add([{"id": "one", "text": "another " + "bank " * 24}])
    hits = sorted(index.search("bank"), key=lambda hit: hit.start)
    prompted = [index.model("dense").tokenize("x" + hit.text, truncation="end") for hit in hits]
    dropped = sum(one.truncated_tokens for one in prompted)
    assert (dropped > 0) is whole
    assert len(hits) == (1 if whole else 3)
    assert added.dropped_tokens == dropped
    assert added.tokens + added.dropped_tokens == 25


@pytest.mark.parametrize("which", ["model", "sparing"])
def test_shares_add_up_and_stand_in_the_document(which, request, tmp_path):
    index, _ = filled(tmp_path / "index", request.getfixturevalue(which))
    for hit in index.search("a muddy river", k=100, why=True):
        (why,) = hit.why
        assert sum(share.share for share in why.shares) + why.special == pytest.approx(hit.score, abs=1e-6)
        text = index.document(hit.document).text
        for share in (*why.shares, *why.attribution):
            ((start, end),) = share.spans
            assert text[start:end] == share.label
            assert hit.start <= start < end <= hit.end
        assert bool(why.attribution) == (which == "model")


def test_tokens_that_are_not_pooled_have_no_share(sparing, tmp_path):
    """Shares are products with the states of pooled tokens, scaled to the score: by hand, of all of them."""
    index, _ = filled(tmp_path / "index", sparing)
    query_E = sparing.embed_query("a muddy river")
    for hit in index.search("a muddy river", k=100, why="shares"):
        (why,) = hit.why
        states_ND = sparing.hidden_states(PROMPT + hit.text).numpy()
        pooled = len(states_ND) - len(why.shares) - 1  # [CLS] and the prompt; [SEP] is pooled
        products_N = (states_ND @ query_E)[pooled:]
        wanted = hit.score * products_N / products_N.sum()
        np.testing.assert_allclose([share.share for share in why.shares], wanted[:-1], atol=1e-4)
        assert why.special == pytest.approx(wanted[-1], abs=1e-4)


def test_late_chunking_with_a_prompt_is_refused(model, tmp_path):
    with pytest.raises(InvalidRequest, match="the prompt 'another the ' before documents, and late chunking"):
        Index.create(tmp_path / "index", model, chunking="late")
    assert not (tmp_path / "index").exists()


def test_without_a_prompt_texts_are_tokenized_once(tiny_folder, tmp_path, monkeypatch):
    plain = unmask.load(tiny_folder)
    index = Index.create(tmp_path / "index", plain, bm25=False)
    read = []
    encode = type(plain.tokenizer).encode_batch
    monkeypatch.setattr(
        type(plain.tokenizer),
        "encode_batch",
        lambda self, texts, *args, **options: read.extend(texts) or encode(self, texts, *args, **options),
    )
    index.add([{"id": "long", "text": TEXTS["long"]}])
    assert index.passages > 1
    assert read == [TEXTS["long"]]
    assert np.isfinite(index.search("bank")[0].score)
