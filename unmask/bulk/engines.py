"""What runs the shards: processes of this machine, or actors of Ray. Both call one `ShardWriter`."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from typing import Any

from unmask.base.optional import require
from unmask.base.processes import compute, process_pool
from unmask.bulk import Engine
from unmask.bulk.shards import ShardEntry, ShardFailure, ShardWriter
from unmask.bulk.sources import Shard

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
