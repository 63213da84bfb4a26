"""The status of every tensor of a checkpoint, determined by its family's tensor map. Free of torch."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from unmask.errors import TensorMismatch
from unmask.spec import EncoderSpec
from unmask.spec.tensor_map import (
    Concat,
    Copy,
    Ignore,
    Rearrangement,
    Rename,
    Reorder,
    Same,
    Stacked,
    TensorRule,
)

OLD_SUFFIXES = {".gamma": ".weight", ".beta": ".bias"}
"""Names of norm parameters in early checkpoints, before they were called weight and bias."""


@dataclass(frozen=True)
class TensorMove:
    """One tensor of ours and the tensors of theirs that form it, in order."""

    ours: str
    theirs: tuple[str, ...]
    reorder: Rearrangement | None = None
    """The entry that gives the order of its numbers in theirs."""
    concat: Concat | None = None
    """The entry that gives the number of rows of each of several of theirs."""
    weights: int = 0
    """The set of weights of a layer that it belongs to; 0 outside of layers."""

    def rows_of(self, whole: int, spec: EncoderSpec) -> tuple[int, ...]:
        """For each of theirs, its number of rows, if ours has ``whole``."""
        return (whole,) if self.concat is None else self.concat.rows_of(whole, spec, self.weights)


def moves(
    rows: Iterable[TensorRule], ours: Iterable[str], layer_name: Callable[[int], str] = str
) -> list[TensorMove]:
    """The source of each of our tensors; ``layer_name`` gives the value of ``{l}`` in their names.

    Raises:
        TensorMismatch: the family's tensor map has no entry for one of ours.
    """
    rows = tuple(rows)
    named = (row for row in rows if isinstance(row, Rename | Concat | Reorder | Stacked))
    patterns = [(_pattern(row.ours), row) for row in named]
    has_same = any(isinstance(row, Same) for row in rows)
    tensor_moves = []
    for name in ours:
        for pattern, row in patterns:
            match = pattern.fullmatch(name)
            if match:
                layer, suffix = match.groupdict().get("l"), match["suffix"]
                layer_prefix = "" if layer is None else layer_name(int(layer))
                theirs = row.theirs if isinstance(row, Concat) else (row.theirs,)
                names = tuple(t.replace("{l}", layer_prefix) + suffix for t in theirs)
                reorder = row if isinstance(row, Reorder | Stacked) else None
                concat = row if isinstance(row, Concat) else None
                tensor_moves.append(TensorMove(name, names, reorder, concat, int(layer or 0)))
                break
        else:
            if not has_same:
                raise TensorMismatch(f"the family's tensor map has no entry for our tensor {name}")
            tensor_moves.append(TensorMove(name, (name,)))
    return tensor_moves


def _pattern(ours: str) -> re.Pattern[str]:
    escaped = re.escape(ours).replace(re.escape("{l}"), r"(?P<l>\d+)")
    return re.compile(escaped + r"(?P<suffix>\.weight|\.bias|)")


@dataclass(frozen=True)
class TensorStatus:
    """The status of one tensor of a checkpoint: exactly one of ``ours`` and ``reason`` is set."""

    name: str
    """Its name in the file."""
    ours: str | None
    """The tensor of ours that uses it."""
    reason: str | None
    """Why it was ignored."""


@dataclass(frozen=True)
class TensorReport:
    """The status of every tensor of a checkpoint, and the sources of each of ours."""

    statuses: tuple[TensorStatus, ...]
    sources: Mapping[str, tuple[str, ...]]
    """Our tensor -> names in the file, in order."""
    copies: Mapping[str, str]
    """The file's name of a second copy -> our tensor, which it must equal."""
    reorders: Mapping[str, Rearrangement]
    """Our tensor -> the entry that gives the order of its numbers in theirs."""
    concats: Mapping[str, TensorMove]
    """Our tensor -> what says the number of rows of each of several of theirs."""


def canonical(name: str, prefix: str | tuple[str, ...]) -> str:
    """A tensor's name in the family's own layout: without its model prefix and without old suffixes."""
    prefixes = (prefix,) if isinstance(prefix, str) else prefix
    name = name.removeprefix(
        next((candidate for candidate in prefixes if candidate and name.startswith(candidate)), "")
    )
    for old, new in OLD_SUFFIXES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def match_tensors(
    rows: Sequence[TensorRule],
    prefix: str | tuple[str, ...],
    ours: Iterable[str],
    names: Iterable[str],
    layer_name: Callable[[int], str] = str,
) -> TensorReport:
    """Match our tensors with a checkpoint's; every tensor on both sides is accounted for.

    If a tensor is present only under its second name (see `Copy`), that one is used.

    Raises:
        TensorMismatch: one of ours is not in the checkpoint, a tensor of the checkpoint is neither
            used nor ignored, or two of them have the same meaning.
    """
    in_file = _index(prefix, names)
    every = moves(rows, ours, layer_name)
    sources = _sources(rows, every, in_file)
    return TensorReport(
        statuses=_statuses(rows, sources, in_file),
        sources={move.ours: tuple(in_file[name] for name in sources[move.ours]) for move in every},
        copies={in_file[theirs]: copied for theirs, copied in _copies(rows, sources, in_file).items()},
        reorders={move.ours: move.reorder for move in every if move.reorder is not None},
        concats={move.ours: move for move in every if move.concat is not None},
    )


Sources = Mapping[str, tuple[str, ...]]
"""Our tensor -> canonical names of the tensors that form it, in order."""


def _index(prefix: str | tuple[str, ...], names: Iterable[str]) -> dict[str, str]:
    """Canonical name -> name in the file."""
    in_file: dict[str, str] = {}
    for name in sorted(names):
        standard = canonical(name, prefix)
        if standard in in_file:
            raise TensorMismatch(f"the tensors {in_file[standard]} and {name} are two names of one")
        in_file[standard] = name
    return in_file


def _sources(rows: Sequence[TensorRule], every: Sequence[TensorMove], in_file: Mapping[str, str]) -> Sources:
    """The sources of each of our tensors; under the second name if the file has only that."""
    names = {name for move in every for name in move.theirs}
    second = {
        row.ours: row.theirs
        for row in rows
        if isinstance(row, Copy) and row.theirs in in_file and row.theirs not in names
    }
    sources = {}
    for move in every:
        absent = not in_file.keys() & set(move.theirs)
        sources[move.ours] = (second[move.ours],) if absent and move.ours in second else move.theirs
    missing = [name for theirs in sources.values() for name in theirs if name not in in_file]
    if missing:
        raise TensorMismatch(f"{_count(missing, 'is', 'are')} missing, {_some(missing)}")
    return sources


def _copies(rows: Sequence[TensorRule], sources: Sources, in_file: Mapping[str, str]) -> dict[str, str]:
    """Canonical name of a second copy of a tensor -> ours, which it must equal."""
    matched = {name for theirs in sources.values() for name in theirs}
    return {
        row.theirs: row.ours
        for row in rows
        if isinstance(row, Copy)
        and row.ours in sources
        and row.theirs in in_file
        and row.theirs not in matched
    }


def _statuses(
    rows: Sequence[TensorRule], sources: Sources, in_file: Mapping[str, str]
) -> tuple[TensorStatus, ...]:
    """The status of every tensor in the file."""
    owner = {name: ours for ours, theirs in sources.items() for name in theirs}
    copies = _copies(rows, sources, in_file)
    ignored = [row for row in rows if isinstance(row, Ignore)]
    statuses, unmatched = [], []
    for standard, name in in_file.items():
        if standard in owner:
            statuses.append(TensorStatus(name, owner[standard], None))
        elif standard in copies:
            statuses.append(TensorStatus(name, None, f"a copy of {copies[standard]}, stored once"))
        else:
            reasons = [row.reason for row in ignored if fnmatchcase(standard, row.theirs)]
            statuses += [TensorStatus(name, None, reason) for reason in reasons[:1]]
            unmatched += [] if reasons else [name]
    if unmatched:
        raise TensorMismatch(
            f"{_count(unmatched, 'has', 'have')} no place in this architecture, {_some(unmatched)}; "
            "the checkpoint is of another model than its config.json says, or has tensors that are not the "
            "model's: leave them out by name with --ignore-tensor (ignore_tensors=[...] in Python, and under "
            "[model] in a run file)"
        )
    return tuple(statuses)


def _count(names: Sequence[str], singular: str, several: str) -> str:
    return f"1 tensor {singular}" if len(names) == 1 else f"{len(names)} tensors {several}"


def _some(names: Sequence[str]) -> str:
    first = ", ".join(names[:3])
    return first if len(names) <= 3 else f"{first} and {len(names) - 3} more"
