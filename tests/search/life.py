"""The life of a small index in stages, each one commit, whose rows tell whether they are lost or crossed."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from unmask.search.store import Generation, Store, writing

NONE = np.empty(0, np.int64)
Rows = Sequence[tuple[int, int]]
"""Ids and versions of documents."""


def text(number: int, version: int) -> bytes:
    return f"Document {number}, version {version}. ".encode() * (1 + number % 3)


def vector(number: int, version: int) -> np.ndarray:
    return np.sin(np.arange(8) * (1 + number) + version).astype(np.float32)


def arrays(rows: Rows) -> dict[str, object]:
    """What is stored of documents; the vectors in two pieces."""
    texts = [text(*row) for row in rows]
    vectors = np.stack([vector(*row) for row in rows])
    return {
        "document/id": np.array([number for number, _ in rows]),
        "document/version": np.array([version for _, version in rows], np.int8),
        "document/text": np.frombuffer(b"".join(texts), np.uint8),
        "document/end": np.cumsum([len(one) for one in texts]),
        "dense": iter([vectors[:1], vectors[1:]]),
    }


def state(generation: Generation) -> dict[int, int]:
    """The version of every document; fails if a part of one is another's."""
    found: dict[int, int] = {}
    for segment in generation.segments:
        ends = segment.arrays["document/end"]
        for row in np.setdiff1d(np.arange(segment.rows), segment.deleted):
            key = int(segment.arrays["document/id"][row]), int(segment.arrays["document/version"][row])
            start = 0 if row == 0 else ends[row - 1]
            assert segment.arrays["document/text"][start : ends[row]].tobytes() == text(*key)
            assert np.array_equal(segment.arrays["dense"][row], vector(*key))
            assert key[0] not in found
            found[key[0]] = key[1]
    return found


def build(path: Path) -> None:
    with writing(path) as writer:
        names = [writer.add_segment(len(rows), arrays(rows), {}) for rows in (FIRST, SECOND)]
        writer.commit(dict.fromkeys(names, NONE), {"stage": 1})


def add(path: Path) -> None:
    with writing(path) as writer:
        kept = {segment.name: segment.deleted for segment in writer.generation.segments}
        writer.commit(kept | {writer.add_segment(len(THIRD), arrays(THIRD), {}): NONE}, {"stage": 2})


def delete(path: Path) -> None:
    with writing(path) as writer:
        kept = {segment.name: rows_of(segment, {1, 4}) for segment in writer.generation.segments}
        writer.commit(kept, {"stage": 3})


def update(path: Path) -> None:
    """Replace two documents by new versions, in one commit."""
    with writing(path) as writer:
        kept = {
            segment.name: np.concatenate([segment.deleted, rows_of(segment, {0, 6})])
            for segment in writer.generation.segments
        }
        rows = [(0, 2), (6, 2)]
        writer.commit(kept | {writer.add_segment(2, arrays(rows), {}): NONE}, {"stage": 4})


def merge(path: Path) -> None:
    """Put what is left into one segment."""
    with writing(path) as writer:
        rows = sorted(state(writer.generation).items())
        writer.commit({writer.add_segment(len(rows), arrays(rows), {}): NONE}, {"stage": 5})


def rows_of(segment, numbers):
    return np.flatnonzero(np.isin(segment.arrays["document/id"], sorted(numbers)))


def create(path: Path) -> None:
    Store.create(path, {"stage": 0})


FIRST = [(number, 1) for number in range(3)]
SECOND = [(number, 1) for number in range(3, 5)]
THIRD = [(number, 1) for number in range(5, 8)]
STAGES = (create, build, add, delete, update, merge)
STATES = [
    {},
    dict(FIRST + SECOND),
    dict(FIRST + SECOND + THIRD),
    {0: 1, 2: 1, 3: 1, 5: 1, 6: 1, 7: 1},
    {0: 2, 2: 1, 3: 1, 5: 1, 6: 2, 7: 1},
    {0: 2, 2: 1, 3: 1, 5: 1, 6: 2, 7: 1},
]
"""The documents after each stage; merging changes where they are and nothing else."""


def live(path: Path, first: int = 0) -> Iterator[int]:
    """Run the stages from one on, and give the number of each when it is done."""
    for number in range(first, len(STAGES)):
        STAGES[number](path)
        yield number


def stage(path: Path) -> int:
    """The stage that the index is in, -1 before the first; fails unless every byte of it is right."""
    if not path.exists():
        return -1
    generation = Store.open(path, check="full")
    number = generation.settings["stage"]
    assert state(generation) == STATES[number]
    assert Store.verify(path) == ()
    return number


def files_left(path: Path) -> set[str]:
    """Files besides those that the two newest generations name."""
    from unmask.search.store.manifest import read_manifest, read_pointer

    current = read_manifest(path, read_pointer(path))
    named = current.files(path) | {path / "CURRENT", path / "lock"}
    if current.previous is not None:
        named |= read_manifest(path, current.previous).files(path)
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file() and file not in named}
