"""Tagging schemes: every one is read, and what is written in it is read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tiny import tiny_bert, write_tokenizer
from unmask.errors import InvalidRequest
from unmask.tasks.schemes import Scheme, entities_of, written_in

SCHEMES = ["IOB2", "BIO", "IOB1", "BILOU", "BIOES"]


@st.composite
def entities(draw):
    """Entities of two types in a text, some of which touch, and the number of words."""
    found, place = [], draw(st.integers(0, 2))
    for _ in range(draw(st.integers(0, 5))):
        length = draw(st.integers(1, 3))
        found.append((draw(st.sampled_from("XY")), place, place + length))
        place += length + draw(st.integers(0, 2))
    return found, place + draw(st.integers(0, 2))


@given(given=entities(), scheme=st.sampled_from(SCHEMES))
def test_what_is_written_is_read_back(given, scheme):
    spans, words = given
    labels = written_in(scheme, spans, words)
    assert len(labels) == words
    assert entities_of(labels) == spans
    if scheme != "IOB1":
        first, follows, last = (array.tolist() for array in Scheme(tuple(labels)).allowed())
        if any(label != "O" for label in labels):
            assert first[0]
            assert last[-1]
            assert all(follows[place][place + 1] for place in range(words - 1))


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("IOB2", "B-X I-X B-X O B-Y I-Y I-Y B-X"),
        ("BIO", "B-X I-X B-X O B-Y I-Y I-Y B-X"),
        ("IOB1", "I-X I-X B-X O I-Y I-Y I-Y I-X"),
        ("BILOU", "B-X L-X U-X O B-Y I-Y L-Y U-X"),
        ("BIOES", "B-X E-X S-X O B-Y I-Y E-Y S-X"),
    ],
)
def test_every_scheme(scheme, expected):
    spans = [("X", 0, 2), ("X", 2, 3), ("Y", 4, 7), ("X", 7, 8)]
    assert " ".join(written_in(scheme, spans, 8)) == expected
    if scheme not in ("BIO", "IOB1"):
        assert Scheme(tuple(expected.split())).name == scheme


def tagger(folder, labels):
    import unmask

    write_tokenizer(folder)
    tiny_bert("BertForTokenClassification", id2label=dict(enumerate(labels))).save_pretrained(folder)
    return unmask.load(folder)


def test_given_words_that_have_no_token_are_counted(tmp_path):
    model = tagger(tmp_path, ["O", "B-X", "I-X"])
    words = ["the", "\x07", "river", "bank", "\x07"]
    (found,) = model.tag([words])
    assert [one.word for one in found.words] == [0, 2, 3]
    assert [one.text for one in found.words] == ["the", "river", "bank"]
    labels = found.labels(len(words))
    assert [labels[one.word] for one in found.words] == [one.label for one in found.words]
    assert labels[4] == "O"
    inside = labels[2] == "I-X"
    assert labels[1] == ("I-X" if inside else "O")
    for scheme in SCHEMES:
        written = found.in_scheme(scheme).labels(len(words))
        assert len(written) == len(words)
        assert len(entities_of(written)) == len(found.entities)


def test_a_word_without_a_token_is_inside_the_entity_around_it(tmp_path):
    from unmask.tasks.tag import TaggedWord, Tagging

    words = tuple(TaggedWord(label, 0, 1, "a", 1.0, word) for label, word in (("B-X", 1), ("I-X", 3)))
    found = Tagging(words, (), True, "IOB2", tokens_read=2, windows=1)
    assert found.labels(5) == ["O", "B-X", "I-X", "I-X", "O"]
    assert found.in_scheme("BILOU").labels(5) == ["O", "B-X", "I-X", "L-X", "O"]


def test_labels_of_no_scheme_have_no_other_scheme(tmp_path):
    model = tagger(tmp_path, ["NOUN", "VERB"])
    found = model.tag("the river bank")
    assert found.labels() == [one.label for one in found.words]
    with pytest.raises(
        InvalidRequest, match="scheme is 'IOB2' and the labels of the model are not of entities"
    ):
        found.in_scheme("IOB2")
    with pytest.raises(InvalidRequest, match="scheme is 'IOB3'; it"):
        found.in_scheme("IOB3")
