"""Hidden states of texts at every depth, and of spans of their characters."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.base.progress import Watch, unwatched
from unmask.encoder.elmo import Elmo, character_ids
from unmask.encoder.encoder import Encoder
from unmask.encoder.hooks import HookPoint
from unmask.encoder.layers.attention import SoftmaxMixer
from unmask.errors import InvalidRequest, NonFiniteResult
from unmask.interpret.geometry.values import generator
from unmask.spec import CausalAttention, SoftmaxAttention
from unmask.spec.global_tokens import pack, trained_global_tokens
from unmask.text import Encoding, SequenceLayout, token_budget_batches

TOKENS_PER_PASS = 2048
WORDS_AT_ONCE = 120
"""Words per chunk of running text; this fits the maximum length of nearly every encoder."""

Network = TypeVar("Network", bound=Encoder | Elmo)
Module = TypeVar("Module", bound=nn.Module)

Range = tuple[int, int, int]
"""A range of characters: the index of the text, its first character, and the one after its last."""


@dataclass(frozen=True, eq=False)
class ReadTexts:
    """Several texts, with their tokens concatenated."""

    encodings: tuple[Encoding, ...]
    states: tuple[NDArray[np.float32], ...]
    """L + 1 arrays (T, D): the input of the first layer, then the output of every layer; the last is the
    output of the encoder, including its final norm if any."""

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """The first row of each text, and the end, (S + 1,)."""
        lengths = np.array([0, *map(len, self.encodings)], dtype=np.int64)
        return lengths.cumsum()

    @cached_property
    def special_T(self) -> NDArray[np.bool_]:
        """Tokens that the tokenizer added."""
        return np.concatenate([encoding.special for encoding in self.encodings])

    def tokens_of(self, part: Range) -> NDArray[np.int64]:
        """Rows of the tokens that cover a character of a range, (M,); empty if there are none."""
        text, start, end = part
        encoding = self.encodings[text]
        covers = (
            (encoding.offsets[:, 0] < end) & (encoding.offsets[:, 1] > start) & (encoding.sequence_ids == 0)
        )
        return np.asarray(np.flatnonzero(covers) + self.offsets[text])

    def mean_states(self, rows: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float64]]:
        """The mean vector of each set of tokens at every depth: L + 1 arrays (M, D)."""
        return [
            np.stack([states_TD[some].mean(0, dtype=np.float64) for some in rows])
            for states_TD in self.states
        ]


def read_texts(
    encoder: Encoder | Elmo, encodings: Sequence[Encoding], *, watch: Watch = unwatched
) -> ReadTexts:
    """Run an encoder over texts and keep the states of every depth, 4 T D (L + 1) bytes.

    An ELMo reads encodings of its own `WordTokenizer`; its states are those of the words, then of every
    recurrent layer. ``watch`` is called as ``watch("reading", texts done, texts)``.

    Raises:
        InvalidRequest: there is no text.
        NonFiniteResult: a state is not finite.
    """
    if not encodings:
        raise InvalidRequest("there is no text to read; give a text with words")
    lengths = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
    starts = np.cumsum([0, *lengths])
    width, depth = _shape(encoder)
    states = tuple(np.empty((int(starts[-1]), width), dtype=np.float32) for _ in range(depth))
    done = 0
    for chosen in token_budget_batches(lengths, TOKENS_PER_PASS):
        watch("reading", done, len(encodings))
        some = [encodings[index] for index in chosen]
        rows = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in chosen])
        levels = _run_elmo(encoder, some) if isinstance(encoder, Elmo) else _run(encoder, some)
        for layer, state_TD in enumerate(levels):
            states[layer][rows] = state_TD.float().cpu().numpy()
        done += len(chosen)
    watch("reading", done, len(encodings))
    if not all(np.isfinite(states_TD).all() for states_TD in states):
        raise NonFiniteResult("a hidden state is not finite; try dtype='float32'")
    return ReadTexts(tuple(encodings), states)


def static_vectors(encoder: Encoder | Elmo, encodings: Sequence[Encoding]) -> ReadTexts:
    """Each token's row of the embedding, without position, norm and projection: one array (T, E) of states.

    Of an ELMo, the vector of a word from its characters.

    Raises:
        InvalidRequest: there is no text.
    """
    if isinstance(encoder, Elmo):
        read = read_texts(encoder, encodings)
        return replace(read, states=read.states[:1])
    if not encodings:
        raise InvalidRequest("there is no text to read; give a text with words")
    ids_T = torch.from_numpy(np.concatenate([encoding.ids for encoding in encodings]))
    with torch.inference_mode():
        words_TE = encoder.embedding.words(ids_T.to(encoder.device)).float().cpu().numpy()
    return ReadTexts(tuple(encodings), (words_TE,))


def random_baseline(encoder: Network, seed: int = 0) -> Network:
    """An encoder or ELMo of the same architecture with random weights in float32, as an untrained baseline.

    Raises:
        InvalidRequest: the seed is negative or has more than 63 bits.
    """
    generator(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        twin = Elmo(encoder.spec) if isinstance(encoder, Elmo) else Encoder(encoder.spec)
    return cast("Network", twin.eval().to(next(encoder.parameters()).device))


def causal_twin(encoder: Encoder) -> Encoder:
    """An encoder with the same weights in which every token attends to itself and to earlier tokens alone.

    The weights are shared, not copied. They were trained with attention in both directions, so the twin shows
    what they compute without later tokens, and not what a causal model would have learned.

    Raises:
        InvalidRequest: a layer has linear attention, or global tokens with projections of their own, or the
            embedding reads the tokens beside each.
    """
    if encoder.spec.embedding.reads_neighbors:
        raise InvalidRequest(
            "later tokens cannot be hidden in this model, whose embedding reads the tokens beside each"
        )
    twin, blocks = _shallow(encoder), nn.ModuleList()
    for block in encoder.layers:
        mixer = _shallow(cast("nn.Module", block.attention))
        if not isinstance(mixer, SoftmaxMixer) or mixer.globals is not None or mixer.spans is not None:
            raise InvalidRequest(
                "later tokens can be hidden in softmax attention without global tokens alone, and this model "
                "has linear attention, global tokens or convolutions"
            )
        mixer.spec = _causal(mixer.spec)
        hidden = _shallow(block)
        hidden.attention = mixer
        blocks.append(hidden)
    twin.layers = blocks
    layers = tuple(replace(layer, mixer=_causal(layer.mixer)) for layer in encoder.spec.layers)
    twin.spec = replace(encoder.spec, layers=layers)
    return twin


def _causal(mixer: Any) -> SoftmaxAttention:
    return cast("SoftmaxAttention", replace(mixer, pattern=CausalAttention()))


def _shallow(module: Module) -> Module:
    """A module of its own with the same parameters and the same modules inside."""
    twin = copy(module)
    twin._modules = dict(module._modules)
    return twin


def stretches(text: str, fits: Callable[[str], bool], words: int = WORDS_AT_ONCE) -> list[str]:
    """Running text split between words into chunks that a model can read, omitting only white space.

    Args:
        text: any text.
        fits: whether the model can read a chunk, for example by its number of tokens.
        words: maximum words per chunk; chunks that do not fit are halved.

    Raises:
        InvalidRequest: a single word does not fit.
    """
    every = text.split()
    chunks: list[str] = []
    waiting = [every[start : start + words] for start in range(0, len(every), words)][::-1]
    while waiting:
        some = waiting.pop()
        joined = " ".join(some)
        if fits(joined):
            chunks.append(joined)
        elif len(some) == 1:
            raise InvalidRequest(f"the word {joined[:40]!r} has more tokens than the model reads; remove it")
        else:
            middle = len(some) // 2
            waiting += [some[middle:], some[:middle]]
    return chunks


def _shape(encoder: Encoder | Elmo) -> tuple[int, int]:
    """The width of a state, and the number of levels."""
    if isinstance(encoder, Elmo):
        return 2 * encoder.spec.width, encoder.spec.layers + 1
    return encoder.spec.width, len(encoder.spec.layers) + 1


def _run_elmo(elmo: Elmo, some: Sequence[Encoding]) -> Tensor:
    words = [word for encoding in some for word in encoding.pieces]
    characters = torch.from_numpy(character_ids(words, elmo.spec.word_characters))
    layout = SequenceLayout.of_lengths([len(encoding) for encoding in some])
    with torch.inference_mode():
        layers_LTD: Tensor = elmo(characters.to(next(elmo.parameters()).device), layout).layers_LTD
    return layers_LTD


def _run(encoder: Encoder, some: Sequence[Encoding]) -> list[Tensor]:
    states: list[Tensor] = []

    def record(place: HookPoint, layer: int, tensor: Tensor) -> None:
        if place in (HookPoint.EMBEDDED, HookPoint.LAYER):
            states.append(tensor.clone())

    global_tokens = trained_global_tokens(encoder.spec, paired=False)
    with torch.inference_mode():
        last_TD = encoder.encode(pack(encoder.spec, some, global_tokens), hook=record)
        return encoder.levels(states, last_TD)
