"""New tokenizers: their special tokens, their rules, the same every time, and what other programs read."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from tests.support.places import REPOSITORY
from unmask.errors import InvalidRequest
from unmask.text import Tokenizer
from unmask.training.data.chunking import TokenBoundaries
from unmask.training.data.sources import SourceSpec
from unmask.training.data.train_tokenizer import sample, train_tokenizer
from unmask.training.data.writing import write_shards
from unmask.training.vocabulary import Vocabulary

KINDS = ("wordpiece", "bpe", "unigram")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def text(count=400):
    """Sentences in which some syllables are frequent, with accents, digits, quotes and other scripts."""
    rng = np.random.default_rng(0)
    letters = list("abdefghiklmnoprstuváß")
    syllables = ["".join(rng.choice(letters, rng.integers(2, 4))) for _ in range(60)] + ["on", "lo"]
    words = ["".join(rng.choice(syllables, rng.integers(1, 5))) for _ in range(300)]
    lines = []
    for _ in range(count):
        chosen = [str(word) for word in rng.choice(words, rng.integers(3, 12))]
        lines.append(" ".join(chosen).capitalize() + str(rng.choice([".", "!", ", 1,250 “so”.", " 河."])))
    return lines


def trained(kind, size=450, **options):
    if kind == "unigram":
        pytest.importorskip("sentencepiece", reason="the extra 'sentencepiece' is not installed")
    return train_tokenizer(text(), kind, size, **options)


SAMPLES = [
    "Balorin tesmu káon.",
    "the [MASK] and [MASK], done",
    "  two  spaces\tand\nlines  ",
    "Ünïcödé ﬁne ½ 河川 \U0001f30a “so” 1,250",
    "x",
]


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_and_format(kind):
    files = trained(kind)
    tokenizer = Tokenizer.from_files(files)
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == [0, 1, 2, 3, 4]
    assert dict(tokenizer.special_tokens) == {token[1:-1].lower(): token for token in SPECIAL}
    assert tokenizer.files == files
    pair = tokenizer.encode("balorin", "tesmu on")
    at = pair.pieces.index("[SEP]")
    assert (pair.pieces[0], pair.pieces[-1]) == ("[CLS]", "[SEP]")
    assert pair.token_type_ids.tolist() == [0] * (at + 1) + [1] * (len(pair) - at - 1)
    assert pair.special.tolist() == [piece in SPECIAL for piece in pair.pieces]
    vocabulary = Vocabulary.of(tokenizer)
    assert vocabulary.special_V.sum() == 5
    assert (vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id) == (2, 3, 4)
    # Unigram gives no more pieces than the text has frequent substrings.
    assert 300 < vocabulary.size <= 450 if kind == "unigram" else vocabulary.size == 450
    masked = tokenizer.encode("on [MASK] on")
    assert "[MASK]" in masked.pieces
    at = masked.pieces.index("[MASK]")
    assert masked.offsets[at].tolist() == [3, 9]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"lowercase": False}, {"lowercase": True}])
def test_transformers_reads_the_same_ids(kind, options, tmp_path):
    transformers = pytest.importorskip("transformers")
    files = trained(kind, max_tokens=128, **options)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.model_max_length == 128
    assert (theirs.mask_token_id, theirs.pad_token_id, theirs.unk_token_id) == (4, 0, 1)
    assert (theirs.cls_token_id, theirs.sep_token_id) == (2, 3)
    ours = Tokenizer.from_files(files)
    assert len(theirs) == ours.vocabulary_size
    for one in SAMPLES + text()[:20]:
        assert theirs(one)["input_ids"] == ours.encode(one).ids.tolist()
        paired = theirs(one, "lo rin")
        encoding = ours.encode(one, "lo rin")
        assert paired["input_ids"] == encoding.ids.tolist()
        assert paired["token_type_ids"] == encoding.token_type_ids.tolist()


AGAIN = """
from tests.training.test_tokenizer_training import KINDS, digest
print([digest(kind) for kind in KINDS])
"""


def digest(kind):
    return hashlib.sha256(json.dumps({n: c.decode() for n, c in trained(kind).items()}).encode()).hexdigest()


def test_another_process_learns_the_same():
    """Hash tables of the trainers are in another order in every process."""
    first = [digest(kind) for kind in KINDS]
    again = subprocess.run(
        [sys.executable, "-c", AGAIN], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert again.stdout.strip() == str(first)


def test_word_piece_by_berts_rules():
    """The greedy longest match of Devlin et al. 2019, written out, over a cleaning written out."""
    import unicodedata

    tokenizer = Tokenizer.from_files(trained("wordpiece"))
    vocabulary = {tokenizer.engine.id_to_token(i) for i in range(tokenizer.vocabulary_size)}
    for one in text()[:60]:
        clean = "".join(
            c for c in unicodedata.normalize("NFD", one.lower()) if unicodedata.category(c) != "Mn"
        )
        spaced = "".join(
            f" {c} " if unicodedata.category(c).startswith("P") or "一" <= c <= "鿿" else c for c in clean
        )
        pieces = []
        for word in spaced.split():
            start, found = 0, []
            while start < len(word):
                ends = [
                    end
                    for end in range(len(word), start, -1)
                    if ("##" if start else "") + word[start:end] in vocabulary
                ]
                if not ends:
                    found = ["[UNK]"]
                    break
                found.append(("##" if start else "") + word[start : ends[0]])
                start = ends[0]
            pieces += found
        assert list(tokenizer.encode(one).pieces[1:-1]) == pieces
    assert "[UNK]" not in {p for one in text() for p in tokenizer.encode(one).pieces}


def test_byte_pairs_lose_nothing():
    for prefix in (False, True):
        tokenizer = Tokenizer.from_files(trained("bpe", add_prefix_space=prefix))
        for one in SAMPLES[3:] + text()[:20]:
            ids = tokenizer.engine.encode(one, add_special_tokens=False).ids
            assert tokenizer.engine.decode(ids) == " " * prefix + one.replace("\u0301", "")
        first = tokenizer.encode("on on").pieces[1]
        assert first.startswith("Ġ") == prefix


def test_the_mask_of_byte_pairs_owns_the_space_before_it():
    tokenizer = Tokenizer.from_files(trained("bpe"))
    assert tokenizer.encode("on [MASK] on").ids.tolist() == tokenizer.encode("on[MASK] on").ids.tolist()


def test_unigram_by_alberts_rules():
    tokenizer = Tokenizer.from_files(trained("unigram"))
    assert tokenizer.encode("``Káon''").ids.tolist() == tokenizer.encode('"kaon"').ids.tolist()
    pieces = tokenizer.encode("1,250").pieces
    assert not [piece for piece in pieces if len(piece) > 2 and piece.endswith(",")]
    # It learned the frequent syllables' compounds, not letters alone.
    assert np.mean([len(p) for one in text() for p in tokenizer.encode(one).pieces[1:-1]]) > 2


@pytest.mark.parametrize(
    ("kind", "size", "sentence"),
    [
        ("words", 99, "kind of tokenizer is 'words'; it can be wordpiece, bpe, unigram"),
        ("bpe", 261, "vocabulary_size is 261; bpe needs more than 261"),
        ("wordpiece", 20, r"vocabulary_size is 20; the letters and special tokens of this text are \d\d"),
        ("unigram", 12, "no unigram vocabulary of 12 tokens can be trained"),
    ],
)
def test_what_is_refused(kind, size, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        train_tokenizer(text(50), kind, size)


def test_a_sample_is_spread_by_weight(tmp_path):
    for name in ("a", "b", "c"):
        lines = [json.dumps({"text": f"{name}{number:05d} " * 3}) for number in range(3000)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines[: 50 if name == "c" else 3000]))
    sources = [
        SourceSpec("a", ("a.jsonl",), weight=2.0),
        SourceSpec("b", ("b.jsonl",), weight=1.0),
        SourceSpec("c", ("c.jsonl",), weight=1.0),
    ]
    found = list(sample(sources, tmp_path, 40_000))
    assert found == list(sample(sources, tmp_path, 40_000))
    sizes = {name: sum(len(one) for one in found if one[0] == name) for name in "abc"}
    assert sizes["a"] == pytest.approx(20_000, rel=0.01)
    assert sizes["b"] == pytest.approx(10_000, rel=0.01)
    assert sizes["c"] == 50 * 21
    numbers = [int(one[1:6]) for one in found if one[0] == "b"]
    assert np.abs(np.array(numbers) - np.linspace(0, 3000, len(numbers))).max() < 20


def test_a_sample_takes_long_documents_in_part(tmp_path):
    paragraphs = [f"{number:04d} " * 100 for number in range(2000)]
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "\n".join(paragraphs)}))
    found = list(sample([SourceSpec("a", ("a.jsonl",))], tmp_path, 200_000))
    assert sum(map(len, found)) == pytest.approx(200_000, rel=0.15)
    firsts = [int(one.split()[0]) for one in found]
    assert firsts[0] < 300
    assert firsts[-1] > 1700


def test_chunks_of_byte_pairs(tmp_path):
    """Where a document's lines are joined there is a line break; cuts are after sentences and quotes."""
    tokenizer = Tokenizer.from_files(trained("bpe"))
    marks = TokenBoundaries.of(tokenizer, Vocabulary.of(tokenizer))
    assert tokenizer.engine.decode(marks.between_paragraphs.tolist()) == "\n"
    prefixed = Tokenizer.from_files(trained("bpe", add_prefix_space=True))
    assert TokenBoundaries.of(prefixed, Vocabulary.of(prefixed)).between_paragraphs.tolist() == []

    def chunks_of(document, name, **changes):
        spec = SourceSpec("a", ("a",), **changes)
        made = write_shards([document], tokenizer, spec, tmp_path / name)
        return [tokenizer.engine.decode(made.ids(i).tolist()) for i in range(made.count)]

    long = 'Rinder tesmu. (Lobaon!) "Derlo?" Mulo, derba tesing onder lorin.'
    assert chunks_of("Balo\n\nRinder tesmu.", "a", split_by="paragraph", min_tokens=4) == [
        "Balo\nRinder tesmu."
    ]
    ids = tokenizer.engine.encode('Rinder tesmu. (Lobaon!) "Derlo?"', add_special_tokens=False).ids
    made = chunks_of(long, "b", max_tokens=len(ids) + 3)
    assert made[0] == 'Rinder tesmu. (Lobaon!) "Derlo?"'
    assert "".join(made) == long
    split = chunks_of("Rinder tesmu. Lobaon!\nDerlo.", "c", split_by="sentence")
    assert split == ["Rinder tesmu.", " Lobaon!", "Derlo."]
    with pytest.raises(InvalidRequest, match="source a gave 1 documents and no chunk"):
        chunks_of("Rinder tesmu. Lobaon!\nDerlo.", "d", split_by="sentence", min_tokens=60, max_tokens=120)
    text = "Rinder tesmu. Lobaon!\nDerlo."
    whole = len(tokenizer.engine.encode(text, add_special_tokens=False).ids)
    joined = chunks_of(text, "e", split_by="sentence", min_tokens=whole - 1, max_tokens=120)
    assert joined == [text]
