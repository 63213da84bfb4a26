"""The two encoders of replaced-token detection, the generator and the discriminator that is kept.

Both specs are derived from the spec of any encoder, independent of its family. Their embeddings are shared:

``tied``: the tables are the same parameters, trained by both losses (Clark et al. 2020).
``gradient_disentangled``: the discriminator reads the generator's tables plus its own shift; its loss
trains only the shift, so that the two losses do not compete for one table (He, Gao & Chen 2023).
"""

import math
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.families import Family
from unmask.spec import (
    Classifier,
    Disentangled,
    EncoderSpec,
    ExpertFeedForward,
    FeedForward,
    GatedFeedForward,
    Layer,
    LayerNorm,
    MaskedLM,
    Mixer,
    NoNorm,
    PlainFeedForward,
    Projection,
    SoftmaxAttention,
    StackedFeedForward,
    Transform,
)
from unmask.spec.encoder import why_no_decoder
from unmask.spec.heads import is_per_token
from unmask.weights.build import on_meta


def generator_spec(
    discriminator: EncoderSpec,
    *,
    width_share: float = 0.25,
    layers_share: float = 1.0,
    embedding_width: int | None = None,
) -> EncoderSpec:
    """A smaller encoder of the same architecture, with an MLM head.

    The width is the nearest whole number of heads, at least one, and the head width is unchanged (Clark
    et al. 2020). Feed-forward networks shrink in proportion, as do heads of keys and values that several
    heads share, to a number that divides the heads. The first layers are kept, so that alternating
    layers still alternate. The embedding keeps its width E, so that its tables can be shared, and is
    projected if the generator's width differs. The MLM head has the transform of the encoder's own MLM head,
    if any, and is tied to the word embedding. If the embedding keeps positions that it does not add, the
    generator predicts through the enhanced mask decoder, if possible (see `unmask.encoder.decoder`).

    Args:
        discriminator: the encoder that is kept.
        width_share: share of its width; 1/4 (small, large) or 1/3 (base) in Clark et al. 2020, 1 in He, Gao &
            Chen 2023.
        layers_share: share of its layers; 1 in the former, 1/2 in the latter.
        embedding_width: E, if it differs from the discriminator's.

    Raises:
        InvalidRequest: a share is not above 0 and at most 1.
    """
    for name, share in (("width_share", width_share), ("layers_share", layers_share)):
        if not 0 < share <= 1:
            raise InvalidRequest(f"{name} is {share}; it must be above 0 and at most 1")
    width = _width(discriminator, width_share)
    layers = max(1, math.floor(len(discriminator.layers) * layers_share + 0.5))
    e = embedding_width or discriminator.embedding.width
    used = discriminator.weights_of_layer[:layers]
    numbers = {group: number for number, group in enumerate(dict.fromkeys(used))}
    convolution = discriminator.convolution
    if convolution is not None:
        convolution = replace(convolution, groups=math.gcd(convolution.groups, width))
    predictor = _predictor(discriminator, e)
    smaller = replace(
        discriminator,
        width=width,
        embedding=replace(
            discriminator.embedding,
            width=e,
            projection=_projection(discriminator) if e != width or _words_alone(discriminator) else None,
        ),
        layers=tuple(_narrow(layer, discriminator.width, width) for layer in discriminator.layers[:layers]),
        sharing=None if discriminator.sharing is None else tuple(numbers[group] for group in used),
        convolution=convolution,
        output_width=None,
        pooler=None,
        heads=(predictor,),
    )
    decoding = replace(smaller, heads=(replace(predictor, enhanced=True),))
    return smaller if why_no_decoder(decoding) else decoding


def discriminator_spec(encoder: EncoderSpec, family: Family | None = None) -> EncoderSpec:
    """The encoder with a replaced-token-detection head and no other head.

    An existing head of that kind is kept. Otherwise it is the one that the family's files hold. Where they
    hold any, it is ELECTRA's, a dense layer, activation and one number for each token (Clark et al. 2020),
    or, over disentangled positions, DeBERTa v3's, which reads the normalized sum of the token's state and the
    first token's (He, Gao & Chen 2023). Other heads and the pooler are removed, because this objective does
    not train them.
    """
    detector = next((head for head in encoder.heads if is_detector(head)), None)
    if detector is None and family is not None:
        detector = family.detector(encoder)
    if detector is None:
        transform = Transform(encoder.state_width, encoder.layers[0].feedforward.activation)
        detector = Classifier("replaced", 1, "tokens", transform)
        if isinstance(encoder.distances, Disentangled):
            norm = encoder.final_norm or encoder.layers[0].norm
            detector = replace(detector, reads="tokens_and_first", input_norm=norm)
    return replace(encoder, heads=(detector,), pooler=None)


def is_detector(head: object) -> bool:
    """Whether the head gives each token one number that predicts if the token was replaced."""
    return (
        isinstance(head, Classifier) and head.role == "replaced" and head.classes == 1 and is_per_token(head)
    )


def with_detector(encoder: Encoder, family: Family | None = None) -> Encoder:
    """The encoder, or a copy with its weights and a new replaced-token-detection head, see
    `discriminator_spec`."""
    spec = discriminator_spec(encoder.spec, family)
    if spec == encoder.spec:
        return encoder
    discriminator = Encoder(spec, kernel=encoder.kernel)
    discriminator.to(device=encoder.device, dtype=encoder.embedding.words.weight.dtype)
    # A head of equal shapes but with another input is a different head.
    same_head = spec.heads[0] in encoder.spec.heads
    old = {
        name: tensor
        for name, tensor in encoder.state_dict().items()
        if not name.startswith("pooler.") and (not name.startswith("heads.") or same_head)
    }
    discriminator.load_state_dict(
        {name: old.get(name, tensor) for name, tensor in discriminator.state_dict().items()}
    )
    return discriminator.train(encoder.training)


def _width(spec: EncoderSpec, share: float) -> int:
    """The nearest multiple of the head width, if heads divide the width evenly; groups divide it always."""
    groups = math.lcm(*(_groups(layer.feedforward) for layer in spec.layers))
    step = math.lcm(groups, *(_features(layer.mixer) for layer in spec.layers))
    step = step if spec.width % step == 0 else groups
    return max(1, math.floor(spec.width * share / step + 0.5)) * step


def _narrow(layer: Layer, before: int, width: int) -> Layer:
    heads = _scaled(layer.mixer.heads, before, width)
    mixer: Mixer
    if isinstance(layer.mixer, SoftmaxAttention) and layer.mixer.key_value_heads is not None:
        shared = math.gcd(heads, _scaled(layer.mixer.key_value_heads, before, width))
        mixer = replace(layer.mixer, heads=heads, key_value_heads=shared)
    else:
        mixer = replace(layer.mixer, heads=heads)
    feedforward: FeedForward
    if isinstance(layer.feedforward, StackedFeedForward):
        each = _narrow_network(layer.feedforward.network, before, width)
        assert isinstance(each, PlainFeedForward)
        feedforward = replace(layer.feedforward, network=each)
    else:
        feedforward = _narrow_network(layer.feedforward, before, width)
    bottleneck = layer.bottleneck
    if bottleneck is not None:  # as much narrower as all heads together
        bottleneck = replace(bottleneck, width=max(1, bottleneck.width * heads // layer.mixer.heads))
    gate = layer.gate
    if gate is not None:
        gate = replace(gate, width=_scaled(gate.width, before, width))
    return replace(layer, mixer=mixer, feedforward=feedforward, bottleneck=bottleneck, gate=gate)


def _narrow_network(
    network: PlainFeedForward | GatedFeedForward | ExpertFeedForward, before: int, width: int
) -> PlainFeedForward | GatedFeedForward | ExpertFeedForward:
    groups = _groups(network)
    return replace(network, width=groups * _scaled(network.width // groups, before, width))


def _groups(network: FeedForward) -> int:
    network = network.network if isinstance(network, StackedFeedForward) else network
    return network.groups if isinstance(network, PlainFeedForward) else 1


def _features(mixer: Mixer) -> int:
    """Of one head, and of the convolution beside it if there is one."""
    return mixer.mixed_width // mixer.heads


def _scaled(size: int, before: int, width: int) -> int:
    return max(1, math.floor(size * width / before + 0.5))


def _projection(spec: EncoderSpec) -> Projection:
    """The encoder's own kind; else ELECTRA's, or DeBERTa's if layer 0 needs normalized input."""
    if spec.embedding.projection is not None:
        return spec.embedding.projection
    unnormed = spec.layers[0].norm_first and not spec.layers[0].attention_norm
    return Projection(bias=not unnormed, before_norm=unnormed)


def _words_alone(spec: EncoderSpec) -> bool:
    return spec.embedding.projection is not None and spec.embedding.projection.words_alone


def _predictor(spec: EncoderSpec, width: int) -> MaskedLM:
    head = next((head for head in spec.heads if isinstance(head, MaskedLM)), None)
    if head is not None and head.transform is not None:
        return MaskedLM(replace(head.transform, width=width), bias=head.bias)
    norm = spec.final_norm or spec.layers[0].norm
    if isinstance(norm, NoNorm):  # as in MobileBERT's own head
        norm = LayerNorm(1e-12)
    return MaskedLM(Transform(width, "gelu", norm), bias=head is None or head.bias)


Sharing = Literal["none", "tied", "gradient_disentangled"]


class ShiftedTable(nn.Module):
    """Another embedding's table, which is not trained here, plus a trained shift that starts at 0.

    A replacement for `nn.Embedding`: ``weight`` is the sum.
    """

    def __init__(self, base: nn.Embedding) -> None:
        super().__init__()
        # In a tuple, so that its parameters and state_dict entries belong only to the other encoder.
        self._base = (base,)
        self.shift = nn.Parameter(torch.zeros_like(base.weight))

    @property
    def weight(self) -> Tensor:
        """Shape (V, E): the sum of base and shift, with gradients only to the shift."""
        return self._base[0].weight.detach() + self.shift

    def forward(self, ids_T: Tensor) -> Tensor:
        """Shape (T,) in, (T, E) out; bit for bit the rows of `weight`, which is not computed."""
        base_TE = functional.embedding(ids_T, self._base[0].weight.detach())
        return base_TE + functional.embedding(ids_T, self.shift)


def shared_parts(discriminator: EncoderSpec, generator: EncoderSpec, sharing: Sharing) -> tuple[str, ...]:
    """The names of the embedding parts that two encoders share.

    Words are always shared, and positions if both number and add them in the same way and width. ``tied``
    also shares token types and the norm, as in ELECTRA's code; ``gradient_disentangled`` does not, as in
    DeBERTa v3's.

    Raises:
        InvalidRequest: their word tables differ in shape, or there is no such way of sharing.
    """
    if sharing not in get_args(Sharing):
        raise InvalidRequest(f"sharing is {sharing!r}; it can be {', '.join(get_args(Sharing))}")
    if sharing == "none":
        return ()
    ours, theirs = discriminator.embedding, generator.embedding
    if (ours.vocabulary, ours.width) != (theirs.vocabulary, theirs.width):
        raise InvalidRequest(
            f"the discriminator's word table is {ours.vocabulary} x {ours.width} and the generator's "
            f'{theirs.vocabulary} x {theirs.width}; give them one shape, or sharing="none"'
        )
    parts = ["words"]
    equal = ours.added_width(discriminator.width) == theirs.added_width(generator.width)
    if equal and ours.positions is not None and ours.positions == theirs.positions:
        parts.append("positions")
    if sharing == "tied":
        if equal and ours.segments and ours.segments == theirs.segments:
            parts.append("segments")
        norms = ((spec.embedding.norm, _norm_width(spec)) for spec in (discriminator, generator))
        if ours.norm is not None and len(set(norms)) == 1:
            parts.append("norm")
    return tuple(parts)


def share(discriminator: Encoder, generator: Encoder, sharing: Sharing) -> tuple[str, ...]:
    """Share parts of the two embeddings, in place; return the result of `shared_parts`.

    Shared parts start with the discriminator's values. A position table that the discriminator's embedding
    does not add gets no gradient from its loss: if positions are shared it is the generator's, without a
    shift. Tables without a gradient are frozen.

    Raises:
        InvalidRequest: see `shared_parts`.
    """
    parts = shared_parts(discriminator.spec, generator.spec, sharing)
    ours, theirs = discriminator.embedding, generator.embedding
    for part in parts:
        part_of_ours = ours.get_submodule(part)
        # One module in two places: its parameters are counted, moved and loaded once.
        theirs.register_module(part, part_of_ours)
        if sharing == "gradient_disentangled" and not (part == "positions" and _unread(discriminator)):
            assert isinstance(part_of_ours, nn.Embedding)
            ours.register_module(part, ShiftedTable(part_of_ours))
    for encoder in (discriminator, generator):
        if _unread(encoder):
            encoder.embedding.get_submodule("positions").requires_grad_(False)
    if why_no_decoder(generator.spec) is None:
        theirs.get_submodule("positions").requires_grad_(True)
    return parts


def is_shared(encoder: Encoder) -> bool:
    """Whether a table of the encoder is another's plus a shift."""
    return any(isinstance(module, ShiftedTable) for module in encoder.embedding.children())


def export(encoder: Encoder) -> Encoder:
    """The encoder with its own tables, the sums of base and shift. Outputs do not change.

    It shares no memory with the trained encoder. An encoder without shifts is returned unchanged.
    """
    if not is_shared(encoder):
        return encoder
    state = encoder.state_dict()
    for name, module in encoder.named_modules():
        if isinstance(module, ShiftedTable):
            del state[f"{name}.shift"]
            state[f"{name}.weight"] = module.weight
    exported = on_meta(encoder.spec, encoder.kernel)
    exported.load_state_dict({name: tensor.detach().clone() for name, tensor in state.items()}, assign=True)
    return exported.train(encoder.training)


def _norm_width(spec: EncoderSpec) -> int:
    projection = spec.embedding.projection
    return spec.width if projection is not None and projection.before_norm else spec.embedding.width


def _unread(encoder: Encoder) -> bool:
    """Whether it keeps a table of positions that its embedding does not add."""
    positions = encoder.spec.embedding.positions
    return positions is not None and not positions.added
