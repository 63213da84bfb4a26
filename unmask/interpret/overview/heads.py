"""Findings about single heads, about all heads together and about the sink, from the statistics of a text.

Axes: W words; M queries whose word occurs more than once.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unmask.interpret.attention.layer_statistics import (
    CLASS_MASS,
    CLASSES,
    DIFFUSE_SHARE,
    HeadLabel,
    LayerStatistics,
    label_heads,
)
from unmask.interpret.attention.sinks import EPSILON, Sinks
from unmask.interpret.overview.finding import Bar, Edge, Finding, Names, also, head_name, percent

FEWEST_TOKENS = 6
"""In a shorter text nearly every head looks positional."""

FOCUSED = 0.5
"""The entropy, as a share of the maximum, below which a head is called focused."""

STRONG_EDGE = 0.2
"""The least attention of an edge that is reported."""

SAME_WORD = 0.2
"""The least attention to other occurrences of a word for a head to be reported."""

WINDOW = 28
"""Tokens that edges of a head are given for."""

FAINT_EDGE = 0.08
"""Weaker edges are not given."""

TO_CLASS = {
    "self": "the token itself",
    "previous": "the token before",
    "next": "the token after",
    "special": "other special tokens",
    "punctuation": "punctuation",
    "repeat": "the same token elsewhere",
    "other": "other words",
}

Head = tuple[int, int]


@dataclass(frozen=True)
class MeasuredHeads:
    """The heads of the layers that are measured, and the names of the text's tokens."""

    layers: tuple[tuple[int, LayerStatistics], ...]
    names: Names

    @property
    def tokens(self) -> int:
        """N."""
        return len(self.names.encoding)

    @property
    def count(self) -> int:
        """How many heads there are."""
        return sum(layer.heads for _, layer in self.layers)

    @cached_property
    def labels(self) -> dict[Head, HeadLabel]:
        """The label of every head."""
        special_N = self.names.encoding.special
        return {
            (number, head): label
            for number, layer in self.layers
            for head, label in enumerate(label_heads(layer, special_N))
        }

    def giving(self, name: Literal["previous", "next", "punctuation"]) -> list[Head]:
        """The heads that are named by a class of keys and give it at least `CLASS_MASS` of all attention."""
        named = (head for head, label in self.labels.items() if label.label == name)
        return [head for head in named if self.mass(head, name) >= CLASS_MASS]

    def of(self, head: Head) -> LayerStatistics:
        """The statistics of a head's layer."""
        return dict(self.layers)[head[0]]

    def ranked(self, values_of: str) -> Iterator[tuple[float, Head]]:
        """The mean over queries of a statistic (H, N) of every head."""
        for number, layer in self.layers:
            means_H = getattr(layer, values_of).mean(axis=-1, dtype=np.float64)
            yield from ((float(value), (number, head)) for head, value in enumerate(means_H))

    def mass(self, head: Head, name: str) -> float:
        """Mean attention of a head to keys of a class."""
        return float(self.of(head).classes_HX[head[1], CLASSES.index(name)])

    def top_key_share(self, head: Head, offset: int) -> float:
        """Share of the queries with a token at an offset whose top key it is."""
        top_N = self.of(head).edges_keys_HNk[head[1], :, 0]
        hits = int((top_N - np.arange(self.tokens) == offset).sum())
        return hits / (self.tokens - abs(offset))

    def goes_to(self, head: Head) -> str:
        """The class of keys with most of the attention of a head, and its share."""
        masses = self.of(head).classes_HX[head[1]]
        most = int(masses.argmax())
        name = CLASSES[most]
        where = self.names.token(0) if name == "first" else TO_CLASS[name]
        return f"{percent(float(masses[most]))} of its attention goes to {where}"

    def caution(self, head: Head) -> str:
        """The caution about a head of linear attention; empty for softmax."""
        if self.of(head).kind == "softmax":
            return ""
        return " These are the weights that linear attention implies; it has no softmax."

    def drawn(self, head: Head, around: int = 0) -> tuple[tuple[Edge, ...], tuple[int, int]]:
        """The strongest edge of each query, within a window of the text, and the window."""
        first = max(0, min(around - WINDOW // 2, self.tokens - WINDOW))
        end = min(self.tokens, first + WINDOW)
        layer = self.of(head)
        edges = []
        for query in range(first, end):
            for place in range(min(2, layer.edges_HNk.shape[-1])):
                key = int(layer.edges_keys_HNk[head[1], query, place])
                weight = float(layer.edges_HNk[head[1], query, place])
                if first <= key < end and weight >= FAINT_EDGE:
                    edges.append(Edge(query, key, weight))
        return tuple(edges), (first, end)


def positional(heads: MeasuredHeads) -> Iterator[Finding]:
    """The clearest previous-token head and the clearest next-token head."""
    if heads.tokens < FEWEST_TOKENS:
        return
    kind: Literal["previous", "next"]
    for kind, where, offset in (("previous", "before", -1), ("next", "after", 1)):
        some = heads.giving(kind)
        if not some:
            continue
        means = {head: float(heads.of(head).diagonal_mean_H(kind)[head[1]]) for head in some}
        best = max(some, key=lambda head: (means[head], head))
        others = [head for head in some if head != best]
        share = heads.top_key_share(best, offset)
        but = f"but the {'first' if offset < 0 else 'last'}"
        if share == 1:
            which = f"Every token {but} attends most to the token right {where} it"
        else:
            which = f"Of all tokens {but}, {percent(share)} attend most to the token right {where} them"
        edges, window = heads.drawn(best)
        yield Finding(
            kind=kind,
            sentence=f"{which} in head {head_name(*best)}; their mean attention to it is "
            f"{percent(means[best])}.{also(others)}{heads.caution(best)}",
            value=share,
            layer=best[0],
            head=best[1],
            edges=edges,
            window=window,
        )


def strongest_edge(heads: MeasuredHeads) -> Iterator[Finding]:
    """The strongest edge between two different words that are not neighbors, if it is a strong one.

    A key that is not among the eight largest of its query gets at most 1/9, so that none stronger than
    `STRONG_EDGE` is missed.
    """
    names = heads.names
    word_N, wordlike_W = names.words.of_token, names.wordlike
    surface_W = names.surface_W
    best: tuple[float, Head, int, int] | None = None
    for number, layer in heads.layers:
        keys_HNk = layer.edges_keys_HNk
        query_word_1N1, key_word_HNk = word_N[None, :, None], word_N[keys_HNk]
        counted = (np.abs(key_word_HNk - query_word_1N1) > 1) & wordlike_W[key_word_HNk]
        counted &= wordlike_W[query_word_1N1] & (surface_W[key_word_HNk] != surface_W[query_word_1N1])
        weights = np.where(counted, layer.edges_HNk, 0)
        head, query, place = map(int, np.unravel_index(int(weights.argmax()), weights.shape))
        weight = float(weights[head, query, place])
        if best is None or weight > best[0]:
            best = weight, (number, head), query, int(keys_HNk[head, query, place])
    if best is None or best[0] < STRONG_EDGE:
        return
    weight, chosen, reader, key = best
    edges, window = heads.drawn(chosen, reader)
    yield Finding(
        kind="edge",
        sentence=f"{names.word(reader)} gives {names.word(key)} {percent(weight)} of its attention in head "
        f"{head_name(*chosen)}: the strongest link between two words that are not neighbors (the same word "
        f"again, punctuation and special tokens are not counted).{heads.caution(chosen)}",
        value=weight,
        layer=chosen[0],
        head=chosen[1],
        query=reader,
        key=key,
        tokens=(reader, key),
        edges=edges,
        window=window,
    )


def same_word(heads: MeasuredHeads) -> Iterator[Finding]:
    """The head in which words attend most to other occurrences of themselves.

    Keys beyond the eight largest of a query are not counted, so the number is a lower bound.
    """
    names = heads.names
    group_N, word_N = names.repeated_N, names.words.of_token
    counted_N = group_N >= 0
    if not counted_N.any():
        return
    sizes = np.bincount(group_N[counted_N])
    best: tuple[float, Head, NDArray[np.float64]] | None = None
    for number, layer in heads.layers:
        keys_HNk = layer.edges_keys_HNk[:, counted_N]
        same = group_N[keys_HNk] == group_N[counted_N][None, :, None]
        same &= word_N[keys_HNk] != word_N[counted_N][None, :, None]
        mass_HM = np.where(same, layer.edges_HNk[:, counted_N], 0).sum(-1, dtype=np.float64)
        head = int(mass_HM.mean(-1).argmax())
        mass = float(mass_HM[head].mean())
        if best is None or mass > best[0]:
            best = mass, (number, head), mass_HM[head]
    assert best is not None
    mass, chosen, mass_M = best
    # A word of one token sees the others of its group; of several tokens, a little fewer.
    even = float((sizes[group_N[counted_N]] - 1).mean() / heads.tokens)
    if mass < max(SAME_WORD, 2 * even):
        return
    tokens = np.flatnonzero(counted_N)
    strongest = int(tokens[int(mass_M.argmax())])
    edges, window = heads.drawn(chosen, strongest)
    yield Finding(
        kind="same",
        sentence=f"Words that occur more than once, such as {names.surface(strongest)}, attend to each other "
        f"in head {head_name(*chosen)}: {percent(mass)} of their attention goes to their other occurrences, "
        f"where evenly spread attention would give {percent(even)}.{heads.caution(chosen)}",
        value=mass,
        baseline=even,
        layer=chosen[0],
        head=chosen[1],
        query=strongest,
        tokens=tuple(tokens[:64].tolist()),
        edges=edges,
        window=window,
    )


def punctuation(heads: MeasuredHeads) -> Iterator[Finding]:
    """The head with most attention to punctuation, if it is labeled with it."""
    some = heads.giving("punctuation")
    if not some:
        return
    best = max(some, key=lambda head: heads.mass(head, "punctuation"))
    tokens = np.flatnonzero(heads.names.punctuation_N)
    even, mass = len(tokens) / heads.tokens, heads.mass(best, "punctuation")
    if mass < 2 * even:
        return
    others = [head for head in some if head != best]
    yield Finding(
        kind="punctuation",
        sentence=f"Head {head_name(*best)} attends to punctuation, which is {percent(even)} of the tokens "
        f"and gets {percent(mass)} of its attention.{also(others)}{heads.caution(best)}",
        value=mass,
        baseline=even,
        layer=best[0],
        head=best[1],
        tokens=tuple(tokens[:64].tolist()),
    )


def focused(heads: MeasuredHeads) -> Iterator[Finding]:
    """The most focused head, unless `positional` tells of it."""
    ranked = sorted(heads.ranked("entropy_share_HN"))
    if len(ranked) < 2 or heads.tokens < FEWEST_TOKENS:
        return
    least, best = ranked[0]
    if heads.labels[best].label in ("previous", "next") or least >= FOCUSED:
        return
    yield Finding(
        kind="focused",
        sentence=f"Head {head_name(*best)} is the most focused of {heads.count}: its entropy is "
        f"{percent(least)} of the maximum, and {heads.goes_to(best)}.{heads.caution(best)}",
        value=least,
        layer=best[0],
        head=best[1],
    )


BARS = 5
"""Tokens whose shares are given."""

TIMES_EVEN = 2
"""How many times its even share a token must receive to be reported."""


def sink(heads: MeasuredHeads, sinks: Sinks) -> Iterator[Finding]:
    """The token that most heads attend to regardless of the query, beside its even share."""
    total_N = np.zeros(heads.tokens)
    for _, layer in heads.layers:
        total_N += layer.attention_received_HN.sum(0, dtype=np.float64)
    mass_N = total_N / heads.count
    order = np.argsort(-mass_N, kind="stable")[:BARS].tolist()
    token, mass, even = order[0], float(mass_N[order[0]]), sinks.baseline
    head_sinks = [
        head_sink for head_sink in sinks.heads if head_sink.token == token and head_sink.mass > EPSILON
    ]
    if mass < TIMES_EVEN * even or not head_sinks:
        return
    idle = sum(head_sink.type == "no-op" for head_sink in head_sinks)
    name = heads.names.token(token)
    sentence = (
        f"{name} is the attention sink: it receives {percent(mass)} of all attention, "
        f"{mass / even:.1f} times its even share of {percent(even)}."
    )
    if idle:
        sentence += (
            f" In {idle} of {heads.count} heads this writes almost nothing: its value vector is short."
        )
    yield Finding(
        kind="sink",
        sentence=sentence,
        value=mass,
        baseline=even,
        key=token,
        tokens=tuple(order),
        bars=tuple(Bar(heads.names.token(receiver), float(mass_N[receiver])) for receiver in order),
    )


MEANS = {
    "self": "the token itself",
    "previous": "the previous token",
    "next": "the next token",
    "offset": "a token at another fixed distance",
    "punctuation": "punctuation",
    "repeat": "the same token elsewhere",
}

_OTHERS = (("diffuse", "are diffuse"), ("mixed", "have no single pattern"))

CONTRAST = 0.05
"""The least difference between the mean entropies of two layers that is reported."""


def labels(heads: MeasuredHeads) -> Iterator[Finding]:
    """How many heads have each label of `unmask.interpret.attention.layer_statistics.label_heads`."""
    if heads.tokens < FEWEST_TOKENS or heads.count < 2:
        return
    counts = Counter(label.label for label in heads.labels.values())
    to_special = counts["special"] + (counts["first"] if heads.names.encoding.special[0] else 0)
    names = dict(MEANS) if heads.names.encoding.special[0] else {**MEANS, "first": heads.names.token(0)}
    ranked = counts.most_common()
    aimed = [(count, names[label]) for label, count in ranked if label in names]
    verbs = ["mostly attend to", *["to"] * len(aimed)]
    parts = [f"{count} {verb} {name}" for verb, (count, name) in zip(verbs, aimed, strict=False)]
    parts += [f"{counts[label]} {are}" for label, are in _OTHERS if counts[label]]
    if to_special:
        parts.append(f"{to_special} do little but attend to special tokens")
    phrase = ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else parts[0]
    beyond = ", taken without special tokens" if heads.names.encoding.special.any() else ""
    shown = {**MEANS, "first": heads.names.token(0), "special": "other special tokens"}
    yield Finding(
        kind="labels",
        sentence=f"Of {heads.count} heads{beyond}, {phrase}.",
        value=ranked[0][1] / heads.count,
        bars=tuple(Bar(shown.get(label, label), float(count)) for label, count in ranked),
    )


def untrained(heads: MeasuredHeads) -> Iterator[Finding]:
    """That every head is near uniform, as of weights that were never trained: then nothing else is told."""
    if heads.tokens < FEWEST_TOKENS or heads.count < 2:
        return
    least = min(value for value, _ in heads.ranked("entropy_share_HN"))
    if least < DIFFUSE_SHARE:
        return
    yield Finding(
        kind="labels",
        sentence=f"All {heads.count} heads are near uniform, with at least {percent(least)} of the maximum "
        "entropy: these weights look untrained.",
        value=1.0,
        bars=(Bar("diffuse", float(heads.count)),),
    )


def entropy_by_layer(heads: MeasuredHeads) -> Iterator[Finding]:
    """The layers whose heads are the most diffuse and the most focused on average."""
    shares = [
        (number, float(layer.entropy_share_HN.mean(dtype=np.float64))) for number, layer in heads.layers
    ]
    if len(shares) < 2 or heads.tokens < FEWEST_TOKENS:
        return
    most, least = (
        max(shares, key=lambda layer_share: layer_share[1]),
        min(shares, key=lambda layer_share: layer_share[1]),
    )
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
