"""Read and write what folders of Provence and OpenProvence add to a cross-encoder: a second head, which says
which tokens of a document a query needs. Free of torch.

Provence (Chirkova et al. 2025) has the layout of DeBERTa v3 with one more tensor, and a ``model_type`` of its
own. OpenProvence nests the config.json and the tensors of any cross-encoder, and names the head apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint
from unmask.spec import Classifier, EncoderSpec, Pruning
from unmask.spec.check import require_size
from unmask.spec.config_keys import Compat, in_range
from unmask.weights.tensors import StoredTensor

PROVENCE_TYPES = ("Provence", "provence")
"""Values of ``model_type`` of the folders of Provence, whose encoder is a DeBERTa v3."""

OPEN_TYPE = "open_provence"
"""The ``model_type`` of folders of OpenProvence."""

BASE, THRESHOLD = "base_model_config", "default_threadshold"
"""Keys of its config.json: that of the cross-encoder, and the threshold, in its authors' spelling."""

RANKING, HEAD, OUR_HEAD = "ranking_model.", "pruning_head.classifier.", "token_classifier."
"""How its names of the cross-encoder's tensors and of the head's begin, and the names of the latter here."""


@dataclass(frozen=True)
class PruningFolder:
    """What a folder says of a head that prunes; nothing if it is in the layout of a family."""

    stated: Mapping[str, Any] = field(default_factory=dict)
    """The contents of config.json, of which that of the encoder is a part; empty if it is all of it."""
    rule: Pruning | None = None

    def renamed(self, tensors: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
        """The tensors under the names of the encoder's family."""
        if not self.stated:
            return tensors
        return {_our_name(name): replace(tensor, key=tensor.key or name) for name, tensor in tensors.items()}

    def of(self, spec: EncoderSpec, compat: Compat) -> tuple[EncoderSpec, Pruning | None]:
        """The encoder with what its head reads, and how sentences are chosen; None without such a head.

        The head of OpenProvence was trained on the last of the states that `transformers` 4 lists, which are
        those before the final norm where there is one. `transformers` 5 lists the states after it, which
        ``compat="hf"`` reproduces.
        """
        if not any(isinstance(head, Classifier) and head.role == "prune" for head in spec.heads):
            return spec, None
        if self.stated and spec.final_norm is not None and compat == "published":
            spec = replace(spec, heads=tuple(map(_before_norm, spec.heads)))
        return spec, self.rule or Pruning()


def _our_name(name: str) -> str:
    return OUR_HEAD + name.removeprefix(HEAD) if name.startswith(HEAD) else name.removeprefix(RANKING)


def _before_norm(head: Any) -> Any:
    return replace(head, reads="unnormed") if getattr(head, "role", None) == "prune" else head


def read_pruning(config: JsonSettings) -> tuple[JsonSettings, PruningFolder]:
    """The encoder's config.json, which may be a part of the folder's, and what that says of pruning.

    Raises:
        CorruptCheckpoint: a value has the wrong type, or the encoder is not described.
    """
    model_type = config.values.get("model_type")
    if model_type in PROVENCE_TYPES:
        return JsonSettings(config.name, {**config.values, "model_type": "deberta-v2"}), PruningFolder()
    if model_type != OPEN_TYPE:
        return config, PruningFolder()
    encoder = config.get_optional(BASE, dict)
    if not encoder or "model_type" not in encoder:
        raise CorruptCheckpoint(
            f"{config.name} has no {BASE} with a model_type, which describes the encoder; copy the "
            "config.json of the model that it was trained from there"
        )
    threshold = config.get(THRESHOLD, Pruning.threshold)
    most = config.get("max_length", 512)
    in_range(config, "max_length", most, require_size)
    if not 0 <= threshold <= 1:
        raise CorruptCheckpoint(f"{config.name} says {THRESHOLD} is {threshold}; it must be from 0 to 1")
    config.require_one_of("num_pruning_labels", 2)
    names = ("architectures", "id2label", "label2id")
    plain = {key: value for key, value in encoder.items() if key not in names}
    rule = Pruning("mean", float(threshold), most)
    return JsonSettings(f"{BASE} in {config.name}", plain), PruningFolder(config.values, rule)


def written_pruning(
    stated: Mapping[str, Any], encoder: Mapping[str, Any], names: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config.json and the tensors of a folder of OpenProvence.

    Args:
        stated: of the folder that it was read from.
        encoder: the encoder's config.json.
        names: the tensors by their names in the encoder's family.
    """
    plain = {key: value for key, value in encoder.items() if key != "architectures"}
    tensors = {
        HEAD + name.removeprefix(OUR_HEAD) if name.startswith(OUR_HEAD) else RANKING + name: tensor
        for name, tensor in names.items()
    }
    return {**stated, BASE: plain}, tensors
