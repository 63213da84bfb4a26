"""``unmask look --overview``: what a model did with a text, in one sentence each."""

from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING

from unmask.cli.output import console, print_json, progress, safe

if TYPE_CHECKING:
    from unmask.interpret import AttentionView
    from unmask.models.load import Model

WIDTH = 88
"""Characters of a line."""


def show_overview(view: "AttentionView", loaded: "Model", *, json: bool) -> None:
    """Print the findings of a text."""
    from unmask.interpret.effects.target import Embedding
    from unmask.interpret.overview.overview import overview
    from unmask.spec import PooledVector

    head = loaded.checkpoint.head
    pooling = head.pooling if isinstance(head, PooledVector) else ("mean",)
    with progress("steps", 1) as report:
        found = overview(
            view,
            target=Embedding(pooling),
            encoder=partial(loaded.trainable_encoder, replace=False),
            watch=lambda _, done, of: report(done, of),
        )
    if json:
        print_json(found)
        return
    screen = console()
    screen.print(f"[bold]{loaded.name}[/bold], {loaded.layer_count} layers; {len(view)} tokens\n")
    for one in found.findings:
        for line in wrap(one.sentence, WIDTH, initial_indent="- ", subsequent_indent="  "):
            screen.print(safe(line), highlight=False, soft_wrap=True)
