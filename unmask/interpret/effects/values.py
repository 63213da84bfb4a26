"""An encoder run without the values of some tokens: they are attended to as before and contribute nothing.

Axes: I heads times the width of one.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.arguments import token_of
from unmask.interpret.attention.rows import LayerRows
from unmask.interpret.effects.run import InterventionRun
from unmask.interpret.watch import Watch, unwatched


def without_values(
    cache: ActivationCache,
    tokens: Sequence[int],
    *,
    layers: int | None = None,
    watch: Watch | None = None,
) -> Tensor:
    """The states after the last layer if no query of any head receives the values of these tokens, (N, D).

    In every layer, what a query mixes becomes ``o_i - sum_j p_ij v_j`` over the tokens j; its other weights
    stay as they are, and so sum to less than 1. ``p`` and ``v`` are those of the changed states, so effects
    of lower layers are carried on. The tokens' own residual stream is not touched.

    Args:
        cache: the activation cache of the unchanged text.
        tokens: whose values are taken away; none gives the states of the cache.
        layers: how many layers are run, from the first; None means all.
        watch: called after each layer.

    Raises:
        InvalidRequest: there is no such token.
        Cancelled: ``watch`` stopped the work.
    """
    chosen_M = torch.tensor([token_of(len(cache), token) for token in tokens], dtype=torch.int64)
    run, watch = InterventionRun(cache), watch or unwatched
    end = run.layers if layers is None else layers
    x_ND = cache.states[0]
    for layer in range(end):
        given_NI = _given(_with_input(cache, layer, x_ND), layer, chosen_M)
        with torch.no_grad(), run.changed(layer, partial(_less, given_NI)):
            x_ND = run.layer(layer, x_ND)
        watch("running layers", layer + 1, end)
    return x_ND


def _less(given_NI: Tensor, o_NI: Tensor) -> Tensor:
    return o_NI - given_NI.to(o_NI)


def _with_input(cache: ActivationCache, layer: int, x_ND: Tensor) -> ActivationCache:
    """The cache with another input of a layer."""
    states = list(cache.states)
    states[layer] = x_ND
    return ActivationCache(cache.encoder, cache.encoding, cache.batch, states, cache.final_ND).sharing(cache)


def _given(cache: ActivationCache, layer: int, tokens_M: Tensor) -> Tensor:
    """What every query gets of the tokens, ``sum_j p_ij v_j``, heads side by side: (N, H K)."""
    rows = LayerRows(cache, layer, norms=False)
    places = tokens_M.tolist()
    values_MHK = cache.projected(layer).v_NHK[places].to(rows.dtype)
    of_globals = cache.projected_for_globals(layer)
    found = []
    for block in rows.blocks():
        v_MHK = of_globals.v_NHK[places].to(rows.dtype) if block.of_globals and of_globals else values_MHK
        p_HRM = (
            torch.stack(
                [
                    block.p_HRC[..., token - block.first_column]
                    if block.first_column <= token < block.end_column
                    else torch.zeros_like(block.p_HRC[..., 0])
                    for token in places
                ],
                dim=-1,
            )
            if places
            else block.p_HRC[..., :0]
        )
        found.append(torch.einsum("hrm,mhk->rhk", p_HRM, v_MHK))
    return torch.cat(found).flatten(1)
