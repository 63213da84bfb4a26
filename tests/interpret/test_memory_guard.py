"""Nothing of the size of a whole map is ever made, whatever the encoder; a guard would see it."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support import dense
from tests.support.specs import SPECS, random_encoder
from unmask.explorer.wire.tiles import pooled
from unmask.interpret import ActivationCache, AttentionStatistics, AttentionView, LayerRows
from unmask.interpret.attention.head_distances import CELLS, head_distances
from unmask.interpret.attention.sinks import sinks
from unmask.interpret.effects.ablation import ablate, ablate_edge
from unmask.interpret.effects.attribution import rollout
from unmask.interpret.effects.target import Embedding
from unmask.interpret.words.words import grouped_map
from unmask.kernels import Tile
from unmask.spec import EncoderSpec, LearnedPositions

pytestmark = pytest.mark.long

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
        view.cache.projected(0)
        first = view.probabilities(0, 1, slice(700, 1000), slice(600, 1400))
        statistics = view.open_statistics()
        statistics.measure(layers=(0,))
        second = view.probabilities(0, 1, slice(700, 1000), slice(600, 1400))
        view.probabilities(0, 0, slice(0, 64), weight="norm")
        for block, _ in zip(LayerRows(view.cache, 1).blocks(0), range(3), strict=False):
            assert (block.weighted_HRC.sum(-1) - 1).abs().max() < 1e-4
        sinks(statistics)
    np.testing.assert_allclose(second, first, rtol=1e-4, atol=1e-8)
    assert 0 < guard.largest < LENGTH**2 / 8


@pytest.mark.parametrize("name", ["rotary-windows", "disentangled-own"])
def test_nor_by_what_stands_on_an_activation_cache(name):
    """But for the weights that are compared, of which there are `CELLS` at most, whatever the length.

    Rollout and relevance are guarded where they are tested.
    """
    view = AttentionView(random_encoder(long(SPECS[name])), dense.random_text(LENGTH))
    cache = view.cache
    tile = Tile(0, LENGTH, 0, LENGTH)
    with Guard() as guard:
        ablate(cache, Embedding(), 0, 1, "mean")
        ablate_edge(cache, Embedding(), 0, 1, query=5, key=6)
        view.score_parts(0, 1, slice(100, 300), slice(0, 700))
        view.topk(0, 1, 4)
        pooled(view.layer_cache.blocks((0, 0), tile, None, weighted=True), tile, 8)
    assert 0 < guard.largest <= LENGTH**2 / 8
    with Guard() as guard:
        assert head_distances(cache).queries < LENGTH
    assert 0 < guard.largest <= CELLS < 8192**2 / 8


def test_arrays_are_as_small():
    """The guard hears torch alone; this counts what numpy takes, all its arrays together."""
    view = AttentionView(random_encoder(long(SPECS["post-norm"])), dense.random_text(LENGTH))
    tile, words = Tile(0, LENGTH, 0, LENGTH), np.arange(LENGTH) // 40
    whole = LENGTH**2 * np.dtype(np.float32).itemsize
    for work in (
        lambda: pooled(view.layer_cache.blocks((0, 0), tile, None), tile, 8),
        lambda: rollout(view.cache, 3),
        view.statistics,
        lambda: pooled(
            view.layer_cache.blocks((0, 0), tile, view.statistics().layers[0], weighted=True), tile, 8
        ),
        lambda: sinks(view.statistics()),
        lambda: view.topk(0, 1, 4),
        lambda: grouped_map(view, 0, 0, words, int(words[-1]) + 1),
    ):
        tracemalloc.start()
        work()
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert taken < 3 / 8 * whole


def test_the_guard_sees_a_whole_map():
    cache = ActivationCache.of(random_encoder(long(SPECS["post-norm"])), dense.random_text(LENGTH))
    q_NHK, k_NHK, _ = cache.projected(0)
    with Guard() as guard:
        torch.softmax(q_NHK[:, 0] @ k_NHK[:, 0].T, -1)
    assert guard.largest == LENGTH**2


def test_memory_is_stated_before_anything_is_run():
    spec = SPECS["post-norm"]
    needed = [AttentionStatistics.bytes_needed(spec, length) for length in (1000, 2000, 4000)]
    # In proportion to tokens, not to their square, but for what a block takes.
    assert needed[2] - needed[1] == pytest.approx(2 * (needed[1] - needed[0]), rel=0.02)
    cache = ActivationCache.of(random_encoder(long(spec)), dense.random_text(LENGTH))
    statistics = AttentionStatistics(cache)
    statistics.measure()
    held = sum(state.numel() * 4 for state in (*cache.states, cache.final_ND))
    for layer in statistics.layers:
        arrays = (getattr(layer, field.name) for field in dataclasses.fields(layer))
        held += sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
    assert held < AttentionStatistics.bytes_needed(long(spec), LENGTH)
