"""EmbeddingGemma 2's tower of text: heads of two sizes, windows of every size, gates, activations."""

from dataclasses import replace

from tests.contracts.cases import Case

IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}
SMALL = IDS | {
    "hidden_size": 36,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "global_head_dim": 20,
    "num_global_key_value_heads": 1,
    "intermediate_size": 11,
    "num_hidden_layers": 4,
    "sliding_window_pattern": 3,
    "sliding_window": 3,
    "hidden_size_per_layer_input": 9,
    "embedding_dim": 13,
    "initializer_range": 0.6,
}
TINY = SMALL | {
    "hidden_size": 4,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 2,
    "global_head_dim": 2,
    "intermediate_size": 3,
    "num_hidden_layers": 1,
    "hidden_size_per_layer_input": 1,
    "embedding_dim": 4,
}
FIRST_WHOLE = {"layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"]}
STRETCHED = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 77.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
    },
}


def uneven(model):
    """Factors of layers are no parameters, and all 1 in a new model."""
    for number, layer in enumerate(model.layers):
        layer.layer_scalar.fill_(1.3 - 0.2 * number)


CASES = [
    Case("EmbeddingGemma2TextModel", SMALL),
    Case("EmbeddingGemma2TextModel", SMALL | {"sliding_window": 1}, "narrow", lengths=(130, 3, 77, 64)),
    Case("EmbeddingGemma2TextModel", SMALL | FIRST_WHOLE | {"attention_bias": True}, "the first reads all"),
    Case("EmbeddingGemma2TextModel", SMALL | STRETCHED | {"sliding_window": 200}, "stretched"),
    Case(
        "EmbeddingGemma2TextModel",
        SMALL | {"per_layer_config": {key: {"head_dim": 8, "num_key_value_heads": 4} for key in "23"}},
        "sizes by layer",
    ),
    Case("EmbeddingGemma2TextModel", TINY | {"hidden_activation": "silu", "rms_norm_eps": 0.01}, "one layer"),
]
CASES = [replace(case, prepare=uneven) for case in CASES]
