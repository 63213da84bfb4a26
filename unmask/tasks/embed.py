"""Sentence embeddings of texts, as the checkpoint defines them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_choice, check_flag, whole_number
from unmask.base.progress import Progress
from unmask.engines.engine import Engine
from unmask.errors import InvalidRequest
from unmask.spec import POOLING_MODES, CheckpointOutput, PooledVector, PoolingMode, UnitLength, UnknownOutput
from unmask.spec.global_tokens import GlobalTokens
from unmask.tasks.batches import TOKENS_PER_PASS, require_finite, text_batches
from unmask.tasks.prompts import chosen_prompt, unpooled_tokens
from unmask.tasks.reader import Name, Reader, Ready, called, several
from unmask.text import Encoding, Truncation
from unmask.text.tokenizer import numbered


def prepare(
    reader: Reader,
    texts: str | Sequence[str],
    head: PooledVector,
    *,
    prompt: str | None = None,
    prompt_name: str | None = None,
    truncation: Truncation = "error",
    global_tokens: GlobalTokens = "first",
    name: Name = numbered,
) -> Ready[NDArray[np.float32]]:
    """Sentence embeddings of texts, (S, E); arguments as of `unmask.models.model.Model.embed`.

    ``head`` is what `embedding_head` gives.
    """
    before = chosen_prompt(head, prompt, prompt_name, reader.name)
    encodings = reader.tokenized(
        [
            before + text if isinstance(text, str) and text.strip() else text
            for text in several("texts", texts)
        ],
        truncation=truncation,
        name=called(texts, name),
    )
    return of_encodings(
        reader, encodings, head, prompt=before, global_tokens=global_tokens, name=called(texts, name)
    )


def of_encodings(
    reader: Reader,
    encodings: Sequence[Encoding],
    head: PooledVector,
    *,
    prompt: str = "",
    global_tokens: GlobalTokens = "first",
    name: Name = numbered,
) -> Ready[NDArray[np.float32]]:
    """Embeddings of texts that are tokenized already, after the prompt that they begin with."""
    skipped = unpooled_tokens(reader.tokenizer, head, prompt)
    return Ready(
        encodings,
        partial(embed, output=head, skipped=skipped, global_tokens=global_tokens),
        np.asarray,
        ("embed", head, skipped, global_tokens),
        name,
    )


def embedding_head(
    published: CheckpointOutput,
    pooling: PoolingMode | None = None,
    normalize: bool | None = None,
    truncate_dim: int | None = None,
) -> PooledVector:
    """How embeddings are computed: what the checkpoint publishes, with the overrides given here.

    Raises:
        InvalidRequest: neither the checkpoint nor the call specifies a pooling.
    """
    if pooling is not None:
        check_choice("pooling", pooling, POOLING_MODES)
    check_flag("normalize", normalize)
    if truncate_dim is not None:
        whole_number("truncate_dim", truncate_dim, 1)
    if isinstance(published, PooledVector):
        unit = published.normalize if normalize is None else normalize
        modes = published.pooling if pooling is None else (pooling,)
        if published.projections and len(modes) != len(published.pooling):
            raise InvalidRequest(
                f"pooling is {pooling}, and the layers after pooling read {len(published.pooling)} "
                "pooled vectors side by side; leave pooling out"
            )
        head = replace(published, pooling=modes, normalize=unit)
        if truncate_dim is None:
            return head
        if normalize is None and unit:  # the whole vector is normalized, and what is cut from it is not
            head = replace(head, projections=(*head.projections, UnitLength()), normalize=False)
        return replace(head, dimensions=truncate_dim)
    if pooling is None:
        reason = "the checkpoint gives no single vector per text"
        reason = published.reason if isinstance(published, UnknownOutput) else reason
        raise InvalidRequest(f"{reason}; name a pooling, for instance mean")
    unit = isinstance(published, UnknownOutput) and published.normalize
    return PooledVector((pooling,), unit if normalize is None else normalize, dimensions=truncate_dim)


def embed(
    engine: Engine,
    output: PooledVector,
    encodings: Sequence[Encoding],
    *,
    tokens_per_pass: int = TOKENS_PER_PASS,
    global_tokens: GlobalTokens = "first",
    skipped: int = 0,
    progress: Progress | None = None,
    name: Callable[[int], str] = numbered,
) -> NDArray[np.float32]:
    """One embedding per text, shape (S, E), float32, in the given order.

    Texts run packed, sorted by length, ``tokens_per_pass`` tokens at a time; the grouping changes only the
    last bits of an embedding. ``global_tokens`` selects the global tokens in an encoder with global
    attention. The first ``skipped`` tokens of each text are not pooled. ``name`` is how error messages name
    the text at an index.

    Raises:
        NonFiniteResult: an embedding contains infinity or NaN; raised after the pass it occurred in.
    """
    embeddings_SE = np.empty((len(encodings), output.width(engine.spec)), dtype=np.float32)
    for chosen, batch in text_batches(engine.spec, encodings, global_tokens, tokens_per_pass, progress):
        e_SE = engine.embed(batch, output, skipped=skipped)
        require_finite(e_SE, chosen, np.arange(len(chosen)), "the embedding", name=name, dtype=engine.dtype)
        embeddings_SE[chosen] = e_SE
    return embeddings_SE
