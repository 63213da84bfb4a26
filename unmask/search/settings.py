"""What an index was made with, as its store keeps it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

from unmask.base.arguments import check_choice, whole_number
from unmask.errors import CorruptIndex, InvalidRequest
from unmask.search.analysis import Analyzer
from unmask.search.models import ModelIdentity
from unmask.search.options import VIEWS, Chunking, Mode, View

FORMAT = 2
"""The number of this layout of settings and arrays. In format 1 the analyzer names no
rules: they are ``words``."""

UNLIMITED = 2**31 - 1
"""The longest passage of a model that reads any length."""

PASSAGE_TOKENS = 256
"""The longest passage by default, if the model reads as many: what most embedding models were trained on."""


@dataclass(frozen=True)
class PassageSettings:
    """How documents are cut into passages."""

    max_tokens: int = PASSAGE_TOKENS
    """The longest passage, special tokens included."""
    overlap_tokens: int = 0
    """Tokens that neighboring passages share."""
    chunking: Chunking = "windows"
    whole: bool = False
    """One passage for each document; the models read its beginning, and what they drop is counted."""

    def __post_init__(self) -> None:
        whole_number("max_tokens", self.max_tokens, 8)
        whole_number("overlap_tokens", self.overlap_tokens, 0, self.max_tokens // 2)
        check_choice("chunking", self.chunking, get_args(Chunking))
        if self.whole and self.chunking == "late":
            raise InvalidRequest("whole documents have no chunks; leave chunking out")


@dataclass(frozen=True)
class IndexSettings:
    """Everything that later additions and searches must do alike."""

    models: Mapping[View, ModelIdentity]
    """The model of each view that has one."""
    analyzer: Analyzer | None
    """The terms of BM25; None without that view."""
    passages: PassageSettings

    @property
    def views(self) -> tuple[View, ...]:
        """The views of every passage, in the order of `VIEWS`."""
        return tuple(
            view for view in VIEWS if view in self.models or (view == "bm25" and self.analyzer is not None)
        )

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes of a search: every view, and several views fused."""
        return (*self.views, "hybrid") if len(self.views) > 1 else self.views

    def stored(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "format": FORMAT,
            "models": {view: model.settings() for view, model in self.models.items()},
            "analyzer": None if self.analyzer is None else asdict(self.analyzer),
            "passages": asdict(self.passages),
        }

    @classmethod
    def of_stored(cls, stored: Mapping[str, Any], name: str) -> "IndexSettings":
        """What `stored` gave.

        Raises:
            CorruptIndex: another version of unmask made the index, or something else did.
        """
        if stored.get("format") not in range(1, FORMAT + 1):
            raise CorruptIndex(
                f"{name} has the format {stored.get('format')!r} and this version of unmask reads 1 to "
                f"{FORMAT}; index again"
            )
        analyzer = stored["analyzer"]
        return cls(
            {view: ModelIdentity.of_settings(value) for view, value in stored["models"].items()},
            None if analyzer is None else Analyzer(**({"rules": "words"} | analyzer)),
            PassageSettings(**stored["passages"]),
        )


def passage_tokens_of(wanted: int | None, longest: int | None, *, late: bool, whole: bool) -> int:
    """The longest passage for models that read ``longest`` tokens.

    Raises:
        InvalidRequest: the model reads fewer tokens than wanted.
    """
    if wanted is None:
        default = UNLIMITED if whole else PASSAGE_TOKENS
        return default if longest is None else min(default, longest)
    whole_number("passage_tokens", wanted, 8)
    if longest is not None and wanted > longest and not late:
        raise InvalidRequest(
            f"passage_tokens is {wanted} and the model reads {longest}; give at most {longest}"
        )
    return wanted
