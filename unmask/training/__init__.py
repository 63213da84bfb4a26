"""Training: text to tokens, objectives, optimizers, and runs that start, stop and resume.

    from unmask.training import train

    train("run.toml")

Names are imported when first used, so that what needs no torch does not import it.
"""

from typing import TYPE_CHECKING

from unmask.base.optional import lazy_names

if TYPE_CHECKING:
    from unmask.training.pretrain.run import train

__all__ = ["train"]

__getattr__ = lazy_names(
    __name__,
    {
        "unmask.training.pretrain.run": ("train",),
    },
)
