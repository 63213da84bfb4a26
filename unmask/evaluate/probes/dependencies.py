"""Heads and gold dependency trees: whose most attended word is a word's head (Clark et al. 2019).

Axes: W words; M links; A predictors.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_limit
from unmask.base.progress import Watch
from unmask.errors import InvalidRequest, InvalidText, TextTooLong
from unmask.evaluate.probes.head_accuracy import Answers, Comparison, accuracies, compare_all
from unmask.interpret.corpus.measure import MOST_TOKENS
from unmask.interpret.corpus.word_links import LinkedText, right_answers
from unmask.models.load import Model
from unmask.text import Encoding
from unmask.text.layouts import ConlluSentence, conllu_sentences

OFFSETS = tuple(offset for offset in range(-10, 11) if offset)
"""The baselines: the word at one of these places from the dependent is its head."""

ALL = "all"
"""Every word with a head but punctuation."""
AGREEMENT = "agreement"
"""A subject and the finite verb that agrees with it, see `agreements`."""
ATTRACTED = "agreement, attractor"
"""Those with a noun of the other number between them."""

DIRECTIONS = ("to head", "from head")
"""The word that a dependent attends to most is its head; or the word that attends most to a dependent is."""


@dataclass(frozen=True, eq=False)
class Tree:
    """A sentence and its links."""

    words: tuple[str, ...]
    links: tuple[tuple[str, int, int], ...]
    """Kind, dependent and head, words counted from 0. A pair of words may have links of several kinds."""


@dataclass(frozen=True)
class RelationScore:
    """The heads on one kind of link."""

    relation: str
    links: int
    sentences: int
    """Sentences with such a link."""
    comparison: Comparison | None
    """The best head beside the best offset; None with too few links. `Choice.number` is read by `head` and
    `offset`."""
    head: tuple[int, int, str] | None
    """Layer, head and direction of the best head, chosen on half of the sentences."""
    offset: int | None
    """The best offset from the dependent to its head, chosen on the same half."""
    accuracy: dict[str, tuple[tuple[float, ...], ...]]
    """On all sentences, for each direction: by layer and head."""
    low: dict[str, tuple[tuple[float, ...], ...]]
    """The lower ends of their 95 % bootstrap intervals over sentences, each interval for itself."""
    high: dict[str, tuple[tuple[float, ...], ...]]
    offsets: dict[int, float]
    """The accuracy of each offset on all sentences."""


@dataclass(frozen=True)
class DependencyResult:
    """The result of `measure_dependencies`."""

    probe: str = field(default="dependencies", init=False)
    model: str
    revision: str | None
    dtype: str
    data: str
    layers: int
    heads: int
    sentences: int
    """Those that were read."""
    too_long: int
    """Sentences that were left out because they exceed what the model reads, or 512 tokens."""
    without_token: int
    """Links that were left out because one of their words has no token."""
    relations: tuple[RelationScore, ...]
    """``all`` first, then by number of links; of words that have one head each."""
    seconds: float


def read_trees(path: Path, limit: int | None = None) -> list[Tree]:
    """The trees of a CoNLL-U file, which may be compressed.

    Relations are universal ones, without what follows a colon. `ALL` has every word but punctuation and the
    root; `AGREEMENT` and `ATTRACTED` are in addition.

    Raises:
        InvalidRequest: there is no sentence, or ``limit`` is below 1.
        InvalidText: the file cannot be read, or a row has no head or relation.
    """
    check_limit(limit)
    trees = []
    for sentence in conllu_sentences(path):
        trees.append(_tree(sentence))
        if len(trees) == limit:
            break
    if not trees:
        raise InvalidRequest(f"{path} holds no sentence; name another file (--data)")
    return trees


def _tree(sentence: ConlluSentence) -> Tree:
    links = []
    heads = [_head(sentence, text) for text in sentence.column("head")]
    for word, (head, relation) in enumerate(zip(heads, sentence.column("deprel"), strict=True)):
        universal = relation.partition(":")[0]
        if universal in ("", "_"):
            raise InvalidText(f"the sentence at {sentence.where} has a word without a relation")
        if head >= 0:
            links.append((universal, word, head))
            if universal != "punct":
                links.append((ALL, word, head))
    links += agreements(sentence, heads)
    return Tree(sentence.column("form"), tuple(links))


def _head(sentence: ConlluSentence, text: str) -> int:
    if not text.isdecimal() or int(text) > len(sentence.rows):
        raise InvalidText(
            f"the sentence at {sentence.where} has the head {text!r}; heads are numbers from 0 to "
            f"{len(sentence.rows)}, its words"
        )
    return int(text) - 1


def agreements(sentence: ConlluSentence, heads: Sequence[int]) -> list[tuple[str, int, int]]:
    """Subjects and the finite verbs that agree with them: (`AGREEMENT` or `ATTRACTED`, subject, verb).

    The verb is the subject's head if it is finite, else the first auxiliary or copula of the head that is.
    Both must have the same ``Number``, and the verb must be in the present tense or a form of *be*, because
    other English verbs do not show it. `ATTRACTED` has those with a noun of another number between them.
    """
    features = [_features(text) for text in sentence.column("feats")]
    relations, tags = sentence.column("deprel"), sentence.column("upos")
    lemmas = sentence.column("lemma")
    links = []
    for subject, (head, relation) in enumerate(zip(heads, relations, strict=True)):
        if relation.partition(":")[0] != "nsubj" or head < 0:
            continue
        beside = [
            word
            for word, (of, name) in enumerate(zip(heads, relations, strict=True))
            if of == head and name.partition(":")[0] in ("aux", "cop")
        ]
        verbs = [word for word in (head, *beside) if features[word].get("VerbForm") == "Fin"]
        number = features[subject].get("Number")
        if not verbs or number is None or features[verbs[0]].get("Number") != number:
            continue
        verb = verbs[0]
        if features[verb].get("Tense") != "Pres" and lemmas[verb] != "be":
            continue
        between = range(min(subject, verb) + 1, max(subject, verb))
        attracted = any(
            tags[word] in ("NOUN", "PROPN") and features[word].get("Number") not in (None, number)
            for word in between
        )
        links.append((AGREEMENT, subject, verb))
        if attracted:
            links.append((ATTRACTED, subject, verb))
    return links


def _features(text: str) -> dict[str, str]:
    pairs = (feature.partition("=") for feature in text.split("|"))
    return {name: value for name, _, value in pairs if value}


def measure_dependencies(
    model: Model,
    trees: Sequence[Tree],
    *,
    data: str = "the given trees",
    cache: Path | None = None,
    watch: Watch | None = None,
) -> DependencyResult:
    """For every head and relation, how often the most attended word is the right one.

    As Clark et al. 2019 do: attention to a word is summed over its tokens, attention from a word averaged
    over them; attention to the word itself and to special tokens is ignored; both `DIRECTIONS` are measured;
    the baseline is the word at a fixed offset. Unlike there, the head and the offset are chosen on one half
    of the sentences and measured on the other, see `unmask.evaluate.probes.head_accuracy`.

    Args:
        model: any encoder with attention.
        trees: see `read_trees`.
        data: what they are called in the result.
        cache: a file from which a run that was stopped is resumed.
        watch: called after each layer of a batch with the sentences done and in all.

    Raises:
        InvalidRequest: there is no link that can be scored.
        UnknownArchitecture: the model has no attention.
        TextError: a sentence has a word that is no text.
        Cancelled: ``watch`` stopped the work.
    """
    start = time.perf_counter()
    questions = [_Asked.of(model, tree, number) for number, tree in enumerate(trees, 1)]
    scored = [question for question in questions if question is not None]
    texts = [question.text for question in scored]
    identity = model.content_digest() if cache is not None else ""
    right_LHM = right_answers(model.encoder, texts, cache=cache, identity=identity, watch=watch)
    layers, heads, _ = right_LHM.shape
    pairs = [(kind, text) for text, question in enumerate(scored) for kind in question.kinds]
    kind_M = np.array([kind for kind, _ in pairs], dtype=object)
    text_M = np.array([text for _, text in pairs], dtype=np.int64)
    # The questions of a text are all its links forward, then all of them backward.
    ahead = np.concatenate([np.repeat([True, False], len(question.kinds)) for question in scored])
    right_AM = np.concatenate([right_LHM[..., ahead], right_LHM[..., ~ahead]]).reshape(-1, len(pairs))
    offset_M = np.concatenate([question.offset_M for question in scored])
    by_offset_AM = np.array(OFFSETS)[:, None] == offset_M
    order = sorted(
        Counter(kind_M.tolist()).items(), key=lambda counted: (counted[0] != ALL, -counted[1], counted[0])
    )
    answers = [
        Answers.of(text_M[of], len(scored), right_AM[:, of], by_offset_AM[:, of])
        for of in (kind_M == kind for kind, _ in order)
    ]
    scores = [
        _score(kind, answer, compared, layers, heads)
        for (kind, _), answer, compared in zip(order, answers, compare_all(answers), strict=True)
    ]
    return DependencyResult(
        model=model.name,
        revision=model.revision,
        dtype=model.dtype,
        data=data,
        layers=layers,
        heads=heads,
        sentences=len(scored),
        too_long=len(questions) - len(scored),
        without_token=sum(question.missing for question in scored),
        relations=tuple(scores),
        seconds=time.perf_counter() - start,
    )


@dataclass(frozen=True, eq=False)
class _Asked:
    """A tree as questions: each link forward, then each link backward."""

    text: LinkedText
    kinds: tuple[str, ...]
    offset_M: NDArray[np.int64]
    """From the dependent to its head, of each link."""
    missing: int

    @classmethod
    def of(cls, model: Model, tree: Tree, number: int) -> "_Asked | None":
        """None if the sentence is too long."""
        longest = MOST_TOKENS if model.max_tokens is None else min(MOST_TOKENS, model.max_tokens)
        try:
            encoding = model.tokenizer.encode_words(tree.words, max_tokens=longest, name=f"sentence {number}")
        except TextTooLong:
            return None
        has_W = _has_token(encoding, len(tree.words))
        links = [link for link in tree.links if has_W[link[1]] and has_W[link[2]]]
        word_M, head_M = (np.array([link[place] for link in links], dtype=np.int64) for place in (1, 2))
        words_W = np.arange(len(tree.words))
        candidates_MW = has_W & (words_W != word_M[:, None])
        text = LinkedText(
            encoding,
            source_M=np.tile(word_M, 2),
            backward_M=np.repeat([False, True], len(links)),
            candidates_MW=np.tile(candidates_MW, (2, 1)),
            accepted_MW=np.tile(words_W == head_M[:, None], (2, 1)),
        )
        kinds = tuple(kind for kind, _, _ in links)
        return cls(text, kinds, head_M - word_M, len(tree.links) - len(links))


def _has_token(encoding: Encoding, words: int) -> NDArray[np.bool_]:
    assert encoding.words is not None
    return np.isin(np.arange(words), encoding.words)


def _score(
    kind: str, answers: Answers, compared: Comparison | None, layers: int, heads: int
) -> RelationScore:
    values = [
        values_A.reshape(2, layers, heads) for values_A in accuracies(answers.heads_SA, answers.asked_S)
    ]
    value, low, high = (
        {name: _rows(values_dLH[at]) for at, name in enumerate(DIRECTIONS)} for values_dLH in values
    )
    links = int(answers.asked_S.sum())
    of_offset = answers.baselines_SA.sum(0) / links
    best = None
    if compared is not None:
        at, layer, head = np.unravel_index(compared.head.number, (2, layers, heads))
        best = int(layer), int(head), DIRECTIONS[at]
    return RelationScore(
        relation=kind,
        links=links,
        sentences=int((answers.asked_S > 0).sum()),
        comparison=compared,
        head=best,
        offset=None if compared is None else OFFSETS[compared.baseline.number],
        accuracy=value,
        low=low,
        high=high,
        offsets=dict(zip(OFFSETS, of_offset.tolist(), strict=True)),
    )


def _rows(values_LH: NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in values_LH.tolist())
