"""`transformers` with its `Trainer`: masked language models and classifiers trained the way its users do."""

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers.engine import absent
from benchmarks.peers.our_training import CLASSES

NOT_PREDICTED = -100
"""The label of a token without a loss."""


def unavailable() -> str | None:
    """Why it cannot train; None if it can."""
    return absent(("transformers", "accelerate"))


class TrainerRun:
    """A model trained by `transformers.Trainer` with DataCollatorForLanguageModeling, or as a classifier with
    DataCollatorWithPadding: padding to the longest text of a batch, fused AdamW, no checkpoints and no logs.

    Args:
        folder: the checkpoint folder.
        work: an output folder for Trainer.
        ids: the texts of a round, special tokens included.
        sequences: texts per step.
        autocast: whether products are in bfloat16 (``bf16=True``); otherwise everything is float32.
        grouped: whether texts of similar length share a batch
            (``train_sampling_strategy="group_by_length"``).
        roles: special tokens by role, such as ``mask``.
        masked: fraction of tokens to mask; None trains a classifier, see `our_training.CLASSES`.
        optimizer: keyword arguments of TrainingArguments.
        seed: seed of the order of texts and of masks.
    """

    def __init__(
        self,
        folder: Path,
        work: Path,
        ids: Sequence[NDArray[np.int64]],
        *,
        sequences: int,
        autocast: bool,
        grouped: bool,
        roles: Mapping[str, str],
        masked: float | None,
        optimizer: Mapping[str, Any],
        seed: int,
    ) -> None:
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self._classifies = masked is None
        kind = (
            transformers.AutoModelForMaskedLM
            if masked is not None
            else transformers.AutoModelForSequenceClassification
        )
        self.model = kind.from_pretrained(folder)
        self.cells = 0
        """Tokens and padding of all batches so far."""
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"),
            **{f"{role}_token": token for role, token in roles.items()},
        )
        tokenizer.deprecation_warnings["Asking-to-pad-a-fast-tokenizer"] = True
        collator = (
            transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=masked, seed=seed)
            if masked is not None
            else transformers.DataCollatorWithPadding(tokenizer)
        )
        labels = [{"labels": number % CLASSES} if masked is None else {} for number in range(len(ids))]
        self._padding = tokenizer.pad_token_id
        self._clock = _Clock(transformers.TrainerCallback)
        self._trainer = transformers.Trainer(
            model=self.model,
            args=_arguments(
                transformers.TrainingArguments,
                output_dir=str(work),
                per_device_train_batch_size=sequences,
                num_train_epochs=1,
                use_cpu=True,
                bf16=autocast,
                train_sampling_strategy="group_by_length" if grouped else "random",
                lr_scheduler_type="constant",
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                dataloader_pin_memory=False,
                seed=seed,
                **optimizer,
            ),
            train_dataset=[
                {"input_ids": one.tolist(), **label} for one, label in zip(ids, labels, strict=True)
            ],
            data_collator=self._counted(collator),
            callbacks=[self._clock.callback],
        )
        self._trainer.remove_callback(transformers.PrinterCallback)

    def round(self) -> float:
        """Train on every text once; return the seconds from collating the first batch to the end of the last
        step."""
        self._trainer.train()
        return self._clock.seconds

    def loss(self, shown: Sequence[NDArray[np.int64]], targets: Sequence[NDArray[np.generic]]) -> float:
        """The loss without dropout: the mean over predicted tokens, or over texts.

        Args:
            shown: the ids of each text, masked or not.
            targets: of each text the ids to predict, `NOT_PREDICTED` elsewhere, or its label.
        """
        longest = max(map(len, shown))

        def rectangle(rows: Sequence[NDArray[Any]], fill: int) -> torch.Tensor:
            return torch.tensor(
                np.stack([np.pad(row, (0, longest - len(row)), constant_values=fill) for row in rows])
            )

        self.model.eval()
        with torch.no_grad():
            loss = self.model(
                input_ids=rectangle(shown, self._padding),
                attention_mask=rectangle([np.ones_like(row) for row in shown], 0),
                labels=torch.tensor(np.stack(targets))
                if self._classifies
                else rectangle(targets, NOT_PREDICTED),
            ).loss
        self.model.train()
        return float(loss)

    def _counted(self, collator: Callable[..., Any]) -> Callable[..., Any]:
        def collate(rows: list[Any]) -> Any:
            batch = collator(rows)
            self.cells += batch["input_ids"].numel()
            return batch

        return collate


class _Clock:
    """Times an epoch from inside Trainer, which excludes work before and after training."""

    def __init__(self, base: type) -> None:
        self.seconds = 0.0
        clock = self

        class Callback(base):  # type: ignore[misc]
            """Records the start and end of an epoch."""

            def on_epoch_begin(self, *_: Any, **__: Any) -> None:
                clock.seconds = -time.perf_counter()

            def on_epoch_end(self, *_: Any, **__: Any) -> None:
                clock.seconds += time.perf_counter()

        self.callback = Callback()


def _arguments(kind: Any, **wanted: Any) -> Any:
    """TrainingArguments; versions before 5 have another name for the grouping."""
    known = inspect.signature(kind.__init__).parameters
    strategy = "train_sampling_strategy"
    if strategy not in known:
        wanted["group_by_length"] = wanted.pop(strategy) == "group_by_length"
    return kind(**wanted)
