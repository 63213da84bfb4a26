"""Arrays on disk that survive: generations of immutable segments, checked against their checksums.

The folder of an index::

    CURRENT                     the number and the SHA-256 of the current generation's manifest
    generations/000012.json     a manifest: segments, their arrays, checksums and deleted rows
    segments/000012-001.arrays  the arrays of one segment, end to end
    segments/000012-001.crc32   a CRC-32 for every 64 KiB of them
    lock                        locked by the one process that writes

Only ``CURRENT`` is ever replaced, by a rename after everything that it leads to is on disk; all other files
are written once under a new name. A writer that is killed leaves files that no manifest names, and the next
writer removes them.
"""

from unmask.search.store.generation import Check, Generation, Segment
from unmask.search.store.store import Store
from unmask.search.store.writer import Writer, writing

__all__ = ["Check", "Generation", "Segment", "Store", "Writer", "writing"]
