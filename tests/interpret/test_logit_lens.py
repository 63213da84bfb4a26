"""The lens: each level as the model's own head reads it, and the last as the model predicts."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

import unmask
from tests.support.heads import decoded_spec, recorded, spec_with_heads
from tests.support.specs import SPECS, random_encoder
from tests.support.tiny import tiny_bert, write_checkpoint
from tests.support.tokenizers_built import of_pieces
from unmask.encoder.decoder import decode_states
from unmask.engines.torch_engine import TorchEngine
from unmask.errors import InvalidRequest
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.effects.logit_lens import logit_lens
from unmask.tasks.fill import of_encodings
from unmask.text.tokenizer import masked

TEXT = "the [MASK] bank [MASK] muddy"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("lens") / "tiny", tiny_bert("BertForMaskedLM"))


def same_as_fill(found, filled):
    for m, mask in enumerate(filled):
        assert found.tokens[m] == mask.token
        assert found.ids[m, -1].tolist() == [prediction.id for prediction in mask.predictions]
        given = [
            prediction.probability for prediction in mask.predictions
        ]  # by the native library, where there is one
        assert found.probabilities[m, -1].tolist() == pytest.approx(given, rel=1e-5)
    assert (found.distance[:, -1] == 0).all()


def test_every_layer_as_transformers_has_it_and_the_last_as_fill(folder):
    model = unmask.load(folder)
    (encoding,) = model.tokenize([TEXT])
    lens = logit_lens(ActivationCache.of(model.encoder, encoding), [2, 4], top_k=7)
    same_as_fill(lens, model.fill(TEXT, top_k=7))
    reference = AutoModelForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        states = reference(torch.tensor(encoding.ids[None]), output_hidden_states=True).hidden_states
        levels = [reference.cls(state)[0, [2, 4]].softmax(-1) for state in states]
    for level, p in enumerate(levels):
        best = p.topk(7)
        np.testing.assert_array_equal(lens.ids[:, level], best.indices.numpy())
        np.testing.assert_allclose(lens.probabilities[:, level], best.values.numpy(), rtol=1e-4)
        np.testing.assert_allclose(lens.entropy[:, level], -(p * p.log()).sum(-1).numpy(), rtol=1e-4)
        divergence = (levels[-1] * (levels[-1] / p).log()).sum(-1)
        np.testing.assert_allclose(lens.distance[:, level], divergence.numpy(), rtol=1e-3, atol=1e-6)
        own = levels[-1].argmax(-1)
        np.testing.assert_array_equal(lens.followed_ids, own.numpy())
        followed = p[[0, 1], own]
        np.testing.assert_allclose(lens.followed[:, level], followed.numpy(), rtol=1e-4)
        np.testing.assert_array_equal(lens.ranks[:, level], (p > followed[:, None]).sum(-1).numpy())


@pytest.mark.parametrize("name", SPECS)
def test_a_final_norm_comes_first_where_there_is_one(name):
    cache = recorded(name)
    encoder = cache.encoder
    lens = logit_lens(cache, [3, 7], top_k=1, follow=[11, 12])
    for level, state in enumerate(cache.states):
        with torch.no_grad():
            logits = encoder.logits("masked", encoder.finished(state), cache.batch.layout)
        p = logits.softmax(-1).numpy()
        np.testing.assert_allclose(lens.followed[:, level], p[[3, 7], [11, 12]], rtol=1e-9)
    assert not lens.by_decoder


def test_an_enhanced_mask_decoder_reads_the_levels_below_the_last_layer():
    tokenizer = of_pieces()
    encoder = random_encoder(decoded_spec(tokenizer.vocabulary_size))
    encoding = masked(tokenizer.encode("the river bank"), [2], tokenizer)
    cache = ActivationCache.of(encoder, encoding)
    lens = logit_lens(cache, [2], top_k=4)
    assert lens.by_decoder
    assert lens.ids.shape == (1, 2, 4)
    reader = SimpleNamespace(spec=encoder.spec, tokenizer=tokenizer, name="the model")
    filled = of_encodings(reader, [encoding], top_k=4)(TorchEngine(encoder))
    same_as_fill(lens, filled[0])
    with torch.no_grad():
        state = decode_states(encoder, cache.states[0], cache.batch.layout, torch.tensor([2]))
        p = encoder.logits("enhanced", state, cache.batch.layout).softmax(-1)
    np.testing.assert_allclose(lens.probabilities[0, 0], p[0].topk(4).values.numpy(), rtol=1e-6)


def test_masking_a_token_is_writing_the_mask():
    tokenizer = of_pieces()
    encoding = tokenizer.encode("the river bank")
    written = tokenizer.encode("the [MASK] bank")
    made = masked(encoding, [2], tokenizer)
    np.testing.assert_array_equal(made.ids, written.ids)
    assert made.pieces == written.pieces
    assert (made.surface(2), encoding.surface(2)) == ("river", "river")
    assert encoding.ids[2] != made.ids[2]
    with pytest.raises(InvalidRequest, match="tokens 0 to 4"):
        masked(encoding, [5], tokenizer)
    with pytest.raises(InvalidRequest, match="no mask token"):
        masked(encoding, [2], replace(tokenizer, special_tokens={}))


def test_what_is_asked_must_be_there():
    cache = recorded("post-norm", 5)
    for tokens, options, words in (
        ([], {}, "at least one"),
        ([1, 1], {}, "each once"),
        ([5], {}, "tokens 0 to 4"),
        ([1], {"top_k": 0}, "top_k is 0; it must be at least 1"),
        ([1], {"top_k": 98}, "can be 1 to 97"),
        ([1], {"follow": [1, 2]}, "one for each"),
        ([1], {"follow": [97]}, "words 0 to 96"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            logit_lens(cache, tokens, **options)
    classes = tuple(head for head in spec_with_heads("post-norm").heads[1:])
    bare = recorded("post-norm", 5, spec=replace(SPECS["post-norm"], heads=classes))
    with pytest.raises(InvalidRequest, match="heads: tokens, sequence"):
        logit_lens(bare, [1])
