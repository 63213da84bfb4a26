"""Very long texts: the tokens of a prefix are those of the whole text, and no more than a prefix is read."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.tokenizers_built import of_bytes
from tests.unit.test_encoding import PUBLISHED, read, spaces_are_tokens
from tests.unit.test_tokenizer import TORTURE
from unmask.errors import InvalidText, TextTooLong
from unmask.text import windows as module
from unmask.text.borders import sentence_ends, sentence_starts
from unmask.text.windows import WHOLE_CHARACTERS_A_TOKEN, WHOLE_UP_TO, beginning, characters_tokenized_whole

BUILT = {"bytes": of_bytes, "spaces": spaces_are_tokens}
PARTS = [
    *TORTURE,
    " ",
    "\n\n  ",
    "the ",
    "river",
    "'s",
    "[MASK]",
    "<mask>",
    "\u0301",
    "日本",
    "a" * 40,
    "...",
]


def own(engine, text):
    """Ids of a text without the special tokens that are added."""
    return engine.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", [*PUBLISHED, *BUILT])
def test_the_tokens_of_a_prefix_are_those_of_the_whole_text(name):
    engine = (BUILT[name]() if name in BUILT else read(name)).engine

    @examples(80)
    @given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=30), st.integers(40, 400))
    def holds(parts, size):
        text = "".join(parts)
        found = module._read(engine, text[:size], 32)
        assert own(engine, text)[: found.final] == own(engine, found.text)[: found.final]

    holds()
    prose = "The river bank was muddy, and 日本 too. " * 40
    found = beginning(engine, prose, 20, "it", first=200, most=10_000)
    assert found.final >= 20
    assert len(found.text) < len(prose)


def test_a_word_may_continue_after_characters_that_are_dropped():
    """However many there are: BERT's tokenizer removes control characters before it looks for words."""
    engine = read("bert-base-uncased").engine
    text = "the ri" + "\x01" * 600 + "ver"
    assert own(engine, text) == own(engine, "the river")
    assert module._read(engine, text[:500], 32).final == 1


def test_prefixes_grow_until_there_are_enough_tokens():
    engine = of_bytes().engine
    text = "the" + " " * 3000 + "river bank " * 3000
    found = beginning(engine, text, 10, "it", first=400, most=50_000, margin=32)
    assert found.final >= 10
    assert 400 * 4 < len(found.text) <= 400 * 16
    assert beginning(engine, "a" * 1500, 10, "it", first=400, most=5000) is None
    with pytest.raises(InvalidText, match=r"it has 9,000 characters, and the first 5,000 of them make fewer"):
        beginning(engine, "a" * 9000, 10, "it", first=400, most=5000)


LONG = "the river bank was muddy. " * 40_000


def test_a_very_long_text_is_refused_or_truncated_from_a_prefix(monkeypatch):
    made = of_bytes()
    seen = []
    real = module._read
    monkeypatch.setattr(module, "_read", lambda *given: seen.append(len(given[1])) or real(*given))
    with pytest.raises(
        TextTooLong, match=r"text 2 has 1,040,000 characters, far more than the 16 tokens"
    ) as error:
        made.encode_batch(["the", LONG], max_tokens=16)
    assert error.value.original_tokens > 16
    _, cut = made.encode_batch(["the", LONG], max_tokens=16, truncation="end")
    assert seen == [WHOLE_UP_TO, WHOLE_UP_TO]
    short = made.encode(LONG[:2600], max_tokens=16, truncation="end")
    assert np.array_equal(cut.ids, short.ids)
    assert np.array_equal(cut.offsets, short.offsets)
    assert (cut.text, len(cut), cut.counted_whole, short.counted_whole) == (LONG, 16, False, True)
    assert short.original_tokens < cut.original_tokens < len(made.engine.encode(LONG).ids)


def test_where_it_begins():
    assert characters_tokenized_whole(256) == WHOLE_UP_TO
    assert characters_tokenized_whole(None) > 10**15
    assert characters_tokenized_whole(8192) == 8192 * WHOLE_CHARACTERS_A_TOKEN > WHOLE_UP_TO


def test_a_long_text_of_few_words_is_read_whole():
    made = read("bert-base-uncased")
    text = "the" + " " * WHOLE_UP_TO + "bank"
    encoding = made.encode(text, max_tokens=16)
    assert encoding.surface(len(encoding) - 2) == "bank"
    assert encoding.counted_whole


@pytest.mark.parametrize("ends", [sentence_ends, lambda text: list(sentence_starts(text))])
@pytest.mark.parametrize("part", [".", ". a", "?! ", '."', "。"])
def test_sentences_of_any_text_end_in_linear_time(ends, part):
    """A row of 20,000 points took four seconds, and twice as many four times as long."""
    began = time.process_time()
    ends(part * 100_000)
    assert time.process_time() - began < 2
