"""Loss on held-out text: masked tokens of windows, drawn at random or masked one at a time."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.base.intervals import Interval, ratio_interval
from unmask.errors import InvalidRequest, NonFiniteResult
from unmask.evaluate.probes.scoring import (
    Answer,
    Question,
    Score,
    Sentence,
    answers,
    check_masked,
    pseudo_log_likelihoods,
)
from unmask.evaluate.probes.windows import Window
from unmask.models.load import Model
from unmask.tasks.batches import TOKENS_PER_PASS
from unmask.tasks.progress import Progress

Measure = Literal["masked", "pseudo"]
MASKED_SHARE = 0.15
"""Fraction of a window's tokens that is masked (Devlin et al. 2019); each becomes the mask token."""
WINDOWS_AT_ONCE = 256
LARGEST_LOSS = 700.0
"""The largest exponent of e that float64 can represent."""


@dataclass(frozen=True)
class PerplexityResult:
    """The result of `measure_perplexity`; losses are natural logarithms, in nats."""

    probe: str = field(default="perplexity", init=False)
    model: str
    revision: str | None
    dtype: str
    source: str
    measure: Measure
    score: Score | None
    """For the ``pseudo`` measure: which tokens are masked together."""
    seed: int | None
    """For the ``masked`` measure: seed of the draw."""
    windows: int
    tokens: int
    """Tokens in the windows, without special tokens."""
    scored: int
    """Predicted tokens: all of them, or the masked ones."""
    loss: float
    """The mean of -log p over predicted tokens."""
    perplexity: float
    """exp(loss); for the ``pseudo`` measure, pseudo-perplexity."""
    accuracy: float
    """The share of predicted tokens to which the model gives the highest probability."""
    nats_per_character: float
    """The loss times the tokens in the windows, divided by their characters; comparable across
    vocabularies."""
    nats_per_byte: float
    unigram_loss: float
    """Loss on the same tokens when predicting by token frequency in these windows, with add-one smoothing."""
    unigram_accuracy: float
    """The share of predicted tokens that are the most frequent token."""
    seconds: float
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    """The 95 % confidence intervals of loss, perplexity and accuracy, from a bootstrap over windows."""


def measure_perplexity(
    model: Model,
    windows: Sequence[Window],
    *,
    source: str,
    measure: Measure = "masked",
    score: Score = "original",
    seed: int = 0,
    progress: Progress | None = None,
) -> PerplexityResult:
    """Loss of masked tokens in windows of running text.

    ``masked`` masks 15 % of each window at once, at least one token. This is the loss that pretraining
    reports, except that no masked token is kept or replaced by a random one; it takes one forward pass.
    ``pseudo`` masks one token at a time (Salazar et al. 2020, pseudo-perplexity). It is lower, because the
    rest of the context is visible, and takes as many forward passes as a window has tokens. The two are not
    comparable.

    Args:
        model: a model with an MLM head.
        windows: at least one window; see `unmask.evaluate.probes.windows`.
        source: the name of the text in the result.
        measure: ``masked`` or ``pseudo``.
        score: for ``pseudo``, which tokens are masked together.
        seed: for ``masked``, the seed of the draw, which depends only on it and on the window's number.
        progress: called with (done, total), in windows or tokens.

    Raises:
        InvalidRequest: there are no windows, no MLM head, or no mask token.
        NonFiniteResult: a log probability is not finite.
    """
    if not windows:
        raise InvalidRequest("no window of text was given; give at least one")
    mask_id = check_masked(model)
    start = time.perf_counter()
    if measure == "masked":
        questions = [draw_masks(window, mask_id, seed, number) for number, window in enumerate(windows)]
        given = _ask(model, questions, progress)
        targets_M = np.concatenate([one.targets_M for one in questions])
    else:
        sentences = [Sentence(window.ids_N, window.scored_N) for window in windows]
        given = pseudo_log_likelihoods(model, sentences, score=score, progress=progress)
        targets_M = np.concatenate([one.ids_N[one.scored_N] for one in sentences])
    seconds = time.perf_counter() - start
    text_T = np.concatenate([window.ids_N[window.scored_N] for window in windows])
    loss = -float(np.concatenate([one.log_p_M for one in given]).mean())
    if loss > LARGEST_LOSS:
        raise NonFiniteResult(
            f"the loss is {loss:.0f} nats, and its perplexity exceeds the range of float64; check the model"
        )
    unigram_loss, unigram_accuracy = unigram(text_T, targets_M, model.spec.embedding.vocabulary)
    return PerplexityResult(
        model=model.name,
        revision=model.revision,
        dtype=model.dtype,
        source=source,
        measure=measure,
        score=score if measure == "pseudo" else None,
        seed=seed if measure == "masked" else None,
        windows=len(windows),
        tokens=len(text_T),
        scored=len(targets_M),
        loss=loss,
        perplexity=math.exp(loss),
        accuracy=float(np.concatenate([one.first_M for one in given]).mean()),
        nats_per_character=loss * len(text_T) / sum(window.characters for window in windows),
        nats_per_byte=loss * len(text_T) / sum(window.bytes for window in windows),
        unigram_loss=unigram_loss,
        unigram_accuracy=unigram_accuracy,
        seconds=seconds,
        intervals=_intervals(given),
    )


def _intervals(given: Sequence[Answer]) -> dict[str, Interval]:
    words = np.array([len(one.first_M) for one in given], dtype=np.float64)
    loss = ratio_interval(np.array([-one.total for one in given]), words)
    right = np.array([one.first_M.sum() for one in given], dtype=np.float64)
    perplexity = Interval(math.exp(loss.low), math.exp(min(loss.high, LARGEST_LOSS)))
    return {"loss": loss, "perplexity": perplexity, "accuracy": ratio_interval(right, words)}


def draw_masks(window: Window, mask_id: int, seed: int, number: int) -> Question:
    """Mask 15 % of a window's tokens at once, at least one, drawn without replacement."""
    scored = np.flatnonzero(window.scored_N)
    count = max(1, round(MASKED_SHARE * len(scored)))
    places_M = np.sort(np.random.default_rng([seed, number]).choice(scored, count, replace=False))
    ids_N = window.ids_N.copy()
    ids_N[places_M] = mask_id
    return Question(ids_N, places_M, window.ids_N[places_M])


def _ask(model: Model, questions: Sequence[Question], progress: Progress | None) -> list[Answer]:
    given: list[Answer] = []
    for start in range(0, len(questions), WINDOWS_AT_ONCE):
        given += answers(model, questions[start : start + WINDOWS_AT_ONCE], TOKENS_PER_PASS)
        if progress is not None:
            progress(len(given), len(questions))
    return given


def unigram(text_T: NDArray[np.int64], targets_M: NDArray[np.int64], vocabulary: int) -> tuple[float, float]:
    """Loss and accuracy of predicting by frequency, with add-one smoothing.

    The counts are from the evaluated text itself, so this baseline is stronger than a fair one.
    """
    counts_V = np.bincount(text_T, minlength=vocabulary)
    loss = float(np.log(counts_V.sum() + vocabulary) - np.log(counts_V[targets_M] + 1).mean())
    return loss, float((targets_M == counts_V.argmax()).mean())
