"""The specification of an ELMo. Free of torch."""

from dataclasses import dataclass
from typing import Literal

from unmask.errors import InvalidRequest
from unmask.spec.check import require_at_least, require_positive

MODEL_TYPE = "unmask-elmo"
CONFIG = "config.json"


@dataclass(frozen=True)
class ElmoSpec:
    """Everything that determines the tensors and outputs of an ELMo; defaults are the published values."""

    characters: int = 261
    """Rows of the character table: the 256 bytes and five marks."""
    character_width: int = 16
    word_characters: int = 50
    """Characters of a word, marks and padding included; longer words are truncated, as published."""
    filters: tuple[tuple[int, int], ...] = (
        *((1, 32), (2, 32), (3, 64), (4, 128)),
        *((5, 256), (6, 512), (7, 1024)),
    )
    """Convolutions over characters: the width and the number of filters of each."""
    activation: Literal["relu", "tanh"] = "relu"
    highways: int = 2
    width: int = 512
    """D, of words and of each direction's states; outputs are 2 D wide."""
    cell_width: int = 4096
    layers: int = 2
    """Recurrent layers of each direction; outputs have one more, the words themselves."""
    cell_clip: float = 3.0
    """Cells are clipped to this absolute value."""
    state_clip: float = 3.0
    """Projected states are clipped to this absolute value."""

    def __post_init__(self) -> None:
        for name in ("characters", "character_width", "width", "cell_width", "layers"):
            require_at_least(f"ElmoSpec.{name}", getattr(self, name), 1)
        require_at_least("ElmoSpec.highways", self.highways, 0)
        require_positive("ElmoSpec.cell_clip", self.cell_clip)
        require_positive("ElmoSpec.state_clip", self.state_clip)
        if not self.filters or any(width < 1 or count < 1 for width, count in self.filters):
            raise InvalidRequest(f"ElmoSpec.filters is {self.filters}; give pairs of a width and a number")
        widest = max(width for width, _ in self.filters)
        require_at_least("ElmoSpec.word_characters", self.word_characters, max(3, widest))
