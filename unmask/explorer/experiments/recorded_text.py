"""The activations of one short text in every layer, in float64.

The tour's experiments show full maps of short texts, so N x N arrays are allowed here;
use `unmask.interpret.AttentionView` for long texts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.arguments import one_of
from unmask.encoder.encoder import Encoder
from unmask.encoder.hooks import HookPoint
from unmask.encoder.layers.attention import SoftmaxMixer
from unmask.encoder.layers.parts import SetApart
from unmask.errors import InvalidRequest, NonFiniteResult
from unmask.interpret.attention.rows import out_factors, value_norms
from unmask.kernels import AttentionBias, DistanceBias, MaskContext, RelativeBias, Tile, allowed, scores
from unmask.kernels import probabilities as tile_probabilities
from unmask.spec import Disentangled, RelativePositionBias, SoftmaxAttention
from unmask.spec.global_tokens import has_global_tokens
from unmask.text import Encoding, PackedBatch

MOST_TOKENS = 512
"""Maximum tokens of a text; a map of this size takes 2 MB in float64, and an experiment holds several."""


@dataclass(frozen=True, eq=False)
class RecordedText:
    """Recorded activations of one text. Tensors are float64 on the CPU; lists have one entry per layer.

    Queries and keys are as used in the scores, after rotary embedding if any.
    """

    encoder: Encoder = field(repr=False)
    encoding: Encoding = field(repr=False)
    batch: PackedBatch = field(repr=False)
    states: list[Tensor]
    """L + 1 tensors (N, D): the input of the first layer, then every layer's output before the final norm."""
    queries: list[Tensor]
    """(N, H, K)."""
    keys: list[Tensor]
    """(N, H, K)."""
    values: list[Tensor]
    """(N, H, K)."""
    distances: dict[tuple[HookPoint, int], Tensor]
    """For disentangled layers: the projected distance table as keys and as queries, (P, H, K). For relative
    position biases: the table, (P, H)."""

    def __len__(self) -> int:
        return len(self.encoding)

    @property
    def layer_count(self) -> int:
        """L."""
        return len(self.encoder.spec.layers)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the encoder computes its states in."""
        return next(self.encoder.parameters()).dtype

    def mixer(self, layer: int) -> SoftmaxAttention:
        """The layer's softmax attention.

        Raises:
            InvalidRequest: there is no such layer, or it has no softmax attention.
        """
        one_of("layer", layer, self.layer_count, "this encoder has layers")
        mixer = self.encoder.spec.layers[layer].mixer
        if not isinstance(mixer, SoftmaxAttention):
            raise InvalidRequest(
                f"layer {layer} has {type(mixer).__name__}; this experiment needs softmax attention"
            )
        if mixer.sinks:
            raise InvalidRequest(
                f"layer {layer} has attention sinks, which take part in its softmax; this experiment needs a "
                "softmax over keys alone"
            )
        return mixer

    def bias(self, layer: int) -> AttentionBias:
        """The terms that are added to the products of queries and keys."""
        mixer = self.mixer(layer)
        if isinstance(mixer.position, RelativePositionBias):
            table_PH = self.distances[HookPoint.RELATIVE_BIAS, layer]
            return AttentionBias(relative=RelativeBias(mixer.position, table_PH))
        if not isinstance(mixer.position, Disentangled):
            return AttentionBias.of(mixer.position, mixer.heads)
        places = (HookPoint.DISTANCE_KEY, HookPoint.DISTANCE_QUERY)
        biases = (self.distances.get((place, layer)) for place in places)
        return AttentionBias(distances=DistanceBias(mixer.position, *biases))

    def products(self, layer: int) -> Tensor:
        """q k of every pair before scaling, (H, N, N)."""
        self.mixer(layer)
        return torch.einsum("rhk,chk->hrc", self.queries[layer], self.keys[layer])

    def scores(self, layer: int) -> Tensor:
        """Scores of all pairs before the softmax and before masking, (H, N, N)."""
        bias = self.bias(layer)
        return scores(Tile.whole(len(self)), self.queries[layer], self.keys[layer], bias)

    def allowed(self, layer: int) -> Tensor:
        """Allowed keys of each query, bool, (H, N, N)."""
        mixer = self.mixer(layer)
        context = MaskContext.of(self.batch.layout, 0, mixer.heads)
        mask = allowed(Tile.whole(len(self)), mixer.pattern, torch.device("cpu"), context)
        shape = (mixer.heads, len(self), len(self))
        return torch.ones(shape, dtype=torch.bool) if mask is None else mask.expand(shape)

    def probabilities(self, layer: int) -> Tensor:
        """Attention weights, (H, N, N); rows sum to 1, or to less with attention sinks."""
        mixer = self.mixer(layer)
        p_HNN, _ = tile_probabilities(
            Tile.whole(len(self)),
            self.queries[layer],
            self.keys[layer],
            mixer.pattern,
            self.bias(layer),
            context=MaskContext.of(self.batch.layout, 0, mixer.heads),
        )
        return p_HNN

    def beside_attention(self, layer: int) -> Tensor | None:
        """What convolutions beside the heads of attention mix, (N, I); None in a layer without them."""
        block = self.encoder.block(layer)
        spans = block.attention.spans if isinstance(block.attention, SoftmaxMixer) else None
        if spans is None:
            return None
        device = self.encoder.device
        x_ND, q_NHK = (x.to(device, self.dtype) for x in (self.states[layer], self.queries[layer]))
        with torch.no_grad():
            o_NHK = spans(
                block.read_by_attention(x_ND),
                q_NHK,
                SetApart.of(self.batch.layout, spans.kernel // 2, device),
            )
        return torch.as_tensor(o_NHK.flatten(-2)).to("cpu", torch.float64)

    def mixed(self, layer: int, p_HNN: Tensor) -> Tensor:
        """Values averaged with the given weights, (N, H, K)."""
        return torch.einsum("hrc,chk->rhk", p_HNN, self.values[layer])

    def value_norms(self, layer: int) -> Tensor:
        """Norm of each token's contribution through each head, ||v W_O||, (H, N) (Kobayashi et al. 2020)."""
        factors_HKE = out_factors(self.encoder.block(layer).attention)
        return value_norms(self.values[layer], factors_HKE.cpu())


def record_text(encoder: Encoder, encoding: Encoding) -> RecordedText:
    """Run the encoder once on a short text, without global tokens, and record its activations.

    Args:
        encoder: any encoder; layers with linear attention are recorded too, but have no attention map.
        encoding: at most `MOST_TOKENS` tokens.

    Raises:
        InvalidRequest: the text is too long for experiments with full maps.
        NonFiniteResult: the encoder's states are not finite.
    """
    if len(encoding) > MOST_TOKENS:
        raise InvalidRequest(
            f"the text has {len(encoding)} tokens and an experiment reads at most {MOST_TOKENS}; "
            "shorten it, or use the other views"
        )
    batch = PackedBatch.of_ids([encoding.ids], [encoding.token_type_ids])
    tensors, states = record_tensors(encoder, batch)
    layers = range(len(encoder.spec.layers))
    if not all(bool(state.isfinite().all()) for state in states):
        raise NonFiniteResult("the encoder's states of this text are not finite; try dtype='float32'")
    return RecordedText(
        encoder,
        encoding,
        batch,
        states,
        queries=[tensors[HookPoint.QUERY, layer] for layer in layers],
        keys=[tensors[HookPoint.KEY, layer] for layer in layers],
        values=[tensors[HookPoint.VALUE, layer] for layer in layers],
        distances={
            key: tensors[key]
            for key in tensors
            if key[0] in (HookPoint.DISTANCE_KEY, HookPoint.DISTANCE_QUERY, HookPoint.RELATIVE_BIAS)
        },
    )


def record_tensors(
    encoder: Encoder, batch: PackedBatch
) -> tuple[dict[tuple[HookPoint, int], Tensor], list[Tensor]]:
    """The tensors of all places and layers, and among them the states of the L + 1 levels, float64."""
    tensors: dict[tuple[HookPoint, int], Tensor] = {}

    def record(place: HookPoint, layer: int, tensor: Tensor) -> None:
        tensors[place, layer] = tensor.detach().to("cpu", torch.float64)

    with torch.inference_mode():
        encoder.encode(batch, hook=record)
    layers = range(len(encoder.spec.layers))
    return tensors, [tensors[HookPoint.EMBEDDED, 0], *(tensors[HookPoint.LAYER, layer] for layer in layers)]


def run_ids(
    encoder: Encoder, ids: Sequence[NDArray[np.int64]], globals_of: Sequence[Sequence[int]] | None = None
) -> list[Tensor]:
    """States of sequences packed in one batch: L + 2 tensors (T, D), float64.

    These are the input of the first layer, every layer's output, and the encoder's output after its final
    norm. ``globals_of`` names each sequence's global tokens, if the encoder has global attention.
    """
    used = globals_of if has_global_tokens(encoder.spec) else None
    batch = PackedBatch.of_ids(ids, None, used)
    tensors: list[Tensor] = []

    def record(place: HookPoint, layer: int, tensor: Tensor) -> None:
        if place in (HookPoint.EMBEDDED, HookPoint.LAYER):
            tensors.append(tensor.detach().to("cpu", torch.float64))

    with torch.inference_mode():
        final = encoder.encode(batch, hook=record)
    return [*tensors, final.detach().to("cpu", torch.float64)]


def entropy(p: Tensor) -> Tensor:
    """Entropy of each row in nats, with 0 log 0 = 0."""
    nats: Tensor = -torch.special.xlogy(p, p).sum(-1)
    return nats


def entropy_share(p: Tensor, keys: Tensor) -> Tensor:
    """Entropy of each row as a share of the maximum over allowed keys; 0 if there is one key."""
    most = keys.double().log()
    return torch.where(most > 0, entropy(p) / most.clamp_min(math.ulp(1.0)), torch.zeros_like(most))
