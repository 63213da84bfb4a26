"""MobileBERT: the ends of a text, padding, stacks, views of narrow layers, adapters and refusals."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from tests.contracts.test_transformers import write_vocabulary
from tests.parity.beside_padding import TEXTS, check_packed_texts, check_padded_graph
from tests.support.specs import NARROW, POST_NORM, random_encoder
from unmask.base.json_settings import JsonSettings
from unmask.encoder.hooks import HookPoint
from unmask.engines.inference.optimize import optimize_for_inference
from unmask.engines.native.program import unsupported_encoder
from unmask.errors import CheckpointError, InvalidRequest, UnknownArchitecture
from unmask.families import family_of, find_architecture
from unmask.families.mobilebert import MOBILEBERT
from unmask.interpret.geometry.reading import causal_twin
from unmask.spec import (
    Bottleneck,
    Disentangled,
    LayerNorm,
    LinearAttention,
    NoNorm,
    PlainFeedForward,
    Projection,
    SoftmaxAttention,
    SpanConvolution,
    StackedFeedForward,
    check_shared_query,
)
from unmask.spec.describe import describe_spec
from unmask.text import PackedBatch
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.write.adapter_export import LowRank, add_low_rank

SIZES = {
    "hidden_size": 12,
    "num_attention_heads": 2,
    "intra_bottleneck_size": 8,
    "intermediate_size": 10,
    "num_hidden_layers": 2,
    "embedding_size": 7,
    "vocab_size": 61,
}


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(2)
    model = transformers.MobileBertModel(transformers.MobileBertConfig(**SIZES, initializer_range=0.4))
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[0].normal_()  # of padding, as in published weights
    model.double().save_pretrained(tmp_path)
    write_vocabulary(tmp_path, 61)
    return tmp_path


def test_a_packed_text_has_the_states_of_the_text_alone_and_not_those_beside_padding(folder):
    """Their last token reads the vector of the padding behind it; that of the longest text has none."""
    check_packed_texts(transformers.MobileBertModel, folder, padding=0)


def test_a_graph_over_padded_texts_reads_no_padding(folder):
    check_padded_graph(folder, rtol=1e-4)


def test_parts_add_to_narrow_states_and_a_stack_without_effect_leaves_them():
    """What the hook of networks records is what all of a layer's networks change: 0 takes all away."""
    encoder, seen = random_encoder(NARROW, dtype=torch.float64), {}

    def record(point, layer, tensor):
        seen.setdefault((point, layer), tensor)
        return torch.zeros_like(tensor) if point is HookPoint.FEEDFORWARD else None

    with torch.inference_mode():
        encoder.encode(PackedBatch.of_ids([TEXTS[0]]), hook=record)
        for layer in range(3):
            block = encoder.block(layer)
            before_TD = seen[HookPoint.EMBEDDED, 0] if layer == 0 else seen[HookPoint.LAYER, layer - 1]
            assert (
                seen[HookPoint.ATTENTION, layer].shape == seen[HookPoint.FEEDFORWARD, layer].shape == (9, 12)
            )
            narrow_TN = block.attention_norm(block.narrowed(before_TD) + seen[HookPoint.ATTENTION, layer])
            after_TD = block.widened(block.feedforward_norm(narrow_TN), before_TD)
            torch.testing.assert_close(seen[HookPoint.LAYER, layer], after_TD, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_packed_linear_layers_compute_what_the_modules_do(dtype):
    spec = replace(NARROW, layers=NARROW.layers[:2])
    plain, fast = random_encoder(spec), random_encoder(spec)
    fast = fast.to(torch.bfloat16) if dtype == "bfloat16" else fast
    fast = optimize_for_inference(fast, dtype)
    batch = PackedBatch.of_ids(TEXTS)
    with torch.inference_mode():
        a_TD, b_TD = plain.encode(batch), fast.encode(batch).float()
    tolerance = {"float32": 1e-5, "bfloat16": 0.05, "int8": 0.1}[dtype]
    assert (a_TD - b_TD).norm() / a_TD.norm() < tolerance


def test_adapters_update_every_linear_layer_of_a_layer(folder):
    checkpoint = read_checkpoint(Source(folder, "tiny"))
    counts = {}
    for kind in ("attention", "feedforward", "all-linear"):
        encoder = build(checkpoint, dtype="float32")
        counts[kind] = add_low_rank(encoder, MOBILEBERT, LowRank(2, 4.0, 0.0, kind))
    # Queries, keys, values, their shared map, the output; four networks; two maps of the bottleneck.
    assert counts == {"attention": 2 * 5, "feedforward": 2 * 8, "all-linear": 2 * (5 + 8 + 2)}


def test_the_description_says_what_is_narrow_and_stacked():
    _, published = find_architecture("mobilebert-uncased")
    told = " ".join(text for _, text in describe_spec(published.pretraining))
    assert "a bottleneck of 128, another one for queries and keys" in told
    assert "512 ReLU, 4 one after the other" in told
    assert "scale and shift (NoNorm)" in told
    assert "projected to 512 with neighbors up to distance 1" in told
    assert "tied to the embedding and 384 features of its own" in told


def test_what_is_not_built_says_so():
    assert unsupported_encoder(NARROW) == "word vectors alone are projected"
    embedding = POST_NORM.embedding
    (layer, *_) = POST_NORM.layers
    for changes, part in (
        ({"bottleneck": Bottleneck(8)}, "a bottleneck"),
        ({"norm": NoNorm()}, "a norm without statistics"),
        (
            {"feedforward": StackedFeedForward(PlainFeedForward(9, "relu"), 2, LayerNorm(1e-5))},
            "a stack of feed-forward networks",
        ),
    ):
        spec = replace(POST_NORM, layers=(replace(layer, **changes),))
        assert unsupported_encoder(spec) == f"{part} is computed by its own module"
    for spec in (
        replace(POST_NORM, embedding=replace(embedding, norm=NoNorm())),
        replace(POST_NORM, final_norm=NoNorm()),
    ):
        assert unsupported_encoder(spec) == "a norm without statistics is computed by its own module"
    with pytest.raises(InvalidRequest, match="whose embedding reads the tokens beside each"):
        check_shared_query(NARROW)
    with pytest.raises(InvalidRequest, match="later tokens cannot be hidden"):
        causal_twin(random_encoder(NARROW))
    assert not NARROW.causal


STACK = StackedFeedForward(PlainFeedForward(9, "relu"), 2, NoNorm())


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda layer: Bottleneck(0), "Bottleneck.width is 0; it must be at least 1"),
        (
            lambda layer: Bottleneck(4, "wide"),
            "attention is 'wide'; it can be narrow, shared, input",
        ),
        (
            lambda layer: replace(STACK, count=1),
            "networks is 1; it must be at least 2",
        ),
        (
            lambda layer: replace(STACK, count=17),
            "networks is 17; it must be at most 16",
        ),
        (
            lambda layer: Projection(words_alone=True),
            "only with before_norm=True",
        ),
        (
            lambda layer: Projection(neighbors=1),
            "neighbors is 1; .* only with words_alone=True",
        ),
        (lambda layer: replace(layer, feedforward=STACK, norm_first=True), "built for norm_first=False only"),
        (lambda layer: replace(layer, feedforward=STACK, dropout=0.1), "layer dropout is 0.1"),
        (
            lambda layer: replace(layer, bottleneck=Bottleneck(4), norm_first=True),
            "built for norm_first=False",
        ),
        (
            lambda layer: replace(layer, bottleneck=Bottleneck(4), mixer=LinearAttention(2, 4, "elu+1")),
            "a bottleneck is built for softmax attention only",
        ),
        *(
            (
                lambda layer, mixer=mixer: replace(layer, bottleneck=Bottleneck(4, "shared"), mixer=mixer),
                f"a layer with a bottleneck is built without {part}",
            )
            for mixer, part in (
                (SoftmaxAttention(2, 4, position=Disentangled(5)), "disentangled positions"),
                (
                    SoftmaxAttention(2, 4, span_convolution=SpanConvolution(3)),
                    "convolutions beside attention",
                ),
                (SoftmaxAttention(2, 4, key_bias=False), "biases of some of queries, keys and values"),
            )
        ),
    ],
)
def test_layers_that_are_not_built_are_refused(make, sentence):
    (layer, *_) = POST_NORM.layers
    with pytest.raises(InvalidRequest, match=sentence):
        make(layer)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"intra_bottleneck_size": 0}, "intra_bottleneck_size is 0"),
        ({"num_attention_heads": 3}, "num_attention_heads is 3; it must divide intra_bottleneck_size"),
        (
            {"num_attention_heads": 5, "use_bottleneck": False},
            "num_attention_heads is 5; it must divide hidden_size",
        ),
        ({"true_hidden_size": 9}, "true_hidden_size is 9; it must be intra_bottleneck_size, which is 8"),
        (
            {"true_hidden_size": 8, "use_bottleneck": False},
            "true_hidden_size is 8; it must be hidden_size, which is 12",
        ),
        ({"key_query_shared_bottleneck": False}, "key_query_shared_bottleneck are false"),
        ({"normalization_type": "rms_norm"}, "normalization_type is 'rms_norm'"),
        ({"normalization_type": "layer_norm"}, "layer_norm_eps 1e-12; only 1e-05 is built"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps is 0.0"),
        ({"num_feedforward_networks": 0}, "num_feedforward_networks is 0"),
        ({"num_feedforward_networks": 17}, "num_feedforward_networks is 17; it must be at most 16"),
        ({"embedding_size": 12}, "embedding_size is 12 and hidden_size 12"),
        ({"use_bottleneck": False, "hidden_dropout_prob": 0.1}, "hidden_dropout_prob is 0.1"),
        ({"trigram_input": "yes"}, "trigram_input"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'"),
        ({"is_decoder": True}, "is_decoder is True"),
    ],
)
def test_a_config_that_cannot_be_built_is_refused_by_its_key(changes, sentence):
    config = {"model_type": "mobilebert", **SIZES, **changes}
    with pytest.raises(CheckpointError, match=sentence):
        family_of(config).read(JsonSettings("config.json", config), "published")


def test_an_encoder_that_its_config_cannot_describe_is_not_written():
    config = {"model_type": "mobilebert", **SIZES}
    spec = MOBILEBERT.read(JsonSettings("config.json", config), "published")
    (layer, *_) = spec.layers
    for other, sentence in (
        (replace(layer, norm=LayerNorm(1e-3)), "cannot say"),
        (replace(layer, mixer=replace(layer.mixer, head_width=3)), "heads have 6 features together"),
    ):
        with pytest.raises(UnknownArchitecture, match=sentence):
            MOBILEBERT.write(replace(spec, layers=(other,) * 2))


def test_a_head_that_reads_a_pooler_is_not_read_without_its_tensors(tmp_path):
    """Their class would make a pooler of random weights."""
    config = transformers.MobileBertConfig(**SIZES, classifier_activation=False)
    transformers.MobileBertForSequenceClassification(config).save_pretrained(tmp_path)
    write_vocabulary(tmp_path, 61)
    assert read_checkpoint(Source(tmp_path, "tiny")).spec.heads[0].reads == "first"
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(
        text.replace('"classifier_activation": false', '"classifier_activation": true')
    )
    with pytest.raises((InvalidRequest, CheckpointError), match="a head reads the pooler"):
        read_checkpoint(Source(tmp_path, "tiny"))


def test_an_mlm_head_adds_the_features_beside_the_embedding(tmp_path):
    torch.manual_seed(3)
    model = transformers.MobileBertForMaskedLM(transformers.MobileBertConfig(**SIZES, initializer_range=0.4))
    model.double().save_pretrained(tmp_path)
    write_vocabulary(tmp_path, 61)
    encoder = build(read_checkpoint(Source(tmp_path, "tiny")), dtype="float64")
    x_TD = torch.randn(4, 12, dtype=torch.float64)
    head = encoder.heads["masked"]
    states_TD = head.transform(x_TD).detach().numpy()
    apart = states_TD[:, 7:] @ head.beside.weight.detach().numpy()
    own = states_TD[:, :7] @ encoder.embedding.words.weight.detach().numpy().T
    logits_TV = head(x_TD, encoder.embedding.words.weight).detach().numpy()
    np.testing.assert_allclose(logits_TV, own + apart + head.bias.detach().numpy(), atol=1e-12)
    assert np.abs(apart).max() > 1e-2
