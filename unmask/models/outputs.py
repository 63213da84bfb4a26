"""What the encoder computes for every token: hidden states, logits, predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_callable, check_choice, listed
from unmask.base.arguments import whole_number as whole
from unmask.engines.engine import Layers
from unmask.errors import InvalidRequest, InvalidText, quoted
from unmask.models.embeddings import EmbeddingModel
from unmask.models.texts import numbered_or_the
from unmask.spec.global_tokens import GlobalTokens, places
from unmask.tasks import Progress
from unmask.tasks.batches import TOKENS_PER_PASS
from unmask.tasks.hidden_states import checked_ids, checked_places, checked_types, hidden_states
from unmask.tasks.logits import chosen_head, logits
from unmask.tasks.values import Logits
from unmask.text import Truncation

if TYPE_CHECKING:
    from torch import Tensor

    from unmask.tasks.fill import FilledMask
    from unmask.tasks.predict_tokens import TokenPredictions

Ids: TypeAlias = "Sequence[int] | NDArray[np.int64] | Tensor"
"""Token ids of one sequence."""


class OutputModel(EmbeddingModel):
    """The methods of `unmask.models.model.Model` that give hidden states and predictions of tokens."""

    @overload
    def hidden_states(  # type: ignore[overload-overlap]
        self,
        inputs: str,
        *,
        layers: Layers = "last",
        truncation: Truncation = "error",
        global_tokens: GlobalTokens = "none",
        tokens_per_pass: int = TOKENS_PER_PASS,
    ) -> Tensor: ...

    @overload
    def hidden_states(
        self,
        inputs: Sequence[str] | Sequence[Ids],
        token_type_ids: Sequence[Ids] | None = None,
        *,
        layers: Layers = "last",
        truncation: Truncation = "error",
        global_tokens: GlobalTokens | Sequence[Sequence[int]] | None = "none",
        tokens_per_pass: int = TOKENS_PER_PASS,
    ) -> list[Tensor]: ...

    def hidden_states(
        self,
        inputs: str | Sequence[str] | Sequence[Ids],
        token_type_ids: Sequence[Ids] | None = None,
        *,
        layers: Layers = "last",
        truncation: Truncation = "error",
        global_tokens: GlobalTokens | Sequence[Sequence[int]] | None = "none",
        tokens_per_pass: int = TOKENS_PER_PASS,
    ) -> Tensor | list[Tensor]:
        """Hidden states of each text or sequence of ids, on the CPU, float32 (float64 of a float64 model).

        A list of texts or of sequences gives a list of tensors, one string gives one tensor: (N, D) for the
        last layer, or (L + 1, N, D) for all layers, the embedding output first.

        Args:
            inputs: one text, several texts, or one list of token ids per sequence, special tokens included.
            token_type_ids: one list per sequence of ids, 0 by default. Texts get theirs from the tokenizer.
            layers: ``"last"`` or ``"all"``.
            truncation: for texts, see `tokenize`.
            global_tokens: which tokens are global, for encoders with global attention: a named choice, or
                positions for sequences of ids. The default is none, as in the headless `transformers` models.
            tokens_per_pass: the maximum number of tokens per forward pass.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: an id or token type is outside its table, or a sequence is too long.
            NonFiniteResult: a hidden state is infinity or NaN.
        """
        check_choice("layers", layers, ("last", "all"))
        whole("tokens_per_pass", tokens_per_pass, 1)
        some: list[Any] = [inputs] if isinstance(inputs, str) else listed("inputs", inputs)
        marks: Any = None if global_tokens == "none" else global_tokens
        if some and isinstance(some[0], str):
            if token_type_ids is not None:
                raise InvalidRequest(
                    "token_type_ids were given with texts, which have their own; leave them out"
                )
            encodings = self._tokenized(some, None, truncation, numbered_or_the(inputs))
            marks = None if marks is None else [places(one, marks) for one in encodings]
            some, token_type_ids = [one.ids for one in encodings], [one.token_type_ids for one in encodings]
        ids = checked_ids(self.spec, some)
        states = hidden_states(
            self.engine,
            ids,
            None if token_type_ids is None else checked_types(self.spec, token_type_ids, ids),
            layers=layers,
            global_tokens=None if marks is None else checked_places(marks, ids),
            tokens_per_pass=tokens_per_pass,
        )
        import torch

        tensors = [torch.from_numpy(one) for one in states]
        return tensors[0] if isinstance(inputs, str) else tensors

    def logits(
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        *,
        head: str | None = None,
        truncation: Truncation = "error",
        tokens_per_pass: int = TOKENS_PER_PASS,
        global_tokens: GlobalTokens | None = None,
    ) -> Logits:
        """Logits of one of the encoder's heads for each text (or pair of texts).

        Args:
            texts: one text or several; one text gives the logits of a list of one.
            pairs: the second text of each pair.
            head: its role, such as ``"masked"`` or ``"sequence"``; optional if the encoder has one head.
            truncation: see `tokenize`.
            tokens_per_pass: the maximum number of tokens per forward pass.
            global_tokens: which tokens are global, for encoders with global attention; None uses those that
                heads of this role were trained with.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the encoder has no such head.
            NonFiniteResult: a logit is infinity or NaN.
        """
        role = chosen_head(self.spec, head, self.name)
        self._refuse_shared_query(pairs)
        whole("tokens_per_pass", tokens_per_pass, 1)
        encodings = self._tokenized(texts, pairs, truncation, numbered_or_the(texts))
        return logits(
            self.engine, role, encodings, global_tokens=global_tokens, tokens_per_pass=tokens_per_pass
        )

    @overload
    def fill(  # type: ignore[overload-overlap]
        self,
        text: str,
        *,
        top_k: int = 5,
        truncation: Truncation = "error",
        global_tokens: GlobalTokens = "none",
    ) -> tuple[FilledMask, ...]: ...

    @overload
    def fill(
        self,
        text: Sequence[str],
        *,
        top_k: int = 5,
        truncation: Truncation = "error",
        global_tokens: GlobalTokens = "none",
    ) -> list[tuple[FilledMask, ...]]: ...

    def fill(
        self,
        text: str | Sequence[str],
        *,
        top_k: int = 5,
        truncation: Truncation = "error",
        global_tokens: GlobalTokens = "none",
    ) -> tuple[FilledMask, ...] | list[tuple[FilledMask, ...]]:
        """Predictions for every mask token of each text, such as [MASK]; see `unmask.tasks.fill.fill`."""
        name = numbered_or_the(text)
        from unmask.tasks.fill import fill

        filled = fill(
            self.engine,
            self.tokenizer,
            self._tokenized(text, None, truncation, name, masks=True),
            top_k=top_k,
            global_tokens=global_tokens,
            model=self.name,
            name=name,
        )
        return filled[0] if isinstance(text, str) else filled

    def predict_tokens(
        self,
        text: str,
        *,
        top_k: int = 5,
        truncation: Truncation = "error",
        tokens_per_pass: int = TOKENS_PER_PASS,
        progress: Progress | None = None,
    ) -> TokenPredictions:
        """The loss of every token of a text and the best guesses at its place.

        From all other tokens by masking, or from the tokens before if attention is causal; see
        `unmask.tasks.predict_tokens.predict_tokens`.

        Args:
            text: one text.
            top_k: the number of guesses for each token.
            truncation: whether to refuse a text longer than the model's maximum, or to drop its end.
            tokens_per_pass: the maximum number of tokens per forward pass.
            progress: called with (tokens done, tokens in all).

        Raises:
            TextError: the text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no masked-LM head, or an argument is out of range.
            NonFiniteResult: a loss is infinity or NaN.
        """
        if not isinstance(text, str):
            raise InvalidText(f"the text is {quoted(text)}; predict_tokens reads one text, so give a string")
        whole("tokens_per_pass", tokens_per_pass, 1)
        check_callable("progress", progress)
        (encoding,) = self._tokenized(text, None, truncation)
        from unmask.tasks.predict_tokens import predict_tokens

        return predict_tokens(
            self.engine,
            self.tokenizer,
            encoding,
            top_k=top_k,
            tokens_per_pass=tokens_per_pass,
            model=self.name,
            progress=progress,
        )
