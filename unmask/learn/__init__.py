"""Training: text to tokens, objectives, optimizers, and runs that start, stop and resume.

    from unmask.learn import train

    train("run.toml")

Names are imported when first used, so that what needs no torch does not import it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.learn.pretrain.run import train

__all__ = ["train"]


def __getattr__(name: str) -> Any:
    if name == "train":
        from unmask.learn.pretrain.run import train

        return train
    raise AttributeError(f"module 'unmask.learn' has no attribute {name!r}")
