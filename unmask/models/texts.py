"""Texts to tokens: where every method of a loaded checkpoint that takes texts begins."""

import warnings
from collections.abc import Callable, Sequence
from typing import get_args, overload

from unmask.base.arguments import check_choice, listed
from unmask.errors import BeyondTraining, InvalidRequest
from unmask.models.retrieval import RetrievalModel
from unmask.text import Encoding, Truncation
from unmask.text.tokenizer import numbered


class TextModel(RetrievalModel):
    """The methods of `unmask.models.model.Model` that tokenize."""

    @overload
    def tokenize(  # type: ignore[overload-overlap]
        self,
        texts: str,
        pairs: str | None = None,
        *,
        truncation: Truncation = "error",
        name: Callable[[int], str] = numbered,
    ) -> Encoding: ...

    @overload
    def tokenize(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        truncation: Truncation = "error",
        name: Callable[[int], str] = numbered,
    ) -> list[Encoding]: ...

    def tokenize(
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        *,
        truncation: Truncation = "error",
        name: Callable[[int], str] = numbered,
    ) -> Encoding | list[Encoding]:
        """Tokenize each text (or pair of texts), limited to the model's maximum length.

        Warns with `BeyondTraining` if a text is longer than any in training and the model can still read it.

        Args:
            texts: one text or several.
            pairs: the second text of each pair.
            truncation: ``"error"`` refuses a text of more than `max_tokens` tokens; ``"end"`` truncates it,
                and the encoding reports how many tokens were dropped.
            name: how error messages name the text at an index.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
        """
        if name is numbered:
            name = numbered_or_the(texts)
        encodings = self._tokenized(texts, pairs, truncation, name)
        return encodings[0] if isinstance(texts, str) else encodings

    def _tokenized(
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        truncation: Truncation = "error",
        name: Callable[[int], str] = lambda _: "the text",
        *,
        masks: bool = False,
    ) -> list[Encoding]:
        """Like `tokenize`, but always a list.

        With ``masks``, typed mask tokens are ids in any case.
        """
        check_choice("truncation", truncation, get_args(Truncation))
        if isinstance(texts, str):
            if not isinstance(pairs, str | None):
                raise InvalidRequest(
                    "one text and a list of pairs were given; give one pair, or lists of both"
                )
            texts, pairs = [texts], None if pairs is None else [pairs]
        tokenizer = self.tokenizer.with_masks if masks else self.tokenizer
        encodings = tokenizer.encode_batch(
            listed("texts", texts),
            pairs if pairs is None else listed("pairs", pairs),
            max_tokens=self.max_tokens,
            truncation=truncation,
            name=name,
        )
        trained = self.checkpoint.trained_tokens
        longest = max(map(len, encodings), default=0)
        if trained is not None and longest > trained:
            warnings.warn(
                f"a text has {longest} tokens and the model was trained on at most {trained}; "
                "it is read in full",
                BeyondTraining,
                stacklevel=3,
            )
        return encodings


def numbered_or_the(texts: object) -> Callable[[int], str]:
    """The function by which error messages name a text: by its number, or "the text" if there is only one."""
    return (lambda _: "the text") if isinstance(texts, str) else numbered
