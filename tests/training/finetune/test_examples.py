"""Examples of long texts: every word and answer is a target where it should be."""

import numpy as np
import pytest

from unmask.errors import InvalidText, TextTooLong
from unmask.training.data.labeled import IGNORED
from unmask.training.finetune.examples import Counts, Preparation, answer_tokens
from unmask.training.finetune.records import Gold, Labeled
from unmask.training.finetune.settings import settings_of_table

WORDS = ("the", "river", "bank", "was", "muddy", "wasbank") * 4


@pytest.fixture
def prepared(tiny_model):
    def make(task, labels=(), **data):
        table = {"name": "x", "task": task, "model": {"start_from": "x"}, "data": {"train": ["x"], **data}}
        return Preparation(
            settings_of_table(table), labels, tiny_model.tokenizer, tiny_model.spec, data.get("max_tokens")
        )

    return make


def test_every_word_of_a_long_text_is_labeled_once_at_its_first_token(prepared):
    preparation = prepared("tagging", ("O", "B-X"), max_tokens=12, long_texts="window", overlap_tokens=4)
    labels = ["B-X" if word == "river" else "O" for word in WORDS]
    counts = Counts()
    (example,) = preparation.examples([Labeled("here", WORDS, None, labels)], counts)
    items = preparation.items([example])
    assert counts.windowed == 1
    assert len(items) == len(example.windows) > 2
    targets = np.full(len(example.encoding), IGNORED)
    for item, window in zip(items, example.windows, strict=True):
        labeled = item.target != IGNORED
        assert (targets[window.tokens[labeled]] == IGNORED).all(), "no word twice"
        targets[window.tokens[labeled]] = item.target[labeled]
    of_word = [example.encoding.surface(int(token)) for token in np.flatnonzero(targets == 1)]
    assert of_word == ["river"] * 4
    assert (targets != IGNORED).sum() == len(WORDS)
    firsts = np.unique(example.encoding.words[example.encoding.words >= 0], return_index=True)[1]
    tokens = np.flatnonzero(example.encoding.words >= 0)[firsts]
    np.testing.assert_array_equal(np.flatnonzero(targets != IGNORED), tokens)


def test_an_answer_is_the_target_of_the_windows_that_hold_it(prepared):
    context = "the bank was muddy . " * 6 + "a river text"
    start = context.index("river text")
    gold = Gold("q", (("river text", start),))
    preparation = prepared("answering", max_tokens=16, long_texts="window", overlap_tokens=4)
    (example,) = preparation.examples([Labeled("here", "another", context, gold)], Counts())
    for item, window in zip(preparation.items([example]), example.windows, strict=True):
        first, last = item.target
        offsets = window.encoding.offsets
        if "text" in [window.encoding.surface(token) for token in range(len(window.encoding))]:
            assert context[offsets[first, 0] : offsets[last, 1]] == "river text"
        else:
            assert (first, last) == (0, 0)
    assert len(example.windows) > 2


def test_an_answer_inside_a_token_takes_the_whole_token(tiny_model):
    encoding = tiny_model.tokenizer.encode("a", "the river")
    first, last = answer_tokens(encoding, 5, 7)
    assert encoding.surface(first) == encoding.surface(last) == "river"
    assert answer_tokens(encoding, 9, 9) is None


def test_an_answer_is_looked_for_in_the_context_and_not_in_the_question(tiny_model):
    """The question has characters at the place of the answer too."""
    question, context = "the river bank was muddy", "the bank"
    (encoding,) = tiny_model.tokenize([question], [context])
    place = context.index("bank")
    first, last = answer_tokens(encoding, place, place + len("bank"))
    assert (first, last) == (len(encoding) - 2, len(encoding) - 2)
    assert encoding.sequence_ids[first] == 1
    assert encoding.surface(first) == "bank"


def test_long_texts_are_refused_or_their_end_is_dropped_and_counted(prepared):
    record = Labeled("here", "the river bank " * 5, None, "dry")
    counts = Counts()
    preparation = prepared("classification", ("dry", "wet"), max_tokens=9)
    (example,) = preparation.examples([record], counts)
    assert (counts.truncated, counts.truncated_tokens, len(example.encoding)) == (1, 8, 9)
    refusing = prepared("classification", ("dry", "wet"), max_tokens=9, long_texts="error")
    with pytest.raises(TextTooLong, match="here has 17 tokens and the limit is 9"):
        refusing.examples([record], Counts())


def test_as_many_labels_as_words(prepared):
    with pytest.raises(InvalidText, match="here has 2 words and 1 labels"):
        prepared("tagging", ("O",)).examples([Labeled("here", ("a", "text"), None, ["O"])], Counts())
