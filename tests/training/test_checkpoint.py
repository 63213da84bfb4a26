"""Checkpoints of a run and its log: whole or not at all, and found out when damaged."""

import json
import os
import signal
import warnings
from dataclasses import replace

import pytest
import torch

from tests.support.full_disk import smallest_files
from unmask.errors import CorruptCheckpoint, InvalidRequest, OutputError
from unmask.training.run import checkpoint
from unmask.training.run.checkpoint import (
    MANIFEST,
    STATE,
    TENSORS,
    Snapshot,
    flattened,
    load_snapshot,
    newest,
    newest_sound,
    prune,
    save_snapshot,
    steps_of,
    verify,
)
from unmask.training.run.log import EventLog, read_events


def snapshot(step):
    draw = torch.Generator().manual_seed(step)
    return Snapshot(
        step,
        {
            "a": torch.randn(3, 5, generator=draw).to(torch.bfloat16),
            "b": torch.randn(4, generator=draw),
            "turned": torch.randn(3, 5, generator=draw).T,
        },
        {"numbers": [1, 2.5, None], "pi": 0.1 + 0.2},
    )


def saved(folder, *steps):
    return [save_snapshot(snapshot(step), folder) for step in steps]


def steps(folder):
    return [step for step, _ in steps_of(folder)]


def unheard(sentence):
    raise AssertionError(sentence)


def test_state_that_is_no_tensor_is_kept_for_each_parameter():
    state = {0: {"step": 3, "seen": 5, "first": torch.ones(2)}, 11: {"step": 4}}
    tensors, rest = flattened(state, "optimizer.")
    assert list(tensors) == ["optimizer.0.first"]
    assert rest == {"0": {"step": 3, "seen": 5}, "11": {"step": 4}}


def test_the_newest_good_one_is_neither_diverged_nor_damaged(tmp_path):
    saved(tmp_path, 1)
    save_snapshot(replace(snapshot(2), state={"diverged": True}), tmp_path)
    (damaged,) = saved(tmp_path, 3)
    (damaged / MANIFEST).write_text("{")
    assert newest_sound(tmp_path, 3) == checkpoint.place_of(1, tmp_path)


def test_a_snapshot_comes_back_as_it_was(tmp_path):
    (place,) = saved(tmp_path, 7)
    back, wanted = load_snapshot(place), snapshot(7)
    assert (back.step, dict(back.state)) == (7, wanted.state)
    assert back.tensors.keys() == wanted.tensors.keys()
    for name, tensor in wanted.tensors.items():
        assert back.tensors[name].dtype == tensor.dtype
        assert torch.equal(back.tensors[name], tensor)


def test_tensors_that_share_memory(tmp_path):
    """Tied tables stand twice in a state_dict."""
    table = torch.arange(6.0).reshape(2, 3)
    place = save_snapshot(
        Snapshot(1, {"one": table, "same": table, "row": table[1], "turned": table.T}, {}), tmp_path
    )
    back = load_snapshot(place).tensors
    for name, tensor in {"one": table, "same": table, "row": table[1], "turned": table.T}.items():
        assert torch.equal(back[name], tensor)


def test_further_files_are_vouched_for_too(tmp_path):
    def also(folder):
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_bytes(b"w")

    place = save_snapshot(snapshot(1), tmp_path, also=also)
    verify(place)
    (place / "model" / "weights").write_bytes(b"v")
    with pytest.raises(CorruptCheckpoint, match=r"model/weights is not what was written"):
        verify(place)


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES = [
    (TENSORS, flip_a_bit),
    (TENSORS, cut),
    (TENSORS, os.unlink),
    (STATE, flip_a_bit),
    (STATE, os.unlink),
    (MANIFEST, cut),
    (MANIFEST, lambda path: path.write_text("[]")),
    (MANIFEST, lambda path: path.write_text('{"step": 2, "sha256": {}}')),
    (MANIFEST, lambda path: path.write_bytes(b"\xff")),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_the_newest_is_passed_over_when_damaged_and_it_is_said(name, damage, tmp_path):
    _, place = saved(tmp_path, 1, 2)
    damage(place / name)
    said = []
    found = newest(tmp_path, said.append)
    assert found is not None
    assert found.step == 1
    assert len(said) == 1
    assert str(place) in said[0]
    assert "older" in said[0]


def test_all_damaged_is_one_sentence_and_none_at_all_is_a_fresh_start(tmp_path):
    assert newest(tmp_path / "none", unheard) is None
    for place in saved(tmp_path, 1, 2):
        cut(place / TENSORS)
    with pytest.raises(CorruptCheckpoint, match=r"none of the 2 checkpoints in .* is intact"):
        newest(tmp_path, lambda _: None)


def test_what_was_never_finished_does_not_count(tmp_path):
    _, place = saved(tmp_path, 1, 2)
    (place / MANIFEST).unlink()
    (tmp_path / "step-other").mkdir()
    (tmp_path / "step-other" / MANIFEST).touch()
    found = newest(tmp_path, unheard)
    assert found is not None
    assert found.step == 1


def test_pruning_keeps_the_newest_and_milestones(tmp_path):
    saved(tmp_path, 1, 2, 3, 4, 5)
    (tmp_path / "step-00000009").mkdir()  # never finished
    prune(tmp_path, 5, keep=2, milestones=(2,))
    assert steps(tmp_path) == [2, 4, 5]
    assert not (tmp_path / "step-00000009").exists()


def test_pruning_removes_later_damaged_ones_instead_of_what_was_just_written(tmp_path):
    """A run went on from 1 because 5 was damaged: with keep = 1, 5 must not push 2 out."""
    places = saved(tmp_path, 1, 5, 2)
    cut(places[1] / TENSORS)
    prune(tmp_path, 2, keep=1)
    assert steps(tmp_path) == [2]


def test_nothing_is_removed_where_what_was_written_is_not_there(tmp_path):
    saved(tmp_path, 1, 2)
    prune(tmp_path, 3, keep=1)
    assert steps(tmp_path) == [1, 2]


def test_a_damaged_one_is_written_over(tmp_path):
    (place,) = saved(tmp_path, 1)
    flip_a_bit(place / TENSORS)
    (place / "left").touch()
    saved(tmp_path, 1)
    verify(place)
    assert not (place / "left").exists()


def test_everything_is_on_the_disk_before_the_manifest(tmp_path, monkeypatch):
    """Every file and folder is synced after its last change and before the manifest is named."""
    synced, order = [], []
    fsync, replace = os.fsync, os.replace

    def hear(handle):
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        order.append("sync")
        fsync(handle)

    def named(source, target):
        order.append(f"name {os.path.basename(target)}")
        written = {str(path) for path in (tmp_path / "step-00000001").rglob("*")}
        if os.path.basename(target) == MANIFEST:
            assert written <= set(synced)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", hear)
    monkeypatch.setattr(os, "replace", named)
    saved(tmp_path, 1)
    assert order[-3:] == [f"name {MANIFEST}", "sync", "sync"]
    assert synced[-2:] == [str(tmp_path / "step-00000001"), str(tmp_path)]


@pytest.mark.parametrize("size", [0, 64, 200])
def test_a_full_disk_leaves_the_older_one_and_nothing_else(size, tmp_path):
    saved(tmp_path, 1)
    with smallest_files(size), pytest.raises(OutputError, match=r"cannot write .*step-00000002"):
        saved(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    found = newest(tmp_path, unheard)
    assert found is not None
    assert found.step == 1


NAMED, LAST = 8, 14
"""Which operation names the manifest, after unlink, mkdir, tensors and four fsyncs; and the last of all."""


@pytest.mark.parametrize("operation", range(1, 18))
def test_killed_at_every_operation_of_writing_and_pruning(operation, tmp_path):
    """At whatever operation the process dies, a whole checkpoint is there, and the next write works."""
    saved(tmp_path, 0, 1)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        child = os.fork()  # torch has threads, and the child needs none of them
    if child == 0:
        _die_at(operation)
        saved(tmp_path, 2)
        prune(tmp_path, 2, keep=2)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended == (-signal.SIGKILL if operation <= LAST else 0)
    found = newest(tmp_path, unheard)
    assert found is not None
    assert found.step == (2 if operation > NAMED else 1)
    saved(tmp_path, 2)
    prune(tmp_path, 2, keep=1)
    assert steps(tmp_path) == [2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002"]


def _die_at(operation):
    """In this process the n-th change of the disk is the last, half done where it can be."""
    count = 0
    write = checkpoint.save_file

    def half(tensors, path):
        nonlocal count
        count += 1
        write(tensors, path)
        if count == operation:
            os.truncate(path, os.path.getsize(path) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def dying(call):
        def run(*arguments, **options):
            nonlocal count
            count += 1
            if count == operation:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return run

    checkpoint.save_file = half
    for name in ("mkdir", "fsync", "replace", "unlink", "rmdir"):
        setattr(os, name, dying(getattr(os, name)))


# --- the log -----------------------------------------------------------------------------------------


def test_a_log_has_whole_lines_and_forgets_what_will_come_again(tmp_path):
    path = tmp_path / "log.jsonl"
    log = EventLog(path, 0)
    for step in (1, 2, 3):
        log.write("step", step, loss=step / 3)
    log.close()
    with path.open("ab") as file:
        file.write(b'{"event": "st')  # a kill in the middle of a line
    assert [event["step"] for event in read_events(path)] == [1, 2, 3]
    log = EventLog(path, 2)
    log.write("step", 3, loss=1.0)
    log.close()
    assert list(read_events(path)) == [
        {"event": "step", "step": 1, "loss": 1 / 3},
        {"event": "step", "step": 2, "loss": 2 / 3},
        {"event": "step", "step": 3, "loss": 1.0},
    ]
    assert path.read_bytes().endswith(b"\n")


def test_a_disk_that_takes_half_a_line(tmp_path):
    """The half is taken back, so the log stays whole lines."""
    path = tmp_path / "log.jsonl"
    log = EventLog(path, 0)
    log.write("step", 1, loss=1.0)
    before = path.read_bytes()
    with smallest_files(len(before) + 10), pytest.raises(OutputError, match=r"cannot write .*log\.jsonl"):
        log.write("step", 2, loss=2.0)
    assert path.read_bytes() == before
    log.write("step", 2, loss=2.0)
    log.close()
    assert [event["step"] for event in read_events(path)] == [1, 2]


def test_writes_that_take_a_part_at_a_time(tmp_path, monkeypatch):
    log = EventLog(tmp_path / "log.jsonl", 0)
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    log.write("step", 1, text="a line that is longer than seven bytes")
    monkeypatch.undo()
    log.close()
    assert [event["step"] for event in read_events(tmp_path / "log.jsonl")] == [1]


@pytest.mark.parametrize("line", [b"{\n", b"3\n", b"\xff\n"])
def test_a_line_that_is_no_event(line, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(json.dumps({"event": "step", "step": 1}).encode() + b"\n" + line)
    with pytest.raises(InvalidRequest, match=r"line 2 of .*log\.jsonl is not an event"):
        list(read_events(path))
