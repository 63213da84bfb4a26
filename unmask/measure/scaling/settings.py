"""What a wall is asked: which encoder, ways of attending and lengths, how much time and memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from unmask.errors import InvalidRequest, KernelError
from unmask.measure.peers import PEERS
from unmask.model.kernels import KERNELS, AttentionRequest, choose
from unmask.model.spec import EncoderSpec
from unmask.model.spec.attention import LinearAttention, NoPosition, Rotary
from unmask.model.weights.build import device_named

CHOSEN = "chosen"
"""The way a model runs by itself: for each layer the kernel that `choose` takes."""
BESIDE = (("sdpa", "sdpa-masked"), ("rows",), ("reference",))
"""Beside it by default: of each group the first that can."""

SHORTEST, LONGEST = 64, 8192
"""Of the doubling lengths, where neither the options nor the position table say otherwise."""
GRID_SHARE = 0.7
"""Of the seconds, what the lengths may take; the rest is for probes."""
PROBE_SHARE = 0.9
"""Of the longest text that is predicted to fit: near enough to check it, and below it to come back."""
WITHIN_SECONDS = (1.0, 10.0, 60.0)


@dataclass(frozen=True)
class ScalingSettings:
    """What to measure. Everything has a default; with no name it is the default model.

    Args:
        model: a checkpoint folder, a hub id or "default".
        shape: instead of it, random weights of a published shape, see `unmask.measure.benchmark_model`.
        layers: how many of the first layers a shape keeps.
        revision: of the hub.
        ways: ``chosen``, kernels, or other libraries by their names in `unmask.measure.peers`; none takes
            ``chosen`` and those of `BESIDE` that can.
        lengths: tokens; none doubles from `SHORTEST` to ``longest``.
        longest: the last of the doubling lengths; None is `LONGEST`, or the end of the position table.
        repeats: timed calls of each point, fewer where its share of the time ends.
        seconds: of the whole run, loading included; a point that would go beyond is left out or stopped.
        memory_bytes: what a process may hold, the model included; None takes most of what is free.
        dtype: number format of our ways.
        device: as torch names it.
        threads: of torch; None leaves its own number.
        seed: of weights, ids and intervals.
    """

    model: str | None = None
    shape: str | None = None
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
        known = known_ways()
        unknown = [way for way in self.ways if way not in known]
        if unknown:
            raise InvalidRequest(f"there is no way {unknown[0]!r} to attend; there are {', '.join(known)}")


def known_ways() -> tuple[str, ...]:
    """Every name that ``ways`` may hold."""
    kernels = (kernel.capability.name for kernel in KERNELS)
    return (CHOSEN, *kernels, *(peer.name for peer in PEERS if "documents" in peer.answers))


def is_peer(way: str) -> bool:
    """Whether the way is another library's."""
    return any(peer.name == way for peer in PEERS)


def lengths_of(settings: ScalingSettings, limit: int | None) -> tuple[int, ...]:
    """The lengths to measure, ascending; the last is where the position table ends, if it ends before.

    Args:
        settings: what is asked.
        limit: where the position table ends; None where nothing sets a limit.

    Raises:
        InvalidRequest: every length asked for is beyond the limit.
    """
    if settings.lengths:
        kept = sorted({length for length in settings.lengths if limit is None or length <= limit})
        if not kept:
            raise InvalidRequest(
                f"the position table ends at {limit} tokens, and the shortest length is "
                f"{min(settings.lengths)}; name shorter ones with --lengths"
            )
        return tuple(kept)
    end = settings.longest or LONGEST
    end = end if limit is None else min(end, limit)
    first = SHORTEST
    # A short table still gets as many lengths as a curve takes.
    while first > 1 and first * 2**4 > end:
        first //= 2
    doubled = []
    while first < end:
        doubled.append(first)
        first *= 2
    return (*doubled, end)


def ways_of(settings: ScalingSettings, spec: EncoderSpec, longest: int) -> tuple[str, ...]:
    """The ways asked for, or the default ones that can run every layer of this encoder."""
    if settings.ways:
        return tuple(dict.fromkeys(settings.ways))
    needs = _needs(settings, spec, longest)
    if not needs:
        return (CHOSEN,)
    taken = {name for need in needs if (name := _name(need, None)) is not None}
    ways = [CHOSEN]
    for group in BESIDE:
        able = [name for name in group if all(_name(need, name) for need in needs)]
        # A kernel that does all of the chosen way's work would be measured twice.
        ways += [name for name in able[:1] if taken != {name}]
    return tuple(ways)


def _needs(settings: ScalingSettings, spec: EncoderSpec, longest: int) -> Sequence[AttentionRequest]:
    """What the layers ask of a kernel at the longest length; none where attention is linear."""
    dtype = "float32" if settings.dtype == "int8" else settings.dtype
    found = {
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
    return tuple(found)


def _name(need: AttentionRequest, kernel: str | None) -> str | None:
    try:
        return choose(need, kernel).capability.name
    except KernelError:
        return None
