"""Settings of a length-scaling run: encoder, attention implementations, lengths, time and memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from unmask.errors import InvalidRequest, KernelError
from unmask.kernels import KERNELS, AttentionRequest, choose
from unmask.spec import EncoderSpec
from unmask.spec.attention import LinearAttention, NoPosition, Rotary
from unmask.weights.build import device_named

CHOSEN = "chosen"
"""The default execution of a model: for each layer the kernel that `choose` selects."""
BESIDE = (("sdpa", "sdpa-masked"), ("rows",), ("reference",))
"""Compared with it by default: of each group the first kernel that supports the encoder."""

SHORTEST, LONGEST = 64, 8192
"""End of the doubling lengths, unless the options or the position table say otherwise."""
GRID_SHARE = 0.7
"""Fraction of the time for the lengths; the rest is for probes."""
PROBE_SHARE = 0.9
"""Probe length as a fraction of the predicted longest text: close enough to check it, but expected to fit."""
WITHIN_SECONDS = (1.0, 10.0, 60.0)


@dataclass(frozen=True)
class ScalingSettings:
    """What to measure. Everything has a default; without a name it is the default model.

    Args:
        model: a checkpoint folder, a hub id or "default".
        architecture: a published architecture with random weights instead of ``model``, see
            `unmask.bench.benchmark_model`.
        layers: keep only the first layers of ``architecture``.
        revision: revision on the hub.
        ways: attention implementations: ``chosen``, kernels, or ``others``; empty selects ``chosen`` and
            those of `BESIDE` that support the encoder.
        lengths: in tokens; empty doubles from `SHORTEST` to ``longest``.
        longest: the last of the doubling lengths; None is `LONGEST`, or the end of the position table.
        repeats: timed calls per point, fewer if its share of the time ends.
        seconds: time budget of the whole run, loading included; points beyond it are skipped or stopped.
        memory_bytes: memory limit of a process, including the model; None takes most of the free memory.
        dtype: number format of our implementations.
        device: a torch device name.
        threads: torch threads; None keeps torch's default.
        seed: seed of weights, ids and intervals.
        others: further implementations, which the function that measures a point knows.
    """

    model: str | None = None
    architecture: str | None = None
    layers: int | None = None
    revision: str | None = None
    ways: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    longest: int | None = None
    repeats: int = 5
    seconds: float = 300.0
    memory_bytes: int | None = None
    dtype: str = "float32"
    device: str = "cpu"
    threads: int | None = None
    seed: int = 0
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("repeats", "threads", "longest", "memory_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequest(f"{name} is {value}; it must be at least 1")
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise InvalidRequest(f"seconds is {self.seconds}; it must be a number above 0")
        device_named(self.device)
        if any(length < 1 for length in self.lengths):
            raise InvalidRequest(f"a length is {min(self.lengths)}; it must be at least 1")
        names = (*known_ways(), *self.others)
        unknown = [way for way in self.ways if way not in names]
        if unknown:
            raise InvalidRequest(
                f"there is no attention implementation {unknown[0]!r}; there are {', '.join(names)}"
            )


def known_ways() -> tuple[str, ...]:
    """All names allowed in ``ways``."""
    return (CHOSEN, *(kernel.capability.name for kernel in KERNELS))


def lengths_of(settings: ScalingSettings, limit: int | None) -> tuple[int, ...]:
    """The lengths to measure, ascending; the last is the size of the position table, if that is smaller.

    Args:
        settings: the settings of the run.
        limit: size of the position table; None without a limit.

    Raises:
        InvalidRequest: every requested length is beyond the limit.
    """
    if settings.lengths:
        within = sorted({length for length in settings.lengths if limit is None or length <= limit})
        if not within:
            raise InvalidRequest(
                f"the position table ends at {limit} tokens, and the shortest length is "
                f"{min(settings.lengths)}; name shorter ones with --lengths"
            )
        return tuple(within)
    end = settings.longest or LONGEST
    end = end if limit is None else min(end, limit)
    first = SHORTEST
    # Even a short table gets as many lengths as a curve needs.
    while first > 1 and first * 2**4 > end:
        first //= 2
    doubled = []
    while first < end:
        doubled.append(first)
        first *= 2
    return (*doubled, end)


def ways_of(settings: ScalingSettings, spec: EncoderSpec, longest: int) -> tuple[str, ...]:
    """The requested implementations, or the default ones that can run every layer of this encoder."""
    if settings.ways:
        return tuple(dict.fromkeys(settings.ways))
    needs = _needs(settings, spec, longest)
    if not needs:
        return (CHOSEN,)
    used = {name for need in needs if (name := _name(need, None)) is not None}
    ways = [CHOSEN]
    for group in BESIDE:
        able = [name for name in group if all(_name(need, name) for need in needs)]
        # A kernel that ``chosen`` uses in every layer would be measured twice.
        ways += [name for name in able[:1] if used != {name}]
    return tuple(ways)


def _needs(settings: ScalingSettings, spec: EncoderSpec, longest: int) -> Sequence[AttentionRequest]:
    """The attention requests of the layers at the longest length; empty where attention is linear."""
    dtype = "float32" if settings.dtype == "int8" else settings.dtype
    requests = {
        AttentionRequest(
            device=settings.device.partition(":")[0],
            dtype=dtype,
            pattern=layer.mixer.pattern,
            position=NoPosition() if isinstance(layer.mixer.position, Rotary) else layer.mixer.position,
            head_width=layer.mixer.head_width,
            longest=longest,
        )
        for layer in spec.layers
        if not isinstance(layer.mixer, LinearAttention)
    }
    return tuple(requests)


def _name(need: AttentionRequest, kernel: str | None) -> str | None:
    try:
        return choose(need, kernel).capability.name
    except KernelError:
        return None
