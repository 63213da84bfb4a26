"""Answers that took long, kept while there is room."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEPT_BYTES = 64 << 20
"""What one text's kept answers may hold: 1,024 tiles of 256 x 256 codes."""


class Cache:
    """Arrays by key, up to a number of bytes; the one unused for longest leaves first."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._limit = limit
        self._kept: OrderedDict[Hashable, NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> NDArray[Any] | None:
        """The array of a key, if it is still kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Hashable, array: NDArray[Any]) -> None:
        """Keep an array; it must not be changed afterwards."""
        with self._lock:
            self._kept[key] = array
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and sum(one.nbytes for one in self._kept.values()) > self._limit:
                self._kept.popitem(last=False)

    def of(self, key: Hashable, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """The array of a key, made if it is not kept."""
        found = self.get(key)
        if found is None:
            found = np.asarray(make())
            self.put(key, found)
        return found
