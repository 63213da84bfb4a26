"""Part-of-speech tagging from frozen hidden states by a linear probe, layer by layer."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.intervals import Interval, ratio_interval
from unmask.errors import InvalidRequest
from unmask.evaluate.probes.classifiers import fit_linear
from unmask.evaluate.probes.labels import PARTS, TaggedSentence
from unmask.evaluate.probes.states import ReadWords, layer_groups, read_words, word_states
from unmask.models.load import Model
from unmask.tasks.progress import Progress


@dataclass(frozen=True)
class LayerScore:
    """One layer's probe."""

    layer: int
    """0 is the output of the embedding; the last includes the encoder's final norm."""
    dev_accuracy: float
    test_accuracy: float
    strength: float
    """Strength of the penalty, chosen on dev."""
    test_interval: Interval
    """The 95 % confidence interval of ``test_accuracy``, from a bootstrap over sentences."""


@dataclass(frozen=True)
class TaggingResult:
    """The result of `measure_tagging`; accuracies are shares of words."""

    probe: str = field(default="tagging", init=False)
    model: str
    revision: str | None
    dtype: str
    accuracy: float
    """On test, for the layer that is best on dev."""
    best_layer: int
    layers: tuple[LayerScore, ...]
    baseline_accuracy: float
    """On test, if every word form gets its most frequent tag in train, and unseen forms the most frequent
    tag."""
    tags: tuple[str, ...]
    """The tags of the training part."""
    sentences: Mapping[str, int]
    """Number of sentences in train, dev and test."""
    words: Mapping[str, int]
    """Number of words in train, dev and test."""
    split_sentences: int
    """Sentences that exceed the maximum length and were split into parts of whole words."""
    words_without_token: int
    """Words without tokens, such as lone control characters; their features are zeros."""
    seconds: float
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    """That of ``accuracy``, by its name."""


def measure_tagging(
    model: Model,
    treebank: Mapping[str, Sequence[TaggedSentence]],
    *,
    layer: int | None = None,
    progress: Progress | None = None,
) -> TaggingResult:
    """Measure how well a linear probe predicts parts of speech from hidden states.

    A word is represented by the state of its first token (as in Devlin et al. 2019). The encoder is not
    trained. The probe is logistic regression (see `unmask.evaluate.probes.classifiers`) with a penalty chosen
    on dev. A tag that is not in train is never predicted and counts as wrong.

    Args:
        model: any encoder.
        treebank: ``train``, ``dev`` and ``test``, each with at least one sentence.
        layer: from 0, the output of the embedding, to L; None for all.
        progress: called with (sentences read, sentences to read) while the encoder runs.

    Raises:
        InvalidRequest: there is no such layer, or a part is empty.
        TextError: a sentence gives no token.
        NonFiniteResult: a hidden state is not finite.
    """
    chosen = layers_of(model, layer)
    for part in PARTS:
        if not treebank.get(part):
            raise InvalidRequest(f"the treebank's {part} part is empty; give at least one sentence")
    start = time.perf_counter()
    tags = sorted({tag for sentence in treebank["train"] for tag in sentence.tags})
    read = {part: read_part(model, part, treebank[part]) for part in PARTS}
    classes = {part: _classes(treebank[part], tags) for part in PARTS}
    words_S = np.array([len(sentence.words) for sentence in treebank["test"]])
    groups = layer_groups(chosen, read.values(), model.width)
    advance = counter(progress, len(groups) * sum(len(read[part].encodings) for part in PARTS))
    scores: list[LayerScore] = []
    for group in groups:
        scores += _scores(model, read, classes, group, words_S=words_S, advance=advance)
    best = max(scores, key=lambda score: score.dev_accuracy)
    return TaggingResult(
        model=model.name,
        revision=model.revision,
        dtype=model.dtype,
        accuracy=best.test_accuracy,
        best_layer=best.layer,
        layers=tuple(scores),
        baseline_accuracy=most_frequent_tags(treebank["train"], treebank["test"]),
        tags=tuple(tags),
        sentences={part: len(treebank[part]) for part in PARTS},
        words={part: read[part].count for part in PARTS},
        split_sentences=sum(read[part].split for part in PARTS),
        words_without_token=sum(read[part].missing for part in PARTS),
        seconds=time.perf_counter() - start,
        intervals={"accuracy": best.test_interval},
    )


def most_frequent_tags(train: Sequence[TaggedSentence], test: Sequence[TaggedSentence]) -> float:
    """Accuracy on ``test`` of each form's most frequent tag in ``train``; unseen forms get the overall one.

    Ties between tags are broken alphabetically. Forms are compared as they are written.
    """
    of_form: dict[str, Counter[str]] = defaultdict(Counter)
    overall: Counter[str] = Counter()
    for sentence in train:
        overall.update(sentence.tags)
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            of_form[word][tag] += 1
    best = {word: _most_frequent(counts) for word, counts in of_form.items()}
    otherwise = _most_frequent(overall)
    right = [
        best.get(word, otherwise) == tag
        for sentence in test
        for word, tag in zip(sentence.words, sentence.tags, strict=True)
    ]
    return sum(right) / len(right)


def _most_frequent(counts: Counter[str]) -> str:
    return min(counts, key=lambda tag: (-counts[tag], tag))


def layers_of(model: Model, layer: int | None) -> list[int]:
    """The layers to probe: the one that is named, or all from the embedding on.

    Raises:
        InvalidRequest: there is no such layer.
    """
    if layer is not None and not 0 <= layer <= model.layer_count:
        raise InvalidRequest(
            f"layer is {layer}; it can be 0 (the embedding) to {model.layer_count} (--layer)"
        )
    return list(range(model.layer_count + 1)) if layer is None else [layer]


def read_part(model: Model, part: str, sentences: Sequence[TaggedSentence]) -> ReadWords:
    """Tokenize the sentences of a part."""
    words = [sentence.words for sentence in sentences]
    return read_words(model, words, lambda index: f"sentence {index + 1} of {part}")


def _classes(sentences: Sequence[TaggedSentence], tags: Sequence[str]) -> Tensor:
    """The index of each word's tag; -1, which no probe predicts, for a tag that is not in train."""
    number = {tag: index for index, tag in enumerate(tags)}
    return torch.tensor([number.get(tag, -1) for sentence in sentences for tag in sentence.tags])


def counter(progress: Progress | None, total: int) -> Callable[[int], None]:
    """A function that adds to what is done and reports it."""
    done = 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total)

    return advance


def _scores(
    model: Model,
    read: Mapping[str, ReadWords],
    classes: Mapping[str, Tensor],
    layers: Sequence[int],
    *,
    words_S: NDArray[np.int64],
    advance: Callable[[int], None],
) -> list[LayerScore]:
    """The scores of these layers, from one run of the encoder; test sentences have ``words_S`` words."""
    train_LMD, dev_LMD, test_LMD = (word_states(model, read[part], layers, advance) for part in PARTS)
    train_M, dev_M, test_M = (classes[part] for part in PARTS)
    count = int(train_M.max()) + 1
    scores = []
    for layer, train_MD, dev_MD, test_MD in zip(layers, train_LMD, dev_LMD, test_LMD, strict=True):
        probe = fit_linear(train_MD, train_M, dev_MD, dev_M, class_count=count)
        on_dev, on_test = probe.accuracy(dev_MD, dev_M), probe.accuracy(test_MD, test_M)
        right_M = (probe.logits(test_MD).argmax(-1) == test_M).double().numpy()
        right_S = np.bincount(np.repeat(np.arange(len(words_S)), words_S), right_M, minlength=len(words_S))
        between = ratio_interval(right_S.astype(np.float64), words_S.astype(np.float64))
        scores.append(LayerScore(layer, on_dev, on_test, probe.strength, between))
    return scores
