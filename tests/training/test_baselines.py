"""Bigrams against counting with dictionaries, and detection against trying every threshold."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from benchmarks.baselines import best_threshold, count, f1, foretell, suspicion
from tests.training.toy import CLS, SEP, SPECIAL, vocabulary
from unmask.errors import InvalidRequest

SIZE, UNKNOWN = 23, 1


@pytest.fixture(scope="module")
def texts():
    """Chains in which the next word depends on the one before, so that neighbors tell something."""
    rng = np.random.default_rng(5)
    chain = rng.dirichlet(np.full(SIZE - SPECIAL, 0.2), SIZE)
    found = []
    for length in rng.integers(1, 20, 60):
        ids = [CLS]
        for _ in range(length):
            ids.append(int(rng.choice(np.arange(SPECIAL, SIZE), p=chain[ids[-1]])))
        found.append(np.array(ids[1:]))
    return found


@pytest.fixture(scope="module")
def bigram(texts):
    # The last pieces stay out, so that some words and pairs are new.
    return count(texts[:40], vocabulary(size=SIZE))


def wrapped(texts):
    return np.concatenate([[CLS, *text, SEP] for text in texts]).astype(np.int64)


def plain(texts):
    """p(w) and p(w | l) by Witten & Bell's rule, with dictionaries."""
    ones, pairs, kinds = Counter(), Counter(), {}
    for text in texts:
        line = [CLS, *text.tolist(), SEP]
        ones.update(line[1:])
        for left, right in itertools.pairwise(line):
            pairs[left, right] += 1
            kinds.setdefault(left, set()).add(right)
    total = sum(ones[word] + 1 for word in range(SIZE))  # [CLS] begins texts, so it is not among `ones`
    after = Counter()
    for (left, _), number in pairs.items():
        after[left] += number

    def p_one(word):
        return (ones[word] + 1) / total

    def p_pair(left, right):
        n, k = after[left], len(kinds.get(left, ()))
        return (pairs[left, right] + k * p_one(right)) / (n + k) if n else p_one(right)

    return p_one, p_pair


def test_probabilities_are_those_of_the_rule_and_sum_to_1(texts, bigram):
    p_one, p_pair = plain(texts[:40])
    everything = np.arange(SIZE)
    np.testing.assert_allclose(bigram.frequency_V, [p_one(word) for word in everything], rtol=1e-12)
    after_MV, before_MV = bigram.after(everything), bigram.before(everything)
    expected = [[p_pair(left, right) for right in everything] for left in everything]
    np.testing.assert_allclose(after_MV, expected, rtol=1e-12)
    np.testing.assert_allclose(before_MV, np.transpose(expected), rtol=1e-12)
    np.testing.assert_allclose(after_MV.sum(1), 1.0, rtol=1e-12)
    assert bigram.totals_V[SEP] == 0  # the first token of the next text does not follow it


@pytest.mark.parametrize("sight", ["none", "left", "both"])
def test_words_are_foretold_as_by_hand(texts, bigram, sight):
    p_one, p_pair = plain(texts[:40])
    ids_T = wrapped(texts[40:])
    places_M = np.flatnonzero(ids_T >= SPECIAL)
    assert len(places_M) > 100
    losses, right = [], 0
    for place in places_M:
        left, word, after = (int(ids_T[place + step]) for step in (-1, 0, 1))
        weights = {
            other: {
                "none": p_one(other),
                "left": p_pair(left, other),
                "both": p_pair(left, other) * p_pair(other, after),
            }[sight]
            for other in range(SPECIAL, SIZE)
        }
        losses.append(-math.log(weights[word] / sum(weights.values())))
        right += max(weights, key=weights.get) == word
    loss, accuracy = foretell(bigram, ids_T, places_M, sight)
    assert loss == pytest.approx(np.mean(losses), rel=1e-12)
    assert accuracy == right / len(places_M)


def test_unknown_words_are_neighbors_like_others(bigram):
    ids_T = np.array([CLS, 7, UNKNOWN, 8, SEP])
    for sight in ("left", "both"):
        assert np.isfinite(foretell(bigram, ids_T, np.array([1, 3]), sight)[0])
        np.testing.assert_array_equal(
            np.isfinite(suspicion(bigram, ids_T, sight)), [False, True] * 2 + [False]
        )


def test_more_neighbors_predict_more(texts, bigram):
    ids_T = wrapped(texts[40:])
    places_M = np.flatnonzero(ids_T >= SPECIAL)
    losses = [foretell(bigram, ids_T, places_M, sight)[0] for sight in ("none", "left", "both")]
    assert losses[0] > losses[1] + 0.2 > losses[2] + 0.3


def test_suspicion_is_the_surprise_at_a_word(texts, bigram):
    p_one, p_pair = plain(texts[:40])
    ids_T = wrapped(texts[40:])
    one_T, left_T, both_T = (suspicion(bigram, ids_T, sight) for sight in ("none", "left", "both"))
    for place, word in enumerate(ids_T.tolist()):
        if word < SPECIAL:
            assert one_T[place] == left_T[place] == both_T[place] == -math.inf
            continue
        before, after = int(ids_T[place - 1]), int(ids_T[place + 1])
        assert one_T[place] == pytest.approx(-math.log(p_one(word)))
        assert left_T[place] == pytest.approx(-math.log(p_pair(before, word)))
        assert both_T[place] == pytest.approx(left_T[place] - math.log(p_pair(word, after)))


def test_f1_is_that_of_precision_and_recall():
    said, true = np.array([1, 1, 1, 0, 0], dtype=bool), np.array([1, 0, 0, 1, 0], dtype=bool)
    assert f1(said, true) == pytest.approx(2 / (3 + 2))  # 1 / (1 / (1/3) + 1 / (1/2)) * 2
    assert f1(~said & ~true, true) == 0.0
    assert f1(np.zeros(5, dtype=bool), np.zeros(5, dtype=bool)) == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_the_threshold_is_the_best_of_all(seed):
    rng = np.random.default_rng(seed)
    score_T = rng.integers(0, 12, 60).astype(float)  # with ties
    score_T[:5] = -np.inf
    true_T = rng.random(60) < 0.2 + 0.04 * np.maximum(score_T, 0)
    threshold = best_threshold(score_T, true_T)
    best = max(f1(score_T >= candidate, true_T) for candidate in np.unique(score_T))
    assert f1(score_T >= threshold, true_T) == best


def test_what_cannot_be_counted_is_said(texts, bigram):
    ids_T = wrapped(texts[:1])
    with pytest.raises(InvalidRequest, match="at least one piece"):
        count([], vocabulary(size=SIZE))
    with pytest.raises(InvalidRequest, match="none, left, both"):
        foretell(bigram, ids_T, np.array([1]), "right")
    with pytest.raises(InvalidRequest, match="none, left, both"):
        suspicion(bigram, ids_T, "right")
    for places in ([], [0]):
        with pytest.raises(InvalidRequest, match="none of a special token"):
            foretell(bigram, ids_T, np.array(places, dtype=np.int64), "left")
    with pytest.raises(InvalidRequest, match="nothing was replaced"):
        best_threshold(np.zeros(3), np.zeros(3, dtype=bool))
