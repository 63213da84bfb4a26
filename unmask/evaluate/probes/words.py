"""Labeled words from treebanks, CoNLL columns or JSON lines, and their hidden states, layer by layer."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.arguments import check_limit
from unmask.encoder.encoder import is_finite
from unmask.engines.engine import Engine
from unmask.errors import InvalidRequest, InvalidText, TextTooLong, not_finite
from unmask.models.load import Model
from unmask.text import Encoding, PackedBatch, layouts, token_budget_batches
from unmask.text.layouts import CONLLU_COLUMNS, columns_of, conllu_sentences
from unmask.text.lines import files_in, plain_name
from unmask.text.rows import json_rows

Column = Literal["upos", "xpos", "deprel", "lemma"]
"""The column of CoNLL-U that is the label; relations without what follows a colon."""

PARTS = ("train", "dev", "test")
ENDINGS = (".conllu", ".conll", ".tsv", ".txt", ".jsonl")

TRAIN_SHARE, DEV_SHARE = 70, 15
"""Of 100 sentences of a single file; the others are the test part."""

TOKENS_PER_PASS = 4096

STATES_BYTES = 2**31
"""Bytes of states held at a time; if more layers are requested, the encoder runs several times."""


@dataclass(frozen=True)
class TaggedSentence:
    """Syntactic words in order, with their universal parts of speech (UPOS)."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_treebank(folder: Path, limit: int | None = None) -> dict[str, list[TaggedSentence]]:
    """The train, dev and test parts of a treebank: files named ``*train.conllu`` and so on, optionally
    ``.xz``.

    Args:
        folder: the folder of an official release.
        limit: use only the first N sentences of each part.

    Raises:
        InvalidRequest: the folder has no file or several files for a part, a part is empty, or ``limit`` is
            below 1.
        InvalidText: a file cannot be read, or is not CoNLL-U.
    """
    check_limit(limit)
    files = files_in(folder, [".conllu"])
    treebank = {}
    for part in PARTS:
        path = _file(folder, files, part, ".conllu.xz")
        treebank[part] = list(islice(read_conllu(path), limit))
        if not treebank[part]:
            raise InvalidRequest(f"{path} holds no sentence; name another folder (--data)")
    return treebank


def _file(folder: Path, files: Sequence[Path], part: str, or_ending: str) -> Path:
    matching = [path for path in files if plain_name(path).rpartition(".")[0].endswith(part)]
    if len(matching) != 1:
        names = ", ".join(path.name for path in matching) or "none"
        raise InvalidRequest(f"{folder} must hold one file *{part}.conllu (or {or_ending}); it has: {names}")
    return matching[0]


def read_conllu(path: Path) -> Iterator[TaggedSentence]:
    """The sentences of one file; see `unmask.text.layouts.conllu_sentences`.

    Raises:
        InvalidText: the file cannot be read or is not CoNLL-U, or a word has no form or part of speech.
    """
    for sentence in conllu_sentences(path):
        words, tags = sentence.column("form"), sentence.column("upos")
        for number, (word, tag) in enumerate(zip(words, tags, strict=True), start=1):
            if not word.strip() or tag in ("", "_"):
                missing = "part of speech" if word.strip() else "form"
                raise InvalidText(f"word {number} of the sentence at {sentence.where} has no {missing}")
        yield TaggedSentence(words, tags)


def read_labeled(
    data: Path, column: Column = "upos", limit: int | None = None
) -> dict[str, list[TaggedSentence]]:
    """The train, dev and test parts of labeled words.

    ``data`` is a folder with one file for each part, whose names end in ``train``, ``dev`` and ``test``
    before the ending, or one file. A single file is divided by a digest of each sentence, so that equal
    sentences are in one part. Files may be compressed:

    - ``.conllu``: the label is ``column``;
    - ``.conll``, ``.tsv``, ``.txt``: a word in the first column and its label in the last, a blank line
      between sentences;
    - ``.jsonl``: objects with ``words`` and ``labels``, two lists of strings of one length.

    Args:
        data: the folder or file.
        column: of CoNLL-U.
        limit: only the first N sentences of each part.

    Raises:
        InvalidRequest: a part is missing or empty, or ``limit`` is below 1.
        InvalidText: a file cannot be read, or a word has no label.
    """
    check_limit(limit)
    files = files_in(data, ENDINGS)
    if data.is_file():
        divided: dict[str, list[TaggedSentence]] = {part: [] for part in PARTS}
        for sentence in _read(data, column):
            divided[_part_of(sentence)].append(sentence)
        parts = {part: sentences[:limit] for part, sentences in divided.items()}
    else:
        paths = {part: _file(data, files, part, ".conll, .jsonl") for part in PARTS}
        parts = {part: list(islice(_read(path, column), limit)) for part, path in paths.items()}
    for part, sentences in parts.items():
        if not sentences:
            raise InvalidRequest(
                f"the {part} part of {data} has no sentence; give more, or other files (--data)"
            )
    return parts


def _part_of(sentence: TaggedSentence) -> str:
    digest = hashlib.sha256("\n".join(sentence.words).encode("utf-8", "surrogatepass")).digest()
    place = int.from_bytes(digest[:8], "big") % 100
    if place < TRAIN_SHARE:
        return "train"
    return "dev" if place < TRAIN_SHARE + DEV_SHARE else "test"


def _read(path: Path, column: Column) -> Iterator[TaggedSentence]:
    name = plain_name(path)
    if name.endswith(".conllu"):
        if column not in CONLLU_COLUMNS:
            raise InvalidRequest(f"the column is {column!r}; it can be one of {', '.join(CONLLU_COLUMNS)}")
        for sentence in conllu_sentences(path):
            labels = sentence.column(column)
            if column == "deprel":
                labels = tuple(label.partition(":")[0] for label in labels)
            yield _checked(sentence.column("form"), labels, f"the sentence at {sentence.where}")
    elif name.endswith(".jsonl"):
        for where, row in json_rows(path):
            words, labels = _strings(row.get("words")), _strings(row.get("labels"))
            if not words or len(words) != len(labels):
                raise InvalidText(f"{where} has no words and labels: two lists of strings, equally long")
            yield _checked(words, labels, str(where))
    else:
        for block in layouts.sentences(path):
            columns = [columns_of(line) for line in block.lines]
            words, labels = (tuple(line[place] for line in columns) for place in (0, -1))
            yield _checked(words, labels, f"the sentence at {block.where}")


def _strings(value: object) -> tuple[str, ...]:
    """A list of strings; nothing where it is none."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return ()
    return tuple(value)


def _checked(words: tuple[str, ...], labels: tuple[str, ...], where: str) -> TaggedSentence:
    missing = [word for word, label in zip(words, labels, strict=True) if label == "_" != word or not label]
    if missing:
        raise InvalidText(f"{where} has the word {missing[0]!r} without a label")
    return TaggedSentence(words, labels)


@dataclass(frozen=True, eq=False)
class ReadWords:
    """Tokenized words, sentence by sentence."""

    encodings: tuple[Encoding, ...]
    firsts: tuple[NDArray[np.int64], ...]
    """For each encoding, the index of each word's first token; -1 for a word without tokens."""
    split: int
    """Sentences that exceed the maximum length and were split into several encodings of whole words."""

    @cached_property
    def count(self) -> int:
        """M, the number of words."""
        return sum(map(len, self.firsts))

    @cached_property
    def missing(self) -> int:
        """Number of words without a token."""
        return sum(int((places < 0).sum()) for places in self.firsts)


def read_words(model: Model, sentences: Sequence[Sequence[str]], name: Callable[[int], str]) -> ReadWords:
    """Tokenize sentences given as words; ``name`` returns the name of a sentence in errors, by index.

    Raises:
        TextError: a word is blank or not valid Unicode, or no word of a sentence gives a token.
    """
    encodings: list[Encoding] = []
    firsts: list[NDArray[np.int64]] = []
    split = 0
    for index, words in enumerate(sentences):
        parts = list(_parts(model, words, name(index)))
        split += len(parts) > 1
        encodings += [encoding for encoding, _ in parts]
        firsts += [_first_tokens(encoding, count) for encoding, count in parts]
    return ReadWords(tuple(encodings), tuple(firsts), split)


def _parts(model: Model, words: Sequence[str], name: str) -> Iterator[tuple[Encoding, int]]:
    """Parts of a sentence, halved between words until they fit the model, each with its number of words."""
    encode, longest = model.tokenizer.encode_words, model.max_tokens
    try:
        yield encode(words, max_tokens=longest, name=name), len(words)
    except TextTooLong:
        if len(words) == 1:
            # If a single word exceeds the maximum length, its first token is enough.
            yield encode(words, max_tokens=longest, truncation="end", name=name), 1
            return
        middle = len(words) // 2
        yield from _parts(model, words[:middle], name)
        yield from _parts(model, words[middle:], name)


def _first_tokens(encoding: Encoding, count: int) -> NDArray[np.int64]:
    assert encoding.words is not None
    firsts = np.full(count, -1, dtype=np.int64)
    tokens = np.flatnonzero(encoding.words >= 0)[::-1]
    firsts[encoding.words[tokens]] = tokens  # in reverse order, so that the first token of each word remains
    return firsts


def layer_groups(layers: Sequence[int], words: Iterable[ReadWords], width: int) -> list[Sequence[int]]:
    """The layers in groups, each of which one run of the encoder gives within `STATES_BYTES`.

    Args:
        layers: those that are wanted.
        words: all words whose states are held together.
        width: D, the width of a state.
    """
    at_once = max(1, STATES_BYTES // (4 * width * sum(part.count for part in words)))
    return [layers[first : first + at_once] for first in range(0, len(layers), at_once)]


def word_states(
    model: Model,
    words: ReadWords,
    layers: Sequence[int],
    advance: Callable[[int], None] = lambda _: None,
    *,
    engine: Engine | None = None,
) -> Tensor:
    """The state of each word's first token, float32 of shape (layers, M, D); zeros for a word without tokens.

    Args:
        model: the model to run.
        words: see `read_words`.
        layers: from 0, the output of the embedding, to L, which includes the encoder's final norm.
        advance: called with the number of encodings read since the last call.
        engine: runs instead of the model's, of the same architecture.

    Raises:
        NonFiniteResult: a state is not finite.
    """
    states_LMD = torch.zeros(len(layers), words.count, model.width)
    starts = np.cumsum([0, *map(len, words.firsts)])
    lengths = np.array([len(encoding) for encoding in words.encodings], dtype=np.int64)
    for chosen in token_budget_batches(lengths, TOKENS_PER_PASS):
        some = [words.encodings[index] for index in chosen]
        batch = PackedBatch.of_ids(
            [encoding.ids for encoding in some], [encoding.token_type_ids for encoding in some]
        )
        firsts, rows = [], []
        for index, offset in zip(chosen, batch.layout.offsets[:-1], strict=True):
            has = words.firsts[index] >= 0
            firsts.append(words.firsts[index][has] + offset)
            rows.append(starts[index] + np.flatnonzero(has))
        places, into = (torch.from_numpy(np.concatenate(numbers)) for numbers in (firsts, rows))
        states = torch.from_numpy((engine or model.engine).hidden_states(batch, "all"))
        for number, layer in enumerate(layers):
            states_LMD[number, into] = states[layer, places].float()
        advance(len(chosen))
    if not is_finite(states_LMD):
        raise not_finite("a hidden state", model.dtype)
    return states_LMD
