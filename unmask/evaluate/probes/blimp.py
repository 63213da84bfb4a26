"""BLiMP: does the encoder assign the grammatical sentence of a minimal pair a higher likelihood?"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.base.arguments import check_limit
from unmask.base.intervals import wilson_interval
from unmask.base.progress import Progress
from unmask.errors import InvalidRequest, InvalidText
from unmask.evaluate.probes.scoring import Score, Sentence, check_masked, pseudo_log_likelihoods
from unmask.models.load import Model
from unmask.text import read_lines
from unmask.text.lines import files_in, plain_name, readable

PARADIGMS, PAIRS_OF_EACH = 67, 1000
"""Size of the published set (Warstadt et al. 2020)."""
JOINED = "blimp.jsonl"
KEYS: Mapping[str, tuple[str, ...]] = {
    "paradigm": ("UID", "uid"),
    "field": ("field",),
    "term": ("linguistics_term", "term"),
    "good": ("sentence_good", "good"),
    "bad": ("sentence_bad", "bad"),
}
"""The fields of a pair, each with its possible keys: the official one, and the short one of a joined file."""


@dataclass(frozen=True)
class MinimalPair:
    """Two sentences that differ minimally; one of them is grammatical."""

    paradigm: str
    """The paradigm, such as ``adjunct_island``."""
    field: str
    """The field of linguistics, such as ``syntax``."""
    term: str
    """The phenomenon, such as ``island_effects``."""
    good: str
    bad: str


@dataclass(frozen=True)
class Share:
    """The share of correctly judged pairs in a group."""

    name: str
    pairs: int
    right: int
    ties: int
    """Pairs whose sentences are equally likely; they count as wrong."""
    accuracy: float
    """For a paradigm, its share of correct pairs; for a larger group, the mean over its paradigms."""
    low: float
    high: float
    """The 95 % interval of the accuracy; see `unmask.base.intervals.wilson_interval`."""


@dataclass(frozen=True)
class BlimpResult:
    """The result of `measure_blimp`."""

    probe: str = field(default="blimp", init=False)
    model: str
    revision: str | None
    dtype: str
    score: Score
    accuracy: float
    """The mean over paradigms."""
    overall: Share
    fields: tuple[Share, ...]
    terms: tuple[Share, ...]
    paradigms: tuple[Share, ...]
    complete: bool
    """Whether these are the 67 paradigms of 1000 pairs for which figures are published."""
    seconds: float
    sentences_per_second: float


def read_blimp(folder: Path, limit: int | None = None) -> list[MinimalPair]:
    """Read the pairs in a folder: one ``blimp.jsonl``, or one file per paradigm as released by the authors.

    Args:
        folder: a folder of plain or xz-compressed files, or one such file.
        limit: use only the first N pairs of every paradigm.

    Raises:
        InvalidRequest: there is no such folder or file, or ``limit`` is below 1.
        InvalidText: a file cannot be read, or a line is not a pair.
    """
    check_limit(limit)
    files = files_in(folder, [".jsonl"])
    files = [path for path in files if plain_name(path) == JOINED] or files
    pairs_of: dict[str, list[MinimalPair]] = defaultdict(list)
    for path in files:
        for pair in _pairs(path):
            if limit is None or len(pairs_of[pair.paradigm]) < limit:
                pairs_of[pair.paradigm].append(pair)
    if not pairs_of:
        raise InvalidRequest(f"{folder} holds no pair of sentences; name another folder")
    return [pair for pairs in pairs_of.values() for pair in pairs]


def _pairs(path: Path) -> Iterator[MinimalPair]:
    with readable(path) as stream:
        for line in read_lines(stream, str(path), blank="skip"):
            try:
                record = json.loads(line.text)
            except (ValueError, RecursionError) as error:
                raise InvalidText(f"{line} is not JSON: {error}") from None
            values = {name: _value(record, keys, str(line)) for name, keys in KEYS.items()}
            # The release spells one of its four fields in two ways.
            yield MinimalPair(**values | {"field": values["field"].replace("/", "_")})


def _value(record: Any, keys: Sequence[str], where: str) -> str:
    values = [record[key] for key in keys if key in record] if isinstance(record, dict) else []
    if not values or not isinstance(values[0], str):
        raise InvalidText(f"{where} has no string under {' or '.join(keys)}, so it is not a BLiMP pair")
    return values[0]


def shares(
    pairs: Sequence[MinimalPair],
    good: Sequence[float],
    bad: Sequence[float],
    group: Callable[[MinimalPair], str],
) -> tuple[Share, ...]:
    """Accuracy of each group of pairs, in order of first occurrence.

    Args:
        pairs: the judged pairs.
        good: the score of the good sentence of each pair.
        bad: the score of its bad sentence. A pair is correct if the good sentence has a strictly higher
            score.
        group: returns the name of a pair's group.
    """
    counts: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0, 0]))
    for pair, of_good, of_bad in zip(pairs, good, bad, strict=True):
        count = counts[group(pair)][pair.paradigm]
        count[0] += 1
        count[1] += of_good > of_bad
        count[2] += of_good == of_bad
    return tuple(_share(name, list(paradigms.values())) for name, paradigms in counts.items())


def _share(name: str, paradigms: Sequence[Sequence[int]]) -> Share:
    number, right, ties = (sum(column) for column in zip(*paradigms, strict=True))
    accuracy = sum(counts[1] / counts[0] for counts in paradigms) / len(paradigms)
    # For a group of paradigms, all pairs are treated as draws with one probability; if paradigms have equally
    # many pairs, the interval is never too narrow.
    between = wilson_interval(accuracy, number)
    return Share(name, number, right, ties, accuracy, between.low, between.high)


def measure_blimp(
    model: Model,
    pairs: Sequence[MinimalPair],
    *,
    score: Score = "original",
    progress: Progress | None = None,
) -> BlimpResult:
    """Compare the pseudo-log-likelihoods of the sentences of each pair (Warstadt et al. 2020).

    Scores are sums over the tokens of a sentence, not means: two sentences of a pair may differ in their
    number of tokens, and published figures use the sum too.

    Args:
        model: a model with an MLM head.
        pairs: at least one; see `read_blimp`.
        score: which tokens are masked together; see `unmask.evaluate.probes.scoring.Score`.
        progress: called with (tokens scored, tokens to score).

    Raises:
        InvalidRequest: there are no pairs, no MLM head, or no mask token.
        TextError: a sentence is empty or longer than the model reads.
    """
    if not pairs:
        raise InvalidRequest("no pair of sentences was given; give at least one")
    check_masked(model)
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    start = time.perf_counter()
    encodings = model.tokenize(texts, name=lambda index: f"a sentence of {pairs[index // 2].paradigm}")
    sentences = [Sentence(encoding.ids, ~encoding.special) for encoding in encodings]
    scores = [
        answer.total for answer in pseudo_log_likelihoods(model, sentences, score=score, progress=progress)
    ]
    seconds = time.perf_counter() - start
    good, bad = scores[::2], scores[1::2]
    (overall,) = shares(pairs, good, bad, lambda _: "all")
    paradigms = shares(pairs, good, bad, lambda pair: pair.paradigm)
    return BlimpResult(
        model=model.name,
        revision=model.revision,
        dtype=model.dtype,
        score=score,
        accuracy=overall.accuracy,
        overall=overall,
        fields=shares(pairs, good, bad, lambda pair: pair.field),
        terms=shares(pairs, good, bad, lambda pair: pair.term),
        paradigms=paradigms,
        complete=len(paradigms) == PARADIGMS and all(share.pairs == PAIRS_OF_EACH for share in paradigms),
        seconds=seconds,
        sentences_per_second=len(texts) / seconds,
    )
