"""The special tokens of a tokenizer: the role of each, and its settings in the tokenizer's files."""

from collections.abc import Mapping, Sequence
from typing import Any

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

FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
"""The flags of an added token."""


def special_tokens(
    configs: Sequence[JsonSettings], usual: Mapping[str, str], *, mask_takes_space: bool = False
) -> dict[str, AddedToken]:
    """The token of each role, from the first of ``configs`` that names it, else the family's usual name.

    A pad or mask token set to null is left out. ``mask_takes_space`` says whether the usual mask token
    includes the space before it, as RoBERTa's does.
    """
    tokens = {}
    for role in ROLES:
        key = f"{role}_token"
        config = next((config for config in configs if key in config.values), None)
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
            ``<s> A </s></s> B </s>``, all of token type 0.
    """
    begin, end = _with_id(engine, special["cls"]), _with_id(engine, special["sep"])
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
