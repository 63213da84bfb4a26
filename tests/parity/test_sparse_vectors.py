"""Models with one weight per word beside `sentence-transformers`, on tiny random models that it wrote."""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers

import unmask
from tests.support.tiny import change_json, tiny_bert, write_checkpoint
from unmask.encoder import heads as output_module
from unmask.errors import CorruptCheckpoint, EmptyText, InvalidRequest, TextTooLong
from unmask.spec import SparseVector, UnknownOutput
from unmask.tasks.sparse_vectors import WordWeights

st = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.base.modules")
own = pytest.importorskip("sentence_transformers.sparse_encoder.modules")

TEXTS = ["The river bank, was muddy.", "a text", "muddy muddy!", "another river, a bank"]


@pytest.fixture
def encoder(tmp_path):
    folder = write_checkpoint(tmp_path / "encoder", tiny_bert("BertForMaskedLM"), sentence=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def inference_free(encoder, pooling):
    """A Router whose queries are a table."""
    documents = modules.Transformer(encoder, transformer_task="fill-mask")
    torch.manual_seed(3)
    table = torch.rand(len(documents.tokenizer.get_vocab()))
    table[30:40] = 0
    query = own.SparseStaticEmbedding(documents.tokenizer, weight=table)
    return modules.Router.for_query_document(query_modules=[query], document_modules=[documents, pooling])


def check(folder, tmp_path):
    """Both kinds of text, as loaded and as saved again, in both libraries; returns the loaded model."""
    theirs, ours = st.SparseEncoder(str(folder)), unmask.load(folder)
    ours.save(tmp_path / "saved")
    again, theirs_again = unmask.load(tmp_path / "saved"), st.SparseEncoder(str(tmp_path / "saved"))
    assert again.checkpoint.head == ours.checkpoint.head
    for kind in ("query", "document"):
        expected, back = (
            getattr(one, f"encode_{kind}")(TEXTS, convert_to_sparse_tensor=False).numpy()
            for one in (theirs, theirs_again)
        )
        found, saved = (one.sparse_vectors(TEXTS, kind) for one in (ours, again))
        np.testing.assert_array_equal(back, expected)
        for row, mine, same in zip(expected, found, saved, strict=True):
            assert mine.weights.dtype == np.float32
            dense = np.zeros_like(row)
            dense[mine.ids] = mine.weights
            np.testing.assert_allclose(dense, row, rtol=0, atol=1e-5)
            np.testing.assert_array_equal(mine.weights, same.weights)
            assert 0 < len(mine) < len(row)
    return ours


@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
@pytest.mark.parametrize("static", [False, True])
def test_folders(pooling, activation, static, encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(output_module, "TOKENS_AT_ONCE", 3)  # several parts of each text
    splade = own.SpladePooling(pooling, activation)
    if static:
        parts = [inference_free(encoder, splade)]
    else:
        parts = [modules.Transformer(encoder, transformer_task="fill-mask"), splade]
    prompts = {"query": "a text ", "document": "the "}
    st.SparseEncoder(modules=parts, prompts=prompts).save_pretrained(str(tmp_path / "theirs"))
    ours = check(tmp_path / "theirs", tmp_path)
    assert ours.checkpoint.head.static_queries == static


def test_only_the_largest_weights(encoder, tmp_path):
    parts = [modules.Transformer(encoder, transformer_task="fill-mask"), own.SpladePooling("max")]
    st.SparseEncoder(modules=parts, max_active_dims=5).save_pretrained(str(tmp_path / "theirs"))
    assert [len(one) for one in check(tmp_path / "theirs", tmp_path).sparse_vectors(TEXTS)] == [5] * 4


def test_a_table_in_json_and_an_encoder_beside_it(encoder, tmp_path):
    """OpenSearch's layout: the Transformer's files are the folder's own, the table is idf.json."""
    st.SparseEncoder(
        modules=[inference_free(encoder, own.SpladePooling("max", "log1p_relu"))]
    ).save_pretrained(str(tmp_path / "theirs"))
    folder = tmp_path / "theirs"
    for path in (folder / "document_0_Transformer").iterdir():
        shutil.move(path, folder / path.name)
    router = json.loads((folder / "router_config.json").read_text())
    router["types"][""] = router["types"].pop("document_0_Transformer")
    router["structure"]["document"][0] = ""
    (folder / "router_config.json").write_text(json.dumps(router))
    table = folder / "query_0_SparseStaticEmbedding"
    (table / "model.safetensors").unlink()
    (table / "config.json").write_text(json.dumps({"frozen": True, "path": str(folder / "idf.json")}))
    (folder / "idf.json").write_text(json.dumps({"river": 2.5, "bank": 1.25, "no such word": 0.5}))
    expected = st.SparseEncoder(str(folder)).encode_query("river bank zzz9", convert_to_sparse_tensor=False)
    ours = unmask.load(folder).sparse_vectors("river bank zzz9", "query")
    dense = np.zeros(len(expected), dtype=np.float32)
    dense[ours.ids] = ours.weights
    np.testing.assert_array_equal(dense, expected.numpy())
    assert sorted(ours.weights) == [0.5, 1.25, 2.5]
    (folder / "idf.json").unlink()
    with pytest.raises(CorruptCheckpoint, match=r"names idf\.json, which is not in the folder"):
        unmask.load(folder)


def test_what_is_not_built_is_refused_by_name(encoder, tmp_path):
    model = st.SparseEncoder(modules=[inference_free(encoder, own.SpladePooling())])
    model.save_pretrained(str(tmp_path / "m"))
    path, folder = tmp_path / "m/router_config.json", tmp_path / "m"
    router = json.loads(path.read_text())
    other = router | {"types": router["types"] | {"query_0_SparseStaticEmbedding": "a.WordWeights"}}
    images = router | {"structure": router["structure"] | {"image": ["document_0_Transformer"]}}
    for changed, reason in (
        (other, "encodes queries by modules of their own"),
        (images, "has the routes document, image, query"),
    ):
        path.write_text(json.dumps(changed))
        head = unmask.load(folder).checkpoint.head
        assert isinstance(head, UnknownOutput)
        assert reason in head.reason
    path.write_text(json.dumps(router))
    change_json(folder / "document_1_SpladePooling/config.json", activation_function="swish")
    assert "'swish'" in unmask.load(folder).checkpoint.head.reason
    with pytest.raises(InvalidRequest, match="does not give weights of words"):
        unmask.load(folder).sparse_vectors("a")


def test_damaged_tables_are_refused(encoder, tmp_path):
    from safetensors.torch import save_file

    model = st.SparseEncoder(modules=[inference_free(encoder, own.SpladePooling())])
    model.save_pretrained(str(tmp_path / "m"))
    table = tmp_path / "m/query_0_SparseStaticEmbedding"
    save_file({"weight": torch.ones(5)}, table / "model.safetensors")
    with pytest.raises(CorruptCheckpoint, match="one weight for each of 69 words"):
        unmask.load(tmp_path / "m")
    (table / "tokenizer.json").write_bytes(
        (table / "tokenizer.json").read_bytes().replace(b'"river"', b'"rover"')
    )
    with pytest.raises(CorruptCheckpoint, match="has another vocabulary"):
        unmask.load(tmp_path / "m")


def test_lengths_and_empty_texts(encoder, tmp_path):
    model = st.SparseEncoder(modules=[inference_free(encoder, own.SpladePooling())], prompts={"query": "a "})
    model.save_pretrained(str(tmp_path / "m"))
    ours, long = unmask.load(tmp_path / "m"), "river " * 30
    for kind, count in (("query", 31), ("document", 32)):
        with pytest.raises(TextTooLong, match=f"has {count} tokens and the model reads at most 23"):
            ours.sparse_vectors(long, kind)
        assert len(ours.sparse_vectors([long], kind, truncation="end")[0])
    with pytest.raises(EmptyText, match="text 2 has no words"):
        ours.sparse_vectors(["a", " "], "query")
    assert ours.sparse_vectors([]) == []
    assert ours.checkpoint.head == SparseVector(static_queries=True, prompts=(("query", "a "),))


def test_values():
    weights = np.array([0, 3, 0, 1, 3, 2], dtype=np.float32)
    assert WordWeights.of_dense(weights).ids.tolist() == [1, 3, 4, 5]
    assert WordWeights.of_dense(weights, 2).ids.tolist() == [1, 4]
    with pytest.raises(InvalidRequest, match="do not increase"):
        WordWeights(np.array([1, 1]), weights[:2])
