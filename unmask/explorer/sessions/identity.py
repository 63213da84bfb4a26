"""Which model is which: names that differ for a reader, and digests that differ for the store of texts."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.families import DEFAULT_NAME
from unmask.models.elmo import ElmoModel
from unmask.models.load import Model
from unmask.weights.read.find import DEFAULT, SHIPPED


@dataclass(frozen=True)
class Candidate:
    """What a model could be called by."""

    name: str
    folder: Path | None = None
    """Of its checkpoint, where that is a folder of this machine and known."""
    dtype: str | None = None


def candidate_of(name: str) -> Candidate:
    """What the checkpoint of a name, as `unmask.load` takes it, will be called once it is loaded."""
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
        name = wanted = proposed[candidate.name].pop(0)
        number = 1
        while name in names:
            number += 1
            name = f"{wanted} ({number})"
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
