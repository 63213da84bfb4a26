"""Kills, full disks, I/O errors and power cuts at every operation of a writer: no row is lost or crossed."""

import errno
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from tests.search.faulty import Stopped, disk_with, ended_by, forked, interrupted_at, kill, refused_at, stop
from tests.search.life import NONE, STAGES, files_left, live, stage
from unmask.errors import OutputError
from unmask.search.store import Store, writing

LAST = len(STAGES) - 1


@pytest.fixture(scope="module")
def folder():
    """A folder in memory, where a thousand small files take no time."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as made:
        yield Path(made)


@pytest.fixture(scope="module")
def before(folder):
    """The index before each stage, and what the stage does to the disk."""
    path, found = folder / "life" / "index", []
    path.parent.mkdir()
    for number, act in enumerate(STAGES):
        copied = shutil.copytree(path.parent, folder / f"before-{number}")
        with disk_with(lambda number, operation, path, act: act()) as done:
            act(path)
        assert stage(path) == number
        assert not files_left(path)
        found.append((copied, tuple(done)))
    assert sum(len(done) for _, done in found) > 80
    assert {operation for _, done in found for operation, _ in done} == {
        "make_folder", "create", "write", "sync", "rename", "remove", "lock",
    }  # fmt: skip
    return found


def operations(before, folder, every=1, turn=0, first=0):
    """For each operation of each stage: an index to which it will be done, the stage, and its number."""
    for here in range(first, len(STAGES)):
        copied, done = before[here]
        for number in range((turn - here) % every, len(done), every):
            with tempfile.TemporaryDirectory(dir=folder) as place:
                shutil.copytree(copied, place, dirs_exist_ok=True)
                yield Path(place), here, number


def check_survived(path, here, done):
    """The index is as before the stage or as after it, if ``done`` only as after; then writing continues."""
    found = stage(path)
    assert found == here or (found == here - 1 and not done)
    if found < here:
        STAGES[here](path)
    with writing(path):
        pass
    assert stage(path) == here
    assert not files_left(path)
    assert [one.name for one in path.parent.iterdir()] == ["index"]


@pytest.mark.long
@pytest.mark.parametrize(("every", "turn"), [(8, 0), pytest.param(1, 0, marks=pytest.mark.slow)])
def test_killed_in_the_middle_of_operations(before, folder, every, turn):
    for place, here, number in operations(before, folder, every, turn):
        path, around = place / "index", interrupted_at(number, kill)

        def act(path=path, here=here, around=around):
            with disk_with(around):
                STAGES[here](path)

        assert ended_by(forked(act)) == signal.SIGKILL
        check_survived(path, here, done=False)


def test_stopped_in_the_middle_of_every_operation(before, folder):
    """As a kill leaves it, without the time that a process takes."""
    for place, here, number in operations(before, folder):
        path = place / "index"
        with disk_with(interrupted_at(number, stop)), pytest.raises(Stopped):
            STAGES[here](path)
        check_survived(path, here, done=False)


@pytest.mark.slow
def test_killed_at_200_moments(tmp_path):
    random.seed(0)
    began = time.perf_counter()
    assert ended_by(live_and_tell(tmp_path / "index", tmp_path / "told")) == 0
    takes = time.perf_counter() - began
    killed = 0
    for number in range(10_000):
        path, told = tmp_path / f"{number}" / "index", tmp_path / f"{number}.told"
        path.parent.mkdir()
        child = live_and_tell(path, told)
        time.sleep(random.uniform(0, takes))
        os.kill(child, signal.SIGKILL)
        killed += ended_by(child) == signal.SIGKILL
        done = told.stat().st_size if told.exists() else 0
        found = stage(path)
        assert done - 1 <= found <= done
        assert list(live(path, found + 1)) == list(range(found + 1, LAST + 1))
        with writing(path):
            pass
        assert stage(path) == LAST
        assert not files_left(path)
        if killed == 200:
            return
    raise AssertionError(f"only {killed} processes lived long enough to be killed")


def live_and_tell(path, told):
    """The life of an index in a process of its own; a byte in ``told`` for each stage that is done."""

    def act():
        file = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for _ in live(path):
            os.write(file, b".")

    return forked(act)


@pytest.mark.parametrize(
    ("code", "on", "every", "turn"),
    [
        (errno.ENOSPC, True, 4, 0),
        (errno.EIO, False, 4, 1),
        *(
            pytest.param(*one, 1, 0, marks=pytest.mark.slow)
            for one in [(errno.ENOSPC, True), (errno.EIO, False)]
        ),
    ],
)
def test_refused_at_each_operation(before, folder, code, on, every, turn):
    for place, here, number in operations(before, folder, every, turn):
        path, said = place / "index", None
        with disk_with(refused_at(number, code, on=on)) as tried:
            try:
                STAGES[here](path)
            except OutputError as error:
                said = str(error)
        operation, file = tried[number]
        if operation == "remove" and file.parent != path and not on and here > 0:
            assert said is None
        if said is None:
            # What cannot be removed is left for the next writer, and the commit is valid.
            assert operation == "remove"
        else:
            assert said == f"cannot write {file}: {os.strerror(code)}"
        check_survived(path, here, done=said is None)


def test_a_writer_that_failed_is_unusable(tmp_path):
    path = tmp_path / "index"
    list(live(path))
    with writing(path) as writer:
        kept = {segment.name: segment.deleted for segment in writer.generation.segments}
        with disk_with(refused_at(0)), pytest.raises(OutputError, match="No space left on device"):
            writer.add_segment(0, {}, {})
        for act in (lambda: writer.commit(kept), lambda: writer.add_segment(0, {}, {})):
            with pytest.raises(OutputError, match="writing failed before; open the index for writing again"):
                act()
    with writing(path) as writer:
        with disk_with(refused_at(0, errno.EIO)), pytest.raises(OutputError, match="Input/output error"):
            writer.commit(kept)
        with pytest.raises(OutputError, match="writing failed before"):
            writer.commit(kept)
    assert stage(path) == LAST


@pytest.mark.parametrize("end", [".arrays", ".crc32", ".json"])
def test_what_the_disk_changed_while_it_was_written_is_not_committed(tmp_path, end):
    path = tmp_path / "index"
    list(live(path))

    def around(number, operation, file, act):
        found = act()
        if operation == "write" and file.suffix == end:
            content = file.read_bytes()
            file.write_bytes(content[:-1] + bytes([content[-1] ^ 64]))
        return found

    with writing(path) as writer, disk_with(around):
        name = writer.add_segment(5, {"a": np.arange(200_000)}, {})
        with pytest.raises(
            OutputError, match=f"the disk did not keep what was written to it: .*{end} is damaged"
        ):
            writer.commit({name: NONE})
    assert stage(path) == LAST


class PowerCut:
    """A disk that keeps only what was synced when the power is cut at one operation.

    Args:
        wanted: the number of the operation.
        names: whether names that were not synced survive; a content that was not synced never does.
        pointer: whether the pointer's new name survives.
    """

    def __init__(self, wanted, *, names, pointer):
        self.wanted, self.names, self.pointer = wanted, names, pointer
        self.contents, self.made, self.replaced = set(), set(), {}

    def __call__(self, number, operation, path, act):
        if number >= self.wanted:
            raise Stopped
        if operation == "sync":
            self.contents.discard(path)
            self.made = {one for one in self.made if one.parent != path}
            self.replaced = {one: old for one, old in self.replaced.items() if one.parent != path}
        elif operation == "create":
            self.made.add(path)
        elif operation == "write":
            self.contents.add(path)
        elif operation == "rename":
            new = path.with_name(f"{path.name}.new")
            self.replaced[path] = path.read_bytes()
            if new in self.contents:
                self.contents.add(path)
            self.made.discard(new)
        return act()

    def lose(self):
        """What is on the disk when the power is back."""
        for path in self.contents:
            if path.exists():
                os.truncate(path, 0)
        if not self.names:
            for path in self.made:
                path.unlink(missing_ok=True)
        if not self.pointer:
            for path, old in self.replaced.items():
                path.write_bytes(old)


@pytest.mark.parametrize(
    ("names", "pointer", "every"),
    [(False, True, 1), (True, False, 3), pytest.param(True, False, 1, marks=pytest.mark.slow)],
)
def test_power_cut_at_each_operation(before, folder, names, pointer, every):
    for place, here, number in operations(before, folder, every, first=1):
        path, power = place / "index", PowerCut(number, names=names, pointer=pointer)
        with disk_with(power), pytest.raises(Stopped):
            STAGES[here](path)
        power.lose()
        check_survived(path, here, done=False)


def test_power_cut_after_a_commit(before, folder):
    """What a commit returned is on the disk."""
    path = shutil.copytree(before[1][0], folder / "cut") / "index"
    for here in range(1, LAST + 1):
        power = PowerCut(1_000, names=False, pointer=False)
        with disk_with(power):
            STAGES[here](path)
        power.lose()
        check_survived(path, here, done=True)


def test_a_second_process_is_refused_until_the_first_ends(tmp_path):
    path = tmp_path / "index"
    list(live(path))
    ready, go_on = os.pipe(), os.pipe()

    def hold():
        with writing(path):
            os.write(ready[1], b".")
            os.read(go_on[0], 1)

    child = forked(hold)
    os.read(ready[0], 1)
    with pytest.raises(OutputError, match=f"another process is writing to {path}; wait"), writing(path):
        pass
    assert stage(path) == LAST  # readers are not stopped by the lock
    os.kill(child, signal.SIGKILL)
    ended_by(child)
    with writing(path) as writer:
        assert writer.generation.number == LAST + 1


def test_a_forked_process_does_not_keep_the_lock(tmp_path):
    path = tmp_path / "index"
    list(live(path))
    with writing(path):
        child = forked(signal.pause)
    try:
        with writing(path) as writer:
            assert writer.generation.number == LAST + 1
    finally:
        os.kill(child, signal.SIGKILL)
        ended_by(child)


def test_a_commit_in_spite_of_the_lock_is_noticed(tmp_path):
    path = tmp_path / "index"
    list(live(path))
    with writing(path) as first:
        (path / "lock").unlink()
        with writing(path) as second:
            second.commit({}, {"stage": 0})
        with pytest.raises(OutputError, match=f"another process has written to {path} in spite of its lock"):
            first.commit({}, {"stage": 1})
    assert stage(path) == 0


def test_readers_during_commits(folder):
    path = folder / "read" / "index"
    path.parent.mkdir()
    next(live(path))

    def write():
        for _ in range(15):
            list(live(path, 1))

    child = forked(write)
    seen = []
    while not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        generation = Store.open(path, check=("full", "quick")[len(seen) % 2])
        seen.append(generation.number)
        assert Store.verify(path) == ()
    ended_by(child)
    assert Store.open(path).number == 76
    assert sorted(seen) == seen
    assert len(set(seen)) > 3
