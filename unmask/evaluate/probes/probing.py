"""Probes of every layer: parts of speech from frozen states, and linear and non-linear probes of any label.

Probes of any label are compared with control tasks and with an encoder of random weights.

A probe that reads a label from states may have learned the task itself. A control task (Hewitt & Liang 2019)
gives every word form one label at random: it can only be memorized, from states that tell forms apart.
Selectivity is the accuracy on the task minus that on the control task.

Axes: W words of a part; A probes; S sentences.
"""

import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.intervals import Interval, ratio_interval
from unmask.base.progress import Progress
from unmask.engines.engine import Engine
from unmask.engines.torch_engine import TorchEngine
from unmask.errors import InvalidRequest
from unmask.evaluate.probes.classifiers import HIDDEN, fit_linear, fit_mlp, moments
from unmask.evaluate.probes.head_accuracy import Accuracy, accuracies
from unmask.evaluate.probes.words import (
    PARTS,
    ReadWords,
    TaggedSentence,
    layer_groups,
    read_words,
    word_states,
)
from unmask.interpret.geometry.reading import random_baseline
from unmask.models.load import Model


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
    tokenized = {part: read_part(model, part, treebank[part]) for part in PARTS}
    classes = {part: _classes(treebank[part], tags) for part in PARTS}
    words_S = np.array([len(sentence.words) for sentence in treebank["test"]])
    groups = layer_groups(chosen, tokenized.values(), model.width)
    advance = counter(progress, len(groups) * sum(len(tokenized[part].encodings) for part in PARTS))
    scores: list[LayerScore] = []
    for group in groups:
        scores += _scores(model, tokenized, classes, group, words_S=words_S, advance=advance)
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
        words={part: tokenized[part].count for part in PARTS},
        split_sentences=sum(tokenized[part].split for part in PARTS),
        words_without_token=sum(tokenized[part].missing for part in PARTS),
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


@dataclass(frozen=True)
class LayerProbes:
    """The probes of one layer. Accuracies are shares of test words, with intervals over sentences."""

    layer: int
    """0 is the output of the embedding; the last includes the encoder's final norm."""
    linear: Accuracy
    mlp: Accuracy
    gap: Accuracy
    """`mlp` minus `linear`, paired by sentence: what only a non-linear probe finds."""
    linear_control: Accuracy | None
    """On the control task; None where it was not asked for."""
    mlp_control: Accuracy | None
    linear_selectivity: Accuracy | None
    """Task minus control task, paired by sentence."""
    mlp_selectivity: Accuracy | None
    random_linear: Accuracy | None
    """On the task, from an encoder of the same architecture with random weights."""
    random_mlp: Accuracy | None
    random_gap: Accuracy | None


@dataclass(frozen=True)
class ProbingResult:
    """The result of `measure_probes`."""

    probe: str = field(default="probes", init=False)
    model: str
    revision: str | None
    dtype: str
    hidden: int
    """Units of the MLP's hidden layer."""
    seed: int
    layers: tuple[LayerProbes, ...]
    majority: float
    """Test accuracy of the most frequent label of train."""
    by_form: float
    """Test accuracy of each form's most frequent label in train; unseen forms get the overall one."""
    labels: tuple[str, ...]
    """Those of train; a test word with another one counts as wrong."""
    sentences: Mapping[str, int]
    words: Mapping[str, int]
    split_sentences: int
    words_without_token: int
    seconds: float


def measure_probes(
    model: Model,
    parts: Mapping[str, Sequence[TaggedSentence]],
    *,
    layer: int | None = None,
    hidden: int = HIDDEN,
    control: bool = True,
    random: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> ProbingResult:
    """Fit a linear probe and an MLP probe on the states of every layer, and the same on controls.

    A word is represented by the state of its first token; states are standardized with the training words'
    mean and deviation. Both probes (see `unmask.evaluate.probes.classifiers`) are
    chosen on dev and measured on test.

    Args:
        model: any encoder.
        parts: ``train``, ``dev`` and ``test``; see `unmask.evaluate.probes.words.read_labeled`.
        layer: from 0, the output of the embedding, to L; None for all.
        hidden: units of the MLP's hidden layer.
        control: fit control tasks too.
        random: fit probes on an encoder of random weights too.
        seed: of the MLPs, the control labels and the random weights.
        progress: called with (probes fitted, probes to fit).

    Raises:
        InvalidRequest: there is no such layer, a part is empty, or ``hidden`` is below 1.
        TextError: a sentence gives no token.
        NonFiniteResult: a hidden state is not finite.
    """
    chosen = layers_of(model, layer)
    if hidden < 1:
        raise InvalidRequest(f"hidden is {hidden}; it must be at least 1 (--hidden)")
    for part in PARTS:
        if not parts.get(part):
            raise InvalidRequest(f"the {part} part is empty; give at least one sentence")
    start = time.perf_counter()
    advance = counter(progress, len(chosen) * 2 * (1 + control + random))
    read = {part: read_part(model, part, parts[part]) for part in PARTS}
    task = _Task.of(model, parts, read, hidden=hidden, seed=seed, advance=advance)
    trained = task.right(model.engine, chosen, control=control)
    untrained = {}
    if random:
        engine = TorchEngine(random_baseline(model.encoder, seed))
        untrained = task.right(engine, chosen, control=False)
    counts = Counter(tag for sentence in parts["train"] for tag in sentence.tags)
    most = min(counts, key=lambda tag: (-counts[tag], tag))
    tags = [tag for sentence in parts["test"] for tag in sentence.tags]
    return ProbingResult(
        model=model.name,
        revision=model.revision,
        dtype=model.dtype,
        hidden=hidden,
        seed=seed,
        layers=tuple(task.layer(at, trained[at], untrained.get(at)) for at in chosen),
        majority=tags.count(most) / len(tags),
        by_form=most_frequent_tags(parts["train"], parts["test"]),
        labels=task.labels,
        sentences={part: len(parts[part]) for part in PARTS},
        words={part: task.read[part].count for part in PARTS},
        split_sentences=sum(task.read[part].split for part in PARTS),
        words_without_token=sum(task.read[part].missing for part in PARTS),
        seconds=time.perf_counter() - start,
    )


def control_labels(words: Sequence[str], counts: Mapping[str, int], seed: int = 0) -> list[str]:
    """The control task's label of each word: the same for every occurrence of a form (Hewitt & Liang 2019).

    Labels are drawn from the distribution of ``counts``, by a digest of the form, so that forms that are not
    in train have one too.
    """
    names = sorted(counts)
    ends = np.array(list(accumulate(counts[name] for name in names)))
    label_of = {}
    for word in set(words):
        digest = hashlib.sha256(f"{seed} {word}".encode("utf-8", "surrogatepass")).digest()
        place = int.from_bytes(digest[:8], "big") / 2**64 * ends[-1]
        label_of[word] = names[int(np.searchsorted(ends, place, side="right"))]
    return [label_of[word] for word in words]


@dataclass(frozen=True, eq=False)
class _Task:
    """The words and their labels, as numbers, and how probes are fitted to them."""

    model: Model
    hidden: int
    seed: int
    advance: Callable[[int], None]
    read: Mapping[str, ReadWords]
    labels: tuple[str, ...]
    own: Mapping[str, Tensor]
    """The label of each word of a part, -1 where train does not have it, (W,)."""
    control: Mapping[str, Tensor]
    sentence_W: NDArray[np.int64]
    """The sentence of each test word."""

    @classmethod
    def of(
        cls,
        model: Model,
        parts: Mapping[str, Sequence[TaggedSentence]],
        read: Mapping[str, ReadWords],
        *,
        hidden: int,
        seed: int,
        advance: Callable[[int], None],
    ) -> "_Task":
        counts = Counter(tag for sentence in parts["train"] for tag in sentence.tags)
        labels = tuple(sorted(counts))
        number = {label: index for index, label in enumerate(labels)}
        labels_of, control = {}, {}
        for part in PARTS:
            tags = [tag for sentence in parts[part] for tag in sentence.tags]
            words = [word for sentence in parts[part] for word in sentence.words]
            labels_of[part] = torch.tensor([number.get(tag, -1) for tag in tags])
            control[part] = torch.tensor([number[tag] for tag in control_labels(words, counts, seed)])
        lengths = [len(sentence.words) for sentence in parts["test"]]
        sentence_W = np.repeat(np.arange(len(lengths)), lengths)
        return cls(model, hidden, seed, advance, read, labels, labels_of, control, sentence_W)

    def right(self, engine: Engine, layers: Sequence[int], *, control: bool) -> dict[int, dict[str, Tensor]]:
        """For each layer which test words each of its probes gets right; see `_answers`."""
        right_of = {}
        for group in layer_groups(layers, self.read.values(), self.model.width):
            states = {part: word_states(self.model, self.read[part], group, engine=engine) for part in PARTS}
            for number, layer in enumerate(group):
                right_of[layer] = self._answers(
                    {part: states[part][number] for part in PARTS}, control=control
                )
        return right_of

    def _answers(self, x: Mapping[str, Tensor], *, control: bool) -> dict[str, Tensor]:
        """Which test words the probes of a layer get right, by ``linear``, ``mlp`` and their controls.

        The states of the layer, (W, D) of each part, are overwritten.
        """
        mean_D, deviation_D = moments(x["train"])
        for states in x.values():
            states.sub_(mean_D).div_(deviation_D)
        right_of = {}
        for suffix, classes in (("", self.own), *((("_control", self.control),) if control else ())):
            arguments: dict[str, Any] = {"class_count": len(self.labels)}
            data = (x["train"], classes["train"], x["dev"], classes["dev"])
            mlp = fit_mlp(*data, **arguments, hidden=self.hidden, seed=self.seed)
            right_of["mlp" + suffix] = mlp.right(x["test"], classes["test"])
            self.advance(1)
            linear = fit_linear(x["train"].clone(), *data[1:], **arguments)  # which overwrites its rows
            right_of["linear" + suffix] = linear.logits(x["test"]).argmax(-1) == classes["test"]
            self.advance(1)
        return right_of

    def layer(
        self, layer: int, trained: Mapping[str, Tensor], untrained: Mapping[str, Tensor] | None
    ) -> LayerProbes:
        """Accuracies and differences with their intervals."""
        every = dict(trained) | {f"random_{name}": right for name, right in (untrained or {}).items()}
        columns = {name: right.double().numpy() for name, right in every.items()}
        pairs = {
            "gap": ("mlp", "linear"),
            "linear_selectivity": ("linear", "linear_control"),
            "mlp_selectivity": ("mlp", "mlp_control"),
            "random_gap": ("random_mlp", "random_linear"),
        }
        for name, (first, other) in pairs.items():
            if first in columns and other in columns:
                columns[name] = columns[first] - columns[other]
        sentences = int(self.sentence_W[-1]) + 1
        asked_S = np.bincount(self.sentence_W, minlength=sentences)
        right_SA = np.stack(
            [np.bincount(self.sentence_W, column, sentences) for column in columns.values()], axis=1
        )
        each = zip(columns, *accuracies(right_SA, asked_S), strict=True)
        by_name = {name: Accuracy(float(v), Interval(float(low), float(high))) for name, v, low, high in each}
        names = [name for name in LayerProbes.__dataclass_fields__ if name != "layer"]
        return LayerProbes(layer, **{name: by_name.get(name) for name in names})  # type: ignore[arg-type]
