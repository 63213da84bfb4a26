"""Loss on held-out text: masked tokens of its windows, drawn at random or masked one at a time."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_limit
from unmask.base.intervals import Interval, ratio_interval
from unmask.base.progress import Progress
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
from unmask.models.load import Model
from unmask.tasks.batches import TOKENS_PER_PASS
from unmask.text import Encoding, read_lines
from unmask.text.lines import files_in, plain_name, readable

ENDINGS = (".txt", ".tokens", ".jsonl")
LINES_AT_ONCE = 1000
WINDOW_TOKENS = 128

Measure = Literal["masked", "pseudo"]
MASKED_SHARE = 0.15
"""Fraction of a window's tokens that is masked (Devlin et al. 2019); each becomes the mask token."""
WINDOWS_AT_ONCE = 256
LARGEST_LOSS = 700.0
"""The largest exponent of e that float64 can represent."""


@dataclass(frozen=True, eq=False)
class Window:
    """Consecutive tokens of one document, with special tokens."""

    ids_N: NDArray[np.int64]
    """Includes special tokens."""
    scored_N: NDArray[np.bool_]
    """Which tokens are not special."""
    characters: int
    """Characters that its tokens cover; white space belongs to the token before it, and line ends do not
    count."""
    bytes: int
    """Bytes of these characters in UTF-8."""


def text_file(path: Path) -> Path:
    """The file to read: the path itself, the only file in the folder, or the one with "test" in its name.

    Raises:
        InvalidRequest: there is none, or there are several.
    """
    files = files_in(path, ENDINGS)
    files = files if len(files) == 1 else [file for file in files if "test" in file.name]
    if len(files) != 1:
        names = ", ".join(file.name for file in files_in(path, ENDINGS))
        raise InvalidRequest(f"{path} has several text files ({names}); name one of them (--data)")
    return files[0]


def read_texts(path: Path) -> Iterator[list[str]]:
    """The read_texts of a file, each as its non-blank lines, stripped.

    A ``.jsonl`` file has one document per line, under the key ``text``; any other file is one document.

    Raises:
        InvalidText: it cannot be read, is not UTF-8, or a line is not a JSON object with a text.
    """
    with readable(path) as stream:
        if plain_name(path).endswith(".jsonl"):
            for line in read_lines(stream, str(path), field="text", blank="skip"):
                yield _stripped(line.text.splitlines())
        else:
            yield _stripped(line.text for line in read_lines(stream, str(path), blank="skip"))


def _stripped(lines: Iterable[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip()]


def text_windows(
    model: Model, texts: Iterable[Sequence[str]], *, tokens: int | None = None, limit: int | None = None
) -> list[Window]:
    """Split read_texts into consecutive text_windows; the last window of a document may be shorter.

    Lines are tokenized one by one and their tokens concatenated.

    Args:
        model: provides the tokenizer.
        texts: the lines of each document.
        tokens: tokens per window, special tokens included; None for 128, or the maximum length if that is
            less.
        limit: use only the first N text_windows.

    Raises:
        InvalidRequest: a window of this size has no room for text or exceeds the maximum length, ``limit`` is
            below 1, or there is no text.
    """
    check_limit(limit)
    longest = model.max_tokens
    size = min(WINDOW_TOKENS, longest or WINDOW_TOKENS) if tokens is None else tokens
    if longest is not None and size > longest:
        raise InvalidRequest(
            f"a window has {size} tokens and the model reads at most {longest}; ask for fewer"
        )
    windows: list[Window] = []
    for lines in texts:
        for window in _cut(model, lines, size):
            windows.append(window)
            if len(windows) == limit:
                return windows
    if not windows:
        raise InvalidRequest("the file has no text; name another one (--data)")
    return windows


def _cut(model: Model, lines: Sequence[str], size: int) -> Iterator[Window]:
    """Windows of one document. The rows of ``pending`` are ids, characters and bytes that are not in a window
    yet."""
    pending = np.zeros((3, 0), dtype=np.int64)
    for start in range(0, len(lines), LINES_AT_ONCE):
        some = lines[start : start + LINES_AT_ONCE]
        encodings = model.tokenizer.encode_batch(some, name=partial(_line, some))
        before, after = _around(encodings[0])
        room = size - len(before) - len(after)
        if room < 1:
            raise InvalidRequest(
                f"a window of {size} tokens leaves no room for text; ask for more (--tokens)"
            )
        pending = np.concatenate([pending, *map(_counted, encodings)], axis=1)
        last = start + LINES_AT_ONCE >= len(lines)
        whole = pending.shape[1] if last else pending.shape[1] // room * room
        for begin in range(0, whole, room):
            yield _packed_window(pending[:, begin : min(begin + room, whole)], before, after)
        pending = pending[:, whole:]


def _line(lines: Sequence[str], index: int) -> str:
    return f"the line {lines[index][:40]!r}"


def _around(encoding: Encoding) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The special tokens before and after a text."""
    inner = np.flatnonzero(~encoding.special)
    return encoding.ids[: inner[0]], encoding.ids[inner[-1] + 1 :]


def _packed_window(tokens: NDArray[np.int64], before: NDArray[np.int64], after: NDArray[np.int64]) -> Window:
    scored_N = np.zeros(len(before) + tokens.shape[1] + len(after), dtype=np.bool_)
    scored_N[len(before) : len(before) + tokens.shape[1]] = True
    ids_N = np.concatenate([before, tokens[0], after])
    return Window(ids_N, scored_N, int(tokens[1].sum()), int(tokens[2].sum()))


def _counted(encoding: Encoding) -> NDArray[np.int64]:
    """Ids of a line without special tokens, and the characters and bytes from each token to the next."""
    text, scored = encoding.text, ~encoding.special
    starts = np.maximum.accumulate(encoding.offsets[scored, 0])
    starts[0] = 0
    bounds = [*starts.tolist(), len(text)]
    characters = np.diff(bounds)
    byte_counts = [len(text[start:end].encode()) for start, end in pairwise(bounds)]
    return np.stack([encoding.ids[scored], characters, np.array(byte_counts)]).astype(np.int64)


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
        windows: at least one window; see `unmask.evaluate.probes.perplexity`.
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
        predictions = _ask(model, questions, progress)
        targets_M = np.concatenate([question.targets_M for question in questions])
    else:
        sentences = [Sentence(window.ids_N, window.scored_N) for window in windows]
        predictions = pseudo_log_likelihoods(model, sentences, score=score, progress=progress)
        targets_M = np.concatenate([sentence.ids_N[sentence.scored_N] for sentence in sentences])
    seconds = time.perf_counter() - start
    text_T = np.concatenate([window.ids_N[window.scored_N] for window in windows])
    loss = -float(np.concatenate([answer.log_p_M for answer in predictions]).mean())
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
        accuracy=float(np.concatenate([answer.first_M for answer in predictions]).mean()),
        nats_per_character=loss * len(text_T) / sum(window.characters for window in windows),
        nats_per_byte=loss * len(text_T) / sum(window.bytes for window in windows),
        unigram_loss=unigram_loss,
        unigram_accuracy=unigram_accuracy,
        seconds=seconds,
        intervals=_intervals(predictions),
    )


def _intervals(predictions: Sequence[Answer]) -> dict[str, Interval]:
    words = np.array([len(answer.first_M) for answer in predictions], dtype=np.float64)
    loss = ratio_interval(np.array([-answer.total for answer in predictions]), words)
    right = np.array([answer.first_M.sum() for answer in predictions], dtype=np.float64)
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
    predictions: list[Answer] = []
    for start in range(0, len(questions), WINDOWS_AT_ONCE):
        predictions += answers(model, questions[start : start + WINDOWS_AT_ONCE], TOKENS_PER_PASS)
        if progress is not None:
            progress(len(predictions), len(questions))
    return predictions


def unigram(text_T: NDArray[np.int64], targets_M: NDArray[np.int64], vocabulary: int) -> tuple[float, float]:
    """Loss and accuracy of predicting by frequency, with add-one smoothing.

    The counts are from the evaluated text itself, so this baseline is stronger than a fair one.
    """
    counts_V = np.bincount(text_T, minlength=vocabulary)
    loss = float(np.log(counts_V.sum() + vocabulary) - np.log(counts_V[targets_M] + 1).mean())
    return loss, float((targets_M == counts_V.argmax()).mean())
