"""The encoder of each chapter of the tour: a loaded one with the mechanism, otherwise an included one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from unmask.encoder.encoder import Encoder
from unmask.models.load import Model, load
from unmask.spec import (
    Alibi,
    Disentangled,
    EncoderSpec,
    FullAttention,
    PooledVector,
    RelativePositionBias,
    Rotary,
    SlidingWindow,
    SlidingWindowGlobal,
    SoftmaxAttention,
)
from unmask.spec.attention import AttentionPosition
from unmask.text import Encoding

READ_TOKENS = 64
"""Maximum tokens of a text, special tokens included: experiments show full maps, which must fit the page."""
MINI = "unmask-mini"

Has = Callable[[EncoderSpec], bool]


@dataclass(frozen=True, eq=False)
class Chosen:
    """The encoder chosen for an experiment."""

    model: Model
    shipped: bool
    """Whether it is from the package because no loaded encoder has the mechanism."""

    def read(self, text: str) -> Encoding:
        """The beginning of a text, up to the number of tokens that experiments read."""
        limit = min(READ_TOKENS, self.model.max_tokens or READ_TOKENS)
        return self.model.tokenizer.encode(text, max_tokens=limit, truncation="end")


def choose(models: Sequence[Model], has: Has, shipped: str) -> Chosen:
    """The first loaded encoder that has a mechanism, otherwise the shipped encoder with this name."""
    return choose_model(models, lambda model: has(model.spec), shipped)


def choose_model(models: Sequence[Model], can: Callable[[Model], bool], shipped: str) -> Chosen:
    """The first loaded model that can do something, such as predict words; otherwise the shipped one."""
    loaded = next((model for model in models if can(model)), None)
    return Chosen(_shipped(shipped), True) if loaded is None else Chosen(loaded, False)


def always(shipped: str) -> Chosen:
    """A shipped encoder, independent of the loaded ones."""
    return Chosen(_shipped(shipped), True)


@lru_cache(maxsize=8)
def _shipped(name: str) -> Model:
    return load(name)


@lru_cache(maxsize=4)
def trainable(model: Model) -> Encoder:
    """The model's weights in modules that give gradients, kept for the next experiment."""
    return model.trainable_encoder(replace=False)


def predicts(model: Model) -> bool:
    """An MLM head that predicts masked words, a mask token, and softmax attention in every layer."""
    heads = ("masked", "enhanced")
    has = any(role in model.encoder.heads for role in heads) and not model.spec.causal
    return has and model.tokenizer.mask_id is not None and softmax(model.spec)


def pools_mean(model: Model) -> bool:
    """Whether texts become the mean of their tokens' states, without projections and prompts."""
    head = model.checkpoint.head
    if not isinstance(head, PooledVector):
        return False
    return head.pooling == ("mean",) and not head.projections and not head.prompts and not head.lower_case


def softmax(spec: EncoderSpec) -> bool:
    """Softmax attention over keys alone in every layer: without attention sinks."""
    return all(isinstance(layer.mixer, SoftmaxAttention) and not layer.mixer.sinks for layer in spec.layers)


def learned(spec: EncoderSpec) -> bool:
    """Learned absolute positions and softmax attention."""
    positions = spec.embedding.positions
    return softmax(spec) and positions is not None and positions.added


def _positions(spec: EncoderSpec) -> set[type[AttentionPosition]]:
    mixers = [layer.mixer for layer in spec.layers]
    return {type(mixer.position) for mixer in mixers if isinstance(mixer, SoftmaxAttention)}


def rotary(spec: EncoderSpec) -> bool:
    """Rotary positions in every layer."""
    return softmax(spec) and _positions(spec) == {Rotary}


def alibi(spec: EncoderSpec) -> bool:
    """ALiBi in every layer."""
    return softmax(spec) and _positions(spec) == {Alibi}


def disentangled(spec: EncoderSpec) -> bool:
    """Disentangled positions in every layer."""
    return softmax(spec) and _positions(spec) == {Disentangled}


def alternating(spec: EncoderSpec) -> bool:
    """Some layers with full attention and some with plain windows."""
    if not softmax(spec):
        return False
    reaches = [layer.mixer.pattern for layer in spec.layers if isinstance(layer.mixer, SoftmaxAttention)]
    plain = all(
        isinstance(reach, FullAttention) or (isinstance(reach, SlidingWindow) and reach.dilation == 1)
        for reach in reaches
    )
    return plain and any(isinstance(reach, FullAttention) for reach in reaches) and len(set(reaches)) > 1


def followed_by_features(spec: EncoderSpec, tokens: int) -> list[int]:
    """Layers whose scores are only products of queries and keys, without masked keys for this text length."""
    layers = []
    for number, layer in enumerate(spec.layers):
        mixer = layer.mixer
        if not isinstance(mixer, SoftmaxAttention) or isinstance(
            mixer.position, Alibi | Disentangled | RelativePositionBias
        ):
            continue
        reach = mixer.pattern.window if isinstance(mixer.pattern, SlidingWindowGlobal) else mixer.pattern
        near = isinstance(reach, SlidingWindow) and reach.dilation == 1 and reach.radius >= tokens - 1
        if isinstance(reach, FullAttention) or near:
            layers.append(number)
    return layers
