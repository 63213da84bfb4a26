"""Detect the format of an ELMo folder: ours, or the two files of its authors. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.base.checksums import check_files
from unmask.base.files import read_bytes
from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint
from unmask.spec.elmo import CONFIG, MODEL_TYPE, ElmoSpec

if TYPE_CHECKING:
    from unmask.encoder.elmo import Elmo


@dataclass(frozen=True)
class ElmoFolder:
    """A folder that holds an ELMo."""

    folder: Path
    published: tuple[Path, Path] | None
    """The authors' options and weights; None for a folder in our format."""

    def spec(self) -> ElmoSpec:
        """The spec alone; no weights are read.

        Raises:
            CheckpointError: what is wrong with the config, in one sentence.
        """
        from unmask.weights.elmo_files import read_published_spec, read_spec

        return read_spec(self.folder) if self.published is None else read_published_spec(self.published[0])

    def read(self, verify: bool | None = None) -> Elmo:
        """The network, in evaluation mode; ``verify`` as for `load_elmo`.

        Raises:
            CheckpointError: what is wrong with the files, in one sentence.
            MissingExtra: h5py is not installed, which reads the authors' weights.
        """
        from unmask.weights.elmo_files import load_elmo, read_published_elmo

        if self.published is None:
            return load_elmo(self.folder, verify=verify)
        check_files(self.folder, verify)
        return read_published_elmo(*self.published)


def find_elmo(folder: Path) -> ElmoFolder | None:
    """The ELMo in a folder; None if it contains something else.

    The names of the authors' files end in ``options.json`` and ``.hdf5``.
    """
    if (folder / CONFIG).is_file():
        config = JsonSettings.parse(read_bytes(folder / CONFIG, CorruptCheckpoint), CONFIG)
        return ElmoFolder(folder, None) if config.values.get("model_type") == MODEL_TYPE else None
    options, weights = (sorted(folder.glob(ending)) for ending in ("*options.json", "*.hdf5"))
    if len(options) == len(weights) == 1:
        return ElmoFolder(folder, (options[0], weights[0]))
    return None
