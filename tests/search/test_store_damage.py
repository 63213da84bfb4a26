"""Bits that flip, files cut, missing or exchanged: nothing damaged is ever given out as an answer."""

import hashlib
import os
import random
import zlib

import numpy as np
import pytest

from tests.search.life import NONE, STAGES, STATES, arrays, files_left, live, stage, state, update
from unmask.errors import CorruptIndex, InvalidRequest, OutputError
from unmask.search.store import Store, blocks, generation, writing
from unmask.search.store.manifest import (
    Pointer,
    manifest_path,
    read_manifest,
    read_pointer,
    seal,
    sealed_pointer,
    segment_paths,
    unseal,
)

WAY_OUT = "; restore the index from a copy, or go back to its newest whole generation with Store.recover"


@pytest.fixture
def path(tmp_path):
    """Two generations with segments of their own, and one of both that is longer than one reading."""
    path = tmp_path / "index"
    for act in STAGES[:3]:
        act(path)
    with writing(path) as writer:
        kept = {segment.name: segment.deleted for segment in writer.generation.segments}
        long = writer.add_segment(0, {"document/id": NONE, "document/end": NONE, "a": np.arange(300_000)}, {})
        writer.commit(kept | {long: NONE})
        rows = sorted(STATES[4].items())
        writer.commit({writer.add_segment(len(rows), arrays(rows), {}): NONE, long: NONE}, {"stage": 4})
    return path


def files(path):
    """The files of the current generation, and those that only the one before has."""
    pointer = read_pointer(path)
    current = read_manifest(path, pointer)
    named = current.files(path) | {path / "CURRENT"}
    return sorted(named), sorted(read_manifest(path, current.previous).files(path) - named)


def flip(file, bit):
    with file.open("r+b") as opened:
        opened.seek(bit // 8)
        byte = opened.read(1)[0]
        opened.seek(bit // 8)
        opened.write(bytes([byte ^ 1 << bit % 8]))


def check_flip(path, file, bit, is_current):
    flip(file, bit)
    if is_current:
        with pytest.raises(CorruptIndex, match=file.name):
            Store.open(path)
    (said,) = Store.verify(path)
    assert str(file) in said
    flip(file, bit)


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_seen(path, count):
    rng = random.Random(0)
    current, older = files(path)
    assert (len(current), len(older)) == (6, 7)
    for number in range(count):
        file = rng.choice([*current, *older])
        check_flip(path, file, rng.randrange(file.stat().st_size * 8), file in current)
        if number % 10 == 0:  # and anywhere with equal chance, which is mostly the longest file
            bit = rng.randrange(sum(one.stat().st_size for one in current) * 8)
            for one in current:
                if bit < one.stat().st_size * 8:
                    check_flip(path, one, bit, True)
                    break
                bit -= one.stat().st_size * 8
    assert Store.verify(path) == ()


def test_every_bit_of_the_pointer(path):
    file = path / "CURRENT"
    for bit in range(file.stat().st_size * 8):
        flip(file, bit)
        with pytest.raises(CorruptIndex, match="CURRENT is damaged: it does not match its checksum; restore"):
            read_pointer(path)
        flip(file, bit)


@pytest.mark.parametrize("change", ["cut by one byte", "emptied", "one byte longer", "missing", "a folder"])
def test_files_of_another_size(path, change):
    current, older = files(path)
    for file in [*current, *older]:
        content = file.read_bytes()
        file.unlink()
        if change == "cut by one byte":
            file.write_bytes(content[:-1])
        elif change == "emptied":
            file.touch()
        elif change == "one byte longer":
            file.write_bytes(content + b"\0")
        elif change == "a folder":
            file.mkdir()
        if file in current:
            for check in ("full", "quick"):
                with pytest.raises(CorruptIndex, match=file.name):
                    Store.open(path, check=check)
        (said,) = Store.verify(path)
        assert str(file) in said
        if file.is_dir():
            file.rmdir()
        file.write_bytes(content)
    assert Store.verify(path) == ()


def test_quick_sees_small_files_and_leaves_the_contents_of_large_ones(path):
    current, _ = files(path)
    for file in current:
        size = file.stat().st_size
        flip(file, size * 4)
        if size > 2**20:
            Store.open(path, check="quick")
        else:
            with pytest.raises(CorruptIndex, match=file.name):
                Store.open(path, check="quick")
        flip(file, size * 4)


def test_all_damage_is_listed(path):
    current, older = files(path)
    damaged = [file for file in current if file.suffix == ".arrays"][:2] + older[:1]
    for file in damaged:
        flip(file, 100)
    said = Store.verify(path)
    assert len(said) == 3
    for file, sentence in zip(sorted(damaged), sorted(said), strict=True):
        assert sentence.startswith(str(file))
        assert sentence.endswith(WAY_OUT)
        assert ". " not in sentence.removesuffix(".")


def test_more_than_one_damaged_block(path):
    (file,) = (file for file in path.glob("segments/*.arrays") if file.stat().st_size > 2**20)
    for byte in (70_000, 70_001, 2_000_000):
        flip(file, byte * 8)
    with pytest.raises(CorruptIndex, match=r"2 of its 37 blocks differ .* the first at byte 65,536"):
        Store.open(path)


def test_verification_sees_what_a_crc_cannot(path):
    """A change by the polynomial of CRC-32 leaves the checksum as it was; the SHA-256 of the file differs."""
    file = path / "segments" / "000004-001.arrays"
    content = bytearray(file.read_bytes())
    changed = int.from_bytes(content[1000:1005], "little") ^ (0xEDB88320 << 1 | 1)
    content[1000:1005] = changed.to_bytes(5, "little")
    file.write_bytes(content)
    Store.open(path)
    (said,) = Store.verify(path)
    assert said == f"{file} is damaged: its SHA-256 differs from the manifest's{WAY_OUT}"


def test_a_manifest_of_another_generation(path):
    pointer = read_pointer(path)
    old, new = (manifest_path(path, number) for number in (pointer.number - 1, pointer.number))
    content = new.read_bytes()
    new.write_bytes(old.read_bytes())
    with pytest.raises(CorruptIndex, match="is damaged, or of another generation: its SHA-256 differs"):
        Store.open(path)
    # The old one under the new number is not taken for it by recovery either.
    assert Store.recover(path).number == pointer.number + 1
    assert state(Store.open(path)) == STATES[2]
    new.write_bytes(content)


def test_segments_that_exchanged_their_files(path):
    with writing(path) as writer:  # two segments of one size
        rows = [(number, 1) for number in (20, 21)], [(number, 1) for number in (23, 24)]
        names = [writer.add_segment(2, arrays(one), {}) for one in rows]
        writer.commit(dict.fromkeys(names, NONE))
    one, other = (segment_paths(path, name) for name in names)
    assert one[0].stat().st_size == other[0].stat().st_size
    for left, right in zip(one, other, strict=True):
        content = left.read_bytes()
        left.write_bytes(right.read_bytes())
        right.write_bytes(content)
        with pytest.raises(CorruptIndex):
            Store.open(path)
    assert len(Store.verify(path)) == 2


def test_a_pointer_of_another_index(path, tmp_path):
    other = tmp_path / "other"
    list(live(other))
    (path / "CURRENT").write_bytes((other / "CURRENT").read_bytes())
    with pytest.raises(CorruptIndex, match=r"generations/.*json"):
        Store.open(path)


def test_extra_files_do_not_matter(path):
    for name in ("generations/000099.json", "segments/000099-001.arrays", "CURRENT.new", "cache/x", "notes"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(b"left by a killed writer")
    assert state(Store.open(path)) == STATES[4]
    assert Store.verify(path) == ()
    with writing(path) as writer:
        kept = {segment.name: segment.deleted for segment in writer.generation.segments}
        writer.commit(kept)
    assert Store.verify(path) == ()
    assert files_left(path) == {"cache/x", "notes"}


def test_a_missing_or_damaged_pointer_is_said_and_recovered(path):
    number = Store.open(path).number
    for content in (None, b"", b"{}", sealed_pointer(Pointer(number, "0" * 64))):
        (path / "CURRENT").unlink()
        if content is not None:
            (path / "CURRENT").write_bytes(content)
        for act in (Store.open, lambda path: writing(path).__enter__()):
            with pytest.raises(CorruptIndex, match=WAY_OUT):
                act(path)
        assert len(Store.verify(path)) == 1
        if content is None or not content.startswith(b'{"sha256": "'):
            assert state(Store.recover(path)) == STATES[4]
            number += 1
            assert Store.open(path).number == number
            assert Store.verify(path) == ()
    # The last pointer is readable, so neither a manifest of its number nor a later one is what it means.
    recovered = Store.recover(path)
    assert (recovered.number, state(recovered)) == (number + 1, STATES[2])


def test_recovery_where_no_generation_is_whole(path):
    (shared,) = {file for file in files(path)[0] if file.name == "000004-001.arrays"}
    flip(shared, 10_000_000)
    before = sorted(path.rglob("*"))
    with pytest.raises(
        CorruptIndex, match=r"no generation of .* is whole; restore the index from a copy or build"
    ):
        Store.recover(path)
    assert sorted(path.rglob("*")) == before


def test_recovery_goes_back_to_the_newest_whole_generation(path):
    current, _ = files(path)
    flip(current[current.index(path / "segments" / "000005-002.arrays")], 0)
    with pytest.raises(CorruptIndex):
        Store.open(path)
    recovered = Store.recover(path)
    assert state(recovered) == STATES[2]
    assert state(Store.open(path)) == STATES[2]
    assert recovered.number == 6
    assert Store.verify(path) == ()
    assert Store.recover(path).number == 6  # nothing is to be done
    list(live(path, 3))
    assert stage(path) == 5
    assert not files_left(path)


def test_recovery_needs_the_lock(path):
    with writing(path), pytest.raises(OutputError, match="another process is writing"):
        Store.recover(path)


def test_damage_to_the_generation_before_does_not_stop_a_writer(path):
    old = manifest_path(path, read_pointer(path).number - 1)
    content = old.read_bytes()
    old.write_bytes(b"")
    with writing(path):
        pass
    old.write_bytes(content)
    assert Store.verify(path) == ()  # which files it names was unknown, so none was removed
    old.write_bytes(b"")
    (path / "segments" / "000006-001.arrays").write_bytes(b"left by a killed writer")
    assert len(Store.verify(path)) == 1
    update(path)
    assert Store.verify(path) == ()
    assert not files_left(path)


def test_a_later_format_is_refused(path):
    pointer = read_pointer(path)
    file = manifest_path(path, pointer.number)
    content = seal(unseal(file.read_bytes()) | {"format": 2})
    file.write_bytes(content)
    (path / "CURRENT").write_bytes(
        sealed_pointer(Pointer(pointer.number, hashlib.sha256(content).hexdigest()))
    )
    with pytest.raises(InvalidRequest, match="has format 2 and this version of unmask reads 1; install"):
        Store.open(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values["segments"][0].update(name="../../x"),
        lambda values: values["segments"][0]["arrays"]["dense"].update(offset=10**9),
        lambda values: values["segments"][0]["arrays"]["dense"].update(shape=[2, -8]),
        lambda values: values["segments"][0]["arrays"]["dense"].update(dtype="O"),
        lambda values: values["segments"][0].pop("sha256"),
        lambda values: values["deleted"][0].append(99),
        lambda values: values.update(number=1),
        lambda values: values.update(segments=3),
    ],
)
def test_a_manifest_that_was_forged_is_refused(path, change):
    """Its checksums match, so only its values can be refused."""
    pointer = read_pointer(path)
    file = manifest_path(path, pointer.number)
    values = unseal(file.read_bytes())
    change(values)
    content = seal(values)
    file.write_bytes(content)
    (path / "CURRENT").write_bytes(
        sealed_pointer(Pointer(pointer.number, hashlib.sha256(content).hexdigest()))
    )
    with pytest.raises(CorruptIndex, match=f"{file.name} is damaged: "):
        Store.open(path)


def test_a_reader_that_commits_overtook_opens_the_newest(path, monkeypatch):
    """Two generations are committed between reading the pointer and opening the files, which are removed."""
    original, overtaken = generation.read_manifest, []

    def read_later(path_, pointer):
        if not overtaken:
            overtaken.append(pointer.number)
            for _ in range(2):
                with writing(path) as writer:
                    rows = sorted(state(writer.generation).items())
                    writer.commit({writer.add_segment(len(rows), arrays(rows), {}): NONE})
        return original(path_, pointer)

    monkeypatch.setattr(generation, "read_manifest", read_later)
    opened = Store.open(path)
    assert opened.number == overtaken[0] + 2
    assert state(opened) == STATES[4]


def test_checksums_do_not_depend_on_how_much_a_read_gives(tmp_path, monkeypatch):
    path, size = tmp_path / "file", 2 * blocks.BLOCK + 77
    content = random.Random(1).randbytes(size)
    path.write_bytes(content)
    starts = range(0, size, blocks.BLOCK)
    checksums = np.array([zlib.crc32(content[start : start + blocks.BLOCK]) for start in starts], np.uint32)
    whole = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, into, at: whole(file, [into[0][:9973]], at))
    with path.open("rb", buffering=0) as file:
        assert blocks.damaged_blocks(path, file, checksums, 0, size) == []
        checksums[1] += 1
        assert blocks.damaged_blocks(path, file, checksums, 0, size) == [1]
