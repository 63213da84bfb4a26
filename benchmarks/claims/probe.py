"""Scores that do not depend on how an encoder was trained: parts of speech by a linear probe, and its speed.

Losses of different objectives cannot be compared. A probe reads the same labels from the frozen states of any
encoder.

Axes: S sentences, W words, D width, P passes.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.claims import states
from unmask.encoder.encoder import Encoder
from unmask.errors import TextTooLong
from unmask.evaluate.probes.classifiers import fit_linear
from unmask.evaluate.probes.probing import most_frequent_tags
from unmask.evaluate.probes.words import PARTS, TaggedSentence, read_treebank
from unmask.text import PackedBatch, Tokenizer

SENTENCES = 1000
"""Of each part of the treebank, at most."""
AT_ONCE = 128
"""Sentences per forward pass."""
PASSES = 15


@dataclass(frozen=True, eq=False)
class Tagging:
    """Tagged sentences as token ids, with the first token and the tag of each word."""

    ids: Mapping[str, Sequence[np.ndarray]]
    """Of each part, S arrays."""
    firsts: Mapping[str, Sequence[np.ndarray]]
    """The first token of each word."""
    tags: Mapping[str, Tensor]
    """Their tags, (W,)."""
    by_form: float
    """Test accuracy of each form's most frequent tag in train."""

    @classmethod
    def read(cls, treebank: Path, tokenizer: Tokenizer, max_tokens: int) -> "Tagging":
        """The sentences of a treebank that have at most ``max_tokens`` tokens and a token in every word."""
        ids: dict[str, list[np.ndarray]] = {part: [] for part in PARTS}
        firsts: dict[str, list[np.ndarray]] = {part: [] for part in PARTS}
        kept: dict[str, list[TaggedSentence]] = {part: [] for part in PARTS}
        for part, sentences in read_treebank(treebank).items():
            for sentence in sentences:
                try:
                    encoding = tokenizer.encode_words(sentence.words, max_tokens=max_tokens, name=part)
                except TextTooLong:
                    continue
                assert encoding.words is not None
                words, first = np.unique(encoding.words, return_index=True)
                if (words >= 0).sum() < len(sentence.words):
                    continue
                ids[part].append(encoding.ids)
                firsts[part].append(first[words >= 0])
                kept[part].append(sentence)
                if len(kept[part]) == SENTENCES:
                    break
        numbers = {tag: at for at, tag in enumerate(sorted({t for one in kept["train"] for t in one.tags}))}
        tags = {
            part: torch.tensor([numbers.get(tag, -1) for one in some for tag in one.tags])
            for part, some in kept.items()
        }
        return cls(ids, firsts, tags, most_frequent_tags(kept["train"], kept["test"]))

    def states(self, encoder: Encoder, part: str) -> list[Tensor]:
        """States of the first token of every word at each layer, (W, D) each; layer 0 is the embedding."""
        made: list[list[Tensor]] = []
        pairs = iter(zip(self.ids[part], self.firsts[part], strict=True))
        while some := list(islice(pairs, AT_ONCE)):
            batch = PackedBatch.of_ids([ids_N for ids_N, _ in some])
            places = [first_W + at for (_, first_W), at in zip(some, batch.layout.offsets, strict=False)]
            places_W = torch.from_numpy(np.concatenate(places))
            made.append([x_TD[places_W] for x_TD in states.layer_states(encoder, batch)])
        return [torch.cat(layer) for layer in zip(*made, strict=True)]

    def figures(self, encoder: Encoder) -> dict[str, float]:
        """``tags@l``: test accuracy of the probe of layer l; ``tags``: of the layer that is best on dev.

        ``form tags``: of the most frequent tag of each form, a baseline without an encoder.
        """
        read = {part: self.states(encoder, part) for part in PARTS}
        train_W, dev_W, test_W = (self.tags[part] for part in PARTS)
        made, on_dev = {}, {}
        for layer, (train_WD, dev_WD, test_WD) in enumerate(
            zip(*(read[part] for part in PARTS), strict=True)
        ):
            probe = fit_linear(train_WD, train_W, dev_WD, dev_W, class_count=int(train_W.max()) + 1)
            on_dev[layer] = probe.accuracy(dev_WD, dev_W)
            made[f"tags@{layer}"] = probe.accuracy(test_WD, test_W)
        best = max(on_dev, key=on_dev.__getitem__)
        return {**made, "tags": made[f"tags@{best}"], "form tags": self.by_form}


@torch.inference_mode()
def speed(encoder: Encoder, other: Encoder, batch: PackedBatch) -> dict[str, float]:
    """``tokens/s``: of processor time, median of `PASSES`; ``speed``: the same, divided by that of the other.

    Passes of both alternate, so that what else runs on the machine slows both.
    """
    seconds_P2 = np.empty((PASSES + 1, 2))
    for seconds_2 in seconds_P2:
        for number, one in enumerate((encoder, other)):
            start = time.process_time()
            one.encode(batch)
            seconds_2[number] = time.process_time() - start
    own_P, others_P = seconds_P2[1:].T  # the first pass also allocates
    return {
        "tokens/s": len(batch.ids_T) / float(np.median(own_P)),
        "speed": float(np.median(others_P / own_P)),
    }
