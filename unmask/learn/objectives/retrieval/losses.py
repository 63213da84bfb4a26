"""Losses on scores of queries and documents, each a sum over queries.

Axes: Q queries; P documents of all queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from unmask.learn.objectives.retrieval.spec import Direction, Similarity


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
        log_sums = torch.stack([one.logsumexp(1) for one in (scores_QP, *others)]).mean(0)
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
    found: list[Tensor] = []
    positive_QE = document_PE[groups.positive_Q]
    for one in directions:
        if one == "query_to_query":
            scores = scale * similarities(query_QE, query_QE, similarity)
            found.append(scores.masked_fill(torch.eye(len(scores), device=scores.device).bool(), -torch.inf))
        elif one == "doc_to_query":
            found.append(scale * similarities(positive_QE, query_QE, similarity))
        elif one == "doc_to_doc":
            scores = scale * similarities(positive_QE, document_PE, similarity)
            of_Q = torch.arange(len(positive_QE), device=scores.device)
            found.append(scores.masked_fill(of_Q[:, None] == groups.query_of_P[None], -torch.inf))
    return found


def positives_first(scores_QP: Tensor, groups: Groups) -> Tensor:
    """The number of queries that rank their positive document above all others; a tie is a miss."""
    positive_Q1 = scores_QP.gather(1, groups.positive_Q[:, None])
    return ((scores_QP >= positive_Q1).sum(1) == 1).sum()
