"""Logits of one text with each of several second texts: a question and its choices, a text and hypotheses.

Axes: W windows of the first text; A alternatives, the second texts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_choice, whole_number
from unmask.engines.engine import Floats
from unmask.errors import InvalidRequest, TextTooLong
from unmask.tasks.logits import Coverage, logits_of_each
from unmask.tasks.reader import Name, Reader, Ready
from unmask.tasks.values import LongTexts
from unmask.text import Encoding
from unmask.text.tokenizer import numbered
from unmask.text.windows import Window, aligned_windows, shared_room

Prediction = TypeVar("Prediction")


@dataclass(frozen=True, eq=False)
class AlignedWindows:
    """Pairs that have the first text in common, in windows; see `unmask.text.windows.aligned_windows`."""

    encodings: Sequence[Encoding]
    """One for each alternative, as they are read."""
    windows: Sequence[Sequence[Window]]
    """For each alternative its windows, of which all have the same number."""

    @property
    def coverage(self) -> Coverage:
        """How much was read: the tokens of all alternatives, and the windows of the first text."""
        return Coverage(
            tokens_read=sum(len(encoding) for encoding in self.encodings),
            windows=len(self.windows[0]),
            truncated_tokens=sum(encoding.truncated_tokens for encoding in self.encodings),
        )

    def shares(self) -> NDArray[np.float64]:
        """For each window, the share of the first text's tokens that it owns, (W,)."""
        first = self.windows[0]
        if len(first) == 1:
            return np.ones(1)
        owned = [(window.owned & (window.encoding.sequence_ids == 0)).sum() for window in first]
        shares: NDArray[np.float64] = np.array(owned, dtype=np.float64) / sum(owned)
        return shares


@dataclass(frozen=True, eq=False)
class AlignedLogits:
    """A sequence head's logits for one text with each of its alternatives."""

    parts: AlignedWindows
    logits_WAC: Floats


def prepare_aligned(
    reader: Reader,
    role: str,
    firsts: Sequence[str],
    seconds: Sequence[Sequence[str]],
    finish: Callable[[list[AlignedLogits]], list[Prediction]],
    *,
    truncation: LongTexts,
    overlap_tokens: int | None,
    name: Name,
    second: str,
) -> Ready[list[Prediction]]:
    """A task that predicts from a sequence head's logits for each first text with each of its second texts.

    ``name`` gives the name of a first text in errors, and ``second`` is the word for a second one.
    """
    if overlap_tokens is not None:
        whole_number("overlap_tokens", overlap_tokens, 0)
    places = [(index, place) for index, group in enumerate(seconds) for place in range(len(group))]
    encodings = iter(
        reader.whole(
            [firsts[index] for index, _ in places],
            [seconds[index][place] for index, place in places],
            name=lambda row: name(places[row][0]),
            pair_name=lambda row: f"{second} {places[row][1] + 1} of {name(places[row][0])}",
        )
    )
    groups = [
        align(
            [next(encodings) for _ in group],
            max_tokens=reader.max_tokens,
            truncation=truncation,
            overlap_tokens=overlap_tokens,
            name=name(index),
            second=second,
        )
        for index, group in enumerate(seconds)
    ]
    return of_groups(role, groups, finish, name=name)


def of_groups(
    role: str,
    groups: Sequence[AlignedWindows],
    finish: Callable[[list[AlignedLogits]], list[Prediction]],
    *,
    name: Name = numbered,
) -> Ready[list[Prediction]]:
    """`prepare_aligned` for texts whose windows are made already."""
    owners = [index for index, group in enumerate(groups) for windows in group.windows for _ in windows]

    def predictions(values: Sequence[Floats]) -> list[Prediction]:
        rest = iter(values)
        return finish(
            [
                AlignedLogits(
                    group,
                    np.stack([np.stack([next(rest) for _ in windows]) for windows in group.windows], axis=1),
                )
                for group in groups
            ]
        )

    return Ready(
        [window.encoding for group in groups for windows in group.windows for window in windows],
        partial(logits_of_each, role=role),
        predictions,
        ("logits", role),
        lambda place: name(owners[place]),
        [encoding for group in groups for encoding in group.encodings],
    )


def align(
    encodings: Sequence[Encoding],
    *,
    max_tokens: int | None,
    truncation: LongTexts = "window",
    overlap_tokens: int | None = None,
    name: str = "the text",
    second: str = "choice",
) -> AlignedWindows:
    """Windows over the text that pairs have in common; every window holds a second text whole.

    ``name`` and ``second`` are how errors name the first text and a second one.

    With ``truncation="end"`` only the beginning of the first text is read: as much of it with every
    alternative as fits beside the longest one.

    Raises:
        InvalidRequest: a choice does not exist, or a second text leaves no room for the first.
        TextTooLong: a pair is too long, with ``truncation="error"``.
    """
    check_choice("truncation", truncation, get_args(LongTexts))
    longest = max(len(encoding) for encoding in encodings)
    if max_tokens is None or longest <= max_tokens or truncation == "window":
        return AlignedWindows(encodings, aligned_windows(encodings, max_tokens, overlap_tokens, name, second))
    if truncation == "error":
        raise TextTooLong(
            f"{name} has {longest} tokens with its longest {second} and the model reads at most "
            f"{max_tokens}; read it in windows (truncation='window'), or truncate it (truncation='end')",
            original_tokens=longest,
            max_tokens=max_tokens,
        )
    room = shared_room(encodings, max_tokens)
    if room < 1:
        raise InvalidRequest(
            f"the longest {second} leaves no room for {name} in the {max_tokens} tokens that the model "
            f"reads; shorten that {second}"
        )
    cut = []
    for encoding in encodings:
        read_N = np.ones(len(encoding), dtype=np.bool_)
        read_N[np.flatnonzero(encoding.sequence_ids == 0)[room:]] = False
        cut.append(encoding.select(read_N))
    return AlignedWindows(cut, aligned_windows(cut, None))
