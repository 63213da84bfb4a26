"""A loaded ELMo (Peters et al. 2018): word representations from a bidirectional LSTM, not a Transformer."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, assert_never, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.arguments import check_callable, check_choice, check_flag, listed, whole_number
from unmask.encoder import heads
from unmask.encoder.elmo import Elmo, WordTokenizer, character_ids
from unmask.errors import EmptyText, InvalidRequest, quoted
from unmask.spec import POOLING_MODES, PooledVector, PoolingMode
from unmask.spec.elmo import ElmoSpec
from unmask.tasks import Progress
from unmask.tasks.batches import TOKENS_PER_PASS, Chosen, batches, require_finite
from unmask.text import Encoding, SequenceLayout
from unmask.text.tokenizer import numbered

ElmoLayers = Literal["mixed", "last", "all"]
"""Which states of a word: the learned mix of all layers, the last layer, or every layer."""

Words = str | Sequence[str]
"""One text: its words, or a string that is split at white space."""


class ElmoModel:
    """A loaded ELMo. Made by `load` with ``family="elmo"``.

    A text is a string, which is split at white space, or a list of its words; the model was trained on text
    with punctuation separated from words. A single string gives the result for one text.
    """

    revision = None
    """No revision is known of its files."""

    def __init__(self, network: Elmo, name: str, folder: Path | None = None) -> None:
        self.network = network
        """The torch module."""
        self.name = name
        self.folder = folder
        """Where its files are; None if it was made in memory."""

    def __repr__(self) -> str:
        return f"<unmask ELMo {self.name}: {self.spec.layers} layers, width {self.width}, on {self.device}>"

    @property
    def spec(self) -> ElmoSpec:
        """The specification of the network."""
        return self.network.spec

    @property
    def encoder(self) -> Elmo:
        """The torch module, by the name that `Model` gives it."""
        return self.network

    @property
    def tokenizer(self) -> WordTokenizer:
        """Divides texts into words and punctuation marks; see `tokenize`."""
        return WordTokenizer()

    @property
    def max_tokens(self) -> None:
        """A text may have any length."""
        return None

    def tokenize(self, texts: Sequence[str]) -> list[Encoding]:
        """Texts as words with their offsets, for `unmask.interpret.geometry`.

        Punctuation marks are words of their own here, as in the text that the model was trained on; `embed`
        and `hidden_states` split strings at white space only.

        Raises:
            TextError: a text has no words.
            InvalidRequest: a text is not a string.
        """
        return self.tokenizer.encode_batch(listed("texts", texts))

    @property
    def parameter_count(self) -> int:
        """Number of weights."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    @property
    def width(self) -> int:
        """The width of one word's state: both directions concatenated."""
        return 2 * self.spec.width

    @property
    def device(self) -> str:
        """Where the weights are."""
        return str(self.network.mix.gamma.device)

    @property
    def dtype(self) -> str:
        """The number format of the weights."""
        return str(self.network.mix.gamma.dtype).removeprefix("torch.")

    @overload
    def hidden_states(  # type: ignore[overload-overlap]
        self, texts: str, *, layers: ElmoLayers = "mixed", tokens_per_pass: int = TOKENS_PER_PASS
    ) -> Tensor: ...

    @overload
    def hidden_states(
        self, texts: Sequence[Words], *, layers: ElmoLayers = "mixed", tokens_per_pass: int = TOKENS_PER_PASS
    ) -> list[Tensor]: ...

    def hidden_states(
        self,
        texts: str | Sequence[Words],
        *,
        layers: ElmoLayers = "mixed",
        tokens_per_pass: int = TOKENS_PER_PASS,
    ) -> Tensor | list[Tensor]:
        """States of every word, on the CPU: (N, E), or with ``layers="all"`` (L + 1, N, E), words first.

        A list of tensors, or one tensor for one string.

        Args:
            texts: one string, or a list of strings or of lists of words.
            layers: see `ElmoLayers`.
            tokens_per_pass: the maximum number of words per forward pass.

        Raises:
            TextError: a text has no words, or a word is not Unicode text.
            InvalidRequest: an argument is not one of those above.
            NonFiniteResult: a state is infinity or NaN.
        """
        check_choice("layers", layers, ("mixed", "last", "all"))
        sentences = sentences_of(texts)
        states = [torch.empty(0)] * len(sentences)
        for chosen, layout in self._batches(sentences, tokens_per_pass):
            x_TD = self._run(sentences, chosen, layout, layers)
            require_finite(
                x_TD.numpy(), chosen, layout.sequence_of_T, "a hidden state", name=numbered, dtype=self.dtype
            )
            for place, index in enumerate(chosen):
                states[index] = x_TD[..., layout.rows(place), :]
        return states[0] if isinstance(texts, str) else states

    def embed(
        self,
        texts: str | Sequence[Words],
        *,
        pooling: PoolingMode = "mean",
        normalize: bool = False,
        tokens_per_pass: int = TOKENS_PER_PASS,
        progress: Progress | None = None,
    ) -> NDArray[np.float32]:
        """One vector per text from the mixed states of its words, float32: (S, E), or (E,) for one string.

        The authors do not define one vector per text; the mean over its words is a common choice.

        Args:
            texts: one string, or a list of strings or of lists of words.
            pooling: how to pool over the words of a text.
            normalize: whether to divide by the Euclidean norm.
            tokens_per_pass: the maximum number of words per forward pass.
            progress: called with (texts done, texts in all).

        Raises:
            TextError: a text has no words, or a word is not Unicode text.
            InvalidRequest: an argument is not one of those above.
            NonFiniteResult: an embedding is infinity or NaN.
        """
        check_choice("pooling", pooling, POOLING_MODES)
        check_flag("normalize", normalize)
        check_callable("progress", progress)
        sentences, output = sentences_of(texts), PooledVector((pooling,), bool(normalize))
        embeddings_SE = np.empty((len(sentences), self.width), dtype=np.float32)
        for chosen, layout in self._batches(sentences, tokens_per_pass, progress):
            x_TD = self._run(sentences, chosen, layout, "mixed")
            e_SE = heads.embed(x_TD, layout, output).float().numpy()
            require_finite(
                e_SE, chosen, np.arange(len(chosen)), "the embedding", name=numbered, dtype=self.dtype
            )
            embeddings_SE[chosen] = e_SE
        return embeddings_SE[0] if isinstance(texts, str) else embeddings_SE

    def _batches(
        self, sentences: list[list[str]], tokens_per_pass: int, progress: Progress | None = None
    ) -> Iterator[tuple[Chosen, SequenceLayout]]:
        def layout(chosen: Chosen) -> SequenceLayout:
            return SequenceLayout.of_lengths([len(sentences[index]) for index in chosen])

        whole_number("tokens_per_pass", tokens_per_pass, 1)
        return batches([len(words) for words in sentences], layout, tokens_per_pass, progress)

    def _run(
        self, sentences: list[list[str]], chosen: Chosen, layout: SequenceLayout, layers: ElmoLayers
    ) -> Tensor:
        words = [word for index in chosen for word in sentences[index]]
        characters = torch.from_numpy(character_ids(words, self.spec.word_characters))
        with torch.inference_mode():
            states = self.network(characters.to(self.device), layout)
            match layers:
                case "mixed":
                    x: Tensor = states.mixed_TD
                case "last":
                    x = states.layers_LTD[-1]
                case "all":
                    x = states.layers_LTD
                case _:
                    assert_never(layers)
            return x.to(torch.promote_types(x.dtype, torch.float32)).cpu()


def sentences_of(texts: object) -> list[list[str]]:
    """The words of each text.

    Raises:
        EmptyText: a text has no words.
        InvalidRequest: a text is not a string or a list of words.
    """
    sentences = []
    for index, text in enumerate([texts] if isinstance(texts, str) else listed("texts", texts)):
        words = text.split() if isinstance(text, str) else listed(numbered(index), text)
        if not all(isinstance(word, str) for word in words):
            raise InvalidRequest(f"{numbered(index)} is {quoted(text)}; give a string or a list of words")
        if not words:
            raise EmptyText(f"{numbered(index)} has no words; give a text with at least one")
        sentences.append(words)
    return sentences
