"""Statistics of every head over a corpus, the texts that show best what it does, and both as a file.

Axes: k examples, best first; S texts of one batch; G texts with special tokens in the same places;
B labels, or bins of figures; Q kinds of findings; P patterns; X classes of keys, or figures;
M tokens that are not set aside; A examples that are new, or heads of texts; c candidates for examples.
"""

import hashlib
import json
from dataclasses import dataclass, fields, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.files import unwritable, whole_file
from unmask.interpret.attention.layer_statistics import CLASSES, LABELS, BeyondSpecial
from unmask.interpret.corpus.batch import PATTERNS, BatchRelations
from unmask.interpret.overview.figures import BINS, COMPARED, BatchWords, FigureCounts, counted

EXAMPLES = 20
"""Examples kept of every head and pattern."""

CELLS_OF_EXAMPLES = 1 << 20
"""Probabilities that are copied at once to find the strongest pairs of new examples: 4 MB in float32."""

NONE = -1
"""In `HeadTotals.text_LHPk`, where there are fewer examples."""


@dataclass(eq=False)
class HeadTotals:
    """Sums over texts, and the best examples so far. Heads that a layer does not have are 0."""

    texts: int
    """How many are in it, from the first of the corpus on."""
    queries: int
    entropy_LH: NDArray[np.float64]
    """Sum over queries of the entropy of their attention, in nats."""
    entropy_share_LH: NDArray[np.float64]
    """Sum over queries of the entropy as a share of the largest possible one."""
    distance_LH: NDArray[np.float64]
    """Sum over queries of the mean distance to their keys, in tokens."""
    classes_LHX: NDArray[np.float64]
    """Sum over queries of the attention to keys of each class of `CLASSES`."""
    labels_LHB: NDArray[np.int64]
    """Texts in which the head has each label of `LABELS`."""
    figures_LHQB: NDArray[np.int64]
    """Texts in which the head has a figure of each of `COMPARED` in each bin, see `overview.figures`."""
    drift_B: NDArray[np.int64]
    """Texts in which a repeated word drifts apart by as much as each bin."""
    score_LHPk: NDArray[np.float64]
    """Scores of the examples, see `BatchRelations.scoring`; for ``edge``, the largest attention weight."""
    text_LHPk: NDArray[np.int64]
    """The number of the text in the corpus, or `NONE`."""
    query_LHPk: NDArray[np.int64]
    """The query and the key of the strongest pair in the relation, as tokens of the text."""
    key_LHPk: NDArray[np.int64]
    weight_LHPk: NDArray[np.float64]
    """Its attention weight."""

    @property
    def figures(self) -> FigureCounts:
        """What findings of other texts are compared with."""
        return FigureCounts(self.texts, self.figures_LHQB, self.drift_B)

    @classmethod
    def empty(cls, layers: int, heads: int, examples: int = EXAMPLES) -> "HeadTotals":
        """Of no text."""
        sums, best = (layers, heads), (layers, heads, len(PATTERNS), examples)
        return cls(
            texts=0,
            queries=0,
            entropy_LH=np.zeros(sums),
            entropy_share_LH=np.zeros(sums),
            distance_LH=np.zeros(sums),
            classes_LHX=np.zeros((*sums, len(CLASSES))),
            labels_LHB=np.zeros((*sums, len(LABELS)), dtype=np.int64),
            figures_LHQB=np.zeros((*sums, len(COMPARED), BINS), dtype=np.int64),
            drift_B=np.zeros(BINS, dtype=np.int64),
            score_LHPk=np.full(best, -1.0),
            text_LHPk=np.full(best, NONE, dtype=np.int64),
            query_LHPk=np.zeros(best, dtype=np.int64),
            key_LHPk=np.zeros(best, dtype=np.int64),
            weight_LHPk=np.zeros(best),
        )

    def copied(self) -> "HeadTotals":
        """A copy that later texts do not change."""
        arrays: dict[str, Any] = {
            name: array.copy() for name, array in vars(self).items() if isinstance(array, np.ndarray)
        }
        return replace(self, **arrays)

    def count(self, texts: int, length: int, drifts_S: NDArray[np.float64]) -> None:
        """Count texts of ``length`` tokens, all layers of which were added, and how far their words drift."""
        self.texts += texts
        self.queries += texts * length
        self.drift_B += counted(drifts_S[:, None])[0]

    def add(
        self,
        layer: int,
        p_SHNN: Tensor,
        keys_SHN: Tensor,
        relations: BatchRelations,
        texts_S: NDArray[np.int64],
        *,
        words: BatchWords,
        sinks: bool,
    ) -> None:
        """Add one layer of a batch.

        Args:
            layer: which.
            p_SHNN: attention, rows sum to 1, or to less with attention sinks.
            keys_SHN: the number of keys that each query may see.
            relations: of the texts.
            texts_S: which texts of the corpus these are.
            words: of the texts.
            sinks: whether the layer has attention sinks. Entropies and distances are then those of the
                attention divided by its sum.
        """
        heads, length = p_SHNN.shape[1], p_SHNN.shape[-1]
        kept_SHN = p_SHNN.sum(-1, dtype=torch.float64) if sinks else torch.ones(1, dtype=torch.float64)
        entropy_SHN = (torch.special.entr(p_SHNN).sum(-1).double() - torch.special.entr(kept_SHN)) / kept_SHN
        share_SHN = (entropy_SHN / keys_SHN.clamp(min=2).log()).clamp(max=1)
        at_N = torch.arange(length)
        away_NN = (at_N[:, None] - at_N).abs().flatten().to(p_SHNN)
        flat_SHC = p_SHNN.flatten(2)
        classes_SHX = (flat_SHC @ relations.classes.to(p_SHNN)).double().numpy()
        some = slice(0, heads)
        self.entropy_LH[layer, some] += entropy_SHN.sum((0, 2)).numpy()
        self.entropy_share_LH[layer, some] += share_SHN.sum((0, 2)).numpy()
        if sinks:
            away_SHN = torch.einsum("shrc,rc->shr", p_SHNN, away_NN.view(length, length)).double() / kept_SHN
            self.distance_LH[layer, some] += away_SHN.sum((0, 2)).numpy()
        else:
            self.distance_LH[layer, some] += (flat_SHC @ away_NN).double().sum(0).numpy()
        self.classes_LHX[layer, some] += classes_SHX[..., : len(CLASSES)].sum(0)
        marks = relations.aside_SN
        labels_SH = labels(p_SHNN, keys_SHN, entropy_SHN, classes_SHX / length, marks, kept_SHN=kept_SHN)
        for label in range(len(LABELS)):
            self.labels_LHB[layer, some, label] += (labels_SH == label).sum(0)
        punctuation_SH = classes_SHX[..., CLASSES.index("punctuation")] / length
        figures_SHQ = words.figures(p_SHNN, punctuation_SH, share_SHN.mean(-1).numpy())
        counts_XB = counted(figures_SHQ.reshape(len(figures_SHQ), -1))
        self.figures_LHQB[layer, some] += counts_XB.reshape(heads, len(COMPARED), BINS)
        self.rank(layer, some, p_SHNN, relations, texts_S)

    def rank(
        self,
        layer: int,
        heads: slice,
        p_SHNN: Tensor,
        relations: BatchRelations,
        texts_S: NDArray[np.int64],
    ) -> None:
        """Put the texts of a batch among the examples of some heads, whose attention ``p_SHNN`` is."""
        weights_SCP, scored_SP = relations.scoring
        flat_SHC = p_SHNN.flatten(2)
        score_SHP = (flat_SHC @ weights_SCP.to(flat_SHC)).double().numpy()
        edge = PATTERNS.index("edge")
        edges_SC = torch.from_numpy(relations.patterns_SNNP[..., edge]).flatten(1)
        score_SHP[..., edge] = flat_SHC.masked_fill(~edges_SC[:, None], 0).amax(-1).double().numpy()
        score_SHP = np.where(scored_SP[:, None], score_SHP, -1.0)
        best_HPk, new_HPS = self.score_LHPk[layer, heads], score_SHP.transpose(1, 2, 0)
        count = best_HPk.shape[-1]
        scores_HPc = np.concatenate([best_HPk, new_HPS], -1)
        texts_HPc = np.concatenate(
            [self.text_LHPk[layer, heads], np.broadcast_to(texts_S, new_HPS.shape)], -1
        )
        # Of equal scores, the text that comes first in the corpus: no matter in which order they came here.
        order_HPk = np.lexsort((texts_HPc, -scores_HPc), axis=-1)[..., :count]
        scores_HPk = np.take_along_axis(scores_HPc, order_HPk, -1)
        self.score_LHPk[layer, heads] = scores_HPk
        self.text_LHPk[layer, heads] = np.where(
            scores_HPk < 0, NONE, np.take_along_axis(texts_HPc, order_HPk, -1)
        )
        new = (order_HPk >= count) & (scores_HPk >= 0)
        head, pattern, _ = at = np.nonzero(new)
        text = order_HPk[at] - count
        patterns_SPC = torch.from_numpy(relations.patterns_SNNP).flatten(1, 2).mT
        weight_A, cell_A = np.zeros(len(text)), np.zeros(len(text), dtype=np.int64)
        # A whole map of each new example: of long texts, a few at a time.
        at_once = max(1, CELLS_OF_EXAMPLES // flat_SHC.shape[-1])
        for begin in range(0, len(text), at_once):
            some = slice(begin, begin + at_once)
            cells_AC = flat_SHC[text[some], head[some]]
            best = cells_AC.masked_fill_(~patterns_SPC[text[some], pattern[some]], -1).max(-1)
            weight_A[some], cell_A[some] = best.values.numpy(), best.indices.numpy()
        length = p_SHNN.shape[-1]
        strongest = (
            (self.query_LHPk, cell_A // length),
            (self.key_LHPk, cell_A % length),
            (self.weight_LHPk, weight_A),
        )
        old_HPk = np.minimum(order_HPk, count - 1)
        for array, values in strongest:
            moved_HPk = np.take_along_axis(array[layer, heads], old_HPk, -1)
            moved_HPk[at] = values
            array[layer, heads] = moved_HPk


def labels(
    p_SHNN: Tensor,
    keys_SHN: Tensor,
    entropy_SHN: Tensor,
    classes_SHX: NDArray[np.float64],
    aside_SN: NDArray[np.bool_],
    *,
    kept_SHN: Tensor,
) -> NDArray[np.int64]:
    """The number of the label of every head in every text, (S, H), by the rules of `label_heads`.

    Args:
        p_SHNN: attention.
        keys_SHN: the number of keys that each query may see.
        entropy_SHN: of each query's attention divided by its sum, in nats.
        classes_SHX: mean over all queries of the attention of `BatchRelations.classes`.
        aside_SN: tokens that heads are named without.
        kept_SHN: the sum of each query's attention, which attention sinks make less than 1; or a single 1.
    """
    kept_SHN = kept_SHN.expand(p_SHNN.shape[:3])
    count, heads, length = p_SHNN.shape[:3]
    labels_SH = np.zeros((count, heads), dtype=np.int64)
    # Texts with their special tokens in the same places are named together.
    masks_GN, group_S = np.unique(aside_SN, axis=0, return_inverse=True)
    for group, aside_N in enumerate(masks_GN):
        texts = _run(np.flatnonzero(group_S.ravel() == group))
        kept, aside = _run(np.flatnonzero(~aside_N)), np.flatnonzero(aside_N)
        p_GHMN = p_SHNN[texts][:, :, kept]
        aside_GHMc = p_GHMN[..., aside].double()
        sum_GHM = kept_SHN[texts][:, :, kept]
        given_GHM = (sum_GHM - aside_GHMc.sum(-1)).clamp_min(0)
        all_GHM = sum_GHM * entropy_SHN[texts][:, :, kept] + torch.special.entr(sum_GHM)
        left_GHM = all_GHM - torch.special.entr(aside_GHMc).sum(-1)
        entropy_GHM = torch.where(given_GHM > 0, left_GHM / given_GHM + given_GHM.log(), 0.0)
        keys_GHM = (keys_SHN[texts][:, :, kept] - (aside_GHMc > 0).sum(-1)).clamp_min(2)
        share_GHM = (entropy_GHM / keys_GHM.log()).clamp(0, 1)
        given_GH1 = given_GHM.sum(-1, keepdim=True)
        mean_GH1 = given_GH1.clamp_min(torch.finfo(torch.float64).tiny)
        classes_AX = classes_SHX[texts].reshape(-1, classes_SHX.shape[-1])
        first_A, special_A = (classes_AX[:, CLASSES.index(name)] for name in ("first", "special"))
        beyond = BeyondSpecial(
            top_AM=p_GHMN[..., kept].argmax(-1).flatten(0, 1).numpy(),
            given_AM=given_GHM.flatten(0, 1).numpy(),
            shares_AX=classes_AX[:, len(CLASSES) :] * length / mean_GH1.flatten(0, 1).numpy(),
            entropy_A=((share_GHM * given_GHM).sum(-1, keepdim=True) / mean_GH1).flatten().numpy(),
            special_A2=np.stack([first_A * aside_N[0], special_A], axis=-1),
            to_sink_A=(1 - sum_GHM).mean(-1).flatten().numpy(),
        )
        labels_SH[texts] = beyond.named()[0].reshape(-1, heads)
    return labels_SH


def _run(numbers: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Sorted numbers as a slice if they follow one another, so that nothing is copied."""
    first, last = int(numbers[0]), int(numbers[-1])
    return slice(first, last + 1) if last - first + 1 == len(numbers) else numbers


MAGIC = b"unmask corpus 2\n"
"""The number changes when the same texts would give other numbers, or other arrays."""

FORMAT = json.dumps([PATTERNS, CLASSES, LABELS, COMPARED])
"""The meaning of the axes of the arrays."""


def cache_file(folder: Path, identity: str, corpus_sha256: str) -> Path:
    """The file for a model and a corpus. Its folder is made if it is missing.

    Raises:
        OutputError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None
    return folder / f"{hashlib.sha256(f'{identity} {corpus_sha256}'.encode()).hexdigest()[:32]}.heads"


def write_totals(path: Path, key: str, totals: HeadTotals) -> None:
    """Write them; the file appears whole.

    Raises:
        OutputError: the disk is full or read-only.
    """
    stream = BytesIO()
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in vars(totals).items()}
    np.savez(stream, **arrays)
    head = json.dumps([key, FORMAT]).encode() + b"\n"
    body = head + stream.getvalue()
    with whole_file(path) as partial:
        partial.write_bytes(MAGIC + hashlib.sha256(body).digest() + body)


def read_totals(path: Path, key: str, like: HeadTotals) -> HeadTotals | None:
    """The totals in a file, or None where there are none of this key and shape, or the file is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    start = len(MAGIC) + 32
    body = data[start:]
    if not data.startswith(MAGIC) or hashlib.sha256(body).digest() != data[len(MAGIC) : start]:
        return None
    head, _, arrays = body.partition(b"\n")
    if json.loads(head) != [key, FORMAT]:
        return None
    with np.load(BytesIO(arrays), allow_pickle=False) as stored:
        values = {field.name: stored[field.name] for field in fields(like)}
    for field in fields(like):
        expected = np.asarray(getattr(like, field.name))
        if values[field.name].shape != expected.shape or values[field.name].dtype != expected.dtype:
            return None
    texts, queries = int(values.pop("texts")), int(values.pop("queries"))
    return HeadTotals(texts=texts, queries=queries, **values)
