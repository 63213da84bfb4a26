"""What DeBERTa has that `transformers` leaves out, and where its authors' code and `transformers` differ."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from tests.contracts.cases import Case
from tests.contracts.test_transformers import random_model, their_outputs, write_vocabulary
from tests.support import plain
from unmask.base.json_settings import JsonSettings
from unmask.errors import UnknownArchitecture
from unmask.families.deberta import DEBERTA
from unmask.families.deberta_v2 import DEBERTA_V2
from unmask.interpret import AttentionView
from unmask.kernels.distances import table_rows
from unmask.spec import Disentangled
from unmask.text import Encoding, PackedBatch
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.write.save import save

SIZES = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 17, "num_hidden_layers": 2}
V3 = SIZES | {
    "relative_attention": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "position_buckets": 6,
    "max_relative_positions": 16,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
}
V1 = SIZES | {"relative_attention": True, "pos_att_type": "c2p|p2c", "position_biased_input": False}


def write(folder, model="DebertaV2Model", settings=V3):
    case = Case(model, settings)
    made = random_model(case)
    made.save_pretrained(folder)
    write_vocabulary(folder, case.vocabulary)
    return case, made


def text(length, seed=0):
    return np.random.default_rng(seed).integers(5, 61, length).tolist()


def states(folder, ids, compat):
    encoder = build(read_checkpoint(Source(folder, "tiny"), compat), dtype="float64")
    with torch.inference_mode():
        return encoder, encoder.encode(PackedBatch.of_ids([ids])).numpy()


def test_compat_differs_only_beyond_the_distances_of_training(tmp_path):
    case, model = write(tmp_path)
    for length, same in ((16, True), (17, False), (26, False)):
        ids = text(length)
        theirs = their_outputs(model, case, ids, None)[0][-1]
        encoder, published = states(tmp_path, ids, "published")
        _, hf = states(tmp_path, ids, "hf")
        np.testing.assert_allclose(hf, theirs, rtol=0, atol=1e-10)
        assert bool(np.abs(published - theirs).max() < 1e-10) is same
        weights = {name: tensor.numpy() for name, tensor in encoder.state_dict().items()}
        expected = plain.encode(encoder.spec, weights, ids, [0] * length, np.zeros(length, dtype=bool))[-1]
        np.testing.assert_allclose(published, expected, rtol=0, atol=1e-10)


def test_the_first_version_is_the_same_either_way():
    config = {**V1, "vocab_size": 9}
    assert DEBERTA.read(JsonSettings("c", config), "hf") == DEBERTA.read(
        JsonSettings("c", config), "published"
    )


def test_the_row_of_distances_beyond_training_is_read_by_hf_alone():
    published = DEBERTA_V2.published[0].spec.distances
    far = torch.tensor([-4000, -512, -511, 511, 512, 4000])
    assert table_rows(far, published).tolist() == [1, 1, 1, 511, 511, 511]
    hf = DEBERTA_V2.read(
        JsonSettings("c", dict(DEBERTA_V2.write(DEBERTA_V2.published[0].spec))), "hf"
    ).distances
    assert table_rows(far, hf).tolist() == [0, 0, 1, 511, 511, 511]


@pytest.mark.parametrize(("buckets", "pattern"), [(256, 512), (8, 32), (6, 16), (7, 40), (2, 5), (32, 128)])
def test_every_distance_has_the_bucket_of_both_codes(buckets, pattern):
    behind = torch.arange(-4 * pattern, 4 * pattern)
    theirs = make_log_bucket_position(behind, buckets, pattern).long().clamp(-buckets, buckets - 1) + buckets
    assert torch.equal(table_rows(behind, Disentangled(pattern, buckets)), theirs)
    cut = Disentangled(pattern, buckets, clamped=True)
    rows = table_rows(behind, cut)
    assert rows.tolist() == [plain.distance_row(int(d), cut) for d in behind]
    near = behind.abs() < pattern
    assert torch.equal(rows[near], theirs[near])
    assert rows.min() >= 1


def published_like(folder, seed=1):
    """A checkpoint as Microsoft's: absolute positions and two heads that their decoder and v3 use."""
    write(folder, "DebertaV2Model", V3 | {"max_position_embeddings": 16})
    tensors = load_file(folder / "model.safetensors")
    tensors = {"deberta." + name: tensor for name, tensor in tensors.items()}
    generator = torch.Generator().manual_seed(seed)
    width, words = V3["hidden_size"], 61
    shapes = {
        "deberta.embeddings.position_embeddings.weight": (16, width),
        "lm_predictions.lm_head.dense.weight": (width, width),
        "lm_predictions.lm_head.dense.bias": (width,),
        "lm_predictions.lm_head.LayerNorm.weight": (width,),
        "lm_predictions.lm_head.LayerNorm.bias": (width,),
        "lm_predictions.lm_head.bias": (words,),
        "mask_predictions.dense.weight": (width, width),
        "mask_predictions.dense.bias": (width,),
        "mask_predictions.LayerNorm.weight": (width,),
        "mask_predictions.LayerNorm.bias": (width,),
        "mask_predictions.classifier.weight": (1, width),
        "mask_predictions.classifier.bias": (1,),
    }
    for name, shape in shapes.items():
        tensors[name] = torch.randn(shape, generator=generator, dtype=torch.float64)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    del config["architectures"]
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


def test_what_the_decoder_needs_is_kept_and_saved_again(tmp_path):
    (tmp_path / "theirs").mkdir()
    tensors = published_like(tmp_path / "theirs")
    checkpoint = read_checkpoint(Source(tmp_path / "theirs", "tiny"))
    assert checkpoint.unread_config == ()
    encoder = build(checkpoint, dtype="float64")
    assert set(encoder.heads) == {"enhanced", "replaced"}
    assert checkpoint.max_tokens is None
    save(encoder, checkpoint, tmp_path / "ours")
    saved = load_file(tmp_path / "ours" / "model.safetensors")
    assert saved.keys() == tensors.keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in tensors.items())
    again = read_checkpoint(Source(tmp_path / "ours", "tiny"))
    assert again.spec == checkpoint.spec
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["legacy"] is False


def test_replaced_tokens_by_the_formula(tmp_path):
    tensors = {name: tensor.numpy() for name, tensor in published_like(tmp_path).items()}
    encoder = build(read_checkpoint(Source(tmp_path, "tiny")), dtype="float64")
    batch = PackedBatch.of_ids([text(6), text(1, 1), text(9, 2)])
    with torch.inference_mode():
        x_TD = encoder.encode(batch)
        logits = encoder.logits("replaced", x_TD, batch.layout).numpy()
    assert logits.shape == (16, 1)
    head = {name.removeprefix("mask_predictions."): value for name, value in tensors.items()}
    for sequence in range(3):
        rows = batch.layout.rows(sequence)
        x = x_TD[rows].numpy()
        y = x + x[:1]
        y = y - y.mean(-1, keepdims=True)
        y = y / np.sqrt((y * y).mean(-1, keepdims=True) + 1e-7)
        y = y * head["LayerNorm.weight"] + head["LayerNorm.bias"]
        y = plain.ACTIVATIONS["gelu"](y @ head["dense.weight"].T + head["dense.bias"])
        expected = y @ head["classifier.weight"].T + head["classifier.bias"]
        np.testing.assert_allclose(logits[rows], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("model", "settings"), [("DebertaModel", V1), ("DebertaV2Model", V3)])
def test_the_picture_is_their_attention(tmp_path, model, settings):
    _, made = write(tmp_path, model, settings)
    ids = text(13)
    encoder = build(read_checkpoint(Source(tmp_path, "tiny")), dtype="float64")
    empty = np.zeros(13, dtype=np.int64)
    view = AttentionView(
        encoder,
        Encoding.of_arrays(
            text="",
            ids=np.array(ids),
            token_type_ids=empty,
            offsets=np.zeros((13, 2), dtype=np.int64),
            special=empty.astype(bool),
            sequence_ids=empty,
            pieces=("w",) * 13,
        ),
    )
    with torch.inference_mode():
        theirs = made(input_ids=torch.tensor([ids]), output_attentions=True).attentions
    for layer in range(2):
        for head in range(3):
            seen = view.probabilities(layer, head, slice(2, 11), slice(1, 12))
            np.testing.assert_allclose(seen, theirs[layer][0, head, 2:11, 1:12].numpy(), rtol=0, atol=1e-6)
    assert (view.entropy < math.log(13)).all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"pos_att_type": "c2p|p2p"}, "built are c2p and p2c"),
        ({"relative_attention": False}, "terms that do not exist"),
        ({"norm_rel_ebd": "batch_norm"}, "built are none and layer_norm"),
        ({"conv_kernel_size": 3, "conv_act": "selu"}, "conv_act is 'selu'"),
        ({"pooler_hidden_size": 5}, "pooler_hidden_size is 5; only 12 is built"),
    ],
)
def test_what_is_not_built_is_refused(tmp_path, change, sentence):
    write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnknownArchitecture, match=sentence):
        read_checkpoint(Source(tmp_path, "tiny"))
