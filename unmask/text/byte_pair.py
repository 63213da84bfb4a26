"""GPT-2's byte-level BPE from vocab.json and merges.txt, as RoBERTa, Longformer and DeBERTa (v1) use it."""

from collections.abc import Mapping

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from unmask.base.json_settings import JsonSettings, parse_json
from unmask.errors import CorruptCheckpoint
from unmask.text.special import ANGLES, BRACKETS


def names_of(vocabulary_file: bytes) -> Mapping[str, str] | None:
    """The special token names of RoBERTa or BERT, whichever the vocabulary has; None for neither.

    The two families have the same merges and differ in their special tokens.
    """
    vocabulary = _vocabulary(vocabulary_file)
    for names in (ANGLES, BRACKETS):
        if names["cls"] in vocabulary and names["sep"] in vocabulary:
            return names
    return None


def byte_pair(
    vocabulary_file: bytes, merges_file: bytes, config: JsonSettings, special: Mapping[str, AddedToken]
) -> tokenizers.Tokenizer:
    """Byte-level BPE (Radford et al. 2019); the caller adds the special tokens and the pair format."""
    vocabulary = _vocabulary(vocabulary_file)
    absent = [special[role].content for role in ("cls", "sep") if special[role].content not in vocabulary]
    if absent:
        raise CorruptCheckpoint(f"vocab.json lacks {' and '.join(absent)}")
    try:
        lines = merges_file.decode().split("\n")
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(f"merges.txt is not UTF-8 text: {error}") from None
    merges = []
    for number, line in enumerate(lines, start=1):
        # Only the first line can be the header: "# #" is a merge.
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        pair = line.removesuffix("\r").split(" ")
        if len(pair) != 2:
            raise CorruptCheckpoint(f"line {number} of merges.txt is {line!r}, which is not a pair of pieces")
        merges.append((pair[0], pair[1]))
    try:
        model = models.BPE(
            vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False
        )
    except Exception as error:  # the package raises plain Exception for every error
        raise CorruptCheckpoint(f"vocab.json and merges.txt do not belong together: {error}") from None
    engine = tokenizers.Tokenizer(model)
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=config.get("add_prefix_space", False))
    engine.decoder = decoders.ByteLevel()
    return engine


def _vocabulary(content: bytes) -> dict[str, int]:
    vocabulary = parse_json(content, "vocab.json")
    if not (isinstance(vocabulary, dict) and all(type(index) is int for index in vocabulary.values())):
        raise CorruptCheckpoint("vocab.json is not a table of pieces and ids")
    return vocabulary
