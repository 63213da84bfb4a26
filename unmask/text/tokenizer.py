"""Text to token ids, by the `tokenizers` package, with nothing cut or dropped unsaid."""

import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import tokenizers
from numpy.typing import NDArray

from unmask.errors import EmptyText, InvalidRequest, InvalidText, TextTooLong
from unmask.text.build import TOKENIZER_FILES, build
from unmask.text.encoding import Encoding, TooLong

__all__ = ["TOKENIZER_FILES", "Tokenizer", "numbered"]


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

    special_tokens: Mapping[str, str]
    """The token of each role that it has: ``unk``, ``cls``, ``sep``, ``pad``, ``mask``."""

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], model_type: str | None = None) -> "Tokenizer":
        """Build from the contents of `TOKENIZER_FILES`; ``tokenizer.json`` wins over every other.

        Args:
            files: name -> content; names that are not there are absent.
            model_type: config.json's, which says whose rules a bare vocabulary follows where
                tokenizer_config.json has no ``tokenizer_class``.

        Raises:
            CorruptCheckpoint: no vocabulary is there, or it does not hold a tokenizer.
            UnknownArchitecture: nothing says whose rules it follows, or they are not built.
            MissingExtra: a SentencePiece model, and the packages that read it are not installed.
        """
        built = build(files, model_type)
        kind = type(built.engine.model).__name__
        description = f"{kind}, {built.engine.get_vocab_size()} pieces, from {built.source}"
        return cls(built.engine, built.files, description, built.special_tokens)

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self.engine.get_vocab_size())

    @property
    def mask_id(self) -> int | None:
        """The id of the mask token; None for a tokenizer without one."""
        return self.token_to_id(self.special_tokens["mask"]) if "mask" in self.special_tokens else None

    def token_to_id(self, piece: str) -> int | None:
        """The id of a piece in the vocabulary's own spelling; None where it has no such piece."""
        found: int | None = self.engine.token_to_id(piece)
        return found

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
            encoding = self._encoding(one, texts[index], None if pairs is None else pairs[index])
            _check_words(encoding, name(index))
            encodings.append(_fitted(encoding, max_tokens, too_long, name(index)))
        return encodings

    def encode_words(
        self,
        words: Sequence[str],
        *,
        max_tokens: int | None = None,
        too_long: TooLong = "error",
        name: str = "the text",
    ) -> Encoding:
        """Tokens of a text that is already split into words, each token knowing its word.

        Every word is read by itself, as `transformers` does with ``is_split_into_words=True``; where the
        family tells a word by the space before it (byte-level BPE), each word has one, the first too.
        The encoding's text is the words with a space between, and its spans count in that.

        Args:
            words: without blank ones. A word may give no token at all, such as a lone control character.
            max_tokens: as for `encode_batch`, with ``too_long``.
            too_long: as for `encode_batch`.
            name: how an error calls the text.

        Raises:
            InvalidText: a word is no string, or has a lone surrogate in it.
            EmptyText: a word is blank, or no word gave a token.
            TextTooLong: as for `encode_batch`.
        """
        if too_long not in ("error", "cut"):
            raise InvalidRequest(f"too_long is {too_long!r}; it can be 'error' or 'cut'")
        for index, word in enumerate(words):
            _check_text(word, f"word {index + 1} of {name}")
            if not word.strip():
                raise EmptyText(f"word {index + 1} of {name} is blank; leave it out")
        if not words:
            raise EmptyText(f"{name} has no words; give a text with at least one")
        one = self._words_engine.encode(list(words), is_pretokenized=True)
        of_word = np.array([-1 if word is None else word for word in one.word_ids], dtype=np.int64)
        spans = np.array(one.offsets, dtype=np.int64).reshape(-1, 2)
        lengths = np.array([len(word) for word in words], dtype=np.int64)
        starts = np.cumsum(lengths + 1) - lengths - 1
        spans[of_word >= 0] += starts[of_word[of_word >= 0], None]
        encoding = self._encoding(one, " ".join(words), None, spans=spans, words=of_word)
        _check_words(encoding, name)
        return _fitted(encoding, max_tokens, too_long, name)

    def _encoding(
        self,
        one: tokenizers.Encoding,
        text: str,
        pair: str | None,
        spans: NDArray[np.int64] | None = None,
        words: NDArray[np.int64] | None = None,
    ) -> Encoding:
        ids = np.array(one.ids, dtype=np.int64)
        if spans is None:
            spans = np.array(one.offsets, dtype=np.int64).reshape(-1, 2)
        special = np.array(one.special_tokens_mask, dtype=bool)
        in_pair = np.array([sequence == 1 for sequence in one.sequence_ids], dtype=bool)
        if self._keeps_spaces:
            lone = ids == self._space_id
            for source, tokens in ((text, ~special & ~in_pair), (pair, ~special & in_pair)):
                if source:
                    trimmed = _without_spaces(spans[tokens], lone[tokens], source)
                    spans[tokens] = _with_loose(trimmed, source)
        respelled = self._respelled
        return Encoding(
            text=text,
            pair=pair,
            ids=ids,
            segments=np.array(one.type_ids, dtype=np.int64),
            spans=spans,
            special=special,
            in_pair=in_pair,
            pieces=tuple(respelled.get(id_, piece) for id_, piece in zip(one.ids, one.tokens, strict=True)),
            total_tokens=len(ids),
            words=words,
        )

    @cached_property
    def _keeps_spaces(self) -> bool:
        """Whether a token can be about spaces; BERT's never is."""
        return not isinstance(self.engine.pre_tokenizer, tokenizers.pre_tokenizers.BertPreTokenizer)

    @cached_property
    def _spaced(self) -> bool:
        """Whether byte-level pieces are told to be a word's first by the space before them."""
        splitter = self.engine.pre_tokenizer
        return splitter is not None and b'"ByteLevel"' in splitter.__getstate__()

    @cached_property
    def _space_id(self) -> int:
        """The piece that is a space and nothing else; -1 where there is none."""
        found = self.token_to_id("Ġ" if self._spaced else "▁")
        return -1 if found is None else found

    @cached_property
    def _words_engine(self) -> tokenizers.Tokenizer:
        """The engine, with a space put before every word where that is how it knows one."""
        if not self._spaced:
            return self.engine
        state = json.loads(self.engine.to_str())
        splitter = state["pre_tokenizer"]
        for step in splitter.get("pretokenizers", [splitter]):
            if step["type"] == "ByteLevel":
                step["add_prefix_space"] = True
        return tokenizers.Tokenizer.from_str(json.dumps(state))

    @cached_property
    def _respelled(self) -> Mapping[int, str]:
        """Ids that the engine may show as the text they were found in, and their own spelling."""
        spelled = {id_: token.content for id_, token in self.engine.get_added_tokens_decoder().items()}
        model = self.engine.model
        if isinstance(model, tokenizers.models.Unigram):
            unknown = json.loads(model.__getstate__())["unk_id"]
            if unknown is not None:
                spelled[unknown] = str(self.engine.id_to_token(unknown))
        return spelled


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
    # Some vocabularies have tokens for spaces, and these are no words.
    words = ~encoding.special & (encoding.spans[:, 0] < encoding.spans[:, 1])
    for source, called, tokens in (
        (encoding.text, name, words & ~encoding.in_pair),
        (encoding.pair, f"the pair of {name}", words & encoding.in_pair),
    ):
        if source is not None and not (tokens.any() and source.strip()):
            raise EmptyText(f"{called} has no words; give a text with at least one")


def _fitted(encoding: Encoding, max_tokens: int | None, too_long: TooLong, name: str) -> Encoding:
    if max_tokens is None or len(encoding) <= max_tokens:
        return encoding
    if too_long == "error":
        raise TextTooLong(
            f"{name} has {len(encoding)} tokens and the model reads at most {max_tokens}; shorten it, or "
            "ask for its beginning (too_long='cut', or --too-long cut)",
            total_tokens=len(encoding),
            max_tokens=max_tokens,
        )
    return _cut(encoding, max_tokens)


_IS_SPACE = np.array([*(chr(code).isspace() for code in range(0x3001)), False])
"""By code point; no white space lies beyond U+3000, and the last entry stands for all that does."""


def _without_spaces(spans: NDArray[np.int64], lone: NDArray[np.bool_], text: str) -> NDArray[np.int64]:
    """Spans without white space at their ends, but for those that are all white space.

    ``lone`` says which tokens are a space and nothing else; one whose span is no white space was put
    in by the tokenizer and stands for no character.
    """
    characters = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    blank = _IS_SPACE[np.minimum(characters, len(_IS_SPACE) - 1)]
    count = len(blank)
    places = np.arange(count + 1)
    word_from = np.minimum.accumulate(np.append(np.where(blank, count, places[:-1]), count)[::-1])[::-1]
    word_until = np.maximum.accumulate(np.append(0, np.where(blank, 0, places[1:])))
    starts, ends = word_from[spans[:, 0]], word_until[spans[:, 1]]
    holds_word = starts < ends
    trimmed = np.where(holds_word[:, None], np.stack([starts, ends], axis=1), spans)
    invented = lone & holds_word
    trimmed[invented, 1] = trimmed[invented, 0]
    return trimmed


def _with_loose(spans: NDArray[np.int64], text: str) -> NDArray[np.int64]:
    """Spans with the characters beside them that are part of the same thing and that no span covers.

    Where a tokenizer composes a letter and its accent into one character (NFC, NFKC), or drops the
    accent, the engine counts the letter alone; of two single quotes that are read as a double one
    (ALBERT) it counts the second.
    """
    change = np.zeros(len(text) + 1, dtype=np.int64)
    np.add.at(change, spans[:, 0], 1)
    np.add.at(change, spans[:, 1], -1)
    bare = [int(place) for place in np.flatnonzero(np.cumsum(change)[:-1] == 0) if not text[place].isspace()]
    if not bare:
        return spans
    start_of, end_of = np.arange(len(text) + 1), np.arange(len(text) + 1)
    for place in reversed(bare):
        if unicodedata.category(text[place]).startswith("M"):
            end_of[place] = end_of[place + 1]
    for place in bare:
        if text[place] in "'`" and text[place : place + 1] == text[place + 1 : place + 2]:
            start_of[place + 1] = start_of[place]
    starts = start_of[spans[:, 0]]
    ends = np.where(spans[:, 0] < spans[:, 1], end_of[spans[:, 1]], starts)
    return np.stack([starts, ends], axis=1)


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
        words=None if encoding.words is None else encoding.words[kept],
    )
