"""Token routes, Cohere's embeddings, typed routes and search: each answers what Python answers."""

import base64
import json
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
from starlette.testclient import TestClient

import unmask
from tests.parity.test_static import table, write_folder
from tests.search.test_compressed_vectors import write_many_vectors
from tests.support.command import run_here
from tests.support.json_values import as_json, same
from tests.support.tiny import tiny_bert, write_checkpoint, write_prompts
from unmask.interpret import AttentionView
from unmask.search.documents import Document
from unmask.search.index import Index
from unmask.serve import make_app
from unmask.serve.errors import BadField
from unmask.serve.models import ServedModel
from unmask.serve.scheduler import Limits
from unmask.serve.searching import Indexes
from unmask.text.windows import windows

TEXTS = ["the river bank was muddy", "another text", "a bank.", "muddy, the river was"]
LONG = "the river " * 20
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def answered(client, path, **body):
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("typed")
    named = {"id2label": dict(enumerate(TAGS)), "label2id": {tag: i for i, tag in enumerate(TAGS)}}
    write_checkpoint(place / "names", tiny_bert("BertForTokenClassification", **named), sentence=False)
    write_checkpoint(place / "spans", tiny_bert("BertForQuestionAnswering"), sentence=False)
    write_checkpoint(place / "words", tiny_bert("BertForMaskedLM"), sentence=False)
    write_checkpoint(place / "choices", tiny_bert("BertForMultipleChoice"), sentence=False)
    write_checkpoint(place / "vectors")
    return place


@pytest.fixture(scope="module")
def models(folders):
    return {name: unmask.load(folders / name) for name in ("names", "spans", "words", "vectors", "choices")}


@pytest.fixture(scope="module")
def index(models, tmp_path_factory):
    made = Index.create(tmp_path_factory.mktemp("index") / "notes", models["vectors"])
    made.add([Document(str(number), text, metadata={"n": number}) for number, text in enumerate(TEXTS)])
    return made


@pytest.fixture(scope="module")
def client(models, index):
    app = make_app(models, indexes={"notes": index})
    with TestClient(app, base_url="http://127.0.0.1") as found:
        yield found
    app.state.service.close()


# --- tokens ------------------------------------------------------------------------------------------------


def test_ids_of_tokenize_are_read_as_their_text(client, models):
    tokens = answered(client, "/tokenize", inputs=TEXTS, model="vectors")
    ids = [[one["id"] for one in row] for row in tokens]
    assert ids == [one.ids.tolist() for one in models["vectors"].tokenize(TEXTS)]
    expected = models["vectors"].embed(TEXTS, normalize=True)
    np.testing.assert_allclose(answered(client, "/embed", inputs=ids), expected, atol=1e-6)
    np.testing.assert_allclose(answered(client, "/embed", inputs=ids[1]), expected[1:2], atol=1e-6)
    given = answered(client, "/v1/embeddings", input=ids, model="vectors")
    np.testing.assert_allclose([one["embedding"] for one in given["data"]], expected, atol=1e-6)
    assert given["usage"]["prompt_tokens"] == sum(map(len, ids))


def test_ids_that_are_too_long_are_cut_as_their_text_is(client, models):
    (row,) = answered(client, "/tokenize", inputs=LONG, model="vectors")
    answer = client.post("/embed", json={"inputs": [one["id"] for one in row], "truncate": True})
    assert answer.headers["x-truncated-inputs"] == "1"
    expected = models["vectors"].embed([LONG], truncation="end", normalize=True)
    np.testing.assert_allclose(answer.json(), expected, atol=1e-6)


def test_tokenize_and_decode(client, models):
    (row,) = answered(client, "/tokenize", inputs="The  river, muddying", model="words")
    encoding = models["words"].tokenize("The  river, muddying")
    assert [one["id"] for one in row] == encoding.ids.tolist()
    assert [one["special"] for one in row] == encoding.special.tolist()
    assert (row[0]["text"], row[0]["start"], row[0]["stop"]) == ("[CLS]", None, None)
    for one in row[1:-1]:
        assert one["text"] == "The  river, muddying"[one["start"] : one["stop"]]
    (bare,) = answered(client, "/tokenize", inputs="the", add_special_tokens=False)
    assert [one["text"] for one in bare] == ["the"]
    ids = [one["id"] for one in row]
    assert answered(client, "/decode", ids=ids) == ["the river, muddying"]
    assert answered(client, "/decode", ids=[ids, ids[:2]], skip_special_tokens=False) == [
        "[CLS] the river, muddying [SEP]", "[CLS] the",
    ]  # fmt: skip


def test_embed_all(client, models):
    found = answered(client, "/embed_all", inputs=TEXTS)
    expected = models["names"].hidden_states(TEXTS)  # the first model
    for one, states in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, states.numpy(), atol=1e-5)
    ids = models["names"].tokenize(TEXTS[0]).ids.tolist()
    np.testing.assert_allclose(answered(client, "/embed_all", inputs=ids)[0], expected[0].numpy(), atol=1e-5)


def test_choices(client, models):
    """The question is read with each choice; a long one in windows, or without its end."""
    for question, truncate in ((TEXTS[0], False), (LONG, False), (LONG, True)):
        answer = answered(client, "/v1/choices", question=question, choices=TEXTS[1:], truncate=truncate)
        expected = models["choices"].choose(question, TEXTS[1:], truncation="end" if truncate else "window")
        same({name: answer[name] for name in asdict(expected)}, as_json(expected))
    assert expected.truncated_tokens
    assert answer["model"] == "choices"
    assert answer["usage"]["prompt_tokens"] == expected.tokens_read
    refused = client.post("/v1/choices", json={"question": "a", "choices": ["b"]})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "question has 1 choice; give at least two"


def test_windows_of_more_tokens_than_may_wait_are_not_made(client, monkeypatch):
    monkeypatch.setattr("unmask.tasks.logits.in_windows", None)
    long = "a " * 300_000
    for path, body in (
        ("/v1/entities", {"texts": [long]}),
        ("/v1/answers", {"question": "a", "contexts": [long]}),
    ):
        refused = client.post(path, json=body)
        assert refused.status_code == 413
        assert "the request has more than 262,144 tokens, the most that may wait" in refused.text


@pytest.mark.parametrize(("queued", "body"), [(10, 1000), (100, 100)])
def test_a_repeated_text_may_be_as_long_as_texts_that_are_sent(models, queued, body):
    """As many characters as the body may have, or as the tokens that may wait have at most."""
    limits = Limits(queued_tokens=queued, body_bytes=body, tokens_per_pass=8)
    app = make_app({"vectors": models["vectors"]}, limits=limits)
    most = max(body, 16 * queued)
    call = SimpleNamespace(size=10)
    app.state.service.repeat(call, "query", "a" * (most // 10), 10)
    assert call.size == 10 + most // 10 * 9
    with pytest.raises(BadField, match=f"and {most:,} characters may be read so"):
        app.state.service.repeat(call, "query", "a" * (most + 1), 1)
    app.state.service.close()


def test_a_question_counts_as_often_as_it_is_tokenized(client):
    for path, texts in (("/v1/answers", "contexts"), ("/v1/choices", "choices")):
        refused = client.post(path, json={"question": "a " * 3000, texts: ["b"] * 2000})
        assert refused.status_code == 413
        assert refused.json()["error"]["param"] == "question"


# --- Cohere ------------------------------------------------------------------------------------------------


def test_cohere_embed(client, models):
    expected = models["vectors"].embed(TEXTS)
    types = ["float", "base64", "binary", "ubinary"]
    asked = {"model": "vectors", "texts": TEXTS, "input_type": "search_query", "embedding_types": types}
    found = answered(client, "/v2/embed", **asked)
    np.testing.assert_allclose(found["embeddings"]["float"], expected, atol=1e-6)
    packed = [np.frombuffer(base64.b64decode(one), "<f4") for one in found["embeddings"]["base64"]]
    np.testing.assert_allclose(packed, expected, atol=1e-6)
    bits = np.packbits(expected > 0, axis=1)
    assert found["embeddings"]["ubinary"] == bits.tolist()
    assert found["embeddings"]["binary"] == (bits.astype(int) - 128).tolist()
    assert (set(found["embeddings"]), found["texts"]) == (set(types), TEXTS)
    old = answered(client, "/v1/embed", model="vectors", texts=TEXTS, output_dimension=7)
    assert old["response_type"] == "embeddings_floats"
    np.testing.assert_allclose(
        old["embeddings"], models["vectors"].embed(TEXTS, truncate_dim=7, normalize=True), atol=1e-6
    )
    cut = client.post("/v2/embed", json={"texts": [LONG], "truncate": "END"})
    assert cut.headers["x-truncated-inputs"] == "1"


def test_cohere_input_types_choose_prompts(tmp_path):
    prompts = {"query": "the ", "passage": "a bank ", "clustering": "muddy "}
    model = unmask.load(write_prompts(tmp_path / "m", prompts))
    app = make_app({"m": model})
    with TestClient(app, base_url="http://localhost") as client:
        for kind, prompt in (
            ("search_query", "the "), ("search_document", "a bank "), ("clustering", "muddy "),
            ("classification", ""),
        ):  # fmt: skip
            found = answered(client, "/v2/embed", texts=TEXTS, input_type=kind)["embeddings"]["float"]
            np.testing.assert_allclose(found, model.embed(TEXTS, prompt=prompt), atol=1e-6)
    app.state.service.close()


# --- typed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", ["first", "mean"])
def test_entities(client, models, aggregation):
    texts = [*TEXTS, LONG]
    found = answered(client, "/v1/entities", texts=texts, aggregation=aggregation)
    expected = models["names"].tag(texts, aggregation=aggregation)
    same(found["results"], [as_json(one) for one in expected])
    assert expected[-1].windows > 1
    assert found["model"] == "names"
    cut = client.post("/v1/entities", json={"texts": LONG, "truncate": True})
    assert cut.headers["x-truncated-inputs"] == "1"
    same(cut.json()["results"], [as_json(models["names"].tag(LONG, truncation="end"))])
    read = client.post("/v1/entities", json={"texts": LONG}).headers
    assert "x-truncated-inputs" not in read
    # Tokens that windows share are computed in each of them.
    parts = windows(models["names"].tokenizer.encode(LONG), models["names"].max_tokens)
    assert int(read["x-compute-tokens"]) == sum(len(part.tokens) for part in parts) > expected[-1].tokens_read


def test_answers(client, models):
    asked = {"top_k": 3, "max_answer_tokens": 4, "no_answer": True, "null_threshold": 1.0}
    for contexts in (TEXTS, LONG):
        found = answered(client, "/v1/answers", question="the bank", contexts=contexts, **asked)
        expected = as_json(models["spans"].answer("the bank", contexts, **asked))
        same({key: found[key] for key in expected}, expected)
    none = asked | {"null_threshold": 0.0}
    assert answered(client, "/v1/answers", question="the bank", contexts=TEXTS, **none)["answers"] == []


def test_masked_words(client, models):
    texts = ["the [MASK] was muddy", "a [MASK] [MASK]."]
    found = answered(client, "/v1/masked_words", texts=texts, top_k=3)["results"]
    same(found, [[as_json(mask) for mask in one] for one in models["words"].fill(texts, top_k=3)])


def test_attention(client, models, monkeypatch):
    """It is measured in passes of its own, since states of a shared pass say nothing of it."""
    asked, work = [], ServedModel.work
    monkeypatch.setattr(ServedModel, "work", lambda self, ready: asked.append(ready) or work(self, ready))
    found = answered(client, "/v1/attention", texts=TEXTS, model="vectors")["results"]
    for text, one in zip(TEXTS, found, strict=True):
        view = models["vectors"].attention(text)
        assert isinstance(view, AttentionView)
        assert one["tokens"] == list(view.encoding.pieces)
        same(one["heads"], [as_json(head) for head in view.summaries()])
    assert [ready.reads_last_states for ready in asked] == [False]


def test_search(client, index):
    for options, why in (({}, False), ({"explain": "shares"}, "shares"), ({"explain": "attribution"}, True)):
        found = answered(client, "/v1/search", query="the muddy bank", k=3, **options)
        expected = index.search("the muddy bank", 3, why=why)
        same(found["hits"], [as_json(hit) for hit in expected])
        assert (found["index"], found["query_truncated"]) == ("notes", False)
    some = answered(client, "/v1/search", query="the bank", mode="bm25", filter=["n>=2"], index="notes")
    assert {hit["document"] for hit in some["hits"]} <= {"2", "3"}
    refused = client.post("/v1/search", json={"query": LONG, "mode": "dense"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "context_length_exceeded")
    cut = client.post("/v1/search", json={"query": LONG, "mode": "dense", "truncate": True})
    assert (cut.status_code, cut.json()["query_truncated"]) == (200, True)
    assert cut.headers["x-truncated-inputs"] == "1"
    for wrong, status in (
        ({"query": " "}, 400), ({"query": "\ud800"}, 400), ({"query": "a", "index": "no"}, 404),
        ({"query": "a", "filter": ["year>1"]}, 400), ({"query": "a", "reranker": "no"}, 404),
        ({"query": "a", "mode": "sparse"}, 400), ({"query": "a", "k": 101}, 400),
    ):  # fmt: skip
        head = {"content-type": "application/json"}
        answer = client.post("/v1/search", content=json.dumps(wrong), headers=head)
        assert answer.status_code == status, answer.text


def test_search_takes_models_of_vectors_as_rerankers(models, index, tmp_path):
    """One vector per text, of an encoder or a static model, as Python takes them; others are refused."""
    write_folder(tmp_path / "static", {"embeddings": table()})
    named = models | {"static": unmask.load(tmp_path / "static")}
    app = make_app(named, indexes={"notes": index})
    with TestClient(app, base_url="http://127.0.0.1") as client:
        for name in ("vectors", "static"):
            for options in ({"mode": "bm25"}, {"mode": "dense", "candidates": 3, "explain": "shares"}):
                body = {"query": "the muddy bank", "k": 3, "reranker": name} | options
                found = answered(client, "/v1/search", **body)["hits"]
                arguments = {key: value for key, value in options.items() if key != "explain"}
                why = "shares" if "explain" in options else False
                expected = index.search("the muddy bank", 3, reranker=named[name], why=why, **arguments)
                same(found, [as_json(hit) for hit in expected])
                assert len(found) == len(expected) > 0
                assert None not in [hit["first_score"] for hit in found]
        for name, status, sentence in (
            ("names", 400, "reranker is 'names'; name a served cross-encoder with one score, or model of"),
            ("no", 404, "there is no model 'no'"),
        ):
            answer = client.post("/v1/search", json={"query": "a", "reranker": name})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (status, "reranker")
            assert sentence in error["message"]
    app.state.service.close()


def test_approximate_search_and_what_it_needs_is_made_before(models, index, tmp_path, monkeypatch):
    many = unmask.load(write_many_vectors(tmp_path))
    coded = Index.create(tmp_path / "coded", [models["vectors"], many], dense_bits=8, vector_bits=2)
    more = [Document(str(number), "the river " * (1 + number)) for number in range(4, 60)]
    coded.add([*(Document(str(number), text) for number, text in enumerate(TEXTS)), *more])
    empty = Index.create(tmp_path / "empty", many, vector_bits=2)
    app = make_app(models | {"many": many}, indexes={"coded": coded, "notes": index, "empty": empty})
    monkeypatch.setattr("unmask.search.searcher.PROPOSED", 3)
    Indexes({"coded": coded, "empty": empty}, [many]).warm()
    assert "lists" in coded._searcher.vectors.__dict__, "the first request does not make them"
    with TestClient(app, base_url="http://127.0.0.1") as client:
        for mode in ("dense", "hybrid", "multi_vector"):
            body = {"query": "the muddy bank", "k": 3, "mode": mode, "approximate": True}
            found = answered(client, "/v1/search", **body, explain="shares")["hits"]
            expected = coded.search("the muddy bank", 3, mode, approximate=True, why="shares")
            same(found, [as_json(hit) for hit in expected])
        for body in ({"index": "notes"}, {"index": "coded", "mode": "bm25"}):
            refused = client.post("/v1/search", json={"query": "a", "approximate": True} | body)
            error = refused.json()["error"]
            assert (refused.status_code, error["param"]) == (400, "approximate")
            assert "proposes passages for mode" in error["message"]
    app.state.service.close()


@pytest.fixture
def loaded(monkeypatch):
    """What ``unmask serve`` loads, without loading it."""
    from unmask import serve as package
    from unmask.cli.options import ModelOptions
    from unmask.models import adapters as loaded_adapters

    asked = []

    class Shared:
        def model(self, name=None):
            asked.append(("of", name))

    def several(source, adapters, **_):
        asked.append((source, adapters))
        return Shared()

    monkeypatch.setattr(ModelOptions, "load_with", lambda self, *given: asked.append(given))
    monkeypatch.setattr(loaded_adapters, "load_adapters", several)
    monkeypatch.setattr(package, "serve", lambda models, **options: [one() for one in models.values()])
    return asked


def test_an_adapter_is_served(loaded):
    """The command loads it with the first model."""
    ran = run_here("serve", "-m", "a=one", "-m", "b=two", "--adapter", "mine")
    assert (ran.code, ran.err) == (0, "")
    assert loaded == [("one", "mine"), ("two", None)]


def test_named_adapters_share_the_first_model(loaded):
    ran = run_here("serve", "-m", "a=one", "-m", "b=two", "--adapter", "x=mine", "--adapter", "y=yours")
    assert (ran.code, ran.err) == (0, "")
    assert loaded == [
        ("one", {"x": "mine", "y": "yours"}),
        ("of", None),
        ("of", "x"),
        ("of", "y"),
        ("two", None),
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["--adapter", "mine", "--adapter", "x=yours"],
            "--adapter is 'mine' beside 1 more; give each a name",
        ),
        (["--adapter", "default=mine"], "a model and an adapter are named default; give one another name"),
        (["--adapter", "x=a", "--adapter", "x=b"], "two adapters are named x; give one another name"),
        (["--adapter", "x=a", "--dtype", "int8"], "--dtype int8 is given, and adapters that share"),
        (["--adapter", "x=a", "--backend", "native"], "--backend native is given, and adapters that share"),
    ],
)
def test_adapters_that_are_refused(loaded, given, said):
    ran = run_here("serve", *given)
    assert ran.code == 1
    assert said in ran.err
    assert loaded == []
