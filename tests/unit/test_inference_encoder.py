"""Whole layers for inference against the plain encoder and the modules that they replace."""

import copy

import numpy as np
import pytest
import torch

from tests.support.specs import SPECS, global_tokens, random_encoder
from unmask.encoder.encoder import Encoder
from unmask.encoder.hooks import HookPoint
from unmask.engines.inference import optimize_for_inference, unsupported_reason
from unmask.engines.inference.lean import layer_reason
from unmask.engines.inference.optimize import InferenceEncoder
from unmask.spec.global_tokens import has_global_tokens
from unmask.text import PackedBatch
from unmask.text.batch import SequenceLayout

DTYPES = [
    pytest.param(dtype, marks=pytest.mark.skipif(reason is not None, reason=str(reason)))
    for dtype in ("float32", "bfloat16")
    for reason in [unsupported_reason(dtype)]
]

LENGTHS = {"one token": (1,), "alone": (13,), "alike": (9, 9, 9), "mixed": (12, 1, 18), "long": (60,)}


def batch_of(lengths, seed=0):
    ids = np.random.RandomState(seed)
    return PackedBatch.of_ids(
        [ids.randint(0, 97, length) for length in lengths],
        [ids.randint(0, 2, length) for length in lengths],
        [global_tokens(length) for length in lengths],
    )


def segmented(spec, batch):
    """The batch, with token types and global tokens only where the encoder has them."""
    kinds = spec.embedding.segments or 1
    layout = batch.layout if has_global_tokens(spec) else SequenceLayout(batch.layout.offsets)
    return PackedBatch(batch.ids_T, batch.token_type_ids_T % kinds, layout)


def pair_of(name, dtype):
    plain = random_encoder(SPECS[name], dtype=getattr(torch, dtype))
    fast = optimize_for_inference(copy.deepcopy(plain), dtype)
    assert isinstance(fast, InferenceEncoder)
    return plain, fast


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("name", SPECS)
def test_whole_layers_equal_the_plain_encoder(name, lengths, dtype):
    """In bfloat16 both round, at other places: neither may be much farther from float64 than the other."""
    plain, fast = pair_of(name, dtype)
    batch = segmented(SPECS[name], batch_of(lengths))
    with torch.inference_mode():
        found = fast.encode(batch).double()
        expected = plain.encode(batch).double()
        if dtype == "float32":
            assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
            return
        exact = plain.double().encode(batch)
    far, plain_far = ((x - exact).norm() / exact.norm() for x in (found, expected))
    assert far <= 1.5 * plain_far + 0.01


@pytest.mark.parametrize("name", SPECS)
def test_a_preparation_is_remembered_for_texts_of_its_own_length_alone(name):
    _, fast = pair_of(name, "float32")
    with torch.inference_mode():
        for lengths in ((13,), (5,), (13,), (13, 13), (13,)):
            batch = segmented(SPECS[name], batch_of(lengths, seed=sum(lengths)))
            expected = Encoder.forward(
                fast, torch.from_numpy(batch.ids_T), batch.layout, torch.from_numpy(batch.token_type_ids_T)
            )
            torch.testing.assert_close(fast.encode(batch), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SPECS)
def test_softmax_layers_are_whole_and_others_keep_their_modules(name):
    _, fast = pair_of(name, "float32")
    for block, spec in zip(
        (fast.block(layer) for layer in range(len(fast.spec.layers))), fast.spec.layers, strict=True
    ):
        beside = getattr(spec.mixer, "span_convolution", None) is not None or spec.bottleneck or spec.gate
        assert (layer_reason(block) is None) == (
            type(spec.mixer).__name__ == "SoftmaxAttention" and not beside
        )


def test_hooks_gradients_and_single_layers_use_the_modules(monkeypatch):
    _, fast = pair_of("post-norm", "float32")
    batch, heard = batch_of((7,)), []

    def refuse(*_):
        raise AssertionError("whole layers ran")

    monkeypatch.setattr(InferenceEncoder, "_run", refuse)
    with torch.inference_mode():
        fast.encode(batch, hook=lambda place, layer, tensor: heard.append(place))
        fast(torch.from_numpy(batch.ids_T), batch.layout, layers=1)
        with pytest.raises(AssertionError, match="whole layers ran"):
            fast.encode(batch)
    assert heard.count(HookPoint.LAYER) == 3
    fast.encode(batch)  # gradients are enabled


def test_ids_of_a_text_are_not_changed():
    _, fast = pair_of("post-norm", "float32")
    batch = batch_of((7,))
    words = fast.embedding.words.weight.clone()
    with torch.inference_mode():
        first, second = fast.encode(batch), fast.encode(batch)
    assert torch.equal(first, second)
    assert torch.equal(words, fast.embedding.words.weight)
