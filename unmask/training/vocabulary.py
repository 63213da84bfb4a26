"""What objectives need to know about a tokenizer: special tokens, and which tokens continue a word."""

from dataclasses import dataclass

import numpy as np
import tokenizers
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.text import Tokenizer

_SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？")
_CLOSERS = "\"'”’»)]"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Ids of a tokenizer by their role in training."""

    size: int
    """Number of ids, special tokens included."""
    cls_id: int
    """Begins every sequence."""
    sep_id: int
    """Ends every sequence and separates the two segments of a pair."""
    mask_id: int
    special_V: NDArray[np.bool_]
    """True for added tokens such as [CLS], which are never masked, replaced or predicted."""
    continues_V: NDArray[np.bool_]
    """True for a token that continues the word of the token before it."""
    ends_V: NDArray[np.bool_] | None = None
    """True for a token that ends a sentence, such as a period; None if unknown."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Vocabulary":
        """Derive it from a tokenizer.

        Raises:
            InvalidRequest: it has no CLS, SEP or mask token.
        """
        roles = tokenizer.special_tokens
        ids = {role: tokenizer.token_to_id(roles[role]) for role in ("cls", "sep", "mask") if role in roles}
        missing = [role for role in ("cls", "sep", "mask") if ids.get(role) is None]
        if missing:
            raise InvalidRequest(
                f"the tokenizer has no {' and no '.join(missing)} token; pretraining needs all three"
            )
        size = tokenizer.vocabulary_size
        special_V = np.zeros(size, dtype=np.bool_)
        special_V[
            [id for id, token in tokenizer.engine.get_added_tokens_decoder().items() if token.special]
        ] = 1
        return cls(
            size=size,
            cls_id=_id(ids["cls"]),
            sep_id=_id(ids["sep"]),
            mask_id=_id(ids["mask"]),
            special_V=special_V,
            continues_V=_continues(tokenizer.engine, special_V),
            ends_V=_ends(tokenizer.engine, special_V),
        )


def _id(found: int | None) -> int:
    assert found is not None
    return found


def _continues(engine: tokenizers.Tokenizer, special_V: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """WordPiece marks tokens that continue a word; byte-level BPE and SentencePiece mark those that begin
    one.

    In the latter case an unmarked token continues a word if it holds a letter or a digit, or a part of a
    character, which may be a letter; a comma or a line break is a separate word.
    """
    pieces = [engine.id_to_token(id) or "" for id in range(len(special_V))]
    prefix = getattr(engine.model, "continuing_subword_prefix", None)
    if prefix and type(engine.model).__name__ == "WordPiece":
        return np.array([piece.startswith(prefix) for piece in pieces], dtype=np.bool_) & ~special_V
    # A decoder may strip the first token's space, so another token is put before it.
    texts = [engine.decoder.decode(["a", piece])[1:] if engine.decoder else piece for piece in pieces]
    marked = [
        piece.startswith(("\u0120", "\u2581")) or text[:1].isspace()
        for piece, text in zip(pieces, texts, strict=True)
    ]
    inside = [any(c.isalnum() or c == "\ufffd" for c in text) for text in texts]
    return np.array(inside, dtype=np.bool_) & ~np.array(marked, dtype=np.bool_) & ~special_V


def _ends(engine: tokenizers.Tokenizer, special_V: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Periods, question marks and exclamation marks, with or without closing quotes or brackets."""
    spelled = (engine.decode([id], skip_special_tokens=False) for id in range(len(special_V)))
    bare = (piece.strip().rstrip(_CLOSERS) for piece in spelled)
    return np.array([piece.endswith(_SENTENCE_ENDS) for piece in bare], dtype=np.bool_) & ~special_V
