"""The parts of an answer that its contexts do not support, by a token classifier (Kovács & Recski 2025).

Axes: N tokens of an answer.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import resources
from typing import Any, get_args

import numpy as np

from unmask.base.arguments import check_choice, check_fraction, listed, whole_number
from unmask.engines.engine import Floats
from unmask.errors import EmptyText, InvalidRequest, TextTooLong
from unmask.tasks.answer import paired
from unmask.tasks.classify import THRESHOLD, classifier_of, probabilities
from unmask.tasks.logits import Coverage, logits_of_each
from unmask.tasks.reader import Name, Reader, Ready
from unmask.tasks.values import LongTexts, PromptLanguage
from unmask.text import Encoding
from unmask.text.tokenizer import check_texts
from unmask.text.windows import OVERLAP_TOKENS, windows


@dataclass(frozen=True)
class UnsupportedSpan:
    """Consecutive tokens of an answer that no context supports."""

    text: str
    start: int
    """The offset of its first character in the answer."""
    end: int
    """The offset after its last character."""
    score: float
    """The highest probability of one of its tokens that the contexts do not support it."""


@dataclass(frozen=True)
class AnswerCheck(Coverage):
    """The prediction for one answer. ``tokens_read`` counts the answer and its contexts once, and ``windows``
    the passes in which the contexts were read."""

    supported: bool
    """Whether the contexts support every token."""
    score: float
    """The highest probability of a token that the contexts do not support it."""
    spans: tuple[UnsupportedSpan, ...]
    """What they do not support, by start."""


@dataclass(frozen=True)
class _Prompt:
    """The sentences that such checkpoints were trained with, as the library `lettucedetect` has them."""

    passage: str
    """The word before the number of a passage."""
    question: str
    """With a question."""
    summary: str
    """Without one, as for summaries."""

    def of(self, passages: Sequence[str], question: str | None) -> str:
        """The text that is read before the answer."""
        contexts = "\n".join(self.line(number, text) for number, text in enumerate(passages, start=1))
        if question is None:
            return self.summary.format(contexts=contexts)
        return self.question.format(question=question, count=len(passages), contexts=contexts)

    def line(self, number: int, passage: str) -> str:
        """A passage with its number."""
        return f"{self.passage} {number}: {passage}"


@cache
def _prompts() -> Mapping[str, _Prompt]:
    file = resources.files("unmask.tasks") / "grounding_prompts.json"
    return {language: _Prompt(**texts) for language, texts in json.loads(file.read_bytes()).items()}


def prepare(
    reader: Reader,
    answer: str | Sequence[str],
    contexts: str | Sequence[str] | Sequence[str | Sequence[str]],
    question: str | Sequence[str | None] | None = None,
    *,
    threshold: float = THRESHOLD,
    language: PromptLanguage = "en",
    max_tokens: int | None = None,
    truncation: LongTexts = "window",
    overlap_tokens: int | None = None,
    name: Name | None = None,
    context_name: Name | None = None,
) -> Ready[list[AnswerCheck]]:
    """What no context supports of each answer.

    The encoder reads the contexts as numbered passages with the question, in the sentences of LettuceDetect
    (Kovács & Recski 2025), and the answer as a second text; class 1 of a token says that it is not supported.
    Contexts that are too long together are read in several windows, as many whole contexts in each as fit,
    and a context that is too long alone in parts. A token's probability is the lowest of all windows: what
    one window supports is supported. `lettucedetect` takes the highest, by which each window would have to
    support the whole answer. Spans have no white space at their ends.

    Arguments are as of `unmask.models.model.Model.check_answer`; ``context_name`` is how messages name the
    context at an index among those of all answers.
    """
    head = classifier_of(reader.spec, "tokens", reader.name)
    if head.classes != 2:
        raise InvalidRequest(
            f"{reader.name} cannot check answers, because its tokens head has {head.classes} classes instead "
            "of 2, for supported and not; use another checkpoint"
        )
    check_fraction("threshold", threshold)
    check_choice("language", language, get_args(PromptLanguage))
    check_choice("truncation", truncation, get_args(LongTexts))
    if overlap_tokens is not None:
        whole_number("overlap_tokens", overlap_tokens, 0)
    most = reader.max_tokens or reader.checkpoint.trained_tokens
    if max_tokens is not None:
        whole_number("max_tokens", max_tokens, 1)
        if most is not None and max_tokens > most:
            raise InvalidRequest(f"max_tokens is {max_tokens}, and {reader.name} reads {most}; give fewer")
        most = max_tokens
    name = name or (lambda index: "the answer" if isinstance(answer, str) else f"answer {index + 1}")
    answers, texts, numbered_context = paired(answer, contexts, name, "answer")
    check_texts([text for passages in texts for text in passages], context_name or numbered_context)
    splitter = _Splitter(reader, _prompts()[language], most, truncation, overlap_tokens)
    read = splitter.read(answers, texts, _questions(question, answer, len(answers)), name)
    owners = [index for index, (_, parts) in enumerate(read) for _ in parts]

    def checks(values: Sequence[Floats]) -> list[AnswerCheck]:
        rest = iter(values)
        return [_check(text, parts, [next(rest) for _ in parts], threshold) for text, parts in read]

    return Ready(
        [part for _, parts in read for part in parts],
        partial(logits_of_each, role="tokens"),
        checks,
        ("logits", "tokens"),
        lambda place: name(owners[place]),
        [text for text, _ in read],
    )


def _questions(question: Any, answer: object, count: int) -> list[str | None]:
    """The question of each answer.

    Raises:
        InvalidRequest: there is not one for each answer.
        TextError: a question is no text, or blank.
    """
    if question is None or isinstance(question, str):
        questions = [question] * count
    else:
        questions = listed("question", question)
        if isinstance(answer, str) or len(questions) != count:
            raise InvalidRequest(
                f"there are {count} answers and {len(questions)} questions; give one question for all, or "
                "each answer its own"
            )
    asked = [text for text in questions if text is not None]
    check_texts(asked, lambda _: "the question")
    if not all(text.strip() for text in asked):
        raise EmptyText("the question has no words; leave it out, or give one")
    return questions


@dataclass(frozen=True)
class _Splitter:
    """Makes the windows of answers with their contexts."""

    reader: Reader
    prompt: _Prompt
    most: int | None
    """Tokens that are read at once; None for any number."""
    truncation: LongTexts
    overlap_tokens: int | None

    def read(
        self,
        answers: Sequence[str],
        contexts: Sequence[Sequence[str]],
        questions: Sequence[str | None],
        name: Name,
    ) -> list[tuple[Encoding, list[Encoding]]]:
        """What is read of each answer with its contexts, and the windows of it."""
        prompts = [self.prompt.of(*both) for both in zip(contexts, questions, strict=True)]
        wholes = self.reader.whole(
            prompts, answers, name=lambda index: f"the contexts of {name(index)}", pair_name=name
        )
        most = self.most
        read = []
        for index, whole in enumerate(wholes):
            parts = [whole]
            if most is not None and len(whole) > most:
                if self.truncation == "error":
                    raise TextTooLong(
                        f"{name(index)} and its contexts have {len(whole)} tokens and the model reads at "
                        f"most {most}; read the contexts in windows (truncation='window'), or the first ones "
                        "alone (truncation='end')",
                        original_tokens=len(whole),
                        max_tokens=most,
                    )
                parts = self._parts(answers[index], contexts[index], questions[index], most, name(index))
            if self.truncation == "end" and len(parts) > 1:
                parts = [replace(parts[0], original_tokens=len(whole))]
            read.append((parts[0] if len(parts) == 1 else whole, parts))
        return read

    def _parts(
        self, answer: str, passages: Sequence[str], question: str | None, most: int, name: str
    ) -> list[Encoding]:
        """Windows with as many whole passages as fit, and parts of those that are too long alone.

        Passages are counted alone, and together they can have a few tokens more; then there is less room.
        """
        room = most - self._count(self.prompt.of([""], question), answer)
        while True:
            groups = self._groups(passages, room, name)
            parts = self.reader.whole(
                [self.prompt.of(group, question) for group in groups], [answer] * len(groups)
            )
            excess = max(map(len, parts)) - most
            if excess <= 0:
                return parts
            room -= excess

    def _groups(self, passages: Sequence[str], room: int, name: str) -> list[list[str]]:
        """The passages of each window."""
        groups: list[list[str]] = []
        tokens = 0
        for number, passage in enumerate(passages, start=1):
            count = self._count(self.prompt.line(number, passage))
            pieces = [(passage, count)]
            if count > room:
                pieces = [(piece, room) for piece in self._pieces(passage, number, room, name)]
            for piece, count in pieces:
                between = bool(groups)  # the line break
                if not groups or tokens + between + count > room:
                    groups.append([])
                    tokens, between = 0, False
                groups[-1].append(piece)
                tokens += between + count
        return groups

    def _pieces(self, passage: str, number: int, room: int, name: str) -> list[str]:
        """The parts of a passage, by windows of its tokens."""
        room -= self._count(self.prompt.line(number, "")) + 1
        if room < 2:
            raise TextTooLong(
                f"{name}, its question and the sentences around them leave no room for contexts in the "
                f"{self.most} tokens that are read at once; shorten the answer or the question",
                original_tokens=int(self.most or 0) - room + 2,
                max_tokens=int(self.most or 0),
            )
        overlap = min(OVERLAP_TOKENS, room // 4) if self.overlap_tokens is None else self.overlap_tokens
        if room <= overlap:
            raise InvalidRequest(
                f"overlap_tokens is {overlap}, and beside {name} there is room for {room} tokens of a "
                "context; lower overlap_tokens"
            )
        (encoding,) = self.reader.whole([passage])
        special = int(encoding.special.sum())
        offsets = [
            part.encoding.offsets[~part.encoding.special]
            for part in windows(encoding, room + special, overlap)
        ]
        return [passage[part_N2[0, 0] : part_N2[-1, 1]] for part_N2 in offsets]

    def _count(self, text: str, pair: str | None = None) -> int:
        """The tokens of a pair with special tokens, or of a text without them."""
        (encoding,) = self.reader.whole([text], None if pair is None else [pair])
        return len(encoding) - (int(encoding.special.sum()) if pair is None else 0)


def _check(
    text: Encoding, parts: Sequence[Encoding], logits: Sequence[Floats], threshold: float
) -> AnswerCheck:
    """The prediction for one answer."""
    p_N = np.min(
        [
            probabilities(logits_NC[part.sequence_ids == 1], "single_label_classification")[:, 1]
            for part, logits_NC in zip(parts, logits, strict=True)
        ],
        axis=0,
    )
    answer = text.pair or ""
    offsets_N2 = parts[0].offsets[parts[0].sequence_ids == 1]
    borders = np.flatnonzero(np.diff(p_N > threshold, prepend=False, append=False))
    spans: list[UnsupportedSpan] = []
    for first, end in borders.reshape(-1, 2).tolist():
        words = [
            (start, stop) for start, stop in offsets_N2[first:end].tolist() if answer[start:stop].strip()
        ]
        if not words:
            continue
        start, stop, score = words[0][0], words[-1][1], float(p_N[first:end].max())
        if spans and start < spans[-1].end:  # both have bytes of the same character
            start, score = spans[-1].start, max(score, spans.pop().score)
        spans.append(UnsupportedSpan(answer[start:stop], start, stop, score))
    return AnswerCheck(
        not spans,
        float(p_N.max()),
        tuple(spans),
        tokens_read=len(text),
        windows=len(parts),
        truncated_tokens=text.truncated_tokens,
    )
