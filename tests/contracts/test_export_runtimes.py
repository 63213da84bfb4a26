"""Graphs of every family, of every output and of long texts in ONNX Runtime and OpenVINO."""

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.contracts.test_export import EXPORTED, padded, unseeded
from tests.support.command import environment
from tests.support.runtimes import RUNTIMES, in_runtime
from tests.support.specs import POST_NORM, ROTARY_WINDOWS, VOCABULARY, random_encoder
from unmask.engines.export import onnx as graphs
from unmask.engines.export.padded import PaddedEncoder, why_not_padded
from unmask.families import FAMILIES
from unmask.spec import (
    Classifier,
    Dense,
    LayerNorm,
    LearnedPositions,
    MaskedLM,
    MultiVector,
    PooledVector,
    SlidingWindow,
    SparseVector,
    Transform,
    role_of,
)

pytestmark = pytest.mark.long

IN_DEFAULT_RUN = ("rotary-windows",)
PUBLISHED = {one.name: one.spec for family in FAMILIES for one in family.published[:1]}
FROM_TEXTS_OF = 900
"""The longest text of a published architecture here: more than two of each one's windows."""


def narrowed(spec):
    """A published architecture with each kind of its layers once, few words and no heads."""
    layers = tuple(dict.fromkeys(spec.layers))
    embedding = replace(spec.embedding, vocabulary=VOCABULARY)
    return unseeded(replace(spec, layers=layers, embedding=embedding, heads=(), sharing=None))


def small(name):
    """One of `EXPORTED` whose text has several blocks of the loop; one layer of it in the default run."""
    whole = EXPORTED[name]
    if name not in IN_DEFAULT_RUN:
        return padded(whole, rows=16)
    sharing = None if whole.sharing is None else whole.sharing[:1]
    return padded(replace(whole, layers=whole.layers[:1], sharing=sharing), rows=16)


def published(name):
    spec = narrowed(PUBLISHED[name])
    places = spec.embedding.positions
    most = places.rows - places.offset if isinstance(places, LearnedPositions) else FROM_TEXTS_OF
    return padded(spec, longest=min(most, FROM_TEXTS_OF), rows=256)


CLASSIFIERS = (
    Classifier("sequence", 3, "pooler", Transform(11, "tanh")),
    Classifier("next_sentence", 2, "first"),
    Classifier("choice", 1, "mean"),
    Classifier("sentence_order", 2, "late"),
    Classifier("tokens", 4, "tokens"),
    Classifier("span", 2, "tokens"),
    Classifier("replaced", 1, "tokens_and_first"),
)
HEADS = (MaskedLM(Transform(24, "gelu", LayerNorm(1e-6))), *CLASSIFIERS)
PRUNER = Classifier("prune", 2, "unnormed")
NORMED_IN_HEADS = ("prune", "sequence", "tokens")
"""Heads that are exported beside one that reads states without the final norm."""
GIVEN = {
    "pooled": PooledVector(("mean", "cls", "max", "last"), normalize=True, projections=(Dense(9),)),
    "pooled-weighted": PooledVector(("weighted_mean", "mean_sqrt_len"), dimensions=30),
    "many": MultiVector((Dense(7, bias=False),)),
    "sparse-max": SparseVector(),
    "sparse-sum": SparseVector(pooling="sum", activation="log1p_log1p_relu"),
}
OUTPUTS = {
    PooledVector: "sentence_embedding",
    MultiVector: "token_embeddings",
    SparseVector: "sparse_embedding",
}


def giving(name):
    """An encoder with every head, which gives its states, what a checkpoint gives, and logits of one head."""
    spec = replace(POST_NORM, layers=POST_NORM.layers[:1], heads=HEADS)
    if name in NORMED_IN_HEADS:
        spec = replace(spec, heads=(*HEADS, PRUNER), final_norm=LayerNorm(1e-6))
    output, role = (GIVEN[name], "masked") if name in GIVEN else (None, name)
    own = () if output is None else (OUTPUTS[type(output)],)
    return PaddedEncoder(
        random_encoder(spec, output=output),
        output,
        outputs=("last_hidden_state", *own, "logits"),
        role=role,
        longest=64,
    ).eval()


def cases():
    """What is exported, by a function that makes it and a name; those of the default run are few."""
    for name in EXPORTED:
        yield small, name, name in IN_DEFAULT_RUN
    for name, spec in PUBLISHED.items():
        if why_not_padded(narrowed(spec)) is None:
            yield published, name, False
    for name in (*GIVEN, *map(role_of, (*HEADS, PRUNER))):
        yield giving, name, name in ("pooled", "sequence")


CASES = [
    pytest.param((make, name), id=f"{make.__name__}-{name}", marks=() if default else pytest.mark.slow)
    for make, name, default in cases()
]


@pytest.fixture(scope="module", params=CASES)
def graph(request, tmp_path_factory):
    """A padded encoder and its graph's path."""
    make, name = request.param
    module, path = make(name), tmp_path_factory.mktemp("graph") / "graph.onnx"
    graphs._write(module, path, module.longest)
    return module, path


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_graph_gives_what_the_packed_encoder_gives(graph, runtime):
    module, path = graph
    inputs, run = in_runtime(runtime, path)
    assert inputs[:2] == ("input_ids", "attention_mask")
    rounding = 1e-5 if module.encoder.spec.width < 100 else 3e-5
    assert 0 < graphs._difference(module, inputs, run, module.longest) < rounding < graphs.TOLERANCE
    assert graphs._difference(module, inputs, run, 5) < rounding, "after other sizes, small ones again"


def test_every_family_is_exported_or_refused_by_name():
    refused = {name: why_not_padded(spec) for name, spec in PUBLISHED.items() if why_not_padded(spec)}
    drawn, experts = "google/bigbird-roberta-base", "nomic-ai/nomic-embed-text-v2-moe"
    # Blocks that its authors drew, and experts; see docs/export.md.
    assert set(refused) == {drawn, experts, "openai/privacy-filter"}


PEAKS = """
import sys
import numpy as np, torch
from tests.support.runtimes import in_runtime
from unmask.bench.memory import peak_extra_bytes
for tokens in map(int, sys.argv[3:]):
    inputs, run = in_runtime(*sys.argv[1:3])
    given = {name: np.ones((1, tokens), np.int64) for name in inputs}
    print(peak_extra_bytes(lambda: run(given), torch.device("cpu")))
"""


def peaks(runtime, path, *lengths):
    """Peak memory of one text of each length above what was held before it, in a process of its own."""
    command = [sys.executable, "-c", PEAKS, runtime, str(path), *map(str, lengths)]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    return list(map(int, ran.stdout.split()))


@pytest.fixture(scope="module")
def long_graph(tmp_path_factory):
    """A layer of full attention and one with ModernBERT's window, for texts of 8,192 tokens."""
    layer = ROTARY_WINDOWS.layers[1]
    windowed = replace(layer, mixer=replace(layer.mixer, pattern=SlidingWindow(64)))
    full = replace(layer, mixer=replace(layer.mixer, pattern=EXPORTED["post-norm"].layers[0].mixer.pattern))
    module = padded(replace(ROTARY_WINDOWS, layers=(windowed, full)), longest=8192, rows=graphs.ROWS)
    path = tmp_path_factory.mktemp("long") / "graph.onnx"
    graphs._write(module, path, 8192)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_memory_grows_linearly_with_the_length_of_a_text(long_graph, runtime):
    if runtime != "onnxruntime":
        pytest.importorskip("openvino", reason="OpenVINO is not installed")
    at_4096, at_8192 = peaks(runtime, long_graph, 4096, 8192)
    assert at_8192 < 8192**2 * 4, "not even one head's scores were held whole"
    assert at_8192 < 3 * at_4096, "twice as much for linear growth, 4 times for N x N"
