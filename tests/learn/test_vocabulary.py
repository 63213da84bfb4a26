"""Which pieces continue a word, for each kind of tokenizer."""

from dataclasses import replace

import pytest

from unmask.errors import InvalidRequest
from unmask.text import Tokenizer
from unmask.training.data import train_tokenizer
from unmask.training.vocabulary import Vocabulary

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


def test_a_tokenizer_without_a_mask_is_refused():
    tokenizer = Tokenizer.from_files(train_tokenizer(TEXT, "wordpiece", 70))
    roles = {role: token for role, token in tokenizer.special_tokens.items() if role != "mask"}
    with pytest.raises(InvalidRequest, match="no mask token"):
        Vocabulary.of(replace(tokenizer, special_tokens=roles))
