"""One vector, weights of words and one vector for each token, of one pass (BGE-M3, Chen et al. 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from unmask.base.progress import Progress
from unmask.engines.engine import Engine, Floats
from unmask.engines.native.parts import pooled, unit_length
from unmask.errors import InvalidRequest
from unmask.spec import PooledVector
from unmask.tasks.batches import TOKENS_PER_PASS, require_finite, text_batches
from unmask.tasks.multi_vectors import TokenVectors
from unmask.tasks.prompts import chosen_prompt, spans_after
from unmask.tasks.reader import Name, Reader, Ready, called, several
from unmask.tasks.sparse_vectors import WordWeights
from unmask.text import Encoding, PackedBatch, Truncation
from unmask.text.tokenizer import numbered
from unmask.weights.heads.embedding_head import TokenLayers

WITHOUT_WEIGHT = ("cls", "sep", "pad", "unk")
"""The roles of special tokens that have no weight as words."""


@dataclass(frozen=True, eq=False)
class EveryOutput:
    """What one pass gives for a text."""

    vector_E: NDArray[np.float32]
    """One vector of the whole text, as `Model.embed` gives."""
    words: WordWeights
    """The weight of each word that the text has; the largest, where it has a word several times."""
    tokens: TokenVectors
    """A unit vector for each token but the first, which is [CLS]."""


def prepare(
    reader: Reader, texts: str | Sequence[str], *, truncation: Truncation = "error"
) -> Ready[list[EveryOutput]]:
    """All outputs; arguments as of `unmask.models.model.Model.embed_all`."""
    name, (_, prompt) = called(texts, numbered), pooling_and_prompt(reader)
    encodings = reader.tokenized(
        [
            prompt + text if isinstance(text, str) and text.strip() else text
            for text in several("texts", texts)
        ],
        truncation=truncation,
        name=name,
    )
    return of_encodings(reader, encodings, name)


def pooling_and_prompt(reader: Reader) -> tuple[PooledVector, str]:
    """The pooling of the vector of a text, and the prompt before every text; "" for none.

    Raises:
        InvalidRequest: the checkpoint has no pooling without layers.
    """
    output = reader.output
    if not isinstance(output, PooledVector) or output.projections:
        raise InvalidRequest(
            f"{reader.name} does not say how to pool one vector of a text without layers of their own, as "
            "BGE-M3's modules.json does; use a checkpoint with a Pooling module"
        )
    return output, chosen_prompt(output, None, None, reader.name)


def of_encodings(
    reader: Reader, encodings: Sequence[Encoding], name: Name = numbered
) -> Ready[list[EveryOutput]]:
    """All outputs of texts that are tokenized already, after the checkpoint's prompt."""
    (output, prompt), tokenizer = pooling_and_prompt(reader), reader.tokenizer
    pieces = [tokenizer.special_tokens[role] for role in WITHOUT_WEIGHT if role in tokenizer.special_tokens]
    without_weight = [id_ for id_ in map(tokenizer.token_to_id, pieces) if id_ is not None]
    return Ready(
        encodings,
        partial(
            every_output,
            output=output,
            layers=reader.checkpoint.token_layers(),
            without_weight=without_weight,
            prompt=len(prompt),
        ),
        list,
        ("every_output",),
        name,
    )


def every_output(
    engine: Engine,
    output: PooledVector,
    layers: TokenLayers,
    encodings: Sequence[Encoding],
    *,
    without_weight: Sequence[int] = (),
    prompt: int = 0,
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
    name: Name = numbered,
) -> list[EveryOutput]:
    """The outputs of each text, in the given order; see `unmask.tasks.embed.embed`.

    Args:
        engine: runs the batches.
        output: the pooling of the vector of a text.
        layers: those of words and of tokens.
        encodings: the tokenized texts.
        without_weight: ids of tokens that are not words.
        prompt: characters of the prompt before each text.
        tokens_per_pass: the maximum number of tokens per forward pass.
        progress: called with (texts done, texts in all).
        name: how error messages name the text at an index.

    Raises:
        NonFiniteResult: a hidden state is infinity or NaN.
    """
    outputs: dict[int, EveryOutput] = {}
    for chosen, batch in text_batches(engine.spec, encodings, "none", tokens_per_pass, progress):
        x_TD = engine.hidden_states(batch, "last")
        require_finite(
            x_TD, chosen, batch.layout.sequence_of_T, "a hidden state", name=name, dtype=engine.dtype
        )
        e_SE = _vectors(x_TD, batch, output)
        weights_T = np.maximum(x_TD @ layers.word_D + layers.word_bias, 0)
        v_TE = unit_length(x_TD @ layers.token_ED.T + layers.token_bias_E)
        for place, index in enumerate(chosen.tolist()):
            encoding, rows = encodings[index], batch.layout.rows(place)
            outputs[index] = EveryOutput(
                e_SE[place],
                _words(encoding, weights_T[rows], without_weight),
                TokenVectors(
                    v_TE[rows][1:].copy(),
                    encoding.ids[1:],
                    spans_after(encoding, prompt)[1:],
                    encoding.truncated_tokens,
                ),
            )
    return [outputs[index] for index in range(len(encodings))]


def _vectors(x_TD: Floats, batch: PackedBatch, output: PooledVector) -> Floats:
    e_SE = np.concatenate([pooled(x_TD, batch.layout, mode) for mode in output.pooling], axis=1)
    e_SE = e_SE[:, : output.dimensions]
    return unit_length(e_SE) if output.normalize else e_SE.copy()


def _words(encoding: Encoding, weights_N: Floats, without_weight: Sequence[int]) -> WordWeights:
    counts = (weights_N > 0) & ~np.isin(encoding.ids, without_weight)
    ids, place = np.unique(encoding.ids[counts], return_inverse=True)
    largest = np.zeros(len(ids), dtype=np.float32)
    np.maximum.at(largest, place, weights_N[counts].astype(np.float32))
    return WordWeights(ids, largest, encoding.truncated_tokens)
