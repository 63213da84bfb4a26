"""The fate of every tensor of a checkpoint, decided by its family's table of rows. Free of torch."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from unmask.errors import TensorMismatch
from unmask.model.spec.tensor_map import Concat, Copy, Ignore, Rename, Reorder, Same, TensorRule

OLD_SUFFIXES = {".gamma": ".weight", ".beta": ".bias"}
"""Names that norms had in the first checkpoints, before they were called weight and bias."""


@dataclass(frozen=True)
class TensorMove:
    """One tensor of ours and the tensors of theirs it is made of, in order."""

    ours: str
    theirs: tuple[str, ...]
    reorder: Reorder | None = None
    """The row that says in which order its pieces stand in theirs."""


def moves(
    rows: Iterable[TensorRule], ours: Iterable[str], layer_name: Callable[[int], str] = str
) -> list[TensorMove]:
    """Where each of our tensors comes from; ``layer_name`` is what ``{l}`` stands for in theirs.

    Raises:
        TensorMismatch: no row names one of ours, so the family's table is incomplete.
    """
    rows = tuple(rows)
    patterns = [(_pattern(row.ours), row) for row in rows if isinstance(row, Rename | Concat | Reorder)]
    own = any(isinstance(row, Same) for row in rows)
    found = []
    for name in ours:
        for pattern, row in patterns:
            match = pattern.fullmatch(name)
            if match:
                layer, suffix = match.groupdict().get("l"), match["suffix"]
                named = "" if layer is None else layer_name(int(layer))
                theirs = row.theirs if isinstance(row, Concat) else (row.theirs,)
                names = tuple(t.replace("{l}", named) + suffix for t in theirs)
                found.append(TensorMove(name, names, row if isinstance(row, Reorder) else None))
                break
        else:
            if not own:
                raise TensorMismatch(f"the family's table has no row for our tensor {name}")
            found.append(TensorMove(name, (name,)))
    return found


def _pattern(ours: str) -> re.Pattern[str]:
    escaped = re.escape(ours).replace(re.escape("{l}"), r"(?P<l>\d+)")
    return re.compile(escaped + r"(?P<suffix>\.weight|\.bias|)")


@dataclass(frozen=True)
class TensorStatus:
    """What became of one tensor of a checkpoint: exactly one of ``ours`` and ``reason`` is set."""

    name: str
    """Its name in the file."""
    ours: str | None
    """The tensor of ours that claimed it."""
    reason: str | None
    """Why it was ignored."""


@dataclass(frozen=True)
class TensorReport:
    """The fate of every tensor of a checkpoint, and where each of ours finds its parts."""

    statuses: tuple[TensorStatus, ...]
    sources: Mapping[str, tuple[str, ...]]
    """Our tensor -> names in the file, in order."""
    copies: Mapping[str, str]
    """Name in the file of a second copy -> our tensor, which it must equal."""
    reorders: Mapping[str, Reorder]
    """Our tensor -> the row that says in which order its pieces stand in theirs."""


def canonical(name: str, prefix: str | tuple[str, ...]) -> str:
    """A tensor's name in the family's own layout: without its model prefix and without old suffixes."""
    prefixes = (prefix,) if isinstance(prefix, str) else prefix
    name = name.removeprefix(next((found for found in prefixes if found and name.startswith(found)), ""))
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

    Where a tensor is there under its second name alone (see `Copy`), that one is taken.

    Raises:
        TensorMismatch: one of ours is not in the checkpoint, a tensor of the checkpoint is neither
            claimed nor ignored, or two of them claim one place.
    """
    in_file = _index(prefix, names)
    every = moves(rows, ours, layer_name)
    sources = _sources(rows, every, in_file)
    return TensorReport(
        statuses=_fates(rows, sources, in_file),
        sources={move.ours: tuple(in_file[name] for name in sources[move.ours]) for move in every},
        copies={in_file[theirs]: copied for theirs, copied in _copies(rows, sources, in_file).items()},
        reorders={move.ours: move.reorder for move in every if move.reorder is not None},
    )


Sources = Mapping[str, tuple[str, ...]]
"""Our tensor -> canonical names of those it is made of, in order."""


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
    """What each of our tensors is made of; under its second name where the file has it under that alone."""
    taken = {name for move in every for name in move.theirs}
    second = {
        row.ours: row.theirs
        for row in rows
        if isinstance(row, Copy) and row.theirs in in_file and row.theirs not in taken
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
    """Canonical name of a tensor that is stored a second time -> ours, which it must equal."""
    claimed = {name for theirs in sources.values() for name in theirs}
    return {
        row.theirs: row.ours
        for row in rows
        if isinstance(row, Copy)
        and row.ours in sources
        and row.theirs in in_file
        and row.theirs not in claimed
    }


def _fates(
    rows: Sequence[TensorRule], sources: Sources, in_file: Mapping[str, str]
) -> tuple[TensorStatus, ...]:
    """What became of every tensor in the file."""
    owner = {name: ours for ours, theirs in sources.items() for name in theirs}
    copies = _copies(rows, sources, in_file)
    ignored = [row for row in rows if isinstance(row, Ignore)]
    fates, unclaimed = [], []
    for standard, name in in_file.items():
        if standard in owner:
            fates.append(TensorStatus(name, owner[standard], None))
        elif standard in copies:
            fates.append(TensorStatus(name, None, f"a copy of {copies[standard]}, stored once"))
        else:
            reasons = [row.reason for row in ignored if fnmatchcase(standard, row.theirs)]
            fates += [TensorStatus(name, None, reason) for reason in reasons[:1]]
            unclaimed += [] if reasons else [name]
    if unclaimed:
        raise TensorMismatch(
            f"{_count(unclaimed, 'has', 'have')} no place in this architecture, {_some(unclaimed)}; "
            "the checkpoint is of another model than its config.json says"
        )
    return tuple(fates)


def _count(names: Sequence[str], one: str, several: str) -> str:
    return f"1 tensor {one}" if len(names) == 1 else f"{len(names)} tensors {several}"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
