"""Classes, labels of words and answers of tiny checkpoints, beside `transformers` and beside plain code."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

import unmask
from tests.support.tiny import tiny_bert, write_tokenizer
from unmask.errors import InvalidRequest, NonFiniteResult, TextTooLong
from unmask.spec import Classifier
from unmask.tasks import answer as answers
from unmask.tasks.answer import answer
from unmask.tasks.classify import classifier_of, classify
from unmask.tasks.logits import WindowedLogits
from unmask.tasks.schemes import Scheme, entities_of
from unmask.tasks.tag import best_sequence
from unmask.text import Encoding
from unmask.text.windows import windows

TEXTS = ["The river bank was muddy.", "a text", "the river, the bank, the river!"]
LONG = "the river bank was muddy . " * 9
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def saved(folder, kind, **changes):
    model = tiny_bert(kind, **changes)
    write_tokenizer(folder)
    model.save_pretrained(folder)
    return model, unmask.load(folder)


@pytest.fixture(scope="module")
def sequence(tmp_path_factory):
    names = {0: "bad", 1: "fair", 2: "good"}
    return saved(
        tmp_path_factory.mktemp("sequence"),
        "BertForSequenceClassification",
        id2label=names,
        label2id={name: number for number, name in names.items()},
    )


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return saved(
        tmp_path_factory.mktemp("tokens"), "BertForTokenClassification", id2label=dict(enumerate(TAGS))
    )


@pytest.fixture(scope="module")
def span(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("span"), "BertForQuestionAnswering")


def their_logits(model, encoding):
    inputs = {
        "input_ids": torch.tensor(encoding.ids)[None],
        "token_type_ids": torch.tensor(encoding.token_type_ids)[None],
    }
    with torch.no_grad():
        return model(**inputs)


@pytest.mark.parametrize("pairs", [None, ["a river", "muddy", "another bank"]])
def test_classes_are_those_of_transformers(sequence, pairs):
    theirs, ours = sequence
    found = ours.classify(TEXTS, pairs)
    for one, encoding in zip(found, ours.tokenize(TEXTS, pairs), strict=True):
        p = their_logits(theirs, encoding).logits[0].softmax(-1).numpy()
        assert list(one.scores) == ["bad", "fair", "good"]
        np.testing.assert_allclose(list(one.scores.values()), p, atol=5e-6)
        assert (one.label, one.labels) == (["bad", "fair", "good"][p.argmax()],) * 1 + ((one.label,),)
        assert one.score == max(one.scores.values())
        assert (one.tokens_read, one.windows, one.truncated_tokens) == (len(encoding), 1, 0)
    assert ours.classify(TEXTS[0], pairs and pairs[0]).label == found[0].label
    assert ours.classify([]) == []


def test_a_long_text_is_the_mean_of_its_windows(sequence):
    _, ours = sequence
    one = ours.classify(LONG, overlap_tokens=5)
    encoding = ours.tokenizer.encode(LONG)
    assert (one.tokens_read, one.truncated_tokens) == (len(encoding), 0)
    parts = windows(encoding, 23, 5)
    assert one.windows == len(parts) == 4
    p_WC = [
        torch.from_numpy(ours.engine.logits(_packed(part.encoding), "sequence")).softmax(-1)[0].numpy()
        for part in parts
    ]
    shares = [part.owned.sum() / len(encoding) for part in parts]
    np.testing.assert_allclose(list(one.scores.values()), np.array(shares) @ p_WC, atol=1e-6)
    with pytest.raises(TextTooLong, match="the text has 56 tokens and the model reads at most 23"):
        ours.classify(LONG, truncation="error")
    cut = ours.classify(LONG, truncation="end")
    assert (cut.tokens_read, cut.windows, cut.truncated_tokens) == (23, 1, 33)


def _packed(encoding):
    from unmask.text import PackedBatch

    return PackedBatch.of_ids([encoding.ids], [encoding.token_type_ids])


def test_regression_and_several_labels(tmp_path):
    theirs, ours = saved(
        tmp_path / "number", "BertForSequenceClassification", num_labels=1, problem_type="regression"
    )
    (encoding,) = ours.tokenize(TEXTS[:1])
    one = ours.classify(TEXTS[0])
    assert one.score == pytest.approx(float(their_logits(theirs, encoding).logits), abs=1e-5)
    assert one.labels == ()
    values = WindowedLogits(encoding, windows(encoding, None), [np.array([one.score])])
    (warm,) = classify(replace(classifier_of(ours.spec, "sequence", "m"), temperature=2.0), [values])
    assert warm.score == one.score  # a temperature is for probabilities
    names = {0: "red", 1: "green", 2: "blue"}
    theirs, ours = saved(
        tmp_path / "several",
        "BertForSequenceClassification",
        id2label=names,
        problem_type="multi_label_classification",
    )
    p = their_logits(theirs, encoding).logits[0].sigmoid().numpy()
    for threshold in (0.0, 0.3, 0.5, 0.9):
        one = ours.classify(TEXTS[0], threshold=threshold)
        np.testing.assert_allclose(list(one.scores.values()), p, atol=5e-6)
        assert one.labels == tuple(name for name, q in zip(names.values(), p, strict=True) if q >= threshold)
    reached = one.scores["green"]
    assert "green" in ours.classify(TEXTS[0], threshold=reached).labels


def test_logits_of_all_windows_decide_between_probabilities_of_1(sequence):
    _, ours = sequence
    head = replace(classifier_of(ours.spec, "sequence", ours.name), problem_type="multi_label_classification")
    encoding = _tiny_tokenizer().encode(LONG)
    parts = windows(encoding, 30)
    logits = [np.array([-50.0, 60.0, 55.0]), *(np.array([-50.0, 60.0, 90.0]) for _ in parts[1:])]
    (prediction,) = classify(head, [WindowedLogits(encoding, parts, logits)])
    assert len(parts) > 2
    assert prediction.scores["fair"] == prediction.scores["good"]
    assert prediction.label == "good"


def test_words_are_labeled_by_their_first_token(tokens):
    theirs, ours = tokens
    text = "The muddy river, wasbank!"
    found = ours.tag(text)
    assert [word.text for word in found.words] == ["The", "muddy", "river", ",", "wasbank", "!"]
    assert all(text[word.start : word.end] == word.text for word in found.words)
    encoding = ours.tokenizer.encode(text)
    p_NC = their_logits(theirs, encoding).logits[0].softmax(-1).numpy()
    starts = {word.start: word for word in found.words}
    for token, (start, end) in enumerate(encoding.offsets.tolist()):
        if start in starts and end > start:
            word = starts[start]
            assert word.score == pytest.approx(p_NC[token, TAGS.index(word.label)], abs=1e-6)
    same = ours.tag([["The", "muddy", "river", ",", "wasbank", "!"]])[0]
    assert [word.label for word in same.words] == [word.label for word in found.words]


def test_the_mean_of_a_word_s_tokens(tokens):
    theirs, ours = tokens
    encoding = ours.tokenizer.encode("wasbank")
    p_NC = their_logits(theirs, encoding).logits[0].softmax(-1).numpy()
    inside = p_NC[1:-1]
    assert len(inside) > 1
    (word,) = ours.tag("wasbank", aggregation="mean").words
    legal = [0, 1, 3]  # an entity of one word begins
    assert word.score == pytest.approx(inside.mean(0)[legal].max(), abs=1e-6)


def best_by_hand(p_WC, labels):
    """The most probable sequence in which I-X follows B-X or I-X, by trying all."""

    def legal(sequence):
        before = "O"
        for label in sequence:
            if label.startswith("I-") and before[2:] != label[2:]:
                return False
            before = label
        return True

    def value(sequence):
        return sum(np.log(p_WC[word, labels.index(label)]) for word, label in enumerate(sequence))

    return max(filter(legal, itertools.product(labels, repeat=len(p_WC))), key=value)


def test_labels_are_the_best_legal_sequence(tokens):
    _, ours = tokens
    for text in ("the river bank was muddy", "a text , a bank !", "muddy"):
        encoding = ours.tokenizer.encode(text)
        logits = ours.logits(text).values
        p_NC = torch.from_numpy(logits).softmax(-1).numpy()
        p_WC = p_NC[1:-1]
        assert len(p_WC) == len(text.split())
        found = ours.tag(text)
        assert tuple(word.label for word in found.words) == best_by_hand(p_WC, TAGS)
        assert len(encoding) == found.tokens_read


@pytest.mark.parametrize("labels", [TAGS, ["O", "B-X", "I-X", "L-X", "U-X"], ["O", "I-X", "I-Y"]])
def test_the_best_sequence_of_random_probabilities(labels):
    scheme = Scheme(tuple(labels))
    first, follows, last = scheme.allowed()
    draw = np.random.default_rng(0)
    for _ in range(20):
        p_WC = draw.dirichlet(np.full(len(labels), 0.5), size=5)
        legal = [
            one
            for one in itertools.product(range(len(labels)), repeat=5)
            if first[one[0]] and last[one[-1]] and all(follows[a, b] for a, b in itertools.pairwise(one))
        ]
        best = max(legal, key=lambda one: np.log(p_WC[range(5), list(one)]).sum())
        assert tuple(best_sequence(p_WC, scheme).tolist()) == best


def test_a_long_text_is_tagged_as_its_windows_see_it(tokens):
    _, ours = tokens
    found = ours.tag(LONG, overlap_tokens=8)
    words = LONG.split()
    assert [word.text for word in found.words] == words
    encoding = ours.tokenizer.encode(LONG)
    for window in windows(encoding, 23, 8):
        logits = torch.from_numpy(ours.engine.logits(_packed(window.encoding), "tokens")).softmax(-1)
        for place in np.flatnonzero(window.owned & ~window.encoding.special):
            word = found.words[window.tokens[place] - 1]
            assert word.score == pytest.approx(float(logits[place, TAGS.index(word.label)]), abs=1e-6)


def test_the_score_of_an_entity_is_the_mean_of_its_words(tokens):
    _, ours = tokens
    found = ours.tag(LONG)
    spans = entities_of([word.label for word in found.words])
    scores = [np.mean([word.score for word in found.words[first:end]]) for _, first, end in spans]
    assert [entity.score for entity in found.entities] == pytest.approx(scores, rel=1e-12)
    assert any(end - first > 1 for _, first, end in spans)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["B-PER", "I-PER", "O", "B-PER"], [("PER", 0, 2), ("PER", 3, 4)]),
        (["B-PER", "B-PER"], [("PER", 0, 1), ("PER", 1, 2)]),
        (["B-PER", "I-LOC", "I-LOC"], [("PER", 0, 1), ("LOC", 1, 3)]),
        (["I-PER", "I-PER", "O"], [("PER", 0, 2)]),
        (["B-X", "I-X", "L-X", "U-X", "U-X"], [("X", 0, 3), ("X", 3, 4), ("X", 4, 5)]),
        (["B-X", "E-X", "I-X"], [("X", 0, 2), ("X", 2, 3)]),
        (["O", "O"], []),
    ],
)
def test_entities_of_labels(labels, expected):
    assert entities_of(labels) == expected


def test_bilou_entities_are_closed():
    scheme = Scheme(("O", "B-X", "I-X", "L-X", "U-X"))
    first, follows, last = scheme.allowed()
    assert first.tolist() == [True, True, False, False, True]
    assert last.tolist() == [True, False, False, True, True]
    assert follows[1].tolist() == [False, False, True, True, False]
    assert follows[3].tolist() == [True, True, False, False, True]
    assert scheme.has_entities
    assert not Scheme(("NOUN", "VERB")).has_entities


def test_iob1_begins_with_inside():
    first, follows, _ = Scheme(("O", "I-X", "I-Y")).allowed()
    assert first.all()
    assert follows.all()


def plain_answer(logits_N2, context_N, longest):
    """The best span and its probability among all, by trying each."""
    spans = {
        (i, j): logits_N2[i, 0] + logits_N2[j, 1]
        for i in range(len(logits_N2))
        for j in range(i, min(i + longest, len(logits_N2)))
        if context_N[i] and context_N[j]
    }
    total = np.logaddexp.reduce(list(spans.values()))
    best = max(spans, key=spans.get)
    return best, float(np.exp(spans[best] - total)), total


def test_the_best_span_of_a_context(span):
    theirs, ours = span
    question, context = "the bank?", "The river bank was muddy. Another text!"
    (encoding,) = ours.tokenize([question], [context])
    out = their_logits(theirs, encoding)
    logits = torch.stack((out.start_logits[0], out.end_logits[0]), -1).double().numpy()
    (i, j), p, total = plain_answer(logits, encoding.sequence_ids == 1, 4)
    found = ours.answer(question, context, max_answer_tokens=4)
    (one,) = found.answers
    assert (one.start, one.end) == (encoding.offsets[i, 0], encoding.offsets[j, 1])
    assert one.text == context[one.start : one.end]
    assert one.score == pytest.approx(p, rel=1e-4)
    assert found.null_score is None
    null = logits[0].sum()
    asked = ours.answer(question, context, max_answer_tokens=4, no_answer=True, null_threshold=1.0)
    assert asked.null_score == pytest.approx(np.exp(null - np.logaddexp(total, null)), rel=1e-4)
    none = ours.answer(question, context, no_answer=True, null_threshold=0.0)
    assert none.answers == ()


def test_answers_of_several_contexts_share_one_sum(span):
    _, ours = span
    contexts = ["The river bank was muddy.", "a text", LONG]
    found = ours.answer("the bank?", contexts, top_k=1000, overlap_tokens=4)
    assert found.windows > 3
    assert sum(one.score for one in found.answers) <= 1 + 1e-9
    assert [one.score for one in found.answers] == sorted((one.score for one in found.answers), reverse=True)
    for one in found.answers:
        assert contexts[one.context][one.start : one.end] == one.text
    for a, b in itertools.combinations(found.answers, 2):
        assert a.context != b.context or a.end <= b.start or b.end <= a.start


def test_a_span_in_two_windows_counts_once():
    """The same logits wherever a token is seen: windows then change nothing."""

    tokenizer = _tiny_tokenizer()
    encoding = tokenizer.encode("a text", LONG)
    values = np.random.default_rng(0).normal(size=(len(encoding), 2))
    whole = WindowedLogits(encoding, windows(encoding, None), [values])
    parts = windows(encoding, 30, 12)
    split = WindowedLogits(encoding, parts, [values[part.tokens] for part in parts])
    one, two = answer([whole], top_k=3, max_answer_tokens=6), answer([split], top_k=3, max_answer_tokens=6)
    assert len(parts) > 2
    assert [(a.start, a.end) for a in one.answers] == [(a.start, a.end) for a in two.answers]
    np.testing.assert_allclose([a.score for a in one.answers], [a.score for a in two.answers], rtol=1e-9)


def test_a_span_in_two_windows_has_its_higher_score():
    tokenizer = _tiny_tokenizer()
    encoding = tokenizer.encode("a text", LONG)
    parts = windows(encoding, 30, 12)
    shared = int(np.intersect1d(parts[0].tokens, parts[1].tokens)[-2])  # the last is [SEP]
    values = [np.full((len(part.tokens), 2), -9.0) for part in parts]
    for part, logits, score in zip(parts[:2], values[:2], (3.0, 1.0), strict=True):
        logits[part.tokens == shared] = score
    found = answer([WindowedLogits(encoding, parts, values)], max_answer_tokens=1)
    others = ((encoding.sequence_ids == 1).sum() - 1) * np.exp(-18)
    assert found.answers[0].score == pytest.approx(np.exp(6) / (np.exp(6) + others), rel=1e-9)


def test_no_answer_has_its_lowest_score_over_windows():
    encoding = _tiny_tokenizer().encode("a text", LONG)
    parts = windows(encoding, 30, 12)
    values = [np.zeros((len(part.tokens), 2)) for part in parts]
    for logits, score in zip(values, (2.0, -3.0, *(1.0 for _ in parts[2:])), strict=True):
        logits[0] = score
    spans = (encoding.sequence_ids == 1).sum()
    found = answer([WindowedLogits(encoding, parts, values)], max_answer_tokens=1, no_answer=True)
    assert found.null_score == pytest.approx(np.exp(-6) / (np.exp(-6) + spans), rel=1e-9)


def test_equal_places_of_two_contexts_are_two_answers():
    encoding = _tiny_tokenizer().encode("a text", "river")
    context = WindowedLogits(encoding, windows(encoding, None), [np.zeros((len(encoding), 2))])
    found = answer([context, context], top_k=9)
    assert [(one.context, one.text) for one in found.answers] == [(0, "river"), (1, "river")]


def test_a_number_that_is_not_finite_names_its_text(tmp_path):
    _, ours = saved(tmp_path, "BertForSequenceClassification")
    with torch.no_grad():
        ours.trainable_encoder().embedding.words.weight[ours.tokenizer.encode("3").ids[1]] = torch.nan
    with pytest.raises(NonFiniteResult, match="of text 2 is not finite"):
        ours.classify([LONG, "3"])


def test_a_context_is_called_by_its_name(span):
    _, ours = span
    with pytest.raises(InvalidRequest, match="over line 1 has room"):
        answers.prepare(
            ours.reader, ["a text"], [["a text", LONG]], overlap_tokens=35, context_name="line {}".format
        )


@pytest.mark.parametrize("seed", range(6))
def test_answers_may_touch(seed):
    tokenizer = _tiny_tokenizer()
    encoding = tokenizer.encode("a text", "river, bank")
    values = np.random.default_rng(seed).normal(size=(len(encoding), 2))
    found = answer(
        [WindowedLogits(encoding, windows(encoding, None), [values])], top_k=9, max_answer_tokens=1
    )
    assert sorted(one.text for one in found.answers) == [",", "bank", "river"]
    assert sum(one.score for one in found.answers) == pytest.approx(1)


def test_many_answers_are_the_best_spans_in_turn():
    """Beside all spans of two contexts in order, of equal scores by context, first and last token."""
    encoding = _tiny_tokenizer().encode("a text", "river, bank was muddy. " * 12)
    draw = np.random.default_rng(0)
    values = [draw.integers(0, 6, (len(encoding), 2)).astype(float) for _ in range(2)]
    first, end = np.flatnonzero(encoding.sequence_ids == 1)[[0, -1]] + [0, 1]
    spans = [
        (-logits_N2[start, 0] - logits_N2[last, 1], number, start, last)
        for number, logits_N2 in enumerate(values)
        for start in range(first, end)
        for last in range(start, min(start + 5, end))
    ]
    chosen = []
    for span in sorted(spans):
        if not any(o[1] == span[1] and span[2] <= o[3] and o[2] <= span[3] for o in chosen):
            chosen.append(span)
    contexts = [WindowedLogits(encoding, windows(encoding, None), [logits_N2]) for logits_N2 in values]
    found = answer(contexts, top_k=len(spans), max_answer_tokens=5)
    assert [(one.context, one.start, one.end) for one in found.answers] == [
        (number, encoding.offsets[start, 0], encoding.offsets[last, 1]) for _, number, start, last in chosen
    ]
    total = np.exp([-span[0] for span in spans]).sum()
    np.testing.assert_allclose(
        [one.score for one in found.answers], [np.exp(-span[0]) / total for span in chosen], rtol=1e-9
    )


def _tiny_tokenizer():
    from tests.support.tiny import VOCABULARY
    from unmask.text import Tokenizer

    return Tokenizer.from_files({"vocab.txt": "\n".join(VOCABULARY).encode()}, "bert")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda model: model.classify("a text"), "cannot classify texts.*no sequence head .heads: tokens"),
        (lambda model: model.answer("a", "text"), "cannot answer questions.*no span head"),
        (lambda model: model.tag("a text", aggregation="last"), "aggregation is 'last'"),
        (lambda model: model.tag("a text", overlap_tokens=-1), "overlap_tokens is -1"),
    ],
)
def test_what_a_checkpoint_cannot_do(tokens, call, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        call(tokens[1])


def test_a_span_head_of_another_width_is_refused(tmp_path):
    _, ours = saved(tmp_path / "model", "BertForQuestionAnswering", num_labels=5)
    with pytest.raises(InvalidRequest, match="its span head gives 5 numbers for each token instead of 2"):
        ours.answer("the bank?", "a river")


def test_offsets_index_the_caller_s_string(tokens):
    _, ours = tokens
    for text in (
        "Ｔｈｅ bánk\u0301 was é\u0301",
        "\u200bthe\u00a0river\u3000bank",
        "the 👩‍👩‍👧 bank",
        "a\tb\r\nthe",
    ):
        for word in ours.tag(text).words:
            assert text[word.start : word.end] == word.text
            assert word.text == word.text.strip()


def test_companions_change_nothing(tokens, sequence):
    for _, ours in (tokens, sequence):
        call = (
            ours.tag
            if isinstance(ours.spec.heads[0], Classifier) and ours.spec.heads[0].role == "tokens"
            else None
        )
        call = call or ours.classify
        texts = [TEXTS[0], LONG, *TEXTS[1:]]
        together = call(texts)
        for text, one in zip(texts, together, strict=True):
            alone = call(text)
            if call == ours.tag:
                assert [w.label for w in alone.words] == [w.label for w in one.words]
            else:
                np.testing.assert_allclose(list(alone.scores.values()), list(one.scores.values()), atol=1e-5)


def test_transformers_pipeline_gives_the_same_classes(sequence, tmp_path):
    _, ours = sequence
    ours.save(tmp_path / "saved")
    run = transformers.pipeline("text-classification", str(tmp_path / "saved"), device="cpu")
    for one, other in zip(ours.classify(TEXTS), run(TEXTS), strict=True):
        assert one.label == other["label"]
        assert one.score == pytest.approx(other["score"], abs=1e-5)


def test_white_space_is_no_answer():
    context, offsets = "a  \tb", [[0, 0], [0, 3], [0, 0], [0, 1], [1, 3], [3, 4], [4, 5], [0, 0]]
    encoding = Encoding.of_arrays(
        "who",
        context,
        ids=np.arange(8),
        token_type_ids=np.zeros(8, np.int64),
        offsets=np.array(offsets),
        special=np.array([1, 0, 1, 0, 0, 0, 0, 1], np.bool_),
        sequence_ids=np.array([-1, 0, -1, 1, 1, 1, 1, -1]),
        pieces=[str(number) for number in range(8)],
    )
    logits_N2 = np.zeros((8, 2))
    logits_N2[4, 0] = logits_N2[5, 1] = 20.0  # white space, by far the best span
    logits_N2[6] = 5.0
    found = answer(
        [WindowedLogits(encoding, windows(encoding, None), [logits_N2])], top_k=30, max_answer_tokens=4
    )
    assert all(one.text.strip() for one in found.answers)
    assert "b" in found.answers[0].text
