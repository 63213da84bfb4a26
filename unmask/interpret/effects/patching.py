"""Activation patching: which state of one text, put into another, brings back the prediction of the first.

Causal mediation analysis and causal tracing use the same experiment (Vig et al. 2020; Meng et al. 2022);
Heimersheim & Nanda 2024 say how to read it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, assert_never, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.arguments import check_choice, token_of
from unmask.base.progress import Watch, unwatched
from unmask.encoder.hooks import Hook, HookPoint
from unmask.errors import InvalidRequest
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.effects.attribution import TOKENS_AT_ONCE
from unmask.interpret.effects.intervention import InterventionRun
from unmask.interpret.effects.target import AttributionTarget, Embedding, Scale, TargetScore

Part = Literal["residual", "attention_output", "feedforward_output", "head_output"]
"""What is replaced: the state of one token at one level; what one layer's attention or feed-forward network
adds to one token; or what one head mixed, at all tokens or at those that are named."""

LEAST_CHANGE = 1e-6
"""Of the target between the two texts, relative to its size; less is rounding, and nothing to explain."""


@dataclass(frozen=True, eq=False)
class Patching:
    """The target on the corrupted text, with one tensor of the clean text in each run."""

    values: NDArray[np.float64]
    """In the target's units. ``residual``: (levels, N), level l being the input of layer l, and the last the
    output of the last layer; ``attention_output`` and ``feedforward_output``: (L, N); ``head_output``:
    (L, H), NaN where a layer has fewer heads. Where the enhanced mask decoder predicts words in place of the
    last layer, there is one level or layer less."""
    effect: NDArray[np.float64]
    """``(value - corrupted) / (clean - corrupted)``: 0 if the patch changes nothing, 1 if it brings back all
    of the clean text's value. It can be below 0 and above 1."""
    clean: float
    """The target on the clean text."""
    corrupted: float
    """The target on the corrupted text."""
    unit: str
    part: Part

    def strongest(self) -> tuple[int, int]:
        """Row and column of the largest effect."""
        row, column = np.unravel_index(np.nanargmax(self.effect), self.effect.shape)
        return int(row), int(column)


def patch_activations(
    clean: ActivationCache,
    corrupted: ActivationCache,
    target: AttributionTarget,
    *,
    part: Part = "residual",
    tokens: Sequence[int] | None = None,
    scale: Scale = "logit",
    watch: Watch | None = None,
) -> Patching:
    """Run the corrupted text with one state of the clean text at a time, and measure the target.

    Many patched copies run in one packed batch, and only the layers above the patch run again. States are
    exchanged token by token, so both texts need as many tokens. A patch shows that a state is enough to bring
    the value back in this context, not that the model needs it.

    Args:
        clean: the activation cache of the text whose states are taken.
        corrupted: that of the text into which they are put; of the same encoder.
        target: what is measured, as for `unmask.interpret.effects.attribution.attribution`. An `Embedding`
            without ``toward`` is compared with that of the clean text.
        part: what is replaced, see `Part`.
        tokens: where; None means every token. For ``head_output`` they are replaced together.
        scale: of a word, its logit or its log-probability.
        watch: called after each batch with the runs done and in all.

    Raises:
        InvalidRequest: the texts have different numbers of tokens, are of different encoders, or give the
            target the same value; or there is no such target, part or token.
        NonFiniteResult: a value is not finite.
        Cancelled: ``watch`` stopped the work.
    """
    check_choice("part", part, get_args(Part))
    check_choice("scale", scale, get_args(Scale))
    _check_pair(clean, corrupted)
    places = [token_of(len(clean), token) for token in (range(len(clean)) if tokens is None else tokens)]
    target = _compared(clean, target)
    scores = [TargetScore(cache, target) for cache in (clean, corrupted)]
    levels = clean.layer_count - scores[0].by_decoder
    at_clean, at_corrupted = (
        float(score.values(score.cache.states[levels], scale)[0].detach()) for score in scores
    )
    if abs(at_clean - at_corrupted) <= LEAST_CHANGE * max(1.0, abs(at_clean)):
        raise InvalidRequest(
            f"the target is {at_clean:.4g} on both texts, so there is no change to explain; give texts "
            "between which it changes"
        )
    run = _Patches(clean, scores[1], part, places, scale)
    values = run.values(levels, watch or unwatched)
    effect = (values - at_corrupted) / (at_clean - at_corrupted)
    return Patching(values, effect, at_clean, at_corrupted, scores[0].unit_of_value(scale), part)


class _Patches:
    """The corrupted text with states of the clean one."""

    def __init__(
        self, clean: ActivationCache, score: TargetScore, part: Part, places: list[int], scale: Scale
    ) -> None:
        self.clean, self.score, self.part, self.places, self.scale = clean, score, part, places, scale
        self.run, self.source = InterventionRun(score.cache), InterventionRun(clean)

    def values(self, levels: int, watch: Watch) -> NDArray[np.float64]:
        """The value with each patch, see `Patching.values`; columns without a patch are NaN."""
        length, clean = len(self.clean), self.clean
        by_head = self.part == "head_output"
        heads = [clean.heads(layer) for layer in range(clean.layer_count)]
        rows = levels + 1 if self.part == "residual" else levels
        columns = [list(range(heads[row])) if by_head else self.places for row in range(rows)]
        values = np.full((rows, max(heads) if by_head else length), np.nan)
        done, total, at_once = 0, sum(map(len, columns)), max(1, TOKENS_AT_ONCE // length)
        for row, chosen in enumerate(columns):
            for first in range(0, len(chosen), at_once):
                some = chosen[first : first + at_once]
                values[row, some] = self._row(row, some).double().cpu().numpy()
                done += len(some)
                watch("patching", done, total)
        return values

    def _row(self, row: int, columns: list[int]) -> Tensor:
        """The value for some patches of one row, (patches,)."""
        x_TD = self.score.cache.states[row].repeat(len(columns), 1)
        match self.part:
            case "residual":
                x_TD = _exchanged(x_TD, self.clean.states[row], columns)
                return self.run.score_from(self.score, row, x_TD, self.scale)
            case "attention_output":
                hook = self._hook(row, HookPoint.ATTENTION, lambda y, own: _exchanged(y, own, columns))
            case "feedforward_output":
                hook = self._hook(row, HookPoint.FEEDFORWARD, lambda y, own: _exchanged(y, own, columns))
            case "head_output":
                hook = self._hook(row, HookPoint.MIXED, lambda o, own: self._heads(o, own, columns))
            case _:
                assert_never(self.part)
        return self.run.score_from(self.score, row, x_TD, self.scale, hook)

    def _heads(self, o_THK: Tensor, own_NHK: Tensor, heads: list[int]) -> Tensor:
        """One head of each copy replaced, at the tokens that were named."""
        o_SNHK = o_THK.clone().view(len(heads), len(own_NHK), *o_THK.shape[1:])
        for copy, head in enumerate(heads):
            o_SNHK[copy, self.places, head] = own_NHK[self.places, head]
        return o_SNHK.flatten(0, 1)

    def _hook(self, layer: int, point: HookPoint, change: Callable[[Tensor, Tensor], Tensor]) -> Hook:
        own = self.source.recorded(layer, point)

        def replaced(at: HookPoint, _: int, tensor: Tensor) -> Tensor | None:
            return change(tensor, own) if at is point else None

        return replaced


def _exchanged(x_TD: Tensor, own_ND: Tensor, tokens: list[int]) -> Tensor:
    """Copies of a text end to end, of each of which one token's row is that of the other text."""
    x_TD = x_TD.clone()
    rows = torch.arange(len(tokens)) * len(own_ND) + torch.tensor(tokens)
    x_TD[rows] = own_ND[tokens].to(x_TD)
    return x_TD


def _compared(clean: ActivationCache, target: AttributionTarget) -> AttributionTarget:
    """An embedding is compared with that of the clean text."""
    if not isinstance(target, Embedding) or target.toward is not None:
        return target
    return replace(target, toward=tuple(TargetScore(clean, target).embedding().tolist()))


def _check_pair(clean: ActivationCache, corrupted: ActivationCache) -> None:
    if clean.encoder is not corrupted.encoder:
        raise InvalidRequest("the texts were read by two encoders; patch between texts that one model read")
    if len(clean) != len(corrupted):
        raise InvalidRequest(
            f"the clean text has {len(clean)} tokens and the corrupted one {len(corrupted)}; states are "
            "exchanged token by token, so replace a word by another of as many tokens"
        )
