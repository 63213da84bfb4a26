"""Tokens per second, by the protocol of the ModernBERT paper (Warner et al. 2024).

Sequences of random ids, short and long, in three settings. `fixed`: all have the same length (512; 8,192).
`variable`: lengths are drawn from a normal distribution (mean 256, deviation 64; mean 4,096, deviation 1,024)
and clipped to the fixed length. `even`: as many tokens and sequences as `variable`, in equal lengths; the
ratio of times per token is the cost of unequal lengths.

The paper runs 8,192 sequences per setting on a GPU. ``samples`` sets the number here; by default, a CPU runs
as many as fit ``CPU_TOKENS``.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.base.progress import Progress
from unmask.bench.benchmark_model import BenchmarkModel, ModelInfo, causal_model, random_ids
from unmask.bench.machine import LeftOut, Machine, sentence_of, this_machine
from unmask.bench.timing import Seconds, Spread, interleaved, ratio
from unmask.errors import InvalidRequest, UnmaskError
from unmask.models.load import Model, load
from unmask.text import PackedBatch, token_budget_batches

SIZES: Mapping[str, tuple[int, int, int]] = {"short": (512, 256, 64), "long": (8192, 4096, 1024)}
"""Maximum, mean and standard deviation of lengths, in tokens."""
SETTINGS = ("fixed", "variable", "even")
PAPER_SAMPLES = 8192
CPU_TOKENS = 8192
"""Tokens of a setting on a CPU, unless ``samples`` is given; at least one sequence runs, whatever its
length."""
TOKENS_PER_PASS = {"cpu": 8192, "cuda": 131_072}
Attention = Literal["bidirectional", "causal"]
BATCH_LIMIT = 1 << 16
"""Number of sequences at which the search for the largest batch ends."""


@dataclass(frozen=True)
class SpeedRow:
    """One number format in one setting."""

    dtype: str
    size: str
    setting: str
    samples: int
    tokens: int
    longest: int
    rounds: int
    seconds: Spread
    """Seconds of a round over all samples."""
    tokens_per_second: float
    """In the median round."""
    batch_sequences: int | None
    """The largest number of sequences of ``longest`` tokens that fits in GPU memory, found by doubling; None
    on a CPU, which runs ``tokens_per_pass`` tokens at a time."""
    time_per_token_to_even: Spread | None
    """For the variable setting: time per token relative to equal lengths, compared within each round; 1 if
    unequal lengths cost nothing."""
    attention: Attention = "bidirectional"
    time_to_bidirectional: Spread | None = None
    """Of causal attention: time relative to the same model that reads in both directions, compared within
    each round."""


@dataclass(frozen=True)
class SpeedReport:
    """The result of `measure_speed`."""

    protocol: str = field(default="speed", init=False)
    measured: ModelInfo
    machine: Machine
    tokens_per_pass: int
    rows: tuple[SpeedRow, ...]
    left_out: tuple[LeftOut, ...]
    seed: int
    causal: ModelInfo | None = None
    """The decoder of equal size, where it was measured too."""


@dataclass(frozen=True)
class _Setting:
    size: str
    name: str
    lengths_S: NDArray[np.int64]

    @property
    def tokens(self) -> int:
        return int(self.lengths_S.sum())


def measure_speed(
    subject: BenchmarkModel,
    *,
    dtypes: Sequence[str] = ("float32",),
    sizes: Sequence[str] = ("short", "long"),
    causal: bool = False,
    samples: int | None = None,
    tokens_per_pass: int | None = None,
    rounds: int = 3,
    device: str = "cpu",
    seed: int = 0,
    budget_seconds: float | None = None,
    progress: Progress | None = None,
) -> SpeedReport:
    """Measure every number format in every setting, in alternation.

    Args:
        subject: the model.
        dtypes: number formats.
        sizes: names in `SIZES`; lengths are limited to the maximum length of the model.
        causal: also measure its causal form, see `unmask.bench.benchmark_model.causal_model`.
        samples: sequences per setting; None for the default of this module.
        tokens_per_pass: the most tokens in a batch; None uses `TOKENS_PER_PASS`.
        rounds: how often all samples run.
        device: a torch device name.
        seed: seed of lengths and ids.
        budget_seconds: time budget; no new round starts after it.
        progress: called with (rounds done, rounds in total).

    Raises:
        InvalidRequest: a size is unknown, no number format can run, or the model has no causal form.
    """
    where = torch.device(device)
    budget = tokens_per_pass or TOKENS_PER_PASS[where.type]
    _check(sizes, budget, samples)
    limit = subject.record.max_tokens
    settings = [setting for size in sizes for setting in _settings(size, limit, samples, where, seed)]
    with ExitStack() as stack:
        decoder = stack.enter_context(causal_model(subject, seed)) if causal else None
        loaded, left_out = _load(subject, dtypes, device)
        models: dict[tuple[str, Attention], Model] = {(d, "bidirectional"): m for d, m in loaded.items()}
        if decoder is not None:
            models |= {(d, "causal"): m for d, m in _load(decoder, list(loaded), device)[0].items()}
        if limit is not None and set(sizes) == set(SIZES) and limit <= SIZES["short"][0]:
            # Both sizes would be limited to the same length.
            settings = [setting for setting in settings if setting.size == "short"]
            left_out.append(LeftOut("long", "", f"the model reads at most {limit} tokens"))
        cases = [(*kind, model, setting) for kind, model in models.items() for setting in settings]
        works = {
            _name(dtype, attention, setting): _work(model, setting, budget, where, seed)
            for dtype, attention, model, setting in cases
        }
        times = interleaved(works, rounds, budget_seconds=budget_seconds, progress=progress)
        rows = [_row(*case, times, device=where, seed=seed) for case in cases]
        return SpeedReport(
            subject.record,
            this_machine(where),
            budget,
            tuple(rows),
            tuple(left_out),
            seed,
            None if decoder is None else decoder.record,
        )


def _name(dtype: str, attention: Attention, setting: _Setting, other: str = "") -> str:
    """The name of a row's work, or of that of another setting of the size."""
    return f"{dtype} {attention} {setting.size} {other or setting.name}"


def _check(sizes: Sequence[str], budget: int, samples: int | None) -> None:
    unknown = [size for size in sizes if size not in SIZES]
    if unknown or not sizes:
        raise InvalidRequest(
            f"there is no size {unknown[0] if unknown else ''!r}; there are {', '.join(SIZES)}"
        )
    if budget < 1 or (samples is not None and samples < 1):
        raise InvalidRequest("tokens per pass and samples must be at least 1")


def _settings(
    size: str, limit: int | None, samples: int | None, device: torch.device, seed: int
) -> list[_Setting]:
    longest, mean, deviation = SIZES[size]
    shrink = 1.0 if limit is None or limit >= longest else limit / longest
    longest, mean, deviation = (max(1, round(shrink * value)) for value in (longest, mean, deviation))
    if samples is None:
        samples = max(1, CPU_TOKENS // longest) if device.type == "cpu" else PAPER_SAMPLES
    drawn = np.random.default_rng(seed).normal(mean, deviation, samples).round()
    variable = np.clip(drawn, 1, longest).astype(np.int64)
    whole, more = divmod(int(variable.sum()), samples)
    even = np.full(samples, whole, dtype=np.int64)
    even[:more] += 1
    lengths = {"fixed": np.full(samples, longest, dtype=np.int64), "variable": variable, "even": even}
    return [_Setting(size, name, lengths[name]) for name in SETTINGS]


def _load(
    subject: BenchmarkModel, dtypes: Sequence[str], device: str
) -> tuple[dict[str, Model], list[LeftOut]]:
    models: dict[str, Model] = {}
    left_out: list[LeftOut] = []
    for dtype in dtypes:
        try:
            models[dtype] = load(subject.folder, dtype=dtype, device=device)
        except UnmaskError as error:
            left_out.append(LeftOut(dtype, "", sentence_of(error)))
    if not models:
        raise InvalidRequest("; ".join(f"{skipped.name}: {skipped.reason}" for skipped in left_out))
    return models, left_out


def _work(
    model: Model, setting: _Setting, budget: int, device: torch.device, seed: int
) -> Callable[[], None]:
    """One round over all samples of a setting, in batches of whole sequences."""
    ids = random_ids(model.tokenizer, int(setting.lengths_S.max()), seed)
    batches = [
        PackedBatch.of_ids([ids[: setting.lengths_S[i]] for i in chosen])
        for chosen in token_budget_batches(setting.lengths_S, budget)
    ]

    def run() -> None:
        for batch in batches:
            with torch.inference_mode():  # the results stay where the encoder is
                model.encoder.encode(batch)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def _row(
    dtype: str,
    attention: Attention,
    model: Model,
    setting: _Setting,
    times: Seconds,
    *,
    device: torch.device,
    seed: int,
) -> SpeedRow:
    name = _name(dtype, attention, setting)
    seconds, longest = Spread.of(times[name]), int(setting.lengths_S.max())
    even = None
    if setting.name == "variable":
        even = ratio(times, name, _name(dtype, attention, setting, "even"))  # of equally many tokens
    both = ratio(times, name, _name(dtype, "bidirectional", setting)) if attention == "causal" else None
    return SpeedRow(
        dtype=dtype,
        size=setting.size,
        setting=setting.name,
        samples=len(setting.lengths_S),
        tokens=setting.tokens,
        longest=longest,
        rounds=len(times[name]),
        seconds=seconds,
        tokens_per_second=setting.tokens / seconds.median,
        batch_sequences=_largest_batch(model, longest, seed) if device.type == "cuda" else None,
        time_per_token_to_even=even,
        attention=attention,
        time_to_bidirectional=both,
    )


def _largest_batch(model: Model, length: int, seed: int) -> int:
    """Found by doubling until the GPU runs out of memory; 0 if a single sequence does not fit."""
    ids, fits = random_ids(model.tokenizer, length, seed), 0
    while fits < BATCH_LIMIT:
        try:
            with torch.inference_mode():
                model.encoder.encode(PackedBatch.of_ids([ids] * max(1, 2 * fits)))
            torch.cuda.synchronize()
        except torch.OutOfMemoryError:
            break
        finally:
            gc.collect()
            torch.cuda.empty_cache()
        fits = max(1, 2 * fits)
    return fits
