"""``unmask embed --engine``: shards in a folder, by several processes or a cluster."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from unmask.bulk import BatchEmbedder, embed_shards
from unmask.bulk.engines import Engine
from unmask.bulk.run import ROWS_PER_SHARD
from unmask.cli.options import RunOptions
from unmask.cli.output import print_json, progress
from unmask.errors import InvalidRequest
from unmask.model.spec import PoolingMode
from unmask.tasks.quantize import Precision
from unmask.text import Blank, Truncation


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BulkOptions:
    """Who embeds, if not this process."""

    engine: Annotated[
        Engine | None,
        Parameter(
            name="--engine",
            help="embed .txt, .jsonl or .parquet files by processes of this machine, or by Ray; "
            "-o names a folder of shards",
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


@dataclass(frozen=True)
class EmbedSettings:
    """What ``unmask embed`` computes."""

    truncation: Truncation
    field: str | None
    pooling: PoolingMode | None
    normalize: bool | None
    prompt: str | None
    prompt_name: str | None
    truncate_dim: int | None
    precision: Precision


def embed_bulk(
    inputs: list[str],
    *,
    output: Path | None,
    model: str,
    run: RunOptions,
    bulk: BulkOptions,
    blank: Blank,
    settings: EmbedSettings,
    overwrite: bool,
    restart: bool,
    json: bool,
) -> None:
    """Embed files into a folder of shards, and print a summary."""
    assert bulk.engine is not None
    if output is None:
        raise InvalidRequest("--engine writes a folder of shards; name it with -o")
    if not model.strip():
        raise InvalidRequest("--model is empty; name a checkpoint folder, a hub id, or default")
    if run.threads is not None and run.threads < 1:
        raise InvalidRequest(f"--threads is {run.threads}; it must be at least 1")
    if blank == "skip":
        raise InvalidRequest("--blank skip would shift the rows of a shard; remove blank lines first")
    load = {
        name: getattr(run, name)
        for name in ("dtype", "revision", "compat", "device", "kernel", "adapter", "backend")
    }
    embedder = BatchEmbedder(
        model,
        column=settings.field or "text",
        load=load,
        threads=run.threads or 1,
        truncation=settings.truncation,
        pooling=settings.pooling,
        normalize=settings.normalize,
        prompt=settings.prompt,
        prompt_name=settings.prompt_name,
        truncate_dim=settings.truncate_dim,
        precision=settings.precision,
    )
    with progress("shards", 0) as report:
        summary = embed_shards(
            inputs,
            url_of(output),
            embedder,
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
        f"{summary.texts:,} texts in {summary.shards:,} shards{resumed}, {summary.tokens:,} tokens, "
        f"{summary.truncated_texts:,} texts truncated, in {summary.output}"
    )


def url_of(output: Path) -> str:
    """The output as typed: a path reads ``s3://bucket`` as ``s3:/bucket``."""
    first, *rest = output.parts
    if first.endswith(":") and rest:
        return f"{first}//{'/'.join(rest)}"
    return str(output)
