"""Files of evaluation data: found in a folder, plain or xz-compressed, read line by line."""

import lzma
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from unmask.errors import InvalidRequest, InvalidText

PACKED = ".xz"


def plain_name(path: Path) -> str:
    """The file's name without its compression suffix."""
    return path.name.removesuffix(PACKED)


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
    found = sorted(path for path in folder.iterdir() if plain_name(path).endswith(tuple(endings)))
    if not found:
        wanted = " or ".join(f"*{ending}" for ending in endings)
        raise InvalidRequest(f"{folder} has no file {wanted} (plain or xz-compressed); name another folder")
    return found


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed if its name ends with ``.xz``.

    Raises:
        InvalidText: it cannot be read or decompressed.
    """
    try:
        # An lzma file reads like any binary stream, but its type does not declare it.
        packed = path.name.endswith(PACKED)
        with cast(BinaryIO, lzma.open(path)) if packed else path.open("rb") as stream:
            yield stream
    except OSError as error:
        raise InvalidText(f"cannot read {path}: {error.strerror or error}") from None
    except (EOFError, lzma.LZMAError) as error:
        raise InvalidText(f"cannot decompress {path}: {error}") from None
