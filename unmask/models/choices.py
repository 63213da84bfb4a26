"""The tasks of a loaded checkpoint whose possible answers are given with the text: choices, and labels."""

from collections.abc import Callable, Sequence
from typing import Any, overload

from unmask.base.arguments import check_callable, check_flag, check_fraction, listed
from unmask.base.arguments import whole_number as whole
from unmask.errors import InvalidRequest, quoted
from unmask.models.tasks import TaskModel
from unmask.tasks.aligned import AlignedLogits, align, aligned_logits
from unmask.tasks.choose import Choice, choose
from unmask.tasks.classify import THRESHOLD, Classification, classifier_of
from unmask.tasks.progress import Progress
from unmask.tasks.values import LongTexts
from unmask.tasks.zero_shot import TEMPLATE, entailment_of, hypotheses, zero_shot
from unmask.text.tokenizer import numbered


class ChoiceModel(TaskModel):
    """The methods of `unmask.models.model.Model` that read a text together with each of several others."""

    @overload
    def choose(  # type: ignore[overload-overlap]
        self,
        questions: str,
        choices: Sequence[str],
        *,
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Callable[[int], str] = numbered,
    ) -> Choice: ...

    @overload
    def choose(
        self,
        questions: Sequence[str],
        choices: Sequence[Sequence[str]],
        *,
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Callable[[int], str] = numbered,
    ) -> list[Choice]: ...

    def choose(
        self,
        questions: str | Sequence[str],
        choices: Sequence[str] | Sequence[Sequence[str]],
        *,
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Callable[[int], str] = numbered,
    ) -> Choice | list[Choice]:
        """The choice that fits each question best, with the probability of every choice.

        Args:
            questions: one question (or context) or several.
            choices: the choices of the one question, at least two; or a list of choices for each question,
                which need not have the same number.
            truncation: what to do with a question that is too long with one of its choices. ``"window"``
                reads it in windows, which are the same for all choices; ``"error"`` refuses it, and ``"end"``
                drops its end, which the result counts. Choices are always read whole.
            overlap_tokens: tokens of a question shared by neighboring windows.
            progress: called with (windows done, windows in all).
            name: how error messages name the question at an index.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no multiple-choice head (the error lists the heads that it
                has), or the choices are not at least two for each question.
            NonFiniteResult: a logit is infinity or NaN.
        """
        classifier_of(self.spec, "choice", "choose between texts", self.name)
        name = (lambda _: "the question") if isinstance(questions, str) else name
        firsts = [questions] if isinstance(questions, str) else listed("questions", questions)
        if isinstance(choices, str):
            raise InvalidRequest(f"choices is {quoted(choices)}; give a list of strings")
        given = listed("choices", choices)
        groups = _choices([given] if isinstance(questions, str) else given, len(firsts), name)
        read = self._aligned(
            "choice",
            firsts,
            groups,
            truncation,
            overlap_tokens,
            progress=progress,
            name=name,
            second="choice",
        )
        found = choose(read, groups)
        return found[0] if isinstance(questions, str) else found

    @overload
    def zero_shot(  # type: ignore[overload-overlap]
        self,
        texts: str,
        candidate_labels: Sequence[str],
        *,
        hypothesis_template: str = TEMPLATE,
        multi_label: bool = False,
        threshold: float = THRESHOLD,
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Callable[[int], str] = numbered,
    ) -> Classification: ...

    @overload
    def zero_shot(
        self,
        texts: Sequence[str],
        candidate_labels: Sequence[str],
        *,
        hypothesis_template: str = TEMPLATE,
        multi_label: bool = False,
        threshold: float = THRESHOLD,
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Callable[[int], str] = numbered,
    ) -> list[Classification]: ...

    def zero_shot(
        self,
        texts: str | Sequence[str],
        candidate_labels: Sequence[str],
        *,
        hypothesis_template: str = TEMPLATE,
        multi_label: bool = False,
        threshold: float = THRESHOLD,
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Callable[[int], str] = numbered,
    ) -> Classification | list[Classification]:
        """Classify texts by labels named here, with a checkpoint trained on natural language inference.

        The score of a label is the probability that the text entails the label's hypothesis.

        Args:
            texts: one text or several.
            candidate_labels: the labels.
            hypothesis_template: the hypothesis of a label, which replaces ``{}``.
            multi_label: whether several labels, or none, may apply. Each probability is then that of
                entailment against contradiction; otherwise the probabilities of all labels sum to 1. A single
                label is always treated as with ``multi_label``.
            threshold: the probability from which a label applies, with ``multi_label``.
            truncation: what to do with a text that is too long with its longest hypothesis, see `choose`.
            overlap_tokens: tokens of a text shared by neighboring windows.
            progress: called with (windows done, windows in all).
            name: how error messages name the text at an index.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no classifier of texts with a label for entailment (the error
                lists its heads or labels), or a label or the template cannot be used.
            NonFiniteResult: a logit is infinity or NaN.
        """
        head = classifier_of(self.spec, "sequence", "classify texts", self.name)
        classes = entailment_of(head, self.name)
        check_flag("multi_label", multi_label)
        check_fraction("threshold", threshold)
        labels = listed("candidate_labels", candidate_labels)
        seconds = hypotheses(labels, hypothesis_template)
        name = (lambda _: "the text") if isinstance(texts, str) else name
        firsts = [texts] if isinstance(texts, str) else listed("texts", texts)
        read = self._aligned(
            "sequence",
            firsts,
            [seconds] * len(firsts),
            truncation,
            overlap_tokens,
            progress=progress,
            name=name,
            second="hypothesis",
        )
        found = zero_shot(read, labels, classes, multi_label=bool(multi_label), threshold=threshold)
        return found[0] if isinstance(texts, str) else found

    def _aligned(
        self,
        role: str,
        firsts: Sequence[str],
        seconds: Sequence[Sequence[str]],
        truncation: LongTexts,
        overlap_tokens: int | None,
        *,
        progress: Progress | None,
        name: Callable[[int], str],
        second: str,
    ) -> list[AlignedLogits]:
        """The logits of each first text with each of its second texts."""
        if overlap_tokens is not None:
            whole("overlap_tokens", overlap_tokens, 0)
        check_callable("progress", progress)
        places = [(index, place) for index, some in enumerate(seconds) for place in range(len(some))]
        encodings = iter(
            self.tokenizer.encode_batch(
                [firsts[index] for index, _ in places],
                [seconds[index][place] for index, place in places],
                name=lambda row: name(places[row][0]),
                pair_name=lambda row: f"{second} {places[row][1] + 1} of {name(places[row][0])}",
            )
        )
        groups = [
            align(
                [next(encodings) for _ in some],
                max_tokens=self.max_tokens,
                truncation=truncation,
                overlap_tokens=overlap_tokens,
                name=name(index),
                second=second,
            )
            for index, some in enumerate(seconds)
        ]
        return aligned_logits(self.engine, role, groups, progress=progress, name=name)


def _choices(given: Sequence[Any], questions: int, name: Callable[[int], str]) -> list[list[str]]:
    """The choices of each question.

    Raises:
        InvalidRequest: there is not one list for each question, or a list has fewer than two choices.
    """
    if len(given) != questions:
        raise InvalidRequest(
            f"{questions} questions and {len(given)} lists of choices were given; give a list of choices for "
            "each question"
        )
    groups = []
    for index, some in enumerate(given):
        if isinstance(some, str):
            raise InvalidRequest(f"the choices of {name(index)} are {quoted(some)}; give a list of strings")
        group = listed(f"the choices of {name(index)}", some)
        if len(group) < 2:
            raise InvalidRequest(
                f"{name(index)} has {len(group)} choice{'' if len(group) == 1 else 's'}; give at least two"
            )
        groups.append(group)
    return groups
