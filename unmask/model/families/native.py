"""Any encoder that can be built, in a format of our own: config.json holds the spec itself, field by field.

For combinations of parts that no published family has. Tensors go by the names they have here. Not in
`transformers`.
"""

from collections.abc import Mapping
from typing import Any

from unmask.errors import CorruptCheckpoint
from unmask.model.families.family import Family, Shapes, architectures
from unmask.model.spec import EncoderSpec
from unmask.model.spec.compat import Compat
from unmask.model.spec.config_keys import Arguments, KeyGroup, only, write_keys
from unmask.model.spec.plain import from_plain, to_plain
from unmask.model.spec.tensor_map import Same
from unmask.settings import JsonSettings


def _read(config: JsonSettings, arguments: Arguments, compat: Compat) -> Arguments:
    found = config.get_optional("encoder", dict)
    if found is None:
        raise CorruptCheckpoint(f"{config.name} has no encoder; for model_type unmask it holds the spec")
    return {"encoder": from_plain(EncoderSpec, found, f"{config.name}'s encoder")}


KEYS = (
    only("is_decoder", False),
    KeyGroup(_read, lambda encoder: {"encoder": to_plain(encoder)}),
)

ROWS = (Same(),)


def spec(*, encoder: EncoderSpec) -> EncoderSpec:
    """The encoder as config.json describes it, with its heads."""
    return encoder


class Native(Family):
    """The config says all, and a tensor too many or too few is an error."""

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
    """The keys of config.json for any spec, to be given to `unmask.model.weights.new_checkpoint.fresh`."""
    return NATIVE.write(encoder)
