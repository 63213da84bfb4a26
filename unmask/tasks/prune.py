"""The sentences of a document that a query needs, by a head that reads both (Provence, Chirkova et al. 2025).

Axes: N tokens of a document; M of a sentence; T of a batch and S its texts; C logits of a head.
"""

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_choice, check_fraction
from unmask.base.progress import Progress
from unmask.engines.engine import Engine, Floats
from unmask.errors import InvalidRequest
from unmask.spec import ROLES, Pruning, role_of
from unmask.tasks.batches import TOKENS_PER_PASS, require_finite, text_batches
from unmask.tasks.classify import classifier_of, probabilities
from unmask.tasks.logits import Coverage, WindowedLogits, in_windows
from unmask.tasks.pair_scores import activated
from unmask.tasks.reader import Name, Reader, Ready, called, several
from unmask.tasks.values import LongTexts
from unmask.text import Encoding
from unmask.text.borders import sentence_starts
from unmask.text.tokenizer import check_texts, numbered

PARAGRAPH = re.compile(r"\n\s*\n")
"""What separates paragraphs, whose ends are those of sentences, too."""

PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class PrunedSentence:
    """A sentence of a document, and whether it stays."""

    text: str
    start: int
    """The offset of its first character in the document."""
    end: int
    """The offset after its last character."""
    score: float
    """How much the query needs it, 0 to 1, as `unmask.spec.Pruning` says; 1 if it has no token."""
    stays: bool


@dataclass(frozen=True)
class PrunedText(Coverage):
    """What stays of one document. ``tokens_read`` counts the query with the document once."""

    text: str
    """Its sentences that stay, with the white space after each; "" if none stays."""
    score: float | None
    """The relevance of the document for the query, the highest of all windows; None without such a head."""
    sentences: tuple[PrunedSentence, ...]
    """All of its sentences, in their order."""


def numbered_query(index: int) -> str:
    """How messages name one of several queries."""
    return f"query {index + 1}"


@dataclass(frozen=True)
class Rule:
    """Which sentences stay."""

    of: Pruning
    """That of the checkpoint, with the threshold that was asked for."""
    keep_first: bool = False


def rule_of(reader: Reader, threshold: float | None = None, *, keep_first: bool = False) -> Rule:
    """The rule of a checkpoint, with another threshold if there is one.

    Raises:
        InvalidRequest: the checkpoint has no head that prunes, or the threshold is not from 0 to 1.
    """
    classifier_of(reader.spec, "prune", reader.name)
    rule = reader.checkpoint.pruning
    assert rule is not None
    if threshold is not None:
        check_fraction("threshold", threshold)
        rule = replace(rule, threshold=threshold)
    return Rule(rule, keep_first)


def prepare(
    reader: Reader,
    documents: str | Sequence[str],
    queries: str | Sequence[str],
    rule: Rule,
    *,
    truncation: LongTexts = "window",
    name: Name = numbered,
    query_name: Name | None = None,
) -> Ready[list[PrunedText]]:
    """What stays of each document; arguments as of `unmask.models.model.Model.prune`, and of `rule_of`.

    A checkpoint of Provence reads queries in lower case and without punctuation, as its authors' code does;
    one of OpenProvence reads them as they are. Sentences end where `unmask.text.borders.sentence_starts` and
    blank lines say; those authors take NLTK's Punkt, so that a border can differ. A relevance stays as it is
    where no sentence does, which OpenProvence sets to 0.
    """
    check_choice("truncation", truncation, get_args(LongTexts))
    texts = several("documents", documents)
    asked = [queries] * len(texts) if isinstance(queries, str) else several("queries", queries)
    if len(asked) != len(texts):
        raise InvalidRequest(
            f"there are {len(asked)} queries and {len(texts)} documents; give one query, or one for each"
        )
    name = called(documents, name, "the document")
    of_query = query_name or ((lambda _: "the query") if isinstance(queries, str) else numbered_query)
    check_texts(asked, of_query)
    if rule.of.rule == "share":
        asked = list(map(plain_query, asked))
    limits = (reader.max_tokens or reader.checkpoint.trained_tokens, rule.of.max_tokens)
    wholes = reader.whole(asked, texts, name=of_query, pair_name=name)
    read, parts = in_windows(
        wholes,
        max_tokens=min((limit for limit in limits if limit is not None), default=None),
        truncation=truncation,
        name=name,
    )
    owners = [index for index, windows in enumerate(parts) for _ in windows]
    scored = any(role_of(head) == "sequence" for head in reader.spec.heads)

    def pruned(values: Sequence[tuple[Floats, float]]) -> list[PrunedText]:
        rest = iter(values)
        results = []
        for document, text, windows in zip(texts, read, parts, strict=True):
            logits, scores = zip(*(next(rest) for _ in windows), strict=True)
            score = float(max(scores)) if scored else None
            windowed = WindowedLogits(text, windows, logits)
            results.append(_pruned(document, windowed, score, rule))
        return results

    return Ready(
        [window.encoding for windows in parts for window in windows],
        partial(needed, scored=scored),
        pruned,
        ("prune", scored),
        lambda place: name(owners[place]),
        read,
    )


def plain_query(query: str) -> str:
    """A query in lower case, without ASCII punctuation; as it is if nothing else is in it."""
    return " ".join(query.lower().translate(PUNCTUATION).split()) or query


def needed(
    engine: Engine,
    encodings: Sequence[Encoding],
    *,
    scored: bool,
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
    name: Callable[[int], str] = numbered,
) -> list[tuple[Floats, float]]:
    """For each query with a document the logits of its tokens, (N, 2), and that of its relevance.

    Both heads read one pass. The relevance is 0 unless ``scored``.

    Raises:
        NonFiniteResult: a logit is infinity or NaN.
    """
    results: list[tuple[Floats, float]] = [(np.empty((0, 2), np.float32), 0.0)] * len(encodings)
    marks = ROLES["prune"].global_tokens
    for chosen, batch in text_batches(engine.spec, encodings, marks, tokens_per_pass, progress):
        computed = engine.with_states(batch)
        logits_TC = computed.logits(batch, "prune")
        require_finite(
            logits_TC, chosen, batch.layout.sequence_of_T, "a logit", name=name, dtype=engine.dtype
        )
        rows = np.arange(len(chosen))
        scores_SC = computed.logits(batch, "sequence") if scored else np.zeros((len(chosen), 1))
        require_finite(scores_SC, chosen, rows, "the score", name=name, dtype=engine.dtype)
        for place, index in enumerate(chosen):
            results[index] = logits_TC[batch.layout.rows(place)], float(scores_SC[place, 0])
    return results


def _pruned(document: str, windowed: WindowedLogits, score: float | None, rule: Rule) -> PrunedText:
    limit = rule.of.threshold
    if score is not None and rule.of.rule == "mean":
        score = float(activated(np.array([score], np.float32), "sigmoid")[0])
    encoding = windowed.encoding
    ours = encoding.sequence_ids == 1
    p_N = probabilities(windowed.per_token()[ours], "single_label_classification")[:, 1]
    borders = np.array(_borders(document))
    of_N = np.searchsorted(borders, encoding.offsets[ours][:, 0], side="right") - 1
    sentences, slices = [], list(zip(borders.tolist(), [*borders[1:].tolist(), len(document)], strict=True))
    for number, (start, end) in enumerate(slices):
        value = _needed(p_N[of_N == number], rule.of)
        words = document[start:end]
        first = start + len(words) - len(words.lstrip())
        text = words.strip()
        sentences.append(PrunedSentence(text, first, first + len(text), value, value > limit))
    if rule.keep_first and any(sentence.stays for sentence in sentences):
        sentences[0] = replace(sentences[0], stays=True)
    both = zip(sentences, slices, strict=True)
    staying = (document[start:end] for sentence, (start, end) in both if sentence.stays)
    return PrunedText("".join(staying).strip(), score, tuple(sentences), **asdict(windowed.coverage))


def _needed(p_M: NDArray[Any], rule: Pruning) -> float:
    """How much a sentence is needed, from the probabilities of its tokens; 1 of one that was not read."""
    if not len(p_M):
        return 1.0
    return float((p_M > rule.threshold).mean() if rule.rule == "share" else p_M.mean())


def _borders(document: str) -> list[int]:
    """Where sentences begin, in order; the first at 0. White space alone is none."""
    first, last = len(document) - len(document.lstrip()), len(document.rstrip())
    begins = {*sentence_starts(document), *(match.end() for match in PARAGRAPH.finditer(document))}
    return [0, *sorted(begin for begin in begins if first < begin < last)]
