"""Text to token ids, by the `tokenizers` package, with nothing cut or dropped unsaid."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tokenizers

from unmask.errors import CorruptCheckpoint, EmptyText, InvalidRequest, InvalidText, TextTooLong
from unmask.settings import Settings
from unmask.text.encoding import Encoding, TooLong

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""The files of a checkpoint folder that belong to its tokenizer."""


def numbered(index: int) -> str:
    """How an error names the text at ``index`` of a list, counted from 1."""
    return f"text {index + 1}"


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A published tokenizer. Made by `from_files`; cutting and padding it may prescribe are ignored."""

    engine: tokenizers.Tokenizer = field(repr=False)
    files: Mapping[str, bytes] = field(repr=False)
    """The files it was read from, kept byte for byte for saving."""
    description: str
    """What it is and where it was read from, for people."""

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> "Tokenizer":
        """Build from the contents of `TOKENIZER_FILES`; ``tokenizer.json`` wins over ``vocab.txt``.

        Raises:
            CorruptCheckpoint: neither file is there, or it does not hold a tokenizer.
        """
        config = Settings.parse(files.get("tokenizer_config.json"), "tokenizer_config.json")
        if "tokenizer.json" in files:
            try:
                engine = tokenizers.Tokenizer.from_buffer(files["tokenizer.json"])
            except Exception as error:  # the package raises plain Exception for every fault
                raise CorruptCheckpoint(f"tokenizer.json holds no tokenizer: {error}") from None
            engine.no_truncation()
            engine.no_padding()
            kept = dict(files)
            source = "tokenizer.json"
        elif "vocab.txt" in files:
            engine = _word_piece(files["vocab.txt"], config)
            kept = {**files, "tokenizer.json": engine.to_str().encode()}
            source = "vocab.txt"
        else:
            raise CorruptCheckpoint(
                "the folder holds neither tokenizer.json nor vocab.txt, so no text can be read"
            )
        kind = type(engine.model).__name__
        return cls(engine, kept, f"{kind}, {engine.get_vocab_size()} pieces, from {source}")

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self.engine.get_vocab_size())

    def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        max_tokens: int | None = None,
        too_long: TooLong = "error",
    ) -> Encoding:
        """One text (or pair) as tokens; see `encode_batch`."""
        pairs = None if pair is None else [pair]
        return self.encode_batch(
            [text], pairs, max_tokens=max_tokens, too_long=too_long, name=lambda _: "the text"
        )[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_tokens: int | None = None,
        too_long: TooLong = "error",
        name: Callable[[int], str] = numbered,
    ) -> list[Encoding]:
        """Tokens of each text, special tokens added.

        Args:
            texts: Unicode strings with at least one word each.
            pairs: the second text of each, if the task is about pairs.
            max_tokens: the most tokens an encoding may have, special tokens included.
            too_long: ``"error"`` refuses a longer text; ``"cut"`` keeps its beginning (of a pair,
                the longer side is cut first) and `Encoding.total_tokens` tells what it was.
            name: how an error calls the text at an index.

        Raises:
            InvalidText: not a string, or a lone surrogate in it.
            EmptyText: no word in it.
            TextTooLong: more than ``max_tokens`` tokens, with ``too_long="error"``.
        """
        if too_long not in ("error", "cut"):
            raise InvalidRequest(f"too_long is {too_long!r}; it can be 'error' or 'cut'")
        if pairs is not None and len(pairs) != len(texts):
            raise InvalidRequest(
                f"{len(texts)} texts and {len(pairs)} pairs were given; give a pair for each text"
            )
        for index, text in enumerate(texts):
            _check_text(text, name(index))
        for index, text in enumerate(pairs or ()):
            _check_text(text, f"the pair of {name(index)}")
        raw = self.engine.encode_batch(list(texts) if pairs is None else list(zip(texts, pairs, strict=True)))
        encodings = []
        for index, one in enumerate(raw):
            encoding = _encoding(one, texts[index], None if pairs is None else pairs[index])
            _check_words(encoding, name(index))
            if max_tokens is not None and len(encoding) > max_tokens:
                if too_long == "error":
                    raise TextTooLong(
                        f"{name(index)} has {len(encoding)} tokens and the model reads at most "
                        f"{max_tokens}; shorten it, or ask for its beginning "
                        "(too_long='cut', or --too-long cut)",
                        total_tokens=len(encoding),
                        max_tokens=max_tokens,
                    )
                encoding = _cut(encoding, max_tokens)
            encodings.append(encoding)
        return encodings


def _check_text(text: object, name: str) -> None:
    if not isinstance(text, str):
        raise InvalidText(f"{name} is of type {type(text).__name__}; give a str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidText(
            f"{name} holds a lone surrogate U+{ord(text[error.start]):04X} at character {error.start}, "
            "which is not Unicode text; remove it or decode the source again"
        ) from None


def _check_words(encoding: Encoding, name: str) -> None:
    words = ~encoding.special
    if not (words & ~encoding.in_pair).any():
        raise EmptyText(f"{name} has no words; give a text with at least one")
    if encoding.pair is not None and not (words & encoding.in_pair).any():
        raise EmptyText(f"the pair of {name} has no words; give a text with at least one")


def _encoding(one: tokenizers.Encoding, text: str, pair: str | None) -> Encoding:
    return Encoding(
        text=text,
        pair=pair,
        ids=np.array(one.ids, dtype=np.int64),
        segments=np.array(one.type_ids, dtype=np.int64),
        spans=np.array(one.offsets, dtype=np.int64).reshape(-1, 2),
        special=np.array(one.special_tokens_mask, dtype=bool),
        in_pair=np.array([sequence == 1 for sequence in one.sequence_ids], dtype=bool),
        pieces=tuple(one.tokens),
        total_tokens=len(one.ids),
    )


def _cut(encoding: Encoding, max_tokens: int) -> Encoding:
    """Drop words from the end (of the longer side first); special tokens all stay."""
    of_text = np.flatnonzero(~encoding.special & ~encoding.in_pair)
    of_pair = np.flatnonzero(~encoding.special & encoding.in_pair)
    room = max_tokens - int(encoding.special.sum())
    if room < 1 + (encoding.pair is not None):
        raise InvalidRequest(f"max_tokens is {max_tokens}, which leaves no room for words")
    short, long = sorted((len(of_text), len(of_pair)))
    long = max(short, room - short)
    if short + long > room:
        short, long = room // 2, room - room // 2
    keep_text, keep_pair = (short, long) if len(of_text) <= len(of_pair) else (long, short)
    kept = np.ones(len(encoding), dtype=bool)
    kept[of_text[keep_text:]] = False
    kept[of_pair[keep_pair:]] = False
    return Encoding(
        text=encoding.text,
        pair=encoding.pair,
        ids=encoding.ids[kept],
        segments=encoding.segments[kept],
        spans=encoding.spans[kept],
        special=encoding.special[kept],
        in_pair=encoding.in_pair[kept],
        pieces=tuple(piece for piece, keep in zip(encoding.pieces, kept, strict=True) if keep),
        total_tokens=encoding.total_tokens,
    )


def _word_piece(vocabulary_file: bytes, config: Settings) -> tokenizers.Tokenizer:
    """BERT's tokenizer from its vocabulary alone, one piece a line.

    Where no config says whether to lower-case, the vocabulary does: an uncased one has no piece with
    a capital letter other than the special tokens in brackets.
    """
    try:
        lines = vocabulary_file.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(f"vocab.txt is not UTF-8 text: {error}") from None
    pieces = [line.removesuffix("\r") for line in lines]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    special = {role: _special_token(config, role) for role in ("unk", "cls", "sep", "pad", "mask")}
    absent = [special[role] for role in ("unk", "cls", "sep") if special[role] not in vocabulary]
    if absent:
        raise CorruptCheckpoint(f"vocab.txt lacks {', '.join(map(str, absent))}, so it is no BERT vocabulary")
    lowercase = config.maybe("do_lower_case", bool)
    if lowercase is None:
        lowercase = not any(piece != piece.lower() for piece in pieces if not piece.startswith("["))
    engine = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(vocabulary, unk_token=special["unk"], max_input_chars_per_word=100)
    )
    engine.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.take("tokenize_chinese_chars", True),
        strip_accents=config.maybe("strip_accents", bool),
        lowercase=lowercase,
    )
    engine.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    cls_token, sep_token = str(special["cls"]), str(special["sep"])
    engine.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{cls_token}:0 $A:0 {sep_token}:0",
        pair=f"{cls_token}:0 $A:0 {sep_token}:0 $B:1 {sep_token}:1",
        special_tokens=[(cls_token, vocabulary[cls_token]), (sep_token, vocabulary[sep_token])],
    )
    engine.decoder = tokenizers.decoders.WordPiece(prefix="##")
    engine.add_special_tokens([token for token in special.values() if token and token in vocabulary])
    return engine


def _special_token(config: Settings, role: str) -> str | None:
    """The token of a role: BERT's own where none is named, None where the pad or mask token is null."""
    key = f"{role}_token"
    value = config.values.get(key, f"[{role.upper()}]")
    if isinstance(value, dict):
        value = value.get("content", value)
    if isinstance(value, str) or (value is None and role in ("pad", "mask")):
        return value
    raise config.wrong(key, str)
