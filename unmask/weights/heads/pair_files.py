"""Read and write the definition of a cross-encoder, which scores pairs of texts. Free of torch.

The logit is that of the encoder's own classifier, or of dense layers after pooling.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from unmask.base.json_settings import JsonSettings
from unmask.errors import quoted
from unmask.spec import Dense, PairScore
from unmask.weights.heads.sentence_modules import (
    ST_CONFIG,
    TRANSFORMER_CONFIG,
    Module,
    ModuleFile,
    NotKnown,
    OpenFile,
    layer_files,
    modes_of,
    module_files,
    read_layers,
    to_json,
    transformer_settings,
    write_pooling,
)

ACTIVATIONS: dict[str, Literal["identity", "sigmoid"]] = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": "identity",
}

SHARED_QUERY = "shared_query"
"""The key of config_sentence_transformers.json for `PairScore.shared_query`. Where it is set, modules.json
names a class that other libraries do not have, so that they refuse the folder: they would let queries attend
to documents, and give other scores."""

OLD_KEY = "sbert_ce_default_activation_function"
"""The key of config.json by which versions before 4 named the activation."""


def names_activation(config: JsonSettings) -> bool:
    """Whether config.json is that of a cross-encoder: whether it names the activation of its logits."""
    section = config.get_optional("sentence_transformers", dict) or {}
    return "activation_fn" in section or config.get_optional(OLD_KEY, str) is not None


def read_pair(
    files: Mapping[str, bytes],
    modules: Sequence[Module],
    config: JsonSettings,
    open_file: OpenFile,
    classes: int | None,
) -> tuple[PairScore, tuple[str, ...]]:
    """The definition in a folder, and the folder of each layer's weights.

    Args:
        files: config_sentence_transformers.json, if there is one.
        modules: those of modules.json; none if there is no such file.
        config: config.json.
        open_file: opens a file of the folder.
        classes: the number of classes of the encoder's classifier of texts; None if it has none.

    Raises:
        NotKnown: it asks for something that is not built.
    """
    settings = JsonSettings.parse(files.get(ST_CONFIG), ST_CONFIG)
    default = settings.get_optional("default_prompt_name", str)
    if default is not None and (settings.get_optional("prompts", dict) or {}).get(default):
        raise NotKnown(
            f"the checkpoint puts its prompt {quoted(default)} before every pair, which is not built"
        )
    kinds = [module.kind for module in modules]
    if shared := settings.get_optional(SHARED_QUERY, bool) or False:
        kinds = ["Transformer" if kind == "SharedQueryTransformer" else kind for kind in kinds]
    if kinds in ([], ["Transformer"]):
        if classes is None:
            raise NotKnown("the checkpoint is a cross-encoder without a classifier of texts")
        return PairScore(classes, _activation(settings, config, classes), shared_query=shared), ()
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise NotKnown(f"a score by the modules {', '.join(kinds)} is not built")
    output_layers = read_layers(modules[2:], open_file, "sentence_embedding")
    last = output_layers.layers[-1] if output_layers.layers else None
    if not isinstance(last, Dense):
        raise NotKnown("the last module of the cross-encoder is not a Dense module")
    modes, activation = modes_of(modules[1].config(open_file)), _activation(settings, config, last.width)
    return PairScore(last.width, activation, modes, output_layers.layers, shared), output_layers.folders


def _activation(settings: JsonSettings, config: JsonSettings, labels: int) -> Literal["identity", "sigmoid"]:
    """What makes scores of logits; a sigmoid of a single logit, unless a file says otherwise."""
    section = config.get_optional("sentence_transformers", dict) or {}
    activation = (
        settings.get_optional("activation_fn", str)
        or section.get("activation_fn")
        or config.get_optional(OLD_KEY, str)
    )
    if activation is None:
        return "sigmoid" if labels == 1 else "identity"
    if activation not in ACTIVATIONS:
        raise NotKnown(f"the cross-encoder asks for the activation {quoted(activation)}, which is not built")
    return ACTIVATIONS[activation]


def write_pair(
    head: PairScore, width: int, max_tokens: int | None, source_files: Mapping[str, bytes]
) -> dict[str, bytes]:
    """The files that define the output for `sentence-transformers`, without those of weights.

    A classifier of one label that applies a sigmoid needs none, and gets none if it had none.
    """
    if not source_files and head.pooling is None and head.activation == "sigmoid" and not head.shared_query:
        return {}
    encoder = "SharedQueryTransformer" if head.shared_query else "Transformer"
    modules: list[ModuleFile] = [(encoder, "", None)]
    if head.pooling is not None:
        layers = layer_files(head.projections, 2, width * len(head.pooling), "sentence_embedding")
        kind, path, config = layers[-1]
        features = {"module_input_name": "sentence_embedding", "module_output_name": "scores"}
        layers[-1] = (kind, path, {**(config or {}), **features})
        modules += [("Pooling", "1_Pooling", write_pooling(head.pooling, width)), *layers]
    form = (
        ("sequence-classification", "logits", "scores")
        if head.pooling is None
        else ("feature-extraction", "last_hidden_state", "token_embeddings")
    )
    settings = dict(JsonSettings.parse(source_files.get(ST_CONFIG), ST_CONFIG).values)
    names = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    settings = {"prompts": {}, "default_prompt_name": None} | settings
    settings |= {"model_type": "CrossEncoder", "activation_fn": names[head.activation]}
    settings.pop(SHARED_QUERY, None)
    if head.shared_query:
        settings[SHARED_QUERY] = True
    files = module_files(modules)
    files |= {TRANSFORMER_CONFIG: transformer_settings(*form, max_tokens), ST_CONFIG: settings}
    return {name: to_json(value) for name, value in files.items()}
