"""Keys of config.json as a table that is read in both directions, as the tensor map is for tensors.

A family's module lists `Key`, `Fixed` and `KeyGroup` values. `read_keys` makes the arguments of the module's
``spec`` function from a config.json, and `write_keys` makes a config.json from an encoder, so every key that
is read is also written.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, InvalidRequest, UnknownArchitecture, quoted
from unmask.spec.attention import SoftmaxAttention
from unmask.spec.check import (
    MOST_LAYERS,
    require_at_least,
    require_deviation,
    require_eps,
    require_share,
    require_size,
)
from unmask.spec.encoder import EncoderSpec

Compat = Literal["published", "hf"]
"""The outputs of the authors' own code, or those of `transformers`."""


Arguments = Mapping[str, Any]
"""Arguments of a family's ``spec`` function by name."""


@dataclass(frozen=True)
class Field:
    """An argument of most families: where an encoder holds it, and its valid range."""

    of: Callable[[EncoderSpec], Any]
    check: Callable[[str, Any], None] = lambda name, value: None


def softmax_of(encoder: EncoderSpec) -> SoftmaxAttention:
    """The attention of layer 0 of an encoder whose layers all have softmax attention."""
    mixer = encoder.layers[0].mixer
    assert isinstance(mixer, SoftmaxAttention)
    return mixer


def _positions(encoder: EncoderSpec) -> int:
    assert encoder.embedding.positions is not None
    return encoder.embedding.positions.rows


FIELDS: Mapping[str, Field] = {
    "activation": Field(lambda encoder: getattr(encoder.layers[0].feedforward, "activation", None)),
    "attention_dropout": Field(lambda encoder: softmax_of(encoder).dropout, require_share),
    "dropout": Field(lambda encoder: encoder.layers[0].dropout, require_share),
    "embedding_dropout": Field(lambda encoder: encoder.embedding.dropout, require_share),
    "embedding_width": Field(lambda encoder: encoder.embedding.width, require_size),
    "eps": Field(lambda encoder: getattr(encoder.layers[0].norm, "eps", None), require_eps),
    "feedforward": Field(lambda encoder: encoder.layers[0].feedforward.width, require_size),
    "head_width": Field(lambda encoder: encoder.layers[0].mixer.head_width, require_size),
    "heads": Field(lambda encoder: encoder.layers[0].mixer.heads, require_size),
    "init_std": Field(lambda encoder: encoder.init_std, require_deviation),
    "layers": Field(lambda encoder: len(encoder.layers), partial(require_size, most=MOST_LAYERS)),
    "padding_id": Field(lambda encoder: encoder.embedding.padding_id),
    "positions": Field(_positions, require_size),
    "segments": Field(lambda encoder: encoder.embedding.segments, partial(require_size, least=0)),
    "trained_tokens": Field(lambda encoder: encoder.trained_tokens, partial(require_at_least, least=1)),
    "vocabulary": Field(lambda encoder: encoder.embedding.vocabulary, require_size),
    "width": Field(lambda encoder: encoder.width, require_size),
}
"""Arguments of ``spec`` by name; a family's own are `Key.field` values of its table."""


@dataclass(frozen=True)
class Key:
    """One key of config.json that gives one argument of the family's ``spec``."""

    name: str
    argument: str
    default: Any = None
    """The value of an absent key. Its type is the type of the values; None: a whole number, or null."""
    values: Mapping[str, Any] | None = None
    """For a choice: the value in config.json -> ours; the first name of each of ours is written."""
    older: str = ""
    """The key's name in earlier config.json files; read, never written."""
    overriding: str = ""
    """A key that takes precedence if present; read, never written."""
    field: Field | None = None
    """None: the field in `FIELDS`."""

    @property
    def _field(self) -> Field:
        return self.field or FIELDS[self.argument]

    def read(self, config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
        """The argument from a config.json."""
        if self.values is not None:
            config.require_one_of(self.name, *dict.fromkeys((self.default, *self.values)))
            return {self.argument: self.values[config.get(self.name, self.default)]}
        if self.default is None:
            name, value = self.name, config.get_optional(self.name, int)
        else:
            # The last of these names that is present decides.
            name, value = self.name, self.default
            for other in (self.older, self.name, self.overriding):
                value = config.get(other, value) if other else value
                name = other if other in config.values else name
        if value is not None:
            in_range(config, name, value, self._field.check)
        return {self.argument: value}

    def write(self, encoder: EncoderSpec) -> Mapping[str, Any]:
        """The key as a config.json has it."""
        value = self._field.of(encoder)
        return {self.name: value if self.values is None else name_of(self.values, value)}


@dataclass(frozen=True)
class Fixed:
    """A key of which only these values are supported; the first is the default of an absent key."""

    name: str
    built: tuple[object, ...]
    written: bool = False
    """Whether the first value is written."""

    def read(self, config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
        """Gives no argument; any other value is refused."""
        config.require_one_of(self.name, *self.built)
        return {}

    def write(self, encoder: EncoderSpec) -> Mapping[str, Any]:
        """The key as a config.json has it."""
        return {self.name: self.built[0]} if self.written else {}


@dataclass(frozen=True)
class KeyGroup:
    """Keys that determine some arguments only in combination: a function for each direction."""

    read: Callable[[JsonSettings, Arguments, Compat], Arguments]
    """The arguments, from a config.json, the arguments of earlier keys, and the `Compat` mode."""
    write: Callable[[EncoderSpec], Mapping[str, Any]]


ConfigKey = Key | Fixed | KeyGroup


def only(name: str, *built: object, written: bool = False) -> Fixed:
    """A key whose other values change outputs or tensors and are refused."""
    return Fixed(name, built, written)


def changed(keys: Sequence[ConfigKey], **defaults: Any) -> tuple[ConfigKey, ...]:
    """A table with other defaults, by the keys' names; a default of ``...`` leaves the key out."""
    changes = []
    for key in keys:
        default = defaults.pop(key.name, key) if isinstance(key, Key) else key
        if default is not ...:
            changes.append(key if default is key else replace(key, default=default))  # type: ignore[arg-type]
    assert not defaults, f"no such keys: {', '.join(defaults)}"
    return tuple(changes)


def read_keys(keys: Sequence[ConfigKey], config: JsonSettings, compat: Compat) -> dict[str, Any]:
    """The arguments of a family's ``spec`` from a config.json.

    Raises:
        CorruptCheckpoint: a value of the wrong type, or outside its range.
        UnknownArchitecture: a value that is not supported.
    """
    arguments: dict[str, Any] = {}
    for key in keys:
        arguments |= key.read(config, arguments, compat)
    return arguments


def write_keys(keys: Sequence[ConfigKey], encoder: EncoderSpec) -> dict[str, Any]:
    """The keys of config.json that describe an encoder."""
    return {name: value for key in keys for name, value in key.write(encoder).items()}


def in_range(config: JsonSettings, name: str, value: Any, check: Callable[[str, Any], None]) -> None:
    """Check the value of a key.

    Raises:
        CorruptCheckpoint: it is outside its range; the message names the key.
    """
    try:
        check(f"{config.name} says {name}", value)
    except InvalidRequest as error:
        raise CorruptCheckpoint(str(error)) from None


def name_of(values: Mapping[str, Any], ours: object) -> str:
    """The first name of one of our values in a table of choices.

    Raises:
        UnknownArchitecture: the table has none, so a config.json of the family cannot express it.
    """
    for name, value in values.items():
        if value == ours:
            return name
    raise UnknownArchitecture(
        f"a config.json of this family cannot say {quoted(ours)}; it can say {', '.join(values)}"
    )
