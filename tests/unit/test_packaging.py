"""The archives that people install: what is in them, and that the types in them reach a user."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

USER = """
import numpy as np
import torch
import unmask
from numpy.typing import NDArray

model: unmask.Model = unmask.load("default", dtype=torch.float32)
vectors: NDArray[np.float32] = model.embed(["a text", "another"], truncation="end")
one: torch.Tensor = model.hidden_states("a text")
several: list[torch.Tensor] = model.hidden_states(["a text"])
encoding: unmask.Encoding = model.tokenize("a text")
scores: NDArray[np.float32] = model.similarity("a text", vectors)
found: unmask.Logits = model.logits(["a text"], head="sequence")
elmo: unmask.ElmoModel = unmask.load("elmo", family="elmo")
try:
    unmask.save(model, "folder")
except unmask.errors.OutputError:
    print(unmask.families.FAMILIES[0].name)
"""

WRONG = """
import unmask

unmask.load("default").embed(["a text"], truncation="start")
unmask.load("default").width + "a"
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The names in the source archive, and the folder of the unpacked wheel."""
    place = tmp_path_factory.mktemp("built")
    install = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    backend = subprocess.run(
        [*install, "--target", place / "backend", "hatchling>=1.27"], capture_output=True, check=False
    )
    if backend.returncode:
        pytest.skip("hatchling, which builds the archives, cannot be installed here")
    environment = os.environ | {"PYTHONPATH": str(place / "backend")}
    command = [sys.executable, "-m", "hatchling", "build", "-d", place / "dist"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    (source,), (wheel,) = ((place / "dist").glob(ending) for ending in ("*.tar.gz", "*.whl"))
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(place / "wheel")
    return names, place / "wheel"


@pytest.mark.slow
def test_what_is_in_the_archives(built):
    names, wheel = built
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    expected = {name for name in tracked.stdout.splitlines() if not name.startswith(".")}
    assert sorted(expected - names) == []
    assert (wheel / "unmask" / "py.typed").is_file()
    packages = {path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")}
    assert packages == {"unmask"}
    shipped = wheel / "unmask" / "shipped" / "protocols"
    for path in (ROOT / "recipes" / "tasks").glob("*/*.toml"):
        assert (shipped / path.relative_to(ROOT / "recipes" / "tasks")).read_bytes() == path.read_bytes()
    code = "from unmask.evaluate.protocols.protocols import protocol_names; print(*protocol_names())"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=wheel, env=os.environ | {"PYTHONPATH": str(wheel)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "glue/modernbert" in found.stdout.split()


@pytest.mark.slow
def test_types_reach_whoever_installs_the_wheel(built, tmp_path):
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    for part in built[1].iterdir():
        part.rename(packages / part.name)
    # What the package needs is found where the tests run.
    (packages / "others.pth").write_text("\n".join(path for path in sys.path if "site-packages" in path))
    program = tmp_path / "venv" / "bin" / "python"
    for code, errors in ((USER, 0), (WRONG, 2)):
        (tmp_path / "user.py").write_text(code)
        checked = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--python-executable", program, "user.py"],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.stdout.count("error:") == errors, checked.stdout + checked.stderr
        assert str(tmp_path) not in checked.stdout
