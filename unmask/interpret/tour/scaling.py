"""Why scores are divided by sqrt(K): what random vectors do, and what trained ones do."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.interpret.tour.recorded_text import RecordedText, entropy_share

WIDTHS = (4, 16, 64, 256, 1024)
QUERIES = 64
KEYS = 64


@dataclass(frozen=True)
class RandomProducts:
    """Products of independent standard normal vectors, measured on draws; one entry a width."""

    widths: tuple[int, ...]
    """K."""
    variance: tuple[float, ...]
    """Of q k, which for such vectors is K in expectation."""
    variance_divided: tuple[float, ...]
    """Of q k / sqrt(K)."""
    entropy_share: tuple[float, ...]
    """Of the softmax over `KEYS` products that are not divided: 1 even, 0 a single key."""
    entropy_share_divided: tuple[float, ...]
    """Of the softmax over divided ones."""
    slope: tuple[float, ...]
    """Mean over queries of the sum of p (1 - p), by which the softmax passes gradients on; not divided."""
    slope_divided: tuple[float, ...]


def random_products(widths: Sequence[int] = WIDTHS, *, seed: int = 0) -> RandomProducts:
    """Draw `QUERIES` queries and `KEYS` keys for each of them, and measure (Vaswani et al. 2017, 3.2.1).

    Raises:
        InvalidRequest: a width below 1.
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
    """The same of a trained encoder on a text, (L, H) each."""

    head_width: int
    """K of the first layer."""
    variance: NDArray[np.float64]
    """Of q k over all pairs that a layer allows."""
    variance_divided: NDArray[np.float64]
    """Of q k / sqrt(K)."""
    row_deviation: NDArray[np.float64]
    """Standard deviation of q k / sqrt(K) within a row, mean over queries: what the softmax feels, since
    what is added to a whole row changes nothing."""
    entropy_share: NDArray[np.float64]
    """Of the softmax as the encoder has it."""
    entropy_share_undivided: NDArray[np.float64]
    """Of the softmax over the same scores without the division."""


def trained_products(heard: RecordedText) -> TrainedProducts:
    """Variances and entropies of every head; a layer of fewer heads than another is filled with its mean.

    Raises:
        InvalidRequest: a layer has no softmax.
    """
    rows: list[list[NDArray[np.float64]]] = []
    for layer in range(heard.layer_count):
        mixer = heard.mixer(layer)
        products_HNN, seen_HNN = heard.products(layer), heard.allowed(layer)
        keys_HN = seen_HNN.sum(-1)
        scores_HNN = heard.scores(layer)
        factor = (mixer.head_width * _parts(heard, layer)) ** 0.5
        undivided = (scores_HNN * factor).masked_fill(~seen_HNN, -torch.inf).softmax(-1)
        divided = products_HNN / mixer.head_width**0.5
        variance_H = torch.stack([one[seen].var() for one, seen in zip(products_HNN, seen_HNN, strict=True)])
        count_HN1 = keys_HN[..., None]
        mean_HN1 = (divided * seen_HNN).sum(-1, keepdim=True) / count_HN1
        spread_HN = (((divided - mean_HN1) ** 2 * seen_HNN).sum(-1) / keys_HN).sqrt()
        rows.append(
            [
                variance_H.numpy(),
                (variance_H / mixer.head_width).numpy(),
                spread_HN.mean(-1).numpy(),
                entropy_share(heard.probabilities(layer), keys_HN).mean(-1).numpy(),
                entropy_share(undivided, keys_HN).mean(-1).numpy(),
            ]
        )
    most = max(len(row[0]) for row in rows)
    columns = (np.stack([_filled(row[n], most) for row in rows]) for n in range(5))
    return TrainedProducts(heard.mixer(0).head_width, *columns)


def _parts(heard: RecordedText, layer: int) -> int:
    distances = heard.bias(layer).distances
    return 1 if distances is None else distances.position.term_count


def _filled(values_H: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Every layer with as many entries; the mean stands where a layer has no such head."""
    missing = most - len(values_H)
    return np.concatenate([values_H, np.full(missing, values_H.mean())])
