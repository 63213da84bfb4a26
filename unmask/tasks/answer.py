"""Answers to questions as spans of contexts, with offsets into the caller's string."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_fraction, listed, whole_number
from unmask.engines.engine import Floats
from unmask.errors import InvalidRequest
from unmask.tasks.classify import classifier_of
from unmask.tasks.logits import Coverage, WindowedLogits, windowed
from unmask.tasks.reader import Name, Reader, Ready
from unmask.tasks.values import LongTexts
from unmask.text.windows import Window

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
    question: Any, contexts: Any, name: Callable[[int], str]
) -> tuple[list[str], list[list[str]], Callable[[int], str]]:
    """Questions, the contexts of each, and how errors name each context of all.

    Raises:
        InvalidRequest: there is not at least one context for every question.
    """
    if isinstance(question, str):
        questions, contexts_of = [question], [contexts]
    else:
        if not isinstance(question, Sequence):
            raise InvalidRequest(
                f"question is of type {type(question).__name__}; give a str, or a list of them"
            )
        questions, contexts_of = listed("question", question), listed("contexts", contexts)
        if len(questions) != len(contexts_of):
            raise InvalidRequest(
                f"there are {len(questions)} questions and contexts for {len(contexts_of)}; "
                "give each question its own"
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
    best: list[_Spans] = []
    total, null_logit = -np.inf, np.inf
    for number, context in enumerate(contexts):
        windows = list(zip(context.windows, context.logits, strict=True))
        null_logit = min([null_logit, *(float(logits_N2[0].sum()) for _, logits_N2 in windows)])
        spans = _unique([_spans(number, window, logits, max_answer_tokens) for window, logits in windows])
        total = float(np.logaddexp(total, np.logaddexp.reduce(spans.scores)))
        best.append(spans)
    if no_answer:
        total = float(np.logaddexp(total, null_logit))
    null_score = float(np.exp(null_logit - total)) if no_answer else None
    answers: list[Answer] = []
    if null_score is None or null_score <= null_threshold:
        for score, number, first, last in _descending(best):
            candidate = _answer(contexts[number], number, first, last, float(np.exp(score - total)))
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


@dataclass(frozen=True, eq=False)
class _Spans:
    """Candidate answers in one context; one row per span."""

    context: int
    first: NDArray[np.int64]
    """The first token, as a position in the whole context."""
    last: NDArray[np.int64]
    scores: NDArray[np.float64]


def _spans(context: int, window: Window, logits_N2: Floats, longest: int) -> _Spans:
    """All spans of up to ``longest`` tokens of one window; the question's tokens are not part of any."""
    tokens = np.flatnonzero(window.encoding.sequence_ids == 1)
    starts_N, ends_N = logits_N2[tokens].astype(np.float64).T
    first, length = np.divmod(np.arange(len(tokens) * longest), longest)
    inside = first + length < len(tokens)
    first, last = first[inside], (first + length)[inside]
    places = window.tokens[tokens]
    return _Spans(context, places[first], places[last], starts_N[first] + ends_N[last])


def _unique(parts: Sequence[_Spans]) -> _Spans:
    """The spans of all windows, each once, with its highest score."""
    if len(parts) == 1:
        return parts[0]
    first, last, scores = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("first", "last", "scores")
    )
    order = np.lexsort((-scores, last, first))
    first, last, scores = first[order], last[order], scores[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (np.diff(first) != 0) | (np.diff(last) != 0)
    return _Spans(parts[0].context, first[new], last[new], scores[new])


def _descending(contexts: Sequence[_Spans]) -> Iterator[tuple[float, int, int, int]]:
    """All spans as (score, context, first token, last token), highest score first."""
    scores = np.concatenate([spans.scores for spans in contexts])
    owners = np.repeat(np.arange(len(contexts)), [len(spans.scores) for spans in contexts])
    starts = np.concatenate(([0], np.cumsum([len(spans.scores) for spans in contexts])))
    for place in np.argsort(-scores, kind="stable").tolist():
        spans = contexts[owners[place]]
        row = place - starts[owners[place]]
        yield float(scores[place]), spans.context, int(spans.first[row]), int(spans.last[row])


def _answer(context: WindowedLogits, number: int, first: int, last: int, score: float) -> Answer | None:
    """The answer from one token to another; None if they cover nothing but white space."""
    encoding = context.encoding
    assert encoding.pair is not None
    start, end = int(encoding.offsets[first, 0]), int(encoding.offsets[last, 1])
    if not encoding.pair[start:end].strip():
        return None
    return Answer(encoding.pair[start:end], start, end, score, number)


def _overlap(first: Answer, other: Answer) -> bool:
    return first.context == other.context and first.start < other.end and other.start < first.end
