"""EmbeddingGemma 2: beside other towers, its vectors, what gates read, views, graphs and refusals."""

import json
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch
import transformers

from tests.contracts.cases.embedding_gemma2 import uneven
from tests.contracts.test_transformers import write_vocabulary
from tests.parity.beside_padding import TEXTS, check_padded_graph
from tests.support.command import run_here
from tests.support.dense import random_text
from tests.support.heads import recorded
from tests.support.specs import GATED, POST_NORM, random_encoder
from tests.training.test_decoder import enhanced
from unmask.base.json_settings import JsonSettings
from unmask.encoder.hooks import HookPoint
from unmask.engines.export.onnx import INPUTS, TOLERANCE, _difference
from unmask.engines.export.padded import PaddedEncoder
from unmask.engines.inference.optimize import optimize_for_inference
from unmask.engines.native.program import unsupported_encoder
from unmask.engines.torch_engine import TorchEngine
from unmask.errors import CheckpointError, InvalidRequest, UnknownArchitecture
from unmask.families import family_of, find_architecture
from unmask.families.embedding_gemma2 import EMBEDDING_GEMMA2
from unmask.interpret.effects.intervention import InterventionRun
from unmask.interpret.effects.target import Class, TargetScore
from unmask.interpret.geometry.reading import read_texts
from unmask.spec import (
    EmbeddingGate,
    LayerNorm,
    PooledVector,
    QueryKeyNorm,
    RMSNorm,
    SlidingWindow,
)
from unmask.spec.describe import describe_spec
from unmask.spec.encoder import why_no_decoder
from unmask.text import PackedBatch
from unmask.training.objectives.distillation import init_from_teacher
from unmask.training.objectives.generator import generator_spec
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.read.checkpoint_tensors import with_first_layers
from unmask.weights.read.inspect import inspect
from unmask.weights.write.adapter_export import LowRank, add_low_rank
from unmask.weights.write.save import save

pytestmark = pytest.mark.long

SIZES = {
    "vocab_size": 61,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "global_head_dim": 10,
    "intermediate_size": 11,
    "num_hidden_layers": 3,
    "sliding_window_pattern": 3,
    "sliding_window": 3,
    "hidden_size_per_layer_input": 5,
    "embedding_dim": 24,
    "initializer_range": 0.4,
}
TOWERS = {
    "vision_config": {
        "model_type": "gemma4_vision",
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "patch_size": 2,
        "position_embedding_size": 4,
    },
    "audio_config": {
        "model_type": "gemma4_audio",
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "output_proj_dims": 6,
        "subsampling_conv_channels": [4, 4],
    },
}
READ = "of a tower of images or sound, which reads no text"


def saved(model, folder):
    model.double().save_pretrained(folder)
    write_vocabulary(folder, 61)
    return folder


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(2)
    model = transformers.EmbeddingGemma2TextModel(transformers.EmbeddingGemma2TextConfig(**SIZES))
    uneven(model)
    return saved(model, tmp_path)


def test_the_tower_of_text_is_read_from_beside_the_others(tmp_path):
    """The others' tensors are named and left out; what is saved is the tower alone."""
    torch.manual_seed(4)
    whole = transformers.EmbeddingGemma2Model(
        transformers.EmbeddingGemma2Config(text_config=SIZES, **TOWERS)
    ).eval()
    uneven(whole.language_model)
    checkpoint = read_checkpoint(Source(saved(whole, tmp_path / "whole"), "tiny"))
    assert checkpoint.unread_config == ()
    seen = inspect(checkpoint)
    left_out = {tensor.name.partition(".")[0]: tensor.reason for tensor in seen.tensors if tensor.reason}
    assert left_out == dict.fromkeys(("vision_tower", "embed_vision", "audio_tower", "embed_audio"), READ)
    encoder = build(checkpoint, dtype="float64")
    batch = PackedBatch.of_ids(TEXTS)
    with torch.inference_mode():
        states_TD = encoder.encode(batch)
        for number, ids in enumerate(TEXTS):
            theirs_ND = whole(input_ids=torch.tensor([ids])).last_hidden_state[0]
            # Their norms and angles are in float32.
            torch.testing.assert_close(states_TD[batch.layout.rows(number)], theirs_ND, rtol=0, atol=1e-4)
    save(encoder, checkpoint, tmp_path / "alone")
    back = transformers.AutoModel.from_pretrained(tmp_path / "alone", dtype=torch.float64)
    assert type(back) is transformers.EmbeddingGemma2TextModel
    ours, theirs = back.state_dict(), whole.language_model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_config_of_towers_without_that_of_text_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "embedding_gemma2", "vision_config": {}}))
    with pytest.raises(CheckpointError, match="model_type is embedding_gemma2 and has no text_config"):
        read_checkpoint(Source(tmp_path, "tiny"))


def test_vectors_are_means_of_mapped_states(folder):
    """sentence-transformers pools what the model returns, which is 24 wide here and 16 inside."""
    (folder / "1_Pooling").mkdir()
    modules = [
        ("", "sentence_transformers.models.Transformer"),
        ("1_Pooling", "sentence_transformers.models.Pooling"),
        ("2_Normalize", "sentence_transformers.models.Normalize"),
    ]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    pooling = {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    checkpoint = read_checkpoint(Source(folder, "tiny"))
    assert checkpoint.head == PooledVector(normalize=True)
    assert checkpoint.head.width(checkpoint.spec) == 24
    engine = TorchEngine(build(checkpoint))
    ours_SE = engine.embed(PackedBatch.of_ids(TEXTS), checkpoint.head)
    theirs = transformers.EmbeddingGemma2TextModel.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        means = [theirs(torch.tensor([ids])).last_hidden_state[0].mean(0) for ids in TEXTS]
    theirs_SE = torch.nn.functional.normalize(torch.stack(means), dim=-1)
    np.testing.assert_allclose(ours_SE, theirs_SE.numpy(), atol=2e-5)
    assert engine.hidden_states(PackedBatch.of_ids(TEXTS), "last").shape[-1] == 24
    levels = engine.hidden_states(PackedBatch.of_ids(TEXTS), "all")
    assert levels.shape == (4, sum(map(len, TEXTS)), 16)  # the last after its norm, before the map
    mapped = torch.from_numpy(levels[-1]) @ theirs.embedding_projection.weight.T
    np.testing.assert_allclose(
        mapped.detach(), engine.hidden_states(PackedBatch.of_ids(TEXTS), "last"), atol=1e-5
    )


def test_a_graph_over_padded_texts_has_gates_and_the_map(folder):
    check_padded_graph(folder, rtol=1e-4)


def test_a_graph_is_exported_and_large_states_may_differ_by_more(folder, tmp_path):
    """States are up to 6 here, and their roundings in float32 with them."""
    ran = run_here("export", folder, "-o", tmp_path / "graph", "--json")
    assert ran.code == 0, ran.err
    assert 0 < json.loads(ran.out)["largest_difference"] < TOLERANCE
    session = onnxruntime.InferenceSession(tmp_path / "graph" / "model.onnx")
    feeds = {"input_ids": np.array(TEXTS[:1]), "attention_mask": np.ones((1, len(TEXTS[0])), np.int64)}
    (states_BND,) = session.run(["last_hidden_state"], feeds)
    assert states_BND.shape == (1, len(TEXTS[0]), 24)


def test_a_difference_is_one_in_proportion(folder):
    encoder = build(read_checkpoint(Source(folder, "tiny")), dtype="float32")
    with torch.no_grad():
        encoder.final_norm.weight.mul_(1000)
    module = PaddedEncoder(encoder, None, outputs=("last_hidden_state",), role=None, longest=50).eval()

    def run(feeds):
        with torch.inference_mode():
            return [1.001 * output.numpy() for output in module(*map(torch.from_numpy, feeds.values()))]

    assert _difference(module, INPUTS, run, 50) == pytest.approx(1e-3, rel=0.05)


def test_levels_have_one_width():
    encoder = random_encoder(GATED)
    (levels,) = {level.shape for level in read_texts(encoder, [random_text(9)]).states}
    assert levels == (9, 20)
    cache = recorded("gated", 9)
    assert [level.shape for level in cache.levels] == [(9, 20)] * 3
    assert torch.equal(
        encoder.final_map(encoder.final_norm(torch.ones(20))), encoder.finished(torch.ones(20))
    )


def test_gradients_by_the_input_go_through_every_gate():
    """Products with the input do not show it: what gates read is normalized, so its size has no effect."""
    cache = recorded("gated", len(TEXTS[0]))
    encoder, score = cache.encoder, TargetScore(cache, Class("sequence", 1))
    x_ND = cache.states[0].clone().requires_grad_()
    states_ND = encoder.encode(
        cache.batch, hook=lambda point, layer, tensor: x_ND if point is HookPoint.EMBEDDED else None
    )
    encoder.logits("sequence", states_ND, cache.batch.layout)[0, 1].backward()
    *_, lowest = InterventionRun(cache).descend(score, "logit", "", None)
    torch.testing.assert_close(lowest.input_gradient_ND, x_ND.grad, rtol=0, atol=1e-9)
    streams = InterventionRun(cache)
    streams.layer = lambda layer, x_ND, hook, embedded_ND: InterventionRun.layer(
        streams, layer, x_ND, hook, cache.states[0]
    )
    *_, alone = streams.descend(score, "logit", "", None)
    assert (alone.input_gradient_ND - x_ND.grad).abs().max() > 1e-3, "gates have a part in it"


def test_a_layer_with_a_gate_needs_what_it_reads():
    encoder, batch = random_encoder(GATED), PackedBatch.of_ids([TEXTS[0]])
    x_TD, block = torch.randn(len(TEXTS[0]), 20), encoder.block(0)
    with pytest.raises(InvalidRequest, match="was run without what its gate reads"):
        block(x_TD, encoder.plan(block, batch.layout, x_TD, None, {}), 0, None)


def test_a_student_has_the_rows_of_its_layers():
    """Of the matrix through which all layers of the teacher read the embedding."""
    layers = (GATED.layers[0], GATED.layers[0], GATED.layers[1])
    teacher = random_encoder(replace(GATED, layers=layers))
    student = random_encoder(GATED, seed=1)
    assert init_from_teacher(student, teacher, (1, 2)) == ()
    width = GATED.gate.width
    assert torch.equal(student.layer_inputs.map.weight, teacher.layer_inputs.map.weight[width:])
    x_TD = torch.randn(4, 20)
    assert torch.equal(student.read(x_TD, 0), teacher.read(x_TD, 1))


def test_a_generator_has_narrower_gates_and_no_map():
    smaller = generator_spec(GATED, width_share=0.5, layers_share=1.0)
    assert (smaller.gate.width, smaller.output_width) == (4, None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("gated", [True, False])
def test_layers_for_inference_compute_what_the_modules_do(gated, dtype):
    """Without a gate and a factor whole layers run, in which values are normalized too."""
    layers = GATED.layers if gated else [replace(one, gate=None, factor=False) for one in GATED.layers]
    spec = replace(GATED, layers=tuple(layers))
    plain, fast = random_encoder(spec), random_encoder(spec)
    fast = optimize_for_inference(fast.to(torch.bfloat16) if dtype == "bfloat16" else fast, dtype)
    batch = PackedBatch.of_ids(TEXTS)
    with torch.inference_mode():
        a_TD, b_TD = plain.encode(batch), fast.encode(batch).float()
    tolerance = {"float32": 1e-5, "bfloat16": 0.05, "int8": 0.1}[dtype]
    assert (a_TD - b_TD).norm() / a_TD.norm() < tolerance


def test_first_layers_alone_are_refused(folder):
    with pytest.raises(InvalidRequest, match="layers is 2, and all 3 layers of tiny read the embedding"):
        with_first_layers(read_checkpoint(Source(folder, "tiny")), 2)


def test_adapters_update_gates(folder):
    checkpoint, counts = read_checkpoint(Source(folder, "tiny")), {}
    for kind in ("attention", "feedforward", "all-linear"):
        counts[kind] = add_low_rank(build(checkpoint), EMBEDDING_GEMMA2, LowRank(2, 4.0, 0.0, kind))
    assert counts == {"attention": 3 * 4, "feedforward": 3 * 3, "all-linear": 3 * (4 + 3 + 2)}


def test_the_description_says_what_is_read_and_mapped():
    _, published = find_architecture("embeddinggemma-2")
    told = " ".join(text for _, text in describe_spec(published.spec))
    assert "512 features of the embedding with a gate (GELU (tanh)); the output times a stored number" in told
    assert "queries and keys normalized over each head, values too, without a scale" in told
    assert "512 to 768, no bias" in told


def test_what_is_not_built_says_so():
    (layer, *_) = GATED.layers
    bare = replace(layer, gate=None, factor=False)
    plain = replace(bare, mixer=replace(layer.mixer, query_key_norm=QueryKeyNorm(RMSNorm(1e-6))))
    spec = replace(GATED, layers=(plain,), output_width=None)
    assert unsupported_encoder(spec) is None
    for other, part in (
        (replace(plain, gate=layer.gate), "a gate by the embedding"),
        (replace(plain, factor=True), "a factor of a layer's output"),
        (replace(plain, mixer=layer.mixer), "a norm of values"),
    ):
        reason = unsupported_encoder(replace(spec, layers=(other,)))
        assert reason == f"{part} is computed by its own module"
    assert "to another width" in unsupported_encoder(replace(spec, output_width=9))
    assert "another width" in why_no_decoder(enhanced(replace(spec, output_width=9)))
    assert "a gate by the embedding" in why_no_decoder(enhanced(replace(spec, layers=GATED.layers)))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: EmbeddingGate(0, "gelu"), "EmbeddingGate.width is 0; it must be at least 1"),
        (
            lambda: replace(POST_NORM.layers[0], gate=EmbeddingGate(3, "gelu")),
            "a gate by the embedding is built for norm_first=True only",
        ),
        (lambda: replace(POST_NORM.layers[0], factor=True), "factor=True is built for norm_first=True only"),
        (
            lambda: replace(GATED, layers=(GATED.layers[0], replace(GATED.layers[1], gate=None))),
            "layers differ in their gate",
        ),
        (lambda: replace(GATED, output_width=0), "output_width is 0; it must be at least 1"),
        (lambda: QueryKeyNorm(RMSNorm(1e-6), "all", values=True), "values=True is built for RMSNorms over"),
        (lambda: QueryKeyNorm(LayerNorm(1e-6), values=True), "values=True is built for RMSNorms over"),
    ],
)
def test_specs_that_are_not_built_are_refused(make, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        make()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden_size_per_layer_input": 0}, "hidden_size_per_layer_input is 0; it must be at least 1"),
        ({"embedding_dim": 0}, "embedding_dim is 0; it must be at least 1"),
        ({"sliding_window": 0}, "sliding_window is 0"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
        ({"global_head_dim": 0}, "global_head_dim is 0"),
        ({"head_dim": 5}, "rotate"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3|key_value_heads is 3 and heads 4"),
        ({"num_kv_shared_layers": 2}, "num_kv_shared_layers is 2"),
        ({"attention_k_eq_v": True}, "attention_k_eq_v is True"),
        ({"enable_moe_block": True}, "enable_moe_block is True"),
        ({"per_layer_config": {"7": {}}}, "names layer '7'; layers are 0 to 2"),
        ({"per_layer_config": {"-1": {}}}, "names layer '-1'"),
        ({"per_layer_config": {"0": 5}}, "says of layer 0 5; it must be an object"),
        ({"per_layer_config": {"0": {"skip": ["mlp"]}}}, "of layer 0 says skip; only head_dim and"),
        ({"per_layer_config": {"0": {"head_dim": 0}}}, "head_dim is 0"),
        ({"per_layer_config": {"0": {"head_dim": "wide"}}}, "head_dim is 'wide'"),
        ({"layer_types": ["full_attention"]}, "layer_types of 1 layers"),
        ({"hidden_activation": "mish"}, "hidden_activation is 'mish'"),
    ],
)
def test_a_config_that_cannot_be_built_is_refused_by_its_key(changes, sentence):
    config = {"model_type": "embedding_gemma2_text", **SIZES, **changes}
    with pytest.raises(CheckpointError, match=sentence):
        family_of(config).read(JsonSettings("config.json", config), "published")


def test_the_last_layer_reads_the_whole_text_and_no_other_is_written():
    config = {"model_type": "embedding_gemma2_text", **SIZES, "sliding_window_pattern": 2}
    spec = EMBEDDING_GEMMA2.read(JsonSettings("config.json", config), "published")
    patterns = [type(layer.mixer.pattern).__name__ for layer in spec.layers]
    assert patterns == ["SlidingWindow", "FullAttention", "FullAttention"]
    (first, *_) = spec.layers
    assert first.mixer.pattern == SlidingWindow(3)
    with pytest.raises(UnknownArchitecture, match="cannot say that the last layer has a window"):
        EMBEDDING_GEMMA2.write(replace(spec, layers=(first,) * 3))
