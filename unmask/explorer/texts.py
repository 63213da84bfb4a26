"""The texts that were read lately: a bounded store, and the one thread that asks the model."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from unmask.explorer.interface import ExplorableModel, ExplorableView
from unmask.explorer.problems import Refused
from unmask.text.encoding import TooLong

Answer = TypeVar("Answer")

HELD_TEXTS = 8
"""Texts held unless said otherwise; each keeps its queries and keys, some megabytes."""


class Texts:
    """Views of the last ``limit`` texts; the one unused for longest leaves first.

    All model work goes through `work`, a single thread: the event loop stays free, and a model
    never runs twice at once.
    """

    def __init__(self, model: ExplorableModel, limit: int) -> None:
        self._model = model
        self._limit = limit
        self._views: OrderedDict[str, ExplorableView] = OrderedDict()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="unmask-explorer")

    async def work(self, task: Callable[[], Answer]) -> Answer:
        """Run a task in the model's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, task)

    async def read(self, text: str, too_long: TooLong) -> tuple[str, ExplorableView]:
        """Read a text, or find it among those read before. Returns its id and its view.

        The id depends only on the model, the text and ``too_long``: a page whose text has left
        the store posts it again and goes on under the same id.
        """
        text_id = self._name(text, too_long)
        view = self._views.get(text_id)
        if view is None:
            view = await self.work(lambda: self._model.attention(text, too_long=too_long))
        self._views[text_id] = view
        self._views.move_to_end(text_id)
        while len(self._views) > self._limit:
            self._views.popitem(last=False)
        return text_id, view

    def get(self, text_id: str) -> ExplorableView:
        """The view of a text; `Refused` with 404 when it has left the store."""
        view = self._views.get(text_id)
        if view is None:
            raise Refused(404, "UnknownText", "this text is no longer held; send it again")
        self._views.move_to_end(text_id)
        return view

    def forget(self, text_id: str) -> None:
        """Drop a text, held or not."""
        self._views.pop(text_id, None)

    def _name(self, text: str, too_long: TooLong) -> str:
        parts = (self._model.name, self._model.revision or "", too_long, text)
        # A lone surrogate has no UTF-8 form; the model is the one to refuse it, in a sentence.
        data = "\0".join(parts).encode("utf-8", "surrogatepass")
        return hashlib.sha256(data).hexdigest()[:24]
