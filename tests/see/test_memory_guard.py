"""Nothing of the size of a whole map is ever made, whatever the encoder; a guard would see it."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support import dense
from tests.support.specs import SPECS, random_encoder
from unmask.model.spec import EncoderSpec, LearnedPositions
from unmask.see import Atlas, AttentionView, LayerRows, Recording
from unmask.see.sinks import sinks

LENGTH = 2048


@pytest.fixture(autouse=True)
def one_thread():
    """A guard sees what its own thread does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Guard(TorchDispatchMode):
    """Remembers the largest tensor that any operation gives back, by its storage and by its shape."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor) and one.layout == torch.strided:
                held = one.untyped_storage().nbytes() // one.element_size()
                self.largest = max(self.largest, one.numel(), held)
        return made


def long(spec: EncoderSpec) -> EncoderSpec:
    """The same with one or two layers and positions for long texts."""
    positions = spec.embedding.positions
    if isinstance(positions, LearnedPositions):
        positions = LearnedPositions(LENGTH + 8, offset=positions.offset)
    embedding = dataclasses.replace(spec.embedding, positions=positions)
    sharing = None if spec.sharing is None else (0, 0)
    return dataclasses.replace(spec, embedding=embedding, layers=spec.layers[:2], sharing=sharing)


@pytest.mark.parametrize("name", SPECS)
def test_no_tensor_is_as_large_as_an_eighth_of_a_map(name):
    encoder = random_encoder(long(SPECS[name]))
    view = AttentionView(encoder, dense.random_text(LENGTH), global_tokens="first")
    with Guard() as guard:
        view.recording.projected(0)
        first = view.probabilities(0, 1, slice(700, 1000), slice(600, 1400))
        atlas = view.open_atlas()
        atlas.measure(layers=(0,))
        second = view.probabilities(0, 1, slice(700, 1000), slice(600, 1400))
        view.probabilities(0, 0, slice(0, 64), weight="norm")
        for block, _ in zip(LayerRows(view.recording, 1).blocks(0), range(3), strict=False):
            assert (block.weighted_HRC.sum(-1) - 1).abs().max() < 1e-4
        sinks(atlas)
    np.testing.assert_allclose(second, first, rtol=1e-4, atol=1e-8)
    assert 0 < guard.largest < LENGTH**2 / 8


def test_the_guard_sees_a_whole_map():
    recording = Recording.of(random_encoder(long(SPECS["post-norm"])), dense.random_text(LENGTH))
    q_NHK, k_NHK, _ = recording.projected(0)
    with Guard() as guard:
        torch.softmax(q_NHK[:, 0] @ k_NHK[:, 0].T, -1)
    assert guard.largest == LENGTH**2


def test_memory_is_stated_before_anything_is_run():
    spec = SPECS["post-norm"]
    needed = [Atlas.bytes_needed(spec, length) for length in (1000, 2000, 4000)]
    # In proportion to tokens, not to their square, but for what a block takes.
    assert needed[2] - needed[1] == pytest.approx(2 * (needed[1] - needed[0]), rel=0.02)
    recording = Recording.of(random_encoder(long(spec)), dense.random_text(LENGTH))
    atlas = Atlas(recording)
    atlas.measure()
    held = sum(state.numel() * 4 for state in (*recording.states, recording.final_ND))
    for layer in atlas.layers:
        arrays = (getattr(layer, field.name) for field in dataclasses.fields(layer))
        held += sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
    assert held < Atlas.bytes_needed(long(spec), LENGTH)
