"""The status of every tensor: rows read both ways, old names, prefixes, heads, shards, and refusals."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from tests.support.tiny import (
    HEADS,
    LAYERS,
    WIDTH,
    change_json,
    change_tensors,
    tiny_bert,
    tiny_config,
    write_checkpoint,
)
from unmask.errors import CorruptCheckpoint, TensorMismatch
from unmask.families import FAMILIES
from unmask.families.bert import BERT
from unmask.spec.tensor_map import Concat, Copy, Ignore, Rename
from unmask.weights import find, read_checkpoint
from unmask.weights.build import on_meta
from unmask.weights.read.inspect import inspect
from unmask.weights.tensor_report import canonical, match_tensors, moves
from unmask.weights.write.save import their_tensors

IDS = [[2, 60, 61, 3], [2, 7, 8, 9, 33, 3]]

ROWS = (
    Rename("words", "embedding.words"),
    Concat(("block.{l}.q", "block.{l}.k", "block.{l}.v"), "layers.{l}.qkv"),
    Rename("block.{l}.norm", "layers.{l}.norm"),
    Ignore("head.*", "a head"),
)
OURS = [
    "embedding.words.weight",
    *(f"layers.{layer}.{part}" for layer in (0, 1, 10) for part in ("qkv.weight", "qkv.bias", "norm.weight")),
]
THEIRS = [
    "words.weight",
    *(f"block.{n}.{part}.{kind}" for n in (0, 1, 10) for part in "qkv" for kind in ("weight", "bias")),
    *(f"block.{n}.norm.weight" for n in (0, 1, 10)),
]


def statuses_of(report):
    return {status.name: status.ours or status.reason for status in report.statuses}


# --- rows ----------------------------------------------------------------------------------------------


def test_rows_from_ours_to_theirs():
    found = {move.ours: move.theirs for move in moves(ROWS, OURS)}
    assert list(found) == OURS
    assert found["embedding.words.weight"] == ("words.weight",)
    assert found["layers.10.qkv.bias"] == ("block.10.q.bias", "block.10.k.bias", "block.10.v.bias")
    assert sorted(name for theirs in found.values() for name in theirs) == sorted(THEIRS)


def test_rows_from_theirs_to_ours():
    report = match_tensors(ROWS, "model.", OURS, THEIRS)
    assert report.sources == {move.ours: move.theirs for move in moves(ROWS, OURS)}
    assert sorted(statuses_of(report)) == sorted(THEIRS)
    assert statuses_of(report)["block.1.k.weight"] == "layers.1.qkv.weight"


def test_a_row_that_is_missing():
    with pytest.raises(TensorMismatch, match=r"no entry .* layers\.0\.extra\.weight"):
        moves(ROWS, ["layers.0.extra.weight"])


@pytest.mark.parametrize(
    "ours", ["xembedding.words.weight", "embedding.words.weightx", "embeddingxwords.weight"]
)
def test_rows_name_whole_tensors(ours):
    with pytest.raises(TensorMismatch, match="no entry"):
        moves(ROWS, [ours])


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("block.0.norm.gamma", "block.0.norm.weight"),
        ("block.0.norm.beta", "block.0.norm.bias"),
        ("model.block.0.norm.gamma", "block.0.norm.weight"),
        ("model.model.words.weight", "model.words.weight"),
        ("gamma.weight", "gamma.weight"),
        ("remodel.words.weight", "remodel.words.weight"),
    ],
)
def test_canonical_names(name, wanted):
    assert canonical(name, "model.") == wanted


def test_old_names_and_prefixes_are_claimed_under_the_name_in_the_file():
    old = {name: "model." + name.replace("norm.weight", "norm.gamma") for name in THEIRS}
    report = match_tensors(ROWS, "model.", OURS, old.values())
    assert report.sources["layers.1.norm.weight"] == ("model.block.1.norm.gamma",)
    assert statuses_of(report)["model.block.1.norm.gamma"] == "layers.1.norm.weight"


@pytest.mark.parametrize(
    ("names", "sources", "copies"),
    [
        (("words.weight", "out.weight"), ("words.weight",), {"model.out.weight": "embedding.words.weight"}),
        (("words.weight",), ("words.weight",), {}),
        (("out.weight",), ("out.weight",), {}),
    ],
)
def test_a_tensor_with_a_second_name(names, sources, copies):
    """Under both names it is claimed once and the other is a copy; under either alone it is claimed."""
    rows = (*ROWS, Copy("out.weight", "embedding.words.weight"))
    others = [name for name in THEIRS if name != "words.weight"]
    report = match_tensors(rows, "model.", OURS, [f"model.{name}" for name in (*others, *names)])
    assert report.sources["embedding.words.weight"] == tuple(f"model.{name}" for name in sources)
    assert report.copies == copies
    assert all("a copy of embedding.words.weight" in statuses_of(report)[name] for name in copies)


def test_ignored_tensors_have_their_reason_and_claimed_ones_have_none():
    report = match_tensors(ROWS, "model.", OURS, [*THEIRS, "head.dense.weight", "head.bias"])
    reasons = {status.name: status.reason for status in report.statuses if status.ours is None}
    assert reasons == {"head.dense.weight": "a head", "head.bias": "a head"}
    assert all(status.reason is None for status in report.statuses if status.ours is not None)


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (THEIRS[1:], ["1 tensor is missing", "words.weight"]),
        (
            [name for name in THEIRS if ".10." not in name],
            ["7 tensors are missing", "block.10.q.weight", "and 4 more"],
        ),
        ([*THEIRS, "foo.weight"], ["1 tensor has no place", "foo.weight"]),
        (
            [*THEIRS, *(f"foo.{n}" for n in range(5))],
            ["5 tensors have no place", "foo.0, foo.1, foo.2 and 2 more"],
        ),
        ([*THEIRS, "header.bias"], ["header.bias"]),
        ([*THEIRS, "model.words.weight"], ["words.weight", "model.words.weight", "two names"]),
        ([*THEIRS, "block.1.norm.gamma"], ["block.1.norm.gamma", "block.1.norm.weight", "two names"]),
        ([*THEIRS, "block.11.norm.weight"], ["block.11.norm.weight", "no place"]),
    ],
)
def test_what_is_missing_left_over_or_there_twice(names, parts):
    with pytest.raises(TensorMismatch) as error:
        match_tensors(ROWS, "model.", OURS, names)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_tensor_of_a_family_has_a_row_and_comes_back_by_it(family):
    for published in family.published:
        ours = list(on_meta(published.spec).state_dict())
        theirs = [name for move in moves(family.tensor_map, ours) for name in move.theirs]
        assert len(set(theirs)) == len(theirs)
        report = match_tensors(
            family.tensor_map, family.prefix, ours, [family.prefix + name for name in theirs]
        )
        assert list(report.sources) == ours
        assert {status.reason for status in report.statuses} == {None}


# --- checkpoints ---------------------------------------------------------------------------------------


def assert_outputs_of(reference, folder):
    """The loaded folder gives the hidden states of a `transformers` encoder."""
    for ids, hidden in zip(IDS, unmask.load(folder).hidden_states(IDS), strict=True):
        with torch.no_grad():
            wanted = reference(torch.tensor([ids])).last_hidden_state[0]
        torch.testing.assert_close(hidden, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("kind", "pooler"),
    [
        ("BertModel", True),
        ("BertForMaskedLM", False),
        ("BertForPreTraining", True),
        ("BertForSequenceClassification", True),
        ("BertForTokenClassification", False),
        ("BertForQuestionAnswering", False),
        ("BertForNextSentencePrediction", True),
        ("BertForMultipleChoice", True),
    ],
)
def test_checkpoints_with_every_head(kind, pooler, tmp_path):
    model = tiny_bert(kind)
    folder = write_checkpoint(tmp_path / "tiny", model)
    assert_outputs_of(getattr(model, "bert", model), folder)

    found = inspect(read_checkpoint(find(folder)))
    assert (found.spec.pooler is not None) is pooler
    stored = load_file(folder / "model.safetensors")
    assert {status.name: status.shape for status in found.tensors} == {
        n: tuple(t.shape) for n, t in stored.items()
    }
    for status in found.tensors:
        second = status.name in ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")
        assert (status.ours is None) is second, status
        assert (status.reason or "").startswith("a copy of") is second, status
    assert any("heads." in (status.ours or "") for status in found.tensors) is (kind != "BertModel")


def test_old_norm_names_in_a_checkpoint(tiny_copy):
    def rename(stored):
        for name in [name for name in stored if "LayerNorm" in name]:
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            )
            stored[old] = stored.pop(name)

    change_tensors(tiny_copy, rename)
    assert any(name.endswith("LayerNorm.gamma") for name in load_file(tiny_copy / "model.safetensors"))
    assert_outputs_of(tiny_bert(), tiny_copy)


def test_a_stored_buffer_is_ignored_with_a_reason(tiny_copy):
    change_tensors(
        tiny_copy, lambda stored: stored.update({"embeddings.position_ids": torch.arange(23)[None]})
    )
    (status,) = [
        status for status in inspect(read_checkpoint(find(tiny_copy))).tensors if status.ours is None
    ]
    assert status.name == "embeddings.position_ids"
    assert status.reason
    assert_outputs_of(tiny_bert(), tiny_copy)


@pytest.mark.parametrize("half", ["weight", "bias"])
def test_half_a_pooler_is_refused(half, tiny_copy):
    change_tensors(tiny_copy, lambda stored: stored.pop(f"pooler.dense.{half}"))
    with pytest.raises(TensorMismatch, match=r"pooler\.dense\."):
        unmask.load(tiny_copy)


def test_two_names_of_one_tensor_in_a_checkpoint(tiny_copy):
    name = "embeddings.word_embeddings.weight"
    change_tensors(tiny_copy, lambda stored: stored.update({f"bert.{name}": stored[name] + 1}))
    with pytest.raises(TensorMismatch, match=rf"bert\.{re.escape(name)}.*two names"):
        unmask.load(tiny_copy)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_stored_in_another_format_are_converted(stored, tiny_copy, tiny_folder):
    wanted = {name: t.to(stored).float() for name, t in load_file(tiny_folder / "model.safetensors").items()}
    change_tensors(tiny_copy, lambda tensors: tensors.update({n: t.to(stored) for n, t in tensors.items()}))
    model = unmask.load(tiny_copy)
    assert model.dtype == "float32"
    for name, tensor in their_tensors(model.trainable_encoder(), BERT).items():
        assert torch.equal(tensor, wanted[name]), name


def test_saving_gives_their_tensors_back(tiny_model, tiny_folder, tmp_path):
    tiny_model.save(tmp_path / "saved")
    before, after = (load_file(folder / "model.safetensors") for folder in (tiny_folder, tmp_path / "saved"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name
    import transformers

    again = transformers.BertModel.from_pretrained(tmp_path / "saved").eval()
    assert_outputs_of(again, tiny_folder)
    assert again.config.num_attention_heads == HEADS


# --- shards --------------------------------------------------------------------------------------------


@pytest.fixture
def sharded(tiny_folder, tmp_path):
    """The tiny checkpoint as `transformers` writes large ones."""
    folder = shutil.copytree(tiny_folder, tmp_path / "sharded")
    (folder / "model.safetensors").unlink()
    tiny_bert().save_pretrained(folder, max_shard_size="30KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert not (folder / "model.safetensors").exists()
    return folder


def test_shards_are_one_checkpoint(sharded, tiny_folder):
    assert_outputs_of(tiny_bert(), sharded)
    whole, parts = (inspect(read_checkpoint(find(folder))) for folder in (tiny_folder, sharded))
    assert sorted(whole.tensors, key=lambda t: t.name) == sorted(parts.tensors, key=lambda t: t.name)


def test_a_shard_that_is_not_there(sharded):
    gone = sorted(sharded.glob("model-*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(CorruptCheckpoint, match=rf"{gone.name}, which is not in the folder"):
        unmask.load(sharded)


def test_one_tensor_in_two_shards_is_refused(sharded):
    """Which of the two was meant cannot be known."""
    first, second = sorted(sharded.glob("model-*.safetensors"))[:2]
    tensors = load_file(first)
    name, tensor = next(iter(load_file(second).items()))
    save_file(tensors | {name: tensor + 1}, first, metadata={"format": "pt"})
    with pytest.raises(CorruptCheckpoint, match=re.escape(name)):
        unmask.load(sharded)


def test_a_tensor_that_the_index_names_and_no_shard_holds(sharded):
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["cls.extra.weight"] = next(iter(index["weight_map"].values()))
    path.write_text(json.dumps(index))
    with pytest.raises(CorruptCheckpoint, match=r"cls\.extra\.weight"):
        unmask.load(sharded)


# --- config.json ---------------------------------------------------------------------------------------


def test_keys_that_are_not_understood_are_reported_and_kept(tiny_copy, tmp_path):
    change_json(tiny_copy / "config.json", wavelet_order=3)
    model = unmask.load(tiny_copy)
    assert model.checkpoint.unread_config == ("wavelet_order",)
    model.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["wavelet_order"] == 3


def test_the_spec_is_what_the_config_says(tiny_model):
    spec, config = tiny_model.spec, tiny_config()
    assert (len(spec.layers), spec.width, spec.layers[0].mixer.heads) == (LAYERS, WIDTH, HEADS)
    assert spec.layers[0].feedforward.width == config.intermediate_size
    assert spec.embedding.positions.rows == config.max_position_embeddings
    assert spec.embedding.vocabulary == config.vocab_size
    assert tiny_model.parameter_count == sum(p.numel() for p in tiny_bert().parameters())
