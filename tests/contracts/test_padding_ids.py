"""Padding ids inside texts, in families whose positions begin after the padding id, as in `transformers`."""

import json

import numpy as np
import pytest
import torch

from tests.contracts.cases import Case
from tests.contracts.test_transformers import random_model, write_vocabulary
from unmask.engines.export.padded import PaddedEncoder
from unmask.engines.inference.optimize import optimize_for_inference
from unmask.engines.native import library
from unmask.engines.native.program import NativeLayers
from unmask.text.batch import PackedBatch, share_queries
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build

TINY = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 2}
TINY |= {"max_position_embeddings": 40}
CASES = [
    Case("RobertaModel", TINY),
    Case("RobertaModel", TINY | {"pad_token_id": 3, "eos_token_id": 3}, "pad is [SEP]"),
    Case("RobertaModel", TINY | {"pad_token_id": 0}, "pad 0"),
    Case("XLMRobertaModel", TINY),
    Case("CamembertModel", TINY),
    Case("XLMRobertaXLModel", TINY),
    Case("RobertaPreLayerNormModel", TINY),
    Case("MPNetModel", TINY),
    Case("LongformerModel", TINY | {"attention_window": 8}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_engine_leaves_padding_ids_out_of_the_count(case, tmp_path):
    model = random_model(case)
    model.save_pretrained(tmp_path)
    write_vocabulary(tmp_path, case.vocabulary)
    pad = json.loads((tmp_path / "config.json").read_text()).get("pad_token_id", 1)
    texts = [[7, pad, 9, 11, pad, pad, 8], [pad, 12, 13], [6, 5, 14, 20], [15, 16, pad], [pad]]
    with torch.inference_mode():
        theirs_TD = np.concatenate(
            [
                model(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids))).last_hidden_state[0]
                for ids in texts
            ]
        )
    checkpoint, batch = read_checkpoint(Source(tmp_path, "tiny"), "hf"), PackedBatch.of_ids(texts)
    with torch.inference_mode():
        close(build(checkpoint, dtype="float64").encode(batch), theirs_TD, 1e-6)
        encoder = build(checkpoint, dtype="float32")
        close(encoder.encode(batch), theirs_TD, 1e-5)
        longest, ids_BN = max(map(len, texts)), [ids + [5] * 7 for ids in texts]
        ids_BN = torch.tensor([ids[:longest] for ids in ids_BN])
        mask_BN = torch.tensor([[place < len(ids) for place in range(longest)] for ids in texts])
        module = PaddedEncoder(encoder, None, outputs=("last_hidden_state",), role=None, longest=longest)
        (states_BND,) = module(ids_BN, mask_BN.long(), torch.zeros_like(ids_BN))
        close(states_BND[mask_BN], theirs_TD, 1e-5)
        weights = {name: tensor.numpy().copy() for name, tensor in encoder.state_dict().items()}
        fast = optimize_for_inference(encoder, "float32")
        close(fast.encode(batch), theirs_TD, 1e-5)
        close(fast.encode(PackedBatch.of_ids(texts[:1])), theirs_TD[: len(texts[0])], 1e-5)
    found = library.connected()
    if hasattr(found, "functions"):
        native = NativeLayers(checkpoint.spec, weights, "float32", found.functions)
        for threads in (1, 2):
            close(native.hidden_states(batch, threads), theirs_TD, 1e-5)


def close(ours, theirs, tolerance):
    np.testing.assert_allclose(np.asarray(ours, np.float64), theirs, rtol=0, atol=tolerance)


def test_a_shared_query_has_its_places_in_the_sequences_that_hold_it():
    # A query of three tokens, the second a padding id, after the first token of two sequences.
    batch = PackedBatch.of_ids([[5, 4, 1, 6, 7, 8], [5, 4, 1, 6, 1, 9]], queries=[range(1, 4)] * 2)
    shared, tokens_T = share_queries(batch)
    for left_out in (1, None):
        expected = batch.layout.positions_without(batch.ids_T, left_out).tolist()
        assert shared.layout.positions_without(shared.ids_T, left_out)[tokens_T].tolist() == expected
    assert batch.layout.positions_without(batch.ids_T, 1).tolist() == [0, 1, -1, 2, 3, 4, 0, 1, -1, 2, -1, 3]
