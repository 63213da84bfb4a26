"""Windows with global tokens and blocks: what each query sees, and who chooses it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

from tests.contracts.cases import Case
from tests.contracts.test_transformers import Exact, random_model, write_vocabulary
from tests.support import plain
from tests.support.specs import SPECS, random_encoder
from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, InvalidRequest, KernelError, UnknownArchitecture
from unmask.families import family_of
from unmask.kernels import AttentionBias, MaskContext, Tile, allowed, probabilities
from unmask.kernels.tile import block_counts, random_blocks
from unmask.spec import BlockSparse, CausalAttention, SlidingWindow, SlidingWindowGlobal
from unmask.text import PackedBatch, SequenceLayout
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build

CPU = torch.device("cpu")


def drawn(tile, pattern, context):
    return [
        "".join(".#"[seen] for seen in row) for row in allowed(tile, pattern, CPU, context).int().tolist()
    ]


def test_window_and_globals_drawn():
    marks = np.array([True, False, False, False, True, False, False])
    assert drawn(Tile.whole(7), SlidingWindowGlobal(SlidingWindow(1)), MaskContext(7, 1, marks)) == [
        "#######",
        "###.#..",
        "#####..",
        "#.###..",
        "#######",
        "#...###",
        "#...###",
    ]


def test_causal_drawn():
    assert drawn(Tile.whole(4), CausalAttention(), None) == ["#...", "##..", "###.", "####"]
    assert drawn(Tile(1, 3, 2, 4), CausalAttention(), None) == ["..", "#."]


def test_blocks_drawn():
    """Block 0 is counted three times by all but the blocks that see everything."""
    pattern = BlockSparse(1, random_blocks=2)
    counts = block_counts(pattern, 10, 2)[1]
    assert ["".join(map(str, row)) for row in counts] == [
        "1111111111",
        "3110000001",
        "3111000001",
        "3011100001",
        "3001110001",
        "3000111001",
        "3000011101",
        "3000001111",
        "3000000111",
        "1111111111",
    ]


REACHES = [
    CausalAttention(),
    SlidingWindowGlobal(SlidingWindow(2)),
    SlidingWindowGlobal(SlidingWindow(1, dilation=2), own_projections=False),
    BlockSparse(2, 1, seed=4),
    BlockSparse(3, 0),
    BlockSparse(1, 2),
]


@pytest.mark.parametrize("pattern", REACHES, ids=str)
@given(length=st.integers(1, 40), cut=st.tuples(*[st.integers(0, 40)] * 4), seed=st.integers(0, 99))
def test_a_tile_is_a_part_of_the_whole(pattern, length, cut, seed):
    marks = np.random.default_rng(seed).random(length) < 0.2
    context = MaskContext(length, 3, marks)
    expected = plain.times_seen(pattern, length, 3, marks)
    first_row, end_row, first_column, end_column = (min(place, length) for place in cut)
    tile = Tile(first_row, max(first_row, end_row), first_column, max(first_column, end_column))
    seen = allowed(tile, pattern, CPU, context)
    rows, columns = slice(tile.first_row, tile.end_row), slice(tile.first_column, tile.end_column)
    piece = expected[:, rows, columns] > 0
    assert piece.all() if seen is None else (seen.numpy() == piece).all()
    for head in range(3):
        one = allowed(tile, pattern, CPU, MaskContext(length, 3, marks, head))
        assert piece[head].all() if one is None else (one.numpy() == piece[head]).all()
    q, k = torch.randn(2, length, 3, 4, dtype=torch.float64)
    p_HRC, _ = probabilities(Tile.whole(length), q, k, pattern, AttentionBias(), context=context)
    torch.testing.assert_close(p_HRC.sum(-1), torch.ones(3, length, dtype=torch.float64))
    assert (p_HRC.numpy()[expected == 0] == 0).all()


def test_blocks_must_know_the_sequence():
    with pytest.raises(KernelError, match="give its MaskContext"):
        allowed(Tile.whole(50), BlockSparse(1), CPU)


@pytest.mark.parametrize("tokens", [768, 832, 1024, 2048, 3072, 4096])
@pytest.mark.parametrize("seed", [0, 7])
def test_published_blocks_are_those_of_training(tokens, seed):
    """Drawn by `transformers` in training, where it does what the authors' code always does."""
    config = transformers.BigBirdConfig(hidden_size=3, num_attention_heads=3)
    theirs = BigBirdBlockSparseAttention(config, seed=seed).train()
    np.random.seed(seed)
    if tokens in (1024, 3072, 4096):
        plans = [theirs._bigbird_block_rand_mask(4096, 4096, 64, 64, 3, last_idx=1024) for _ in range(3)]
        expected = [plan[: tokens // 64 - 2] for plan in plans]
    else:
        lengths, counts = theirs._get_rand_attn_plan(tokens, 64, 3)
        expected = theirs._bigbird_block_rand_mask_with_head(tokens, tokens, 64, 64, 3, lengths, counts)
    found = random_blocks(BlockSparse(64, seed=seed), tokens // 64, 3)
    np.testing.assert_array_equal(found, np.stack(expected))
    if tokens in (1024, 3072, 4096):
        assert found.max() < 1024 // 64


def test_layers_and_heads_draw_their_own_blocks():
    first, second = (random_blocks(BlockSparse(64, seed=seed), 20, 2) for seed in (0, 1))
    assert (first != second).any()
    assert (first[0] != first[1]).any()
    assert not random_blocks(BlockSparse(64), 20, 2).any()


def ours_and_theirs(case, ids, places, tmp_path):
    model = random_model(case)
    model.save_pretrained(tmp_path)
    write_vocabulary(tmp_path, case.vocabulary)
    with torch.inference_mode(), Exact():
        theirs = model(torch.tensor([ids]))
    encoder = build(read_checkpoint(Source(tmp_path, "tiny"), case.compat), dtype="float64")
    batch = PackedBatch.of_ids([ids], None, [places])
    with torch.inference_mode():
        x_TD = encoder.encode(batch)
        (role,) = encoder.heads
        return encoder.logits(role, x_TD, batch.layout), theirs


LONGFORMER = {
    "hidden_size": 12,
    "num_attention_heads": 3,
    "intermediate_size": 10,
    "num_hidden_layers": 2,
    "attention_window": 4,
    "pad_token_id": 1,
    "sep_token_id": 2,
}


def test_the_first_token_is_global_where_texts_are_classified(tmp_path):
    case = Case("LongformerForSequenceClassification", LONGFORMER)
    ids = list(range(10, 31))
    ours, theirs = ours_and_theirs(case, ids, [0], tmp_path)
    np.testing.assert_allclose(ours, theirs.logits, rtol=0, atol=1e-10)
    local, _ = ours_and_theirs(case, ids, [], tmp_path)
    assert not np.allclose(local, theirs.logits, atol=1e-6)


def test_the_question_is_global_where_answers_are_found(tmp_path):
    case = Case("LongformerForQuestionAnswering", LONGFORMER)
    ids = [0, 20, 21, 22, 2, 2, *range(30, 44), 2]
    ours, theirs = ours_and_theirs(case, ids, range(ids.index(2)), tmp_path)
    np.testing.assert_allclose(ours[:, 0], theirs.start_logits[0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(ours[:, 1], theirs.end_logits[0], rtol=0, atol=1e-10)


def test_published_and_hf_differ_in_long_texts_only():
    """The same weights with drawn blocks and with block 0 alone."""
    spec = SPECS["blocks"]
    layers = tuple(replace(layer, mixer=with_seed(layer.mixer, None)) for layer in spec.layers)
    encoders = random_encoder(spec), random_encoder(replace(spec, layers=layers))
    for length, same in ((9, True), (30, False)):
        batch = PackedBatch.of_ids([list(range(length))])
        with torch.inference_mode():
            drawn_TD, zero_TD = (encoder.encode(batch) for encoder in encoders)
        assert torch.allclose(drawn_TD, zero_TD, atol=1e-5) is same


def with_seed(mixer, seed):
    return replace(mixer, pattern=replace(mixer.pattern, seed=seed))


def test_a_text_beyond_the_table_of_positions_is_refused():
    with pytest.raises(InvalidRequest, match="a sequence has 65 tokens and the encoder's position table"):
        random_encoder(SPECS["windows-globals"]).encode(PackedBatch.of_ids([[1] * 65]))


@pytest.mark.parametrize(
    ("places", "sentence"),
    [
        ([[0]], "global tokens are given for 1 sequences of 2"),
        ([[0], [3]], "global token 3 is not in a sequence of 3 tokens"),
        ([[0], [-1]], "global token -1 is not in a sequence of 3 tokens"),
    ],
)
def test_global_tokens_outside_are_refused(places, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        PackedBatch.of_ids([[5], [6, 7, 8]], None, places)


def test_a_layout_marks_every_token():
    with pytest.raises(InvalidRequest, match="2 tokens are marked as global or not, and there are 3"):
        SequenceLayout.of_lengths([3], np.array([True, False]))


@pytest.mark.parametrize(
    ("model_type", "changes", "error", "sentence"),
    [
        ("big_bird", {"rescale_embeddings": True}, UnknownArchitecture, "rescale_embeddings is True"),
        ("big_bird", {"attention_type": "etc"}, UnknownArchitecture, "attention_type is 'etc'"),
        ("longformer", {"attention_mode": "tvm"}, UnknownArchitecture, "attention_mode is 'tvm'"),
        (
            "longformer",
            {"attention_window": 5},
            UnknownArchitecture,
            "attention_window is 5; it must be even",
        ),
        ("longformer", {"attention_window": [4]}, CorruptCheckpoint, "for 1 layers, and there are 12"),
        ("longformer", {"attention_window": ["4"] * 12}, CorruptCheckpoint, "which is not of type int"),
    ],
)
def test_settings_that_are_not_built_are_refused(model_type, changes, error, sentence):
    config = {"model_type": model_type, **changes}
    with pytest.raises(error, match=sentence):
        family_of(config).read(JsonSettings("config.json", config), "published")


def test_dilation_is_the_authors_and_not_that_of_transformers():
    config = {"model_type": "longformer", "attention_dilation": [1, 2], "num_hidden_layers": 2}
    for compat, dilations in (("published", [1, 2]), ("hf", [1, 1])):
        spec = family_of(config).read(JsonSettings("config.json", config), compat)
        assert [layer.mixer.pattern.window.dilation for layer in spec.layers] == dilations
    written = family_of(config).write(
        family_of(config).read(JsonSettings("config.json", config), "published")
    )
    assert written["attention_dilation"] == [1, 2]
