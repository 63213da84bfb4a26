"""`transformers` with each attention implementation that needs no other package, and in bfloat16."""

import inspect
from collections.abc import Callable
from typing import Any

from benchmarks.peers.engine import PaddedEngine, Peer, Source

MODULES = ("transformers",)


def quiet_load(source: Source, **options: Any) -> tuple[Any, Any, tuple[str, ...]]:
    """A model without heads, its tokenizer, and the names of the tokenizer's outputs that the model
    accepts."""
    import transformers

    tokenizer = quiet_tokenizer(source)
    model = transformers.AutoModel.from_pretrained(source.folder, **options).eval()
    taken = inspect.signature(model.forward).parameters
    given = tokenizer("a text").keys()
    return model, tokenizer, tuple(name for name in given if name in taken)


def quiet_tokenizer(source: Source) -> Any:
    """The tokenizer alone; the library no longer prints."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers.AutoTokenizer.from_pretrained(source.folder)


def start(attention: str, dtype: str) -> Callable[[Source], PaddedEngine]:
    """A function that loads an engine with this attention implementation and number format."""

    def load(source: Source) -> PaddedEngine:
        import torch

        model, tokenizer, names = quiet_load(
            source, attn_implementation=attention, dtype=getattr(torch, dtype)
        )
        model = model.to(source.device)

        def run(inputs: dict[str, Any]) -> Any:
            with torch.inference_mode():
                return model(**{key: x.to(source.device) for key, x in inputs.items()}).last_hidden_state

        return PaddedEngine(tokenizer, names, run, source)

    return load


SORTED = "texts sorted by length in tokens, batches of 32"

TRANSFORMERS = (
    Peer(
        "transformers eager",
        "float32",
        f"eager attention; {SORTED}",
        start("eager", "float32"),
        MODULES,
        holds_scores=True,
    ),
    Peer("transformers sdpa", "float32", f"SDPA; {SORTED}", start("sdpa", "float32"), MODULES),
    Peer("transformers bfloat16", "bfloat16", f"SDPA; {SORTED}", start("sdpa", "bfloat16"), MODULES),
)
