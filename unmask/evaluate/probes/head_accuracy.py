"""Accuracies of heads on links between words: the best head for a kind of link, beside the best baseline.

The best of many heads is good by chance too. So the head and the baseline are chosen on one half of the texts
and measured on the other; whether they differ there is a sign-flip test over texts, with Holm's correction
for the number of kinds.

Axes: S texts; A predictors; M links.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unmask.base.intervals import CONFIDENCE, Interval, sample_counts

FLIPS = 9999
"""Sign flips of the test; no p is below 1 / (FLIPS + 1)."""

LEAST = 30
"""Links of a kind in each half of the texts; kinds with fewer are not tested."""

LEVEL = 0.05

FLIPS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Accuracy:
    """A share of right answers (or a difference of two), with its 95 % bootstrap interval over texts."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class Choice:
    """A predictor that was chosen on one half of the texts and measured on the other."""

    number: int
    """Which of the predictors."""
    chosen_at: float
    """Its accuracy on the half it was chosen on, which is too high."""
    measured: Accuracy


@dataclass(frozen=True)
class Comparison:
    """The best head and the best baseline for one kind of link."""

    links: int
    """In the half that is measured."""
    head: Choice
    baseline: Choice
    difference: Accuracy
    """Head minus baseline."""
    p: float
    """Two-sided sign-flip test over texts."""
    p_holm: float
    """Corrected for the number of kinds that are tested."""
    better: bool
    """Whether the head is better at the level of 5 % over all kinds together."""


@dataclass(frozen=True, eq=False)
class Answers:
    """Right answers of one kind of link, counted in each text."""

    asked_S: NDArray[np.int64]
    heads_SA: NDArray[np.int64]
    baselines_SA: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        text_M: NDArray[np.int64],
        texts: int,
        heads_AM: NDArray[np.bool_],
        baselines_AM: NDArray[np.bool_],
    ) -> "Answers":
        """Count single answers; ``text_M`` is the text of each link."""

        def by_text(right_AM: NDArray[np.bool_]) -> NDArray[np.int64]:
            each = [np.bincount(text_M[right_M], minlength=texts) for right_M in right_AM]
            return np.stack(each, axis=1)

        return cls(np.bincount(text_M, minlength=texts), by_text(heads_AM), by_text(baselines_AM))


def accuracies(
    right_SA: NDArray[np.int64] | NDArray[np.float64], asked_S: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Right answers by all answers, and the ends of the bootstrap intervals over texts, (A,) each.

    There must be at least one link. Samples without any are left out.
    """
    value_A = right_SA.sum(0) / asked_S.sum()
    drawn_bS = sample_counts(len(asked_S))
    asked_b = drawn_bS @ asked_S
    drawn_bA = (drawn_bS @ right_SA.astype(np.float64))[asked_b > 0] / asked_b[asked_b > 0, None]
    tail = (1 - CONFIDENCE) / 2
    low_A, high_A = np.quantile(drawn_bA, (tail, 1 - tail), axis=0)
    return value_A, low_A, high_A


def compare_all(kinds: Sequence[Answers]) -> list[Comparison | None]:
    """For each kind the best head beside the best baseline; None where a half has fewer than `LEAST` links.

    The first, third, fifth ... text choose; the others measure.
    """
    comparisons = [_compare(kind) for kind in kinds]
    tested = [comparison for comparison in comparisons if comparison is not None]
    corrected = iter(holm([comparison.p for comparison in tested]))
    made: list[Comparison | None] = []
    for comparison in comparisons:
        if comparison is None:
            made.append(None)
            continue
        p = next(corrected)
        made.append(replace(comparison, p_holm=p, better=comparison.difference.value > 0 and p < LEVEL))
    return made


def holm(p: Sequence[float]) -> list[float]:
    """P-values corrected for their number (Holm 1979), in the given order."""
    corrected, largest = [0.0] * len(p), 0.0
    for rank, number in enumerate(sorted(range(len(p)), key=lambda index: p[index])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[number]))
        corrected[number] = largest
    return corrected


def _compare(kind: Answers) -> Comparison | None:
    asked_S = kind.asked_S
    chooses = np.arange(len(asked_S)) % 2 == 0
    if min(asked_S[chooses].sum(), asked_S[~chooses].sum()) < LEAST:
        return None

    def choice(right_SA: NDArray[np.int64]) -> tuple[Choice, NDArray[np.int64]]:
        at_A = right_SA[chooses].sum(0) / asked_S[chooses].sum()
        best = int(at_A.argmax())
        right_S = right_SA[~chooses, best]
        return Choice(best, float(at_A[best]), _accuracy(right_S, asked_S[~chooses])), right_S

    head, head_S = choice(kind.heads_SA)
    baseline, baseline_S = choice(kind.baselines_SA)
    p = sign_flip(head_S - baseline_S)
    difference = _accuracy(head_S - baseline_S, asked_S[~chooses])
    return Comparison(int(asked_S[~chooses].sum()), head, baseline, difference, p, p, better=False)


def _accuracy(right_S: NDArray[np.int64], asked_S: NDArray[np.int64]) -> Accuracy:
    value, low, high = (float(values[0]) for values in accuracies(right_S[:, None], asked_S))
    return Accuracy(value, Interval(low, high))


def sign_flip(difference_S: NDArray[np.int64]) -> float:
    """P of a sum at least this large if the sign of each text's difference were a coin's; two-sided."""
    moved_S = difference_S[difference_S != 0]
    observed, as_large = abs(int(moved_S.sum())), 0
    draw, remaining = np.random.default_rng(0), FLIPS
    while remaining and len(moved_S):
        some = min(remaining, max(1, FLIPS_AT_ONCE // len(moved_S)))
        signs_bS = draw.integers(0, 2, (some, len(moved_S)), dtype=np.int8) * 2 - 1
        as_large += int((np.abs(signs_bS @ moved_S) >= observed).sum())
        remaining -= some
    return (1 + as_large) / (1 + FLIPS) if len(moved_S) else 1.0
