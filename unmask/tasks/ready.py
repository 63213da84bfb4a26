"""A task that is prepared for some texts: the form in which models, servers and bulk work run every task."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from unmask.engines.engine import Engine
from unmask.tasks.batches import TOKENS_PER_PASS
from unmask.tasks.progress import Progress
from unmask.text.tokenizer import numbered

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
