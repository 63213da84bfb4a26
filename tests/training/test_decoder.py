"""The enhanced mask decoder against its formulas on dense matrices, one sequence at a time."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

import unmask
from tests.parity.test_deberta import published_like
from tests.support import plain
from tests.support.specs import DISENTANGLED, DISENTANGLED_OWN, LINEAR, POST_NORM, SPECS, random_encoder
from tests.training.toy import chunks, gradients, vocabulary, with_heads
from unmask.encoder import decoder
from unmask.encoder.decoder import decode
from unmask.encoder.encoder import compile_blocks
from unmask.encoder.hooks import HookPoint
from unmask.errors import InvalidRequest
from unmask.spec import LearnedPositions
from unmask.spec.encoder import why_no_decoder
from unmask.text import PackedBatch
from unmask.training.objectives.language_modeling import EnhancedMaskedLanguageModel
from unmask.training.objectives.masking import MaskingSpec
from unmask.weights import Source, read_checkpoint
from unmask.weights.read.inspect import inspect

TEXTS = [[7, 9, 50, 60, 61, 8, 12, 13, 14, 70, 33], [5], [44, 45, 46, 47, 48, 49]]
KEPT = LearnedPositions(20, offset=2, added=False)


def enhanced(spec, positions=KEPT):
    """The spec with a decoder: words as wide as states, a table of positions, the head."""
    embedding = replace(spec.embedding, width=spec.width, projection=None, positions=positions)
    return with_heads(replace(spec, embedding=embedding), enhanced=True)


DEBERTAS = {"v1": enhanced(DISENTANGLED_OWN), "v2": enhanced(DISENTANGLED)}
SOFTMAX = {
    name: enhanced(spec)
    for name, spec in SPECS.items()
    if name not in ("linear", "performer", "windows-globals", "spans", "gated")
}


def on_device(batch, *more):
    return [torch.from_numpy(array) for array in (batch.ids_T, batch.token_type_ids_T, *more)]


def dense_pass(encoder, query_ND, h_ND):
    """The last layer with queries of one text and keys and values of another, from the paper's formulas."""
    weights = dict(encoder.named_parameters())
    layer = len(encoder.layers) - 1
    at, spec = f"layers.{layer}.", encoder.spec.layers[layer]
    mixer, position = spec.mixer, spec.mixer.position
    heads, width, length = mixer.heads, mixer.head_width, len(h_ND)

    def norm(x, name, eps):
        return functional.layer_norm(x, x.shape[-1:], weights[name + ".weight"], weights[name + ".bias"], eps)

    def linear(x, name):
        return x @ weights[name + ".weight"].T + weights.get(name + ".bias", 0.0)

    def split(x):
        parts = list(linear(x, at + "attention.qkv").chunk(3, -1))
        for part, name in enumerate(("query", "key", "value")):
            parts[part] = parts[part] + weights.get(at + f"attention.{name}_bias", 0.0)
        return parts

    q, (_, k, v) = split(query_ND)[0], split(h_ND)
    table = weights["distances.table.weight"]
    if position.table_norm:
        table = norm(table, "distances.norm", position.table_norm.eps)
    if position.shared_projections:
        as_query, as_key, _ = linear(table, at + "attention.qkv").chunk(3, -1)
    else:
        as_query, as_key = (linear(table, at + f"attention.distances.{n}") for n in ("query", "key"))
    row = torch.tensor([[plain.distance_row(i - j, position) for j in range(length)] for i in range(length)])
    mixed = []
    for head in range(heads):
        some = slice(head * width, (head + 1) * width)
        scores = q[:, some] @ k[:, some].T
        scores = scores + (q[:, None, some] * as_key[row][..., some]).sum(-1)
        scores = scores + (k[None, :, some] * as_query[row][..., some]).sum(-1)
        mixed.append((scores / math.sqrt(3 * width)).softmax(-1) @ v[:, some])
    x = norm(query_ND + linear(torch.cat(mixed, -1), at + "attention.out"), at + "attention_norm", 1e-7)
    inner = linear(x, at + "feedforward.inner")
    inner = functional.gelu(inner) if spec.feedforward.activation == "gelu" else functional.silu(inner)
    return norm(x + linear(inner, at + "feedforward.outer"), at + "feedforward_norm", 1e-7)


def dense_states(encoder, batch):
    """Every token's state after two passes."""
    ids_T, segments_T = on_device(batch)
    h_TD = encoder(ids_T, batch.layout, segments_T, layers=len(encoder.layers) - 1)
    states = []
    for sequence in range(batch.layout.sequence_count):
        h_ND = h_TD[batch.layout.rows(sequence)]
        first = encoder.spec.embedding.positions.offset
        query_ND = h_ND + encoder.embedding.positions.weight[first : first + len(h_ND)]
        for _ in range(2):
            query_ND = dense_pass(encoder, query_ND, h_ND)
        states.append(query_ND)
    return torch.cat(states)


@pytest.mark.parametrize("name", DEBERTAS)
def test_states_are_those_of_the_formulas(name):
    encoder = random_encoder(DEBERTAS[name], dtype=torch.float64)
    batch = PackedBatch.of_ids(TEXTS)
    ids_T, segments_T = on_device(batch)
    with torch.no_grad():
        expected = dense_states(encoder, batch)
        found = decode(encoder, ids_T, batch.layout, segments_T)
        last = encoder(ids_T, batch.layout, segments_T)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    assert (last - expected).abs().max() > 0.1


@pytest.mark.parametrize("name", DEBERTAS)
def test_loss_and_gradients_are_those_of_the_formulas(name):
    encoder = random_encoder(DEBERTAS[name], dtype=torch.float64)
    objective = EnhancedMaskedLanguageModel(encoder, vocabulary(), MaskingSpec(0.4))
    example = objective.prepare(chunks((11, 1, 6), (0, 0, 1)), np.random.default_rng(3), 0.0)
    outcome = objective(example, {"masked": 10})
    logits = encoder.logits("enhanced", dense_states(encoder, example.batch), example.batch.layout)
    chosen = torch.from_numpy(example.chosen_M)
    targets = torch.from_numpy(example.targets_M)
    expected = functional.cross_entropy(logits[chosen], targets, reduction="sum") / 10
    assert len(chosen) == example.counts["masked"] > 4
    torch.testing.assert_close(outcome.loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(outcome.sums["masked/loss"], 10 * expected, rtol=1e-12, atol=0)
    assert outcome.sums["masked/accuracy"] == (logits[chosen].argmax(-1) == targets).sum()
    ours, theirs = gradients(outcome.loss, encoder), gradients(expected, encoder)
    assert ours.keys() == theirs.keys()
    for parameter, grad in theirs.items():
        torch.testing.assert_close(ours[parameter], grad, rtol=0, atol=1e-11, msg=parameter)
    assert ours["embedding.positions.weight"].abs().max() > 1e-4


@pytest.mark.parametrize("name", SOFTMAX)
def test_without_positions_one_pass_is_the_last_layer(name, monkeypatch):
    encoder = random_encoder(SOFTMAX[name], dtype=torch.float64)
    batch = PackedBatch.of_ids(TEXTS)
    ids_T, segments_T = on_device(batch)
    with torch.no_grad():
        encoder.embedding.positions.weight.zero_()
        monkeypatch.setattr(decoder, "PASSES", 1)
        found = decode(encoder, ids_T, batch.layout, segments_T)
        torch.testing.assert_close(found, encoder(ids_T, batch.layout, segments_T), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SOFTMAX)
def test_selected_tokens_are_rows_of_all(name):
    encoder = random_encoder(SOFTMAX[name], dtype=torch.float64)
    batch = PackedBatch.of_ids(TEXTS)
    ids_T, segments_T, selected_M = on_device(batch, np.array([16, 3, 11, 0]))
    every = decode(encoder, ids_T, batch.layout, segments_T)
    some = decode(encoder, ids_T, batch.layout, segments_T, selected_M=selected_M)
    torch.testing.assert_close(some, every[selected_M], rtol=0, atol=1e-12)
    weight_MD = torch.randn(some.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ours = gradients((some * weight_MD).sum(), encoder)
    for parameter, grad in gradients((every[selected_M] * weight_MD).sum(), encoder).items():
        torch.testing.assert_close(ours[parameter], grad, rtol=0, atol=1e-10, msg=parameter)


@pytest.mark.parametrize("name", SPECS)
def test_an_encoder_stops_where_it_is_told(name):
    encoder = random_encoder(SPECS[name])
    batch = PackedBatch.of_ids(TEXTS)
    ids_T, segments_T = on_device(batch)
    heard = {}
    with torch.inference_mode():
        encoder(
            ids_T, batch.layout, segments_T, hook=lambda place, layer, x: heard.update({(place, layer): x})
        )
        assert torch.equal(encoder(ids_T, batch.layout, segments_T, layers=0), heard[HookPoint.EMBEDDED, 0])
        for layers in range(1, len(encoder.spec.layers) + 1):
            stopped = encoder(ids_T, batch.layout, segments_T, layers=layers)
            assert torch.equal(stopped, heard[HookPoint.LAYER, layers - 1])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled_blocks_decode_the_same():
    spec = DEBERTAS["v1"]
    batch = PackedBatch.of_ids(TEXTS)
    ids_T, segments_T, selected_M = on_device(batch, np.array([3, 11, 13]))
    plain_one, compiled = (random_encoder(spec, dtype=torch.float64) for _ in range(2))
    compile_blocks(compiled, backend="aot_eager")
    found = [
        decode(one, ids_T, batch.layout, segments_T, selected_M=selected_M) for one in (plain_one, compiled)
    ]
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (with_heads(POST_NORM), "no head with the role enhanced"),
        (enhanced(POST_NORM, None), "no table of absolute positions"),
        (enhanced(POST_NORM, LearnedPositions(20)), "no table of absolute positions"),
        (with_heads(replace(DISENTANGLED, embedding=replace(DISENTANGLED.embedding, positions=KEPT)),
                    enhanced=True), "8 wide and its states 15"),
        (enhanced(LINEAR), "LinearAttention"),
        (enhanced(SPECS["windows-globals"]), None),
        (replace(enhanced(SPECS["windows-globals"]), layers=SPECS["windows-globals"].layers[:2]), "projec"),
    ],
)  # fmt: skip
def test_an_encoder_without_a_decoder_says_why(spec, reason):
    assert (why_no_decoder(spec) is None) is (reason is None)
    if reason is not None:
        with pytest.raises(InvalidRequest, match=reason):
            EnhancedMaskedLanguageModel(random_encoder(spec), vocabulary(), MaskingSpec())


def test_a_text_longer_than_the_positions_is_refused():
    encoder = random_encoder(enhanced(DISENTANGLED_OWN, LearnedPositions(9, offset=2, added=False)))
    batch = PackedBatch.of_ids([[7] * 7, [7] * 8])
    ids_T, _ = on_device(batch)
    with pytest.raises(InvalidRequest, match="8 tokens and the enhanced mask decoder has 7 positions"):
        decode(encoder, ids_T, batch.layout)


def test_fill_predicts_through_the_decoder(tmp_path):
    published_like(tmp_path)
    model = unmask.load(tmp_path, dtype="float64")
    text = "w3 [MASK] w7 w9 [MASK] w2"
    filled = model.fill(text, top_k=3)
    (encoding,) = model.tokenize([text])
    encoder = model.trainable_encoder()
    batch = PackedBatch.of_ids([encoding.ids])
    with torch.no_grad():
        logits = encoder.logits("enhanced", dense_states(encoder, batch), batch.layout)
    assert [mask.token for mask in filled] == [2, 5]
    for mask in filled:
        expected = logits[mask.token].softmax(-1).topk(3)
        assert [one.id for one in mask.predictions] == expected.indices.tolist()
        np.testing.assert_allclose(
            [one.probability for one in mask.predictions], expected.values.numpy(), rtol=1e-10
        )
    fast = unmask.load(tmp_path).fill(text, top_k=3)
    for mask, same in zip(filled, fast, strict=True):
        assert [one.id for one in mask.predictions] == [one.id for one in same.predictions]
        for one, other in zip(mask.predictions, same.predictions, strict=True):
            assert one.probability == pytest.approx(other.probability, rel=1e-3)
    assert inspect(read_checkpoint(Source(tmp_path, "tiny"))).approximated == ()
