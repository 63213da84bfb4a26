"""One encoder with several adapters: in a packed batch, each sequence is read with its own.

Axes: T tokens; K inputs, N outputs and R rank of an update.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from threading import Lock

import numpy as np
import torch
from torch import Tensor, nn

from unmask.encoder.encoder import Encoder
from unmask.engines.engine import Floats
from unmask.engines.torch_engine import EngineOfStates, TorchEngine
from unmask.errors import InvalidRequest
from unmask.spec import Disentangled, SoftmaxAttention
from unmask.text import PackedBatch, SequenceLayout
from unmask.weights.adapters.adapter import RowUpdates, factors_of
from unmask.weights.build import build
from unmask.weights.read.checkpoint import Checkpoint

ROUTED = (
    "attention.qkv.weight",
    "attention.out.weight",
    "feedforward.inner.weight",
    "feedforward.outer.weight",
)
"""Matrices of a layer that each token may have updated in its own way."""

Route = list[tuple[int, slice]]
"""Which adapter reads which tokens."""
Group = tuple[int | None, PackedBatch]
"""The number of an adapter, or None for the model without one, and the sequences that it reads."""


class RoutedUpdates:
    """A forward hook of one linear layer: adds the low-rank updates of all adapters, as a route says."""

    def __init__(self, route: Route, like: Tensor) -> None:
        self.route = route
        self.like = like
        self.factors: dict[int, list[tuple[slice, tuple[Tensor, Tensor]]]] = {}

    def add(self, adapter: int, updates: RowUpdates, scale: float) -> None:
        """Add the updates of an adapter."""
        self.factors[adapter] = [
            (outputs, (torch.from_numpy(a_RK).to(self.like), torch.from_numpy(scale * b_PR).to(self.like)))
            for outputs, (a_RK, b_PR) in updates
        ]

    def __call__(self, linear: nn.Module, args: tuple[Tensor], y_TN: Tensor) -> Tensor:
        """The layer's output with the updates."""
        (x_TK,) = args
        for adapter, rows in self.route:
            for outputs, (a_RK, b_PR) in self.factors.get(adapter, []):
                y_TN[rows, outputs].add_(x_TK[rows] @ a_RK.T @ b_PR.T)
        return y_TN


class RoutedEngine:
    """Runs packed batches in which each sequence has an adapter of its own. Results have no gradients.

    If an adapter updates something that tokens of one pass share, such as the projections of a distance table
    (DeBERTa), each adapter's sequences are read in a pass of their own; results are the same.

    Args:
        base: the checkpoint without an adapter.
        adapted: the checkpoint with each adapter.
        dtype: of the weights.
        device: a torch device name; None is the CPU.
        kernel: the attention kernel; None uses the first that supports the model.
    """

    def __init__(
        self,
        base: Checkpoint,
        adapted: Sequence[Checkpoint],
        *,
        dtype: str = "float32",
        device: str | None = None,
        kernel: str | None = None,
    ) -> None:
        self.dtype = dtype
        self._route: Route = []
        self._reading = Lock()
        factors = [factors_of(checkpoint) for checkpoint in adapted]
        self.one_pass = _can_share(base, [name for updates in factors for name in updates])
        """Whether all adapters read in one pass."""
        self._encoders = [
            build(checkpoint, dtype=dtype, device=device, kernel=kernel) for checkpoint in adapted
        ]
        if self.one_pass:
            self._encoder = build(base, dtype=dtype, device=device, kernel=kernel)
            self._hook(adapted, factors)
            for encoder in self._encoders:  # only their heads and poolers are used
                encoder.layers = nn.ModuleList()
                encoder.embedding = self._encoder.embedding

    def _hook(self, adapted: Sequence[Checkpoint], factors: Sequence[Mapping[str, RowUpdates]]) -> None:
        for name in sorted({name for updates in factors for name in updates if name.startswith("layers.")}):
            linear = self._encoder.get_submodule(name.removesuffix(".weight"))
            assert isinstance(linear, nn.Linear)
            updates = RoutedUpdates(self._route, linear.weight.detach())
            for number, (checkpoint, adapter_updates) in enumerate(zip(adapted, factors, strict=True)):
                if name in adapter_updates:
                    assert checkpoint.adapter is not None
                    updates.add(number, adapter_updates[name], checkpoint.adapter.scale)
            linear.register_forward_hook(updates)

    def logits(self, groups: Sequence[tuple[int, PackedBatch]], roles: Sequence[str]) -> list[Floats]:
        """The logits of each adapter's sequences, as of `Engine.logits`.

        Args:
            groups: numbers of adapters with the sequences that each reads.
            roles: the role of each adapter's head.
        """
        return [
            engine.logits(batch, roles[adapter])
            for (adapter, batch), engine in zip(groups, self.with_states(groups), strict=True)
        ]

    def engine(self, adapter: int | None) -> "OneOfSeveral":
        """An `Engine` of one adapter, or, if all read in one pass, of the model without one."""
        return OneOfSeveral(self, adapter)

    def with_states(self, groups: Sequence[Group]) -> list[TorchEngine]:
        """Read all groups in one pass if adapters can; the engine of each group takes its states from it."""
        engines = [self.engine(adapter) for adapter, _ in groups]
        return [
            EngineOfStates(engine, batch, x_TD)
            for engine, (_, batch), x_TD in zip(engines, groups, self.states(groups), strict=True)
        ]

    def states(self, groups: Sequence[Group]) -> list[Tensor]:
        """The last hidden states of each group's sequences, (T, D)."""
        with torch.inference_mode():
            if not self.one_pass:
                return [self.parts(adapter).encode(batch) for adapter, batch in groups]
            ends = np.cumsum([0, *(batch.layout.token_count for _, batch in groups)]).tolist()
            rows = [slice(start, end) for start, end in pairwise(ends)]
            route = [
                (adapter, part)
                for (adapter, _), part in zip(groups, rows, strict=True)
                if adapter is not None
            ]
            with self._routed(route):
                x_TD = self._encoder.encode(joined([batch for _, batch in groups]))
            return [x_TD[part] for part in rows]

    def parts(self, adapter: int | None) -> Encoder:
        """What follows the layers, of an adapter or of the model; all of it if adapters read apart."""
        return self._encoder if adapter is None else self._encoders[adapter]

    @contextmanager
    def _routed(self, route: Route) -> Iterator[None]:
        with self._reading:  # the route belongs to one pass
            self._route[:] = route
            try:
                yield
            finally:
                self._route.clear()


class OneOfSeveral(TorchEngine):
    """One adapter of a `RoutedEngine`, or the model without one, as an `Engine`."""

    def __init__(self, routed: RoutedEngine, adapter: int | None) -> None:
        self.routed, self.adapter = routed, adapter

    @property
    def encoder(self) -> Encoder:
        """See `TorchEngine`.

        Raises:
            InvalidRequest: no module has the adapter's weights.
        """
        if self.adapter is not None and self.routed.one_pass:
            raise InvalidRequest(
                "this adapter shares the model's weights with others, so no module has its weights; load it "
                "alone with unmask.load(..., adapter=...)"
            )
        return self.parts

    @property
    def parts(self) -> Encoder:
        """See `TorchEngine`."""
        return self.routed.parts(self.adapter)

    @property
    def dtype(self) -> str:
        """See `Engine`."""
        return self.routed.dtype

    def states(self, batch: PackedBatch, *, exact: bool = False) -> Tensor:
        """See `TorchEngine`."""
        (x_TD,) = self.routed.states([(self.adapter, batch)])
        return x_TD


def joined(batches: Sequence[PackedBatch]) -> PackedBatch:
    """Batches end to end."""
    lengths = np.concatenate([batch.layout.lengths for batch in batches])
    marks = [batch.layout.globals_T for batch in batches if batch.layout.globals_T is not None]
    globals_T = np.concatenate(marks) if len(marks) == len(batches) else None
    unattended_T = None
    if any(batch.layout.unattended_T is not None for batch in batches):
        none = [np.zeros(batch.layout.token_count, dtype=np.bool_) for batch in batches]
        unseen = [batch.layout.unattended_T for batch in batches]
        unattended_T = np.concatenate(
            [
                empty if unattended is None else unattended
                for empty, unattended in zip(none, unseen, strict=True)
            ]
        )
    return PackedBatch(
        np.concatenate([batch.ids_T for batch in batches]),
        np.concatenate([batch.token_type_ids_T for batch in batches]),
        SequenceLayout.of_lengths(lengths, globals_T, unattended_T),
    )


def _can_share(base: Checkpoint, updated: Sequence[str]) -> bool:
    """Whether tokens of one pass can be updated in different ways."""
    inside = all(name.endswith(ROUTED) for name in updated if name.startswith("layers."))
    others = all(name.startswith(("layers.", "heads.", "pooler.")) for name in updated)
    return (
        inside
        and others
        and not any(
            isinstance(layer.mixer, SoftmaxAttention)
            and isinstance(layer.mixer.position, Disentangled)
            and layer.mixer.position.shared_projections
            for layer in base.spec.layers
        )
    )
