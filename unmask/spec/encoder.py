"""The encoder as one frozen value: an embedding, layers, a final norm and heads; and what it can do."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal, assert_never

from unmask.errors import InvalidRequest
from unmask.spec.attention import (
    CausalAttention,
    Disentangled,
    FullAttention,
    Mixer,
    RelativePositionBias,
    SlidingWindow,
    SlidingWindowGlobal,
    SoftmaxAttention,
)
from unmask.spec.check import require_at_least, require_positive, require_share, require_size
from unmask.spec.heads import Classifier, Head, MaskedLM, role_of
from unmask.spec.parts import (
    Activation,
    Bottleneck,
    Embedding,
    EmbeddingGate,
    FeedForward,
    Norm,
    PlainFeedForward,
    StackedFeedForward,
)


@dataclass(frozen=True)
class Layer:
    """One layer: attention, then a feed-forward network, each with its residual and norm.

    With ``norm_first`` the norm comes before each part (pre-norm, Xiong et al. 2020), else after the
    residual (post-norm, Vaswani et al. 2017). ``attention_norm=False`` leaves out the first norm of a
    pre-norm layer whose input is normalized already (ModernBERT's layer 0). With ``output_norms`` a pre-norm
    layer also normalizes the output of each part before it is added (Gemma), or multiplies it by its
    ``output_scale`` (ESM C).
    """

    mixer: Mixer
    feedforward: FeedForward
    norm: Norm
    norm_first: bool = False
    attention_norm: bool = True
    dropout: float = 0.0
    """Dropout rate of each part's output in training."""
    output_norms: bool = False
    attention_sum_norm: bool = False
    """In a post-norm layer: attention adds the norm of the sum of its output and its input, so that the input
    counts twice (JinaBERT v2 for code)."""
    output_scale: float = 1.0
    """In a pre-norm layer: the factor of what each part adds."""
    bottleneck: Bottleneck | None = None
    """In a post-norm layer: its parts add to narrow states. Then ``dropout`` is that of what the layer maps
    back, and of no part."""
    gate: EmbeddingGate | None = None
    """In a pre-norm layer: what follows the feed-forward network."""
    factor: bool = False
    """In a pre-norm layer: a stored number, which is not trained, multiplies the output (Gemma 4)."""

    def __post_init__(self) -> None:
        require_share("layer dropout", self.dropout)
        require_positive("output_scale", self.output_scale)
        if self.output_scale != 1 and (self.output_norms or not self.norm_first):
            raise InvalidRequest(
                f"output_scale is {self.output_scale}; it has a meaning only with norm_first=True and "
                "output_norms=False"
            )
        if self.output_norms and not self.norm_first:
            raise InvalidRequest("output_norms=True has a meaning only with norm_first=True")
        if self.attention_sum_norm and self.norm_first:
            raise InvalidRequest("attention_sum_norm=True has a meaning only with norm_first=False")
        if (self.gate is not None or self.factor) and not self.norm_first:
            part = "factor=True" if self.gate is None else "a gate by the embedding"
            raise InvalidRequest(f"{part} is built for norm_first=True only")
        if not self.norm_first and not self.attention_norm:
            raise InvalidRequest("attention_norm=False has a meaning only with norm_first=True")
        self._check_networks()
        if self.bottleneck is not None:
            self._check_bottleneck(self.bottleneck)

    def inner_width(self, width: int) -> int:
        """The width of the states that its parts add to, in an encoder of this width."""
        return width if self.bottleneck is None else self.bottleneck.width

    def attention_width(self, width: int) -> int:
        """The width of what attention reads, in an encoder of this width."""
        narrow = self.bottleneck is not None and self.bottleneck.attention == "narrow"
        return self.inner_width(width) if narrow else width

    def _check_networks(self) -> None:
        stacked = isinstance(self.feedforward, StackedFeedForward)
        if stacked and self.norm_first:
            raise InvalidRequest("several feed-forward networks are built for norm_first=False only")
        if stacked and self.dropout and self.bottleneck is None:
            raise InvalidRequest(
                f"layer dropout is {self.dropout}; with several feed-forward networks it is built for layers "
                "with a bottleneck only"
            )

    def _check_bottleneck(self, bottleneck: Bottleneck) -> None:
        mixer = self.mixer
        if self.norm_first or self.attention_sum_norm:
            raise InvalidRequest(
                "a bottleneck is built for norm_first=False and attention_sum_norm=False only"
            )
        if not isinstance(mixer, SoftmaxAttention):
            raise InvalidRequest("a bottleneck is built for softmax attention only")
        own_globals = isinstance(mixer.pattern, SlidingWindowGlobal) and mixer.pattern.own_projections
        parts = {
            "disentangled positions": isinstance(mixer.position, Disentangled),
            "convolutions beside attention": mixer.span_convolution is not None,
            "own projections of global tokens": own_globals,
            "biases of some of queries, keys and values": bottleneck.attention == "shared"
            and not mixer.query_bias == mixer.key_bias == mixer.value_bias,
        }
        for part, holds in parts.items():
            if holds:
                raise InvalidRequest(f"a layer with a bottleneck is built without {part}")


@dataclass(frozen=True)
class Convolution:
    """``norm(layer 0 + activation(conv(embedding)))``, the input of layer 1 (DeBERTa v2, the larger sizes).

    It covers each token's neighbors up to distance ``kernel // 2``, with zeros beyond a sequence's ends.
    """

    kernel: int
    norm: Norm
    activation: Activation = "tanh"
    groups: int = 1
    dropout: float = 0.0
    """Dropout rate of the convolution's output in training."""

    def __post_init__(self) -> None:
        require_size("Convolution.kernel", self.kernel, most=1024)
        require_at_least("Convolution.groups", self.groups, 1)
        require_share("Convolution.dropout", self.dropout)
        if self.kernel % 2 == 0:
            raise InvalidRequest(f"Convolution.kernel is {self.kernel}; it must be odd, to have a middle")


@dataclass(frozen=True)
class Pooler:
    """A dense layer and an activation on the first token's state (BERT's pooler)."""

    activation: Activation = "tanh"


@dataclass(frozen=True)
class EncoderSpec:
    """Everything that determines an encoder's tensors and outputs. Depth is the number of ``layers``.

    Without layers it is a static model: its word vectors alone, whatever stands beside a word (Model2Vec).
    """

    width: int
    """D."""
    embedding: Embedding
    layers: tuple[Layer, ...]
    final_norm: Norm | None = None
    output_width: int | None = None
    """The width to which a linear map without bias takes last hidden states, after the final norm
    (EmbeddingGemma 2); None: they have the width D."""
    sharing: tuple[int, ...] | None = None
    """Which set of weights each layer uses, from 0 (ALBERT's groups); None: each layer has its own."""
    convolution: Convolution | None = None
    pooler: Pooler | None = None
    heads: tuple[Head, ...] = ()
    """The heads, at most one of each role."""
    trained_tokens: int | None = None
    """The longest training sequence, if positions set no limit; longer sequences run with a warning."""
    init_std: float = 0.02

    def __post_init__(self) -> None:
        require_size("width", self.width)
        if not self.layers:
            self._check_static()
        if self.init_std < 0:
            raise InvalidRequest(f"init_std is {self.init_std}; it must be at least 0")
        if self.embedding.width != self.width and self.embedding.projection is None:
            raise InvalidRequest(
                f"the embedding is {self.embedding.width} wide and the encoder {self.width}; add a projection"
            )
        if self.convolution is not None and self.width % self.convolution.groups:
            raise InvalidRequest(
                f"the convolution has {self.convolution.groups} groups; they must divide width {self.width}"
            )
        for layer in set(self.layers):
            network, width = layer.feedforward, layer.inner_width(self.width)
            network = network.network if isinstance(network, StackedFeedForward) else network
            if isinstance(network, PlainFeedForward) and width % network.groups:
                raise InvalidRequest(
                    f"feed-forward networks have {network.groups} groups; they must divide width {width}"
                )
        if len({layer.gate for layer in self.layers}) > 1:
            raise InvalidRequest("layers differ in their gate by the embedding; give all of them the same")
        if self.output_width is not None:
            require_size("output_width", self.output_width)
        self._check_heads()
        if self.sharing is not None:
            self._check_sharing(self.sharing)

    def _check_static(self) -> None:
        words = Embedding(self.embedding.vocabulary, self.embedding.width)
        further = (self.final_norm, self.output_width, self.sharing, self.convolution, self.pooler)
        if self.embedding != words or self.heads or any(part is not None for part in further):
            raise InvalidRequest(
                "number of layers is 0, and an encoder without layers has word vectors and no other part; "
                "give it a layer, or leave out positions, token types, norms, projection, pooler and heads"
            )

    def _check_heads(self) -> None:
        roles = [role_of(head) for head in self.heads]
        if len(set(roles)) < len(roles):
            raise InvalidRequest(f"an encoder has at most one head of each role, not {roles}")
        if self.pooler is None and any(getattr(head, "reads", None) == "pooler" for head in self.heads):
            raise InvalidRequest("a head reads the pooler, and the encoder has none")
        for head in self.heads:
            if isinstance(head, MaskedLM) and head.tied:
                width = (self.state_width if head.transform is None else head.transform.width) - head.beside
                if width != self.embedding.width:
                    raise InvalidRequest(
                        f"an MLM head makes states of width {width} and shares its matrix with the "
                        f"embedding, which is {self.embedding.width} wide; make them equal, or untie them"
                    )

    def _check_sharing(self, sharing: tuple[int, ...]) -> None:
        if len(sharing) != len(self.layers):
            raise InvalidRequest(f"sharing names {len(sharing)} layers of {len(self.layers)}")
        if sorted(set(sharing)) != list(range(max(sharing) + 1)):
            raise InvalidRequest(f"sharing must use every number from 0 to its largest, not {sharing}")
        for group in Counter(sharing):
            if len({layer for layer, uses in zip(self.layers, sharing, strict=True) if uses == group}) > 1:
                raise InvalidRequest(f"layers that share weights {group} differ from one another")

    @property
    def state_width(self) -> int:
        """The width of last hidden states: what heads read and pooling pools."""
        return self.width if self.output_width is None else self.output_width

    @property
    def norm_in_heads(self) -> bool:
        """Whether last hidden states are those before the final norm, and heads begin with it, because one of
        them reads states without it.
        """
        return any(getattr(head, "reads", None) == "unnormed" for head in self.heads)

    @property
    def gate(self) -> EmbeddingGate | None:
        """The gate by the embedding that every layer has; None without one."""
        return self.layers[0].gate if self.layers else None

    @property
    def causal(self) -> bool:
        """Whether the state of a token depends on no later token."""
        mixers = (layer.mixer for layer in self.layers)
        return (
            bool(self.layers)
            and self.convolution is None
            and not self.embedding.reads_neighbors
            and all(
                isinstance(mixer, SoftmaxAttention) and isinstance(mixer.pattern, CausalAttention)
                for mixer in mixers
            )
        )

    @property
    def distances(self) -> Disentangled | RelativePositionBias | None:
        """The positions with a table of distances, which all layers that use them share with the table.

        Raises:
            InvalidRequest: layers have different positions of this kind.
        """
        mixers = [layer.mixer for layer in self.layers if isinstance(layer.mixer, SoftmaxAttention)]
        positions = {
            (mixer.position, mixer.heads if isinstance(mixer.position, RelativePositionBias) else None)
            for mixer in mixers
            if isinstance(mixer.position, Disentangled | RelativePositionBias)
        }
        if len(positions) > 1:
            raise InvalidRequest(
                "layers with disentangled positions, or with relative position biases, share one table and "
                "must agree on it"
            )
        return next((position for position, _ in positions), None)

    @property
    def distance_table(self) -> tuple[int, int] | None:
        """The shape of the table of distances; None without such positions."""
        match self.distances:
            case Disentangled(span=span):
                return 2 * span, self.width
            case RelativePositionBias(buckets=buckets):
                mixers = [layer.mixer for layer in self.layers if isinstance(layer.mixer, SoftmaxAttention)]
                biased = [mixer for mixer in mixers if isinstance(mixer.position, RelativePositionBias)]
                return buckets, biased[0].heads
            case None:
                return None
            case _:
                assert_never(self.distances)

    @property
    def weights_of_layer(self) -> tuple[int, ...]:
        """For each layer, the index of its set of weights."""
        return tuple(range(len(self.layers))) if self.sharing is None else self.sharing

    @property
    def max_tokens(self) -> int | None:
        """The longest sequence that the positions allow, special tokens included; None: no limit."""
        positions = self.embedding.positions
        if positions is None or not positions.added:
            return None
        return positions.rows - positions.offset


def head_of(spec: EncoderSpec, role: str) -> Head:
    """The head with that role.

    Raises:
        InvalidRequest: the encoder has no such head.
    """
    heads = {role_of(head): head for head in spec.heads}
    if role not in heads:
        raise InvalidRequest(f"the encoder has no {role} head; it has: {', '.join(heads) or 'none'}")
    return heads[role]


def masked_lm_role(spec: EncoderSpec, name: str = "the model") -> str:
    """The role of the MLM head of an encoder that predicts masked words.

    Raises:
        InvalidRequest: the encoder has no such head, or its attention is causal.
    """
    require_both_directions(spec, name)
    return lm_role(spec, name)


def lm_role(spec: EncoderSpec, name: str = "the model") -> str:
    """The role of the head over the vocabulary: ``masked`` if there is one, else ``enhanced``.

    Raises:
        InvalidRequest: the encoder has neither.
    """
    roles = [role_of(head) for head in spec.heads]
    role = next((role for role in ("masked", "enhanced") if role in roles), None)
    if role is None:
        raise InvalidRequest(
            f"{name} cannot predict masked words: its checkpoint holds no masked-LM head "
            f"(heads: {', '.join(roles) or 'none'}); use a checkpoint that was saved with one"
        )
    return role


def require_both_directions(spec: EncoderSpec, name: str = "the model") -> None:
    """Refuse an encoder that sees no later token: its logits at a token are those of the next one.

    Raises:
        InvalidRequest: the attention of all layers is causal.
    """
    if spec.causal:
        raise InvalidRequest(
            f"{name} cannot predict masked words: its attention is causal (is_decoder in config.json), so it "
            "predicts the next token; use predict_tokens (unmask compare), or another checkpoint"
        )


def logit_count(spec: EncoderSpec, head: Head) -> int:
    """C, the number of logits of one token or sequence."""
    return head.classes if isinstance(head, Classifier) else spec.embedding.vocabulary


def require_layers(spec: EncoderSpec, purpose: str) -> None:
    """Refuse a static model for what an encoder's layers compute.

    Args:
        spec: of the encoder.
        purpose: what needs layers, as the subject of "... needs layers".

    Raises:
        InvalidRequest: the encoder has none.
    """
    if not spec.layers:
        raise InvalidRequest(
            f"{purpose} needs layers, and this is a static model: a table of word vectors without attention, "
            "which embeds, compares and searches texts; use an encoder with layers"
        )


def why_no_decoder(spec: EncoderSpec) -> str | None:
    """Why an encoder has no enhanced mask decoder, as the end of "... because"; None if it has one."""
    if not any(isinstance(head, MaskedLM) and head.enhanced for head in spec.heads):
        return "it has no head with the role enhanced"
    positions, mixer = spec.embedding.positions, spec.layers[-1].mixer
    if positions is None or positions.added:
        return "it has no table of absolute positions separate from its embedding"
    if spec.embedding.width != spec.width:
        return f"its positions are {spec.embedding.width} wide and its states {spec.width}"
    if not isinstance(mixer, SoftmaxAttention):
        return f"its last layer mixes by {type(mixer).__name__}, which has no queries separate from keys"
    own_globals = isinstance(mixer.pattern, SlidingWindowGlobal) and mixer.pattern.own_projections
    parts = {
        "global tokens of its last layer have projections of their own": own_globals,
        "its last layer has convolutions beside attention": mixer.span_convolution is not None,
        "its layers have a gate by the embedding": spec.gate is not None,
        "its last states are mapped to another width": spec.output_width is not None,
    }
    return next((reason for reason, holds in parts.items() if holds), None)


def check_shared_query(spec: EncoderSpec) -> None:
    """Check that what a token reads can be bounded to its query, whatever follows.

    Raises:
        InvalidRequest: a layer has another mixer, blocks or global tokens, or there is a convolution.
    """
    if spec.convolution is not None:
        raise InvalidRequest(
            "a shared query is not built for encoders with a convolution, which reads across the query's "
            "border; use another encoder"
        )
    if spec.embedding.reads_neighbors:
        raise InvalidRequest(
            "a shared query is not built for encoders whose embedding reads the tokens beside each, across "
            "the query's border; use another encoder"
        )
    if spec.embedding.token_dropout is not None:
        raise InvalidRequest(
            "a shared query is not built for encoders that scale word vectors by a text's share of mask "
            "tokens (token_dropout), which depends on the whole sequence; use another encoder"
        )
    for layer in spec.layers:
        mixer = layer.mixer
        if not isinstance(mixer, SoftmaxAttention):
            raise InvalidRequest(
                "a shared query is not built for linear attention, which has no mask; use another encoder"
            )
        if mixer.span_convolution is not None:
            raise InvalidRequest(
                "a shared query is not built for encoders with convolutions beside attention, which read "
                "across the query's border; use another encoder"
            )
        if not isinstance(mixer.pattern, FullAttention | SlidingWindow):
            raise InvalidRequest(
                f"a shared query is not built for {type(mixer.pattern).__name__}, whose blocks or global "
                "tokens depend on the whole sequence; use an encoder with full attention or windows"
            )


Initialization = Literal["normal", "megatron", "zero_out"]
"""``normal``: every matrix normal with the spec's standard deviation, biases 0, norms 1 (Devlin et al. 2019).

``megatron``: the same, truncated at two standard deviations; the output projections of attention and of the
feed-forward network have the deviation divided by sqrt(2 L), so that the sum of the 2 L contributions to a
state does not grow with depth (Shoeybi et al. 2019; also used for ModernBERT). The deviation is that of the
normal distribution before truncation, as in their code; the weights have 0.88 of it. ModernBERT also
initializes classifiers with 1 / sqrt(D); here heads use the spec's deviation.

``zero_out``: like ``normal``, with output projections 0, so that every layer of a pre-norm encoder starts as
the identity (Zhang, Dauphin & Ma 2019, who do this for the last layer of each residual branch).
"""
