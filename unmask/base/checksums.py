"""SHA-256 of the files of a checkpoint folder: written when it is saved, compared when it is read."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from unmask.base.files import check_regular, leaves_folder, read_regular, whole_file
from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, InvalidRequest

CHECKSUMS = "unmask_checksums.json"
"""The file that contains them, next to config.json. Other libraries ignore it."""

ALWAYS_HASHED_BYTES = 64_000_000
"""Folders of up to this many bytes are hashed at every load; that takes about 0.15 s on one core."""


@dataclass(frozen=True)
class StoredFile:
    """One file as it was saved."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Verified:
    """What was compared with the checksums of a folder."""

    files: int
    """The number of files; their sizes are always compared."""
    hashed: bool
    """Whether their contents were also compared."""


def write_checksums(folder: Path) -> None:
    """Write `CHECKSUMS` for every other file below ``folder``.

    Raises:
        OutputError: the disk is full or read-only.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    lines = []
    for path in paths:
        entry = {"bytes": path.stat().st_size, "sha256": _digest(path)}
        lines.append(f"    {json.dumps(path.relative_to(folder).as_posix())}: {json.dumps(entry)}")
    # One line per file, so that an entry can be removed by hand.
    content = '{\n  "files": {\n' + ",\n".join(lines) + "\n  }\n}\n"
    with whole_file(folder / CHECKSUMS) as partial:
        partial.write_text(content, encoding="utf-8", newline="\n")


def check_files(folder: Path, verify: bool | None = None) -> Verified | None:
    """Compare the files of a folder with its checksums; None if it has none, like most folders.

    Args:
        folder: a checkpoint folder.
        verify: whether to compare contents; sizes are compared in any case. None compares contents if
            the folder has at most `ALWAYS_HASHED_BYTES`.

    Raises:
        InvalidRequest: ``verify`` is true and the folder has no checksums.
        CorruptCheckpoint: a file is missing or has changed since it was saved.
    """
    if not (folder / CHECKSUMS).exists():
        if verify:
            raise InvalidRequest(
                f"{folder} holds no {CHECKSUMS} to compare its files with; "
                "unmask convert, Model.save and save_elmo write a copy that does"
            )
        return None
    checksums = _read(folder / CHECKSUMS)
    for name, expected in checksums.items():
        path = folder / name
        if not path.exists():
            raise CorruptCheckpoint(f"{path} is missing, and {CHECKSUMS} lists it; {_way_out(name)}")
        size = path.stat().st_size
        if size != expected.bytes:
            raise CorruptCheckpoint(
                f"{path} has {size:,} bytes and had {expected.bytes:,} when it was saved; {_way_out(name)}"
            )
    hashed = (
        sum(expected.bytes for expected in checksums.values()) <= ALWAYS_HASHED_BYTES
        if verify is None
        else verify
    )
    if hashed:
        for name, expected in checksums.items():
            if _digest(folder / name) != expected.sha256:
                raise CorruptCheckpoint(
                    f"{folder / name} is not the file that was saved: its SHA-256 differs; {_way_out(name)}"
                )
    return Verified(len(checksums), hashed)


def _way_out(name: str) -> str:
    return f"copy it again or, if the change is intended, remove the entry of {name} from {CHECKSUMS}"


def _read(path: Path) -> Mapping[str, StoredFile]:
    settings = JsonSettings.parse(read_regular(path, CorruptCheckpoint), path.name)
    files: dict[str, object] = settings.get("files", {})
    return dict(_entries(files, path))


def _entries(files: Mapping[str, object], path: Path) -> Iterator[tuple[str, StoredFile]]:
    for name, entry in files.items():
        if leaves_folder(name) or not isinstance(entry, dict):
            raise CorruptCheckpoint(f"{path} has no valid entry for {name}; remove that entry or the file")
        values = JsonSettings(f"{path.name}, {name}", entry)
        yield name, StoredFile(values.get("bytes", 0), values.get("sha256", ""))


def _digest(path: Path) -> str:
    check_regular(path, CorruptCheckpoint)
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CorruptCheckpoint(f"cannot read {path}: {error.strerror or error}") from None
