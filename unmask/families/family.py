"""A family: the declarations by which its checkpoints are read and written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, InvalidRequest, UnknownArchitecture
from unmask.families.heads import CLASS as DETECTOR_CLASS
from unmask.families.heads import (
    DETECTOR,
    PRUNER,
    CheckpointInfo,
    HeadLayout,
    Shapes,
    find_heads,
    has_detector,
    names_every_tensor,
    pretrained,
    write_heads,
)
from unmask.families.labels import with_labels, write_labels
from unmask.spec import ROLES, Classifier, EncoderSpec, Pooler, role_of
from unmask.spec.config import in_words_of
from unmask.spec.config_keys import Compat, ConfigKey, read_keys, write_keys
from unmask.spec.tensor_map import Rename, TensorRule, of_encoder


@dataclass(frozen=True)
class Published:
    """A checkpoint that its authors published."""

    name: str
    """Its id on the hub."""
    spec: EncoderSpec
    license: str
    paper: str
    """The paper that describes it, as authors and year."""
    pretraining: EncoderSpec | None = None
    """The encoder with the heads it was pretrained with."""
    use: str = ""
    """What it was trained for; empty for an encoder that is fine-tuned before it is used."""


@dataclass(frozen=True)
class Release:
    """A published checkpoint as listed in its family's module; None means the family's value."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of its config.json that differ from the family's ``released``."""
    paper: str | None = None
    license: str | None = None
    roles: tuple[str, ...] | None = None
    """Roles of the heads it was pretrained with; empty if unknown."""
    use: str = ""
    """What it was trained for, see `Published.use`."""


SEARCH = "search"
SEARCH_LANGUAGES = "search in many languages"
LATE = "search with one vector for each token"
"""What several families' releases are trained for."""


def number_of_layer(spec: EncoderSpec, weights: int) -> str:
    """The number of a layer, which most layouts use as its name."""
    return str(weights)


CLASSES: Mapping[frozenset[str], str] = {
    frozenset(): "Model",
    frozenset({"masked"}): ROLES["masked"].transformers_class,
    frozenset({"masked", "next_sentence"}): "ForPreTraining",
    frozenset({"masked", "sentence_order"}): "ForPreTraining",
    **{frozenset({name}): role.transformers_class for name, role in ROLES.items() if role.transformers_class},
}
"""The suffix of the `transformers` class that has these heads."""


@dataclass(frozen=True, eq=False)
class Family:
    """One line of encoders that share a config and a layout of tensors.

    A family without a replaced-token detection head is given one, see `unmask.families.heads`.
    """

    name: str
    model_types: tuple[str, ...]
    """Values of ``model_type`` in config.json; the first is the one written."""
    stem: str
    """The prefix of its class names."""
    paper: str
    keys: tuple[ConfigKey, ...]
    """The keys of config.json that decide outputs."""
    encoder_rows: tuple[TensorRule, ...]
    """The names of the encoder's tensors; those of heads are in ``heads``."""
    spec: Callable[..., EncoderSpec]
    """The encoder, without heads, from the arguments that ``keys`` make."""
    prefix: str
    """The prefix of the encoder's tensors in checkpoints saved with a head."""
    heads: tuple[HeadLayout, ...] = ()
    releases: tuple[Release, ...] = ()
    released: Mapping[str, Any] = field(default_factory=dict)
    """Keys of every release's config.json that differ from the defaults, except the padding id 0."""
    roles: tuple[str, ...] = ("masked",)
    """Roles of the heads that releases were pretrained with."""
    license: str = "Apache-2.0"
    """Of releases."""
    parts: Callable[[CheckpointInfo], EncoderSpec] = lambda info: info.encoder
    """Adds optional parts, other than heads and a pooler, whose tensors a checkpoint has."""
    distinguishing_keys: tuple[str, ...] = ()
    """Keys of config.json that distinguish it from another family with the same ``model_type``."""
    distinguishing_values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By ``model_type``: values of config.json that distinguish it from another family with that type."""
    distinguishing_text: str = ""
    """What a value of config.json contains and that of another family with those keys does not."""
    inner_configs: Mapping[str, str] = field(default_factory=dict)
    """By ``model_type`` of checkpoints of several towers: the key of config.json that holds the encoder's own
    keys. Files that are written hold the encoder alone."""
    other_prefixes: tuple[str, ...] = ()
    """The prefix of older checkpoints, instead of ``prefix``; read, never written."""
    outside_prefix: tuple[str, ...] = ("heads.",)
    """Prefixes of our names that such checkpoints store outside ``prefix``."""
    layer_name: Callable[[EncoderSpec, int], str] = number_of_layer
    """The value of ``{l}`` in their names for the set of weights with that index."""
    classes: Mapping[frozenset[str], str] = field(default_factory=lambda: CLASSES)
    """The suffixes of class names, by the roles of the heads."""
    causal_class: str = "ForCausalLM"
    """The suffix of the class with an MLM head whose encoder attends causally."""
    linear_modules: tuple[TensorRule, ...] = ()
    """Names of linear layers in the classes of `transformers`, where its files join several in one tensor.
    Adapters name them."""
    hf_difference: str = ""
    """What ``compat="hf"`` changes; empty if nothing."""

    @property
    def distinctions(self) -> int:
        """How much it asks of a config.json besides its ``model_type``."""
        keys, values = len(self.distinguishing_keys), len(self.distinguishing_values)
        return len(self.distinguishing_text) + keys + values

    def describes(self, config: Mapping[str, object]) -> bool:
        """Whether a config.json is of this family, if it is of none that is distinguished from it."""
        model_type = config.get("model_type")
        values = self.distinguishing_values.get(str(model_type), {})
        return (
            model_type in self.model_types
            and all(key in config for key in self.distinguishing_keys)
            and all(config.get(key) == value for key, value in values.items())
            and (not self.distinguishing_text or self.distinguishing_text in str(dict(config)))
        )

    def encoder_config(self, config: JsonSettings) -> JsonSettings:
        """The encoder's own config.json: the whole, or one of its objects, see `inner_configs`.

        Raises:
            CorruptCheckpoint: there is no such object.
        """
        name = self.inner_configs.get(str(config.values.get("model_type")))
        if name is None:
            return config
        keys = config.get_optional(name, dict)
        if keys is None:
            raise CorruptCheckpoint(
                f"{config.name} says model_type is {config.values['model_type']} and has no {name}, which "
                "holds the keys of the tower that reads text; add it, or load a folder of that tower alone"
            )
        return JsonSettings(f"{config.name}'s {name}", {**keys, "model_type": self.model_types[0]})

    @property
    def prefixes(self) -> tuple[str, ...]:
        """All possible prefixes of the encoder's tensors."""
        return (self.prefix, *self.other_prefixes)

    @property
    def head_layouts(self) -> tuple[HeadLayout, ...]:
        """``heads``, plus those that files of every family can have."""
        detector = () if has_detector(self.encoder_rows, self.heads) else (DETECTOR,)
        pruner = () if names_every_tensor(self.encoder_rows) else (PRUNER,)
        return (*self.heads, *detector, *pruner)

    def detector(self, encoder: EncoderSpec) -> Classifier | None:
        """The replaced-token detection head that its files hold on this encoder; None if they hold any."""
        layout = next((candidate for candidate in self.head_layouts if "replaced" in candidate.roles), None)
        if layout is None:
            return None
        head = layout.make(CheckpointInfo(encoder, {}, JsonSettings(f"the family {self.name}", {})), 1)
        assert isinstance(head, Classifier)
        return head

    @property
    def tensor_map(self) -> tuple[TensorRule, ...]:
        """The names of all tensors, of every encoder of the family."""
        return (*self.encoder_rows, *(row for head in self.head_layouts for row in head.rows))

    def tensor_map_of(self, encoder: EncoderSpec) -> tuple[TensorRule, ...]:
        """The names of the tensors of this encoder."""
        return of_encoder(self.tensor_map, encoder)

    def module_map_of(self, encoder: EncoderSpec) -> tuple[TensorRule, ...]:
        """The names of the modules of its classes, which are those of tensors except for `linear_modules`."""
        return (*self.linear_modules, *self.tensor_map_of(encoder))

    def read(self, config: JsonSettings, compat: Compat) -> EncoderSpec:
        """The spec of a config.json, without heads.

        Raises:
            CorruptCheckpoint: a value of the wrong type, or outside its range.
            UnknownArchitecture: a value that is not supported.
        """
        try:
            return self.spec(**read_keys(self.keys, config, compat))
        except UnknownArchitecture as error:
            raise UnknownArchitecture(in_words_of(config.values, str(error))) from None
        except (CorruptCheckpoint, InvalidRequest) as error:
            raise CorruptCheckpoint(in_words_of(config.values, str(error))) from None

    @cached_property
    def published(self) -> tuple[Published, ...]:
        """The checkpoints that its authors published."""
        return tuple(map(self._publish, self.releases))

    def _publish(self, release: Release) -> Published:
        encoder = self.from_config(**{"pad_token_id": 0, **self.released, **release.config})
        roles = self.roles if release.roles is None else release.roles
        return Published(
            release.name,
            encoder,
            release.license or self.license,
            release.paper or self.paper,
            pretrained(encoder, self.heads, *roles) if roles else None,
            release.use,
        )

    def from_config(self, **keys: Any) -> EncoderSpec:
        """The spec, without heads, of a config.json with these keys."""
        return self.read(JsonSettings("config.json", keys), "published")

    def detect_heads(self, encoder: EncoderSpec, shapes: Shapes, config: JsonSettings) -> EncoderSpec:
        """Add the heads whose tensors a checkpoint has, and remove optional parts that it lacks."""
        poolers = [
            row.theirs for row in self.encoder_rows if isinstance(row, Rename) and row.ours == "pooler.dense"
        ]
        pooler = (encoder.pooler or Pooler()) if any(f"{name}.weight" in shapes for name in poolers) else None
        info = CheckpointInfo(replace(encoder, pooler=pooler), shapes, config)
        heads = find_heads(self.head_layouts, info)
        return replace(self.parts(info), heads=tuple(with_labels(head, config) for head in heads))

    def write(self, encoder: EncoderSpec) -> Mapping[str, Any]:
        """The config.json of a spec: the keys that decide outputs, ``architectures`` and ``model_type``."""
        return {
            "architectures": self._architectures(encoder),
            "model_type": self.model_types[0],
            **write_keys(self.keys, encoder),
            **write_heads(self.head_layouts, encoder),
            **{key: value for head in encoder.heads for key, value in write_labels(head).items()},
        }

    def _architectures(self, encoder: EncoderSpec) -> list[str]:
        if DETECTOR in self.head_layouts and any(role_of(head) == "replaced" for head in encoder.heads):
            return [self.stem + DETECTOR_CLASS]
        if encoder.causal and {role_of(head) for head in encoder.heads} == {"masked"}:
            return [self.stem + self.causal_class]
        return architectures(self.stem, encoder, self.classes)


def architectures(stem: str, spec: EncoderSpec, classes: Mapping[frozenset[str], str] = CLASSES) -> list[str]:
    """The value of ``architectures`` in config.json: the class of `transformers` that reads all of it."""
    roles = frozenset(role_of(head) for head in spec.heads)
    return [stem + classes.get(roles, classes[frozenset()])]


__all__ = [
    "CLASSES",
    "LATE",
    "SEARCH",
    "SEARCH_LANGUAGES",
    "CheckpointInfo",
    "Compat",
    "Family",
    "HeadLayout",
    "Published",
    "Release",
    "Shapes",
    "architectures",
    "number_of_layer",
]
