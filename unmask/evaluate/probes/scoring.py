"""Log probabilities of masked words, and their sum, the pseudo-log-likelihood."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.base.progress import Progress
from unmask.errors import InvalidRequest, not_finite
from unmask.models.load import Model
from unmask.spec.encoder import require_both_directions
from unmask.tasks.batches import TOKENS_PER_PASS, batches
from unmask.text import PackedBatch
from unmask.training.vocabulary import Vocabulary

PASSES_AT_ONCE = 64
"""Number of batches of masked copies that are held at a time."""

Score = Literal["original", "within_word"]
"""``original``: one token masked at a time (Salazar et al. 2020). ``within_word``: later tokens of its word
are masked too, so that a rare word is not guessed from its own end (Kauf & Ivanova 2023)."""


@dataclass(frozen=True, eq=False)
class Sentence:
    """A sequence of ids that the model reads, and which of them are scored."""

    ids_N: NDArray[np.int64]
    """Includes special tokens."""
    scored_N: NDArray[np.bool_]
    """Without the special tokens around the text; unknown tokens are scored like any other."""


@dataclass(frozen=True, eq=False)
class Question:
    """A masked sequence, and the original ids at the masks."""

    ids_N: NDArray[np.int64]
    places_M: NDArray[np.int64]
    targets_M: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Answer:
    """The model's predictions for the requested words, one entry each."""

    log_p_M: NDArray[np.float64]
    """Natural logarithm of the probability over the whole vocabulary."""
    first_M: NDArray[np.bool_]
    """Whether no other token is more likely."""

    @property
    def total(self) -> float:
        """The sum of log p in nats; for a sentence, its pseudo-log-likelihood."""
        return float(self.log_p_M.sum())


def check_masked(model: Model) -> int:
    """The id of the mask token.

    Raises:
        InvalidRequest: the checkpoint has no MLM head, its attention is causal, or its tokenizer has no mask
            token.
    """
    require_both_directions(model.spec, model.name)
    if "masked" not in model.encoder.heads:
        has = ", ".join(model.encoder.heads) or "none"
        raise InvalidRequest(
            f"{model.name} cannot predict masked words: its checkpoint has no masked-LM head "
            f"(heads: {has}); use a checkpoint with one"
        )
    if model.tokenizer.mask_id is None:
        raise InvalidRequest(f"the tokenizer of {model.name} has no mask token, so no word can be predicted")
    return model.tokenizer.mask_id


def answers(
    model: Model, questions: Sequence[Question], tokens_per_pass: int = TOKENS_PER_PASS
) -> list[Answer]:
    """The log probability of every requested token, in the order of the questions.

    Sequences are sorted by length and packed. Logits are computed only at the requested positions, and their
    softmax in float32 (float64 for a float64 model).

    Raises:
        NonFiniteResult: a log probability is not finite.
    """
    by_index: list[Answer | None] = [None] * len(questions)

    def packed(chosen: NDArray[np.int64]) -> PackedBatch:
        return PackedBatch.of_ids([questions[index].ids_N for index in chosen])

    for chosen, batch in batches([len(question.ids_N) for question in questions], packed, tokens_per_pass):
        some = [questions[index] for index in chosen]
        log_p_M, first_M = _run(model, batch, some)
        ends = np.cumsum([len(question.targets_M) for question in some])[:-1]
        for index, log_p, first in zip(chosen, np.split(log_p_M, ends), np.split(first_M, ends), strict=True):
            by_index[index] = Answer(log_p, first)
    return [answer for answer in by_index if answer is not None]


def _run(
    model: Model, batch: PackedBatch, some: Sequence[Question]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    rows_M = np.concatenate(
        [question.places_M + start for question, start in zip(some, batch.layout.offsets[:-1], strict=True)]
    )
    targets_M = np.concatenate([question.targets_M for question in some])
    logits_MV = torch.from_numpy(model.engine.logits(batch, "masked", rows_M))
    asked_M = logits_MV.gather(1, torch.from_numpy(targets_M)[:, None])[:, 0]
    log_p_M = (asked_M - logits_MV.logsumexp(-1)).double().numpy()
    first_M = (asked_M >= logits_MV.amax(-1)).numpy()
    if not np.isfinite(log_p_M).all():
        raise not_finite("the log probability of a word", model.dtype)
    return log_p_M, first_M


def pseudo_log_likelihoods(
    model: Model,
    sentences: Sequence[Sentence],
    *,
    score: Score = "original",
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
) -> list[Answer]:
    """The log probability of each scored token of each sentence, predicted from all other tokens.

    The sum over a sentence (`Answer.total`) is its pseudo-log-likelihood (Salazar et al. 2020, equation 1).
    It is a sum, not a mean, of exact conditional probabilities, and takes one masked copy of the sentence per
    token. Sentences with equal ids run once, so their sums are bitwise equal.

    Args:
        model: a model with an MLM head.
        sentences: the sentences to score.
        score: see `Score`. The vocabulary determines which tokens continue a word, as in
            `unmask.training.vocabulary`: in byte-level vocabularies a contraction is one word there, whereas
            Kauf & Ivanova follow the tokenizer's own splitting.
        tokens_per_pass: the most tokens in a batch.
        progress: called with (tokens scored, tokens to score).

    Raises:
        InvalidRequest: there is no MLM head, or no mask token.
        NonFiniteResult: a log probability is not finite.
    """
    mask_id = check_masked(model)
    continues_V = Vocabulary.of(model.tokenizer).continues_V if score == "within_word" else None
    first_of: dict[bytes, int] = {}
    same_as = [first_of.setdefault(_key(sentence), index) for index, sentence in enumerate(sentences)]
    # Longest first, as in `token_budget_batches`; equal lengths keep their order, so pairs stay neighbors.
    order = sorted(first_of.values(), key=lambda index: -len(sentences[index].ids_N))
    by_index: dict[int, Answer] = {}
    done, total = 0, sum(int(sentences[index].scored_N.sum()) for index in order)
    for part in _parts(order, sentences, tokens_per_pass * PASSES_AT_ONCE):
        copies = [list(_copies(sentences[index], mask_id, continues_V)) for index in part]
        copy_answers = iter(answers(model, [copy for some in copies for copy in some], tokens_per_pass))
        for index, some in zip(part, copies, strict=True):
            by_index[index] = _joined([next(copy_answers) for _ in some])
            done += len(some)
        if progress is not None:
            progress(done, total)
    return [by_index[index] for index in same_as]


def _key(sentence: Sentence) -> bytes:
    return sentence.ids_N.tobytes() + sentence.scored_N.tobytes()


def _parts(order: Sequence[int], sentences: Sequence[Sentence], budget: int) -> Iterator[list[int]]:
    """Groups of sentences whose copies have about ``budget`` tokens in total."""
    part: list[int] = []
    tokens = 0
    for index in order:
        part.append(index)
        tokens += len(sentences[index].ids_N) * int(sentences[index].scored_N.sum())
        if tokens >= budget:
            yield part
            part, tokens = [], 0
    if part:
        yield part


def _copies(sentence: Sentence, mask_id: int, continues_V: NDArray[np.bool_] | None) -> Iterator[Question]:
    """For every scored token, a copy of the sentence with the token masked, and its id as the target."""
    ids_N = sentence.ids_N
    for place in np.flatnonzero(sentence.scored_N):
        copy_N = ids_N.copy()
        end = place + 1
        if continues_V is not None:
            while end < len(ids_N) and sentence.scored_N[end] and continues_V[ids_N[end]]:
                end += 1
        copy_N[place:end] = mask_id
        yield Question(copy_N, np.array([place]), ids_N[place : place + 1])


def _joined(parts: Sequence[Answer]) -> Answer:
    if not parts:
        return Answer(np.zeros(0), np.zeros(0, dtype=np.bool_))
    return Answer(
        np.concatenate([part.log_p_M for part in parts]), np.concatenate([part.first_M for part in parts])
    )
