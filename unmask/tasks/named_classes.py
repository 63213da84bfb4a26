"""Classes that are named with the text and scored in one pass (GLiClass, Stepanov et al. 2025).

A pass reads the names of all classes and as much of the text as fits; a longer text is read in windows, each
with all names.

Axes: N tokens of a window; C classes; P tokens of the names; D width of the encoder; W windows of a text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import get_args

import numpy as np
import tokenizers
from numpy.typing import NDArray

from unmask.base.arguments import check_choice, check_flag, check_fraction, whole_number
from unmask.base.progress import Progress
from unmask.engines.engine import Engine, Floats
from unmask.errors import CorruptCheckpoint, EmptyText, InvalidRequest, InvalidText, quoted
from unmask.spec import ClassHead, ProblemType
from unmask.tasks.batches import TOKENS_PER_PASS, last_states, require_finite
from unmask.tasks.classify import THRESHOLD, Classification, most_probable, probabilities
from unmask.tasks.label_network import ClassNetwork
from unmask.tasks.logits import in_windows
from unmask.tasks.reader import Name, Reader, Ready, called, several
from unmask.tasks.values import LongTexts, distinct_labels
from unmask.text import Encoding
from unmask.text.special import literal_engine
from unmask.text.tokenizer import check_texts, numbered
from unmask.text.windows import Window


def prepare(
    reader: Reader,
    texts: str | Sequence[str],
    labels: Sequence[str],
    *,
    multi_label: bool = False,
    threshold: float = THRESHOLD,
    truncation: LongTexts = "window",
    overlap_tokens: int | None = None,
    name: Name = numbered,
    argument: str = "labels",
) -> Ready[list[Classification]]:
    """The classes of each text; arguments as of `unmask.models.model.Model.classify`, and ``argument`` is the
    name of the labels in messages."""
    check_flag("multi_label", multi_label)
    check_fraction("threshold", threshold)
    check_choice("truncation", truncation, get_args(LongTexts))
    if overlap_tokens is not None:
        whole_number("overlap_tokens", overlap_tokens, 0)
    network, name = reader.class_network, called(texts, name)
    encoder = NameEncoder(reader, network.head)
    names = encoder.names(distinct_labels(argument, labels))
    whole = encoder.read(names, several("texts", texts), name)
    encoder.check_room(names)
    read, parts = in_windows(
        whole,
        max_tokens=reader.max_tokens,
        truncation=truncation,
        overlap_tokens=overlap_tokens,
        name=name,
    )
    owners = [index for index, windows in enumerate(parts) for _ in windows]

    def finish(values: Sequence[Floats]) -> list[Classification]:
        rest = iter(values)
        return [
            classification(
                encoding,
                windows,
                np.stack([next(rest) for _ in windows]),
                names.labels,
                multi_label=bool(multi_label),
                threshold=threshold,
            )
            for encoding, windows in zip(read, parts, strict=True)
        ]

    return Ready(
        [NamedWindow(window.encoding, names) for windows in parts for window in windows],
        partial(class_logits, network=network),
        finish,
        ("named classes",),
        lambda place: name(owners[place]),
        read,
    )


def classification(
    encoding: Encoding,
    windows: Sequence[Window],
    logits_WC: Floats,
    labels: Sequence[str],
    *,
    multi_label: bool,
    threshold: float,
) -> Classification:
    """The prediction for a text: the mean over its windows, weighted by the text's tokens that each owns."""
    problem: ProblemType = "multi_label_classification" if multi_label else "single_label_classification"
    owned = [(window.owned & (window.encoding.sequence_ids == 0)).sum() for window in windows]
    shares_W = np.array(owned, dtype=np.float64) / sum(owned)
    p_C = shares_W @ probabilities(logits_WC, problem)
    best = labels[most_probable(p_C, shares_W @ logits_WC)]
    scores = dict(zip(labels, p_C.tolist(), strict=True))
    return Classification(
        best,
        scores[best],
        scores,
        tuple(label for label, p in scores.items() if p >= threshold) if multi_label else (best,),
        tokens_read=len(encoding),
        windows=len(windows),
        truncated_tokens=encoding.truncated_tokens,
    )


@dataclass(frozen=True, eq=False)
class Names:
    """The names of classes as the tokens of a pass, without the text: special tokens, and on one side of the
    text each name after its marker, and the separator."""

    labels: tuple[str, ...]
    before: NDArray[np.int64]
    """The tokens before the text."""
    after: NDArray[np.int64]
    """Those after it."""
    markers: NDArray[np.int64]
    """The places of the tokens before each name, (C,), counted from the end if names follow the text."""
    separator: int
    """The place of the separator, counted so too."""
    types: int
    """The token type of every token, for encoders with types of their own."""
    pieces: tuple[tuple[str, ...], tuple[str, ...]]
    """The vocabulary's spelling of the tokens before the text, and of those after it."""

    def __len__(self) -> int:
        return len(self.before) + len(self.after)


@dataclass(frozen=True, eq=False)
class NamedWindow:
    """A text, or a window of it, with the names."""

    encoding: Encoding
    names: Names

    def __len__(self) -> int:
        return len(self.encoding)

    @property
    def truncated_tokens(self) -> int:
        """How many tokens were dropped before the pass."""
        return self.encoding.truncated_tokens


class NameEncoder:
    """Makes tokens of names and texts as those of the string that gliclass joins them to.

    Tokenizers split a string at added tokens before anything else, so that what stands between two of them is
    tokenized by itself, but other than at the beginning of a string.
    """

    def __init__(self, reader: Reader, head: ClassHead) -> None:
        self.reader, self.head, self.name = reader, head, reader.name
        self.tokenizer = reader.tokenizer
        config = reader.checkpoint.label_config
        used = {"class_token_index": head.marker}
        used |= {"text_token_index": head.separator} if head.text_alone or head.segments else {}
        for token in (head.marker, head.separator):
            if self.tokenizer.token_to_id(token) is None:
                raise CorruptCheckpoint(
                    f"the tokenizer of {self.name} has no token {token}, which stands beside labels; copy "
                    "the tokenizer's files of the checkpoint that was trained with it"
                )
        for key, token in used.items():
            if config.get(key, -1) not in (-1, self.tokenizer.token_to_id(token)):
                raise CorruptCheckpoint(
                    f"config.json of {self.name} says {key} is {quoted(config[key])}, and its tokenizer "
                    f"gives {token} the id {self.tokenizer.token_to_id(token)}; copy the files of one "
                    "checkpoint"
                )

    def names(self, labels: Sequence[str]) -> Names:
        """The tokens of names.

        Raises:
            InvalidRequest: a name has no token, or one that the model reads as a sign of its own.
            InvalidText: a name is not Unicode text.
        """
        check_texts(labels, lambda index: f"the label {quoted(labels[index])}")
        marker, separator = self.head.marker, self.head.separator
        engine = self._engine(marker, separator)
        raw = engine.encode("".join(marker + label for label in labels) + separator, add_special_tokens=False)
        ids_P = np.array(raw.ids, dtype=np.int64)
        markers = np.flatnonzero(ids_P == self.tokenizer.token_to_id(marker))
        self._check(labels, ids_P, np.array(raw.offsets, dtype=np.int64))
        frame = engine.encode("a")
        inside = np.flatnonzero(np.array(frame.special_tokens_mask) == 0)
        before, after = frame.ids[: inside[0]], frame.ids[inside[-1] + 1 :]
        if self.head.names_first:
            start, before = len(before), [*before, *raw.ids]
        else:
            start, after = -len(after) - len(ids_P), [*raw.ids, *after]
        return Names(
            tuple(labels),
            np.array(before, dtype=np.int64),
            np.array(after, dtype=np.int64),
            start + markers,
            start + len(ids_P) - 1,
            int(frame.type_ids[0]),
            (self._pieces(before), self._pieces(after)),
        )

    def _pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(str(self.tokenizer.engine.id_to_token(id_)) for id_ in ids)

    def _check(self, labels: Sequence[str], ids_P: NDArray[np.int64], offsets_P2: NDArray[np.int64]) -> None:
        """Refuse names without tokens, and those that contain an added token."""
        added, unknown = self.tokenizer.engine.get_added_tokens_decoder(), self.tokenizer.unknown_id
        starts = np.cumsum([0, *(len(self.head.marker) + len(label) for label in labels)])
        label_of_P = np.searchsorted(starts, offsets_P2[:, 0], side="right") - 1
        own_P = offsets_P2[:, 0] == starts[label_of_P]
        for number in np.flatnonzero(np.bincount(label_of_P[~own_P], minlength=len(labels)) == 0).tolist():
            raise InvalidRequest(
                f"the label {quoted(labels[number])} has no token; give a label with letters"
            )
        for place in np.flatnonzero(~own_P):
            if int(ids_P[place]) in added and ids_P[place] != unknown:
                typed = added[int(ids_P[place])].content
                raise InvalidRequest(
                    f"the label {quoted(labels[label_of_P[place]])} contains {typed}, which the model reads "
                    "as a sign of its own; leave it out of the label"
                )
        self._check_known(ids_P, "a label")

    def _check_known(self, ids_N: NDArray[np.int64], what: str) -> None:
        known = self.tokenizer.known
        if known is not None and len(ids_N) and ids_N.max() >= known:
            raise InvalidText(
                f"{what} has a piece with the id {ids_N.max()}, and the model has vectors for ids below "
                f"{known}; take the tokenizer that the model was trained with"
            )

    def _engine(self, *markers: str) -> tokenizers.Tokenizer:
        """What reads text beside some markers."""
        tokenizer = self.tokenizer
        return (
            tokenizer.engine if tokenizer.reads == "parse" else literal_engine(tokenizer.engine, set(markers))
        )

    @cached_property
    def _beside(self) -> tuple[str, ...]:
        """Added tokens that may stand beside a text, the usual one first."""
        head = self.head
        usual = (head.separator, head.marker) if head.names_first else (head.marker, head.separator)
        added = self.tokenizer.engine.get_added_tokens_decoder().values()
        return (*usual, *(token.content for token in added if token.special and token.content not in usual))

    def read(self, names: Names, texts: Sequence[str], name: Name) -> list[Encoding]:
        """The tokens of whole texts with the names, of any length.

        Raises:
            TextError: a text is empty, or not Unicode text.
        """
        check_texts(texts, name)
        engines = dict[str, tokenizers.Tokenizer]()
        encodings = []
        for index, text in enumerate(texts):
            beside = self._beside[0]
            if self.tokenizer.reads == "text":  # characters of a text are no sign
                beside = next((token for token in self._beside if token not in text), "")
                if not beside:
                    raise InvalidText(
                        f"{name(index)} holds every special token of {self.name}; leave one out"
                    )
            if beside not in engines:
                engines[beside] = self._engine(beside)
            encodings.append(self._encoding(names, text, beside, engines[beside], name(index)))
        return encodings

    def _encoding(
        self, names: Names, text: str, beside: str, engine: tokenizers.Tokenizer, name: str
    ) -> Encoding:
        first = self.head.names_first
        raw = engine.encode(beside + text if first else text + beside, add_special_tokens=False)
        inner = slice(1, None) if first else slice(0, len(raw.ids) - 1)
        ids_N = np.array(raw.ids[inner], dtype=np.int64)
        if not len(ids_N) or not text.strip():
            raise EmptyText(f"{name} has no words; give a text with at least one")
        self._check_known(ids_N, name)
        offsets_N2 = np.array(raw.offsets[inner], dtype=np.int64) - (len(beside) if first else 0)
        ids = np.concatenate((names.before, ids_N, names.after))
        sides = (len(names.before), len(names.after))
        special = np.pad(np.zeros(len(ids_N), dtype=np.bool_), sides, constant_values=True)
        types = np.full(len(ids), 0 if self.head.segments else names.types)
        if self.head.segments:
            types[names.separator :] = 1
        return Encoding.of_arrays(
            text,
            ids=ids,
            token_type_ids=types,
            offsets=np.pad(offsets_N2, (sides, (0, 0))),
            special=special,
            sequence_ids=np.where(special, -1, 0),
            pieces=(*names.pieces[0], *self._pieces(raw.ids[inner]), *names.pieces[1]),
        )

    def check_room(self, names: Names) -> None:
        """Refuse names that leave no room for a text."""
        most = self.reader.max_tokens
        if most is not None and len(names) >= most:
            count = len(names.labels)
            raise InvalidRequest(
                f"{count:,} label{'s' if count > 1 else ''} and special tokens take {len(names):,} of the "
                f"{most:,} tokens that the model reads, which leaves no room for a text; give fewer or "
                "shorter labels at a time"
            )


def class_logits(
    engine: Engine,
    *,
    network: ClassNetwork,
    encodings: Sequence[NamedWindow],
    tokens_per_pass: int = TOKENS_PER_PASS,
    progress: Progress | None = None,
    name: Name,
) -> list[Floats]:
    """The logits of each window, see `ClassNetwork.logits`.

    Raises:
        NonFiniteResult: a hidden state or a logit is infinity or NaN.
    """

    logits: dict[int, Floats] = {}
    read = [it.encoding for it in encodings]
    for chosen, states in last_states(engine, read, tokens_per_pass, progress, name):
        for place, (index, x_ND) in enumerate(zip(chosen, states, strict=True)):
            names, where = encodings[index].names, np.zeros(1, dtype=np.int64)
            logits_C = network.logits(x_ND, read[index].ids, names.markers, names.separator)
            require_finite(logits_C[None], chosen[[place]], where, "a logit", name=name, dtype=engine.dtype)
            logits[int(index)] = logits_C
    return [logits[index] for index in range(len(encodings))]
