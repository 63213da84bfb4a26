"""Encoders of T5 beside `transformers` and `sentence-transformers`, on tiny random models."""

import json

import numpy as np
import pytest
import torch
import transformers

import unmask
from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, TensorMismatch, UnknownArchitecture
from unmask.families import family_of
from unmask.weights import Source, read_checkpoint
from unmask.weights.read.checkpoint_tensors import report_tensors

SIZES = {"vocab_size": 131, "d_model": 16, "d_kv": 6, "d_ff": 20, "num_layers": 2, "num_heads": 3}
SIZES |= {"decoder_start_token_id": 0}
PIECES = ["<pad>", "</s>", "<unk>", "▁", "▁a", "b", "c", "▁de", "e", "f", "g", "h", "i", "a"]
TEXTS = ["a bb ccc", "A", "de ee f g hh ii " * 4, "zz ab  c"]


def write(folder, kind="T5EncoderModel", **changes):
    torch.manual_seed(2)
    model = getattr(transformers, kind)(transformers.T5Config(**SIZES | changes)).eval()
    model.save_pretrained(folder)
    scores = [(piece, 0.0 if place < 3 else -1.0 - place / 10) for place, piece in enumerate(PIECES)]
    transformers.T5Tokenizer(vocab=scores, extra_ids=10).save_pretrained(folder)
    return model


@pytest.mark.parametrize("network", ["relu", "gated-gelu"])
def test_embeddings_are_those_of_sentence_transformers(network, tmp_path):
    """The modules of sentence-T5 and GTR: mean, a dense layer without a bias or an activation, norm 1."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    write(tmp_path / "body", feed_forward_proj=network)
    body = Transformer(str(tmp_path / "body"), max_seq_length=60)
    dense = Dense(16, 12, bias=False, activation_function=torch.nn.Identity())
    reference = SentenceTransformer(modules=[body, Pooling(16, "mean"), dense, Normalize()], device="cpu")
    reference.save(str(tmp_path / "all"))
    model = unmask.load(tmp_path / "all", dtype="float64")
    expected = reference.encode(TEXTS)
    np.testing.assert_allclose(model.embed(TEXTS), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        unmask.load(tmp_path / "all").embed(TEXTS), expected, rtol=0, atol=1e-5
    )  # whichever engine computes float32
    assert np.abs(expected[0] - expected[2]).max() > 1e-3
    model.save(tmp_path / "saved")
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), expected, rtol=0, atol=1e-6)


def test_a_whole_t5_gives_its_encoder(tmp_path):
    theirs = write(tmp_path, "T5ForConditionalGeneration")
    model = unmask.load(tmp_path, dtype="float64")
    (states_TD,) = model.hidden_states(TEXTS[:1])
    ids = torch.tensor([list(model.checkpoint.tokenizer.encode(TEXTS[0]).ids)])
    assert ids[0, -1] == 1  # </s>, and no token before the text
    with torch.inference_mode():
        expected_TD = theirs.double().encoder(ids).last_hidden_state[0]
    np.testing.assert_allclose(states_TD, expected_TD, rtol=0, atol=1e-6)
    reasons = {
        status.name.split(".")[0]: status.reason
        for status in report_tensors(read_checkpoint(Source(tmp_path, "tiny"))).statuses
        if status.ours is None
    }
    assert reasons["decoder"] == "the decoder, which no encoder reads"
    model.save(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["architectures"] == ["T5EncoderModel"]
    back, report = transformers.T5EncoderModel.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.inference_mode():
        torch.testing.assert_close(back(ids).last_hidden_state[0].double(), expected_TD, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["T5ForSequenceClassification", "T5ForQuestionAnswering"])
def test_a_head_that_reads_the_decoder_is_refused(kind, tmp_path):
    write(tmp_path, kind)
    with pytest.raises(TensorMismatch, match=r"no place in this architecture, (classification|qa)_"):
        unmask.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        (
            {"feed_forward_proj": "gated-maxout"},
            UnknownArchitecture,
            "feed_forward_proj is 'gated-maxout'; only",
        ),
        ({"relative_attention_num_buckets": 30}, CorruptCheckpoint, "relative_attention_num_buckets is 30"),
        ({"relative_attention_max_distance": 8}, CorruptCheckpoint, "relative_attention_max_distance is 8"),
        ({"is_decoder": True}, UnknownArchitecture, "is_decoder is True; only False is built"),
    ],
)
def test_other_settings_are_refused_by_their_keys(changes, error, sentence):
    config = {"model_type": "t5", **SIZES, **changes}
    with pytest.raises(error, match=sentence):
        family_of(config).read(JsonSettings("config.json", config), "published")
