"""Findings that need the model to run again: the most effective head, and how a masked word is decided."""

import math
from collections.abc import Callable, Iterator

import numpy as np

from unmask.encoder.encoder import Encoder
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.effects.ablation import Importance, ablate, ablate_each, importance
from unmask.interpret.effects.logit_lens import logit_lens
from unmask.interpret.effects.target import AttributionTarget, Embedding
from unmask.interpret.overview.finding import Bar, Finding
from unmask.interpret.overview.names import head_name, level_name, percent, quoted
from unmask.interpret.watch import Watch, unwatched
from unmask.text import Encoding

CANDIDATES = 6
"""Heads that are ablated where not all are, chosen by the gradient estimate."""

ALL_HEADS_COST = 40_000
"""Heads times layers times tokens up to which every head is ablated: about a second on one core."""

MOST_TOKENS = 2048
"""In a longer text, no head is ablated."""

EFFECT = {"cosine": 1e-4, "nats": 1e-3}
"""The least effect that is told, by unit."""


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
        one = None
        effects = {}
        for layer, head in _largest(estimate, counts):
            one = ablate(cache, target, layer, head, watch=watch)
            effects[layer, head] = one.effect
        assert one is not None
        before, unit = one.before, one.unit
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
