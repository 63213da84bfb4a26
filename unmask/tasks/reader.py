"""What a task knows of a model before it runs: how texts become tokens, and what the checkpoint computes."""

import sys
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar, get_args

from unmask.base.arguments import check_choice, listed
from unmask.base.progress import Progress
from unmask.engines.engine import Engine
from unmask.errors import BeyondTraining, InvalidRequest, TextTooLong
from unmask.spec import CheckpointOutput, EncoderSpec, MultiVector
from unmask.tasks.batches import TOKENS_PER_PASS
from unmask.tasks.label_network import (
    ClassNetwork,
    LabelNetwork,
    LabelVectors,
    class_network,
    label_network,
)
from unmask.tasks.late_texts import with_markers
from unmask.tasks.schema_network import SchemaNetwork, schema_network
from unmask.tasks.values import LongTexts
from unmask.text import Encoding, Tokenizer, Truncation
from unmask.text.tokenizer import numbered
from unmask.weights import Checkpoint

Name = Callable[[int], str]
"""How error messages name the text at an index."""


@dataclass(frozen=True)
class Reader:
    """A checkpoint without its weights, by the name that messages use.

    A `Model`, an adapter of several, and a model of a server each have one, and every task begins with it.
    """

    checkpoint: Checkpoint
    name: str

    @property
    def spec(self) -> EncoderSpec:
        """The encoder."""
        return self.checkpoint.spec

    @property
    def output(self) -> CheckpointOutput:
        """What the checkpoint gives for a text."""
        return self.checkpoint.head

    @property
    def max_tokens(self) -> int | None:
        """The most tokens of a text; None if there is no limit."""
        return self.checkpoint.max_tokens

    @property
    def tokenizer(self) -> Tokenizer:
        """From text to ids."""
        return self.checkpoint.tokenizer

    @cached_property
    def late_tokenizer(self) -> Tokenizer:
        """The tokenizer with the markers of the checkpoint's prompts, for one vector per token."""
        markers = self.output.markers if isinstance(self.output, MultiVector) else ()
        return with_markers(self.tokenizer, markers)

    @cached_property
    def checkpoint_labels(self) -> LabelNetwork:
        """The checkpoint's head for labels that are named with the text, read once."""
        return label_network(self.checkpoint)

    @cached_property
    def class_network(self) -> ClassNetwork:
        """The checkpoint's head for classes that are named with the text, read once."""
        return class_network(self.checkpoint)

    @cached_property
    def schema_network(self) -> SchemaNetwork:
        """The checkpoint's head for schemas, read once.

        Raises:
            InvalidRequest: it has none.
        """
        return schema_network(self.checkpoint)

    @cached_property
    def label_vectors(self) -> LabelVectors | None:
        """The second encoder, which reads labels, with the vectors it has given; None if there is none."""
        encoder = self.checkpoint.label_encoder
        return None if encoder is None else LabelVectors(encoder)

    def named(self, name: str) -> "Reader":
        """This reader under another name."""
        return replace(self, name=name)

    def tokenized(
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        *,
        truncation: Truncation = "error",
        name: Name = numbered,
        masks: bool = False,
    ) -> list[Encoding]:
        """Each text (or pair of texts) within the model's limit.

        Warns with `BeyondTraining` if a text is longer than any in training and the model can still read it.
        With ``masks``, typed mask tokens are ids in any case.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
        """
        check_choice("truncation", truncation, get_args(Truncation))
        firsts, seconds = _lists(texts, pairs)
        encodings = (self.tokenizer.with_masks if masks else self.tokenizer).encode_batch(
            firsts,
            seconds,
            max_tokens=self.max_tokens,
            truncation=truncation,
            name=called(texts, name),
        )
        trained = self.checkpoint.trained_tokens
        longest = max(map(len, encodings), default=0)
        if trained is not None and longest > trained:
            warnings.warn(
                f"a text has {longest} tokens and the model was trained on at most {trained}; "
                "it is read in full",
                BeyondTraining,
                stacklevel=_level_of_caller(),
            )
        return encodings

    def whole(
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        *,
        truncation: LongTexts = "window",
        name: Name = numbered,
        pair_name: Name | None = None,
    ) -> list[Encoding]:
        """Each text (or pair) as tokens, of any length if it is to be read in windows.

        Raises:
            TextError: a text is empty, or not Unicode text; or too long, with ``truncation="error"``.
        """
        check_choice("truncation", truncation, get_args(LongTexts))
        firsts, seconds = _lists(texts, pairs)
        try:
            return self.tokenizer.encode_batch(
                firsts,
                seconds,
                max_tokens=None if truncation == "window" else self.max_tokens,
                truncation="end" if truncation == "end" else "error",
                name=called(texts, name),
                pair_name=pair_name,
            )
        except TextTooLong as error:
            raise TextTooLong(
                f"{str(error).partition(';')[0]}; read it in windows (truncation='window'), or truncate it "
                "(truncation='end')",
                original_tokens=error.original_tokens,
                max_tokens=error.max_tokens,
            ) from None


def called(texts: object, name: Name, single: str = "the text") -> Name:
    """How messages name each of several texts, or the only one."""
    return (lambda _: single) if isinstance(texts, str) and name is numbered else name


def several(what: str, texts: Any) -> list[Any]:
    """One text as a list, or a list of texts; ``what`` is the argument's name.

    Raises:
        InvalidRequest: it is neither.
    """
    return [texts] if isinstance(texts, str) else listed(what, texts)


def _lists(texts: Any, pairs: Any) -> tuple[list[str], list[str] | None]:
    if isinstance(texts, str) and not isinstance(pairs, str | None):
        raise InvalidRequest("one text and a list of pairs were given; give one pair, or lists of both")
    if isinstance(texts, str):
        return [texts], None if pairs is None else [pairs]
    return listed("texts", texts), None if pairs is None else listed("pairs", pairs)


def _level_of_caller() -> int:
    """The level, for `warnings.warn`, of the frame that called the package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("unmask."):
        frame, level = frame.f_back, level + 1
    return level


Result = TypeVar("Result")


class Readable(Protocol):
    """What a pass reads: a tokenized text or pair, or a window of one. Its length is its price in tokens."""

    def __len__(self) -> int: ...

    @property
    def truncated_tokens(self) -> int:
        """How many tokens were dropped before the pass."""


@dataclass(frozen=True, eq=False)
class Ready(Generic[Result]):
    """Tokenized texts and what is computed of them.

    `Model` calls it with its engine. A server runs ``run`` on texts of several requests whose ``key`` is
    equal, gives each request its own results, and lets it ``finish``.
    """

    encodings: Sequence[Any]
    """What is read, each by itself (see `Readable`): texts, or the windows of long ones."""
    run: Callable[..., Any]
    """``run(engine, encodings=, tokens_per_pass=, progress=, name=)``: one result for each of ``encodings``,
    whichever they are. It can be pickled, and refers to no model."""
    finish: Callable[[Sequence[Any]], Result]
    """From the results of ``encodings``, in their order, to those of the texts."""
    key: Hashable
    """Texts of equal keys, of one model, may share a call of ``run``."""
    name: Callable[[int], str] = numbered
    """How error messages name what is at an index of ``encodings``."""
    texts: Sequence[Any] | None = None
    """The whole texts, if ``encodings`` are parts of them."""
    reads_last_states: bool = True
    """Whether ``run`` needs nothing of the encoder but the last hidden states of ``encodings``."""

    def __call__(
        self, engine: Engine, *, tokens_per_pass: int = TOKENS_PER_PASS, progress: Progress | None = None
    ) -> Result:
        """The results, from an engine; ``progress`` counts ``encodings``."""
        return self.finish(
            self.run(
                engine,
                encodings=self.encodings,
                tokens_per_pass=tokens_per_pass,
                progress=progress,
                name=self.name,
            )
        )

    @property
    def truncated(self) -> int:
        """How many texts lost their end."""
        texts = self.encodings if self.texts is None else self.texts
        return sum(text.truncated_tokens > 0 for text in texts)

    @property
    def tokens(self) -> int:
        """How many tokens are read; those that windows share count in each."""
        return sum(map(len, self.encodings))
