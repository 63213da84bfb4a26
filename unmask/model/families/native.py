"""Any encoder that can be built, in a format of our own: config.json holds the spec itself, field by field.

For combinations of parts that no published family has. Tensors go by the names they have here. Not in
`transformers`.
"""

from collections.abc import Mapping
from typing import Any

from unmask.errors import CorruptCheckpoint
from unmask.model.families.family import Compat, Family, Shapes, architectures
from unmask.model.spec import EncoderSpec
from unmask.model.spec.plain import of_plain, to_plain
from unmask.model.spec.rows import Same
from unmask.settings import Settings


def read(config: Settings, compat: Compat) -> EncoderSpec:
    """The spec that ``encoder`` in a config.json describes, with its heads."""
    config.require("is_decoder", False)
    found = config.maybe("encoder", dict)
    if found is None:
        raise CorruptCheckpoint(f"{config.name} has no encoder; for model_type unmask it holds the spec")
    return of_plain(EncoderSpec, found, f"{config.name}'s encoder")


def adapt(encoder: EncoderSpec, shapes: Shapes, config: Settings) -> EncoderSpec:
    """As it is: the config says all, and a tensor too many or too few is an error."""
    return encoder


def write(encoder: EncoderSpec) -> Mapping[str, Any]:
    """The config.json keys of any spec."""
    return {
        "architectures": architectures("Unmask", encoder),
        "encoder": to_plain(encoder),
        "model_type": "unmask",
    }


to_config = write
"""The keys of config.json for any spec, to be given to `unmask.model.weights.fresh.fresh`."""

NATIVE = Family(
    name="unmask",
    model_types=("unmask",),
    paper="",
    read=read,
    adapt=adapt,
    write=write,
    prefix="",
    rows=(Same(),),
    published=(),
)
