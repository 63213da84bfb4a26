"""Encoder-only Transformers, from BERT to ModernBERT: load them, run them fast, look inside them.

    import unmask

    model = unmask.load("default")
    model.embed(["a text", "another"])
    model.attention("The river bank was muddy").probabilities(layer=3, head=5)

Names are imported when first used, so that ``import unmask`` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.explorer.notebook import explore
    from unmask.loaded import Model, load
    from unmask.model.encoder import Encoder
    from unmask.model.spec import EmbeddingHead, EncoderSpec
    from unmask.see import AttentionView
    from unmask.text import Encoding, PackedBatch, SequenceLayout, Tokenizer

from unmask.errors import UnmaskError

__version__ = "0.1.0"

_HOMES = {
    "AttentionView": "unmask.see",
    "EmbeddingHead": "unmask.model.spec",
    "Encoder": "unmask.model.encoder",
    "EncoderSpec": "unmask.model.spec",
    "Encoding": "unmask.text",
    "Model": "unmask.loaded",
    "PackedBatch": "unmask.text",
    "SequenceLayout": "unmask.text",
    "Tokenizer": "unmask.text",
    "explore": "unmask.explorer.notebook",
    "load": "unmask.loaded",
}

__all__ = [
    "AttentionView",
    "EmbeddingHead",
    "Encoder",
    "EncoderSpec",
    "Encoding",
    "Model",
    "PackedBatch",
    "SequenceLayout",
    "Tokenizer",
    "UnmaskError",
    "explore",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'unmask' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
