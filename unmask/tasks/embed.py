"""Texts to sentence embeddings, as the checkpoint defines them."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.errors import not_finite
from unmask.model import heads
from unmask.model.encoder import Encoder
from unmask.model.spec import EmbeddingHead
from unmask.model.spec.global_tokens import GlobalTokens, pack
from unmask.tasks.progress import Progress
from unmask.text import Encoding, passes
from unmask.text.tokenizer import numbered

TOKENS_PER_PASS = 2048
"""Enough for matrix products at full speed, few enough for the activations to stay in cache."""


def embed(
    encoder: Encoder,
    head: EmbeddingHead,
    encodings: Sequence[Encoding],
    *,
    tokens_per_pass: int = TOKENS_PER_PASS,
    global_tokens: GlobalTokens = "first",
    progress: Progress | None = None,
    name: Callable[[int], str] = numbered,
) -> NDArray[np.float32]:
    """One embedding a text, shape (S, E), float32, in the order given.

    Texts run packed, sorted by their number of tokens, ``tokens_per_pass`` at a time; which texts
    share a pass changes no embedding but for the last bits. ``global_tokens`` says which tokens are global
    in an encoder that has a use for such. ``name`` is how an error calls the text
    at an index.

    Raises:
        NonFiniteResult: an embedding holds infinity or not-a-number.
    """
    width = encoder.spec.width * len(head.pooling)
    embeddings_SE = np.empty((len(encodings), width), dtype=np.float32)
    lengths_S = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
    done = 0
    for chosen in passes(lengths_S, tokens_per_pass):
        batch = pack(encoder.spec, [encodings[i] for i in chosen], global_tokens)
        with torch.inference_mode():
            e_SE = heads.embed(encoder.encode(batch), batch.layout, head)
        embeddings_SE[chosen] = e_SE.float().cpu().numpy()
        done += len(chosen)
        if progress is not None:
            progress(done, len(encodings))
    if not np.isfinite(embeddings_SE).all():
        broken = int(np.flatnonzero(~np.isfinite(embeddings_SE).all(axis=1))[0])
        raise not_finite(f"the embedding of {name(broken)}", str(encoder.embedding.words.weight.dtype))
    return embeddings_SE
