"""Encoder-only Transformers, from BERT to ModernBERT: load them, run them fast, interpret them.

    import unmask

    model = unmask.load("default")
    model.embed(["a text", "another"])
    model.attention("The river bank was muddy").probabilities(layer=3, head=5)

Names are imported on first use, so that ``import unmask`` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask import errors, interpret
    from unmask.explorer.export.notebook import explore
    from unmask.finetuning.run import finetune
    from unmask.interpret import AttentionView
    from unmask.learn import train
    from unmask.learn.pretrain.callbacks import Callback
    from unmask.loaded import Model, load, save
    from unmask.loaded_adapters import AdapterModel, load_adapters
    from unmask.loaded_elmo import ElmoModel
    from unmask.measure import probes as evaluate
    from unmask.model import families
    from unmask.model.encoder import Encoder
    from unmask.model.engine import Engine
    from unmask.model.spec import CheckpointOutput, EncoderSpec, PooledVector
    from unmask.search.documents import Document, read_documents
    from unmask.search.index import Index
    from unmask.tasks.values import Logits
    from unmask.text import Encoding, PackedBatch, SequenceLayout, Tokenizer

from unmask.errors import UnmaskError

__version__ = "0.1.0"

_HOMES = {
    "AdapterModel": "unmask.loaded_adapters",
    "AttentionView": "unmask.interpret",
    "Callback": "unmask.learn.pretrain.callbacks",
    "CheckpointOutput": "unmask.model.spec",
    "Document": "unmask.search.documents",
    "ElmoModel": "unmask.loaded_elmo",
    "Encoder": "unmask.model.encoder",
    "EncoderSpec": "unmask.model.spec",
    "Encoding": "unmask.text",
    "Engine": "unmask.model.engine",
    "Index": "unmask.search.index",
    "Logits": "unmask.tasks.values",
    "Model": "unmask.loaded",
    "PackedBatch": "unmask.text",
    "PooledVector": "unmask.model.spec",
    "SequenceLayout": "unmask.text",
    "Tokenizer": "unmask.text",
    "explore": "unmask.explorer.export.notebook",
    "finetune": "unmask.finetuning.run",
    "load": "unmask.loaded",
    "load_adapters": "unmask.loaded_adapters",
    "read_documents": "unmask.search.documents",
    "save": "unmask.loaded",
    "train": "unmask.learn",
}

_MODULES = {
    "errors": "unmask.errors",
    "evaluate": "unmask.measure.probes",
    "families": "unmask.model.families",
    "interpret": "unmask.interpret",
}
"""Modules of the package exported as ``unmask.NAME``."""

_RENAMED = {"EmbeddingHead": "PooledVector", "see": "interpret"}
"""Old names, which warn."""

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
    "errors",
    "evaluate",
    "explore",
    "families",
    "finetune",
    "interpret",
    "load",
    "load_adapters",
    "read_documents",
    "save",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        from unmask.deprecation import warn_renamed

        warn_renamed("the name", f"unmask.{name}", f"unmask.{_RENAMED[name]}")
        return getattr(import_module(__name__), _RENAMED[name])
    if name in _MODULES:
        value: Any = import_module(_MODULES[name])
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'unmask' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
