"""Findings about tokens and hidden states, and those that need the model to run again.

Axes: W words.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unmask.base.progress import Watch, unwatched
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.effects.ablation import Importance, ablate, ablate_each, importance
from unmask.interpret.effects.logit_lens import logit_lens
from unmask.interpret.effects.target import AttributionTarget, Embedding
from unmask.interpret.geometry.cka import FEWEST_ROWS, cka
from unmask.interpret.overview.finding import Bar, Finding, Names, head_name, level_name, percent, quoted
from unmask.text import Encoding

DRIFT = 0.05
"""The least loss of cosine between two occurrences of a word that is reported."""

CKA_ROWS = 512
"""Tokens for which layers are compared, evenly spread over the text."""

CKA_LEVELS = 13
"""Levels that are compared; of a deeper model, evenly spread ones."""

ROWS_AT_ONCE = 1024


def split_words(names: Names) -> Iterator[Finding]:
    """Words that the vocabulary splits into several tokens, and the one with the most."""
    words = names.words
    tokens_W = np.bincount(words.of_token, minlength=len(words))
    counted_W = names.wordlike
    split = np.flatnonzero(counted_W & (tokens_W > 1))
    if len(split) == 0:
        return
    word = int(split[int(tokens_W[split].argmax())])
    tokens = np.flatnonzero(words.of_token == word).tolist()
    pieces = [names.part(token) for token in tokens]
    spelled = " + ".join(pieces[:6]) + (" + …" if len(pieces) > 6 else "")
    count = int(counted_W.sum())
    some = f"{len(split)} of {count} words {'is' if len(split) == 1 else 'are'} split into several tokens"
    whole = f", {quoted(words.surface(word))} into {spelled}"
    yield Finding(
        kind="split",
        sentence=f"{some}{whole if len(split) == 1 else f'; most of all{whole[1:]}'}.",
        value=len(split) / count,
        query=tokens[0],
        tokens=tuple(tokens[:64]),
        bars=tuple(Bar(piece, 1.0) for piece in pieces[:12]),
    )


def changes(cache: ActivationCache) -> Iterator[Finding]:
    """The layer that turns the hidden states most: 1 minus the cosine of its input and output."""
    if cache.layer_count < 2:
        return
    distances = [
        1 - _mean_cosine(before_ND, after_ND)
        for before_ND, after_ND in zip(cache.states, cache.states[1:], strict=False)
    ]
    most, least = int(np.argmax(distances)), int(np.argmin(distances))
    if f"{distances[most]:.2f}" == f"{distances[least]:.2f}":
        return
    yield Finding(
        kind="states",
        sentence=f"Layer {most} changes the hidden states most: the cosine distance between its input and "
        f"its output is {distances[most]:.2f} on average over tokens. Layer {least} changes them least, "
        f"{distances[least]:.2f}.",
        value=distances[most],
        baseline=distances[least],
        layer=most,
        bars=tuple(Bar(f"layer {layer}", distance) for layer, distance in enumerate(distances)),
    )


@dataclass(frozen=True)
class Drift:
    """Two occurrences of a word, and how alike their states are."""

    token: int
    """A token of the word."""
    first: tuple[int, ...]
    last: tuple[int, ...]
    """The tokens of its first and of its last occurrence."""
    occurrences: int
    cosines: tuple[float, ...]
    """Of the means over their tokens, at every level from the embeddings on."""


def drift(states: Sequence[Tensor], names: Names) -> Drift | None:
    """The first and last occurrence of the longest word that is repeated; None if none is."""
    group_N = names.repeated_N
    tokens = np.flatnonzero(group_N >= 0)
    if len(tokens) == 0:
        return None
    longest = max(tokens.tolist(), key=lambda token: len(names.surface(token)))
    of_N = names.words.of_token
    words = np.unique(of_N[group_N == group_N[longest]])
    first, last = (np.flatnonzero(of_N == words[at]).tolist() for at in (0, -1))
    cosines = tuple(
        _cosine(x_ND[first[0] : first[-1] + 1].mean(0), x_ND[last[0] : last[-1] + 1].mean(0))
        for x_ND in states
    )
    return Drift(longest, tuple(first), tuple(last), len(words), cosines)


def senses(cache: ActivationCache, names: Names) -> Iterator[Finding]:
    """The first and last occurrence of the longest repeated word, if their states drift apart anywhere."""
    apart = drift(cache.states, names)
    if apart is None:
        return
    cosines = apart.cosines
    level = int(np.argmin(cosines))
    if cosines[0] - cosines[level] < DRIFT:
        return
    layer = level - 1
    end = "" if level == len(cosines) - 1 else f", and end at {cosines[-1]:.2f}"
    which = "The two" if apart.occurrences == 2 else "The first and the last"
    yield Finding(
        kind="sense",
        sentence=f"{which} {names.surface(apart.token)} start with a cosine of {cosines[0]:.2f} between "
        f"their embeddings and are at {cosines[level]:.2f} after layer {layer}, where their contexts tell "
        f"them apart most{end}.",
        value=cosines[level],
        baseline=cosines[0],
        layer=layer,
        query=apart.first[0],
        key=apart.last[0],
        tokens=(*apart.first, *apart.last),
        bars=tuple(Bar(level_name(level), cosine) for level, cosine in enumerate(cosines)),
    )


def layer_similarity(cache: ActivationCache, watch: Watch = unwatched) -> Iterator[Finding]:
    """CKA between levels, from `FEWEST_ROWS` tokens on."""
    if len(cache) < FEWEST_ROWS or cache.layer_count < 2:
        return
    rows = np.unique(np.linspace(0, len(cache) - 1, min(CKA_ROWS, len(cache))).round().astype(int))
    count = min(CKA_LEVELS, len(cache.states))
    levels = np.unique(np.linspace(0, len(cache.states) - 1, count).round().astype(int)).tolist()
    try:
        similarity = cka([cache.states[level][rows].double().cpu().numpy() for level in levels], watch=watch)
    except InvalidRequest:  # a level without variation has no similarity
        return
    steps = np.diag(similarity.debiased, 1)
    at = int(steps.argmin())
    ends = float(similarity.debiased[0, -1])
    yield Finding(
        kind="cka",
        sentence=f"The similarity of the embeddings and the last layer is {ends:.2f} (debiased CKA; 1 means "
        f"equal up to rotation). Of the states next to each other, {level_name(levels[at])} and "
        f"{level_name(levels[at + 1])} differ most, {float(steps[at]):.2f}.",
        value=ends,
        baseline=float(steps[at]),
        layer=max(0, levels[at + 1] - 1),
        bars=tuple(Bar(level_name(level), float(level)) for level in levels),
        matrix=tuple(tuple(row) for row in similarity.debiased.tolist()),
    )


def _mean_cosine(a_ND: Tensor, b_ND: Tensor) -> float:
    """Mean over tokens of the cosine of two states, in float64, some rows at a time."""
    total = 0.0
    for first in range(0, len(a_ND), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        cosines_R = torch.nn.functional.cosine_similarity(a_ND[rows].double(), b_ND[rows].double(), dim=-1)
        total += float(cosines_R.sum())
    return total / len(a_ND)


def _cosine(a_D: Tensor, b_D: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a_D.double(), b_D.double(), dim=0))


CANDIDATES = 6
"""Heads that are ablated where not all are, chosen by the gradient estimate."""

ALL_HEADS_COST = 40_000
"""Heads times layers times tokens up to which every head is ablated: about a second on one core."""

MOST_TOKENS = 2048
"""In a longer text, no head is ablated."""

EFFECT = {"cosine": 1e-4, "nats": 1e-3}
"""The least effect that is reported, by unit."""


def most_effective_head(
    cache: ActivationCache,
    target: AttributionTarget,
    what: str,
    *,
    encoder: Callable[[], Encoder] | None = None,
    watch: Watch = unwatched,
) -> Iterator[Finding]:
    """The head whose zero ablation changes a target most, measured.

    Every head of a short text is ablated on its own. In a longer one, `CANDIDATES` are chosen by the gradient
    estimate of Michel et al. 2019, and the sentence says so.

    Args:
        cache: the text, with a token masked if the target is a word.
        target: a word or an embedding.
        what: what the target is called: “money”, for a word.
        encoder: gives modules that support gradients, for texts in which not all heads are ablated.
        watch: called after each layer that is run.
    """
    counts = [cache.heads(layer) for layer in range(cache.layer_count)]
    total = sum(counts)
    if len(cache) > MOST_TOKENS:
        return
    if total * cache.layer_count * len(cache) <= ALL_HEADS_COST:
        every = ablate_each(cache, target, watch=watch)
        before, unit = every.before, every.unit
        effects = {
            (layer, head): float(every.effect[layer, head])
            for layer, count in enumerate(counts)
            for head in range(count)
        }
        among = f"of all {total} heads, each ablated on its own"
    else:
        if encoder is None:
            return
        estimate = importance(cache, target, encoder=encoder(), watch=watch)
        ablation = None
        effects = {}
        for layer, head in _largest(estimate, counts):
            ablation = ablate(cache, target, layer, head, watch=watch)
            effects[layer, head] = ablation.effect
        assert ablation is not None
        before, unit = ablation.before, ablation.unit
        among = f"of the {len(effects)} of {total} heads that a gradient estimate chose for ablation"
    ranked = sorted(effects, key=lambda head: -abs(effects[head]))
    best = ranked[0]
    effect = effects[best]
    if abs(effect) < EFFECT.get(unit, 0.0):
        return
    after = before - effect
    if isinstance(target, Embedding):
        changed = f"changes {what} most: its cosine with the original is {after:.3f}"
    else:
        turns = "falls" if effect > 0 else "rises"
        changed = f"changes the prediction of {what} most: its probability {turns} from "
        changed += f"{percent(math.exp(before))} to {percent(math.exp(after))}"
    yield Finding(
        kind="effect",
        sentence=f"Without head {head_name(*best)}, the model {changed} ({among}).",
        value=effect,
        baseline=before,
        layer=best[0],
        head=best[1],
        query=getattr(target, "token", None),
        bars=tuple(Bar(head_name(*head), effects[head]) for head in ranked[:5]),
    )


def decided_word(
    cache: ActivationCache,
    token: int,
    encoding: Encoding,
    spell: Callable[[int], str],
    *,
    watch: Watch = unwatched,
) -> Iterator[Finding]:
    """The model's prediction for a masked token, and the layer from which it stays the first (logit lens).

    A prediction whose probability would be printed as zero says nothing about the text and is left out.

    Args:
        cache: the text with the token masked.
        token: which.
        encoding: the text as it was, which says what stands there.
        spell: the word of a vocabulary id.
        watch: called after each level.
    """
    lens = logit_lens(cache, [token], top_k=1, watch=watch)
    probabilities, ranks = lens.followed[0], lens.ranks[0]
    probability = percent(float(probabilities[-1]))
    if probability in (percent(0), "0.0 %"):
        return
    behind = np.flatnonzero(ranks > 0)
    level = int(behind[-1]) + 1 if len(behind) else 0
    word = quoted(spell(int(lens.followed_ids[0])))
    was_mask = int(encoding.ids[token]) == int(cache.encoding.ids[token])
    masked = "For the mask" if was_mask else f"With {quoted(encoding.surface(token))} masked"
    since = f"from layer {level - 1} on" if level else "at every layer"
    yield Finding(
        kind="prediction",
        sentence=f"{masked}, the model predicts {word} with {probability}, its most probable word {since}.",
        value=float(probabilities[-1]),
        layer=max(0, level - 1),
        query=token,
        tokens=(token,),
        bars=tuple(Bar(level_name(at), float(p)) for at, p in enumerate(probabilities)),
    )


def _largest(estimate: Importance, counts: list[int]) -> list[tuple[int, int]]:
    """The heads with the largest absolute slopes."""
    every = [(layer, head) for layer, count in enumerate(counts) for head in range(count)]
    every.sort(key=lambda head: -abs(float(estimate.slopes[head])))
    return every[:CANDIDATES]
