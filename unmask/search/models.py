"""The models of an index: which views each gives, and whether it is the one that the index was made with."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, assert_never

from unmask.errors import InvalidRequest
from unmask.models.load import Model, load
from unmask.search.options import View
from unmask.spec import MultiVector, PairScore, PooledVector, SparseVector, UnknownOutput
from unmask.tasks.prompts import prompt_of
from unmask.text.literal import SpecialTokens

HASHED = (".safetensors", ".json", ".txt", ".model", ".bin")
"""Endings of the files of a checkpoint that decide what it computes."""

SPARE_TOKENS = 4
"""Tokens of a passage that are left free if a prompt stands before it."""


@dataclass(frozen=True)
class ModelIdentity:
    """Which model made the vectors of an index."""

    source: str
    """What loads it: a name, or the absolute path of a folder."""
    name: str
    revision: str | None
    sha256: str
    """Of its weights, its configuration and its tokenizer."""
    special_tokens: SpecialTokens = "parse"
    """What special tokens typed in a text become, see `unmask.load`."""

    @classmethod
    def of(cls, model: Model, source: str | Path) -> "ModelIdentity":
        """The identity of a loaded model."""
        path = Path(source)
        return cls(
            str(path.resolve()) if path.is_dir() else str(source),
            model.name,
            model.revision,
            _digest(model),
            model.tokenizer.reads,
        )

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> "ModelIdentity":
        """What `settings` gave."""
        return cls(**settings)

    def settings(self) -> dict[str, Any]:
        """For the settings of an index."""
        return asdict(self)

    def require(self, other: "ModelIdentity") -> None:
        """Refuse another model than this one.

        Raises:
            InvalidRequest: names both models.
        """
        if (self.sha256, self.revision) != (other.sha256, other.revision):
            raise InvalidRequest(
                f"the index was made with {self._described()} and the model given is {other._described()}; "
                "give the first one, or index again"
            )

    def _described(self) -> str:
        revision = "" if self.revision is None else f" at revision {self.revision}"
        return f"{self.name}{revision} (SHA-256 {self.sha256[:12]})"


def load_again(identity: ModelIdentity) -> Model:
    """The model that an index was made with, from where it was."""
    return load(identity.source, revision=identity.revision, special_tokens=identity.special_tokens)


def models_by_view(
    given: Sequence[str | Path | Model], sources: Sequence[str] = (), special_tokens: SpecialTokens = "text"
) -> tuple[dict[View, Model], dict[View, ModelIdentity]]:
    """Models and their identities by the view that each gives.

    Args:
        given: names and loaded models.
        sources: what loads each again; empty for its name or folder.
        special_tokens: what special tokens typed in a text become, whatever a loaded model does.

    Raises:
        InvalidRequest: two give the same view, or the sources do not match.
    """
    if sources and len(sources) != len(given):
        raise InvalidRequest(f"{len(given)} models and {len(sources)} sources are given; give one for each")
    models: dict[View, Model] = {}
    identities: dict[View, ModelIdentity] = {}
    for number, source in enumerate(given):
        loaded = (source if isinstance(source, Model) else load(source)).reading(special_tokens)
        view = view_of(loaded)
        if view in models:
            raise InvalidRequest(
                f"{models[view].name} and {loaded.name} both give the view {view}; give one of them"
            )
        source_name = loaded.checkpoint.source.folder if isinstance(source, Model) else source
        models[view] = loaded
        identities[view] = ModelIdentity.of(loaded, sources[number] if sources else source_name)
    return models, identities


def view_of(model: Model) -> View:
    """The view that a model gives.

    Raises:
        InvalidRequest: it gives neither vectors nor weights of words.
    """
    match model.checkpoint.head:
        case PooledVector():
            return "dense"
        case MultiVector():
            return "multi_vector"
        case SparseVector():
            return "sparse"
        case PairScore() | UnknownOutput() as head:
            raise InvalidRequest(
                f"{model.name} gives no vectors to search with ({type(head).__name__}); take an embedding "
                "model, such as default"
            )
        case _:
            assert_never(model.checkpoint.head)


def longest_passage(model: Model, *, whole: bool = False) -> int | None:
    """The tokens of the longest passage that a model reads, special tokens included; None for any.

    What its prompt for documents takes is left free, and a little more, because a prompt can change how the
    first word is split. A whole document is truncated in any case, and fills what the model reads.
    """
    head = model.checkpoint.head
    limit = model.max_tokens
    if isinstance(head, MultiVector) and head.document_tokens is not None:
        limit = head.document_tokens if limit is None else min(limit, head.document_tokens)
    prompt = prompt_of(getattr(head, "prompts", ()), "document")
    if limit is None or not prompt:
        return limit
    return limit - tokens_of_prompt(model, prompt) - (0 if whole else SPARE_TOKENS)


def tokens_of_prompt(model: Model, prompt: str) -> int:
    """The tokens of a prompt, without special tokens."""
    return int((~model.tokenizer.encode(prompt).special).sum())


def _digest(model: Model) -> str:
    """SHA-256 over the names and contents of the files of the checkpoint and its adapter."""
    total = hashlib.sha256()
    adapter = model.checkpoint.adapter
    folders = [model.checkpoint.source.folder, *([] if adapter is None else [adapter.folder])]
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in HASHED and path.is_file():
                total.update(path.relative_to(folder).as_posix().encode() + b"\0")
                with path.open("rb") as file:
                    total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()
