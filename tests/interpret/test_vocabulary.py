"""How well a vocabulary fits a text, counted by hand."""

import pytest

from tests.support.tokenizers_built import of_bytes, of_pieces
from unmask.errors import InvalidRequest
from unmask.interpret.words.words import vocabulary_fit

PIECES, BYTES = of_pieces(), of_bytes()


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
