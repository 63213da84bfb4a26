"""The models of one explorer, loaded while the page is already there; their names and digests."""

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest, UnmaskError
from unmask.families import DEFAULT_NAME
from unmask.http.responses import Problem, Refused, cannot, problem_of, unexpected
from unmask.models.elmo import ElmoModel
from unmask.models.load import Model
from unmask.spec.encoder import require_layers
from unmask.weights.read.find import DEFAULT, SHIPPED


@dataclass(frozen=True)
class Candidate:
    """The parts of the name of a model."""

    name: str
    folder: Path | None = None
    """Of its checkpoint, where that is a folder of this machine and known."""
    dtype: str | None = None


def candidate_of(name: str) -> Candidate:
    """The name that a checkpoint, as `unmask.load` takes it, will have once it is loaded."""
    if name == DEFAULT:
        return Candidate(DEFAULT_NAME)
    folder = Path(name).expanduser()
    if name in SHIPPED or not folder.is_dir():
        return Candidate(name)
    return Candidate(folder.resolve().name, folder)


def distinct_names(candidates: Sequence[Candidate]) -> list[str]:
    """One name for each, no two alike, as short as that allows.

    Models of one name are told apart by the folders above theirs, else by number format, else by number.
    """
    groups: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.name, []).append(candidate)
    proposed: dict[str, list[str]] = {name: _told_apart(group) for name, group in groups.items()}
    names: list[str] = []
    for candidate in candidates:
        name = proposed_name = proposed[candidate.name].pop(0)
        number = 1
        while name in names:
            number += 1
            name = f"{proposed_name} ({number})"
        names.append(name)
    return names


def digest(parts: Iterable[str]) -> str:
    """A digest of strings; no two different sequences of them share one, whatever characters they hold."""
    sha256 = hashlib.sha256()
    for part in parts:
        # A lone surrogate has no UTF-8 form; the model is the one to refuse it, in a sentence.
        data = part.encode("utf-8", "surrogatepass")
        sha256.update(len(data).to_bytes(8, "little") + data)
    return sha256.hexdigest()


def digest_of(model: Model | ElmoModel) -> str:
    """A digest of what a model computes: its spec, tokenizer, number format and files of weights.

    Files count by name, size and time: their contents may be gigabytes, and are not read again.
    """
    parts = [repr(model.spec), model.name, model.revision or "", model.dtype, str(model.max_tokens)]
    if isinstance(model, ElmoModel):
        files = set() if model.folder is None else set(model.folder.iterdir())
    else:
        for name, content in sorted(model.checkpoint.tokenizer.files.items()):
            parts += [name, hashlib.sha256(content).hexdigest()]
        files = {tensor.file for tensor in model.checkpoint.tensors.values()}
    for path in sorted(files):
        try:
            stat = path.stat()
        except OSError:  # removed since it was loaded
            continue
        parts += [path.name, str(stat.st_size), str(stat.st_mtime_ns)]
    return digest(parts)


def _told_apart(group: Sequence[Candidate]) -> list[str]:
    name = group[0].name
    if len(group) == 1:
        return [name]
    folders = [candidate.folder for candidate in group]
    paths = [folder.resolve() for folder in folders if folder is not None]
    if len(set(paths)) == len(group):
        # Deep enough that all differ, and no deeper.
        for depth in range(1, max(len(path.parts) for path in paths) + 1):
            ends = ["/".join(path.parts[-depth:]) for path in paths]
            if len(set(ends)) == len(group):
                return [end.replace("//", "/") for end in ends]
    dtypes = [candidate.dtype for candidate in group]
    if None not in dtypes and len(set(dtypes)) == len(group):
        return [f"{name} ({dtype})" for dtype in dtypes]
    return [name] * len(group)


AnyModel = Model | ElmoModel
"""An ELMo has states and no attention: `ModelSlot.need` refuses it, `ModelSlot.need_any` does not."""
Loader = Callable[[], AnyModel]
MOST_MODELS = 16
LOADING_SECONDS = 60.0
"""How long a request waits for a model that is being loaded."""


class ModelSlot:
    """One model of the explorer, loaded or not."""

    def __init__(self, index: int, name: str, loader: Loader) -> None:
        self.index = index
        self.name = name
        """Its name in the page, which is unique in an explorer and never changes."""
        self.phase = "waiting"
        self.problem: Problem | None = None
        self.model: AnyModel | None = None
        self.progress: Callable[[], float | None] = lambda: None
        """The finished share of a download, from 0 to 1; None where nothing is downloaded."""
        self._loader = loader
        self._plain: Encoder | None = None
        self._settled = threading.Event()

    def load(self) -> None:
        """Load it in this thread; what goes wrong is kept as its problem."""
        self.phase = "loading"
        try:
            model = self._loader()
            if isinstance(model, Model):
                require_layers(model.spec, "the explorer")
            self.model = model
            self.phase = "ready"
        except UnmaskError as error:
            self.problem, self.phase = problem_of(error), "failed"
        except Exception as error:
            self.problem, self.phase = problem_of(unexpected(error)), "failed"
        self._settled.set()

    def need(self) -> Model:
        """The encoder, waiting a while for it; `Refused` as by `need_any`, and where it is an ELMo."""
        model = self.need_any()
        if isinstance(model, ElmoModel):
            raise cannot(no_attention(self.name))
        return model

    def need_any(self) -> AnyModel:
        """The model, waiting a while for it; `Refused` where it could not be loaded or is still loading."""
        self._settled.wait(LOADING_SECONDS)
        if self.model is not None:
            return self.model
        if self.problem is not None:
            raise cannot(f"{self.name} could not be loaded: {self.problem.sentence}")
        raise Refused(503, "ModelLoading", f"{self.name} is still being loaded; try again in a moment")

    def again(self, loader: Loader) -> None:
        """Wait to be loaded once more, after it could not be."""
        self._settled.clear()
        self.phase, self.problem, self._loader = "waiting", None, loader

    def give_up(self) -> None:
        """Release all requests that wait for it."""
        self._settled.set()

    @cached_property
    def digest(self) -> str:
        """Of what its model computes, see `digest_of`."""
        return digest_of(self.need_any())

    def plain(self) -> Encoder:
        """The model in modules that give gradients; read when first asked for, and kept."""
        if self._plain is None:
            self._plain = self.need().trainable_encoder(replace=False)
        return self._plain


class Models:
    """All of them, in the order they were named; the first is a new text's unless another is asked for."""

    def __init__(self, models: Sequence[AnyModel | tuple[str, Loader]]) -> None:
        if not models:
            raise InvalidRequest("the explorer was given no model; name at least one")
        self.places: list[ModelSlot] = []
        self._adding = threading.Lock()
        self._loading = threading.Lock()
        self._given: dict[str, ModelSlot] = {}
        """By their folders, or by their names."""
        candidates = [_candidate(model) for model in models]
        names = distinct_names(candidates)
        for index, (name, model) in enumerate(zip(names, models, strict=True)):
            if isinstance(model, tuple):
                place = ModelSlot(index, name, model[1])
            else:
                place = ModelSlot(index, name, lambda model=model: model)  # type: ignore[misc]
                place.load()
            self.places.append(place)
            self._given.setdefault(_key(candidates[index]), place)

    def start(self, loaded: Callable[[ModelSlot], None] | None = None) -> None:
        """Load those that are not loaded yet, one after the other, in a thread of their own.

        ``loaded`` is called there after each, before the next one is loaded.
        """
        waiting = [place for place in self.places if place.phase == "waiting"]
        if waiting:
            name = "unmask explorer: models"
            threading.Thread(target=_load_all, args=(waiting, loaded), name=name, daemon=True).start()

    def add(self, name: str, loader: Loader) -> ModelSlot:
        """Another model, loaded in a thread of its own, after those that are being loaded.

        One that is here already is not loaded twice; one that could not be loaded is tried again.

        Raises:
            Refused: there are `MOST_MODELS` already.
        """
        candidate = candidate_of(name)
        with self._adding:
            place = self._given.get(_key(candidate))
            if place is None:
                if len(self.places) >= MOST_MODELS:
                    raise cannot(
                        f"the explorer holds at most {MOST_MODELS} models; start it again with those you want"
                    )
                existing = [Candidate(place.name) for place in self.places]
                unlike = distinct_names([*existing, Candidate(candidate.name)])[-1]
                place = ModelSlot(len(self.places), unlike, loader)
                self._given[_key(candidate)] = place
                self.places.append(place)
            elif place.phase == "failed":
                place.again(loader)
            else:
                return place
        title = "unmask explorer: another model"
        threading.Thread(target=self._load, args=(place,), name=title, daemon=True).start()
        return place

    def _load(self, place: ModelSlot) -> None:
        with self._loading:
            place.load()

    def at(self, index: int) -> ModelSlot:
        """The place of that number; `InvalidRequest` where there is none."""
        if not 0 <= index < len(self.places):
            raise InvalidRequest(
                f"model must be a number from 0 to {len(self.places) - 1}, not {index}; "
                "start the explorer with --model for each one you want"
            )
        return self.places[index]

    def ready(self) -> list[Model]:
        """The loaded encoders."""
        models = (place.model for place in self.places)
        return [model for model in models if model is not None and not isinstance(model, ElmoModel)]


def no_attention(name: str) -> str:
    """The sentence that says which views show an ELMo."""
    return (
        f"the ELMo {name} has LSTM layers, which have no attention and predict no masked words; "
        "the views Tokens, Geometry (with word senses) and Compare show it"
    )


def _key(candidate: Candidate) -> str:
    return candidate.name if candidate.folder is None else str(candidate.folder.resolve())


def _load_all(places: Sequence[ModelSlot], loaded: Callable[[ModelSlot], None] | None) -> None:
    for place in places:
        place.load()
        if loaded is not None:
            loaded(place)


def _candidate(model: AnyModel | tuple[str, Loader]) -> Candidate:
    """What a model could be called by, before it is loaded where it is not."""
    if isinstance(model, Model):
        return Candidate(model.name, model.checkpoint.source.folder, model.dtype)
    if isinstance(model, ElmoModel):
        return Candidate(model.name, model.folder, model.dtype)
    return candidate_of(model[0])
