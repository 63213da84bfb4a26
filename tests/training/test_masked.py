"""Masked language modeling: what is hidden, and the loss over it, beside plain re-computations."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from tests.support.examples import examples
from tests.support.specs import SPECS, random_encoder
from tests.training.toy import with_heads
from unmask.errors import InvalidRequest
from unmask.text.batch import SequenceLayout
from unmask.training.data.stream import Chunk
from unmask.training.objectives.language_modeling import MaskedLanguageModel, selected_cross_entropy
from unmask.training.objectives.masking import INSTEAD, MaskingSpec, choose, mask_tokens
from unmask.training.vocabulary import Vocabulary

SIZE = 40
CONTINUES = np.arange(SIZE) % 3 == 2
SPECIAL = np.arange(SIZE) < 5
VOCABULARY = Vocabulary(SIZE, 2, 3, 4, SPECIAL, CONTINUES & ~SPECIAL)


def packed(lengths, seed=0):
    """[CLS] words [SEP] of these lengths, packed."""
    rng = np.random.default_rng(seed)
    sequences = [np.concatenate(([2], rng.integers(5, SIZE, length), [3])) for length in lengths]
    return np.concatenate(sequences), SequenceLayout.of_lengths([len(one) for one in sequences])


# --- what is hidden ---------------------------------------------------------------------------------


@examples(60)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    rate=st.floats(0.05, 0.9),
    unit=st.sampled_from(["token", "word", "ngram"]),
    instead=st.sampled_from(sorted(INSTEAD)),
    copies=st.sampled_from([0, 3]),
    seed=st.integers(0, 99),
)
def test_only_chosen_tokens_change_and_special_ones_are_never_chosen(
    lengths, rate, unit, instead, copies, seed
):
    ids_T, layout = packed(lengths, seed)
    spec = MaskingSpec(rate=rate, mask_unit=unit, replacement=instead, static_masks=copies)
    hidden_T, chosen_M = mask_tokens(ids_T, layout, spec, VOCABULARY, draw=np.random.default_rng(seed))
    assert len(chosen_M)
    assert (np.diff(chosen_M) > 0).all()
    assert not SPECIAL[ids_T[chosen_M]].any()
    kept = np.ones(len(ids_T), dtype=bool)
    kept[chosen_M] = False
    assert (hidden_T[kept] == ids_T[kept]).all()
    if instead == "mask":
        assert (hidden_T[chosen_M] == VOCABULARY.mask_id).all()
    placed = hidden_T[chosen_M]
    assert ((placed == VOCABULARY.mask_id) | ~SPECIAL[placed]).all()


@pytest.mark.parametrize("unit", ["token", "word", "ngram"])
@pytest.mark.parametrize("lengths", [[3] * 400, [200] * 8])
def test_the_rate_is_right_on_average_however_short_texts_are(unit, lengths):
    ids_T, layout = packed(lengths)
    spec = MaskingSpec(rate=0.3, mask_unit=unit)
    draw = np.random.default_rng(1)
    shares = [
        len(choose(ids_T, layout, spec, rate=0.3, vocabulary=VOCABULARY, draw=draw)) / sum(lengths)
        for _ in range(40)
    ]
    # A unit of several tokens is taken whole, which in texts of three tokens leaves the rate only near.
    assert np.mean(shares) == pytest.approx(0.3, abs=0.01 if unit == "token" or lengths[0] > 3 else 0.08)


@pytest.mark.parametrize("instead", sorted(INSTEAD))
def test_shares_of_what_stands_instead(instead):
    ids_T, layout = packed([500] * 20)
    hidden_T, chosen_M = mask_tokens(
        ids_T, layout, MaskingSpec(rate=0.5, replacement=instead), VOCABULARY, draw=np.random.default_rng(0)
    )
    masked, random = INSTEAD[instead]
    placed = hidden_T[chosen_M]
    assert (placed == 4).mean() == pytest.approx(masked, abs=0.02)
    changed = ((placed != 4) & (placed != ids_T[chosen_M])).mean()
    # One random token in 35 is the one that was there.
    assert changed == pytest.approx(random * 34 / 35, abs=0.02)


def test_words_are_hidden_whole():
    ids_T, layout = packed([60] * 10)
    chosen_M = choose(
        ids_T,
        layout,
        MaskingSpec(mask_unit="word"),
        rate=0.3,
        vocabulary=VOCABULARY,
        draw=np.random.default_rng(0),
    )
    chosen = np.zeros(len(ids_T), dtype=bool)
    chosen[chosen_M] = True
    inside = VOCABULARY.continues_V[ids_T] & ~SPECIAL[np.roll(ids_T, 1)]
    assert inside.sum() > 50
    assert (chosen[inside] == chosen[np.flatnonzero(inside) - 1]).all()


def test_runs_of_words_have_the_published_lengths():
    """Lan et al. 2020: one to three words with probability in proportion to 1 / n."""
    no_continuation = Vocabulary(SIZE, 2, 3, 4, SPECIAL, np.zeros(SIZE, dtype=bool))
    ids_T, layout = packed([20_000])
    spec = MaskingSpec(mask_unit="ngram", longest=3)
    chosen_M = choose(
        ids_T, layout, spec, rate=0.02, vocabulary=no_continuation, draw=np.random.default_rng(0)
    )
    runs = np.split(chosen_M, np.flatnonzero(np.diff(chosen_M) > 1) + 1)
    share = np.bincount([min(len(run), 4) for run in runs], minlength=5)[1:4] / len(runs)
    assert share == pytest.approx(np.array([6, 3, 2]) / 11, abs=0.1)


def test_runs_of_words_end_with_their_text():
    """Otherwise texts of one word would be chosen together with their neighbors."""
    ids_T, layout = packed([1] * 2000)
    spec = MaskingSpec(rate=0.5, mask_unit="ngram", longest=12)
    _, chosen_M = mask_tokens(ids_T, layout, spec, VOCABULARY, draw=np.random.default_rng(0))
    chosen_S = np.isin(np.arange(2000), layout.sequence_of_T[chosen_M])
    assert abs(np.corrcoef(chosen_S[1:], chosen_S[:-1])[0, 1]) < 0.08


def test_static_masks_are_a_few_and_follow_the_text():
    ids_T, layout = packed([30])
    spec = MaskingSpec(rate=0.3, static_masks=4)
    seen = {
        tuple(mask_tokens(ids_T, layout, spec, VOCABULARY, draw=np.random.default_rng(seed))[0].tolist())
        for seed in range(60)
    }
    assert len(seen) == 4
    spec = MaskingSpec(rate=0.3)
    fresh = {
        tuple(mask_tokens(ids_T, layout, spec, VOCABULARY, draw=np.random.default_rng(seed))[0].tolist())
        for seed in range(60)
    }
    assert len(fresh) > 50


def test_the_rate_moves_over_the_run():
    spec = MaskingSpec(rate=0.3, final_rate=0.15)
    assert [spec.rate_at(p) for p in (0, 0.5, 1)] == pytest.approx([0.3, 0.225, 0.15])
    assert MaskingSpec(rate=0.2).rate_at(0.7) == 0.2
    ids_T, layout = packed([50] * 100)
    for copies in (0, 2):
        spec = MaskingSpec(rate=0.3, final_rate=0.1, static_masks=copies)
        for progress, rate in ((0.0, 0.3), (1.0, 0.1)):
            draw = np.random.default_rng(0)
            _, chosen_M = mask_tokens(ids_T, layout, spec, VOCABULARY, draw=draw, progress=progress)
            assert len(chosen_M) / 5000 == pytest.approx(rate, abs=0.02)


@pytest.mark.parametrize(
    "wrong",
    [{"rate": 0.0}, {"rate": 1.0}, {"final_rate": 1.5}, {"replacement": "bart"}, {"mask_unit": "line"}],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(InvalidRequest, match=str(next(iter(wrong.values())))):
        MaskingSpec(**wrong)


def test_special_tokens_alone_are_refused():
    with pytest.raises(InvalidRequest, match="only special tokens"):
        mask_tokens(
            np.array([2, 3]),
            SequenceLayout.of_lengths([2]),
            MaskingSpec(),
            VOCABULARY,
            draw=np.random.default_rng(0),
        )


# --- the loss ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 7, 10_000])
def test_cross_entropy_is_torchs(monkeypatch, bias, rows):
    monkeypatch.setattr("unmask.training.objectives.language_modeling._rows", lambda *_: rows)
    torch.manual_seed(0)
    x, words = torch.randn(23, 6, dtype=torch.float64), torch.randn(11, 6, dtype=torch.float64)
    offsets = torch.randn(11, dtype=torch.float64) if bias else None
    targets = torch.randint(11, (23,))
    inputs = [one.requires_grad_() for one in (x, words, offsets) if one is not None]
    loss, right = selected_cross_entropy(x, words, offsets, targets)
    found = torch.autograd.grad(loss * 0.3, inputs)
    logits = functional.linear(x, words, offsets)
    expected = functional.cross_entropy(logits, targets, reduction="sum")
    wanted = torch.autograd.grad(expected * 0.3, inputs)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)
    assert right == (logits.argmax(-1) == targets).sum()
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-12, rtol=0)


def test_cross_entropy_under_autocast_keeps_float32_gradients():
    torch.manual_seed(0)
    x, words = torch.randn(50, 16, requires_grad=True), torch.randn(30, 16, requires_grad=True)
    targets = torch.randint(30, (50,))
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = selected_cross_entropy(x, words, None, targets)
    found = torch.autograd.grad(loss, (x, words))
    exact = functional.cross_entropy(x @ words.T, targets, reduction="sum")
    wanted = torch.autograd.grad(exact, (x, words))
    assert loss.item() == pytest.approx(exact.item(), rel=1e-2)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).abs().max() < 0.05 * other.abs().max()


def test_gradients_of_many_parts_are_added_in_float32(monkeypatch):
    """In bfloat16 a sum stops growing once a part is below its last digit."""
    monkeypatch.setattr("unmask.training.objectives.language_modeling._rows", lambda *_: 1)
    x = torch.ones(2000, 4, dtype=torch.bfloat16)
    words = torch.zeros(8, 4, dtype=torch.bfloat16, requires_grad=True)
    loss, _ = selected_cross_entropy(x, words, None, torch.zeros(2000, dtype=torch.int64))
    (found,) = torch.autograd.grad(loss, words)
    torch.testing.assert_close(found[1].float(), torch.full((4,), 2000 / 8), rtol=0.01, atol=0)


@pytest.mark.parametrize("name", sorted(SPECS))
def test_loss_and_gradients_are_those_of_all_logits(name):
    """Independent: logits for every token by the head's own forward, float64, torch's cross-entropy."""
    spec = with_heads(SPECS[name])
    encoder = random_encoder(spec, dtype=torch.float64).eval()
    size = spec.embedding.vocabulary
    special = np.arange(size) < 5
    vocabulary = Vocabulary(size, 2, 3, 4, special, np.zeros(size, dtype=bool))
    rng = np.random.default_rng(0)
    chunks = [Chunk(rng.integers(5, size, length), 0) for length in (3, 9, 1, 6)]
    objective = MaskedLanguageModel(encoder, vocabulary, MaskingSpec(rate=0.4))
    example = objective.prepare(chunks, np.random.default_rng(3), 0.0)
    outcome = objective(example, {"masked": 10})
    outcome.loss.backward()
    found = {n: p.grad.clone() for n, p in encoder.named_parameters() if p.grad is not None}
    encoder.zero_grad()

    whole = np.concatenate([[2, *chunk.ids, 3] for chunk in chunks])
    labels = np.full(len(whole), -100)
    labels[example.chosen_M] = whole[example.chosen_M]
    x_TD = encoder.encode(example.batch)
    logits_TV = encoder.logits("masked", x_TD, example.batch.layout)
    expected = functional.cross_entropy(logits_TV, torch.from_numpy(labels), reduction="sum") / 10
    expected.backward()
    assert outcome.loss.item() == pytest.approx(expected.item(), abs=1e-12)
    assert outcome.sums["masked/loss"].item() == pytest.approx(10 * expected.item(), abs=1e-11)
    wanted = {n: p.grad for n, p in encoder.named_parameters() if p.grad is not None}
    assert found.keys() == wanted.keys()
    for parameter, gradient in wanted.items():
        assert torch.allclose(found[parameter], gradient, atol=1e-11, rtol=1e-9), parameter


def test_an_encoder_without_the_head_is_refused():
    spec = next(spec for spec in SPECS.values() if not spec.heads)
    with pytest.raises(InvalidRequest, match="no head that predicts masked words"):
        MaskedLanguageModel(random_encoder(spec), VOCABULARY, MaskingSpec())
