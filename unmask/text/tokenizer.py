"""Text to token ids with the `tokenizers` package; all truncation is reported."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from unmask.errors import EmptyText, InvalidRequest, InvalidText, TextTooLong, quoted
from unmask.text.build import TOKENIZER_FILES, build
from unmask.text.encoding import Encoding, TokenDetails, Truncation, read_only, with_loose, without_spaces
from unmask.text.special import SpecialTokens, literal_engine
from unmask.text.windows import (
    WAY_OUT,
    beginning,
    characters_tokenized_whole,
    check_truncation,
    fitted,
    truncated,
)

__all__ = ["TOKENIZER_FILES", "Tokenizer", "numbered"]


def numbered(index: int) -> str:
    """The name of the text at ``index`` in error messages, counted from 1."""
    return f"text {index + 1}"


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A published tokenizer, made by `from_files`.

    The truncation, padding and dropout that its files may prescribe are ignored.
    """

    engine: tokenizers.Tokenizer = field(repr=False)
    files: Mapping[str, bytes] = field(repr=False)
    """The files it was read from, kept unchanged for saving."""
    description: str
    """A readable description of its kind and source."""

    special_tokens: Mapping[str, str]
    """The token of each role that it has: ``unk``, ``cls``, ``sep``, ``pad``, ``mask``."""
    reads: SpecialTokens = "parse"
    """What special tokens typed in a text become, see `reading`."""
    kept: frozenset[str] = field(default=frozenset(), repr=False)
    """Special tokens that are ids in any case."""
    known: int | None = field(default=None, repr=False)
    """The number of ids that the model has vectors for, if the tokenizer has more pieces."""

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], model_type: str | None = None) -> "Tokenizer":
        """Build from the contents of `TOKENIZER_FILES`; ``tokenizer.json`` takes precedence.

        Args:
            files: name -> content of each file that exists.
            model_type: from config.json; determines which family's rules a bare vocabulary follows if
                tokenizer_config.json has no ``tokenizer_class``.

        Raises:
            CorruptCheckpoint: there is no vocabulary, or a file does not contain a valid tokenizer.
            UnknownArchitecture: the family is not specified, or is not supported.
            MissingExtra: a SentencePiece model, and the packages that read it are not installed.
        """
        built = build(files, model_type)
        kind = type(built.engine.model).__name__
        description = f"{kind}, {built.engine.get_vocab_size()} pieces, from {built.source}"
        return cls(built.engine, built.files, description, built.special_tokens)

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: caches are built again, because a pickled engine forgets how it reads."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def reading(self, special_tokens: SpecialTokens) -> "Tokenizer":
        """This tokenizer, for which special tokens typed in a text are their ids, or text.

        Args:
            special_tokens: ``"parse"``, as published tokenizers do; with ``"text"`` the characters ``[SEP]``
                or ``</s>`` in a text are tokenized like any others. Special tokens that frame a text are
                added in both cases.
        """
        return self if special_tokens == self.reads else replace(self, reads=special_tokens)

    @cached_property
    def with_masks(self) -> "Tokenizer":
        """This tokenizer, for which typed mask tokens are ids in any case, to be filled."""
        mask = self.special_tokens.get("mask")
        if self.reads == "parse" or mask is None:
            return self
        return replace(self, kept=self.kept | {mask})

    @cached_property
    def _reader(self) -> tokenizers.Tokenizer:
        """The engine that reads texts."""
        return self.engine if self.reads == "parse" else literal_engine(self.engine, self.kept)

    def lowercased(self) -> "Tokenizer":
        """This tokenizer, which lower-cases texts first; its files stay as they are."""
        state = json.loads(self.engine.to_str())
        normalizer = state["normalizer"]
        steps = (
            []
            if normalizer is None
            else normalizer["normalizers"]
            if normalizer["type"] == "Sequence"
            else [normalizer]
        )
        state["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *steps]}
        return replace(self, engine=tokenizers.Tokenizer.from_str(json.dumps(state)))

    def without_special_tokens(self) -> "Tokenizer":
        """This tokenizer, which adds no special tokens to a text; its files stay as they are."""
        state = json.loads(self.engine.to_str())
        engine = tokenizers.Tokenizer.from_str(json.dumps(state | {"post_processor": None}))
        return replace(self, engine=engine)

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self.engine.get_vocab_size())

    @property
    def mask_id(self) -> int | None:
        """The id of the mask token; None for a tokenizer without one that the model knows."""
        id_ = self.token_to_id(self.special_tokens["mask"]) if "mask" in self.special_tokens else None
        return None if id_ is not None and self.known is not None and id_ >= self.known else id_

    @property
    def unknown_id(self) -> int | None:
        """The id of what the vocabulary has no piece for; None if it has pieces for everything."""
        model = self.engine.model
        if isinstance(model, tokenizers.models.Unigram):
            unknown: int | None = json.loads(model.__getstate__())["unk_id"]
            return unknown
        return None if model.unk_token is None else self.token_to_id(model.unk_token)

    def token_to_id(self, piece: str) -> int | None:
        """The id of a piece in the vocabulary's spelling; None if there is no such piece."""
        id_: int | None = self.engine.token_to_id(piece)
        return id_

    def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        max_tokens: int | None = None,
        truncation: Truncation = "error",
    ) -> Encoding:
        """Tokenize one text (or pair); see `encode_batch`."""
        pairs = None if pair is None else [pair]
        return self.encode_batch(
            [text], pairs, max_tokens=max_tokens, truncation=truncation, name=lambda _: "the text"
        )[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_tokens: int | None = None,
        truncation: Truncation = "error",
        name: Callable[[int], str] = numbered,
        pair_name: Callable[[int], str] | None = None,
        with_details: bool = False,
    ) -> list[Encoding]:
        """Tokenize each text and add special tokens.

        Args:
            texts: Unicode strings with at least one word each.
            pairs: the second text of each pair, for tasks on pairs.
            max_tokens: the maximum number of tokens per encoding, special tokens included. Only the
                beginning of a text with far more characters than that is tokenized, and
                `Encoding.original_tokens` is then a lower bound.
            truncation: ``"error"`` refuses a longer text; ``"end"`` truncates it (the longer text of a pair
                first), and `Encoding.original_tokens` gives the number before truncation.
            name: how error messages name the text at an index.
            pair_name: how they name the second text; None: the pair of the first.
            with_details: compute `Encoding.details` at once, which would otherwise tokenize the text again.

        Raises:
            InvalidText: a text is not a string, contains a lone surrogate, or has a piece that the model
                has no vector for.
            EmptyText: a text has no words.
            TextTooLong: more than ``max_tokens`` tokens, with ``truncation="error"``.
        """
        check_truncation(truncation)
        pair_name = pair_name or (lambda index: f"the pair of {name(index)}")
        if pairs is not None and len(pairs) != len(texts):
            raise InvalidRequest(
                f"{len(texts)} texts and {len(pairs)} pairs were given; give a pair for each text"
            )
        check_texts(texts, name)
        if pairs is not None:
            check_texts(pairs, pair_name)
        # Only the beginning of a very long text is tokenized, and pairs, truncated on both sides, always are.
        limit = sys.maxsize if pairs is not None else characters_tokenized_whole(max_tokens)
        encode = self._reader.encode_batch if with_details else self._reader.encode_batch_fast
        raw = encode(
            [text if len(text) <= limit else "" for text in texts]
            if pairs is None
            else list(zip(texts, pairs, strict=True))
        )
        encodings = []
        for index, (raw_encoding, ids, text) in enumerate(zip(raw, _ids(raw), texts, strict=True)):
            if max_tokens is not None and len(text) > limit:
                encodings.append(self._very_long(text, max_tokens, truncation, name(index)))
                continue
            pair = None if pairs is None else pairs[index]
            encoding = self._encoding(raw_encoding, text, pair, ids)
            if with_details:
                offsets = np.array(raw_encoding.offsets, dtype=np.int64).reshape(-1, 2)
                encoding = replace(encoding, source=self._details(raw_encoding, text, pair, offsets))
            if not self._has_words(encoding):
                _check_words(encoding, name(index), pair_name(index))
            if max_tokens is not None and len(encoding) > max_tokens:
                encoding = fitted(encoding, max_tokens, truncation, name(index))
            encodings.append(encoding)
        return encodings

    def encode_words(
        self,
        words: Sequence[str],
        *,
        max_tokens: int | None = None,
        truncation: Truncation = "error",
        name: str = "the text",
    ) -> Encoding:
        """Tokenize a text that is already split into words, and keep the word of each token.

        Every word is tokenized separately, as in `transformers` with ``is_split_into_words=True``. If the
        family marks a word by the space before it (byte-level BPE), each word gets one, including the first.
        The encoding's text is the words joined by spaces, and its offsets refer to that text.

        Args:
            words: no blank words. A word may give no token, such as a lone control character.
            max_tokens: as for `encode_batch`, with ``truncation``.
            truncation: as for `encode_batch`.
            name: how error messages name the text.

        Raises:
            InvalidText: a word is not a string, or contains a lone surrogate.
            EmptyText: a word is blank, or no word gave a token.
            TextTooLong: as for `encode_batch`.
        """
        check_truncation(truncation)
        check_texts(words, lambda index: f"word {index + 1} of {name}")
        for index, word in enumerate(words):
            if not word.strip():
                raise EmptyText(f"word {index + 1} of {name} is blank; leave it out")
        if not words:
            raise EmptyText(f"{name} has no words; give a text with at least one")
        raw_encoding = self._words_engine.encode(list(words), is_pretokenized=True)
        of_word = np.array([-1 if word is None else word for word in raw_encoding.word_ids], dtype=np.int64)
        offsets = np.array(raw_encoding.offsets, dtype=np.int64).reshape(-1, 2)
        lengths = np.array([len(word) for word in words], dtype=np.int64)
        starts = np.cumsum(lengths + 1) - lengths - 1
        offsets[of_word >= 0] += starts[of_word[of_word >= 0], None]
        text = " ".join(words)
        encoding = replace(
            self._encoding(raw_encoding, text, None),
            source=self._details(raw_encoding, text, None, offsets),
            words=of_word,
        )
        _check_words(encoding, name)
        return fitted(encoding, max_tokens, truncation, name)

    def details(self, text: str, pair: str | None = None) -> TokenDetails:
        """The origin of each token of a text; called by `Encoding` when its offsets are first read."""
        raw_encoding = self._reader.encode(text, pair)
        return self._details(
            raw_encoding, text, pair, np.array(raw_encoding.offsets, dtype=np.int64).reshape(-1, 2)
        )

    def _encoding(
        self,
        raw: tokenizers.Encoding,
        text: str,
        pair: str | None,
        ids: NDArray[np.int64] | None = None,
    ) -> Encoding:
        if ids is None:
            (ids,) = _ids([raw])
        if self.known is not None and len(ids) and ids.max() >= self.known:
            beyond = int(ids.max())
            raise InvalidText(
                f"the text has the piece {quoted(self.engine.id_to_token(beyond))} with the id {beyond}, and "
                f"the model has vectors for {self.known} ids, below {self.known}; leave the piece out, or "
                "take the tokenizer that the model was trained with"
            )
        if pair is None and self._token_type is not None:
            token_type_ids = _constant(self._token_type, len(ids))
        else:
            token_type_ids = read_only(np.array(raw.type_ids, dtype=np.int64))
        return Encoding(text, pair, ids, token_type_ids, len(ids), self)

    def _details(
        self, raw: tokenizers.Encoding, text: str, pair: str | None, offsets: NDArray[np.int64]
    ) -> TokenDetails:
        special = np.array(raw.special_tokens_mask, dtype=bool)
        sequence_ids = np.array([-1 if of is None else of for of in raw.sequence_ids], dtype=np.int64)
        sequence_ids[special] = -1
        if self._keeps_spaces:
            lone = np.array(raw.ids, dtype=np.int64) == self._space_id
            for source, tokens in ((text, sequence_ids == 0), (pair, sequence_ids == 1)):
                if source:
                    trimmed = without_spaces(offsets[tokens], lone[tokens], source)
                    offsets[tokens] = with_loose(trimmed, source)
        respelled = self._respelled
        pieces = tuple(respelled.get(id_, piece) for id_, piece in zip(raw.ids, raw.tokens, strict=True))
        return TokenDetails(offsets, special, sequence_ids, pieces)

    def _very_long(self, text: str, max_tokens: int, truncation: Truncation, name: str) -> Encoding:
        """A text of far more characters than ``max_tokens`` tokens have; see `unmask.text.windows`."""
        room = max(max_tokens - self._special_count, 0)
        prefix = beginning(self._reader, text, room + 1, name)
        if prefix is None:
            (whole,) = self.encode_batch([text], name=lambda _: name)
            _check_words(whole, name)
            return fitted(whole, max_tokens, truncation, name)
        if truncation == "error":
            raise TextTooLong(
                f"{name} has {len(text):,} characters, far more than the {max_tokens} tokens that the model "
                f"reads; {WAY_OUT}",
                original_tokens=prefix.final + self._special_count,
                max_tokens=max_tokens,
            )
        offsets = np.array(prefix.tokens.offsets, dtype=np.int64).reshape(-1, 2)
        encoding = replace(
            self._encoding(prefix.tokens, text, None),
            source=self._details(prefix.tokens, prefix.text, None, offsets),
            original_tokens=prefix.final + self._special_count,
            counted_whole=False,
        )
        _check_words(encoding, name)
        return truncated(encoding, max_tokens)

    def _has_words(self, encoding: Encoding) -> bool:
        """Whether a text certainly has words, decided without offsets; if in doubt, the offsets decide."""
        if encoding.pair is not None or self._adds_characters or not encoding.text.strip():
            return False
        words = len(encoding.ids)
        if self._keeps_spaces:
            words -= int(np.count_nonzero(encoding.ids == self._space_id))
        return words > self._special_count

    @cached_property
    def _special_count(self) -> int:
        """Number of special tokens added to one text."""
        return int(self.engine.num_special_tokens_to_add(False))

    @cached_property
    def _adds_characters(self) -> bool:
        """Whether a token can stand for a character that the tokenizer inserted before the text."""
        normalizer = self.engine.normalizer
        return normalizer is not None and b'"Prepend"' in normalizer.__getstate__()

    @cached_property
    def _token_type(self) -> int | None:
        """The token type of all tokens of a single text; None if they differ."""
        probe = self.engine.encode("a")
        types = set(probe.type_ids)
        return types.pop() if len(types) == 1 and len(probe.ids) > self._special_count else None

    @cached_property
    def _keeps_spaces(self) -> bool:
        """Whether a token can include a space; BERT's never does."""
        return not isinstance(self.engine.pre_tokenizer, tokenizers.pre_tokenizers.BertPreTokenizer)

    @cached_property
    def _spaced(self) -> bool:
        """Whether byte-level pieces mark the beginning of a word by the space before it."""
        splitter = self.engine.pre_tokenizer
        return splitter is not None and b'"ByteLevel"' in splitter.__getstate__()

    @cached_property
    def _space_id(self) -> int:
        """The id of the piece that is only a space; -1 if there is none."""
        id_ = self.token_to_id("Ġ" if self._spaced else "▁")
        return -1 if id_ is None else id_

    @cached_property
    def _words_engine(self) -> tokenizers.Tokenizer:
        """`_reader`, changed to put a space before every word if that is how it marks words."""
        if not self._spaced:
            return self._reader
        state = json.loads(self._reader.to_str())
        splitter = state["pre_tokenizer"]
        for step in splitter.get("pretokenizers", [splitter]):
            if step["type"] == "ByteLevel":
                step["add_prefix_space"] = True
        engine = tokenizers.Tokenizer.from_str(json.dumps(state))
        engine.encode_special_tokens = self.reads == "text"
        return engine

    @cached_property
    def _respelled(self) -> Mapping[int, str]:
        """Ids that the engine may show as the text they matched, with the vocabulary's spelling."""
        spelled = {id_: token.content for id_, token in self.engine.get_added_tokens_decoder().items()}
        model = self.engine.model
        if isinstance(model, tokenizers.models.Unigram):
            unknown = self.unknown_id
            if unknown is not None:
                spelled[unknown] = str(self.engine.id_to_token(unknown))
        return spelled


SHARED_LENGTH = 512
"""Tokens of an encoding up to which it shares its token types with others: together they take 2 MB."""


def _ids(raw: Sequence[tokenizers.Encoding]) -> list[NDArray[np.int64]]:
    """The ids of each text; made as one array, because that takes half the time of many small ones."""
    lists = [raw_encoding.ids for raw_encoding in raw]
    ends = list(accumulate(map(len, lists)))
    all_ids = np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=ends[-1] if ends else 0)
    read_only(all_ids)
    return [all_ids[start:end] for start, end in pairwise([0, *ends])]


def check_texts(texts: Sequence[object], name: Callable[[int], str]) -> None:
    """Raise `InvalidText`, naming the first that is not, unless all are strings of Unicode text."""
    try:
        "".join(texts).encode()  # type: ignore[arg-type]  # one check of all; the loop finds which one fails
        return
    except (TypeError, UnicodeEncodeError):
        pass
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidText(f"{name(index)} is of type {type(text).__name__}; give a str")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidText(
                f"{name(index)} holds a lone surrogate U+{ord(text[error.start]):04X} at character "
                f"{error.start}, which is not Unicode text; remove it or decode the source again"
            ) from None


def _check_words(encoding: Encoding, name: str, pair_name: str = "") -> None:
    # Some vocabularies have tokens for spaces, which are not words.
    covers = encoding.offsets[:, 0] < encoding.offsets[:, 1]
    for source, called, of in ((encoding.text, name, 0), (encoding.pair, pair_name, 1)):
        if source is not None and not ((covers & (encoding.sequence_ids == of)).any() and source.strip()):
            raise EmptyText(f"{called} has no words; give a text with at least one")


def _constant(value: int, length: int) -> NDArray[np.int64]:
    """A read-only array; all encodings of one length share it, unless they are long."""
    make = _short_constant if length <= SHARED_LENGTH else _short_constant.__wrapped__
    return make(value, length)


@lru_cache(maxsize=2 * SHARED_LENGTH)
def _short_constant(value: int, length: int) -> NDArray[np.int64]:
    array = np.full(length, value, dtype=np.int64)
    array.setflags(write=False)
    return array


def spellings(tokenizer: Tokenizer, id: int) -> tuple[str, str]:
    """A piece as the vocabulary spells it, and as text; an id without a piece is shown as a number."""
    piece: str | None = tokenizer.engine.id_to_token(id)
    if piece is None:
        return f"<{id}>", f"<{id}>"
    return piece, tokenizer.engine.decode([id], skip_special_tokens=False)


def masked(
    encoding: Encoding, tokens: Sequence[int], tokenizer: Tokenizer, *, name: str = "the model"
) -> Encoding:
    """The encoding with the mask token in place of some of its tokens; their offsets are unchanged.

    Raises:
        InvalidRequest: the tokenizer has no mask token, or the encoding has no such token.
    """
    mask_id = tokenizer.mask_id
    if mask_id is None:
        raise InvalidRequest(f"the tokenizer of {name} has no mask token, so no word can be asked for")
    ids, pieces = encoding.ids.copy(), list(encoding.pieces)
    for token in tokens:
        if not 0 <= token < len(encoding):
            raise InvalidRequest(f"token is {token}; this text has tokens 0 to {len(encoding) - 1}")
        ids[token], pieces[token] = mask_id, tokenizer.special_tokens["mask"]
    return encoding.with_pieces(ids, pieces)
