"""Which pieces continue a word, for each kind of tokenizer."""

from dataclasses import replace

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tests.support.tokenizers_built import of_bytes
from unmask.errors import InvalidRequest
from unmask.text import Tokenizer
from unmask.text.batch import SequenceLayout
from unmask.training.data.train_tokenizer import train_tokenizer
from unmask.training.objectives.masking import MaskingSpec, choose
from unmask.training.vocabulary import Vocabulary
from unmask.training.vocabulary import _continues as continuing

TEXT = ["the unbelievable river - was, muddy\nbelievable unmuddy rivers\n"] * 40 + [
    "naïve café — “quoted” 12,5"
] * 9


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_words_are_what_spaces_divide(kind):
    tokenizer = Tokenizer.from_files(
        train_tokenizer(TEXT, kind, 290 if kind == "bpe" else 70, lowercase=False)
    )
    vocabulary = Vocabulary.of(tokenizer)
    ids = tokenizer.engine.encode("naïve unbelievable rivers, muddy", add_special_tokens=False).ids
    begins = [not continues for continues in vocabulary.continues_V[ids]]
    # Byte-level BPE marks no first word, which therefore looks like the continuation of what was before.
    assert sum(begins) == (5 if kind == "wordpiece" else 4)
    assert len(ids) > 5
    assert vocabulary.special_V.sum() == 5
    assert not vocabulary.continues_V[vocabulary.special_V].any()


def test_marks_and_breaks_are_words_of_their_own():
    tokenizer = Tokenizer.from_files(train_tokenizer(TEXT, "bpe", 320))
    vocabulary = Vocabulary.of(tokenizer)
    for mark in (",", "\n", "-", "12"):
        ids = tokenizer.engine.encode(f"a{mark}", add_special_tokens=False).ids[1:]
        assert vocabulary.continues_V[ids].any() == mark.isalnum(), mark


SCRIPTS = {
    "今天天气很好，我们去河边": "今 天 天 气 很 好 ， 我 们 去 河 边",
    "川のほとりを": "川 の ほ と り を",
    "カタカナ": "カタカナ",
    "नदी के किनारे": "नदी के किनारे",
    "وَنَذْهَبُ": "وَنَذْهَبُ",
    "강가를 산책": "강가를 산책",
    "cafe\u0301 naïve": "cafe\u0301 naïve",
    "co\u00adop نمی\u200cروم": "co\u00adop نمی\u200cروم",
    "วันนี้": "วั น นี้",
}
"""Texts, and their words: runs of letters and marks, and single characters where spaces divide no words."""


def of_characters(text):
    """A tokenizer of characters, of which those after a space are marked, as SentencePiece does."""
    letters = sorted({*text} - {" "})
    vocabulary = {
        piece: n for n, piece in enumerate(["<unk>", *letters, *(f"▁{letter}" for letter in letters)])
    }
    merges = [("▁", letter) for letter in letters]
    engine = tokenizers.Tokenizer(models.BPE(vocabulary | {"▁": len(vocabulary)}, merges, unk_token="<unk>"))
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    engine.decoder = decoders.Metaspace()
    return engine


def grouped(text, continues_N, offsets):
    """The characters of each word."""
    starts = [start for start, continues in zip(offsets, continues_N, strict=True) if not continues]
    ends = [*starts[1:], len(text)]
    return " ".join(text[start:end].strip() for start, end in zip(starts, ends, strict=True))


@pytest.mark.parametrize("text", SCRIPTS)
def test_words_of_every_script(text):
    """Of tokens that are characters, and of those that are bytes."""
    engine = of_characters(text)
    continues_V = continuing(engine, np.zeros(engine.get_vocab_size(), dtype=bool))
    encoding = engine.encode(text)
    places = [start for start, _ in encoding.offsets]
    assert grouped(text, continues_V[encoding.ids], places) == SCRIPTS[text]
    in_bytes = of_bytes()
    encoding = in_bytes.encode(f" {text}")
    inside = ~encoding.special
    continues_N = Vocabulary.of(in_bytes).continues_V[encoding.ids[inside]]
    places = encoding.offsets[inside][:, 0]
    # Every byte of a character but the first continues it.
    same = np.concatenate(([False], places[1:] == places[:-1]))
    assert continues_N[same].all()


def test_a_sentence_without_spaces_is_masked_at_its_rate():
    text = "今天天气很好我们去河边散步河岸上有很多人" * 5
    for tokenizer in (of_bytes(), Tokenizer.from_files(train_tokenizer([text], "bpe", 300))):
        vocabulary = Vocabulary.of(tokenizer)
        ids = tokenizer.encode(text).ids
        spec, layout = MaskingSpec(mask_unit="word"), SequenceLayout.of_lengths([len(ids)])
        draw = np.random.default_rng(0)
        shares = [
            len(choose(ids, layout, spec, rate=0.3, vocabulary=vocabulary, draw=draw)) / len(ids)
            for _ in range(20)
        ]
        assert np.mean(shares) == pytest.approx(0.3, abs=0.02)
        assert max(shares) < 0.4


def test_a_tokenizer_without_a_mask_is_refused():
    tokenizer = Tokenizer.from_files(train_tokenizer(TEXT, "wordpiece", 70))
    roles = {role: token for role, token in tokenizer.special_tokens.items() if role != "mask"}
    with pytest.raises(InvalidRequest, match="no mask token"):
        Vocabulary.of(replace(tokenizer, special_tokens=roles))
