"""Tile sizes of packed attention by head width, dtype and features: data, without Triton.

Chosen so that products run on whole warp groups of a Hopper GPU and nothing spills, but 16 bytes in float32
with heads wider than 64 and dropout; `tests/contracts/test_triton_compiles.py` checks this. A table
rather than a search at run time: the first batch is as fast as the last, and the interpreter reads it too.
"""

from dataclasses import dataclass
from typing import Literal

TILE = 128
"""Rows of a tile in a plan, which is made before head width and dtype are known; kernels split it."""

GROUPS = (64, 128)
"""Tokens of a group of short sequences, which one program holds."""

Path = Literal["forward_short", "backward_short", "forward_long", "backward_rows", "backward_columns"]

Burden = Literal["plain", "terms", "rich"]
"""Extra work of a tile: none; a window's mask or ALiBi; a dilated window, or dropout."""


@dataclass(frozen=True)
class Tiles:
    """One program's tile: queries by keys, its warps, and its pipeline stages."""

    rows: int
    columns: int
    warps: int
    stages: int


def burden_of(*, window: bool, dilated: bool, alibi: bool, dropout: bool) -> Burden:
    """The column of the table."""
    if dilated or dropout:
        return "rich"
    return "terms" if window or alibi else "plain"


def short_tiles(size: int, width: int, exact: bool, burden: Burden) -> Tiles | None:
    """Tiles for groups of ``size`` tokens; None if they do not fit into registers and splitting is better."""
    if exact:
        return Tiles(size, size, 8, 1) if size == 64 and width <= 32 and burden != "rich" else None
    if size == 64:
        return Tiles(size, size, 4, 1)
    return None if burden == "rich" else Tiles(size, size, 8, 1)


def long_tiles(path: Path, width: int, exact: bool, burden: Burden) -> Tiles:
    """Tiles of long sequences, with heads padded to ``width``."""
    if exact:
        # Outside the tensor cores every operand of a product is in registers, so tiles are small.
        return Tiles(16, 16, 4 if width <= 64 else 8, 1)
    by_burden = HALF[path][max(32, width)]
    heavier = BURDENS[BURDENS.index(burden) :]
    return next(by_burden[other] for other in heavier if other in by_burden)


BURDENS: tuple[Burden, ...] = ("plain", "terms", "rich")
"""Lightest first."""

HALF: dict[Path, dict[int, dict[Burden, Tiles]]] = {
    "forward_long": {
        32: {"rich": Tiles(128, 64, 8, 3)},
        64: {"plain": Tiles(128, 128, 4, 3), "rich": Tiles(128, 64, 8, 3)},
        128: {"rich": Tiles(128, 64, 8, 3)},
    },
    "backward_rows": {
        32: {"rich": Tiles(128, 64, 8, 3)},
        64: {"rich": Tiles(128, 64, 8, 3)},
        128: {"terms": Tiles(128, 64, 8, 2), "rich": Tiles(64, 64, 8, 2)},
    },
    "backward_columns": {
        32: {"rich": Tiles(64, 128, 8, 3)},
        64: {"terms": Tiles(64, 128, 8, 3), "rich": Tiles(32, 128, 8, 3)},
        128: {"rich": Tiles(32, 128, 8, 2)},
    },
}
"""bfloat16 and float16, by padded head width (16 uses 32); a missing entry uses the next."""
