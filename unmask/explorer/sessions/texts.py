"""The texts that were read lately, each measured in the background; bounded by number and memory."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest, UnmaskError
from unmask.explorer.sessions.background import Analyses
from unmask.explorer.sessions.described import TextRead, text_read
from unmask.explorer.sessions.models import AnyModel, Models, ModelSlot, digest, no_attention
from unmask.explorer.wire.tiles import coarsest_maps
from unmask.http.responses import Problem, Refused, cannot
from unmask.http.worker import Job, Watch, Worker
from unmask.interpret import AttentionView
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.attention_statistics import AttentionStatistics, layer_cells
from unmask.interpret.attention.comparison import NO_GLOBAL_TOKENS, GlobalText
from unmask.interpret.attention.layer_statistics import LayerStatistics
from unmask.interpret.geometry.reading import random_baseline, read_texts
from unmask.interpret.words.words import Words, words
from unmask.models.elmo import ElmoModel
from unmask.models.load import Model
from unmask.spec.global_tokens import GlobalTokens, has_global_tokens, trained_global_tokens
from unmask.text import Encoding, Truncation

Value = TypeVar("Value")

Spans = tuple[tuple[int, int], ...]
"""Ranges of characters of a text, half open."""

WAIT_SECONDS = 5.0
"""How long a request waits for a text that is just being read; short texts are ready sooner."""


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


class TextSession:
    """One text in one model. Its tokens are there at once; states and statistics follow in the background."""

    def __init__(
        self, text_id: str, place: ModelSlot, encoding: Encoding, worker: Worker, spans: Spans = ()
    ) -> None:
        self.id = text_id
        self.place = place
        self.reader: AnyModel = place.need_any()
        """The model, which may be an ELMo."""
        self.encoding = encoding
        self.words: Words = words(self.encoding)
        self.global_tokens: GlobalTokens | None = None
        """Those that were chosen; None means those that the head was trained with."""
        if spans:
            self.global_tokens = _global_choice(self.model, encoding, spans)
        self.described: TextRead = text_read(
            text_id, place, self.reader, self.words, spans=spans, global_tokens=self.global_tokens
        )
        self._maps = coarsest_maps(len(encoding))
        self.stated_bytes = _bytes_needed(self.reader, len(encoding), self._maps)
        self.masked: dict[int, ActivationCache] = {}
        """The text with one token masked, of the question asked last."""
        self.cache = Cache()
        """Answers that took long to compute."""
        self._worker = worker
        self._view: AttentionView | None = None
        self._levels: Sequence[object] | None = None
        self._statistics: AttentionStatistics | None = None
        self._next_layer = -1
        self._job: Job | None = None
        self._analyses = Analyses(worker)
        self._settled = threading.Event()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """N, the number of tokens."""
        return len(self.encoding)

    @property
    def model(self) -> Model:
        """The encoder; `Refused` where an ELMo reads the text."""
        if isinstance(self.reader, ElmoModel):
            raise cannot(no_attention(self.place.name))
        return self.reader

    @property
    def layer_count(self) -> int:
        """L."""
        return self.described.layers

    @property
    def head_count(self) -> int:
        """H of the layer with the most heads."""
        return max(self.described.heads)

    def go(self) -> None:
        """Start or resume the work; does nothing if it is running or done."""
        with self._lock:
            if self._job is not None and self._job.phase in ("waiting", "running", "done"):
                return
            self._settled.clear()
            self._job = Job(self._work)
            self._worker.start(self._job)

    def stop(self) -> None:
        """Stop the work in the background; what is finished stays."""
        if self._job is not None:
            self._job.stop()
        self._analyses.stop()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the work has ended, one way or another; False where it has not by then."""
        return self._job is None or self._job.ended.wait(seconds)

    @property
    def layers(self) -> list[LayerStatistics | None]:
        """The statistics of each layer; None where it was not measured yet."""
        statistics = self._statistics
        return [None] * self.layer_count if statistics is None else list(statistics.layers)

    def statistics_now(self) -> AttentionStatistics | None:
        """A snapshot of the statistics; None before any layer is measured."""
        if self._statistics is None:
            return None
        now = copy(self._statistics)
        now.layers = self.layers
        return now

    @property
    def view(self) -> AttentionView:
        """Its attention, once it was read; waits a little for that.

        Raises:
            Refused: it is not read yet, was stopped before it was, or could not be read.
        """
        if isinstance(self.reader, ElmoModel):
            raise cannot(no_attention(self.place.name))
        self._wait_for_reading()
        assert self._view is not None
        return self._view

    @property
    def levels(self) -> Sequence[object]:
        """L + 1 arrays (N, D): the states of every level, the last as the model returns it.

        Raises:
            Refused: as for `view`; an ELMo has states.
        """
        self._wait_for_reading()
        assert self._levels is not None
        return self._levels

    def random_levels(self, watch: Watch) -> Sequence[object]:
        """The same text in a model of the same design with random weights; see `random_baseline`."""
        if isinstance(self.reader, ElmoModel):
            return read_texts(random_baseline(self.reader.encoder), [self.encoding], watch=watch).states
        cache = self.run(random_baseline(self.reader.encoder), self.encoding, watch)
        return cache.levels

    def run(self, encoder: Encoder, encoding: Encoding, watch: Watch) -> ActivationCache:
        """An encoding of as many tokens as the text's, with the same global tokens."""
        return ActivationCache.of(encoder, encoding, global_tokens=self.global_tokens, watch=watch)

    def _wait_for_reading(self) -> None:
        job = self._job
        if self._levels is None and job is not None:
            self._settled.wait(WAIT_SECONDS)
        if self._levels is not None:
            return
        if job is not None and job.problem is not None:
            raise cannot(job.problem.sentence)
        if job is not None and job.phase == "stopped":
            raise cannot("reading this text was stopped; resume it to see its attention")
        raise Refused(409, "NotReady", "this text is still being read; try again in a moment")

    def prioritize(self, layer: int) -> None:
        """Measure that layer next."""
        self._next_layer = layer

    def ask(self, question: Callable[[AttentionView], Value]) -> Value:
        """The answer to a short question about its attention, asked when it is the model's turn."""
        view = self.view
        return self._worker.ask(lambda: question(view))

    def analyse(self, key: Hashable, work: Callable[[AttentionView, Watch], Value]) -> Value:
        """The result of an analysis that may take long, made once; other work continues meanwhile."""
        view = self.view
        return self._analyses.once(key, lambda watch: work(view, watch))

    def analyse_levels(self, key: Hashable, work: Callable[[Sequence[object], Watch], Value]) -> Value:
        """The same for an analysis of states, which an ELMo has too."""
        levels = self.levels
        return self._analyses.once(key, lambda watch: work(levels, watch))

    @property
    def analyses(self) -> Analyses:
        """Its analyses that may take long."""
        return self._analyses

    def layer(self, layer: int) -> LayerStatistics:
        """The statistics of a layer; `Refused` where it was not measured yet."""
        statistics = self.layers[layer]
        if statistics is None:
            raise Refused(409, "NotReady", f"layer {layer} has not been measured yet; try again in a moment")
        return statistics

    def state(self) -> State:
        """Progress of the work."""
        job = self._job
        assert job is not None
        phase = job.phase
        if phase == "running":
            phase = "reading" if self._levels is None else "measuring"
        eta = job.eta_seconds
        return State(
            id=self.id,
            phase=phase,
            what=job.what,
            done=job.done,
            total=job.total,
            ready=self._ready(),
            readable=self._levels is not None,
            seconds=round(job.seconds, 3),
            eta_s=None if eta is None else round(eta, 1),
            peak_bytes=job.peak_bytes,
            stated_bytes=self.stated_bytes,
            problem=job.problem,
        )

    def _ready(self) -> tuple[bool, ...]:
        """An ELMo has nothing to measure once its states are there."""
        if isinstance(self.reader, ElmoModel):
            return (self._levels is not None,) * self.layer_count
        return tuple(layer is not None for layer in self.layers)

    def _work(self, watch: Watch) -> None:
        try:
            if isinstance(self.reader, ElmoModel):
                if self._levels is None:
                    self._levels = read_texts(self.reader.encoder, [self.encoding], watch=watch).states
                return
            if self._view is None:
                self._view = AttentionView(
                    self.reader.encoder, self.encoding, global_tokens=self.global_tokens, watch=watch
                )
                self._levels = self._view.cache.levels
        finally:
            self._settled.set()
        self._statistics = self._view.open_statistics(maps=self._maps)
        self._measure(self._statistics, watch)

    def _measure(self, statistics: AttentionStatistics, watch: Watch) -> None:
        """Every layer: the one that was asked for last, else the cheapest."""
        spec = self.model.spec
        costs = [layer_cells(spec, layer, len(self)) for layer in range(self.layer_count)]
        done = sum(cost for cost, layer in zip(costs, statistics.layers, strict=True) if layer is not None)

        def report(what: str, cells: int, _: int) -> None:
            watch(what, done + cells, sum(costs))

        while waiting := [layer for layer, measured in enumerate(statistics.layers) if measured is None]:
            next_layer = self._next_layer
            chosen = (
                next_layer if next_layer in waiting else min(waiting, key=lambda layer: (costs[layer], layer))
            )
            statistics.measure(report, layers=(chosen,))
            done += costs[chosen]
        watch("measuring", done, done)


def _global_choice(model: Model, encoding: Encoding, spans: Spans) -> GlobalTokens:
    """The tokens of the spans, beside those that the head was trained with, wherever words are masked."""
    if not has_global_tokens(model.spec):
        raise InvalidRequest(NO_GLOBAL_TOKENS)
    trained = trained_global_tokens(model.spec, paired=encoding.pair is not None)
    tokens = GlobalText(spans=spans, beside=trained)(encoding)
    return lambda _: tokens


def _bytes_needed(model: AnyModel, length: int, maps: int) -> int:
    if isinstance(model, ElmoModel):
        return 4 * (model.spec.layers + 1) * length * model.width
    return AttentionStatistics.bytes_needed(model.spec, length, maps=maps)


KEPT_BYTES = 64 << 20
"""The most bytes of the kept answers of a text: 1,024 tiles of 256 x 256 codes."""


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
            while len(self._kept) > 1 and sum(array.nbytes for array in self._kept.values()) > self._limit:
                self._kept.popitem(last=False)

    def of(self, key: Hashable, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """The array of a key, made if it is not kept."""
        array = self.get(key)
        if array is None:
            array = np.asarray(make())
            self.put(key, array)
        return array


TooLong = Literal["error", "cut"]
"""The choice of the page for a text that is longer than the model reads."""

HELD_TEXTS = 8
"""The default number of texts that are held."""
AHEAD_SECONDS = 2.0
"""How long other models wait for the text that is read first."""
HELD_BYTES = 2 << 30
"""The default limit of their memory: 2 GiB, three times 8,192 tokens of ModernBERT-base."""


class Texts:
    """The last ``held_texts`` texts, of ``held_bytes`` together; the one unused for longest leaves first.

    The id of a text depends only on the model and its number, the text and how it was to be read. A page
    whose text has left, or whose server was started again, posts it once more and keeps its id.
    """

    def __init__(self, models: Models, worker: Worker, held_texts: int, held_bytes: int) -> None:
        self.held_texts, self.held_bytes = held_texts, held_bytes
        self._models = models
        self._worker = worker
        self._held: OrderedDict[str, TextSession] = OrderedDict()
        self._lock = threading.Lock()

    def read(
        self, place: ModelSlot, text: str, pair: str | None, too_long: TooLong, spans: Spans = ()
    ) -> TextSession:
        """Begin to read a text, or find it among those held; ``spans`` become global, see `GlobalText`.

        Raises:
            TextError: it cannot be read.
            InvalidRequest: there are spans, and the model has no global tokens or the text no token there.
            Refused: the model is not there, or the text needs more memory than the explorer may hold.
        """
        model = place.need_any()
        text_id = _name(place, text, pair, too_long, spans)
        with self._lock:
            if text_id in self._held:
                self._held.move_to_end(text_id)
                return self._held[text_id]
        encoding = encoded(model, text, pair, too_long)
        session = TextSession(text_id, place, encoding, self._worker, spans)
        if session.stated_bytes > self.held_bytes:
            raise Refused(
                507,
                "TooLarge",
                f"this text's {len(session):,} tokens need {session.stated_bytes / 1e9:.1f} GB of memory and "
                f"the explorer may hold {self.held_bytes / 1e9:.1f} GB; give a shorter text, or start it "
                "with a larger --memory",
            )
        with self._lock:
            first = self._held.setdefault(text_id, session)
            if first is session:
                session.go()
                self._make_room()
            return first

    def get(self, text_id: str) -> TextSession:
        """A text that is held; `Refused` with 404 when it is not."""
        with self._lock:
            session = self._held.get(text_id)
            if session is None:
                raise Refused(404, "UnknownText", "this text is no longer held; send it again")
            self._held.move_to_end(text_id)
            return session

    def forget(self, text_id: str) -> None:
        """Drop a text, held or not; what is being done with it stops."""
        with self._lock:
            session = self._held.pop(text_id, None)
        if session is not None:
            session.stop()

    def _make_room(self) -> None:
        while len(self._held) > 1 and (len(self._held) > self.held_texts or self._bytes() > self.held_bytes):
            _, session = self._held.popitem(last=False)
            session.stop()

    def _bytes(self) -> int:
        return sum(session.stated_bytes for session in self._held.values())


def read_ahead(texts: Texts, place: ModelSlot, text: str) -> None:
    """Read a text before anybody asks for it, and wait a little, so that nothing else slows it down.

    An error is not reported here: the page sends the text too, and gets the same one.
    """
    try:
        texts.read(place, text, None, "error").wait(AHEAD_SECONDS)
    except UnmaskError:
        return


def encoded(model: AnyModel, text: str, pair: str | None, too_long: TooLong) -> Encoding:
    """A text, or a pair, as the tokens of a model."""
    if isinstance(model, ElmoModel):
        if pair is not None:
            raise InvalidRequest(f"{model.name} is an ELMo, which reads one text; leave the second one out")
        return model.tokenizer.encode(text)
    truncation: Truncation = "end" if too_long == "cut" else "error"
    return model.tokenizer.encode(text, pair, max_tokens=model.max_tokens, truncation=truncation)


def _name(place: ModelSlot, text: str, pair: str | None, too_long: TooLong, spans: Spans) -> str:
    # The place counts too: two may hold one checkpoint, one of them trained further in memory.
    pairs = ["alone", ""] if pair is None else ["pair", pair]
    chosen = [f"{start}-{end}" for start, end in spans]
    return digest([str(place.index), place.digest, too_long, text, *pairs, *chosen])[:24]
