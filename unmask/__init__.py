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

_HOMES = {
    "AdapterModel": "unmask.models.adapters",
    "AttentionView": "unmask.interpret",
    "Callback": "unmask.training.run.callbacks",
    "CheckpointOutput": "unmask.spec",
    "Document": "unmask.search.documents",
    "ElmoModel": "unmask.models.elmo",
    "Encoder": "unmask.encoder.encoder",
    "EncoderSpec": "unmask.spec",
    "Encoding": "unmask.text",
    "Engine": "unmask.engines.engine",
    "Index": "unmask.search.index",
    "choose_texts": "unmask.search.labeling",
    "deduplicate": "unmask.search.duplicates",
    "find_label_errors": "unmask.search.labeling",
    "find_topics": "unmask.search.topics",
    "Logits": "unmask.tasks.values",
    "Model": "unmask.models.load",
    "PackedBatch": "unmask.text",
    "PooledVector": "unmask.spec",
    "SequenceLayout": "unmask.text",
    "Tokenizer": "unmask.text",
    "distill_static": "unmask.models.distill_static",
    "explore": "unmask.explorer.server.notebook",
    "finetune": "unmask.training.finetune.run",
    "fit_thresholds": "unmask.evaluate.thresholds",
    "load": "unmask.models.load",
    "load_adapters": "unmask.models.adapters",
    "read_documents": "unmask.search.documents",
    "redact": "unmask.tasks.redact",
    "save": "unmask.models.load",
    "train": "unmask.training",
}

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
    if name in _MODULES or name in _HOMES:
        from unmask.base.optional import imported

        module = imported(_MODULES.get(name) or _HOMES[name], f"unmask.{name}")
        value: Any = module if name in _MODULES else getattr(module, name)
    else:
        raise AttributeError(f"module 'unmask' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
