"""How well held-out text is foretold: masked tokens of windows, drawn or one by one."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest, NonFiniteResult
from unmask.loaded import Model
from unmask.measure.probes.scoring import (
    Answer,
    Question,
    Score,
    Sentence,
    answers,
    check_masked,
    pseudo_log_likelihoods,
)
from unmask.measure.probes.windows import Window
from unmask.tasks.batches import TOKENS_PER_PASS
from unmask.tasks.progress import Progress

Measure = Literal["masked", "pseudo"]
MASKED_SHARE = 0.15
"""Of a window's tokens (Devlin et al. 2019); here every one of them becomes the mask token."""
WINDOWS_AT_ONCE = 256
LARGEST_LOSS = 700.0
"""e to the power of more is beyond float64."""


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
    """Of the ``pseudo`` measure, which tokens are masked together."""
    seed: int | None
    """Of the ``masked`` measure's draw."""
    windows: int
    tokens: int
    """In the windows, special ones left out."""
    scored: int
    """Tokens that were asked for: all of them, or the masked ones."""
    loss: float
    """The mean of -log p over tokens asked for."""
    perplexity: float
    """e to the loss; of the ``pseudo`` measure, pseudo-perplexity."""
    accuracy: float
    """The share of tokens asked for that the model finds likeliest."""
    nats_per_character: float
    """The loss times tokens in the windows by characters in them: what vocabularies can be compared by."""
    nats_per_byte: float
    unigram_loss: float
    """Loss on the same tokens when predicting by token frequency in these windows, with add-one smoothing."""
    unigram_accuracy: float
    """The share of them that are the most frequent token."""
    seconds: float


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

    ``masked`` masks 15 % of each window at once, at least one token, as in pretraining but for the share of
    masked tokens that are kept or replaced there: what training reports, at the cost of one run. ``pseudo``
    masks one token at a time (Salazar et al. 2020, pseudo-perplexity): lower, as the whole context is there,
    and as many runs as a window has tokens. The two are not to be compared with each other.

    Args:
        model: with a masked-LM head.
        windows: at least one; see `unmask.measure.probes.windows`.
        source: what the result calls the text.
        measure: ``masked`` or ``pseudo``.
        score: for ``pseudo``, which tokens are masked together.
        seed: for ``masked``, of the draw; a window's draw depends on it and on the window's number alone.
        progress: called with (done, in all), windows or tokens.

    Raises:
        InvalidRequest: no windows, no masked-LM head, or no mask token.
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
            f"the loss is {loss:.0f} nats, whose perplexity no number holds; check the model"
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
    )


def draw_masks(window: Window, mask_id: int, seed: int, number: int) -> Question:
    """15 % of a window's tokens, at least one, drawn without replacement and masked all at once."""
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
    """Loss and accuracy of guessing by frequency alone, with one added to the count of every word.

    The counts are of the text that is asked about, so this baseline knows more than a fair one would.
    """
    counts_V = np.bincount(text_T, minlength=vocabulary)
    loss = float(np.log(counts_V.sum() + vocabulary) - np.log(counts_V[targets_M] + 1).mean())
    return loss, float((targets_M == counts_V.argmax()).mean())
