"""Global tokens: who chooses them, what they cost, and that they are what `transformers` makes of them."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.longformer.modeling_longformer import _compute_global_attention_mask

from tests.contracts.test_transformers import Exact
from tests.support.examples import examples
from tests.support.specs import SPECS, random_encoder
from unmask import load
from unmask.encoder.hooks import HookPoint
from unmask.encoder.layers.global_attention import GlobalAttention, GlobalRows
from unmask.errors import InvalidRequest
from unmask.interpret import AttentionView
from unmask.spec import Classifier, MaskedLM, SlidingWindowGlobal, SoftmaxAttention
from unmask.spec.attention import SlidingWindow
from unmask.spec.global_tokens import pack, places, trained_global_tokens
from unmask.text import SequenceLayout

CPU = torch.device("cpu")
QUESTION, CONTEXT = "c a d e", "b h f g c a f e h b d"


def layer(dropout=0.0, *, bias=True, heads=3, width=12):
    torch.manual_seed(1)
    pattern = SlidingWindowGlobal(SlidingWindow(2))
    made = GlobalAttention(
        SoftmaxAttention(heads, 4, pattern=pattern, dropout=dropout, query_bias=bias), width
    )
    return made.double()


def some_globals(layout, seed, share):
    marks = np.random.default_rng(seed).random(layout.token_count) < share
    return SequenceLayout(layout.offsets, marks)


@examples(25)
@given(
    lengths=st.lists(st.sampled_from([1, 2, 5, 5, 9]), min_size=1, max_size=7),
    share=st.sampled_from([0.1, 0.5, 1.0]),
    seed=st.integers(0, 99),
    bias=st.booleans(),
)
def test_global_rows_are_attention_through_projections_of_their_own(lengths, share, seed, bias):
    """Few global tokens or many, in any order of lengths, against one text at a time from the formula."""
    layout = some_globals(SequenceLayout.of_lengths(lengths), seed, share)
    attention, marks = layer(bias=bias), layout.globals_T
    x_TD, o_THK = torch.randn(layout.token_count, 12).double(), torch.randn(layout.token_count, 3, 4).double()
    rows = GlobalRows.of(layout, CPU)
    if rows is None:
        assert not marks.any()
        return
    with torch.no_grad():
        found = attention(x_TD, o_THK, rows)
        expected = o_THK.clone()
        for sequence in range(layout.sequence_count):
            tokens = layout.rows(sequence)
            q, k, v = attention.qkv(x_TD[tokens]).view(-1, 3, 3, 4).permute(1, 2, 0, 3)
            mixed = (torch.softmax(q @ k.mT / 2, -1) @ v).transpose(0, 1)
            chosen = torch.from_numpy(marks[tokens])
            expected[tokens][chosen] = mixed[chosen]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_gradients_of_few_and_of_many_global_tokens(share):
    layout = some_globals(SequenceLayout.of_lengths([6, 1, 3, 6]), 3, share)
    attention, rows = layer(), GlobalRows.of(layout, CPU)
    few = {group.globals_BG.shape[1] * 3 < 12 for group in rows.groups}
    assert few == ({True} if share < 1 else {True, False})
    x_TD = torch.randn(16, 12, dtype=torch.float64, requires_grad=True)
    o_THK = torch.randn(16, 3, 4, dtype=torch.float64, requires_grad=True)
    weights = (attention.qkv.weight, attention.qkv.bias)
    inputs = (x_TD, o_THK, *weights)
    assert torch.autograd.gradcheck(lambda x, o, *_: attention(x, o, rows), inputs, fast_mode=True)


@pytest.mark.parametrize("globals_each", [1, 6])
def test_dropout_keeps_the_mean(globals_each):
    """A dropped probability takes its share of the value's bias with it."""
    layout = SequenceLayout.of_lengths([6], np.arange(6) < globals_each)
    attention, rows = layer(dropout=0.4).train(), GlobalRows.of(layout, CPU)
    with torch.no_grad():
        attention.qkv.bias += 1.0
        x_TD, o_THK = torch.randn(6, 12).double(), torch.zeros(6, 3, 4).double()
        drawn = torch.stack([attention(x_TD, o_THK, rows) for _ in range(1000)])
        kept = attention.eval()(x_TD, o_THK, rows)
    deviation = drawn.std(0) / len(drawn) ** 0.5
    assert ((drawn.mean(0) - kept).abs() <= 5 * deviation).all()
    assert (deviation[:globals_each] > 0).all()


def test_half_precision_stays_near_the_exact_rows():
    layout = SequenceLayout.of_lengths([300, 41], np.isin(np.arange(341), (0, 300)))
    attention, rows = layer(width=48, heads=4), GlobalRows.of(layout, CPU)
    x_TD, o_THK = torch.randn(341, 48).double(), torch.zeros(341, 4, 4).double()
    with torch.no_grad():
        exact = attention(x_TD, o_THK, rows)
        half = attention.bfloat16()(x_TD.bfloat16(), o_THK.bfloat16(), rows)
    assert half.dtype == torch.bfloat16
    assert (half - exact).norm() < 0.02 * exact.norm()


def test_one_global_token_costs_no_keys_and_values():
    attention = layer(width=96, heads=6)
    x_TD, o_THK = torch.randn(256, 96).double(), torch.zeros(256, 6, 4).double()
    costs = []
    for count in (1, 16):
        rows = GlobalRows.of(SequenceLayout.of_lengths([256], np.arange(256) < count), CPU)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            attention(x_TD, o_THK, rows)
        costs.append(counter.get_total_flops())
    projecting = 2 * 256 * 96 * (2 * 24)
    assert costs[1] > projecting
    assert costs[0] < projecting / 3


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Writes a small Longformer of theirs with a tokenizer of RoBERTa's form; the folder and the model."""
    words = {word: i for i, word in enumerate(("<s>", "<pad>", "</s>", "<unk>", "<mask>", *"abcdefgh"))}
    engine = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    engine.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    engine.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine,
        unk_token="<unk>",
        pad_token="<pad>",
        cls_token="<s>",
        sep_token="</s>",
        mask_token="<mask>",
    )

    def written(kind):
        folder = tmp_path_factory.mktemp(kind)
        config = transformers.LongformerConfig(
            vocab_size=len(words),
            hidden_size=15,
            num_attention_heads=5,
            num_hidden_layers=2,
            intermediate_size=22,
            attention_window=[4, 8],
            max_position_embeddings=40,
            type_vocab_size=1,
            pad_token_id=1,
            sep_token_id=2,
            num_labels=4 if "Sequence" in kind else 2,
            initializer_range=0.5,
        )
        torch.manual_seed(0)
        model = getattr(transformers, kind)(config).eval()
        model.save_pretrained(folder)
        fast.save_pretrained(folder)
        return folder, model

    return written


def test_heads_have_the_global_tokens_that_theirs_choose(write):
    """Theirs are given no mask of global tokens and choose by themselves."""
    for kind, role in (
        ("LongformerForSequenceClassification", "sequence"),
        ("LongformerForQuestionAnswering", "span"),
        ("LongformerForMaskedLM", "masked"),
        ("LongformerForTokenClassification", "tokens"),
    ):
        folder, theirs = write(kind)
        model = load(folder, dtype="float64")
        encoding = model.tokenizer.encode(QUESTION, CONTEXT)
        ids = torch.tensor(encoding.ids)[None]
        with torch.inference_mode(), Exact():
            out = theirs.double()(input_ids=ids)
        with torch.inference_mode():
            batch = pack(model.spec, [encoding], trained_global_tokens(model.spec, paired=True))
            ours = model.encoder.logits(role, model.encoder.encode(batch), batch.layout)
        expected = torch.stack((out.start_logits, out.end_logits), -1) if role == "span" else out.logits
        torch.testing.assert_close(ours.view(expected.shape), expected, rtol=0, atol=1e-10)
        if role in {"sequence", "span"}:  # and the choice makes a difference
            batch = pack(model.spec, [encoding], "none")
            with torch.inference_mode():
                other = model.encoder.logits(role, model.encoder.encode(batch), batch.layout)
            assert (other - ours).abs().max() > 1e-3


def test_the_question_ends_where_theirs_does(write):
    model = load(write("LongformerForQuestionAnswering")[0])
    for question, context in ((QUESTION, CONTEXT), ("a", "b c"), ("a b <mask>", "c")):
        encoding = model.tokenizer.encode(question, context)
        theirs = _compute_global_attention_mask(torch.tensor(encoding.ids)[None], 2)
        assert list(places(encoding, "question")) == theirs[0].nonzero().flatten().tolist()
    with pytest.raises(InvalidRequest, match="only one text was given"):
        places(model.tokenizer.encode(QUESTION), "question")
    with pytest.raises(InvalidRequest, match="global_tokens is 'all'; it can be 'none'"):
        model.embed(QUESTION, pooling="mean", global_tokens="all")


def test_embeddings_are_made_with_the_first_token_global_or_as_the_caller_says(write):
    folder, theirs = write("LongformerModel")
    model = load(folder, dtype="float64")
    texts = [CONTEXT, QUESTION, CONTEXT[:5]]
    last = lambda encoding: (len(encoding) - 1,)  # noqa: E731
    for choice, marked in (({}, 0), ({"global_tokens": "none"}, None), ({"global_tokens": last}, -1)):
        found = model.embed(texts, pooling="mean", **choice)
        for text, embedding in zip(texts, found, strict=True):
            ids = torch.tensor(model.tokenizer.encode(text).ids)[None]
            mask = torch.zeros_like(ids)
            if marked is not None:
                mask[0, marked] = 1
            with torch.inference_mode():
                out = theirs.double()(input_ids=ids, global_attention_mask=mask).last_hidden_state
            np.testing.assert_allclose(embedding, out[0, : ids.shape[1]].mean(0), rtol=0, atol=1e-6)
    filled = load(write("LongformerForMaskedLM")[0])
    marked = filled.fill("a <mask> c", global_tokens="first")[0].predictions[0].probability
    assert filled.fill("a <mask> c")[0].predictions[0].probability != marked


def test_states_of_ids_take_places(write):
    folder, theirs = write("LongformerModel")
    model, ids = load(folder, dtype="float64"), [0, 5, 9, 6, 7, 2]
    (found,) = model.hidden_states([ids], global_tokens=[[2, 3]])
    mask = torch.tensor([[0, 0, 1, 1, 0, 0]])
    with torch.inference_mode(), Exact():
        out = theirs.double()(input_ids=torch.tensor([ids]), global_attention_mask=mask)
    torch.testing.assert_close(found, out.last_hidden_state[0, :6], rtol=0, atol=1e-10)


def test_attention_is_shown_with_the_global_tokens_it_ran_with(write):
    folder, theirs = write("LongformerForQuestionAnswering")
    model = load(folder, dtype="float64")
    view = model.attention(QUESTION, CONTEXT)
    ids = torch.tensor(view.encoding.ids)[None]
    with torch.inference_mode(), Exact():
        out = theirs.double()(input_ids=ids, output_attentions=True)
    marked = np.flatnonzero(view.globals_N)
    assert marked.tolist() == [0, 1, 2, 3, 4]
    for number, global_attentions in enumerate(out.global_attentions):
        for head in range(5):
            # Theirs: of every global token, in order, to every token of the padded text.
            expected = global_attentions[0, head, : len(view), : len(marked)].T.numpy()
            found = view.probabilities(number, head)
            np.testing.assert_allclose(found[marked], expected, rtol=0, atol=1e-6)
            np.testing.assert_allclose(found.sum(-1), 1, rtol=0, atol=1e-6)
            far = np.abs(np.subtract.outer(np.arange(len(view)), np.arange(len(view)))) > 2 * (number + 1)
            hidden = far & ~view.globals_N[:, None] & ~view.globals_N[None, :]
            assert (found[hidden] == 0).all()
            assert (found[~hidden] > 0).all()
    assert (view.entropy[:, :, marked] > 0).all()
    whole = model.attention(QUESTION, CONTEXT, global_tokens="none")
    assert not whole.globals_N.any()
    assert not model.attention(QUESTION).globals_N.any()  # no question, no global token


@pytest.mark.parametrize("choice", ["first", lambda _: (3, 5, 6)])
def test_what_is_shown_mixes_the_values_that_came_out(choice, write):
    """Probabilities times values are what attention gave, in every layer, with own projections or without."""
    encoder = random_encoder(SPECS["windows-globals"], dtype=torch.float64)
    encoding = load(write("LongformerModel")[0]).tokenizer.encode(CONTEXT)
    view, heard = AttentionView(encoder, encoding, global_tokens=choice), {}
    batch = pack(encoder.spec, [encoding], choice)
    with torch.inference_mode():
        encoder.encode(batch, hook=lambda place, layer, x: heard.update({(place, layer): x.clone()}))
    states = [heard[HookPoint.EMBEDDED, 0], *(heard[HookPoint.LAYER, number] for number in range(2))]
    for number, block in enumerate(encoder.layers):
        v_THK = heard[HookPoint.VALUE, number]
        own = block.attention.globals
        for head in range(3):
            values = v_THK[:, head].numpy()
            mixed = view.probabilities(number, head) @ values
            if own is not None:
                with torch.inference_mode():
                    theirs = own.qkv(states[number]).view(len(view), 3, 3, -1)[:, 2, head].numpy()
                marked = view.globals_N
                mixed[marked] = view.probabilities(number, head)[marked] @ theirs
            np.testing.assert_allclose(
                mixed, heard[HookPoint.MIXED, number][:, head].numpy(), rtol=0, atol=1e-5
            )


def test_encoders_without_such_a_pattern_get_none(write):
    encoding = load(write("LongformerModel")[0]).tokenizer.encode(CONTEXT)
    assert pack(SPECS["post-norm"], [encoding], "first").layout.globals_T is None
    assert pack(SPECS["windows-globals"], [encoding], "first").layout.globals_T.sum() == 1


def test_each_head_has_its_choice():
    spec = SPECS["windows-globals"]
    heads = {
        "none": (MaskedLM(None), Classifier("tokens", 2, "tokens")),
        "first": (Classifier("sequence", 2, "first"), None),
        "question": (Classifier("span", 2, "tokens"),),
    }
    found = Counter(
        (trained_global_tokens(replace(spec, heads=() if head is None else (head,)), paired=True), choice)
        for choice, several in heads.items()
        for head in several
    )
    assert found == {("none", "none"): 2, ("first", "first"): 2, ("question", "question"): 1}
