"""The settings of an index, as its store keeps them: its passages, its terms, and the models of its views."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, assert_never, get_args

from unmask.base.arguments import check_choice, check_flag, whole_number
from unmask.base.optional import installed, require
from unmask.errors import CorruptIndex, InvalidRequest, quoted
from unmask.models.load import Model, load
from unmask.search.analysis import Analyzer
from unmask.search.options import VIEWS, Chunking, CodeRule, DenseBits, Mode, VectorBits, View
from unmask.spec import MultiVector, PairScore, PooledVector, SparseVector, UnknownOutput
from unmask.tasks.prompts import prompt_of
from unmask.text.special import SpecialTokens

HASHED = (".safetensors", ".json", ".txt", ".model", ".bin")
"""Endings of the files of a checkpoint that decide what it computes."""

SPARE_TOKENS = 4
"""Tokens of a passage that are left free if a prompt stands before it."""

FORMAT = 5
"""The number of this layout of settings and arrays. In format 1 the analyzer names no
rules: they are ``words``. Before format 3 vectors of tokens are in float16, and before format 4 vectors of
passages have no codes. Before format 5 passages of source code begin by indentation, and have no context."""

UNLIMITED = 2**31 - 1
"""The longest passage of a model that reads any length."""

PASSAGE_TOKENS = 256
"""The longest passage by default, if the model reads as many: what most embedding models were trained on."""


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
    layers: int | None = None
    """How many of its first layers; None for all."""

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
            model.checkpoint.first_layers,
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
        if (self.sha256, self.revision, self.layers) != (other.sha256, other.revision, other.layers):
            raise InvalidRequest(
                f"the index was made with {self._described()} and the model given is {other._described()}; "
                "give the first one, or index again"
            )

    def _described(self) -> str:
        revision = "" if self.revision is None else f" at revision {self.revision}"
        depth = "" if self.layers is None else f", {self.layers} layers"
        return f"{self.name}{revision} (SHA-256 {self.sha256[:12]}{depth})"


def load_again(identity: ModelIdentity) -> Model:
    """The model that an index was made with, from where it was."""
    return load(
        identity.source,
        revision=identity.revision,
        special_tokens=identity.special_tokens,
        layers=identity.layers,
    )


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


@dataclass(frozen=True)
class PassageSettings:
    """How documents are cut into passages."""

    max_tokens: int = PASSAGE_TOKENS
    """The longest passage, special tokens included."""
    overlap_tokens: int = 0
    """Tokens that neighboring passages share."""
    chunking: Chunking = "windows"
    whole: bool = False
    """One passage for each document; the models read its beginning, and what they drop is counted."""
    code: CodeRule = "indentation"
    """Where passages of source code begin, see `CodeRule`."""

    def __post_init__(self) -> None:
        whole_number("max_tokens", self.max_tokens, 8)
        whole_number("overlap_tokens", self.overlap_tokens, 0, self.max_tokens // 2)
        check_choice("chunking", self.chunking, get_args(Chunking))
        check_choice("code", self.code, get_args(CodeRule))
        if self.whole and self.chunking == "late":
            raise InvalidRequest("whole documents have no chunks; leave chunking out")


@dataclass(frozen=True)
class VectorSettings:
    """How vectors are stored: those of tokens, and one for each passage (dense)."""

    bits: VectorBits | None = None
    """Of each number of a token's vector, encoded as `unmask.search.views.compression` describes; None for
    float16."""
    pooling: int = 1
    """How many tokens of a passage share a vector on average, see `unmask.search.views.compression`."""
    dense_bits: DenseBits | None = None
    """Of each number of the codes of dense vectors, see `unmask.search.views.compression`; None for none."""
    dense_floats: bool = True
    """Whether dense vectors are stored in float32, too, if they have codes."""

    def __post_init__(self) -> None:
        for name, bits, kind in (
            ("vector_bits", self.bits, VectorBits),
            ("dense_bits", self.dense_bits, DenseBits),
        ):
            choices: tuple[object, ...] = (*get_args(kind), None)
            if isinstance(bits, bool) or bits not in choices:
                raise InvalidRequest(f"{name} is {quoted(bits)}; it can be {', '.join(map(str, choices))}")
        check_flag("dense_floats", self.dense_floats)
        if not self.dense_floats and self.dense_bits is None:
            raise InvalidRequest(
                "dense_floats is False and dense_bits is None, so that no vector would be stored; give "
                "dense_bits, or leave dense_floats out"
            )
        whole_number("token_pooling", self.pooling, 1, 16)
        if self.pooling > 1:
            require("search")

    def check_models(self, models: Mapping[View, Model]) -> None:
        """Refuse models whose vectors cannot be compressed so.

        Args:
            models: those of the index by view.

        Raises:
            InvalidRequest: the view to compress has none, or its vectors are not of length 1.
        """
        if self.dense_bits is not None and "dense" not in models:
            raise InvalidRequest(
                "dense_bits is for models with one vector per passage, and none is given; leave it out, or "
                "give such a model, such as default"
            )
        if self.bits is None and self.pooling == 1:
            return
        option = "token_pooling" if self.bits is None else "vector_bits"
        model = models.get("multi_vector")
        if model is None:
            raise InvalidRequest(
                f"{option} is for models with one vector per token, and none is given; leave it out, or give "
                "such a model (dense_bits is for models with one vector per passage)"
            )
        head = model.checkpoint.head
        if isinstance(head, MultiVector) and not head.normalize:
            raise InvalidRequest(
                f"{option} needs vectors of length 1, and {model.name} does not normalize its vectors; "
                "leave it out"
            )


@dataclass(frozen=True)
class IndexSettings:
    """Everything that later additions and searches must do alike."""

    models: Mapping[View, ModelIdentity]
    """The model of each view that has one."""
    analyzer: Analyzer | None
    """The terms of BM25; None without that view."""
    passages: PassageSettings
    vectors: VectorSettings = field(default_factory=VectorSettings)

    @property
    def views(self) -> tuple[View, ...]:
        """The views of every passage, in the order of `VIEWS`."""
        return tuple(
            view for view in VIEWS if view in self.models or (view == "bm25" and self.analyzer is not None)
        )

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes of a search: every view, and several views fused."""
        return (*self.views, "hybrid") if len(self.views) > 1 else self.views

    @property
    def compressed(self) -> frozenset[View]:
        """The views whose vectors are stored compressed alone, so that explanations say what this changes.

        With late chunking the model gives another vector for the passage alone in any case.
        """
        vectors, views = self.vectors, set[View]()
        if vectors.bits is not None or vectors.pooling > 1:
            views.add("multi_vector")
        if not vectors.dense_floats and self.passages.chunking != "late":
            views.add("dense")
        return frozenset(views)

    @property
    def proposing(self) -> frozenset[View]:
        """The views in which something small that is stored proposes passages: codes, or centroids."""
        views: dict[View, object] = {"dense": self.vectors.dense_bits, "multi_vector": self.vectors.bits}
        return frozenset(view for view, bits in views.items() if bits is not None)

    def stored(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "format": FORMAT,
            "models": {view: model.settings() for view, model in self.models.items()},
            "analyzer": None if self.analyzer is None else asdict(self.analyzer),
            "passages": asdict(self.passages),
            "vectors": asdict(self.vectors),
        }

    @classmethod
    def of_stored(cls, stored: Mapping[str, Any], name: str) -> "IndexSettings":
        """What `stored` gave.

        Raises:
            CorruptIndex: another version of unmask made the index, or something else did.
        """
        if stored.get("format") not in range(1, FORMAT + 1):
            raise CorruptIndex(
                f"{name} has the format {stored.get('format')!r} and this version of unmask reads 1 to "
                f"{FORMAT}; index again"
            )
        analyzer = stored["analyzer"]
        return cls(
            {view: ModelIdentity.of_settings(value) for view, value in stored["models"].items()},
            None if analyzer is None else Analyzer(**({"rules": "words"} | analyzer)),
            PassageSettings(**stored["passages"]),
            VectorSettings(**stored.get("vectors", {})),
        )


def code_rule(wanted: CodeRule | None) -> CodeRule:
    """Where passages of source code begin in a new index; None is ``"syntax"`` where its extra is installed.

    Raises:
        MissingExtra: ``"syntax"`` is wanted, and the packages of the extra ``code`` are not installed.
    """
    if wanted is None:
        return "syntax" if installed("code") else "indentation"
    if wanted == "syntax":
        require("code")
    return wanted


def passage_tokens_of(wanted: int | None, longest: int | None, *, late: bool, whole: bool) -> int:
    """The longest passage for models that read ``longest`` tokens.

    Raises:
        InvalidRequest: the model reads fewer tokens than wanted.
    """
    if wanted is None:
        default = UNLIMITED if whole else PASSAGE_TOKENS
        return default if longest is None else min(default, longest)
    whole_number("passage_tokens", wanted, 8)
    if longest is not None and wanted > longest and not late:
        raise InvalidRequest(
            f"passage_tokens is {wanted} and the model reads {longest}; give at most {longest}"
        )
    return wanted
