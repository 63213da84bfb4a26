"""Whether the word that a word attends to most is the right one, for every head (Clark et al. 2019).

Attention between words is summed over the tokens of the word attended to and averaged over the tokens of the
word that attends. What is right comes from the caller: a parse, coreference chains, anything between words.

Axes: W words; M questions.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.files import whole_file
from unmask.base.progress import Watch, unwatched
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.interpret.activation_cache import check_attention
from unmask.interpret.corpus.batch import EqualLengthBatch
from unmask.interpret.corpus.measure import batches
from unmask.text import Encoding

TEXTS_BETWEEN_WRITES = 256
"""Texts after which what is known is written to the cache."""

MAGIC = b"unmask word links 2\n"
"""The number changes when the same texts would give other answers."""


@dataclass(frozen=True, eq=False)
class LinkedText:
    """One text of W words and M questions of the form: which candidate does this word attend to most?"""

    encoding: Encoding
    """Made by `Tokenizer.encode_words`."""
    source_M: NDArray[np.int64]
    """The word that each question is about."""
    backward_M: NDArray[np.bool_]
    """True: which candidate attends to this word most, instead."""
    candidates_MW: NDArray[np.bool_]
    accepted_MW: NDArray[np.bool_]
    """The candidates that are right."""

    def __len__(self) -> int:
        return len(self.source_M)


def right_answers(
    encoder: Encoder,
    texts: Sequence[LinkedText],
    *,
    cache: Path | None = None,
    identity: str = "",
    watch: Watch | None = None,
) -> NDArray[np.bool_]:
    """For every head and question whether the most attended candidate is right, (L, H, M), texts in order.

    Of equally attended candidates the first in the text counts. Heads that a layer does not have are False.

    Args:
        encoder: what reads the texts.
        texts: see `LinkedText`; whole maps of a layer are held for a moment, so texts should be short.
        cache: a file in which what is known is kept, and from which it is resumed.
        identity: of the model, for the cache.
        watch: called after each layer of a batch with the texts done and in all.

    Raises:
        UnknownArchitecture: the encoder has no attention.
        InvalidRequest: there is no question, or the cache is a file of something else.
        NonFiniteResult: a state is infinite or not a number.
        OutputError: the cache cannot be written.
        Cancelled: ``watch`` stopped the work; what was written to the cache stays.
    """
    check_attention(encoder, "score")
    if not any(map(len, texts)):
        raise InvalidRequest("the texts have no links to score; give texts with some")
    heads = [layer.mixer.heads for layer in encoder.spec.layers]
    starts = np.cumsum([0, *map(len, texts)])
    right_LHM = np.zeros((len(heads), max(heads), int(starts[-1])), dtype=np.bool_)
    key = _key(texts, identity, right_LHM.shape) if cache is not None else ""
    done_S = _resumed(cache, key, right_LHM, len(texts))
    watch, since = watch or unwatched, 0
    encodings = {number: text.encoding for number, text in enumerate(texts)}
    waiting = [number for number in encodings if not done_S[number] and len(texts[number])]
    for numbers in batches(encodings, waiting, encoder):
        before = int(done_S.sum())
        batch = EqualLengthBatch.run(encoder, [encodings[number] for number in numbers], unwatched)
        for layer in range(len(heads)):
            p_SHNN, _ = batch.attention(layer)
            for number, p_HNN in zip(numbers, p_SHNN, strict=True):
                accepted_HM = _right(texts[number], p_HNN)
                right_LHM[layer, : heads[layer], starts[number] : starts[number + 1]] = accepted_HM
            watch("reading texts", before + len(numbers) * (layer + 1) // len(heads), len(texts))
        done_S[numbers] = True
        since += len(numbers)
        if cache is not None and since >= TEXTS_BETWEEN_WRITES:
            _write(cache, key, right_LHM, done_S)
            since = 0
    if cache is not None and since:
        _write(cache, key, right_LHM, done_S)
    watch("reading texts", len(texts), len(texts))
    return right_LHM


def word_maps(encoding: Encoding, p_HNN: Tensor) -> Tensor:
    """Attention between the words of `Tokenizer.encode_words`, (H, W, W); a word without tokens has 0."""
    assert encoding.words is not None
    count = int(encoding.words.max()) + 1
    of_word_NW = torch.from_numpy(encoding.words[:, None] == np.arange(count)).to(p_HNN)
    tokens_W = of_word_NW.sum(0).clamp_min(1)
    return (of_word_NW / tokens_W).mT @ (p_HNN @ of_word_NW)


def _right(text: LinkedText, p_HNN: Tensor) -> NDArray[np.bool_]:
    p_HWW = word_maps(text.encoding, p_HNN)
    words = p_HWW.shape[-1]  # words behind it have no token
    source_M = torch.from_numpy(text.source_M)
    backward_M11 = torch.from_numpy(text.backward_M)[:, None]
    attention_HMW = torch.where(backward_M11, p_HWW.mT[:, source_M], p_HWW[:, source_M])
    attention_HMW = attention_HMW.masked_fill(~torch.from_numpy(text.candidates_MW[:, :words]), -1)
    best_HM = attention_HMW.argmax(-1).numpy()
    return np.asarray(text.accepted_MW[np.arange(len(text)), best_HM])


def _key(texts: Sequence[LinkedText], identity: str, shape: tuple[int, ...]) -> str:
    digest = hashlib.sha256(MAGIC + f"{identity} {shape}".encode())
    for text in texts:
        for array in (
            text.encoding.ids,
            text.source_M,
            text.backward_M,
            text.candidates_MW,
            text.accepted_MW,
        ):
            digest.update(f"{array.shape} {array.dtype}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _resumed(cache: Path | None, key: str, right_LHM: NDArray[np.bool_], texts: int) -> NDArray[np.bool_]:
    """The texts that are done, with answers written into ``right_LHM``; none if the file is another one."""
    done_S = np.zeros(texts, dtype=np.bool_)
    if cache is None or not cache.is_file():
        return done_S
    data = cache.read_bytes()
    if data and not data.startswith(MAGIC):
        raise InvalidRequest(f"{cache} holds something else than progress of this work; name another file")
    data = data[len(MAGIC) :]
    digest, body = data[:32], data[32:]
    if hashlib.sha256(body).digest() != digest:
        return done_S
    with np.load(BytesIO(body), allow_pickle=False) as stored:
        if str(stored["key"]) != key:
            return done_S
        right_LHM[:] = np.unpackbits(stored["right"], count=right_LHM.size).reshape(right_LHM.shape)
        return np.asarray(stored["done"])


def _write(cache: Path, key: str, right_LHM: NDArray[np.bool_], done_S: NDArray[np.bool_]) -> None:
    stream = BytesIO()
    np.savez(stream, key=np.array(key), right=np.packbits(right_LHM), done=done_S)
    with whole_file(cache) as partial:
        partial.write_bytes(MAGIC + hashlib.sha256(stream.getvalue()).digest() + stream.getvalue())
