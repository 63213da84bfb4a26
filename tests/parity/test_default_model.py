"""The default model on real sentences, beside `sentence-transformers` and the published score."""

import csv
import lzma
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

import unmask

STSB = Path(__file__).parents[2].parent / "shared" / "data" / "glue" / "STS-B"

needs_data = pytest.mark.skipif(not STSB.is_dir(), reason=f"the STS-B data set is not at {STSB}")


def rows(name: str, columns: list[str] | None = None) -> list[dict[str, str]]:
    with lzma.open(STSB / name, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file, columns, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.fixture(scope="module")
def model():
    return unmask.load("default")


def distinct_sentences(count: int) -> list[str]:
    found: dict[str, None] = {}
    for row in rows("train.tsv.xz"):
        found |= {row["sentence1"]: None, row["sentence2"]: None}
    return list(found)[:: len(found) // count][:count]


@needs_data
@pytest.mark.parametrize("count", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_sentences_equal_sentence_transformers(model, count):
    texts = distinct_sentences(count)
    assert len(texts) == count
    theirs = SentenceTransformer(str(model.checkpoint.source.folder), device="cpu").encode(texts)
    difference = np.abs(model.embed(texts) - theirs).max()
    assert difference <= 1e-5


@pytest.mark.slow
@needs_data
def test_published_spearman_on_stsb(model):
    columns = ["genre", "file", "year", "id", "score", "sentence1", "sentence2"]
    gold = rows("sts-test-gold.tsv.xz", columns)
    assert len(gold) == 1379
    first, second = (model.embed([row[column] for row in gold]) for column in columns[-2:])
    cosine = (first * second).sum(axis=1)
    correlation = spearmanr(cosine, [float(row["score"]) for row in gold]).statistic
    assert correlation == pytest.approx(0.820, abs=0.001)


def test_saved_folder_loads_everywhere_with_equal_outputs(model, tmp_path):
    texts = ["The river bank was muddy.", "Ein Wort", "x " * 200]
    model.save(tmp_path / "one")
    unmask.load(tmp_path / "one").save(tmp_path / "two")
    one, two = (
        {
            str(Path(at, name).relative_to(root)): Path(at, name).read_bytes()
            for at, _, names in os.walk(root)
            for name in names
        }
        for root in (tmp_path / "one", tmp_path / "two")
    )
    assert one == two
    assert "model.safetensors" in one

    expected = model.embed(texts)
    np.testing.assert_array_equal(unmask.load(tmp_path / "one").embed(texts), expected)
    theirs = SentenceTransformer(str(tmp_path / "one"), device="cpu")
    assert theirs.max_seq_length == model.max_tokens
    np.testing.assert_allclose(theirs.encode(texts), expected, rtol=0, atol=1e-6)
    original = AutoModel.from_pretrained(model.checkpoint.source.folder).state_dict()
    for key, value in AutoModel.from_pretrained(tmp_path / "one").state_dict().items():
        np.testing.assert_array_equal(value.numpy(), original[key].numpy(), err_msg=key)


@pytest.mark.parametrize(("dtype", "cosine"), [("bfloat16", 0.999), ("float64", 1 - 1e-6)])
def test_other_number_formats(model, dtype, cosine):
    texts = ["The river bank was muddy.", "The money in the bank was gone.", "One word"]
    other = unmask.load("default", dtype=dtype).embed(texts)
    assert other.dtype == np.float32
    assert (other * model.embed(texts)).sum(axis=1).min() >= cosine


def test_reference_kernel_gives_the_same_embeddings(model):
    texts = ["The river bank was muddy.", "short", "a somewhat longer sentence about nothing much"]
    reference = unmask.load("default", kernel="reference").embed(texts)
    np.testing.assert_allclose(reference, model.embed(texts), rtol=0, atol=1e-6)


def test_hidden_states(model):
    texts = ["The river bank was muddy.", "short"]
    last, every = model.hidden_states(texts), model.hidden_states(texts, layers="all")
    encodings = model.tokenize(texts)
    again = model.hidden_states([one.ids.tolist() for one in encodings])
    for text, states in enumerate(every):
        assert states.shape == (7, len(encodings[text]), 384)
        np.testing.assert_allclose(states[-1], last[text], atol=1e-5, rtol=0)
        np.testing.assert_array_equal(again[text], last[text])
    np.testing.assert_allclose(model.embed("short"), model.embed(texts)[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("ids", "options", "sentence"),
    [
        ([[101, 40000]], {}, "a token id is 40000; this model has 0 to 30521"),
        ([[-1]], {}, "a token id is -1"),
        ([[101]], {"token_type_ids": [[2]]}, "a token type id is 2; this model has 0 to 1"),
        ([[101, 102]], {"token_type_ids": [[0]]}, "lengths .1. and the ids .2.; give one"),
        ([[]], {}, r"sequence 1 of token ids is \[\]; give a list of at least one"),
        ([[101] * 513], {}, "513 tokens.*reaches 512"),
    ],
)
def test_ids_outside_the_model(model, ids, options, sentence):
    with pytest.raises(unmask.UnmaskError, match=sentence):
        model.hidden_states(ids, **options)
