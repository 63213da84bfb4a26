"""Tokens in an object store: the same batches as from local disk, through a cache smaller than the data."""

import contextlib
import gzip
import hashlib
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.support.waiting import wait_until
from tests.training.runs import ended, same_run, write_run
from tests.training.test_data import TOKENIZER, keys, write_books
from unmask.base import stores
from unmask.errors import InvalidRequest, InvalidText, OutputError
from unmask.text import Tokenizer
from unmask.training.data import stored as stored_sources
from unmask.training.data.sampling import EpochOrder
from unmask.training.data.sources import SourceSpec, documents
from unmask.training.data.stored import ReadAhead, ShardCache, StoredFile, stored
from unmask.training.data.stream import ChunkStream
from unmask.training.data.writing import prepare, write_shards
from unmask.training.pretrain import pretrain
from unmask.training.pretrain.run import bytes_at_a_time

STORE = "memory://tokens"
PLENTY = 10**9
WINDOW = 2
MICRO = 90


@contextlib.contextmanager
def small_files(file_bytes):
    """Sources are tokenized into files of about so many bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unmask.training.data.writing.BATCH_CHARACTERS", 300)
        patch.setitem(write_shards.__kwdefaults__, "file_bytes", file_bytes)
        yield


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Two sources of many small files of tokens on local disk."""
    folder = tmp_path_factory.mktemp("local")
    specs = []
    for seed, (name, count) in enumerate((("one", 60), ("two", 25))):
        write_books(folder / f"{name}.jsonl", count, seed)
        specs.append(SourceSpec(name, (f"{name}.jsonl",), split_by="paragraph", max_tokens=40))
    with small_files(1000):
        sets = prepare(specs, TOKENIZER, folder / "data", folder)
    assert [len(one.file_starts) - 1 for one in sets] == [15, 6]
    return folder / "data", specs, sets


@pytest.fixture
def store(local):
    """A copy of the folder of tokens in memory; other tests find nothing there."""
    files = MemoryFileSystem()
    files.put(str(local[0]) + "/", "/tokens/", recursive=True)
    yield files
    files.rm("/tokens", recursive=True)


@pytest.fixture
def waits(monkeypatch):
    """Seconds that would have been waited."""
    found = []
    monkeypatch.setattr(stores, "sleep", found.append)
    return found


@pytest.fixture
def downloads(store, monkeypatch):
    """The URLs of all downloads; a function in ``spoil`` may act in place of the next ones."""
    get = MemoryFileSystem.get_file

    class Downloads(list):
        spoil = staticmethod(lambda number, target: None)

    seen = Downloads()

    def getting(self, path, target, **options):
        seen.append(path)
        get(self, path, target, **options)
        seen.spoil(len(seen), Path(target))

    monkeypatch.setattr(MemoryFileSystem, "get_file", getting)
    return seen


def stream_of(sets, shuffle_files=WINDOW, **changes):
    values = {"seed": 3, "micro_tokens": MICRO, "extra_tokens": 2, "pool_bins": 5} | changes
    return ChunkStream([(sets[0], 2.0), (sets[1], 1.0)], shuffle_files=shuffle_files, **values)


def from_store(local, folder, max_bytes=PLENTY):
    return stored(local[1], TOKENIZER, STORE, ShardCache(folder, max_bytes))


def size_of(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


# --- the same text ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle_files", [None, 1, WINDOW, 100])
def test_batches_of_a_store_are_those_of_local_disk(shuffle_files, local, store, tmp_path):
    here, there = stream_of(local[2], shuffle_files), stream_of(from_store(local, tmp_path), shuffle_files)
    for _ in range(3):
        assert keys(here.next(80)) == keys(there.next(80))
        assert here.state() == there.state()
    assert min(here.epochs.values()) > 1


def test_a_cache_smaller_than_the_data(local, store, downloads, tmp_path):
    limit = bytes_at_a_time(local[2], [], WINDOW)
    assert limit < 0.8 * bytes_at_a_time(local[2], [], None)
    assert limit == sum(sum(shards.largest_files(3 * WINDOW)) for shards in local[2])
    sets = from_store(local, tmp_path, limit)
    here, there = stream_of(local[2]), stream_of(sets)
    for number in range(240):
        assert keys(here.next(1)) == keys(there.next(1)), number
    still(sets)
    assert size_of(tmp_path) <= limit
    ids = [path for path in downloads if "ids-" in path]
    passes = max(there.epochs.values())
    assert len(set(ids)) == 21
    assert 21 < len(ids) <= 21 * (passes + 1), "files are downloaded once an epoch, not once a batch"


def still(sets):
    """Wait until nothing is downloaded ahead any more."""
    for one in sets:
        wait_until(lambda one=one: not one._ids._ahead._runs)


def test_every_chunk_comes_once_an_epoch_and_few_files_at_a_time(local):
    shards = local[2][0]
    order = EpochOrder(shards, 3, WINDOW)
    epochs = [order.chunks(np.arange(n * shards.count, (n + 1) * shards.count)) for n in range(3)]
    for chunks in epochs:
        assert sorted(chunks.tolist()) == list(range(shards.count))
    assert epochs[0].tolist() != epochs[1].tolist()
    file_of = np.searchsorted(shards.file_starts, np.concatenate(epochs), side="right") - 1
    for position in range(0, 3 * shards.count, 7):
        ahead = order.files(position)
        assert len(ahead) <= 2 * WINDOW
        assert file_of[position] in ahead[:WINDOW]
        # What is announced suffices for at least the rest of the window and all of the next.
        assert set(file_of[position : position + 10]) <= set(ahead)
    mixed = [len(set(file_of[start : start + 20])) for start in range(0, shards.count - 20, 20)]
    assert max(mixed) > 1, "chunks of a window are shuffled together"
    parts = order.chunks(np.array([5, 200, 3, shards.count + 4]))
    assert parts.tolist() == np.concatenate(epochs)[[5, 200, 3, shards.count + 4]].tolist()


def test_windows_and_epochs_are_shuffled_apart():
    """Of windows of equal size, in which equal keys would give equal orders."""
    starts = np.arange(0, 61, 10)
    order = EpochOrder(SimpleNamespace(name="one", count=60, file_starts=starts), 3, WINDOW)
    windows = order.chunks(np.arange(180)).reshape(9, 20)
    places = [[(chunk % 10, chunk // 10) for chunk in window] for window in windows.tolist()]
    within = []
    for window, position in zip(places, range(0, 180, 20), strict=True):
        files = order.files(position)[:WINDOW]
        within.append(tuple((files.index(file), place) for place, file in window))
    assert len(set(within)) == 9
    assert len({tuple(order.files(epoch * 60)[:WINDOW]) for epoch in range(8)}) > 1


def test_the_same_batches_on_one_two_and_four_ranks(local, store, tmp_path):
    whole = keys(stream_of(local[2]).next(24))
    seen, state = [], None
    for world in (1, 2, 4):
        # Every rank is a process that starts anew at the checkpoint, with the cache of its machine.
        streams = [stream_of(from_store(local, tmp_path)) for _ in range(world)]
        if state is not None:
            for one in streams:
                one.restore(state)
        for _ in range(2):  # steps of four micro-batches
            parts = [one.next(4, rank=rank, world=world) for rank, one in enumerate(streams)]
            seen += [parts[number % world][number // world] for number in range(4)]
        states = [one.state() for one in streams]
        assert all(one == states[0] for one in states)
        state = states[0]
    assert keys(seen) == whole


def test_another_window_is_another_order(local):
    state = stream_of(local[2], 2).state()
    with pytest.raises(InvalidRequest, match="shuffle_files 2, and now it is 3"):
        stream_of(local[2], 3).restore(state)
    older = stream_of(local[2], None).state()
    del older["settings"]["shuffle_files"]
    stream_of(local[2], None).restore(older)


def test_the_next_files_are_downloaded_ahead(local, store, downloads, tmp_path):
    sets = from_store(local, tmp_path)
    stream = stream_of(sets)
    still(sets)
    named = {path.rpartition("/")[2] for path in downloads if "/one-" in path and "ids-" in path}
    assert named == {f"ids-{number:05d}.bin" for number in stream._orders[0].files(0)}
    before = len(downloads)
    stream.next(5)
    assert len(downloads) == before, "what was announced is there"


# --- what stores do ------------------------------------------------------------------------------------


def one_file(store, content=b"tokens" * 100):
    store.pipe_file("/tokens/file", content)
    return StoredFile(f"{STORE}/file", len(content), hashlib.sha256(content).hexdigest())


def content(cache, file):
    with cache.open(file) as stream:
        return stream.read()


def fails(below):
    def spoil(count, target):
        if count <= below:
            raise ConnectionError("connection reset by peer")

    return spoil


def test_a_store_that_fails_twice_and_then_answers(store, downloads, waits, tmp_path):
    file = one_file(store)
    downloads.spoil = fails(2)
    assert content(ShardCache(tmp_path, PLENTY), file) == b"tokens" * 100
    assert (len(downloads), waits) == (3, [1.0, 2.0])


def test_a_store_that_keeps_failing_is_one_sentence(store, downloads, waits, tmp_path):
    file = one_file(store)
    downloads.spoil = fails(99)
    with pytest.raises(
        InvalidRequest, match=r"^cannot read memory://tokens/file in 4 attempts: connection reset by peer$"
    ):
        ShardCache(tmp_path, PLENTY).open(file)
    assert waits == [1.0, 2.0, 4.0]
    assert not [path for path in tmp_path.iterdir() if path.stat().st_size], "no partial file is left"


def test_a_missing_file_is_asked_for_once(store, downloads, waits, tmp_path):
    file = one_file(store)
    store.rm_file("/tokens/file")
    with pytest.raises(InvalidRequest, match=r"^cannot read memory://tokens/file: there is no such file$"):
        ShardCache(tmp_path, PLENTY).open(file)
    assert not waits


@pytest.mark.parametrize(
    ("damaged", "why"),
    [(b"tokens" * 99, "594 bytes, 600 expected"), (b"tokenz" * 100, "another checksum")],
)
def test_a_damaged_download_is_repeated(damaged, why, store, downloads, waits, tmp_path):
    file = one_file(store)

    def damage(until, count, target):
        if count <= until:
            target.write_bytes(damaged)

    downloads.spoil = partial(damage, 1)
    assert content(ShardCache(tmp_path / "once", PLENTY), file) == b"tokens" * 100
    assert len(downloads) == 2
    downloads.spoil = partial(damage, 99)
    with pytest.raises(InvalidRequest, match=rf"it is not what was written \({why}\)"):
        ShardCache(tmp_path / "always", PLENTY).open(file)


def test_a_copy_that_changed_on_disk_is_downloaded_again(store, downloads, tmp_path):
    file = one_file(store)
    ShardCache(tmp_path, PLENTY).open(file).close()
    (tmp_path / file.sha256).write_bytes(b"tokenz" * 100)
    assert content(ShardCache(tmp_path, PLENTY), file) == b"tokens" * 100
    assert len(downloads) == 2
    ShardCache(tmp_path, PLENTY).open(file).close()
    assert len(downloads) == 2, "another process uses the copy"


def test_a_copy_that_another_process_removes_while_it_is_verified(store, tmp_path, monkeypatch):
    file = one_file(store)
    content(ShardCache(tmp_path, PLENTY), file)
    digest = hashlib.file_digest

    def removing(stream, name):
        (tmp_path / file.sha256).unlink()
        return digest(stream, name)

    monkeypatch.setattr(stored_sources.hashlib, "file_digest", removing)
    assert content(ShardCache(tmp_path, PLENTY), file) == b"tokens" * 100


def test_a_cache_that_is_a_file_is_refused(store, tmp_path):
    (tmp_path / "copies").touch()
    with pytest.raises(InvalidRequest, match=r"^cannot read .*/copies/\w+: Not a directory$"):
        content(ShardCache(tmp_path / "copies", PLENTY), one_file(store))


def test_a_refusal_is_not_asked_again(store, downloads, waits, tmp_path):
    def refuse(number, target):
        raise PermissionError(13, "Access Denied")

    file = one_file(store)
    downloads.spoil = refuse
    with pytest.raises(InvalidRequest, match=r"^cannot read memory://tokens/file: .*Access Denied$"):
        content(ShardCache(tmp_path, PLENTY), file)
    assert not waits


def test_a_full_disk_is_not_asked_again(store, downloads, waits, tmp_path):
    file = one_file(store)

    def full(count, target):
        raise OSError(28, "No space left on device")

    downloads.spoil = full
    with pytest.raises(OutputError, match="No space left on device"):
        ShardCache(tmp_path, PLENTY).open(file)
    assert not waits


def test_several_at_once_download_a_file_once(store, downloads, tmp_path):
    file = one_file(store)
    downloads.spoil = lambda number, target: time.sleep(0.2)  # so that the others wait for the first
    started = threading.Barrier(4)

    def read(found):
        started.wait()
        found.append(content(ShardCache(tmp_path, PLENTY), file))

    found = []
    threads = [threading.Thread(target=read, args=(found,)) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == [b"tokens" * 100] * 4
    assert len(downloads) == 1


def test_the_file_used_longest_ago_is_removed(store, tmp_path):
    cache = ShardCache(tmp_path, 1300)
    first, second, third = (one_file(store, bytes([number]) * 600) for number in range(3))
    for number, file in enumerate((first, second)):
        store.pipe_file("/tokens/file", bytes([number]) * 600)
        cache.open(file).close()
    held = cache.open(first)
    store.pipe_file("/tokens/file", bytes([2]) * 600)
    abandoned = tmp_path / ".abc.partial"
    abandoned.write_bytes(bytes(100))
    cache.open(third).close()
    there = {path.name for path in tmp_path.iterdir() if path.stat().st_size}
    assert there == {first.sha256, third.sha256, abandoned.name}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_sources, "ABANDONED_SECONDS", -1.0)
        ShardCache(tmp_path, 1200)._make_room()
    assert not abandoned.exists()
    ShardCache(tmp_path, 0)._make_room()
    assert held.read() == bytes([0]) * 600, "what was opened stays readable"
    held.close()


def test_what_is_downloaded_ahead_may_fail_until_it_is_needed(store, downloads, waits, tmp_path):
    file = one_file(store)
    downloads.spoil = fails(4)
    cache = ShardCache(tmp_path, PLENTY)
    ahead = ReadAhead(cache)
    ahead.want([file])
    wait_until(lambda: not ahead._runs)
    assert len(downloads) == 4
    assert content(cache, file) == b"tokens" * 100


def test_a_protocol_without_its_package_is_one_sentence():
    with pytest.raises(InvalidRequest, match="nothing://bucket cannot be opened: Protocol not known"):
        stores.open_store("nothing://bucket")


# --- what is found ------------------------------------------------------------------------------------


def test_sources_are_found_by_settings_and_tokenizer(local, store, tmp_path):
    _, specs, sets = local
    cache = ShardCache(tmp_path, PLENTY)
    found = stored(specs, TOKENIZER, STORE + "/", cache)
    assert [one.digest for one in found] == [one.digest for one in sets]
    assert found[0].folder == f"{STORE}/{sets[0].folder.name}"
    with pytest.raises(InvalidRequest, match=r"holds no tokens of source three; tokenize the source"):
        stored([SourceSpec("three", ("one.jsonl",))], TOKENIZER, STORE, cache)
    with pytest.raises(InvalidRequest, match=rf"source one, but {STORE}/one-\w+ of other settings"):
        stored([SourceSpec("one", ("one.jsonl",), max_tokens=41)], TOKENIZER, STORE, cache)
    other = Tokenizer.from_files({"vocab.txt": b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe"})
    with pytest.raises(InvalidRequest, match="or another tokenizer"):
        stored(specs, other, STORE, cache)
    store.copy(f"/tokens/{sets[0].folder.name}", "/tokens/one-0000", recursive=True)
    with pytest.raises(InvalidRequest, match=r"holds source one 2 times.*remove all but one"):
        stored(specs, TOKENIZER, STORE, cache)
    store.pipe_file("/tokens/one-0000/manifest.json", b"{")
    with pytest.raises(InvalidRequest, match=r"manifest.json of memory://tokens/one-0000 is damaged"):
        stored(specs, TOKENIZER, STORE, cache)
    with pytest.raises(InvalidRequest, match=r"^cannot read memory://nowhere: there is no such file$"):
        stored(specs, TOKENIZER, "memory://nowhere", cache)


# --- texts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".parquet"])
def test_texts_are_read_from_a_store(ending, store, tmp_path, waits):
    rows = write_books(tmp_path / "a.jsonl", 20)
    write_books(tmp_path / "b.jsonl", 5, 1)
    for name in "ab":
        content = (tmp_path / f"{name}.jsonl").read_bytes()
        if ending == ".jsonl.gz":
            content = gzip.compress(content)
        if ending == ".parquet":
            table = pytest.importorskip("pyarrow.json", reason="no pyarrow").read_json(
                tmp_path / f"{name}.jsonl"
            )
            pytest.importorskip("pyarrow.parquet", reason="no pyarrow").write_table(
                table, tmp_path / f"{name}{ending}"
            )
            content = (tmp_path / f"{name}{ending}").read_bytes()
        (tmp_path / f"{name}{ending}").write_bytes(content)
        store.pipe_file(f"/tokens/texts/{name}{ending}", content)
    here, there = SourceSpec("s", (f"?{ending}",)), SourceSpec("s", (f"{STORE}/texts/?{ending}",))
    wanted = list(documents(here, tmp_path))
    assert wanted[:20] == [row["text"] for row in rows]
    assert list(documents(there, tmp_path)) == wanted
    (one,), (other,) = (
        prepare([spec], TOKENIZER, tmp_path / name, tmp_path) for name, spec in (("x", here), ("y", there))
    )
    assert (one.digest, one.inputs) == (other.digest, other.inputs)
    (again,) = prepare([there], TOKENIZER, tmp_path / "y", tmp_path)
    assert again.folder == other.folder
    store.pipe_file(f"/tokens/texts/b{ending}", b"changed")
    with pytest.raises((InvalidText, InvalidRequest), match=rf"memory:///tokens/texts/b{ending}"):
        list(documents(there, tmp_path))


def test_texts_that_a_store_lacks_are_one_sentence(store):
    with pytest.raises(InvalidRequest, match=r"names memory://tokens/\*.txt, and there is no such file"):
        list(documents(SourceSpec("s", (f"{STORE}/*.txt",))))
    with pytest.raises(InvalidRequest, match=r"^cannot read memory://tokens/b.txt: there is no such file$"):
        list(documents(SourceSpec("s", (f"{STORE}/b.txt",))))
    store.pipe_file("/tokens/a.arrow", b"")
    with pytest.raises(InvalidRequest, match=r"is a URL, and a saved data set is read from a folder"):
        list(documents(SourceSpec("s", (f"{STORE}/a.arrow",), format="datasets")))


# --- runs ---------------------------------------------------------------------------------------------


def test_a_run_moves_to_a_store_and_is_the_same_run(place, monkeypatch):
    """Begun with texts and tokens on local disk, resumed without them; ``plain`` was not interrupted."""
    ended(write_run(place), monkeypatch, 5)
    store = MemoryFileSystem()
    store.put(f"{place / 'data'}/", "/tokens/", recursive=True)
    for text in place.glob("*.txt"):
        text.unlink()
    try:
        pretrain(write_run(place, data={"cache": STORE, "local_cache": "copies"}))
    finally:
        store.rm("/tokens", recursive=True)
    same_run(place / "run", place / "plain")
    assert len([path for path in (place / "copies").iterdir() if path.stat().st_size]) == 9


def test_a_cache_that_two_windows_exceed_is_refused(place):
    store = {"cache": (place / "data").as_uri(), "local_cache": "copies", "local_cache_bytes": 5000}
    with pytest.raises(InvalidRequest, match=r"is 5,000, and [\d,]+ are read at a time; .*set data.shuffle"):
        pretrain(write_run(place, data=store))
    with pytest.raises(InvalidRequest, match=r"read at a time; raise it, or lower data.shuffle_files"):
        pretrain(write_run(place, data={**store, "shuffle_files": 2}))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_from_s3(place, monkeypatch):
    """By a server of S3's protocol on this machine."""
    moto = pytest.importorskip("moto.server", reason="moto, a server of S3's protocol, is not installed")
    s3fs = pytest.importorskip("s3fs", reason="s3fs, which reads s3:// URLs, is not installed")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in (
        ("AWS_ENDPOINT_URL", f"http://{host}:{port}"),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    try:
        store = s3fs.S3FileSystem()
        store.mkdir("tokens")
        store.put(f"{place / 'data'}/", "tokens/runs/", recursive=True)
        for text in place.glob("*.txt"):
            text.unlink()
        pretrain(write_run(place, data={"cache": "s3://tokens/runs", "local_cache": "copies"}))
        same_run(place / "run", place / "plain")
        store.rm("tokens/runs", recursive=True)
        with pytest.raises(InvalidRequest, match=r"^cannot read s3://tokens/runs: there is no such file$"):
            pretrain(write_run(place, data={"cache": "s3://tokens/runs"}, out="other"))
    finally:
        server.stop()
