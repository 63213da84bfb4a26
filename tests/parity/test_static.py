"""Static models beside `model2vec` and `sentence-transformers`: read, and as they are written again."""

import json
import warnings

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file, save_file

import unmask
from tests.support.tiny import VOCABULARY
from unmask.errors import CheckpointError, EmptyText, InvalidRequest, TensorMismatch
from unmask.spec import PooledVector
from unmask.text.batch import PackedBatch

WIDTH = 12
WORDS = [piece for piece in VOCABULARY if piece.isalpha()]
TEXTS = [
    "The river bank was muddy.",
    "a text",
    "muddy",
    "a 你好 river 世界 🙂 bank",
    " ".join(np.random.default_rng(3).choice(WORDS, 5000)),
]
UNKNOWN = "你好 🙂🙂"
"""A text of which the vocabulary has no piece."""


def words_engine():
    """A tokenizer that, as published ones, adds [CLS] and [SEP] unless it is asked not to."""
    engine = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({piece: id_ for id_, piece in enumerate(VOCABULARY)}, unk_token="[UNK]")
    )
    engine.normalizer = tokenizers.normalizers.BertNormalizer()
    engine.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    special = [(token, engine.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    engine.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=special
    )
    engine.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return engine


def table(rows=None):
    return np.random.default_rng(0).standard_normal((rows or len(VOCABULARY), WIDTH)).astype(np.float32)


def write_folder(folder, tensors, **config):
    """A folder as `model2vec` writes it."""
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    words_engine().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "max_length": 512, **config}))
    modules = [
        {"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"},
        {"idx": 1, "name": "1", "path": "1_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    modules = modules if config.get("normalize") else modules[:1]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def mean(rows_VD, text, *, normalize=False, left_out=("[UNK]",)):
    """The definition, in float64."""
    engine = words_engine()
    encoding = engine.encode(text, add_special_tokens=False)
    ids = [id_ for id_, piece in zip(encoding.ids, encoding.tokens, strict=True) if piece not in left_out]
    if not ids:
        return np.zeros(rows_VD.shape[1])
    vector = rows_VD[ids].astype(np.float64).mean(0)
    return vector / np.linalg.norm(vector) if normalize else vector


MAPPING = np.random.default_rng(1).integers(0, 7, len(VOCABULARY))
WEIGHTS = np.random.default_rng(2).random(len(VOCABULARY)).astype(np.float32)
LAYOUTS = {
    "plain": ({"embeddings": table()}, table(), {}),
    "normalized": ({"embeddings": table()}, table(), {"normalize": True}),
    "float16": ({"embeddings": table().astype(np.float16)}, table().astype(np.float16), {}),
    "int8": ({"embeddings": np.rint(table() * 30).astype(np.int8)}, np.rint(table() * 30), {}),
    "weights": ({"embeddings": table(), "weights": WEIGHTS}, table() * WEIGHTS[:, None], {}),
    "mapping": ({"embeddings": table(rows=7), "mapping": MAPPING}, table(rows=7)[MAPPING], {}),
    "both": (
        {"embeddings": table(rows=7), "mapping": MAPPING.astype(np.int32), "weights": WEIGHTS},
        table(rows=7)[MAPPING] * WEIGHTS[:, None],
        {"normalize": True, "vocabulary_quantization": 7},
    ),
}
"""The tensors of a folder, the row of each token, and keys of config.json."""


@pytest.fixture(params=LAYOUTS)
def layout(request, tmp_path):
    tensors, rows_VD, config = LAYOUTS[request.param]
    return write_folder(tmp_path / "folder", tensors, **config), rows_VD.astype(np.float64), config


def test_a_text_is_the_mean_of_its_known_tokens_rows(layout):
    folder, rows_VD, config = layout
    model = unmask.load(folder)
    unit = config.get("normalize", False)
    for text in TEXTS:
        expected = mean(rows_VD, text, normalize=unit)
        # 5,000 numbers that are added in float32 one after another lose two digits, here as in model2vec.
        within = (5e-5 if len(text) > 1000 else 1e-6) * np.abs(expected).max()
        np.testing.assert_allclose(model.embed(text), expected, atol=within, rtol=0)
    assert not model.embed(UNKNOWN).any()
    with pytest.raises(EmptyText, match="has no words"):
        model.embed(" ")


def test_a_folder_written_again_is_read_alike_by_all(layout, tmp_path):
    folder, _, _ = layout
    model = unmask.load(folder)
    model.save(tmp_path / "saved")
    saved = unmask.load(tmp_path / "saved", verify=True)
    np.testing.assert_array_equal(saved.embed([*TEXTS, UNKNOWN]), model.embed([*TEXTS, UNKNOWN]))
    assert set(load_file(tmp_path / "saved" / "model.safetensors")) == {"embeddings"}
    assert "vocabulary_quantization" not in saved.checkpoint.config
    assert saved.checkpoint.head == model.checkpoint.head
    assert saved.checkpoint.unread_config == ()


def test_model2vec_computes_the_same(layout, tmp_path):
    """The same in float32; in float16 it also adds in float16."""
    model2vec = pytest.importorskip("model2vec", reason="model2vec, which is compared with, is not installed")
    folder, _, _ = layout
    model = unmask.load(folder)
    model.save(tmp_path / "saved")
    texts = [*TEXTS, UNKNOWN]
    for place in (folder, tmp_path / "saved"):
        theirs = model2vec.StaticModel.from_pretrained(place, max_length=None).encode(texts)
        within = 2e-3 if theirs.dtype == np.float16 else 1e-6 * max(1, np.abs(theirs).max())
        np.testing.assert_allclose(model.embed(texts), theirs.astype(np.float32), atol=within, rtol=0)


@pytest.mark.parametrize("normalize", [False, True])
def test_a_static_embedding_of_sentence_transformers(normalize, tmp_path):
    """It has no config.json, and counts unknown tokens."""
    st = pytest.importorskip("sentence_transformers")
    parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    modules = [parts.StaticEmbedding(words_engine(), embedding_weights=table())]
    if normalize:
        modules.append(pytest.importorskip("sentence_transformers.base.modules").Normalize())
    folder = tmp_path / "theirs"
    st.SentenceTransformer(modules=modules).save_pretrained(str(folder))
    assert not (folder / "config.json").exists()
    model = unmask.load(folder)
    model.save(tmp_path / "saved")
    texts = [*TEXTS, UNKNOWN]
    expected = st.SentenceTransformer(str(folder), device="cpu").encode(texts)
    for ours in (model, unmask.load(tmp_path / "saved")):
        np.testing.assert_allclose(ours.embed(texts), expected, atol=2e-6)
    again = st.SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(texts)
    np.testing.assert_allclose(again, expected, atol=2e-6)
    np.testing.assert_allclose(
        model.embed(TEXTS[3]), mean(table(), TEXTS[3], normalize=normalize, left_out=()), atol=1e-6
    )


def test_a_nested_static_embedding(tmp_path):
    """Older versions write every module in a folder of its own."""
    folder = write_folder(tmp_path / "folder", {"embedding.weight": table()})
    inside = folder / "0_StaticEmbedding"
    inside.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).rename(inside / name)
    (folder / "config.json").unlink()
    entry = {
        "idx": 0,
        "name": "0",
        "path": inside.name,
        "type": "sentence_transformers.models.StaticEmbedding",
    }
    (folder / "modules.json").write_text(json.dumps([entry]))
    np.testing.assert_allclose(unmask.load(folder).embed(TEXTS[0]), mean(table(), TEXTS[0]), atol=1e-6)


def test_sentence_transformers_reads_what_is_written(tmp_path):
    st = pytest.importorskip("sentence_transformers")
    model = unmask.load(write_folder(tmp_path / "folder", {"embeddings": table()}, normalize=True))
    model.save(tmp_path / "saved")
    theirs = st.SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(TEXTS[:3])
    np.testing.assert_allclose(theirs, model.embed(TEXTS[:3]), atol=1e-6)


WRONG = {
    "a mapping out of range": (
        {"embeddings": table(rows=7), "mapping": MAPPING + 4}, CheckpointError, r"row \d+, .* has 7 rows",
    ),
    "a negative mapping": (
        {"embeddings": table(rows=7), "mapping": MAPPING - 1}, CheckpointError, "names row -1, and",
    ),
    "a mapping of fractions": (
        {"embeddings": table(rows=7), "mapping": WEIGHTS}, CheckpointError, "a vector of whole numbers",
    ),
    "too few weights": (
        {"embeddings": table(), "weights": WEIGHTS[:-1]}, CheckpointError, "must have one number for each",
    ),
    "weights for other tokens than the mapping": (
        {"embeddings": table(), "mapping": MAPPING[:-1], "weights": WEIGHTS},
        CheckpointError,
        "one number for each",
    ),
    "a weight that is not finite": (
        {"embeddings": table(), "weights": WEIGHTS * np.float32("nan")}, CheckpointError, "not finite",
    ),
    "a table of three axes": ({"embeddings": table()[None]}, TensorMismatch, "has shape 1 x"),
    "another tensor": (
        {"embeddings": table(), "bias": WEIGHTS}, TensorMismatch, "has no place in this architecture",
    ),
    "no table": ({"weights": WEIGHTS}, TensorMismatch, "is missing, embeddings"),
    "whole numbers of four bytes": (
        {"embeddings": np.ones((9, 4), np.int32)}, TensorMismatch, "which holds no weights",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_table_is_refused_by_one_sentence(name, tmp_path):
    tensors, error, words = WRONG[name]
    with pytest.raises(error, match=words) as caught:
        unmask.load(write_folder(tmp_path / "folder", tensors))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"dtype": "int8"}, {"dtype": "bfloat16"}, {"device": "cuda"}, {"kernel": "sdpa"}, {"backend": "torch"}],
)
def test_options_of_layers_are_refused(options, tmp_path):
    folder = write_folder(tmp_path / "folder", {"embeddings": table()})
    with pytest.raises(InvalidRequest, match="and folder is a static model, which"):
        unmask.load(folder, **options)


def test_nothing_is_truncated_or_warned_about(tmp_path):
    folder = write_folder(tmp_path / "folder", {"embeddings": table()})
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 8}))
    with warnings.catch_warnings(action="error"):
        (encoding,) = unmask.load(folder).tokenize(TEXTS[-1:])
    assert len(encoding) == 5000
    assert not encoding.special.any()


def test_a_vector_depends_on_no_other_text(tmp_path):
    model = unmask.load(write_folder(tmp_path / "folder", {"embeddings": table()}))
    alone = np.array([model.embed(text) for text in TEXTS])
    np.testing.assert_array_equal(model.embed(TEXTS, tokens_per_pass=7), alone)
    np.testing.assert_array_equal(model.embed(TEXTS), alone)
    with pytest.raises(InvalidRequest, match="takes the mean"):
        model.embed(TEXTS, pooling="max")


def test_a_text_of_more_rows_than_are_gathered_at_once(tmp_path):
    """40,000 tokens in three parts; the definition in float64."""
    text = " ".join(np.random.default_rng(5).choice(WORDS, 40_000))
    model = unmask.load(write_folder(tmp_path / "m", {"embeddings": table()}))
    np.testing.assert_allclose(model.embed([text])[0], mean(table(), text), atol=1e-5)


def test_the_tokens_of_a_prompt_are_left_out_of_the_mean_when_they_are_skipped(tmp_path):
    engine = unmask.load(write_folder(tmp_path / "m", {"embeddings": table()})).engine
    ids = np.array([[7, 8, 9, 10], [7, 8, 11, 12]])
    batch = PackedBatch.of_ids(ids)
    vectors = engine.embed(batch, PooledVector(("mean",)), skipped=2)
    np.testing.assert_allclose(vectors, table()[ids[:, 2:]].mean(1), atol=1e-6)


@pytest.mark.parametrize("id_", [-1, len(VOCABULARY)])
def test_an_id_outside_of_the_table_is_refused(id_, tmp_path):
    engine = unmask.load(write_folder(tmp_path / "m", {"embeddings": table()})).engine
    with pytest.raises(InvalidRequest, match=f"token id {id_} is not in the vocabulary"):
        engine.hidden_states(PackedBatch.of_ids([np.array([3, id_])]))
