"""Files of evaluation data: found in a folder, plain or compressed, read line by line."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from unmask.errors import InvalidRequest, InvalidText
from unmask.text.lines import COMPRESSED, DAMAGED
from unmask.text.lines import opened as decompressed_file


def check_limit(limit: int | None) -> None:
    """Refuse a limit of inputs that leaves none.

    Raises:
        InvalidRequest: it is below 1.
    """
    if limit is not None and limit < 1:
        raise InvalidRequest(f"limit is {limit}; it must be at least 1 (--limit)")


def plain_name(path: Path) -> str:
    """The file's name without its compression suffix."""
    return path.stem if path.suffix in COMPRESSED else path.name


def files_in(folder: Path, endings: Sequence[str]) -> list[Path]:
    """Files of a folder whose names have one of the endings, compressed or not, sorted by name. A path to a
    file is returned itself.

    Raises:
        InvalidRequest: there is no such folder or file, or no such file in the folder.
    """
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise InvalidRequest(
            f"{folder} is neither a folder nor a file; name the folder with the data (--data)"
        )
    matching = sorted(path for path in folder.iterdir() if plain_name(path).endswith(tuple(endings)))
    if not matching:
        patterns = " or ".join(f"*{ending}" for ending in endings)
        raise InvalidRequest(f"{folder} has no file {patterns} (plain or compressed); name another folder")
    return matching


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed.

    Raises:
        InvalidText: it cannot be read or decompressed.
    """
    try:
        with decompressed_file(path) as stream:
            yield stream
    except DAMAGED as error:
        raise InvalidText(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
