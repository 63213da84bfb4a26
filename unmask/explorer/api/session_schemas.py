"""The basic schemas of the API: frozen dataclasses, of answers in JSON and of the requests for them.

Those of attention are in `attention_schemas`, of words in `word_schemas`, the others in `analysis_schemas`.
``scripts/page_schema.py`` writes ``types.ts`` (the answers) and ``requests.ts`` (functions that make the
requests) of ``web/src/api`` from them; a test compares the files.
Arrays of numbers are sent as bytes (`unmask.explorer.api.binary`); the classes whose names end in ``Meta``
describe the ``meta`` part of such bytes.
Tokens are counted from 0; ranges are half open; characters are code points of the text.
"""

from dataclasses import dataclass
from typing import Any

from unmask.explorer.api.page_request import PageRequest
from unmask.http.errors import Problem

Json = Any
"""A value that another part defines; the page reads it with types of its own."""


@dataclass(frozen=True)
class ModelInfo:
    """One model of this explorer; sizes are 0 and lists empty until ``phase`` is ``ready``.

    ``phase``: waiting, loading, ready or failed (then ``problem`` says why). ``progress``: the share of a
    download that is there, 0 to 1, if there is one. ``heads`` and ``layer_kinds``
    have one entry a layer. ``maps``: whether there is any attention to draw; ``no_maps`` says why not.
    ``has_global_tokens``: whether a reader can choose words whose tokens become global.
    """

    index: int
    name: str
    phase: str
    problem: Problem | None
    progress: float | None
    revision: str | None
    family: str
    dtype: str
    parameter_count: int
    layers: int
    heads: tuple[int, ...]
    width: int
    max_tokens: int | None
    layer_kinds: tuple[str, ...]
    can_fill: bool
    can_classify: bool
    maps: bool
    no_maps: str | None
    has_global_tokens: bool


@dataclass(frozen=True)
class Limits:
    """What one answer, and the explorer as a whole, will hold."""

    body_bytes: int
    pdf_bytes: int
    values_cells: int
    tile_cells: int
    overview_cells: int
    words: int
    edges: int
    held_texts: int
    held_bytes: int


@dataclass(frozen=True)
class Session:
    """What the page requests first. ``versions`` names the packages that computed what is shown.

    ``index`` is the name of the folder that can be searched, if there is one. The page reads the first of
    ``examples`` if its address names no text. ``loads``: whether it can load other models.
    """

    version: str
    versions: dict[str, str]
    models: tuple[ModelInfo, ...]
    limits: Limits
    index: str | None
    examples: tuple[str, ...]
    loads: bool


@dataclass(frozen=True)
class ModelPreview:
    """A model before it is loaded. ``where``: folder, cache or hub.

    ``memory_bytes``: of its weights, in the number format that it will be loaded in. ``free_bytes``: of this
    machine, None where the system does not tell. ``download_bytes``: 0 for what is on this machine.
    ``sentence`` says all this; ``svg`` is its architecture.
    """

    name: str
    where: str
    family: str
    layers: int
    width: int
    parameter_count: int
    dtype: str
    memory_bytes: int
    free_bytes: int | None
    download_bytes: int
    sentence: str
    svg: str


@dataclass(frozen=True)
class SessionRequest(PageRequest):
    """The versions, the models and the limits."""

    path = "session"
    answer = Session


@dataclass(frozen=True)
class Token:
    """One token; ``start`` and ``end`` count code points of its text, both 0 if ``special``.

    ``word`` is its place in `TextRead.words`, if it is of one. ``category``: special, punctuation, word (the
    first token of one) or piece (a later one).
    """

    id: int
    piece: str
    surface: str
    start: int
    end: int
    special: bool
    in_pair: bool
    word: int | None
    category: str


@dataclass(frozen=True)
class Word:
    """One word of the text: its characters, and its tokens ``first`` to ``stop``."""

    surface: str
    start: int
    end: int
    in_pair: bool
    first: int
    stop: int


@dataclass(frozen=True)
class TextRead:
    """One text as a model reads it. ``id`` names it in later requests; ``heads`` has one entry a layer.

    ``note`` says what a reader must know of it, such as that it is longer than any the model was trained on.
    ``global_spans``: ranges of characters whose tokens were chosen to be global; ``global_tokens``: all that
    are global.
    """

    id: str
    model: str
    model_index: int
    revision: str | None
    dtype: str
    text: str
    pair: str | None
    text_sha256: str
    layers: int
    heads: tuple[int, ...]
    total_tokens: int
    kept_tokens: int
    max_tokens: int | None
    note: str | None
    tokens: tuple[Token, ...]
    words: tuple[Word, ...]
    global_spans: tuple[tuple[int, int], ...]
    global_tokens: tuple[int, ...]


@dataclass(frozen=True)
class PdfText:
    """The text of a PDF file, page after page. ``without_text``: pages that hold a picture and no text."""

    text: str
    pages: int
    without_text: int


@dataclass(frozen=True)
class TextRequest(PageRequest):
    """One text as its model reads it."""

    path = "texts/{text}"
    answer = TextRead

    text: str


@dataclass(frozen=True)
class StampLine:
    """One thing that a number depends on."""

    name: str
    value: str


@dataclass(frozen=True)
class Stamp:
    """What results of a text are made with. ``load``: Python that loads the model; ``date``: in UTC."""

    lines: tuple[StampLine, ...]
    load: str
    date: str


@dataclass(frozen=True)
class StampRequest(PageRequest):
    """What the numbers of a text are made with."""

    path = "texts/{text}/stamp"
    answer = Stamp

    text: str


@dataclass(frozen=True)
class State:
    """How far the background work on a text is.

    ``phase``: waiting, reading, measuring, done, stopped or failed. ``readable``: exact values and tiles can
    be asked for. ``ready``: one entry a layer, whether its statistics are there. ``eta_s`` is None until
    there is something to go by. ``stated_bytes`` was computed before the work began; ``peak_bytes`` is the
    most this process has grown by since then, where the system tells.
    """

    id: str
    phase: str
    what: str
    done: int
    total: int
    ready: tuple[bool, ...]
    readable: bool
    seconds: float
    eta_s: float | None
    peak_bytes: int | None
    stated_bytes: int
    problem: Problem | None


@dataclass(frozen=True)
class StateRequest(PageRequest):
    """How far the background work on a text is."""

    path = "texts/{text}/state"
    answer = State

    text: str
