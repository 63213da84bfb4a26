"""Build a tokenizer from the files of a folder: which file is used, and which family's rules apply."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, normalizers, pre_tokenizers

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, UnknownArchitecture
from unmask.text.special import (
    ANGLES,
    BRACKETS,
    MPNET,
    RESIDUES,
    add_tokens,
    known_roles,
    set_format,
    special_tokens,
)
from unmask.text.subwords import (
    ALBERT,
    BIG_BIRD,
    CAMEMBERT,
    DEBERTA_V2,
    T5,
    XLM_ROBERTA,
    Layout,
    byte_pair,
    names_of,
    residues,
    sentence_piece,
    word_piece,
)

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""The files of a checkpoint folder that belong to its tokenizer."""

CLASS_OF = {
    "albert": "Albert",
    "big_bird": "BigBird",
    "camembert": "Camembert",
    "data2vec-text": "Roberta",
    "deberta": "Deberta",
    "deberta-v2": "DebertaV2",
    "esm": "Esm",
    "longformer": "Longformer",
    "mpnet": "MPNet",
    "roberta": "Roberta",
    "roberta-prelayernorm": "Roberta",
    "roformer": "RoFormer",
    "t5": "T5",
    "xlm-roberta": "XLMRoberta",
    "xlm-roberta-xl": "XLMRoberta",
}
"""config.json's ``model_type`` -> the prefix of the matching ``tokenizer_class``."""

BYTE_PAIR_NAMES = {"Roberta": ANGLES, "Longformer": ANGLES, "Deberta": BRACKETS}
SENTENCE_PIECE_LAYOUTS: Mapping[str, Mapping[str, Layout]] = {
    "spiece.model": {"Albert": ALBERT, "BigBird": BIG_BIRD, "T5": T5},
    "spm.model": {"DebertaV2": DEBERTA_V2},
    "sentencepiece.bpe.model": {"XLMRoberta": XLM_ROBERTA, "Camembert": CAMEMBERT},
}
"""File name -> family that uses a file of that name -> how its tokenizer is built."""


@dataclass(frozen=True)
class Built:
    """A tokenizer and where it came from."""

    engine: tokenizers.Tokenizer
    files: Mapping[str, bytes]
    """The files it was read from, plus a generated ``tokenizer.json`` if there was none."""
    source: str
    """The file, and the setting that determined how it was read."""
    special_tokens: Mapping[str, str]


def build(files: Mapping[str, bytes], model_type: str | None) -> Built:
    """See `unmask.text.Tokenizer.from_files`."""
    config, tokenizer_config, added = (
        JsonSettings.parse(files.get(name), name)
        for name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
    )
    if _family(config, None if "tokenizer.json" in files else model_type) == "RoFormer":
        raise UnknownArchitecture(
            "RoFormer's tokenizer splits Chinese text into words with jieba, which is not built; if the "
            'vocabulary is of characters, say "tokenizer_class": "BertTokenizer" in tokenizer_config.json, '
            "or leave the tokenizer's files out and give token ids"
        )
    if "tokenizer.json" in files:
        try:
            engine = tokenizers.Tokenizer.from_buffer(files["tokenizer.json"])
        except Exception as error:  # the package raises plain Exception for every error
            raise CorruptCheckpoint(f"tokenizer.json holds no tokenizer: {error}") from None
        engine.no_truncation()
        engine.no_padding()
        if isinstance(engine.model, tokenizers.models.BPE):
            engine.model.dropout = None  # BPE dropout is for training only
        source = ", ".join(["tokenizer.json", *_overrides(engine, config)])
        roles = known_roles(engine, (config, tokenizer_config))
        state_files = dict(files)
    else:
        family = _family(config, model_type)
        engine, special, segments, source = _from_vocabulary(files, config, tokenizer_config, family)
        roles = add_tokens(engine, special, added, config)
        set_format(engine, roles, segments=segments)
        state_files = {**files, "tokenizer.json": engine.to_str().encode()}
        if "tokenizer_config.json" not in files:
            state_files["tokenizer_config.json"] = _config_file(roles, segments=segments)
    _untrimmed(engine)
    return Built(engine, state_files, source, roles)


def _family(config: JsonSettings, model_type: str | None) -> str | None:
    """The family whose rules the folder declares, as in `CLASS_OF`; None if it declares none."""
    name = config.get_optional("tokenizer_class", str)
    if name is None or name in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        return CLASS_OF.get(model_type or "")
    return name.removesuffix("Fast").removesuffix("Tokenizer")


def _from_vocabulary(
    files: Mapping[str, bytes], config: JsonSettings, tokenizer_config: JsonSettings, family: str | None
) -> tuple[tokenizers.Tokenizer, dict[str, AddedToken], bool, str]:
    """The engine without special tokens, those tokens, whether a pair has two token types, the source."""
    configs = (config, tokenizer_config)
    if "vocab.txt" in files:
        if family == "Esm":
            special = special_tokens(configs, RESIDUES)
            return residues(files["vocab.txt"], special), special, True, "vocab.txt, read as ESM's"
        # An MPNet may also have been trained with BERT's vocabulary.
        as_mpnet = family == "MPNet" and MPNET["cls"].encode() in files["vocab.txt"].split()
        special = special_tokens(configs, MPNET if as_mpnet else BRACKETS, mask_takes_space=as_mpnet)
        source = "vocab.txt, read as MPNet's" if as_mpnet else "vocab.txt"
        return word_piece(files["vocab.txt"], config, special), special, not as_mpnet, source
    if "vocab.json" in files and "merges.txt" in files:
        json_names = names_of(files["vocab.json"])
        names = json_names if family is None else BYTE_PAIR_NAMES.get(family)
        reason = "by its special tokens" if family is None else f"read as {family}'s"
        if names is None:
            raise _unknown("vocab.json with merges.txt", family, BYTE_PAIR_NAMES)
        special = special_tokens(configs, names, mask_takes_space=True)
        engine = byte_pair(files["vocab.json"], files["merges.txt"], config, special)
        kind = "BERT's pairs" if names is BRACKETS else "RoBERTa's pairs"
        return engine, special, names is BRACKETS, f"vocab.json and merges.txt, {kind} ({reason})"
    for name, layouts in SENTENCE_PIECE_LAYOUTS.items():
        if name in files:
            if family is None and len(layouts) == 1:
                (family,) = layouts
            layout = layouts.get(family or "")
            if layout is None:
                raise _unknown(name, family, layouts)
            special = special_tokens(configs, layout.special, mask_takes_space=layout.mask_takes_space)
            engine = sentence_piece(files[name], name, config, layout)
            return engine, special, layout.segments, f"{name}, read as {family}'s"
    raise CorruptCheckpoint(
        f"the folder holds neither tokenizer.json nor {', '.join(('vocab.txt', *SENTENCE_PIECE_LAYOUTS))} "
        "nor vocab.json with merges.txt, so no text can be read"
    )


def _unknown(name: str, family: str | None, known: Mapping[str, Any]) -> UnknownArchitecture:
    readable = f"{name} can be read as that of {' or '.join(known)}"
    if family is None:
        return UnknownArchitecture(
            f"{readable}, and neither tokenizer_class in tokenizer_config.json nor model_type in config.json "
            "says which"
        )
    return UnknownArchitecture(f"{readable}, and the folder says that its tokenizer is {family}'s")


def _overrides(engine: tokenizers.Tokenizer, config: JsonSettings) -> list[str]:
    """Apply the settings of tokenizer_config.json that `transformers` applies, and report them.

    A folder's tokenizer.json may be older than its settings. The settings applied are BERT's normalization
    and the space that byte-level BPE puts before the first word; for any other ``tokenizer_class``, or none,
    tokenizer.json decides.
    """
    family = _family(config, None)
    values = []
    normalizer, splitter = engine.normalizer, engine.pre_tokenizer
    if isinstance(normalizer, normalizers.BertNormalizer) and family is not None:
        for key, setting in (
            ("do_lower_case", "lowercase"),
            ("strip_accents", "strip_accents"),
            ("tokenize_chinese_chars", "handle_chinese_chars"),
        ):
            value = config.get_optional(key, bool)
            if value is not None and value != getattr(normalizer, setting):
                setattr(normalizer, setting, value)
                values.append(f"{key} {value} by tokenizer_config.json")
    if isinstance(splitter, pre_tokenizers.ByteLevel) and family is not None:
        value = config.get_optional("add_prefix_space", bool)
        if value is not None and value != splitter.add_prefix_space:
            splitter.add_prefix_space = value
            values.append(f"add_prefix_space {value} by tokenizer_config.json")
    return values


def _config_file(roles: Mapping[str, str], *, segments: bool) -> bytes:
    """A tokenizer_config.json with which other libraries read tokenizer.json unchanged."""
    inputs = ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]
    settings: dict[str, Any] = {f"{role}_token": token for role, token in roles.items()}
    settings |= {"model_input_names": inputs, "tokenizer_class": "PreTrainedTokenizerFast"}
    return (json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _untrimmed(engine: tokenizers.Tokenizer) -> None:
    """Make the engine report the spaces of byte-level tokens, so that one rule trims all offsets.

    The engine's own trimming gives a token that is only a space an empty range.
    """
    if engine.post_processor is None:
        return
    state = json.loads(engine.post_processor.__getstate__())
    steps = state.get("processors", [state])
    if not any(step.get("trim_offsets") for step in steps):
        return
    for step in steps:
        if "trim_offsets" in step:
            step["trim_offsets"] = False
    carrier = json.loads(tokenizers.Tokenizer(tokenizers.models.WordLevel({}, unk_token="")).to_str())
    carrier["post_processor"] = state
    engine.post_processor = tokenizers.Tokenizer.from_str(json.dumps(carrier)).post_processor
