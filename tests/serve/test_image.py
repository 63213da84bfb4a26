"""deploy/Dockerfile copies into its build what installing the package reads, and nothing built elsewhere."""

import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.support.places import REPOSITORY

DEPLOY = REPOSITORY / "deploy"


@pytest.fixture(scope="module")
def stages():
    """The instructions of each stage, one a line."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    starts = [at for at, line in enumerate(lines) if line.startswith("FROM ")]
    return [lines[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def copied(stage):
    """The files and folders of the repository that a stage copies, by where they are in its folder."""
    found = {}
    for line in stage:
        if line.startswith("COPY ") and "--from=" not in line:
            *sources, to = line.split()[1:]
            for source in sources:
                folder = (REPOSITORY / source).is_dir()
                found[Path(to) if folder else Path(to) / source] = REPOSITORY / source
    return found


def reads():
    """What hatchling reads to build a wheel, and pip to install it."""
    given = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    project, hatch = given["project"], given["tool"]["hatch"]
    wheel = hatch["build"]["targets"]["wheel"]
    return {
        "pyproject.toml", "constraints.txt", project["readme"], *project["license-files"],
        hatch["version"]["path"], *wheel["packages"], *wheel["force-include"],
        *(hook["path"] for hook in wheel["hooks"].values()),
    }  # fmt: skip


def test_what_the_build_reads_is_copied(stages):
    build = copied(stages[0])
    assert all(place.exists() for place in build.values())
    missing = {one for one in reads() if not any(Path(one).is_relative_to(place) for place in build)}
    assert missing == set()
    # Each is where it is in the repository.
    assert {place: source.relative_to(REPOSITORY) for place, source in build.items()} == {
        place: place for place in build
    }


def test_extras_of_the_image_exist(stages):
    given = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    (extras,) = re.findall(r"'\.\[(.*?)\]'", "\n".join(stages[0]))
    assert set(extras.split(",")) <= set(given["project"]["optional-dependencies"])


def test_the_image_has_what_was_installed_and_no_compiler(stages):
    build, image = ("\n".join(stage) for stage in stages)
    assert "g++" in build
    assert "apt-get" not in image
    assert "COPY --from=build /opt/unmask /opt/unmask" in image
    # The virtual environment refers to the interpreter of the image that it was made in.
    assert len({stage[0].split()[1] for stage in stages}) == 1


def test_nothing_that_is_read_is_ignored():
    """The context leaves out what git ignores, such as libraries built elsewhere, and nothing else."""
    text = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8")
    patterns = [line.removeprefix("**/") for line in text.splitlines() if line and not line.startswith("#")]
    listed = subprocess.run(["git", "ls-files", *reads()], cwd=REPOSITORY, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("this is no git checkout")
    parts = {part for line in listed.stdout.decode().splitlines() for part in Path(line).parts}
    assert {part for part in parts if any(fnmatch(part, one) for one in patterns)} == set()
    assert all(any(fnmatch(one, each) for each in patterns) for one in ("engine-x.so", "__pycache__", ".git"))
