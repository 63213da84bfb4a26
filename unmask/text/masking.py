"""Replace tokens by the mask token, and show predicted pieces as text."""

from collections.abc import Sequence

from unmask.errors import InvalidRequest
from unmask.text.encoding import Encoding
from unmask.text.tokenizer import Tokenizer


def spellings(tokenizer: Tokenizer, id: int) -> tuple[str, str]:
    """A piece as the vocabulary spells it, and as text; an id without a piece is shown as a number."""
    piece: str | None = tokenizer.engine.id_to_token(id)
    if piece is None:
        return f"<{id}>", f"<{id}>"
    return piece, tokenizer.engine.decode([id], skip_special_tokens=False)


def masked(
    encoding: Encoding, tokens: Sequence[int], tokenizer: Tokenizer, *, name: str = "the model"
) -> Encoding:
    """The encoding with the mask token in place of some of its tokens; their offsets are unchanged.

    Raises:
        InvalidRequest: the tokenizer has no mask token, or the encoding has no such token.
    """
    mask_id = tokenizer.mask_id
    if mask_id is None:
        raise InvalidRequest(f"the tokenizer of {name} has no mask token, so no word can be asked for")
    ids, pieces = encoding.ids.copy(), list(encoding.pieces)
    for token in tokens:
        if not 0 <= token < len(encoding):
            raise InvalidRequest(f"token is {token}; this text has tokens 0 to {len(encoding) - 1}")
        ids[token], pieces[token] = mask_id, tokenizer.special_tokens["mask"]
    return encoding.with_pieces(ids, pieces)
