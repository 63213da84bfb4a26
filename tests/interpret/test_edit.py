"""An edit that returns None changes nothing, one of a point does what weights by hand do, and all end."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import unmask
from tests.support import dense
from tests.support.heads import decoded_spec, spec_with_heads
from tests.support.specs import SPECS, global_tokens, random_encoder
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.encoder.decoder import decode
from unmask.encoder.encoder import POINTS, Edit, EditedEncoder, compile_blocks
from unmask.engines.inference import optimize_for_inference
from unmask.engines.torch_engine import TorchEngine
from unmask.errors import InvalidRequest
from unmask.interpret.activation_cache import ActivationCache
from unmask.spec import PooledVector, SoftmaxAttention
from unmask.text.batch import PackedBatch

LENGTHS = (7, 12, 7)
POOLED = PooledVector(("mean",))


def batch_of(spec, lengths=LENGTHS):
    ids = [dense.random_text(length).ids for length in lengths]
    has_globals = any(
        isinstance(layer.mixer, SoftmaxAttention) and hasattr(layer.mixer.pattern, "own_projections")
        for layer in spec.layers
    )
    marks = [global_tokens(length) for length in lengths] if has_globals else None
    return PackedBatch.of_ids(ids, None, marks)


def edited(encoder, point, function, layer=None):
    return EditedEncoder(encoder, Edit.at(encoder, point, layer, function))


def results(encoder, batch):
    """Everything that an engine gives of an encoder with the heads of `spec_with_heads`."""
    engine = TorchEngine(encoder)
    return [
        engine.hidden_states(batch),
        engine.hidden_states(batch, "all"),
        engine.embed(batch, POOLED),
        *(engine.logits(batch, role) for role in ("masked", "tokens", "sequence")),
    ]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", SPECS)
def test_an_edit_that_returns_none_changes_nothing(name, point):
    encoder = random_encoder(spec_with_heads(name))
    batch, seen = batch_of(encoder.spec), []
    own = results(encoder, batch)

    def look(tensor, context):
        assert tensor.shape[0] == batch.layout.token_count == len(context.ids_T)
        assert context.offsets.tolist() == [0, 7, 19, 26]
        seen.append((context.point, context.layer))

    other = results(edited(encoder, point, look), batch)
    for a, b in zip(own, other, strict=True):
        np.testing.assert_array_equal(a, b)
    layers = [0] if point == "embeddings" else range(len(encoder.spec.layers))
    assert seen == [(point, layer) for layer in layers] * 6


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", SPECS)
def test_an_edit_of_a_layer_reaches_that_sequence_alone(name, point):
    """A row of the second sequence is changed: the others stay, and so do the states below."""
    encoder = random_encoder(spec_with_heads(name), dtype=torch.float64)
    batch = batch_of(encoder.spec)
    own = TorchEngine(encoder).hidden_states(batch, "all")

    def shift(tensor, context):
        tensor = tensor.clone()
        tensor[context.offsets[1] + 5] *= -3
        return tensor

    layer = None if point == "embeddings" else 1
    other = TorchEngine(edited(encoder, point, shift, layer)).hidden_states(batch, "all")
    changed = np.abs(own - other).max(-1) > 1e-12
    assert changed[-1, 7:19].any()
    assert not changed[:, :7].any()
    assert not changed[:, 19:].any()
    assert changed[:2].any() == (point == "embeddings")


def test_a_head_without_output_is_a_column_of_zeros_in_the_projection():
    encoder = random_encoder(spec_with_heads("post-norm"), dtype=torch.float64)
    batch = batch_of(encoder.spec)
    keep_H1 = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)[:, None]
    found = results(edited(encoder, "head_output", lambda o_THK, _: o_THK * keep_H1, 1), batch)
    by_hand = copy.deepcopy(encoder)
    with torch.no_grad():
        by_hand.layers[1].attention.out.weight[:, 8:16] = 0
    for a, b in zip(found, results(by_hand, batch), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_values_queries_and_networks_of_zero():
    encoder = random_encoder(spec_with_heads("post-norm"), dtype=torch.float64)
    batch = batch_of(encoder.spec)
    zeros = lambda tensor, _: torch.zeros_like(tensor)  # noqa: E731

    def by_hand(change):
        other = copy.deepcopy(encoder)
        with torch.no_grad():
            change(other.layers[1])
        return TorchEngine(other).hidden_states(batch)

    def without_values(layer):
        layer.attention.qkv.weight[48:] = 0
        layer.attention.qkv.bias[48:] = 0

    def without_attention(layer):
        layer.attention.out.weight.zero_()
        layer.attention.out.bias.zero_()

    def without_network(layer):
        layer.feedforward.outer.weight.zero_()
        layer.feedforward.outer.bias.zero_()

    def without_queries(layer):
        layer.attention.qkv.weight[:24] = 0
        layer.attention.qkv.bias[:24] = 0

    for point, change in (
        ("value", without_values),
        ("attention_output", without_attention),
        ("feedforward_output", without_network),
        ("query", without_queries),
    ):
        found = TorchEngine(edited(encoder, point, zeros, 1)).hidden_states(batch)
        np.testing.assert_allclose(found, by_hand(change), rtol=1e-12, atol=1e-12)


def test_rotated_keys_are_those_of_the_scores():
    """Swapping two keys and their values changes nothing in full attention, whatever positions they had."""
    spec = SPECS["rotary-windows"]
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, pattern=SPECS["post-norm"].layers[0].mixer.pattern))
        for layer in spec.layers
    )
    encoder = random_encoder(replace(spec, layers=layers), dtype=torch.float64)
    batch = batch_of(spec, (9,))
    order = torch.tensor([0, 4, 2, 3, 1, 5, 6, 7, 8])

    def swapped(tensor, _):
        return tensor[order]

    own = TorchEngine(encoder).hidden_states(batch)
    both = edited(edited(encoder, "key", swapped), "value", swapped)
    np.testing.assert_allclose(TorchEngine(both).hidden_states(batch), own, rtol=1e-10, atol=1e-12)
    one = TorchEngine(edited(encoder, "key", swapped)).hidden_states(batch)
    assert np.abs(one - own).max() > 1e-3


def test_layers_that_share_weights_are_edited_one_by_one():
    encoder = random_encoder(SPECS["alibi-shared"], dtype=torch.float64)
    batch = batch_of(encoder.spec)
    own, *each = (
        TorchEngine(one).hidden_states(batch)
        for one in (
            encoder,
            *(edited(encoder, "residual", lambda x_TD, _: 2 * x_TD + 1, layer) for layer in range(4)),
        )
    )
    assert all(np.abs(one - own).max() > 1e-3 for one in each)
    assert np.abs(each[0] - each[1]).max() > 1e-3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("edited") / "tiny", tiny_bert("BertForMaskedLM"))


TEXTS = ["the river bank was muddy", "the old man"]


def doubled(tensor, _):
    return 2 * tensor


@pytest.mark.parametrize("backend", ["torch", None])
def test_the_blocks_of_a_model_nest_and_end(folder, backend):
    model = unmask.load(folder, backend=backend)
    own, engine, filled = model.embed(TEXTS), model.engine, model.fill("the [MASK] bank")
    with model.edit("residual", doubled, layer=0) as same:
        assert same is model
        outer = model.embed(TEXTS)
        with model.edit("attention_output", doubled):
            inner = model.embed(TEXTS)
        np.testing.assert_array_equal(model.embed(TEXTS), outer)
        assert model.fill("the [MASK] bank") != filled
    assert np.abs(outer - own).max() > 1e-4
    assert np.abs(inner - outer).max() > 1e-4
    assert model.engine is engine
    np.testing.assert_array_equal(model.embed(TEXTS), own)

    class Stopped(Exception):
        pass

    def stop(tensor, _):
        raise Stopped

    with pytest.raises(Stopped), model.edit("query", stop, layer=1):
        model.embed(TEXTS)
    np.testing.assert_array_equal(model.embed(TEXTS), own)
    with model.edit("key", lambda *_: None):
        np.testing.assert_allclose(model.embed(TEXTS), own, rtol=1e-4, atol=1e-5)


def test_the_outer_edit_comes_first(folder):
    model = unmask.load(folder)
    seen = []

    def add(tensor, _):
        return tensor + 1

    def look(tensor, _):
        seen.append(tensor.clone())

    with model.edit("embeddings", look), model.edit("embeddings", add), model.edit("embeddings", look):
        model.embed(TEXTS[:1])
    torch.testing.assert_close(seen[1], seen[0] + 1)


def test_a_hook_of_an_analysis_sees_what_was_edited():
    encoder = random_encoder(SPECS["post-norm"])
    batch = batch_of(encoder.spec)

    def recorded(encoder):
        tensors = {}

        def record(point, layer, tensor):
            tensors[point, layer] = tensor

        encoder.encode(batch, hook=record)
        return tensors

    own, seen = recorded(encoder), recorded(edited(encoder, "residual", doubled, 0))
    assert own.keys() == seen.keys()
    for (point, layer), tensor in own.items():
        same = layer == 0 and point is not POINTS["residual"]
        assert torch.equal(tensor, seen[point, layer]) == same, (point, layer)
    torch.testing.assert_close(seen[POINTS["residual"], 0], 2 * own[POINTS["residual"], 0])


def test_an_optimized_encoder_is_edited_too():
    plain = random_encoder(spec_with_heads("grouped"))
    batch = batch_of(plain.spec)
    expected = TorchEngine(edited(plain, "value", doubled, 1)).hidden_states(batch)
    fast = optimize_for_inference(random_encoder(spec_with_heads("grouped")), "float32")
    found = TorchEngine(edited(fast, "value", doubled, 1)).hidden_states(batch)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_parameters_of_an_edited_encoder_are_those_of_the_encoder():
    encoder = random_encoder(SPECS["post-norm"])
    other = edited(encoder, "residual", doubled)
    assert list(other.state_dict()) == list(encoder.state_dict())
    assert all(a is b for a, b in zip(other.parameters(), encoder.parameters(), strict=True))


def test_what_cannot_be_edited_is_refused(folder):
    model = unmask.load(folder)
    layers = model.layer_count
    for words, arguments, named in (
        ("point is 'residuals'; it can be 'embeddings'", ("residuals", doubled), {}),
        ("no kernel holds the weights", ("probabilities", doubled), {}),
        (f"layers 0 to {layers - 1}", ("residual", doubled), {"layer": layers}),
        (f"layers 0 to {layers - 1}", ("residual", doubled), {"layer": [0, -1]}),
        ("come before all layers", ("embeddings", doubled), {"layer": 0}),
        ("function is 3", ("residual", 3), {}),
    ):
        with pytest.raises(InvalidRequest, match=words), model.edit(*arguments, **named):
            pass
    for words, function in (
        (r"at residual of layer 0 returned a tensor of shape \(1,", lambda tensor, _: tensor[:1]),
        ("returned a int; it must return a tensor or None", lambda tensor, _: 3),
    ):
        with pytest.raises(InvalidRequest, match=words), model.edit("residual", function):
            model.embed(TEXTS)
    with model.edit("residual", doubled):
        with pytest.raises(InvalidRequest, match="look at it outside the block"):
            model.attention(TEXTS[0])
        with pytest.raises(InvalidRequest, match="cannot be replaced meanwhile"):
            model.trainable_encoder()
        with pytest.raises(InvalidRequest, match="cannot be copied"):
            copy.copy(model)
    compiled = compile_blocks(random_encoder(SPECS["post-norm"]), backend="eager")
    with pytest.raises(InvalidRequest, match="compiled layers cannot be edited"):
        edited(compiled, "residual", doubled)


def test_the_layer_of_an_enhanced_mask_decoder_is_not_edited_silently():
    encoder = random_encoder(decoded_spec(), dtype=torch.float64)
    batch = batch_of(encoder.spec, (9,))
    ids_T = torch.from_numpy(batch.ids_T)
    last = len(encoder.spec.layers) - 1
    own = decode(encoder, ids_T, batch.layout)
    below = decode(edited(encoder, "residual", doubled, last - 1), ids_T, batch.layout)
    assert (own - below).abs().max() > 1e-3
    with pytest.raises(InvalidRequest, match=f"in place of layer {last}, which is edited"):
        decode(edited(encoder, "residual", doubled), ids_T, batch.layout)


def test_the_cache_of_an_edited_encoder_is_refused():
    encoder = random_encoder(SPECS["post-norm"])
    with pytest.raises(InvalidRequest, match="without edits"):
        ActivationCache.of(edited(encoder, "residual", doubled), dense.random_text(5))
