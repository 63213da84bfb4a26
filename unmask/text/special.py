"""The special tokens of a tokenizer: their roles, their settings in its files, and those typed in texts."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import tokenizers
from tokenizers import AddedToken, Tokenizer, processors

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint

ROLES = ("unk", "cls", "sep", "pad", "mask")
"""The roles of special tokens."""

BRACKETS: Mapping[str, str] = {role: f"[{role.upper()}]" for role in ROLES}
"""BERT's names."""

ANGLES: Mapping[str, str] = {"unk": "<unk>", "cls": "<s>", "sep": "</s>", "pad": "<pad>", "mask": "<mask>"}
"""RoBERTa's names."""

MPNET: Mapping[str, str] = {**ANGLES, "unk": "[UNK]"}
"""MPNet's names: RoBERTa's, except that the unknown piece is that of its vocabulary, which was BERT's."""

RESIDUES: Mapping[str, str] = {**ANGLES, "cls": "<cls>", "sep": "<eos>"}
"""ESM's names."""

FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
"""The flags of an added token."""


def special_tokens(
    configs: Sequence[JsonSettings], usual: Mapping[str, str], *, mask_takes_space: bool = False
) -> dict[str, AddedToken]:
    """The token of each role, from the first of ``configs`` that names it, else the family's usual name.

    A role without a usual name is left out, and a pad or mask token set to null. ``mask_takes_space`` says
    whether the usual mask token includes the space before it, as RoBERTa's does.
    """
    tokens = {}
    for role in ROLES:
        key = f"{role}_token"
        config = next((config for config in configs if key in config.values), None)
        if role not in usual:
            continue
        value = usual[role] if config is None else config.values[key]
        if value is None and role in ("pad", "mask"):
            continue
        flags: dict[str, bool] = {"lstrip": True} if role == "mask" and mask_takes_space else {}
        if isinstance(value, dict):
            flags = {flag: bool(value[flag]) for flag in FLAGS if flag in value}
            value = value.get("content")
        if not isinstance(value, str):
            assert config is not None, "the usual names are strings"
            raise config.wrong(key, str)
        tokens[role] = AddedToken(value, special=True, **flags)
    return tokens


def add_tokens(
    engine: Tokenizer, roles: Mapping[str, AddedToken], added: JsonSettings, config: JsonSettings
) -> dict[str, str]:
    """Register the special tokens, append those missing from the vocabulary, and check the declared ids.

    Args:
        engine: changed in place.
        roles: as `special_tokens` found them.
        added: added_tokens.json, spelling -> id.
        config: tokenizer_config.json, whose added_tokens_decoder is id -> spelling and flags.

    Returns:
        The spelling of each role's token.
    """
    declared: dict[str, tuple[int, AddedToken]] = {}
    for content, index in added.values.items():
        if type(index) is not int:
            raise added.wrong(content, int)
        special = any(token.content == content for token in roles.values())
        declared[content] = index, AddedToken(content, special=special, normalized=not special)
    for index, entry in (config.get_optional("added_tokens_decoder", dict) or {}).items():
        if not (isinstance(entry, dict) and isinstance(entry.get("content"), str) and index.isdecimal()):
            raise CorruptCheckpoint(
                f"{config.name} has an added token {index!r} without a spelling: {entry!r}"
            )
        declared[entry["content"]] = int(index), _token(entry)
    # A flag declared for a role's token by its id is the published one.
    tokens = {token.content: token for token in roles.values()}
    tokens |= {content: token for content, (_, token) in declared.items()}
    last = max((index for index, _ in declared.values()), default=0) + 1
    for token in sorted(tokens.values(), key=lambda token: declared.get(token.content, (last,))[0]):
        engine.add_special_tokens([token]) if token.special else engine.add_tokens([token])
    for content, (index, _) in declared.items():
        if engine.token_to_id(content) != index:
            raise CorruptCheckpoint(
                f"the tokenizer's files say that {content!r} has id {index}, and its vocabulary gives it "
                f"{engine.token_to_id(content)}"
            )
    return {role: token.content for role, token in roles.items()}


def known_roles(engine: Tokenizer, configs: Sequence[JsonSettings]) -> dict[str, str]:
    """The roles of a finished tokenizer: as its files name them, else by their usual names.

    Only special tokens that the tokenizer has are considered. Among the usual names, BERT's come first,
    since BigBird's vocabulary has both.
    """
    special = {token.content for token in engine.get_added_tokens_decoder().values() if token.special}
    spellings = {}
    for role in ROLES:
        key = f"{role}_token"
        entries = [config.values[key] for config in configs if key in config.values]
        spelled = [value.get("content") if isinstance(value, dict) else value for value in entries]
        for name in (*spelled, BRACKETS[role], ANGLES[role]):
            if name in special:
                spellings[role] = name
                break
    return spellings


def _token(entry: Mapping[str, Any]) -> AddedToken:
    flags = {flag: bool(entry[flag]) for flag in FLAGS if flag in entry}
    return AddedToken(entry["content"], special=bool(entry.get("special", False)), **flags)


def set_format(engine: Tokenizer, special: Mapping[str, str], *, segments: bool) -> None:
    """Set the format of an engine that knows its special tokens.

    Args:
        engine: changed in place.
        special: the token of each role.
        segments: BERT's ``[CLS] A [SEP] B [SEP]`` with B and its separator of token type 1, or RoBERTa's
            ``<s> A </s></s> B </s>``, all of token type 0. Without a first token, T5's ``A </s> B </s>``.
    """
    end = _with_id(engine, special["sep"])
    if "cls" not in special:
        engine.post_processor = processors.TemplateProcessing(
            single=["$A:0", f"{end[0]}:0"],
            pair=["$A:0", f"{end[0]}:0", "$B:0", f"{end[0]}:0"],
            special_tokens=[end],
        )
        return
    begin = _with_id(engine, special["cls"])
    if segments:
        cls_token, sep_token = begin[0], end[0]
        engine.post_processor = processors.TemplateProcessing(
            single=[f"{cls_token}:0", "$A:0", f"{sep_token}:0"],
            pair=[f"{cls_token}:0", "$A:0", f"{sep_token}:0", "$B:1", f"{sep_token}:1"],
            special_tokens=[begin, end],
        )
    else:
        spaced = getattr(engine.pre_tokenizer, "add_prefix_space", False)
        engine.post_processor = processors.RobertaProcessing(
            end, begin, trim_offsets=True, add_prefix_space=spaced
        )


def _with_id(engine: Tokenizer, token: str) -> tuple[str, int]:
    index = engine.token_to_id(token)
    assert index is not None, "special tokens are added before the format is set"
    return token, index


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
