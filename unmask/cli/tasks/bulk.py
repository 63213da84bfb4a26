"""Options of ``--engine``: shards in a folder, by several processes or a cluster."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from unmask.base.progress import counted
from unmask.bulk import ROWS_PER_SHARD, Engine
from unmask.cli.options import RunOptions
from unmask.cli.output import print_json, progress
from unmask.cli.streams import STANDARD_INPUT
from unmask.errors import InvalidRequest
from unmask.text import Blank

if TYPE_CHECKING:
    from unmask.bulk import BatchTask


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BulkOptions:
    """Who computes, if not this process."""

    engine: Annotated[
        Engine | None,
        Parameter(
            name="--engine",
            help="compute .txt, .jsonl, .csv, .tsv, .parquet or .lance files by processes of this machine, "
            "or by Ray; -o names a folder of shards",
        ),
    ] = None
    workers: Annotated[
        int | None,
        Parameter(name="--workers", help="with --engine: processes or actors, --threads each; default: 1"),
    ] = None
    rows_per_shard: Annotated[
        int | None,
        Parameter(
            name="--rows-per-shard", help=f"with --engine: rows of one file; default: {ROWS_PER_SHARD}"
        ),
    ] = None

    def check(self) -> None:
        """Check that the options belong together.

        Raises:
            InvalidRequest: an option is given that needs --engine, or a number is not positive.
        """
        for name, value in (("--workers", self.workers), ("--rows-per-shard", self.rows_per_shard)):
            if value is not None and self.engine is None:
                raise InvalidRequest(f"{name} needs --engine processes or --engine ray")
            if value is not None and value < 1:
                raise InvalidRequest(f"{name} is {value}; it must be at least 1")


BULK = BulkOptions()


def task_settings(
    model: str, run: RunOptions, field: str | None, blank: Blank, default_adapter: str | None = None
) -> dict[str, Any]:
    """The arguments of every `BatchTask`, from the options of a command.

    Raises:
        InvalidRequest: an option is out of range, or has no meaning for shards.
    """
    if run.threads is not None and run.threads < 1:
        raise InvalidRequest(f"--threads is {run.threads}; it must be at least 1")
    if blank == "skip":
        raise InvalidRequest("--blank skip would shift the rows of a shard; remove blank lines first")
    return {
        "model": model,
        "column": field or "text",
        "load": run.load_options(model, default_adapter),
        "threads": run.threads or 1,
    }


def run_bulk(
    task: "BatchTask",
    inputs: Sequence[str],
    output: Path | None,
    bulk: BulkOptions,
    *,
    overwrite: bool,
    restart: bool,
    json: bool,
) -> None:
    """Run a task over files into a folder of shards, and print a summary."""
    assert bulk.engine is not None
    if output is None:
        raise InvalidRequest("--engine writes a folder of shards; name it with -o")
    if STANDARD_INPUT in inputs:
        raise InvalidRequest("--engine reads files, and standard input is named; write it to a file first")
    from unmask.bulk.run import run_shards

    with progress("shards", 0) as report:
        summary = run_shards(
            inputs,
            url_of(output),
            task,
            engine=bulk.engine,
            workers=bulk.workers or 1,
            rows_per_shard=bulk.rows_per_shard or ROWS_PER_SHARD,
            overwrite=overwrite,
            restart=restart,
            progress=report,
        )
    if json:
        print_json(summary)
        return
    resumed = f", {summary.resumed_shards:,} of them by an earlier run" if summary.resumed_shards else ""
    print(
        f"{counted(summary.texts, 'text')} in {counted(summary.shards, 'shard')}{resumed}, "
        f"{counted(summary.tokens, 'token')}, {counted(summary.truncated_texts, 'text')} truncated, "
        f"in {summary.output}"
    )


def url_of(output: Path) -> str:
    """The output as typed: a path reads ``s3://bucket`` as ``s3:/bucket``."""
    first, *rest = output.parts
    if first.endswith(":") and rest:
        return f"{first}//{'/'.join(rest)}"
    return str(output)
