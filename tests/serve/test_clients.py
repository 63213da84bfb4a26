"""Official clients against a running server, equal to the library's numbers. Each is skipped if absent."""

import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest

TEXTS = ["the river bank was muddy", "another text", "a bank."]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of the clients


@pytest.fixture(scope="module")
def url(app):
    """The application of the fixture on a port of this machine."""
    uvicorn = pytest.importorskip("uvicorn")
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    until = time.monotonic() + 30
    while not server.started and time.monotonic() < until:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(30)


@pytest.fixture
def expected(served_models):
    return served_models["vectors"].embed(TEXTS)


def equal(found, expected):
    np.testing.assert_allclose(np.asarray(found, dtype=np.float32), expected, atol=1e-6)


def test_openai(url, expected, served_models):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        found = client.embeddings.create(model="vectors", input=TEXTS)  # it asks for base64 by itself
        equal([one.embedding for one in found.data], expected)
        plain = client.embeddings.create(model="vectors", input=TEXTS[0], encoding_format="float")
        equal(plain.data[0].embedding, expected[0])
        ids = served_models["vectors"].tokenize(TEXTS[1]).ids.tolist()
        equal(client.embeddings.create(model="vectors", input=ids).data[0].embedding, expected[1])
        few = client.embeddings.create(model="vectors", input=TEXTS, dimensions=7)
        equal(
            [one.embedding for one in few.data],
            served_models["vectors"].embed(TEXTS, truncate_dim=7, normalize=True),
        )
        assert [one.id for one in client.models.list()] == ["vectors", "cross", "labels", "words"]
        with pytest.raises(openai.NotFoundError, match="there is no model 'no'"):
            client.embeddings.create(model="no", input="a")
        with pytest.raises(openai.APIStatusError, match="42 tokens and the model reads at most 19") as error:
            client.embeddings.create(model="vectors", input="the river " * 20)
        assert (error.value.status_code, error.value.code) == (413, "context_length_exceeded")


def test_cohere(url, expected, served_models):
    cohere = pytest.importorskip("cohere")
    scores = served_models["cross"].score_pairs("the bank", TEXTS, activation="sigmoid")
    order = np.argsort(-scores)[:2]
    client = cohere.ClientV2(api_key="none", base_url=url)
    found = client.embed(
        model="vectors", texts=TEXTS, input_type="search_document", embedding_types=["float", "ubinary"]
    )
    equal(found.embeddings.float_, expected)
    assert found.embeddings.ubinary == np.packbits(expected > 0, axis=1).tolist()
    ranked = client.rerank(model="cross", query="the bank", documents=TEXTS, top_n=2)
    assert [one.index for one in ranked.results] == order.tolist()
    equal([one.relevance_score for one in ranked.results], scores[order])
    with pytest.raises(cohere.core.api_error.ApiError, match="there is no model 'no'"):
        client.embed(model="no", texts=TEXTS, input_type="search_query", embedding_types=["float"])
    old = cohere.Client(api_key="none", base_url=url)
    equal(old.embed(model="vectors", texts=TEXTS, input_type="search_document").embeddings, expected)


def test_hugging_face(url, expected, served_models):
    hub = pytest.importorskip("huggingface_hub")
    client = hub.InferenceClient(f"{url}/embed")
    equal(client.feature_extraction(TEXTS, normalize=True), expected)
    similar = hub.InferenceClient(f"{url}/similarity").sentence_similarity(
        TEXTS[0], other_sentences=TEXTS[1:]
    )
    equal(similar, served_models["vectors"].similarity(TEXTS[:1], TEXTS[1:])[0])
    classifier = hub.InferenceClient(f"{url}/predict")
    assert len(classifier.text_classification(TEXTS[0], top_k=2)) == 2
    best = classifier.text_classification(TEXTS[0])
    expected_labels = served_models["labels"].classify(TEXTS[0]).scores
    assert [one.label for one in best] == sorted(expected_labels, key=lambda name: -expected_labels[name])
    equal([one.score for one in best], sorted(expected_labels.values(), reverse=True))


def test_langchain(url, expected):
    langchain = pytest.importorskip("langchain_openai")
    embeddings = langchain.OpenAIEmbeddings(
        base_url=f"{url}/v1", api_key="none", model="vectors", check_embedding_ctx_length=False
    )
    equal(embeddings.embed_documents(TEXTS), expected)
    equal(embeddings.embed_query(TEXTS[0]), expected[0])


def test_llama_index(url, expected):
    openai = pytest.importorskip("llama_index.embeddings.openai")
    openai_like = pytest.importorskip("llama_index.embeddings.openai_like")
    tei = pytest.importorskip("llama_index.embeddings.text_embeddings_inference")
    for one in (
        openai.OpenAIEmbedding(model_name="vectors", api_base=f"{url}/v1", api_key="none"),
        openai_like.OpenAILikeEmbedding(model_name="vectors", api_base=f"{url}/v1", api_key="none"),
        tei.TextEmbeddingsInference(model_name="vectors", base_url=url),
    ):
        equal(one.get_text_embedding_batch(TEXTS), expected)
        equal(one.get_query_embedding(TEXTS[0]), expected[0])


PAGE = (Path(__file__).parents[2] / "docs" / "replace.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
def test_the_page_on_replacing_others(url, block, expected, capsys):
    """Each of its programs, with the address and the model of this server."""
    pytest.importorskip(re.search(r"(?:from|import) (\w+)", block)[1])
    here = block.replace("http://127.0.0.1:8080", url).replace('model="default"', 'model="vectors"')
    exec(compile(here, "docs/replace.md", "exec"), {})
    assert str(expected.shape[1]) in capsys.readouterr().out
