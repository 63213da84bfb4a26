"""An encoder's layers for the native library: what it can compute, weights and tables handed over.

Axes: P rows of positions.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.errors import InvalidRequest
from unmask.model.encoder import Encoder
from unmask.model.kernels.distances import table_rows
from unmask.model.kernels.relative import RelativeBias
from unmask.model.kernels.tile import alibi_slopes
from unmask.model.layers.attention import SoftmaxMixer, simplify
from unmask.model.layers.block import Block
from unmask.model.layers.disentangled import DistanceProjections
from unmask.model.layers.parts import GatedNetwork, PlainNetwork
from unmask.model.layers.relative import RelativeBiasTable
from unmask.model.layers.rotary import RotaryTable
from unmask.model.native import interface
from unmask.model.spec import (
    Alibi,
    AttentionPattern,
    CausalAttention,
    Disentangled,
    EncoderSpec,
    FullAttention,
    GatedFeedForward,
    RelativePositionBias,
    Rotary,
    SlidingWindow,
    SlidingWindowGlobal,
    SoftmaxAttention,
)
from unmask.model.spec.attention import AttentionPosition
from unmask.text.batch import PackedBatch, SequenceLayout

Float32s = NDArray[np.float32]

ALL, BEFORE = -1, -2
"""In place of a radius: every key of the sequence; those up to the query."""

SHORTEST_TABLE = 512
"""Tables of positions are made for at least so many tokens, and then for twice as many."""


def unsupported_encoder(spec: EncoderSpec) -> str | None:
    """Why an encoder's layers run in torch, as the end of "... because"; None if they can run natively."""
    if spec.convolution is not None:
        return "the convolution after the first layer is computed by its own module"
    for layer in spec.layers:
        mixer = layer.mixer
        if not isinstance(mixer, SoftmaxAttention):
            return "linear attention is computed by its own module"
        pattern = mixer.pattern
        window = pattern.window if isinstance(pattern, SlidingWindowGlobal) else pattern
        if isinstance(window, SlidingWindow) and window.dilation > 1:
            return "a dilated window is no range of keys"
        if mixer.head_width > LARGEST_HEAD:
            return f"heads have {mixer.head_width} features, more than {LARGEST_HEAD}"
    return None


LARGEST_HEAD = 512


def unsupported_batch(spec: EncoderSpec, batch: PackedBatch) -> str | None:
    """Why one batch runs in torch, as the end of "... because"; None if it can run natively."""
    layout = batch.layout
    if batch.queries_T is not None or layout.expansion is not None:
        return "queries that documents share are computed by torch"
    if layout.unattended_T is not None:
        return "some of its tokens are not attended to"
    if _radii(spec, layout) is None:
        return "its global tokens or blocks are no range of keys"
    return None


def _radii(spec: EncoderSpec, layout: SequenceLayout) -> list[int] | None:
    """How far each layer reads on each side of a token; None if a layer reads no range of keys."""
    known: dict[AttentionPattern, int | None] = {}
    radii = []
    for layer in spec.layers:
        assert isinstance(layer.mixer, SoftmaxAttention)
        pattern = layer.mixer.pattern
        if pattern not in known:
            known[pattern] = _radius(pattern, layout)
        radius = known[pattern]
        if radius is None:
            return None
        radii.append(radius)
    return radii


def _radius(pattern: AttentionPattern, layout: SequenceLayout) -> int | None:
    match simplify(pattern, layout):
        case FullAttention():
            return ALL
        case CausalAttention():
            return BEFORE
        case SlidingWindow(radius=radius):
            return radius
        case _:
            return None


class NativeLayers:
    """The embedding, layers and final norm of an encoder in the native library.

    It holds a packed copy of the linear layers' weights; the embedding's tables are those of the encoder.

    Args:
        encoder: for which `unsupported_encoder` returns None, in evaluation mode, on a CPU.
        precision: of the linear layers, one that the library supports.
        library: see `unmask.model.native.library`.
    """

    def __init__(self, encoder: Encoder, precision: str, library: Any) -> None:
        self.spec, self._library = encoder.spec, library
        self._kept: list[Tensor] = []
        self._tables = _Tables(encoder)
        self._native = None
        layers = (interface.Layer * len(self.spec.layers))(*map(self._layer, range(len(self.spec.layers))))
        blocks = [block for block in encoder.layers if isinstance(block, Block)]
        top = interface.Encoder(
            precision=interface.PRECISIONS.index(precision),
            width=self.spec.width,
            layers=len(layers),
            sets=len(blocks),
            layer=layers,
            embedding=self._embedding(encoder),
            final_norm=_norm(encoder.final_norm, self._kept),
        )
        native = library.native_new(ctypes.byref(top))
        if not native:
            raise MemoryError(self._error())
        self._native = ctypes.c_void_p(native)
        with torch.no_grad():
            self._table_PD = None if encoder.distances is None else encoder.distances()
            for number, block in enumerate(blocks):
                self._pack(number, block)

    def __del__(self) -> None:
        if getattr(self, "_native", None) is not None:
            self._library.native_free(self._native)

    def hidden_states(self, batch: PackedBatch, threads: int) -> Float32s:
        """The last hidden states of a batch for which `unsupported_batch` returns None, (T, D).

        Raises:
            InvalidRequest: an id is not in the vocabulary, or a sequence is longer than positions allow.
        """
        layout, limit = batch.layout, self.spec.max_tokens
        longest = int(layout.lengths.max())
        if limit is not None and longest > limit:
            raise InvalidRequest(
                f"a sequence has {longest} tokens and the encoder's position table reaches {limit}"
            )
        radii = np.array(_radii(self.spec, layout), np.int32)
        x_TD = np.empty((layout.token_count, self.spec.width), np.float32)
        ids_T, types_T, offsets = (
            np.ascontiguousarray(array, np.int64)
            for array in (batch.ids_T, batch.token_type_ids_T, layout.offsets)
        )
        rotations, distances, alive = self._tables.for_length(longest)
        run = interface.Run(
            ids_T.ctypes.data,
            types_T.ctypes.data,
            offsets.ctypes.data,
            layout.sequence_count,
            radii.ctypes.data,
            rotations,
            distances,
            x_TD.ctypes.data,
            threads,
        )
        failed = self._library.native_run(self._native, ctypes.byref(run))
        del alive
        if failed:
            raise InvalidRequest(self._error())
        return x_TD

    def _error(self) -> str:
        return str(self._library.native_error().decode())

    def _layer(self, number: int) -> interface.Layer:
        spec = self.spec.layers[number]
        mixer, network = spec.mixer, spec.feedforward
        assert isinstance(mixer, SoftmaxAttention)
        return interface.Layer(
            weights=self.spec.weights_of_layer[number],
            norm_first=spec.norm_first,
            gated=isinstance(network, GatedFeedForward),
            activation=interface.ACTIVATIONS[network.activation],
            heads=mixer.heads,
            shared=mixer.qkv_heads[1],
            width=mixer.head_width,
            rotation=self._tables.rotation_of(mixer),
            distances=self._tables.distances_of(mixer),
            parts=mixer.position.term_count if isinstance(mixer.position, Disentangled) else 1,
        )

    def _embedding(self, encoder: Encoder) -> interface.Embedding:
        layer, spec = encoder.embedding, encoder.spec.embedding
        added = spec.positions is not None and spec.positions.added
        tables = (layer.words, layer.positions if added else None, layer.segments)
        stored = None if layer.words.weight.dtype == torch.bfloat16 else torch.float32
        words, places, types = (
            None if table is None else _kept(table.weight, self._kept, stored) for table in tables
        )
        return interface.Embedding(
            vocabulary=spec.vocabulary,
            width=spec.width,
            offset=0 if spec.positions is None else spec.positions.offset,
            segments=spec.segments,
            stored=stored is None,
            words=words,
            places=places,
            types=types,
            norm=_norm(layer.norm, self._kept),
            projection=_linear(layer.projection, self._kept),
            project_first=layer.project_first,
        )

    def _pack(self, number: int, block: Block) -> None:
        """Hand over one set of weights; copies in float32 live only as long as this call."""
        kept: list[Tensor] = []
        mixer, network = block.attention, block.feedforward
        assert isinstance(mixer, SoftmaxMixer)
        assert isinstance(network, PlainNetwork | GatedNetwork)
        qkv = interface.Linear(mixer.qkv.out_features, mixer.qkv.in_features)
        weight_NK, bias_N = _in_halves(mixer.qkv.weight, mixer.spec), _in_halves(_bias_of(mixer), mixer.spec)
        qkv.weight, qkv.bias = _kept(weight_NK, kept), _kept(bias_N, kept)
        weights = interface.Weights(
            qkv=qkv,
            out=_linear(mixer.out, kept),
            inner=_linear(network.inner, kept),
            outer=_linear(network.outer, kept),
            attention_norm=_norm(block.attention_norm, kept),
            feedforward_norm=_norm(block.feedforward_norm, kept),
        )
        if isinstance(mixer.distances, DistanceProjections):
            assert self._table_PD is not None
            bias = mixer.distances(self._table_PD, mixer.qkv).distances
            tables = (bias.keys_PHK, bias.queries_PHK)
            weights.distance_rows = len(self._table_PD)
            weights.distance_keys, weights.distance_queries = (
                None if table is None else _kept(table, kept) for table in tables
            )
        gated = isinstance(network, GatedNetwork)
        if self._library.native_weights(self._native, number, ctypes.byref(weights), gated):
            raise MemoryError(self._error())


def _kept(tensor: Tensor, alive: list[Tensor], dtype: torch.dtype | None = torch.float32) -> int:
    """The address of a tensor's values, which ``alive`` keeps; in its own type if ``dtype`` is None."""
    held = tensor.detach() if dtype is None else tensor.detach().to(dtype)
    alive.append(held.contiguous())
    return alive[-1].data_ptr()


def _linear(linear: nn.Module | None, alive: list[Tensor]) -> interface.Linear:
    if linear is None:
        return interface.Linear()
    assert isinstance(linear, nn.Linear)
    bias = None if linear.bias is None else _kept(linear.bias, alive)
    return interface.Linear(linear.out_features, linear.in_features, _kept(linear.weight, alive), bias)


def _norm(norm: nn.Module, alive: list[Tensor]) -> interface.Norm:
    match norm:
        case nn.LayerNorm(weight=weight, bias=bias, eps=eps):
            return interface.Norm(1, eps, _kept(weight, alive), None if bias is None else _kept(bias, alive))
        case nn.RMSNorm(weight=weight, eps=eps):
            return interface.Norm(2, eps, _kept(weight, alive), None)
        case _:
            return interface.Norm()


def _bias_of(mixer: SoftmaxMixer) -> Tensor:
    """One bias for queries, keys and values, 0 where there is none."""
    together: Tensor | None = mixer.qkv.bias
    if together is not None:
        return together
    own = (mixer.query_bias, mixer.key_bias, mixer.value_bias)
    return torch.cat(
        [
            mixer.qkv.weight.new_zeros(width) if bias is None else bias
            for bias, width in zip(own, mixer.spec.qkv_widths, strict=True)
        ]
    )


def _in_halves(rows: Tensor, spec: SoftmaxAttention) -> Tensor:
    """Rows of a projection with interleaved rotary pairs as two halves, which leaves scores as they are."""
    position = spec.position
    if not isinstance(position, Rotary) or not position.interleaved:
        return rows
    width = position.width or spec.head_width
    within = torch.cat(
        (torch.arange(0, width, 2), torch.arange(1, width, 2), torch.arange(width, spec.head_width))
    )
    heads, (queries, shared, _) = spec.head_width, spec.qkv_heads
    turned = (torch.arange(queries + shared)[:, None] * heads + within).flatten()
    rest = torch.arange(len(turned), len(rows))
    return rows[torch.cat((turned, rest))]


class _Tables:
    """Rotations and added terms by position, for sequences up to a length that grows by doubling."""

    def __init__(self, encoder: Encoder) -> None:
        self._rotations: list[tuple[Rotary, int]] = []
        self._distances: list[Callable[[int], Tensor]] = []
        self._added: list[tuple[AttentionPosition, int]] = []
        self._encoder = encoder
        self._made: tuple[int, tuple[object, object, object]] | None = None

    def rotation_of(self, mixer: SoftmaxAttention) -> int:
        """The number of a layer's rotations, or -1."""
        if not isinstance(mixer.position, Rotary):
            return -1
        return _number((mixer.position, mixer.head_width), self._rotations)

    def distances_of(self, mixer: SoftmaxAttention) -> int:
        """The number of a layer's terms by distance, or -1."""
        position = mixer.position
        if not isinstance(position, Alibi | Disentangled | RelativePositionBias):
            return -1
        number = _number((position, mixer.heads), self._added)
        if number == len(self._distances):
            self._distances.append(self._terms(position, mixer.heads))
        return number

    def _terms(
        self, position: Alibi | Disentangled | RelativePositionBias, heads: int
    ) -> Callable[[int], Tensor]:
        if isinstance(position, Alibi):
            return lambda length: -alibi_slopes(heads)[:, None] * torch.arange(1 - length, length).abs()
        if isinstance(position, Disentangled):
            return lambda length: table_rows(-torch.arange(1 - length, length), position)[None].int()
        table = self._encoder.distances
        assert isinstance(table, RelativeBiasTable)

        def terms(length: int) -> Tensor:
            bias = RelativeBias(position, table().detach().float())
            return bias.terms(1 - length, 1, 2 * length - 1, bias.table_PH)[:, 0]

        return terms

    def for_length(self, length: int) -> tuple[object, object, object]:
        """Both kinds of tables as arrays of the library, and what keeps them alive."""
        made = self._made
        if made is not None and made[0] >= length:
            return made[1]
        reach = max(SHORTEST_TABLE, 1 << (length - 1).bit_length())
        alive: list[Tensor] = []
        rotations = (interface.Table * len(self._rotations))()
        for table, (rotary, width) in zip(rotations, self._rotations, strict=True):
            waves = RotaryTable.of(torch.arange(reach), rotary, width, torch.float32)
            table.values, table.sines = (_kept(wave.flatten(1), alive) for wave in waves)
            table.columns = waves.cosine.shape[-1]
        distances = (interface.Table * len(self._distances))()
        for table, terms in zip(distances, self._distances, strict=True):
            values = terms(reach)
            kind = None if values.dtype == torch.int32 else torch.float32
            table.values, table.columns, table.middle = _kept(values, alive, kind), values.shape[1], reach - 1
        self._made = reach, (rotations, distances, alive)
        return self._made[1]


def _number(item: Any, among: list[Any]) -> int:
    """The place of an item in a list, which it joins if it is new."""
    if item not in among:
        among.append(item)
    return among.index(item)
