"""Why scores are divided by sqrt(K): measurements on random and on trained vectors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.explorer.experiments.recorded_text import RecordedText, entropy_share

WIDTHS = (4, 16, 64, 256, 1024)
QUERIES = 64
KEYS = 64


@dataclass(frozen=True)
class RandomProducts:
    """Products of random standard normal vectors; one entry per width."""

    widths: tuple[int, ...]
    """K."""
    variance: tuple[float, ...]
    """Variance of q k, whose expectation is K for such vectors."""
    variance_divided: tuple[float, ...]
    """Variance of q k / sqrt(K)."""
    entropy_share: tuple[float, ...]
    """Entropy share of the softmax over `KEYS` undivided products: 1 if uniform, 0 for a single key."""
    entropy_share_divided: tuple[float, ...]
    """Entropy share of the softmax over divided products."""
    slope: tuple[float, ...]
    """Mean over queries of the sum of p (1 - p), which scales the gradient of the softmax; undivided
    products."""
    slope_divided: tuple[float, ...]


def random_products(widths: Sequence[int] = WIDTHS, *, seed: int = 0) -> RandomProducts:
    """Measure products of `QUERIES` random queries with `KEYS` random keys each (Vaswani et al. 2017, 3.2.1).

    Raises:
        InvalidRequest: a width is below 1.
    """
    if not widths or min(widths) < 1:
        raise InvalidRequest(f"widths are {list(widths)}; each must be at least 1")
    generator = torch.Generator().manual_seed(seed)
    rows: list[list[float]] = []
    for width in widths:
        q_RK = torch.randn(QUERIES, width, dtype=torch.float64, generator=generator)
        k_RCK = torch.randn(QUERIES, KEYS, width, dtype=torch.float64, generator=generator)
        products_RC = torch.einsum("rk,rck->rc", q_RK, k_RCK)
        row = []
        for s_RC in (products_RC, products_RC / width**0.5):
            p_RC = s_RC.softmax(-1)
            keys = torch.full((QUERIES,), KEYS)
            slope = (p_RC * (1 - p_RC)).sum(-1).mean()
            row += [float(s_RC.var()), float(entropy_share(p_RC, keys).mean()), float(slope)]
        rows.append(row)
    variance, share, slopes, variance_d, share_d, slopes_d = (
        tuple(column) for column in zip(*rows, strict=True)
    )
    return RandomProducts(tuple(widths), variance, variance_d, share, share_d, slopes, slopes_d)


@dataclass(frozen=True, eq=False)
class TrainedProducts:
    """The same measurements for a trained encoder on a text, (L, H) each."""

    head_width: int
    """K of the first layer."""
    variance: NDArray[np.float64]
    """Variance of q k over all pairs that a layer allows."""
    variance_divided: NDArray[np.float64]
    """Variance of q k / sqrt(K)."""
    row_deviation: NDArray[np.float64]
    """Standard deviation of q k / sqrt(K) within a row, mean over queries. The softmax depends only on
    differences within a row."""
    entropy_share: NDArray[np.float64]
    """Entropy share of the encoder's softmax."""
    entropy_share_undivided: NDArray[np.float64]
    """Entropy share of the softmax over the same scores without the division."""


def trained_products(recorded: RecordedText) -> TrainedProducts:
    """Variances and entropies of every head; layers with fewer heads are padded with their mean.

    Raises:
        InvalidRequest: a layer has no softmax.
    """
    rows: list[list[NDArray[np.float64]]] = []
    for layer in range(recorded.layer_count):
        mixer = recorded.mixer(layer)
        products_HNN, seen_HNN = recorded.products(layer), recorded.allowed(layer)
        keys_HN = seen_HNN.sum(-1)
        scores_HNN = recorded.scores(layer)
        factor = (mixer.head_width * _parts(recorded, layer)) ** 0.5
        undivided = (scores_HNN * factor).masked_fill(~seen_HNN, -torch.inf).softmax(-1)
        divided = products_HNN / mixer.head_width**0.5
        variance_H = torch.stack(
            [products[seen].var() for products, seen in zip(products_HNN, seen_HNN, strict=True)]
        )
        count_HN1 = keys_HN[..., None]
        mean_HN1 = (divided * seen_HNN).sum(-1, keepdim=True) / count_HN1
        spread_HN = (((divided - mean_HN1) ** 2 * seen_HNN).sum(-1) / keys_HN).sqrt()
        rows.append(
            [
                variance_H.numpy(),
                (variance_H / mixer.head_width).numpy(),
                spread_HN.mean(-1).numpy(),
                entropy_share(recorded.probabilities(layer), keys_HN).mean(-1).numpy(),
                entropy_share(undivided, keys_HN).mean(-1).numpy(),
            ]
        )
    most = max(len(row[0]) for row in rows)
    columns = (np.stack([_filled(row[n], most) for row in rows]) for n in range(5))
    return TrainedProducts(recorded.mixer(0).head_width, *columns)


def _parts(recorded: RecordedText, layer: int) -> int:
    distances = recorded.bias(layer).distances
    return 1 if distances is None else distances.position.term_count


def _filled(values_H: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Pad the values of a layer with their mean to a fixed number of heads."""
    missing = most - len(values_H)
    return np.concatenate([values_H, np.full(missing, values_H.mean())])
