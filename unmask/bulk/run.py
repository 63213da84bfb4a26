"""`run_shards`: plan, resume, run, and the manifest."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from typing import Any

from unmask import errors
from unmask.base.arguments import check_choice
from unmask.base.arguments import whole_number as whole
from unmask.base.optional import require
from unmask.base.system import compute, process_pool
from unmask.bulk import ROWS_PER_SHARD, Engine
from unmask.bulk.folder import Folder
from unmask.bulk.shards import ShardEntry, ShardFailure, ShardWriter, done_name, finished
from unmask.bulk.sources import FORMATS, Shard, plan
from unmask.bulk.task import BatchTask
from unmask.errors import InvalidRequest, OutputError, TextError, UnmaskError, quoted
from unmask.tasks import Progress
from unmask.weights.read.fingerprint import fingerprint

Result = ShardEntry | ShardFailure


def with_processes(writer: ShardWriter, shards: Sequence[Shard], workers: int) -> Iterator[Result]:
    """Shards by new processes.

    Raises:
        ProcessLost: a worker was ended from outside.
    """
    lost = (
        "a worker ended before its shard was written, perhaps for lack of memory; "
        "the same command resumes, with fewer --workers if memory is short"
    )
    with process_pool(min(workers, len(shards)), writer, lost) as pool:
        for future in as_completed([pool.submit(compute, shard) for shard in shards]):
            yield future.result()


def with_ray(writer: ShardWriter, shards: Sequence[Shard], workers: int) -> Iterator[Result]:
    """Shards by a pool of actors of Ray Data, on the cluster that ``RAY_ADDRESS`` names or a local one."""
    require("ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    started = not ray.is_initialized()
    if started:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        rows = ray.data.from_items(
            [{"shard": number} for number in range(len(shards))], override_num_blocks=len(shards)
        ).map_batches(
            _RayWriter,
            fn_constructor_args=(writer, list(shards)),
            batch_size=1,
            num_cpus=writer.task.threads or 1,
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(shards))),
        )
        for row in rows.iter_rows():
            yield row["result"]
    finally:
        if started:
            ray.shutdown()


class _RayWriter:
    """An actor."""

    def __init__(self, writer: ShardWriter, shards: list[Shard]) -> None:
        self._writer, self._shards = writer, shards

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"result": [self._writer(self._shards[int(number)]) for number in batch["shard"]]}


ENGINES: Mapping[Engine, Callable[[ShardWriter, Sequence[Shard], int], Iterator[Result]]] = {
    "processes": with_processes,
    "ray": with_ray,
}


MANIFEST = "manifest.json"
PLAN = ".plan.json"
"""What an unfinished run was started with; the manifest replaces it."""


@dataclass(frozen=True)
class BulkSummary:
    """Summary of one run."""

    texts: int
    shards: int
    resumed_shards: int
    """How many of these an earlier run had written."""
    tokens: int
    truncated_texts: int
    output: str


def run_shards(
    sources: Sequence[str],
    output: str,
    task: BatchTask,
    *,
    engine: Engine = "processes",
    workers: int = 1,
    rows_per_shard: int = ROWS_PER_SHARD,
    overwrite: bool = False,
    restart: bool = False,
    progress: Progress | None = None,
) -> BulkSummary:
    """Run a task over the rows of files, into a folder of shards that keep all columns and gain those of it.

    A shard is a fixed range of rows and is computed alone, so its bytes do not depend on the engine, on the
    number of workers or on interruptions, as long as processors and versions are the same. A stopped run
    resumes with the same call. ``manifest.json`` appears last; it lists the SHA-256 of every shard.

    Args:
        sources: .txt, .jsonl, .csv, .tsv or .parquet files or .lance datasets: paths, or URLs that fsspec
            opens. One with ``*`` stands for all that match, sorted.
        output: a new folder, as a path or a URL.
        task: what is computed: `BatchEmbedder`, `BatchClassifier`, `BatchTagger`, or another `BatchTask`.
        engine: ``"processes"`` of this machine, or ``"ray"``.
        workers: how many processes or actors; each loads the model.
        rows_per_shard: rows of one shard, which a worker holds in memory.
        overwrite: replace a finished output.
        restart: discard the shards of a stopped run.
        progress: called with (shards done, shards in all).

    Raises:
        InvalidRequest: a file cannot be read, an argument is out of range, or the model cannot do the task.
        TextError: a text cannot be read; the message names its row.
        OutputError: the folder holds something else, cannot be written, or another run is writing to it.
        ProcessLost: a worker process was ended from outside.
    """
    if not isinstance(task, BatchTask):
        raise InvalidRequest(f"task is {quoted(task)}; give a BatchTask, such as BatchEmbedder()")
    check_choice("engine", engine, tuple(ENGINES))
    whole("workers", workers, 1)
    whole("rows_per_shard", rows_per_shard, 1)
    if engine == "ray":
        require("ray")
    if not sources:
        raise InvalidRequest(f"no input is named; name files that end in {', '.join(FORMATS)}")
    shards, digest = plan(sources, rows_per_shard)
    task.check()
    identity = fingerprint(task.loaded.checkpoint, (task, digest, tuple(sources), rows_per_shard))
    folder = Folder(output)
    folder.create()
    with folder.locked():
        _begin(folder, identity, overwrite=overwrite, restart=restart)
        writer = ShardWriter(task, output)
        listed, resumed = _computed(folder, shards, writer, engine=engine, workers=workers, progress=progress)
        _finish(folder, shards, listed, identity)
    return BulkSummary(
        texts=sum(entry.rows for entry in listed),
        shards=len(shards),
        resumed_shards=resumed,
        tokens=sum(entry.tokens for entry in listed),
        truncated_texts=sum(entry.truncated_texts for entry in listed),
        output=output,
    )


def _computed(
    folder: Folder,
    shards: Sequence[Shard],
    writer: ShardWriter,
    *,
    engine: Engine,
    workers: int,
    progress: Progress | None,
) -> tuple[list[ShardEntry], int]:
    """Write the shards that are missing; the entries of all, and how many were there."""
    entries = {shard.number: entry for shard in shards if (entry := finished(folder, shard))}
    missing = [shard for shard in shards if shard.number not in entries]
    resumed = len(entries)
    numbers = {shard.file: shard.number for shard in shards}
    if missing:
        for result in ENGINES[engine](writer, missing, workers):
            if isinstance(result, ShardFailure):
                raise _error(result)
            entries[numbers[result.file]] = result
            if progress is not None:
                progress(len(entries), len(shards))
    return [entries[shard.number] for shard in shards], resumed


def _begin(folder: Folder, identity: str, *, overwrite: bool, restart: bool) -> None:
    names, recorded = folder.names(), folder.read(PLAN)
    started = json.dumps({"fingerprint": identity}).encode()
    if recorded is None and MANIFEST in names and not overwrite:
        raise OutputError(
            f"{folder.url} is finished already, {_made_with(folder, identity)}; name another folder, or "
            "replace it with --overwrite"
        )
    if recorded is None and names and MANIFEST not in names:
        raise OutputError(f"{folder.url} holds other files; name a new folder")
    if recorded is not None and not restart:
        if recorded != started:
            raise OutputError(
                f"{folder.url} was started with other texts or settings; "
                "name another folder, or start again with --restart"
            )
        folder.remove(MANIFEST)  # of a run that ended while it removed what it no longer needed
        return
    folder.write(PLAN, started)
    for name in names:
        if name == MANIFEST or name.startswith(("part-", ".part-")):
            folder.remove(name)


def _made_with(folder: Folder, identity: str) -> str:
    """What a finished run was made with, beside what is asked for now."""
    try:
        same = json.loads(folder.read(MANIFEST) or b"")["fingerprint"] == identity
    except (ValueError, KeyError, TypeError):
        return "and its manifest is damaged"
    if same:
        return "with these texts, this model and these settings"
    return "with other texts, another model or other settings"


def _finish(folder: Folder, shards: Sequence[Shard], entries: Sequence[ShardEntry], identity: str) -> None:
    manifest = {"fingerprint": identity, "shards": [asdict(entry) for entry in entries]}
    folder.write(MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    for shard in shards:
        folder.remove(done_name(shard))
    folder.remove(PLAN)


def _error(failure: ShardFailure) -> UnmaskError:
    kind = getattr(errors, failure.kind)
    for base in (TextError, OutputError, InvalidRequest):
        if issubclass(kind, base):
            return base(failure.message)
    return UnmaskError(failure.message)
