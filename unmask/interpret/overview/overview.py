"""The overview of a text: the findings that hold for it, the clearest head first."""

from collections.abc import Callable
from itertools import chain

from unmask.encoder.encoder import Encoder
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.attention_statistics import AttentionStatistics
from unmask.interpret.attention.sinks import sinks
from unmask.interpret.attention.view import AttentionView
from unmask.interpret.effects.target import AttributionTarget, Embedding
from unmask.interpret.overview import heads, states
from unmask.interpret.overview.finding import Finding, Names, Overview
from unmask.interpret.watch import Watch, unwatched

ORDER = (
    *("previous", "same", "edge", "next", "punctuation", "sink", "labels", "sense", "effect"),
    *("prediction", "states", "layers", "cka", "focused", "distance", "diffuse", "split"),
)
"""The order of findings by kind; the first that is about a head is the clearest one."""

EMBEDDING = "the text's embedding"
"""The name of the embedding of the whole text in sentences."""


def overview(
    view: AttentionView,
    *,
    target: AttributionTarget | None = None,
    what: str = EMBEDDING,
    encoder: Callable[[], Encoder] | None = None,
    watch: Watch | None = None,
) -> Overview:
    """What a model did with a text: up to seventeen findings, each with its numbers and one sentence.

    They are those of the attention statistics and hidden states, which are cheap, and the head whose ablation
    changes the target most, which is measured. Nothing N x N is made, so texts of any length can be given.

    Args:
        view: the text.
        target: what ablations are measured by; None is the mean of the last hidden states.
        what: what the sentences call the target.
        encoder: makes modules that support gradients, `Model.trainable_encoder`. It is called for a text in
            which not every head is ablated; without it, such a text has no finding about ablation.
        watch: called while the text is measured and heads are ablated.

    Raises:
        Cancelled: ``watch`` stopped the work.
        NonFiniteResult: a number is infinite or not a number.
    """
    watch = watch or unwatched
    attention = attention_findings(view, view.statistics(watch))
    more = measured_findings(view.cache, target or Embedding(), what, encoder=encoder, watch=watch)
    return Overview(attention.layers, attention.layers_measured, ordered((*attention.findings, *more)))


def attention_findings(view: AttentionView, statistics: AttentionStatistics) -> Overview:
    """The findings that need no further run of the model, about the layers that are measured so far."""
    measured = tuple((at, layer) for at, layer in enumerate(statistics.layers) if layer is not None)
    names = Names(view.encoding)
    of_heads = heads.MeasuredHeads(measured, names)
    findings: list[Finding] = []
    if measured:
        finders = (
            *(heads.positional, heads.same_word, heads.strongest_edge, heads.punctuation),
            *(heads.entropies, heads.farthest, heads.labels, heads.entropy_by_layer),
        )
        findings += chain.from_iterable(find(of_heads) for find in finders)
        findings += heads.sink(of_heads, sinks(statistics))
    findings += chain(states.senses(view.cache, names), states.changes(view.cache), states.split_words(names))
    return Overview(view.layer_count, len(measured), ordered(findings))


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


def ordered(findings: tuple[Finding, ...] | list[Finding]) -> tuple[Finding, ...]:
    """Findings in the order in which they are shown."""
    return tuple(sorted(findings, key=lambda finding: ORDER.index(finding.kind)))
