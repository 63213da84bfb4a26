"""Make, open, verify and recover an index's folder."""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from unmask.base.arguments import check_choice
from unmask.errors import CorruptIndex, OutputError
from unmask.search.store.disk import lock_file, make_folder, remove_file, rename_file, sync_folder
from unmask.search.store.generation import Check, Generation, open_current
from unmask.search.store.manifest import CURRENT, GENERATIONS, SEGMENTS, Manifest, read_pointer
from unmask.search.store.verify import damages, newest_whole, next_number
from unmask.search.store.writer import locked, making_lock, publish


class Store:
    """An index's folder. What changes it goes through `writing`."""

    @staticmethod
    def create(path: Path, settings: Mapping[str, Any]) -> Generation:
        """A new index without segments, as generation 1; the folder appears complete or not at all.

        Args:
            path: a folder that does not exist, or an empty one.
            settings: any values in JSON's types.

        Raises:
            OutputError: the folder has something in it, or the disk is full, read-only or failing.
            InvalidRequest: the settings are not JSON.
        """
        manifest = Manifest(1, None, dict(settings), (), ())
        content = manifest.sealed()
        if path.exists() and not (path.is_dir() and not os.listdir(path)):
            raise OutputError(f"{path} exists already; name a folder that does not, or an empty one")
        # A fixed temporary name, so that the next process removes what a killed one left.
        made = path.with_name(f".{path.name}.new")
        if not made.exists():
            make_folder(made)
        refusal = f"another process is making {path}; wait until it has finished"
        with lock_file(making_lock(path), refusal, temporary=True):
            try:
                for folder in (GENERATIONS, SEGMENTS):
                    shutil.rmtree(made / folder, ignore_errors=True)
                    make_folder(made / folder)
                remove_file(made / CURRENT)
                publish(made, manifest, content)
                rename_file(made, path)
                sync_folder(path.parent)
            except OutputError:
                shutil.rmtree(made, ignore_errors=True)
                raise
        return open_current(path, "full")

    @staticmethod
    def open(path: Path, *, check: Check = "full") -> Generation:
        """The current generation of an index. Readers need no lock, and no writer waits for them.

        Args:
            path: the folder of the index.
            check: ``"full"`` reads every byte of every array and compares it with its checksum, which takes
                about a second per GB on one core. ``"quick"`` does so with the manifest, the checksums
                themselves and segments of up to 1 MB, and compares only the size of larger segments, which
                takes about a millisecond per segment.

        Raises:
            InvalidRequest: there is no index.
            CorruptIndex: a file of it is damaged or missing; the message names it.
        """
        check_choice("check", check, ("full", "quick"))
        return open_current(path, check)

    @staticmethod
    def verify(path: Path) -> tuple[str, ...]:
        """Every damage to the current generation and the one before, a sentence each; empty if there is none.

        Compares every byte with its CRC-32 and each file with its SHA-256, which takes about three seconds
        per GB on one core. What a killed writer left is no damage.

        Raises:
            InvalidRequest: there is no index.
        """
        return damages(path)

    @staticmethod
    def recover(path: Path) -> Generation:
        """Go back to the newest generation of which every byte is as it was written.

        It becomes the current one under a new number; if the current one is whole, nothing changes. Without
        a readable ``CURRENT`` it may be one whose commit was interrupted just before its end. Files of
        damaged generations stay until something is written to the index.

        Raises:
            CorruptIndex: no generation is whole.
            InvalidRequest: there is no index.
            OutputError: another process is writing, or the disk is full, read-only or failing.
        """
        with suppress(CorruptIndex):
            read_pointer(path)
        with locked(path):
            found = newest_whole(path)
            if found is None:
                raise CorruptIndex(
                    f"no generation of {path} is whole; restore the index from a copy or build it again"
                )
            manifest, is_current = found
            if is_current:
                return open_current(path, "quick")
            again = Manifest(next_number(path), None, manifest.settings, manifest.segments, manifest.deleted)
            return publish(path, again, again.sealed())
