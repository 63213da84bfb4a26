"""What objectives need to know about a tokenizer: special tokens, and which tokens continue a word."""

import re
import unicodedata
from dataclasses import dataclass

import numpy as np
import tokenizers
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.text import Tokenizer
from unmask.text.borders import is_extending, is_spaceless

_SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？")
PART = "\ufffd"
"""What bytes that are no whole character are decoded to."""
_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""How SentencePiece spells a byte."""
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(_OTHERS)}
"""The byte for which each character stands in a byte-level vocabulary (Radford et al. 2019)."""
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


def _id(number: int | None) -> int:
    assert number is not None
    return number


def _continues(engine: tokenizers.Tokenizer, special_V: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """WordPiece marks tokens that continue a word; byte-level BPE and SentencePiece mark those that begin
    one.

    In the latter case an unmarked token continues a word if it holds a letter or a digit, or a part of a
    character, which may be a letter, or begins with a mark on the letter before it; a comma or a line break
    is a separate word. In scripts without spaces between words every token that begins with a letter is a
    word, as Han characters are in BERT: a sentence would be one otherwise.
    """
    pieces = [engine.id_to_token(id) or "" for id in range(len(special_V))]
    prefix = getattr(engine.model, "continuing_subword_prefix", None)
    if prefix and type(engine.model).__name__ == "WordPiece":
        ours = [
            piece.startswith(prefix) and not _begins_spaceless(piece.removeprefix(prefix)) for piece in pieces
        ]
        return np.array(ours, dtype=np.bool_) & ~special_V
    # A decoder may strip the first token's space, so another token is put before it.
    texts = [engine.decoder.decode(["a", piece])[1:] if engine.decoder else piece for piece in pieces]
    marked = [
        piece.startswith(("\u0120", "\u2581")) or text[:1].isspace()
        for piece, text in zip(pieces, texts, strict=True)
    ]
    inside = [
        not _begins_spaceless(text) and (_extends(text) or any(c.isalnum() or c == PART for c in text))
        if not text.startswith(PART)
        else not is_spaceless(_first_character(piece))
        for piece, text in zip(pieces, texts, strict=True)
    ]
    return np.array(inside, dtype=np.bool_) & ~np.array(marked, dtype=np.bool_) & ~special_V


def _begins_spaceless(text: str) -> bool:
    """Whether it begins with a letter of a script without spaces between words."""
    return bool(text) and is_spaceless(text[0]) and not is_extending(text[0])


def _extends(text: str) -> bool:
    """Whether it begins with what extends a word: marks, joiners, soft hyphens."""
    first = text[:1]
    joins = bool(first) and unicodedata.category(first) == "Cf" and first != "\u200b"
    return joins or (bool(first) and is_extending(first))


def _first_character(piece: str) -> str:
    """Of a token that is a part of a character the last one that it can begin; NUL for a later part."""
    spelled = _BYTE.fullmatch(piece)
    bytes_ = bytes([int(spelled[1], 16)]) if spelled else bytes(map(_BYTES.__getitem__, piece[:4]))
    needed = next((count for least, count in ((0xF0, 4), (0xE0, 3), (0xC2, 2)) if bytes_[0] >= least), 0)
    return (bytes_ + b"\xbf" * 3)[:needed].decode(errors="replace")[:1] or "\0"


def _ends(engine: tokenizers.Tokenizer, special_V: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Periods, question marks and exclamation marks, with or without closing quotes or brackets."""
    spelled = (engine.decode([id], skip_special_tokens=False) for id in range(len(special_V)))
    bare = (piece.strip().rstrip(_CLOSERS) for piece in spelled)
    return np.array([piece.endswith(_SENTENCE_ENDS) for piece in bare], dtype=np.bool_) & ~special_V
