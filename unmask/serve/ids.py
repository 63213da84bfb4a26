"""Token ids that a client sends instead of a text: checked, as an `Encoding`."""

from collections.abc import Callable, Sequence

import numpy as np

from unmask.errors import EmptyText, TextTooLong
from unmask.models.load import Model
from unmask.serve.errors import BadField
from unmask.text import Encoding, Truncation
from unmask.text.truncation import truncated


def encodings_of_ids(
    model: Model, ids: Sequence[Sequence[int]], *, truncation: Truncation, name: Callable[[int], str]
) -> list[Encoding]:
    """Sequences of token ids, with the special tokens that the model's tokenizer puts around a text.

    Ids of another tokenizer would give numbers without meaning. Most are refused here, because they are
    outside the vocabulary or lack these special tokens.

    Args:
        model: what reads them.
        ids: the sequences, special tokens included.
        truncation: what to do with a sequence that is too long.
        name: how errors name the sequence at an index.

    Raises:
        BadField: an id is outside the vocabulary, or the special tokens are missing.
        EmptyText: there is nothing but special tokens.
        TextTooLong: there are more than the model reads.
    """
    tokenizer = model.tokenizer
    size = min(model.spec.embedding.vocabulary, tokenizer.vocabulary_size)
    frame = tokenizer.encode("a")
    words = np.flatnonzero(~frame.special)
    before = frame.ids[: words[0]].tolist() if len(words) else frame.ids.tolist()
    after = frame.ids[words[-1] + 1 :].tolist() if len(words) else []
    encodings = []
    for index, row in enumerate(ids):
        for token_id in row:
            if not 0 <= token_id < size:
                raise BadField(
                    "input", f"{name(index)} has the token id {token_id}; the model has 0 to {size - 1}"
                )
        inside = len(row) - len(before) - len(after)
        if inside < 0 or row[: len(before)] != before or row[len(row) - len(after) :] != after:
            around = f"begin with {before} and end with {after}" if after else f"begin with {before}"
            raise BadField(
                "input",
                f"{name(index)} must {around}, the model's special tokens; take ids from /tokenize of this "
                "server, or send texts (in LangChain: check_embedding_ctx_length=False)",
            )
        if not inside:
            raise EmptyText(f"{name(index)} has no words; give a text with at least one")
        special = np.zeros(len(row), dtype=np.bool_)
        special[: len(before)] = special[len(row) - len(after) :] = True
        encoding = Encoding.of_arrays(
            "",
            ids=np.array(row, dtype=np.int64),
            token_type_ids=np.full(len(row), frame.token_type_ids[0], dtype=np.int64),
            offsets=np.zeros((len(row), 2), dtype=np.int64),
            special=special,
            sequence_ids=np.where(special, -1, 0),
            pieces=[str(tokenizer.engine.id_to_token(token_id)) for token_id in row],
        )
        if model.max_tokens is not None and len(row) > model.max_tokens:
            if truncation == "error":
                raise TextTooLong(
                    f"{name(index)} has {len(row)} tokens and the model reads at most {model.max_tokens}; "
                    "shorten it",
                    original_tokens=len(row),
                    max_tokens=model.max_tokens,
                )
            encoding = truncated(encoding, model.max_tokens)
        encodings.append(encoding)
    return encodings
