"""A server in this process with four tiny models, one for each task."""

import pytest

import unmask
from tests.support.tiny import tiny_bert, write_checkpoint, write_tokenizer

pytest.importorskip("httpx", reason="starlette's test client needs httpx")

LABELS = ["bad", "good", "neither"]


@pytest.fixture(scope="session")
def served_folders(tmp_path_factory):
    """The folders of the models."""
    import transformers

    st = pytest.importorskip("sentence_transformers")
    place = tmp_path_factory.mktemp("served")
    write_checkpoint(place / "vectors")
    write_checkpoint(
        place / "cross", tiny_bert("BertForSequenceClassification", num_labels=1), sentence=False
    )
    write_tokenizer(place / "labels")
    labeled = tiny_bert("BertForSequenceClassification", id2label=dict(enumerate(LABELS)))
    labeled.save_pretrained(place / "labels")
    write_checkpoint(place / "base", tiny_bert("BertForMaskedLM"), sentence=False)
    transformers.AutoTokenizer.from_pretrained(place / "base").save_pretrained(place / "base")
    modules = pytest.importorskip("sentence_transformers.base.modules")
    own = pytest.importorskip("sentence_transformers.sparse_encoder.modules")
    parts = [
        modules.Transformer(str(place / "base"), transformer_task="fill-mask"),
        own.SpladePooling("max"),
    ]
    st.SparseEncoder(modules=parts).save_pretrained(str(place / "words"))
    return place


@pytest.fixture(scope="session")
def served_models(served_folders):
    return {name: unmask.load(served_folders / name) for name in ("vectors", "cross", "labels", "words")}


@pytest.fixture(scope="session")
def app(served_models):
    from unmask.serve import make_app

    made = make_app(served_models)
    yield made
    made.state.service.close()


@pytest.fixture
def client(app):
    from starlette.testclient import TestClient

    with TestClient(app, base_url="http://127.0.0.1:8080") as found:
        yield found
