"""ConvBERT's convolutions: the ends of a text, padding, what attention shows of them, and refusals."""

import numpy as np
import pytest
import torch
import transformers

from tests.contracts.test_transformers import write_vocabulary
from tests.parity.beside_padding import TEXTS, check_packed_texts, check_padded_graph
from tests.support.specs import SPANS, random_encoder
from unmask.base.json_settings import JsonSettings
from unmask.encoder.hooks import HookPoint
from unmask.engines.native.program import unsupported_encoder
from unmask.errors import CheckpointError, InvalidRequest, UnknownArchitecture
from unmask.explorer.sessions.described import _kind
from unmask.families import family_of
from unmask.interpret.geometry.reading import causal_twin
from unmask.spec import (
    CausalAttention,
    PlainFeedForward,
    QueryKeyNorm,
    RMSNorm,
    Rotary,
    SoftmaxAttention,
    SpanConvolution,
    check_shared_query,
)
from unmask.spec.describe import describe_spec
from unmask.spec.encoder import why_no_decoder
from unmask.spec.shapes import tensor_shapes
from unmask.text import PackedBatch
from unmask.weights import Source, read_checkpoint

SIZES = {
    "hidden_size": 12,
    "num_attention_heads": 4,
    "intermediate_size": 10,
    "num_hidden_layers": 2,
    "embedding_size": 7,
    "num_groups": 2,
    "vocab_size": 61,
}


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(2)
    config = transformers.ConvBertConfig(**SIZES, initializer_range=0.4)
    transformers.ConvBertModel(config).double().save_pretrained(tmp_path)
    write_vocabulary(tmp_path, 61)
    return tmp_path


def test_a_packed_text_has_the_states_of_the_text_alone_and_not_those_beside_padding(folder):
    """Their convolutions read the vectors of padding behind a text; those of the longest have none."""
    check_packed_texts(transformers.ConvBertModel, folder, padding=1)


def test_a_graph_over_padded_texts_reads_no_padding(folder):
    check_padded_graph(folder)


def test_hooks_see_the_heads_of_attention_and_the_output_of_both():
    encoder, seen = random_encoder(SPANS, dtype=torch.float64), {}

    def record(point, layer, tensor):
        seen[point, layer] = tensor

    with torch.inference_mode():
        encoder.encode(PackedBatch.of_ids([TEXTS[0]]), hook=record)
        for layer, spec in enumerate(SPANS.layers):
            mixed_TI = seen[HookPoint.MIXED, layer].flatten(-2)
            assert mixed_TI.shape[1] == spec.mixer.heads * spec.mixer.head_width
            out = encoder.block(layer).attention.out
            own_TD = mixed_TI @ out.weight[:, : mixed_TI.shape[1]].T + out.bias
            assert (seen[HookPoint.ATTENTION, layer] - own_TD).abs().max() > 1e-2


def test_what_shows_attention_says_that_convolutions_are_none():
    assert _kind(SPANS.layers[0].mixer) == "full attention, beside convolutions, which are no attention"
    assert _kind(SoftmaxAttention(2, 4)) == "full attention"
    told = " ".join(text for _, text in describe_spec(SPANS))
    assert "beside them 3 convolutions of 5 tokens, not attention" in told
    assert "GELU in 2 groups" in told


def test_what_is_not_built_says_so():
    assert unsupported_encoder(SPANS) == "a network in groups is computed by its own module"
    assert why_no_decoder(SPANS) is not None
    with pytest.raises(InvalidRequest, match="convolutions beside attention, which read across"):
        check_shared_query(SPANS)
    with pytest.raises(InvalidRequest, match="linear attention, global tokens or convolutions"):
        causal_twin(random_encoder(SPANS))


@pytest.mark.parametrize(
    "changes",
    [
        {"pattern": CausalAttention()},
        {"position": Rotary(10_000.0)},
        {"key_value_heads": 1},
        {"query_key_norm": QueryKeyNorm(RMSNorm(1e-6))},
        {"score_scale": 1.0},
    ],
)
def test_convolutions_stand_beside_plain_attention_alone(changes):
    mixer = SoftmaxAttention(2, 4, span_convolution=SpanConvolution(3), **changes)
    with pytest.raises(
        UnknownArchitecture, match="convolutions beside the heads of attention are built with"
    ):
        mixer.check_is_built()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SpanConvolution(4), "SpanConvolution.kernel is 4; it must be odd"),
        (lambda: SpanConvolution(0), "SpanConvolution.kernel is 0; it must be at least 1"),
        (lambda: PlainFeedForward(10, "gelu", groups=3), "10 wide and has 3 groups"),
        (lambda: PlainFeedForward(10, "gelu", groups=0), "groups of the feed-forward network is 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused(make, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        make()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"conv_kernel_size": 4}, "conv_kernel_size is 4; it must be odd"),
        ({"conv_kernel_size": 0}, "conv_kernel_size is 0"),
        ({"head_ratio": 0}, "head_ratio is 0"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": 10}, "hidden_size is 12, num_attention_heads is 10 and head_ratio is 2"),
        ({"num_groups": 0}, "num_groups is 0"),
        ({"num_groups": 5}, "5 groups; they must divide width 12"),
        ({"intermediate_size": 9}, "9 wide and has 2 groups"),
        ({"hidden_size": 13, "num_attention_heads": 2}, "hidden_size is 13"),
        ({"is_decoder": True}, "is_decoder is True"),
    ],
)
def test_a_config_that_cannot_be_built_is_refused_by_its_key(changes, sentence):
    config = {"model_type": "convbert", **SIZES, **changes}
    with pytest.raises(CheckpointError, match=sentence):
        family_of(config).read(JsonSettings("config.json", config), "published")


def test_a_head_of_choices_that_reads_the_last_token_is_refused(tmp_path):
    transformers.ConvBertForMultipleChoice(transformers.ConvBertConfig(**SIZES)).save_pretrained(tmp_path)
    write_vocabulary(tmp_path, 61)
    with pytest.raises(UnknownArchitecture, match="summary_type is 'last'"):
        read_checkpoint(Source(tmp_path, "tiny"))


def test_names_of_tensors_and_their_shapes_are_those_of_the_modules():
    encoder = random_encoder(SPANS)
    shapes = {name: tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}
    assert tensor_shapes(SPANS) == shapes
    assert np.prod(shapes["layers.0.attention.spans.pointwise.weight"]) == 12 * 24
