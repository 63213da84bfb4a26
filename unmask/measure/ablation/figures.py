"""What one trained encoder is measured by."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from unmask.learn.table import read_table
from unmask.loaded import Model, load
from unmask.measure.ablation.plan import Plan
from unmask.measure.probes.blimp import MinimalPair, measure_blimp, read_blimp, shares
from unmask.measure.probes.conllu import read_treebank
from unmask.measure.probes.perplexity import measure_perplexity
from unmask.measure.probes.tagging import measure_tagging
from unmask.measure.probes.windows import documents, windows
from unmask.tasks.batches import TOKENS_PER_PASS
from unmask.text import PackedBatch, token_budget_batches

FIGURES = "figures.json"
MASKED, DETECTED = "pseudo-log-likelihood", "mean log-probability of being original"
"""What sentences of BLiMP are compared by."""


@dataclass(frozen=True)
class Figures:
    """Of one run; None for what cannot be measured on it or was left out."""

    variant: str
    seed: int
    parameters: int
    """Of everything up to the last hidden state."""
    tokens: int
    """Trained on."""
    train_seconds: float
    """By the clock, whatever else the machine did."""
    peak_bytes: int | None
    """The most that training held above what the process held before."""
    masked_loss: float | None
    """In nats; 15 % of held-out tokens masked, the same ones for every design."""
    masked_accuracy: float | None
    unigram_loss: float | None
    """Of the same tokens by their frequency in that text alone."""
    blimp: float | None
    """Share of minimal pairs whose grammatical sentence scores higher."""
    blimp_score: str | None
    """`MASKED` or `DETECTED`."""
    tagging: float | None
    """Parts of speech by a linear probe, of the layer that is best on dev."""
    tagging_layer: int | None
    tagging_baseline: float | None
    """Each word form's commonest tag."""


def write_figures(figures: Figures, path: Path) -> None:
    """As JSON."""
    path.write_text(json.dumps(asdict(figures), indent=1) + "\n")


def read_figures(path: Path) -> Figures | None:
    """Of a finished run; None where there are none."""
    return read_table(Figures, json.loads(path.read_text()), str(path)) if path.is_file() else None


@dataclass(frozen=True)
class Measured:
    """The measures of a checkpoint, as `Figures` names them."""

    masked_loss: float | None = None
    masked_accuracy: float | None = None
    unigram_loss: float | None = None
    blimp: float | None = None
    blimp_score: str | None = None
    tagging: float | None = None
    tagging_layer: int | None = None
    tagging_baseline: float | None = None


def measure(folder: Path, plan: Plan) -> Measured:
    """Every measure of the plan's data that the checkpoint in a folder can be given."""
    model = load(str(folder))
    masked = "masked" in model.encoder.heads
    made: dict[str, object] = {}
    if masked:
        cut = windows(
            model,
            documents(Path(plan.data.held_out)),
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
    """Share of pairs, a mean over paradigms, whose good sentence looks more original; ties are wrong."""
    scores = original_scores(model, [text for pair in pairs for text in (pair.good, pair.bad)])
    (overall,) = shares(pairs, scores[::2].tolist(), scores[1::2].tolist(), lambda _: "all")
    return overall.accuracy


def original_scores(model: Model, texts: Sequence[str]) -> NDArray[np.float64]:
    """For each text the mean over its tokens of log p(the token is original), special tokens left out.

    What a detector of replaced tokens says of a whole sentence in one run. It is no likelihood of the
    sentence, and not to be compared with one.

    Args:
        model: with a head for replaced tokens.
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
