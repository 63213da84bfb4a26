"""One training step by several processes: replicated or sharded weights, and summed gradients.

``ddp``: every process holds all weights and computes some of the micro-batches of a global batch. Gradients
are summed after the last one. Each loss is already a share of the global batch's mean, so nothing is divided.
A parameter that no process used has no gradient afterwards, as in one process; a parameter that some
processes used has a gradient in all of them. No process waits for a gradient that never comes, and processes
may have different numbers of micro-batches.

``fsdp``: every process holds a shard of each weight, its gradient, moments and average (torch's
``fully_shard``: Zhao et al. 2023; Rajbhandari et al. 2020, stage 3). A layer is gathered while it is
computed, and its gradient is reduced and sharded after each micro-batch. Processes run layers in step, so
they need the same number of micro-batches, and which parameters are used must not depend on the text.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, distributed, nn
from torch.utils import _pytree

from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.spec.encoder import why_no_decoder
from unmask.training.objectives.interface import LossOutput
from unmask.training.optim.updates import full_tensors, is_dtensor
from unmask.training.run.ranks import Ranks
from unmask.training.run.settings import RunSettings

BUCKET = 1 << 24
"""Gradient elements that are sent at once: 64 MB in float32."""

# So that FSDP finds the loss in what an objective returns.
_pytree.register_dataclass(LossOutput)


def check_batches(settings: RunSettings, ranks: Ranks) -> None:
    """Raise if the processes cannot share the batches.

    Raises:
        InvalidRequest: a step has fewer micro-batches than there are processes; or, for ``fsdp``, a number
        that is not a multiple of theirs.
    """
    world, batch = ranks.world, settings.batch
    if world == 1:
        return
    counts = sorted({count for count, _ in batch.phases(settings.steps)})
    if counts[0] < world:
        raise InvalidRequest(
            f"a step has {counts[0]} micro-batches and the run {world} processes, so some would have nothing "
            "to do; lower batch.micro_tokens or start fewer"
        )
    uneven = [count for count in counts if count % world]
    if settings.distributed.kind == "fsdp" and uneven:
        raise InvalidRequest(
            f"a step has {uneven[0]} micro-batches, which {world} processes cannot share evenly, as "
            f"distributed.kind fsdp must; choose batch.tokens as a multiple of {world} x batch.micro_tokens "
            'without a ramp, or kind = "ddp"'
        )


@torch.no_grad()
def shard(objective: nn.Module, settings: RunSettings, ranks: Ranks) -> None:
    """Broadcast the first process's weights and, for ``fsdp``, let each process keep only its shard; in
    place.

    Call this before creating the optimizer and averages, which refer to the module's parameters.
    """
    if ranks.world == 1:
        return
    for tensor in (*objective.parameters(), *objective.buffers()):
        distributed.broadcast(tensor, 0)
    if settings.distributed.kind == "fsdp":
        _shard(objective, settings, ranks)


def _shard(objective: nn.Module, settings: RunSettings, ranks: Ranks) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    # Autocast casts weights itself, as in one process. 16-bit gradients are summed in 32 bits.
    bfloat16 = settings.precision == "bfloat16"
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32 if bfloat16 else None)
    encoders = [part for part in objective.modules() if isinstance(part, Encoder)]
    for block in (block for encoder in encoders for block in _own_blocks(encoder)):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(objective, mesh=mesh, mp_policy=policy)
    for part in objective.modules():
        if isinstance(part, FSDPModule):
            # Losses are shares of the global batch's loss, so gradients are summed and not averaged.
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    objective.register_forward_hook(_after_forward)


def _own_blocks(encoder: Encoder) -> Iterator[nn.Module]:
    """Layers that run exactly once and as a whole in a forward pass; the others are gathered with the
    embedding."""
    times = Counter(encoder.spec.weights_of_layer)
    if why_no_decoder(encoder.spec) is None:
        times[encoder.spec.weights_of_layer[-1]] += 1
    yield from (layer for number, layer in enumerate(encoder.layers) if times[number] == 1)


def _after_forward(module: nn.Module, _inputs: object, _output: object) -> None:
    """Reshard the outermost weights if no backward pass will do so; otherwise stale copies would remain."""
    from torch.distributed.fsdp import FSDPModule

    if not torch.is_grad_enabled() and isinstance(module, FSDPModule):
        module.reshard()


def is_sharded(module: nn.Module) -> bool:
    """Whether this process holds only shards of the module's weights."""
    return any(is_dtensor(parameter) for parameter in module.parameters())


@torch.no_grad()
def sum_gradients(parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
    """Sum the gradients of all processes, in place; gradients of sharded parameters are summed already.

    A parameter without a gradient in every process has none afterwards. 16-bit gradients are summed in
    float32 and rounded once.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad and not is_dtensor(parameter)]
    if ranks.world == 1 or not trained:
        return
    used = torch.tensor([parameter.grad is not None for parameter in trained], dtype=torch.int32)
    distributed.all_reduce(used)
    used_parameters = [parameter for parameter, count in zip(trained, used.tolist(), strict=True) if count]
    for bucket in _buckets(used_parameters):
        parts = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in bucket
        ]
        wide = torch.promote_types(parts[0].dtype, torch.float32)
        flat = torch.cat([part.reshape(-1).to(wide) for part in parts])
        distributed.all_reduce(flat)
        for parameter, part, total in zip(
            bucket, parts, torch.split(flat, [parameter.numel() for parameter in bucket]), strict=True
        ):
            parameter.grad = part.copy_(total.view_as(part))


def _buckets(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Buckets of one dtype and about `BUCKET` elements each, in order."""
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if bucket and (size + parameter.numel() > BUCKET or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel()
    if bucket:
        yield bucket


@contextmanager
def unsharded(
    module: nn.Module,
    ranks: Ranks,
    values: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> Iterator[None]:
    """Context in which the first process holds all of a sharded module in host memory; other processes are
    unchanged.

    All processes must enter it. Within it the module can be read and saved, but not run.

    Args:
        module: a sharded module.
        ranks: the processes of the run.
        values: replacements for parameters, by name, such as averages; other parameters keep their values.
        dtype: dtype of the result; None keeps each parameter's dtype.
    """
    values = {} if values is None else values
    replacements: dict[nn.Parameter, nn.Parameter] = {}
    places: list[tuple[nn.Module, str, nn.Parameter]] = []
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owner, _, leaf = name.rpartition(".")
        places.append((module.get_submodule(owner), leaf, parameter))
        if parameter not in replacements:
            full = full_tensors(values.get(name, parameter).detach())
            if ranks.first:
                replacements[parameter] = nn.Parameter(
                    full.to("cpu", dtype or parameter.dtype), parameter.requires_grad
                )
            else:
                replacements[parameter] = parameter
    try:
        for owner_module, leaf, parameter in places:
            owner_module.register_parameter(leaf, replacements[parameter])
        yield
    finally:
        for owner_module, leaf, parameter in places:
            owner_module.register_parameter(leaf, parameter)
