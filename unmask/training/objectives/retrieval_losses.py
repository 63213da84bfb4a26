"""Losses on scores of queries and documents, each a sum over queries.

Axes: Q queries; P documents of all queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor
from torch.nn import functional

from unmask.training.objectives.consistency import log_sums
from unmask.training.objectives.specs import Direction, RankingSpec, Similarity


@dataclass(frozen=True, eq=False)
class Groups:
    """Which documents belong to which query."""

    query_of_P: Tensor
    """The query of each document, rising."""
    positive_Q: Tensor
    """The place of each query's positive document, which is its first one."""


def exact(x: Tensor) -> Tensor:
    """In float32 at least: scores in half precision tie."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def similarities(a_QE: Tensor, b_PE: Tensor, similarity: Similarity) -> Tensor:
    """The similarity of each pair, (Q, P)."""
    a_QE, b_PE = exact(a_QE), exact(b_PE)
    if similarity == "cosine":
        a_QE, b_PE = functional.normalize(a_QE, dim=-1), functional.normalize(b_PE, dim=-1)
    return a_QE @ b_PE.T


def own_similarities(query_QE: Tensor, document_PE: Tensor, groups: Groups, similarity: Similarity) -> Tensor:
    """The similarity of each document to its own query, (P,)."""
    if similarity == "cosine":
        query_QE, document_PE = (
            functional.normalize(exact(vectors), dim=-1) for vectors in (query_QE, document_PE)
        )
    return (exact(query_QE)[groups.query_of_P] * exact(document_PE)).sum(-1)


def contrastive_loss(
    scores_QP: Tensor, groups: Groups, others: Sequence[Tensor] = (), *, joint: bool = True
) -> Tensor:
    """Cross-entropy of each query's positive document over all documents of the batch (InfoNCE).

    Args:
        scores_QP: scaled similarities.
        groups: which documents are positive.
        others: more similarities that compete, one row for each query; see `other_directions`.
        joint: one softmax over all of them; False takes the mean of the log-sums of each.
    """
    positive_Q1 = scores_QP.gather(1, groups.positive_Q[:, None])
    if joint:
        log_sums = torch.cat([scores_QP, *others], dim=1).logsumexp(1)
    else:
        log_sums = torch.stack([scores.logsumexp(1) for scores in (scores_QP, *others)]).mean(0)
    return (log_sums - positive_Q1[:, 0]).sum()


def other_directions(
    query_QE: Tensor,
    document_PE: Tensor,
    groups: Groups,
    *,
    directions: Sequence[Direction],
    similarity: Similarity,
    scale: float,
) -> list[Tensor]:
    """Scaled similarities of the directions besides ``query_to_doc``, a row for each query."""
    scores_of_others: list[Tensor] = []
    positive_QE = document_PE[groups.positive_Q]
    for direction in directions:
        match direction:
            case "query_to_doc":
                pass  # the scores that these are beside
            case "query_to_query":
                scores = scale * similarities(query_QE, query_QE, similarity)
                diagonal = torch.eye(len(scores), device=scores.device).bool()
                scores_of_others.append(scores.masked_fill(diagonal, -torch.inf))
            case "doc_to_query":
                scores_of_others.append(scale * similarities(positive_QE, query_QE, similarity))
            case "doc_to_doc":
                scores = scale * similarities(positive_QE, document_PE, similarity)
                of_Q = torch.arange(len(positive_QE), device=scores.device)
                scores_of_others.append(
                    scores.masked_fill(of_Q[:, None] == groups.query_of_P[None], -torch.inf)
                )
            case _:
                assert_never(direction)
    return scores_of_others


def positives_first(scores_QP: Tensor, groups: Groups) -> Tensor:
    """The number of queries that rank their positive document above all others; a tie is a miss."""
    positive_Q1 = scores_QP.gather(1, groups.positive_Q[:, None])
    return ((scores_QP >= positive_Q1).sum(1) == 1).sum()


def taught_loss(own_P: Tensor, teacher_P: Tensor, groups: Groups, ranking: RankingSpec) -> Tensor:
    """How far scores of each query's own documents are from those of a teacher.

    ``margin_mse``: the squared error of the margins between the positive document and each other one, a mean
    over these (Hofstätter et al. 2020). ``kl``: the divergence of the student's softmax over the documents
    from the teacher's, times the squared temperature of the student.

    Args:
        own_P: the score of each document.
        teacher_P: the teacher's.
        groups: which document belongs to which query.
        ranking: the loss and its temperatures.
    """
    teacher_P = teacher_P.to(own_P)
    count, query_of_P = len(groups.positive_Q), groups.query_of_P
    if ranking.loss == "margin_mse":
        errors_P = own_P[groups.positive_Q][query_of_P] - own_P
        errors_P = errors_P - (teacher_P[groups.positive_Q][query_of_P] - teacher_P)
        others_Q = (query_of_P.bincount(minlength=count) - 1).clamp(min=1)
        return (errors_P.square() / others_Q[query_of_P]).sum()
    if ranking.min_max_scores:
        own_P = _min_max(own_P, query_of_P, count)
    log_student_P, log_teacher_P = (
        log_softmax_of_each(scores_P / temperature, query_of_P, count)
        for scores_P, temperature in (
            (own_P, ranking.temperature),
            (teacher_P, ranking.teacher_temperature or ranking.temperature),
        )
    )
    return (log_teacher_P.exp() * (log_teacher_P - log_student_P)).sum() * ranking.temperature**2


def log_softmax_of_each(scores_P: Tensor, query_of_P: Tensor, count: int) -> Tensor:
    """The logarithm of a softmax over the documents of each query."""
    log_sums_Q1, _ = log_sums(scores_P[:, None], query_of_P, count)
    return scores_P - log_sums_Q1[query_of_P, 0]


def _min_max(scores_P: Tensor, query_of_P: Tensor, count: int) -> Tensor:
    """Scores from 0 to 1 among the documents of each query."""
    low_Q, high_Q = (
        scores_P.new_zeros(count).scatter_reduce(0, query_of_P, scores_P, how, include_self=False)
        for how in ("amin", "amax")
    )
    return (scores_P - low_Q[query_of_P]) / (high_Q - low_Q).clamp(min=1e-9)[query_of_P]


def own_positives_first(own_P: Tensor, groups: Groups) -> Tensor:
    """The number of queries that score their positive document above their other ones; a tie is a miss."""
    reached_P = own_P >= own_P[groups.positive_Q][groups.query_of_P]
    return (groups.query_of_P[reached_P].bincount(minlength=len(groups.positive_Q)) == 1).sum()
