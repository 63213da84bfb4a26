"""Special tokens that a user types: read as ids, or as the characters they are."""

import json
import pickle

import pytest
import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers, processors

import unmask
from tests.support.tokenizers_built import of_bytes, of_pieces
from unmask.errors import InvalidRequest
from unmask.text import Tokenizer

NAMES = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def framed(engine, begin, end):
    ends = [(name, engine.token_to_id(name)) for name in (begin, end)]
    engine.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}", pair=f"{begin} $A {end} {end} $B:1 {end}:1", special_tokens=ends
    )
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "mask_token": "<mask>"}
    files = {"tokenizer.json": engine.to_str().encode(), "tokenizer_config.json": json.dumps(config).encode()}
    return Tokenizer.from_files(files)


def of_sentence_pieces():
    """Unigram, whose vocabulary has the special tokens as its likeliest pieces."""
    pieces = [(name, 0.0) for name in NAMES] + [("▁", -2.0)]
    pieces += [(letter, -3.0) for letter in "abdkmps<>/[]SEPx"] + [("▁a", -2.5)]
    engine = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=3))
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    engine.add_special_tokens(NAMES[:4])
    engine.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    engine.add_tokens([AddedToken("xx", special=False)])
    return framed(engine, "<s>", "</s>")


def of_whole_words():
    """A vocabulary of words split at spaces, where a special token is a word."""
    words = {word: number for number, word in enumerate([*NAMES, "a", "b", "<", "/"])}
    engine = tokenizers.Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    engine.add_special_tokens(NAMES)
    return framed(engine, "<s>", "</s>")


@pytest.mark.parametrize("built", [of_pieces, of_bytes, of_sentence_pieces, of_whole_words])
def test_typed_special_tokens_are_text_where_asked(built):
    parsing = built()
    literal = pickle.loads(pickle.dumps(parsing.reading("text")))
    added = {id_: one for id_, one in parsing.engine.get_added_tokens_decoder().items() if one.special}
    unknown = parsing.token_to_id(parsing.special_tokens.get("unk", "<unk>"))
    frame = literal.encode("a")
    for id_, token in added.items():
        text = f"a {token.content} b{token.content}"
        assert id_ in parsing.encode(text).ids[1:-1].tolist() or id_ == unknown
        encoding = literal.encode(text)
        within = encoding.ids[~encoding.special].tolist()
        assert not ({*added} - {unknown}) & {*within}
        assert encoding.special.tolist() == [True, *[False] * len(within), True]
        assert encoding.ids[[0, -1]].tolist() == frame.ids[[0, -1]].tolist()
        # Every character of the text is some token's, and reads alike with its offsets made at once.
        (at_once,) = literal.encode_batch([text], with_details=True)
        assert at_once.offsets.tolist() == encoding.offsets.tolist()
        covered = {at for start, end in encoding.offsets.tolist() for at in range(start, end)}
        assert covered >= {at for at, letter in enumerate(text) if letter != " "}
        words = literal.encode_words(["a", token.content])
        assert id_ == unknown or id_ not in words.ids[~words.special].tolist()
    assert parsing.encode("a </s> b").ids.tolist() == built().encode("a </s> b").ids.tolist()


@pytest.mark.parametrize("built", [of_pieces, of_bytes, of_sentence_pieces, of_whole_words])
def test_text_without_special_tokens_reads_alike(built):
    parsing = built()
    for text in ("a b", "a b ab  xx", "the river bank 日 <"):
        ours, theirs = parsing.reading("text").encode(text), parsing.encode(text)
        assert ours.ids.tolist() == theirs.ids.tolist()
        assert ours.pieces == theirs.pieces
        assert ours.offsets.tolist() == theirs.offsets.tolist()
    assert parsing.reading("text").token_to_id("</s>") == parsing.token_to_id("</s>")


def test_an_added_token_that_is_not_special_keeps_its_id():
    tokenizer = of_sentence_pieces().reading("text")
    assert tokenizer.token_to_id("xx") in tokenizer.encode("a xx").ids.tolist()


@pytest.mark.parametrize("built", [of_pieces, of_sentence_pieces])
def test_masks_alone_are_ids_for_what_fills_them(built):
    tokenizer = built()
    mask = tokenizer.special_tokens["mask"]
    end = "[SEP]" if mask == "[MASK]" else "</s>"
    encoding = tokenizer.reading("text").with_masks.encode(f"a {mask} b {end}")
    assert encoding.ids.tolist().count(tokenizer.mask_id) == 1
    assert encoding.ids.tolist().count(tokenizer.token_to_id(end)) == 1
    assert encoding.pieces[encoding.ids.tolist().index(tokenizer.mask_id)] == mask


def test_a_model_reads_text_and_still_fills_masks():
    parsing = unmask.load("unmask-mini")
    literal = unmask.load("unmask-mini", special_tokens="text")
    assert parsing.tokenize("a [SEP] b [PAD]").pieces.count("[SEP]") == 2
    for model in (literal, pickle.loads(pickle.dumps(literal)), parsing.reading("text")):
        assert model.tokenize("a [SEP] b [PAD]").pieces.count("[SEP]") == 1
        assert "[PAD]" not in model.tokenize("a [SEP] b [PAD]").pieces
        assert model.load_arguments()["special_tokens"] == "text"
    assert literal.reading("parse").tokenize("[PAD]").ids.tolist() == parsing.tokenize("[PAD]").ids.tolist()
    plain = "the capital of [MASK]."
    assert literal.fill(plain) == parsing.fill(plain)
    with pytest.raises(InvalidRequest, match="special_tokens is 'literal'"):
        unmask.load("unmask-mini", special_tokens="literal")


def test_an_index_reads_text_and_remembers_it(tmp_path):
    for reads in ("text", "parse"):
        index = unmask.Index.create(tmp_path / reads, "default", special_tokens=reads)
        again = unmask.Index.open(tmp_path / reads, "default")
        assert again.settings.models["dense"].special_tokens == reads
        assert index.model("dense").tokenizer.reads == again.model("dense").tokenizer.reads == reads
    assert unmask.Index.create(tmp_path / "new").model("dense").tokenizer.reads == "text"
