"""Answers to questions as spans of contexts, with offsets into the caller's string.

Axes: A spans that begin with a token, by their length.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from unmask.base.arguments import check_fraction, listed, whole_number
from unmask.errors import InvalidRequest
from unmask.tasks.classify import classifier_of
from unmask.tasks.logits import Coverage, WindowedLogits, windowed
from unmask.tasks.reader import Name, Reader, Ready
from unmask.tasks.values import LongTexts
from unmask.text import Encoding

MAX_ANSWER_TOKENS = 30
"""The longest answer by default, in tokens, as in the reference implementations for SQuAD."""


@dataclass(frozen=True)
class Answer:
    """A span of a context."""

    text: str
    start: int
    """The offset of its first character in its context."""
    end: int
    """The offset after its last character."""
    score: float
    """Its probability among all spans of all contexts of the question, and no answer if that is allowed."""
    context: int
    """The index of its context."""


@dataclass(frozen=True)
class Answers(Coverage):
    """The answers to one question, most probable first."""

    answers: tuple[Answer, ...]
    """Empty if no answer is more probable than the null threshold allows."""
    null_score: float | None
    """The probability that the contexts do not contain the answer; None if the model was not asked."""


def prepare(
    reader: Reader,
    question: str | Sequence[str],
    contexts: str | Sequence[str] | Sequence[str | Sequence[str]],
    *,
    top_k: int = 1,
    max_answer_tokens: int = MAX_ANSWER_TOKENS,
    no_answer: bool = False,
    null_threshold: float = 0.5,
    truncation: LongTexts = "window",
    overlap_tokens: int | None = None,
    name: Name | None = None,
    context_name: Name | None = None,
) -> Ready[list[Answers]]:
    """The answers to each question in its contexts; arguments as of `unmask.models.model.Model.answer`.

    ``context_name`` is how error messages name the context at an index among those of all questions.
    """
    head = classifier_of(reader.spec, "span", reader.name)
    if head.classes != 2:
        raise InvalidRequest(
            f"{reader.name} cannot answer questions, because its span head gives {head.classes} numbers "
            "for each token instead of 2, for start and end; use another checkpoint"
        )
    whole_number("top_k", top_k, 1)
    whole_number("max_answer_tokens", max_answer_tokens, 1)
    check_fraction("null_threshold", null_threshold)
    name = name or numbered_question
    questions, texts, numbered_context = paired(question, contexts, name)
    owners = [index for index, own_texts in enumerate(texts) for _ in own_texts]

    def predictions(windowed: list[WindowedLogits]) -> list[Answers]:
        rest = iter(windowed)
        return [
            answer(
                [next(rest) for _ in own_texts],
                top_k=top_k,
                max_answer_tokens=max_answer_tokens,
                no_answer=no_answer,
                null_threshold=null_threshold,
            )
            for own_texts in texts
        ]

    return windowed(
        "span",
        reader.whole(
            [questions[owner] for owner in owners],
            [text for own_texts in texts for text in own_texts],
            truncation=truncation,
            name=lambda place: "the question" if isinstance(question, str) else name(owners[place]),
            pair_name=context_name,
        ),
        predictions,
        max_tokens=reader.max_tokens,
        truncation=truncation,
        overlap_tokens=overlap_tokens,
        name=context_name or numbered_context,
    )


def numbered_question(index: int) -> str:
    """How error messages name the question at an index by default."""
    return f"question {index + 1}"


def paired(
    question: Any, contexts: Any, name: Callable[[int], str], what: str = "question"
) -> tuple[list[str], list[list[str]], Callable[[int], str]]:
    """Questions, the contexts of each, and how errors name each context of all.

    ``what`` is how errors name a question, which may be another text that has contexts.

    Raises:
        InvalidRequest: there is not at least one context for every question.
    """
    if isinstance(question, str):
        questions, contexts_of = [question], [contexts]
    else:
        if not isinstance(question, Sequence):
            raise InvalidRequest(
                f"{what} is of type {type(question).__name__}; give a str, or a list of them"
            )
        questions, contexts_of = listed(what, question), listed("contexts", contexts)
        if len(questions) != len(contexts_of):
            raise InvalidRequest(
                f"there are {len(questions)} {what}s and contexts for {len(contexts_of)}; "
                f"give each {what} its own"
            )
    texts = [
        [some_texts] if isinstance(some_texts, str) else listed("contexts", some_texts)
        for some_texts in contexts_of
    ]
    if not all(texts):
        raise InvalidRequest("contexts is empty; give at least one text")
    names = [
        f"context {number + 1}" + ("" if isinstance(question, str) else f" of {name(index)}")
        for index, texts_of_question in enumerate(texts)
        for number in range(len(texts_of_question))
    ]
    return questions, texts, names.__getitem__


def answer(
    contexts: Sequence[WindowedLogits],
    *,
    top_k: int = 1,
    max_answer_tokens: int = MAX_ANSWER_TOKENS,
    no_answer: bool = False,
    null_threshold: float = 0.5,
) -> Answers:
    """The best answers to one question in several contexts.

    A span's score is its start logit plus its end logit, and probabilities are shared by all spans of all
    windows of all contexts (a softmax over them, the shared normalization of Clark & Gardner 2018). The score
    of no answer is that of the first token, the smallest over windows, as in BERT for SQuAD 2.0.

    Args:
        contexts: the question with each of its contexts.
        top_k: the number of answers; spans that overlap a better one in the same context are left out.
        max_answer_tokens: the longest answer.
        no_answer: whether the contexts may lack the answer (SQuAD 2.0).
        null_threshold: with ``no_answer``, return no answer if its probability exceeds this.
    """
    longest = min(
        max_answer_tokens, max(len(part.tokens) for context in contexts for part in context.windows)
    )
    scores_of = [_span_scores(context, longest) for context in contexts]
    scores = np.concatenate([scores_NA.ravel() for scores_NA in scores_of])
    total = _log_sum(scores)
    null_logit = min(float(logits_N2[0].sum()) for context in contexts for logits_N2 in context.logits)
    if no_answer:
        total = float(np.logaddexp(total, null_logit))
    null_score = float(np.exp(null_logit - total)) if no_answer else None
    answers: list[Answer] = []
    if null_score is None or null_score <= null_threshold:
        ends = np.cumsum([scores_NA.size for scores_NA in scores_of])
        for place in _descending(scores):
            number = int(np.searchsorted(ends, place, side="right"))
            first, length = divmod(place - int(ends[number]) + scores_of[number].size, longest)
            candidate = _answer(contexts[number], number, first, length, float(np.exp(scores[place] - total)))
            if candidate is not None and not any(_overlap(candidate, other) for other in answers):
                answers.append(candidate)
            if len(answers) == top_k:
                break
    return Answers(
        tuple(answers),
        null_score,
        tokens_read=sum(context.coverage.tokens_read for context in contexts),
        windows=sum(context.coverage.windows for context in contexts),
        truncated_tokens=sum(context.coverage.truncated_tokens for context in contexts),
    )


def _context_tokens(encoding: Encoding) -> NDArray[np.int64]:
    """The places of the context's tokens; the question's are not part of any answer."""
    return np.flatnonzero(encoding.sequence_ids == 1)


def _span_scores(context: WindowedLogits, longest: int) -> NDArray[np.float64]:
    """The scores of all spans of one context, (N, A), by their first token and the tokens after it.

    A span in two windows has the higher of its scores. What reaches beyond a window has minus infinity.
    """
    tokens = _context_tokens(context.encoding)
    scores_NA = np.full((len(tokens), longest), -np.inf)
    for window, logits_N2 in zip(context.windows, context.logits, strict=True):
        inside = _context_tokens(window.encoding)
        starts_M, ends_M = logits_N2[inside].astype(np.float64).T
        ends_MA = sliding_window_view(np.append(ends_M, np.full(longest, -np.inf)), longest)[:-1]
        rows = np.searchsorted(tokens, window.tokens[inside])
        scores_NA[rows] = np.maximum(scores_NA[rows], starts_M[:, None] + ends_MA)
    return scores_NA


def _log_sum(scores: NDArray[np.float64]) -> float:
    """The logarithm of the sum of exponentials."""
    largest = scores.max()
    return float(largest + np.log(np.exp(scores - largest).sum()))


def _descending(scores: NDArray[np.float64]) -> Iterator[int]:
    """The places of scores from the highest on, of equal ones the first first, without minus infinity.

    Few are needed as a rule, so that they are sorted in parts.
    """
    done, count = 0, 1
    while done < len(scores):
        count = min(count, len(scores))
        least = scores.max() if count == 1 else np.partition(scores, -count)[-count]
        places = np.flatnonzero(scores >= least)
        for place in places[np.argsort(-scores[places], kind="stable")][done:].tolist():
            if scores[place] == -np.inf:
                return
            yield place
        done, count = len(places), 64 * count


def _answer(context: WindowedLogits, number: int, first: int, length: int, score: float) -> Answer | None:
    """The answer from a token of the context to the one ``length`` after it; None if it is white space."""
    encoding = context.encoding
    assert encoding.pair is not None
    first_and_last = _context_tokens(encoding)[[first, first + length]]
    start, end = int(encoding.offsets[first_and_last[0], 0]), int(encoding.offsets[first_and_last[1], 1])
    if not encoding.pair[start:end].strip():
        return None
    return Answer(encoding.pair[start:end], start, end, score, number)


def _overlap(first: Answer, other: Answer) -> bool:
    return first.context == other.context and first.start < other.end and other.start < first.end
