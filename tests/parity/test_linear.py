"""Linear attention and FAVOR+: the formulas, what the papers prove of them, both families' folders."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support import dense, plain
from tests.support.examples import examples
from tests.support.specs import SPECS, random_encoder
from unmask.base.json_settings import JsonSettings
from unmask.encoder.hooks import HookPoint
from unmask.encoder.layers.linear_attention import LinearMixer, log_features, orthogonal_rows
from unmask.errors import InvalidRequest, UnknownArchitecture
from unmask.families import FAMILIES
from unmask.families.linear import LINEAR, PERFORMER
from unmask.spec import Classifier, LinearAttention, MaskedLM, Transform
from unmask.text import PackedBatch, SequenceLayout
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.write.save import save, their_tensors

SIZES = {
    "attention_probs_dropout_prob": 0.0,
    "hidden_size": 21,
    "intermediate_size": 10,
    "max_position_embeddings": 40,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "vocab_size": 31,
}
PAGES = {
    "linear": LINEAR.from_config(**SIZES, feature_eps=1e-3),
    "performer": PERFORMER.from_config(**SIZES, num_random_features=5, feature_eps=1e-3),
    "performer, features by width": PERFORMER.from_config(**SIZES),
}
TEXTS = [[7, 8, 9, 10, 11], [5], list(range(5, 30))]


def family_named(name):
    return next(family for family in FAMILIES if family.name == name)


def heads_of(spec):
    transform = Transform(spec.width, "gelu", spec.layers[0].norm)
    return {
        "none": (),
        "masked": (MaskedLM(transform),),
        "pretraining": (MaskedLM(transform), Classifier("next_sentence", 2, "pooler")),
        "sequence": (Classifier("sequence", 4, "pooler"),),
        "tokens": (Classifier("tokens", 6, "tokens"),),
        "span": (Classifier("span", 2, "tokens"),),
    }


def write_folder(folder, spec):
    """A checkpoint folder of ours, put together by hand; returns the encoder that is in it."""
    encoder = random_encoder(spec, dtype=torch.float64)
    family = family_named("linear" if spec.layers[0].mixer.feature_map == "elu+1" else "performer")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(family.write(spec)))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*words, *map(str, range(26))]) + "\n")
    save_file(their_tensors(encoder, family), folder / "model.safetensors", metadata={"format": "pt"})
    return encoder


@pytest.mark.parametrize("head", ["none", "masked", "pretraining", "sequence", "tokens", "span"])
@pytest.mark.parametrize("page", PAGES)
def test_a_folder_is_read_and_written_the_same(page, head, tmp_path):
    spec = replace(PAGES[page], heads=heads_of(PAGES[page])[head])
    original = write_folder(tmp_path / "first", spec)
    for source, target in (("first", "ours"), ("ours", "again")):
        checkpoint = read_checkpoint(Source(tmp_path / source, source))
        assert checkpoint.spec == spec
        assert checkpoint.unread_config == ()
        loaded = build(checkpoint, dtype="float64")
        save(loaded, checkpoint, tmp_path / target)
    ours, again = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("ours", "again")
    )
    assert ours == again
    assert loaded.state_dict().keys() == original.state_dict().keys()
    for name, tensor in original.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    batch = PackedBatch.of_ids(TEXTS)
    with torch.inference_mode():
        states = [encoder.encode(batch) for encoder in (original, loaded)]
        torch.testing.assert_close(*states, rtol=0, atol=1e-12)
        for role in loaded.heads:
            both = (encoder.logits(role, states[0], batch.layout) for encoder in (original, loaded))
            torch.testing.assert_close(*both, rtol=0, atol=1e-12)


@pytest.mark.parametrize("page", PAGES)
def test_a_loaded_folder_equals_the_formulas(page, tmp_path):
    spec = PAGES[page]
    encoder = write_folder(tmp_path / "folder", spec)
    weights = {name: tensor.numpy() for name, tensor in encoder.state_dict().items()}
    checkpoint = read_checkpoint(Source(tmp_path / "folder", "tiny"))
    batch = PackedBatch.of_ids(TEXTS)
    for dtype, tolerance in (("float64", 1e-10), ("float32", 1e-5)):
        with torch.inference_mode():
            states = build(checkpoint, dtype=dtype).encode(batch).double().numpy()
        for sequence, ids in enumerate(TEXTS):
            expected = plain.encode(spec, weights, ids, [0] * len(ids), None)[-1]
            np.testing.assert_allclose(states[batch.layout.rows(sequence)], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("page", PAGES)
def test_settings_that_are_not_built_are_refused(page):
    spec = PAGES[page]
    family = family_named(page.split(",")[0])
    written = family.write(spec)
    assert family.read(JsonSettings("config.json", written), "published") == spec
    wrong = {"is_decoder": True, "feature_map": "relu", "attention_probs_dropout_prob": 0.1}
    for key, value in wrong.items():
        with pytest.raises(UnknownArchitecture, match=f"{key} is {value!r}; only"):
            family.read(JsonSettings("config.json", {**written, key: value}), "published")


@pytest.mark.parametrize("name", ["linear", "performer"])
def test_a_loud_neighbor_changes_nothing(name):
    """Keys of huge norm beside a quiet text: their maximum must not reach what eps weighs in the other."""
    torch.manual_seed(3)
    spec = replace(SPECS[name].layers[0].mixer, eps=1e-2)
    mixer = LinearMixer(spec, 12).double().eval()
    quiet, loud = torch.randn(6, 12).double(), 40 * torch.randn(9, 12).double()

    def mix(*texts):
        layout = SequenceLayout.of_lengths([len(text) for text in texts])
        x_TD = torch.cat(texts)
        return mixer(x_TD, mixer.plan(layout, x_TD, None, {}), 0, None).split([len(text) for text in texts])

    with torch.inference_mode():
        alone = mix(quiet)[0]
        torch.testing.assert_close(mix(loud, quiet)[1], alone, rtol=0, atol=1e-12)
        torch.testing.assert_close(mix(quiet, loud, loud)[0], alone, rtol=0, atol=1e-12)
        swapped = torch.cat([quiet[:1], loud[:5]])
        assert not torch.allclose(mix(swapped)[0][0], alone[0], atol=1e-3)


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor has that any operation gives."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.numbers = max(self.numbers, result.untyped_storage().nbytes() // result.element_size())
        return result


def small_mixer(name, **changes):
    torch.manual_seed(9)
    return LinearMixer(replace(SPECS[name].layers[0].mixer, **changes), 12).double()


def mixed(mixer, x_TD, lengths):
    return mixer(x_TD, mixer.plan(SequenceLayout.of_lengths(lengths), x_TD, None, {}), 0, None)


@pytest.mark.parametrize("name", ["linear", "performer"])
@examples(20)
@given(lengths=st.lists(st.sampled_from([1, 2, 3, 3, 5, 6, 7, 40]), min_size=1, max_size=9))
def test_texts_of_any_lengths_together_are_each_as_alone(name, lengths):
    mixer, x_TD = small_mixer(name, eps=1e-2), torch.randn(sum(lengths), 12).double()
    with torch.inference_mode():
        together = mixed(mixer, x_TD, lengths).split(lengths)
        for text, found in zip(x_TD.split(lengths), together, strict=True):
            torch.testing.assert_close(found, mixed(mixer, text, [len(text)]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["linear", "performer"])
def test_gradients_by_finite_differences(name):
    """Short texts, whose map is made, and longer ones, whose sums are."""
    # The largest exponent is taken as a constant, which is exact where eps is 0 and it cancels.
    mixer, lengths = small_mixer(name, eps=0.0), [9, 2, 9, 1, 3]
    x_TD = torch.randn(24, 12, dtype=torch.float64, requires_grad=True)
    inputs = (x_TD, mixer.qkv.weight, mixer.qkv.bias, mixer.out.weight)
    assert torch.autograd.gradcheck(lambda x, *_: mixed(mixer, x, lengths), inputs, fast_mode=True)


@pytest.mark.parametrize("name", ["linear", "performer"])
def test_no_tensor_grows_faster_than_the_text(name):
    mixer, largest = small_mixer(name), {}
    for length in (200, 1600):
        x_TD = torch.randn(length, 12, dtype=torch.float64, requires_grad=True)
        with Largest() as watch:
            mixed(mixer, x_TD, [length]).sum().backward()
        largest[length] = watch.numbers
    assert largest[1600] == 8 * largest[200]


def test_many_texts_run_as_few_as_they_have_lengths(monkeypatch):
    mixer, calls = small_mixer("linear"), []
    mix = LinearMixer._mix
    monkeypatch.setattr(LinearMixer, "_mix", lambda self, x: calls.append(x.shape[:2]) or mix(self, x))
    mixed(mixer, torch.randn(120, 12).double(), [3, 5, 4] * 10)
    assert calls == [(10, 3), (10, 4), (10, 5)]


@pytest.mark.parametrize(("rows", "width"), [(3, 8), (8, 8), (21, 8), (5, 1)])
def test_random_rows_are_orthogonal_in_blocks_with_gaussian_lengths(rows, width):
    drawn = orthogonal_rows(rows, width, generator=torch.Generator().manual_seed(1))
    assert drawn.shape == (rows, width)
    directions = drawn / drawn.norm(dim=-1, keepdim=True)
    for start in range(0, rows, width):
        block = directions[start : start + width]
        torch.testing.assert_close(block @ block.T, torch.eye(len(block)).double(), rtol=0, atol=1e-12)


def test_each_random_row_is_a_standard_gaussian():
    """Moments over draws, five standard errors wide: E w = 0, E w w^T = 1, E |w|^4 = K (K + 2)."""
    width, draws = 4, 4000
    generator = torch.Generator().manual_seed(2)
    drawn = torch.stack([orthogonal_rows(3, width, generator=generator) for _ in range(draws)])
    for row in drawn.unbind(1):
        assert row.mean(0).abs().max() < 5 / math.sqrt(draws)
        second = torch.einsum("ni,nj->ij", row, row) / draws
        assert (second - torch.eye(width)).abs().max() < 5 * math.sqrt(2 / draws)
        fourth = row.square().sum(-1).square()
        assert abs(fourth.mean() - width * (width + 2)) < 5 * fourth.std() / math.sqrt(draws)


def favor_estimate(q, k, rows):
    """What the features say exp(q k / sqrt(K)) is, for every pair."""
    log_q, log_k = (log_features(x[:, None], rows)[:, 0] for x in (q, k))
    return (log_q[:, None] + log_k[None]).exp().mean(-1)


def queries_and_keys(width, count=5):
    generator = torch.Generator().manual_seed(4)
    return torch.randn(2, count, width, generator=generator, dtype=torch.float64).unbind()


def test_the_estimate_of_the_softmax_kernel_has_no_bias():
    width, draws = 6, 3000
    q, k = queries_and_keys(width)
    exact = (q @ k.T / math.sqrt(width)).exp()
    generator = torch.Generator().manual_seed(5)
    made = torch.stack(
        [favor_estimate(q, k, orthogonal_rows(width, width, generator=generator)) for _ in range(draws)]
    )
    error, standard_error = made.mean(0) - exact, made.std(0) / math.sqrt(draws)
    assert (error.abs() < 5 * standard_error).all()
    assert (standard_error < 0.2 * exact).all()  # or the test above would say nothing


@pytest.mark.parametrize("features", [6, 24, 96])
def test_the_error_of_the_estimate_is_within_the_bound_of_the_paper(features):
    """Choromanski et al. 2021, lemma 2 and theorem 2: with independent features the mean squared error is
    ``exp(|z|^2) SM^2 (1 - exp(-|z|^2)) / m`` with z = (q + k) / K^1/4; orthogonal ones do no worse.
    """
    width, draws = 6, 600
    q, k = (0.6 * x for x in queries_and_keys(width))
    exact = (q @ k.T / math.sqrt(width)).exp()
    z2 = ((q[:, None] + k[None]) / width**0.25).square().sum(-1)
    bound = z2.exp() * exact.square() * (1 - (-z2).exp()) / features
    generator = torch.Generator().manual_seed(6)
    squares = torch.stack(
        [
            (favor_estimate(q, k, orthogonal_rows(features, width, generator=generator)) - exact).square()
            for _ in range(draws)
        ]
    )
    noise = squares.std(0) / math.sqrt(draws)
    assert (squares.mean(0) < bound + 5 * noise).all()
    assert (squares.mean(0) > bound / 20).all()  # and the bound is of the right size


def test_attention_converges_to_softmax_as_features_grow():
    """The whole mixer against exact softmax attention: 16 times the features, a quarter of the error.

    Asked for is half of it at each step, and less than 2 % of the exact outputs at 16,384 features.
    """
    width, heads = 12, 3
    torch.manual_seed(7)
    x_TD = torch.randn(9, width, dtype=torch.float64)
    layout = SequenceLayout.of_lengths([5, 4])
    errors = {}  # root mean square, as a share of that of the exact outputs
    for features in (64, 1024, 16384):
        spec = LinearAttention(heads, 4, "favor+", random_features=features, eps=0.0)
        torch.manual_seed(8)
        mixer = LinearMixer(spec, width).double()
        found = []
        for seed in range(4):
            mixer.redraw(torch.Generator().manual_seed(seed))
            with torch.inference_mode():
                y_TD = mixer(x_TD, mixer.plan(layout, x_TD, None, {}), 0, None)
                q, k, v = mixer.qkv(x_TD).unflatten(-1, (3, heads, 4)).unbind(-3)
                parts = zip(*(tensor.transpose(0, 1).split([5, 4], 1) for tensor in (q, k, v)), strict=True)
                exact = [torch.softmax(a @ b.mT / 2, -1) @ c for a, b, c in parts]
                expected = mixer.out(torch.cat(exact, 1).transpose(0, 1).flatten(-2))
            found.append((y_TD - expected).square().mean() / expected.square().mean())
        errors[features] = float(torch.stack(found).mean().sqrt())
    assert errors[1024] < errors[64] / 2
    assert errors[16384] < errors[1024] / 2
    assert errors[16384] < 0.02


def test_features_are_drawn_again_in_training_only():
    mixer = LinearMixer(LinearAttention(3, 4, "favor+", random_features=9), 12)
    first = mixer.projection.clone()
    mixer.redraw(torch.Generator().manual_seed(1))
    second = mixer.projection.clone()
    assert not torch.equal(first, second)
    mixer.eval()
    with pytest.raises(InvalidRequest, match="drawn in training only"):
        mixer.redraw()
    assert torch.equal(mixer.projection, second)
    with pytest.raises(InvalidRequest, match="no random features"):
        LinearMixer(LinearAttention(3, 4, "elu+1"), 12).redraw()


@pytest.mark.parametrize("name", ["linear", "performer"])
def test_features_of_half_precision_are_computed_in_float32(name):
    encoder = random_encoder(SPECS[name])
    batch = PackedBatch.of_ids(TEXTS)
    with torch.inference_mode():
        exact = encoder.encode(batch)
        half = encoder.bfloat16().encode(batch)
    assert half.dtype == torch.bfloat16
    assert (half - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("name", ["linear", "performer"])
def test_the_weights_that_are_shown_mix_the_values_that_came_out(name):
    from unmask.interpret import AttentionView

    encoder, encoding = random_encoder(SPECS[name], dtype=torch.float64), dense.random_text(17)
    view, heard = AttentionView(encoder, encoding), {}
    with torch.inference_mode():
        encoder.encode(view.cache.batch, hook=lambda place, layer, x: heard.update({(place, layer): x}))
    for layer in range(view.layer_count):
        assert view.kind(layer) == "kernel"
        for head in range(3):
            mixed = view.probabilities(layer, head) @ heard[HookPoint.VALUE, layer][:, head].numpy()
            np.testing.assert_allclose(
                mixed, heard[HookPoint.MIXED, layer][:, head].numpy(), rtol=0, atol=1e-5
            )
