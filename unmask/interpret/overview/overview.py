"""The overview of a text: the findings that hold for it, the rarest first."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain

from unmask.base.progress import Watch, unwatched
from unmask.encoder.encoder import Encoder
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.attention_statistics import AttentionStatistics
from unmask.interpret.attention.sinks import sinks
from unmask.interpret.attention.view import AttentionView
from unmask.interpret.effects.target import AttributionTarget, Embedding
from unmask.interpret.overview import heads, states
from unmask.interpret.overview.figures import FigureCounts, ranked
from unmask.interpret.overview.finding import Finding, Names, Overview

EMBEDDING = "the text's embedding"
"""The name of the embedding of the whole text in sentences."""


def overview(
    view: AttentionView,
    *,
    corpus: FigureCounts | None = None,
    target: AttributionTarget | None = None,
    what: str = EMBEDDING,
    encoder: Callable[[], Encoder] | None = None,
    watch: Watch | None = None,
) -> Overview:
    """What a model did with a text: up to fifteen findings, each with its numbers and one sentence.

    They are those of the attention statistics and hidden states, which are cheap, and the head whose ablation
    changes the target most, which is measured. Nothing N x N is made, so texts of any length can be given.
    Of a model whose heads are all near uniform, that is the only finding.

    Args:
        view: the text.
        corpus: other texts in the same model, ``Model.attention_over(...).figures``. Findings are compared
            with them and the rarest come first. Without them, kinds of findings have a fixed order.
        target: what ablations are measured by; None is the mean of the last hidden states.
        what: what the sentences call the target.
        encoder: makes modules that support gradients, `Model.trainable_encoder`. It is called for a text in
            which not every head is ablated; without it, such a text has no finding about ablation.
        watch: called while the text is measured and heads are ablated.

    Raises:
        InvalidRequest: the corpus was read by a model of fewer layers or heads.
        Cancelled: ``watch`` stopped the work.
        NonFiniteResult: a number is infinite or not a number.
    """
    watch = watch or unwatched
    attention = attention_findings(view, view.statistics(watch), corpus)
    if looks_untrained(attention):
        return attention
    more = measured_findings(view.cache, target or Embedding(), what, encoder=encoder, watch=watch)
    return replace(attention, findings=ranked((*attention.findings, *more), corpus))


def attention_findings(
    view: AttentionView, statistics: AttentionStatistics, corpus: FigureCounts | None = None
) -> Overview:
    """The findings that need no further run of the model, about the layers that are measured so far."""
    measured = tuple((at, layer) for at, layer in enumerate(statistics.layers) if layer is not None)
    names = Names(view.encoding)
    of_heads = heads.MeasuredHeads(measured, names)
    findings: list[Finding] = []
    if measured:
        if len(measured) == view.layer_count and (flat := tuple(heads.untrained(of_heads))):
            return Overview(view.layer_count, len(measured), flat)
        finders = (
            *(heads.positional, heads.same_word, heads.strongest_edge, heads.punctuation),
            *(heads.focused, heads.labels, heads.entropy_by_layer),
        )
        findings += chain.from_iterable(find(of_heads) for find in finders)
        findings += heads.sink(of_heads, sinks(statistics))
    findings += chain(states.senses(view.cache, names), states.changes(view.cache), states.split_words(names))
    return Overview(view.layer_count, len(measured), ranked(findings, corpus))


def looks_untrained(found: Overview) -> bool:
    """Whether all heads are near uniform, in which case there is nothing to measure either."""
    return len(found.findings) == 1 and found.findings[0].kind == "labels"


def measured_findings(
    cache: ActivationCache,
    target: AttributionTarget,
    what: str,
    *,
    encoder: Callable[[], Encoder] | None = None,
    watch: Watch = unwatched,
) -> tuple[Finding, ...]:
    """The most effective head for a target, and the similarity of layers."""
    effective = states.most_effective_head(cache, target, what, encoder=encoder, watch=watch)
    return (*effective, *states.layer_similarity(cache, watch))
