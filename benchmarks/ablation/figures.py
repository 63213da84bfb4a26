"""The measurements of one trained encoder."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from benchmarks.ablation.plan import Plan
from unmask.evaluate.probes.blimp import MinimalPair, measure_blimp, read_blimp, shares
from unmask.evaluate.probes.perplexity import measure_perplexity, read_texts, text_windows
from unmask.evaluate.probes.probing import measure_tagging
from unmask.evaluate.probes.words import read_treebank
from unmask.models.load import Model, load
from unmask.tasks.batches import TOKENS_PER_PASS
from unmask.text import PackedBatch, token_budget_batches
from unmask.training.table import read_table

FIGURES = "figures.json"
MASKED, DETECTED = "pseudo-log-likelihood", "mean log-probability of being original"
"""Scores by which BLiMP sentences are compared."""


@dataclass(frozen=True)
class Figures:
    """The figures of one run; None for what cannot be measured on it or was left out."""

    variant: str
    seed: int
    parameters: int
    """Of the embedding and all layers, without heads."""
    tokens: int
    """Training tokens."""
    train_seconds: float
    """Wall time, whatever else the machine was running."""
    peak_bytes: int | None
    """Peak memory of training above what the process held before."""
    masked_loss: float | None
    """In nats; 15 % of held-out tokens masked, the same ones for every variant."""
    masked_accuracy: float | None
    unigram_loss: float | None
    """Loss on the same tokens when predicting by token frequency in that text alone."""
    blimp: float | None
    """Share of minimal pairs whose grammatical sentence scores higher."""
    blimp_score: str | None
    """`MASKED` or `DETECTED`."""
    tagging: float | None
    """Part-of-speech accuracy of a linear probe on the layer that is best on dev."""
    tagging_layer: int | None
    tagging_baseline: float | None
    """Accuracy of each word form's most frequent tag."""


def write_figures(figures: Figures, path: Path) -> None:
    """Write the figures as JSON."""
    path.write_text(json.dumps(asdict(figures), indent=1) + "\n")


def read_figures(path: Path) -> Figures | None:
    """Read the figures of a finished run; None if there are none."""
    return read_table(Figures, json.loads(path.read_text()), str(path)) if path.is_file() else None


@dataclass(frozen=True)
class Measured:
    """The measurements of a checkpoint, named as in `Figures`."""

    masked_loss: float | None = None
    masked_accuracy: float | None = None
    unigram_loss: float | None = None
    blimp: float | None = None
    blimp_score: str | None = None
    tagging: float | None = None
    tagging_layer: int | None = None
    tagging_baseline: float | None = None


def measure(folder: Path, plan: Plan) -> Measured:
    """Take every measurement in the plan that applies to the checkpoint in a folder."""
    model = load(str(folder))
    masked = "masked" in model.encoder.heads
    made: dict[str, object] = {}
    if masked:
        cut = text_windows(
            model,
            read_texts(Path(plan.data.held_out)),
            tokens=plan.sizes.tokens,
            limit=plan.effort.windows,
        )
        found = measure_perplexity(model, cut, source=plan.data.held_out)
        made |= {
            "masked_loss": found.loss,
            "masked_accuracy": found.accuracy,
            "unigram_loss": found.unigram_loss,
        }
    if plan.data.blimp is not None:
        pairs = read_blimp(Path(plan.data.blimp), plan.effort.pairs)
        accuracy = measure_blimp(model, pairs).accuracy if masked else detected_accuracy(model, pairs)
        made |= {"blimp": accuracy, "blimp_score": MASKED if masked else DETECTED}
    if plan.data.treebank is not None:
        tagging = measure_tagging(model, read_treebank(Path(plan.data.treebank), plan.effort.sentences))
        made |= {
            "tagging": tagging.accuracy,
            "tagging_layer": tagging.best_layer,
            "tagging_baseline": tagging.baseline_accuracy,
        }
    return Measured(**made)  # type: ignore[arg-type]


def detected_accuracy(model: Model, pairs: Sequence[MinimalPair]) -> float:
    """Share of pairs whose good sentence looks more original, averaged over paradigms; ties count as
    wrong."""
    scores = original_scores(model, [text for pair in pairs for text in (pair.good, pair.bad)])
    (overall,) = shares(pairs, scores[::2].tolist(), scores[1::2].tolist(), lambda _: "all")
    return overall.accuracy


def original_scores(model: Model, texts: Sequence[str]) -> NDArray[np.float64]:
    """For each text the mean over its tokens of log p(token is original), special tokens excluded.

    A replaced-token detector scores a whole sentence in one forward pass. The score is not a likelihood of
    the sentence and must not be compared with one.

    Args:
        model: a model with a replaced-token-detection head.
        texts: each with at least one token.
    """
    encodings = model.tokenize(texts)
    scores_S = np.empty(len(encodings))
    for chosen in token_budget_batches(
        np.array([len(one.ids) for one in encodings], dtype=np.int64), TOKENS_PER_PASS
    ):
        batch = PackedBatch.of_ids([encodings[index].ids for index in chosen])
        logits_T = torch.from_numpy(model.engine.logits(batch, "replaced")[:, 0])
        original_T = functional.logsigmoid(-logits_T.double()).numpy()
        for place, index in enumerate(chosen):
            kept_N = ~encodings[index].special
            scores_S[index] = original_T[batch.layout.rows(place)][kept_N].mean()
    return scores_S
