"""Scores of answers by the rules of SQuAD's official scripts, for versions 1.1 and 2.0."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from unmask.base.intervals import Interval
from unmask.base.progress import Progress
from unmask.errors import InvalidRequest
from unmask.evaluate.protocols.scores import mean_intervals, read_answers
from unmask.models.model import Model
from unmask.tasks.answer import MAX_ANSWER_TOKENS, answer
from unmask.training.finetune.metrics import normalized, word_overlap
from unmask.training.finetune.settings import DataSettings


@dataclass(frozen=True)
class Answered:
    """What a model says to one question, and what is right."""

    gold: tuple[str, ...]
    """The accepted answers; empty if there is none in the context."""
    text: str
    """The best span, whether or not no answer is likelier."""
    null_difference: float
    """How far the score of no answer is above that of the best span, in logits."""


@dataclass(frozen=True)
class AnswerScores:
    """Means over some questions, in percent."""

    exact_match: float
    f1: float
    questions: int
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    """The 95 % confidence interval of both, from a bootstrap over questions."""


@dataclass(frozen=True)
class BestThresholds:
    """The scores with the thresholds that are best on the same data, so they are optimistic."""

    exact_match: float
    exact_match_threshold: float
    f1: float
    f1_threshold: float


@dataclass(frozen=True)
class SquadScores:
    """Exact match and F1 of answers."""

    model: str
    source: str
    exact_match: float
    f1: float
    questions: int
    threshold: float | None
    """No answer is given if `Answered.null_difference` exceeds it; None without unanswerable questions."""
    has_answer: AnswerScores | None = None
    """Of the questions with an answer; None without others."""
    no_answer: AnswerScores | None = None
    best_threshold: BestThresholds | None = None
    settings: Mapping[str, int | None] = field(default_factory=dict)
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    """The 95 % confidence intervals of exact match and F1, from a bootstrap over questions."""


def squad_scores(
    model: Model,
    data: DataSettings,
    *,
    threshold: float = 0.0,
    max_answer_tokens: int = MAX_ANSWER_TOKENS,
    base: Path | None = None,
    progress: Progress | None = None,
) -> SquadScores:
    """Score a model with a head for spans on a file in SQuAD's layout, version 1.1 or 2.0.

    Args:
        model: with a head for spans.
        data: the file as ``dev``, the longest window and what neighboring windows share.
        threshold: with unanswerable questions, no answer is given if its score exceeds that of the best span
            by more than this, in logits.
        max_answer_tokens: the longest answer.
        base: the folder that paths are relative to; None for the current one.
        progress: called with (windows done, windows in all).

    Raises:
        InvalidRequest: the model has no such head, or a number is out of range.
        InvalidText: the file is damaged.
    """
    if not np.isfinite(threshold):
        raise InvalidRequest(f"threshold is {threshold}; it must be finite")
    if max_answer_tokens < 1:
        raise InvalidRequest(f"max_answer_tokens is {max_answer_tokens}; it must be at least 1")
    examples, logits = read_answers(model, data, base or Path(), progress)
    answered = []
    for example, windows in zip(examples, logits, strict=True):
        result = answer([windows], no_answer=True, null_threshold=1.0, max_answer_tokens=max_answer_tokens)
        best = result.answers[0] if result.answers else None
        assert result.null_score is not None
        with np.errstate(divide="ignore"):
            null = np.log(result.null_score) - (np.log(best.score) if best is not None else -np.inf)
        gold = tuple(text for text, _ in example.gold.answers)
        answered.append(Answered(gold, "" if best is None else best.text, float(null)))
    return scored_answers(
        answered,
        threshold=threshold,
        model=model.name,
        source=", ".join(data.dev),
        settings={
            "max_tokens": data.max_tokens or model.max_tokens,
            "overlap_tokens": data.overlap_tokens,
            "max_answer_tokens": max_answer_tokens,
        },
    )


def scored_answers(
    said: Sequence[Answered],
    *,
    threshold: float = 0.0,
    model: str = "",
    source: str = "",
    settings: Mapping[str, int | None] | None = None,
) -> SquadScores:
    """The scores of answers, as evaluate-v2.0.py computes them; and as evaluate-v1.1.py, for answers that are
    more than articles and punctuation."""
    about, settings = (model, source), settings or {}
    scored = [_of_span(question) for question in said]
    if all(question.gold for question in said):
        whole = _mean(scored)
        return SquadScores(
            *about,
            whole.exact_match,
            whole.f1,
            whole.questions,
            None,
            settings=settings,
            intervals=whole.intervals,
        )
    counted = [
        _of_nothing(question) if question.null_difference > threshold else pair
        for question, pair in zip(said, scored, strict=True)
    ]
    whole = _mean(counted)
    has, lacks = (
        _mean([pair for question, pair in zip(said, counted, strict=True) if bool(question.gold) is wanted])
        for wanted in (True, False)
    )
    best = [_best(said, [pair[place] for pair in scored]) for place in (0, 1)]
    thresholds = BestThresholds(*best[0], *best[1])
    return SquadScores(
        *about,
        whole.exact_match,
        whole.f1,
        whole.questions,
        threshold,
        has,
        lacks,
        thresholds,
        settings,
        whole.intervals,
    )


def _of_span(answered: Answered) -> tuple[float, float]:
    """Exact match and F1 of the best span, each the best over the accepted answers."""
    # The script for 2.0 leaves out answers of which nothing remains; without any, the empty answer is right.
    gold = [text for text in answered.gold if normalized(text)] or [""]
    exact = max(float(normalized(answered.text) == normalized(text)) for text in gold)
    return exact, max(word_overlap(answered.text, text) for text in gold)


def _of_nothing(answered: Answered) -> tuple[float, float]:
    right = float(not answered.gold)
    return right, right


def _mean(scores: Sequence[tuple[float, float]]) -> AnswerScores:
    if not scores:
        return AnswerScores(0.0, 0.0, 0)
    exact, overlap = 100 * np.array(scores).T
    between = mean_intervals({"exact_match": exact.tolist(), "f1": overlap.tolist()})
    return AnswerScores(float(exact.mean()), float(overlap.mean()), len(scores), between)


def _best(answered: Sequence[Answered], scores: Sequence[float]) -> tuple[float, float]:
    """The best mean score, in percent, and the first threshold with which it is reached.

    As in evaluate-v2.0.py: at first every question has no answer; then, in ascending order of their
    difference, the questions get their span.
    """
    total = best = float(sum(not question.gold for question in answered))
    threshold = 0.0
    for number in sorted(range(len(answered)), key=lambda number: answered[number].null_difference):
        question = answered[number]
        total += scores[number] if question.gold else -bool(question.text)
        if total > best:
            best, threshold = total, question.null_difference
    return 100 * best / len(answered), threshold
