"""Windows over long texts: every token is read, and owned by exactly one window."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.errors import InvalidRequest
from unmask.text.windows import windows


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return tiny_model.tokenizer


def text_of(words):
    return " ".join(["the", "river", "bank", "was", "muddy"][number % 5] for number in range(words))


@given(words=st.integers(1, 60), room=st.integers(1, 20), overlap=st.integers(0, 19), paired=st.booleans())
def test_every_token_is_read_and_owned_once(tokenizer, words, room, overlap, paired):
    pair = text_of(words) if paired else None
    encoding = tokenizer.encode("a text" if paired else text_of(words), pair)
    fixed = len(encoding) - words
    limit = fixed + room
    if len(encoding) <= limit:
        (only,) = windows(encoding, limit, overlap)
        assert only.encoding is encoding
        assert only.owned.all()
        return
    if overlap >= room:
        with pytest.raises(InvalidRequest, match=f"overlap_tokens is {overlap}"):
            windows(encoding, limit, overlap)
        return
    found = windows(encoding, limit, overlap)
    owners = np.zeros(len(encoding), dtype=int)
    for window in found:
        assert len(window.encoding) == len(found[0].encoding) <= limit, "all are equally long"
        np.testing.assert_array_equal(window.encoding.ids, encoding.ids[window.tokens])
        np.testing.assert_array_equal(window.encoding.offsets, encoding.offsets[window.tokens])
        np.testing.assert_array_equal(window.encoding.sequence_ids, encoding.sequence_ids[window.tokens])
        owners[window.tokens[window.owned]] += 1
    assert (owners == 1).all()
    moving = [set(window.tokens[window.encoding.sequence_ids == int(paired)].tolist()) for window in found]
    shared = [len(a & b) for a, b in itertools.pairwise(moving)]
    assert max(shared) - min(shared) <= 1
    assert min(shared) >= overlap
    count, length = len(found), len(moving[0])
    assert (count - 1) * room - (count - 2) * overlap < words, "fewer windows do not reach"
    assert count * (length - 1) - (count - 1) * overlap < words, "shorter windows do not reach"


def test_a_token_is_owned_by_the_window_with_the_most_context(tokenizer):
    encoding = tokenizer.encode(text_of(12))
    first, second = windows(encoding, 10, 4)
    # Tokens 4 to 7 of the text are in both; the border is in the middle of them.
    assert first.tokens[first.owned].tolist() == [0, 1, 2, 3, 4, 5, 6, 13]
    assert second.tokens[second.owned].tolist() == [7, 8, 9, 10, 11, 12]
    # With five tokens in both, the one in the middle has the same context in both: the first owns it.
    first, _ = windows(tokenizer.encode(text_of(11)), 10, 4)
    assert first.tokens[first.owned].tolist() == [0, 1, 2, 3, 4, 5, 6, 12]


def test_a_question_that_leaves_no_room_is_refused(tokenizer):
    encoding = tokenizer.encode(text_of(20), text_of(30))
    with pytest.raises(
        InvalidRequest, match=r"room for 0 tokens beside the 23 of the first text.*shorten the"
    ):
        windows(encoding, 23, 0)


def test_no_limit_is_one_window(tokenizer):
    assert len(windows(tokenizer.encode(text_of(500)), None)) == 1


def test_an_overlap_below_zero_is_refused(tokenizer):
    with pytest.raises(InvalidRequest, match="overlap_tokens is -1"):
        windows(tokenizer.encode(text_of(9)), 5, -1)
