"""The methods of a loaded checkpoint that show what pretraining does with a text."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import InvalidRequest, InvalidText, quoted
from unmask.models.outputs import OutputModel
from unmask.weights import find, read_checkpoint

if TYPE_CHECKING:
    from unmask.text import Encoding
    from unmask.training.objectives.masking import MaskingSpec
    from unmask.training.view.values import MaskedView, MaskEpochs, ReplacedView, SentencePairView


class PretrainingModel(OutputModel):
    """The methods of `unmask.models.model.Model` that show objectives of pretraining on a text."""

    def masked_view(
        self,
        text: str,
        *,
        seed: int = 0,
        epoch: int = 1,
        masking: "MaskingSpec | Mapping[str, Any] | None" = None,
        top_k: int = 5,
    ) -> "MaskedView":
        """One step of masked language modeling on a text: what is corrupted, and the loss of each target.

        Args:
            text: one text of at most the model's maximum number of tokens.
            seed: determines the masks, together with ``epoch``.
            epoch: the pass over the text, from 1; each draws another mask.
            masking: settings of masking, or a dictionary with keys of a run file's table such as
                ``{"rate": 0.3, "mask_unit": "word"}``; None for BERT's.
            top_k: the number of predictions for each target.

        Raises:
            TextError: the text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no masked-LM head, or an argument is out of range.
            NonFiniteResult: a loss is infinity or NaN.
        """
        from unmask.training.view.masked import masked_view

        return masked_view(
            self.engine,
            self.tokenizer,
            self._one_text("masked_view", text),
            masking=_masking(masking),
            seed=seed,
            epoch=epoch,
            top_k=top_k,
            model=self.name,
        )

    def mask_epochs(
        self,
        text: str,
        *,
        epochs: int = 10,
        static_masks: int = 10,
        seed: int = 0,
        masking: "MaskingSpec | Mapping[str, Any] | None" = None,
    ) -> "MaskEpochs":
        """Which tokens of a text are predicted in each epoch, with static and with dynamic masks.

        It needs no head. See `unmask.training.view.masked.mask_epochs`.

        Args:
            text: one text.
            epochs: the number of epochs.
            static_masks: the number of fixed masks of the text (10 in BERT's data; 1 repeats one mask).
            seed: determines the masks.
            masking: see `masked_view`.

        Raises:
            TextError: the text is empty, too long, or not Unicode text.
            InvalidRequest: the tokenizer lacks a special token, or an argument is out of range.
        """
        from unmask.training.view.masked import mask_epochs

        return mask_epochs(
            self.tokenizer,
            self._one_text("mask_epochs", text),
            masking=_masking(masking),
            seed=seed,
            epochs=epochs,
            static_masks=static_masks,
        )

    def replaced_view(
        self,
        text: str,
        replacement: str | None = None,
        *,
        generator: "OutputModel | str | Path | None" = None,
        seed: int = 0,
        epoch: int = 1,
        masking: "MaskingSpec | Mapping[str, Any] | None" = None,
    ) -> "ReplacedView":
        """The probability of every token that it was replaced, by a detector (ELECTRA, DeBERTa v3).

        Args:
            text: one text.
            replacement: the text with words replaced by the reader.
            generator: a loaded model or a folder with a masked-LM head and the same vocabulary, whose samples
                replace masked tokens as in training. With neither, nothing is replaced.
            seed: determines masks and samples, together with ``epoch``.
            epoch: the pass over the text, from 1.
            masking: settings of masking as in `masked_view`; None for ELECTRA's.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no such head, the generator has another vocabulary, or both a
                replacement and a generator are given.
            CheckpointError: the generator cannot be loaded.
            NonFiniteResult: a score is infinity or NaN.
        """
        from unmask.training.view.replaced import (
            replaced_by_generator,
            replaced_by_reader,
            require_detector,
        )

        require_detector(self.spec, self.name)
        encoding = self._one_text("replaced_view", text)
        if generator is None:
            written = None if replacement is None else self._one_text("replaced_view", replacement)
            return replaced_by_reader(self.engine, self.tokenizer, encoding, written, model=self.name)
        if replacement is not None:
            raise InvalidRequest("a replacement and a generator were given; give one of them")
        if isinstance(generator, OutputModel):
            made, words = generator.trainable_encoder(replace=False), generator.tokenizer
        else:
            from unmask.weights.build import build

            checkpoint = read_checkpoint(find(generator))
            made, words = build(checkpoint), checkpoint.tokenizer
        return replaced_by_generator(
            self.engine,
            self.tokenizer,
            encoding,
            made,
            words,
            masking=None if masking is None else _masking(masking),
            seed=seed,
            epoch=epoch,
            model=self.name,
        )

    def sentence_pair_view(self, first: str, second: str) -> "SentencePairView":
        """Whether the second text follows the first, by a next-sentence or sentence-order head.

        The result holds both orders, and the first text before 16 unrelated sentences as a baseline.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no such head.
            NonFiniteResult: a logit is infinity or NaN.
        """
        from unmask.training.view.pairs import pair_task, sentence_pair_view

        pair_task(self.spec, self.name)
        return sentence_pair_view(
            self.engine,
            self.tokenizer,
            self._one_text("sentence_pair_view", first),
            self._one_text("sentence_pair_view", second),
            model=self.name,
        )

    def _one_text(self, method: str, text: str) -> "Encoding":
        if not isinstance(text, str):
            raise InvalidText(f"the text is {quoted(text)}; {method} reads one text, so give a string")
        (encoding,) = self._tokenized(text, None, "error")
        return encoding


def _masking(given: "MaskingSpec | Mapping[str, Any] | None") -> "MaskingSpec | None":
    from unmask.training.objectives.masking import MaskingSpec
    from unmask.training.table import read_table

    if given is None or isinstance(given, MaskingSpec):
        return given
    return read_table(MaskingSpec, given, "masking")
