"""Hidden states of sequences of token ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_choice, listed, whole_number
from unmask.base.progress import Progress
from unmask.engines.engine import Engine, Floats, Layers
from unmask.errors import InvalidRequest, quoted
from unmask.spec import EncoderSpec
from unmask.spec.global_tokens import GlobalTokens, places
from unmask.tasks.batches import TOKENS_PER_PASS, Chosen, batches, require_finite
from unmask.tasks.reader import Name, Reader, Ready, called, several
from unmask.text import Encoding, PackedBatch, Truncation
from unmask.text.tokenizer import numbered

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class IdSequence:
    """One sequence of token ids, as `Readable`."""

    ids: Ids
    token_type_ids: Ids
    global_tokens: Sequence[int] = ()
    """The positions of its global tokens."""
    truncated_tokens: int = 0

    def __len__(self) -> int:
        return len(self.ids)


def prepare(
    reader: Reader,
    inputs: str | Sequence[str] | Sequence[Any],
    token_type_ids: Sequence[Any] | None = None,
    *,
    layers: Layers = "last",
    truncation: Truncation = "error",
    global_tokens: GlobalTokens | Sequence[Sequence[int]] | None = "none",
) -> Ready[list[Floats]]:
    """Hidden states of texts or ids; arguments as of `unmask.models.model.Model.hidden_states`."""
    check_choice("layers", layers, get_args(Layers))
    sequences: list[Any] = several("inputs", inputs)
    marks: Any = None if global_tokens == "none" else global_tokens
    if sequences and isinstance(sequences[0], str):
        if token_type_ids is not None:
            raise InvalidRequest("token_type_ids were given with texts, which have their own; leave them out")
        encodings = reader.tokenized(sequences, truncation=truncation, name=called(inputs, numbered))
        marks = None if marks is None else [places(encoding, marks) for encoding in encodings]
        sequences = [encoding.ids for encoding in encodings]
        token_type_ids = [encoding.token_type_ids for encoding in encodings]
    ids = checked_ids(reader.spec, sequences)
    types = (
        [np.zeros_like(row) for row in ids]
        if token_type_ids is None
        else checked_types(reader.spec, token_type_ids, ids)
    )
    globals_of = [()] * len(ids) if marks is None else checked_places(marks, ids)
    return of_encodings(
        [IdSequence(*parts) for parts in zip(ids, types, globals_of, strict=True)], layers=layers
    )


def of_encodings(
    encodings: Sequence[Encoding | IdSequence], *, layers: Layers = "last", name: Name = numbered
) -> Ready[list[Floats]]:
    """Hidden states of texts that are tokenized already, without global tokens, or of sequences of ids."""
    return Ready(encodings, partial(_states, layers=layers), list, ("hidden_states", layers), name)


def _states(
    engine: Engine,
    *,
    encodings: Sequence[Encoding | IdSequence],
    layers: Layers,
    **options: Any,
) -> list[Floats]:
    marks = [encoding.global_tokens for encoding in encodings if isinstance(encoding, IdSequence)]
    return hidden_states(
        engine,
        [encoding.ids for encoding in encodings],
        [encoding.token_type_ids for encoding in encodings],
        layers=layers,
        global_tokens=marks if any(marks) else None,
        **options,
    )


def hidden_states(
    engine: Engine,
    ids: Sequence[Ids],
    token_types: Sequence[Ids] | None = None,
    *,
    layers: Layers = "last",
    global_tokens: Sequence[Sequence[int]] | None = None,
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
    name: Name = numbered,
) -> list[Floats]:
    """The hidden states of each sequence, (N, D), or those of all layers, (L + 1, N, D).

    Args:
        engine: runs the batches.
        ids: the token ids of each sequence, from `checked_ids`.
        token_types: the token type ids of each sequence; 0 by default.
        layers: see `Engine.hidden_states`.
        global_tokens: the positions of each sequence's global tokens.
        tokens_per_pass: the maximum number of tokens per forward pass.
        progress: called with (sequences done, sequences in all).
        name: how error messages name the sequence at an index.

    Raises:
        NonFiniteResult: a hidden state is infinity or NaN.
    """

    def packed(chosen: Chosen) -> PackedBatch:
        return PackedBatch.of_ids(
            [ids[index] for index in chosen], _some(token_types, chosen), _some(global_tokens, chosen)
        )

    states_of_each: list[Floats | None] = [None] * len(ids)
    for chosen, batch in batches([len(row) for row in ids], packed, tokens_per_pass, progress):
        states = engine.hidden_states(batch, layers)
        require_finite(
            states, chosen, batch.layout.sequence_of_T, "a hidden state", name=name, dtype=engine.dtype
        )
        for place, index in enumerate(chosen):
            states_of_each[index] = states[..., batch.layout.rows(place), :]
    return [array for array in states_of_each if array is not None]


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
    for index, sequence in enumerate(ids):
        try:
            array = np.asarray(sequence)
        except (ValueError, TypeError, RuntimeError):
            array = np.empty((0, 0))
        if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu":
            raise InvalidRequest(
                f"sequence {index + 1} of {what}s is {quoted(sequence)}; give a list of at least one integer"
            )
        if array.min() < 0 or array.max() >= size:
            worst = int(array.max() if array.max() >= size else array.min())
            raise InvalidRequest(f"a {what} is {worst}; this model has 0 to {size - 1}")
        checked.append(array.astype(np.int64))
    return checked


def checked_types(spec: EncoderSpec, types: object, ids: Sequence[Ids]) -> list[Ids]:
    """Token types of each sequence, as arrays.

    Raises:
        InvalidRequest: see `checked_ids`, or they do not match the ids.
    """
    checked = checked_ids(spec, listed("token_type_ids", types), "token type id")
    if [len(row) for row in checked] != [len(row) for row in ids]:
        lengths, expected = ([len(row) for row in sequences] for sequences in (checked, ids))
        raise InvalidRequest(
            f"token_type_ids have lengths {quoted(lengths)} and the ids {quoted(expected)}; "
            "give one for each id"
        )
    return checked


def checked_places(places: object, ids: Sequence[Ids]) -> list[list[int]]:
    """The positions of each sequence's global tokens.

    Raises:
        InvalidRequest: it is not a list of positions for each sequence.
    """
    sequences = [] if isinstance(places, str) or callable(places) else listed("global_tokens", places)
    if len(sequences) != len(ids):
        raise InvalidRequest(
            f"global_tokens is {quoted(places)}; give the positions of the global tokens of each of the "
            f"{len(ids)} sequences of ids"
        )
    return [
        [whole_number("global token", position) for position in listed("global_tokens", positions)]
        for positions in sequences
    ]


def _some(values: Sequence[Any] | None, chosen: Chosen) -> list[Any] | None:
    return None if values is None else [values[index] for index in chosen]
