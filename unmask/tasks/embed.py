"""Sentence embeddings of texts, as the checkpoint defines them."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from unmask.engines.engine import Engine
from unmask.spec import PooledVector
from unmask.spec.global_tokens import GlobalTokens
from unmask.tasks.batches import TOKENS_PER_PASS, require_finite, text_batches
from unmask.tasks.progress import Progress
from unmask.text import Encoding
from unmask.text.tokenizer import numbered


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
