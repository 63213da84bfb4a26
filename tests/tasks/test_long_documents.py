"""A document of 6,000 tokens, whole and window by window, on an encoder whose layers all attend locally.

A token's state depends on `REACH` tokens to either side. Where a window holds all of them, the model computes
the same as on the whole document (positions are rotary, so where a window begins does not matter).
"""

import random

import numpy as np
import pytest
import torch

import unmask
from tests.support.places import shared
from unmask.spec import Classifier
from unmask.tasks.answer import answer
from unmask.tasks.logits import WindowedLogits, windowed
from unmask.tasks.tag import tag
from unmask.weights.write.new_checkpoint import new_checkpoint, new_encoder
from unmask.weights.write.save import save

LAYERS, RADIUS = 3, 4
REACH = LAYERS * RADIUS
OVERLAP = 2 * REACH + 8
"""Every token is in a window that holds all tokens it depends on, and so is every span of up to 8 tokens."""
WINDOW = 300
TAGS = ["O", "B-X", "I-X", "B-Y", "I-Y"]


def made(folder, kind, labels):
    """A random ModernBERT of local layers."""
    names = {str(number): name for number, name in enumerate(labels)}
    config = {
        "model_type": "modernbert",
        "architectures": [f"ModernBertFor{kind}"],
        "vocab_size": 50368,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "layer_types": ["sliding_attention"] * LAYERS,
        "local_attention": 2 * RADIUS,
        "initializer_range": 0.4,
        "id2label": names,
        "label2id": {name: int(number) for number, name in names.items()},
    }
    if not labels:
        config = {key: value for key, value in config.items() if "label" not in key}
    tokenizer = {"tokenizer.json": (shared("tokenizers/modernbert") / "tokenizer.json").read_bytes()}
    checkpoint = new_checkpoint(config, tokenizer)
    encoder = new_encoder(checkpoint, seed=1)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if name.startswith("heads."):
                parameter.mul_(4)
    save(encoder, checkpoint, folder)
    return unmask.load(folder, dtype="float64")


@pytest.fixture(scope="module")
def text():
    draw = random.Random(0)
    words = ["Mary", "went", "to", "Paris", "with", "Ünal", "(", "and", "Li", ")", "by", "train", "."]
    return " ".join(draw.choices(words, k=5600))


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    return made(tmp_path_factory.mktemp("tagger") / "model", "TokenClassification", TAGS)


@pytest.fixture(scope="module")
def answerer(tmp_path_factory):
    return made(tmp_path_factory.mktemp("answerer") / "model", "QuestionAnswering", [])


def in_windows(model, role, encoding, overlap=OVERLAP):
    ready = windowed(role, [encoding], list, max_tokens=WINDOW, overlap_tokens=overlap)
    (read,) = ready(model.engine)
    return read


def test_a_document_is_tagged_as_its_windows_are(tagger, text):
    whole = tagger.tag(text)
    assert (whole.windows, whole.truncated_tokens) == (1, 0)
    assert whole.tokens_read > 6000
    read = in_windows(tagger, "tokens", tagger.tokenizer.encode(text))
    head = next(head for head in tagger.spec.heads if isinstance(head, Classifier))
    (split,) = tag(head, [read])
    assert split.windows > 20
    assert split.tokens_read == whole.tokens_read
    assert len(whole.entities) > 100
    assert [(e.label, e.start, e.end) for e in split.entities] == [
        (e.label, e.start, e.end) for e in whole.entities
    ]
    np.testing.assert_allclose(
        [word.score for word in split.words], [word.score for word in whole.words], atol=1e-6
    )
    assert all(text[e.start : e.end] == e.text for e in whole.entities)


def test_less_overlap_than_the_reach_changes_states(tagger, text):
    """The test above could fail: without overlap the tokens at a window's borders are other ones."""
    encoding = tagger.tokenizer.encode(text)
    enough = in_windows(tagger, "tokens", encoding).per_token()
    less = in_windows(tagger, "tokens", encoding, overlap=0).per_token()
    assert np.abs(enough - less).max() > 0.01


def test_a_document_is_questioned_as_its_windows_are(answerer, text):
    question = "Who went by train?"
    (encoding,) = answerer.tokenizer.encode_batch([question], [text])
    whole = answerer.answer(question, text, top_k=5, max_answer_tokens=8)
    assert (whole.windows, whole.truncated_tokens) == (1, 0)
    assert whole.tokens_read > 6000
    assert all(text[a.start : a.end] == a.text for a in whole.answers)
    read = in_windows(answerer, "span", encoding)
    assert len(read.windows) > 20
    # What a window cannot see as the whole document does is left out: tokens near a border inside the text.
    trusted = []
    for window, logits in zip(read.windows, read.logits, strict=True):
        context = np.flatnonzero(window.encoding.sequence_ids == 1)
        places = window.tokens[context]
        blurred = np.zeros(len(logits), dtype=bool)
        if places[0] > np.flatnonzero(encoding.sequence_ids == 1)[0]:
            blurred[context[:REACH]] = True
        if places[-1] < np.flatnonzero(encoding.sequence_ids == 1)[-1]:
            blurred[context[-REACH:]] = True
        trusted.append(np.where(blurred[:, None], -1e4, logits))
    split = answer([WindowedLogits(encoding, read.windows, trusted)], top_k=5, max_answer_tokens=8)
    assert [(a.start, a.end) for a in split.answers] == [(a.start, a.end) for a in whole.answers]
    np.testing.assert_allclose([a.score for a in split.answers], [a.score for a in whole.answers], rtol=1e-6)
