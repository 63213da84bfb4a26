"""A model with made-up attention: the explorer's server needs no more, and starts in no time."""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unmask.errors import EmptyText, InvalidText, TextTooLong
from unmask.text.encoding import Encoding, TooLong

LAYERS, HEADS = 3, 4


@dataclass(frozen=True, eq=False)
class FakeView:
    """Softmax of fixed random scores, drawn anew for every head."""

    encoding: Encoding
    layer_count: int = LAYERS
    head_count: int = HEADS

    def __len__(self) -> int:
        return len(self.encoding)

    def whole(self, layer: int, head: int) -> npt.NDArray[np.float32]:
        """All probabilities of a head, (N, N)."""
        generator = np.random.default_rng([layer, head, len(self)])
        scores = generator.normal(scale=1 + layer + head, size=(len(self), len(self)))
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares: npt.NDArray[np.float64] = exponentials / exponentials.sum(axis=1, keepdims=True)
        return shares.astype(np.float32)

    def probabilities(self, layer: int, head: int, rows: slice, columns: slice) -> npt.NDArray[np.float32]:
        return self.whole(layer, head)[rows, columns]

    @property
    def entropy(self) -> npt.NDArray[np.float32]:
        return self._each(lambda p, _: -(p * np.log(np.maximum(p, 1e-30))).sum(axis=1))

    @property
    def distance(self) -> npt.NDArray[np.float32]:
        return self._each(lambda p, apart: (p * apart).sum(axis=1))

    @property
    def received(self) -> npt.NDArray[np.float32]:
        return self._each(lambda p, _: p.mean(axis=0))

    def _each(self, statistic) -> npt.NDArray[np.float32]:
        at = np.arange(len(self))
        apart = np.abs(at[:, None] - at[None, :])
        values = [
            [statistic(self.whole(layer, head), apart) for head in range(HEADS)] for layer in range(LAYERS)
        ]
        return np.asarray(values, dtype=np.float32)


@dataclass
class FakeModel:
    """Words and signs are tokens; reads at most ``max_tokens`` of them; counts its work."""

    name: str = "fake"
    revision: str | None = "0123456789abcdef"
    parameter_count: int = 12_345_678
    layer_count: int = LAYERS
    head_count: int = HEADS
    width: int = 16
    max_tokens: int | None = 32
    calls: int = 0

    def attention(self, text: str, *, too_long: TooLong = "error") -> FakeView:
        self.calls += 1
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InvalidText("the text holds a lone surrogate, which is not a character")
        words = [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]
        if not words:
            raise EmptyText("the text has no words")
        total = len(words) + 2
        if self.max_tokens is not None and total > self.max_tokens:
            if too_long == "error":
                raise TextTooLong(
                    f"the text has {total} tokens and the model reads {self.max_tokens}",
                    total_tokens=total,
                    max_tokens=self.max_tokens,
                )
            words = words[: self.max_tokens - 2]
        spans = np.array([(0, 0), *words, (0, 0)], dtype=np.int64)
        count = len(spans)
        special = np.zeros(count, dtype=bool)
        special[[0, -1]] = True
        return FakeView(
            Encoding(
                text=text,
                pair=None,
                ids=np.arange(count, dtype=np.int64),
                segments=np.zeros(count, dtype=np.int64),
                spans=spans,
                special=special,
                in_pair=np.zeros(count, dtype=bool),
                pieces=("[CLS]", *(text[start:end].lower() for start, end in words), "[SEP]"),
                total_tokens=total,
            )
        )
