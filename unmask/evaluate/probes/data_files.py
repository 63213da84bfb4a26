"""The files of a probe's data, which users name with ``--data``."""

from collections.abc import Sequence
from pathlib import Path

from unmask.errors import InvalidRequest
from unmask.text.lines import plain_name


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
