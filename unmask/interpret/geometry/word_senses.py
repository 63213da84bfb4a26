"""Word senses: does an encoder separate the senses of one word, and from which layer on?

Two vectors prove nothing, because any two differ. The input is therefore a set of sentences labeled with the
sense of the word, and every number is compared with its distribution under random permutations of the senses.

Axes: P permutations.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.base.progress import Watch, unwatched
from unmask.encoder.elmo import Elmo, WordTokenizer
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest, InvalidText
from unmask.interpret.geometry.layers import unit
from unmask.interpret.geometry.projection import Basis, Method, Projection, project
from unmask.interpret.geometry.reading import random_baseline, read_texts
from unmask.interpret.geometry.values import Estimate, FloatArray, generator, student, with_interval
from unmask.text import Encoding, Tokenizer, read_lines
from unmask.text.borders import occurrences

FEWEST = 4
"""Minimum number of sentences per sense."""

Deal = Literal["within", "across"]


@dataclass(frozen=True)
class Sentence:
    """One occurrence of the word."""

    text: str
    sense: str
    start: int
    """Offset of the word in the text, in characters."""
    end: int


@dataclass(frozen=True)
class SenseSet:
    """Sentences of a word in several senses. Created and checked by `word_sense_set`."""

    word: str
    sentences: tuple[Sentence, ...]
    control: str = "none"
    """How the sentences were shuffled, see `dealt`."""

    @property
    def senses(self) -> tuple[str, ...]:
        """Names of the senses, in alphabetical order."""
        return tuple(sorted({sentence.sense for sentence in self.sentences}))

    def dealt(self, how: Deal, seed: int = 0) -> "SenseSet":
        """The sentences with all other words shuffled; the word itself keeps its position, counted in words.

        ``within`` shuffles words within each sentence, which removes word order and keeps the context words.
        ``across`` shuffles words among all sentences, which removes everything that distinguishes senses: any
        remaining separation is not meaning.
        """
        rng = generator(seed)
        parts = [
            (
                sentence.text[: sentence.start].split(),
                sentence.text[sentence.start : sentence.end],
                sentence.text[sentence.end :].split(),
            )
            for sentence in self.sentences
        ]
        company = [before + after for before, _, after in parts]
        if how == "within":
            mixed = [[words[i] for i in rng.permutation(len(words))] for words in company]
        else:
            pool = [word for words in company for word in words]
            deal = iter([pool[i] for i in rng.permutation(len(pool))])
            mixed = [[next(deal) for _ in words] for words in company]
        sentences = []
        for sentence, (before, word, _), words in zip(self.sentences, parts, mixed, strict=True):
            prefix = " ".join(words[: len(before)])
            start = len(prefix) + bool(prefix)
            text = " ".join([*words[: len(before)], word, *words[len(before) :]])
            sentences.append(replace(sentence, text=text, start=start, end=start + len(word)))
        return SenseSet(self.word, tuple(sentences), how)


def word_sense_set(word: str, pairs: Iterable[tuple[str, str]], source: str = "the sentences") -> SenseSet:
    """A set from pairs of (sense, sentence); the word is located at its first whole-word match, ignoring
    case.

    Raises:
        InvalidRequest: the word is blank, a sentence does not contain it, or there are fewer than two senses
            or fewer than four sentences of a sense.
    """
    if not word.strip():
        raise InvalidRequest("the word is blank; name the word whose senses are compared")
    sentences = []
    for number, (sense, text) in enumerate(pairs, 1):
        span = next(occurrences(text, word), None)
        if span is None:
            raise InvalidRequest(
                f"sentence {number} of {source} does not contain the word {word!r}: {text[:60]!r}"
            )
        sentences.append(Sentence(text, sense, *span))
    sense_set = SenseSet(word, tuple(sentences))
    if len(sense_set.senses) < 2:
        raise InvalidRequest(
            f"the number of senses of {word!r} in {source} is {len(sense_set.senses)}; give at least two"
        )
    for sense in sense_set.senses:
        count = sum(sentence.sense == sense for sentence in sentences)
        if count < FEWEST:
            raise InvalidRequest(
                f"sense {sense!r} of {word!r} has {count} sentences; at least {FEWEST} are needed"
            )
    return sense_set


@cache
def _shipped() -> dict[str, list[tuple[str, str]]]:
    content = files("unmask.interpret.geometry").joinpath("senses.tsv").read_text(encoding="utf-8")
    by_word: dict[str, list[tuple[str, str]]] = {}
    for line in content.splitlines():
        if not line.startswith("#"):
            word, sense, sentence = line.split("\t")
            by_word.setdefault(word, []).append((sense, sentence))
    return by_word


def shipped_words() -> tuple[str, ...]:
    """The words for which the package has sentences."""
    return tuple(_shipped())


def shipped_senses(word: str) -> SenseSet:
    """The sentences that the package has for a word.

    Raises:
        InvalidRequest: it has none.
    """
    if word not in _shipped():
        raise InvalidRequest(
            f"the package has no sentences of {word!r}, only of {', '.join(shipped_words())}; "
            "give a file of your own"
        )
    return word_sense_set(word, _shipped()[word], f"the sentences of {word!r}")


def read_sense_file(path: Path, word: str) -> SenseSet:
    """Read a file of senses and sentences: tab-separated, or JSON lines ``{"sense": ..., "sentence": ...}``.

    Blank lines and lines that begin with # are skipped.

    Raises:
        InvalidRequest: a line has neither format, or the sentences are not a valid set (see
            `word_sense_set`).
        InvalidText: it cannot be read, or is not UTF-8.
    """
    pairs = []
    try:
        with path.open("rb") as stream:
            for line in read_lines(stream, str(path), blank="skip"):
                if not line.text.startswith("#"):
                    pairs.append(_parsed(line.text, f"line {line.number} of {path}"))
    except OSError as error:
        raise InvalidText(f"cannot read {path}: {error.strerror or error}") from None
    return word_sense_set(word, pairs, str(path))


def _parsed(text: str, where: str) -> tuple[str, str]:
    if text.lstrip().startswith("{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{where} is not JSON: {error}") from None
        sense, sentence = value.get("sense"), value.get("sentence")
        if not (isinstance(sense, str) and isinstance(sentence, str)):
            raise InvalidRequest(f'{where} has no text under "sense" and "sentence"')
        return sense, sentence
    sense, tab, sentence = text.partition("\t")
    if not tab:
        raise InvalidRequest(f"{where} has no tab; write the sense, a tab, and the sentence")
    return sense.strip(), sentence


PERMUTATIONS = 999
MOST_PERMUTATIONS = 99_999
SAME = 1e-9
"""Occurrences count as equal if the cosines of all pairs are within this of 1."""


@dataclass(frozen=True)
class Null:
    """Distribution of a measure under random permutations of the senses."""

    mean: float
    high: float
    """The 95th percentile."""
    p: float
    """Share of permutations, including the true assignment, whose value is at least the true one."""


@dataclass(frozen=True)
class SenseLayer:
    """Separation of the senses of one word at one depth."""

    layer: int
    within: float
    """Mean cosine of two occurrences in the same sense."""
    across: float
    """Mean cosine of two occurrences in different senses."""
    margin: Estimate
    """``within`` minus ``across``."""
    margin_null: Null
    accuracy: Estimate
    """Share of occurrences whose nearest sense mean is their own sense, leaving out the occurrence itself."""
    accuracy_null: Null | None
    silhouette: float | None
    """Mean silhouette of cosine distances (Rousseeuw 1987), from -1 to 1. This and ``accuracy`` have no value
    if all occurrences are the same vector, as before the first layer of an encoder with rotary positions."""


@dataclass(frozen=True)
class SenseReport:
    """The senses of a word at every depth."""

    word: str
    senses: tuple[str, ...]
    counts: tuple[int, ...]
    """Number of sentences of each sense."""
    control: str
    """How the sentences were shuffled: ``none``, ``within`` or ``across``, see `SenseSet.dealt`."""
    permutations: int
    seed: int
    layers: tuple[SenseLayer, ...]
    random: tuple[SenseLayer, ...] | None
    """The layers of an encoder with random weights; None if not requested."""


def word_senses(
    encoder: Encoder | Elmo,
    tokenizer: Tokenizer | WordTokenizer,
    given: SenseSet,
    *,
    max_tokens: int | None = None,
    random: bool = True,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
    watch: Watch = unwatched,
) -> SenseReport:
    """The senses of a word across sentences, layer by layer.

    The vector of a word is the mean of the vectors of its tokens, matched by characters.

    Args:
        encoder: the encoder, or an ELMo.
        tokenizer: its tokenizer.
        given: sentences and senses, see `shipped_senses` and `read_sense_file`.
        max_tokens: maximum length of the model; longer sentences raise an error.
        random: whether to measure an encoder with random weights as well.
        permutations: number of random permutations of the senses.
        seed: random seed of the permutations and the random weights.
        watch: called with the progress of reading.

    Raises:
        TextError: a sentence cannot be read.
        InvalidRequest: the word has no token in a sentence.
    """
    encodings = encode_sentences(tokenizer, given, max_tokens)
    labels = [sentence.sense for sentence in given.sentences]

    def measured(which: Encoder | Elmo) -> tuple[SenseLayer, ...]:
        vectors = occurrence_states(which, encodings, given, watch=watch)
        return sense_layers(vectors, labels, permutations=permutations, seed=seed)

    return SenseReport(
        word=given.word,
        senses=given.senses,
        counts=tuple(labels.count(sense) for sense in given.senses),
        control=given.control,
        permutations=permutations,
        seed=seed,
        layers=measured(encoder),
        random=measured(random_baseline(encoder, seed)) if random else None,
    )


def encode_sentences(
    tokenizer: Tokenizer | WordTokenizer, sense_set: SenseSet, max_tokens: int | None
) -> list[Encoding]:
    """The sentences of a set as tokens; `TextError` for one that cannot be read."""
    return tokenizer.encode_batch(
        [sentence.text for sentence in sense_set.sentences],
        max_tokens=max_tokens,
        name=lambda index: f"sentence {index + 1} of {sense_set.word!r}",
    )


def occurrence_states(
    encoder: Encoder | Elmo, encodings: Sequence[Encoding], sense_set: SenseSet, *, watch: Watch = unwatched
) -> list[FloatArray]:
    """The mean vector of the word's tokens in each of M sentences, at every depth: L + 1 arrays (M, D).

    Raises:
        InvalidRequest: the word has no token in a sentence.
    """
    texts = read_texts(encoder, encodings, watch=watch)
    rows = [
        texts.tokens_of((i, sentence.start, sentence.end)) for i, sentence in enumerate(sense_set.sentences)
    ]
    for sentence, some in zip(sense_set.sentences, rows, strict=True):
        if not len(some):
            raise InvalidRequest(
                f"the tokenizer gives no token for {sense_set.word!r} in {sentence.text[:60]!r}"
            )
    return texts.mean_states(rows)


def sense_layers(
    vectors: Sequence[FloatArray], labels: Sequence[str], *, permutations: int = PERMUTATIONS, seed: int = 0
) -> tuple[SenseLayer, ...]:
    """The measures of occurrences (M, D) at every depth, given the sense of each.

    The interval of the margin leaves out one occurrence at a time (jackknife); that of the accuracy is
    Wilson's. Null distributions permute the senses among occurrences.

    Raises:
        InvalidRequest: there are fewer than two senses or fewer than four occurrences of a sense, or the
            number of permutations is out of range.
    """
    names = sorted(set(labels))
    if len(names) < 2:
        raise InvalidRequest(f"the number of senses is {len(names)}; give at least two")
    for name in names:
        if (count := list(labels).count(name)) < FEWEST:
            raise InvalidRequest(f"sense {name!r} has {count} sentences; at least {FEWEST} are needed")
    if not 1 <= permutations <= MOST_PERMUTATIONS:
        raise InvalidRequest(f"permutations is {permutations}; it must be from 1 to {MOST_PERMUTATIONS}")
    truth_M = np.array([names.index(label) for label in labels])
    rng = generator(seed)
    deals = [rng.permutation(truth_M) for _ in range(permutations)]
    return tuple(_layer(layer, x_MD, truth_M, deals) for layer, x_MD in enumerate(vectors))


def _layer(
    layer: int, x_MD: FloatArray, truth_M: NDArray[np.int64], deals: Sequence[NDArray[np.int64]]
) -> SenseLayer:
    unit_MD = _directions(np.asarray(x_MD, dtype=np.float64), layer)
    cosine_MM = unit_MD @ unit_MD.T
    within, across = _means(cosine_MM, truth_M)
    every = np.arange(len(truth_M))
    less = [np.subtract(*_means(cosine_MM, truth_M, every[every != i])) for i in every]
    accuracy, null, silhouette = _grouping(cosine_MM, truth_M, deals)
    return SenseLayer(
        layer=layer,
        within=within,
        across=across,
        margin=with_interval(within - across, less, len(less), student(len(less) - 1)),
        margin_null=_null(within - across, [float(np.subtract(*_means(cosine_MM, deal))) for deal in deals]),
        accuracy=accuracy,
        accuracy_null=null,
        silhouette=silhouette,
    )


def _grouping(
    cosine_MM: FloatArray, truth_M: NDArray[np.int64], deals: Sequence[NDArray[np.int64]]
) -> tuple[Estimate, Null | None, float | None]:
    """Accuracy, its null distribution and the silhouette; or the reason for no value, if all occurrences are
    equal."""
    m = len(truth_M)
    if cosine_MM.min() > 1 - SAME:
        reason = "all occurrences are the same vector: at this depth they do not depend on their sentences"
        return Estimate.refused(reason, m), None, None
    accuracy = _accuracy(cosine_MM, truth_M)
    null = _null(accuracy, [_accuracy(cosine_MM, deal) for deal in deals])
    return _wilson(accuracy, m), null, _silhouette(cosine_MM, truth_M)


def _means(
    cosine_MM: FloatArray, sense_M: NDArray[np.int64], some: NDArray[np.int64] | None = None
) -> tuple[float, float]:
    """Mean cosine of pairs of different occurrences with the same sense, and with different senses."""
    if some is not None:
        cosine_MM, sense_M = cosine_MM[np.ix_(some, some)], sense_M[some]
    same_MM = sense_M[:, None] == sense_M
    pairs, m = int(same_MM.sum()) - len(sense_M), len(sense_M)
    inside = float((cosine_MM * same_MM).sum()) - float(np.trace(cosine_MM))
    outside = float((cosine_MM * ~same_MM).sum())
    return inside / pairs, outside / (m * (m - 1) - pairs)


def _accuracy(cosine_MM: FloatArray, sense_M: NDArray[np.int64]) -> float:
    """Accuracy of the nearest mean of unit vectors by cosine, leaving the occurrence out of its own mean."""
    of_MC = np.eye(int(sense_M.max()) + 1)[sense_M]
    sum_MC = cosine_MM @ of_MC
    square_MC = np.broadcast_to((of_MC * sum_MC).sum(0), sum_MC.shape)
    left_MC = sum_MC - of_MC
    length_MC = np.sqrt(np.maximum(square_MC - of_MC * (2 * sum_MC - 1), 1e-12))
    return float(((left_MC / length_MC).argmax(1) == sense_M).mean())


def _silhouette(cosine_MM: FloatArray, sense_M: NDArray[np.int64]) -> float:
    of_MC = np.eye(int(sense_M.max()) + 1)[sense_M]
    distance_MM = np.maximum(1 - cosine_MM, 0)
    np.fill_diagonal(distance_MM, 0)
    mean_MC = distance_MM @ of_MC / np.maximum(of_MC.sum(0) - of_MC, 1)
    within_M = mean_MC[np.arange(len(sense_M)), sense_M]
    other_M = np.where(of_MC > 0, np.inf, mean_MC).min(1)
    most_M = np.maximum(within_M, other_M)
    return float(np.divide(other_M - within_M, most_M, out=np.zeros_like(most_M), where=most_M > 0).mean())


def _wilson(share: float, m: int) -> Estimate:
    """A share of ``m`` with Wilson's 95 % interval."""
    z2 = 1.959964**2
    middle, room = share + z2 / (2 * m), np.sqrt(z2 * (share * (1 - share) / m + z2 / (4 * m * m)))
    low, high = (middle - room) / (1 + z2 / m), (middle + room) / (1 + z2 / m)
    return Estimate(share, max(0.0, float(low)), min(1.0, float(high)), m)


def _null(value: float, dealt: Sequence[float]) -> Null:
    dealt_P = np.array(dealt)
    as_much = int((dealt_P >= value - 1e-12).sum())
    return Null(float(dealt_P.mean()), float(np.quantile(dealt_P, 0.95)), (1 + as_much) / (1 + len(dealt_P)))


@dataclass(frozen=True, eq=False)
class SenseCloud:
    """The occurrences of a word as points, in the order of the sentences of the set."""

    given: SenseSet
    projection: Projection


def sense_cloud(
    encoder: Encoder | Elmo,
    tokenizer: Tokenizer | WordTokenizer,
    given: SenseSet,
    *,
    method: Method = "pca",
    basis: Basis = "shared",
    max_tokens: int | None = None,
    seed: int = 0,
    watch: Watch = unwatched,
) -> SenseCloud:
    """The vectors of a word across sentences, projected together; the senses do not influence the directions.

    The vector of an occurrence is that of `word_senses`, divided by its norm: distances in the cloud then are
    those of the cosines that `word_senses` compares, and one unit means the same at every level. A basis
    fitted to the senses would separate so few points by any labels.

    Args:
        encoder: the encoder, or an ELMo.
        tokenizer: its tokenizer.
        given: sentences and senses, see `shipped_senses` and `read_sense_file`.
        method: see `project`.
        basis: see `project`.
        max_tokens: maximum length of the model; longer sentences raise an error.
        seed: random seed of UMAP.
        watch: called with the progress of reading and projecting.

    Raises:
        TextError: a sentence cannot be read.
        InvalidRequest: the word has no token in a sentence, or see `project`.
    """
    encodings = encode_sentences(tokenizer, given, max_tokens)
    vectors = occurrence_states(encoder, encodings, given, watch=watch)
    directions = [_directions(x_MD, layer) for layer, x_MD in enumerate(vectors)]
    return SenseCloud(given, project(directions, method=method, basis=basis, seed=seed, watch=watch))


def _directions(x_MD: FloatArray, layer: int) -> FloatArray:
    unit_MD = unit(x_MD)
    if len(unit_MD) != len(x_MD):
        raise InvalidRequest(f"in layer {layer} an occurrence has the zero vector, which has no direction")
    return unit_MD
