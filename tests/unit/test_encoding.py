"""An encoding as a value: computed no further than asked, immutable, comparable, kept by a pickle."""

import copy
import pickle

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.places import shared
from tests.unit.test_tokenizer import TORTURE
from unmask.errors import EmptyText
from unmask.text import Encoding, Tokenizer, tokenizer

PUBLISHED = {
    "bert-base-uncased": "bert",
    "roberta-base": "roberta",
    "modernbert": None,
    "albert-base-v2": "albert",
}


def read(name):
    folder = shared(f"tokenizers/{name}")
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    return Tokenizer.from_files(files, PUBLISHED[name])


@pytest.fixture(scope="module")
def roberta():
    return read("roberta-base")


def test_ids_are_made_without_offsets(roberta, monkeypatch):
    def details(*_):
        raise AssertionError("nobody asked for offsets")

    monkeypatch.setattr(Tokenizer, "details", details)
    for encoding in roberta.encode_batch([text for text in TORTURE if text.strip()], max_tokens=400):
        assert len(encoding) == encoding.original_tokens == len(encoding.ids) == len(encoding.token_type_ids)


def test_offsets_are_computed_once(roberta):
    encoding = roberta.encode("the river bank")
    assert encoding.offsets is encoding.offsets
    assert encoding.offsets.tolist() == [[0, 0], [0, 3], [4, 9], [10, 14], [0, 0]]
    assert encoding.sequence_ids.tolist() == [-1, 0, 0, 0, -1]


@pytest.mark.parametrize("pair", [None, "muddy water"])
def test_a_pickle_and_a_copy_are_equal_and_leave_the_tokenizer_behind(roberta, pair):
    encoding = roberta.encode("the river bank", pair)
    stored = pickle.dumps(encoding)
    assert len(stored) < 3000
    for made in (pickle.loads(stored), copy.deepcopy(encoding), roberta.encode("the river bank", pair)):
        assert made == encoding
        assert hash(made) == hash(encoding)
        assert made.surface(2) == "river"


def test_every_part_counts_in_a_comparison(roberta):
    one = roberta.encode("the river bank")
    everything = np.ones(len(one), dtype=bool)
    assert one.select(everything) == one
    others = [
        roberta.encode("the river  bank"),
        roberta.encode("the river bank", max_tokens=4, truncation="end"),
        one.select(np.arange(len(one) - 1)),
        one.with_pieces(one.ids, ["x", *one.pieces[1:]]),
        one.with_pieces(one.ids + 1, one.pieces),
        roberta.encode_words(["the", "river", "bank"]),
    ]
    for other in others:
        assert one != other
    assert one != "the river bank"


def test_a_part_keeps_the_words_of_its_tokens(roberta):
    whole = roberta.encode_words(["the", "river", "bank"])
    part = whole.select(whole.words != 1)
    assert part.words.tolist() == [word for word in whole.words.tolist() if word != 1]
    assert len(part.words) == len(part) < len(whole)


def test_nobody_can_change_it(roberta):
    encoding = roberta.encode("the river bank")
    for name in ("ids", "token_type_ids", "offsets", "special", "sequence_ids"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(encoding, name)[0] = 1
    with pytest.raises(AttributeError):
        encoding.text = "other"
    (other,) = roberta.encode_batch(["a river"])
    assert len(encoding.token_type_ids) != len(other.token_type_ids)


def spaces_are_tokens():
    """SentencePiece's form, which has a token for the space before a word, here of one removed character."""
    pieces = [("<unk>", 0.0), ("▁", -1.0), ("a", -1.0)]
    engine = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=0))
    engine.normalizer = tokenizers.normalizers.Replace("\u200b", " ")
    engine.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    return Tokenizer.from_files({"tokenizer.json": engine.to_str().encode()})


@pytest.mark.parametrize("name", [*PUBLISHED, "spaces"])
def test_what_surely_has_words_has_words_by_its_offsets(name):
    """The quick check may only ever be too careful."""
    ours = spaces_are_tokens() if name == "spaces" else read(name)

    @examples(150)
    @given(st.text(alphabet=" \t\n\u00a0\u200b\u3000\u0301\x00\x1f\x85a.'\U0001f44d", max_size=6))
    def holds(text):
        encoding = ours._encoding(ours.engine.encode(text), text, None)
        try:
            tokenizer._check_words(encoding, "the text")
        except EmptyText:
            assert not ours._has_words(encoding)

    holds()
    assert ours._has_words(ours.encode("a river"))


def test_dropout_of_training_is_off(roberta):
    engine = tokenizers.Tokenizer.from_str(roberta.engine.to_str())
    engine.model.dropout = 0.9
    made = Tokenizer.from_files({"tokenizer.json": engine.to_str().encode()})
    text = "unbelievably complicated tokenization"
    assert made.encode(text).ids.tolist() == roberta.encode(text).ids.tolist()


def test_token_types_that_differ_are_read_one_by_one():
    engine = tokenizers.Tokenizer.from_str(read("bert-base-uncased").engine.to_str())
    engine.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A:0 [SEP]:2", special_tokens=[("[SEP]", engine.token_to_id("[SEP]"))]
    )
    made = Tokenizer.from_files({"tokenizer.json": engine.to_str().encode()})
    assert made.encode("the river").token_type_ids.tolist() == [0, 0, 2]


def test_arrays_may_be_given():
    ids = np.array([7, 8])
    one = Encoding.of_arrays(
        "ab",
        ids=ids,
        token_type_ids=np.zeros(2, dtype=np.int64),
        offsets=np.array([[0, 1], [1, 2]]),
        special=np.zeros(2, dtype=bool),
        sequence_ids=np.zeros(2, dtype=np.int64),
        pieces=("a", "b"),
    )
    ids[0] = 9
    assert (one.original_tokens, one.truncated_tokens, one.surface(1)) == (2, 0, "b")
    assert one.ids.tolist() == [7, 8]
