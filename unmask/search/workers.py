"""Views of documents, computed by this process or by several."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from unmask.base.processes import compute, process_pool
from unmask.models.load import Model, load
from unmask.search.adding import ComputedDocuments, SegmentBuilder, batches
from unmask.search.documents.values import Document
from unmask.search.options import View
from unmask.search.settings import IndexSettings

Computed = tuple[list[Document], ComputedDocuments]


def computed(
    documents: Iterable[Document], settings: IndexSettings, models: Mapping[View, Model], workers: int = 1
) -> Iterator[Computed]:
    """Documents in groups, with their views, in the given order.

    Groups are the same with any number of workers, and each is computed alone, so the results are, too.

    Raises:
        ProcessLost: a worker was ended from outside.
    """
    groups = batches(documents)
    if workers == 1:
        builder = SegmentBuilder(settings, models)
        for group in groups:
            yield group, builder.compute(group)
        return
    lost = (
        "a worker ended while it computed documents, perhaps for lack of memory; "
        "give the same command again, with fewer --workers if memory is short"
    )
    with process_pool(workers, _Worker(settings, models), lost) as pool:
        started = ((group, pool.submit(compute, group)) for group in groups)
        # Each worker has a group ready beside the one that it computes, and memory is bounded.
        waiting = deque(islice(started, 2 * workers))
        while waiting:
            group, future = waiting.popleft()
            yield group, future.result()
            waiting.extend(islice(started, 1))


class _Worker:
    """What a worker process holds: the models, read from their files when it computes its first group."""

    def __init__(self, settings: IndexSettings, models: Mapping[View, Model]) -> None:
        self._settings = settings
        self._models = {view: model.load_arguments() for view, model in models.items()}
        self._builder: SegmentBuilder | None = None

    def __call__(self, documents: list[Document]) -> ComputedDocuments:
        if self._builder is None:
            from unmask.engines.native.threads import set_thread_count

            set_thread_count(1)
            models: dict[View, Any] = {view: load(**options) for view, options in self._models.items()}
            self._builder = SegmentBuilder(self._settings, models)
        return self._builder.compute(documents)
