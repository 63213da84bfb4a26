"""Padded encoders and their ONNX graphs, beside the packed encoder."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer

import unmask
from tests.contracts.cases import bigbird
from tests.contracts.test_transformers import random_model, write_vocabulary
from tests.parity.test_elmo import SMALL, random_elmo
from tests.support.command import assert_one_sentence, run_here
from tests.support.heads import decoded_spec
from tests.support.specs import BLOCKS, SPECS, VOCABULARY, random_encoder
from tests.support.tokenizers_built import of_bytes
from unmask.encoder.heads import pool, pool_padded
from unmask.engines.export import onnx as graphs
from unmask.engines.export.padded import PaddedEncoder, why_not_padded
from unmask.errors import InvalidRequest
from unmask.spec import BlockSparse, Disentangled, PooledVector, SlidingWindowGlobal
from unmask.spec.embedding_head import POOLING_MODES
from unmask.text.batch import PackedBatch, SequenceLayout
from unmask.weights import find, read_checkpoint
from unmask.weights.elmo_files import save_elmo

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


REFUSED = ("experts", "sinks")
EXPORTED = {name: unseeded(spec) for name, spec in SPECS.items() if name not in REFUSED}


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
    """In float64, but for the graph's table of rotations, which is float32."""
    module = padded(EXPORTED[name], rows=rows).double()
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
        np.testing.assert_allclose(found.numpy()[mask_BN > 0], wanted, rtol=0, atol=5e-6)


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
    plain = EXPORTED["post-norm"]
    for spec, output, asked, role, said in (
        (BLOCKS, None, "last_hidden_state", None, "random blocks"),
        (plain, None, "logits", None, "no head, so it has no logits"),
        (plain, None, "sentence_embedding", None, "has no sentence_embedding, but no output of its own"),
        (plain, PooledVector(), "sparse_embedding", None, "has no sparse_embedding, but PooledVector"),
        (plain, PooledVector(pools_prompt=False), "sentence_embedding", None, "tokens of a prompt"),
        (decoded_spec(), None, "logits", "enhanced", "enhanced mask decoder"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            PaddedEncoder(random_encoder(spec), output, outputs=(asked,), role=role, longest=8)


def test_global_tokens_of_a_question_are_refused_and_others_are_those_of_the_head():
    longformer = SimpleNamespace(spec=EXPORTED["windows-globals"], source=SimpleNamespace(name="tiny"))
    for role in ("span", "choice"):
        with pytest.raises(
            InvalidRequest, match=f"tiny cannot be exported with the logits of its {role} head"
        ):
            graphs._global_tokens(longformer, role)
    found = {role: graphs._global_tokens(longformer, role) for role in (None, "sequence", "tokens", "masked")}
    assert found == {None: 1, "sequence": 1, "tokens": 0, "masked": 0}
    bert = SimpleNamespace(spec=EXPORTED["post-norm"])
    assert graphs._global_tokens(bert, "span") == 0


def test_a_graph_that_gives_no_number_differs_from_its_encoder():
    module = padded(SPECS["post-norm"]).eval()

    def run(given):
        with torch.inference_mode():
            found = [one.numpy().copy() for one in module(*map(torch.from_numpy, given.values()))]
        return found

    def broken(given):
        found = run(given)
        found[0][-1, -1] = np.nan
        return found

    assert graphs._difference(module, graphs.INPUTS, run, LONGEST) < 1e-4
    assert graphs._difference(module, graphs.INPUTS, broken, LONGEST) == np.inf


def test_an_elmo_is_refused_by_name(tmp_path):
    save_elmo(random_elmo(SMALL), tmp_path / "elmo")
    ran = run_here("export", tmp_path / "elmo", "-o", tmp_path / "graph")
    assert_one_sentence(ran, tmp_path / "elmo", "is an ELMo", "name a Transformer encoder")
    assert not (tmp_path / "graph").exists()


@pytest.mark.slow
def test_bigbird_is_exported_as_transformers_evaluates_it(tmp_path):
    case = next(case for case in bigbird.CASES if case.model == "BigBirdModel")
    random_model(case).float().save_pretrained(tmp_path / "model")
    write_vocabulary(tmp_path / "model", case.vocabulary)
    refused = run_here("export", tmp_path / "model", "-o", tmp_path / "graph")
    assert_one_sentence(refused, "random blocks", "compat hf")
    assert not (tmp_path / "graph").exists()
    made = run_here("export", tmp_path / "model", "-o", tmp_path / "graph", "--compat", "hf", "--json")
    assert 0 < json.loads(made.out)["largest_difference"] < 1e-5


def run_in_onnxruntime(folder, texts):
    """A graph's first output for texts that the folder's tokenizer reads."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(texts)
    given = {
        "input_ids": [one.ids for one in encoded],
        "attention_mask": [one.attention_mask for one in encoded],
        "token_type_ids": [one.type_ids for one in encoded],
    }
    _, run = graphs._in_onnxruntime(folder / "model.onnx")
    return run({name: np.array(rows) for name, rows in given.items()})[0]


TEXTS = ["the river bank", "a bank account that nobody had opened"]


@pytest.mark.long
def test_the_default_model_is_exported_with_its_tokenizer(tmp_path, default_model):
    folder = tmp_path / "graph"
    found = json.loads(run_here("export", "default", "-o", folder, "--json").out)
    assert found["outputs"] == ["sentence_embedding"]
    assert found["max_tokens"] == 256
    assert 0 < found["largest_difference"] < 1e-5
    np.testing.assert_allclose(run_in_onnxruntime(folder, TEXTS), default_model.embed(TEXTS), atol=1e-5)


def test_a_graph_reads_what_the_tokenizer_of_a_family_without_token_types_gives(tmp_path):
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    config = transformers.RobertaConfig(
        vocab_size=330, type_vocab_size=1, max_position_embeddings=40, pad_token_id=3, **sizes
    )
    engine = of_bytes().engine
    tokenizer = transformers.RobertaTokenizer(tokenizer_object=engine, model_max_length=36)
    model = transformers.RobertaModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text(engine.to_str())
    made = graphs.export_onnx(
        read_checkpoint(find(tmp_path / "model")), tmp_path / "graph", outputs=["last_hidden_state"]
    )
    assert made.inputs == ("input_ids", "attention_mask")
    given = tokenizer(["the river bank was muddy"], return_tensors="pt")
    _, run = graphs._in_onnxruntime(tmp_path / "graph" / "model.onnx")
    (states,) = run({name: one.numpy() for name, one in given.items()})
    with torch.no_grad():
        np.testing.assert_allclose(states, model(**given).last_hidden_state.numpy(), atol=1e-5)


@pytest.mark.slow
def test_an_adapter_is_exported_with_its_head_and_labels(tmp_path):
    folder = tmp_path / "graph"
    found = json.loads(run_here("export", "default", "--adapter", "sentiment", "-o", folder, "--json").out)
    assert (found["outputs"], found["role"]) == (["logits"], "sequence")
    model = unmask.load("default", adapter="sentiment")
    wanted = model.logits(TEXTS)
    np.testing.assert_allclose(run_in_onnxruntime(folder, TEXTS), wanted, atol=1e-5)
    labels = json.loads((folder / "config.json").read_text())["id2label"]
    assert tuple(labels.values()) == model.spec.heads[0].labels == ("negative", "positive")


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
