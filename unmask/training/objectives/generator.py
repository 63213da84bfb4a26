"""The two encoders of replaced-token detection: the generator, and the discriminator that is kept.

Both specs are derived from the spec of any encoder, independent of its family.
"""

import math
from dataclasses import replace

from unmask.encoder.decoder import why_no_decoder
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.families import Family
from unmask.spec import (
    Classifier,
    Disentangled,
    EncoderSpec,
    FeedForward,
    Layer,
    MaskedLM,
    Mixer,
    Projection,
    SoftmaxAttention,
    Transform,
)


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
            discriminator.embedding, width=e, projection=_projection(discriminator) if e != width else None
        ),
        layers=tuple(_narrow(layer, discriminator.width, width) for layer in discriminator.layers[:layers]),
        sharing=None if discriminator.sharing is None else tuple(numbers[group] for group in used),
        convolution=convolution,
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
        transform = Transform(encoder.width, encoder.layers[0].feedforward.activation)
        detector = Classifier("replaced", 1, "tokens", transform)
        if isinstance(encoder.distances, Disentangled):
            norm = encoder.final_norm or encoder.layers[0].norm
            detector = replace(detector, reads="tokens_and_first", input_norm=norm)
    return replace(encoder, heads=(detector,), pooler=None)


def is_detector(head: object) -> bool:
    """Whether the head gives each token one number that predicts if the token was replaced."""
    return (
        isinstance(head, Classifier)
        and head.role == "replaced"
        and head.classes == 1
        and head.reads in ("tokens", "tokens_and_first")
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
    """The nearest multiple of the head width, if heads divide the width evenly."""
    step = math.lcm(*(layer.mixer.head_width for layer in spec.layers))
    step = step if spec.width % step == 0 else 1
    return max(1, math.floor(spec.width * share / step + 0.5)) * step


def _narrow(layer: Layer, before: int, width: int) -> Layer:
    heads = _scaled(layer.mixer.heads, before, width)
    mixer: Mixer
    if isinstance(layer.mixer, SoftmaxAttention) and layer.mixer.key_value_heads is not None:
        shared = math.gcd(heads, _scaled(layer.mixer.key_value_heads, before, width))
        mixer = replace(layer.mixer, heads=heads, key_value_heads=shared)
    else:
        mixer = replace(layer.mixer, heads=heads)
    feedforward: FeedForward = replace(
        layer.feedforward, width=_scaled(layer.feedforward.width, before, width)
    )
    return replace(layer, mixer=mixer, feedforward=feedforward)


def _scaled(size: int, before: int, width: int) -> int:
    return max(1, math.floor(size * width / before + 0.5))


def _projection(spec: EncoderSpec) -> Projection:
    """The encoder's own kind; else ELECTRA's, or DeBERTa's if layer 0 needs normalized input."""
    if spec.embedding.projection is not None:
        return spec.embedding.projection
    unnormed = spec.layers[0].norm_first and not spec.layers[0].attention_norm
    return Projection(bias=not unnormed, before_norm=unnormed)


def _predictor(spec: EncoderSpec, width: int) -> MaskedLM:
    head = next((head for head in spec.heads if isinstance(head, MaskedLM)), None)
    if head is None or head.transform is None:
        transform = Transform(width, "gelu", spec.final_norm or spec.layers[0].norm)
    else:
        transform = replace(head.transform, width=width)
    return MaskedLM(transform, bias=head is None or head.bias)
