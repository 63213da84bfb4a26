"""The text of a run: tokens on disk, micro-batches to train on, and micro-batches to evaluate on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.errors import InvalidRequest
from unmask.learn.data import ChunkStream, ShardSet, SourceSpec, held_out, prepare
from unmask.learn.data.chunk import Chunk
from unmask.learn.pretrain.ranks import Ranks
from unmask.learn.pretrain.report import Callback
from unmask.learn.pretrain.settings import RunSettings
from unmask.text import Tokenizer


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
    data, cache, micro = settings.data, base / settings.data.cache, settings.batch.micro_tokens

    def tell(source: SourceSpec, documents: int, tokens: int) -> None:
        callback.tokenizing(source.name, documents, tokens)

    sets = ranks.first_alone(lambda: prepare(data.sources, tokenizer, cache, base, tell))
    outside = ranks.first_alone(lambda: prepare(data.held_out, tokenizer, cache, base, tell))
    _check_lengths([*sets, *outside], extra_tokens, limit)
    batches = ChunkStream(
        [(one, source.weight) for one, source in zip(sets, data.sources, strict=True)],
        seed=settings.seed,
        micro_tokens=micro,
        extra_tokens=extra_tokens,
    )
    each = max(1, settings.evaluation.tokens // max(1, len(outside)))
    return RunText(
        sets,
        batches,
        [
            some
            for one in outside
            for some in held_out(one, micro_tokens=micro, extra_tokens=extra_tokens, tokens=each)
        ],
    )


def _check_lengths(sets: Sequence[ShardSet], extra_tokens: int, limit: int | None) -> None:
    """Refuse chunks that are too long for the encoder before training, not when the first one is read."""
    for one in sets:
        longest = int(one.lengths.max()) + extra_tokens
        if limit is not None and longest > limit:
            raise InvalidRequest(
                f"source {one.name} has a chunk of {longest} tokens, {extra_tokens} special ones included, "
                f"and the encoder's config allows at most {limit}; lower max_tokens of the source, or raise "
                "the limit (max_position_embeddings in most families)"
            )
