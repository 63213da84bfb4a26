"""Passages of documents: every token is in one, and they end where a reader would end them."""

import itertools
import re
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.errors import InvalidRequest
from unmask.search.passages import (
    PARAGRAPH,
    SECTION,
    SENTENCE,
    WITHIN,
    WORD,
    Passage,
    TokensIndexed,
    border_levels,
    cut_in_two,
    passage_encodings,
    passages_of,
)
from unmask.text import Encoding, Tokenizer

SPECIAL = ["[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]"]


@pytest.fixture(scope="module")
def tokenizer():
    """One token per letter: as many tokens within words as there can be."""
    letters = [*string.printable.strip(), "é", "𝔸", "👍", "界"]
    pieces = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    return Tokenizer.from_files(
        {"vocab.txt": "\n".join(pieces).encode(), "tokenizer_config.json": b'{"do_lower_case": false}'},
        "bert",
    )


def words_encoding(text: str) -> Encoding:
    """One token per run of characters that are not spaces, with [CLS] and [SEP] around them."""
    spans, start = [], 0
    for word in text.split():
        start = text.index(word, start)
        spans.append((start, start + len(word)))
        start += len(word)
    count = len(spans) + 2
    special = np.zeros(count, dtype=bool)
    special[[0, -1]] = True
    return Encoding.of_arrays(
        text,
        ids=np.arange(count),
        token_type_ids=np.zeros(count, dtype=np.int64),
        offsets=np.array([(0, 0), *spans, (0, 0)]),
        special=special,
        sequence_ids=np.where(special, -1, 0),
        pieces=["x"] * count,
    )


def parts(text: str, tokens: int, kind: str = "text", overlap: int = 0) -> list[str]:
    """The passages of at most so many words."""
    found = passages_of(words_encoding(text), max_tokens=tokens + 2, overlap_tokens=overlap, kind=kind)
    return [text[one.start : one.end] for one in found]


@given(
    text=st.text(alphabet="abé𝔸👍界. \n\r\t'\u0301\u200d#-", max_size=120),
    room=st.integers(1, 30),
    overlap=st.integers(0, 29),
    kind=st.sampled_from(["text", "code"]),
)
def test_every_token_is_in_a_passage_and_no_passage_is_too_long(tokenizer, text, room, overlap, kind):
    if not text.strip() or not tokenizer.engine.encode(text, add_special_tokens=False).ids:
        return
    encoding = tokenizer.encode(text)
    if overlap >= room < len(encoding) - 2:
        with pytest.raises(InvalidRequest, match=f"overlap_tokens is {overlap}"):
            passages_of(encoding, max_tokens=room + 2, overlap_tokens=overlap, kind=kind)
        return
    overlap = min(overlap, room - 1)
    found = passages_of(encoding, max_tokens=room + 2, overlap_tokens=overlap, kind=kind)
    spans = encoding.offsets[1:-1]
    covered = np.zeros(len(spans), dtype=int)
    for one, alone in zip(found, passage_encodings(encoding, found), strict=True):
        mine = slice(one.first_token, one.first_token + one.tokens)
        assert 1 <= one.tokens <= room
        covered[mine] += 1
        assert (one.start, one.end) == (spans[mine, 0].min(), spans[mine, 1].max())
        assert alone.ids.tolist() == [encoding.ids[0], *encoding.ids[1:-1][mine], encoding.ids[-1]]
        np.testing.assert_array_equal(alone.offsets[1:-1], spans[mine])
    assert (covered >= 1).all()
    for one, next_ in itertools.pairwise(found):
        assert one.first_token < next_.first_token
        assert one.first_token + one.tokens < next_.first_token + next_.tokens
        assert one.first_token + one.tokens - next_.first_token <= overlap
    assert TokensIndexed.of(encoding, found) == TokensIndexed(len(spans), 0)


def test_offsets_count_characters(tokenizer):
    text = "𝔸𝔸 e\u0301a\r\n\r\n👍 bc 界界"
    encoding = tokenizer.encode(text)
    found = [text[one.start : one.end] for one in passages_of(encoding, max_tokens=5)]
    assert found == ["𝔸𝔸 e\u0301a", "👍 bc", "界界"]


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [
        ("a b c. D e f.\n\nG h i. J", 8, ["a b c. D e f.", "G h i. J"]),
        ("a b c. D e f.\r\n \r\nG h i. J", 8, ["a b c. D e f.", "G h i. J"]),
        ("a b.\r\nc d e f g h", 5, ["a b.\r\nc d e", "f g h"]),
        ("a b c. D e f g h i", 5, ["a b c.", "D e f g h", "i"]),
        ("a. B c d e f g h", 5, ["a. B c d e", "f g h"]),
        ("a b Dr. Who said. More of it", 5, ["a b Dr. Who said.", "More of it"]),
        ("a b J. R. and et al. Then it ended", 7, ["a b J. R. and et al.", "Then it ended"]),
        ("Is it so? No! “Yes.” Then", 4, ["Is it so? No!", "“Yes.” Then"]),
        ("a b c\n- one two\n- three four", 6, ["a b c\n- one two", "- three four"]),
        ("a b c d\n\n# Part two\n\ne f g h", 7, ["a b c d", "# Part two\n\ne f g h"]),
        ("a b c\n\n# One\n## Two\n\nd e f", 5, ["a b c", "# One\n## Two\n\nd", "e f"]),
        ("a b c d", 9, ["a b c d"]),
    ],
)
def test_passages_end_where_a_reader_would_end_them(text, tokens, expected):
    assert parts(text, tokens) == expected


CODE = """import a

def one():
    x = 1

    return x

@cached
def two():
    y = 2
    return y
"""


def test_code_is_cut_at_definitions_then_blank_lines_then_lines():
    assert parts(CODE, 12, "code") == [one.strip() for one in re.split("(?=@)", CODE)]
    assert parts(CODE, 8, "code")[1].startswith("return x")
    text = "if a:\n  b c d\n  e f g"
    assert parts(text, 7, "code") == ["if a:\n  b c d", "e f g"]


def test_each_definition_of_code_begins_a_passage():
    """Imports and short definitions stay with what follows them, and a method with its class."""
    text = (
        'import a\n\ndef first(x):\n    "Adds one to x and gives the sum back."\n\n    return x + 1\n\n\n'
        "class Second:\n    def of(self, name):\n        return name + name + name + name\n\n"
        "    def to(self):\n        return 2\n\nthird = 3\n"
    )
    expected = [one.strip() for one in re.split("(?=class)|(?=third)", text)]
    assert parts(text, 500, "code") == expected
    assert len(passages_of(words_encoding(text), max_tokens=None, kind="code")) == 1
    assert parts(text, 500) == [text.strip()]
    assert len(parts(text, 14, "code")) == 4
    assert len(parts(text, 500, "code", overlap=5)) == 3
    prose = "# A\n\n" + "a b c d " * 8 + "\n\n# B\n\ne f"
    assert parts(prose, 500) == [prose]


def test_definitions_end_a_passage_once_although_neighbors_share_more_than_the_least():
    text = "\n\n".join(f"def f{n}(x):\n  " + "a b c d\n  " * 5 + "e" for n in range(4))
    encoding = words_encoding(text)
    cut = passages_of(encoding, max_tokens=60, overlap_tokens=24, kind="code")
    ends = [passage.end for passage in cut]
    assert ends == sorted(set(ends))
    assert len(cut) == 4
    assert cut[1].start < cut[0].end


def test_a_closing_bracket_is_no_definition():
    text = "f(\n  1\n\n)\n\ng()"
    levels = border_levels(text, "code", words_encoding(text).offsets[1:-1])
    assert levels.tolist() == [WITHIN, SENTENCE, PARAGRAPH, SECTION]


def test_neighbors_share_whole_sentences_where_they_fit():
    text = "a b c. D e. F g h. I j k."
    assert parts(text, 8, overlap=4) == ["a b c. D e. F g h.", "F g h. I j k."]
    assert parts("a b c d e f g", 4, overlap=2) == ["a b c d", "c d e f", "e f g"]


def test_a_passage_ends_after_the_one_before_it_although_an_earlier_border_is_better():
    text = "a b c d\n\ne f g h i j k l"
    assert parts(text, 6, overlap=5)[:2] == ["a b c d", "b c d\n\ne f g"]


def test_a_long_word_is_cut_between_signs_and_else_between_letters(tokenizer):
    def cut(text, room):
        found = passages_of(tokenizer.encode(text), max_tokens=room + 2)
        return [text[one.start : one.end] for one in found]

    assert cut("aaaaaaaaaa", 4) == ["aaaa", "aaaa", "aa"]
    assert cut("aaa/bbb/ccc", 5) == ["aaa/", "bbb/", "ccc"]
    assert cut("x aaaaaa", 4) == ["x", "aaaa", "aa"]


def test_levels_of_text():
    text = "a b. C\n\nd\n# e\nf"
    levels = border_levels(text, "text", words_encoding(text).offsets[1:-1])
    assert levels.tolist() == [WITHIN, WORD, SENTENCE, PARAGRAPH, SECTION, WORD, WORD]


def test_tokens_that_are_left_out_are_counted(tokenizer):
    encoding = tokenizer.encode("abc def", max_tokens=6, truncation="end")
    assert TokensIndexed.of(encoding) == TokensIndexed(4, 2)
    assert TokensIndexed.of(encoding, [Passage(0, 2, 2, 0)]) == TokensIndexed(2, 4)
    assert TokensIndexed(1, 2) + TokensIndexed(3, 4) == TokensIndexed(4, 6)


def test_details_at_once_are_those_computed_later(tokenizer):
    texts = ["aé 𝔸", "b"]
    for at_once, later in zip(
        tokenizer.encode_batch(texts, with_details=True), tokenizer.encode_batch(texts), strict=True
    ):
        assert at_once == later
    with pytest.MonkeyPatch.context() as patch:
        (encoding,) = tokenizer.encode_batch(["ab"], with_details=True)
        patch.setattr(Tokenizer, "details", None)
        assert encoding.offsets.tolist() == [[0, 0], [0, 1], [1, 2], [0, 0]]


def test_passages_are_cut_in_two_where_they_would_be_cut(tokenizer):
    text = "One is here. Two is there. Three four five six. Seven eight."
    encoding = tokenizer.encode(text)
    passages = passages_of(encoding, max_tokens=26)
    assert [text[one.start : one.end] for one in passages][:1] == ["One is here. Two is there."]
    halves = cut_in_two(encoding, passages, {0})
    assert [text[one.start : one.end] for one in halves[:2]] == ["One is here.", "Two is there."]
    assert halves[2:] == passages[1:]
    while which := {number for number, one in enumerate(halves) if one.tokens > 1}:
        halves = cut_in_two(encoding, halves, which)
    letters = encoding.offsets[encoding.sequence_ids == 0].tolist()
    assert [[one.start, one.end] for one in halves] == letters
    assert [one.first_token for one in halves] == list(range(len(letters)))
