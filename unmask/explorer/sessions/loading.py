"""Models that the page names: what is known of one before it is loaded, and how it is loaded."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.base.optional import installed
from unmask.errors import InvalidRequest
from unmask.families import DEFAULT_NAME

if TYPE_CHECKING:
    from unmask.explorer.sessions.models import Models, ModelSlot
    from unmask.models.elmo import ElmoModel
    from unmask.models.load import Model
    from unmask.spec.elmo import ElmoSpec


LONGEST_NAME = 1000
BYTES: Mapping[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 4}
"""Bytes of a weight while it is loaded; int8 is made of float32."""
SPARE = 1.1
"""Memory that must be free, as a multiple of the weights."""


@dataclass(frozen=True)
class ModelPreview:
    """A model before it is loaded. ``where``: folder, cache or hub.

    ``memory_bytes``: of its weights, in the number format that it will be loaded in. ``free_bytes``: of this
    machine, None where the system does not tell. ``download_bytes``: 0 for what is on this machine.
    ``sentence`` says all this; ``svg`` is its architecture.
    """

    name: str
    where: str
    family: str
    layers: int
    width: int
    parameter_count: int
    dtype: str
    memory_bytes: int
    free_bytes: int | None
    download_bytes: int
    sentence: str
    svg: str


@dataclass(frozen=True)
class PageLoader:
    """Loads a model by name, as `unmask.load` takes it."""

    load: "Callable[[str], Model | ElmoModel]"
    dtype: str = "float32"
    """The number format that it loads weights in."""

    def preview(self, name: str) -> "ModelPreview":
        """A preview from the config and the headers of the weights; only these are downloaded.

        Raises:
            CheckpointError: there is no such checkpoint, it cannot be read, or the hub cannot be reached.
            InvalidRequest: the name is none.
        """
        from unmask.base.json_settings import JsonSettings
        from unmask.families import family_of
        from unmask.spec.diagram import architecture_svg
        from unmask.spec.shapes import parameter_count
        from unmask.weights import find, read_checkpoint
        from unmask.weights.read.find import remote_model

        name, download = checked_name(name), 0
        where = place_of(name)
        elmo = _elmo(name) if where == "folder" else None
        if elmo is not None:
            return self._preview_elmo(name, elmo)
        if where == "hub":
            remote = remote_model(name)
            family = family_of(remote.config)
            spec = family.read(JsonSettings("config.json", dict(remote.config)), "published")
            display_name, output, download = name, None, remote.download_bytes
            count = remote.parameter_count
        else:
            checkpoint = read_checkpoint(find(name))
            family, spec, output = checkpoint.family, checkpoint.spec, checkpoint.head
            display_name, count = checkpoint.source.name, parameter_count(spec)
        size = len(spec.layers), spec.width, count
        svg = architecture_svg(spec, outputs=(output,))
        return self._stated(display_name, where, family.name, size, download=download, svg=svg)

    def _preview_elmo(self, name: str, spec: "ElmoSpec") -> "ModelPreview":
        import torch

        from unmask.encoder.elmo import Elmo
        from unmask.spec.diagram import architecture_svg

        with torch.device("meta"):
            count = sum(parameter.numel() for parameter in Elmo(spec).parameters())
        size, display_name = (spec.layers, 2 * spec.width, count), Path(name).expanduser().resolve().name
        return self._stated(
            display_name, "folder", "ELMo (no attention)", size, download=0, svg=architecture_svg(spec)
        )

    def _stated(
        self, name: str, where: str, family: str, size: tuple[int, int, int], *, download: int, svg: str
    ) -> "ModelPreview":
        """The preview with the memory that the model takes; ``size``: layers, width, parameters."""
        from unmask.bench.memory import free_bytes

        layers, width, count = size
        memory, free = BYTES[self.dtype] * count, free_bytes()
        sentence = (
            f"{family}, {layers} layers of width {width:,}, "
            f"{count / 1e6:,.1f} million parameters: {size_words(memory)} of memory in {self.dtype}"
            f"{'' if free is None else f', of {size_words(free)} that are free'}; "
            f"{f'{size_words(download)} will be downloaded' if download else 'it is on this machine'}."
        )
        return ModelPreview(
            name, where, family, layers, width, count, self.dtype, memory, free, download, sentence, svg
        )

    def add(self, models: "Models", name: str) -> "ModelSlot":
        """Load it in the background, as another model of the explorer.

        Raises:
            CheckpointError: see `preview`.
            InvalidRequest: the name is none, or this machine has too little free memory for the weights.
            Refused: the explorer holds as many models as it can.
        """
        preview = self.preview(name)
        if preview.free_bytes is not None and SPARE * preview.memory_bytes > preview.free_bytes:
            raise InvalidRequest(
                f"{preview.name} needs {size_words(preview.memory_bytes)} for its weights and "
                f"{size_words(preview.free_bytes)} are free; close other programs, or load a smaller model"
            )
        name = checked_name(name)
        place = models.add(name, lambda: self.load(name))
        if preview.where == "hub":
            place.progress = lambda: (
                _share(name, preview.download_bytes) if place.phase == "loading" else None
            )
        return place


def _elmo(name: str) -> "ElmoSpec | None":
    from unmask.weights.elmo import find_elmo

    folder = Path(name).expanduser()
    files = find_elmo(folder) if folder.is_dir() else None
    return None if files is None else files.spec()


def size_words(count: int) -> str:
    """Bytes for people: "91 MB", "1.2 GB"."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


def checked_name(name: object) -> str:
    """A name that could be a checkpoint's; that of the hub for "default", where its package is not installed.

    Raises:
        InvalidRequest: it is empty, too long, or has characters that no name has.
    """
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        raise InvalidRequest("name a checkpoint folder of this machine, or a hub id such as owner/model")
    name = name.strip()
    return DEFAULT_NAME if name == "default" and not installed("default") else name


def place_of(name: str) -> str:
    """The place of a name: a folder (also those of this package), the cache of the hub, or the hub."""
    from unmask.weights.read.find import DEFAULT, SHIPPED, cached

    if name == DEFAULT or name in SHIPPED or Path(name).expanduser().is_dir() or "/" not in name:
        return "folder"
    return "cache" if name in cached() else "hub"


def _share(name: str, total: int) -> float | None:
    from unmask.weights.read.find import cached_bytes

    return min(1.0, cached_bytes(name) / total) if total else None
