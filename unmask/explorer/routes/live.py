"""A short text with everything that the page draws of it in one answer, fast enough to follow typing.

Axes: A heads of all layers, E width of word embeddings.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.explorer.routes.route import AppContext, Route
from unmask.explorer.sessions.described import TextRead, text_read
from unmask.explorer.sessions.texts import encoded
from unmask.explorer.wire.binary import array_answer
from unmask.explorer.wire.page_request import Arrays, PageRequest
from unmask.http.requests import Request
from unmask.http.responses import Answer
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.rows import LayerRows
from unmask.interpret.geometry.reading import causal_twin
from unmask.interpret.words.words import words
from unmask.text import Encoding

MAX_LIVE_TOKENS = 128
"""Tokens of a text that is read while it is typed. All heads of BERT-base take 9.4 MB then."""

Floats = NDArray[np.float32]
Future = Literal["shown", "hidden"]


@dataclass(frozen=True)
class LiveMeta:
    """The text as its model reads it."""

    read: TextRead


@dataclass(frozen=True)
class LiveReading:
    """States, attention and value norms of a text, float32.

    ``states_LND``: the residual stream at L + 1 levels, the last one as the model returns it.
    ``attention_ANN``: attention of all heads, layer by layer; A is the number of heads of all layers. Rows
    are queries and sum to 1. ``norms_AN``: the norm of what each key adds through each head,
    ``||(x W_V + b_V) W_O||`` (Kobayashi et al. 2020). ``words_NE``: the word embedding of each token, the
    same wherever the token stands.
    """

    states_LND: Floats
    attention_ANN: Floats
    norms_AN: Floats
    words_NE: Floats


@dataclass(frozen=True)
class LiveRequest(PageRequest):
    """A text of at most `MAX_LIVE_TOKENS` tokens, read at once and not held; ``model`` is its number.

    The answer is a `LiveReading`: ``states``, ``attention``, ``norms`` and ``words``. With
    ``future="hidden"`` every token attends to itself and to earlier ones alone, see `causal_twin`.
    """

    path = "live"
    answer = Arrays[LiveMeta]

    model: int
    text: str
    pair: str | None = None
    future: Future = "shown"


def live_reading(encoder: Encoder, encoding: Encoding, heads_of_layers: tuple[int, ...]) -> LiveReading:
    """Everything of one short text in one forward pass."""
    cache, length = ActivationCache.of(encoder, encoding), len(encoding)
    attention_ANN = np.zeros((sum(heads_of_layers), length, length), dtype=np.float32)
    norms, first = [], 0
    for layer, heads in enumerate(heads_of_layers):
        rows = LayerRows(cache, layer)
        layer_HNN = attention_ANN[first : first + heads]
        for block in rows.blocks():
            seen = slice(block.first_column, block.end_column)
            layer_HNN[:, block.first_row : block.end_row, seen] = block.p_HRC.cpu().numpy()
        norms.append(rows.ordinary.norms_HN.float().cpu().numpy())
        first += heads
    states_LND = torch.stack(cache.levels).float().cpu().numpy()
    with torch.no_grad():
        words_NE = encoder.embedding.words(torch.tensor(encoding.ids, device=encoder.device))
    return LiveReading(states_LND, attention_ANN, np.concatenate(norms), words_NE.float().cpu().numpy())


def live(context: AppContext, request: Request) -> Answer:
    """``GET live?model=&text=&pair=&future=``."""
    place = context.models.at(request.number("model", 0, 0, len(context.models.places) - 1))
    model, text = place.need(), request.query.get("text", "")
    encoding = encoded(model, text, request.query.get("pair"), "error")
    if len(encoding) > MAX_LIVE_TOKENS:
        raise InvalidRequest(
            f"the text has {len(encoding):,} tokens, and one that is read while it is typed can have "
            f"{MAX_LIVE_TOKENS}; read it with the button instead"
        )
    read = text_read("live", place, model, words(encoding))
    hidden = request.choice("future", get_args(Future)) == "hidden"
    encoder = causal_twin(model.encoder) if hidden else model.encoder
    reading = context.worker.ask(lambda: live_reading(encoder, encoding, read.heads))
    values = {"states": reading.states_LND, "attention": reading.attention_ANN, "norms": reading.norms_AN}
    return array_answer(values | {"words": reading.words_NE}, LiveMeta(read))


ROUTES = (Route.get(LiveRequest, live),)
