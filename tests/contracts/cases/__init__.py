"""What the contract with `transformers` is checked on: per family, classes and unusual small configs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any


@dataclass(frozen=True)
class Case:
    """One random model of `transformers`."""

    model: str
    """The class, such as BertForPreTraining; its config class is found by it."""
    settings: dict[str, Any]
    """Keys of its config, vocab_size aside."""
    label: str = ""
    compat: str = "published"
    lengths: tuple[int, ...] = (1, 4, 23, 4)
    """Tokens of the texts that are compared."""
    vocabulary: int = 61
    first_id: int = 5
    """Ids below it are special: a padding id among the tokens would mean something else to them."""
    inputs: dict[str, Any] = field(default_factory=dict)
    """More arguments of its forward pass."""
    global_tokens: tuple[int, ...] = ()
    """Places of global tokens in every text that reaches so far."""
    training: bool = False
    """Run theirs as in training, for what it does only there; settings must make dropout 0."""
    logits: dict[str, str] | None = None
    """Where it puts the logits of our heads; None: where its class usually does."""
    unused: tuple[str, ...] = ()
    """How names of tensors begin that it makes, and that we leave out: it never uses them, or computes them,
    or they are of a head that is not built."""
    prepare: Callable[[Any], None] = lambda model: None
    """Makes exact what it computes in float32 only."""

    def __str__(self) -> str:
        return " ".join(part for part in (self.model, self.label, self.compat) if part)


def cases() -> list[Case]:
    """Those of every module beside this one, in ``CASES``."""
    modules = sorted(module.name for module in iter_modules(__path__))
    return [case for name in modules for case in import_module(f"{__name__}.{name}").CASES]
