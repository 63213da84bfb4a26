"""The texts that were read lately: a store bounded by number and by memory."""

import threading
from collections import OrderedDict
from typing import Literal

from unmask.errors import InvalidRequest, UnmaskError
from unmask.explorer.sessions.identity import digest
from unmask.explorer.sessions.models import AnyModel, Models, ModelSlot
from unmask.explorer.sessions.text_session import Spans, TextSession
from unmask.http.errors import Refused
from unmask.http.worker import Worker
from unmask.models.elmo import ElmoModel
from unmask.text import Encoding, Truncation

TooLong = Literal["error", "cut"]
"""What the page asks to be done with a text that the model cannot read whole."""

HELD_TEXTS = 8
"""Texts held unless said otherwise."""
AHEAD_SECONDS = 2.0
"""How long other models wait for the text that is read first."""
HELD_BYTES = 2 << 30
"""What they may hold together unless said otherwise: 2 GiB, three times 8,192 tokens of ModernBERT-base."""


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
        encoding = _encoded(model, text, pair, too_long)
        reading = TextSession(text_id, place, encoding, self._worker, spans)
        if reading.stated_bytes > self.held_bytes:
            raise Refused(
                507,
                "TooLarge",
                f"this text's {len(reading):,} tokens need {reading.stated_bytes / 1e9:.1f} GB of memory and "
                f"the explorer may hold {self.held_bytes / 1e9:.1f} GB; give a shorter text, or start it "
                "with a larger --memory",
            )
        with self._lock:
            first = self._held.setdefault(text_id, reading)
            if first is reading:
                reading.go()
                self._make_room()
            return first

    def get(self, text_id: str) -> TextSession:
        """A text that is held; `Refused` with 404 when it is not."""
        with self._lock:
            reading = self._held.get(text_id)
            if reading is None:
                raise Refused(404, "UnknownText", "this text is no longer held; send it again")
            self._held.move_to_end(text_id)
            return reading

    def forget(self, text_id: str) -> None:
        """Drop a text, held or not; what is being done with it stops."""
        with self._lock:
            reading = self._held.pop(text_id, None)
        if reading is not None:
            reading.stop()

    def _make_room(self) -> None:
        while len(self._held) > 1 and (len(self._held) > self.held_texts or self._bytes() > self.held_bytes):
            _, reading = self._held.popitem(last=False)
            reading.stop()

    def _bytes(self) -> int:
        return sum(reading.stated_bytes for reading in self._held.values())


def read_ahead(texts: Texts, place: ModelSlot, text: str) -> None:
    """Read a text before anybody asks for it, and wait a little, so that nothing else slows it down.

    An error is not reported here: the page sends the text too, and gets the same one.
    """
    try:
        texts.read(place, text, None, "error").wait(AHEAD_SECONDS)
    except UnmaskError:
        return


def _encoded(model: AnyModel, text: str, pair: str | None, too_long: TooLong) -> Encoding:
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
