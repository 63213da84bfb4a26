"""The text of a run: tokens on disk, micro-batches to train on, and micro-batches to evaluate on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.base.files import user_cache
from unmask.base.stores import is_url
from unmask.errors import InvalidRequest
from unmask.text import Tokenizer
from unmask.training.data import ChunkStream, ShardSet, SourceSpec, held_out, prepare
from unmask.training.data.batches import Chunk
from unmask.training.data.shard_cache import ShardCache
from unmask.training.data.stored import stored
from unmask.training.run.callbacks import Callback
from unmask.training.run.ranks import Ranks
from unmask.training.run.settings import DataSettings, RunSettings


@dataclass(frozen=True, eq=False)
class RunText:
    """All text of a run."""

    sets: Sequence[ShardSet]
    """Training text, by source."""
    batches: ChunkStream
    held_out: Sequence[Sequence[Chunk]]
    """Micro-batches."""


def read_text(
    settings: RunSettings,
    base: Path,
    tokenizer: Tokenizer,
    ranks: Ranks,
    *,
    extra_tokens: int,
    limit: int | None,
    callback: Callback,
) -> RunText:
    """Tokenize text that is not cached yet, in the first process, and open all of it.

    Args:
        settings: settings of the run.
        base: the folder of the run file.
        tokenizer: the model's tokenizer.
        ranks: the processes of the run.
        extra_tokens: special tokens that the objective adds to a chunk.
        limit: maximum tokens of the encoder; None without a limit.
        callback: receives the progress of tokenization.

    Raises:
        InvalidRequest: a file is missing, or a chunk is longer than the encoder or a micro-batch allows.
    """
    data, micro = settings.data, settings.batch.micro_tokens

    def tell(source: SourceSpec, documents: int, tokens: int) -> None:
        callback.tokenizing(source.name, documents, tokens)

    def opened(sources: Sequence[SourceSpec]) -> list[ShardSet]:
        if is_url(data.cache):
            return stored(sources, tokenizer, data.cache, _local_cache(data, base))
        return prepare(sources, tokenizer, base / data.cache, base, tell)

    sets = ranks.first_alone(lambda: opened(data.sources))
    outside = ranks.first_alone(lambda: opened(data.held_out))
    if is_url(data.cache):
        _check_room(sets, outside, data)
    _check_lengths([*sets, *outside], extra_tokens, limit)
    batches = ChunkStream(
        [(shards, source.weight) for shards, source in zip(sets, data.sources, strict=True)],
        seed=settings.seed,
        micro_tokens=micro,
        extra_tokens=extra_tokens,
        shuffle_files=data.shuffle_files,
    )
    each = max(1, settings.evaluation.tokens // max(1, len(outside)))
    return RunText(
        sets,
        batches,
        [
            chunks
            for shards in outside
            for chunks in held_out(shards, micro_tokens=micro, extra_tokens=extra_tokens, tokens=each)
        ],
    )


def _local_cache(data: DataSettings, base: Path) -> ShardCache:
    """The folder of this machine for files of an object store."""
    folder = user_cache("tokens") if data.local_cache is None else base / data.local_cache
    return ShardCache(folder, data.local_cache_bytes)


def bytes_at_a_time(sets: Sequence[ShardSet], outside: Sequence[ShardSet], shuffle_files: int | None) -> int:
    """The size of a local cache in which no file is replaced that is read again in the same epoch."""
    # Three windows: the one before, of which chunks may wait for a micro-batch that they fit into, the one
    # that is read, and the next, which is downloaded meanwhile.
    files = None if shuffle_files is None else 3 * shuffle_files
    training = sum(sum(shards.largest_files(files)) for shards in sets)
    return max(training, *(sum(shards.largest_files()) for shards in outside), 0)


def _check_room(sets: Sequence[ShardSet], outside: Sequence[ShardSet], data: DataSettings) -> None:
    needed = bytes_at_a_time(sets, outside, data.shuffle_files)
    if needed > data.local_cache_bytes:
        way_out = "set data.shuffle_files" if data.shuffle_files is None else "lower data.shuffle_files"
        raise InvalidRequest(
            f"data.local_cache_bytes is {data.local_cache_bytes:,}, and {needed:,} are read at a time; raise "
            f"it, or {way_out}"
        )


def _check_lengths(sets: Sequence[ShardSet], extra_tokens: int, limit: int | None) -> None:
    """Refuse chunks that are too long for the encoder before training, not when the first one is read."""
    for shards in sets:
        longest = int(shards.lengths.max()) + extra_tokens
        if limit is not None and longest > limit:
            raise InvalidRequest(
                f"source {shards.name} has a chunk of {longest} tokens, {extra_tokens} special ones "
                f"included, and the encoder's config allows at most {limit}; lower max_tokens of the "
                "source, or raise the limit (max_position_embeddings in most families)"
            )
