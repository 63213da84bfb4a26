"""An encoder's layers for the native library: what it can compute, and weights handed over. Free of torch."""

import ctypes
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from unmask.engines.native import interface
from unmask.engines.native.parts import Float32s, Weights, norm_scale
from unmask.engines.native.tables import PositionTables, projected
from unmask.errors import InvalidRequest
from unmask.spec import (
    AttentionPattern,
    CausalAttention,
    Disentangled,
    Embedding,
    EncoderSpec,
    ExpertFeedForward,
    FullAttention,
    GatedFeedForward,
    Layer,
    LayerNorm,
    NoNorm,
    Norm,
    PlainFeedForward,
    RelativePositionBias,
    Rotary,
    SlidingWindow,
    SlidingWindowGlobal,
    SoftmaxAttention,
    StackedFeedForward,
)
from unmask.spec.attention import simplify
from unmask.text.batch import PackedBatch, SequenceLayout


@runtime_checkable
class InParts(Protocol):
    """Weights of which a tensor can be read a few rows at a time, so that memory stays small."""

    def parts(self, name: str, rows: int) -> Iterator[Float32s]:
        """The tensor, some rows after the others."""


ALL, BEFORE = -1, -2
"""In place of a radius: every key of the sequence; those up to the query."""


WITHOUT_STATISTICS = "a norm without statistics is computed by its own module"


def unsupported_encoder(spec: EncoderSpec) -> str | None:
    """Why an encoder's layers run in torch, as the end of "... because"; None if they can run natively."""
    if spec.convolution is not None:
        return "the convolution after the first layer is computed by its own module"
    if spec.output_width is not None:
        return "the map of last hidden states to another width is computed by its own module"
    if isinstance(spec.final_norm, NoNorm):
        return WITHOUT_STATISTICS
    reasons = (_unsupported_embedding(spec.embedding), *map(_unsupported_layer, spec.layers))
    return next((reason for reason in reasons if reason is not None), None)


def _unsupported_embedding(embedding: Embedding) -> str | None:
    if embedding.token_dropout is not None:
        return "word vectors are scaled by a text's share of mask tokens (token_dropout)"
    if embedding.projection is not None and embedding.projection.words_alone:
        return "word vectors alone are projected"
    if isinstance(embedding.norm, NoNorm):
        return WITHOUT_STATISTICS
    if embedding.tasks and not embedding.segments:
        return "task vectors are added to token types, and there are none"
    return None


def _unsupported_layer(layer: Layer) -> str | None:
    mixer, network = layer.mixer, layer.feedforward
    own_module = {
        "a bottleneck": layer.bottleneck is not None,
        "a gate by the embedding": layer.gate is not None,
        "a factor of a layer's output": layer.factor,
        "a norm of values": isinstance(mixer, SoftmaxAttention)
        and mixer.query_key_norm is not None
        and mixer.query_key_norm.values,
        "a mixture of experts": isinstance(network, ExpertFeedForward),
        "a stack of feed-forward networks": isinstance(network, StackedFeedForward),
        "a norm without statistics": isinstance(layer.norm, NoNorm),
        "a network in groups": isinstance(network, PlainFeedForward) and network.groups > 1,
        "linear attention": not isinstance(mixer, SoftmaxAttention),
        "convolution beside attention": isinstance(mixer, SoftmaxAttention)
        and mixer.span_convolution is not None,
        "attention with sinks": isinstance(mixer, SoftmaxAttention) and mixer.sinks,
    }
    for part, holds in own_module.items():
        if holds:
            return f"{part} is computed by its own module"
    assert isinstance(mixer, SoftmaxAttention)
    pattern = mixer.pattern
    window = pattern.window if isinstance(pattern, SlidingWindowGlobal) else pattern
    if isinstance(window, SlidingWindow) and window.dilation > 1:
        return "a dilated window is no range of keys"
    if mixer.head_width > LARGEST_HEAD:
        return f"heads have {mixer.head_width} features, more than {LARGEST_HEAD}"
    return None


LARGEST_HEAD = 512


def unsupported_batch(spec: EncoderSpec, batch: PackedBatch) -> str | None:
    """Why one batch runs in torch, as the end of "a text of which ..."; None if it can run natively."""
    layout = batch.layout
    if batch.queries_T is not None or layout.expansion is not None:
        return "documents share queries"
    if layout.unattended_T is not None:
        return "some tokens are not attended to"
    if _radii(spec, layout) is None:
        return "global tokens or blocks are no range of keys"
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

    It holds a packed copy of the linear layers' weights; the embedding's tables are those that were given, if
    their type is that of the library.

    Args:
        spec: for which `unsupported_encoder` returns None.
        weights: its tensors; those of one layer are read at a time.
        precision: of the linear layers, one that the library supports.
        library: see `unmask.engines.native.library`.
    """

    def __init__(self, spec: EncoderSpec, weights: Weights, precision: str, library: Any) -> None:
        self.spec, self._library, self._weights = spec, library, weights
        self._alive: list[NDArray[Any]] = []
        relative = isinstance(spec.distances, RelativePositionBias)
        self._tables = PositionTables(np.array(weights["distances.table.weight"]) if relative else None)
        self._native = None
        layers = (interface.Layer * len(spec.layers))(*map(self._layer, range(len(spec.layers))))
        sets = max(spec.weights_of_layer) + 1
        top = interface.Encoder(
            precision=interface.PRECISIONS.index(precision),
            width=spec.width,
            layers=len(layers),
            sets=sets,
            layer=layers,
            embedding=self._embedding(half=precision == "bfloat16"),
            final_norm=self._norm(None if spec.norm_in_heads else spec.final_norm, "final_norm", self._alive),
        )
        native = library.native_new(ctypes.byref(top))
        if not native:
            raise MemoryError(self._error())
        self._native = ctypes.c_void_p(native)
        for number in range(sets):
            self._pack(number)
        del self._weights

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
        learned = self.spec.embedding.positions
        left_out = None if learned is None else learned.left_out
        places_T = layout.positions_without(batch.ids_T, left_out) if left_out is not None else None
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
            None if places_T is None else places_T.ctypes.data,
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
            heads_normed=_heads_normed(mixer),
            output_norms=1 if spec.output_norms else 2 * spec.attention_sum_norm,
        )

    def _embedding(self, *, half: bool) -> interface.Embedding:
        """The embedding; ``half``: its tables are kept in bfloat16."""
        spec, alive = self.spec.embedding, self._alive
        added = spec.positions is not None and spec.positions.added
        words, places, types = (
            self._table(f"embedding.{name}.weight", half) if has else None
            for name, has in (("words", True), ("positions", added), ("segments", spec.segments > 0))
        )
        if spec.tasks:  # every token has one token type and task 0
            table_SD = self._weights["embedding.segments.weight"] + self._weights["embedding.tasks.weight"][0]
            types = self._rows((table_SD,), half)
        projection = spec.projection
        return interface.Embedding(
            vocabulary=spec.vocabulary,
            width=spec.width,
            offset=0 if spec.positions is None else spec.positions.offset,
            segments=spec.segments,
            stored=half,
            words=words,
            places=places,
            types=types,
            scale=spec.scale,
            norm=self._norm(spec.norm, "embedding.norm", alive),
            projection=interface.Linear()
            if projection is None
            else self._linear("embedding.projection", alive),
            project_first=projection is not None and projection.before_norm,
        )

    def _table(self, name: str, half: bool) -> int:
        weights = self._weights
        if half and isinstance(weights, InParts):
            return self._rows(weights.parts(name, ROWS_AT_ONCE), half)
        return self._rows((weights[name],), half)

    def _rows(self, parts: Iterable[Float32s], half: bool) -> int:
        """A table from parts of its rows, which are one part unless ``half``."""
        if not half:
            (table,) = parts
            return _address(table, self._alive)
        return _address(np.concatenate([to_bfloat16(part) for part in parts]), self._alive, np.uint16)

    def _pack(self, number: int) -> None:
        """Hand over one set of weights; what is read for it lives only as long as this call."""
        alive: list[NDArray[Any]] = []
        layer, prefix = self.spec.layers[self.spec.weights_of_layer.index(number)], f"layers.{number}"
        mixer = layer.mixer
        assert isinstance(mixer, SoftmaxAttention)
        weight_NK, bias_N = (
            self._weights[f"{prefix}.attention.qkv.weight"],
            qkv_bias(mixer, self._weights, prefix),
        )
        qkv = interface.Linear(*weight_NK.shape)
        qkv.weight, qkv.bias = (
            _address(_as_scored(_in_halves(rows, mixer, mixer.qkv_heads), mixer), alive)
            for rows in (weight_NK, bias_N)
        )
        weights = interface.Weights(
            qkv=qkv,
            out=self._linear(f"{prefix}.attention.out", alive, layer.output_scale),
            inner=self._linear(f"{prefix}.feedforward.inner", alive),
            outer=self._linear(f"{prefix}.feedforward.outer", alive, layer.output_scale),
            attention_norm=self._norm(
                layer.norm if layer.attention_norm else None, f"{prefix}.attention_norm", alive
            ),
            feedforward_norm=self._norm(layer.norm, f"{prefix}.feedforward_norm", alive),
        )
        if mixer.query_key_norm is not None:
            weights.query_norm = self._score_norm(mixer, 0, f"{prefix}.attention.query_norm", alive)
            weights.key_norm = self._score_norm(mixer, 1, f"{prefix}.attention.key_norm", alive)
        for part, normed in (
            ("attention_output_norm", layer.output_norms or layer.attention_sum_norm),
            ("feedforward_output_norm", layer.output_norms),
        ):
            if normed:
                setattr(weights, part, self._norm(layer.norm, f"{prefix}.{part}", alive))
        if isinstance(mixer.position, Disentangled):
            tables = projected(mixer, mixer.position, self._weights, prefix)
            weights.distance_rows = 2 * mixer.position.span
            weights.distance_keys, weights.distance_queries = (
                None if table is None else _address(table, alive) for table in tables
            )
        gated = isinstance(layer.feedforward, GatedFeedForward)
        if self._library.native_weights(self._native, number, ctypes.byref(weights), gated):
            raise MemoryError(self._error())

    def _linear(self, name: str, alive: list[NDArray[Any]], factor: float = 1.0) -> interface.Linear:
        """A linear layer, whose result is multiplied by ``factor``."""

        def address(values: Float32s) -> int:
            return _address(values if factor == 1 else values * np.float32(factor), alive)

        weight_NK, bias = self._weights[f"{name}.weight"], f"{name}.bias"
        pointer = address(self._weights[bias]) if bias in self._weights else None
        return interface.Linear(*weight_NK.shape, address(weight_NK), pointer)

    def _norm(self, norm: Norm | None, name: str, alive: list[NDArray[Any]]) -> interface.Norm:
        if norm is None:
            return interface.Norm()
        weight = _address(norm_scale(norm, name, self._weights), alive)
        assert not isinstance(norm, NoNorm)
        if not isinstance(norm, LayerNorm):
            return interface.Norm(2, norm.eps, weight, None)
        return interface.Norm(
            1, norm.eps, weight, _address(self._weights[f"{name}.bias"], alive) if norm.bias else None
        )

    def _score_norm(
        self, mixer: SoftmaxAttention, part: int, name: str, alive: list[NDArray[Any]]
    ) -> interface.Norm:
        """The norm of queries (part 0) or keys (1), with the factor of scores and pairs as halves."""
        assert mixer.query_key_norm is not None
        spec, norm = mixer.query_key_norm, self._norm(mixer.query_key_norm.norm, name, alive)
        heads = 1 if spec.over == "head" else mixer.qkv_heads[part]
        factor = np.float32(1 if part else mixer.query_factor)

        def as_read(values: Float32s) -> int:
            return _address(_in_halves(values, mixer, (heads, 0, 0)) * factor, alive)

        norm.weight = as_read(norm_scale(spec.norm, name, self._weights))
        if norm.bias:
            norm.bias = as_read(self._weights[f"{name}.bias"])
        return norm


def _heads_normed(mixer: SoftmaxAttention) -> int:
    """How many heads of queries share a norm: 0 for none."""
    if mixer.query_key_norm is None:
        return 0
    return 1 if mixer.query_key_norm.over == "head" else mixer.heads


def qkv_bias(mixer: SoftmaxAttention, weights: Weights, prefix: str) -> Float32s:
    """One bias for queries, keys and values, 0 where there is none; ``prefix`` begins the layer's names."""
    has = (mixer.query_bias, mixer.key_bias, mixer.value_bias)
    if all(has):
        return weights[f"{prefix}.attention.qkv.bias"]
    names = ("query_bias", "key_bias", "value_bias")
    return np.concatenate(
        [
            weights[f"{prefix}.attention.{name}"] if biased else np.zeros(width, np.float32)
            for name, biased, width in zip(names, has, mixer.qkv_widths, strict=True)
        ]
    )


def _address(array: NDArray[Any], alive: list[NDArray[Any]], dtype: Any = np.float32) -> int:
    """The address of an array's values, which ``alive`` keeps."""
    alive.append(np.require(array, dtype, ["C", "A"]))
    return int(alive[-1].ctypes.data)


ROWS_AT_ONCE = 1024
"""Rows of a table that are rounded at once, so that memory stays small."""


def to_bfloat16(values: Float32s) -> NDArray[np.uint16]:
    """The upper halves of float32 numbers rounded to bfloat16, to even where two are as near."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    halves = rounded.astype(np.uint16)
    halves[np.isnan(values)] = 0x7FC0
    return halves


def _in_halves(rows: Float32s, spec: SoftmaxAttention, heads: tuple[int, int, int]) -> Float32s:
    """Rows of heads with interleaved rotary pairs as two halves, which leaves scores as they are.

    ``heads``: of queries, of keys and of values, whose rows stay where they are.
    """
    position = spec.position
    if not isinstance(position, Rotary) or not position.interleaved:
        return rows
    width, head = position.width or spec.head_width, spec.head_width
    within = np.r_[0:width:2, 1:width:2, width:head]
    turned = (np.arange(heads[0] + heads[1])[:, None] * head + within).reshape(-1)
    order = np.concatenate((turned, np.arange(len(turned), len(rows))))
    return np.take(rows, order, axis=0)


def _as_scored(rows: Float32s, spec: SoftmaxAttention) -> Float32s:
    """Rows of a projection, those of queries times the factor of scores unless a norm follows."""
    if spec.score_scale is None or spec.query_key_norm is not None:
        return rows
    scored = np.array(rows)
    scored[: spec.qkv_widths[0]] *= np.float32(spec.query_factor)
    return scored
