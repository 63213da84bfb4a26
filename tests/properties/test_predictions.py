"""Predictions on any Unicode text, with every published tokenizer: offsets, windows, merging, companions.

The logits are random and belong to tokens, so that a token has the same ones in whatever window it is read.
"""

import itertools
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

import unmask
from tests.support.examples import examples
from tests.support.places import shared
from tests.support.tiny import change_json, change_tensors, tiny_bert, write_tokenizer
from unmask.errors import EmptyText, InvalidRequest
from unmask.spec import Classifier
from unmask.tasks.answer import answer
from unmask.tasks.classify import classify
from unmask.tasks.logits import WindowedLogits
from unmask.tasks.tag import tag
from unmask.text import Tokenizer
from unmask.text.windows import windows

TOKENIZERS = {
    "bert-base-uncased": (("vocab.txt",), "bert"),
    "roberta-base": (("vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json"), "roberta"),
    "albert-base-v2": (("spiece.model",), "albert"),
    "modernbert": (("tokenizer.json",), "modernbert"),
}
PIECES = (
    *("the river bank", "Mary", " ", ", ", "don't", "3.14", "antidisestablishmentarianism"),
    *("e\u0301", "n\u0303o\u0302", "\u0301", "a" + "\u0300" * 9, "\u1100\u1161\u11a8", "각"),
    *("👩‍👩‍👧‍👦", "👍🏽", "🇫🇷", "🏳️‍🌈", "☕\ufe0f", "🫠"),
    *("שלום", "مرحبا", "\u202e", "\u200f", "\ufdfa", "ﷺ"),
    *("\u200b", "\u200d", "\ufeff", "\u2060", "\u00ad", "\x00", "\x07", "\x85", "\ufffd", "\ufffe"),
    *("ﬃ", "㎏", "½", "①", "ｆｕｌｌ", "ſ", "İ", "ß", "ǅ", "\u0345", "\u2126", "🄰", "℡"),
    *("我爱", "日本語のテスト", "ที่นี่", "नमस्ते", "\U00020000", "\u3000", "\u00a0", "\t", "\r\n", "\u2028"),
    *("[MASK]", "[SEP]", "<s>", "</s>", "<|endoftext|>", "##ing", "Ġ", "▁"),
)
TEXT = st.lists(
    st.one_of(st.sampled_from(PIECES), st.text(st.characters(exclude_categories=["Cs"]), max_size=4)),
    min_size=1,
    max_size=12,
).map("".join)
NAMES = st.sampled_from(sorted(TOKENIZERS))
TAGS = ("O", "B-X", "I-X", "B-Y", "I-Y")
TAGGER = Classifier("tokens", len(TAGS), "tokens", labels=TAGS)


@cache
def tokenizer_of(name):
    files, family = TOKENIZERS[name]
    folder = shared(f"tokenizers/{name}")
    return Tokenizer.from_files({file: (folder / file).read_bytes() for file in files}, family)


def encoded(name, *texts):
    try:
        return tokenizer_of(name).encode(*texts)
    except EmptyText:
        assume(False)


def random_logits(encoding, width, seed):
    return np.random.default_rng(seed).normal(size=(len(encoding), width)) * 3


def read(encoding, values, max_tokens=None, overlap=None):
    parts = windows(encoding, max_tokens, overlap)
    return WindowedLogits(encoding, parts, [values[part.tokens] for part in parts])


def room_and_overlap(encoding, data, least_overlap=0):
    """A length of windows that the text needs several of, and how much they share; None if there is none."""
    fixed = int((encoding.sequence_ids != (0 if encoding.pair is None else 1)).sum())
    room = data.draw(st.integers(least_overlap + 1, max(least_overlap + 1, len(encoding) - fixed)))
    return fixed + room, data.draw(st.integers(least_overlap, room - 1))


@examples(150)
@given(name=NAMES, text=TEXT, seed=st.integers(0, 9), data=st.data())
def test_tags_index_the_text_and_windows_change_nothing(name, text, seed, data):
    encoding = encoded(name, text)
    ours = ~encoding.special
    starts, ends = encoding.offsets[ours].T
    assert ((starts >= 0) & (starts <= ends) & (ends <= len(text))).all()
    values = random_logits(encoding, len(TAGS), seed)
    (whole,) = tag(TAGGER, [read(encoding, values)])
    for spans in (whole.words, whole.entities):
        for one in spans:
            assert one.start < one.end
            assert text[one.start : one.end] == one.text
        for one, other in itertools.pairwise(spans):
            assert one.end <= other.start
    covered = [place for place in range(len(text)) if any(w.start <= place < w.end for w in whole.words)]
    for start, end in zip(starts, ends, strict=True):
        if text[start:end].strip():
            assert set(range(start, end)) <= set(covered), "a token is in no word"
    assert all(one.text.strip() for one in whole.words)
    limit, overlap = room_and_overlap(encoding, data)
    split = read(encoding, values, limit, overlap)
    owned = np.zeros(len(encoding), dtype=int)
    for window in split.windows:
        assert len(window.tokens) <= limit
        np.testing.assert_array_equal(window.encoding.ids, encoding.ids[window.tokens])
        np.testing.assert_array_equal(window.encoding.offsets, encoding.offsets[window.tokens])
        owned[window.tokens[window.owned]] += 1
    assert (owned == 1).all()
    (merged,) = tag(TAGGER, [split])
    assert (merged.words, merged.entities) == (whole.words, whole.entities)
    assert merged.windows == len(split.windows)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("modernbert", "日本語", ["日本", "語"]),
        ("albert-base-v2", "日本語", ["日本語"]),
        ("modernbert", "New  York\n\n(city),", ["New", "York", "(", "city", "),"]),
        ("roberta-base", "New  York\n\n(city),", ["New", "York", "(", "city", "),"]),
        ("bert-base-uncased", "New  York\n\n(city),", ["New", "York", "(", "city", ")", ","]),
        ("bert-base-uncased", "x[MASK]y", ["x", "[MASK]", "y"]),
    ],
)
def test_a_token_over_several_words_makes_them_one(name, text, words):
    encoding = encoded(name, text)
    (found,) = tag(TAGGER, [read(encoding, random_logits(encoding, len(TAGS), 0))])
    assert [one.text for one in found.words] == words


@examples(100)
@given(name=NAMES, words=st.lists(TEXT.filter(str.strip), min_size=1, max_size=6), seed=st.integers(0, 9))
def test_tags_of_given_words(name, words, seed):
    try:
        encoding = tokenizer_of(name).encode_words(words)
    except EmptyText:
        assume(False)
    (found,) = tag(TAGGER, [read(encoding, random_logits(encoding, len(TAGS), seed))])
    joined = " ".join(words)
    bounds = list(itertools.accumulate((len(word) + 1 for word in words), initial=0))
    for one in found.words:
        assert joined[one.start : one.end] == one.text
        assert bounds[one.word] <= one.start < one.end < bounds[one.word + 1]
    assert [one.word for one in found.words] == sorted({one.word for one in found.words})
    labels = found.labels(len(words))
    assert [labels[one.word] for one in found.words] == [one.label for one in found.words]
    for entity in found.entities:
        assert joined[entity.start : entity.end] == entity.text


@examples(150)
@given(name=NAMES, context=TEXT, seed=st.integers(0, 9), longest=st.integers(1, 5), data=st.data())
@example(name="roberta-base", context="👩‍👩‍👧‍👦 ﷺ", seed=0, longest=3, data=None)
def test_answers_index_the_context_and_windows_change_nothing(name, context, seed, longest, data):
    encoding = encoded(name, "Who is it?", context)
    values = random_logits(encoding, 2, seed)
    options = {"top_k": 4, "max_answer_tokens": longest}
    whole = answer([read(encoding, values)], **options)
    for one in whole.answers:
        assert one.start < one.end
        assert context[one.start : one.end] == one.text
    for one, other in itertools.combinations(whole.answers, 2):
        assert one.end <= other.start or other.end <= one.start
    if data is None:
        return
    # Every span of so many tokens is whole in a window if neighbors share one token less.
    limit, overlap = room_and_overlap(encoding, data, longest - 1)
    split = answer([read(encoding, values, limit, overlap)], **options)
    assert [(a.start, a.end, a.text) for a in split.answers] == [
        (a.start, a.end, a.text) for a in whole.answers
    ]
    np.testing.assert_allclose([a.score for a in split.answers], [a.score for a in whole.answers], rtol=1e-9)


@given(name=NAMES, text=TEXT, seed=st.integers(0, 9), order=st.permutations(range(len(TAGS))), data=st.data())
def test_the_order_of_labels_changes_nothing(name, text, seed, order, data):
    encoding = encoded(name, text)
    values = random_logits(encoding, len(TAGS), seed)
    limit, overlap = room_and_overlap(encoding, data)
    names = tuple(TAGS[place] for place in order)
    permuted = Classifier("tokens", len(TAGS), "tokens", labels=names)
    one = tag(TAGGER, [read(encoding, values, limit, overlap)])
    other = tag(permuted, [read(encoding, values[:, list(order)], limit, overlap)])
    assert [(word.label, word.start) for word in one[0].words] == [
        (word.label, word.start) for word in other[0].words
    ]
    assert [(e.label, e.start, e.end) for e in one[0].entities] == [
        (e.label, e.start, e.end) for e in other[0].entities
    ]
    # A sequence head's logits are one row for each window.
    parts = windows(encoding, limit, overlap)
    rows = np.random.default_rng(seed).normal(size=(len(parts), len(TAGS)))
    (one,) = classify(TAGGER, [WindowedLogits(encoding, parts, list(rows))])
    (other,) = classify(permuted, [WindowedLogits(encoding, parts, list(rows[:, list(order)]))])
    assert one.label == other.label
    for label in TAGS:
        assert one.scores[label] == pytest.approx(other.scores[label], abs=1e-12)


def config_of(family, vocabulary, kind):
    import transformers

    kinds = {"bert": "Bert", "roberta": "Roberta", "albert": "Albert", "modernbert": "ModernBert"}
    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 40,
        "max_position_embeddings": 26,
        "initializer_range": 0.3,
    }
    if kind != "QuestionAnswering":
        sizes["id2label"] = dict(enumerate(TAGS))
    if family == "albert":
        sizes["embedding_size"] = 16
    if family == "modernbert":
        sizes |= {"local_attention": 8, "global_attn_every_n_layers": 2}
        sizes |= {"initializer_cutoff_factor": 1.0}
    return kinds[family], getattr(transformers, f"{kinds[family]}Config")(**sizes)


@cache
def model_of(name, kind, folder):
    """A random model of a tokenizer's own family; ``folder`` is where it is saved."""
    import transformers

    files, family = TOKENIZERS[name]
    tokenizer = tokenizer_of(name)
    place = folder / f"{name}-{kind}"
    place.mkdir()
    stem, config = config_of(family, tokenizer.vocabulary_size, kind)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        getattr(transformers, f"{stem}For{kind}")(config).save_pretrained(place)
    for file in files:
        (place / file).write_bytes((shared(f"tokenizers/{name}") / file).read_bytes())
    return unmask.load(place)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
@examples(6)
@given(texts=st.lists(TEXT, min_size=2, max_size=5))
def test_companions_change_nothing(folder, name, texts):
    for text in texts:
        encoded(name, text)
    classifier = model_of(name, "SequenceClassification", folder)
    for text, one in zip(texts, classifier.classify(texts), strict=True):
        alone = classifier.classify(text)
        np.testing.assert_allclose(list(alone.scores.values()), list(one.scores.values()), atol=1e-5)
        assert (alone.windows, alone.tokens_read) == (one.windows, one.tokens_read)
    tagger = model_of(name, "TokenClassification", folder)
    for text, one in zip(texts, tagger.tag(texts), strict=True):
        alone = tagger.tag(text)
        assert [(w.start, w.end, w.label) for w in alone.words] == [
            (w.start, w.end, w.label) for w in one.words
        ]
        np.testing.assert_allclose([w.score for w in alone.words], [w.score for w in one.words], atol=1e-5)
    answerer = model_of(name, "QuestionAnswering", folder)
    questions = ["Who?"] * len(texts)
    for text, one in zip(texts, answerer.answer(questions, texts, top_k=2), strict=True):
        alone = answerer.answer("Who?", text, top_k=2)
        np.testing.assert_allclose(
            [a.score for a in alone.answers], [a.score for a in one.answers], atol=1e-5
        )
        assert all(text[a.start : a.end] == a.text for a in one.answers)


@pytest.mark.parametrize("kind", ["SequenceClassification", "TokenClassification"])
def test_the_rows_of_a_head_with_their_labels_in_another_order(tmp_path, kind):
    order = [3, 0, 4, 2, 1]
    for name in ("one", "other"):
        write_tokenizer(tmp_path / name)
        tiny_bert(f"BertFor{kind}", id2label=dict(enumerate(TAGS))).save_pretrained(tmp_path / name)

    def permute(tensors):
        for tensor in ("classifier.weight", "classifier.bias"):
            tensors[tensor] = tensors[tensor][order].clone()

    change_tensors(tmp_path / "other", permute)
    names = [TAGS[place] for place in order]
    change_json(
        tmp_path / "other" / "config.json",
        id2label={str(number): name for number, name in enumerate(names)},
        label2id={name: number for number, name in enumerate(names)},
    )
    one, other = unmask.load(tmp_path / "one"), unmask.load(tmp_path / "other")
    for text in ("the river bank", "a text " * 20):
        if kind == "SequenceClassification":
            found, same = one.classify(text), other.classify(text)
            assert found.label == same.label
            assert same.scores == pytest.approx(dict(found.scores), abs=1e-6)
        else:
            found, same = one.tag(text), other.tag(text)
            assert [word.label for word in found.words] == [word.label for word in same.words]
            assert [entity.text for entity in found.entities] == [entity.text for entity in same.entities]


def test_windows_too_small_are_refused():
    encoding = encoded("bert-base-uncased", "Who is it?", "the river bank")
    with pytest.raises(InvalidRequest, match="shorten the first text"):
        windows(encoding, 7)
