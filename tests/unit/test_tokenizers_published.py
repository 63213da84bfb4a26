"""Every family's tokenizer against the published files, their authors' rules and `transformers`."""

import csv
import io
import json
import lzma
import random
import unicodedata

import numpy as np
import pytest
import tokenizers

from tests.support.places import shared
from tests.unit.test_tokenizer import TORTURE
from unmask.errors import CorruptCheckpoint, EmptyText, MissingExtra, TextTooLong, UnknownArchitecture
from unmask.text import Tokenizer

transformers = pytest.importorskip("transformers", reason="the reference implementation is not installed")

pytestmark = pytest.mark.long

LITERAL = ("<unk>", "<s>", "</s>", "<pad>", "<mask>", "[MASK]", "[SEP]", "[CLS]", "[PAD]", "[UNK]")
"""Special tokens spelled out in a text: added tokens to `tokenizers`, plain text to SentencePiece."""


def published(name, *only):
    folder = shared(f"tokenizers/{name}")
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name in only}


def put(folder, files, model_type=None):
    for name, content in files.items():
        (folder / name).write_bytes(content)
    if model_type:
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder


def read_lines(name):
    with lzma.open(shared(f"data/{name}"), "rt", encoding="utf-8", newline="\n") as file:
        return file.read().split("\n")


@pytest.fixture(scope="module")
def drawn():
    """10,000 lines of six data sets: sentences, names, articles, reviews, Python code, questions."""
    squad = json.loads("".join(read_lines("squad_v1.1/dev-v1.1.json.xz")))
    found = [
        [text for row in csv.reader(read_lines("glue/STS-B/dev.tsv.xz"), delimiter="\t", quoting=3)
         for text in row[7:9]],
        read_lines("wikitext-2/wiki.valid.tokens.xz"),
        [paragraph["context"] for article in squad["data"]
         for paragraph in article["paragraphs"]],
        [line for row in read_lines("movie_reviews/movie_reviews.jsonl.xz") if row
         for line in json.loads(row)["text"].split("\n")[:4]],
        [json.loads(row)["text"] for row in read_lines("cosqa/corpus.jsonl.xz")[:2500] if row],
    ]  # fmt: skip
    words = [line.split("\t")[0].removeprefix("en:") for line in read_lines("wikiann_en/dev.conll.xz")]
    found.append([" ".join(words[start : start + 25]) for start in range(0, 60_000, 25)])
    draw = random.Random(0)
    lines = []
    for texts in found:
        usable = [text for text in texts if text.strip() and len(text) < 500]
        lines += draw.sample(usable, min(2200, len(usable)))
    assert len(lines) >= 10_000
    return lines[:10_000]


@pytest.fixture(scope="module", params=[300, pytest.param(10_000, marks=pytest.mark.slow)])
def lines(request, drawn):
    """So many of them, from every data set."""
    return drawn[:: len(drawn) // request.param]


@pytest.fixture(scope="module")
def words(lines):
    """Lines as words, some of them punctuation, Unicode or a special token."""
    rows = [line.split() for line in lines[:1000]]
    return [*rows, *(text.split() for text in TORTURE), ["a", "<mask>", "[MASK]", "b-c", "\u0301", "é"]]


def rows_of(reference, texts, pairs=None, **options):
    found = reference(
        list(texts),
        pairs and list(pairs),
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        return_token_type_ids=True,
        **options,
    )
    return [
        {key: found[key][row] for key in found} | {"words": found.word_ids(row)} for row in range(len(texts))
    ]


def stripped(text, span, covered, marks):
    """A span by our rule, in its plain form: without the spaces at its ends, unless it is all space, and
    with the quote before it and the combining marks after it that are in no span."""
    start, end = span
    if text[start:end].strip():
        while text[start].isspace():
            start += 1
        while text[end - 1].isspace():
            end -= 1
    if marks and text[start : start + 1] in ("'", "`") and start - 1 not in covered:
        start -= text[start - 1 : start] == text[start]
    while marks and end < len(text) and end not in covered and unicodedata.category(text[end])[0] == "M":
        end += 1
    return [start, end]


def assert_same(encoding, wanted, *, marks=True):
    assert encoding.ids.tolist() == wanted["input_ids"]
    assert encoding.token_type_ids.tolist() == wanted["token_type_ids"]
    assert encoding.special.tolist() == [bool(one) for one in wanted["special_tokens_mask"]]
    covered = {side: set() for side in (False, True)}
    for token, (start, end) in enumerate(wanted["offset_mapping"]):
        covered[bool(encoding.sequence_ids[token] == 1)].update(range(start, end))
    for token, span in enumerate(wanted["offset_mapping"]):
        source = encoding.pair if encoding.sequence_ids[token] == 1 else encoding.text
        inside = covered[bool(encoding.sequence_ids[token] == 1)]
        # A lone space before the first word, which `tokenizers` says is the word's first character,
        # and a lone space in the text, which it can say is nothing.
        if encoding.pieces[token] in ("▁", "Ġ") or span[0] == span[1]:
            continue
        assert encoding.offsets[token].tolist() == stripped(source, span, inside, marks)


def assert_covered(encoding, *, dropped=lambda _: False):
    """Spans are in order, in the text, and cover every character that is no space and not dropped."""
    for source, tokens in (
        (encoding.text, encoding.sequence_ids == 0),
        (encoding.pair, encoding.sequence_ids == 1),
    ):
        if source is None:
            continue
        spans = encoding.offsets[tokens]
        assert (spans[:, 0] <= spans[:, 1]).all()
        assert (spans >= 0).all()
        assert (spans <= len(source)).all()
        assert (np.diff(spans, axis=0) >= 0).all()
        covered = np.zeros(len(source) + 1, dtype=int)
        np.add.at(covered, spans[:, 0], 1)
        np.add.at(covered, spans[:, 1], -1)
        bare = [
            c for c, kept in zip(source, np.cumsum(covered), strict=False) if not kept and not c.isspace()
        ]
        assert all(dropped(character) for character in bare), bare
    assert (encoding.offsets[encoding.special] == 0).all()


# --- the four published tokenizers ---------------------------------------------------------------------


@pytest.fixture(scope="module", params=["bert", "roberta", "roberta from its vocabulary", "modernbert"])
def both(request, tmp_path_factory):
    """Ours and that of `transformers`, from the same files."""
    folder = tmp_path_factory.mktemp("published")
    if request.param == "bert":
        files = published("bert-base-uncased", "vocab.txt")
        return Tokenizer.from_files(files), transformers.BertTokenizerFast.from_pretrained(put(folder, files))
    if request.param == "modernbert":
        files = published("modernbert", "tokenizer.json")
        put(folder, files)
        reference = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        return Tokenizer.from_files(files), reference
    files = published("roberta-base", "tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json")
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(put(folder, files) / "tokenizer.json"),
    )
    if request.param != "roberta":
        del files["tokenizer.json"]
    return Tokenizer.from_files(files), reference


def test_published_tokenizers_read_lines_as_transformers_does(both, lines):
    ours, reference = both
    some = lines[:: max(1, len(lines) // 2500)]  # of every data set
    for encoding, wanted in zip(ours.encode_batch(some), rows_of(reference, some), strict=True):
        assert_same(encoding, wanted, marks=byte_level(ours))
        assert list(encoding.pieces) == reference.convert_ids_to_tokens(wanted["input_ids"])


def test_published_tokenizers_read_pairs_as_transformers_does(both, lines):
    ours, reference = both
    end = 3 * min(1000, len(lines) // 3)
    texts, pairs = lines[:end:3], lines[1:end:3]
    encodings = ours.encode_batch(texts, pairs)
    for encoding, wanted in zip(encodings, rows_of(reference, texts, pairs), strict=True):
        assert_same(encoding, wanted, marks=byte_level(ours))


@pytest.mark.parametrize("text", TORTURE, ids=range(len(TORTURE)))
def test_published_tokenizers_read_torture_as_transformers_does(both, text):
    ours, reference = both
    for encoding, wanted in (
        (ours.encode(text), rows_of(reference, [text])),
        (ours.encode(text, text), rows_of(reference, [text], [text])),
    ):
        assert_same(encoding, wanted[0], marks=byte_level(ours))


def byte_level(tokenizer):
    return "BPE" in tokenizer.description


@pytest.mark.parametrize(
    "both", ["roberta", "roberta from its vocabulary", "modernbert"], indirect=True, scope="module"
)
def test_byte_level_spans_cover_every_character(both, lines):
    """WordPiece drops characters; see test_tokenizer.py."""
    ours, _ = both
    assert byte_level(ours)
    for text in (*TORTURE, *lines[:1000]):
        encoding = ours.encode(text)
        assert_covered(encoding)
        letters = tokenizers.decoders.ByteLevel()
        for token in np.flatnonzero(~encoding.special):
            start, end = encoding.offsets[token]
            assert start < end
            said = letters.decode([encoding.pieces[token]])
            # A token that holds only a part of a character's bytes is spelled with U+FFFD. ModernBERT
            # composes characters (NFC) first.
            if "\ufffd" not in said and encoding.pieces[token] not in LITERAL and said.strip():
                assert unicodedata.normalize("NFC", text[start:end]) in (said.strip(), said)


def test_words_are_read_as_transformers_reads_them(both, words):
    ours, reference = both
    backend = reference.backend_tokenizer
    if byte_level(ours):
        backend = tokenizers.Tokenizer.from_str(backend.to_str())
        backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    for row in words:
        wanted = backend.encode(row, is_pretokenized=True)
        encoding = ours.encode_words(row)
        assert encoding.ids.tolist() == wanted.ids
        assert encoding.words.tolist() == [-1 if word is None else word for word in wanted.word_ids]
        starts = np.cumsum([0, *(len(word) + 1 for word in row)])
        for token in np.flatnonzero(~encoding.special):
            word = encoding.words[token]
            start, end = encoding.offsets[token] - starts[word]
            assert 0 <= start <= end <= len(row[word])
            assert encoding.surface(token) == row[word][start:end]


def test_the_mask_token_is_known_and_owns_the_space_before_it(both):
    ours, reference = both
    mask = ours.special_tokens["mask"]
    assert ours.mask_id == ours.token_to_id(mask) == reference.convert_tokens_to_ids(mask)
    text = f"Paris is the {mask} of France."
    encoding = ours.encode(text)
    (token,) = np.flatnonzero(encoding.ids == ours.mask_id)
    assert encoding.surface(token) == encoding.pieces[token] == mask
    assert not encoding.special[token]
    assert ours.token_to_id("no such piece") is None


@pytest.mark.parametrize("text", [" ", "\n\t", "\u3000", "\u2028 "])
def test_a_text_of_spaces_has_no_words(both, text):
    ours, _ = both
    with pytest.raises(EmptyText, match="the text"):
        ours.encode(text)
    with pytest.raises(EmptyText, match="the pair of the text"):
        ours.encode("the", text)
    with pytest.raises(EmptyText, match="word 2 of the text"):
        ours.encode_words(["the", text])


def test_words_are_cut_and_refused_like_texts(both):
    ours, _ = both
    row = ["one", "two", "three"]
    with pytest.raises(TextTooLong, match="5 tokens"):
        ours.encode_words(row, max_tokens=4)
    assert ours.encode_words(row, max_tokens=4, truncation="end").words.tolist() == [-1, 0, 1, -1]
    with pytest.raises(EmptyText, match="no words"):
        ours.encode_words([])


def test_robertas_two_forms_are_the_same_tokenizer(lines):
    files = published("roberta-base", "tokenizer.json", "vocab.json", "merges.txt")
    whole = Tokenizer.from_files({"tokenizer.json": files.pop("tokenizer.json")})
    built = Tokenizer.from_files(files)
    assert "RoBERTa's pairs (by its special tokens)" in built.description
    again = Tokenizer.from_files(built.files)
    assert again.files == built.files
    for one in (whole, built, again):
        assert one.special_tokens == {
            "unk": "<unk>", "cls": "<s>", "sep": "</s>", "pad": "<pad>", "mask": "<mask>"
        }  # fmt: skip
        assert one.engine.get_vocab(with_added_tokens=True) == whole.engine.get_vocab(with_added_tokens=True)
    texts = [*TORTURE, *lines[:1000], "a <mask>b", "<mask> <s> </s>"]
    rows = zip(*(one.encode_batch(texts, texts[::-1]) for one in (whole, built, again)), strict=True)
    for first, second, third in rows:
        assert first.ids.tolist() == second.ids.tolist() == third.ids.tolist()
        assert first.offsets.tolist() == second.offsets.tolist() == third.offsets.tolist()
        assert first.token_type_ids.tolist() == second.token_type_ids.tolist() == [0] * len(first)


def test_debertas_vocabulary_has_robertas_merges_and_berts_pairs(lines, tmp_path):
    """DeBERTa v1: GPT-2's merges under BERT's special tokens."""
    files = published("roberta-base", "vocab.json", "merges.txt")
    renamed = dict(
        zip(("<s>", "<pad>", "</s>", "<unk>", "<mask>"), ["CLS", "PAD", "SEP", "UNK", "MASK"], strict=True)
    )
    vocabulary = json.loads(files["vocab.json"])
    vocabulary = {
        f"[{renamed[piece]}]" if piece in renamed else piece: id_ for piece, id_ in vocabulary.items()
    }
    files["vocab.json"] = json.dumps(vocabulary).encode()
    tokenizer = Tokenizer.from_files(files, "deberta")
    assert tokenizer.description.endswith("BERT's pairs (read as Deberta's)")
    reference = transformers.DebertaTokenizer.from_pretrained(put(tmp_path, files))
    texts = lines[:500]
    for encoding, wanted in zip(tokenizer.encode_batch(texts), rows_of(reference, texts), strict=True):
        assert_same(encoding, wanted)
    # Version 5 of transformers puts two separators into a pair; DeBERTa's authors and its version 4 one.
    encoding = tokenizer.encode("one two", "a [MASK] b")
    assert encoding.pieces == ("[CLS]", "one", "Ġtwo", "[SEP]", "a", "[MASK]", "Ġb", "[SEP]")
    assert encoding.token_type_ids.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    saved = transformers.AutoTokenizer.from_pretrained(put(tmp_path, tokenizer.files, "deberta"))
    for wanted in rows_of(saved, ["one two"], ["a [MASK] b"]):
        assert_same(encoding, wanted)


def unseen(character):
    """What normalization may drop: marks, control characters and U+FFFD."""
    return unicodedata.category(character) in {"Cc", "Cf", "Co", "Cn", "Mn"} or character == "\ufffd"


# --- ALBERT --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def albert():
    return Tokenizer.from_files(published("albert-base-v2", "spiece.model"), model_type="albert")


class AlbertsAuthors:
    """google-research/albert tokenization.py, in plain words around `sentencepiece` itself."""

    def __init__(self, content):
        sentencepiece = pytest.importorskip("sentencepiece", reason="SentencePiece is not installed")
        self.model = sentencepiece.SentencePieceProcessor(model_proto=content)

    def ids(self, text):
        text = " ".join(text.split()).replace("``", '"').replace("''", '"')
        text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)).lower()
        pieces = []
        for piece in self.model.encode(text, out_type=str):
            if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
                parts = self.model.encode(piece[:-1].replace("▁", ""), out_type=str)
                if not piece.startswith("▁") and parts[0].startswith("▁"):
                    parts = parts[1:] if parts[0] == "▁" else [parts[0][1:], *parts[1:]]
                pieces += [*parts, ","]
            else:
                pieces.append(piece)
        return [self.model.piece_to_id(piece) for piece in pieces]


def test_albert_reads_lines_as_its_authors_do(albert, lines):
    authors = AlbertsAuthors(albert.files["spiece.model"])
    texts = [text for text in (*lines, *TORTURE) if not any(literal in text for literal in LITERAL)]
    # The authors' code splits at a vertical tab, which the published tokenizer.json drops, as do we.
    texts = [text for text in texts if "\x0b" not in text]
    assert len(texts) > 0.85 * len(lines)
    for text, encoding in zip(texts, albert.encode_batch(texts), strict=True):
        assert encoding.ids[1:-1].tolist() == authors.ids(text), text
        assert_covered(encoding, dropped=unseen)


def test_albert_is_read_back_by_transformers(albert, lines, tmp_path):
    count = min(2000, len(lines) - 1)
    texts, pairs = [*lines[:count], *TORTURE], [*lines[1 : count + 1], *TORTURE]
    folder = put(tmp_path, albert.files, "albert")
    for config in ("as written", "absent"):
        if config == "absent":
            (folder / "tokenizer_config.json").unlink()
        saved = transformers.AutoTokenizer.from_pretrained(folder)
        assert saved.mask_token == "[MASK]"
        wanted = [*rows_of(saved, texts), *rows_of(saved, texts, pairs)]
        for encoding, row in zip(
            [*albert.encode_batch(texts), *albert.encode_batch(texts, pairs)], wanted, strict=True
        ):
            assert_same(encoding, row)


def test_albert_agrees_with_transformers_where_it_keeps_to_the_authors(albert, lines, tmp_path):
    """Version 5 breaks words at pieces that SentencePiece's maker asked for, and keeps "1," whole."""
    reference = transformers.AlbertTokenizer.from_pretrained(
        put(tmp_path, published("albert-base-v2", "spiece.model"))
    )
    asked = set("()\"-.–£€`'")
    texts = [text for text in lines if not asked & set(text) and not any(f"{d}," in text for d in range(10))]
    assert len(texts) > 0.03 * len(lines)
    for encoding, wanted in zip(albert.encode_batch(texts), rows_of(reference, texts), strict=True):
        assert_same(encoding, wanted)
    (broken,) = rows_of(reference, ["key-board"])
    assert reference.convert_ids_to_tokens(broken["input_ids"])[2:4] == ["-", "▁board"]
    assert albert.encode("key-board").pieces[2:4] == ("-", "board")


@pytest.mark.parametrize(
    ("settings", "pieces"),
    [
        ({}, ["▁cafe"]),
        ({"keep_accents": True}, ["▁ca", "f", "<unk>"]),
        ({"do_lower_case": False}, ["▁", "<unk>", "af", "e"]),
    ],
)
def test_albert_is_cleaned_as_its_config_says(settings, pieces):
    files = published("albert-base-v2", "spiece.model")
    files["tokenizer_config.json"] = json.dumps({"tokenizer_class": "AlbertTokenizer", **settings}).encode()
    assert list(Tokenizer.from_files(files).encode("Café").pieces[1:-1]) == pieces


# --- other SentencePiece models, trained here ----------------------------------------------------------

FAIRSEQ = {"unk_id": 0, "bos_id": 1, "eos_id": 2}
DEBERTA = {
    "pad_id": 0, "pad_piece": "[PAD]", "bos_id": 1, "bos_piece": "[CLS]", "eos_id": 2, "eos_piece": "[SEP]",
    "unk_id": 3, "unk_piece": "[UNK]",
}  # fmt: skip
BIG_BIRD = {
    "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]
}  # fmt: skip
FAMILIES = {
    "deberta-v2": ("spm.model", DEBERTA, "DebertaV2Tokenizer"),
    "big_bird": ("spiece.model", BIG_BIRD, "BigBirdTokenizer"),
    "t5": ("spiece.model", {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}, "T5Tokenizer"),
    "xlm-roberta": ("sentencepiece.bpe.model", FAIRSEQ, "XLMRobertaTokenizer"),
    "camembert": ("sentencepiece.bpe.model", FAIRSEQ, "CamembertTokenizer"),
}


class Trained:
    """A small SentencePiece model and the ids its family gives to its pieces."""

    def __init__(self, lines, family, **options):
        sentencepiece = pytest.importorskip("sentencepiece", reason="SentencePiece is not installed")
        written = io.BytesIO()
        self.family = family
        self.file, layout, self.reference = FAMILIES[family]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=written,
            vocab_size=900,
            hard_vocab_limit=False,
            num_threads=1,
            minloglevel=2,
            **{"model_type": "unigram", "character_coverage": 0.998, **layout, **options},
        )
        self.first = int(family != "t5")  # T5 puts no token before a text
        self.files = {self.file: written.getvalue()}
        self.model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())

    def ids(self, text):
        """What SentencePiece itself gives, moved as fairseq's dictionaries move it."""
        found = self.model.encode(text)
        if self.family == "xlm-roberta":
            return [3 if id_ == 0 else id_ + 1 for id_ in found]
        if self.family == "camembert":
            return [3 if id_ == 0 else id_ + 4 for id_ in found]
        return found

    def tokenizer(self, **config):
        files = dict(self.files)
        if config:
            files["tokenizer_config.json"] = json.dumps(config).encode()
        return Tokenizer.from_files(files, self.family)


@pytest.fixture(scope="module", params=FAMILIES)
def trained(request, drawn):
    return Trained(drawn[:2000], request.param)


def plain(texts):
    return [text for text in texts if not any(literal in text for literal in LITERAL)]


def test_sentencepiece_models_are_read_as_sentencepiece_reads_them(trained, lines):
    ours = trained.tokenizer()
    texts = plain([*lines[:4000], *TORTURE])
    different = [
        text for text, encoding in zip(texts, ours.encode_batch(texts), strict=True)
        if encoding.ids[trained.first : -1].tolist() != trained.ids(text)
    ]  # fmt: skip
    assert different == []


def test_sentencepiece_offsets_cover_the_text(trained, lines):
    ours = trained.tokenizer()
    for text in (*lines[:1000], *TORTURE):
        assert_covered(ours.encode(text), dropped=unseen)


def test_sentencepiece_pairs_and_special_tokens(trained):
    ours = trained.tokenizer()
    if trained.family == "t5":
        encoding = ours.encode("the one", "the other <extra_id_3>")
        assert [encoding.pieces[place] for place in np.flatnonzero(encoding.special)] == ["</s>", "</s>"]
        assert set(encoding.token_type_ids.tolist()) == {0}
        assert ours.mask_id is None
        size = trained.model.vocab_size()
        assert [ours.token_to_id(f"<extra_id_{number}>") for number in (99, 0)] == [size, size + 99]
        assert encoding.ids[-2] == size + 96
        return
    encoding = ours.encode("the one", "the other <mask> [MASK]")
    cls, sep = (ours.special_tokens[role] for role in ("cls", "sep"))
    special = [piece for piece, added in zip(encoding.pieces, encoding.special, strict=True) if added]
    if trained.family in ("deberta-v2", "big_bird"):
        assert (cls, sep) == ("[CLS]", "[SEP]")
        assert special == [cls, sep, sep]
        assert encoding.token_type_ids.tolist() == [0] * (len(ours.encode("the one"))) + [1] * (
            len(encoding) - len(ours.encode("the one"))
        )
    else:
        assert (cls, sep) == ("<s>", "</s>")
        assert special == [cls, sep, sep, sep]
        assert set(encoding.token_type_ids.tolist()) == {0}
        assert ours.mask_id == ours.vocabulary_size - 1
        assert ours.token_to_id("<pad>") == 1
    if trained.family == "camembert":
        assert (ours.token_to_id("<s>"), ours.token_to_id("</s>")) == (5, 6)
    if trained.family == "deberta-v2":
        assert ours.mask_id == trained.model.vocab_size()
    (token,) = np.flatnonzero(encoding.ids == ours.mask_id)
    assert encoding.surface(token) == ours.special_tokens["mask"]


def test_sentencepiece_models_are_read_as_transformers_reads_them(trained, lines, tmp_path):
    """Version 5 reads DeBERTa's and BigBird's without the model's own normalization, so only plain text."""
    ours = trained.tokenizer()
    reference = getattr(transformers, trained.reference).from_pretrained(put(tmp_path, trained.files))
    texts = plain(text for text in lines[:3000] if text.isascii() and text == " ".join(text.split()))
    pairs = texts[::-1]
    assert len(texts) > 0.1 * len(lines)
    encodings = [*ours.encode_batch(texts), *ours.encode_batch(texts, pairs)]
    wanted = [*rows_of(reference, texts), *rows_of(reference, texts, pairs)]
    for encoding, row in zip(encodings, wanted, strict=True):
        assert_same(encoding, row)


def test_sentencepiece_models_are_saved_for_transformers(trained, lines, tmp_path):
    ours = trained.tokenizer()
    again = Tokenizer.from_files(ours.files)
    assert again.files == ours.files
    assert again.special_tokens == ours.special_tokens
    saved = transformers.AutoTokenizer.from_pretrained(put(tmp_path, ours.files, trained.family))
    half = min(1000, len(lines)) // 2
    texts, pairs = [*lines[:half], *TORTURE], [*lines[half : 2 * half], *TORTURE]
    encodings = [*ours.encode_batch(texts), *ours.encode_batch(texts, pairs)]
    wanted = [*rows_of(saved, texts), *rows_of(saved, texts, pairs)]
    for encoding, same, row in zip(
        encodings, [*again.encode_batch(texts), *again.encode_batch(texts, pairs)], wanted, strict=True
    ):
        assert_same(encoding, row)
        assert same.ids.tolist() == encoding.ids.tolist()
    assert saved.mask_token_id == ours.mask_id


@pytest.mark.parametrize(
    "options",
    [
        {"byte_fallback": True, "character_coverage": 0.98},
        {"user_defined_symbols": ["-", "(", "ing", "New York"]},
        {"remove_extra_whitespaces": False},
        {"add_dummy_prefix": False},
        {"split_by_whitespace": False},
        {"normalization_rule_name": "identity"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_a_sentencepiece_model_says_of_itself_is_followed(options, drawn, lines):
    trained = Trained(drawn[:1000], "deberta-v2", **options)
    ours = trained.tokenizer()
    texts = plain(text.strip() for text in (*drawn[: min(1500, len(lines))], *TORTURE))
    # The package reads the two characters of a line end as one.
    texts = [text for text in texts if "\r\n" not in text]
    for text, encoding in zip(texts, ours.encode_batch(texts), strict=True):
        assert encoding.ids[1:-1].tolist() == trained.ids(text), text


@pytest.mark.parametrize(("settings", "text", "same"), [
    ({"do_lower_case": True}, "The FIRST One", "the first one"),
    ({"do_lower_case": False}, "The FIRST One", "The FIRST One"),
])  # fmt: skip
def test_deberta_lower_cases_where_its_config_says(settings, text, same, drawn):
    trained = Trained(drawn[:1000], "deberta-v2")
    assert trained.tokenizer(**settings).encode(text).ids[1:-1].tolist() == trained.ids(same)


def test_a_bpe_model_of_sentencepiece_is_refused(drawn):
    with pytest.raises(UnknownArchitecture, match="only unigram models are supported"):
        Trained(drawn[:1000], "xlm-roberta", model_type="bpe").tokenizer()


def test_sentencepiece_words_keep_their_number(trained, words):
    ours = trained.tokenizer()
    for row in words[:300]:
        encoding = ours.encode_words(row)
        wanted = ours.engine.encode(row, is_pretokenized=True)
        assert encoding.ids.tolist() == wanted.ids
        for token in np.flatnonzero(~encoding.special):
            start, end = encoding.offsets[token]
            before = " ".join(row)[:end].count(" ")
            assert start == end or before == encoding.words[token]


# --- which rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["spiece.model", "sentencepiece.bpe.model"])
def test_a_model_that_two_families_have_is_not_guessed(file):
    with pytest.raises(UnknownArchitecture, match=rf"{file}.* or .*says which"):
        Tokenizer.from_files({file: b"x"})
    config = b'{"tokenizer_class": "PegasusTokenizerFast"}'
    with pytest.raises(UnknownArchitecture, match=rf"{file}.*Pegasus's"):
        Tokenizer.from_files({file: b"x", "tokenizer_config.json": config})


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt"])
def test_a_tokenizer_that_splits_words_by_a_dictionary_is_refused(name):
    """RoFormer's, unless the folder says that its vocabulary is BERT's."""
    files = {name: b"[UNK]\n[CLS]\n[SEP]\na\n", "tokenizer_config.json": b"{}"}
    said = b'{"tokenizer_class": "RoFormerTokenizer"}'
    with pytest.raises(UnknownArchitecture, match="jieba, which is not built; if the vocabulary is of"):
        Tokenizer.from_files({**files, "tokenizer_config.json": said})
    if name == "vocab.txt":
        with pytest.raises(UnknownArchitecture, match="jieba"):
            Tokenizer.from_files(files, "roformer")
        plainly = {**files, "tokenizer_config.json": b'{"tokenizer_class": "BertTokenizer"}'}
        assert Tokenizer.from_files(plainly, "roformer").encode("a").ids.tolist() == [1, 3, 2]


def test_the_tokenizer_class_wins_over_the_model_type(drawn):
    trained = Trained(drawn[:1000], "xlm-roberta")
    config = json.dumps({"tokenizer_class": "CamembertTokenizer"}).encode()
    tokenizer = Tokenizer.from_files({**trained.files, "tokenizer_config.json": config}, "xlm-roberta")
    assert "Camembert" in tokenizer.description
    assert tokenizer.token_to_id("<s>") == 5


@pytest.mark.parametrize("content", [b"", b"no model", b"\xff" * 40])
def test_a_damaged_sentencepiece_model(content):
    pytest.importorskip("sentencepiece", reason="SentencePiece is not installed")
    with pytest.raises(CorruptCheckpoint, match="is not a SentencePiece model"):
        Tokenizer.from_files({"spm.model": content})


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("unmask.base.optional.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'unmask\[sentencepiece\]'"):
        Tokenizer.from_files({"spm.model": b"x"})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("merges.txt", b"#version: 0.2\na b c\n", "line 2 of merges.txt is 'a b c'"),
        ("merges.txt", b"#version: 0.2\n\xff\n", "merges.txt is not UTF-8"),
        ("merges.txt", b"nothing here\n", "do not belong together"),
        ("vocab.json", b"[]", "vocab.json is not a table"),
        ("vocab.json", b'{"<s>": "0"}', "vocab.json is not a table"),
        ("added_tokens.json", b'{"<mask>": 4}', "'<mask>' has id 4"),
        ("added_tokens.json", b'{"<mask>": "4"}', "which is not of type int"),
    ],
)
def test_damaged_byte_level_files(name, content, message):
    files = {"vocab.json": b'{"<s>": 0, "</s>": 1, "a": 2, "<mask>": 3}', "merges.txt": b"#version: 0.2\n"}
    assert Tokenizer.from_files(files).vocabulary_size == 6
    with pytest.raises(CorruptCheckpoint, match=message):
        Tokenizer.from_files({**files, name: content})


def test_a_folder_without_a_vocabulary():
    with pytest.raises(CorruptCheckpoint, match="the folder holds neither"):
        Tokenizer.from_files({"vocab.json": b"{}"})
    with pytest.raises(UnknownArchitecture, match="says which"):
        Tokenizer.from_files({"vocab.json": b'{"a": 0}', "merges.txt": b""})


def test_a_config_beside_tokenizer_json_has_the_last_word_and_says_so():
    """As in transformers: settings that were changed after tokenizer.json was written."""
    files = published("bert-base-uncased", "vocab.txt")
    uncased = {"tokenizer.json": Tokenizer.from_files(files).files["tokenizer.json"]}
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    cased = Tokenizer.from_files({**uncased, "tokenizer_config.json": json.dumps(config).encode()})
    assert cased.encode("The the").pieces[1:-1] == ("[UNK]", "the")
    assert "do_lower_case False by tokenizer_config.json" in cased.description
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    same = Tokenizer.from_files({**uncased, "tokenizer_config.json": json.dumps(config).encode()})
    assert same.encode("The the").pieces[1:-1] == ("the", "the")

    roberta = published("roberta-base", "tokenizer.json")
    config = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}
    spaced = Tokenizer.from_files({**roberta, "tokenizer_config.json": json.dumps(config).encode()})
    assert spaced.encode("Hello").pieces == ("<s>", "ĠHello", "</s>")
    assert spaced.encode("Hello").offsets.tolist() == [[0, 0], [0, 5], [0, 0]]
    assert "add_prefix_space True by tokenizer_config.json" in spaced.description
