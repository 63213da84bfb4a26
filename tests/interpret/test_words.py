"""Words and alignments: every character and every token once, whatever the Unicode."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import dense
from tests.support.examples import examples
from tests.support.places import shared
from tests.support.tokenizers_built import of_bytes, of_pieces
from tests.unit.test_tokenizer import TORTURE
from unmask.errors import InvalidRequest, UnmaskError
from unmask.interpret.words.alignment import align
from unmask.interpret.words.words import MOST_GROUPS, grouped_map, vocabulary_fit, word_map, words
from unmask.text import Encoding, Tokenizer
from unmask.text.borders import occurrences, word_borders

PIECES, BYTES = of_pieces(), of_bytes()

PARTS = [
    "the", "river", " ", "  ", "\n", "é", "e\u0301", "n\u0303", "日本", "のテスト",
    "👩\u200d👩\u200d👧", "👍🏽", "🇩🇪", "🇫🇷", "\u200d", "\u0301", ".", ",", "'", "don't",
    "3.14", "_x", "[MASK]", "<mask>", "‘", "한국어", "สว\u0e31สด\u0e35", "\u3000", "ﬁ", "…",
    "\ufe0f",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(PARTS), st.characters(codec="utf-8")), min_size=1, max_size=14)


def test_a_token_of_no_character_is_of_the_word_after_it():
    spans = np.array([[0, 3], [3, 3], [4, 8], [8, 8]])
    zeros = np.zeros(len(spans), dtype=np.int64)
    encoding = Encoding.of_arrays(
        "the bank", ids=zeros, token_type_ids=zeros, offsets=spans, special=zeros.astype(np.bool_),
        sequence_ids=zeros, pieces=["the", "▁", "bank", "▁"],
    )  # fmt: skip
    assert words(encoding).of_token.tolist() == [0, 1, 1, 1]


def split(text):
    cuts = np.flatnonzero(word_borders(text))
    return [text[start:end] for start, end in pairwise(cuts)]


@pytest.mark.parametrize(
    ("text", "word", "places"),
    [
        ("Bank and embankment, bank's", "bank", [(0, 4), (21, 25)]),
        ("今天天气很好", "天气", [(2, 4)]),
        ("आज हम नदी के", "के", [(10, 12)]),
        ("किनारे", "क", []),  # a vowel sign follows
        ("วันนี้อากาศดี", "อากาศ", [(6, 11)]),
        ("วันนี้", "น", [(2, 3)]),
        ("un cafe\u0301, un café", "café", [(3, 8), (13, 17)]),
        ("un cafe\u0301", "cafe", []),
        ("Straße ΟΔΟΣ", "οδος", [(7, 11)]),
        ("강가를", "강", []),
        ("a+b", "+", []),
    ],
)
def test_where_words_occur(text, word, places):
    assert list(occurrences(text, word)) == places


def test_words_by_hand():
    assert split("Don't stop, 3.14 foo_bar-baz …") == [
        "Don't", " ", "stop", ",", " ", "3.14", " ", "foo_bar", "-", "baz", " ", "…",
    ]  # fmt: skip
    assert split("👩‍👩‍👧👍🏽🇩🇪🇫🇷日本テスト e\u0301te\u0301's") == [
        "👩‍👩‍👧", "👍🏽", "🇩🇪", "🇫🇷", "日", "本", "テスト", " ", "e\u0301te\u0301", "'", "s",
    ]  # fmt: skip
    assert split("'tis the dogs' 1,000. a.b") == [
        "'", "tis", " ", "the", " ", "dogs", "'", " ", "1,000", ".", " ", "a", ".", "b",
    ]  # fmt: skip


def encoded(tokenizer, *texts):
    try:
        return tokenizer.encode(*texts)
    except UnmaskError:
        return None  # no word in it


def check_alignment(one, other, texts):
    """Every character and every token once, each token within its stretch."""
    alignment = align(one, other)
    for pair, text in enumerate(texts):
        own = [segment for segment in alignment.segments if segment.in_pair == bool(pair)]
        assert [own[0].start, own[-1].end] == [0, len(text)]
        assert all(x.end == y.start for x, y in pairwise(own))
        assert all(segment.start < segment.end for segment in own)
    for encoding, side in ((one, "a"), (other, "b")):
        runs = [getattr(segment, side) for segment in alignment.segments]
        held = [token for first, end in runs for token in range(first, end)]
        assert held == np.flatnonzero(~encoding.special).tolist()
        for segment in alignment.segments:
            for start, end in encoding.offsets[slice(*getattr(segment, side))]:
                assert segment.start <= start <= end <= segment.end
    groups_a, groups_b, count = alignment.groups()
    assert set(groups_a) - {count - 1} == set(groups_b) - {count - 1} == set(range(count - 1))
    return alignment


@examples(150)
@given(TEXTS, TEXTS, st.booleans(), st.integers(6, 40))
def test_an_alignment_covers_every_character_and_token_once(parts, more, paired, most):
    texts = ["".join(parts), *(["".join(more)] if paired else [])]
    a, b = encoded(PIECES, *texts), encoded(BYTES, *texts)
    if a is None or b is None:
        return
    cut = BYTES.encode(*texts, max_tokens=max(most, 8), truncation="end")
    for one, other in ((a, b), (b, a), (a, cut), (b, b)):
        check_alignment(one, other, texts)
    assert all(x == y for x, y in align(b, b).specials)
    assert len(align(a, b).specials) == 2 + (len(texts) > 1)


def test_white_space_at_the_end_of_a_text_and_before_its_pair_is_two_stretches():
    encoding = PIECES.encode("the river \n", " the bank")
    found = [
        (segment.in_pair, segment.start, segment.end, segment.a)
        for segment in align(encoding, encoding).segments
    ]
    assert found[2:5] == [(False, 4, 9, (2, 3)), (False, 9, 11, (0, 0)), (True, 0, 1, (0, 0))]


def test_groups_are_in_the_order_of_the_first_encoding():
    a, b = PIECES.encode("the river", "the bank"), BYTES.encode("the river", "the bank")
    of_a, of_b, count = align(a, b).groups()
    assert of_a[0] == of_b[0] == 0, "the special token before the text is the first"
    assert of_a[of_a < count - 1].tolist() == sorted(of_a[of_a < count - 1])


PUBLISHED = ("bert-base-uncased", "roberta-base", "modernbert", "albert-base-v2")


def test_published_tokenizers_side_by_side():
    made = []
    for name in PUBLISHED:
        folder = shared(f"tokenizers/{name}")
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        made.append(Tokenizer.from_files(files, name.split("-")[0]))
    for text, pair in zip(TORTURE, reversed(TORTURE), strict=True):
        encodings = [tokenizer.encode(text, pair) for tokenizer in made]
        for number, encoding in enumerate(encodings):
            check_alignment(encoding, encodings[number - 1], [text, pair])
            grouped = words(encoding)
            assert set(grouped.of_token) == set(range(len(grouped)))
    river = [
        align(made[0].encode("The muddy riverbank."), other.encode("The muddy riverbank.")) for other in made
    ]
    for encoding in river:
        spoken = ["The muddy riverbank."[s.start : s.end] for s in encoding.segments if s.a[0] < s.a[1]]
        assert spoken[0] == "The"
        assert "".join(spoken).endswith("bank.")


@examples(150)
@given(TEXTS, TEXTS, st.booleans())
def test_every_token_is_of_one_word_that_covers_it(parts, more, paired):
    texts = ["".join(parts), *(["".join(more)] if paired else [])]
    for tokenizer in (PIECES, BYTES):
        encoding = encoded(tokenizer, *texts)
        if encoding is None:
            continue
        grouped = words(encoding)
        assert set(grouped.of_token) == set(range(len(grouped)))
        assert (np.diff(grouped.first_tokens) > 0).all()
        for token, word in enumerate(grouped.of_token):
            assert grouped.special[word] == encoding.special[token]
            assert grouped.in_pair[word] == (encoding.sequence_ids[token] == 1)
            start, end = encoding.offsets[token]
            assert encoding.special[token] or grouped.spans[word, 0] <= start <= end <= grouped.spans[word, 1]
        plain = [
            surface for w in range(len(grouped)) if (surface := grouped.surface(w)) and not grouped.special[w]
        ]
        assert all(surface in "\0".join(texts) for surface in plain)


def test_tokens_of_a_word_are_one_word_and_joined_words_are_one():
    grouped = words(BYTES.encode("Don't bank 日本 👩‍👩‍👧"))
    surfaces = [grouped.surface(word) for word in range(len(grouped))]
    # One piece holds both ideographs, and one the space before the family and nothing else.
    assert surfaces == ["<s>", "Don't", "bank", "日本", " ", "👩‍👩‍👧", "</s>"]
    grouped = words(PIECES.encode("the [MASK] bank"))
    assert [grouped.surface(word) for word in range(len(grouped))] == [
        "[CLS]",
        "the",
        "[MASK]",
        "bank",
        "[SEP]",
    ]


def test_the_callers_own_words_are_kept():
    encoding = PIECES.encode_words(["the-river", "bank", "x.y"])
    grouped = words(encoding)
    assert [grouped.surface(word) for word in range(len(grouped))] == [
        "[CLS]",
        "the-river",
        "bank",
        "x.y",
        "[SEP]",
    ]


class Made:
    """One head whose rows are random."""

    def __init__(self, length, seed=0):
        drawn = np.random.default_rng(seed).random((length, length))
        self.p = (drawn / drawn.sum(-1, keepdims=True)).astype(np.float32)

    def __len__(self):
        return len(self.p)

    def probabilities(self, layer, head, rows=slice(None)):
        return self.p[rows]


def test_a_word_map_sums_over_the_attended_and_averages_over_the_attending():
    encoding = BYTES.encode("the banker was muddy " * 90)
    view, found = Made(len(encoding)), words(encoding)
    assert len(view) > 256  # more than one block of rows
    members = np.eye(len(found))[found.of_token]
    dense = members.T @ view.p.astype(float) @ members / members.sum(0)[:, None]
    made = word_map(view, 0, 0, found)
    np.testing.assert_allclose(made, dense, rtol=1e-6)
    np.testing.assert_allclose(made.sum(-1), 1, rtol=1e-6)


def test_aligned_maps_of_two_tokenizers_have_rows_that_sum_to_one():
    text = "The river bank was muddy, said 👩‍👩‍👧."
    a, b = PIECES.encode(text), BYTES.encode(text, max_tokens=20, truncation="end")
    groups_a, groups_b, count = align(a, b).groups()
    for encoding, groups in ((a, groups_a), (b, groups_b)):
        made = grouped_map(Made(len(encoding)), 0, 0, groups, count)
        present = np.isin(np.arange(count), groups)
        np.testing.assert_allclose(made.sum(-1), present, atol=1e-6)
        assert present[:-1].all()


def test_what_cannot_be_done_is_one_sentence():
    with pytest.raises(InvalidRequest, match="different texts"):
        align(PIECES.encode("the"), BYTES.encode("river"))
    with pytest.raises(InvalidRequest, match=f"at most {MOST_GROUPS}"):
        grouped_map(Made(3), 0, 0, np.zeros(3, dtype=np.int64), MOST_GROUPS + 1)


def test_texts_of_special_tokens_alone_are_aligned():
    encoding = dense.text_of([1, 2], special=(0, 1))
    of_a, of_b, groups = align(encoding, encoding).groups()
    assert of_a.tolist() == of_b.tolist() == [0, 1]
    assert groups == 3


def test_figures_counted_by_hand():
    text = "the river, abc abc q日 ß"
    fit = vocabulary_fit(PIECES.encode(text), PIECES)
    # the | river | , | a ##b ##c | a ##b ##c | q | 日 | [UNK]; the comma is no word
    assert (fit.words, fit.pieces) == (7, 12)
    assert fit.pieces_per_word == (1 + 1 + 3 + 3 + 1 + 1 + 1) / 7
    assert fit.continued_share == 2 / 7
    assert fit.characters_per_piece == (3 + 5 + 1 + 3 + 3 + 1 + 1 + 1) / 12
    assert fit.unknown_share == 1 / 12
    assert fit.single_share == 6 / 12
    assert fit.partial_share == 0
    (only,) = fit.most_split
    assert (only.text, only.pieces, only.times) == ("abc", ("a", "##b", "##c"), 2)


def test_bytes_of_one_character_are_partial():
    fit = vocabulary_fit(BYTES.encode("the river 👩"), BYTES)
    assert fit.unknown_share == 0
    # " the" and " river" may be several pieces; the woman is four bytes after a space that stands alone.
    assert fit.partial_share == 4 / fit.pieces
    assert fit.words == 2


def test_a_pair_counts_with_its_text_and_a_cut_text_by_what_is_left():
    alone = vocabulary_fit(PIECES.encode("the river"), PIECES)
    paired = vocabulary_fit(PIECES.encode("the river", "the bank"), PIECES)
    assert (alone.words, paired.words, paired.pieces_per_word) == (2, 4, 1)
    cut = vocabulary_fit(PIECES.encode("the river bank abc", max_tokens=4, truncation="end"), PIECES)
    assert (cut.words, cut.pieces, cut.characters_per_piece) == (2, 2, 4)


def test_what_cannot_be_measured():
    with pytest.raises(InvalidRequest, match="no word"):
        vocabulary_fit(PIECES.encode("., !"), PIECES)
    with pytest.raises(InvalidRequest, match="top is -1"):
        vocabulary_fit(PIECES.encode("the"), PIECES, top=-1)
