"""The activation cache of one text, which keeps only the residual stream.

Queries, keys and values of any tokens in any layer are one projection away from the input of the layer, so
L + 1 tensors of shape (N, D) are enough to recompute attention, at a third of the memory of queries, keys
and values.
"""

from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.arguments import one_of
from unmask.base.progress import Watch, unwatched
from unmask.encoder.encoder import EditedEncoder, Encoder
from unmask.encoder.hooks import HookPoint
from unmask.encoder.layers.attention import SoftmaxMixer
from unmask.encoder.layers.block import Block
from unmask.encoder.layers.linear_attention import LinearMixer
from unmask.encoder.layers.positions import RotaryTable, rows_read
from unmask.errors import InvalidRequest, NonFiniteResult, UnknownArchitecture
from unmask.kernels import AttentionBias
from unmask.spec import Disentangled, Rotary
from unmask.spec.global_tokens import GlobalTokens, pack, trained_global_tokens
from unmask.text import Encoding, PackedBatch

Kind = Literal["softmax", "kernel"]
"""The numbers of a layer: probabilities of a softmax, or the weights that linear attention implies."""

WHOLE = slice(None)


class Projected(NamedTuple):
    """Queries and keys as used in the scores, and values, (N, H, K) each, in the encoder's dtype."""

    q_NHK: Tensor
    k_NHK: Tensor
    v_NHK: Tensor


class ActivationCache:
    """The states of one text in one encoder; made by `of`."""

    def __init__(
        self,
        encoder: Encoder,
        encoding: Encoding,
        batch: PackedBatch,
        states: list[Tensor],
        final_ND: Tensor,
    ) -> None:
        self.encoder = encoder
        self.encoding = encoding
        self.batch = batch
        self.states = states
        """L + 1 tensors (N, D): the input of layer 0, then the output of every layer, before the final norm.
        They are on the encoder's device, without gradients, and must not be changed."""
        self.final_ND = final_ND
        """The output of the encoder: the last state after the final norm."""
        self._rotations: dict[tuple[Rotary, int], RotaryTable] = {}
        self._terms: dict[int, AttentionBias] = {}

    @classmethod
    def of(
        cls,
        encoder: Encoder,
        encoding: Encoding,
        *,
        global_tokens: GlobalTokens | None = None,
        watch: Watch | None = None,
    ) -> "ActivationCache":
        """Run the encoder over one text, keeping its states.

        Args:
            encoder: any encoder, including one optimized for inference; its outputs are not affected.
            encoding: the text.
            global_tokens: which tokens are global in an encoder with global attention; None means those
                that its head was trained with.
            watch: called after each layer.

        Raises:
            UnknownArchitecture: the encoder has no attention.
            NonFiniteResult: a state is infinite or not a number.
            Cancelled: ``watch`` stopped the work.
        """
        check_attention(encoder)
        if global_tokens is None:
            global_tokens = trained_global_tokens(encoder.spec, paired=encoding.pair is not None)
        batch = pack(encoder.spec, [encoding], global_tokens)
        states, final_ND = states_of(encoder, batch, watch or unwatched, "this text")
        return cls(encoder, encoding, batch, states, final_ND)

    def sharing(self, other: "ActivationCache") -> "ActivationCache":
        """This cache, with the tables of positions of another one of the same encoder and as many tokens."""
        self._terms = other._terms
        return self

    def __len__(self) -> int:
        """N, the number of tokens."""
        return len(self.encoding)

    @property
    def layer_count(self) -> int:
        """L."""
        return len(self.encoder.spec.layers)

    @property
    def globals_N(self) -> NDArray[np.bool_] | None:
        """Which tokens were global in this run; None in an encoder without global attention."""
        return self.batch.layout.globals_T

    def block(self, layer: int) -> Block:
        """The layer.

        Raises:
            InvalidRequest: there is no such layer.
        """
        return self.encoder.block(one_of("layer", layer, self.layer_count, "this encoder has layers"))

    def mixer(self, layer: int) -> SoftmaxMixer | LinearMixer:
        """The attention of a layer."""
        return self.block(layer).attention

    def heads(self, layer: int) -> int:
        """H of a layer."""
        return self.mixer(layer).spec.heads

    def head(self, layer: int, head: int) -> int:
        """The number of a head of a layer.

        Raises:
            InvalidRequest: there is no such layer or head.
        """
        return one_of("head", head, self.heads(layer), f"layer {layer} has heads")

    def kind(self, layer: int) -> Kind:
        """The kind of the numbers of a layer."""
        return "softmax" if isinstance(self.mixer(layer), SoftmaxMixer) else "kernel"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of analyses: float64 for a float64 encoder, otherwise float32."""
        return torch.promote_types(self.states[0].dtype, torch.float32)

    @property
    def levels(self) -> list[Tensor]:
        """The L + 1 levels, (N, D) each, see `Encoder.levels`."""
        return self.encoder.levels(self.states, self.final_ND)

    def read_by_attention(self, layer: int, rows: slice = WHOLE) -> Tensor:
        """The input of a layer's attention for some tokens, normalized in pre-norm layers; (rows, D), or as
        wide as the narrow states that it reads in a layer with a bottleneck."""
        block, x_ND = self.block(layer), self.states[layer][rows]
        with torch.no_grad():
            return block.read_by_attention(x_ND)

    def projected(self, layer: int, rows: slice = WHOLE) -> Projected:
        """Queries and keys (after rotary embedding, if any) and values of some tokens of a layer."""
        mixer, read_ND = self.mixer(layer), self.read_by_attention(layer, rows)
        with torch.no_grad():
            if isinstance(mixer, SoftmaxMixer):
                return Projected(*mixer.project(read_ND, self._rotation(mixer, rows)))
            spec = mixer.spec
            return Projected(*mixer.qkv(read_ND).unflatten(-1, (3, spec.heads, spec.head_width)).unbind(-3))

    def projected_for_globals(self, layer: int, rows: slice = WHOLE) -> Projected | None:
        """Queries, keys and values from the projections of global tokens.

        None if the layer has no such projections, or the text has no global token.
        """
        mixer = self.mixer(layer)
        projections = mixer.globals if isinstance(mixer, SoftmaxMixer) else None
        if projections is None or self.globals_N is None or not self.globals_N.any():
            return None
        read_ND = self.read_by_attention(layer, rows)
        with torch.no_grad():
            return Projected(*(projections.project(read_ND, part) for part in range(3)))

    def bias(self, layer: int) -> AttentionBias:
        """The attention bias that a softmax layer adds to its scores."""
        mixer = self.mixer(layer)
        assert isinstance(mixer, SoftmaxMixer)
        position = mixer.spec.position
        if mixer.distances is None:
            return _fixed(mixer, mixer.bias)
        if layer not in self._terms:
            assert self.encoder.distances is not None
            with torch.no_grad():
                table_rows = rows_read(position, len(self)) if isinstance(position, Disentangled) else None
                terms = mixer.distances(self.encoder.distances().detach(), mixer.qkv, table_rows)
                self._terms[layer] = _fixed(mixer, terms)
        return self._terms[layer]

    def _rotation(self, mixer: SoftmaxMixer, rows: slice) -> RotaryTable | None:
        position, width = mixer.spec.position, mixer.spec.head_width
        if not isinstance(position, Rotary):
            return None
        key = (position, width)
        if key not in self._rotations:
            state_ND = self.states[0]
            self._rotations[key] = RotaryTable.of(
                self.batch.layout.positions_T, position, width, state_ND.dtype, state_ND.device
            )
        return RotaryTable(*(wave[rows] for wave in self._rotations[key]))


def _fixed(mixer: SoftmaxMixer, bias: AttentionBias) -> AttentionBias:
    """The bias with the layer's attention sinks, without gradients."""
    return bias if mixer.sinks is None else replace(bias, sinks_H=mixer.sinks.detach())


def check_attention(encoder: object, purpose: str = "show") -> None:
    """Check that an encoder has attention that can be computed again from its states.

    Raises:
        UnknownArchitecture: it has none.
        InvalidRequest: it is edited (`unmask.Model.edit`), so that its layers compute something else.
    """
    if not isinstance(encoder, Encoder):
        raise UnknownArchitecture(f"{type(encoder).__name__} has no attention, so there is none to {purpose}")
    if isinstance(encoder, EditedEncoder):
        raise InvalidRequest(
            "attention is computed again from states, without edits; look at it outside the block of "
            "model.edit"
        )


def states_of(encoder: Encoder, batch: PackedBatch, watch: Watch, name: str) -> tuple[list[Tensor], Tensor]:
    """The residual stream, L + 1 tensors (T, D), and the output; ``watch`` is called after each layer.

    Raises:
        NonFiniteResult: a state of the text, which errors call ``name``, is infinite or not a number.
    """
    states: list[Tensor] = []

    def record(place: HookPoint, layer: int, tensor: Tensor) -> None:
        if place in (HookPoint.EMBEDDED, HookPoint.LAYER):
            states.append(tensor.detach())
        if place is HookPoint.LAYER:
            watch("reading", layer + 1, len(encoder.spec.layers))

    # Not in inference mode: analyses may take gradients from these states.
    with torch.no_grad():
        final_TD = encoder.encode(batch, hook=record)
    if not all(bool(torch.isfinite(x_TD).all()) for x_TD in (*states, final_TD)):
        raise NonFiniteResult(f"states of {name} are not finite; try dtype='float32'")
    return states, final_TD
