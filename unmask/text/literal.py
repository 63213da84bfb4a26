"""Engines that read special tokens typed in a text, such as ``[SEP]``, as the characters they are."""

import json
from collections.abc import Collection
from typing import Any, Literal

import tokenizers

SpecialTokens = Literal["parse", "text"]
"""What special tokens typed in a text become: their ids, as published tokenizers do, or ordinary text."""

_UNWRITTEN = "\0 "
"""Stands before the name of a piece that no text may give; normalizers and splitters leave no such pair."""


def literal_engine(engine: tokenizers.Tokenizer, special_kept: Collection[str]) -> tokenizers.Tokenizer:
    """A copy that gives no special token for the characters of a text; what a template adds stays.

    The library's ``encode_special_tokens`` skips added tokens, but the vocabulary of a Unigram or word-level
    model has the same pieces, and would give them again. They are therefore renamed and keep their ids.

    Args:
        engine: stays as it is.
        special_kept: special tokens that are still read as such.
    """
    state = json.loads(engine.to_str())
    names = {token["content"] for token in state["added_tokens"] if token["special"]}.difference(special_kept)
    for token in state["added_tokens"]:
        token["special"] = token["content"] in names  # what is kept is matched as a token that is not special
        token["content"] = _renamed(token["content"], names)
    _rename(state["model"], names)
    literal = tokenizers.Tokenizer.from_str(json.dumps(state))
    literal.encode_special_tokens = True
    return literal


def _rename(model: dict[str, Any], names: set[str]) -> None:
    """Rename pieces of a model, and drop the merges that make them."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {_renamed(piece, names): id_ for piece, id_ in vocabulary.items()}
    else:
        model["vocab"] = [[_renamed(piece, names), score] for piece, score in vocabulary]
    if model.get("unk_token") is not None:
        model["unk_token"] = _renamed(model["unk_token"], names)
    if "merges" in model:
        pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"]]
        model["merges"] = [pair for pair in pairs if names.isdisjoint((*pair, "".join(pair)))]


def _renamed(piece: str, names: set[str]) -> str:
    return _UNWRITTEN + piece if piece in names else piece
