"""Every part that a spec can name, against an independent float64 computation from the formulas."""

import numpy as np
import pytest
import torch

from tests.support import plain
from tests.support.specs import SPECS, VOCABULARY, global_tokens, random_encoder
from unmask.encoder.hooks import HookPoint
from unmask.encoder.layers.positions import RotaryTable, apply_rotary
from unmask.spec import Alibi, Rotary
from unmask.text import PackedBatch


@pytest.mark.parametrize("name", SPECS)
def test_every_layer_equals_the_formulas(name):
    spec = SPECS[name]
    encoder = random_encoder(spec, dtype=torch.float64)
    weights = {key: value.numpy() for key, value in encoder.state_dict().items()}
    rng = np.random.default_rng(1)
    lengths = (1, 7, 18)
    ids = [rng.integers(0, VOCABULARY, length) for length in lengths]
    segments = [rng.integers(0, max(1, spec.embedding.segments), length) for length in lengths]
    batch = PackedBatch.of_ids(ids, segments, [global_tokens(length) for length in lengths])
    heard = []

    def listen(place, layer, tensor):
        if place in (HookPoint.EMBEDDED, HookPoint.LAYER):
            heard.append(tensor.numpy())

    with torch.inference_mode():
        heard_last = encoder.encode(batch, hook=listen).numpy()
    heard[-1] = heard_last
    assert len(heard) == len(spec.layers) + 1
    for sequence, (one_ids, one_segments) in enumerate(zip(ids, segments, strict=True)):
        marks = batch.layout.globals_T[batch.layout.rows(sequence)]
        expected = plain.encode(spec, weights, one_ids, one_segments, marks)
        for ours, theirs in zip(heard, expected, strict=True):
            np.testing.assert_allclose(ours[batch.layout.rows(sequence)], theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", SPECS)
def test_a_tap_changes_nothing(name):
    encoder = random_encoder(SPECS[name])
    batch = PackedBatch.of_ids([[5, 6, 7], [8, 9]])
    with torch.inference_mode():
        silent = encoder.encode(batch)
        heard = encoder.encode(batch, hook=lambda place, layer, tensor: None)
    assert torch.equal(silent, heard)


@pytest.mark.parametrize("name", SPECS)
def test_gradients_reach_every_parameter(name):
    encoder = random_encoder(SPECS[name], dtype=torch.float64).train()
    batch = PackedBatch.of_ids(
        [range(12), range(40, 45)], [[0] * 12, [0] * 5], [global_tokens(12), global_tokens(5)]
    )
    states = encoder.encode(batch)
    (states * torch.randn(states.shape, dtype=torch.float64)).sum().backward()
    for key, parameter in encoder.named_parameters():
        assert parameter.grad is not None or key.startswith("pooler"), key
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), key


def turned(x_THK, positions_T, rotary):
    return apply_rotary(
        x_THK, RotaryTable.of(positions_T.numpy(), rotary, x_THK.shape[-1], x_THK.dtype), rotary
    )


def test_rotary_scores_depend_on_distance_alone():
    q, k = torch.randn(2, 1, 8, dtype=torch.float64)
    rotary = Rotary(10_000.0)

    def score(i: int, j: int) -> float:
        a, b = (turned(x[None], torch.tensor([p]), rotary) for x, p in ((q, i), (k, j)))
        return float((a * b).sum())

    assert score(3, 10) == pytest.approx(score(103, 110), abs=1e-12)
    assert score(3, 10) != pytest.approx(score(3, 11), abs=1e-6)


def test_rotary_interleaved_is_the_other_pairing():
    x = torch.randn(5, 2, 6, dtype=torch.float64)
    order = torch.tensor([0, 2, 4, 1, 3, 5])
    halves = turned(x[..., order], torch.arange(5), Rotary(500.0))
    pairs = turned(x, torch.arange(5), Rotary(500.0, interleaved=True))
    torch.testing.assert_close(pairs[..., order], halves)


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16])
def test_alibi_slopes_are_the_published_ones(heads):
    from unmask.kernels import alibi_slopes

    np.testing.assert_allclose(alibi_slopes(heads).numpy(), plain.press_slopes(heads), rtol=1e-14)


def test_alibi_survives_building_without_memory():
    with torch.device("meta"):
        from unmask.encoder.encoder import Encoder

        encoder = Encoder(SPECS["alibi-shared"])
    assert isinstance(SPECS["alibi-shared"].layers[0].mixer.position, Alibi)
    assert encoder.layers[0].attention.bias.slopes_H.device.type == "cpu"
