"""How rare a finding is: the figure that it states, counted over the texts of a corpus.

A finding about a head is compared with the same head: "in head 2.9 the two “bank” give each other 57 %" is
rare if the head does as much in few other texts. The best of all heads would be compared with the best of all
heads instead, which grows with the length of a text, and a head that always does the same would not stand
out from a text where it does so for the first time. That a word drifts apart is compared with other texts.

Axes: S texts of N tokens each; Q kinds of findings about heads; B bins; C pairs of tokens; X figures that
are counted apart; W words.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import InvalidRequest
from unmask.interpret.overview.finding import Finding, Kind, Names
from unmask.interpret.overview.states import drift
from unmask.text import Encoding

COMPARED: tuple[Kind, ...] = ("previous", "next", "same", "edge", "punctuation", "focused")
"""Kinds of findings that are compared with the same head in other texts."""

BINS = 101
"""Figures are counted in steps of 0.01, as sentences state them; the last bin holds 1."""

TYPICAL: dict[Kind, float] = {
    "same": 0.93,
    "edge": 0.9,
    "sense": 0.72,
    "punctuation": 0.6,
    "focused": 0.5,
    "next": 0.48,
    "effect": 0.4,
    "prediction": 0.4,
    "labels": 0.2,
    "sink": 0.1,
    "states": 0.09,
    "layers": 0.08,
    "cka": 0.07,
    "split": 0.06,
    "previous": 0.0,
}
"""What a finding is ranked by where it was compared with no text.

Of kinds that can be compared, it is about the median of their surprise over the sentences of the package, in
the default model and in unmask-mini: ``same`` 0.88 and 0.98, ``edge`` 0.94 and 0.87, ``sense`` 0.71 and 0.73,
``next`` 0.47 and 0.50. ``punctuation`` (0.93 and 1.00, where a head is named by it) stands behind what is
about words, and ``previous`` is 0 in the default model. The others are what can be said of any text: what is
measured by ablation first, then what all heads do, then layers and tokens. The sink is among them: how much
it receives follows the length of a text (correlation -0.92), so that it would be rare in any short text.
"""


@dataclass(frozen=True, eq=False)
class FigureCounts:
    """How many texts show each figure in a model: `CorpusStatistics.figures`."""

    texts: int
    """All that were read, also those without such a figure."""
    heads_LHQB: NDArray[np.int64]
    """By head and kind of `COMPARED`."""
    drift_B: NDArray[np.int64]
    """By how far a repeated word drifts apart."""


def figure(finding: Finding) -> float | None:
    """What is compared, from 0 to 1, more being rarer; None for kinds that are not compared."""
    if finding.kind == "sense":
        return (finding.baseline or 0.0) - finding.value
    if finding.kind == "focused":
        return 1 - finding.value
    return finding.value if finding.kind in COMPARED else None


def ranked(findings: Sequence[Finding], corpus: FigureCounts | None = None) -> tuple[Finding, ...]:
    """Findings with their surprise, the rarest first.

    One that is not compared, because its kind is not or no text was read, stands where `TYPICAL` puts it.

    Args:
        findings: of one text.
        corpus: what was counted in the same model; None, or of no text: nothing is compared.

    Raises:
        InvalidRequest: the corpus was read by a model of other layers or heads.
    """
    if corpus is not None and corpus.texts:
        findings = [_compared(finding, corpus) for finding in findings]

    def rarity(finding: Finding) -> float:
        return TYPICAL[finding.kind] if finding.surprise is None else finding.surprise

    return tuple(sorted(findings, key=rarity, reverse=True))


def _compared(finding: Finding, corpus: FigureCounts) -> Finding:
    value = figure(finding)
    if value is None:
        return finding
    counts_B = corpus.drift_B
    if finding.layer is not None and finding.head is not None:
        layers, heads = corpus.heads_LHQB.shape[:2]
        if finding.layer >= layers or finding.head >= heads:
            raise InvalidRequest(
                f"the corpus was read by a model of {layers} layers of {heads} heads, and this text by one "
                f"with a head {finding.layer}.{finding.head}; read the corpus with the same model"
            )
        counts_B = corpus.heads_LHQB[finding.layer, finding.head, COMPARED.index(finding.kind)]
    as_much = int(counts_B[bins(np.array(value)) :].sum())
    return replace(finding, surprise=1 - as_much / corpus.texts, compared=corpus.texts)


def bins(figures: NDArray[np.float64]) -> NDArray[np.int64]:
    """The bin of each figure."""
    # A little is added, so that 0.57 computed as 0.569999 is not counted as less.
    return np.clip(np.floor((figures + 1e-6) * (BINS - 1)), 0, BINS - 1).astype(np.int64)


def counted(figures_SX: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many texts have a figure in each bin, (X, B); NaN is in none."""
    count = figures_SX.shape[1]
    cells_SX = np.arange(count) * BINS + bins(np.nan_to_num(figures_SX))
    return np.bincount(cells_SX[~np.isnan(figures_SX)], minlength=count * BINS).reshape(count, BINS)


@dataclass(frozen=True, eq=False)
class BatchWords:
    """The words of texts of one length, as findings ask for them; made by `of`."""

    names: tuple[Names, ...]
    edge_SC: Tensor
    """Pairs of two different words that are not neighbors, see `strongest_edge` of `overview.heads`."""
    same_SC1: Tensor
    """Pairs of two occurrences of a word, divided by the tokens of all such words; all 0 without one."""
    repeated_S: NDArray[np.bool_]
    """Whether a word occurs more than once."""

    @classmethod
    def of(cls, encodings: Sequence[Encoding]) -> "BatchWords":
        """Those of some texts."""
        names = tuple(map(Names, encodings))
        edges, same, repeated = [], [], []
        for one in names:
            of_N, group_N = one.words.of_token, one.repeated_N
            wordlike_N, surface_N = one.wordlike[of_N], one.surface_W[of_N]
            apart_NN = (np.abs(of_N - of_N[:, None]) > 1) & (surface_N != surface_N[:, None])
            edges.append(apart_NN & wordlike_N[:, None] & wordlike_N)
            same_NN = (group_N == group_N[:, None]) & (group_N >= 0) & (of_N != of_N[:, None])
            repeated.append(bool((group_N >= 0).any()))
            same.append(same_NN / max(1, (group_N >= 0).sum()))
        edge_SC = torch.from_numpy(np.stack(edges)).flatten(1)
        return cls(names, edge_SC, torch.from_numpy(np.stack(same)).flatten(1)[..., None], np.array(repeated))

    def figures(
        self, p_SHNN: Tensor, punctuation_SH: NDArray[np.float64], entropy_share_SH: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The figures of every head in every text, (S, H, Q).

        Args:
            p_SHNN: attention, rows sum to 1.
            punctuation_SH: mean attention to punctuation.
            entropy_share_SH: mean entropy as a share of the largest possible one.
        """
        length, flat_SHC = p_SHNN.shape[-1], p_SHNN.flatten(2)
        offset_SHN = p_SHNN.argmax(-1) - torch.arange(length)
        neighbors = [(offset_SHN == step).sum(-1).numpy() / max(1, length - 1) for step in (-1, 1)]
        same_SH = (flat_SHC @ self.same_SC1.to(flat_SHC))[..., 0].double().numpy()
        edge_SH = flat_SHC.masked_fill(~self.edge_SC[:, None], 0).amax(-1).double().numpy()
        by_kind = {
            "previous": neighbors[0],
            "next": neighbors[1],
            "same": same_SH,
            "edge": edge_SH,
            "punctuation": punctuation_SH,
            "focused": 1 - entropy_share_SH,
        }
        return np.stack([by_kind[kind] for kind in COMPARED], axis=-1)

    def drifts(self, states: Sequence[Tensor]) -> NDArray[np.float64]:
        """How far a repeated word drifts apart in each text, (S,); NaN without one.

        ``states`` are those of all texts end to end, of every level.
        """
        length, drifts_S = len(self.names[0].encoding), np.full(len(self.names), np.nan)
        for number in np.flatnonzero(self.repeated_S).tolist():
            rows = slice(number * length, (number + 1) * length)
            apart = drift([x_TD[rows] for x_TD in states], self.names[number])
            assert apart is not None
            drifts_S[number] = apart.cosines[0] - min(apart.cosines)
        return drifts_S
