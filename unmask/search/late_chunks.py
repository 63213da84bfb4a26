"""Late chunking: vectors of passages from the hidden states of the whole document (Günther et al. 2024).

Axes: P passages.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unmask.engines.engine import Floats
from unmask.errors import InvalidRequest
from unmask.models.load import Model
from unmask.search.passages import Passage
from unmask.spec import PooledVector
from unmask.tasks.batches import TOKENS_PER_PASS, require_finite, text_batches
from unmask.tasks.prompts import prompt_of
from unmask.text import Encoding
from unmask.text.windows import Window, windows


def check_late_chunks(head: PooledVector) -> None:
    """Check that passages' vectors are means of hidden states, and that no prompt stands before documents.

    Raises:
        InvalidRequest: they are not, or one does.
    """
    if head.pooling != ("mean",) or head.projections:
        obstacle = (
            "dense layers after pooling" if head.projections else f"{' and '.join(head.pooling)} pooling"
        )
        raise InvalidRequest(
            f"the model has {obstacle}, and late chunking needs the mean of hidden states alone; embed each "
            "passage on its own instead"
        )
    if prompt := prompt_of(head.prompts, "document"):
        raise InvalidRequest(
            f"the model puts the prompt {prompt!r} before documents, and late chunking reads documents "
            "without one; embed each passage on its own instead"
        )


def late_chunks(
    model: Model,
    head: PooledVector,
    documents: Sequence[tuple[Encoding, Sequence[Passage]]],
    *,
    overlap_tokens: int | None = None,
    tokens_per_pass: int = TOKENS_PER_PASS,
) -> list[NDArray[np.float32]]:
    """One vector per passage of each document, (P, E): the mean of the states that its tokens have in the
    whole document.

    The first passage includes the special tokens before the text and the last those after it, as in the
    authors' code, so that a document of one passage has the vector that `Model.embed` gives. A document that
    is longer than the model reads is read in overlapping windows, and each token's state is taken from the
    window in which it has the most context. The windows of all documents run packed together.

    Args:
        model: the encoder.
        head: how it embeds: by mean pooling.
        documents: each as a whole, not truncated, with its passages from `passages_of`.
        overlap_tokens: tokens that neighboring windows share; None is the default of `windows`.
        tokens_per_pass: the maximum number of tokens per forward pass.

    Raises:
        InvalidRequest: the model does not pool by the mean, or the overlap does not fit into a window.
        NonFiniteResult: a hidden state is infinity or NaN.
    """
    check_late_chunks(head)
    width = head.width(model.spec)
    ranges = [_ranges(encoding, passages) for encoding, passages in documents]
    sums = [np.zeros((len(ranges_P2), width), dtype=np.float64) for ranges_P2 in ranges]
    parts: list[Window] = []
    owners: list[int] = []
    for document, (encoding, _) in enumerate(documents):
        own_windows = windows(encoding, model.max_tokens, overlap_tokens, "a document")
        parts += own_windows
        owners += [document] * len(own_windows)
    encodings = [part.encoding for part in parts]
    for chosen, batch in text_batches(model.spec, encodings, "first", tokens_per_pass):
        states_TD = model.engine.hidden_states(batch)
        rows = batch.layout.sequence_of_T
        require_finite(
            states_TD, chosen, rows, "a hidden state", name=lambda _: "a document", dtype=model.engine.dtype
        )
        for place, index in enumerate(chosen.tolist()):
            states_ND = states_TD[batch.layout.rows(place), :width]
            _add(sums[owners[index]], states_ND, parts[index], ranges[owners[index]])
    return [_means(*pair, normalize=head.normalize) for pair in zip(sums, ranges, strict=True)]


def _means(
    sums_PE: NDArray[np.float64], ranges_P2: NDArray[np.int64], *, normalize: bool
) -> NDArray[np.float32]:
    vectors_PE = sums_PE / np.diff(ranges_P2, axis=1)
    if normalize:
        vectors_PE /= np.maximum(np.linalg.norm(vectors_PE, axis=1, keepdims=True), 1e-12)
    return vectors_PE.astype(np.float32)


def _ranges(encoding: Encoding, passages: Sequence[Passage]) -> NDArray[np.int64]:
    """The tokens of each passage in the encoding, (P, 2), special tokens at the document's ends included."""
    text = np.flatnonzero(encoding.sequence_ids == 0)
    ranges_P2 = np.zeros((len(passages), 2), dtype=np.int64)
    for passage, passage_span in enumerate(passages):
        end = passage_span.first_token + passage_span.tokens
        first = 0 if passage_span.first_token == 0 else text[passage_span.first_token]
        ranges_P2[passage] = first, len(encoding) if end == len(text) else text[end - 1] + 1
    return ranges_P2


def _add(sums_PE: NDArray[np.float64], states_ND: Floats, part: Window, ranges_P2: NDArray[np.int64]) -> None:
    """Add the states that a window owns to the sums of the passages that hold them."""
    tokens = part.tokens[part.owned]
    states_MD = states_ND[part.owned].astype(np.float64)
    holds_P = (ranges_P2[:, 0] <= tokens[-1]) & (ranges_P2[:, 1] > tokens[0])
    for passage in np.flatnonzero(holds_P).tolist():
        first, end = np.searchsorted(tokens, ranges_P2[passage])
        sums_PE[passage] += states_MD[first:end].sum(axis=0)
