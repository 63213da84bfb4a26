"""Batches of queries with documents: what is kept apart, what every epoch reads, and where it resumes."""

import json
from collections import Counter

import numpy as np
import pytest

from unmask.errors import InvalidRequest
from unmask.training.data.ranking import RankedTexts, RankingBatches, TokenizedText


def text(key):
    ids = np.array([1, 2, 3])
    return TokenizedText(ids, ids * 0, key)


def item(query, *documents):
    return RankedTexts(text(query), tuple(map(text, documents)))


def names(batch):
    return [one.keys for one in batch]


def test_no_query_and_no_positive_document_repeats_in_a_batch():
    items = [item(f"q{n}", f"d{n % 7}", f"n{n % 3}") for n in range(40)]
    items += [item("q0", f"e{n}") for n in range(5)] + [item("q90", "e91", "d3"), item("e1", "e92")]
    batches = RankingBatches(items, batch_size=6, seed=3)
    for _ in range(40):
        (batch,) = batches.next(1)
        assert len(batch) == 6
        for one in batch:
            for other in batch:
                if one is not other:
                    assert not set(one.keys[:2]) & set(other.keys), (one.keys, other.keys)
    assert any(len(set(sum((one.keys[2:] for one in batch), ()))) < 6 for batch in batches.next(1))


def test_negatives_may_be_shared():
    items = [item(f"q{n}", f"d{n}", "the same") for n in range(4)]
    (batch,) = RankingBatches(items, batch_size=4).next(1)
    assert len(batch) == 4


def test_an_epoch_reads_every_item_once():
    items = [item(f"q{n}", f"d{n}") for n in range(12)]
    batches = RankingBatches(items, batch_size=4, seed=1)
    assert batches.steps_per_epoch == 3
    first, second = ([key for _ in range(3) for key in names(batches.next(1)[0])] for _ in range(2))
    assert Counter(first) == Counter(second) == Counter(one.keys for one in items)
    assert first != second
    assert batches.epochs == {"train": 2.0}


def test_nothing_is_lost_when_texts_repeat():
    items = [item(f"q{n}", f"d{n % 5}") for n in range(20)]
    batches = RankingBatches(items, batch_size=4, seed=1)
    seen = Counter(key for _ in range(100) for key in names(batches.next(1)[0]))
    assert set(seen) == {one.keys for one in items}
    assert max(seen.values()) - min(seen.values()) <= 3


def test_a_batch_is_smaller_if_an_epoch_has_not_enough_that_fit():
    items = [item(f"q{n}", f"d{n % 3}") for n in range(9)]
    batches = RankingBatches(items, batch_size=5)
    assert [len(batches.next(1)[0]) for _ in range(4)] == [3] * 4
    free = RankingBatches(items, batch_size=5, distinct=False)
    assert [len(free.next(1)[0]) for _ in range(4)] == [5] * 4


def test_a_restored_position_gives_the_same_batches():
    items = [item(f"q{n}", f"d{n % 5}") for n in range(23)]
    whole = RankingBatches(items, batch_size=4, micro_batches=2, seed=5)
    for _ in range(7):
        whole.next(2)
    state = json.loads(json.dumps(whole.state()))
    assert state["waiting"]
    again = RankingBatches(items, batch_size=4, micro_batches=2, seed=5)
    again.restore(state)
    for _ in range(9):
        assert list(map(names, whole.next(2))) == list(map(names, again.next(2)))
    assert whole.tokens == again.tokens
    with pytest.raises(InvalidRequest, match="was training on 23 queries and there are 22 now"):
        RankingBatches(items[:22], batch_size=4, seed=5).restore(state)


def test_processes_share_a_step():
    items = [item(f"q{n}", f"d{n}") for n in range(12)]

    def made():
        return RankingBatches(items, batch_size=6, micro_batches=2)

    both = made().next(2)
    assert [made().next(2, rank=rank, world=2)[0][0].keys for rank in (0, 1)] == [
        part[0].keys for part in both
    ]
    with pytest.raises(InvalidRequest, match="micro_batches is 7"):
        RankingBatches(items, batch_size=6, micro_batches=7)
    with pytest.raises(InvalidRequest, match="no training queries"):
        RankingBatches([], batch_size=1)
