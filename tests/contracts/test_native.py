"""Layers in the native library beside the same layers in torch."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

import unmask
from tests.support.places import REPOSITORY
from tests.support.specs import (
    ALIBI_SHARED,
    BLOCKS,
    CAUSAL,
    DISENTANGLED,
    DISENTANGLED_OWN,
    LINEAR,
    POST_NORM,
    RELATIVE,
    ROTARY_WINDOWS,
    SPECS,
    VOCABULARY,
    WINDOWS_GLOBALS,
    global_tokens,
    random_encoder,
)
from tests.support.waiting import wait_until
from unmask.encoder import heads
from unmask.engines.native import library
from unmask.engines.native.engine import NativeEngine, native_engine, native_reason
from unmask.engines.native.interface import PRECISIONS
from unmask.engines.native.parts import Heads
from unmask.engines.native.program import NativeLayers, to_bfloat16, unsupported_batch
from unmask.errors import InvalidRequest
from unmask.spec import POOLING_MODES, Alibi, PooledVector, Rotary, SlidingWindow, UnitLength
from unmask.text.batch import PackedBatch, SequenceLayout

UNDILATED = replace(
    WINDOWS_GLOBALS,
    layers=tuple(
        replace(
            layer,
            mixer=replace(layer.mixer, pattern=replace(layer.mixer.pattern, window=SlidingWindow(radius=3))),
        )
        for layer in WINDOWS_GLOBALS.layers
    ),
)
LONG_TABLE = replace(
    DISENTANGLED_OWN,
    layers=tuple(
        replace(layer, mixer=replace(layer.mixer, position=replace(layer.mixer.position, max_distance=300)))
        for layer in DISENTANGLED_OWN.layers
    ),
)
"""Of whose table of distances a text reaches a part."""
ADDED = {
    "causal": CAUSAL,
    "undilated": UNDILATED,
    "long table": LONG_TABLE,
    "merged distances": replace(DISENTANGLED, convolution=None),
}
SUPPORTED = {name: spec for name, spec in (SPECS | ADDED).items() if native_reason(spec, "float32") is None}
BUILT = not isinstance(library.connected(), str)
needs_library = pytest.mark.skipif(not BUILT, reason=f"no native library here: {library.connected()}")
LENGTHS = ([1], [2, 1, 3], [15, 16, 17], [33, 64, 5, 48], [60] * 9, [1] * 40)


def layers_of(encoder, precision="float32"):
    found = library.connected()
    if precision not in found.precisions:
        pytest.skip(f"this processor has no products in {precision}")
    return NativeLayers(encoder.spec, weights_of(encoder), precision, found.functions)


def weights_of(encoder):
    return {name: tensor.detach().numpy() for name, tensor in encoder.state_dict().items()}


def batch_of(lengths, seed=0, types=2):
    generator = np.random.default_rng(seed)
    return PackedBatch.of_ids(
        [generator.integers(0, VOCABULARY, length) for length in lengths],
        [generator.integers(0, types, length) for length in lengths],
    )


def in_torch(encoder, batch):
    with torch.inference_mode():
        return encoder.double().encode(batch).numpy()


def cosines(a_TD, b_TD):
    return (a_TD * b_TD).sum(1) / (np.linalg.norm(a_TD, axis=1) * np.linalg.norm(b_TD, axis=1))


def types_of(spec):
    return spec.embedding.segments or 1


@needs_library
def test_which_encoders_run_natively():
    assert {"post-norm", "rotary-windows", "alibi-shared", "relative", "blocks", *ADDED} <= set(SUPPORTED)
    assert "dilated" in native_reason(WINDOWS_GLOBALS, "float32")
    assert "linear attention" in native_reason(LINEAR, "float32")
    assert "float64" in native_reason(POST_NORM, "float64")


@needs_library
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", SUPPORTED)
def test_float32_states_equal_those_of_float64(name, threads):
    spec = SUPPORTED[name]
    encoder = random_encoder(spec)
    native = layers_of(encoder)
    for seed, lengths in enumerate(LENGTHS):
        batch = batch_of(lengths, seed, types_of(spec))
        if unsupported_batch(spec, batch) is not None:
            assert spec is BLOCKS, "only long texts in blocks"
            continue
        found = native.hidden_states(batch, threads)
        np.testing.assert_allclose(found, in_torch(encoder, batch), atol=2e-5, rtol=1e-5)


@needs_library
@pytest.mark.parametrize(("precision", "least"), [("bfloat16", 0.999), ("int8", 0.98)])
@pytest.mark.parametrize("name", SUPPORTED)
def test_fewer_bits_are_close(name, precision, least):
    spec = SUPPORTED[name]
    encoder = random_encoder(spec)
    native = layers_of(encoder, precision)
    for seed, lengths in enumerate(LENGTHS):
        batch = batch_of(lengths, seed, types_of(spec))
        if unsupported_batch(spec, batch) is None:
            found = native.hidden_states(batch, 2)
            assert np.median(cosines(found, in_torch(encoder, batch))) >= least


@needs_library
@pytest.mark.parametrize("spec", [POST_NORM, ROTARY_WINDOWS, ALIBI_SHARED], ids=["plain", "rotary", "alibi"])
def test_companions_change_nothing(spec):
    native = layers_of(random_encoder(spec))
    alone = native.hidden_states(batch_of([37], 5, types_of(spec)), 1)
    ids_T = batch_of([37], 5, types_of(spec))
    others = [np.random.default_rng(1).integers(0, VOCABULARY, n) for n in (64, 3, 50)]
    together = PackedBatch.of_ids(
        [others[0], ids_T.ids_T, *others[1:]],
        [np.zeros(64, int), ids_T.token_type_ids_T, np.zeros(3, int), np.zeros(50, int)],
    )
    for threads in (1, 2):
        found = native.hidden_states(together, threads)[64:101]
        np.testing.assert_allclose(found, alone, atol=1e-6)


@needs_library
def test_long_texts_are_computed_in_tiles_of_keys():
    windows = ROTARY_WINDOWS
    native, encoder = layers_of(random_encoder(windows)), random_encoder(windows)
    batch = batch_of([700, 301], types=1)
    for threads in (1, 2):
        np.testing.assert_allclose(
            native.hidden_states(batch, threads), in_torch(encoder, batch), atol=2e-5, rtol=1e-5
        )
    whole = random_encoder(ALIBI_SHARED)
    batch = batch_of([700, 301], types=3)
    np.testing.assert_allclose(
        layers_of(whole).hidden_states(batch, 2), in_torch(whole, batch), atol=5e-5, rtol=1e-4
    )


def widened(heads, head_width, position):
    """ROTARY_WINDOWS with heads as wide as those of published models, so that whole vectors are rotated."""
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, heads=heads, head_width=head_width, position=position))
        for layer in ROTARY_WINDOWS.layers
    )
    return replace(ROTARY_WINDOWS, layers=layers)


@needs_library
@pytest.mark.parametrize(
    "spec",
    [
        widened(2, 64, Rotary(10_000.0)),
        widened(3, 32, Rotary(10_000.0, interleaved=True)),
        widened(2, 96, Rotary(10_000.0, width=64, scale=2.0)),
        widened(2, 48, Alibi()),
    ],
    ids=["halves", "interleaved", "part of a head", "alibi"],
)
def test_heads_of_published_widths(spec):
    encoder = random_encoder(spec)
    batch = batch_of([70, 3, 200], types=1)
    np.testing.assert_allclose(
        layers_of(encoder).hidden_states(batch, 2), in_torch(encoder, batch), atol=5e-5, rtol=1e-4
    )


@needs_library
def test_many_python_threads_get_equal_bits():
    native = layers_of(random_encoder(POST_NORM))
    batches = [batch_of([20 + i, 7, 60], i) for i in range(8)]
    wanted = [native.hidden_states(batch, 2) for batch in batches]
    found = [None] * 8

    def work(number):
        for _ in range(20):
            found[number] = native.hidden_states(batches[number], 2)
            if not np.array_equal(found[number], wanted[number]):
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@needs_library
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_number_that_is_not_finite_reaches_its_own_text_alone(precision):
    encoder = random_encoder(POST_NORM)
    with torch.no_grad():
        encoder.embedding.words.weight[3, 5] = float("nan")
        encoder.embedding.words.weight[4, 5] = float("inf")
    native = layers_of(encoder, precision)
    batch = PackedBatch.of_ids([[7, 8, 9], [7, 3, 9], [7, 4], [10] * 20])
    found = native.hidden_states(batch, 2)
    assert np.isnan(found[3:8]).all(axis=1).all(), "attention mixes it into the whole text"
    assert np.isfinite(found[:3]).all()
    assert np.isfinite(found[8:]).all()


@needs_library
@pytest.mark.parametrize("number", [float("inf"), float("nan")])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_number_that_is_not_finite_inside_a_feedforward_network_is_not_rounded_away(precision, number):
    """Also where the network's numbers become 8-bit integers."""
    encoder = random_encoder(POST_NORM)
    with torch.no_grad():
        encoder.layers[1].feedforward.inner.bias[2] = number
    found = layers_of(encoder, precision).hidden_states(batch_of([5, 20]), 2)
    assert not np.isfinite(found).all(axis=1).any()


@needs_library
def test_ids_and_types_beyond_their_tables_are_refused():
    native = layers_of(random_encoder(POST_NORM))
    with pytest.raises(
        InvalidRequest, match=f"token id {VOCABULARY} is not in the vocabulary of {VOCABULARY}"
    ):
        native.hidden_states(PackedBatch.of_ids([[1, VOCABULARY]]), 1)
    with pytest.raises(InvalidRequest, match="token id -1"):
        native.hidden_states(PackedBatch.of_ids([[-1]]), 1)
    with pytest.raises(InvalidRequest, match="token type 2"):
        native.hidden_states(PackedBatch.of_ids([[1]], [[2]]), 1)
    with pytest.raises(InvalidRequest, match="65 tokens and the encoder's position table reaches 64"):
        native.hidden_states(PackedBatch.of_ids([[1] * 65]), 1)


@needs_library
def test_what_the_library_lacks_runs_in_torch():
    plain = random_encoder(UNDILATED)
    made = []
    engine = native_engine(
        plain.spec,
        weights_of(plain),
        "float32",
        in_torch=lambda: made.append(1) or plain,
    )
    texts = [np.arange(20) % VOCABULARY, np.arange(30) % VOCABULARY]
    local = PackedBatch.of_ids(texts)
    np.testing.assert_allclose(engine.hidden_states(local), in_torch(plain, local), atol=1e-5)
    assert not made
    plain.float()
    marked = PackedBatch.of_ids(texts, None, [global_tokens(20), global_tokens(30)])
    np.testing.assert_allclose(engine.hidden_states(marked), in_torch(plain, marked), atol=1e-5)
    assert made == [1]
    assert engine.hidden_states(local, "all").shape[0] == len(plain.spec.layers) + 1


@needs_library
def test_relative_biases_follow_the_table():
    encoder = random_encoder(RELATIVE)
    with torch.no_grad():
        encoder.distances.table.weight.mul_(3)
    batch = batch_of([64, 2, 40], types=1)
    np.testing.assert_allclose(
        layers_of(encoder).hidden_states(batch, 1), in_torch(encoder, batch), atol=2e-5, rtol=1e-5
    )


@needs_library
def test_a_loaded_model_runs_natively_and_says_so():
    native, torch_model = unmask.load("default"), unmask.load("default", backend="torch")
    assert isinstance(native.engine, NativeEngine)
    assert not isinstance(torch_model.engine, NativeEngine)
    texts = ["one", "two words", "a longer text with several words " * 30]
    np.testing.assert_allclose(native.embed(texts), torch_model.embed(texts), atol=1e-5)


def test_a_backend_that_cannot_be_had_is_refused():
    with pytest.raises(
        InvalidRequest, match=r"backend is native, and .*float64.*; leave it out, or take torch"
    ):
        unmask.load("default", dtype="float64", backend="native")
    with pytest.raises(InvalidRequest, match="backend is 'mps'; it can be 'native' or 'torch'"):
        unmask.load("default", backend="mps")


PROGRAM = """
import json, os, sys
import numpy as np, unmask
model = unmask.load("default", dtype=sys.argv[1])
vectors = model.embed(["a first text", "a second, longer text"])
if len(sys.argv) > 2:
    child = os.fork()
    if child == 0:
        again = model.embed(["a first text", "a second, longer text"])
        os._exit(0 if np.array_equal(again, vectors) else 3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
from unmask.engines.native.engine import native_reason
print(json.dumps([type(model.engine).__name__, native_reason(model.spec, sys.argv[1]), vectors.tolist()]))
"""


def run_program(*arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "2", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.splitlines()


def test_an_environment_keeps_encoders_in_torch():
    kind, why, vectors = json.loads(run_program("float32", UNMASK_BACKEND="torch")[-1])
    assert kind == "TorchEngine"
    assert "UNMASK_BACKEND is torch" in why
    wanted = unmask.load("default").embed(["a first text", "a second, longer text"])
    assert cosines(np.array(vectors), wanted).min() > 0.999


WITHOUT_TORCH = """
import json, sys
import numpy as np, unmask
models = [unmask.load("default", dtype=dtype) for dtype in sys.argv[1:]]
texts = ["a first text", "a second, longer text"]
vectors = [model.embed(texts, prompt="of a prompt: ") for model in models]
assert "torch" not in sys.modules, "embedding needs no torch"
from unmask.engines.native.threads import set_thread_count, thread_count
before = thread_count()
import torch
assert before == thread_count() == torch.get_num_threads()
set_thread_count(before)
for model, before in zip(models, vectors, strict=True):
    np.testing.assert_array_equal(model.embed(texts, prompt="of a prompt: "), before)
    states = model.hidden_states("a first text", layers="all")
    assert states.shape == (7, 5, 384)
    assert model.attention("a first text").probabilities(0, 0).shape == (5, 5)
print(json.dumps([rows.tolist() for rows in vectors]))
"""


@needs_library
@pytest.mark.parametrize(
    "environment",
    [{}, pytest.param({"OMP_NUM_THREADS": "1"}, marks=pytest.mark.slow)],
    ids=["default", "one thread"],
)
def test_texts_are_embedded_without_torch(environment):
    precisions = [dtype for dtype in PRECISIONS if dtype in library.connected().precisions]
    assert "float32" in precisions
    rest = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *precisions],
        env={**rest, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    wanted = unmask.load("default", backend="torch").embed(
        ["a first text", "a second, longer text"], prompt="of a prompt: "
    )
    least = {"float32": 0.999999, "bfloat16": 0.9999, "int8": 0.985}
    for dtype, vectors in zip(precisions, json.loads(done.stdout), strict=True):
        assert cosines(np.array(vectors), wanted).min() > least[dtype], dtype


HIDDEN_TORCH = """
import json, sys
sys.modules["torch"] = None  # as where it is not installed
import unmask
from unmask.engines.native import library
precisions = library.connected().precisions
texts = ["a first text", "a second, longer text", "word " * 240]
found = {dtype: unmask.load("default", dtype=dtype).embed(texts).tolist() for dtype in precisions}
assert unmask.load("default").similarity(texts[:1], texts[1:]).shape == (1, 2)
print(json.dumps(found))
"""


@needs_library
def test_texts_are_embedded_where_torch_is_not_installed():
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN_TORCH], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    vectors = json.loads(done.stdout)
    assert {"float32", "int8"} <= set(vectors), "products that need no torch"
    texts = ["a first text", "a second, longer text", "word " * 240]
    wanted = unmask.load("default", backend="torch").embed(texts)
    for dtype, least in {"float32": 0.999999, "int8": 0.985}.items():
        assert cosines(np.array(vectors[dtype]), wanted).min() > least, dtype


WIDE_WINDOWS = replace(
    ROTARY_WINDOWS,
    layers=tuple(
        replace(layer, mixer=replace(layer.mixer, pattern=SlidingWindow(radius=64)))
        for layer in ROTARY_WINDOWS.layers
    ),
)
"""Whose keys of a block of queries are more than one tile."""
BATCHED = {name: spec for name, spec in SUPPORTED.items() if spec is not BLOCKS} | {
    "wide windows": WIDE_WINDOWS
}
EVERY_LENGTH = (5, 700, 95, 96, 97, 191, 1, 193, 255, 257, 385, 450)


@needs_library
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", BATCHED)
def test_a_text_has_the_same_bits_in_every_batch_and_with_every_number_of_threads(name, precision):
    spec = BATCHED[name]
    native = layers_of(random_encoder(spec), precision)
    limit = spec.max_tokens or EVERY_LENGTH[1]
    generator = np.random.default_rng(0)
    texts = [
        (generator.integers(0, VOCABULARY, length), generator.integers(0, types_of(spec), length))
        for length in (min(length, limit) for length in EVERY_LENGTH)
    ]
    alone = [native.hidden_states(PackedBatch.of_ids([ids], [types]), 1) for ids, types in texts]
    for order, threads in (
        (range(12), 1),
        (range(12), 2),
        (range(11, -1, -1), 5),
        ((1, 10, 3), 2),
        ((1,), 3),
    ):
        some = PackedBatch.of_ids([texts[i][0] for i in order], [texts[i][1] for i in order])
        states = native.hidden_states(some, threads)
        ends = np.cumsum([len(texts[i][0]) for i in order])
        for i, part in zip(order, np.split(states, ends[:-1]), strict=True):
            np.testing.assert_array_equal(part, alone[i], err_msg=f"{len(part)} tokens")


THREADS_SET_LATER = """
import ctypes, sys
from pathlib import Path
import numpy, unmask
def threads_of_numpy():
    files = Path(numpy.__file__).parent.parent.glob("numpy.libs/*openblas*")
    return [ctypes.CDLL(str(file)).scipy_openblas_get_num_threads64_() for file in files]
from unmask.base.system import core_count
from unmask.engines.native.threads import set_thread_count, thread_count
model = unmask.load("default")
model.embed("a text")
set_thread_count(3)
assert thread_count() == 3
assert all(count == min(3, core_count()) for count in threads_of_numpy())
assert "torch" not in sys.modules
model.attention("a text").probabilities(0, 0)
import torch
assert thread_count() == torch.get_num_threads() == 3
set_thread_count(2)
assert thread_count() == torch.get_num_threads() == 2
"""


@needs_library
def test_a_number_of_threads_that_was_set_before_torch_holds_for_torch():
    done = subprocess.run(
        [sys.executable, "-c", THREADS_SET_LATER], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("skipped", [0, 2])
@pytest.mark.parametrize("mode", POOLING_MODES)
def test_pooling_without_torch_is_that_of_torch(mode, skipped):
    layout = SequenceLayout.of_lengths([3, 9, 4, 30])
    x_TD = np.random.default_rng(0).standard_normal((layout.token_count, 7), np.float32)
    for output in (
        PooledVector((mode,)),
        PooledVector((mode, "cls"), normalize=True, dimensions=5),
        PooledVector((mode,), projections=(UnitLength(),)),
    ):
        wanted = heads.embed(torch.from_numpy(x_TD), layout, output, skipped=skipped)
        found = Heads(POST_NORM, {}, output).embed(x_TD, layout, output, skipped=skipped)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted.numpy(), atol=1e-6, rtol=1e-6)
    with pytest.raises(InvalidRequest, match="no token besides the 3 of its prompt"):
        Heads(POST_NORM, {}).embed(x_TD, layout, PooledVector((mode,)), skipped=3)


def test_numbers_are_rounded_to_bfloat16_as_torch_rounds_them():
    values = np.random.default_rng(0).standard_normal(4000).astype(np.float32).reshape(40, 100)
    values[0, :6] = [np.nan, np.inf, -np.inf, 3.4e38, 1e-40, -0.0]
    values[1] = (np.arange(100) * 2 + 1) * 2.0**-8 + 256  # halfway between two, even and odd
    values.view(np.uint32)[2, 0] = 0x7FFFFFFF  # a NaN that rounding would carry into the sign
    wanted = torch.from_numpy(values).bfloat16()
    found = torch.from_numpy(to_bfloat16(values).view(np.int16)).view(torch.bfloat16)
    torch.testing.assert_close(found, wanted, equal_nan=True, atol=0, rtol=0)


def resident():
    """Bytes of memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory_comes_back():
    """Return when the memory of a large call has been returned."""
    native = layers_of(random_encoder(ROTARY_WINDOWS))
    batch = batch_of([1600] + [60] * 2500)  # for a long sequence two threads compute all of it together
    native.hidden_states(batch_of([1600, 30]), 2)
    before = resident()
    native.hidden_states(batch, 2)
    wait_until(lambda: resident() - before < 64 << 20)  # a helper may leave after the call has returned


@needs_library
def test_states_of_a_large_call_are_not_kept():
    """In a process of its own: what other tests take and give back would be counted, too."""
    program = f"from {__name__} import memory_comes_back; memory_comes_back()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@needs_library
def test_a_process_forked_after_use_computes_the_same():
    assert run_program("float32", "fork")[0] == "0"


FORKS = """
import os, sys, time, unmask
model = unmask.load("default")
texts = ["a text that two threads compute " * 3] * 3
for number in range(int(sys.argv[1])):
    model.embed(texts)  # whose helper may not have left yet
    child = os.fork()
    if child == 0:
        model.embed(texts[:1])
        os._exit(0)
    end = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, 9)
            sys.exit(f"the child of fork {number} hangs")
        time.sleep(0.0005)
    assert ended == (child, 0)
"""


@needs_library
@pytest.mark.parametrize("forks", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_fork_waits_for_threads_that_hold_a_lock(forks):
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(forks)],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
