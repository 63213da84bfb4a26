"""`unmask` compared with other installed libraries: same weights, same strings, interleaved rounds."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers import PEERS, Peer, PeerEngine, Source, ours, workloads
from benchmarks.peers.engine import PACKAGES
from benchmarks.peers.in_subprocess import Start, peak_in_subprocess, start_in_subprocess
from benchmarks.peers.spinning import spinning
from benchmarks.peers.workloads import Workload
from unmask.base.progress import Progress
from unmask.bench.benchmark_model import BenchmarkModel, ModelInfo, invented_lines, lines_of
from unmask.bench.machine import LeftOut, Machine, sentence_of, this_machine
from unmask.bench.memory import MIB
from unmask.bench.speed.accuracy import Agreement, agreement
from unmask.bench.timing import Spread, interleaved, percentile, ratio
from unmask.errors import InvalidRequest, MissingExtra
from unmask.models.load import load as load_ours

BASELINES = {
    "texts": ("sentence-transformers", "transformers sdpa", "transformers eager"),
    "documents": ("transformers sdpa", "transformers eager"),
}
"""The baseline of ratios: the first of these that runs."""

COSINE_LEAST = {"float32": 0.9999, "bfloat16": 0.98, "float16": 0.99, "int8": 0.85}
"""An engine whose mean cosine with the baseline is lower than this computes something else; it is not
timed."""

CALIBRATION_TEXTS = 128
"""The last lines of the texts, from which static quantization chooses the scales of activations; workloads
are made of the first."""

SCORES_ALIVE = 3
"""Number of tensors of shape tokens x tokens held at once by an engine that holds any."""


@dataclass(frozen=True)
class Timed:
    """One engine on one workload."""

    engine: str
    dtype: str
    settings: str
    workload: str
    load: int
    """Number of spinning processes beside it."""
    rounds: int
    seconds: Spread
    """Seconds of a round."""
    processor_seconds: Spread
    """Processor time of a round, of all threads."""
    tokens_per_second: float
    """In the median round; padding is not counted."""
    call_p50_ms: float
    call_p99_ms: float
    times_as_fast: Spread
    """Speed relative to the baseline, compared within each round; above 1 is faster."""
    agreement: Agreement
    """Agreement of the outputs with those of the baseline."""
    peak_extra_mib: float | None
    """Above the process after loading, in a separate process; None if not measured."""


@dataclass(frozen=True)
class Started:
    """The start of one engine in a fresh process: imports, loading, and its first answer."""

    engine: str
    load: int
    """Number of spinning processes beside it."""
    starts: int
    workload: str
    """The one whose first text, or document, was the first work."""
    wall_seconds: Spread
    """From the start of the process to its first answer."""
    processor_seconds: Spread
    """Processor time of all threads until then."""
    peak_mib: float | None
    """Peak resident memory until then, the median; None if the system does not report it."""


@dataclass(frozen=True)
class WorkloadRecord:
    """The description of a workload in a report."""

    name: str
    what: str
    tokens: int
    baseline: str


@dataclass(frozen=True)
class PeersReport:
    """The result of `measure_peers`."""

    protocol: str = field(default="peers", init=False)
    measured: ModelInfo
    machine: Machine
    workloads: tuple[WorkloadRecord, ...]
    timed: tuple[Timed, ...]
    started: tuple[Started, ...]
    left_out: tuple[LeftOut, ...]
    seed: int


@dataclass
class _Loaded:
    """A loaded engine, the seconds of each of its calls, and the processor time of each round."""

    peer: Peer
    engine: PeerEngine
    call_seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)

    def work(self, workload: Workload) -> Callable[[], None]:
        """One round: every call, timed separately."""
        calls: list[Callable[[], NDArray[np.float32]]]
        if workload.answers == "documents":
            calls = [partial(self.engine.hidden, np.array(workload.ids, dtype=np.int64))]
        else:
            calls = [partial(self.engine.embed, texts) for texts in workload.texts]

        def run() -> None:
            before = time.process_time()
            for call in calls:
                start = time.perf_counter()
                call()
                self.call_seconds.append(time.perf_counter() - start)
            self.processor_seconds.append(time.process_time() - before)

        return run


def measure_peers(
    subject: BenchmarkModel,
    kinds: Sequence[str],
    *,
    dtypes: Sequence[str] = ("float32", "bfloat16", "int8"),
    texts: Path | None = None,
    count: int = 1000,
    lengths: Sequence[int] = (512,),
    rounds: int = 5,
    against: str | None = None,
    only: Sequence[str] = (),
    memory: bool = True,
    starts: int = 3,
    load: int = 0,
    device: str = "cpu",
    seed: int = 0,
    budget_seconds: float | None = None,
    progress: Progress | None = None,
) -> PeersReport:
    """Measure every engine on every workload of these kinds.

    First, every engine runs once: this is its warm-up, and its outputs are compared with those of the
    baseline. Engines that differ by more than their number format explains are left out. The rest are timed
    in alternation. Last, each runs in a separate process to measure its memory, and in fresh ones to measure
    its start.

    Args:
        subject: the model.
        kinds: kinds of workloads, from `workloads.KINDS`.
        dtypes: number formats in which `unmask` runs.
        texts: a file with one text per line; None invents texts.
        count: number of texts in the mixed workload.
        lengths: tokens of each document.
        rounds: how often each engine is timed.
        against: the baseline of ratios; None uses the first of `BASELINES` that runs.
        only: names of other engines; empty for all.
        memory: whether to measure the peak memory of workloads, in separate processes.
        starts: how often each engine is started in a fresh process; 0 leaves this out.
        load: with a number above 0, everything is timed without and then beside so many spinning processes.
        device: a torch device name for `unmask`, transformers and sentence-transformers.
        seed: seed of texts and ids.
        budget_seconds: time budget per workload; no new round starts after it.
        progress: called with (steps done, steps in total).

    Raises:
        MissingExtra: no other library is installed.
        InvalidRequest: a name is unknown, or no engine ran.
    """
    for name, number in (("starts", starts), ("load", load)):
        if number < 0:
            raise InvalidRequest(f"{name} is {number}; it must be at least 0")
    peers, left_out = _present(only, against)
    every = [*(peer for dtype in dtypes for peer in ours(dtype)), *peers]
    tokenizer = load_ours(subject.folder).tokenizer
    lines = invented_lines(tokenizer, seed) if texts is None else lines_of(texts)
    works = workloads.make(
        kinds,
        tokenizer,
        lines,
        "words of the vocabulary" if texts is None else texts.name,
        count=count,
        lengths=lengths,
        longest=subject.record.max_tokens,
        seed=seed,
    )
    loads = (0, load) if load else (0,)
    timed: list[Timed] = []
    records: list[WorkloadRecord] = []
    first_work: dict[str, Workload] = {}
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unmask-bench-")))
        calibration = tuple(lines[-CALIBRATION_TEXTS:])
        source = Source(subject.folder, subject.head, subject.record.max_tokens, work, device, calibration)
        engines = _load(every, source, left_out)
        steps = _Steps(progress, len(engines) * _steps_each(len(works), len(loads), rounds, memory, starts))
        for workload in works:
            taken = _taken(engines, workload, subject.record, left_out)
            baseline, agreements = _agreed(taken, workload, against, left_out, steps)
            records.append(WorkloadRecord(workload.name, workload.what, workload.tokens, baseline))
            for name in agreements:
                first_work.setdefault(name, workload)
            chosen = {name: engines[name] for name in agreements}
            peaks = _peaks(chosen, source, workload, steps) if memory else {}
            for beside in loads:
                with spinning(beside):
                    timed += _timed(
                        chosen,
                        workload,
                        baseline,
                        agreements,
                        peaks,
                        load=beside,
                        rounds=rounds,
                        budget_seconds=budget_seconds,
                        steps=steps,
                    )
        started: list[Started] = []
        for beside in loads if starts else ():
            with spinning(beside):
                started += _started(first_work, source, left_out, starts=starts, load=beside, steps=steps)
    machine = this_machine(torch.device(device))
    return PeersReport(
        subject.record, machine, tuple(records), tuple(timed), tuple(started), tuple(left_out), seed
    )


def _steps_each(works: int, loads: int, rounds: int, memory: bool, starts: int) -> int:
    """Steps of one engine: its answers, its peaks, its rounds and its starts."""
    return works * (1 + memory) + loads * (works * rounds + starts)


class _Steps:
    """Overall progress over parts that each report their own."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self, done: int = 0, total: int = 0) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(min(self.done, self.total), self.total)


def _present(only: Sequence[str], against: str | None) -> tuple[list[Peer], list[LeftOut]]:
    known = {peer.name: peer for peer in PEERS}
    for name in (*only, *([against] if against is not None else ())):
        if name not in known:
            raise InvalidRequest(f"there is no peer {name!r}; there are {', '.join(known)}")
    wanted = [peer for peer in PEERS if not only or peer.name in only or peer.name == against]
    reasons = {peer: peer.unavailable() for peer in wanted}
    if all(reasons.values()):
        raise MissingExtra(
            "nothing to compare with is installed: pip install '.[peers]', or one of its packages, "
            f"{', '.join(sorted(PACKAGES.values()))}"
        )
    missing = [LeftOut(peer.name, "", reason) for peer, reason in reasons.items() if reason]
    return [peer for peer, reason in reasons.items() if reason is None], missing


def _load(every: Sequence[Peer], source: Source, left_out: list[LeftOut]) -> dict[str, _Loaded]:
    engines: dict[str, _Loaded] = {}
    for peer in every:
        if source.device != "cpu" and peer.only_cpu:
            left_out.append(LeftOut(peer.name, "", f"runs on the CPU here, not on {source.device}"))
            continue
        try:
            engines[peer.name] = _Loaded(peer, peer.load(source))
        except Exception as error:  # other libraries raise errors of any kind; all are reported
            left_out.append(LeftOut(peer.name, "", sentence_of(error)))
    return engines


def _taken(
    engines: Mapping[str, _Loaded], workload: Workload, record: ModelInfo, left_out: list[LeftOut]
) -> dict[str, _Loaded]:
    """The engines that can run this workload; the others are added to ``left_out``."""
    taken = {}
    for name, loaded in engines.items():
        needed = SCORES_ALIVE * record.heads * len(workload.ids) ** 2 * 4
        if workload.answers not in loaded.peer.answers:
            left_out.append(LeftOut(name, workload.name, f"gives no answers to {workload.answers}"))
        elif loaded.peer.holds_scores and (needed > _available_bytes() / 2):
            left_out.append(
                LeftOut(name, workload.name, f"would hold about {needed / 2**30:.0f} GiB of scores")
            )
        else:
            taken[name] = loaded
    return taken


def _available_bytes() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return float("inf")
    found = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return float(next(found, "inf")) * 1024


def _agreed(
    taken: Mapping[str, _Loaded],
    workload: Workload,
    against: str | None,
    left_out: list[LeftOut],
    steps: _Steps,
) -> tuple[str, dict[str, Agreement]]:
    """The baseline, and every engine whose outputs agree with it within its number format."""
    outputs: dict[str, NDArray[np.float32]] = {}
    for name, loaded in taken.items():
        try:
            outputs[name] = workload.run(loaded.engine)
        except Exception as error:  # see _load
            left_out.append(LeftOut(name, workload.name, sentence_of(error)))
        steps()
    others = [name for name in outputs if not taken[name].peer.ours]
    preferred = [against] if against is not None else [*BASELINES[workload.answers], *others]
    baseline = next((name for name in preferred if name in outputs), None)
    if baseline is None:
        reasons = "; ".join(f"{one.name}: {one.reason}" for one in left_out)
        raise InvalidRequest(f"no peer ran {workload.name}, so there is nothing to compare with ({reasons})")
    agreements = {}
    for name, found in outputs.items():
        one, least = agreement(found, outputs[baseline]), COSINE_LEAST[taken[name].peer.dtype]
        if one.cosine_mean >= least:
            agreements[name] = one
        else:
            reason = f"its outputs differ from those of {baseline}: mean cosine {one.cosine_mean:.4f}"
            left_out.append(LeftOut(name, workload.name, reason))
    return baseline, agreements


def _timed(
    engines: Mapping[str, _Loaded],
    workload: Workload,
    baseline: str,
    agreements: Mapping[str, Agreement],
    peaks: Mapping[str, int | None],
    *,
    load: int,
    rounds: int,
    budget_seconds: float | None,
    steps: _Steps,
) -> list[Timed]:
    for loaded in engines.values():
        loaded.call_seconds.clear()
        loaded.processor_seconds.clear()
    turns = {name: loaded.work(workload) for name, loaded in engines.items()}
    times = interleaved(turns, rounds, warm_up=0, budget_seconds=budget_seconds, progress=steps)
    made = []
    for name, loaded in engines.items():
        peak = peaks.get(name)
        seconds = Spread.of(times[name])
        made.append(
            Timed(
                engine=name,
                dtype=loaded.peer.dtype,
                settings=loaded.peer.settings,
                workload=workload.name,
                load=load,
                rounds=len(times[name]),
                seconds=seconds,
                processor_seconds=Spread.of(loaded.processor_seconds),
                tokens_per_second=workload.tokens / seconds.median,
                call_p50_ms=1e3 * percentile(loaded.call_seconds, 0.5),
                call_p99_ms=1e3 * percentile(loaded.call_seconds, 0.99),
                times_as_fast=ratio(times, baseline, name),
                agreement=agreements[name],
                peak_extra_mib=None if peak is None else peak / MIB,
            )
        )
    return made


def _peaks(
    engines: Mapping[str, _Loaded], source: Source, workload: Workload, steps: _Steps
) -> dict[str, int | None]:
    """Peak bytes of each engine on a workload."""
    peaks = {}
    for name in engines:
        peaks[name] = peak_in_subprocess(name, source, workload, torch.get_num_threads())
        steps()
    return peaks


def _started(
    first_work: Mapping[str, Workload],
    source: Source,
    left_out: list[LeftOut],
    *,
    starts: int,
    load: int,
    steps: _Steps,
) -> list[Started]:
    """Fresh processes of all engines in turn, A B C A B C."""
    found: dict[str, list[Start]] = {name: [] for name in first_work}
    for turn in range(starts):
        for name, workload in first_work.items():
            one = start_in_subprocess(name, source, workload.first, torch.get_num_threads())
            if one is not None:
                found[name].append(one)
            elif turn == 0:
                left_out.append(LeftOut(name, f"start, load {load}", "its process failed"))
            steps()
    made = []
    for name, each in found.items():
        if not each:
            continue
        peaks = [one.peak_bytes for one in each if one.peak_bytes is not None]
        made.append(
            Started(
                engine=name,
                load=load,
                starts=len(each),
                workload=first_work[name].name,
                wall_seconds=Spread.of([one.wall_seconds for one in each]),
                processor_seconds=Spread.of([one.processor_seconds for one in each]),
                peak_mib=Spread.of(peaks).median / MIB if peaks else None,
            )
        )
    return made
