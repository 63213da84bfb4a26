"""Checkpoints from a hub, through `huggingface_hub`: pinned to a commit, offline from its cache."""

import re
from pathlib import Path

from unmask.errors import HubError, UnsafeCheckpoint
from unmask.model.weights.source import Source

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
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    wanted = name if revision is None else f"{name} at revision {revision}"
    try:
        folder = Path(
            snapshot_download(
                name, revision=revision, allow_patterns=list(FILES), ignore_patterns=list(UNWANTED)
            )
        )
    except GatedRepoError:
        raise HubError(f"{name} asks for consent on the hub; accept its terms and log in") from None
    except RevisionNotFoundError:
        raise HubError(f"{name} has no revision {revision!r} on the hub") from None
    except RepositoryNotFoundError:
        raise HubError(f"there is no {name} on the hub, and no folder of that name") from None
    except HFValidationError:
        raise HubError(f"{name!r} cannot be a hub id, and there is no folder of that name") from None
    except LocalEntryNotFoundError:
        raise HubError(
            f"{wanted} is not in the cache and the hub cannot be reached; connect once, or name a folder"
        ) from None
    except Exception as error:  # network errors have many classes from several libraries
        raise HubError(f"the hub did not provide {wanted}: {_first_line(error)}") from None
    if not any(folder.rglob("*.safetensors")):
        raise UnsafeCheckpoint(
            f"{wanted} has no safetensors on the hub, and pickled weights are not fetched; "
            "download them yourself and make a safe copy with: unmask convert FOLDER NEW_FOLDER"
        )
    commit = folder.name
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise HubError(f"the hub returned {wanted} without a commit, so it cannot be pinned")
    return Source(folder, name, commit)


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
