"""Tokenizers from the files that publish them: WordPiece, residues, byte-level BPE, and SentencePiece models.

BERT's tokenizer is built from its vocabulary alone, as is ESM's; GPT-2's byte-level BPE from vocab.json and
merges.txt, as RoBERTa, Longformer and DeBERTa (v1) use it; SentencePiece models (Kudo & Richardson 2018) are
those of ALBERT, BigBird, DeBERTa v2 and v3, T5, XLM-R and CamemBERT. Their text is split by the `tokenizers`
package, which implements the algorithm and gives character offsets; the `sentencepiece` package only supplies
the format of the file. The model file determines normalization, spaces and byte fallback; the family
determines the preprocessing before them.
"""

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from unmask.base.json_settings import JsonSettings, parse_json
from unmask.base.optional import require
from unmask.errors import CorruptCheckpoint, UnknownArchitecture
from unmask.text.special import ANGLES, BRACKETS


def word_piece(content: bytes, config: JsonSettings, special: dict[str, AddedToken]) -> tokenizers.Tokenizer:
    """WordPiece from vocab.txt, one piece per line (Devlin et al. 2019); also DistilBERT, ELECTRA and others.

    If no config says whether to lower-case, the vocabulary decides: an uncased vocabulary has no piece with
    a capital letter except the special tokens in brackets.
    """
    pieces = _lines(content)
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    names = {role: token.content for role, token in special.items()}
    absent = [names[role] for role in ("unk", "cls", "sep") if names[role] not in vocabulary]
    if absent:
        raise CorruptCheckpoint(f"vocab.txt lacks {', '.join(absent)}, so it is not a BERT vocabulary")
    # If the vocabulary has no [PAD] or [MASK], BERT does not recognize them in text.
    for role in ("pad", "mask"):
        if names.get(role) not in vocabulary:
            special.pop(role, None)
    lowercase = config.get_optional("do_lower_case", bool)
    if lowercase is None:
        lowercase = not any(piece != piece.lower() for piece in pieces if not piece.startswith("["))
    engine = tokenizers.Tokenizer(
        models.WordPiece(vocabulary, unk_token=names["unk"], max_input_chars_per_word=100)
    )
    engine.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get_optional("strip_accents", bool),
        lowercase=lowercase,
    )
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece(prefix="##")
    return engine


def residues(content: bytes, special: Mapping[str, AddedToken]) -> tokenizers.Tokenizer:
    """Amino acids from vocab.txt, one to a letter (Lin et al. 2023, ESM-2), with or without spaces between.

    Letters in a row that the vocabulary lacks are one unknown token.
    """
    pieces = [line.strip() for line in _lines(content)]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    names = [special[role].content for role in ("unk", "cls", "sep")]
    absent = [name for name in names if name not in vocabulary]
    if absent:
        raise CorruptCheckpoint(f"vocab.txt lacks {', '.join(absent)}, so it is not an ESM vocabulary")
    engine = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=special["unk"].content))
    longest_first = sorted(filter(None, pieces), key=lambda piece: (-len(piece), piece))
    piece_of_vocabulary = Regex("|".join(map(re.escape, longest_first)))
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(piece_of_vocabulary, "isolated")]
    )
    return engine


def _lines(content: bytes) -> list[str]:
    try:
        lines = content.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(f"vocab.txt is not UTF-8 text: {error}") from None
    return [line.removesuffix("\r") for line in lines]


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


SPACE = "▁"
UNIGRAM = 1
"""`TrainerSpec.ModelType` of the file's format."""
ORDINARY, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6
"""`SentencePiece.Type` of the file's format; 2 is the unknown piece."""


@dataclass(frozen=True)
class Layout:
    """How a family turns the pieces of a SentencePiece model into its vocabulary."""

    special: Mapping[str, str]
    """The usual name of each role's token."""
    first: tuple[str, ...] = ()
    """Pieces that come before those of the model."""
    dropped: int = 0
    """How many pieces at the beginning of the model they replace."""
    segments: bool = True
    """Pairs have two token types with one separator between them (BERT), not one type with two (RoBERTa)."""
    mask_takes_space: bool = False
    """The mask token includes the space before it."""
    lowercase: bool = False
    """Text is lower-cased unless a config says otherwise."""
    sentinels: bool = False
    """Behind the model's pieces come ``<extra_id_99>`` to ``<extra_id_0>``, or as many as a config says."""
    cleans: bool = False
    """ALBERT's preprocessing: quotes, accents, and no piece that ends in a digit and a comma."""


ALBERT = Layout(
    {**BRACKETS, "unk": "<unk>", "pad": "<pad>"}, mask_takes_space=True, lowercase=True, cleans=True
)
BIG_BIRD = Layout({**BRACKETS, "unk": "<unk>", "pad": "<pad>"}, mask_takes_space=True)
DEBERTA_V2 = Layout(BRACKETS)
# fairseq's dictionary begins with its own special tokens; all other ids are shifted.
XLM_ROBERTA = Layout(
    ANGLES, ("<s>", "<pad>", "</s>", "<unk>"), dropped=3, segments=False, mask_takes_space=True
)
CAMEMBERT = Layout(
    ANGLES,
    ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"),
    dropped=1,
    segments=False,
    mask_takes_space=True,
)
T5 = Layout({"unk": "<unk>", "sep": "</s>", "pad": "<pad>"}, segments=False, sentinels=True)


def sentence_piece(content: bytes, name: str, config: JsonSettings, layout: Layout) -> tokenizers.Tokenizer:
    """The engine of a SentencePiece model, without its special tokens and pair format.

    Args:
        content: the file.
        name: its name in error messages.
        config: tokenizer_config.json.
        layout: the family's layout.

    Raises:
        CorruptCheckpoint: it is not a SentencePiece model.
        UnknownArchitecture: it is of a kind that no family uses.
        MissingExtra: the packages that read the format are not installed.
    """
    proto = _read(content, name)
    trainer, rules = proto.trainer_spec, proto.normalizer_spec
    if trainer.treat_whitespace_as_suffix:
        raise UnknownArchitecture(
            f"{name} writes spaces at the end of words; only spaces at the beginning are supported"
        )
    config.require_one_of("sp_model_kwargs", {}, None)
    pieces = [(piece, 0.0) for piece in layout.first]
    pieces += _scored(proto, penalize_commas=layout.cleans)[layout.dropped :]
    unknown = layout.first.index(layout.special["unk"]) if layout.first else int(trainer.unk_id)
    if not 0 <= unknown < len(pieces):
        raise CorruptCheckpoint(f"{name} has no piece for unknown text")
    if trainer.model_type != UNIGRAM:
        raise UnknownArchitecture(f"{name} is not a unigram model; only unigram models are supported")
    model = models.Unigram(pieces, unk_id=unknown, byte_fallback=trainer.byte_fallback)
    engine = tokenizers.Tokenizer(model)
    engine.normalizer = normalizers.Sequence(_normalizers(rules, config, layout))
    scheme = "always" if rules.add_dummy_prefix and config.get("add_prefix_space", True) else "never"
    whole = not (rules.remove_extra_whitespaces and trainer.split_by_whitespace)
    splits: list[Any] = [pre_tokenizers.WhitespaceSplit()] if layout.cleans else []
    if config.get_optional("split_by_punct", bool):
        splits.append(pre_tokenizers.Punctuation(behavior="isolated"))
    splits.append(pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=not whole))
    engine.pre_tokenizer = pre_tokenizers.Sequence(splits)
    engine.decoder = decoders.Metaspace(SPACE, prepend_scheme=scheme)
    if layout.sentinels:
        count = config.get("extra_ids", 100)
        engine.add_special_tokens(
            [AddedToken(f"<extra_id_{number}>", special=True) for number in reversed(range(count))]
        )
    # The model itself never recognizes a control token in text; as an added token it is the caller's.
    ordinary = proto.pieces[layout.dropped :]
    engine.add_special_tokens(
        [AddedToken(piece.piece, special=True) for piece in ordinary if piece.type == CONTROL]
    )
    return engine


def _read(content: bytes, name: str) -> Any:
    require("sentencepiece")
    # The format's module is generated and untyped.
    proto = importlib.import_module("sentencepiece.sentencepiece_model_pb2").ModelProto()
    error_type = importlib.import_module("google.protobuf.message").DecodeError
    try:
        proto.ParseFromString(content)
    except error_type as error:
        raise CorruptCheckpoint(f"{name} is not a SentencePiece model: {error}") from None
    if not proto.pieces:
        raise CorruptCheckpoint(f"{name} is not a SentencePiece model: it has no pieces")
    return proto


def _scored(proto: Any, *, penalize_commas: bool) -> list[tuple[str, float]]:
    """Pieces and the scores that make the `tokenizers` package choose as SentencePiece does."""
    highest = max(0.0, *(piece.score for piece in proto.pieces if piece.type == ORDINARY))
    scored = []
    for piece in proto.pieces:
        text, score = piece.piece, piece.score
        if piece.type == USER_DEFINED:
            # SentencePiece's own score for a user-defined piece; the highest score is never below 0.
            score = len(text.encode()) * highest - 0.1
        elif piece.type in (UNUSED, BYTE):
            score -= 100
        if penalize_commas and len(text) > 1 and text[-1] == "," and text[-2].isdigit():
            # ALBERT's authors split such pieces; with so low a score they are never chosen.
            score -= 100
        scored.append((text, score))
    return scored


def _normalizers(rules: Any, config: JsonSettings, layout: Layout) -> list[Any]:
    steps: list[Any] = []
    if layout.cleans:
        config.require_one_of("remove_space", True)
        steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        if not config.get("keep_accents", False):
            steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if config.get("do_lower_case", layout.lowercase):
        steps.append(normalizers.Lowercase())
    if rules.precompiled_charsmap:
        if "nfkc" in rules.name:
            # NFKC of NFC is NFKC; the package applies the model's own table only to letters with few marks.
            steps.append(normalizers.NFC())
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        # SentencePiece treats only U+0020 as a space; other white space stays as it is.
        steps += [
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Replace(Regex(r"\A +| +\z"), ""),
        ]
    return steps
