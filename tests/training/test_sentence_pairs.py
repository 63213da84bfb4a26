"""Pairs of segments: labels, lengths, words kept whole, and the loss against its formulas."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from tests.support.examples import examples
from tests.support.specs import ALIBI_SHARED, POST_NORM, random_encoder
from tests.support.tiny import VOCABULARY as WORDPIECES
from tests.support.tiny import write_tokenizer
from tests.training.toy import CLS, SEP, chunks, gradients, vocabulary, with_heads
from unmask.errors import InvalidRequest
from unmask.spec import Classifier, LearnedPositions, Pooler
from unmask.text import Tokenizer
from unmask.training.data.stream import Chunk
from unmask.training.objectives.masking import MaskingSpec
from unmask.training.objectives.sentence_pairs import (
    SentencePairs,
    SentencePairSpec,
    exchange,
    pair_up,
    places,
    swap,
)
from unmask.training.vocabulary import Vocabulary

BERT = with_heads(POST_NORM, Classifier("next_sentence", 2, "pooler"))
ALBERT = with_heads(
    replace(ALIBI_SHARED, pooler=Pooler(), embedding=replace(ALIBI_SHARED.embedding, segments=0)),
    Classifier("sentence_order", 2, "pooler"),
)
ENDS = np.isin(np.arange(97), (94, 95, 97))
WITH_ENDS = replace(vocabulary(), ends_V=ENDS)

texts = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 4)), min_size=1, max_size=14)


def rng(seed=0):
    return np.random.default_rng(seed)


@examples(60)
@given(texts, st.integers(0, 1000), st.sampled_from([vocabulary(), WITH_ENDS]))
def test_exchanged_parts_are_of_other_documents_and_no_token_is_lost(shapes, seed, words):
    given_chunks = chunks(*zip(*shapes, strict=True), seed=seed)
    made = exchange(given_chunks, words, rng(seed))
    whole = np.concatenate([chunk.ids for chunk in given_chunks])
    split = np.concatenate([*made.firsts, *made.seconds])
    assert Counter(whole.tolist()) == Counter(split.tolist())
    assert made.cut_tokens == 0
    owner = {chunk.ids[-1:].ctypes.data: number for number, chunk in enumerate(given_chunks)}
    owners = []
    for number, (chunk, first, second) in enumerate(
        zip(given_chunks, made.firsts, made.seconds, strict=True)
    ):
        assert (first == chunk.ids[: len(first)]).all()
        if not len(second):
            assert (len(first), made.labels_S[number]) == (len(chunk.ids), 0)
            assert not len(places(chunk.ids, words))
            continue
        assert not words.continues_V[second[0]]
        source = owner[second[-1:].ctypes.data]
        owners.append(source)
        assert (source != number) == bool(made.labels_S[number])
        if source != number:
            assert given_chunks[source].document != chunk.document
        else:
            assert len(first) + len(second) == len(chunk.ids)
    assert len(set(owners)) == len(owners)


@examples(60)
@given(st.lists(st.integers(0, 5), min_size=0, max_size=25), st.integers(0, 1000))
def test_partners_are_as_many_as_can_be(documents, seed):
    partners = pair_up(documents, rng(seed))
    taken = [number for pair in partners for number in pair]
    assert len(set(taken)) == len(taken)
    assert all(documents[a] != documents[b] for a, b in partners)
    most = max(Counter(documents).values(), default=0)
    assert len(partners) == min(len(documents) // 2, len(documents) - most)


def test_every_partner_is_met():
    met = Counter(
        b for seed in range(400) for a, b in map(sorted, pair_up([0, 1, 2, 3], rng(seed))) if a == 0
    )
    assert set(met) == {1, 2, 3}
    assert min(met.values()) > 90


def test_half_of_the_pairs_are_negative_and_lengths_do_not_tell():
    labels, lengths = [], []
    for seed in range(60):
        made = exchange(chunks([60] * 12, range(12), seed=seed), WITH_ENDS, rng(seed))
        labels += made.labels_S.tolist()
        lengths += [len(a) + len(b) for a, b in zip(made.firsts, made.seconds, strict=True)]
        assert made.alone == 0
    assert len(labels) == 720
    assert abs(np.mean(labels) - 0.5) < 0.06
    apart = np.abs(np.array(lengths)[np.array(labels) == 1] - 60)
    assert apart.mean() < 8
    equal = [
        abs(len(a) + len(b) - 60)
        for seed in range(20)
        for made in [
            exchange(chunks([60] * 12, range(12), seed=seed), vocabulary(continues=False), rng(seed))
        ]
        for a, b in zip(made.firsts, made.seconds, strict=True)
    ]
    assert max(equal) == 0


def test_a_document_that_is_alone_stays_positive_and_is_counted():
    made = exchange(chunks([9, 9, 9, 9], [7, 7, 7, 7]), vocabulary(), rng(), share=0.99)
    assert made.labels_S.tolist() == [0] * 4
    assert made.alone == 4
    made = exchange(chunks([9, 9, 9, 9], [7, 7, 7, 8]), vocabulary(), rng(), share=0.999)
    assert made.labels_S.sum() == 2
    assert made.labels_S[3] == 1
    assert made.alone == 2


def test_too_long_a_pair_loses_its_end_and_says_so():
    ids = np.full(20, 7)
    # The first can be split after 15 only, the second after 5 only.
    late, early = ids.copy(), ids.copy()
    late[14], early[4] = 94, 95
    made = exchange([Chunk(late, 0), Chunk(early, 1)], WITH_ENDS, rng(), share=0.999, longest=22)
    assert [len(a) + len(b) for a, b in zip(made.firsts, made.seconds, strict=True)] in ([22, 10], [10, 22])
    assert made.cut_tokens == 8
    assert made.labels_S.tolist() == [1, 1]


def test_sentences_are_split_at_their_ends_and_words_nowhere():
    ids = np.array([7, 8, 94, 95, 10, 94, 9, 11, 94])
    assert places(ids, WITH_ENDS).tolist() == [4]  # 9 continues a word, 95 goes with the mark before it
    assert places(ids, vocabulary()).tolist() == [1, 2, 3, 4, 5, 7, 8]
    assert places(np.array([7]), WITH_ENDS).tolist() == []
    assert places(np.array([7, 9, 12]), WITH_ENDS).tolist() == []
    twice = [Chunk(np.array([7, 94, 8, 94, 10]), 0)]
    made = [swap(twice, WITH_ENDS, rng(seed)) for seed in range(200)]
    drawn = Counter(len((one.seconds if one.labels_S[0] else one.firsts)[0]) for one in made)
    assert set(drawn) == {2, 4}
    assert min(drawn.values()) > 70


def test_swapped_segments_are_the_same_two():
    given_chunks = chunks([12] * 400, [0] * 400)
    made = swap(given_chunks, vocabulary(), rng())
    for chunk, first, second, label in zip(
        given_chunks, made.firsts, made.seconds, made.labels_S, strict=True
    ):
        parts = (second, first) if label else (first, second)
        assert (np.concatenate(parts) == chunk.ids).all()
        assert len(first) > 0
        assert len(second) > 0
    assert abs(made.labels_S.mean() - 0.5) < 0.08


def test_the_vocabulary_knows_what_ends_a_sentence(tmp_path):
    write_tokenizer(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    found = Vocabulary.of(Tokenizer.from_files(files, "bert"))
    assert found.ends_V is not None
    assert [WORDPIECES[id] for id in np.flatnonzero(found.ends_V)] == [".", "!"]


@pytest.mark.parametrize(
    ("spec", "question"), [(BERT, "next_sentence"), (ALBERT, "sentence_order")], ids=["bert", "albert"]
)
def test_examples_are_wrapped_and_counted(spec, question):
    objective = SentencePairs(random_encoder(spec), WITH_ENDS, SentencePairSpec(question, MaskingSpec(0.2)))
    given_chunks = chunks([9, 1, 20, 14, 3, 8], [0, 1, 1, 2, 3, 3], seed=4)
    example = objective.prepare(given_chunks, rng(2), 0.0)
    assert {0, 1} == set(example.labels_P.tolist())
    again = objective.prepare(given_chunks, rng(2), 0.0)
    assert (again.batch.ids_T == example.batch.ids_T).all()
    assert example.sequences == 6
    ids_T = example.batch.ids_T.copy()
    ids_T[example.chosen_M] = example.targets_M
    assert (
        example.tokens == len(ids_T) <= sum(len(chunk.ids) + objective.extra_tokens for chunk in given_chunks)
    )
    assert example.counts == {"masked": len(example.chosen_M), question: len(example.pairs_P)}
    assert 1 not in example.pairs_P
    for sequence in range(6):
        rows = example.batch.layout.rows(sequence)
        own, kinds = ids_T[rows].tolist(), example.batch.token_type_ids_T[rows].tolist()
        seps = [place for place, id in enumerate(own) if id == SEP]
        assert own[0] == CLS
        assert own.count(CLS) == 1
        assert seps[-1] == len(own) - 1
        assert len(seps) == (2 if sequence in example.pairs_P else 1)
        if sequence in example.pairs_P:
            label = example.labels_P[example.pairs_P.tolist().index(sequence)]
            as_given = own[1 : seps[0]] + own[seps[0] + 1 : -1] == given_chunks[sequence].ids.tolist()
            assert as_given == (label == 0)
        second = len(own) - seps[0] - 1
        assert kinds == [0] * (seps[0] + 1) + [int(spec is BERT)] * second


@pytest.mark.parametrize(
    ("spec", "question"), [(BERT, "next_sentence"), (ALBERT, "sentence_order")], ids=["bert", "albert"]
)
def test_loss_and_gradients_are_those_of_the_formulas(spec, question):
    encoder = random_encoder(spec, dtype=torch.float64)
    objective = SentencePairs(encoder, WITH_ENDS, SentencePairSpec(question, MaskingSpec(0.3), weight=0.7))
    example = objective.prepare(chunks([9, 1, 20, 14, 3, 8], [0, 1, 1, 2, 3, 3]), rng(1), 0.0)
    assert {0, 1} == set(example.labels_P.tolist())
    outcome = objective(example, {"masked": 31, question: 13})
    words, asked, right = 0.0, 0.0, 0
    weights = dict(encoder.named_parameters())
    batch = example.batch
    for sequence in range(example.sequences):
        rows = batch.layout.rows(sequence)
        # One text alone, so that nothing rests on packing.
        x_ND = encoder(
            torch.from_numpy(batch.ids_T[rows]),
            type(batch.layout).of_lengths([rows.stop - rows.start]),
            torch.from_numpy(batch.token_type_ids_T[rows]),
        )
        for place, target in zip(example.chosen_M, example.targets_M, strict=True):
            if rows.start <= place < rows.stop:
                at = "heads.masked."
                y = x_ND[place - rows.start] @ weights[at + "transform.dense.weight"].T
                y = functional.gelu(y + weights[at + "transform.dense.bias"])
                y = functional.layer_norm(
                    y,
                    y.shape,
                    weights[at + "transform.norm.weight"],
                    weights[at + "transform.norm.bias"],
                    1e-7,
                )
                p = (weights["embedding.words.weight"] @ y + weights[at + "bias"]).softmax(0)
                words = words - p[target].log()
        if sequence in example.pairs_P:
            label = example.labels_P[example.pairs_P.tolist().index(sequence)]
            pooled = torch.tanh(weights["pooler.dense.weight"] @ x_ND[0] + weights["pooler.dense.bias"])
            at = f"heads.{question}.out."
            p = (weights[at + "weight"] @ pooled + weights[at + "bias"]).softmax(0)
            asked = asked - p[label].log()
            right += int(p.argmax() == label)
    expected = words / 31 + 0.7 * asked / 13
    torch.testing.assert_close(outcome.loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(outcome.sums[f"{question}/loss"], asked, rtol=1e-12, atol=0)
    torch.testing.assert_close(outcome.sums["masked/loss"], words, rtol=1e-12, atol=0)
    assert outcome.sums[f"{question}/accuracy"] == right
    assert outcome.sums[f"{question}/negative"] == example.labels_P.sum()
    ours, theirs = gradients(outcome.loss, encoder), gradients(expected, encoder)
    for name, grad in theirs.items():
        torch.testing.assert_close(ours[name], grad, rtol=0, atol=1e-11, msg=name)


def test_a_batch_without_pairs_learns_words_alone():
    objective = SentencePairs(random_encoder(BERT), vocabulary(), SentencePairSpec())
    example = objective.prepare(chunks([1, 1], [0, 1]), rng(), 0.0)
    assert example.counts["next_sentence"] == 0
    outcome = objective(example, example.counts)
    assert torch.isfinite(outcome.loss)
    assert outcome.sums["next_sentence/loss"] == 0
    outcome.loss.backward()
    assert objective.encoder.heads["next_sentence"].out.weight.grad.abs().max() == 0


def test_a_table_of_one_token_type_is_read_at_its_only_row():
    one_row = replace(BERT, embedding=replace(BERT.embedding, segments=1))
    objective = SentencePairs(random_encoder(one_row), WITH_ENDS, SentencePairSpec())
    example = objective.prepare(chunks([9, 20], [0, 1]), rng(), 0.0)
    assert not example.batch.token_type_ids_T.any()
    assert torch.isfinite(objective(example, example.counts).loss)


@pytest.mark.parametrize("made", [swap, exchange])
def test_the_share_is_that_of_negative_pairs(made):
    found = made(chunks([9] * 400, range(400)), vocabulary(), rng(), share=0.8)
    assert found.labels_S.mean() == pytest.approx(0.8, abs=0.06)


def test_pairs_never_exceed_the_positions():
    short = replace(BERT, embedding=replace(BERT.embedding, positions=LearnedPositions(23)))
    objective = SentencePairs(random_encoder(short), WITH_ENDS, SentencePairSpec())
    cut = 0
    for seed in range(20):
        example = objective.prepare(chunks([20] * 8, range(8), seed=seed), rng(seed), 0.0)
        assert example.batch.layout.lengths.max() <= 23
        assert example.tokens == 8 * 23 - example.cut_tokens
        cut += example.cut_tokens
    assert 0 < cut < 0.1 * 20 * 8 * 20


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(InvalidRequest, match="no sentence_order head of two classes"):
        SentencePairs(random_encoder(BERT), vocabulary(), SentencePairSpec("sentence_order"))
    one = random_encoder(with_heads(POST_NORM, Classifier("next_sentence", 1, "pooler")))
    with pytest.raises(InvalidRequest, match="no next_sentence head of two classes"):
        SentencePairs(one, vocabulary(), SentencePairSpec())
    with pytest.raises(InvalidRequest, match="share is 1"):
        SentencePairSpec(share=1)
    with pytest.raises(InvalidRequest, match="task is"):
        SentencePairSpec("order")
