"""The enhanced mask decoder (He et al. 2021): it predicts masked words from states with absolute positions.

An encoder with only relative positions cannot tell the first word of a text from the last. Its authors give
absolute positions to the MLM head only. With h the states before the last layer and p the table of absolute
positions, the last layer runs twice with its own weights: keys and values come from h both times, queries
from h + p in the first pass and from the output of the first pass in the second. Distances enter the scores
as usual.

A query attends to keys and values, never to another query, so the decoder computes only the selected queries.
The kernel runs with all queries of the batch; the others are 0.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from unmask.encoder.encoder import EditedEncoder, Encoder
from unmask.encoder.hooks import Hook, HookPoint
from unmask.encoder.layers.attention import AttentionPlan, SoftmaxMixer
from unmask.encoder.layers.block import Block
from unmask.encoder.layers.positions import RotaryTable
from unmask.errors import InvalidRequest
from unmask.spec.encoder import lm_role, why_no_decoder
from unmask.text.batch import PackedBatch, SequenceLayout

PASSES = 2
"""How many times the last layer runs, as its authors trained it."""


def decode(
    encoder: Encoder,
    ids_T: Tensor,
    layout: SequenceLayout,
    segments_T: Tensor | None = None,
    *,
    selected_M: Tensor | None = None,
) -> Tensor:
    """States for the head ``enhanced``, shape (M, D).

    The encoder runs up to its last layer, and the decoder replaces that layer. Queries, the output projection
    and the feed-forward network are computed only for the selected tokens.

    Args:
        encoder: one for which `why_no_decoder` returns None.
        ids_T: token ids of all sequences, end to end.
        layout: where each sequence begins.
        segments_T: token types; None means 0 everywhere.
        selected_M: the tokens whose states are computed, each once; None for all in order.

    Raises:
        InvalidRequest: there is no decoder, its layer is edited, or a sequence is longer than its table of
            positions.
    """
    reason = why_no_decoder(encoder.spec)
    if reason is not None:
        raise InvalidRequest(f"the encoder has no enhanced mask decoder, because {reason}")
    last = len(encoder.spec.layers) - 1
    if isinstance(encoder, EditedEncoder) and any(edit.reaches(last) for edit in encoder.edits()):
        raise InvalidRequest(
            f"words are predicted by the enhanced mask decoder in place of layer {last}, which is edited; "
            "edit layers below it"
        )
    x_TD = encoder(ids_T, layout, segments_T, layers=last)
    if selected_M is None:
        selected_M = torch.arange(layout.token_count, device=x_TD.device)
    return decode_states(encoder, x_TD, layout, selected_M)


def decode_states(
    encoder: Encoder,
    x_TD: Tensor,
    layout: SequenceLayout,
    selected_M: Tensor,
    *,
    hook: Hook | None = None,
) -> Tensor:
    """`decode` from the states before the last layer, (T, D), of an encoder that has a decoder.

    ``hook`` receives the queries and mixed values of the selected tokens, (M, H, K), once per pass.
    """
    block = encoder.block(len(encoder.spec.layers) - 1)
    table_PD = None if encoder.distances is None else encoder.distances()
    plan = encoder.plan(block, layout, x_TD, table_PD, {})
    assert isinstance(plan, AttentionPlan)
    positions_MD = _positions(encoder, layout, selected_M)
    states_MD = run_again(block, x_TD, x_TD[selected_M] + positions_MD, plan, selected_M, hook)
    decoded_MD: Tensor = encoder.final_norm(states_MD)
    return decoded_MD


def word_role(encoder: Encoder, name: str = "the model") -> str:
    """The role of the head over the vocabulary: ``masked`` if there is one, else ``enhanced``.

    Raises:
        InvalidRequest: the encoder has neither.
    """
    return lm_role(encoder.spec, name)


def predicts_by_decoder(encoder: Encoder, role: str) -> bool:
    """Whether the head with that role reads the decoder's output, rather than the last hidden states."""
    return role == "enhanced" and why_no_decoder(encoder.spec) is None


def word_states(encoder: Encoder, role: str, batch: PackedBatch, tokens: Sequence[int]) -> Tensor:
    """The input states of the head with that role for some tokens of a batch, (M, D)."""
    if not predicts_by_decoder(encoder, role):
        return encoder.encode(batch)[list(tokens)]
    ids_T, segments_T, selected_M = (
        torch.from_numpy(array).to(encoder.device)
        for array in (batch.ids_T, batch.token_type_ids_T, np.array(tokens))
    )
    return decode(encoder, ids_T, batch.layout, segments_T, selected_M=selected_M)


def run_again(  # noqa: PLR0917
    block: Block,
    x_TD: Tensor,
    query_MD: Tensor,
    plan: AttentionPlan,
    selected_M: Tensor,
    hook: Hook | None = None,
) -> Tensor:
    """Run a layer `PASSES` times: keys and values from ``x_TD``, queries from the previous pass's output.

    Shape (M, D) in and out, for the selected tokens. ``hook`` receives the passes as layers 0, 1 ...
    """
    mixer = block.attention
    assert isinstance(mixer, SoftmaxMixer)
    _, k_THK, v_THK = mixer.project(block.read_by_attention(x_TD), plan.rotation)
    bias = mixer.bias_of(plan)
    turned = plan.rotation and RotaryTable(*(wave[selected_M] for wave in plan.rotation))
    for number in range(PASSES):
        q_MHK, _, _ = mixer.project(block.read_by_attention(query_MD), turned)
        q_THK = torch.zeros_like(k_THK).index_copy(0, selected_M, q_MHK)
        o_MHK = mixer.mix(q_THK, k_THK, v_THK, plan, bias)[selected_M]
        if hook is not None:
            hook(HookPoint.QUERY, number, q_MHK)
            hook(HookPoint.MIXED, number, o_MHK)
        query_MD = block.after_attention(query_MD, mixer.out(o_MHK.flatten(-2)))
    return query_MD


def _positions(encoder: Encoder, layout: SequenceLayout, selected_M: Tensor) -> Tensor:
    """The absolute position of each selected token as a vector, shape (M, D)."""
    table, spec = encoder.embedding.positions, encoder.spec.embedding.positions
    assert table is not None
    assert spec is not None
    longest, limit = int(layout.lengths.max()), spec.rows - spec.offset
    if longest > limit:
        raise InvalidRequest(
            f"a sequence has {longest} tokens and the enhanced mask decoder has {limit} positions; "
            "give it shorter texts"
        )
    rows_T = torch.from_numpy(layout.positions_T).to(selected_M.device) + spec.offset
    vectors_MD: Tensor = table(rows_T[selected_M])
    return vectors_MD
