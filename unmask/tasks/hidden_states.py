"""Hidden states of sequences of token ids."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import listed, whole_number
from unmask.engines.engine import Engine, Floats, Layers
from unmask.errors import InvalidRequest, quoted
from unmask.spec import EncoderSpec
from unmask.tasks.batches import TOKENS_PER_PASS, Chosen, batches, require_finite
from unmask.text import PackedBatch
from unmask.text.tokenizer import numbered

Ids = NDArray[np.int64]


def hidden_states(
    engine: Engine,
    ids: Sequence[Ids],
    token_types: Sequence[Ids] | None = None,
    *,
    layers: Layers = "last",
    global_tokens: Sequence[Sequence[int]] | None = None,
    tokens_per_pass: int = TOKENS_PER_PASS,
    name: Callable[[int], str] = numbered,
) -> list[Floats]:
    """The hidden states of each sequence, (N, D), or those of all layers, (L + 1, N, D).

    Args:
        engine: runs the batches.
        ids: the token ids of each sequence, from `checked_ids`.
        token_types: the token type ids of each sequence; 0 by default.
        layers: see `Engine.hidden_states`.
        global_tokens: the positions of each sequence's global tokens.
        tokens_per_pass: the maximum number of tokens per forward pass.
        name: how error messages name the sequence at an index.

    Raises:
        NonFiniteResult: a hidden state is infinity or NaN.
    """

    def packed(chosen: Chosen) -> PackedBatch:
        return PackedBatch.of_ids(
            [ids[index] for index in chosen], _some(token_types, chosen), _some(global_tokens, chosen)
        )

    found: list[Floats | None] = [None] * len(ids)
    for chosen, batch in batches([len(one) for one in ids], packed, tokens_per_pass):
        states = engine.hidden_states(batch, layers)
        require_finite(
            states, chosen, batch.layout.sequence_of_T, "a hidden state", name=name, dtype=engine.dtype
        )
        for place, index in enumerate(chosen):
            found[index] = states[..., batch.layout.rows(place), :]
    return [one for one in found if one is not None]


def checked_ids(spec: EncoderSpec, ids: Sequence[object], what: str = "token id") -> list[Ids]:
    """Each sequence as an array of integers, checked against the encoder's table.

    Args:
        spec: the encoder.
        ids: one list, array or tensor of integers per sequence.
        what: "token id" or "token type id".

    Raises:
        InvalidRequest: a sequence is empty or is not a list of integers, or a number is out of range.
    """
    size = spec.embedding.vocabulary if what == "token id" else max(1, spec.embedding.segments)
    checked = []
    for index, given in enumerate(ids):
        try:
            found = np.asarray(given)
        except (ValueError, TypeError, RuntimeError):
            found = np.empty((0, 0))
        if found.ndim != 1 or not len(found) or found.dtype.kind not in "iu":
            raise InvalidRequest(
                f"sequence {index + 1} of {what}s is {quoted(given)}; give a list of at least one integer"
            )
        if found.min() < 0 or found.max() >= size:
            worst = int(found.max() if found.max() >= size else found.min())
            raise InvalidRequest(f"a {what} is {worst}; this model has 0 to {size - 1}")
        checked.append(found.astype(np.int64))
    return checked


def checked_types(spec: EncoderSpec, types: object, ids: Sequence[Ids]) -> list[Ids]:
    """Token types of each sequence, as arrays.

    Raises:
        InvalidRequest: see `checked_ids`, or they do not match the ids.
    """
    found = checked_ids(spec, listed("token_type_ids", types), "token type id")
    if [len(one) for one in found] != [len(one) for one in ids]:
        given, wanted = ([len(one) for one in some] for some in (found, ids))
        raise InvalidRequest(
            f"token_type_ids have lengths {quoted(given)} and the ids {quoted(wanted)}; give one for each id"
        )
    return found


def checked_places(places: object, ids: Sequence[Ids]) -> list[list[int]]:
    """The positions of each sequence's global tokens.

    Raises:
        InvalidRequest: it is not a list of positions for each sequence.
    """
    found = [] if isinstance(places, str) or callable(places) else listed("global_tokens", places)
    if len(found) != len(ids):
        raise InvalidRequest(
            f"global_tokens is {quoted(places)}; give the positions of the global tokens of each of the "
            f"{len(ids)} sequences of ids"
        )
    return [[whole_number("global token", one) for one in listed("global_tokens", some)] for some in found]


def _some(values: Sequence[Any] | None, chosen: Chosen) -> list[Any] | None:
    return None if values is None else [values[index] for index in chosen]
