"""A spec in words: every spec has some, and they say what it is."""

from dataclasses import replace

import pytest

from tests.support.heads import decoded_spec, spec_with_heads
from tests.support.specs import SPECS
from unmask.families import FAMILIES
from unmask.spec import (
    Dense,
    LayerNorm,
    MaskedLM,
    MultiVector,
    PairScore,
    PooledVector,
    QueryExpansion,
    Rotary,
    SparseVector,
    UnitLength,
    UnknownOutput,
)
from unmask.spec.describe import describe_output, describe_spec

PUBLISHED = {one.name: one.pretraining or one.spec for family in FAMILIES for one in family.published}


@pytest.mark.parametrize("name", [*PUBLISHED, *SPECS])
def test_every_spec_has_words(name):
    spec = PUBLISHED[name] if name in PUBLISHED else spec_with_heads(name)
    found = dict(describe_spec(spec))
    assert all(found.values())
    layers = [words for part, words in found.items() if part.startswith("layer")]
    assert len(layers) == len(set(layers)) <= len(set(spec.layers))


@pytest.mark.parametrize(
    ("name", "part", "words"),
    [
        ("answerdotai/ModernBERT-base", "layer 0", "(none before attention)"),
        (
            "answerdotai/ModernBERT-base",
            "layers 3, 6, 9, 12, 15, 18, 21",
            "full attention, 12 heads of width 64, RoPE with theta 160,000; feed-forward 1,152 GeGLU; "
            "pre-norm LayerNorm (eps 1e-05, no bias)",
        ),
        (
            "answerdotai/ModernBERT-base",
            "layers 1 to 2, 4 to 5, 7 to 8, 10 to 11, 13 to 14, 16 to 17, 19 to 20",
            "sliding window of 64 tokens to each side",
        ),
        ("albert/albert-base-v2", "shared weights", "12 layers use 1 sets of weights"),
        ("albert/albert-base-v2", "embedding", "30,000 tokens, width 128, projected to 768, 512 learned"),
        (
            "google/bigbird-roberta-base",
            "layers 0 to 11",
            "block-sparse attention, blocks of 64 tokens, 3 random",
        ),
        (
            "windows-globals",
            "layer 1",
            "1 tokens to each side, every 3 tokens and global tokens",
        ),
        ("performer", "layer 0", "linear attention (favor+, 19 random features), 3 heads of width 7"),
        ("linear", "layers 0 to 1", "linear attention (elu+1), 3 heads of width 5"),
        ("disentangled", "layers 0 to 2", ", disentangled relative positions up to 9 in 6 log buckets;"),
        ("disentangled", "convolution", "over 3 tokens"),
        ("causal", "layer 0", "causal attention, 4 heads of width 5; feed-forward"),
        (
            "EuroBERT/EuroBERT-610m",
            "layers 0 to 25",
            "18 heads of width 64 with 6 heads of keys and values, RoPE",
        ),
        (
            "alibi-shared",
            "layers 0 to 3",
            "6 heads of width 3, ALiBi; feed-forward 22 SwiGLU; post-norm RMSN",
        ),
        ("rotary-windows", "final norm", "LayerNorm (eps 1e-05, no bias)"),
    ],
)
def test_what_the_words_say(name, part, words):
    assert words in dict(describe_spec(PUBLISHED.get(name) or SPECS[name]))[part]


def test_parts_that_no_published_encoder_has():
    (first, *_), spec = SPECS["rotary-windows"].layers, SPECS["rotary-windows"]
    rotary = replace(first, mixer=replace(first.mixer, position=Rotary(10_000.0, width=2, scale=4.0)))
    words = dict(describe_spec(replace(spec, layers=(rotary,))))["layer 0"]
    assert "RoPE with theta 10,000 on 2 features, positions divided by 4" in words
    words = dict(describe_spec(decoded_spec()))
    assert "64 positions for the mask decoder" in words["embedding"]
    assert words["heads"].startswith("masked language modeling through an enhanced mask decoder (tied")
    words = dict(describe_spec(replace(SPECS["causal"], heads=(MaskedLM(None),))))
    assert words["heads"] == "causal language modeling (tied to the embedding)"


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (PooledVector(("mean",), normalize=True), "mean pooling, normalized"),
        (PooledVector(("cls", "mean_sqrt_len")), "CLS token and mean_sqrt_len pooling, not normalized"),
        (
            PooledVector(
                ("last",),
                projections=(Dense(9, activation="tanh"), LayerNorm(1e-5), UnitLength()),
                dimensions=4,
                prompts=(("query", "q: "),),
                default_prompt="query",
            ),
            "last token pooling, dense layer to 9 tanh, LayerNorm, normalized, the first 4 "
            "dimensions, the prompt 'query' before every text",
        ),
        (MultiVector(), "one vector for each token, normalized"),
        (
            MultiVector(
                (Dense(7),), expansion=QueryExpansion(12), document_tokens=9, skipped_words=(".", ",")
            ),
            "one vector for each token, dense layer to 7, normalized; queries expanded to 12 tokens; "
            "documents of at most 9 tokens; none for 2 words in documents",
        ),
        (SparseVector(), "one weight for each entry of the vocabulary, the max over tokens"),
        (
            SparseVector("sum", static_queries=True),
            "one weight for each entry of the vocabulary, the sum over tokens; queries by a table",
        ),
        (PairScore(1, "sigmoid"), "one score for a pair of texts, between 0 and 1"),
        (PairScore(3), "3 scores for a pair of texts"),
        (UnknownOutput("no reason"), "no reason"),
    ],
)
def test_sentence_embeddings_in_words(head, words):
    assert describe_output(head) == words
