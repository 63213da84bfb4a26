"""The encoder module, built from an `EncoderSpec`, and an encoder with functions of the user inside.

It contains no code specific to a family. The points of an edit are those of analyses: of the residual stream,
and of what a block reads and adds. TransformerLens calls them resid_post, q, k, v, z, attn_out and mlp_out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.base.arguments import check_choice, one_of
from unmask.encoder.heads import ClassificationHead, MaskedLMHead, PoolerLayer, build_head, build_output, pool
from unmask.encoder.hooks import Hook, HookPoint, hooked
from unmask.encoder.layers.attention import AttentionPlan, SoftmaxMixer
from unmask.encoder.layers.block import Block, LayerInputs, Plan, initialize
from unmask.encoder.layers.embedding import EmbeddingLayer
from unmask.encoder.layers.parts import ConvolutionLayer, ExpertNetwork, build_norm
from unmask.encoder.layers.positions import DistanceTable, RelativeBiasTable
from unmask.errors import InvalidRequest, quoted
from unmask.spec import (
    CheckpointOutput,
    Disentangled,
    EncoderSpec,
    LinearAttention,
    RelativePositionBias,
    check_shared_query,
    role_of,
)
from unmask.spec.encoder import Initialization, require_layers
from unmask.text.batch import PackedBatch, SequenceLayout, share_queries


def build_distances(spec: EncoderSpec) -> DistanceTable | RelativeBiasTable | None:
    """The table of distances that layers share; None without positions that have one."""
    match spec.distances:
        case Disentangled() as position:
            return DistanceTable(position, spec.width)
        case RelativePositionBias():
            assert spec.distance_table is not None
            return RelativeBiasTable(*spec.distance_table)
        case None:
            return None
        case _:
            assert_never(spec.distances)


class Encoder(nn.Module):
    """Packed tokens to hidden states. Sequences never attend to one another.

    Args:
        spec: everything that determines tensors and outputs.
        kernel: the name of the attention kernel to use; None uses the first that supports the input.
        output: the output of the checkpoint, if its layers are to be built too; see `output`.
    """

    def __init__(
        self, spec: EncoderSpec, *, kernel: str | None = None, output: CheckpointOutput | None = None
    ) -> None:
        require_layers(spec, "looking into an encoder, training or exporting it")
        super().__init__()
        self.spec = spec
        self.kernel = kernel
        self.embedding = EmbeddingLayer(spec.embedding, spec.width)
        self.distances = build_distances(spec)
        self.convolution = ConvolutionLayer(spec.convolution, spec.width) if spec.convolution else None
        self.layer_inputs = LayerInputs(spec.gate, spec) if spec.gate else None
        used = spec.weights_of_layer
        self.layers = nn.ModuleList(
            Block(spec.layers[used.index(weights)], spec.width) for weights in range(max(used) + 1)
        )
        self.final_norm = build_norm(spec.final_norm, spec.width)
        self.final_map = (
            nn.Linear(spec.width, spec.output_width, bias=False) if spec.output_width else nn.Identity()
        )
        self.pooler = PoolerLayer(spec.pooler, spec.state_width) if spec.pooler else None
        self.heads = nn.ModuleDict({role_of(head): build_head(head, spec) for head in spec.heads})
        self.output = build_output(output, spec)
        """The layers that the checkpoint's output adds after pooling, or on each token's state."""
        self.initialize()

    def initialize(self, how: Initialization = "normal") -> None:
        """Initialize weights with the spec's standard deviation, see `Initialization`."""
        initialize(self, self.spec.init_std, len(self.spec.layers), how)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.words.weight.device

    def forward(
        self,
        ids_T: Tensor,
        layout: SequenceLayout,
        segments_T: Tensor | None = None,
        *,
        layers: int | None = None,
        hook: Hook | None = None,
    ) -> Tensor:
        """Hidden states of the last layer, shape (T, D), or of `EncoderSpec.state_width`.

        Args:
            ids_T: token ids of all sequences, end to end.
            layout: where each sequence begins.
            segments_T: token types; None means 0 everywhere.
            layers: stop after this many layers, before the final norm; None runs all.
            hook: called with intermediate tensors, which it may replace, see `HookPoint`.

        Raises:
            InvalidRequest: ids and layout disagree, or a sequence is longer than positions allow.
            KernelError: no attention kernel can run this.
        """
        self._check(ids_T, layout)
        segments_T = torch.zeros_like(ids_T) if segments_T is None else segments_T
        embedded_TD = x_TD = hooked(hook, HookPoint.EMBEDDED, 0, self.embedding(ids_T, segments_T, layout))
        table_PD = None if self.distances is None else self.distances()
        plans: dict[Any, Plan] = {}
        for layer in range(len(self.spec.layers))[:layers]:
            block = self.block(layer)
            plan, read_TP = self.plan(block, layout, x_TD, table_PD, plans), self.read(embedded_TD, layer)
            x_TD = block(x_TD, plan, layer, hook, read_TP)
            if layer == 0 and self.convolution is not None:
                x_TD = self.convolution(embedded_TD, x_TD, layout)
            x_TD = hooked(hook, HookPoint.LAYER, layer, x_TD)
        return x_TD if layers is not None else self.finished(x_TD)

    def read(self, embedded: Tensor, layer: int) -> Tensor | None:
        """What a layer's gate reads of the first layer's input: shape (..., D) to (..., P), P features.

        None without gates.
        """
        return None if self.layer_inputs is None else self.layer_inputs(embedded, layer)

    def levels(self, states: Sequence[Tensor], last: Tensor) -> list[Tensor]:
        """The L + 1 levels, shape (..., D) each: the input of the first layer, the outputs of layers, and for
        the last of these the last hidden states, or, where these have another width, it after the final norm.

        Args:
            states: the input of the first layer and the outputs of all.
            last: the last hidden states.
        """
        return [*states[:-1], last if self.spec.output_width is None else self.final_norm(states[-1])]

    def finished(self, x: Tensor) -> Tensor:
        """Last hidden states, from those of the last layer, after the final norm and map: shape (..., D) to
        (..., D), or to `EncoderSpec.state_width`. The norm is left to heads if the spec says so.
        """
        hidden: Tensor = self.final_map(x if self.spec.norm_in_heads else self.final_norm(x))
        return hidden

    def block(self, layer: int) -> Block:
        """The layer with that index; layers that share weights return the same module."""
        block = self.layers[self.spec.weights_of_layer[layer]]
        assert isinstance(block, Block)
        return block

    def plan(
        self,
        block: Block,
        layout: SequenceLayout,
        x_TD: Tensor,
        table_PD: Tensor | None,
        plans: dict[Any, Plan],
    ) -> Plan:
        """The plan of the block's mixer for this batch; layers with equal needs share it in ``plans``."""
        plan = block.attention.plan(layout, x_TD, self.kernel, plans)
        if table_PD is not None and isinstance(plan, AttentionPlan):
            plan = replace(plan, table_PD=table_PD)
        return plan

    def encode(self, batch: PackedBatch, *, hook: Hook | None = None) -> Tensor:
        """`forward` for a batch that is still on the host: last hidden states, (T, D).

        Equal queries of pairs are computed once.

        Raises:
            InvalidRequest: see `forward`; or queries are marked, and the encoder cannot share them or
                intermediate tensors are asked for.
        """
        if batch.queries_T is not None:
            check_shared_query(self.spec)
            if hook is not None:
                raise InvalidRequest(
                    "the states inside of pairs with a shared query are not recorded; encode without a hook"
                )
            shared = share_queries(batch)
            return self.encode(shared.batch)[torch.from_numpy(shared.tokens_T).to(self.device)]
        ids_T, segments_T = (
            torch.from_numpy(array).to(self.device) for array in (batch.ids_T, batch.token_type_ids_T)
        )
        return self(ids_T, batch.layout, segments_T, hook=hook)  # type: ignore[no-any-return]

    def logits(self, role: str, x_TD: Tensor, layout: SequenceLayout) -> Tensor:
        """Logits of a head from the last hidden states.

        Shape (T, V) for ``masked``, (T, C) for classifiers of tokens, (S, C) for those of sequences.

        Raises:
            InvalidRequest: the encoder has no such head.
        """
        if role not in self.heads:
            has = ", ".join(self.heads) or "none"
            raise InvalidRequest(f"the encoder has no {role} head; it has: {has}")
        head = self.heads[role]
        if self.spec.norm_in_heads and getattr(head.spec, "reads", None) != "unnormed":
            x_TD = self.final_norm(x_TD)
        if isinstance(head, MaskedLMHead):
            return head(x_TD, self.embedding.words.weight)  # type: ignore[no-any-return]
        assert isinstance(head, ClassificationHead)
        match head.spec.reads:
            case "late":
                return pool(head(x_TD), layout, "mean")
            case "tokens" | "unnormed":
                state = x_TD
            case "pooler":
                assert self.pooler is not None
                state = self.pooler(x_TD, layout)
            case "first":
                state = pool(x_TD, layout, "cls")
            case "last":
                state = pool(x_TD, layout, "last")
            case "mean":
                state = pool(x_TD, layout, "mean")
            case "tokens_and_first":
                lengths_S = torch.from_numpy(layout.lengths).to(x_TD.device)
                state = x_TD + pool(x_TD, layout, "cls").repeat_interleave(lengths_S, dim=0)
            case _:
                assert_never(head.spec.reads)
        return head(state)  # type: ignore[no-any-return]

    def _check(self, ids_T: Tensor, layout: SequenceLayout) -> None:
        if ids_T.shape != (layout.token_count,):
            raise InvalidRequest(
                f"the layout holds {layout.token_count} tokens and the ids have shape {tuple(ids_T.shape)}"
            )
        layout_read = layout if layout.expansion is None else layout.expansion.layout
        longest, limit = int(layout_read.lengths.max()), self.spec.max_tokens
        if limit is not None and longest > limit:
            raise InvalidRequest(
                f"a sequence has {longest} tokens and the encoder's position table reaches {limit}"
            )
        if layout.unattended_T is not None and (
            self.convolution is not None
            or self.spec.embedding.reads_neighbors
            or any(
                isinstance(layer.mixer, LinearAttention) or layer.mixer.span_convolution is not None
                for layer in self.spec.layers
            )
        ):
            raise InvalidRequest(
                "a part without a mask of keys (linear attention, a convolution or neighbors' vectors) "
                "reads every token, and some tokens are not to be attended to; use another checkpoint"
            )


POINTS = {
    "embeddings": HookPoint.EMBEDDED,
    "query": HookPoint.QUERY,
    "key": HookPoint.KEY,
    "value": HookPoint.VALUE,
    "head_output": HookPoint.MIXED,
    "attention_output": HookPoint.ATTENTION,
    "feedforward_output": HookPoint.FEEDFORWARD,
    "residual": HookPoint.LAYER,
}
"""The points at which an encoder can be edited; `HookPoint` says what each tensor is, and its shape."""

_WEIGHTS = ("probabilities", "attention_probabilities", "attention", "pattern", "scores")
"""What people call the matrix of a head."""


@dataclass(frozen=True, eq=False)
class EditContext:
    """Where in which batch the function of an edit is called."""

    point: str
    """One of `POINTS`."""
    layer: int
    """From 0; 0 for ``embeddings``."""
    ids_T: NDArray[np.int64]
    """The token ids of all sequences, end to end."""
    offsets: NDArray[np.int64]
    """Where each sequence begins, and the end of the last: shape (sequences + 1,). Sequence s has the rows
    ``offsets[s]`` to ``offsets[s + 1]`` of the tensor."""


EditFunction = Callable[[Tensor, EditContext], Tensor | None]
"""Given a tensor, whose first axis is the tokens of all sequences, and where it comes from; returns a tensor
of the same shape to go on with in its place, or None to leave it. It must not change its argument."""


@dataclass(frozen=True, eq=False)
class Edit:
    """A function at one point of some layers."""

    point: str
    layers: frozenset[int]
    function: EditFunction

    def reaches(self, layer: int) -> bool:
        """Whether something in the layer is edited."""
        return self.point != "embeddings" and layer in self.layers

    @classmethod
    def at(
        cls, encoder: Encoder, point: str, layer: int | Sequence[int] | None, function: EditFunction
    ) -> "Edit":
        """The edit of one layer, of several, or of all for None.

        Raises:
            InvalidRequest: there is no such point or layer, or the function cannot be called.
        """
        if isinstance(point, str) and point in _WEIGHTS:
            raise InvalidRequest(
                f"point is {quoted(point)}, and no kernel holds the weights of attention as a matrix; edit "
                "'query', 'key' or 'head_output'"
            )
        check_choice("point", point, tuple(POINTS))
        if not callable(function):
            raise InvalidRequest(
                f"function is {quoted(function)}; give a function of a tensor and its context"
            )
        count = len(encoder.spec.layers)
        if point == "embeddings":
            if layer is not None:
                raise InvalidRequest(f"layer is {layer}, and embeddings come before all layers; leave it out")
            return cls(point, frozenset({0}), function)
        if layer is None:
            return cls(point, frozenset(range(count)), function)
        chosen = layer if isinstance(layer, Sequence) else (layer,)
        return cls(
            point,
            frozenset(one_of("layer", number, count, "this encoder has layers") for number in chosen),
            function,
        )


class EditedEncoder(Encoder):
    """An encoder whose every forward pass calls the function of an edit. It shares the encoder's modules,
    which stay as they are.

    Args:
        encoder: any encoder, edited or not: the edits of an edited one come first.
        edit: what is called where.

    Raises:
        InvalidRequest: the encoder's layers are compiled.
    """

    def __init__(self, encoder: Encoder, edit: Edit) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(encoder.__dict__)
        if any("after_attention" in block.__dict__ for block in encoder.layers):
            raise InvalidRequest("compiled layers cannot be edited; edit the encoder before it is compiled")
        # In a list, so that it is not registered as a submodule, under whose name weights would appear twice.
        self._unedited = [encoder]
        self.edit = edit

    def edits(self) -> tuple[Edit, ...]:
        """Every edit, in the order in which they are made."""
        (encoder,) = self._unedited
        return (*(encoder.edits() if isinstance(encoder, EditedEncoder) else ()), self.edit)

    def forward(
        self,
        ids_T: Tensor,
        layout: SequenceLayout,
        segments_T: Tensor | None = None,
        *,
        layers: int | None = None,
        hook: Hook | None = None,
    ) -> Tensor:
        """See `Encoder.forward`; ``hook`` is called with tensors as they were edited."""
        edit, ids = self.edit, ids_T.numpy(force=True)

        def editing(point: HookPoint, layer: int, tensor: Tensor) -> Tensor:
            if point is POINTS[edit.point] and layer in edit.layers:
                context = EditContext(edit.point, layer, ids, layout.offsets)
                tensor = _checked(edit.function(tensor, context), tensor, context)
            return hooked(hook, point, layer, tensor)

        (encoder,) = self._unedited
        return encoder.forward(ids_T, layout, segments_T, layers=layers, hook=editing)


def _checked(other: object, tensor: Tensor, context: EditContext) -> Tensor:
    """What the function returned, in the type of the tensor that it was given."""
    if other is None:
        return tensor
    where = "embeddings" if context.point == "embeddings" else f"{context.point} of layer {context.layer}"
    if not isinstance(other, Tensor):
        raise InvalidRequest(
            f"the function at {where} returned a {type(other).__name__}; it must return a tensor or None"
        )
    if other.shape != tensor.shape:
        raise InvalidRequest(
            f"the function at {where} returned a tensor of shape {tuple(other.shape)}; it must have the "
            f"shape {tuple(tensor.shape)} of the one that it was given"
        )
    return other.to(tensor)


def is_finite(tensor: Tensor) -> bool:
    """Whether all numbers of a tensor are finite.

    Two extremes, found in one pass, need no mask of the tensor's size; NaN is both.
    """
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return bool(torch.isfinite(tensor).all())
    return all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(tensor))


def compile_blocks(encoder: Encoder, *, backend: str = "inductor", dynamic: bool | None = None) -> Encoder:
    """Compile the layers of an encoder in place, for training; weights and their names stay the same.

    Each layer becomes two compiled parts around its attention: projections with rotary positions, and
    everything from the residual sum to the layer's end (norms, feed-forward, residuals). Attention between
    them runs in the chosen kernel, uncompiled. Layers of the same shape share the compiled code.

    Parts are compiled without graph breaks: code that torch cannot compile is an error, not a slower run. The
    first batch compiles for its number of tokens, and a second number compiles for all numbers; batches with
    a constant number of tokens need only the first compilation.

    Args:
        encoder: changed in place, and returned.
        backend: the backend of `torch.compile`.
        dynamic: True compiles for any number of tokens, False separately for every number; None compiles for
            one number first, and for all numbers when a second occurs.

    Raises:
        InvalidRequest: it is compiled already.
    """
    if is_compiled(encoder):
        raise InvalidRequest("the encoder's blocks are compiled already")
    if any(isinstance(network, ExpertNetwork) for network in encoder.modules()):
        raise InvalidRequest(
            "a mixture of experts cannot be compiled, because the number of tokens of each expert differs "
            "from step to step; leave compiling out"
        )

    def compiled(part: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(part, fullgraph=True, backend=backend, dynamic=dynamic)

    for block in encoder.layers:
        assert isinstance(block, Block)
        # The attributes of an instance override its class's methods; no module is added, so no name changes.
        block.__dict__["after_attention"] = compiled(block.after_attention)
        if isinstance(block.attention, SoftmaxMixer):
            block.attention.__dict__["project"] = compiled(block.attention.project)
    return encoder


def is_compiled(encoder: Encoder) -> bool:
    """Whether `compile_blocks` was called for the encoder."""
    return any("after_attention" in block.__dict__ for block in encoder.layers)
