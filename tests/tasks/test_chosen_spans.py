"""The choice of spans, compared with its definition: each candidate against all that are chosen."""

from types import SimpleNamespace

import numpy as np
import pytest

from unmask.tasks.label_network import sigmoid
from unmask.tasks.label_spans import LabeledSpan, Search, spans_of


def excludes(chosen, span, search):
    if (chosen.first, chosen.last) == (span.first, span.last):
        return not search.multi_label
    if chosen.first > span.last or span.first > chosen.last:
        return False
    outside = span.first <= chosen.first and chosen.last <= span.last
    inside = chosen.first <= span.first and span.last <= chosen.last
    return not (search.nested and (outside or inside))


def by_definition(logits_WKC, search):
    p = sigmoid(logits_WKC)
    spans = [
        LabeledSpan(first, first + more, label, float(p[first, more, label]))
        for first, more, label in np.argwhere(p > np.array(search.thresholds, dtype=p.dtype)).tolist()
    ]
    chosen = []
    for span in sorted(spans, key=lambda span: -span.score):
        if not any(excludes(other, span, search) for other in chosen):
            chosen.append(span)
    return sorted(chosen, key=lambda span: span.first)


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_spans_are_those_of_the_definition(nested, multi_label, seed):
    random = np.random.default_rng(seed)
    words, widths, labels = (int(random.integers(1, most)) for most in (25, 9, 4))
    logits = random.normal(size=(words, widths, labels)).astype(np.float32)
    if seed % 2:
        logits = np.round(logits)  # equal scores
    for first in range(words):
        logits[first, words - first :] = -np.inf
    search = Search(tuple("abc"[:labels]), (0.4,) * labels, nested, multi_label)
    head = SimpleNamespace(scores="spans")
    assert spans_of(None, [logits], search, head) == by_definition(logits, search)
