"""Pairs whose query attends to itself alone: one computation of it serves all of its documents."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

import unmask
from tests.support.specs import BLOCKS, LINEAR, SPECS, random_encoder
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.encoder.layers.attention import SoftmaxMixer
from unmask.errors import InvalidRequest
from unmask.kernels.tile import Tile, allowed, scores
from unmask.spec import check_shared_query
from unmask.text.batch import PackedBatch, query_places, share_queries
from unmask.training.objectives.retrieval_example import parts_of
from unmask.weights.write.save import save

ENCODERS = ("post-norm", "rotary-windows", "alibi-shared", "disentangled-own", "relative", "grouped")
QUERIES = ["a river", "the bank was muddy"]
TEXTS = ["The river bank, was muddy.", "another text", "muddy", "the river " * 4, "a text " * 3 + "muddy"]


def pairs(lengths, queries, vocabulary=97):
    """Random pairs of one token, a query and a document, in turn with one query and the other."""
    draw = np.random.default_rng(0)
    asked = [draw.integers(0, vocabulary, length) for length in queries]
    which = [index % len(queries) for index in range(len(lengths))]
    ids = [
        np.concatenate(([5], asked[query], draw.integers(0, vocabulary, length)))
        for length, query in zip(lengths, which, strict=True)
    ]
    places = [range(1, 1 + queries[query]) for query in which]
    return PackedBatch.of_ids(ids, queries=places)


def one_way(batch):
    """Attention by the definition, in float64, in which no marked token sees one that is not marked."""

    def mix(self, q_THK, k_THK, v_THK, plan, bias):
        found = []
        for sequence in range(batch.layout.sequence_count):
            rows = batch.layout.rows(sequence)
            tile = Tile.whole(rows.stop - rows.start)
            query_N = torch.from_numpy(batch.queries_T[rows])
            seen_NN = ~query_N[:, None] | query_N[None, :]
            window_NN = allowed(tile, self.spec.pattern, q_THK.device)
            seen_NN = seen_NN if window_NN is None else seen_NN & window_NN
            s_HNN = scores(tile, q_THK[rows], k_THK[rows], bias).masked_fill(~seen_NN, -math.inf)
            found.append(torch.einsum("hrc,chk->rhk", s_HNN.softmax(-1), v_THK[rows]))
        return torch.cat(found)

    return mix


@pytest.mark.parametrize("name", ENCODERS)
def test_states_are_those_of_the_mask(name, monkeypatch):
    encoder = random_encoder(SPECS[name]).double().eval()
    batch = pairs([3, 9, 3, 1, 14], [4, 7, 4])
    with torch.no_grad():
        found = encoder.encode(batch)
        everything = encoder.encode(replace(batch, queries_T=None))
        monkeypatch.setattr(SoftmaxMixer, "mix", one_way(batch))
        expected = encoder.encode(replace(batch, queries_T=None))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert (found - everything).abs().max() > 1e-3  # the mask matters


def test_gradients_are_those_of_the_mask(monkeypatch):
    encoder = random_encoder(SPECS["post-norm"]).double().train()
    batch = pairs([3, 9, 3], [4])
    weight = encoder.layers[0].attention.qkv.weight
    found = torch.autograd.grad(encoder.encode(batch)[::5].square().sum(), weight)
    monkeypatch.setattr(SoftmaxMixer, "mix", one_way(batch))
    states = encoder.encode(replace(batch, queries_T=None))
    expected = torch.autograd.grad(states[::5].square().sum(), weight)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_each_query_is_packed_once():
    batch = pairs([3, 9, 3, 1], [4, 7])
    shared, tokens_T = share_queries(batch)
    assert shared.layout.token_count == (4 + 7) + 4 * 1 + (3 + 9 + 3 + 1)
    np.testing.assert_array_equal(shared.ids_T[tokens_T], batch.ids_T)
    np.testing.assert_array_equal(shared.layout.positions_T[tokens_T], batch.layout.positions_T)


def test_parts_of_a_batch_keep_their_marks():
    batch = pairs([3, 9, 3, 1], [4, 7])
    parts = list(parts_of(batch, 20))
    assert len(parts) > 1
    np.testing.assert_array_equal(np.concatenate([part.queries_T for part in parts]), batch.queries_T)


def test_marks_that_cannot_be_shared():
    whole = PackedBatch.of_ids([[1, 2, 3]], queries=[range(3)])
    gap = PackedBatch(whole.ids_T, whole.token_type_ids_T, whole.layout, np.array([True, False, True]))
    none = PackedBatch.of_ids([[1, 2, 3]], queries=[range(0)])
    for batch in (whole, gap, none):
        with pytest.raises(InvalidRequest, match="mark one run of tokens, and not all"):
            share_queries(batch)
    with pytest.raises(InvalidRequest, match="neither global tokens"):
        share_queries(PackedBatch.of_ids([[1, 2, 3]], global_tokens=[[0]], queries=[range(1, 2)]))


@pytest.mark.parametrize(("spec", "reason"), [(LINEAR, "linear attention"), (BLOCKS, "BlockSparse")])
def test_encoders_that_cannot_share(spec, reason):
    with pytest.raises(InvalidRequest, match=reason):
        check_shared_query(spec)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A classifier of `transformers`, and the same weights with a shared query."""
    folder = tmp_path_factory.mktemp("shared")
    model = tiny_bert("BertForSequenceClassification", num_labels=1)
    write_checkpoint(folder / "full", model, sentence=False)
    transformers.AutoTokenizer.from_pretrained(folder / "full").save_pretrained(folder / "full")
    full = unmask.load(folder / "full")
    head = replace(full.checkpoint.head, shared_query=True)
    save(full.trainable_encoder(), replace(full.checkpoint, head=head), folder / "shared")
    return folder


def test_scores_are_those_of_transformers_with_the_mask(folders):
    ours = unmask.load(folders / "shared")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folders / "full").eval()
    asked = [query for query in QUERIES for _ in TEXTS]
    found = ours.score_pairs(asked, TEXTS * 2, activation="identity", tokens_per_pass=40)
    for query, text, score in zip(asked, TEXTS * 2, found, strict=True):
        pair = ours.tokenize(query, text)
        query_N = torch.from_numpy(pair.token_type_ids == 0)  # [CLS], the query and its [SEP]
        query_N[0] = False
        seen_NN = ~query_N[:, None] | query_N[None, :]
        with torch.no_grad():
            expected = theirs(
                input_ids=torch.from_numpy(pair.ids.copy())[None],
                token_type_ids=torch.from_numpy(pair.token_type_ids.copy())[None],
                attention_mask=torch.zeros(seen_NN.shape).masked_fill(~seen_NN, -1e9)[None, None],
            ).logits
        assert score == pytest.approx(float(expected), abs=1e-5)
    full = unmask.load(folders / "full").score_pairs(asked, TEXTS * 2, activation="identity")
    assert np.abs(full - found).max() > 1e-3


def test_scores_do_not_depend_on_what_shares_a_pass(folders):
    ours = unmask.load(folders / "shared")
    alone = [ours.score_pairs(QUERIES[0], text) for text in TEXTS]
    np.testing.assert_allclose(ours.score_pairs(QUERIES[0], TEXTS), alone, rtol=0, atol=1e-6)
    one = ours.score_pairs(QUERIES[0], TEXTS, tokens_per_pass=1)
    np.testing.assert_allclose(one, alone, rtol=0, atol=1e-6)


def test_each_pass_counts_its_query(folders):
    ours, done = unmask.load(folders / "shared"), []
    pair = ours.tokenize("the river bank was muddy", "a text")
    room = 2 * len(pair) - len(query_places(pair))
    ours.score_pairs(
        "the river bank was muddy",
        ["a text"] * 6,
        tokens_per_pass=room,
        progress=lambda pairs, total: done.append(pairs),
    )
    assert done == [2, 4, 6]


def test_the_folder_says_so_and_others_refuse_it(folders, tmp_path):
    ours = unmask.load(folders / "shared")
    assert ours.checkpoint.head.shared_query
    ours.save(tmp_path / "again")
    assert unmask.load(tmp_path / "again").checkpoint.head == ours.checkpoint.head
    settings = json.loads((tmp_path / "again/config_sentence_transformers.json").read_text())
    assert settings["shared_query"] is True
    st = pytest.importorskip("sentence_transformers")
    with pytest.raises(ValueError, match=r"unmask\.SharedQueryTransformer"):
        st.CrossEncoder(str(tmp_path / "again"))


def test_tasks_with_full_attention_are_refused(folders):
    ours = unmask.load(folders / "shared")
    for task in (ours.logits, ours.classify):
        with pytest.raises(InvalidRequest, match="use score_pairs"):
            task("a river", "muddy")


def test_a_pair_is_needed(folders):
    single = unmask.load(folders / "shared").tokenize("a river")
    with pytest.raises(InvalidRequest, match="give pairs of texts"):
        query_places(single)
