"""The store's face: what is written comes back, and what cannot be stored is refused."""

import gc

import numpy as np
import pytest

from unmask.base.system import locked
from unmask.errors import CorruptIndex, InvalidRequest, OutputError
from unmask.search.store import Store, writing

NONE = np.empty(0, np.int64)


@pytest.fixture
def path(tmp_path):
    Store.create(tmp_path / "index", {"model": "default"})
    return tmp_path / "index"


def add(path, *arrays, facts=None, **deleted):
    """Commit one segment per mapping of arrays, after those there are."""
    with writing(path) as writer:
        segments = {segment.name: segment.deleted for segment in writer.generation.segments}
        for one in arrays:
            segments[writer.add_segment(5, one, facts or {})] = NONE
        return writer.commit(segments)


def test_a_new_index_is_empty(path):
    generation = Store.open(path)
    assert (generation.number, generation.segments) == (1, ())
    assert dict(generation.settings) == {"model": "default"}
    assert generation.path == path
    assert Store.verify(path) == ()


def test_arrays_come_back(path):
    arrays = {
        "document/text": np.frombuffer(b"Two words.", np.uint8),
        "dense": np.arange(12, dtype=np.float32).reshape(3, 4),
        "half": np.array([1.5, np.inf], np.float16),
        "flags": np.array([[True, False]]),
        "offsets": np.array([-1, 2**62]),
        "none": np.empty((0, 7), np.int32),
    }
    made = add(path, arrays, facts={"tokens": 17, "names": ["ä"]})
    for generation in (made, Store.open(path), Store.open(path, check="quick")):
        (segment,) = generation.segments
        assert generation.number == 2
        assert (segment.rows, dict(segment.facts)) == (5, {"tokens": 17, "names": ["ä"]})
        assert segment.deleted.dtype == np.int64
        assert not segment.deleted.size
        assert list(segment.arrays) == list(arrays)
        for name, array in arrays.items():
            found = segment.arrays[name]
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            assert np.array_equal(found, array)
            assert not found.flags.writeable
            assert segment.arrays[name] is found
        with pytest.raises(KeyError):
            segment.arrays["other"]


def test_pieces_are_joined_along_the_first_axis(path):
    big = np.random.default_rng(0).standard_normal((70_000, 10))
    pieces = {
        "a": (big[start : start + 9_999] for start in range(0, len(big), 9_999)),
        "b": iter([big[:0, 0], big[:3, 0], big[3:, 0]]),
        "c": [np.asfortranarray(big)],
        "d": big.astype(">f8"),
    }
    (segment,) = add(path, pieces).segments
    assert np.array_equal(segment.arrays["a"], big)
    assert np.array_equal(segment.arrays["b"], big[:, 0])
    assert np.array_equal(segment.arrays["c"], big)
    assert np.array_equal(segment.arrays["d"], big)
    assert segment.arrays["d"].dtype.str == "<f8"


def test_segments_are_chosen_ordered_and_deleted_from_at_a_commit(path):
    first = add(path, {"a": np.arange(3)}, {"a": np.arange(4)})
    one, two = (segment.name for segment in first.segments)
    with writing(path) as writer:
        three = writer.add_segment(5, {"a": np.arange(5)}, {})
        second = writer.commit({three: NONE, one: np.array([4, 0, 4], np.int32)}, settings={"model": "other"})
    assert [segment.name for segment in second.segments] == [three, one]
    assert second.segments[1].deleted.tolist() == [0, 4]
    assert second.settings["model"] == "other"
    # The generation before is as it was, also where nothing of it had been used.
    assert [segment.deleted.size for segment in first.segments] == [0, 0]
    assert first.segments[1].name == two
    assert first.segments[1].arrays["a"].tolist() == [0, 1, 2, 3]


def test_one_writer_commits_several_times(path):
    with writing(path) as writer:
        one = writer.add_segment(5, {"a": np.arange(3)}, {})
        two = writer.add_segment(5, {"a": np.arange(4)}, {})
        unused = writer.add_segment(5, {"a": np.arange(4)}, {})
        assert writer.commit({one: NONE}).number == 2
        assert writer.commit({one: NONE, two: NONE}).number == 3
        assert writer.commit({two: NONE}).number == 4
        with pytest.raises(InvalidRequest, match=f"no segment called '{one}'"):
            writer.commit({one: NONE})
        assert writer.generation.number == 4
    assert [segment.name for segment in Store.open(path).segments] == [two]
    assert not list(path.glob(f"segments/{unused}*"))
    assert Store.verify(path) == ()


def test_files_that_no_kept_generation_names_are_removed(path):
    names = []
    for _ in range(4):
        with writing(path) as writer:
            names.append(writer.add_segment(5, {"a": np.arange(3)}, {}))
            writer.commit({names[-1]: NONE})
    assert {file.name for file in path.glob("*/*")} == {
        "000004.json", "000005.json",
        *(f"{name}.{end}" for name in names[2:] for end in ("arrays", "crc32")),
    }  # fmt: skip


def test_what_is_not_the_stores_is_left_alone(path):
    others = [
        path / "notes.txt",
        path / "cache" / "x",
        path / "segments" / "notes",
        path / "generations" / "a.json",
    ]
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.write_text("mine")
    add(path, {"a": np.arange(3)})
    assert [other.read_text() for other in others] == ["mine"] * 4
    assert Store.verify(path) == ()


def test_an_opened_generation_outlives_its_files(path):
    first = add(path, {"a": np.arange(3)})
    for _ in range(3):
        with writing(path) as writer:
            writer.commit({writer.add_segment(1, {"a": np.arange(9)}, {}): NONE})
    gc.collect()
    assert not list(path.glob(f"segments/{first.segments[0].name}*"))
    assert first.segments[0].arrays["a"].tolist() == [0, 1, 2]


def test_nothing_is_visible_without_a_commit(path):
    with writing(path) as writer:
        writer.add_segment(5, {"a": np.arange(3)}, {})
        assert Store.open(path).segments == ()
    assert Store.open(path).number == 1
    assert not list(path.glob("segments/*"))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"Name": np.arange(3)}, "an array is called 'Name'; use a-z, 0-9, _ and / between parts"),
        ({"../a": np.arange(3)}, "is called '../a'"),
        ({"a": np.array(["x"])}, "array a has a piece of type <U1 with 1 axes; numbers of up to 64 bits"),
        ({"a": np.array(3)}, "with 0 axes"),
        ({"a": np.zeros((1, 1, 1))}, "with 3 axes"),
        ({"a": np.array([None])}, "of type object"),
        ({"a": [np.zeros((1, 2)), np.zeros((1, 3))]}, r"of float64 \(2,\) and of float64 \(3,\)"),
        ({"a": [np.zeros(1), np.zeros(1, "f4")]}, r"of float64 \(\) and of float32 \(\)"),
        ({"a": []}, "array a has no pieces, so its type is unknown; give it an empty array"),
    ],
)
def test_arrays_that_cannot_be_stored(path, arrays, says):
    with writing(path) as writer:
        with pytest.raises(InvalidRequest, match=says):
            writer.add_segment(1, arrays, {})
        name = writer.add_segment(1, {"a": np.arange(2)}, {})
        writer.commit({name: NONE})
    assert Store.open(path).segments[0].arrays["a"].tolist() == [0, 1]


def test_requests_that_cannot_be_committed(path):
    with writing(path) as writer:
        with pytest.raises(InvalidRequest, match="rows is -1; it must be an integer from 0"):
            writer.add_segment(-1, {}, {})
        name = writer.add_segment(3, {}, {})
        with pytest.raises(InvalidRequest, match="no segment called '000001-001'; add it before the commit"):
            writer.commit({"000001-001": NONE})
        for wrong in ([3], [-1]):
            with pytest.raises(InvalidRequest, match="cannot be deleted; it has 3 rows"):
                writer.commit({name: np.array(wrong)})
        with pytest.raises(InvalidRequest, match="must be a list of integers"):
            writer.commit({name: np.array([0.5])})
        with pytest.raises(InvalidRequest, match=r"cannot be stored: .*; give values of JSON"):
            writer.commit({name: NONE}, settings={"a": object()})
        with pytest.raises(InvalidRequest, match="cannot be stored: Out of range float"):
            writer.add_segment(3, {}, {"a": float("nan")})
        assert writer.commit({name: np.arange(3)}).number == 2
    with pytest.raises(OutputError, match="this writer is closed"):
        writer.add_segment(3, {}, {})
    assert Store.open(path).segments[0].deleted.tolist() == [0, 1, 2]


def test_a_second_writer_is_refused(path):
    with (
        writing(path),
        pytest.raises(OutputError, match=f"another process is writing to {path}; wait"),
        writing(path),
    ):
        pass
    with writing(path) as writer:
        assert writer.commit({}).number == 2


def test_create_needs_a_new_folder(path, tmp_path):
    with pytest.raises(OutputError, match="exists already; name a folder that does not, or an empty one"):
        Store.create(path, {})
    (tmp_path / "empty").mkdir()
    assert Store.create(tmp_path / "empty", {}).number == 1
    with (
        locked(tmp_path / ".made.new.lock", temporary=True),
        pytest.raises(OutputError, match=f"another process is making {tmp_path / 'made'}; wait"),
    ):
        Store.create(tmp_path / "made", {})
    (tmp_path / ".made.new").rmdir()
    with pytest.raises(InvalidRequest, match="cannot be stored"):
        Store.create(tmp_path / "other", {"a": {1, 2}})
    with pytest.raises(OutputError, match="cannot write"):
        Store.create(tmp_path / "no" / "such", {})
    assert sorted(one.name for one in tmp_path.iterdir()) == ["empty", "index"]


def test_a_folder_that_is_no_index(tmp_path):
    for act in (Store.open, Store.verify, Store.recover):
        with pytest.raises(InvalidRequest, match="is not an index; name the folder of one"):
            act(tmp_path)
    with pytest.raises(InvalidRequest, match="is not an index"), writing(tmp_path):
        pass
    with pytest.raises(InvalidRequest, match="check is 'half'; it can be 'full' or 'quick'"):
        Store.open(tmp_path, check="half")
    assert not list(tmp_path.iterdir())


def test_a_damaged_array_is_never_copied(path):
    """A writer opens quickly, and verifies an array of an older segment before it gives it."""
    generation = add(path, {"a": np.zeros(400_000), "b": np.arange(3)})
    (file,) = path.glob("segments/*.arrays")
    content = bytearray(file.read_bytes())
    content[1_000_000] ^= 1
    file.write_bytes(content)
    assert Store.open(path, check="quick").number == generation.number
    with writing(path) as writer:
        (segment,) = writer.generation.segments
        assert segment.arrays["b"].tolist() == [0, 1, 2]
        with pytest.raises(
            CorruptIndex, match=r"1 of its 49 blocks differ .* first at byte 983,040; restore"
        ):
            segment.arrays["a"]
    with pytest.raises(CorruptIndex):
        Store.open(path)
    (said,) = Store.verify(path)
    assert "first at byte 983,040" in said
