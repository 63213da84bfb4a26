"""Encoder-only Transformers, from BERT to ModernBERT: load them, run them fast, interpret them.

    import unmask

    model = unmask.load("default")
    model.embed(["a text", "another"])
    model.attention("The river bank was muddy").probabilities(layer=3, head=5)

Names are imported on first use, so that ``import unmask`` is fast.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask import errors, families, interpret
    from unmask.encoder.encoder import Encoder
    from unmask.engines.engine import Engine
    from unmask.evaluate.thresholds import fit_thresholds
    from unmask.explorer.server.notebook import explore
    from unmask.interpret import AttentionView
    from unmask.models.adapters import AdapterModel, load_adapters
    from unmask.models.distill_static import distill_static
    from unmask.models.elmo import ElmoModel
    from unmask.models.load import Model, load, save
    from unmask.search.documents import Document, read_documents
    from unmask.search.duplicates import deduplicate
    from unmask.search.index import Index
    from unmask.search.labeling import choose_texts, find_label_errors
    from unmask.search.topics import find_topics
    from unmask.spec import CheckpointOutput, EncoderSpec, PooledVector
    from unmask.tasks.redact import redact
    from unmask.tasks.values import Logits
    from unmask.text import Encoding, PackedBatch, SequenceLayout, Tokenizer
    from unmask.training import train
    from unmask.training.finetune.run import finetune
    from unmask.training.run.callbacks import Callback

from unmask.errors import UnmaskError

__version__ = "0.2.0"

_NAMES = {
    "unmask.encoder.encoder": ("Encoder",),
    "unmask.engines.engine": ("Engine",),
    "unmask.evaluate.thresholds": ("fit_thresholds",),
    "unmask.explorer.server.notebook": ("explore",),
    "unmask.interpret": ("AttentionView",),
    "unmask.models.adapters": ("AdapterModel", "load_adapters"),
    "unmask.models.distill_static": ("distill_static",),
    "unmask.models.elmo": ("ElmoModel",),
    "unmask.models.load": ("Model", "load", "save"),
    "unmask.search.documents": ("Document", "read_documents"),
    "unmask.search.duplicates": ("deduplicate",),
    "unmask.search.index": ("Index",),
    "unmask.search.labeling": ("choose_texts", "find_label_errors"),
    "unmask.search.topics": ("find_topics",),
    "unmask.spec": ("CheckpointOutput", "EncoderSpec", "PooledVector"),
    "unmask.tasks.redact": ("redact",),
    "unmask.tasks.values": ("Logits",),
    "unmask.text": ("Encoding", "PackedBatch", "SequenceLayout", "Tokenizer"),
    "unmask.training": ("train",),
    "unmask.training.finetune.run": ("finetune",),
    "unmask.training.run.callbacks": ("Callback",),
}
"""The exported names of each module."""

_MODULES = {
    "errors": "unmask.errors",
    "evaluate": "unmask.evaluate",
    "families": "unmask.families",
    "interpret": "unmask.interpret",
}
"""Modules of the package exported as ``unmask.NAME``."""

__all__ = [
    "AdapterModel",
    "AttentionView",
    "Callback",
    "CheckpointOutput",
    "Document",
    "ElmoModel",
    "Encoder",
    "EncoderSpec",
    "Encoding",
    "Engine",
    "Index",
    "Logits",
    "Model",
    "PackedBatch",
    "PooledVector",
    "SequenceLayout",
    "Tokenizer",
    "UnmaskError",
    "choose_texts",
    "deduplicate",
    "distill_static",
    "errors",
    "evaluate",
    "explore",
    "families",
    "find_label_errors",
    "find_topics",
    "finetune",
    "fit_thresholds",
    "interpret",
    "load",
    "load_adapters",
    "read_documents",
    "redact",
    "save",
    "train",
]


def __getattr__(name: str) -> Any:
    home = _MODULES.get(name) or next((module for module, names in _NAMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'unmask' has no attribute {name!r}")
    from unmask.base.optional import imported

    module = imported(home, f"unmask.{name}")
    globals()[name] = module if name in _MODULES else getattr(module, name)
    return globals()[name]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
