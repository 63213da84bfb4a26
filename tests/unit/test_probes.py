"""Probes of small encoders, each held against the same figures computed naively."""

import json
import lzma
import math
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from transformers import AutoModel, AutoModelForMaskedLM

import unmask
from tests.support.places import shared
from tests.support.tiny import LAYERS, tiny_bert, write_checkpoint
from unmask.base.intervals import Interval, ratio_interval, wilson_interval
from unmask.errors import InvalidRequest, InvalidText, NonFiniteResult, TextTooLong
from unmask.evaluate.probes import (
    blimp,
    classifiers,
    perplexity,
    probing,
    scoring,
)
from unmask.evaluate.probes import words as labeled
from unmask.text import Tokenizer

TEXTS = ("The river bank was muddy, xyz!", "a text", "xy was a", "the river bank", "another texts abc")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("probes") / "tiny"
    return write_checkpoint(made, tiny_bert("BertForMaskedLM"), sentence=False)


@pytest.fixture(scope="module")
def exact(folder):
    return unmask.load(folder, dtype="float64")


@pytest.fixture(scope="module")
def reference(folder):
    return AutoModelForMaskedLM.from_pretrained(folder).double().eval()


def sentences_of(model, texts=TEXTS):
    return [scoring.Sentence(one.ids, ~one.special) for one in model.tokenize(texts)]


def naive(model, reference, text, *, within_word=False):
    """log p of each token and whether it is the likeliest, one run of `transformers` for each."""
    (encoding,) = model.tokenize([text])
    found, first = [], []
    for place in range(1, len(encoding) - 1):
        ids = torch.tensor(encoding.ids)[None].clone()
        ids[0, place] = model.tokenizer.mask_id
        after = place + 1
        while within_word and encoding.pieces[after].startswith("##"):
            ids[0, after] = model.tokenizer.mask_id
            after += 1
        with torch.no_grad():
            log_p = reference(ids).logits[0, place].log_softmax(-1)
        found.append(float(log_p[encoding.ids[place]]))
        first.append(int(log_p.argmax()) == encoding.ids[place])
    return found, first


# --- pseudo-log-likelihood -----------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["original", "within_word"])
@pytest.mark.parametrize("tokens_per_pass", [7, 2048])
def test_scores_are_those_of_one_mask_at_a_time(score, tokens_per_pass, exact, reference):
    found = scoring.pseudo_log_likelihoods(
        exact, sentences_of(exact), score=score, tokens_per_pass=tokens_per_pass
    )
    for text, answer in zip(TEXTS, found, strict=True):
        log_p, first = naive(exact, reference, text, within_word=score == "within_word")
        np.testing.assert_allclose(answer.log_p_M, log_p, rtol=1e-9)
        assert answer.first_M.tolist() == first
        assert answer.total == pytest.approx(math.fsum(log_p), rel=1e-9)


def test_the_ways_to_score_differ_where_words_have_several_tokens(exact):
    ways = [
        scoring.pseudo_log_likelihoods(exact, sentences_of(exact), score=s)
        for s in ("original", "within_word")
    ]
    differs = [not np.allclose(one.log_p_M, other.log_p_M) for one, other in zip(*ways, strict=True)]
    assert differs == [any(p.startswith("##") for p in e.pieces) for e in exact.tokenize(TEXTS)]
    assert set(differs) == {True, False}


def test_float32_runs_the_same_way(folder, exact):
    found = scoring.pseudo_log_likelihoods(unmask.load(folder), sentences_of(exact))
    expected = scoring.pseudo_log_likelihoods(exact, sentences_of(exact))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.log_p_M, other.log_p_M, rtol=2e-5)


def test_equal_ids_of_which_other_tokens_are_scored_are_other_sentences(exact):
    whole, *_ = sentences_of(exact)
    some = scoring.Sentence(whole.ids_N, whole.scored_N & (np.arange(len(whole.ids_N)) % 2 == 0))
    every, part = scoring.pseudo_log_likelihoods(exact, [whole, some])
    np.testing.assert_allclose(part.log_p_M, every.log_p_M[some.scored_N[whole.scored_N]], rtol=1e-9)


def test_what_occurs_twice_is_run_once(exact, monkeypatch):
    asked = []
    real = scoring.answers
    monkeypatch.setattr(scoring, "answers", lambda m, q, t: asked.extend(q) or real(m, q, t))
    told = []
    twice = sentences_of(exact, [*TEXTS, *reversed(TEXTS)])
    found = scoring.pseudo_log_likelihoods(exact, twice, progress=lambda *at: told.append(at))
    count = sum(int(one.scored_N.sum()) for one in sentences_of(exact))
    assert len(asked) == count
    assert told[-1] == (count, count)
    assert [one.total for one in found] == [one.total for one in reversed(found)]


def test_a_text_in_parts_is_scored_as_in_one(exact, monkeypatch):
    whole = scoring.pseudo_log_likelihoods(exact, sentences_of(exact))
    monkeypatch.setattr(scoring, "PASSES_AT_ONCE", 1)
    parts = scoring.pseudo_log_likelihoods(exact, sentences_of(exact), tokens_per_pass=20)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one.log_p_M, other.log_p_M, rtol=1e-12)


def test_a_model_that_gives_no_number_is_refused(folder):
    broken = unmask.load(folder, dtype="float64")
    broken.trainable_encoder().heads["masked"].bias.data[3] = math.nan
    with pytest.raises(NonFiniteResult, match="not finite"):
        scoring.pseudo_log_likelihoods(broken, sentences_of(broken))


# --- BLiMP ---------------------------------------------------------------------------------------------

PAIRS = [
    blimp.MinimalPair("one", "syntax", "islands", "the river was muddy", "the muddy was river"),
    blimp.MinimalPair("one", "syntax", "islands", "The text", "the text"),  # the same tokens
    blimp.MinimalPair("two", "syntax", "islands", "a text was muddy", "text a muddy was"),
    blimp.MinimalPair("three", "semantics", "scope", "another bank", "the river bank was"),
]


def official(pair):
    return {
        "sentence_good": pair.good,
        "sentence_bad": pair.bad,
        "field": pair.field,
        "linguistics_term": pair.term,
        "UID": pair.paradigm,
        "pairID": "0",
    }


def write_lines(path, records):
    text = "".join(json.dumps(record) + "\n" for record in records)
    opened = lzma.open if path.name.endswith(".xz") else open
    with opened(path, "wt", encoding="utf-8") as file:
        file.write(text)


def test_both_layouts_are_read(tmp_path):
    apart, joined = tmp_path / "apart", tmp_path / "joined"
    apart.mkdir()
    joined.mkdir()
    for name in ("one", "two", "three"):
        write_lines(apart / f"{name}.jsonl", [official(pair) for pair in PAIRS if pair.paradigm == name])
    short = [
        {"uid": p.paradigm, "field": p.field, "term": p.term, "good": p.good, "bad": p.bad} for p in PAIRS
    ]
    write_lines(joined / "blimp.jsonl.xz", short)
    (joined / "SOURCE.txt").write_text("not data")
    write_lines(joined / "other.jsonl", [{"not": "a pair"}])  # passed over beside the joined file
    assert blimp.read_blimp(joined) == PAIRS
    assert sorted(blimp.read_blimp(apart), key=str) == sorted(PAIRS, key=str)
    assert blimp.read_blimp(joined, limit=1) == [PAIRS[0], *PAIRS[2:]]
    assert blimp.read_blimp(apart / "two.jsonl") == [PAIRS[2]]


def test_what_is_no_pair_is_refused(tmp_path):
    write_lines(tmp_path / "a.jsonl", [official(PAIRS[0]), {"sentence_good": "x"}])
    with pytest.raises(InvalidText, match=r"line 2 of .*a.jsonl has no string under UID or uid"):
        blimp.read_blimp(tmp_path)
    (tmp_path / "a.jsonl").write_text("{")
    with pytest.raises(InvalidText, match=r"line 1 of .* is not JSON"):
        blimp.read_blimp(tmp_path)
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(InvalidRequest, match="no pair"):
        blimp.read_blimp(tmp_path)
    with pytest.raises(InvalidRequest, match="limit is 0"):
        blimp.read_blimp(tmp_path, 0)
    (tmp_path / "b.jsonl.xz").write_text("not packed")
    with pytest.raises(InvalidText, match="cannot read"):
        blimp.read_blimp(tmp_path / "b.jsonl.xz")


def test_accuracy_is_that_of_naive_scores_and_ties_are_wrong(exact, reference):
    result = blimp.measure_blimp(exact, PAIRS)
    right = [sum(naive(exact, reference, p.good)[0]) > sum(naive(exact, reference, p.bad)[0]) for p in PAIRS]
    right[1] = False
    assert [share.right for share in result.paradigms] == [right[0], right[2], right[3]]
    assert [share.ties for share in result.paradigms] == [1, 0, 0]
    assert [share.name for share in result.terms] == ["islands", "scope"]
    assert [share.name for share in result.fields] == ["syntax", "semantics"]
    by_paradigm = [right[0] / 2, float(right[2]), float(right[3])]
    assert result.accuracy == result.overall.accuracy == pytest.approx(sum(by_paradigm) / 3)
    assert result.terms[0].accuracy == pytest.approx(sum(by_paradigm[:2]) / 2)
    assert (result.overall.pairs, result.overall.ties, result.complete) == (4, 1, False)


def test_shares_count_strictly():
    found = blimp.shares(PAIRS, [3.0, 1.0, 1.0, 5.0], [2.0, 1.0, 4.0, 4.0], lambda pair: pair.paradigm)
    assert [(one.pairs, one.right, one.ties, one.accuracy) for one in found] == [
        (2, 1, 1, 0.5),
        (1, 0, 0, 0.0),
        (1, 1, 0, 1.0),
    ]


@pytest.mark.parametrize(("right", "count"), [(0, 5), (3, 7), (700, 1000), (9, 9)])
def test_interval_is_that_of_wilson(right, count):
    expected = scipy.stats.binomtest(right, count).proportion_ci(0.95, method="wilson")
    found = wilson_interval(right / count, count)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_samples_without_anything_to_count_are_not_in_an_interval():
    """Of three sentences one has words, and all of them are right: a third of the samples lack it."""
    found = ratio_interval(np.array([0.0, 0.0, 4.0]), np.array([0.0, 0.0, 4.0]))
    assert (found.low, found.high) == (1.0, 1.0)


def test_the_published_pairs_are_read():
    pairs = blimp.read_blimp(shared("data/blimp"), limit=2)
    assert len(pairs) == 2 * blimp.PARADIGMS
    assert {pair.field for pair in pairs} == {"morphology", "semantics", "syntax", "syntax_semantics"}
    assert len({pair.term for pair in pairs}) == 13  # the paper's 12, and s-selection apart
    assert pairs[0].good == "Who should Derek hug after shocking Richard?"
    assert pairs[0].bad == "Who should Derek hug Richard after shocking?"


# --- perplexity ----------------------------------------------------------------------------------------


def test_windows_hold_every_token_and_character_once(exact):
    lines = ["the river bank, xyz", "Á muddy  text!", "a", "\u200dthe bank was muddy"]
    made = perplexity.text_windows(exact, [lines, ["another text"]], tokens=7)
    scored = [window.ids_N[window.scored_N].tolist() for window in made]
    inner = [one.ids[~one.special].tolist() for one in exact.tokenize([*lines, "another text"])]
    assert [*chain(*scored)] == [*chain(*inner)]
    assert [len(one) for one in scored[:-2]] == [5] * (len(scored) - 2)
    assert scored[-1] == inner[-1]  # no window reaches from one document into the next
    cls, sep = (exact.tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    for window in made:
        assert (window.ids_N[0], window.ids_N[-1]) == (cls, sep)
        assert not window.scored_N[[0, -1]].any()
    whole = [*lines, "another text"]
    assert sum(window.characters for window in made) == sum(map(len, whole))
    assert sum(window.bytes for window in made) == sum(len(line.encode()) for line in whole)
    first = perplexity.text_windows(exact, [lines], tokens=7, limit=2)
    assert [one.ids_N.tolist() for one in first] == [one.ids_N.tolist() for one in made[:2]]


def test_windows_do_not_depend_on_how_many_lines_are_read_at_once(exact, monkeypatch):
    lines = ["the river", "a text was muddy", "xyz", "bank , bank"] * 5
    whole = perplexity.text_windows(exact, [lines], tokens=9)
    monkeypatch.setattr(perplexity, "LINES_AT_ONCE", 3)
    assert [(w.ids_N.tolist(), w.characters) for w in perplexity.text_windows(exact, [lines], tokens=9)] == [
        (w.ids_N.tolist(), w.characters) for w in whole
    ]


def test_bytes_of_a_vocabulary_of_bytes():
    files = {"tokenizer.json": (shared("tokenizers/roberta-base") / "tokenizer.json").read_bytes()}
    model = SimpleNamespace(tokenizer=Tokenizer.from_files(files, "roberta"), max_tokens=None)
    lines = ["日本 \U0001f600 naïve  café", "plain words"]
    made = perplexity.text_windows(model, [lines], tokens=5)
    assert len(made) == 4
    assert sum(window.characters for window in made) == sum(map(len, lines))
    assert sum(window.bytes for window in made) == sum(len(line.encode()) for line in lines)


def test_what_no_window_can_be_cut_from(exact):
    for given, sentence in (
        ({"tokens": 2}, "leaves no room"),
        ({"tokens": 999}, "at most 23"),
        ({"limit": 0}, "limit is 0"),
    ):
        with pytest.raises(InvalidRequest, match=sentence):
            perplexity.text_windows(exact, [["the river"]], **given)
    with pytest.raises(InvalidRequest, match="has no text"):
        perplexity.text_windows(exact, [[]])


def test_files_of_text(tmp_path):
    (tmp_path / "a.train.txt").write_text(" one \n\n \ntwo\n")
    assert perplexity.text_file(tmp_path).name == "a.train.txt"
    with lzma.open(tmp_path / "b.test.jsonl.xz", "wt") as file:
        file.write('{"text": "one\\n two\\n\\n"}\n{"text": "three"}\n')
    assert perplexity.text_file(tmp_path).name == "b.test.jsonl.xz"
    assert list(perplexity.read_texts(tmp_path / "a.train.txt")) == [["one", "two"]]
    assert list(perplexity.read_texts(tmp_path / "b.test.jsonl.xz")) == [["one", "two"], ["three"]]
    (tmp_path / "c.test.txt").write_text("x")
    with pytest.raises(InvalidRequest, match="has several text files"):
        perplexity.text_file(tmp_path)
    with pytest.raises(InvalidRequest, match="neither a folder nor a file"):
        perplexity.text_file(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidRequest, match=r"has no file \*.txt or"):
        perplexity.text_file(tmp_path / "empty")


@pytest.fixture(scope="module")
def text(exact):
    return perplexity.text_windows(
        exact, [["the river bank was muddy , xyz !", "a text . a text . the river"] * 3], tokens=20
    )


def test_masked_loss_is_that_of_transformers(exact, reference, text):
    result = perplexity.measure_perplexity(exact, text, source="here", seed=5)
    losses, hits = [], []
    for number, window in enumerate(text):
        question = perplexity.draw_masks(window, 4, 5, number)
        count = max(1, round(0.15 * (len(window.ids_N) - 2)))
        assert len(set(question.places_M.tolist())) == len(question.places_M) == count
        assert window.scored_N[question.places_M].all()
        changed = question.ids_N != window.ids_N
        assert np.flatnonzero(changed).tolist() == question.places_M.tolist()
        assert (question.ids_N[changed] == exact.tokenizer.mask_id).all()
        with torch.no_grad():
            log_p = reference(torch.tensor(question.ids_N)[None]).logits[0].log_softmax(-1)
        for place in question.places_M:
            losses.append(-float(log_p[place, window.ids_N[place]]))
            hits.append(int(log_p[place].argmax()) == window.ids_N[place])
    tokens = sum(len(window.ids_N) - 2 for window in text)
    characters = sum(window.characters for window in text)
    assert result.loss == pytest.approx(np.mean(losses), rel=1e-9)
    assert result.perplexity == pytest.approx(np.exp(np.mean(losses)), rel=1e-9)
    assert result.accuracy == np.mean(hits)
    assert (result.tokens, result.scored, result.windows) == (tokens, len(losses), len(text))
    assert result.nats_per_character == pytest.approx(np.mean(losses) * tokens / characters, rel=1e-9)
    again = perplexity.measure_perplexity(exact, text, source="here", seed=5)
    assert again.loss == result.loss
    assert perplexity.measure_perplexity(exact, text, source="here", seed=6).loss != result.loss


def test_pseudo_perplexity_is_of_every_token(exact, text):
    scores = scoring.pseudo_log_likelihoods(exact, [scoring.Sentence(w.ids_N, w.scored_N) for w in text])
    total = sum(one.total for one in scores)
    result = perplexity.measure_perplexity(exact, text, source="here", measure="pseudo")
    assert result.scored == result.tokens == sum(len(one.log_p_M) for one in scores)
    assert result.loss == pytest.approx(-total / result.tokens)
    assert result.nats_per_character == pytest.approx(-total / sum(w.characters for w in text))
    assert result.nats_per_byte == result.nats_per_character  # the text is ASCII
    assert (result.seed, result.score) == (None, "original")


def test_the_likeliest_word_is_known_to_be_first(exact):
    ids_N, places_M = np.array([2, 4, 6, 3]), np.array([1])
    (probed,) = scoring.answers(exact, [scoring.Question(ids_N, places_M, np.array([0]))])
    words = range(exact.spec.embedding.vocabulary)
    asked = scoring.answers(exact, [scoring.Question(ids_N, places_M, np.array([word])) for word in words])
    best = int(np.argmax([one.log_p_M[0] for one in asked]))
    assert probed.log_p_M[0] == pytest.approx(asked[0].log_p_M[0])
    assert [bool(one.first_M[0]) for one in asked] == [word == best for word in words]


def test_windows_of_one_length_have_masks_of_their_own(exact, text):
    draws = [perplexity.draw_masks(text[0], 4, 5, number).places_M.tolist() for number in range(8)]
    assert len(set(map(tuple, draws))) > 1


def test_a_window_of_few_tokens_has_one_masked(exact):
    (window,) = perplexity.text_windows(exact, [["the river"]], tokens=9)
    assert len(perplexity.draw_masks(window, 4, 0, 0).targets_M) == 1


def test_bytes_are_counted_apart_from_characters(exact):
    text = perplexity.text_windows(exact, [["ÁÁ muddy river bank"]], tokens=9)
    result = perplexity.measure_perplexity(exact, text, source="here")
    assert result.nats_per_byte == pytest.approx(result.nats_per_character * 19 / 21)


def test_unigram_counts_one_more_of_each():
    found, accuracy = perplexity.unigram(np.array([3, 1, 3, 3, 0]), np.array([3, 2, 1]), 6)
    assert found == pytest.approx(-(math.log(4 / 11) + math.log(1 / 11) + math.log(2 / 11)) / 3)
    assert accuracy == pytest.approx(1 / 3)


# --- CoNLL-U -------------------------------------------------------------------------------------------


def row(number, form, tag):
    return "\t".join([str(number), form, "_", tag, *"_" * 6])


TRAPS = "\n".join(
    [
        "# text = I don't",
        row(1, "I", "PRON"),
        row("2-3", "don't", "_"),
        row(2, "do", "AUX"),
        row(3, "n't", "PART"),
        row("3.1", "go", "VERB"),
        "",
        "",
        "# newpar",
        "# text = 10 000 #",
        row(1, "10 000", "NUM"),
        row(2, "#", "SYM"),
        row(3, "_", "PUNCT"),
    ]
)
READ = [
    labeled.TaggedSentence(("I", "do", "n't"), ("PRON", "AUX", "PART")),
    labeled.TaggedSentence(("10 000", "#", "_"), ("NUM", "SYM", "PUNCT")),
]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\n", "\n\n"])
def test_conllu_is_read_with_its_traps(end, last, tmp_path):
    path = tmp_path / "x.conllu"
    path.write_bytes((TRAPS + last).replace("\n", end).encode())
    assert list(labeled.read_conllu(path)) == READ


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("1\tI\tPRON", "line 1 of .* has 3 columns"),
        (row(2, "I", "PRON"), "word '2' where word 1 should be"),
        (row(1, "I", "_"), "no part of speech"),
        (row(1, " ", "PRON"), "no form"),
    ],
)
def test_what_is_no_conllu(line, sentence, tmp_path):
    path = tmp_path / "x.conllu"
    path.write_text(line + "\n")
    with pytest.raises(InvalidText, match=sentence):
        list(labeled.read_conllu(path))


def test_a_treebank_has_three_parts(tmp_path):
    for part in labeled.PARTS:
        with lzma.open(tmp_path / f"en_x-ud-{part}.conllu.xz", "wt") as file:
            file.write(TRAPS)
    assert labeled.read_treebank(tmp_path, limit=1) == {part: READ[:1] for part in labeled.PARTS}
    assert labeled.read_treebank(tmp_path)["dev"] == READ
    (tmp_path / "en_y-ud-dev.conllu").write_text(TRAPS)
    with pytest.raises(InvalidRequest, match=r"one file \*dev.conllu .* it has: en_x-ud-dev.conllu.xz, en_y"):
        labeled.read_treebank(tmp_path)


def test_the_published_treebank_is_read():
    read = labeled.read_treebank(shared("data/ud_ewt"))
    assert {part: len(read[part]) for part in labeled.PARTS} == {"train": 12544, "dev": 2001, "test": 2077}
    assert len({tag for one in read["train"] for tag in one.tags}) == 17


# --- tagging -------------------------------------------------------------------------------------------


def clouds(seed, count=300, width=6):
    """Three classes apart from one another, on scales and at places that differ widely."""
    draw = np.random.default_rng(seed)
    classes = draw.integers(3, size=count)
    points = draw.normal(size=(count, width)) + 9 * np.eye(3, width)[classes]
    return torch.tensor(points * 10.0 ** np.arange(width) + 7).float(), torch.tensor(classes)


def test_a_probe_learns_what_a_plane_divides():
    (x, y), (dev, dev_y) = clouds(0), clouds(1)
    probe = classifiers.fit_linear(x.clone(), y, dev, dev_y, class_count=3)
    assert probe.accuracy(dev, dev_y) == 1.0
    assert probe.strength == max(classifiers.STRENGTHS)  # all are right, so the strongest is kept
    again = classifiers.fit_linear(x.clone(), y, dev, dev_y, class_count=3)
    assert torch.equal(probe.weight_CD, again.weight_CD)


def test_a_probe_is_the_least_of_its_loss():
    draw = np.random.default_rng(3)
    x = torch.tensor(draw.normal(2, 3, size=(200, 5))).float()
    y = torch.tensor((x.numpy() @ draw.normal(size=(5, 4)) + draw.normal(0, 4, (200, 4))).argmax(1))
    probe = classifiers.fit_linear(x.clone(), y, x, y, class_count=4, strengths=[0.05])
    standard = ((x.double() - x.double().mean(0)) / x.double().std(0, correction=0)).numpy()

    def loss(flat):
        weight, bias = flat[:20].reshape(4, 5), flat[20:]
        logits = standard @ weight.T + bias
        own = logits[np.arange(200), y.numpy()]
        return (scipy.special.logsumexp(logits, axis=1) - own).mean() + 0.025 * (weight**2).sum()

    best = scipy.optimize.minimize(loss, np.zeros(24), options={"gtol": 1e-8})
    ours = np.concatenate([probe.weight_CD.double().flatten(), probe.bias_C.double()])
    assert loss(ours) - best.fun < 5e-5
    np.testing.assert_allclose(probe.weight_CD, best.x[:20].reshape(4, 5), atol=3e-2)
    logits = standard @ best.x[:20].reshape(4, 5).T + best.x[20:]
    np.testing.assert_allclose(probe.logits(x), logits, atol=5e-2)


def test_dev_chooses_the_penalty_and_a_constant_feature_says_nothing():
    (x, y), (dev, dev_y) = clouds(0), clouds(1)
    x[:, 5], dev[:, 5] = 1e6, 1e6 + torch.arange(len(dev)) * 1e5
    probe = classifiers.fit_linear(x.clone(), y, dev, dev_y, class_count=3, strengths=[1e6, 1e-3])
    assert probe.strength == 1e-3  # so strong a penalty leaves nothing but the commonest class
    assert probe.accuracy(dev, dev_y) == 1.0


def test_states_are_those_of_first_tokens(folder, exact):
    sentences = [("The", "muddy", "xyz", "bank"), ("\u0001", "abc"), ("a",)]
    read = labeled.read_words(exact, sentences, str)
    found = labeled.word_states(exact, read, [0, 2, LAYERS])
    assert (read.count, read.missing, read.split) == (7, 1, 0)
    reference = AutoModel.from_pretrained(folder, add_pooling_layer=False).double().eval()
    expected = []
    for words in (("the", "muddy", "xyz", "bank"), ("abc",), ("a",)):
        (encoding,) = exact.tokenize([" ".join(words)])
        firsts = [i for i in range(1, len(encoding) - 1) if not encoding.pieces[i].startswith("##")]
        with torch.no_grad():
            every = reference(torch.tensor(encoding.ids)[None], output_hidden_states=True).hidden_states
        expected.append(torch.stack([every[layer][0, firsts] for layer in (0, 2, LAYERS)]))
    whole = torch.cat(expected, 1).float()
    assert torch.equal(found[:, 4], torch.zeros_like(found[:, 4]))
    torch.testing.assert_close(found[:, [0, 1, 2, 3, 5, 6]], whole, rtol=1e-5, atol=1e-6)


def test_a_sentence_beyond_the_model_is_read_in_parts(exact):
    long = ["the", "river", "bank", "xyz"] * 10
    with pytest.raises(TextTooLong):
        exact.tokenizer.encode_words(long, max_tokens=exact.max_tokens)
    read = labeled.read_words(exact, [long, ["a"], ["x" * 30]], str)
    assert (read.count, read.missing, read.split) == (42, 0, 1)
    assert all(len(one) <= exact.max_tokens for one in read.encodings)
    kept = [
        encoding.pieces[place]
        for encoding, firsts in zip(read.encodings, read.firsts, strict=True)
        for place in firsts
    ]
    assert kept == [*["the", "river", "bank", "x"] * 10, "a", "x"]


TAG_OF = {
    "the": "DET",
    "a": "DET",
    "another": "DET",
    "river": "NOUN",
    "bank": "NOUN",
    "text": "NOUN",
    "was": "AUX",
}


def toy_treebank(model_words=tuple(TAG_OF), extra=()):
    draw = np.random.default_rng(0)
    made = {}
    for part, count in (("train", 60), ("dev", 10), ("test", 12)):
        made[part] = []
        for _ in range(count):
            words = tuple(draw.choice(model_words, size=5).tolist())
            made[part].append(labeled.TaggedSentence(words, tuple(TAG_OF[word] for word in words)))
    made["test"] += extra
    return made


def test_tags_of_words_are_found_in_every_layer_that_has_them(exact, monkeypatch):
    unseen = labeled.TaggedSentence(("was",), ("X",))
    treebank = toy_treebank(extra=[unseen])
    told = []
    result = probing.measure_tagging(exact, treebank, progress=lambda *at: told.append(at))
    assert [one.layer for one in result.layers] == list(range(LAYERS + 1))
    assert result.tags == ("AUX", "DET", "NOUN")
    assert result.words == {"train": 300, "dev": 50, "test": 61}
    assert result.layers[0].dev_accuracy == 1.0
    assert result.layers[0].test_accuracy == 60 / 61  # the tag that train does not have is wrong
    assert result.best_layer == 0
    assert result.accuracy == result.layers[0].test_accuracy
    assert result.baseline_accuracy == 60 / 61
    assert told[-1] == (83, 83)
    monkeypatch.setattr(labeled, "STATES_BYTES", 1)  # a run of the encoder for each layer
    apart = probing.measure_tagging(exact, treebank, progress=lambda *at: told.append(at))
    assert apart.layers == result.layers
    assert told[-1] == (83 * (LAYERS + 1), 83 * (LAYERS + 1))
    assert probing.measure_tagging(exact, treebank, layer=2).layers == result.layers[2:3]


def test_the_best_layer_is_chosen_on_dev(exact, monkeypatch):
    figures = {0: (0.5, 0.9), 1: (0.8, 0.6), 2: (0.8, 0.7), 3: (0.7, 0.8)}
    between = wilson_interval(0.5, 9)
    monkeypatch.setattr(
        probing,
        "_scores",
        lambda model, read, classes, layers, **_: [
            probing.LayerScore(layer, *figures[layer], 1.0, between) for layer in layers
        ],
    )
    result = probing.measure_tagging(exact, toy_treebank())
    assert (result.best_layer, result.accuracy) == (1, 0.6)  # of equal ones the first


def test_shuffled_tags_are_not_found(exact):
    treebank = toy_treebank()
    draw = np.random.default_rng(1)
    for part, read in treebank.items():
        tags = iter(draw.permutation([tag for one in read for tag in one.tags]).tolist())
        treebank[part] = [labeled.TaggedSentence(o.words, tuple(next(tags) for _ in o.words)) for o in read]
    assert probing.measure_tagging(exact, treebank).accuracy < 0.7


def test_the_commonest_tag_of_a_form():
    train = [
        labeled.TaggedSentence(("run", "run", "run", "The"), ("VERB", "NOUN", "VERB", "DET")),
        labeled.TaggedSentence(("can", "can", "x"), ("VERB", "AUX", "VERB")),
    ]
    test = [labeled.TaggedSentence(("run", "can", "the", "new", "The"), ("VERB", "AUX", "DET", "VERB", "X"))]
    # "can" is a tie, which the alphabet decides; "the" and "new" are unseen, so VERB.
    assert probing.most_frequent_tags(train, test) == 3 / 5


def test_what_cannot_be_tagged(exact):
    treebank = toy_treebank()
    with pytest.raises(InvalidRequest, match=f"layer is 9; it can be 0 .* to {LAYERS}"):
        probing.measure_tagging(exact, treebank, layer=9)
    with pytest.raises(InvalidRequest, match="dev part is empty"):
        probing.measure_tagging(exact, treebank | {"dev": []})


def test_an_interval_is_written_by_its_ends():
    assert f"{Interval(-0.25, 1):+.2f}" == "-0.25 to +1.00"
