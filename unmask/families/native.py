"""Any supported encoder, in unmask's own format: config.json contains the spec itself, field by field.

This family is for combinations of parts that no published family has. Tensors have unmask's own names. Not in
`transformers`.
"""

from collections.abc import Mapping
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint
from unmask.families.family import Family, Shapes, architectures
from unmask.spec import EncoderSpec
from unmask.spec.config_keys import Arguments, Compat, KeyGroup, only, write_keys
from unmask.spec.plain import from_plain, to_plain
from unmask.spec.tensor_map import Same


def _read(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    plain = config.get_optional("encoder", dict)
    if plain is None:
        raise CorruptCheckpoint(f"{config.name} has no encoder; for model_type unmask it holds the spec")
    return {"encoder": from_plain(EncoderSpec, plain, f"{config.name}'s encoder")}


KEYS = (
    only("is_decoder", False),
    KeyGroup(_read, lambda encoder: {"encoder": to_plain(encoder)}),
)

ROWS = (Same(),)


def spec(*, encoder: EncoderSpec) -> EncoderSpec:
    """The encoder as config.json describes it, with its heads."""
    return encoder


class Native(Family):
    """The config is complete, so an extra or missing tensor is an error."""

    def detect_heads(self, encoder: EncoderSpec, shapes: Shapes, config: JsonSettings) -> EncoderSpec:
        """The encoder as it is."""
        return encoder

    def write(self, encoder: EncoderSpec) -> Mapping[str, Any]:
        """The spec says all, names of classes included, so no other key repeats them."""
        return {
            "architectures": architectures(self.stem, encoder, self.classes),
            "model_type": self.model_types[0],
            **write_keys(self.keys, encoder),
        }


NATIVE = Native(
    name="unmask",
    model_types=("unmask",),
    stem="Unmask",
    paper="",
    keys=KEYS,
    encoder_rows=ROWS,
    spec=spec,
    prefix="",
)


def to_config(encoder: EncoderSpec) -> Mapping[str, Any]:
    """The keys of config.json for any spec, as input to `unmask.weights.write.new_checkpoint`."""
    return NATIVE.write(encoder)
