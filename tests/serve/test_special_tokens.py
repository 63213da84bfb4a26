"""Special tokens that a client types: text on every route, but for the masks that a client asks to fill."""

import pytest
import torch
from starlette.testclient import TestClient

import unmask
from tests.search.test_index_models import colbert  # noqa: F401 - a fixture
from tests.support.command import run_here
from tests.support.tiny import WIDTH, change_tensors, tiny_bert, write_checkpoint, write_prompts
from unmask.search.index import Index
from unmask.serve import make_app
from unmask.serve.routes import ROUTES

SPECIAL = {"[CLS]", "[SEP]", "[PAD]", "[MASK]"}
TYPED = "the [SEP] river [PAD] [CLS] bank"
MASKED = f"{TYPED} [MASK]"
TEXTS = {"texts": [MASKED]}
BODIES = {
    "/v1/embeddings": {"input": [MASKED]},
    "/embeddings": {"input": MASKED},
    "/embed": {"inputs": MASKED, "prompt_name": "query"},
    "/embed_all": {"inputs": MASKED},
    "/embed_sparse": {"inputs": MASKED},
    "/rerank": {"query": MASKED, "texts": [MASKED]},
    "/predict": {"inputs": [[MASKED, MASKED]]},
    "/similarity": {"inputs": {"source_sentence": MASKED, "sentences": [MASKED]}},
    "/tokenize": {"inputs": MASKED, "prompt_name": "query", "model": "prompts"},
    "/v1/embed": TEXTS | {"input_type": "search_query"},
    "/v2/embed": TEXTS | {"input_type": "search_document"},
    "/v1/rerank": {"query": MASKED, "documents": [MASKED]},
    "/v2/rerank": {"query": MASKED, "documents": [MASKED]},
    "/v1/multi_vectors": {"input": [MASKED]},
    "/v1/classify": TEXTS,
    "/v1/entities": TEXTS,
    "/v1/redact": TEXTS | {"model": "names"},
    "/v1/answers": {"question": MASKED, "contexts": [MASKED]},
    "/v1/check_answer": {"answer": MASKED, "contexts": [MASKED], "model": "flags"},
    "/v1/prune": {"query": MASKED, "documents": [MASKED], "model": "prunes"},
    "/v1/choices": {"question": MASKED, "choices": [MASKED, MASKED]},
    "/v1/follows": {"pairs": [[MASKED, MASKED]]},
    "/v1/masked_words": TEXTS,
    "/v1/attention": TEXTS,
    "/v1/search": {"query": MASKED, "mode": "dense", "k": 1},
}
"""A request to each route that reads texts."""
WITHOUT_TEXTS = {"/decode"}
FRAMES = {
    "/rerank": 3,
    "/v1/rerank": 3,
    "/v2/rerank": 3,
    "/v1/answers": 3,
    "/v1/check_answer": 3,
    "/v1/prune": 3,
    "/v1/choices": 3,
    "/v1/follows": 3,
    "/predict": 3,
}
"""Special tokens around the two texts of a pair; a text alone has two."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    place = tmp_path_factory.mktemp("typed")
    size = {"max_position_embeddings": 200}
    kinds = {
        "words": tiny_bert("BertForMaskedLM", **size),
        "names": tiny_bert("BertForTokenClassification", id2label={0: "O", 1: "B-PER", 2: "I-PER"}, **size),
        "flags": tiny_bert("BertForTokenClassification", **size),
        "spans": tiny_bert("BertForQuestionAnswering", **size),
        "follows": tiny_bert("BertForNextSentencePrediction", **size),
        "choices": tiny_bert("BertForMultipleChoice", **size),
        "labels": tiny_bert("BertForSequenceClassification", num_labels=3, **size),
        "cross": tiny_bert("BertForSequenceClassification", num_labels=1, **size),
    }
    for name, model in kinds.items():
        write_checkpoint(place / name, model, sentence=False)
    write_checkpoint(place / "prunes", kinds["cross"], sentence=False)
    sizes = {"weight": (2, WIDTH), "bias": 2}
    head = {f"token_classifier.{part}": torch.ones(shape) for part, shape in sizes.items()}
    change_tensors(place / "prunes", lambda tensors: tensors.update(head))
    prompts = {"query": "a query: ", "document": "a text: "}
    write_prompts(place / "prompts", prompts, max_tokens=190)
    return {name: unmask.load(place / name) for name in ("prompts", *kinds, "prunes")}


@pytest.fixture(scope="module")
def sparse(served_models):
    return served_models["words"]


@pytest.fixture(scope="module")
def index(models, tmp_path_factory):
    made = Index.create(tmp_path_factory.mktemp("index") / "notes", models["prompts"])
    made.add(["the river bank was muddy"])
    return made


@pytest.fixture(scope="module", params=["text", "parse"])
def server(models, sparse, index, colbert, request):  # noqa: F811
    options = {} if request.param == "text" else {"special_tokens": "parse"}
    app = make_app(models | {"sparse": sparse, "late": colbert}, indexes={"notes": index}, **options)
    yield request.param, app
    app.state.service.close()


def test_every_route_that_reads_texts_is_tried():
    assert {route.path for route in ROUTES} == {*BODIES, *WITHOUT_TEXTS}


@pytest.mark.parametrize("path", BODIES)
def test_typed_special_tokens_are_text(server, path, monkeypatch):
    reads, app = server
    read = []
    monkeypatch.setattr("unmask.text.tokenizer.Tokenizer.encode_batch", recorded(read), raising=True)
    with TestClient(app, base_url="http://localhost") as client:
        body = BODIES[path] | ({"truncate": True} if path == "/embed_sparse" else {})
        answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert read
    for encoding in read:
        special = [piece for piece in encoding.pieces if piece in SPECIAL]
        fewest = FRAMES.get(path, 2) + (path == "/v1/masked_words")
        if reads == "text" or path == "/v1/search":  # an index reads as it was made
            assert len(special) == fewest, special
        else:
            assert len(special) > fewest, special
    if path == "/v1/masked_words":
        assert len(answer.json()["results"][0]) == 1


def recorded(read):
    encode = unmask.text.Tokenizer.encode_batch

    def encode_batch(self, *arguments, **options):
        encodings = encode(self, *arguments, **options)
        read.extend(encodings)
        return encodings

    return encode_batch


def test_the_command_reads_text_unless_told(served_folders, monkeypatch):
    reads = []

    def serve(models, **options):
        reads.append((options["special_tokens"], next(iter(models.values()))().tokenizer.reads))

    monkeypatch.setattr("unmask.serve.serve", serve)
    for given in ([], ["--special-tokens", "parse"]):
        assert run_here("serve", "-m", served_folders / "vectors", *given).code == 0
    assert reads == [("text", "text"), ("parse", "parse")]
