"""Reading config.json so that every key is used, known to be of no effect, or reported."""

from collections.abc import Mapping
from typing import Any, TypeVar

from unmask.errors import CorruptCheckpoint, UnknownArchitecture

Value = TypeVar("Value")

WITHOUT_EFFECT: dict[str, str] = {
    "_name_or_path": "where it was saved from",
    "_num_labels": "labels of a task head",
    "architectures": "the class it was saved from; tensors decide what is there",
    "bos_token_id": "generation",
    "classifier_dropout": "training of a task head",
    "dtype": "the files say it themselves",
    "eos_token_id": "generation",
    "finetuning_task": "a note",
    "gradient_checkpointing": "memory in training",
    "id2label": "labels of a task head",
    "label2id": "labels of a task head",
    "model_type": "already used to find the family",
    "output_attentions": "what its own library returns",
    "output_hidden_states": "what its own library returns",
    "problem_type": "loss of a task head",
    "return_dict": "what its own library returns",
    "tie_word_embeddings": "a masked-LM head",
    "torch_dtype": "the files say it themselves",
    "transformers_version": "who wrote it",
    "use_cache": "generation",
}
"""Keys that change no output of the encoder, and what they are about."""


class ConfigReader:
    """A config.json that remembers which of its keys were read."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._read: set[str] = set()

    def take(self, key: str, default: Value) -> Value:
        """The value under ``key``, of the type of ``default``, which stands in where it is absent.

        Raises:
            CorruptCheckpoint: the value is of another type.
        """
        self._read.add(key)
        value = self._config.get(key, default)
        if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if default is not None and type(value) is not type(default):
            raise CorruptCheckpoint(
                f"config.json says {key} is {value!r}, which is no {type(default).__name__}"
            )
        return value  # type: ignore[no-any-return]

    def require(self, key: str, *choices: object) -> None:
        """Refuse any value of ``key`` but ``choices``; an absent key counts as the first.

        Raises:
            UnknownArchitecture: it has another value.
        """
        self._read.add(key)
        value = self._config.get(key, choices[0])
        if value not in choices:
            built = " or ".join(repr(choice) for choice in choices)
            raise UnknownArchitecture(f"config.json says {key} is {value!r}; only {built} is built")

    def unread(self) -> tuple[str, ...]:
        """Keys that nothing has read and that are not known to be without effect."""
        return tuple(sorted(set(self._config) - self._read - set(WITHOUT_EFFECT)))
