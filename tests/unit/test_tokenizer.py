"""Ids, token types and offsets against `transformers` and `tokenizers`, on plain and on tortured text."""

import csv
import json
import lzma
import unicodedata

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.places import default_folder, shared
from unmask.errors import CorruptCheckpoint, EmptyText, InvalidRequest, InvalidText, TextTooLong
from unmask.text import Tokenizer

TORTURE = [
    "The river bank was muddy.",
    "👩‍👩‍👧‍👦 family, 👍🏽 thumbs, 🏳️‍🌈 flag, 🇫🇷",
    "e\u0301 versus \u00e9, A\u030a versus \u00c5, n\u0303o\u0302u\u0308",
    unicodedata.normalize("NFD", "Ångström naïve façade Tiếng Việt"),
    unicodedata.normalize("NFC", "Ångström naïve façade Tiếng Việt"),
    "ﬁne ﬂow ① ２０２４ ｆｕｌｌｗｉｄｔｈ ™ ½",
    "我爱自然语言处理 and 日本語 のテスト, 한국어 시험",
    "\U00020000\U0002a6d6 rare ideographs",
    "שלום עולם مرحبا بالعالم \u202ereversed\u202c \u200fmark",
    "नमस्ते दुनिया สวัสดีชาวโลก ကမ္ဘာ",
    "tab\tnew\nline\r\nreturn\x0bvertical\x0cfeed",
    "nul\x00 bell\x07 escape\x1b[31m delete\x7f c1\x85\x9f",
    "no\u00a0break thin\u2009space ideographic\u3000space zero\u200bwidth \ufeffbom joiner\u2060",
    "private \ue000 unassigned \u0378 noncharacter \ufffe replacement \ufffd",
    "İstanbul ISTANBUL ıI ß ẞ ΣΑΣ ς ǅ",
    "pneumonoultramicroscopicsilicovolcanoconiosis " * 2,
    "x" * 99 + " " + "x" * 100 + " " + "x" * 101 + " " + "e\u0301" * 60,
    "literal [MASK] and [SEP] and [CLS][PAD][UNK] and [mask] [ MASK ]",
    "don't can't it's-a-me $5.00 50% C++ #hash @at snake_case a/b\\c <tag> {x} ~^`|",
    "…—–‘’“”«»¿¡·•†‡§¶",
    "a" + "\u0300" * 50,
    "\u0301starts with a mark",
    "∀x∈ℝ: ∫√π dx ≠ ∞ 𝒜𝔅ℂ 𝟙",
    "   spaces   around   ",
]


def vocabulary_file():
    return (shared("tokenizers/bert-base-uncased") / "vocab.txt").read_bytes()


@pytest.fixture(scope="module")
def uncased():
    """From vocab.txt alone."""
    return Tokenizer.from_files({"vocab.txt": vocabulary_file()})


def fast_reference(folder, content, **options):
    """`transformers`' tokenizer of a vocab.txt."""
    transformers = pytest.importorskip("transformers", reason="the reference implementation is not installed")
    (folder / "vocab.txt").write_bytes(content)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **options}))
    return transformers.BertTokenizerFast.from_pretrained(folder)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return fast_reference(tmp_path_factory.mktemp("uncased"), vocabulary_file())


@pytest.fixture(scope="module")
def real_lines():
    """Captions, news, forum posts and names of many languages: some thousand lines."""
    lines = []
    with lzma.open(shared("data/glue/STS-B") / "dev.tsv.xz", "rt", encoding="utf-8", newline="\n") as file:
        for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            lines += row[7:9]
    with lzma.open(shared("data/wikiann_en") / "dev.conll.xz", "rt", encoding="utf-8") as file:
        words = [line.split("\t")[0].removeprefix("en:") for line in file]
    lines += [" ".join(words[start : start + 40]) for start in range(0, 40_000, 40)]
    with lzma.open(shared("data/wikitext-2") / "wiki.valid.tokens.xz", "rt", encoding="utf-8") as file:
        lines += [line for line in file if line.strip()][:500]
    assert len(lines) > 4000
    return lines


def assert_same(encoding, wanted):
    """Our encoding, and a row of what the tokenizer of `transformers` returns."""
    assert encoding.ids.tolist() == wanted["input_ids"]
    assert encoding.token_type_ids.tolist() == wanted["token_type_ids"]
    assert encoding.offsets.tolist() == [list(span) for span in wanted["offset_mapping"]]
    assert encoding.special.tolist() == [bool(one) for one in wanted["special_tokens_mask"]]


def reference_rows(reference, texts, pairs=None):
    found = reference(
        list(texts), pairs and list(pairs), return_offsets_mapping=True, return_special_tokens_mask=True
    )
    return [{key: found[key][row] for key in found} for row in range(len(texts))]


def test_real_lines_are_read_as_transformers_reads_them(uncased, reference, real_lines):
    encodings = uncased.encode_batch(real_lines)
    for encoding, wanted in zip(encodings, reference_rows(reference, real_lines), strict=True):
        assert_same(encoding, wanted)
        assert list(encoding.pieces) == reference.convert_ids_to_tokens(wanted["input_ids"])
        assert encoding.original_tokens == len(encoding)


def test_pairs_are_read_as_transformers_reads_them(uncased, reference, real_lines):
    texts, pairs = real_lines[:2000:2], real_lines[1:2000:2]
    encodings = uncased.encode_batch(texts, pairs)
    for row, (encoding, wanted) in enumerate(
        zip(encodings, reference_rows(reference, texts, pairs), strict=True)
    ):
        assert_same(encoding, wanted)
        assert (encoding.text, encoding.pair) == (texts[row], pairs[row])
        words = ~encoding.special
        assert (encoding.sequence_ids[words] == encoding.token_type_ids[words]).all()


@pytest.mark.parametrize("text", TORTURE, ids=range(len(TORTURE)))
def test_tortured_text_is_read_as_transformers_reads_it(text, uncased, reference):
    (wanted,) = reference_rows(reference, [text])
    assert_same(uncased.encode(text), wanted)


UNSEEN = {"Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn", "Mn"}
"""Categories of characters that BERT's normalizer drops or splits at: spaces, control, marks."""


@pytest.mark.parametrize("text", TORTURE, ids=range(len(TORTURE)))
def test_spans_are_the_callers_own_characters(text, uncased):
    encoding = uncased.encode(text)
    words = np.flatnonzero(~encoding.special)
    covered = np.zeros(len(text), dtype=bool)
    end_before = 0
    for token in words:
        start, end = encoding.offsets[token]
        assert 0 <= start < end <= len(text)
        assert start >= end_before or not covered[start:end].all() or start == encoding.offsets[token - 1, 0]
        covered[start:end] = True
        end_before = end
        assert encoding.surface(token) == text[start:end]
        piece = encoding.pieces[token].removeprefix("##")
        if piece not in ("[UNK]", "[MASK]", "[SEP]", "[CLS]", "[PAD]"):
            assert piece in bare(text[start:end])
    dropped = [character for character, kept in zip(text, covered, strict=True) if not kept]
    assert {unicodedata.category(character) for character in dropped} - {"So"} <= UNSEEN
    assert all(not unicodedata.category(c).startswith("So") or c == "\ufffd" for c in dropped)
    assert (encoding.offsets[encoding.special] == 0).all()


def bare(text):
    """As BERT's uncased normalizer leaves it: without accents, in lower case."""
    stripped = "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
    return "".join(
        c for c in unicodedata.normalize("NFD", stripped.lower()) if unicodedata.category(c) != "Mn"
    )


def test_literal_special_tokens_are_the_callers_and_not_the_tokenizers(uncased):
    text = "a [MASK] b [SEP]"
    encoding = uncased.encode(text)
    assert encoding.pieces == ("[CLS]", "a", "[MASK]", "b", "[SEP]", "[SEP]")
    assert encoding.special.tolist() == [True, False, False, False, False, True]
    assert encoding.surface(2) == "[MASK]"
    assert encoding.offsets[4].tolist() == [text.index("[SEP]"), len(text)]


def test_vocab_txt_alone_is_what_tokenizer_json_says(uncased, reference, real_lines):
    published = Tokenizer.from_files({"tokenizer.json": reference.backend_tokenizer.to_str().encode()})
    packaged = Tokenizer.from_files({"tokenizer.json": (default_folder() / "tokenizer.json").read_bytes()})
    texts = [*real_lines[:1000], *TORTURE]
    rows = zip(*(one.encode_batch(texts) for one in (uncased, published, packaged)), strict=True)
    for first, second, third in rows:
        assert first.ids.tolist() == second.ids.tolist() == third.ids.tolist()
        assert first.offsets.tolist() == second.offsets.tolist() == third.offsets.tolist()
    assert uncased.vocabulary_size == published.vocabulary_size == 30522


def test_what_is_saved_reads_as_before(uncased):
    again = Tokenizer.from_files(uncased.files)
    for text in TORTURE:
        assert again.encode(text).ids.tolist() == uncased.encode(text).ids.tolist()
    assert again.files == uncased.files


CASED = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("The", "the", "river", "##R", "##r", "B", "b", "É", "é", "e", "我", "我们", "们", "A", "##a"),
)


def cased_file(pieces=CASED):
    return ("\n".join(pieces) + "\n").encode()


@pytest.mark.parametrize(
    ("config", "pieces"),
    [
        (None, ["The", "the", "B", "b", "É", "é"]),
        ({"do_lower_case": False}, ["The", "the", "B", "b", "É", "é"]),
        ({"do_lower_case": True}, ["the", "the", "b", "b", "e", "e"]),
        ({"do_lower_case": True, "strip_accents": False}, ["the", "the", "b", "b", "é", "é"]),
        ({"do_lower_case": False, "strip_accents": True}, ["The", "the", "B", "b", "[UNK]", "e"]),
    ],
)
def test_lower_case_is_what_the_config_or_the_vocabulary_says(config, pieces, tmp_path):
    files = {"vocab.txt": cased_file()}
    options = {"do_lower_case": False} if config is None else config
    if config is not None:
        files["tokenizer_config.json"] = json.dumps(config).encode()
    encoding = Tokenizer.from_files(files).encode("The the B b É é")
    assert list(encoding.pieces[1:-1]) == pieces
    (wanted,) = reference_rows(fast_reference(tmp_path, cased_file(), **options), ["The the B b É é"])
    assert_same(encoding, wanted)


@pytest.mark.parametrize("split", [True, False])
def test_chinese_characters_are_split_unless_the_config_says_not(split, tmp_path):
    options = {"do_lower_case": False, "tokenize_chinese_chars": split}
    files = {"vocab.txt": cased_file(), "tokenizer_config.json": json.dumps(options).encode()}
    encoding = Tokenizer.from_files(files).encode("我们")
    assert list(encoding.pieces[1:-1]) == (["我", "们"] if split else ["我们"])
    (wanted,) = reference_rows(fast_reference(tmp_path, cased_file(), **options), ["我们"])
    assert_same(encoding, wanted)


def test_special_tokens_may_have_other_names():
    pieces = ("<pad>", "<unk>", "<s>", "</s>", "<mask>", "the")
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), pieces, strict=False))
    config = {f"{role}_token": name for role, name in names.items()}
    config["cls_token"] = {"content": "<s>", "special": True}
    files = {"vocab.txt": cased_file(pieces), "tokenizer_config.json": json.dumps(config).encode()}
    encoding = Tokenizer.from_files(files).encode("the <mask> x")
    assert encoding.pieces == ("<s>", "the", "<mask>", "<unk>", "</s>")
    assert encoding.ids.tolist() == [2, 5, 4, 1, 3]


def test_a_vocabulary_with_carriage_returns_and_odd_separators():
    """A piece may be any character but a line feed: published vocabularies hold U+2028 and U+0085."""
    pieces = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2028", "\x85", "the")
    content = "".join(f"{piece}\r\n" for piece in pieces).encode()
    encoding = Tokenizer.from_files({"vocab.txt": content}).encode("the")
    assert encoding.ids.tolist() == [2, 7, 3]


def test_cutting_and_padding_that_a_file_prescribes_are_ignored(uncased):
    engine = tokenizers.Tokenizer.from_str(uncased.engine.to_str())
    engine.enable_truncation(5)
    engine.enable_padding(length=128)
    tokenizer = Tokenizer.from_files({"tokenizer.json": engine.to_str().encode()})
    encoding = tokenizer.encode("one two three four five six")
    assert list(encoding.pieces) == ["[CLS]", "one", "two", "three", "four", "five", "six", "[SEP]"]


# --- cutting -------------------------------------------------------------------------------------------

LETTERS = "abcdefghijklmn"


def test_cutting_is_that_of_the_tokenizers_package(uncased):
    engine = tokenizers.Tokenizer.from_str(uncased.engine.to_str())

    @examples(300, derandomize=True)
    @given(st.integers(1, 14), st.integers(0, 14), st.integers(1, 34))
    def holds(in_text, in_pair, max_tokens):
        text, pair = " ".join(LETTERS[:in_text]), " ".join(LETTERS[::-1][:in_pair]) or None
        special, sides = (2, 1) if pair is None else (3, 2)
        total = in_text + in_pair + special
        if max_tokens < min(total, special + sides):
            with pytest.raises(InvalidRequest, match=f"max_tokens is {max_tokens}"):
                uncased.encode(text, pair, max_tokens=max_tokens, truncation="end")
            return
        encoding = uncased.encode(text, pair, max_tokens=max_tokens, truncation="end")

        engine.enable_truncation(max_tokens, strategy="longest_first")
        wanted = engine.encode(text, pair)
        assert encoding.ids.tolist() == wanted.ids
        assert encoding.token_type_ids.tolist() == wanted.type_ids
        assert encoding.offsets.tolist() == [list(span) for span in wanted.offsets]
        assert encoding.special.tolist() == [bool(one) for one in wanted.special_tokens_mask]
        assert list(encoding.pieces) == wanted.tokens
        assert encoding.sequence_ids.tolist() == [-1 if one is None else one for one in wanted.sequence_ids]
        assert (encoding.original_tokens, encoding.truncated_tokens) == (total, total - len(wanted.ids))

    holds()


# --- errors --------------------------------------------------------------------------------------------


def test_truncation_keeps_both_numbers(uncased):
    with pytest.raises(TextTooLong, match=r"text 2 has 9 tokens and the model reads at most 8\b") as error:
        uncased.encode_batch(["one", "one two three four five six seven"], max_tokens=8)
    assert (error.value.original_tokens, error.value.max_tokens) == (9, 8)
    assert len(uncased.encode("one two three four five six", max_tokens=8)) == 8


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u200b", "\x00\x01", "\ufffd", "\u0301"])
def test_a_text_without_words(text, uncased):
    for texts, pairs in (([text], None), ([text], ["the"]), (["the"], [text])):
        with pytest.raises(EmptyText, match="text 1"):
            uncased.encode_batch(texts, pairs)


@pytest.mark.parametrize("text", ["a\ud800", "\udcff", "\ud83d\ude00"])
def test_a_lone_surrogate(text, uncased):
    with pytest.raises(InvalidText, match=r"text 2 holds a lone surrogate U\+D"):
        uncased.encode_batch(["a", text])
    with pytest.raises(InvalidText, match=r"the pair of text 1 holds a lone surrogate U\+D"):
        uncased.encode_batch(["a"], [text])


def test_as_many_pairs_as_texts(uncased):
    with pytest.raises(InvalidRequest, match=r"2.*1"):
        uncased.encode_batch(["a", "b"], ["c"])


def test_it_shows_itself_briefly(uncased):
    assert len(repr(uncased)) < 200
    assert "WordPiece" in repr(uncased)


def test_an_unknown_way_to_treat_long_texts(uncased):
    with pytest.raises(InvalidRequest, match="'end'"):
        uncased.encode("a", truncation="middle")


@pytest.mark.parametrize("absent", ["[UNK]", "[CLS]", "[SEP]"])
def test_a_vocabulary_without_special_tokens(absent):
    with pytest.raises(CorruptCheckpoint, match=rf"lacks \{absent[:-1]}\]"):
        Tokenizer.from_files({"vocab.txt": cased_file([piece for piece in CASED if piece != absent])})
