"""Findings about all heads together: how many have each label, and how diffuse each layer is."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from unmask.interpret.overview.finding import Bar, Finding
from unmask.interpret.overview.heads import FEWEST_TOKENS, MeasuredHeads
from unmask.interpret.overview.names import percent

MEANS = {
    "self": "the token itself",
    "previous": "the previous token",
    "next": "the next token",
    "offset": "a token at another fixed distance",
    "special": "other special tokens",
    "punctuation": "punctuation",
}

_OTHERS = (("diffuse", "are diffuse"), ("mixed", "have no single pattern"))

CONTRAST = 0.05
"""The least difference between the mean entropies of two layers that is told."""


def labels(heads: MeasuredHeads) -> Iterator[Finding]:
    """How many heads have each label of `unmask.interpret.attention.taxonomy.label_heads`."""
    if heads.tokens < FEWEST_TOKENS or heads.count < 2:
        return
    counts = Counter(label.label for label in heads.labels.values())
    names = {"first": heads.names.token(0), **MEANS}
    ranked = counts.most_common()
    aimed = [(count, names[label]) for label, count in ranked if label in names]
    verbs = ["mostly attend to", *["to"] * len(aimed)]
    parts = [f"{count} {verb} {name}" for verb, (count, name) in zip(verbs, aimed, strict=False)]
    parts += [f"{counts[label]} {are}" for label, are in _OTHERS if counts[label]]
    told = ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else parts[0]
    sentence = f"Of {heads.count} heads, {told}."
    if counts["diffuse"] == heads.count:
        sentence = f"All {heads.count} heads spread their attention almost evenly, as untrained weights do."
    yield Finding(
        kind="labels",
        sentence=sentence,
        value=ranked[0][1] / heads.count,
        bars=tuple(Bar(names.get(label, label), float(count)) for label, count in ranked),
    )


def entropy_by_layer(heads: MeasuredHeads) -> Iterator[Finding]:
    """The layers whose heads are the most diffuse and the most focused on average."""
    shares = [
        (number, float(layer.entropy_share_HN.mean(dtype=np.float64))) for number, layer in heads.layers
    ]
    if len(shares) < 2 or heads.tokens < FEWEST_TOKENS:
        return
    most, least = max(shares, key=lambda one: one[1]), min(shares, key=lambda one: one[1])
    if most[1] - least[1] < CONTRAST:
        return
    yield Finding(
        kind="layers",
        sentence=f"The heads of layer {most[0]} spread their attention widest, with {percent(most[1])} of "
        f"the maximum entropy on average; those of layer {least[0]} focus most, with {percent(least[1])}.",
        value=most[1],
        baseline=least[1],
        layer=most[0],
        bars=tuple(Bar(f"layer {number}", share) for number, share in shares),
    )
