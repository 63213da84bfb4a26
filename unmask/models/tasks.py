"""The tasks of a loaded checkpoint's heads: classes of texts, labels of words, answers to questions."""

from collections.abc import Callable, Sequence
from typing import Any, overload

from unmask.base.arguments import check_callable, check_choice, check_fraction, listed
from unmask.base.arguments import whole_number as whole
from unmask.errors import InvalidRequest
from unmask.models.encoder import LoadedEncoder
from unmask.tasks.answer import MAX_ANSWER_TOKENS, Answers, answer, numbered_question, paired
from unmask.tasks.classify import THRESHOLD, Classification, classifier_of, classify
from unmask.tasks.long_texts import WindowedLogits, windowed_logits
from unmask.tasks.progress import Progress
from unmask.tasks.tag import Tagging, tag
from unmask.tasks.values import Aggregation, LongTexts
from unmask.text import Encoding
from unmask.text.tokenizer import numbered

Words = Sequence[str]


class TaskModel(LoadedEncoder):
    """The methods of `unmask.models.model.Model` that predict with a head, on texts of any length.

    A text that the model cannot read whole is read in windows that share ``overlap_tokens`` tokens, and every
    result says how many tokens and windows it is based on.
    """

    @overload
    def classify(  # type: ignore[overload-overlap]
        self,
        texts: str,
        pairs: str | None = None,
        *,
        threshold: float = THRESHOLD,
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Callable[[int], str] = numbered,
    ) -> Classification: ...

    @overload
    def classify(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        threshold: float = THRESHOLD,
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Callable[[int], str] = numbered,
    ) -> list[Classification]: ...

    def classify(
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        *,
        threshold: float = THRESHOLD,
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Callable[[int], str] = numbered,
    ) -> Classification | list[Classification]:
        """The label of each text (or pair) with its probability, or the value of a regression.

        Args:
            texts: one text or several.
            pairs: the second text of each pair. Windows over a long pair cover its second text.
            threshold: the probability from which a label of a multi-label classifier applies.
            truncation: ``"window"`` reads a long text in windows, ``"error"`` refuses it, and ``"end"`` drops
                its end, which the result counts.
            overlap_tokens: tokens shared by neighboring windows.
            progress: called with (windows done, windows in all).
            name: how error messages name the text at an index.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no classifier of texts; the error lists the heads that it has.
            NonFiniteResult: a logit is infinity or NaN.
        """
        head = classifier_of(self.spec, "sequence", "classify texts", self.name)
        check_fraction("threshold", threshold)
        self._refuse_shared_query(pairs)
        name = (lambda _: "the text") if isinstance(texts, str) else name
        encodings = self._whole(texts, pairs, name)
        read = self._read("sequence", encodings, truncation, overlap_tokens, progress=progress, name=name)
        found = classify(head, read, threshold=threshold)
        return found[0] if isinstance(texts, str) else found

    @overload
    def tag(  # type: ignore[overload-overlap]
        self,
        texts: str,
        *,
        aggregation: Aggregation = "first",
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Callable[[int], str] = numbered,
    ) -> Tagging: ...

    @overload
    def tag(
        self,
        texts: Sequence[str] | Sequence[Words],
        *,
        aggregation: Aggregation = "first",
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Callable[[int], str] = numbered,
    ) -> list[Tagging]: ...

    def tag(
        self,
        texts: str | Sequence[str] | Sequence[Words],
        *,
        aggregation: Aggregation = "first",
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Callable[[int], str] = numbered,
    ) -> Tagging | list[Tagging]:
        """The label of each word, and the entities that words form, with offsets into the given text.

        Args:
            texts: one text or several; or lists of words, and then offsets are those in the words joined by
                spaces.
            aggregation: whether the ``"first"`` token of a word gives its label, as most taggers are trained,
                or the ``"mean"`` of the probabilities of all its tokens.
            truncation: see `classify`.
            overlap_tokens: tokens shared by neighboring windows.
            progress: called with (windows done, windows in all).
            name: how error messages name the text at an index.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no head for tokens; the error lists the heads that it has.
            NonFiniteResult: a logit is infinity or NaN.
        """
        head = classifier_of(self.spec, "tokens", "label words", self.name)
        check_choice("aggregation", aggregation, ("first", "mean"))
        name = (lambda _: "the text") if isinstance(texts, str) else name
        encodings = self._words_or_texts(texts, name)
        read = self._read("tokens", encodings, truncation, overlap_tokens, progress=progress, name=name)
        found = tag(head, read, aggregation=aggregation)
        return found[0] if isinstance(texts, str) else found

    @overload
    def answer(  # type: ignore[overload-overlap]
        self,
        question: str,
        contexts: str | Sequence[str],
        *,
        top_k: int = 1,
        max_answer_tokens: int = MAX_ANSWER_TOKENS,
        no_answer: bool = False,
        null_threshold: float = 0.5,
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Callable[[int], str] = numbered_question,
    ) -> Answers: ...

    @overload
    def answer(
        self,
        question: Sequence[str],
        contexts: Sequence[str | Sequence[str]],
        *,
        top_k: int = 1,
        max_answer_tokens: int = MAX_ANSWER_TOKENS,
        no_answer: bool = False,
        null_threshold: float = 0.5,
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Callable[[int], str] = numbered_question,
    ) -> list[Answers]: ...

    def answer(
        self,
        question: str | Sequence[str],
        contexts: str | Sequence[str] | Sequence[str | Sequence[str]],
        *,
        top_k: int = 1,
        max_answer_tokens: int = MAX_ANSWER_TOKENS,
        no_answer: bool = False,
        null_threshold: float = 0.5,
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Callable[[int], str] = numbered_question,
    ) -> Answers | list[Answers]:
        """The spans of one or several contexts that answer a question, most probable first.

        Args:
            question: one question, or several that are read together.
            contexts: one text or several; a span's ``context`` is the index of its text. Of several
                questions, a list with the text (or texts) of each.
            top_k: the most answers to return.
            max_answer_tokens: the longest answer, in tokens.
            no_answer: whether the contexts may lack the answer, for models trained on such questions.
            null_threshold: with ``no_answer``, return no answer if its probability exceeds this.
            truncation: see `classify`.
            overlap_tokens: tokens of a context shared by neighboring windows.
            progress: called with (windows done, windows in all).
            name: how error messages name the question at an index, if there are several.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no head for spans, or the question leaves no room for a window.
            NonFiniteResult: a logit is infinity or NaN.
        """
        head = classifier_of(self.spec, "span", "answer questions", self.name)
        if head.classes != 2:
            raise InvalidRequest(
                f"{self.name} cannot answer questions, because its span head gives {head.classes} numbers "
                "for each token instead of 2, for start and end; use another checkpoint"
            )
        whole("top_k", top_k, 1)
        whole("max_answer_tokens", max_answer_tokens, 1)
        check_fraction("null_threshold", null_threshold)
        asked, texts, name_of = paired(question, contexts, name)
        owners = [index for index, some in enumerate(texts) for _ in some]
        encodings = self.tokenizer.encode_batch(
            [asked[owner] for owner in owners],
            [text for some in texts for text in some],
            name=lambda place: name(owners[place]) if not isinstance(question, str) else "the question",
        )
        read = self._read("span", encodings, truncation, overlap_tokens, progress=progress, name=name_of)
        found, place = [], 0
        for some in texts:
            found.append(
                answer(
                    read[place : place + len(some)],
                    top_k=top_k,
                    max_answer_tokens=max_answer_tokens,
                    no_answer=no_answer,
                    null_threshold=null_threshold,
                )
            )
            place += len(some)
        return found[0] if isinstance(question, str) else found

    def _whole(self, texts: Any, pairs: Any, name: Callable[[int], str]) -> list[Encoding]:
        """Each text (or pair) as tokens, of any length."""
        if isinstance(texts, str):
            if not isinstance(pairs, str | None):
                raise InvalidRequest(
                    "one text and a list of pairs were given; give one pair, or lists of both"
                )
            texts, pairs = [texts], None if pairs is None else [pairs]
        return self.tokenizer.encode_batch(
            listed("texts", texts), None if pairs is None else listed("pairs", pairs), name=name
        )

    def _words_or_texts(self, texts: Any, name: Callable[[int], str]) -> list[Encoding]:
        some = [texts] if isinstance(texts, str) else listed("texts", texts)
        if some and not isinstance(some[0], str):
            return [
                self.tokenizer.encode_words(listed(name(index), words), name=name(index))
                for index, words in enumerate(some)
            ]
        return self._whole(some, None, name)

    def _read(
        self,
        role: str,
        encodings: Sequence[Encoding],
        truncation: LongTexts,
        overlap_tokens: int | None,
        *,
        progress: Progress | None,
        name: Callable[[int], str],
    ) -> list[WindowedLogits]:
        if overlap_tokens is not None:
            whole("overlap_tokens", overlap_tokens, 0)
        check_callable("progress", progress)
        return windowed_logits(
            self.engine,
            role,
            encodings,
            max_tokens=self.max_tokens,
            truncation=truncation,
            overlap_tokens=overlap_tokens,
            progress=progress,
            name=name,
        )
