"""Padded encoders and their ONNX graphs, beside the packed encoder."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import unmask
from tests.support.command import run_here
from tests.support.specs import BLOCKS, SPECS, VOCABULARY, random_encoder
from unmask.errors import InvalidRequest
from unmask.model.export import onnx as graphs
from unmask.model.export.padded import PaddedEncoder, pool_padded, why_not_padded
from unmask.model.heads import pool
from unmask.model.spec import BlockSparse, Disentangled, SlidingWindowGlobal
from unmask.model.spec.embedding_head import POOLING_MODES
from unmask.model.weights import find, read_checkpoint
from unmask.text.batch import PackedBatch, SequenceLayout

LONGEST = 64


def unseeded(spec):
    """BigBird's blocks as `transformers` has them in evaluation; any other encoder as it is."""
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, pattern=replace(layer.mixer.pattern, seed=None)))
        if layer in softmax(spec) and isinstance(layer.mixer.pattern, BlockSparse)
        else layer
        for layer in spec.layers
    )
    return replace(spec, layers=layers)


def softmax(spec):
    return [layer for layer in spec.layers if hasattr(layer.mixer, "pattern")]


EXPORTED = {name: unseeded(spec) for name, spec in SPECS.items()}


def padded(spec, *, longest=LONGEST, rows=None):
    firsts = int(any(isinstance(layer.mixer.pattern, SlidingWindowGlobal) for layer in softmax(spec)))
    return PaddedEncoder(
        random_encoder(spec),
        None,
        outputs=("last_hidden_state",),
        role=None,
        longest=longest,
        global_tokens=firsts,
        rows=rows,
    ).eval()


@pytest.mark.parametrize("rows", [None, 16])
@pytest.mark.parametrize("name", EXPORTED)
def test_a_padded_encoder_equals_the_packed_one_at_every_length(name, rows):
    module = padded(EXPORTED[name], rows=rows)
    for texts, tokens in ((1, 1), (2, 7), (5, 33), (3, LONGEST)):
        ids_BN, mask_BN, types_BN = graphs._inputs(module, texts, tokens, seed=tokens)
        lengths = mask_BN.sum(1)
        firsts = [range(module.global_tokens)] * texts if module.global_tokens else None
        batch = PackedBatch.of_ids(
            [row[:length] for row, length in zip(ids_BN, lengths, strict=True)],
            [row[:length] for row, length in zip(types_BN, lengths, strict=True)],
            firsts,
        )
        with torch.inference_mode():
            wanted = module.encoder.encode(batch).numpy()
            (found,) = module(*(torch.from_numpy(one) for one in (ids_BN, mask_BN, types_BN)))
        assert found.isfinite().all(), "padding is finite too"
        np.testing.assert_allclose(found.numpy()[mask_BN > 0], wanted, atol=1e-5)


def test_more_padding_changes_nothing():
    module = padded(EXPORTED["windows-globals"])
    arrays = graphs._inputs(module, 3, 20)
    wider = [np.pad(one, ((0, 0), (0, 13))) for one in arrays]
    with torch.inference_mode():
        (narrow,), (wide,) = (module(*map(torch.from_numpy, some)) for some in (arrays, wider))
    torch.testing.assert_close(wide[:, :20][arrays[1] > 0], narrow[arrays[1] > 0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("mode", POOLING_MODES)
def test_pooling_of_padded_texts_is_that_of_packed_ones(mode):
    lengths = [3, 1, 8]
    x_BND = torch.randn(3, 8, 5, generator=torch.Generator().manual_seed(0))
    present_BN = torch.arange(8) < torch.tensor(lengths)[:, None]
    wanted = pool(x_BND[present_BN], SequenceLayout.of_lengths(np.array(lengths)), mode)
    torch.testing.assert_close(pool_padded(x_BND, present_BN, mode), wanted)


def test_what_a_graph_cannot_do_is_named():
    assert "random blocks" in why_not_padded(BLOCKS)
    layer = EXPORTED["windows-globals"].layers[2]
    placed = replace(layer, mixer=replace(layer.mixer, position=Disentangled(5)))
    assert "Disentangled" in why_not_padded(replace(EXPORTED["windows-globals"], layers=(placed,)))
    assert any(isinstance(layer.mixer.pattern, BlockSparse) for layer in BLOCKS.layers)
    with pytest.raises(InvalidRequest, match="no head, so it has no logits"):
        PaddedEncoder(random_encoder(EXPORTED["post-norm"]), None, outputs=("logits",), role=None, longest=8)
    with pytest.raises(InvalidRequest, match="has no sentence_embedding, but no output of its own"):
        PaddedEncoder(
            random_encoder(EXPORTED["post-norm"]), None, outputs=("sentence_embedding",), role=None, longest=8
        )


def test_the_default_model_is_exported_with_its_tokenizer(tmp_path, default_model):
    import onnxruntime
    from tokenizers import Tokenizer

    folder = tmp_path / "graph"
    found = json.loads(run_here("export", "default", "-o", folder, "--json").out)
    assert found["outputs"] == ["sentence_embedding"]
    assert found["max_tokens"] == 256
    assert 0 < found["largest_difference"] < 1e-5
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    texts = ["the river bank", "a bank account that nobody had opened"]
    encoded = tokenizer.encode_batch(texts)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    given = {
        "input_ids": [one.ids for one in encoded],
        "attention_mask": [one.attention_mask for one in encoded],
        "token_type_ids": [one.type_ids for one in encoded],
    }
    (vectors,) = session.run(None, {name: np.array(rows) for name, rows in given.items()})
    np.testing.assert_allclose(vectors, default_model.embed(texts), atol=1e-5)


def test_bad_requests_are_one_sentence_and_leave_no_folder(tmp_path):
    checkpoint = read_checkpoint(find("default"))
    for asked, said in (
        ({"outputs": ()}, "name at least one"),
        ({"outputs": ("logits",)}, "no head"),
        ({"role": "masked"}, "logits are not among the outputs"),
        ({"max_tokens": 0}, "from 1 to 256"),
        ({"max_tokens": 257}, "from 1 to 256"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            graphs.export_onnx(checkpoint, tmp_path / "new", **asked)
        assert not (tmp_path / "new").exists()
    assert unmask.load("default").spec.embedding.vocabulary > VOCABULARY
