"""Families whose own code lets a text read the padding behind it, which a packed text cannot do."""

import torch

from unmask.engines.export.padded import PaddedEncoder
from unmask.text import PackedBatch
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build

TEXTS = [[5, 9, 23, 17, 40, 8, 11, 30, 6], [7, 12], [33], [9, 8, 7, 6, 5, 50, 51, 52, 53, 54, 55, 12]]
LONGEST = max(map(len, TEXTS))
PRESENT_BN = torch.tensor([[place < len(ids) for place in range(LONGEST)] for ids in TEXTS])


def padded(padding):
    """The texts as rows of equal length."""
    return torch.tensor([[*ids, *[padding] * (LONGEST - len(ids))] for ids in TEXTS])


def check_packed_texts(model_class, folder, padding):
    """A packed text has their states of the text alone, and not those that it has beside padding."""
    theirs = model_class.from_pretrained(folder, dtype=torch.float64).eval()
    encoder = build(read_checkpoint(Source(folder, "tiny")), dtype="float64")
    batch = PackedBatch.of_ids(TEXTS)
    with torch.inference_mode():
        states_TD = encoder.encode(batch)
        beside_BND = theirs(padded(padding), attention_mask=PRESENT_BN.long()).last_hidden_state
        for number, ids in enumerate(TEXTS):
            ours_ND = states_TD[batch.layout.rows(number)]
            alone_ND = theirs(torch.tensor([ids])).last_hidden_state[0]
            torch.testing.assert_close(ours_ND, alone_ND, rtol=0, atol=1e-12)
            apart = (beside_BND[number, : len(ids)] - alone_ND).abs().max()
            assert apart < 1e-12 if len(ids) == LONGEST else apart > 1e-3


def check_padded_graph(folder, rtol=0.0):
    """The graph that is exported gives the states of packed texts, whatever stands in the padding."""
    encoder = build(read_checkpoint(Source(folder, "tiny")), dtype="float32")
    module = PaddedEncoder(encoder, None, outputs=("last_hidden_state",), role=None, longest=LONGEST)
    with torch.inference_mode():
        expected_TD = encoder.encode(PackedBatch.of_ids(TEXTS))
        for padding in (0, 5):
            ids_BN = padded(padding)
            (states_BND,) = module(ids_BN, PRESENT_BN.long(), torch.zeros_like(ids_BN))
            torch.testing.assert_close(states_BND[PRESENT_BN], expected_TD, rtol=rtol, atol=1e-5)
